//! The real daemon on the real kernel, asked to keep processes apart or to leave them out: the
//! sampler's mark of such processes, and what clients and settings say. A recording shows whose
//! samples are whose then (`daemon/dcpid/tests/attribution.rs`). These tests need root, as
//! privileged.rs does.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tests::cgroup::Group;
use tests::daemon::{Daemon, Place, assert_closes};
use tests::report::{Prof, dcpi, prof, prof_by};
use tests::workload::{Running, Workload, build_id};
use tests::{refuse, require_root, run, succeed};

/// A daemon that samples CPU time, so that samples can be compared with seconds on any machine.
fn start<'a>(place: &'a Place, flags: &[&str]) -> Daemon<'a> {
    let mut command = place.dcpid();
    command.args(["--event", "cpu-clock"]).args(flags);
    place.start_as(command)
}

/// A workload of a name and a build that nothing else on this machine has.
fn build(place: &Place, name: &str) -> Workload {
    let workload = Workload::build(place.path(), name, &["-Wl,--build-id=uuid"]);
    workload.copy(&format!("{name}-{}", std::process::id()))
}

/// The name of its image.
fn image(workload: &Workload) -> &str {
    workload.program().file_name().unwrap().to_str().unwrap()
}

/// Samples of an image under a choice, and the CPU time that they stand for, s.
fn of(place: &Place, image: &str, choice: &[&str]) -> (u64, f64) {
    let prof = prof(&place.db(), &[&["-i", "--idle"], choice].concat());
    let samples = prof.samples_of_image(image);
    (samples, prof.seconds(samples))
}

/// Fails the test unless `seconds` is `expected`, give or take a quarter: an interrupted virtual
/// CPU misses its timer.
fn assert_about(what: &str, seconds: f64, expected: f64) {
    eprintln!("{what}: {seconds:.3} s in samples, {expected:.3} s by its own clock");
    assert!(
        (0.75 * expected..=1.25 * expected).contains(&seconds),
        "{what}: {seconds:.3} s, expected {expected:.3} s"
    );
}

/// Everything in a database's newest epoch.
fn everything(place: &Place) -> Prof {
    prof(&place.db(), &["--idle"])
}

/// Two labelled runs, one of them a shell whose children hardly live, and one run without label,
/// all at once.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn labelled_runs_are_kept_apart_to_the_last_sample() {
    require_root();
    let place = Place::default();
    let [first, second, other] =
        ["two_functions34", "churn34", "stripped34"].map(|name| build(&place, name));
    let daemon = start(&place, &[]);
    let run_first = Running::start(place.dcpilabel("first").arg(first.program()).arg("3"));
    let script = format!("{} 3; true", second.program().display());
    let run_second = Running::start(place.dcpilabel("second run").args(["sh", "-c", &script]));
    let run_other = other.start(3);
    let begin = Instant::now();
    while daemon.status().apart.labels != ["first", "second run"] {
        assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", daemon.status().apart);
    }
    let (first_s, other_s) = (run_first.wait().number("cpu_s"), run_other.wait().number("cpu_s"));
    let second_s = run_second.wait().number("churn_child_s");
    let again_s = first.run(1).number("cpu_s");
    daemon.flush();
    assert_closes(&daemon.status().samples);

    let names = [&first, &second, &other].map(image);
    assert_about("first", of(&place, names[0], &["--label", "first"]).1, first_s);
    assert_about("second", of(&place, names[1], &["--label", "second run"]).1, second_s);
    assert_about("without label", of(&place, names[2], &[]).1, other_s);
    let samples = |image: usize, choice: &[&str]| of(&place, names[image], choice).0;
    assert_eq!(
        samples(1, &[]),
        samples(1, &["--label", "second run"]),
        "none of its children is missing"
    );
    for (image, label) in [(1, "first"), (2, "first"), (0, "second run"), (2, "second run")] {
        assert_eq!(samples(image, &["--label", label]), 0, "{} {label}", names[image]);
    }
    let unlabelled = of(&place, names[0], &[]).1 - of(&place, names[0], &["--label", "first"]).1;
    assert_about("the same program without label", unlabelled, again_s);

    let by_label = prof_by(&place.db(), "label", &["--idle"]);
    let names: Vec<_> = by_label.keys().map(|name| name.as_deref()).collect();
    assert_eq!(names, [None, Some("first"), Some("second run")]);
    // The row without label has the samples whose process is not known, too.
    let all = everything(&place).total();
    assert_eq!(by_label.values().sum::<u64>(), all, "a sample is in one of them");
    assert!(
        succeed(&mut dcpi(&place.db(), "epochs", &["--full-names"])).contains("first, second run")
    );
    assert_eq!(daemon.status().apart.labels, [""; 0], "labels end with their processes");
}

/// A service of short processes, most of whose time is the kernel's, as a unit and as a labelled
/// run, against the kernel's own account of its control group.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn kernel_time_is_that_of_its_unit_and_of_its_label() {
    require_root();
    let place = Place::default();
    let script = "for i in 1 2 3 4 5 6; do dd if=/dev/zero of=/dev/null bs=16 count=500000; done";
    let choices: [(&[&str], &[&str]); 2] =
        [(&["--by-unit"], &["unit", "label", "label"]), (&[], &["label", "label"])];
    for (run, (flags, told_by)) in choices.into_iter().enumerate() {
        let daemon = start(&place, flags);
        for (turn, what) in told_by.iter().enumerate() {
            let name = format!("dcpi-test-{}-{run}{turn}.service", std::process::id());
            let group = Group::new(&name);
            let mut command = std::process::Command::new("sh");
            if *what == "label" {
                command = place.dcpilabel(&name);
                command.arg("sh");
            }
            group.start_inside(command.args(["-c", script])).ended();
            let (all_s, kernel_s) = group.cpu_s();
            daemon.flush();
            let choice = [&format!("--{what}"), name.as_str()];
            let prof = prof(&place.db(), &["-i", "--idle", choice[0], choice[1]]);
            assert_about(&name, prof.seconds(prof.total()), all_s);
            let seconds = prof.seconds(prof.samples_of_image("[kernel]"));
            assert_about(&format!("{name}, kernel"), seconds, kernel_s);
        }
        assert_closes(&daemon.status().samples);
        assert!(daemon.terminate().success());
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_labelled_command_behaves_as_if_alone() {
    require_root();
    let place = Place::default();
    let daemon = start(&place, &[]);
    let shell = |script: &str| {
        let mut command = place.dcpilabel("run");
        command.args(["sh", "-c", script, "sh", "--help", "-x"]);
        command
    };
    let input = place.path().join("input");
    std::fs::write(&input, "to be read").unwrap();
    let mut command = shell("echo $$ $#; cat; echo oops >&2; exit 7");
    let child = command
        .stdin(std::fs::File::open(&input).unwrap())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let child = child.unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{pid} 2\nto be read"));
    assert_eq!(output.stderr, b"oops\n");
    assert_eq!(shell("kill -TERM $$").status().unwrap().signal(), Some(15));
    // A writer whose reader has gone is ended by SIGPIPE, as usual.
    assert_eq!(shell("yes | head -n 1 >/dev/null").status().unwrap().code(), Some(0));
    for (command, code) in [(Path::new("/does/not/exist"), 127), (place.path(), 126)] {
        let output = place.dcpilabel("run").arg(command).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", command.display());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            said.starts_with("dcpilabel: running ") && said.matches('\n').count() == 1,
            "{said}"
        );
    }
    let witness = place.path().join("witness");
    for label in ["a/b", "", "a\nb", &"x".repeat(129)] {
        let line = refuse(place.dcpilabel(label).arg("touch").arg(&witness));
        assert!(line.contains("label ") && line.contains("choose another label"), "{line}");
    }
    assert!(!witness.exists(), "who is refused runs nothing");
    let line = refuse(&mut place.dcpictl(&["label", "4194303", "x"]));
    assert!(line.contains("no process 4194303"), "{line}");
    assert!(daemon.terminate().success());
}

/// A file of a database whose name or contents have these bytes. The output of the tools is
/// searched too, because segments are compressed.
fn has_trace(db: &Path, of: &str) -> Option<PathBuf> {
    let told = |arguments: &[&str]| {
        let (subcommand, rest) = arguments.split_first().unwrap();
        let output = run(dcpi(db, subcommand, &["--format", "json", "--epoch", "all"]).args(rest));
        let text = String::from_utf8(output.stdout).unwrap();
        // Exit code 1 is a report with problems; without a report nothing was looked at.
        assert!(
            text.contains("\"rows\""),
            "dcpi {arguments:?} told nothing: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        text.contains(of)
    };
    let reports: [&[&str]; 5] =
        [&["prof", "--idle"], &["images"], &["cat"], &["cat", "--edges"], &["epochs"]];
    let told = reports
        .into_iter()
        .find(|arguments| told(arguments))
        .map(|arguments| arguments.join(" ").into());
    has_bytes(db, of).or(told)
}

fn has_bytes(directory: &Path, of: &str) -> Option<PathBuf> {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_str().unwrap().contains(of) {
            return Some(path);
        }
        if path.is_dir() {
            if let Some(found) = has_bytes(&path, of) {
                return Some(found);
            }
        } else {
            // Files that the daemon writes under a temporary name are renamed meanwhile.
            let contents = match std::fs::read(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                contents => contents.unwrap(),
            };
            if contents.windows(of.len()).any(|bytes| bytes == of.as_bytes()) {
                return Some(path);
            }
        }
    }
    None
}

/// All samples of these workloads were left out: their number is known, and the disk has no trace.
fn assert_left_out(place: &Place, daemon: &Daemon<'_>, secrets: &[&Workload], truth: f64) {
    daemon.flush();
    let samples = daemon.status().samples;
    assert_closes(&samples);
    let excluded = samples.unresolved.get("excluded").copied().unwrap_or(0);
    assert_about("left out", everything(place).seconds(excluded), truth);
    for secret in secrets {
        for trace in [image(secret), &build_id(secret.program())] {
            assert_eq!(has_trace(&place.db(), trace), None, "{trace}");
        }
    }
    assert_eq!(
        everything(place).unresolved.get("excluded"),
        Some(&excluded),
        "the reader is told how many"
    );
}

/// A control group, whose processes the sampler marks, and an image: neither the database nor its
/// code store has a trace of what was left out.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_control_group_and_an_image_that_are_left_out_leave_a_number() {
    require_root();
    let name = format!("dcpi-test-{}-secret.service", std::process::id());
    let group = Group::new(&name);
    let place = Place::default();
    let [secret, hidden, open] =
        ["two_functions39", "two_functions37", "stripped39"].map(|name| build(&place, name));
    let flags = ["--exclude-cgroup", &name, "--by-unit", "--exclude-image", image(&hidden)];
    let daemon = start(&place, &flags);
    let running = [group.run_inside(secret.program(), "2"), hidden.start(1)];
    let truth: f64 = running.map(|running| running.wait().number("cpu_s")).iter().sum();
    let _ = open.run(1);
    assert_left_out(&place, &daemon, &[&secret, &hidden], truth);
    assert_eq!(has_trace(&place.db(), &name), None);
    assert!(has_trace(&place.db(), image(&open)).is_some(), "who is not left out is there");
    let mut again = place.dcpid();
    again.args(["--exclude-pid", "4194303"]);
    let line = refuse(&mut again);
    assert!(line.contains("--exclude-pid 4194303") && line.contains("no such process"), "{line}");
}
