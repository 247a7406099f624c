//! Functions of Ruby and PHP in call stacks, from a real daemon to the database. Needs root.

use super::stacks::{folded, start};
use std::collections::BTreeSet;
use std::process::Command;
use tests::daemon::Place;
use tests::report::dcpi;
use tests::workload::{Running, script};
use tests::{require_root, succeed};

/// A language's workload.
struct Language {
    program: &'static str,
    script: &'static str,
    /// The name of the process.
    command: &'static str,
    /// For each kind of call, the functions from the caller of `leaf` on to the one that begins it.
    chains: &'static [(&'static str, &'static [&'static str])],
    /// Further functions.
    others: &'static [&'static str],
}

const RUBY: Language = Language {
    program: "ruby3.1",
    script: "functions.rb",
    command: "ruby3.1",
    chains: &[
        ("recursion", &["recursion", "recursion", "recursion", "recursion"]),
        ("each_one", &["each_one", "block in each_one", "block (2 levels) in each_one"]),
        ("sort", &["sort", "block in sort", "key"]),
        ("thrice", &["thrice"]),
        ("once", &["once"]),
    ],
    others: &[
        "<main>",
        "main",
        "measured",
        "block in main",
        "now",
        "initialize",
        "<class:Integer>",
    ],
};

const PHP: Language = Language {
    program: "php8.2",
    script: "functions.php",
    command: "php8.2",
    chains: &[
        ("recursion", &["recursion", "recursion", "recursion", "recursion"]),
        ("mapped", &["mapped", "{closure}"]),
        ("sort", &["Sorter::sort", "Sorter::compare"]),
        ("generate", &["generate", "generator"]),
        ("thrice", &["thrice"]),
        ("once", &["once"]),
    ],
    others: &["{main}", "main", "now", "{closure}", "Sorter::__construct"],
};

/// Functions stand between the native frames in the order in which they called each other, across
/// functions in C that call back, and divide the time as the program itself measures it: one three
/// times as much as another.
fn frames_are_in_their_order(language: &Language) {
    require_root();
    let place = Place::default();
    let daemon = start(&place, "200");
    let mut command = Command::new(language.program);
    let truth = Running::start(command.arg(script(language.script)).arg("8")).wait();
    daemon.flush();
    let stacks = daemon.status().stacks.expect("stacks are on");
    assert!(stacks.named > 300, "{stacks:?}");
    assert!(stacks.named_differs * 50 <= stacks.named, "{stacks:?}");
    let chains = language.chains;
    let mut times = vec![0.0; chains.len()];
    let (mut all, mut unnamed) = (0.0, 0.0);
    for (frames, time) in folded(&place, "cpu-clock", language.command) {
        let frames: Vec<&str> = frames.iter().map(String::as_str).collect();
        // On a busy host some copies of stacks have no room.
        if frames.contains(&"[truncated]") {
            unnamed += time;
            continue;
        }
        let Some(leaf) = frames.iter().position(|frame| *frame == "leaf") else {
            unnamed += if frames.contains(&"main") { 0.0 } else { time };
            continue;
        };
        let is_known = |frame: &str| chains.iter().any(|(_, chain)| chain.contains(&frame));
        let callers: Vec<&str> = frames[..leaf].iter().copied().filter(|it| is_known(it)).collect();
        // A closure of `main` begins each call of PHP's.
        let callers = match (callers.as_slice(), language.script) {
            (["{closure}", callers @ ..], "functions.php") => callers,
            (callers, _) => callers,
        };
        let known = chains.iter().position(|(_, chain)| *chain == callers);
        times[known.unwrap_or_else(|| panic!("no such chain: {frames:?}"))] += time;
        all += time;
    }
    assert!(unnamed < 0.25 * (all + unnamed), "{unnamed} without a function, {all} with one");
    let measured: f64 = chains.iter().map(|(name, _)| truth.number(name)).sum();
    for ((name, _), time) in chains.iter().zip(times) {
        let (share, known) = (truth.number(name) / measured, time / all);
        println!("{name}: {known:.3}, it is {share:.3}");
        // Four standard deviations of as many stacks as were taken at least.
        let allowed = 4.0 * (share * (1.0 - share) / 300.0).sqrt();
        assert!((known - share).abs() < allowed, "{name}: {known}, but it is {share}");
    }
}

/// Reports name functions with their file, and no function that the program does not have.
fn reports_have_the_functions_of_the_file(language: &Language) {
    require_root();
    let place = Place::default();
    let daemon = start(&place, "200");
    let mut command = Command::new(language.program);
    let _ = Running::start(command.arg(script(language.script)).arg("4")).wait();
    daemon.flush();
    let arguments = ["--inclusive", "--all", "--format", "json"];
    let report = succeed(&mut dcpi(&place.db(), "prof", &arguments));
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    let found: BTreeSet<&str> = rows
        .iter()
        .filter(|row| row["image"] == language.script)
        .filter_map(|row| row["procedure"].as_str())
        .collect();
    let chains = language.chains.iter().flat_map(|(_, chain)| *chain);
    let known: BTreeSet<&str> = chains.chain(language.others).copied().collect();
    let is_known = |name: &&&str| {
        known.contains(**name) || ["leaf", "times_of", "block in leaf"].contains(*name)
    };
    assert!(found.iter().all(|name| is_known(&name)), "{found:?}");
    assert!(found.contains("leaf") && found.contains("main"), "{found:?}");
}

#[test]
#[ignore = "needs root"]
fn functions_of_ruby_are_frames_in_their_order() {
    frames_are_in_their_order(&RUBY);
}

#[test]
#[ignore = "needs root"]
fn reports_name_functions_of_ruby_with_their_files() {
    reports_have_the_functions_of_the_file(&RUBY);
}

#[test]
#[ignore = "needs root"]
fn functions_of_php_are_frames_in_their_order() {
    frames_are_in_their_order(&PHP);
}

#[test]
#[ignore = "needs root"]
fn reports_name_functions_of_php_with_their_files() {
    reports_have_the_functions_of_the_file(&PHP);
}
