//! The time of one call of a procedure: `dcpi time --function`.

use serde_json::Value;
use std::process::Command;
use tests::workload::Workload;
use tests::{binary, succeed};

/// Calls are counted exactly; samples of the procedure times its calls are the program's CPU time,
/// since it does nothing else.
#[test]
#[ignore = "needs root: uprobes, and a dcpid of its own"]
fn sampled_time_over_counted_calls_is_the_time_of_a_call() {
    let directory = tempfile::tempdir().unwrap();
    let workload = Workload::build(directory.path(), "timed", &["-O2"]);
    let program = workload.program().to_str().unwrap();
    let mut command = Command::new(binary("dcpi"));
    command.args(["time", "--layouts", "2", "-r", "2", "--format", "json"]);
    command.args(["--function", program, "work", program, "200000", "1000"]);
    let report: Value = serde_json::from_str(&succeed(&mut command)).unwrap();
    let function = &report["a"]["function"];
    assert_eq!((&function["procedure"], function["calls"].as_f64()), (&"work".into(), Some(2e5)));
    let of_calls = function["ns"]["value"].as_f64().unwrap() * 2e5 / 1e9;
    let of_program = report["a"]["cpu_s"]["median"].as_f64().unwrap();
    assert!((0.7..1.3).contains(&(of_calls / of_program)), "{of_calls} {report:#}");
}
