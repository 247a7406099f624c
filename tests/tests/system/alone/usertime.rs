//! SpeedShop's experiments by `dcpi record`, against a program that knows its own times.

use std::process::Command;
use tests::daemon::Place;
use tests::report::dcpi;
use tests::workload::Workload;
use tests::{binary, require_root, run, succeed};

/// `dcpi record --experiment NAME`, into the place's database.
fn record(place: &Place, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary("dcpi"));
    command.env("TMPDIR", place.path()).args(["record", "-o"]).arg(place.db()).args(arguments);
    command
}

/// Wall-clock time of a program that runs and sleeps: shares of both have the truth in their
/// intervals, and the whole is about the program's life.
#[test]
#[ignore = "needs root"]
fn usertime_is_the_wall_clock_time_of_procedures_running_or_blocked() {
    require_root();
    let place = Place::default();
    let program = Workload::build(place.path(), "runs_and_sleeps", &["-O2", "-pthread"]);
    let program = program.program().to_str().unwrap();
    let output = run(&mut record(&place, &["--experiment", "usertime", "--", program, "40"]));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("samples of 30 ms"), "{said}");
    let truth: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let [runs, sleeps] = ["runs", "sleeps"].map(|name| truth[name].as_f64().unwrap());
    // 99.9 %: a test that fails once in twenty runs is no test.
    let arguments =
        ["--inclusive", "--event", "usertime", "--confidence", "99.9", "--format", "json"];
    let report = succeed(&mut dcpi(&place.db(), "prof", &arguments));
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    for (name, seconds) in [("runs", runs), ("sleeps", sleeps)] {
        let known = seconds / (runs + sleeps);
        let rows = report["rows"].as_array().unwrap();
        let row = rows.iter().find(|row| row["procedure"] == name).expect(name);
        let share = &row["inclusive"]["usertime"];
        let [low, high] = ["low", "high"].map(|end| share[end].as_f64().unwrap());
        assert!(low <= known && known <= high, "{name} is {known} of all, not {share}");
        // As wide as that where other programs interrupt the running half all the time.
        assert!(high - low < 0.7, "{name}: {share} says nothing");
    }
    let all = report["events"][0]["counted"].as_f64();
    assert!(all.is_some_and(|stacks| stacks > 100.0), "{report}");
    // Sleeping is the procedure's own time, not the kernel's.
    assert!(!report["rows"].to_string().contains("[timer]"), "{report}");
}

/// Two intervals of a timer have the same profile of a steady program.
#[test]
#[ignore = "needs root"]
fn profiles_at_two_intervals_agree() {
    require_root();
    let place = Place::default();
    let program = Workload::build(place.path(), "two_functions", &[]);
    let program = program.program().to_str().unwrap();
    let output =
        run(&mut record(&place, &["--experiment", "pcsamp", "--agree", "--", program, "2"]));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("pcsamp and fpcsamp agree"), "{said}");
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 2, "it ran twice");
    let epochs = succeed(&mut dcpi(&place.db(), "epochs", &["--format", "json"]));
    for period in ["10000000", "1000000"] {
        assert!(epochs.contains(&format!("\"period\": {period},")), "{epochs}");
    }
}
