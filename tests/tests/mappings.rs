//! Whose samples are whose: programs that change what is mapped where, faster than the daemon drains.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests panic to fail"
)]

use std::process::Command;
use tests::daemon::{Place, start_by_time};
use tests::report::prof;
use tests::workload::{Running, Workload};
use tests::{Setting, require_root};

/// Plugins that are loaded and unloaded at one address many times within each drain: the address says nothing.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn plugins_at_one_address_keep_their_own_time() {
    require_root();
    let place = Place::default();
    let workload = Workload::build_turns(place.path(), 50);
    let daemon = start_by_time(&place);
    let truth = workload.run(6);
    daemon.flush();
    assert!(truth.number("elsewhere") * 20.0 < truth.number("turns"), "they must share an address");
    let prof = prof(&place.db(), &["--confidence", "99.9", "first.so", "second.so"]);
    let samples = ["first.so", "second.so"].map(|name| prof.samples_of_image(name) as f64);
    let truth = ["first", "second"].map(|name| truth.number(name));
    let (share, expected) = (samples[0] / (samples[0] + samples[1]), truth[0] / (truth[0] + truth[1]));
    let found = (samples[0] + samples[1]) / 5200.0 / (truth[0] + truth[1]);
    eprintln!("first: {share:.4} of the samples, {expected:.4} by its own clock; {samples:?}; {:?}", prof.unresolved);
    // 5200/s for 6 s know the share to 0.009 at this confidence.
    assert!((share - expected).abs() < 0.015, "first: {share:.4} of the samples, {expected:.4} by its own clock");
    assert!(found > 0.95, "{found:.3} of their time is in samples: {:?}", prof.unresolved);
}

/// Process numbers that come round again within a drain: two programs at the same addresses, hundreds of runs in fewer numbers.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn programs_that_reuse_process_numbers_keep_their_own_time() {
    require_root();
    let place = Place::default();
    let programs = ["one", "other"].map(|name| {
        let build = Workload::build(place.path(), "two_functions", &["-no-pie", &format!("-Wl,--defsym={name}=1")]);
        build.copy(name)
    });
    let running = std::fs::read_dir("/proc").expect("reading /proc").flatten();
    let highest = running.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).max();
    let numbers = highest.expect("processes").max(400) + 300;
    let daemon = start_by_time(&place);
    let pid_max = Setting::set("/proc/sys/kernel/pid_max", &numbers.to_string());
    let (mut work_s, mut runs) = ([0.0, 0.0], 0);
    while runs < 800 {
        for (program, seconds, work_s) in programs
            .iter()
            .zip(["0.004", "0.020"])
            .zip(&mut work_s)
            .map(|((program, seconds), work_s)| (program, seconds, work_s))
        {
            let mut command = Command::new(program.program());
            *work_s += Running::start(command.arg(seconds)).wait().number("work_s");
            runs += 1;
        }
    }
    drop(pid_max);
    daemon.flush();
    let prof = prof(&place.db(), &["--confidence", "99.9", "one", "other"]);
    let samples = ["one", "other"].map(|name| prof.samples_of_image(name) as f64);
    let (share, expected) = (samples[0] / (samples[0] + samples[1]), work_s[0] / (work_s[0] + work_s[1]));
    eprintln!(
        "one: {share:.4} of the samples, {expected:.4} by its own clock; {samples:?} in {runs} runs; {:?}",
        prof.unresolved
    );
    assert!((share - expected).abs() < 0.02, "one: {share:.4} of the samples, {expected:.4} by its own clock");
}

/// A program built anew in place and run again, several times within one drain: the second build's samples went to the first, or nowhere.
fn rebuilt_in_place(build_id: &str) {
    require_root();
    let place = Place::default();
    let builds = ["1442695040888963407u", "1442695040888963409u"].map(|seed| {
        let flags = [format!("-DSEED={seed}"), build_id.to_owned()];
        Workload::build(place.path(), "rebuilt", &[&flags[0], &flags[1]]).copy(&format!("build-{seed}"))
    });
    let sizes = builds.each_ref().map(|build| build.program().metadata().unwrap().len());
    assert_eq!(sizes[0], sizes[1], "the size must not tell");
    let program = builds[0].copy("program");
    let inode = || std::os::unix::fs::MetadataExt::ino(&program.program().metadata().unwrap());
    let before = inode();
    let daemon = start_by_time(&place);
    let mut work_s = [0.0, 0.0];
    for _ in 0..3 {
        for ((build, seconds), work_s) in builds.iter().zip(["0.6", "1.2"]).zip(&mut work_s) {
            let _ = build.copy("program");
            *work_s += Running::start(Command::new(program.program()).arg(seconds)).wait().number("cpu_s");
        }
    }
    assert_eq!(inode(), before, "in place");
    daemon.flush();
    let report = prof(&place.db(), &["-i", "--idle", "--confidence", "99.9"]);
    let mut samples: Vec<f64> = report.of_image("program").map(|row| row.samples() as f64).collect();
    samples.sort_by(f64::total_cmp);
    eprintln!("{samples:?} samples, {work_s:?} s; {:?}", report.unresolved);
    assert_eq!(samples.len(), 2, "two images of one name: {report:#?}");
    let (share, expected) = (samples[0] / (samples[0] + samples[1]), work_s[0] / (work_s[0] + work_s[1]));
    let found = (samples[0] + samples[1]) / 5200.0 / (work_s[0] + work_s[1]);
    assert!((share - expected).abs() < 0.02, "first: {share:.4} of the samples, {expected:.4} by its own clock");
    assert!(found > 0.9, "{found:.3} of their time is in samples: {:?}", report.unresolved);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_program_built_anew_in_place_is_a_second_image() {
    rebuilt_in_place("-Wl,--build-id");
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_program_without_build_id_built_anew_in_place_is_a_second_image() {
    rebuilt_in_place("-Wl,--build-id=none");
}
