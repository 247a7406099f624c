//! Procedures that are stalled by one thing each, from samples of real time to `dcpi calc` and
//! `dcpi whatcg`: what stalls them is among what they are told to have been stalled by, and nothing
//! can have taken more. With the machine measured and executions counted, ranges of what waits for
//! memory are narrow. Needs root.

use serde_json::Value;
use std::process::Command;
use tests::daemon::Place;
use tests::report::dcpi;
use tests::workload::{Running, Workload};
use tests::{require_root, succeed};

/// Procedures of `stalled.c`, and the letters of what stalls them, any of which may come first.
const STALLED: [(&str, &str); 10] = [
    ("chase", "d"),
    ("chase_large", "d"),
    ("alias", "f"),
    ("unpredictable", "p"),
    ("divider", "v"),
    ("code", "i"),
    ("pages", "D"),
    ("stores", "w"),
    ("locks", "l"),
    ("barriers", "s"),
];

/// Whether it was measured on the processor where samples land: what reports say is narrow then.
fn is_fitted(calc: &Value) -> bool {
    matches!(calc["machine"].as_str().unwrap(), "znver3" | "znver4")
}

#[test]
#[ignore = "needs root"]
fn what_stalls_a_procedure_is_the_first_suspect() {
    require_root();
    let place = Place::default();
    let workload = Workload::build(place.path(), "stalled", &["-pthread"]);
    let program = workload.program();
    let mut command = place.dcpid();
    let machine = place.path().join("machine");
    let told = succeed(Command::new(tests::binary("dcpi")).args(["machine", "-o"]).arg(&machine));
    assert!(told.contains("memory load "), "{told}");
    command.args(["--event", "cpu-clock@2000", "--edges", "1000", "--machine"]).arg(&machine);
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
        assert!(told["latencies_measured"].is_string(), "the epoch has the machine: {told:#}");
        let causes = told["causes"].as_array().unwrap();
        let high = |cause: &Value| cause["high"].as_f64().unwrap();
        let most = causes.iter().map(high).fold(0.0, f64::max);
        assert!(most > 0.3, "{name}: little of its time may be a stall: {causes:#?}");
        let guilty =
            causes.iter().filter(|cause| letters.contains(cause["letter"].as_str().unwrap()));
        // Samples of single instructions are shared out among causes with an error. Where it is not
        // known to the instruction where samples land, others may be as likely, but what stalls the
        // procedure is not cleared.
        let least = (most * 0.9).min(0.5);
        // Where the time of a round is known, divisions that take as long as their latency are no
        // stall, but what the best case waits for.
        let statics = told["statics"].as_array().unwrap().iter();
        let statics: f64 = statics.map(|part| part["share"].as_f64().unwrap()).sum();
        let is_static = name == "divider" && statics > 0.4;
        assert!(
            is_static || guilty.map(high).fold(0.0, f64::max) > least,
            "{name}: {letters} is cleared, or others are more likely: {causes:#?}"
        );
        let parts = ["dynamic", "execution", "sampling_error", "not_known"]
            .map(|part| told[part].as_f64().unwrap());
        let statics =
            told["statics"].as_array().unwrap().iter().map(|part| part["share"].as_f64().unwrap());
        let total = parts.iter().sum::<f64>() + statics.sum::<f64>();
        assert!((total - 1.0).abs() < 1e-6, "{name}: it adds up to {total}: {told:#}");
        assert!(told["unexplained"].as_f64().unwrap() < 0.25, "{name}: {told:#}");
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
    // Where cycles are known, an instruction that took no longer than its best case waits for
    // nothing: of the loop's eight, the processor may hold those behind the first load for less.
    let waits = |line: &Value| {
        line["cpi_most"].as_f64().is_none_or(|most| most > line["best_cpi"].as_f64().unwrap())
    };
    let moves: Vec<&Value> = sampled
        .into_iter()
        .filter(|line| line["text"].as_str().unwrap().starts_with("mov") && waits(line))
        .collect();
    assert!(!moves.is_empty(), "no move waits: {copied:#}");
    for line in moves {
        let letter = if line["text"].as_str().unwrap().ends_with(')') { 'w' } else { 'd' };
        assert!(suspects(line).contains(letter), "{letter} is cleared: {line:#}");
    }
    let all = asked("whatcg", &["--min-samples", "100"]);
    assert!(all["procedures"].as_u64().unwrap() >= 9, "{all:#}");
    let stalls = asked("topstalls", &["-n", "5", "--min-samples", "100"]);
    assert_eq!(stalls["rows"].as_array().unwrap().len(), 5, "{stalls:#}");
}

/// Loops that wait for memory alone, rounds of a million executions that take about a second, and
/// the letter of the cause; of `pages`, cache and TLB together.
const MEMORY_BOUND: [(&str, &str, &str); 4] =
    [("chase", "3", "d"), ("chase_large", "4", "d"), ("pages", "20", "dD"), ("stores", "15", "w")];

/// Without measured latencies, whatever a loop waited for might have taken nothing or all: a page
/// walk could take 2400 cycles, so that of 570 cycles of a load none was surely the cache's.
#[test]
#[ignore = "needs root"]
fn on_a_measured_machine_loops_that_wait_for_memory_are_told_right() {
    require_root();
    let place = Place::default();
    let workload = Workload::build(place.path(), "stalled", &["-pthread"]);
    let program = workload.program().to_str().unwrap();
    let machine = place.path().join("machine");
    let machine = machine.to_str().unwrap();
    let dcpi_of = |arguments: &[&str]| succeed(Command::new(tests::binary("dcpi")).args(arguments));
    dcpi_of(&["machine", "--format", "json", "-o", machine]);
    for (name, rounds, letters) in MEMORY_BOUND {
        let db = place.path().join(name);
        let db_name = db.to_str().unwrap();
        dcpi_of(&["ideal", "--sampled", "-o", db_name, "--", program, name, "0", rounds]);
        let told = |latencies: &str| -> Value {
            let asked = ["--format", "json", "--latencies", latencies, program, name];
            serde_json::from_str(&succeed(&mut dcpi(&db, "calc", &asked))).unwrap()
        };
        let (told, generic) = (told(machine), told("generic"));
        assert!(told["latencies_measured"].is_string(), "{name}: {told:#}");
        assert!(generic["latencies_measured"].is_null(), "{name}");
        let number = |of: &Value| of.as_f64().unwrap();
        let causes = told["causes"].as_array().unwrap();
        let range = if letters == "dD" {
            &told["of_data"]
        } else {
            causes.iter().find(|cause| cause["letter"] == letters).unwrap()
        };
        let ends = |of: &Value| (number(&of["low"]), number(&of["high"]));
        let ((low, high), (data_low, data_high)) = (ends(range), ends(&told["of_data"]));
        let of_generic = generic["causes"].as_array().unwrap().iter();
        let cleared = of_generic.clone().any(|cause| {
            letters.contains(cause["letter"].as_str().unwrap()) && number(&cause["high"]) < 0.4
        });
        // Where it is not known to the instruction where samples land, ranges are honest and wide.
        let is_found = high > 0.4 && (low > 0.0 || !is_fitted(&told));
        assert!(!cleared && is_found, "{name}: {low} to {high}: {told:#}");
        // How the time is divided among cache and TLB depends on what else uses the memory now:
        // the range of the two together does not.
        let (low_of_all, high_of_all) =
            if letters == "w" { (low, high) } else { (data_low, data_high) };
        let is_narrow = !is_fitted(&told) || high_of_all <= 2.0 * low_of_all;
        assert!(is_narrow, "{name}: {low_of_all} to {high_of_all}: {told:#}");
        // The loops wait for nothing else: all of the time that is no execution is of that cause.
        let (truth, error) = (number(&told["dynamic"]), number(&told["sampling_error"]));
        assert!(
            low_of_all <= truth + error && truth - error <= high_of_all,
            "{name}: {truth} +- {error} is not in {low_of_all} to {high_of_all}: {told:#}"
        );
        let blocks = told["blocks"].as_array().unwrap().iter();
        let cycles = blocks.map(|block| block["cpi"].as_f64().unwrap_or(0.0)).fold(0.0, f64::max);
        println!(
            "{name}: {letters} {low:.3} to {high:.3}, a factor of {:.2}; data {data_low:.3} to \
             {data_high:.3}; the truth is {truth:.3}; {cycles:.0} cycles an instruction",
            high / low
        );
    }
}
