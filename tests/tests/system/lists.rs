//! Functions of Ruby, PHP, Lua, LuaJIT and Perl in call stacks, from a real daemon to the database.
//! Needs root.

use super::stacks::{folded, start};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use tests::daemon::Place;
use tests::report::dcpi;
use tests::workload::{Running, script};
use tests::{require_root, succeed};

/// A language's workload.
struct Language {
    program: &'static str,
    /// What stands before the script.
    options: &'static [&'static str],
    script: &'static str,
    /// The name of the process.
    command: &'static str,
    /// For each kind of call, the functions from the caller of `leaf` on to the one that begins it.
    chains: &'static [(&'static str, &'static [&'static str])],
    /// Further functions.
    others: &'static [&'static str],
}

impl Language {
    /// The name of a function of the program: Perl's have the package's before it.
    fn name_of(&self, function: &str) -> String {
        match self.script {
            "functions.pl" => format!("main::{function}"),
            _ => function.to_owned(),
        }
    }
}

const RUBY: Language = Language {
    program: "ruby3.1",
    options: &[],
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
    options: &[],
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

/// One of Lua, of each version that Debian has. Anonymous functions that C calls are named by their
/// places.
const fn lua(program: &'static str) -> Language {
    Language {
        program,
        options: &[],
        script: "functions.lua",
        command: program,
        chains: &[
            ("recursion", &["recursion", "recursion", "recursion", "recursion"]),
            ("sort", &["sort", "function <functions.lua:28>"]),
            ("protect", &["protect", "function <functions.lua:35>"]),
            ("coroutines", &["coroutines", "function <functions.lua:41>"]),
            (
                "coroutines",
                &["coroutines", "function <functions.lua:41>", "function <functions.lua:43>"],
            ),
            ("metamethod", &["metamethod"]),
            ("thrice", &["thrice"]),
            ("once", &["once"]),
        ],
        others: &["main chunk", "main", "call", "now", "function <functions.lua:57>"],
    }
}

/// LuaJIT. Functions have the names of their definitions: those that begin the kinds have the names
/// of fields.
const fn luajit(options: &'static [&'static str]) -> Language {
    Language {
        program: "luajit",
        options,
        chains: &[
            ("recursion", &["recursion", "recursion", "recursion", "recursion", "recursion"]),
            ("sort", &["sort", "sort", "function <functions.lua:28>"]),
            ("protect", &["protect", "protect", "function <functions.lua:35>"]),
            ("coroutines", &["coroutines", "coroutines", "body"]),
            ("coroutines", &["coroutines", "coroutines", "body", "function <functions.lua:43>"]),
            ("metamethod", &["metamethod", "metamethod"]),
            ("thrice", &["thrice", "thrice"]),
            ("once", &["once", "once"]),
        ],
        others: &["main chunk", "main", "now", "__index"],
        ..lua("luajit")
    }
}

/// Calls from C, by `sort`, a library, a tied variable, an operator and a regular expression;
/// blocks of `sort` and of regular expressions, and `eval` in calls from C, are in loops of their
/// own.
const PERL: Language = Language {
    program: "perl",
    options: &[],
    script: "functions.pl",
    command: "perl",
    chains: &[
        (
            "recursion",
            &["main::recursion", "main::recursion", "main::recursion", "main::recursion"],
        ),
        ("sort_by_name", &["main::sort_by_name", "main::by_leaf"]),
        ("methods", &["main::methods", "Sorter::sorted", "Sorter::sorted", "Sorter::compare"]),
        ("callbacks", &["main::callbacks", "main::__ANON__"]),
        ("callbacks", &["main::callbacks", "main::__ANON__", "main::__ANON__"]),
        ("tied_scalar", &["main::tied_scalar", "Tied::FETCH"]),
        ("overloaded", &["main::overloaded", "Sum::__ANON__"]),
        ("evaluated", &["main::evaluated"]),
        ("evaluated", &["main::evaluated", "(eval)"]),
        ("expression", &["main::expression", "main::expression"]),
        ("closure", &["main::closure", "main::__ANON__"]),
        ("thrice", &["main::thrice"]),
        ("once", &["main::once"]),
    ],
    others: &[
        "main program",
        "main::measured",
        "main::__ANON__",
        "Sorter::new",
        "Tied::TIESCALAR",
        "main::BEGIN",
        "Sum::BEGIN",
    ],
};

/// Functions stand between the native frames in the order in which they called each other, across
/// functions in C that call back, and divide the time as the program itself measures it: one three
/// times as much as another.
fn frames_are_in_their_order(language: &Language) {
    require_root();
    let place = Place::default();
    let daemon = start(&place, "200");
    let mut command = Command::new(language.program);
    let truth =
        Running::start(command.args(language.options).arg(script(language.script)).arg("8")).wait();
    daemon.flush();
    let stacks = daemon.status().stacks.expect("stacks are on");
    assert!(stacks.named > 300, "{stacks:?}");
    assert!(stacks.named_differs * 50 <= stacks.named, "{stacks:?}");
    let chains = language.chains;
    let mut times = vec![0.0; chains.len()];
    let (mut all, mut unnamed) = (0.0, 0.0);
    for (frames, time) in folded(&place, "cpu-clock", language.command) {
        let frames: Vec<&str> = frames.iter().map(String::as_str).collect();
        // LuaJIT's own `main` is no function of the script.
        let begin = frames.iter().position(|frame| *frame == "lua_cpcall").unwrap_or(0);
        let frames = &frames[begin..];
        // On a busy host some copies of stacks have no room.
        let is_truncated = frames.contains(&"[truncated]");
        let [leaf, main] = ["leaf", "main"].map(|name| language.name_of(name));
        let has = |name: &str| frames.contains(&name);
        // The sampler notes lists of Lua in passing, as far as it has rules.
        let is_part = language.script == "functions.lua" && !has(&main);
        if is_truncated || is_part && has(&leaf) {
            unnamed += time;
            continue;
        }
        let Some(leaf) = frames.iter().position(|frame| *frame == leaf) else {
            unnamed += if has(&main) { 0.0 } else { time };
            continue;
        };
        let is_known = |frame: &str| chains.iter().any(|(_, chain)| chain.contains(&frame));
        let callers: Vec<&str> = frames[..leaf].iter().copied().filter(|it| is_known(it)).collect();
        // In functions.php and functions.pl the main program makes every call through a closure,
        // which is one caller more.
        let callers = match (callers.as_slice(), language.script) {
            (["{closure}", callers @ ..], "functions.php")
            | (["main::__ANON__", callers @ ..], "functions.pl") => callers,
            (callers, _) => callers,
        };
        let known = chains.iter().position(|(_, chain)| *chain == callers);
        times[known.unwrap_or_else(|| panic!("no such chain: {frames:?}"))] += time;
        all += time;
    }
    assert!(unnamed < 0.25 * (all + unnamed), "{unnamed} without a function, {all} with one");
    let mut kinds = BTreeMap::<&str, f64>::new();
    for ((name, _), time) in chains.iter().zip(times) {
        *kinds.entry(name).or_default() += time;
    }
    let measured: f64 = kinds.keys().map(|name| truth.number(name)).sum();
    for (name, time) in kinds {
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
    let _ =
        Running::start(command.args(language.options).arg(script(language.script)).arg("4")).wait();
    daemon.flush();
    // Lua and LuaJIT run the same file, each by names of its own, perhaps at the same time.
    let arguments = ["--inclusive", "--all", "--format", "json", "--command", language.command];
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
    let [leaf, main] = ["leaf", "main"].map(|name| language.name_of(name));
    let ends = [leaf.as_str(), &main, "times_of", "block in leaf"];
    let is_known = |name: &&&str| known.contains(**name) || ends.contains(*name);
    assert!(found.iter().all(|name| is_known(&name)), "{found:?}");
    assert!(found.contains(&*leaf) && found.contains(&*main), "{found:?}");
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

#[test]
#[ignore = "needs root"]
fn functions_of_lua_5_4_are_frames_in_their_order() {
    frames_are_in_their_order(&lua("lua5.4"));
}

#[test]
#[ignore = "needs root"]
fn functions_of_lua_5_3_are_frames_in_their_order() {
    frames_are_in_their_order(&lua("lua5.3"));
}

#[test]
#[ignore = "needs root"]
fn functions_of_lua_5_2_are_frames_in_their_order() {
    frames_are_in_their_order(&lua("lua5.2"));
}

#[test]
#[ignore = "needs root"]
fn functions_of_lua_5_1_are_frames_in_their_order() {
    frames_are_in_their_order(&lua("lua5.1"));
}

#[test]
#[ignore = "needs root"]
fn functions_that_luajit_interprets_are_frames_in_their_order() {
    frames_are_in_their_order(&luajit(&["-joff"]));
}

#[test]
#[ignore = "needs root"]
fn functions_in_traces_of_luajit_are_frames_in_their_order() {
    frames_are_in_their_order(&luajit(&[]));
}

#[test]
#[ignore = "needs root"]
fn reports_name_functions_of_luajit_with_their_files() {
    reports_have_the_functions_of_the_file(&luajit(&[]));
}

#[test]
#[ignore = "needs root"]
fn reports_name_functions_of_lua_with_their_files() {
    reports_have_the_functions_of_the_file(&lua("lua5.4"));
}

#[test]
#[ignore = "needs root"]
fn functions_of_perl_are_frames_in_their_order() {
    frames_are_in_their_order(&PERL);
}

#[test]
#[ignore = "needs root"]
fn reports_name_functions_of_perl_with_their_files() {
    reports_have_the_functions_of_the_file(&PERL);
}
