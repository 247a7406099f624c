//! Functions of V8 (Node.js) in call stacks, from a real daemon to the database. Needs root.

use super::stacks::{folded, start};
use std::collections::BTreeSet;
use std::process::Command;
use tests::daemon::Place;
use tests::report::dcpi;
use tests::workload::{Running, script};
use tests::{require_root, succeed};

/// The kinds of calls of the workload: the function that is called for each, by a closure of that
/// name or of its own.
const KINDS: [&str; 5] = ["recursion", "sort", "made", "thrice", "once"];
/// Functions that may follow each other, from the caller on. Code of a caller may have a function
/// inlined.
const CALLS: [(&str, &[&str]); 9] = [
    ("main", &KINDS),
    ("recursion", &["recursion", "leaf"]),
    ("sort", &["sort", "<anonymous>"]),
    ("<anonymous>", &["key", "leaf"]),
    ("key", &["leaf"]),
    ("made", &["made", "leaf"]),
    ("thrice", &["thrice", "leaf"]),
    ("once", &["once", "leaf"]),
    ("leaf", &[]),
];

/// Functions stand between the native frames in the order in which they called each other, whatever
/// runs them, and divide the time as the program itself measures it: one three times as much as
/// another.
#[test]
#[ignore = "needs root"]
fn functions_of_javascript_are_frames_in_their_order() {
    require_root();
    let place = Place::default();
    let daemon = start(&place, "200");
    let truth = Running::start(Command::new("node").arg(script("functions.js")).arg("10")).wait();
    daemon.flush();
    let stacks = daemon.status().stacks.expect("stacks are on");
    assert!(stacks.named > 300, "{stacks:?}");
    let node = stacks.programs.iter().find(|program| program.program == "node");
    let is_whole = node.is_none_or(|node| node.cut.values().sum::<u64>() * 10 < node.whole);
    assert!(is_whole, "{node:?}");
    let names: BTreeSet<&str> = CALLS.iter().map(|(name, _)| *name).collect();
    let mut times = [0.0; KINDS.len()];
    let (mut all, mut unnamed) = (0.0, 0.0);
    for (frames, time) in folded(&place, "cpu-clock", "node") {
        let frames: Vec<&str> = frames.iter().map(String::as_str).collect();
        let main = frames.iter().rposition(|frame| *frame == "main");
        // Before the daemon has found V8, and where node prepares and ends.
        let Some(called) = main.and_then(|main| frames.get(main + 1..)) else {
            unnamed += time;
            continue;
        };
        let functions: Vec<&str> =
            called.iter().copied().filter(|frame| names.contains(frame)).collect();
        let Some(kind) = functions.first().and_then(|it| KINDS.iter().position(|kind| kind == it))
        else {
            continue; // in code of `main` itself
        };
        for pair in functions.windows(2) {
            let (_, may_follow) = CALLS.iter().find(|(name, _)| *name == pair[0]).unwrap();
            assert!(may_follow.contains(&pair[1]), "no such call: {frames:?}");
        }
        all += time;
        times[kind] += time;
    }
    assert!(unnamed < 0.25 * (all + unnamed), "{unnamed} without a function, {all} with one");
    let measured: f64 = KINDS.iter().map(|name| truth.number(name)).sum();
    for (name, time) in KINDS.iter().zip(times) {
        let (share, known) = (truth.number(name) / measured, time / all);
        // Four standard deviations of as many stacks as were taken at least.
        let allowed = 4.0 * (share * (1.0 - share) / 300.0).sqrt();
        assert!((known - share).abs() < allowed, "{name}: {known}, but it is {share}");
    }
}

/// Reports name functions with their files and lines, and no function that the program does not
/// have.
#[test]
#[ignore = "needs root"]
fn reports_name_functions_of_javascript_with_their_files() {
    require_root();
    let place = Place::default();
    let daemon = start(&place, "200");
    let _ = Running::start(Command::new("node").arg(script("functions.js")).arg("4")).wait();
    daemon.flush();
    let arguments = ["--inclusive", "--all", "--format", "json"];
    let report = succeed(&mut dcpi(&place.db(), "prof", &arguments));
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    let of_workload: BTreeSet<&str> = rows
        .iter()
        .filter(|row| row["image"] == "functions.js")
        .filter_map(|row| row["procedure"].as_str())
        .collect();
    let known: BTreeSet<&str> = CALLS.iter().map(|(name, _)| *name).collect();
    // The functions of `main` that measure are named after what they are for.
    let is_known = |name: &&&str| known.contains(**name) || **name == "maker";
    assert!(of_workload.iter().all(|name| is_known(&name)), "{of_workload:?}");
    assert!(of_workload.contains("leaf") && of_workload.contains("main"), "{of_workload:?}");
    let of_node = rows.iter().filter_map(|row| row["image"].as_str());
    assert!(of_node.into_iter().any(|image| image.starts_with("node:")), "modules of node's own");
}
