//! Floating-point exceptions of programs, each of them counted: `dcpi record --experiment fpe`.

use serde_json::Value;
use std::collections::BTreeMap;
use std::process::{Command, Output};
use tests::report::dcpi;
use tests::workload::Workload;
use tests::{binary, succeed};

/// A procedure with its exceptions, of its own instructions and with all that it called.
type Counts = (&'static str, u64, u64);

/// Runs a command under the experiment; its database is `db` in the directory.
fn record(directory: &std::path::Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(binary("dcpi"));
    command.args(["record", "--experiment", "fpe", "-o"]).arg(directory.join("db"));
    command.args(arguments).output().unwrap()
}

/// Exceptions by procedure: of its own instructions, and with all that it called.
fn counts(directory: &std::path::Path, event: &str) -> BTreeMap<String, (u64, u64)> {
    let arguments = ["--inclusive", "--event", event, "-n", "0", "--format", "json"];
    let said = succeed(&mut dcpi(&directory.join("db"), "prof", &arguments));
    let report: Value = serde_json::from_str(&said).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let whole = report["events"][0]["total"].as_f64().unwrap();
    let row = |row: &Value| {
        let share = &row["inclusive"][event];
        assert_eq!((&share["low"], &share["high"]), (&share["value"], &share["value"]), "exact");
        let inclusive = (share["value"].as_f64().unwrap() * whole).round() as u64;
        let own = row["counts"][event].as_u64().unwrap();
        Some((row["procedure"].as_str()?.to_owned(), (own, inclusive)))
    };
    rows.iter().filter_map(row).collect()
}

/// Every exception is counted once, at its instruction and below its callers, in each thread,
/// signal handler and child; and the program's results, flags and exit code are those of a run
/// without counting.
#[test]
fn every_exception_is_counted_where_it_was_raised() {
    let directory = tempfile::tempdir().unwrap();
    let workload = Workload::build(directory.path(), "exceptional", &["-O2", "-pthread", "-lm"]);
    let alone = Command::new(workload.program()).output().unwrap();
    let output =
        record(directory.path(), &["--inexact", "--", workload.program().to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.stdout, alone.stdout, "{said}");
    assert_eq!((output.status.code(), alone.status.code()), (Some(3), Some(3)), "{said}");
    assert!(said.contains("7 invalid, 15 divide, 2 overflow, 2 underflow"), "{said}");
    assert!(!said.contains("masked"), "{said}");
    let expected: [(&str, &[Counts]); 4] = [
        ("fpe-invalid", &[("is_invalid", 7, 7), ("often", 0, 6), ("in_thread", 0, 1)]),
        (
            "fpe-divide",
            &[("divides", 15, 15), ("often", 0, 13), ("seldom", 0, 1), ("in_thread", 0, 3)],
        ),
        ("fpe-overflow", &[("overflows", 2, 2), ("seldom", 0, 1), ("on_signal", 0, 1)]),
        ("fpe-underflow", &[("underflows", 2, 2), ("seldom", 0, 2), ("main", 0, 2)]),
    ];
    for (event, procedures) in expected {
        let counts = counts(directory.path(), event);
        for (procedure, own, inclusive) in procedures {
            let found = counts.get(*procedure).copied();
            assert_eq!(found, Some((*own, *inclusive)), "{event} in {procedure}: {counts:?}");
        }
    }
    let inexact = counts(directory.path(), "fpe-inexact");
    assert_eq!(inexact.get("rounds"), Some(&(2, 2)), "{inexact:?}");
    assert_eq!(inexact.get("underflows"), Some(&(2, 2)), "{inexact:?}");
}

/// A program that asks for SIGFPE itself gets it, of what it asked for and with the right code, and
/// is not told that anybody else asked.
#[test]
fn a_program_gets_the_signals_that_it_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let workload = Workload::build(directory.path(), "exceptional", &["-O2", "-pthread", "-lm"]);
    let own = |command: &mut Command| command.arg("own").output().unwrap();
    let alone = own(&mut Command::new(workload.program()));
    let mut command = Command::new(binary("dcpi"));
    command.args(["record", "--experiment", "fpe", "-o"]).arg(directory.path().join("db"));
    let output = own(command.arg("--").arg(workload.program()));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(String::from_utf8_lossy(&alone.stdout).contains("signals: 3, codes 3 3 3"));
    assert_eq!(output.stdout, alone.stdout, "{said}");
    assert_eq!(output.status.code(), alone.status.code(), "{said}");
}

/// An interpreter computes the same, with its own handling of errors.
#[test]
fn an_interpreter_computes_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let script = "import math, struct\n\
                  x = [1e308 * 10, 1e-308 / 7, math.inf - math.inf, 0.1 + 0.2]\n\
                  for f in (lambda: math.exp(1000), lambda: math.sqrt(-1), lambda: 1 / 0.0):\n \
                  try: x.append(f())\n except Exception as e: print(type(e), e)\n\
                  for n in range(2000): x.append(math.sin(n) * math.pow(1.1, n % 700))\n\
                  print([struct.pack('d', v).hex() for v in x])\n";
    let alone = Command::new("python3").args(["-c", script]).output().unwrap();
    assert!(alone.status.success(), "{}", String::from_utf8_lossy(&alone.stderr));
    let output = record(directory.path(), &["--", "python3", "-c", script]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.stdout, alone.stdout, "{said}");
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("floating-point exceptions"), "{said}");
}

/// Options that exclude each other are refused in one line.
#[test]
fn what_the_experiment_cannot_do_is_said() {
    for (arguments, reason) in [
        (&["--experiment", "fpe"][..], "needs a COMMAND"),
        (&["--experiment", "fpe", "-e", "cycles", "--", "true"], "leave --event out"),
        (&["--experiment", "fpe", "-d", "1", "--", "true"], "leave the time out"),
        (&["--experiment", "fpe", "--agree", "--", "true"], "dcpi diff"),
        (&["--experiment", "pcsamp", "--inexact", "--", "true"], "--inexact"),
    ] {
        let output = Command::new(binary("dcpi")).arg("record").args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(reason), "{arguments:?}: {said}");
    }
}
