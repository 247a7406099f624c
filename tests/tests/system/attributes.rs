//! What programs set for their own threads, from a real daemon to the database: labels of
//! goroutines, records of OpenTelemetry's. Needs root.

use super::stacks::start;
use serde_json::Value;
use std::process::Command;
use tests::daemon::{Daemon, Place, assert_closes};
use tests::report::dcpi;
use tests::workload::{Running, Truth, Workload};
use tests::{require_root, succeed};

/// The stacks of a command by a key of attributes: `KEY=VALUE`, or nothing, and their number.
fn by_attribute(place: &Place, key: &str, command: &str) -> Vec<(Option<String>, f64)> {
    let options = ["--event", "cpu-clock", "--by-attribute", key, "--command", command];
    let mut run = dcpi(&place.db(), "prof", &["--format", "json", "--all"]);
    let report: Value = serde_json::from_str(&succeed(run.args(options))).unwrap();
    let row = |row: &Value| {
        let pair = row["attribute"].as_str().map(str::to_owned);
        (pair, row["counts"]["cpu-clock"].as_f64().unwrap())
    };
    report["rows"].as_array().unwrap().iter().map(row).collect()
}

fn count(rows: &[(Option<String>, f64)], pair: Option<&str>) -> f64 {
    rows.iter().filter(|(of, _)| of.as_deref() == pair).map(|(_, count)| count).sum()
}

/// Runs a program in an epoch of its own, for so long that the daemon's first look at it, after a
/// second, leaves most of its stacks.
fn run(place: &Place, daemon: &Daemon<'_>, program: &Workload) -> Truth {
    let _ = succeed(&mut place.dcpictl(&["epoch"]));
    let truth = Running::start(Command::new(program.program()).arg("8")).wait();
    daemon.flush();
    truth
}

/// Whether stacks with a route are divided as the program itself measured the work, and whether
/// most have a route.
fn assert_divided(place: &Place, truth: &Truth, command: &str) {
    let rows = by_attribute(place, "route", command);
    let [often, seldom] = ["route=/checkout", "route=/search"].map(|pair| count(&rows, Some(pair)));
    let share = truth.number("often") / (truth.number("often") + truth.number("seldom"));
    let (all, known) = (often + seldom, often / (often + seldom));
    assert!(all > 200.0 && all > count(&rows, None), "{rows:?}");
    // Four standard deviations.
    let allowed = 4.0 * (share * (1.0 - share) / all).sqrt();
    assert!((known - share).abs() < allowed, "{known} of {all}, but it is {share}: {rows:?}");
}

/// Time of a server's requests could be told apart by procedure only.
#[test]
#[ignore = "needs root"]
fn labels_of_goroutines_divide_the_time() {
    require_root();
    let place = Place::default();
    let program = Workload::build_go(place.path(), "labelled", &["-ldflags=-s -w"]);
    let daemon = start(&place, "400");
    let truth = run(&place, &daemon, &program);
    assert_divided(&place, &truth, "labelled");
    let tenants = by_attribute(&place, "tenant", "labelled");
    let with_route = by_attribute(&place, "route", "labelled");
    let unknown = [&tenants, &with_route].map(|rows| count(rows, None));
    assert!((unknown[0] - unknown[1]).abs() < 1.0, "{tenants:?} and {with_route:?}");
    assert_closes(&daemon.status().samples);
}

/// Each way in which code finds a variable of the thread: a distance that the linker knows, a
/// descriptor, a module, a distance that the loader knows.
#[test]
#[ignore = "needs root"]
fn records_of_requests_divide_the_time() {
    require_root();
    let place = Place::default();
    let mut command = place.dcpid();
    command.args(["--stacks", "400", "--overhead-budget", "off", "--attributes", "traces"]);
    let daemon = place.start_as(command);
    let program = Workload::build(place.path(), "requests", &["-rdynamic"]);
    let truth = run(&place, &daemon, &program);
    assert_divided(&place, &truth, "requests");
    let traces = by_attribute(&place, "trace_id", "requests");
    let trace = format!("trace_id={}", "ab".repeat(16));
    assert!(count(&traces, Some(&trace)) > 100.0, "{traces:?}");
    // Identities have a limit: others keep their routes alone.
    let spans = by_attribute(&place, "span_id", "requests");
    assert!(spans.len() > 100, "{spans:?}");
    for (number, flags) in
        [(1, &["-mtls-dialect=gnu2"][..]), (2, &[]), (3, &["-ftls-model=initial-exec"])]
    {
        let name = format!("requests{number}");
        let program = Workload::build_requests(place.path(), &name, flags);
        let truth = run(&place, &daemon, &program);
        assert_divided(&place, &truth, &name);
    }
    assert_closes(&daemon.status().samples);
}

/// Records of chance bytes, cut by the ends of pages, and a description that changes all the time.
#[test]
#[ignore = "needs root"]
fn records_that_make_no_sense_do_no_harm() {
    require_root();
    let place = Place::default();
    let daemon = start(&place, "1000");
    let program = Workload::build(place.path(), "requests9", &["-rdynamic"]);
    let status = Command::new(program.program()).args(["6", "hostile"]).status().unwrap();
    assert!(status.success());
    daemon.flush();
    let status = daemon.status();
    assert_closes(&status.samples);
    assert_eq!(status.stacks.expect("stacks are on").cut.get("not_answered"), None);
    let rows = by_attribute(&place, "route", "requests9");
    assert!(rows.len() > 10, "it was looked at: {rows:?}");
    let _ = succeed(&mut dcpi(&place.db(), "check", &[]));
}

/// `--attributes off` copies nothing.
#[test]
#[ignore = "needs root"]
fn attributes_can_be_left_out() {
    require_root();
    let place = Place::default();
    let mut command = place.dcpid();
    command.args(["--stacks", "400", "--overhead-budget", "off", "--attributes", "off"]);
    let daemon = place.start_as(command);
    let program = Workload::build(place.path(), "requests8", &["-rdynamic"]);
    let _ = run(&place, &daemon, &program);
    let rows = by_attribute(&place, "route", "requests8");
    assert!(rows.iter().all(|(pair, _)| pair.is_none()), "{rows:?}");
}
