//! Time by cause, as text, JSON and CSV: figure 4 of the DCPI paper.

use stalls::{Cause, TimeBreakdown, Wait};

use super::Style;
use super::fields::Fraction;
use super::quantity::percent;
use super::table::Table;
use super::text::line;
use std::io::{self, Write};

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
    let (low, high) = dynamic(sums);
    rows.push(("= waits".to_owned(), share(low), share(high)));
    let best = |name: &str, samples: f64| {
        let (low, high) = in_best_case(sums, samples);
        (name.to_owned(), share(low), share(high))
    };
    rows.extend(
        sums.waits
            .iter()
            .map(|(what, samples)| best(&format!("waits for {}", wait(*what)), *samples)),
    );
    rows.push(best("= limits of the pipeline", sums.waits.values().sum()));
    rows.push(best("execution", sums.execution));
    rows.push(one("net sampling error", sums.error));
    rows.push(one("not known: nothing tells how often it ran", sums.unknown));
    rows
}

/// The limits of a part of the best case: all of it is longer or shorter by one factor.
fn in_best_case(sums: &TimeBreakdown, samples: f64) -> (f64, f64) {
    let all = sums.execution + sums.waits.values().sum::<f64>();
    let part = if all > 0.0 { samples / all } else { 0.0 };
    (sums.best_case.0 * part, sums.best_case.1 * part)
}

/// The limits of the time beyond the best case: what the best case leaves.
fn dynamic(sums: &TimeBreakdown) -> (f64, f64) {
    let told = sums.samples - sums.unknown;
    let limit = |best: f64| (told - best).clamp(0.0, told.max(0.0));
    match sums.best_case.0 == sums.best_case.1 {
        // Executions are known.
        true => {
            let value = sums.dynamic + sums.unexplained - sums.gain;
            (value, value)
        }
        false => (limit(sums.best_case.1), limit(sums.best_case.0)),
    }
}

/// Misses of the data cache and the data TLB together, which samples hardly tell apart.
const OF_DATA: &str = "data cache or TLB miss, together";

/// The table of the time by cause. Causes that may have taken all of the time or none are a line
/// below it, without `-v`.
pub(super) fn write(sums: &TimeBreakdown, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::default();
    table.number("at least %", "");
    table.number("at most %", "");
    table.texts("spent on");
    let mut open = Vec::new();
    for (name, low, high) in
        rows(sums).into_iter().filter(|(_, low, high)| low.abs().max(high.abs()) >= TOLD)
    {
        let is_open = low.abs() < TOLD && high > OPEN && name != OF_DATA;
        match is_open && !style.verbose {
            true => open.push(name),
            false => table.row(vec![percent(low), percent(high), name]),
        }
    }
    table.write(style, out)?;
    match open.is_empty() {
        true => Ok(()),
        false => line(style, out, 2, &format!("anything from 0 to 100 %: {}", open.join(", "))),
    }
}

/// Smallest part of all samples that has a line.
const TOLD: f64 = 0.0005;
/// Part of all samples from which on an upper limit says nothing.
const OPEN: f64 = 0.95;

crate::fields! {
    /// The parts of the time, as parts of all samples.
    #[derive(Debug)]
    pub struct Spent {
        causes: Vec<CauseEntry>;
        of_data: Range;
        /// share of the time in stalls, beyond the best case; the likeliest where executions have
        /// limits
        dynamic: f64 as Fraction, "share";
        /// the same at least
        dynamic_low: f64 as Fraction, "share";
        /// the same at most
        dynamic_high: f64 as Fraction, "share";
        /// share of the time in stalls that no cause explains
        unexplained: f64 as Fraction, "share";
        /// share by which code was faster than its best case
        gain: f64 as Fraction, "share";
        statics: Vec<StaticEntry>;
        /// share of the time of the best case without waits
        execution: f64 as Fraction, "share";
        /// the same at least
        execution_low: f64 as Fraction, "share";
        /// the same at most
        execution_high: f64 as Fraction, "share";
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
        /// the same at least
        low: f64 as Fraction, "share";
        /// the same at most
        high: f64 as Fraction, "share";
    }
}

/// The parts of the time for JSON.
pub(super) fn spent(sums: &TimeBreakdown) -> Spent {
    let share = |samples: f64| if sums.samples > 0.0 { samples / sums.samples } else { 0.0 };
    let causes = sums.causes.iter().map(|(cause, (low, high))| CauseEntry {
        name: cause.name().to_owned(),
        letter: cause.letter(),
        low: share(*low),
        high: share(*high),
    });
    let statics = sums.waits.iter().map(|(what, samples)| {
        let (low, high) = in_best_case(sums, *samples);
        StaticEntry {
            name: wait(*what),
            share: share(*samples),
            low: share(low),
            high: share(high),
        }
    });
    let (dynamic_low, dynamic_high) = dynamic(sums);
    let (execution_low, execution_high) = in_best_case(sums, sums.execution);
    Spent {
        causes: causes.collect(),
        of_data: Range { low: share(sums.of_data.0), high: share(sums.of_data.1) },
        dynamic: share(sums.dynamic + sums.unexplained - sums.gain),
        dynamic_low: share(dynamic_low),
        dynamic_high: share(dynamic_high),
        unexplained: share(sums.unexplained),
        gain: share(sums.gain),
        statics: statics.collect(),
        execution: share(sums.execution),
        execution_low: share(execution_low),
        execution_high: share(execution_high),
        sampling_error: share(sums.error),
        not_known: share(sums.unknown),
    }
}
