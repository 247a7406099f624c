//! `dcpi record` and `dcpi top`, which report a running program. These tests need root, as those of
//! privileged.rs do.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tests::daemon::{Place, assert_closes, start_by_time};
use tests::workload::Workload;
use tests::{binary, refuse, require_root, run, succeed};

const PATIENCE: Duration = Duration::from_secs(60);

/// `dcpi record ARGUMENTS...` with its scratch directory in the test's place.
fn record(place: &Place, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary("dcpi"));
    command
        .env("TMPDIR", place.path())
        .arg("record")
        .args(["--event", "cpu-clock"])
        .args(arguments);
    command
}

/// The dcpids that were started below a place.
fn daemons(place: &Place) -> Vec<u32> {
    let below = |pid: &u32| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words);
        words.split('\0').next().is_some_and(|program| program.ends_with("dcpid"))
            && words.contains(place.path().to_str().unwrap())
    };
    let processes = std::fs::read_dir("/proc").unwrap();
    processes
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .filter(below)
        .collect()
}

/// Waits until a condition holds.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "not in {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn send(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
}

fn said(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// Files left in a place, except for the programs and data of the test itself.
fn left(place: &Place) -> Vec<String> {
    let names = std::fs::read_dir(place.path()).unwrap();
    let names = names.filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    names.filter(|name| name.starts_with("dcpi-record-")).collect()
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_command_is_recorded_and_its_output_and_exit_code_are_its_own() {
    require_root();
    let place = Place::default();
    let workload = Workload::build(place.path(), "two_functions21", &[]);
    let program = workload.program().to_str().unwrap();
    let db = place.db();
    let script = format!("echo said; {program} 2 > /dev/null; exit 7");
    let output = run(&mut record(&place, &["-o", db.to_str().unwrap(), "--", "sh", "-c", &script]));
    let (stdout, stderr) = said(&output);
    assert_eq!(output.status.code(), Some(7), "{stderr}");
    assert_eq!(stdout, "said\n", "nothing of ours in it");
    assert!(
        stderr.contains("three_quarters") && stderr.contains("samples labelled \"sh\" only"),
        "{stderr}"
    );
    assert!(
        stderr.contains(&format!(
            "to see the report again: dcpi prof --db {} (-a: the whole machine)",
            db.display()
        )),
        "{stderr}"
    );
    assert!(daemons(&place).is_empty() && left(&place).is_empty());
    // Of the command alone three quarters are in one procedure, and it took two seconds of one CPU.
    let prof = tests::report::prof(&db, &["--label", "sh"]);
    let row = prof.row("two_functions21", "three_quarters");
    assert!((0.65..0.80).contains(&row.share().value), "{row:?}");
    let again = run(&mut record(&place, &["-o", db.to_str().unwrap(), "--", "false"]));
    assert_eq!(
        again.status.code(),
        Some(1),
        "into the same database, of next to no samples: {:?}",
        said(&again)
    );
    let killed = run(&mut record(&place, &["--", "sh", "-c", "kill -9 $$"]));
    assert_eq!(killed.status.code(), Some(137));
    let before = left(&place).len();
    let absent = run(&mut record(&place, &["--", "/does/not/exist"]));
    assert_eq!(absent.status.code(), Some(127), "{:?}", said(&absent));
    assert_eq!(left(&place).len(), before, "no database of nothing");
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn some_seconds_are_recorded_and_ctrl_c_ends_them_with_a_report() {
    require_root();
    let place = Place::default();
    let timed = succeed(&mut record(&place, &["-d", "1s"]));
    assert!(timed.contains("samples of cpu-clock") && timed.contains("recorded "), "{timed}");
    assert_eq!(left(&place).len(), 1, "the database is kept");
    let mut command = record(&place, &["-n", "3"]);
    let child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("a daemon samples", || daemons(&place).len() == 1);
    std::thread::sleep(Duration::from_secs(2)); // of samples
    send(&child, Signal::SIGINT);
    let output = child.wait_with_output().unwrap();
    let (stdout, stderr) = said(&output);
    assert!(output.status.success() && stderr.contains("Ctrl-C ends the recording"), "{stderr}");
    assert!(stdout.contains("samples of") || stdout.contains("samples counted"), "{stdout}");
    assert!(daemons(&place).is_empty());
}

/// SIGTERM goes to the command, which may end as it likes; the report is there all the same.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn signals_are_passed_on_to_the_command() {
    require_root();
    let place = Place::default();
    let mark = place.path().join("ready");
    let script =
        format!("trap 'echo caught; exit 5' TERM; touch {}; while :; do :; done", mark.display());
    let mut command = record(&place, &["--", "sh", "-c", &script]);
    let child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("the command runs", || mark.exists());
    send(&child, Signal::SIGTERM);
    let output = child.wait_with_output().unwrap();
    let (stdout, stderr) = said(&output);
    assert_eq!((output.status.code(), stdout.as_str()), (Some(5), "caught\n"), "{stderr}");
    assert!(stderr.contains("recorded "), "{stderr}");
    // And with a time: the command is told to end.
    let started = Instant::now();
    let output = run(&mut record(&place, &["-d", "1s", "--", "sleep", "1000"]));
    assert_eq!(output.status.code(), Some(143), "{:?}", said(&output));
    assert!(started.elapsed() < PATIENCE);
}

/// A killed process cannot stop its daemon.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn no_daemon_is_left_behind_by_a_recording_that_is_killed() {
    require_root();
    let place = Place::default();
    let mut command = record(&place, &["--", "sleep", "1000"]);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let sleeps = |pid: &str| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|words| words == b"sleep\x001000\x00")
    };
    let path = format!("/proc/{0}/task/{0}/children", child.id());
    let children = || std::fs::read_to_string(&path).unwrap_or_default();
    until("the command runs", || children().split_whitespace().any(sleeps));
    let sleep = children().split_whitespace().find(|pid| sleeps(pid)).unwrap().parse().unwrap();
    assert_eq!(daemons(&place).len(), 1);
    child.kill().unwrap();
    child.wait().unwrap();
    until("the daemon ends", || daemons(&place).is_empty());
    kill(Pid::from_raw(sleep), Signal::SIGKILL).unwrap();
    // Its samples are on disk.
    let db = place.path().join(left(&place).first().unwrap()).join("db");
    assert!(tests::report::prof(&db, &["--idle"]).total() > 0);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn without_rights_it_says_one_line() {
    require_root();
    let place = Place::default();
    std::fs::create_dir(place.path().join("open")).unwrap();
    std::os::unix::fs::chown(place.path().join("open"), Some(65534), Some(65534)).unwrap();
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(copied(&place))
        .args(["record", "-d", "1s"]);
    let line = refuse(command.env("TMPDIR", place.path().join("open")));
    assert!(line.contains("cannot record: ") && line.contains("root"), "{line}");
    let line = refuse(&mut record(&place, &["--event", "bogus", "-d", "1s"]));
    assert!(line.contains("bogus"), "{line}");
    assert_eq!(left(&place), Vec::<String>::new());
}

/// Our programs, in a place where every user may run them.
fn copied(place: &Place) -> std::path::PathBuf {
    for name in ["dcpi", "dcpid", "dcpictl", "dcpilabel"] {
        std::fs::copy(binary(name), place.path().join(name)).unwrap();
    }
    place.path().join("dcpi")
}

fn top(place: &Place, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary("dcpi"));
    command.arg("top").arg("--control").arg(place.control()).args(arguments);
    command
}

/// On a terminal of script(1): the screen is drawn, and left as it was, whether a key or a signal
/// ends it.
fn in_a_terminal(place: &Place) {
    let log = place.path().join("typescript");
    let shown = || std::fs::read_to_string(&log).unwrap_or_else(|_| String::new());
    for (ends, code) in [(None, 0), (Some(Signal::SIGTERM), 143)] {
        let _ = std::fs::remove_file(&log);
        let words = format!(
            "stty rows 24 cols 80; exec {} top --control {} -d 500ms",
            binary("dcpi").display(),
            place.control().display()
        );
        let mut command = Command::new("script");
        command.args(["--quiet", "--return", "--flush", "--command", &words]).arg(&log);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        until("the procedure is on the screen", || shown().contains("three_quarters"));
        // Kept open until the end: waiting closes it, and script(1) takes that for another end.
        let mut keys = child.stdin.take().unwrap();
        match ends {
            None => keys.write_all(b"q").unwrap(),
            Some(signal) => kill(Pid::from_raw(below(child.id())), signal).unwrap(),
        }
        assert_eq!(child.wait().unwrap().code(), Some(code), "{}", shown());
        let text = shown();
        // Only what changed is drawn, so that few words are whole.
        assert!(text.contains("\x1b[?1049h") && text.contains("two_functions"), "{text}");
        let after = text.rsplit("\x1b[?1049l").next().unwrap();
        assert!(
            text.contains("\x1b[?1049l") && !after.contains("three_quarters"),
            "the screen is left: {after}"
        );
        assert!(text.contains("\x1b[?25h"), "with its cursor: {text}");
    }
}

/// The process that script(1) runs.
fn below(script: u32) -> i32 {
    let children = std::fs::read_to_string(
        Path::new("/proc").join(format!("{script}/task/{script}/children")),
    );
    children.unwrap().split_whitespace().next().unwrap().parse().unwrap()
}

const JAVA: &str = "public class Hot { public static void main(String[] arguments) { long sum = 0; \
    for (long i = 0; i < 2000000000L; i++) { sum = sum * 31 + i; } System.out.println(sum); } }";
const NODE: &str = "function f(n) { let s = 0; for (let i = 0; i < n; i++) { s = (s * 31 + i) % 1000003; } return s; } \
    let t = 0; for (let k = 0; k < 40; k++) { t += f(1e7); } console.log(t);";
const FORKS: &str = "import os\nfor _ in range(1000):\n    if os.fork() == 0:\n        sum(range(60000))\n        \
    os._exit(0)\n    os.wait()\n";
const THREADS: &str = "import hashlib, threading\ndef work():\n    for _ in range(400): hashlib.sha256(b'x' * 1000000).digest()\n\
    threads = [threading.Thread(target=work) for _ in range(4)]\n[t.start() for t in \
    threads]\n[t.join() for t in threads]\n";

/// They want the whole machine: `tests/system/main.rs`.
mod alone {
    use super::*;

    /// `dcpi record -- node hot.js` reported 0.23 s of a program that took 4.2: samples of code
    /// made at run time were in no label's report.
    #[test]
    #[ignore = "needs root"]
    fn a_recordings_samples_are_the_cpu_time_that_the_kernel_accounts() {
        require_root();
        let place = Place::default();
        let file = |name: &str, text: &str| {
            let path = place.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let (java, node) = (file("Hot.java", JAVA), file("hot.js", NODE));
        let (forks, threads) = (file("forks.py", FORKS), file("threads.py", THREADS));
        for command in [
            &["node", &node][..],
            &["java", &java],
            &["python3", "-c", "print(sum(i * i % 7 for i in range(20_000_000)))"],
            &["python3", &forks],
            &["python3", &threads],
            &["sh", "-c", "seq 4000000 | sort -rn | md5sum"],
        ] {
            let times = || {
                let output = run(record(&place, &["--"]).args(command));
                let (_, report) = said(&output);
                assert!(output.status.success(), "{command:?}: {report}");
                let last = report.lines().find(|line| line.starts_with("recorded ")).unwrap();
                let mut words = last.split(" used ").nth(1).unwrap().split_whitespace();
                let mut seconds = |nth| {
                    let number = words.nth(nth).unwrap().parse::<f64>().unwrap();
                    if words.next() == Some("ms") { number / 1e3 } else { number }
                };
                // "3.16 s of CPU time by its samples, 976 ms by the kernel's accounting"
                let (sampled, used) = (seconds(0), seconds(6));
                println!(
                    "{} {}: {sampled} s by samples, {used} s by the kernel",
                    command[0], command[1]
                );
                (sampled / used - 1.0).abs()
            };
            // A shared machine may stand still for a moment: then samples come late, and the report
            // says so in the report.
            let off = (0..3).map(|_| times()).find(|off| *off <= 0.04);
            assert!(off.is_some(), "{command:?}: never within 4 %");
        }
    }

    #[test]
    #[ignore = "needs root: run by cargo xtask test"]
    fn top_shows_what_runs_now_without_the_disk() {
        require_root();
        let place = Place::default();
        let line = refuse(&mut top(&place, &["--once"]));
        assert!(line.contains("no dcpid listens"), "{line}");
        let workload = Workload::build(place.path(), "two_functions22", &[]);
        let daemon = start_by_time(&place);
        let line = refuse(&mut top(&place, &[]));
        assert!(line.contains("needs a terminal; use --once"), "{line}");
        let running = workload.start(20);
        let merged = daemon.status().samples.merged;
        let text = succeed(&mut top(&place, &["--once", "-d", "2s", "--format", "json"]));
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        let rows = report["rows"].as_array().unwrap();
        let row = rows
            .iter()
            .find(|row| row["procedure"] == "three_quarters")
            .unwrap_or_else(|| panic!("{text}"));
        let quarter = rows
            .iter()
            .find(|row| row["procedure"] == "one_quarter")
            .unwrap_or_else(|| panic!("{text}"));
        let [many, few] = [row, quarter].map(|row| row["samples"].as_f64().unwrap());
        assert!((2.0..4.5).contains(&(many / few)), "{text}");
        let status = daemon.status();
        assert_eq!(status.samples.merged, merged, "nothing was written for it");
        assert_closes(&status.samples);
        in_a_terminal(&place);
        drop(running);
        assert_closes(&daemon.status().samples);
    }
}
