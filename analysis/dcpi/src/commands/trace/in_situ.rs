//! `dcpi trace --in-situ`: its arguments, and the messages before the command runs.

use std::fs;
use std::io::{self, Write};

use measure::models::alpha::RAW_RUNS_LEAST;
use query::error::AnalysisError;

use super::{To, usage};

/// Runs without events, at most.
const RUNS_MOST: u32 = 1000;

/// A number of runs; with fewer than the minimum, the spread between runs is unknown.
pub(super) fn runs(text: &str) -> Result<u32, String> {
    let runs = text.parse().ok().filter(|runs| (RAW_RUNS_LEAST as u32..=RUNS_MOST).contains(runs));
    runs.ok_or_else(|| {
        format!("must be a number of runs from {RAW_RUNS_LEAST} to {RUNS_MOST}, such as 6")
    })
}

/// Refuses what would be for nothing.
pub(super) fn check(to: Option<To>) -> Result<(), AnalysisError> {
    if to != Some(To::Trace) {
        return Err(usage(
            "--in-situ is for dcpi trace --correct, which reads dcpi trace's own format: name a \
             file such as a.trace with -o",
        ));
    }
    let input = fs::metadata("/proc/self/fd/0");
    if input.is_ok_and(|input| input.is_file()) {
        return Err(usage(
            "--in-situ runs the command several times, and standard input is read once: give the \
             command the file by name",
        ));
    }
    Ok(())
}

pub(super) fn announce(runs: u32) -> io::Result<()> {
    // One additional run comes first; its time is not used.
    let (before, after) = (runs / 2 + 1, runs - runs / 2);
    writeln!(
        io::stderr(),
        "dcpi: the command runs without input: {before} times without events, traced, and {after} \
         times without events"
    )
}
