//! The time of one call of a procedure: its sampled time over its counted calls.
//!
//! Events at each call would take longer than short procedures do. So samples of `dcpi record` tell
//! the time of all calls, and calls are counted in a run of its own, whose time counts for nothing.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use counted::Streams;
use counted::entries::Entries;
use measure::bernoulli::Interval;
use measure::tails;
use report::FunctionTime;
use serde::Deserialize;

use super::words::Words;
use query::error::AnalysisError;

/// Recordings: each is a number, and the interval is that of their mean.
const RECORDINGS: usize = 5;

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
    period: f64,
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

/// The time of a call of `procedure` of the file at `image` in runs of a command; `miss` is the
/// probability with which the interval misses.
///
/// # Errors
/// [`AnalysisError::Refused`] where the procedure is not found, never called, never sampled, or
/// where sampling or counting is not allowed.
pub(super) fn time(
    (image, procedure): (&Path, &str),
    words: &Words,
    miss: f64,
) -> Result<FunctionTime, AnalysisError> {
    let Some((program, arguments)) = words.split_first() else {
        return Err(refused("there is no command"));
    };
    let entries = Entries::find(image, procedure).map_err(refused)?;
    let calls = entries.count((program, arguments), Streams::none()).map_err(refused)? as f64;
    if calls <= 0.0 {
        return Err(refused(format!(
            "{procedure} of {} was not called; name a procedure that is not inlined",
            image.display()
        )));
    }
    let (mut all, mut samples) = (Vec::new(), 0);
    for _ in 0..RECORDINGS {
        let (ns, sampled) = sampled(image, &entries, words)?;
        all.push(ns / calls);
        samples += sampled;
    }
    if samples == 0 {
        return Err(refused(format!("no sample is in {procedure}: it takes too little time")));
    }
    let n = all.len() as f64;
    let value = all.iter().sum::<f64>() / n;
    let sd = (all.iter().map(|of| (of - value).powi(2)).sum::<f64>() / (n - 1.0)).sqrt();
    let reach = tails::student_quantile(miss, n - 1.0) * sd / n.sqrt();
    let ns = Interval { value, low: (value - reach).max(0.0), high: value + reach };
    Ok(FunctionTime { procedure: procedure.to_owned(), ns, calls, samples })
}

/// Time in the procedure in one recorded run, ns, and its samples.
fn sampled(image: &Path, entries: &Entries, words: &Words) -> Result<(f64, u64), AnalysisError> {
    let scratch = tempfile::Builder::new()
        .prefix("dcpi-time-")
        .tempdir()
        .map_err(|error| refused(format!("cannot make a directory: {error}; see $TMPDIR")))?;
    let db = scratch.path().join("db");
    let quiet = ["record", "-n", "1", "--overhead-budget", "off", "-o"].map(OsStr::new);
    let command = words.iter().map(AsRef::as_ref);
    own(quiet.into_iter().chain([db.as_os_str(), OsStr::new("--")]).chain(command))?;
    let report = ["prof", "-n", "0", "--full-names", "--format", "json", "--db"].map(OsStr::new);
    let text = own(report.into_iter().chain([db.as_os_str(), image.as_os_str()]))?;
    let prof: Prof = serde_json::from_slice(&text)
        .map_err(|error| refused(format!("dcpi prof says what is not understood: {error}")))?;
    let event = prof.events.into_iter().find(|event| event.unit == "ns");
    let Some(event) = event else {
        return Err(refused("samples here stand for cycles, not for time; try --event cpu-clock"));
    };
    let is_asked = |row: &&Row| {
        let address = row.address.as_deref().and_then(|text| text.strip_prefix("0x"));
        let address = address.and_then(|hex| u64::from_str_radix(hex, 16).ok());
        address
            .map_or(row.procedure.as_deref() == Some(entries.name()), |at| at == entries.address())
    };
    let rows = prof.rows.iter().filter(is_asked);
    let samples: u64 = rows.filter_map(|row| row.counts.get(&event.name)).sum();
    Ok((samples as f64 * event.period, samples))
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

/// The file that has the procedure in runs of a command: `image`, but for the second command its
/// own program where `image` is the first one's.
pub(super) fn image_of(image: &Path, first: &Words, words: &Words) -> PathBuf {
    let is_first = first.first().is_some_and(|program| Path::new(program) == image);
    let own = words.first().filter(|_| is_first);
    own.map_or_else(|| image.to_path_buf(), PathBuf::from)
}
