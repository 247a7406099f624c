//! The time of one call of a procedure: its share of the command's CPU time over its counted calls.
//!
//! Events at each call would take longer than short procedures. Therefore samples of `dcpi record`
//! give the procedure's share, and calls are counted in separate runs, whose time is not used.
//! Neither does the time of the recorded runs: a timer's interrupts take up to a tenth of it, most
//! of all on virtual machines. They interrupt all parts of a program alike, so the share is that of
//! runs without them, whose CPU time `dcpi time` has measured.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use exact::Streams;
use exact::entries::Entries;
use measure::bernoulli::{wilson, z};
use measure::{Interval, tails};
use report::FunctionTime;
use serde::Deserialize;

use super::words::Words;
use query::error::AnalysisError;

/// Recordings: each is a number, and the interval is that of their mean.
const RECORDINGS: usize = 5;
/// Runs in which calls are counted: where their numbers differ, the interval holds both.
const COUNTS: usize = 2;

/// A part of what `dcpi prof --format json` says.
#[derive(Deserialize)]
struct Prof {
    events: Vec<Event>,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Event {
    name: String,
    unit: String,
    /// Samples of the command, in all its code and the kernel's.
    total: u64,
}

#[derive(Deserialize)]
struct Row {
    procedure: Option<String>,
    address: Option<String>,
    counts: std::collections::BTreeMap<String, u64>,
}

fn refused(why: impl std::fmt::Display) -> AnalysisError {
    AnalysisError::Refused(format!("--function: {why}"))
}

/// Whether each command has the procedure, asked before the runs.
///
/// # Errors
/// [`AnalysisError::Refused`] where one has none of this name, or several.
pub(super) fn check(
    (image, procedure): (&str, &str),
    commands: &[Words],
) -> Result<(), AnalysisError> {
    for words in commands {
        let image = image_of(image.as_ref(), commands.first().unwrap_or(words), words);
        Entries::find(&image, procedure).map_err(refused)?;
    }
    Ok(())
}

/// The time of a call of `procedure` of the file at `image` in runs of a command, whose CPU time
/// without samples is `cpu`, in s; `miss` is the probability with which the interval misses.
///
/// # Errors
/// [`AnalysisError::Refused`] where the procedure is not found, never called, never sampled, or
/// where sampling or counting is not allowed.
pub(super) fn time(
    (image, procedure): (&Path, &str),
    words: &Words,
    cpu: Interval,
    miss: f64,
) -> Result<FunctionTime, AnalysisError> {
    let Some((program, arguments)) = words.split_first() else {
        return Err(refused("there is no command"));
    };
    let entries = Entries::find(image, procedure).map_err(refused)?;
    let mut calls = Vec::new();
    for _ in 0..COUNTS {
        let count = entries.count((program, arguments), Streams::none()).map_err(refused)?;
        if count == 0 {
            return Err(refused(format!(
                "{procedure} of {} was not called; name a procedure that is not inlined",
                image.display()
            )));
        }
        calls.push(count as f64);
    }
    let mut all = Vec::new();
    for _ in 0..RECORDINGS {
        all.push(sampled(image, &entries, words)?);
    }
    let samples: u64 = all.iter().map(|(samples, _)| samples).sum();
    if samples == 0 {
        return Err(refused(format!("no sample is in {procedure}: it takes too little time")));
    }
    Ok(FunctionTime {
        procedure: procedure.to_owned(),
        ns: call_ns(&all, cpu, &calls, miss),
        share: share(&all, miss).value,
        calls: mean(&calls),
        samples,
    })
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The procedure's share of samples; each recording is given as its samples in the procedure and in
/// total. The interval is that of the recordings' mean, but no narrower than the sampling error
/// allows: five recordings may agree by chance.
fn share(recordings: &[(u64, u64)], miss: f64) -> Interval {
    let (own, all) = recordings.iter().fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
    let shares: Vec<f64> =
        recordings.iter().map(|(own, all)| *own as f64 / (*all).max(1) as f64).collect();
    let (n, value) = (shares.len() as f64, mean(&shares));
    let sd = (shares.iter().map(|of| (of - value).powi(2)).sum::<f64>() / (n - 1.0)).sqrt();
    let reach = tails::student_quantile(miss, n - 1.0) * sd / n.sqrt();
    let by_chance = wilson(own as f64, all as f64, z(miss));
    let reach = reach.max((by_chance.high - by_chance.low) / 2.0);
    Interval { value, low: (value - reach).max(0.0), high: (value + reach).min(1.0) }
}

/// ns of a call, by the recordings of [`share`], the CPU time of a run in s, and the calls of runs.
/// What is not known of the share and of the CPU time are errors that do not know of each other, so
/// their squares add up. How calls of different runs differ is not by chance: the interval holds
/// the fewest and the most.
fn call_ns(recordings: &[(u64, u64)], cpu: Interval, calls: &[f64], miss: f64) -> Interval {
    let share = share(recordings, miss);
    let relative = |of: Interval| (of.high - of.low) / 2.0 / of.value.max(f64::MIN_POSITIVE);
    let reach = relative(share).hypot(relative(cpu));
    let all_ns = share.value * cpu.value * 1e9;
    let most = calls.iter().copied().fold(1.0, f64::max);
    let fewest = calls.iter().copied().fold(most, f64::min).max(1.0);
    Interval {
        value: all_ns / mean(calls).max(1.0),
        low: (all_ns * (1.0 - reach) / most).max(0.0),
        high: all_ns * (1.0 + reach) / fewest,
    }
}

/// Samples in the procedure in one recorded run, and all samples of the run.
fn sampled(image: &Path, entries: &Entries, words: &Words) -> Result<(u64, u64), AnalysisError> {
    let scratch = tempfile::Builder::new()
        .prefix("dcpi-time-")
        .tempdir()
        .map_err(|error| refused(format!("cannot make a directory: {error}; see $TMPDIR")))?;
    let db = scratch.path().join("db");
    // Nothing but samples: snapshots, stacks and waits would take time for nothing.
    let record = ["record", "-n", "1", "--overhead-budget", "off"];
    let quiet = ["--edges", "off", "--stacks", "off", "--waits", "off", "-o"];
    let quiet = record.into_iter().chain(quiet).map(OsStr::new);
    let command = words.iter().map(AsRef::as_ref);
    own(quiet.chain([db.as_os_str(), OsStr::new("--")]).chain(command))?;
    let report = ["prof", "-n", "0", "--full-names", "--format", "json", "--db"].map(OsStr::new);
    let text = own(report.into_iter().chain([db.as_os_str(), image.as_os_str()]))?;
    let prof: Prof = serde_json::from_slice(&text)
        .map_err(|error| refused(format!("dcpi prof says what is not understood: {error}")))?;
    let is_time = |event: &Event| ["ns", "cycles"].contains(&event.unit.as_str());
    let Some(event) = prof.events.into_iter().find(is_time) else {
        return Err(refused("samples here stand for no time; see the events of dcpi record"));
    };
    let is_asked = |row: &&Row| {
        let address = row.address.as_deref().and_then(|text| text.strip_prefix("0x"));
        let address = address.and_then(|hex| u64::from_str_radix(hex, 16).ok());
        address
            .map_or(row.procedure.as_deref() == Some(entries.name()), |at| at == entries.address())
    };
    let rows = prof.rows.iter().filter(is_asked);
    let samples: u64 = rows.filter_map(|row| row.counts.get(&event.name)).sum();
    Ok((samples, event.total.max(samples)))
}

/// Runs another subcommand of this program, and returns its output.
fn own<'a>(words: impl Iterator<Item = &'a OsStr>) -> Result<Vec<u8>, AnalysisError> {
    let own =
        std::env::current_exe().map_err(|error| refused(format!("cannot find dcpi: {error}")))?;
    let ran = Command::new(own).args(words).stdin(Stdio::null()).stderr(Stdio::piped()).output();
    let ran = ran.map_err(|error| refused(format!("cannot run dcpi: {error}")))?;
    if !ran.status.success() {
        let said = String::from_utf8_lossy(&ran.stderr);
        let said = said.lines().find_map(|line| line.strip_prefix("dcpi: ")).unwrap_or(&said);
        return Err(refused(said.trim()));
    }
    Ok(ran.stdout)
}

/// The file that has the procedure in runs of a command: `image`, except for the second command its
/// own program where `image` is the first one's.
pub(super) fn image_of(image: &Path, first: &Words, words: &Words) -> PathBuf {
    let is_first = first.first().is_some_and(|program| Path::new(program) == image);
    let own = words.first().filter(|_| is_first);
    own.map_or_else(|| image.to_path_buf(), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MISS: f64 = 0.05;

    fn cpu(value: f64, reach: f64) -> Interval {
        Interval { value, low: value - reach, high: value + reach }
    }

    /// Recorded runs took 6 % longer by the samples' interrupts, and calls were told to take 6 %
    /// too long, to a hundredth of a nanosecond.
    #[test]
    fn the_time_of_recorded_runs_is_no_part_of_a_call() {
        // Half of the samples; the runs had more of them than their CPU time has without.
        let recordings = [(530, 1060), (520, 1040), (540, 1080), (531, 1062), (529, 1058)];
        let of = call_ns(&recordings, cpu(1.0, 0.0), &[1e6, 1e6], MISS);
        assert!((of.value - 500.0).abs() < 1e-9, "{of:?}");
        assert!(of.low < 490.0 && of.high > 510.0, "2650 of 5300 samples are no better: {of:?}");
    }

    #[test]
    fn the_interval_holds_what_runs_and_counts_differ_by() {
        let alike = [(1_000_000, 2_000_000); 5];
        let exact = call_ns(&alike, cpu(1.0, 0.0), &[1e6, 1e6], MISS);
        assert!(exact.high - exact.low < 1.0, "{exact:?}");
        let runs = call_ns(&alike, cpu(1.0, 0.1), &[1e6, 1e6], MISS);
        assert!(runs.low < 451.0 && runs.high > 549.0, "{runs:?}");
        let counts = call_ns(&alike, cpu(1.0, 0.0), &[0.9e6, 1.1e6], MISS);
        assert!(counts.low < 455.0 && counts.high > 555.0, "{counts:?}");
        let apart = [(4, 10), (6, 10), (5, 10), (5, 10), (5, 10)];
        let of = share(&apart, MISS);
        assert!(of.low > 0.3 && of.low < 0.42 && of.high > 0.58, "{of:?}");
        let one_layout = Interval { value: 1.0, low: 0.0, high: f64::INFINITY };
        let of = call_ns(&alike, one_layout, &[1e6], MISS);
        assert!(of.value == 500.0 && of.high.is_infinite() && of.low == 0.0, "{of:?}");
    }
}
