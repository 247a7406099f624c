//! Frames of CPython in call stacks, from a real daemon to the database. Needs root.

use super::stacks::{folded, start};
use std::collections::BTreeSet;
use std::process::Command;
use tests::daemon::Place;
use tests::report::dcpi;
use tests::workload::Running;
use tests::{require_root, succeed};

/// Debian's, which is a program without a library of its own.
const PYTHON: &str = "/usr/bin/python3";
/// The chains of functions that the workload has, from the module's code to `leaf`.
const CHAINS: [(&str, &[&str]); 4] = [
    ("recursion", &["main.<locals>.<lambda>", "recursion", "recursion", "recursion", "recursion"]),
    ("generate", &["generate", "generator"]),
    ("sort", &["Sorter.sort", "Sorter.key"]),
    (
        "encode",
        &["encode", "dumps", "JSONEncoder.encode", "JSONEncoder.iterencode", "Encoder.default"],
    ),
];

fn workload() -> String {
    format!("{}/workloads/interpreted.py", env!("CARGO_MANIFEST_DIR"))
}

/// Functions stand between the native frames in the order in which they called each other, across
/// C code that calls back, and divide the time as the program itself measures it.
#[test]
#[ignore = "needs root"]
fn functions_of_python_are_frames_in_their_order() {
    require_root();
    let place = Place::default();
    let daemon = start(&place, "200");
    let truth = Running::start(Command::new(PYTHON).args([&workload(), "8"])).wait();
    daemon.flush();
    let stacks = daemon.status().stacks.expect("stacks are on");
    assert!(stacks.named > 300, "{stacks:?}");
    assert!(stacks.named_differs * 50 <= stacks.named, "{stacks:?}");
    let names: BTreeSet<&str> = CHAINS.iter().flat_map(|(_, chain)| *chain).copied().collect();
    let is_known = |frame: &str| names.contains(frame) || ["<module>", "leaf"].contains(&frame);
    let mut times = [0.0; CHAINS.len()];
    let (mut all, mut unnamed) = (0.0, 0.0);
    for (frames, time) in folded(&place, "cpu-clock", "python3") {
        // On a busy host some copies of stacks have no room.
        if frames.iter().any(|frame| frame == "[truncated]") {
            unnamed += time;
            continue;
        }
        let functions: Vec<&str> =
            frames.iter().map(String::as_str).filter(|frame| is_known(frame)).collect();
        // Stacks outside of `leaf` are few, and each of their functions may be the innermost.
        let Some((&"leaf", callers)) = functions.split_last() else {
            unnamed += if functions.is_empty() { time } else { 0.0 };
            continue;
        };
        all += time;
        let chain = callers.strip_prefix(&["<module>"]).unwrap_or_default();
        let known = CHAINS.iter().position(|(_, known)| *known == chain);
        let known = known.unwrap_or_else(|| panic!("no such chain: {frames:?}"));
        times[known] += time;
    }
    assert!(unnamed < 0.25 * (all + unnamed), "{unnamed} without a function, {all} with one");
    let measured: f64 = CHAINS.iter().map(|(name, _)| truth.number(name)).sum();
    for ((name, _), time) in CHAINS.iter().zip(times) {
        let (share, known) = (truth.number(name) / measured, time / all);
        // Four standard deviations of as many stacks as were taken at least.
        let allowed = 4.0 * (share * (1.0 - share) / 300.0).sqrt();
        assert!((known - share).abs() < allowed, "{name}: {known}, but it is {share}");
    }
}

/// Reports name functions with their files, and no function that the program does not have.
#[test]
#[ignore = "needs root"]
fn reports_name_functions_of_python_with_their_files() {
    require_root();
    let place = Place::default();
    let daemon = start(&place, "200");
    let _ = Running::start(Command::new(PYTHON).args([&workload(), "4"])).wait();
    daemon.flush();
    let arguments = ["--inclusive", "--all", "--format", "json"];
    let report = succeed(&mut dcpi(&place.db(), "prof", &arguments));
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    let of_workload: BTreeSet<&str> = report["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .filter(|row| row["image"] == "interpreted.py")
        .filter_map(|row| row["procedure"].as_str())
        .collect();
    let text = std::fs::read_to_string(workload()).unwrap();
    for name in &of_workload {
        let last = name.rsplit('.').next().unwrap_or_default();
        let has = |name: &str| text.contains(&format!("def {name}("));
        assert!(matches!(last, "<module>" | "<lambda>") || has(last), "{name}: {of_workload:?}");
    }
    assert!(of_workload.contains("leaf") && of_workload.contains("Sorter.key"), "{of_workload:?}");
}
