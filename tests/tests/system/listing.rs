//! `dcpi list` of what was really sampled: the known hot line with the file there, and the same
//! instructions from the code store when it is gone. Needs root, as `privileged.rs` does; without
//! it this fails.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tests::daemon::Place;
use tests::report::dcpi;
use tests::workload::{Left, Running, Workload, script};
use tests::{require_root, succeed};

/// `dcpi list two_functions three_quarters` as JSON.
fn list(db: &Path) -> Value {
    let text =
        succeed(&mut dcpi(db, "list", &["two_functions20", "three_quarters", "--format", "json"]));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}:\n{text}"))
}

fn samples(row: &Value) -> u64 {
    row["counts"].as_object().expect("counts").values().filter_map(Value::as_u64).sum()
}

/// The share of the samples that fall into the innermost loop: between a jump back and what it
/// leads to.
fn share_in_loops(listing: &Value) -> f64 {
    let address = |row: &Value, key: &str| {
        let text = row.get(key)?.as_str()?;
        u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
    };
    let rows = listing["instructions"].as_array().unwrap();
    let begin = address(listing, "address").unwrap();
    let loops: Vec<(u64, u64)> = rows
        .iter()
        .filter_map(|row| Some((address(row, "target")?, address(row, "address")?)))
        .filter(|(to, from)| (begin..*from).contains(to))
        .collect();
    let within = |row: &&Value| {
        address(row, "address")
            .is_some_and(|at| loops.iter().any(|(to, from)| (*to..=*from).contains(&at)))
    };
    let inside: u64 = rows.iter().filter(within).map(samples).sum();
    let all: u64 = rows.iter().map(samples).sum();
    assert!(all > 1000, "{all} samples");
    inside as f64 / all as f64
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn the_hot_loop_is_listed_with_its_source_and_without_the_file() {
    require_root();
    let place = Place::default();
    let workload = Workload::build(place.path(), "two_functions20", &["-g"]);
    let mut command = place.dcpid();
    command.args(["--event", "cpu-clock"]);
    let daemon = place.start_as(command);
    let running = workload.start(4);
    let _ = running.wait();
    assert!(daemon.quit().success());

    let with_file = list(&place.db());
    assert!(share_in_loops(&with_file) > 0.95, "{with_file:#}");
    let hottest =
        with_file["lines"].as_array().unwrap().iter().max_by_key(|line| samples(line)).unwrap();
    let source = std::fs::read_to_string(hottest["file"].as_str().unwrap()).unwrap();
    let line = source.lines().nth(hottest["line"].as_u64().unwrap() as usize - 1).unwrap();
    assert_eq!(hottest["text"].as_str(), Some(line));
    assert!(
        hottest["file"].as_str().unwrap().ends_with("two_functions.c") && is_of_the_loop(line),
        "{hottest:#}"
    );

    std::fs::remove_file(workload.program()).unwrap();
    let without = list(&place.db());
    assert!(share_in_loops(&without) > 0.95, "{without:#}");
    let texts = |listing: &Value| -> Vec<(Value, Value)> {
        let rows = listing["instructions"].as_array().unwrap();
        rows.iter().map(|row| (row["text"].clone(), row["counts"].clone())).collect()
    };
    assert_eq!(texts(&without), texts(&with_file));
    let kinds: Vec<&str> =
        without["problems"].as_array().unwrap().iter().filter_map(|p| p["kind"].as_str()).collect();
    assert_eq!(kinds, ["from_code_store", "no_lines"]);
}

/// Whether this is a line of `spin`, the one loop that the program's time goes to.
fn is_of_the_loop(line: &str) -> bool {
    ["for (", "x = ", "x ^= ", "x += ", "while ("].iter().any(|words| line.contains(words))
}

/// A listing of generated code, which its process has made.
fn generated(place: &Place, program: &str, pid: u64, procedure: &str) -> Value {
    let image = format!("[jit] {program} {pid}");
    let arguments = [&image, procedure, "--format", "json"];
    let text = succeed(&mut dcpi(&place.db(), "list", &arguments));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}:\n{text}"))
}

/// A procedure of generated code was listed as addresses with samples, although the process had
/// written its instructions to a jitdump. In mode late the dump has them when the process has
/// ended; a dump that not everybody may read stays private.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn instructions_of_a_jitdump_are_listed_when_the_process_and_the_dump_are_gone() {
    require_root();
    let place = Place::default();
    let workload = Workload::build(place.path(), "jit21", &[]);
    let (open, closed) = (place.path().join("open"), place.path().join("closed"));
    for (directory, mode) in [(&open, 0o755), (&closed, 0o700)] {
        std::fs::create_dir(directory).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(directory, mode).unwrap();
    }
    let mut command = place.dcpid();
    command.args(["--event", "cpu-clock"]);
    let daemon = place.start_as(command);
    let start = |(mode, directory): (&str, &Path)| {
        let directory = directory.to_str().unwrap();
        let mut command = Command::new(workload.program());
        Running::start(command.args(["3", mode, directory]))
    };
    let running = [("dump", &*open), ("late", &open), ("dump", &closed), ("map", &open)].map(start);
    let _left = running.each_ref().map(|running| Left::map_of(running.pid()));
    let [dump, late, private, map] = running.map(|running| running.wait().number("pid") as u64);
    assert!(daemon.quit().success());
    std::fs::remove_dir_all(&open).unwrap();
    std::fs::remove_dir_all(&closed).unwrap();
    let kinds = |listing: &Value| listing["problems"].as_array().unwrap().len();
    for pid in [dump, late] {
        for procedure in ["made first", "made_second"] {
            let listing = generated(&place, "jit21", pid, procedure);
            assert!(share_in_loops(&listing) > 0.95 && kinds(&listing) == 0, "{listing:#}");
            let rows = listing["instructions"].as_array().unwrap();
            let texts: Vec<&str> = rows.iter().filter_map(|row| row["text"].as_str()).collect();
            assert_eq!(texts.len(), 3, "{texts:?}");
            assert!(texts[2].starts_with("ret"), "{texts:?}");
        }
    }
    for pid in [private, map] {
        let listing = generated(&place, "jit21", pid, "made first");
        assert_eq!(listing["problems"][0]["kind"], "no_code", "{listing:#}");
    }
    let calc = ["--format", "json", &format!("[jit] jit21 {dump}"), "made first"];
    let calc: Value =
        serde_json::from_str(&succeed(&mut dcpi(&place.db(), "calc", &calc))).unwrap();
    assert!(calc["blocks"].as_array().is_some_and(|blocks| !blocks.is_empty()), "{calc:#}");
    let _ = succeed(&mut dcpi(&place.db(), "check", &[]));
}

/// They want the whole machine: `tests/system/main.rs`. dcpid has 300 ms for V8's files.
mod alone {
    use super::*;

    /// The same with V8, whose hot procedures are compiled anew while they run.
    #[test]
    #[ignore = "needs root: run by cargo xtask test"]
    fn instructions_that_v8_made_are_listed() {
        require_root();
        let place = Place::default();
        let mut command = place.dcpid();
        command.args(["--event", "cpu-clock", "--overhead-budget", "off"]);
        let daemon = place.start_as(command);
        let mut node = Command::new("node");
        // It leaves a log and the dump where it runs.
        node.arg("--perf-prof").arg(script("jit.js")).arg("3").current_dir(place.path());
        let pid = Running::start(&mut node).wait().number("pid") as u64;
        assert!(daemon.quit().success());
        // V8 may compile a procedure more than once: then the name alone is refused, by a line that
        // has the addresses of all pieces.
        let arguments = [&format!("[jit] node {pid}"), "firstOfTwo"];
        let named = dcpi(&place.db(), "list", &arguments).output().unwrap();
        let said = String::from_utf8([named.stdout, named.stderr].concat()).unwrap();
        let pieces = said.split("[0x").skip(1).filter_map(|text| text.split(['.', ']']).next());
        let listings = pieces.map(|at| generated(&place, "node", pid, &format!("0x{at}")));
        let all = |listing: &Value| -> u64 {
            listing["instructions"].as_array().unwrap().iter().map(samples).sum()
        };
        let listing = listings.max_by_key(all).unwrap();
        assert!(share_in_loops(&listing) > 0.8, "{listing:#}");
        let rows = listing["instructions"].as_array().unwrap();
        assert!(rows.iter().all(|row| row["text"].as_str().is_some_and(|text| !text.is_empty())));
    }
}
