//! Functions of Erlang (BEAM) in call stacks and rows, from a real daemon to the database. Needs
//! root.

use super::stacks::{folded, start};
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;
use tests::daemon::Place;
use tests::report::dcpi;
use tests::workload::{Running, script};
use tests::{require_root, succeed};

/// The kinds of calls of the workload, and the functions from the kind's on to the innermost one;
/// without any, the innermost ones are in C.
const KINDS: [(&str, &[&str]); 8] = [
    ("recursion", &["recursion/2", "recursion/2", "recursion/2", "recursion/2", "leaf/2"]),
    ("mapped", &["mapped/1", "lists:map/2", "'-mapped/1-fun-0-'/2", "leaf/2"]),
    ("sorted", &["sorted/1", "lists:sort/2", "'-sorted/1-fun-0-'/3", "leaf/2"]),
    ("caught", &["caught/1", "leaf/2"]),
    ("spawned", &["'-spawned/1-fun-0-'/2", "leaf/2"]),
    ("in_c", &["in_c/1"]),
    ("applied", &["applied/1", "thrice/1", "leaf/2"]),
    ("once", &["once/1", "leaf/2"]),
];
/// Part of the time whose stacks may be cut: some 4 % in 8 s, before the daemon knows the process,
/// and before the sampler knows the code in C; more on a busy machine.
const CUT_MAX: f64 = 0.1;

/// Compiles a workload; the folder with its module.
fn compiled(place: &Place, file: &str) -> String {
    let folder = place.path().to_str().expect("temporary directories have plain names").to_owned();
    let _ = succeed(Command::new("erlc").args(["-o", &folder]).arg(script(file)));
    folder
}

fn erl(folder: &str, module: &str, seconds: &str) -> Command {
    let mut erl = Command::new("erl");
    erl.args(["-noshell", "-pa", folder, "-run", module, "main", seconds]);
    erl
}

/// Functions stand in stacks in the order in which they called each other, from the first function
/// of their process of Erlang's on, also where C code runs, and divide the time as the program
/// itself measures it. Hardly any stack is cut.
#[test]
#[ignore = "needs root"]
fn functions_of_erlang_are_frames_in_their_order() {
    require_root();
    let place = Place::default();
    let folder = compiled(&place, "functions.erl");
    let daemon = start(&place, "200");
    let truth = Running::start(&mut erl(&folder, "functions", "8")).wait();
    daemon.flush();
    let stacks = daemon.status().stacks.expect("stacks are on");
    assert!(stacks.named > 300, "{stacks:?}");
    assert_eq!(stacks.named_differs, 0, "{stacks:?}");
    let mut times = [0.0; KINDS.len()];
    let (mut all, mut cut) = (0.0, 0.0);
    for (frames, time) in folded(&place, "cpu-clock", "beam.smp") {
        let frames: Vec<&str> = frames.iter().map(String::as_str).collect();
        let names = |frame: &&str| frame.starts_with("functions:") && !frame.contains(' ');
        if !frames.iter().any(|frame| names(frame) || frame.ends_with("(BEAM)")) {
            continue; // threads that run no code of Erlang's
        }
        all += time;
        if frames.get(1).is_some_and(|first| first.starts_with('[')) {
            cut += time;
            continue;
        }
        let own = |frame: &str| frame.strip_prefix("functions:").unwrap_or(frame).to_owned();
        let is_code =
            |frame: &&&str| **frame == "lists:sort/2" || **frame == "lists:map/2" || names(frame);
        let called: Vec<String> = frames.iter().filter(is_code).map(|frame| own(frame)).collect();
        let kind = KINDS.iter().position(|(_, chain)| called.iter().any(|name| name == chain[0]));
        let Some(kind) = kind else { continue };
        let begin = called.iter().position(|name| *name == KINDS[kind].1[0]).unwrap_or(0);
        let chain: Vec<&str> = called[begin..].iter().map(String::as_str).collect();
        let is_begin = KINDS[kind].1.starts_with(&chain);
        assert!(is_begin, "no such calls: {frames:?}");
        let first = if KINDS[kind].0 == "spawned" { KINDS[kind].1[0] } else { "main/1" };
        assert!(called.iter().any(|name| name == first), "not from the first on: {frames:?}");
        times[kind] += time;
    }
    println!("{cut} of {all} are cut");
    assert!(cut < CUT_MAX * all, "{cut} of {all} are cut");
    let measured: f64 = KINDS.iter().map(|(name, _)| truth.number(name)).sum();
    let all: f64 = times.iter().sum();
    for ((name, _), time) in KINDS.iter().zip(times) {
        let (share, known) = (truth.number(name) / measured, time / all);
        println!("{name}: {known:.3}, it is {share:.3}");
        // Four standard deviations of as many stacks as were taken at least.
        let allowed = 4.0 * (share * (1.0 - share) / 300.0).sqrt();
        assert!((known - share).abs() < allowed, "{name}: {known}, but it is {share}");
    }
}

/// One of two functions of the same lines runs three times as long as the other: their rows say so,
/// and the listing has the lines of their code alone.
#[test]
#[ignore = "needs root"]
fn functions_of_erlang_have_rows_of_their_own_time() {
    require_root();
    let place = Place::default();
    let folder = compiled(&place, "split.erl");
    let daemon = start(&place, "200");
    let truth = Running::start(&mut erl(&folder, "split", "6")).wait();
    daemon.flush();
    drop(daemon);
    let report = |command: &str, arguments: &[&str]| -> Value {
        let arguments = [&["--format", "json"][..], arguments].concat();
        let text = succeed(&mut dcpi(&place.db(), command, &arguments));
        serde_json::from_str(&text).expect("JSON")
    };
    let prof = report("prof", &["--all", "-n", "0", "--confidence", "99.9"]);
    let rows = prof["rows"].as_array().expect("rows");
    let share = |name: &str| {
        let is_of = |row: &&Value| row["procedure"] == name && row["image"] == "split.erl";
        let row = rows.iter().find(is_of).unwrap_or_else(|| panic!("no row of {name}: {rows:?}"));
        assert_eq!(row["language"], "erlang");
        let share = &row["share"]["cpu-clock"];
        ["value", "low", "high"].map(|of| share[of].as_f64().expect("a share"))
    };
    let [heavy, heavy_low, heavy_high] = share("split:heavy/2");
    let [light, light_low, light_high] = share("split:light/2");
    let [low, high] = [heavy_low / (heavy_low + light_high), heavy_high / (heavy_high + light_low)];
    let known = truth.number("heavy") / (truth.number("heavy") + truth.number("light"));
    let said = heavy / (heavy + light);
    println!("{said:.3} ({low:.3} to {high:.3}), it is {known:.3}");
    assert!((low..=high).contains(&known), "{said} ({low} to {high}), but it is {known}");
    let list = report("list", &["split.erl", "split:heavy/2"]);
    let lines = list["lines"].as_array().expect("lines");
    let hot = |line: &Value| line["line"].as_u64().is_some_and(|line| (5..8).contains(&line));
    assert!(!lines.is_empty() && lines.iter().all(hot), "{list}");
    let inclusive = report("prof", &["--all", "-n", "0", "--inclusive"]);
    let rows = inclusive["rows"].as_array().expect("rows");
    let found: BTreeSet<&str> = rows
        .iter()
        .filter(|row| row["image"] == "split.erl")
        .filter_map(|row| row["procedure"].as_str())
        .collect();
    let all = ["heavy/2", "light/2", "main/1", "cpu_us/0", "repeat/3"];
    let known = |name: &str| all.iter().any(|it| name.strip_prefix("split:") == Some(it));
    assert!(found.iter().all(|name| known(name)), "{found:?}");
    assert!(found.contains("split:heavy/2") && found.contains("split:main/1"), "{found:?}");
}
