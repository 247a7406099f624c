//! Storms of short processes, and crowds of them, under the real daemon at the paper's rate. They need root, as those of privileged.rs do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests panic to fail")]

use std::process::Command;
use std::time::{Duration, Instant};
use tests::daemon::{Daemon, Place, Samples};
use tests::require_root;
use tests::workload::{Running, script};

/// Samples of user code whose process or file nobody could tell. Other reasons tell what the code is: memory of no file, say, of whoever
/// else runs on this machine.
const NOBODY_COULD_TELL: [&str; 6] =
    ["unknown_process", "exited_unseen", "no_mapping", "ambiguous_mapping", "file_gone", "unidentified_file"];

fn untold(samples: &Samples) -> u64 {
    NOBODY_COULD_TELL.iter().filter_map(|reason| samples.unresolved.get(*reason)).sum()
}

fn start_at_the_papers_rate(place: &Place) -> Daemon<'_> {
    let mut command = place.dcpid();
    command.args(["--event", "cpu-clock@5200"]);
    place.start_as(command)
}

/// The storm for so many seconds, with so many workers at once: of all samples at most 0.05 % have no image, the paper's week, and never more
/// than 0.5 % of those of 10 s.
fn storm(seconds: u32, workers: u32) {
    require_root();
    let place = Place::default();
    let daemon = start_at_the_papers_rate(&place);
    let mut command = Command::new("sh");
    command.arg(script("storm.sh")).arg(place.path()).arg(seconds.to_string()).arg(workers.to_string());
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
            assert!(without * 200 <= taken, "{without} of {taken} samples in 10 s: {now:?}, before {before:?}");
            before = now;
        }
    }
    let processes = running.wait().number("processes");
    let status = daemon.status();
    let samples = status.samples;
    samples.assert_closes();
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
fn in_a_compile_storm_every_sample_finds_its_image() {
    storm(20, 2);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn in_a_storm_of_eight_times_more_than_the_cpus_can_do_every_sample_finds_its_image() {
    storm(20, 8 * std::thread::available_parallelism().unwrap().get() as u32);
}
