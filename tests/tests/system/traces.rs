//! `dcpi trace` with the kernel's own probes: every call of a program whose calls are known, in its
//! threads and children.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tests::workload::Workload;
use tests::{binary, refuse, require_root, run, succeed};

/// A program to trace, in a directory of its own.
pub(crate) struct Place {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) program: PathBuf,
}

impl Place {
    pub(crate) fn new() -> Self {
        require_root();
        let directory = tempfile::tempdir().unwrap();
        // Without the table of .eh_frame and inlining, names are the source's.
        let workload = Workload::build(directory.path(), "traced", &["-O1", "-g", "-pthread"]);
        let program = workload.program().to_owned();
        Self { directory, program }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `dcpi trace` of the program, to `name`; the report is JSON.
    fn trace(&self, name: &str, options: &[&str], arguments: &[&str]) -> (Output, Value) {
        let mut command = Command::new(binary("dcpi"));
        command.arg("trace").args(options).args(["--format", "json", "-o"]).arg(self.path(name));
        command.arg("--").arg(&self.program).args(arguments);
        let output = run(&mut command);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let report = said.find('{').map(|begin| &said[begin..]);
        let report = report.and_then(|report| serde_json::from_str(report).ok());
        let report = report.unwrap_or_else(|| panic!("no report: {said}"));
        (output, report)
    }
}

/// The events of a trace, as `dcpi trace FILE --to json` has them.
fn events(path: &Path) -> Vec<Value> {
    let mut command = Command::new(binary("dcpi"));
    let lines = succeed(command.arg("trace").arg(path).args(["--to", "json"]));
    lines.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn count(events: &[Value], kind: &str, name: &str) -> usize {
    events.iter().filter(|event| event["kind"] == kind && event["name"] == name).count()
}

/// Every call and return of every thread and child is there, in the order of time; the program's
/// output and exit code are its own. A traced program's fork failed where the kernel read the
/// probe's path in the program's memory (the PMU of uprobes with inheritance).
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn every_call_of_threads_and_children_is_there() {
    let place = Place::new();
    let at = [":step", ":deep", ":leave", ":main"].map(|name| ["--at", name]).concat();
    let (output, report) = place.trace("t", &at, &["3", "1000", "4"]);
    assert_eq!(output.status.code(), Some(7), "{report}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "{\"depth\": 5}\n");
    assert_eq!(report["lost"], Value::Array(Vec::new()));
    assert_eq!((&report["threads"], &report["processes"]), (&8.into(), &5.into()), "{report}");
    let events = events(&place.path("t"));
    for (name, calls, returns) in
        [("step", 3004, 3004), ("deep", 5, 5), ("leave", 3, 0), ("main", 1, 1)]
    {
        assert_eq!(count(&events, "enter", name), calls, "{name}");
        assert_eq!(count(&events, "exit", name), returns, "{name}");
    }
    let time = |event: &Value| event["time_ns"]["measured"].as_u64().unwrap();
    assert!(events.is_sorted_by_key(time));
    // Each thread has as many calls as it made, one after the other.
    let mut threads = std::collections::BTreeMap::new();
    for event in events.iter().filter(|event| event["name"] == "step") {
        let of_thread: &mut Vec<&str> = threads.entry(event["tid"].as_u64().unwrap()).or_default();
        of_thread.push(event["kind"].as_str().unwrap());
    }
    let mut lengths: Vec<usize> = threads.values().map(Vec::len).collect();
    lengths.sort_unstable();
    assert_eq!(lengths, [2, 2, 2, 2, 2000, 2000, 2000]);
    for kinds in threads.values() {
        assert!(kinds.chunks(2).all(|pair| pair == ["enter", "exit"]));
    }
    // Recursion: the outermost call's time is the name's.
    let rows = report["rows"].as_array().unwrap();
    let deep = rows.iter().find(|row| row["name"] == "deep").unwrap();
    assert_eq!((&deep["count"], &deep["ended"]), (&5.into(), &5.into()));
    assert_eq!(deep["total_ns"], deep["max_ns"]);
    assert_eq!(count(&events, "thread_start", "thread"), 7);
    assert_eq!(count(&events, "thread_end", "thread"), 8);
}

/// System calls and switches, with wakes; the calls that the kernel makes for its own probes of
/// returns are not the program's.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn system_calls_and_switches_are_told() {
    let place = Place::new();
    let options = ["--at", ":step", "--syscalls", "--sched"];
    let (_, report) = place.trace("t", &options, &["2", "10", "1"]);
    let events = events(&place.path("t"));
    let threads: std::collections::BTreeSet<u64> =
        events.iter().map(|event| event["tid"].as_u64().unwrap()).collect();
    assert_eq!(threads.len(), 4);
    assert_eq!(count(&events, "syscall_enter", "exit_group"), 2);
    let write =
        events.iter().find(|event| event["kind"] == "syscall_exit" && event["name"] == "write");
    assert_eq!(write.unwrap()["argument"], 13, "bytes of the line that the program prints");
    let opened = |event: &&Value| event["kind"] == "syscall_enter" && event["name"] == "openat";
    let at = events.iter().find(opened).map(|event| &event["argument"]);
    assert_eq!(at, Some(&Value::from(-100)), "AT_FDCWD, an int");
    let names: std::collections::BTreeSet<&str> =
        events.iter().map(|event| event["name"].as_str().unwrap()).collect();
    assert!(names.iter().all(|name| !name.contains("uprobe") && !name.contains("uretprobe")));
    assert!(!names.iter().any(|name| name.starts_with("syscall ")), "{names:?}");
    // The parent waits for its child, whose end wakes it.
    assert!(count(&events, "switch_out", "switch") > 0, "{report}");
    assert!(count(&events, "switch_in", "switch") > 0, "{report}");
    assert!(count(&events, "wake", "wake") > 0, "{report}");
}

/// A ring that is too small loses events, and says of which; nothing is silently missing.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn what_is_lost_is_counted_by_name() {
    let place = Place::new();
    let options = ["--at", ":step", "--ring", "4KiB"];
    let (output, report) = place.trace("t", &options, &["2", "20000", "0"]);
    assert_eq!(output.status.code(), Some(7));
    let lost = |name: &str| {
        let of = report["lost"].as_array().unwrap().iter().find(|lost| lost["name"] == name);
        of.map_or(0, |lost| lost["events"].as_u64().unwrap())
    };
    let events = events(&place.path("t"));
    let (entries, returns) = (lost("step"), lost("step, returns"));
    assert!(entries > 0 && returns > 0, "{report}");
    assert_eq!(count(&events, "enter", "step") as u64 + entries, 40_000);
    assert_eq!(count(&events, "exit", "step") as u64 + returns, 40_000);
    // The text says it first.
    let mut command = Command::new(binary("dcpi"));
    let text = succeed(command.arg("trace").arg(place.path("t")));
    assert!(text.lines().next().unwrap().contains("% of the events are lost"), "{text}");
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_choice_of_calls_is_kept_with_their_returns() {
    let place = Place::new();
    let options = ["--at", ":step", "--sample", "10/100"];
    let (_, report) = place.trace("t", &options, &["2", "1000", "0"]);
    let events = events(&place.path("t"));
    assert_eq!(count(&events, "enter", "step"), 200, "{report}");
    assert_eq!(count(&events, "exit", "step"), 200);
    assert_eq!(report["sampled"], serde_json::json!({"keep": 10, "of": 100}));
}

/// Lines of source, and entries alone.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn lines_and_entries_are_probed() {
    let place = Place::new();
    let source = include_str!("../../workloads/traced.c");
    let line = source.lines().position(|line| line.contains("line for a probe")).unwrap() + 1;
    let at = format!(":traced.c:{line}");
    let options = ["--at", &at, "--at", "traced:st?p", "--entries"];
    let (_, report) = place.trace("t", &options, &["1", "5", "0"]);
    let events = events(&place.path("t"));
    assert_eq!(count(&events, "instant", &format!("traced.c:{line}")), 1, "{report}");
    assert_eq!((count(&events, "enter", "step"), count(&events, "exit", "step")), (5, 0));
}

/// A process that runs already, until a signal; events are seen as they come, and the trace is
/// whole.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_running_process_is_followed_until_a_signal() {
    let place = Place::new();
    let mut process =
        Command::new(&place.program).arg("forever").stdout(Stdio::null()).spawn().unwrap();
    let mut command = Command::new(binary("dcpi"));
    command.args(["trace", "--at", "traced:step", "--follow", "--pid"]);
    command.arg(process.id().to_string()).arg("-o").arg(place.path("t"));
    let log = std::fs::File::create(place.path("log")).unwrap();
    let mut tracer = command.stderr(log).spawn().unwrap();
    let begun = Instant::now();
    let seen = || std::fs::read_to_string(place.path("log")).unwrap().lines().count();
    while seen() < 50 {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing came");
        assert!(tracer.try_wait().unwrap().is_none(), "the tracer ended");
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = nix::unistd::Pid::from_raw(tracer.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    assert!(tracer.wait().unwrap().success());
    assert!(process.try_wait().unwrap().is_none(), "the process goes on");
    process.kill().unwrap();
    let _ = process.wait();
    let events = events(&place.path("t"));
    assert!(count(&events, "enter", "step") >= 20);
    let log = std::fs::read_to_string(place.path("log")).unwrap();
    assert!(log.lines().next().unwrap().contains(" step"), "{log}");
    // Probes are the machine's: none is left.
    let mut command = Command::new(binary("dcpi"));
    let (_, report) = place.trace("u", &["--at", ":step"], &["1", "1", "0"]);
    assert_eq!(report["lost"], Value::Array(Vec::new()));
    let _ = succeed(command.arg("trace").arg(place.path("u")));
}

/// A tracer that is killed leaves a trace that is readable up to its end, and the next one removes
/// its probes.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_killed_tracer_leaves_a_readable_trace() {
    let place = Place::new();
    let mut process =
        Command::new(&place.program).arg("forever").stdout(Stdio::null()).spawn().unwrap();
    let mut command = Command::new(binary("dcpi"));
    command.args(["trace", "--at", "traced:step", "--pid", &process.id().to_string(), "-o"]);
    let mut tracer = command.arg(place.path("t")).stderr(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    // Flushed each second: facts, then the first blocks.
    while std::fs::metadata(place.path("t")).map_or(0, |of| of.len()) < 1500 {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing was written");
        std::thread::sleep(Duration::from_millis(50));
    }
    let killed = tracer.id();
    tracer.kill().unwrap();
    let _ = tracer.wait();
    process.kill().unwrap();
    let _ = process.wait();
    let mut command = Command::new(binary("dcpi"));
    let output = run(command.arg("trace").arg(place.path("t")).args(["--format", "json"]));
    assert_eq!(output.status.code(), Some(1), "a trace that is not whole is a problem");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["cut"].as_str().unwrap().contains("its tracer was killed"), "{report}");
    assert!(report["events"].as_u64().unwrap() > 100, "{report}");
    let _ = place.trace("u", &["--at", ":step"], &["1", "1", "0"]);
    let left = std::fs::read_to_string("/sys/kernel/tracing/uprobe_events").unwrap_or_default();
    assert!(!left.contains(&format!("dcpi_{killed}/")), "{left}");
}

/// A signal while the costs of events were measured left definitions of probes and a temporary
/// file, and the exit code was the signal's own.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_signal_before_the_command_leaves_nothing_and_runs_nothing() {
    let place = Place::new();
    let (temporary, witness) = (place.path("tmp"), place.path("ran"));
    std::fs::create_dir(&temporary).unwrap();
    let mut command = Command::new(binary("dcpi"));
    command.args(["trace", "--at", "libc.so.6:malloc", "-o"]).arg(place.path("t"));
    command.arg("--").arg("touch").arg(&witness);
    command.env("TMPDIR", &temporary).stdout(Stdio::null()).stderr(Stdio::piped());
    let tracer = command.spawn().unwrap();
    let begun = Instant::now();
    let files = || std::fs::read_dir(&temporary).unwrap().count();
    while files() == 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "no cost was measured");
        std::thread::sleep(Duration::from_millis(1));
    }
    let pid = nix::unistd::Pid::from_raw(tracer.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    let output = tracer.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(143), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("nothing was run or traced") && said.lines().count() == 1, "{said}");
    assert!(!witness.exists() && !place.path("t").exists() && files() == 0);
    let left = std::fs::read_to_string("/sys/kernel/tracing/uprobe_events").unwrap_or_default();
    assert!(!left.contains(&format!("dcpi_{pid}/")), "{left}");
}

/// A trace that could not be written in its format, on a full disk, was lost with the run.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn what_was_captured_is_kept_where_its_format_cannot_be_written() {
    let place = Place::new();
    let (temporary, gone) = (place.path("tmp"), place.path("gone"));
    std::fs::create_dir(&temporary).unwrap();
    std::fs::create_dir(&gone).unwrap();
    let mut command = Command::new(binary("dcpi"));
    command.args(["trace", "--syscalls", "--no-costs", "-o"]).arg(gone.join("t.json"));
    command.args(["--", "rm", "-r"]).arg(&gone).env("TMPDIR", &temporary);
    let output = run(&mut command);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("none lost") && said.contains("the trace is kept in"), "{said}");
    let kept = std::fs::read_dir(&temporary).unwrap().next().unwrap().unwrap().path();
    assert!(said.contains(kept.to_str().unwrap()), "{said}");
    assert!(count(&events(&kept), "syscall_exit", "unlinkat") > 0);
}

/// An event that cannot be traced is reported in one line, before the command runs.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn refusals_come_before_the_command() {
    let place = Place::new();
    let witness = place.path("ran");
    for (options, said) in [
        (&["--at", ":no_such_procedure"][..], "has no procedure of that name"),
        (&["--at", "no_such_library:f"], "no file no_such_library among"),
        (&["--at", ":traced.c:1"], "has no debug information"),
        (&["--at", ":traced.c:0"], "lines count from 1"),
        (&["--at", "step"], "is neither IMAGE:PROCEDURE"),
        (&[], "nothing to trace"),
        (&["--syscalls", "--in-situ", "6"], "--sched"),
        (&["--sched", "--in-situ", "2"], "from 3 to 1000"),
        (&["--sched", "--in-situ", "6", "--to", "json"], "dcpi trace's own format"),
    ] {
        let mut command = Command::new(binary("dcpi"));
        command.arg("trace").args(options).arg("-o").arg(place.path("t"));
        let line = refuse(command.arg("--").arg("touch").arg(&witness));
        assert!(line.contains(said), "{line}");
        assert!(!witness.exists(), "{options:?}");
    }
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" \"$@\" < /proc/version"]).arg(binary("dcpi"));
    command.args(["trace", "--sched", "--in-situ", "6", "-o"]).arg(place.path("t"));
    let line = refuse(command.arg("--").arg("touch").arg(&witness));
    assert!(line.contains("standard input is read once") && !witness.exists(), "{line}");
    let mut command = Command::new(binary("dcpi"));
    let output = run(command.args(["trace", "--syscalls", "-o", "/dev/null", "--", "/no/such"]));
    assert_eq!(output.status.code(), Some(127));
}

/// The header of a trace was written before the command began, over the trace that was there.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_command_that_does_not_start_costs_no_trace() {
    let place = Place::new();
    let (bad, kept) = (place.path("bad"), place.path("kept"));
    std::fs::write(&bad, "ELF").unwrap();
    std::fs::set_permissions(&bad, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(&kept, "what was there").unwrap();
    for options in [&["--syscalls", "--no-costs"][..], &["--blocks"]] {
        let mut command = Command::new(binary("dcpi"));
        command.arg("trace").args(options).arg("-o").arg(&kept).arg("--").arg(&bad);
        let said = refuse(&mut command);
        assert!(said.contains("bad"), "{said}");
        assert_eq!(std::fs::read_to_string(&kept).unwrap(), "what was there", "{options:?}");
    }
}

/// A user other than root gets a one-line error.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn only_root_traces_and_that_is_said() {
    let place = Place::new();
    // A directory and a program that every user may use.
    let mut command = Command::new("chmod");
    let _ = succeed(command.args(["-R", "a+rwX"]).arg(place.directory.path()));
    for options in [&["--at", ":step"][..], &["--syscalls"], &["--sched"]] {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(binary("dcpi"));
        command.arg("trace").args(options).arg("-o").arg(place.path("t"));
        let line = refuse(command.arg("--").arg(&place.program).args(["1", "1", "0"]));
        assert!(line.contains("run dcpi trace as root"), "{line}");
    }
}
