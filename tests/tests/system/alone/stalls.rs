//! Procedures that are stalled by one thing each, from samples of real time to `dcpi calc` and
//! `dcpi whatcg`: what stalls them is among what they are told to have been stalled by, and nothing
//! can have taken more. Needs root.

use serde_json::Value;
use std::process::Command;
use tests::daemon::Place;
use tests::report::dcpi;
use tests::workload::{Running, Workload};
use tests::{require_root, succeed};

/// Procedures of `stalled.c`, and the letters of what stalls them, any of which may come first.
const STALLED: [(&str, &str); 9] = [
    ("chase", "d"),
    ("alias", "f"),
    ("unpredictable", "p"),
    ("divider", "v"),
    ("code", "i"),
    ("pages", "D"),
    ("stores", "w"),
    ("locks", "l"),
    ("barriers", "s"),
];

#[test]
#[ignore = "needs root"]
fn what_stalls_a_procedure_is_the_first_suspect() {
    require_root();
    let place = Place::default();
    let workload = Workload::build(place.path(), "stalled", &["-pthread"]);
    let program = workload.program();
    let mut command = place.dcpid();
    command.args(["--event", "cpu-clock@2000", "--edges", "1000"]);
    let daemon = place.start_as(command);
    for name in STALLED.iter().map(|(name, _)| *name).chain(["copy"]) {
        let truth = Running::start(Command::new(program).args([name, "1"])).wait();
        assert!(truth.number("rounds") >= 1.0, "{name}");
    }
    daemon.flush();
    let image = program.to_str().unwrap();
    let asked = |command: &str, rest: &[&str]| -> Value {
        let arguments: Vec<&str> =
            ["--format", "json", image].iter().chain(rest).copied().collect();
        serde_json::from_str(&succeed(&mut dcpi(&place.db(), command, &arguments))).unwrap()
    };
    for (name, letters) in STALLED {
        let told = asked("calc", &[name]);
        let causes = told["causes"].as_array().unwrap();
        let high = |cause: &Value| cause["high"].as_f64().unwrap();
        let most = causes.iter().map(high).fold(0.0, f64::max);
        assert!(most > 0.3, "{name}: little of its time may be a stall: {causes:#?}");
        let guilty =
            causes.iter().filter(|cause| letters.contains(cause["letter"].as_str().unwrap()));
        // Samples of single instructions are shared out among causes with an error.
        assert!(
            guilty.map(high).fold(0.0, f64::max) > most * 0.9,
            "{name}: {letters} is cleared, or others are more likely: {causes:#?}"
        );
        let parts = ["dynamic", "execution", "sampling_error", "not_known"]
            .map(|part| told[part].as_f64().unwrap());
        let statics =
            told["statics"].as_array().unwrap().iter().map(|part| part["share"].as_f64().unwrap());
        let total = parts.iter().sum::<f64>() + statics.sum::<f64>();
        assert!((total - 1.0).abs() < 1e-6, "{name}: it adds up to {total}: {told:#}");
        assert!(told["unexplained"].as_f64().unwrap() < 0.1, "{name}: {told:#}");
    }
    // Figure 2 of the paper: each store of a copy loop may wait for room in the store buffer, each
    // load for memory.
    let copied = asked("calc", &["copy"]);
    let instructions = copied["blocks"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|block| block["instructions"].as_array().unwrap());
    let suspects = |line: &Value| -> String {
        line["culprits"]
            .as_array()
            .unwrap()
            .iter()
            .map(|culprit| culprit["letter"].as_str().unwrap())
            .collect()
    };
    let sampled: Vec<&Value> =
        instructions.filter(|line| line["samples"].as_u64().unwrap() > 50).collect();
    assert!(sampled.len() >= 2, "{copied:#}");
    for line in sampled {
        let text = line["text"].as_str().unwrap();
        let letter = if text.ends_with(')') { 'w' } else { 'd' };
        assert!(
            !text.starts_with("mov") || suspects(line).contains(letter),
            "{letter} is cleared: {line:#}"
        );
    }
    let all = asked("whatcg", &[]);
    assert!(all["procedures"].as_u64().unwrap() >= 9, "{all:#}");
    let stalls = asked("topstalls", &["-n", "5"]);
    assert_eq!(stalls["rows"].as_array().unwrap().len(), 5, "{stalls:#}");
}
