//! Waits of threads for known things, with no other load: stacks of a busy machine take the room of
//! those of waits.

use crate::stacks::{folded, start};
use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};
use tests::daemon::Place;
use tests::require_root;
use tests::workload::{Running, Workload};

/// Waits have the time that the threads themselves saw, and the name of what was waited for; the
/// times of all threads add up to wall-clock time.
#[test]
#[ignore = "needs root"]
fn waits_have_their_time_and_their_reason() {
    require_root();
    let place = Place::default();
    let program = Workload::build(place.path(), "waiting", &["-O2", "-pthread"]);
    let daemon = start(&place, "100");
    let truth = Running::start(Command::new(program.program()).arg("12")).wait();
    daemon.flush();
    let waits = daemon.status().waits.expect("waits are taken");
    assert!(waits.taken > 0 && waits.scale_s.is_some(), "{waits:?}");
    let sum = waits.on_s + waits.blocked_s + waits.runnable_s;
    assert!((sum - waits.wall_s).abs() <= 0.005 * waits.wall_s, "{waits:?}");
    let mut seconds: BTreeMap<&str, f64> = BTreeMap::new();
    let all = folded(&place, "off-cpu", "waiting");
    for (frames, us) in &all {
        for kind in ["timer", "pipe", "futex"] {
            // The first thread sleeps too, and waits for the others.
            let of_kind = frames.iter().any(|frame| *frame == format!("of_{kind}"))
                || kind == "futex" && frames.iter().any(|frame| frame == "of_lock");
            if of_kind && frames.last().is_some_and(|leaf| *leaf == format!("[{kind}]")) {
                *seconds.entry(kind).or_default() += us / 1e6;
            }
        }
    }
    // Waits that find no room in the sampler's ring are made up for by the thread's next one, so
    // the waits of a thread that waits for two things in turn are told less exactly.
    for (kind, allowed) in [("timer", 0.2), ("pipe", 0.2), ("futex", 0.5)] {
        let (known, told) = (truth.number(kind), seconds.get(kind).copied().unwrap_or(0.0));
        assert!((told - known).abs() < allowed * known, "{kind}: {told} s, not {known}: {all:?}");
    }
}

/// Whether a stack is taken is decided when a wait begins, by those before it. Twenty threads that
/// slept for 10 s after short waits had 1800 s in all once, and none another time.
#[test]
#[ignore = "needs root"]
fn long_waits_after_short_ones_have_their_time() {
    require_root();
    let place = Place::default();
    let program = Workload::build(place.path(), "surprising", &["-O2", "-pthread"]);
    let daemon = start(&place, "100");
    let truth = Running::start(Command::new(program.program()).args(["20", "12"]));
    // Part of an unfinished wait is already reported.
    std::thread::sleep(std::time::Duration::from_secs(6));
    daemon.flush();
    let seconds = |all: &BTreeMap<Vec<String>, f64>| {
        // The first thread joins the others in turn.
        let of_threads = all.iter().filter(|(frames, _)| !frames.contains(&"main".to_owned()));
        of_threads.map(|(_, us)| us / 1e6).sum::<f64>()
    };
    let owned = || -> BTreeMap<Vec<String>, f64> {
        let mut all = BTreeMap::new();
        for (frames, us) in folded(&place, "off-cpu", "surprising") {
            let frames = frames.iter().map(ToString::to_string).collect();
            *all.entry(frames).or_default() += us;
        }
        all
    };
    let half = seconds(&owned());
    assert!((40.0..140.0).contains(&half), "{half} s after 6 s");
    let known = truth.wait().number("long");
    daemon.flush();
    let all = owned();
    let told = seconds(&all);
    assert!((told - known).abs() < 0.1 * known, "{told} s, not {known}: {all:?}");
    let without = all.keys().filter(|frames| frames.iter().any(|of| of == "[unexpected_wait]"));
    assert!(without.count() > 0, "short waits before give no stack: {all:?}");
}

/// The times of threads had places by the low bits of their numbers, and a newcomer took the place
/// of whoever had it: by beginning processes until one had a chosen thread's bits, anybody erased
/// its waits.
#[test]
#[ignore = "needs root"]
fn processes_that_come_and_go_erase_nobodys_waits() {
    require_root();
    let place = Place::default();
    let victim = place.path().join("victim");
    std::fs::copy("/bin/sleep", &victim).unwrap();
    let daemon = start(&place, "100");
    let mut victims: Vec<Running> =
        (0..4).map(|_| Running::start(Command::new(&victim).arg("12"))).collect();
    std::thread::sleep(std::time::Duration::from_millis(500)); // all sleep
    // More than there are places.
    let forks = "i=0; while [ $i -lt 17000 ]; do (:); i=$((i+1)); done";
    assert!(Command::new("sh").args(["-c", forks]).status().unwrap().success());
    victims.iter_mut().for_each(|victim| assert!(victim.is_running(), "the attack took too long"));
    victims.into_iter().for_each(Running::ended);
    daemon.flush();
    let all = folded(&place, "off-cpu", "victim");
    let told: f64 = all.iter().map(|(_, us)| us / 1e6).sum();
    let waits = daemon.status().waits.unwrap();
    eprintln!("{told} s of 48 s; {waits:?}");
    assert!((told - 48.0).abs() < 2.0, "{told} s of 48 s: {waits:?}");
}

/// Two processes that pass a byte to and fro ended the waits of everybody.
#[test]
#[ignore = "needs root"]
fn waits_are_met_where_switches_are_too_many_to_follow() {
    require_root();
    let place = Place::default();
    let victim = place.path().join("victim");
    std::fs::copy("/bin/sleep", &victim).unwrap();
    let handoff = Workload::build(place.path(), "handoff", &["-O2"]);
    let mut command = place.dcpid();
    command.args(["--event", "cpu-clock", "--overhead-budget", "1%", "--drain-interval", "2s"]);
    let daemon = place.start_as(command);
    let busy = Running::start(Command::new(handoff.program()).arg("22"));
    let begun = Instant::now();
    while daemon.status().waits.unwrap().pass_s.is_none() {
        assert!(begun.elapsed().as_secs() < 30, "{:?}", daemon.status().waits);
        std::thread::sleep(Duration::from_millis(200));
    }
    let victims: Vec<Running> =
        (0..4).map(|_| Running::start(Command::new(&victim).arg("12"))).collect();
    victims.into_iter().for_each(Running::ended);
    daemon.flush();
    let waits = daemon.status().waits.unwrap();
    let all = folded(&place, "off-cpu", "victim");
    let told: f64 = all.iter().map(|(_, us)| us / 1e6).sum();
    eprintln!("{told} s of 48 s; {waits:?}");
    // Some 70 looks: 12 %.
    assert!((told - 48.0).abs() < 20.0, "{told} s of 48 s: {waits:?}");
    for (frames, _) in &all {
        let is_met = frames.iter().any(|frame| frame == "[seen_waiting]");
        assert!(is_met && frames.last().is_some_and(|leaf| leaf == "[timer]"), "{frames:?}");
    }
    // Those of the busy processes alternate too fast to be followed, and have their time, too.
    let busy_s: f64 = folded(&place, "off-cpu", "handoff").iter().map(|(_, us)| us / 1e6).sum();
    assert!(busy_s > 5.0, "{busy_s} s");
    busy.ended();
}
