//! Makes the recordings whose samples `daemon/dcpid/tests/attribution.rs` holds against seconds:
//! `cargo xtask record [NAME...]`, as root, on a machine that does little else meanwhile.
//!
//! Each recording is two files in `daemon/dcpid/tests/recordings`: `NAME.dcpid-input` is what dcpid
//! was reported, `NAME.truth.json` what the workloads say of themselves. Neither file names
//! directories of this machine: the workloads' own directory is `/opt/build`, all others are
//! `/opt/other`.
#![allow(clippy::print_stdout, reason = "an example prints")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "it panics to fail"
)]

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tests::cgroup::Group;
use tests::daemon::{Daemon, Place};
use tests::workload::{
    Left, Running, Truth, Workload, build_id, script, start_as_number, wait_for_code,
};
use tests::{Setting, binary, require_root, succeed};

/// The event, with its samples a second on each CPU. 1000 samples know a second of work to 3 %. A
/// higher rate makes the file larger: each sample of a compiler beside is at an address of its own.
const EVENT: &str = "cpu-clock@1000";
/// Bytes that a recording may have, so that the repository stays small: twice what the largest one
/// has on a quiet machine. A machine that compiles beside needs 260 KB.
const BYTES_MAX: usize = 100 << 10;
/// Prefixes of paths that a recording keeps: directories that every machine has, and names that
/// only look like paths.
const COMMON: [&str; 11] = [
    "/usr/",
    "/lib/",
    "/lib64/",
    "/bin/",
    "/sbin/",
    "/etc/",
    "/dev/",
    "/proc/",
    "/memfd:",
    "/SYSV",
    "/opt/build/",
];
/// Addresses of the code of the workload `jit`, and of the second of its two procedures.
const CODE: u64 = 0x2_0000_0000;
const SECOND: u64 = CODE + 2048;

/// A recording: its name, and the function that runs workloads meanwhile and returns their
/// measurements.
type Story = (&'static str, fn(&Place) -> Value);

const STORIES: [Story; 5] = [
    ("apart", apart),
    ("generated", generated),
    ("node", node),
    ("process-numbers", process_numbers),
    ("rebuilt", rebuilt),
];

fn main() {
    require_root();
    let names: Vec<String> = std::env::args().skip(1).collect();
    for name in &names {
        let known = STORIES.map(|(story, _)| story);
        assert!(known.contains(&name.as_str()), "no recording {name}; there are {known:?}");
    }
    for (name, story) in STORIES {
        if names.is_empty() || names.iter().any(|asked| asked == name) {
            make(name, story);
        }
    }
}

fn make(name: &str, story: fn(&Place) -> Value) {
    let place = Place::default();
    let truth = story(&place);
    let text = succeed(Command::new("gzip").arg("-dc").arg(input(&place)));
    let text = text.replace(place.path().to_str().unwrap(), "/opt/build");
    let lines: Vec<String> = text.lines().map(without_machine_paths).collect();
    let plain = place.path().join("plain");
    std::fs::write(&plain, lines.join("\n") + "\n").unwrap();
    let packed = tests::run(Command::new("gzip").arg("-9nc").arg(&plain)).stdout;
    assert!(
        packed.len() < BYTES_MAX,
        "{name} has {} bytes, more than {BYTES_MAX}; record anew when the machine is quiet",
        packed.len()
    );
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../daemon/dcpid/tests/recordings")
        .canonicalize();
    let file = |ending: &str| directory.as_ref().unwrap().join(format!("{name}.{ending}"));
    std::fs::write(file("dcpid-input"), &packed).unwrap();
    let truth = serde_json::to_string_pretty(&truth).unwrap() + "\n";
    std::fs::write(file("truth.json"), truth).unwrap();
    let mut replay = Command::new(binary("dcpid"));
    replay.arg("--replay").arg(file("dcpid-input")).arg("--db").arg(place.path().join("again"));
    let _ = succeed(&mut replay);
    println!("{name}: {} bytes", packed.len());
}

fn input(place: &Place) -> PathBuf {
    place.path().join("input.gz")
}

/// A daemon that records its input.
fn start<'a>(place: &'a Place, flags: &[&str]) -> Daemon<'a> {
    let mut command = place.dcpid();
    command.args(["--event", EVENT, "--edges", "off", "--code-store", "off", "--host", "host"]);
    command.arg("--record-input").arg(input(place)).args(flags);
    place.start_as(command)
}

/// Ends the daemon, which completes the recording.
fn end(daemon: Daemon<'_>) {
    assert!(daemon.quit().success());
}

/// A line of a recording, with the paths of this machine replaced. Control groups stay.
fn without_machine_paths(line: &str) -> String {
    let mut line: Value = serde_json::from_str(line).unwrap();
    let groups = line.pointer_mut("/answers/cgroup").map(Value::take);
    replace_paths(&mut line);
    if let (Some(groups), Some(at)) = (groups, line.pointer_mut("/answers/cgroup")) {
        *at = groups;
    }
    line.to_string()
}

fn replace_paths(value: &mut Value) {
    match value {
        Value::String(text) if text.starts_with('/') => {
            let is_common = COMMON.iter().any(|directory| text.starts_with(directory));
            if !is_common && let Some((_, name)) = text.rsplit_once('/') {
                *text = format!("/opt/other/{name}");
            }
        }
        Value::Array(values) => values.iter_mut().for_each(replace_paths),
        Value::Object(members) => members.values_mut().for_each(replace_paths),
        _ => {}
    }
}

fn run(program: &Path, seconds: &str) -> Running {
    Running::start(Command::new(program).arg(seconds))
}

fn cpu_s(running: Running) -> f64 {
    running.wait().number("cpu_s")
}

/// A program, and a library that may be counted once for all, each built again in place and run
/// again, several times within one drain. The truth: seconds by build id.
fn rebuilt(place: &Place) -> Value {
    let seeds = ["-DSEED=1442695040888963407u", "-DSEED=1442695040888963409u"];
    let programs = seeds.map(|seed| {
        Workload::build(place.path(), "rebuilt", &[seed]).copy(&format!("build{seed}"))
    });
    let program = programs[0].copy("program");
    let flags = seeds.each_ref().map(std::slice::from_ref);
    let (user, libraries) = Workload::build_with_libraries(place.path(), flags);
    let first_library = place.path().join("first.so");
    std::fs::copy(&libraries[0], &first_library).unwrap();

    let daemon = start(place, &[]);
    let rebuild = |builds: [&Path; 2], image: &Path, program: &Path| {
        let mut work_s = [0.0, 0.0];
        for _ in 0..3 {
            for ((build, seconds), work_s) in builds.iter().zip(["0.2", "0.4"]).zip(&mut work_s) {
                std::fs::copy(build, image).unwrap();
                *work_s += cpu_s(run(program, seconds));
            }
        }
        json!({ build_id(builds[0]): work_s[0], build_id(builds[1]): work_s[1] })
    };
    let builds = programs.each_ref().map(Workload::program);
    let of_program = rebuild(builds, program.program(), program.program());
    let builds = [first_library.as_path(), libraries[1].as_path()];
    let of_library = rebuild(builds, &libraries[0], user.program());
    end(daemon);
    json!({ "program": of_program, "libc-rebuilt.so": of_library })
}

/// One process number for many short processes within a drain, which use one of two libraries at
/// one address. The truth: seconds by the library's build id.
fn process_numbers(place: &Place) -> Value {
    let workloads = ["one", "other"].map(|name| {
        let directory = place.path().join(name);
        std::fs::create_dir(&directory).unwrap();
        Workload::build_with_library(&directory)
    });
    let _same_addresses = Setting::set("/proc/sys/kernel/randomize_va_space", "0");
    let daemon = start(place, &[]);
    let number = {
        let first = run(workloads[0].program(), "0");
        let number = first.pid();
        let _ = first.wait();
        number
    };
    let mut work_s = [0.0, 0.0];
    for _ in 0..40 {
        for ((workload, seconds), work_s) in workloads.iter().zip(["0.02", "0.06"]).zip(&mut work_s)
        {
            let mut command = Command::new(workload.program());
            *work_s += cpu_s(start_as_number(number, command.arg(seconds)));
        }
    }
    end(daemon);
    let id = |at: usize| build_id(&workloads[at].program().with_file_name("liblibrary.so"));
    json!({ id(0): work_s[0], id(1): work_s[1] })
}

/// Everything that keeps samples apart, or leaves them out: labels, units, one image's processes;
/// an image, a process with its children.
fn apart(place: &Place) -> Value {
    let build = |name: &str| {
        let workload = Workload::build(place.path(), "two_functions", &["-Wl,--build-id=uuid"]);
        workload.copy(name)
    };
    let groups = ["dcpi-web.service", "dcpi-batch.service"].map(Group::new);
    let [served, kept, late] = ["served", "kept", "late"].map(build);
    let [first, next] = ["first", "next"].map(build);
    let [secret, hidden] = ["secret-image", "secret-process"].map(build);

    // It forks before the daemon starts and after.
    let script = "for i in 1 2 3 4 5 6 7 8 9; do \"$0\" 0.3 >/dev/null; done; \"$0\" 0.3";
    let left_out = Running::start(Command::new("sh").args(["-c", script]).arg(hidden.program()));
    let web = groups[0].run_inside(served.program(), "3");
    let pid = left_out.pid().to_string();
    let flags = ["--by-unit", "--per-process", "kept", "--exclude-image", "secret-image"];
    let daemon = start(place, &[&flags[..], &["--exclude-pid", &pid]].concat());

    let batch = groups[1].run_inside(served.program(), "1");
    let (outside_s, batch_s) = (cpu_s(run(served.program(), "0.5")), cpu_s(batch));
    let secret_s = cpu_s(run(secret.program(), "1"));
    let runs = ["0.5", "1"].map(|seconds| run(kept.program(), seconds));
    let pids = runs.each_ref().map(|running| running.pid().to_string());
    let kept_s = runs.map(cpu_s);

    let script = "\"$0\" 2; true";
    let shell = Running::start(Command::new("sh").args(["-c", script]).arg(late.program()));
    std::thread::sleep(Duration::from_millis(800)); // it runs without a label for a while
    let _ = succeed(&mut place.dcpictl(&["label", &shell.pid().to_string(), "late"]));
    let late_s = cpu_s(shell);

    let labelled = Running::start(place.dcpilabel("run").arg(first.program()).arg("0.5"));
    let number = labelled.pid();
    let first_s = cpu_s(labelled);
    let next_s = cpu_s(start_as_number(number, Command::new(next.program()).arg("1")));
    let (web_s, _) = (cpu_s(web), left_out.wait());
    end(daemon);
    json!({
        "web_s": web_s, "batch_s": batch_s, "outside_s": outside_s,
        "kept_s": { pids[0].as_str(): kept_s[0], pids[1].as_str(): kept_s[1] },
        "late_s": late_s, "first_s": first_s, "next_s": next_s,
        "secret_image_s": secret_s, "secret_process_s": 10.0 * 0.3,
    })
}

/// The measurements of a workload that spends its time in two procedures of generated code.
fn told(truth: &Truth) -> Value {
    let [pid, first, second] = ["pid", "first_s", "second_s"].map(|key| truth.number(key));
    json!({ "pid": pid as u32, "first_s": first, "second_s": second })
}

/// A compiler of JavaScript that reports its code in a map.
fn node(place: &Place) -> Value {
    // Names of procedures have the script's path in them.
    let workload = place.path().join("jit.js");
    std::fs::copy(script("jit.js"), &workload).unwrap();
    let daemon = start(place, &[]);
    let mut node = Command::new("node");
    node.arg("--perf-basic-prof").arg(&workload).arg("1").current_dir(place.path());
    let running = Running::start(&mut node);
    let _left = Left::map_of(running.pid());
    let truth = running.wait();
    end(daemon);
    told(&truth)
}

/// Code made at run time: told of in a map, in a map of code in a memory file, in a dump; by
/// nobody; in registered regions; a copy of a file's.
fn generated(place: &Place) -> Value {
    let workload = Workload::build(place.path(), "jit", &[]);
    let user = Workload::build_with_library(place.path());
    let library = user.program().with_file_name("liblibrary.so");
    let jit = |arguments: &[&str]| Running::start(Command::new(workload.program()).args(arguments));
    let daemon = start(place, &[]);
    let mut truths = serde_json::Map::new();
    for mode in ["map", "memfd", "dump"] {
        let running = jit(&["1", mode, place.path().to_str().unwrap()]);
        let _left = Left::map_of(running.pid());
        truths.insert(mode.to_owned(), told(&running.wait()));
    }
    let silent = Running::start(Command::new("node").arg(script("jit.js")).arg("1"));
    truths.insert("silent".to_owned(), told(&silent.wait()));

    let (code, second) = (format!("{CODE:#x}"), format!("{SECOND:#x}"));
    let running = jit(&["2"]);
    wait_for_code(running.pid(), CODE);
    let pid = running.pid().to_string();
    let dcpictl = |arguments: &[&str]| tests::run(&mut place.dcpictl(arguments)).status.success();
    assert!(dcpictl(&["register", &pid, &code, "64", "first of mine"]));
    assert!(dcpictl(&["register", &pid, &second, "0x40", "second_of_mine", "--image", "an image"]));
    assert!(!dcpictl(&["register", &pid, "0x1000", "64", "nowhere"]));
    let truth = running.wait();
    truths.insert("registered".to_owned(), told(&truth));

    let running = jit(&["1"]);
    wait_for_code(running.pid(), CODE);
    let pid = running.pid().to_string();
    let file = ["--file", library.to_str().unwrap(), "--offset", "0x100000"];
    assert!(dcpictl(&[&["register", &pid, &code, "4096", "copied"], &file[..]].concat()));
    truths.insert("copied".to_owned(), told(&running.wait()));

    let running = jit(&["1"]);
    wait_for_code(running.pid(), CODE);
    let pid = running.pid().to_string();
    assert!(dcpictl(&["register", &pid, &code, "4096", "forgotten"]));
    std::thread::sleep(Duration::from_millis(300));
    assert!(dcpictl(&["unregister", &pid, &code]));
    truths.insert("unregistered".to_owned(), told(&running.wait()));
    end(daemon);
    Value::Object(truths)
}
