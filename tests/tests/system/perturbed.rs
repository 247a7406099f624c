//! The effect of observers on programs: `dcpi perturb`, `dcpi trace --correct`.

use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tests::{binary, refuse, require_root, run, succeed};

use crate::traces::Place;

fn dcpi(words: &[&str]) -> Command {
    let mut command = Command::new(binary("dcpi"));
    command.args(words);
    command
}

fn json(command: &mut Command) -> Value {
    serde_json::from_str(&succeed(command)).unwrap()
}

/// Runs take turns, and the time of the observer's own process is not the program's: the shell here
/// works longer than the program before it runs it.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn the_program_is_told_apart_from_its_observer() {
    require_root();
    let script = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; exec \"$@\"";
    let work = "s = 0\nfor i in range(3000000): s += i * i";
    let report = json(&mut dcpi(&[
        "perturb",
        "--observer",
        &format!("sh -c '{script}' sh"),
        "--baselines=12",
        "--runs=2",
        "--interval=5ms",
        "--format=json",
        "--",
        "python3",
        "-c",
        work,
    ]));
    assert_eq!((&report["baselines"], &report["runs"]), (&12.into(), &2.into()));
    assert!(report["records"].as_u64().unwrap() >= 20, "{report}");
    let metrics = report["metrics"].as_array().unwrap();
    let of_python = |metric: &&Value| metric["unit"] == "share";
    let share: f64 =
        metrics.iter().filter(of_python).filter_map(|of| of["amount"]["observed"].as_f64()).sum();
    assert!(share > 0.5, "the shell's loop would have most of the time: {report}");
    assert!(metrics.iter().any(|metric| metric["name"] == "page-faults"), "{report}");
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn what_cannot_be_compared_is_said_in_one_line() {
    require_root();
    let mut short =
        dcpi(&["perturb", "--observer", "nice -n 0", "--runs=2", "--", "sleep", "0.01"]);
    let said = refuse(&mut short);
    assert!(said.contains("records of CPU time"), "{said}");
    let mut other = dcpi(&["perturb", "--observer", "true", "--interval=1ms", "--"]);
    let said = refuse(other.args(["python3", "-c", "for i in range(3000000): pass"]));
    assert!(said.contains("the observer never ran python3"), "{said}");
}

/// After a signal no further run begins: further runs would take minutes.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_signal_ends_all_runs() {
    require_root();
    let directory = tempfile::tempdir().unwrap();
    let begun = directory.path().join("begun");
    let script = format!("echo >> {}; exec sleep 1000", begun.display());
    for (words, said) in [
        (["perturb", "--runs=2"].as_slice(), "signal 15 ended the runs; nothing is judged"),
        (["count", "-r", "5", "-e", "task-clock"].as_slice(), "signal 15 ended the runs: 1 of 5"),
    ] {
        let _ = std::fs::remove_file(&begun);
        let mut command = dcpi(words);
        command.args(["--", "sh", "-c", &script]).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        let patience = Instant::now() + Duration::from_secs(60);
        while !begun.exists() && Instant::now() < patience {
            sleep(Duration::from_millis(10));
        }
        kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(143), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(said), "{text}");
        assert_eq!(std::fs::read_to_string(&begun).unwrap(), "\n", "one run");
    }
}

/// The cost of events is measured and stored with the trace. The corrected time is shorter by that
/// cost, and lies in its interval.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_trace_says_what_its_events_cost() {
    let place = Place::new();
    let file = place.directory.path().join("a.trace");
    let mut trace = dcpi(&["trace", "--sched", "--at", ":step", "-o"]);
    let output = run(trace.arg(&file).arg("--").arg(&place.program).args(["2", "2000", "0"]));
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let report = json(dcpi(&["trace", "--correct", "--format=json"]).arg(&file));
    let costs = report["costs"].as_array().unwrap();
    // Entries and returns of the one kind of instruction that is probed, and switches, if any.
    let of = |what: &str| costs.iter().any(|cost| cost["of"].as_str().unwrap().starts_with(what));
    assert!(of("enter") && of("exit") && costs.len() <= 4, "{report}");
    assert!(costs.iter().all(|cost| cost["value_ns"].as_f64() >= Some(0.0)), "{report}");
    let total = &report["on_cpu_ns"];
    let number = |name: &str| total[name].as_f64().unwrap();
    assert!(number("low") <= number("value") && number("value") <= number("high"), "{report}");
    assert!(number("value") < number("measured"), "{report}");
    let step = report["rows"].as_array().unwrap().iter().find(|row| row["name"] == "step");
    assert!(step.unwrap()["calls"].as_u64() > Some(0), "{report}");
    let text = succeed(dcpi(&["trace", "--correct", "--to=text"]).arg(&file));
    assert!(text.contains("time_s low_s value_s high_s"), "{text}");
}

/// The command runs without events as well: its costs are known in situ, with how well. A program
/// that ends otherwise then is reported, and costs are those of other programs.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn runs_without_events_say_what_events_cost_in_the_program() {
    let place = Place::new();
    let file = place.directory.path().join("a.trace");
    let traced = |at: &str, command: &[&str]| {
        let mut trace = dcpi(&["trace", "--in-situ", "4", "--sched", "--at", at, "-o"]);
        let _ = run(trace.arg(&file).arg("--").args(command));
        json(dcpi(&["trace", "--correct", "--format=json"]).arg(&file))
    };
    let program = place.program.to_str().unwrap();
    let report = traced(":step", &[program, "2", "2000", "0"]);
    let of = &report["in_situ"];
    let number = |name: &str| of[name].as_f64().unwrap();
    assert_eq!(of["runs"], 4, "{report}");
    assert!(number("low") < number("value") && number("value") < number("high"), "{report}");
    // Each call is probed: the runs without events cannot be as long as the traced one.
    assert!(number("value") > 0.0, "{report}");
    let how = report["costs"][0]["how"].as_str().unwrap();
    assert_eq!(how == "in situ", of["says"] == "taken", "{report}");

    // One run to bring files into memory, two, the traced one, and two more.
    let count = place.directory.path().join("count");
    let script = format!(
        "n=$(cat {0} 2>/dev/null || echo 0); echo $((n + 1)) > {0}; {program} 1 1000 0; \
         test $n -lt 4",
        count.display()
    );
    let report = traced(&format!("{program}:step"), &["sh", "-c", &script]);
    assert_eq!(report["in_situ"], serde_json::Value::Null, "{report}");
    let notes = report["notes"].to_string();
    assert!(notes.contains("a run without events ended with exit status: 1"), "{notes}");
}
