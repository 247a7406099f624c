//! `cargo xtask fuzz`: coverage-guided fuzzers of every decoder of strangers' bytes, one after the
//! other. The targets are the programs of the workspace `fuzz`, each around LLVM's libFuzzer.
//!
//! Inputs that reached new code stay in `target/fuzz/corpus` for the next run; those that ended a
//! fuzzer are in `target/fuzz/crashes`.

use crate::Outcome;
use crate::packages::{self, COMPILER, FUZZ_COMPILER};
use crate::process::{command, must, output};
use anyhow::{Context as _, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PROGRAMS: &str = "tests/fuzz/src/bin";
const FOLDER: &str = "target/fuzz";
/// Minutes of fuzzing in all, where `--minutes` does not say.
const MINUTES: f64 = 60.0;
/// LLVM's instrumentation for libFuzzer: a counter for each edge, the table of edges, and the
/// operands of comparisons. The compiler's own flag for it, `-Zsanitizer`, needs nightly.
const INSTRUMENTATION: &str = "-Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";
/// Seconds that one input may take: a hundred times what the slowest sound ones do.
const INPUT_S_MAX: u32 = 10;
/// Megabytes of memory that a fuzzer may use, in all inputs together: what is never freed adds up.
const RSS_MB_MAX: u32 = 768;

/// A target as it went.
struct Run {
    name: String,
    executions: u64,
    per_second: f64,
    covered: u64,
    instrumented: u64,
    /// The input that ended it.
    crash: Option<PathBuf>,
}

pub fn run(arguments: &[&str]) -> anyhow::Result<Outcome> {
    let targets = targets()?;
    let (name, minutes) = match arguments {
        [] => {
            println!("cargo xtask fuzz NAME|all [--minutes N]; the names:\n");
            targets.iter().for_each(|(name, what)| println!("  {name:<16} {what}"));
            return Ok(Outcome::Clean);
        }
        [name] => (*name, MINUTES),
        [name, "--minutes", minutes] => {
            let parsed = minutes.parse().ok().filter(|minutes| *minutes > 0.0);
            (*name, parsed.with_context(|| format!("'{minutes}' is no number of minutes"))?)
        }
        other => bail!("'{}' is not fuzz NAME|all [--minutes N]", other.join(" ")),
    };
    let chosen: Vec<&str> = targets
        .iter()
        .map(|(target, _)| target.as_str())
        .filter(|target| name == "all" || name == *target)
        .collect();
    ensure!(!chosen.is_empty(), "no fuzzer '{name}'; `cargo xtask fuzz` lists them");
    packages::ensure(COMPILER.iter().chain(&FUZZ_COMPILER))?;
    let programs = build(&chosen)?;
    let seconds = (minutes * 60.0 / chosen.len() as f64).ceil().max(1.0) as u64;
    println!("{} fuzzers, {seconds} s each; inputs and logs: {FOLDER}", chosen.len());
    let mut runs = Vec::new();
    for target in chosen {
        println!("fuzzing {target}");
        runs.push(fuzz(target, &programs.join(target), seconds)?);
    }
    Ok(report(&runs, &programs))
}

/// Names of the targets and what each one reads: the first line of its program.
fn targets() -> anyhow::Result<Vec<(String, String)>> {
    let mut targets = Vec::new();
    for entry in fs::read_dir(PROGRAMS).context(PROGRAMS)? {
        let path = entry?.path();
        let text = fs::read_to_string(&path)?;
        let what = text.lines().next().and_then(|line| line.strip_prefix("//! "));
        let name = path.file_stem().and_then(|name| name.to_str());
        if let (Some(name), Some(what)) = (name, what) {
            targets.push((name.to_owned(), what.to_owned()));
        }
    }
    targets.sort();
    Ok(targets)
}

/// Builds the programs; where they are.
fn build(targets: &[&str]) -> anyhow::Result<PathBuf> {
    let version = output(&mut command("rustc -vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("rustc -vV names no host")?;
    // With a target the flags are not those of build scripts and macros.
    let mut cargo = command("cargo build --quiet --release --manifest-path tests/fuzz/Cargo.toml");
    cargo.args(["--target", host, "--target-dir", FOLDER]).env("RUSTFLAGS", INSTRUMENTATION);
    cargo.args(targets.iter().flat_map(|target| ["--bin", *target]));
    println!("building the fuzzers (minutes, the first time)");
    must(&mut cargo)?;
    Ok(Path::new(FOLDER).join(host).join("release"))
}

fn fuzz(target: &str, program: &Path, seconds: u64) -> anyhow::Result<Run> {
    let folder = |kind: &str| {
        let folder = Path::new(FOLDER).join(kind).join(target);
        fs::create_dir_all(&folder).map(|()| folder)
    };
    let (corpus, seeds, crashes) = (folder("corpus")?, folder("seeds")?, folder("crashes")?);
    let logs = Path::new(FOLDER).join("logs");
    fs::create_dir_all(&logs)?;
    output(Command::new(program).env("DCPI_FUZZ_SEEDS", &seeds))?;
    let log = logs.join(format!("{target}.log"));
    let status = Command::new("nice")
        .args(["-n", "10"])
        .arg(program)
        .args([&corpus, &seeds])
        .arg(format!("-artifact_prefix={}/", crashes.display()))
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-timeout={INPUT_S_MAX}"))
        .arg(format!("-rss_limit_mb={RSS_MB_MAX}"))
        .arg("-print_final_stats=1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(&log)?)
        .status()
        .with_context(|| format!("starting {}", program.display()))?;
    let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    let run = parse(target, &text);
    ensure!(
        status.success() || run.crash.is_some(),
        "the fuzzer {target} failed; {} says why",
        log.display()
    );
    Ok(run)
}

/// The results in libFuzzer's log.
fn parse(target: &str, log: &str) -> Run {
    let after = |line: &str, words: &str| {
        let (_, rest) = line.split_once(words)?;
        rest.split_whitespace().next()?.trim_end_matches(',').parse::<f64>().ok()
    };
    let last = |words: &str| log.lines().rev().find_map(|line| after(line, words));
    let crash = log.lines().find_map(|line| line.split_once("Test unit written to "));
    Run {
        name: target.to_owned(),
        executions: last("stat::number_of_executed_units:").unwrap_or(0.0) as u64,
        per_second: last("stat::average_exec_per_sec:").unwrap_or(0.0),
        covered: last(" cov: ").unwrap_or(0.0) as u64,
        instrumented: last("PC tables (").unwrap_or(0.0) as u64,
        crash: crash.map(|(_, path)| PathBuf::from(path.trim())),
    }
}

fn report(runs: &[Run], programs: &Path) -> Outcome {
    println!(
        "\n{:<16} {:>12} {:>12} {:>10} {:>12} {:>6} {:>7}",
        "fuzzer", "executions", "per second", "edges", "instrumented", "%", "crashes"
    );
    for run in runs {
        let share = 100.0 * run.covered as f64 / run.instrumented.max(1) as f64;
        println!(
            "{:<16} {:>12} {:>12} {:>10} {:>12} {share:>6.1} {:>7}",
            run.name,
            run.executions,
            run.per_second,
            run.covered,
            run.instrumented,
            u8::from(run.crash.is_some())
        );
    }
    let mut outcome = Outcome::Clean;
    for (run, crash) in runs.iter().filter_map(|run| Some((run, run.crash.as_ref()?))) {
        outcome = Outcome::Problems;
        println!("\n{}: {}; {FOLDER}/logs/{0}.log says why; again:", run.name, crash.display());
        println!("  {} {}", programs.join(&run.name).display(), crash.display());
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_understood() {
        let log = "INFO: Loaded 1 PC tables (114 PCs): 114 [0x5,0x9), \n\
            #12\tNEW    cov: 8 ft: 8 corp: 2/5b lim: 4 exec/s: 0 rss: 27Mb\n\
            #59\tDONE   cov: 10 ft: 10 corp: 4/17b lim: 4096 exec/s: 2830302 rss: 27Mb\n\
            artifact_prefix='c/'; Test unit written to c/crash-1\n\
            stat::number_of_executed_units: 59436353\nstat::average_exec_per_sec:     2830302\n";
        let run = parse("x", log);
        assert_eq!((run.executions, run.per_second), (59_436_353, 2_830_302.0));
        assert_eq!((run.covered, run.instrumented), (10, 114));
        assert_eq!(run.crash, Some(PathBuf::from("c/crash-1")));
        assert!(parse("x", "").crash.is_none());
    }

    #[test]
    fn every_program_says_what_it_reads() {
        crate::process::go_to_root().unwrap();
        let targets = targets().unwrap();
        assert_eq!(targets.len(), fs::read_dir(PROGRAMS).unwrap().count());
        assert!(targets.iter().any(|(name, what)| name == "elf" && !what.is_empty()));
    }
}
