//! `bench db`: size and read time of the database, on profiles that are recorded on this machine
//! beside `perf record` at the same rate.

use super::beside::{RATE, Whose, record};
use super::machine::{description, other_profilers};
use super::statistics::Spread;
use super::workloads::{Kind, Workload, prepare};
use super::{FOLDER, count, option, refuse_others, require_root};
use crate::packages;
use crate::process::{command, must};
use crate::{Outcome, process};
use anyhow::{Context as _, ensure};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longest median time of `dcpi prof -i` of a week that passes, ms.
const PROF_MAX_MS: f64 = 100.0;
/// Longest median time of `dcpi prof --inclusive` of a week with call stacks that passes, ms.
const INCLUSIVE_MAX_MS: f64 = 1000.0;
/// Runs of each report, of which the median counts.
const PROF_RUNS: usize = 15;

/// Records, unless there is a database, and measures.
pub fn run(arguments: &[&str]) -> anyhow::Result<Outcome> {
    refuse_others("db", arguments, &[], &["--db", "--seconds"])?;
    let seconds = count(arguments, "--seconds", 60)?;
    must(&mut command("cargo build -q --release -p dcpid -p dcpi --bins"))?;
    println!("{}", description());
    let mut bench = command("cargo bench -q -p profiledb --bench database --");
    let week = format!("{FOLDER}/week");
    let with_stacks = format!("{week}.stacks");
    for old in [&week, &with_stacks] {
        let _ = fs::remove_dir_all(old); // there is none the first time
    }
    match option(arguments, "--db")? {
        Some(path) => {
            bench.arg(fs::canonicalize(path).with_context(|| format!("reading --db {path}"))?);
            bench.args(["--week", &absolute(&week)?]);
        }
        None => {
            require_root("db")?;
            packages::ensure(packages::COMPILER.iter().chain(&packages::BENCH_TOOLS))?;
            let recorded = recorded(seconds)?;
            bench.arg(fs::canonicalize(&recorded.database)?);
            bench.args(["--week", &absolute(&week)?]);
            bench.args(["--perf-bytes", &recorded.perf_bytes()?.to_string()]);
            bench.args(["--perf-samples", &recorded.perf_samples.to_string()]);
        }
    }
    must(&mut bench)?;
    let mut outcome = week_read(&week, &["-i"], PROF_MAX_MS);
    if outcome.is_ok() && Path::new(&with_stacks).exists() {
        let inclusive = week_read(&with_stacks, &["--inclusive"], INCLUSIVE_MAX_MS);
        outcome = if matches!(inclusive, Ok(Outcome::Clean)) { outcome } else { inclusive };
    }
    for made in [&week, &with_stacks] {
        let _ = fs::remove_dir_all(made); // the bench made it
    }
    outcome
}

/// The absolute path of a folder in [`FOLDER`]: cargo runs benches in their package's folder.
fn absolute(path: &str) -> anyhow::Result<String> {
    fs::create_dir_all(FOLDER)?;
    let folder = fs::canonicalize(FOLDER)?;
    let name = Path::new(path).file_name().context("a folder without a name")?;
    Ok(folder.join(name).display().to_string())
}

/// Times a report of the simulated week from start to end of its process, as a user waits for it.
fn week_read(week: &str, report: &[&str], most_ms: f64) -> anyhow::Result<Outcome> {
    let mut prof = Command::new("target/release/dcpi");
    prof.arg("prof").args(report).args(["--db", week]);
    let said = process::output(&mut prof)?;
    let report = report.join(" ");
    ensure!(said.contains("image"), "dcpi prof {report} of the week shows no images:\n{said}");
    let mut times = Vec::new();
    for _ in 0..PROF_RUNS {
        let started = Instant::now();
        must(prof.stdout(Stdio::null()))?;
        times.push(started.elapsed().as_secs_f64() * 1e3);
    }
    let spread = Spread::of(times).context("dcpi prof was not run")?;
    let verdict = if spread.median <= most_ms { "" } else { ": TOO SLOW" };
    println!(
        "  dcpi prof {report} of the sealed week, the whole process: {spread:.0} ms (at most {most_ms}){verdict}"
    );
    Ok(if verdict.is_empty() { Outcome::Clean } else { Outcome::Problems })
}

/// Compiles and computes for a while under both profilers.
fn recorded(seconds: u64) -> anyhow::Result<super::beside::Recorded> {
    fs::create_dir_all(FOLDER)?;
    for other in other_profilers(None) {
        println!("{other} runs too, and is in the figures");
    }
    prepare(FOLDER)?;
    let half = Duration::from_secs((seconds / 2).max(1));
    let workloads = [
        Workload::calibrate(FOLDER, Kind::Compile, half)?,
        Workload::calibrate(FOLDER, Kind::Database, half)?,
    ];
    println!("recording {seconds} s of work, {RATE} samples/s per CPU");
    record("db", Whose::Everybodys, || {
        workloads.iter().try_for_each(|workload| workload.run(FOLDER).map(|_| ()))
    })
}
