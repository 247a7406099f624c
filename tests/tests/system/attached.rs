//! `dcpi record --pid` and `--tid`: what runs already. These need root.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tests::daemon::Place;
use tests::report::{dcpi, prof};
use tests::workload::Workload;
use tests::{binary, refuse, require_root, succeed};

/// `dcpi record` of what runs already, into the place's database.
fn record(place: &Place, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary("dcpi"));
    command.env("TMPDIR", place.path()).args(["record", "--event", "cpu-clock", "-o"]);
    command.arg(place.db()).args(arguments);
    command
}

/// A program that runs in its first thread and sleeps in its second, and the number of that.
/// Programs with one optimization are one build, whatever their names.
fn start(place: &Place, name: &str, optimized: &str, turns: &str) -> (Child, u32) {
    let program = Workload::build(place.path(), name, &[optimized, "-pthread"]);
    let mut command = Command::new(program.program());
    command.args([turns, "thread"]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim().parse().unwrap())
}

/// The samples are those of the process, however many others run; with the process the recording
/// ends.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_process_that_runs_already_is_recorded_until_it_ends() {
    require_root();
    let place = Place::default();
    let (mut child, _) = start(&place, "runs_and_sleeps1", "-O2", "10000");
    let (mut beside, _) = start(&place, "runs_and_sleeps2", "-O1", "10000");
    let mut record = record(&place, &["--pid", &child.id().to_string()]);
    let mut recording = record.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut stderr = BufReader::new(recording.stderr.take().unwrap());
    stderr.read_line(&mut line).unwrap();
    assert!(line.contains("Ctrl-C ends the recording"), "{line}");
    std::thread::sleep(Duration::from_secs(3)); // of samples
    child.kill().unwrap();
    let output = recording.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}");
    let label = format!("runs_and_sleeps {}", child.id());
    assert!(said.contains(&format!("samples labelled \"{label}\"")), "{said}");
    assert!(said.contains(&format!("{label} used")), "{said}");
    let report = prof(&place.db(), &[]);
    assert!(report.row("runs_and_sleeps1", "runs").share().value > 0.5, "{report:?}");
    assert!(report.rows.iter().all(|row| row.image != "runs_and_sleeps2"));
    child.wait().unwrap();
    beside.kill().unwrap();
    beside.wait().unwrap();
}

/// Its samples were "unknown process", and `--pid` said that there is no such process.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_process_whose_first_thread_has_ended_is_recorded() {
    require_root();
    let place = Place::default();
    let program = Workload::build(place.path(), "leader_gone", &["-O2", "-pthread"]);
    let mut child = Command::new(program.program()).arg("20").spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300)); // the first thread ends
    let pid = child.id().to_string();
    let said = succeed(&mut record(&place, &["--pid", &pid, "--seconds", "3"]));
    child.kill().unwrap();
    child.wait().unwrap();
    let share = prof(&place.db(), &[]).row("leader_gone", "works_on").share();
    assert!(share.value > 0.9, "{share:?}\n{said}");
}

/// A thread has its own call stacks; samples are of its process.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_thread_that_runs_already_has_a_report_of_its_own_stacks() {
    require_root();
    let place = Place::default();
    let (mut child, tid) = start(&place, "runs_and_sleeps3", "-O2", "10000");
    let tid = tid.to_string();
    let said = succeed(&mut record(&place, &["--tid", &tid, "--seconds", "3"]));
    // Of off-cpu in clock_nanosleep, or of cpu-clock where a sample found the thread awake.
    assert!(said.contains(" other "), "{said}");
    assert!(!said.contains("runs "), "the other thread's: {said}");
    assert!(said.contains(&format!("--inclusive --tid {tid}")), "{said}");
    let of =
        |tid: &str| succeed(&mut dcpi(&place.db(), "tree", &["--tid", tid, "--event", "off-cpu"]));
    assert!(of(&tid).contains("other"), "{}", of(&tid));
    assert!(!of(&child.id().to_string()).contains("other"), "{}", of(&child.id().to_string()));
    let nobody = refuse(&mut dcpi(&place.db(), "tree", &["--tid", "4000000000"]));
    assert!(nobody.contains("of threads 4000000000; there are: "), "{nobody}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn what_cannot_be_recorded_is_one_line() {
    let place = Place::default();
    for (arguments, said) in [
        (&["--pid", "4000000000"][..], "there is no process 4000000000; see ps"),
        (&["--tid", "4000000000"], "there is no thread 4000000000"),
        (&["--pid", "1", "--", "true"], "--pid"),
        (&["--pid", "1", "--tid", "1"], "--tid"),
        (&["--agree", "--", "true"], "--experiment"),
    ] {
        let line = refuse(&mut record(&place, arguments));
        assert!(line.contains(said), "{line}");
    }
    for (name, said) in [
        ("ideal", "dcpi ideal"),
        ("isc_hwc", "prof_hwc"),
        ("pcsamp", "leave --event out"),
        ("nothing", "none of usertime"),
    ] {
        let line = refuse(&mut record(&place, &["--experiment", name, "--", "true"]));
        assert!(line.contains(said), "{line}");
    }
    assert!(!place.db().exists(), "no database of nothing");
}
