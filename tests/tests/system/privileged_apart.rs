//! The real daemon on the real kernel, asked to keep processes apart or to leave them out. As in
//! privileged.rs: root, one at a time.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tests::daemon::{Daemon, Place, assert_closes};
use tests::report::{Prof, dcpi, prof, prof_by};
use tests::workload::{Running, Workload};
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
    let (all, unresolved) =
        (everything(&place), everything(&place).unresolved.values().sum::<u64>());
    assert_eq!(
        by_label.values().sum::<u64>() + unresolved,
        all.total(),
        "a sample is in one of them"
    );
    assert!(
        succeed(&mut dcpi(&place.db(), "epochs", &["--full-names"])).contains("first, second run")
    );
    assert_eq!(daemon.status().apart.labels, [""; 0], "labels end with their processes");
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
    // A writer whose reader has gone is ended by SIGPIPE, as always.
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

/// A service that runs already is labelled with what it has started.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_running_process_is_labelled_with_its_children() {
    require_root();
    let place = Place::default();
    let workload = build(&place, "two_functions35");
    let daemon = start(&place, &[]);
    let script = format!("{} 5; true", workload.program().display());
    let running = Running::start(Command::new("sh").args(["-c", &script]));
    let begin = Instant::now();
    while daemon.status().samples.taken < 1 || begin.elapsed() < Duration::from_secs(2) {
        std::thread::sleep(Duration::from_millis(50)); // let it run without a label for a while
    }
    let said = succeed(&mut place.dcpictl(&["label", &running.pid().to_string(), "late"]));
    assert!(said.contains("is labelled late from now on"), "{said}");
    let truth = running.wait().number("cpu_s");
    daemon.flush();
    let (all, labelled) =
        (of(&place, image(&workload), &[]), of(&place, image(&workload), &["--label", "late"]));
    assert_about("all of it", all.1, truth);
    let before = all.1 - labelled.1;
    eprintln!("{before:.3} s before the label, {:.3} s after", labelled.1);
    assert!(
        before > 0.2 && labelled.1 > 0.4 * truth && labelled.1 < 0.9 * truth,
        "{before} {labelled:?}"
    );
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn an_image_can_be_kept_apart_by_process() {
    require_root();
    let place = Place::default();
    let [workload, other] = ["two_functions36", "stripped36"].map(|name| build(&place, name));
    let daemon = start(&place, &["--per-process", image(&workload)]);
    let running = [1, 3].map(|seconds| workload.start(seconds));
    let bystander = other.start(1);
    let pids = [running[0].pid(), running[1].pid()];
    let truths = running.map(|running| running.wait().number("cpu_s"));
    let _ = bystander.wait();
    daemon.flush();
    assert_closes(&daemon.status().samples);
    for (pid, truth) in pids.iter().zip(truths) {
        assert_about(
            &pid.to_string(),
            of(&place, image(&workload), &["--pid", &pid.to_string()]).1,
            truth,
        );
    }
    let by_pid = prof_by(&place.db(), "pid", &[image(&workload)]);
    let mut expected = pids.map(|pid| Some(pid.to_string()));
    expected.sort();
    assert_eq!(
        by_pid.keys().cloned().collect::<Vec<_>>(),
        expected,
        "each of its samples is of one of them"
    );
    assert_eq!(by_pid.values().sum::<u64>(), of(&place, image(&workload), &[]).0);
    assert_eq!(
        prof_by(&place.db(), "pid", &[image(&other)]).into_keys().collect::<Vec<_>>(),
        [None]
    );
}

/// Whether a database has these bytes anywhere: in the name or contents of a file, or, for segments
/// are packed, in what the tools read from it.
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
            // What the daemon writes under a temporary name is renamed meanwhile.
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

/// Build id of a program as its image id has it.
fn build_id(program: &Path) -> String {
    let notes = succeed(Command::new("readelf").arg("-n").arg(program));
    let id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: "));
    id.unwrap_or_else(|| panic!("{notes}")).to_owned()
}

/// Everything of `workload` was left out: a number, and no trace of it on the disk.
fn assert_left_out(place: &Place, daemon: &Daemon<'_>, workload: &Workload, truth: f64) {
    daemon.flush();
    let samples = daemon.status().samples;
    assert_closes(&samples);
    let excluded = samples.unresolved.get("excluded").copied().unwrap_or(0);
    let name = image(workload);
    assert_about(name, everything(place).seconds(excluded), truth);
    for trace in [name, &build_id(workload.program())] {
        assert_eq!(has_trace(&place.db(), trace), None, "{trace}");
    }
    assert_eq!(
        everything(place).unresolved.get("excluded"),
        Some(&excluded),
        "the reader is told how many"
    );
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn an_image_that_is_left_out_leaves_a_number() {
    require_root();
    let place = Place::default();
    let [secret, open] = ["two_functions37", "stripped37"].map(|name| build(&place, name));
    for named in [image(&secret), secret.program().to_str().unwrap()] {
        let other = Place::default();
        let daemon = start(&other, &["--exclude-image", named]);
        let truth = secret.run(2).number("cpu_s");
        let _ = open.run(1);
        assert_left_out(&other, &daemon, &secret, truth);
        assert!(has_trace(&other.db(), image(&open)).is_some(), "who is not left out is there");
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_process_that_is_left_out_takes_its_children_along() {
    require_root();
    let place = Place::default();
    let secret = build(&place, "churn38");
    // It forks before the daemon starts and after.
    let script = format!("{} 6; true", secret.program().display());
    let running = Running::start(Command::new("sh").args(["-c", &script]));
    let daemon = start(&place, &["--exclude-pid", &running.pid().to_string()]);
    let truth = running.wait().number("churn_child_s");
    daemon.flush();
    let samples = daemon.status().samples;
    assert_closes(&samples);
    let excluded =
        everything(&place).seconds(samples.unresolved.get("excluded").copied().unwrap_or(0));
    eprintln!(
        "{excluded:.3} s left out of {truth:.3} s, of which some passed before the daemon ran"
    );
    assert!(excluded > 0.4 * truth, "{excluded} s left out of {truth} s");
    assert_eq!(has_trace(&place.db(), image(&secret)), None);
    let mut again = place.dcpid();
    again.args(["--exclude-pid", "4194303"]);
    let line = refuse(&mut again);
    assert!(line.contains("--exclude-pid 4194303") && line.contains("no such process"), "{line}");
}

/// A control group made for a test.
struct Group(PathBuf);

impl Group {
    fn new(name: &str) -> Self {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let root = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (place, kind) = (fields.next()?, fields.next()?);
            (kind == "cgroup2").then(|| PathBuf::from(place))
        });
        let group =
            Self(root.expect("the unified hierarchy of control groups is mounted").join(name));
        std::fs::create_dir(&group.0).unwrap();
        group
    }

    /// The command, run in the group.
    fn inside(&self, program: &Path, seconds: u32) -> Running {
        let script = "echo $$ > \"$0\"/cgroup.procs && exec \"$@\"";
        Running::start(
            Command::new("sh")
                .args(["-c", script])
                .arg(&self.0)
                .arg(program)
                .arg(seconds.to_string()),
        )
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let begin = Instant::now();
        // Who has just ended may still be in it.
        while std::fs::remove_dir(&self.0).is_err() && begin.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_control_group_that_is_left_out_leaves_a_number() {
    require_root();
    let group = Group::new(&format!("dcpi-test-{}-secret.service", std::process::id()));
    let name = group.0.file_name().unwrap().to_str().unwrap().to_owned();
    for pattern in [name.clone(), format!("/{name}")] {
        let place = Place::default();
        let secret = build(&place, "two_functions39");
        let daemon = start(&place, &["--exclude-cgroup", &pattern, "--by-unit"]);
        let truth = group.inside(secret.program(), 2).wait().number("cpu_s");
        assert_left_out(&place, &daemon, &secret, truth);
        assert_eq!(has_trace(&place.db(), &name), None);
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn units_are_kept_apart() {
    require_root();
    let groups = ["web", "batch"]
        .map(|name| Group::new(&format!("dcpi-test-{}-{name}.service", std::process::id())));
    let names =
        [0, 1].map(|at: usize| groups[at].0.file_name().unwrap().to_str().unwrap().to_owned());
    let place = Place::default();
    let workload = build(&place, "two_functions40");
    // One runs when the daemon starts, one is started later, one is in no group.
    let web = groups[0].inside(workload.program(), 6);
    let daemon = start(&place, &["--by-unit"]);
    let before = Instant::now();
    let (batch, outside) = (groups[1].inside(workload.program(), 2), workload.start(1));
    let (batch, outside) = (batch.wait().number("cpu_s"), outside.wait().number("cpu_s"));
    let _ = web.wait();
    eprintln!("all is done after {:?}", before.elapsed());
    daemon.flush();
    assert_closes(&daemon.status().samples);
    let seconds = |unit: &str| of(&place, image(&workload), &["--unit", unit]).1;
    assert_about(&names[1], seconds(&names[1]), batch);
    let web = seconds(&names[0]);
    eprintln!("{}: {web:.3} s since the daemon runs", names[0]);
    assert!(web > 1.0 && web < 6.5, "{web}");
    let all = of(&place, image(&workload), &[]).1;
    assert_about("outside", all - web - seconds(&names[1]), outside);
    let by_unit = prof_by(&place.db(), "unit", &[image(&workload)]);
    assert!(names.iter().all(|name| by_unit.contains_key(&Some(name.clone()))), "{by_unit:?}");
    let line = refuse(&mut dcpi(&place.db(), "prof", &["--unit", "nobody.service"]));
    assert!(
        line.contains("no samples of unit \"nobody.service\"; there are: ")
            && line.contains(&names[0]),
        "{line}"
    );
}

/// A process number is used again while the samples of its first owner are still being drained.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_process_number_that_is_used_again_does_not_inherit_a_label() {
    require_root();
    let place = Place::default();
    let [first, next] = ["two_functions41", "stripped41"].map(|name| build(&place, name));
    let daemon = start(&place, &[]);
    let labelled = Running::start(place.dcpilabel("run").arg(first.program()).arg("1"));
    let pid = labelled.pid();
    let _ = labelled.wait();
    let begin = Instant::now();
    let reused = loop {
        // The number that the kernel gave last (proc_sys_kernel(5)); somebody else may fork in
        // between.
        std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).unwrap();
        let running = next.start(2);
        if running.pid() == pid {
            break running;
        }
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "the number {pid} could not be had again"
        );
    };
    let truth = reused.wait().number("cpu_s");
    daemon.flush();
    assert_closes(&daemon.status().samples);
    assert_about("the next of the number", of(&place, image(&next), &[]).1, truth);
    assert_eq!(of(&place, image(&next), &["--label", "run"]).0, 0);
    assert!(of(&place, image(&first), &["--label", "run"]).0 > 0);
}
