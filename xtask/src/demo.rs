//! Profiles the whole machine for a few seconds, with a workload whose answer is known, and shows
//! where the cycles went.

use crate::Outcome;
use crate::bench::profilers::{Program, start_daemon as start_daemon_of};
use crate::packages;
use crate::process::{command, is_root, must, output};
use anyhow::{Context as _, bail};
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const FOLDER: &str = "target/demo";
const DCPI: &str = "target/debug/dcpi";
const DCPICTL: &str = "target/debug/dcpictl";
const SOCKET: &str = "target/demo/control.sock";
/// CPU time of each program.
const SECONDS: u64 = 5;

/// Runs the demonstration.
pub fn run() -> anyhow::Result<Outcome> {
    if !is_root() {
        bail!(
            "the demo samples the whole machine, and that needs root; run: sudo -E env PATH=\"$PATH\" cargo xtask demo"
        );
    }
    packages::ensure(&packages::COMPILER)?;
    step(1, "building the programs, as the tests do (the first time takes a few minutes)");
    shown("cargo build --workspace --bins")?;

    step(
        2,
        "building a workload: two functions, 3/4 and 1/4; a shared library; a kernel reader; a stripped program",
    );
    let _ = fs::remove_dir_all(FOLDER); // the last demonstration's, if there was one
    fs::create_dir_all(FOLDER)?;
    build_workload()?;

    step(3, "starting dcpid on a scratch database, target/demo/db");
    let daemon = start_daemon()?;

    step(
        4,
        &format!(
            "profiling everything on this machine while each program uses {SECONDS} seconds of CPU time"
        ),
    );
    run_workload()?;

    step(5, "flushing: what was sampled goes to disk");
    print!("{}", control("flush")?);
    drop(daemon);

    step(6, "where have all the cycles gone?");
    for (title, arguments) in [
        ("by image", "prof --db target/demo/db -i -n 12"),
        ("by procedure", "prof --db target/demo/db -n 16"),
    ] {
        println!("\n--- {title}: {DCPI} {arguments}\n");
        shown(&format!("{DCPI} {arguments}"))?;
    }
    println!(
        "\nThe workload is known: three_quarters should have 3 times the samples of one_quarter. Try next:\n"
    );
    for (arguments, purpose) in [
        ("prof --db target/demo/db two_functions", "one program: is 75 % within the interval?"),
        ("prof --db target/demo/db --format json", "the same for programs"),
        ("epochs --db target/demo/db", "what the database holds"),
    ] {
        println!("  {DCPI} {arguments:<40} # {purpose}");
    }
    println!("\nTo run it for good, see \"Install\" in README.md.");
    Ok(Outcome::Clean)
}

fn step(number: u32, what: &str) {
    println!("\n[{number}/6] {what}");
}

fn shown(line: &str) -> anyhow::Result<()> {
    must(&mut command(line))
}

fn control(request: &str) -> anyhow::Result<String> {
    output(&mut command(&format!("{DCPICTL} --control {SOCKET} {request}")))
}

fn build_workload() -> anyhow::Result<()> {
    let cc = |arguments: &str| shown(&format!("cc -O2 -g {arguments}"));
    let (source, to) = ("tests/workloads", FOLDER);
    cc(&format!("-o {to}/two_functions {source}/two_functions.c"))?;
    cc(&format!("-shared -fPIC -o {to}/liblibrary.so {source}/library.c"))?;
    cc(&format!(
        "-o {to}/library_main {source}/library_main.c -L{to} -llibrary -Wl,-rpath,$ORIGIN"
    ))?;
    cc(&format!("-o {to}/kernel_reader {source}/kernel_reader.c"))?;
    cc(&format!("-s -o {to}/stripped {source}/stripped.c"))
}

fn start_daemon() -> anyhow::Result<Program> {
    let line = format!("target/debug/dcpid --db {FOLDER}/db --control {SOCKET}");
    let daemon = start_daemon_of(&line, SOCKET, &format!("{FOLDER}/dcpid.log"))?;
    control("status")?
        .lines()
        .filter(|line| line.starts_with("event"))
        .for_each(|line| println!("{line}"));
    Ok(daemon)
}

/// A copy of the known program for each CPU, so that it is the busiest, and one of each of the
/// others.
fn run_workload() -> anyhow::Result<()> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from).max(2);
    let programs = std::iter::repeat_n("two_functions", cpus).chain([
        "library_main",
        "kernel_reader",
        "stripped",
    ]);
    let mut children = Vec::new();
    for program in programs {
        let mut command = Command::new(format!("{FOLDER}/{program}"));
        command.arg(SECONDS.to_string()).stdin(Stdio::null()).stdout(Stdio::null());
        children.push(command.spawn().with_context(|| format!("starting {program}"))?);
    }
    let started = Instant::now();
    while children.iter_mut().any(|child| matches!(child.try_wait(), Ok(None))) {
        std::thread::sleep(Duration::from_secs(1));
        let status = control("status")?;
        let samples =
            status.lines().find_map(|line| line.strip_prefix("samples")).unwrap_or_default();
        println!("  {:>2} s: {}", started.elapsed().as_secs(), samples.trim());
    }
    Ok(())
}
