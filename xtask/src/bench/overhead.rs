//! `bench overhead`: slowdown of sampled programs and cost of the profiler, beside other profilers
//! in the same rounds (SOSP 1997, section 5, tables 3 to 5).

use super::profilers::{RATE, build};
use super::report::Report;
use super::runs::Runs;
use super::workloads::{Kind, Workload, prepare};
use super::{FOLDER, count, machine, refuse_others, require_root};
use crate::Outcome;
use crate::packages;
use std::fs;
use std::time::Duration;

/// Measures and prints the tables.
pub fn run(arguments: &[&str]) -> anyhow::Result<Outcome> {
    refuse_others("overhead", arguments, &["--quick"], &["--rounds", "--seconds"])?;
    let quick = arguments.contains(&"--quick");
    let rounds = count(arguments, "--rounds", if quick { 2 } else { 5 })?;
    let seconds = count(arguments, "--seconds", if quick { 1 } else { 4 })?;
    require_root("overhead")?;
    packages::ensure(packages::COMPILER.iter().chain(&packages::BENCH_TOOLS))?;
    fs::create_dir_all(FOLDER)?;
    println!("building dcpid (release) and the workloads");
    build(FOLDER, &["dcpid"])?;
    prepare(FOLDER)?;

    let machine = machine::description();
    println!(
        "\n{machine}\n{RATE} samples/s per CPU; fixed work of about {seconds} s, {rounds} rounds; finding how much that is"
    );
    let mut workloads = Vec::new();
    for kind in Kind::ALL {
        let workload = Workload::calibrate(FOLDER, kind, Duration::from_secs(seconds))?;
        println!("  {:<8}  {} units", kind.name(), workload.units);
        workloads.push(workload);
    }
    let repeats = if quick { 0 } else { rounds * workloads.len() as u64 };
    println!("\nmeasuring");
    let runs = Runs::measure(FOLDER, &workloads, rounds, repeats)?;
    let report = Report { machine, rounds, seconds, runs: &runs };
    print!("\n{}", report.text());
    let path = format!("{FOLDER}/overhead.json");
    fs::write(&path, report.json())?;
    println!("\nevery run: {path}");
    Ok(Outcome::Clean)
}
