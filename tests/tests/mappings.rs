//! Whose samples are whose: programs that change what is mapped where, faster than the daemon drains.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests panic to fail"
)]

use tests::daemon::{Daemon, Place};
use tests::report::prof;
use tests::require_root;
use tests::workload::{Running, Workload};

/// By time, so that the samples' seconds can be held against the programs' own.
fn start_by_time(place: &Place) -> Daemon<'_> {
    let mut command = place.dcpid();
    command.args(["--event", "cpu-clock"]);
    place.start_as(command)
}

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

/// Holds a setting of the kernel until it is dropped.
struct Setting {
    path: &'static str,
    before: String,
}

impl Setting {
    fn set(path: &'static str, value: &str) -> Self {
        let before = std::fs::read_to_string(path).unwrap();
        std::fs::write(path, value).unwrap_or_else(|error| panic!("writing {path}: {error}"));
        Self { path, before }
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = std::fs::write(self.path, &self.before); // the kernel took it before
    }
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
            let mut command = std::process::Command::new(program.program());
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
