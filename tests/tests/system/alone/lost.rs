//! `dcpi ideal --sampled`: samples and exact counts of one program, and its time beyond the ideal.

use std::process::Command;

use serde_json::Value;
use tests::daemon::Place;
use tests::report::dcpi;
use tests::workload::Workload;
use tests::{binary, require_root, run, succeed};

fn read(place: &Place, subcommand: &str, arguments: &[&str]) -> Value {
    let arguments = [arguments, &["--format", "json"]].concat();
    serde_json::from_str(&succeed(&mut dcpi(&place.db(), subcommand, &arguments))).unwrap()
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("{key} of {value:#}"))
}

/// Loads that miss all caches take some hundred cycles each where the model has 5; a branch that is
/// mispredicted every second time costs about 7 cycles per round; a chain of multiplications is as
/// fast as its model. The limits are in cycles, not ratios.
#[test]
#[ignore = "needs root"]
fn what_misses_and_mispredictions_cost_is_told_beside_what_costs_nothing() {
    require_root();
    let place = Place::default();
    let program = Workload::build(place.path(), "lossy", &["-O1"]);
    let program = program.program().to_str().unwrap();
    let mut command = Command::new(binary("dcpi"));
    command.env("TMPDIR", place.path()).args(["ideal", "--sampled", "--runs", "2", "-o"]);
    let output = run(command.arg(place.db()).args(["--", program]));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("flow: conserved at all") && said.contains("times ideal"), "{said}");
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 1, "seen once");

    let lost = read(&place, "lost", &["-n", "0"]);
    let rows = lost["rows"].as_array().unwrap();
    let row = |name: &str| rows.iter().find(|row| row["procedure"] == name).expect(name);
    let ratio = |name: &str| number(&row(name)["ratio"], "value");
    // Another program on the other thread of the core makes steady code slower, never faster.
    assert!((0.85..2.0).contains(&ratio("steady")), "{lost:#}");
    assert!(ratio("mispredicts") > 3.0, "{lost:#}");
    assert!(ratio("misses") > 8.0, "{lost:#}");
    let misses_lost = number(&row("misses")["lost"], "value");
    assert!(misses_lost > number(&row("steady")["lost"], "value"), "{lost:#}");
    assert!(rows[0]["procedure"] == "misses", "the most is lost there: {lost:#}");
    let parts =
        [number(&lost, "ideal"), number(&lost, "lost"), number(&lost["uncounted"], "value")];
    let whole = number(&lost["spent"], "value");
    assert!((parts.iter().sum::<f64>() / whole - 1.0).abs() < 1e-6, "{lost:#}");

    let blocks = read(&place, "lost", &["--by", "block", "-n", "0"]);
    let of = |procedure: &str, executions: f64| {
        let rows = blocks["rows"].as_array().unwrap().iter();
        let mut rows = rows.filter(|row| row["procedure"] == procedure);
        rows.find(|row| number(&row["block"], "executions") == executions).cloned().unwrap()
    };
    let (misses, steady) = (of("misses", 4e6), of("steady", 300e6));
    assert!(misses["block"]["culprits"].to_string().contains("data cache miss"), "{misses:#}");
    let each = number(&steady["spent"], "value") / 300e6;
    assert!((3.4..8.0).contains(&each), "3 + 1 cycles: {steady:#}");

    let calc = read(&place, "calc", &["lossy", "misses"]);
    assert_eq!(calc["cycles_measured"], true, "{calc:#}");
    // Samples of all programs are not those of the runs.
    let refused = tests::refuse(&mut dcpi(&place.db(), "lost", &["-a"]));
    assert!(refused.contains("--sampled makes them"), "{refused}");
}
