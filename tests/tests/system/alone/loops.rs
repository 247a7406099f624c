//! What is told of loops from registers of samples, held narrowly against what the loops do: the
//! time of a round is another one while other tests share caches and memory. Needs root.

use serde_json::Value;
use std::process::Command;
use tests::daemon::{Daemon, Place};
use tests::report::dcpi;
use tests::workload::{Running, Workload};
use tests::{require_root, succeed};

/// A daemon with that many snapshots a second.
fn start<'a>(place: &'a Place, edges: &str) -> Daemon<'a> {
    let mut command = place.dcpid();
    command.args(["--event", "cpu-clock@1000", "--edges", edges]);
    place.start_as(command)
}

/// The time of a loop's round follows from the registers of samples shortly after each other,
/// without a model of the processor: of loops from less than a ns to some hundred.
#[test]
#[ignore = "needs root"]
fn rounds_are_told_to_take_the_time_that_they_take() {
    require_root();
    let place = Place::default();
    let program = Workload::build(place.path(), "rounds", &["-lm"]);
    let program = program.program();
    let daemon = start(&place, "500");
    let truth = Running::start(Command::new(program).arg("2")).wait();
    daemon.flush();
    for name in ["chase", "divide", "root", "choose", "nested", "briefly"] {
        let words = ["--format", "json", program.to_str().unwrap(), name];
        let told: Value =
            serde_json::from_str(&succeed(&mut dcpi(&place.db(), "calc", &words))).unwrap();
        let loops = told["loops"].as_array().unwrap();
        let outermost = loops.iter().find(|row| row["depth"] == 1).unwrap();
        let round = |field: &str| outermost["round_ns"][field].as_f64().unwrap();
        assert!(outermost["round_ns"].is_object(), "{name}: {outermost:#}");
        let ns = truth.number(name);
        // It is 95 % sure; the margin is for chance, and for the clock's own time.
        eprintln!("{name}: {ns} ns; told {} to {}", round("low"), round("high"));
        let holds = round("low") * 0.95..round("high") * 1.05;
        assert!(holds.contains(&ns), "{name}: {ns}, {outermost:#}");
        assert!(round("high") / round("low") < 1.5, "{name}: {outermost:#}");
    }
}

/// Trip counts of loops follow from the registers of samples in them: for a loop with a constant
/// trip count, and for one whose short executions get hardly any samples.
#[test]
#[ignore = "needs root"]
fn loops_are_told_to_make_the_rounds_that_they_make() {
    require_root();
    let place = Place::default();
    let program = Workload::build(place.path(), "counted", &[]);
    let program = program.program();
    let daemon = start(&place, "1000");
    let truth = Running::start(Command::new(program).arg("4")).wait();
    daemon.flush();
    let rounds = |procedure: &str| {
        let words = ["--format", "json", program.to_str().unwrap(), procedure];
        let told: Value =
            serde_json::from_str(&succeed(&mut dcpi(&place.db(), "calc", &words))).unwrap();
        let tests: Vec<Value> = told["loops"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["test"].clone())
            .filter(|test| !test.is_null())
            .collect();
        assert_eq!(tests.len(), 1, "{procedure}: {:#}", told["loops"]);
        assert_eq!(tests[0]["only_exit"], true);
        ["rounds_low", "rounds_high", "rounds_90"].map(|name| tests[0][name].as_f64().unwrap())
    };
    let [always, short, long] = ["always", "short", "long"].map(|name| truth.number(name));
    for (name, mean, largest) in
        [("always", always, always), ("either", f64::midpoint(short, long), long)]
    {
        let [low, high, most] = rounds(name);
        // It is 95 % sure; the margin is for chance.
        let holds = 0.9 * low..1.1 * high;
        assert!(holds.contains(&mean), "{name}: {low} to {high}, but it is {mean}");
        assert!(high < 3.0 * low, "{name}: {low} to {high}");
        // A class of rounds is an eighth wide.
        assert!((most / largest).ln().abs() < 0.3, "{name}: {most} instead of {largest}");
    }
}
