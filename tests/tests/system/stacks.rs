//! Call stacks of programs that no compiler made for that, from a real daemon to the database, as
//! `dcpi export --to folded` tells them. Needs root.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tests::daemon::{Daemon, Place, assert_closes};
use tests::report::dcpi;
use tests::workload::{Running, Workload};
use tests::{require_root, succeed};

/// A daemon without a limit on what it may cost, on a machine that builds beside.
pub fn start<'a>(place: &'a Place, stacks: &str) -> Daemon<'a> {
    let mut command = place.dcpid();
    command.args(["--stacks", stacks, "--overhead-budget", "off"]);
    place.start_as(command)
}

/// Stacks of an event whose first frame is that command: frames from the thread's first on, and
/// the count.
pub fn folded(place: &Place, event: &str, command: &str) -> Vec<(Vec<String>, f64)> {
    folded_with(place, &["--event", event], command)
}

/// The same with more options of the export.
fn folded_with(place: &Place, options: &[&str], command: &str) -> Vec<(Vec<String>, f64)> {
    let file = place.path().join("folded");
    let _ = fs::remove_file(&file);
    let mut export = dcpi(&place.db(), "export", &["--to", "folded", "--all"]);
    export.args(options).arg("--output");
    let _ = succeed(export.arg(&file));
    let text = fs::read_to_string(&file).unwrap();
    let stack = |line: &str| {
        let (frames, count) = line.rsplit_once(' ').unwrap();
        let frames: Vec<String> = frames.split(';').map(str::to_owned).collect();
        (frames, count.parse().unwrap())
    };
    text.lines().map(stack).filter(|(frames, _)| frames[0] == command).collect()
}

/// Whether the frames have these names, in this order, one directly below the other.
pub fn has_chain(frames: &[String], chain: &[&str]) -> bool {
    frames.windows(chain.len()).any(|window| window.iter().eq(chain))
}

/// Stacks of a program without frame pointers reach its threads' first frames, divide the time of
/// a procedure among its callers as the program itself measures it, and have no wrong frame.
#[test]
#[ignore = "needs root"]
fn time_is_divided_among_callers_as_it_was() {
    require_root();
    let place = Place::default();
    let flags = ["-O2", "-fomit-frame-pointer", "-pthread"];
    let program = Workload::build(place.path(), "called", &flags);
    let daemon = start(&place, "400");
    let truth = Running::start(Command::new(program.program()).arg("4")).wait();
    daemon.flush();
    let status = daemon.status();
    assert_closes(&status.samples);
    let stacks = status.stacks.expect("stacks are on");
    assert!(stacks.taken > 500, "{stacks:?}");
    let all = folded(&place, "cpu-clock", "called");
    let of_leaf: Vec<_> =
        all.iter().filter(|(frames, _)| frames.iter().any(|frame| frame == "leaf")).collect();
    let sum = |chain: &[&str]| -> f64 {
        of_leaf.iter().filter(|(frames, _)| has_chain(frames, chain)).map(|(_, count)| count).sum()
    };
    let total: f64 = of_leaf.iter().map(|(_, count)| count).sum();
    let often = sum(&["work", "often", "recursion", "recursion", "recursion", "leaf"]);
    let seldom = sum(&["work", "seldom", "leaf"]);
    assert!(often + seldom >= 0.98 * total, "{often} and {seldom} of {total}: {all:?}");
    let share = truth.number("often") / (truth.number("often") + truth.number("seldom"));
    let known = often / (often + seldom);
    // Four standard deviations for the least number of stacks of the procedure.
    let allowed = 4.0 * (share * (1.0 - share) / 500.0).sqrt();
    assert!((known - share).abs() < allowed, "{known} of {total}, but it is {share}");
    let first = |frames: &[String], name: &str| frames.iter().any(|frame| frame == name);
    let whole: f64 = of_leaf
        .iter()
        .filter(|(frames, _)| first(frames, "_start") || frames[1].contains("clone"))
        .map(|(_, count)| count)
        .sum();
    assert!(whole >= 0.98 * total, "{whole} of {total} to the thread's first frame: {all:?}");
}

/// After a library was closed and another one opened at its address, stacks went on with frames of
/// the first: it had all stacks, a quarter being true.
#[test]
#[ignore = "needs root"]
fn stacks_are_of_the_library_that_is_mapped() {
    require_root();
    let place = Place::default();
    let program = Workload::build_turns(place.path(), 50);
    let daemon = start(&place, "400");
    let truth = Running::start(Command::new(program.program()).arg("5")).wait();
    daemon.flush();
    let stacks = |library: &str| -> f64 {
        let options = [library, "library_work", "--format", "json"];
        let report = succeed(&mut dcpi(&place.db(), "callers", &options));
        let report: Value = serde_json::from_str(&report).unwrap();
        let rows = report["rows"].as_array().unwrap().iter();
        rows.map(|row| row["stacks"].as_f64().unwrap()).sum()
    };
    let (first, second) = (stacks("first.so"), stacks("second.so"));
    let all = first + second;
    assert!(all > 300.0, "{first} and {second}");
    let share = truth.number("first") / (truth.number("first") + truth.number("second"));
    let allowed = 4.0 * (share * (1.0 - share) / all).sqrt();
    assert!((first / all - share).abs() < allowed, "{first} of {all}, but it is {share}");
}

/// Stacks are whole across pages that nobody has touched, as of a large buffer of which a request
/// fills the begin: none of 124 was. A worker of io_uring has the process's memory and no user
/// code: a frame of the thread that had made it stood below `ret_from_fork`.
#[test]
#[ignore = "needs root"]
fn stacks_have_gaps_and_workers_of_io_uring_no_user_frame() {
    require_root();
    let place = Place::default();
    let program = Workload::build(place.path(), "gaps", &["-O2"]);
    let daemon = start(&place, "400");
    let _ = tests::succeed(Command::new(program.program()).arg("5"));
    daemon.flush();
    let all = folded(&place, "cpu-clock", "gaps");
    let sum = |is_counted: &dyn Fn(&[String]) -> bool| -> f64 {
        all.iter().filter(|(frames, _)| is_counted(frames)).map(|(_, count)| count).sum()
    };
    let hot = sum(&|frames| frames.last().is_some_and(|frame| frame == "hot"));
    let whole = sum(&|frames| {
        has_chain(frames, &["main", "handle", "hot"]) && frames.iter().any(|it| it == "_start")
    });
    // dcpid copies more of a thread's stack after a few were cut: the first ones are.
    assert!(hot > 0.0 && whole > 0.7 * hot, "{whole} of {hot}: {all:?}");
    let forked = |frames: &[String]| frames.iter().any(|it| it.starts_with("ret_from_fork"));
    let workers = sum(&forked);
    let alone = sum(&|frames| forked(frames) && frames[1].starts_with("ret_from_fork"));
    assert!(workers > 0.0 && alone == workers, "{alone} of {workers}: {all:?}");
}

/// A database without stacks says so, and what to do.
#[test]
#[ignore = "needs root"]
fn without_stacks_a_report_says_what_to_do() {
    require_root();
    let place = Place::default();
    let program = Workload::build(place.path(), "called", &["-O2", "-pthread"]);
    let daemon = start(&place, "off");
    let _ = Running::start(Command::new(program.program()).arg("1")).wait();
    daemon.flush();
    assert!(daemon.status().stacks.is_none());
    let said = tests::refuse(&mut dcpi(&place.db(), "prof", &["--inclusive"]));
    assert!(said.contains("--stacks"), "{said}");
    assert!(Path::new(&place.db()).is_dir());
}

/// `dcpi callers normalise` did not know a function that is inlined wherever it is called: 28 % of
/// the time were its, as the export for pprof said. All reports of call stacks have its share, as
/// the program measures it and as exports do.
#[test]
#[ignore = "needs root"]
fn inlined_functions_have_their_time_and_callers() {
    require_root();
    let place = Place::default();
    let program = Workload::build(place.path(), "inlined", &["-O2", "-g"]);
    let daemon = start(&place, "400");
    let truth = Running::start(Command::new(program.program()).arg("4")).wait();
    daemon.flush();
    assert_closes(&daemon.status().samples);
    let [smooth, rank, apart] = ["smooth", "rank", "apart"].map(|of| truth.number(of));
    let report = |words: &[&str]| -> Value {
        let (command, rest) = words.split_first().unwrap();
        let mut run = dcpi(&place.db(), command, &["--format", "json", "--all"]);
        serde_json::from_str(&succeed(run.args(rest))).unwrap()
    };
    let row = |report: &Value, name: &str, inlined: bool| -> Value {
        let rows = report["rows"].as_array().unwrap();
        // Other programs run, too.
        let of_it = |row: &&&Value| row["image"] == "inlined" && row["procedure"] == name;
        let is_it = |row: &&Value| of_it(&row) && row["inlined"] == inlined;
        rows.iter().find(is_it).unwrap_or_else(|| panic!("no {name} in {report:#}")).clone()
    };
    let holds = |share: &Value, truth: f64, what: &str| {
        let [low, high] = ["low", "high"].map(|end| share[end].as_f64().unwrap());
        // Loops around the function are not its own; the interval is of 95 %.
        assert!(low - 0.02 <= truth && truth <= high + 0.02, "{what}: {truth} in {share}");
    };
    let of_all = (smooth + rank) / (smooth + rank + apart);
    // The loops around it are not its own, and interrupts are anybody's.
    let is_near = |share: f64| (share - of_all).abs() < 0.06;
    let callers = report(&["callers", "normalise"]);
    for (caller, inlined, seconds) in [("filter", true, smooth), ("rank", false, rank)] {
        let share = &row(&callers, caller, inlined)["share"];
        holds(share, seconds / (smooth + rank), caller);
    }
    let callees = report(&["callees", "normalise"]);
    assert!(row(&callees, "mix", true)["share"]["value"].as_f64().unwrap() > 0.3, "{callees:#}");
    let tree = report(&["tree", "--command", "inlined", "--min", "0"]);
    let shares = |name: &str| -> f64 {
        let rows = tree["rows"].as_array().unwrap().iter();
        let of = rows.filter(|row| row["procedure"] == name);
        of.map(|row| row["share"]["value"].as_f64().unwrap()).sum()
    };
    assert!(is_near(shares("normalise")), "{} of {of_all}", shares("normalise"));
    let inclusive = report(&["prof", "--inclusive"]);
    let normalise = row(&inclusive, "normalise", true);
    let main = row(&inclusive, "main", false);
    let of_main = |row: &Value, key: &str| row["inclusive"]["cpu-clock"][key].as_f64().unwrap();
    let part = of_main(&normalise, "value") / of_main(&main, "value");
    assert!(is_near(part), "{part}, but it is {of_all}");
    let all = folded_with(&place, &["--event", "cpu-clock", "--lines"], "inlined");
    let total: f64 = all.iter().map(|(_, count)| count).sum();
    let with = all.iter().filter(|(frames, _)| frames.iter().any(|of| of == "normalise"));
    let exported: f64 = with.map(|(_, count)| count).sum::<f64>() / total;
    // Procedures of the kernel without a stack have callers in reports, and none in exports.
    assert!((exported - part).abs() < 0.05, "{exported} and {part}");
    let samples = report(&["prof", "--inlined", "inlined"]);
    let of =
        |name: &str| row(&samples, name, true)["share"]["cpu-clock"]["value"].as_f64().unwrap();
    assert!(is_near(of("normalise") + of("mix")), "{samples:#}");
    let drawn = succeed(&mut dcpi(&place.db(), "flame", &["-o", "-", "--all"]));
    assert!(drawn.contains("<title>normalise (inlined) (inlined): "), "{drawn}");
    let said = tests::refuse(&mut dcpi(&place.db(), "list", &["inlined", "normalise"]));
    assert!(said.contains("it is inlined into smooth ("), "{said}");
}
