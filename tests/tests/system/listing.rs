//! `dcpi list` of what was really sampled: the known hot line with the file there, and the same
//! instructions from the code store when it is gone. Needs root, as `privileged.rs` does; without
//! it this fails.

use std::path::Path;

use serde_json::Value;
use tests::daemon::Place;
use tests::report::dcpi;
use tests::workload::Workload;
use tests::{require_root, succeed};

/// `dcpi list two_functions three_quarters` as JSON.
fn list(db: &Path) -> Value {
    let text =
        succeed(&mut dcpi(db, "list", &["two_functions20", "three_quarters", "--format", "json"]));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}:\n{text}"))
}

fn samples(row: &Value) -> u64 {
    row["counts"].as_object().expect("counts").values().filter_map(Value::as_u64).sum()
}

/// The share of the samples that fall into the innermost loop: between a jump back and what it
/// leads to.
fn share_in_loops(listing: &Value) -> f64 {
    let address = |row: &Value, key: &str| {
        let text = row.get(key)?.as_str()?;
        u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
    };
    let rows = listing["instructions"].as_array().unwrap();
    let begin = address(listing, "address").unwrap();
    let loops: Vec<(u64, u64)> = rows
        .iter()
        .filter_map(|row| Some((address(row, "target")?, address(row, "address")?)))
        .filter(|(to, from)| (begin..*from).contains(to))
        .collect();
    let within = |row: &&Value| {
        address(row, "address")
            .is_some_and(|at| loops.iter().any(|(to, from)| (*to..=*from).contains(&at)))
    };
    let inside: u64 = rows.iter().filter(within).map(samples).sum();
    let all: u64 = rows.iter().map(samples).sum();
    assert!(all > 1000, "{all} samples");
    inside as f64 / all as f64
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn the_hot_loop_is_listed_with_its_source_and_without_the_file() {
    require_root();
    let place = Place::default();
    let workload = Workload::build(place.path(), "two_functions20", &["-g"]);
    let mut command = place.dcpid();
    command.args(["--event", "cpu-clock"]);
    let daemon = place.start_as(command);
    let running = workload.start(4);
    let _ = running.wait();
    assert!(daemon.quit().success());

    let with_file = list(&place.db());
    assert!(share_in_loops(&with_file) > 0.95, "{with_file:#}");
    let hottest =
        with_file["lines"].as_array().unwrap().iter().max_by_key(|line| samples(line)).unwrap();
    let source = std::fs::read_to_string(hottest["file"].as_str().unwrap()).unwrap();
    let line = source.lines().nth(hottest["line"].as_u64().unwrap() as usize - 1).unwrap();
    assert_eq!(hottest["text"].as_str(), Some(line));
    assert!(
        hottest["file"].as_str().unwrap().ends_with("two_functions.c") && is_of_the_loop(line),
        "{hottest:#}"
    );

    std::fs::remove_file(workload.program()).unwrap();
    let without = list(&place.db());
    assert!(share_in_loops(&without) > 0.95, "{without:#}");
    let texts = |listing: &Value| -> Vec<(Value, Value)> {
        let rows = listing["instructions"].as_array().unwrap();
        rows.iter().map(|row| (row["text"].clone(), row["counts"].clone())).collect()
    };
    assert_eq!(texts(&without), texts(&with_file));
    let kinds: Vec<&str> =
        without["problems"].as_array().unwrap().iter().filter_map(|p| p["kind"].as_str()).collect();
    assert_eq!(kinds, ["from_code_store", "no_lines"]);
}

/// Whether this is a line of `spin`, the one loop that the program's time goes to.
fn is_of_the_loop(line: &str) -> bool {
    ["for (", "x = ", "x ^= ", "x += ", "while ("].iter().any(|words| line.contains(words))
}
