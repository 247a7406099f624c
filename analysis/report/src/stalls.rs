//! Time by cause, as text, JSON and CSV: figure 4 of the DCPI paper.

use std::io::{self, Write};

use stalls::{Cause, TimeBreakdown, Wait};

use super::Style;
use super::fields::Fraction;
use super::quantity::percent;
use super::text::head;

/// The reason for an instruction's wait in the best case.
pub(super) fn wait(wait: Wait) -> &'static str {
    match wait {
        Wait::Nothing => "its turn",
        Wait::Operand => "results of other instructions",
        Wait::Load => "loads that hit the first cache",
        Wait::Unit => "a unit that others keep busy",
    }
}

/// Parts of the time by name: the least and the most, as parts of all samples.
pub(super) fn rows(sums: &TimeBreakdown) -> Vec<(String, f64, f64)> {
    let share = |samples: f64| samples / sums.samples.max(f64::MIN_POSITIVE);
    let one = |name: &str, samples: f64| (name.to_owned(), share(samples), share(samples));
    let mut rows: Vec<(String, f64, f64)> = sums
        .causes
        .iter()
        .map(|(cause, (low, high))| (cause.to_string(), share(*low), share(*high)))
        .collect();
    if Cause::ALL.iter().filter(|cause| cause.is_of_data()).all(|of| sums.causes.contains_key(of)) {
        let (low, high) = sums.of_data;
        rows.push((OF_DATA.to_owned(), share(low), share(high)));
    }
    rows.push(one("unexplained stall", sums.unexplained));
    rows.push(one("unexplained gain", -sums.gain));
    rows.push(one("= dynamic", sums.dynamic + sums.unexplained - sums.gain));
    rows.extend(
        sums.waits
            .iter()
            .map(|(what, samples)| one(&format!("waits for {}", wait(*what)), *samples)),
    );
    rows.push(one("= static", sums.waits.values().sum()));
    rows.push(one("execution", sums.execution));
    rows.push(one("net sampling error", sums.error));
    rows.push(one("not known: memory may have taken it all", sums.unknown));
    rows
}

/// Misses of the data cache and the data TLB together, which samples hardly tell apart.
const OF_DATA: &str = "data cache or TLB miss, together";

/// Sum of dynamic, static, execution, sampling error and unknown time, as a part of all samples.
pub(super) fn total(sums: &TimeBreakdown) -> f64 {
    let all = sums.dynamic + sums.unexplained - sums.gain
        + sums.waits.values().sum::<f64>()
        + sums.execution
        + sums.error
        + sums.unknown;
    all / sums.samples.max(f64::MIN_POSITIVE)
}

/// The lines of a report's head.
pub(super) fn text(sums: &TimeBreakdown, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    let told = rows(sums).into_iter().filter(|(_, low, high)| low.abs().max(high.abs()) >= TOLD);
    for (number, (name, low, high)) in told.enumerate() {
        let range = if low == high {
            format!("{} %", percent(low))
        } else {
            format!("{} % to {} %", percent(low), percent(high))
        };
        head(
            style,
            out,
            if number == 0 { "spent on" } else { "" },
            &format!("{name:<44} {range:>18}"),
        )?;
    }
    Ok(())
}

/// Smallest part of all samples that has a line.
const TOLD: f64 = 0.0005;

crate::fields! {
    /// The parts of the time, as parts of all samples.
    #[derive(Debug)]
    pub struct Spent {
        causes: Vec<CauseEntry>;
        of_data: Range;
        /// share of the time in stalls, beyond the best case
        dynamic: f64 as Fraction, "share";
        /// share of the time in stalls that no cause explains
        unexplained: f64 as Fraction, "share";
        /// share by which code was faster than its best case
        gain: f64 as Fraction, "share";
        statics: Vec<StaticEntry>;
        /// share of the time of the best case without waits
        execution: f64 as Fraction, "share";
        /// share that is due to chance; with `dynamic`, `statics`, `execution` and `not_known` it
        /// adds up to 1
        sampling_error: f64 as Fraction, "share";
        /// share of samples that could not be explained
        not_known: f64 as Fraction, "share";
    }

    /// A cause of stalls.
    #[derive(Debug)]
    pub struct CauseEntry {
        /// a cause of stalls
        name: String;
        /// the cause's letter
        letter: char;
        /// share of the time that the cause took, at least
        low: f64 as Fraction, "share";
        /// share of the time that the cause took, at most
        high: f64 as Fraction, "share";
    }

    /// A part of the time.
    #[derive(Debug)]
    pub struct Range {
        /// share of the time in misses of the data cache and the data TLB together, at least
        low: f64 as Fraction, "share";
        /// the same at most
        high: f64 as Fraction, "share";
    }

    /// A wait.
    #[derive(Debug)]
    pub struct StaticEntry {
        /// a wait in the best case
        name: &'static str;
        /// share of the time in that wait
        share: f64 as Fraction, "share";
    }
}

/// The parts of the time for JSON.
pub(super) fn spent(sums: &TimeBreakdown) -> Spent {
    let share = |samples: f64| if sums.samples > 0.0 { samples / sums.samples } else { 0.0 };
    let causes = sums.causes.iter().map(|(cause, (low, high))| CauseEntry {
        name: cause.to_string(),
        letter: cause.letter(),
        low: share(*low),
        high: share(*high),
    });
    let statics = sums
        .waits
        .iter()
        .map(|(what, samples)| StaticEntry { name: wait(*what), share: share(*samples) });
    Spent {
        causes: causes.collect(),
        of_data: Range { low: share(sums.of_data.0), high: share(sums.of_data.1) },
        dynamic: share(sums.dynamic + sums.unexplained - sums.gain),
        unexplained: share(sums.unexplained),
        gain: share(sums.gain),
        statics: statics.collect(),
        execution: share(sums.execution),
        sampling_error: share(sums.error),
        not_known: share(sums.unknown),
    }
}
