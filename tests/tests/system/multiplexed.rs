//! Events that take turns, and events by their PMU's own words, on the real kernel. The events here
//! are the kernel's own, so that they are on every machine; `cargo xtask vm` has the same with real
//! counters. Each test needs root: `cargo xtask test` runs them, and without root they fail.

use std::process::Command;
use tests::daemon::{Place, assert_closes};
use tests::report::{Event, Prof, prof};
use tests::workload::{Running, Workload};
use tests::{refuse, require_root};

/// Long enough for about 20 turns of each of two events, on each CPU.
const SECONDS: u32 = 8;
/// The timers' rate.
const RATE: f64 = 1000.0;

/// Samples this machine with all CPUs busy, for an idle CPU's timers are throttled. The report, and
/// the status as text.
fn sampled(flags: &[&str]) -> (Prof, String) {
    let place = Place::default();
    let workload = Workload::build(place.path(), "two_functions", &[]);
    let cpus = std::thread::available_parallelism().unwrap().get();
    let running: Vec<Running> = (0..cpus).map(|_| workload.start(2 * SECONDS)).collect();
    let mut command = place.dcpid();
    // Periods vary by 3 % around their mean and are drawn at drains: many drains make their mean
    // exact.
    command.args(["--drain-interval", "100ms"]).args(flags);
    let daemon = place.start_as(command);
    std::thread::sleep(std::time::Duration::from_secs(u64::from(SECONDS)));
    let status = daemon.status();
    let text = tests::succeed(&mut place.dcpictl(&["status"]));
    assert_eq!(daemon.quit().code(), Some(0));
    drop(running); // ends them, however little of the CPUs they had
    assert_closes(&status.samples);
    for event in &status.events {
        let (running, enabled) = (event.running_ns, event.enabled_ns);
        eprintln!(
            "{}: {} samples, {running} of {enabled} ns, {:?}",
            event.name, event.samples, event.note
        );
    }
    (prof(&place.db(), &["--idle", "--confidence", "99.9"]), text)
}

fn share(event: &Event) -> f64 {
    event.running_ns as f64 / event.enabled_ns as f64
}

/// The name as it was typed is the event's in the database and in every report.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn an_event_in_a_pmus_own_words_is_sampled_under_its_name() {
    require_root();
    let place = Place::default();
    let mut command = place.dcpid();
    // PERF_COUNT_SW_CPU_CLOCK is 0, and counts ns.
    command.args(["--event", "software/config=0, config1=0,period=1000000/"]);
    let daemon = place.start_as(command);
    let zeros = "dd if=/dev/zero of=/dev/null bs=64M count=40 2>/dev/null";
    assert!(Command::new("sh").args(["-c", zeros]).status().unwrap().success());
    assert!(
        Command::new("sh")
            .args(["-c", "for i in $(seq 300); do /bin/true; done"])
            .status()
            .unwrap()
            .success()
    );
    daemon.flush();
    let report = prof(&place.db(), &["--idle", "--event", "software/config=0,config1=0/"]);
    let event = &report.events[0];
    assert_eq!((event.name.as_str(), event.period), ("software/config=0,config1=0/", 1_000_000));
    // 300 programs, each a third of a millisecond at the very least.
    assert!(event.total >= 100, "{event:?}");
    assert_eq!(daemon.quit().code(), Some(0));
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn an_event_that_the_machine_lacks_is_refused_in_one_line() {
    require_root();
    for (flags, words) in [
        (["--event", "bogus/event=1/"], "this machine has no PMU 'bogus'; it has "),
        (
            ["--event", "software/bogus=1/"],
            "software has no term 'bogus'; it has the terms config, config1, config2",
        ),
        (
            ["--event", "software/config=999/"],
            "event 'software/config=999/': its 'software' does not count by interrupts",
        ),
        (["--event", "breakpoint/config=0/"], "its 'breakpoint' does not count by interrupts"),
        (["--event", "software/config=2/u"], "'u' behind the slash is not understood"),
        (["--mux", "cpu-clock,bogus"], "unknown event 'bogus'"),
        (["--mux", "cpu-clock"], "takes turns with nobody"),
        (["--mux", "cpu-clock,cpu-clock@5"], "cpu-clock is given twice"),
    ] {
        let line = refuse(Place::default().dcpid().args(flags));
        assert!(line.contains(words), "{flags:?}: {line}");
    }
}

/// They want the whole machine: `tests/system/main.rs`.
mod alone {
    use super::*;

    /// Each event of a group has its part of the time, says so, and scaled by it counts what it
    /// would have counted alone.
    #[test]
    #[ignore = "needs root: run by cargo xtask test"]
    fn events_that_take_turns_are_scaled_to_what_they_would_have_counted() {
        require_root();
        let (alone, text) = sampled(&["--event", "cpu-clock@1000"]);
        assert!(!text.contains("of the time"), "it always counts:\n{text}");
        assert!((0.999..1.001).contains(&share(&alone.events[0])), "{:?}", alone.events);

        let (turns, text) = sampled(&["--mux", "cpu-clock@1000,task-clock@1000"]);
        assert_eq!(text.matches("of the time").count(), 2, "{text}");
        assert!(text.contains("takes turns with task-clock"), "{text}");
        let [clock, task] = &turns.events[..] else { panic!("{:?}", turns.events) };
        // One counts at any time: what is missing is the moment between two turns.
        let both = share(clock) + share(task);
        assert!((0.99..1.001).contains(&both), "{both}");
        assert_eq!(clock.enabled_ns, task.enabled_ns, "either should count while any does");
        for event in [clock, task] {
            // 20 turns of 1 to 3 ticks on each of two CPUs: a standard deviation of 0.04.
            assert!((0.35..0.65).contains(&share(event)), "{event:?}");
            assert!((event.scale.unwrap() - 1.0 / share(event)).abs() < 1e-6, "{event:?}");
            // Both are ns of CPU time, of which there is one in each. What else differs is chance:
            // of each run's samples, and of its periods.
            let (ratio, expected) = (event.per_ns(), alone.events[0].per_ns());
            let count = event.count.unwrap();
            let sampling = (count.high - count.low) / 2.0 / count.value;
            eprintln!(
                "{}: {ratio:.4} ns in each ns, {expected:.4} alone; sampling error {sampling:.4}",
                event.name
            );
            assert!(
                (ratio / expected - 1.0).abs() < 1.5 * sampling + 0.02,
                "{event:?} against {:?}",
                alone.events
            );
            let implied = RATE * event.running_ns as f64 * 1e-9;
            assert!(
                (0.8..1.05).contains(&(event.total as f64 / implied)),
                "{implied} samples implied: {event:?}"
            );
        }
    }

    #[test]
    #[ignore = "needs root: run by cargo xtask test"]
    fn an_event_beside_a_group_always_counts() {
        require_root();
        let flags = [
            "--event",
            "cpu-clock@1000",
            "--mux",
            "task-clock@500,software/config=0/:2000000,software/config=1/:2000000",
        ];
        let (report, _) = sampled(&flags);
        let names: Vec<_> = report.events.iter().map(|event| event.name.as_str()).collect();
        assert_eq!(names, ["cpu-clock", "task-clock", "software/config=0/", "software/config=1/"]);
        assert!(share(&report.events[0]) > 0.999, "{:?}", report.events[0]);
        let members = &report.events[1..];
        let all: f64 = members.iter().map(share).sum();
        assert!((0.99..1.001).contains(&all), "{all}");
        assert!(members.iter().all(|event| (0.2..0.5).contains(&share(event))), "{members:?}");
    }
}
