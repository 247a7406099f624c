//! Methods of Java (HotSpot) in call stacks, from a real daemon to the database. Needs root.

use super::stacks::{folded, start};
use std::collections::BTreeSet;
use std::process::Command;
use tests::daemon::Place;
use tests::report::dcpi;
use tests::workload::{Running, script};
use tests::{require_root, succeed};

/// The kinds of calls of the workload: the method that is called for each.
const KINDS: [&str; 5] = ["recursion", "shapes", "sort", "thrice", "once"];
/// Methods that may follow each other, from the caller on.
const CALLS: [(&str, &[&str]); 12] = [
    ("main", &["Lambda.getAsLong", "time"]),
    ("recursion", &["recursion", "leaf"]),
    ("shapes", &["Square.area", "Circle.area", "Star.area"]),
    ("Square.area", &["leaf"]),
    ("Circle.area", &["leaf"]),
    ("Star.area", &["leaf"]),
    ("sort", &["Lambda.compare"]),
    ("Lambda.compare", &["lambda$sort$0"]),
    ("lambda$sort$0", &["compare"]),
    ("compare", &["leaf"]),
    ("thrice", &["leaf"]),
    ("once", &["leaf"]),
];

/// How the workload is run: by all that HotSpot has, in its interpreter alone, and in code of C1.
const MODES: [&str; 3] = ["-Xmixed", "-Xint", "-XX:TieredStopAtLevel=1"];
/// Part of the time whose stacks may be cut: in 8 s some 1 %, most of it before the daemon knows
/// the code, and more on a busy machine.
const CUT_MAX: f64 = 0.1;

/// A frame's method, without the class of the workload: `Methods$Square.area` is `Square.area`.
fn of_workload(frame: &str) -> Option<&str> {
    let name = frame.strip_prefix("Methods")?;
    let name = name.strip_prefix("$$").or_else(|| name.strip_prefix(['.', '$']))?;
    // Code that a compiler has made has the file and the line, too.
    (!name.contains(' ')).then_some(name)
}

/// Methods stand between the native frames in the order in which they called each other, whatever
/// runs them, and divide the time as the program itself measures it: one three times as much as
/// another. Hardly any stack is cut.
#[test]
#[ignore = "needs root"]
fn methods_of_java_are_frames_in_their_order() {
    require_root();
    let place = Place::default();
    let classes = compiled(&place);
    for mode in MODES {
        let place = Place::default();
        let daemon = start(&place, "200");
        let mut java = Command::new("java");
        let truth = Running::start(java.args([mode, "-cp", &classes, "Methods", "8"])).wait();
        daemon.flush();
        let stacks = daemon.status().stacks.expect("stacks are on");
        assert!(stacks.named > 300, "{mode}: {stacks:?}");
        let mut times = [0.0; KINDS.len()];
        let (mut all, mut javas, mut cut, mut unnamed) = (0.0, 0.0, 0.0, 0.0);
        for (frames, time) in folded(&place, "cpu-clock", "java") {
            let frames: Vec<&str> = frames.iter().map(String::as_str).collect();
            all += time;
            let is_javas =
                |frame: &&str| frame.starts_with("Methods") || frame.contains("(HotSpot)");
            if frames.iter().any(is_javas) {
                javas += time;
                let is_cut = frames.get(1).is_some_and(|first| first.starts_with('['));
                cut += if is_cut { time } else { 0.0 };
            }
            let main = frames.iter().rposition(|frame| *frame == "Methods.main");
            let Some(called) = main.and_then(|main| frames.get(main..)) else {
                unnamed += time;
                continue;
            };
            let methods: Vec<&str> = called.iter().filter_map(|frame| of_workload(frame)).collect();
            let Some(kind) = methods.iter().find_map(|it| KINDS.iter().position(|kind| kind == it))
            else {
                continue; // in `main` itself
            };
            // Before the sampler knew which words of such frames it has to copy.
            let is_unread =
                called.iter().rev().skip(1).any(|frame| *frame == "Interpreter (HotSpot)");
            if is_unread {
                unnamed += time;
                continue;
            }
            for pair in methods.windows(2) {
                let Some((_, may_follow)) = CALLS.iter().find(|(name, _)| *name == pair[0]) else {
                    continue; // the lambdas of `main`
                };
                assert!(may_follow.contains(&pair[1]), "{mode}: no such call: {frames:?}");
            }
            times[kind] += time;
        }
        assert!(cut < CUT_MAX * javas, "{mode}: {cut} of {javas} are cut");
        // The VM begins, and compiles in threads of its own.
        assert!(unnamed < 0.35 * all, "{mode}: {unnamed} of {all} without a method");
        let measured: f64 = KINDS.iter().map(|name| truth.number(name)).sum();
        let all: f64 = times.iter().sum();
        for (name, time) in KINDS.iter().zip(times) {
            let (share, known) = (truth.number(name) / measured, time / all);
            // Four standard deviations of as many stacks as were taken at least.
            let allowed = 4.0 * (share * (1.0 - share) / 300.0).sqrt();
            assert!((known - share).abs() < allowed, "{mode}: {name}: {known}, but it is {share}");
        }
    }
}

/// Reports name methods with their classes and files, and no method that the program does not have.
#[test]
#[ignore = "needs root"]
fn reports_name_methods_of_java_with_their_files() {
    require_root();
    let place = Place::default();
    let daemon = start(&place, "200");
    // The launcher compiles the source in memory.
    let _ = Running::start(Command::new("java").arg(script("Methods.java")).arg("5")).wait();
    daemon.flush();
    let arguments = ["--inclusive", "--all", "--format", "json"];
    let report = succeed(&mut dcpi(&place.db(), "prof", &arguments));
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    let of = |image: &str| -> BTreeSet<&str> {
        let rows = rows.iter().filter(|row| row["image"] == image);
        rows.filter_map(|row| row["procedure"].as_str()).collect()
    };
    let methods = of("Methods.java");
    let known = |name: &str| {
        let name = of_workload(name).unwrap_or(name);
        name.starts_with("lambda$")
            || CALLS.iter().any(|(it, _)| *it == name)
            || name == "leaf"
            || name == "time"
            || name == "<clinit>"
    };
    assert!(methods.iter().all(|name| known(name)), "{methods:?}");
    for name in ["Methods.leaf", "Methods.main", "Methods$Square.area"] {
        assert!(methods.contains(name), "{methods:?}");
    }
    assert!(!of("TimSort.java").is_empty(), "classes of the library");
}

/// Compiles the workload; the folder with its classes.
fn compiled(place: &Place) -> String {
    let folder = place.path().join("classes");
    let mut javac = Command::new("javac");
    let _ = succeed(javac.arg("-d").arg(&folder).arg(script("Methods.java")));
    folder.to_str().expect("temporary directories have plain names").to_owned()
}
