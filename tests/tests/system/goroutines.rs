//! Programs of Go, from a real daemon to the database: the callers of work that is done on the
//! thread's own stack, and functions that are inlined. Needs root.

use super::stacks::{folded, has_chain, start};
use serde_json::Value;
use std::process::Command;
use tests::daemon::{Daemon, Place};
use tests::report::dcpi;
use tests::workload::{Running, Truth, Workload};
use tests::{require_root, succeed};

/// Runs a kind of work in an epoch of its own, after the sampler has learnt the code.
fn run(place: &Place, daemon: &Daemon<'_>, program: &Workload, kind: &str) -> Truth {
    let start = |seconds: &str| {
        let mut command = Command::new(program.program());
        Running::start(command.args([kind, seconds])).wait()
    };
    let _ = start("3");
    daemon.flush();
    let _ = succeed(&mut place.dcpictl(&["epoch"]));
    let truth = start("6");
    daemon.flush();
    truth
}

/// Whether the share of `often` is that which the program itself measured.
fn assert_divided(truth: &Truth, often: f64, seldom: f64) {
    let share = truth.number("often") / (truth.number("often") + truth.number("seldom"));
    let known = often / (often + seldom);
    // Four standard deviations for the least number of stacks.
    let allowed = 4.0 * (share * (1.0 - share) / 500.0).sqrt();
    assert!((known - share).abs() < allowed, "{known} of {}, but it is {share}", often + seldom);
}

/// C that Go had called, and work of the allocator and of the collector, had no callers: such
/// stacks began with `runtime.asmcgocall` and `runtime.systemstack`.
#[test]
#[ignore = "needs root"]
fn work_on_the_threads_stack_has_the_goroutines_callers() {
    require_root();
    let place = Place::default();
    let program = Workload::build_go(place.path(), "goroutines", &[]);
    let daemon = start(&place, "400");
    let truth = run(&place, &daemon, &program, "c");
    let all = folded(&place, "cpu-clock", "goroutines");
    let of_c = all.iter().filter(|(frames, _)| frames.iter().any(|frame| frame == "work"));
    let of_c: Vec<_> = of_c.collect();
    let sum = |chain: &[&str]| -> f64 {
        of_c.iter().filter(|(frames, _)| has_chain(frames, chain)).map(|(_, count)| count).sum()
    };
    let total: f64 = of_c.iter().map(|(_, count)| count).sum();
    assert!(total > 500.0, "{all:?}");
    let [often, seldom] = ["main.often", "main.seldom"]
        .map(|caller| sum(&["runtime.main", "main.main", caller, "main.in_c"]));
    assert!(often + seldom >= 0.98 * total, "{often} and {seldom} of {total}: {of_c:?}");
    assert_divided(&truth, often, seldom);

    let _ = run(&place, &daemon, &program, "collector");
    let all = folded(&place, "cpu-clock", "goroutines");
    let switched = all
        .iter()
        .filter(|(frames, _)| frames.iter().any(|frame| frame.starts_with("runtime.systemstack")));
    let switched: Vec<_> = switched.collect();
    let total: f64 = switched.iter().map(|(_, count)| count).sum();
    let sum = |is: &dyn Fn(&[String]) -> bool| -> f64 {
        switched.iter().filter(|(frames, _)| is(frames)).map(|(_, count)| count).sum()
    };
    assert!(total > 100.0, "{all:?}");
    // At places that the sampler meets first, and where a copy has no room, stacks are cut.
    let is_cut = |frames: &[String]| frames[1].starts_with('[');
    let [known, cut] = [sum(&|frames| frames[1].starts_with("runtime.goexit")), sum(&is_cut)];
    assert!(cut <= 0.15 * total, "{cut} of {total}: {switched:?}");
    assert!(known + cut >= 0.99 * total, "{known} and {cut} of {total}: {switched:?}");
    let of_allocations = sum(&|frames| {
        let place = |name: &str| frames.iter().position(|frame| frame.starts_with(name));
        let (main, allocates) = (place("main.allocate"), place("runtime.mallocgc"));
        main.is_some() && main < allocates && allocates < place("runtime.systemstack")
    });
    assert!(of_allocations > 20.0, "{of_allocations} of {total}: {switched:?}");
}

/// A stripped program's inlined functions had no names.
#[test]
#[ignore = "needs root"]
fn functions_inlined_in_a_stripped_program_have_names() {
    require_root();
    let place = Place::default();
    let program = Workload::build_go(place.path(), "goroutines2", &["-ldflags=-s -w"]);
    let daemon = start(&place, "400");
    let _ = run(&place, &daemon, &program, "inlined");
    let report = |words: &[&str]| -> Value {
        let (command, rest) = words.split_first().unwrap();
        let mut run = dcpi(&place.db(), command, &["--format", "json", "--all"]);
        serde_json::from_str(&succeed(run.args(rest))).unwrap()
    };
    let share = |report: &Value, name: &str, inlined: bool| -> f64 {
        let rows = report["rows"].as_array().unwrap().iter();
        let is_it = |row: &&Value| row["procedure"] == name && row["inlined"] == inlined;
        let row = { rows }.find(is_it).unwrap_or_else(|| panic!("no {name} in {report:#}"));
        row["share"]["cpu-clock"]["value"].as_f64().unwrap()
    };
    let samples = report(&["prof", "--inlined", "goroutines2"]);
    let [mix, around] = [("main.mix", true), ("main.loop", false)]
        .map(|(name, inlined)| share(&samples, name, inlined));
    assert!(mix > 0.5 && mix > around, "{mix} and {around} in {samples:#}");
    let callers = report(&["callers", "goroutines2", "main.mix"]);
    let rows = callers["rows"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["procedure"] == "main.mixed"), "{callers:#}");
    let said = tests::refuse(&mut dcpi(&place.db(), "list", &["goroutines2", "main.mix"]));
    assert!(said.contains("it is inlined into main.loop ("), "{said}");
}
