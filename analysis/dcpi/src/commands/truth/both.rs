//! A command that is counted and sampled for one comparison.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use exact::{Run, Streams};

use super::exact::Exact;
use super::{Ran, Truth, compare, hertz};
use crate::commands::Outcome;
use crate::commands::ideal;
use crate::options;
use query::error::AnalysisError;

fn failed(what: &str, why: &dyn std::fmt::Display) -> AnalysisError {
    AnalysisError::Refused(format!("{what}: {why}"))
}

/// Counts and samples the command, and compares.
pub(super) fn run(args: &Truth, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let scratch = tempfile::Builder::new()
        .prefix("dcpi-truth-")
        .tempdir()
        .map_err(|error| failed("cannot make a directory for temporary files", &error))?;
    let exact = count(args)?;
    let (db, times) = (scratch.path().join("db"), scratch.path().join("times"));
    record(args, &db, &times)?;
    // Other programs that ran meanwhile were not counted. The label that dcpi record gave the shell
    // chooses the samples of the shell and its children. The counts are those of a file only for
    // the options' sake.
    let words = ["--label=sh", "--db"].map(OsStr::new).into_iter();
    let words = words.chain([db.as_os_str(), OsStr::new("counts")]);
    let again: Truth = options::typed(words).map_err(|error| failed("dcpi truth", &error))?;
    let times = fs::read_to_string(&times).ok().and_then(|times| times.trim().parse().ok());
    let ran = times.zip(hertz()).map(|(times, hertz)| Ran { times, hertz });
    compare(args, &exact, (&again.chosen, ran), out)
}

/// Counts the command, with all that jumps.
fn count(args: &Truth) -> Result<Exact, AnalysisError> {
    let engine = ideal::engine(args.engine, true)?;
    let Run { status, counts } = engine
        .run(&args.command, Streams::none())
        .map_err(|error| AnalysisError::Refused(error.to_string()))?;
    if !status.success() {
        let why = "the command failed; try it without dcpi truth";
        return Err(failed(&format!("counting ({})", engine.name()), &why));
    }
    let words: Vec<_> = args.command.iter().map(|word| word.to_string_lossy()).collect();
    Ok(Exact::of_run(format!("{} ({})", words.join(" "), engine.name()), counts))
}

/// Samples the command again and again, into a database; writes how often it ran.
fn record(args: &Truth, db: &Path, times: &Path) -> Result<(), AnalysisError> {
    let own = std::env::current_exe().map_err(|error| failed("dcpi cannot find itself", &error))?;
    let again = format!(
        "n=0; end=$(($(date +%s) + {})); while [ $(date +%s) -lt $end ]; do \"$@\"; n=$((n + 1)); done; echo $n >\"$0\"",
        args.seconds
    );
    let mut record = Command::new(own);
    record.args(["record", "-n", "1", "--overhead-budget", "off", "-o"]).arg(db);
    record.args(["--edges", args.edges.as_deref().unwrap_or("4000")]);
    record.args(["--", "sh", "-c", &again]).arg(times).args(&args.command).stderr(Stdio::piped());
    let recorded = record.stdin(Stdio::null()).stdout(Stdio::null()).output();
    match recorded {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.trim();
            Err(AnalysisError::Refused(said.strip_prefix("dcpi: ").unwrap_or(said).to_owned()))
        }
        Err(error) => Err(failed("dcpi record", &error)),
    }
}
