//! Storms of short processes, and crowds of them, under the real daemon at the paper's rate. They
//! need root, as those of privileged.rs do.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use tests::daemon::{Daemon, Place, assert_closes};
use tests::require_root;
use tests::workload::{Running, Workload, script};
use wire::Samples;

/// Reasons of samples of user code whose process or file is unknown. Other reasons identify the
/// code, such as memory of no file.
const NOBODY_COULD_TELL: [&str; 6] = [
    "unknown_process",
    "exited_unseen",
    "no_mapping",
    "ambiguous_mapping",
    "file_gone",
    "unidentified_file",
];

fn untold(samples: &Samples) -> u64 {
    NOBODY_COULD_TELL.iter().filter_map(|reason| samples.unresolved.get(*reason)).sum()
}

fn start_at_the_papers_rate(place: &Place) -> Daemon<'_> {
    let mut command = place.dcpid();
    command.args(["--event", "cpu-clock@5200"]);
    place.start_as(command)
}

/// Runs a storm of `workers` parallel workers. Of all samples at most 0.05 % have no image, as in
/// the paper's week, and at most 0.5 % of those of any 10 s. A storm within the CPUs' capacity is
/// on a recording (`daemon/dcpid/tests/replay.rs`).
fn storm(seconds: u32, workers: u32) {
    require_root();
    let place = Place::default();
    let daemon = start_at_the_papers_rate(&place);
    let mut command = Command::new("sh");
    command
        .arg(script("storm.sh"))
        .arg(place.path())
        .arg(seconds.to_string())
        .arg(workers.to_string());
    let begin = daemon.status().samples;
    let mut running = Running::start(&mut command);
    let mut before = daemon.status().samples;
    let mut next = Instant::now() + Duration::from_secs(10);
    while running.is_running() {
        std::thread::sleep(Duration::from_millis(100)); // the pace of the questions
        if Instant::now() >= next {
            next += Duration::from_secs(10);
            let now = daemon.status().samples;
            let (taken, without) = (now.taken - before.taken, untold(&now) - untold(&before));
            eprintln!(
                "10 s: {taken} samples, {without} without an image: {:.4} %",
                100.0 * without as f64 / taken as f64
            );
            assert!(
                without * 200 <= taken,
                "{without} of {taken} samples in 10 s: {now:?}, before {before:?}"
            );
            before = now;
        }
    }
    let processes = running.wait().number("processes");
    let status = daemon.status();
    let samples = status.samples;
    assert_closes(&samples);
    let (taken, without) = (samples.taken - begin.taken, untold(&samples) - untold(&begin));
    eprintln!(
        "{processes} processes, {taken} samples, {without} without an image: {:.4} %; {} records lost; {:?}",
        100.0 * without as f64 / taken as f64,
        status.lost_records,
        samples.unresolved
    );
    assert!(processes > 50.0 * f64::from(seconds), "{processes} processes are no storm");
    assert_eq!(samples.lost(), 0, "{samples:?}");
    assert!(without * 2000 <= taken, "{without} of {taken} samples: {samples:?}");
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn in_a_storm_of_eight_times_more_than_the_cpus_can_do_every_sample_finds_its_image() {
    storm(20, 8 * std::thread::available_parallelism().unwrap().get() as u32);
}

/// 20,000 mappings that live in 2,000 processes: what the daemon needs for each, in memory and in
/// time.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_crowd_of_processes_with_many_mappings_fits_in_little_memory() {
    require_root();
    let (processes, libraries) = (2000, 10);
    let place = Place::default();
    let (crowd, paths) = Workload::build_crowd(place.path(), libraries);
    let mut command = place.dcpid();
    // Copying code takes time and memory of its own, once.
    command.args(["--event", "cpu-clock@5200", "--code-store", "off"]);
    let daemon = place.start_as(command);
    let before = daemon.status();
    let mut command = Command::new(crowd.program());
    let running = Running::start(command.args(["40", &processes.to_string()]).args(&paths));
    let begin = Instant::now();
    while executable_mappings_of(&paths) < processes * libraries {
        assert!(
            begin.elapsed() < Duration::from_secs(35),
            "{} mappings",
            executable_mappings_of(&paths)
        );
        std::thread::sleep(Duration::from_millis(500)); // the pace of the questions
    }
    let full = daemon.status();
    std::thread::sleep(Duration::from_secs(5)); // sampled meanwhile
    let after = daemon.status();
    let truth = running.wait();
    let samples = daemon.status().samples;
    let (taken, cpu_s) =
        (after.samples.taken - full.samples.taken, after.daemon.cpu_s - full.daemon.cpu_s);
    let grown = after.daemon.rss_bytes.saturating_sub(before.daemon.rss_bytes);
    eprintln!(
        "{} mappings of {} processes: {} KiB resident, {} KiB before: {} bytes a mapping; {:.0} ns a sample; {:?}",
        truth.number("mappings"),
        after.processes - before.processes,
        after.daemon.rss_bytes / 1024,
        before.daemon.rss_bytes / 1024,
        grown / truth.number("mappings") as u64,
        1e9 * cpu_s / taken as f64,
        samples.unresolved
    );
    assert!(
        after.processes >= before.processes + processes as u64,
        "{} processes",
        after.processes
    );
    assert!(after.daemon.rss_bytes < RSS_MAX, "{} bytes resident", after.daemon.rss_bytes);
    assert_closes(&samples);
    assert!(untold(&samples) * 2000 <= samples.taken, "{samples:?}");
}

/// Limit of the daemon's resident memory with a crowd of processes; 28 MiB of it are for call
/// stacks and their maps.
const RSS_MAX: u64 = 40 << 20;

/// Executable mappings of these files in all processes now.
fn executable_mappings_of(paths: &[PathBuf]) -> usize {
    let names: Vec<&str> = paths.iter().map(|path| path.to_str().unwrap()).collect();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    // Processes that have ended meanwhile have none.
    let maps =
        processes.filter_map(|process| std::fs::read_to_string(process.path().join("maps")).ok());
    let mapped =
        |line: &&str| line.contains(" r-xp ") && names.iter().any(|name| line.ends_with(name));
    maps.map(|maps| maps.lines().filter(mapped).count()).sum()
}
