//! The program itself on a directory, killed: at each system call that changes the directory, and
//! at any moment.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use store::Store;

use crate::epochs::{Objects, SMALL, SMALL_LATE, objects, weeks};
use crate::run;
use crate::sums::{Sums, assert_account};

/// System calls by which objects are made, in the order in which one is.
const CALLS: [&str; 5] = ["mkdir", "fsync", "linkat", "unlink", "rename"];

pub fn dcpi_fleet(store: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dcpi-fleet"));
    command.args(arguments).arg("--store").arg(store);
    command
}

/// What the program says and its exit code.
pub fn said(mut command: Command) -> (i32, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = String::from_utf8(stderr).unwrap() + &String::from_utf8(stdout).unwrap();
    (status.code().unwrap_or(-1), text)
}

pub fn write(store: &Path, objects: &Objects) {
    for (key, object) in objects {
        let path = store.join(key);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, object).unwrap();
    }
}

fn close_arguments(week: usize) -> [String; 3] {
    ["close".to_owned(), "--week".to_owned(), weeks()[week].to_string()]
}

fn sums(store: &Path) -> Vec<Sums> {
    let store = store.to_owned();
    run(move || async move { Sums::of_weeks(&Store::open(&store).unwrap()).await })
}

/// The small fleet with its late epochs, ingested and closed by the program.
fn expected() -> Vec<Sums> {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path();
    write(store, &SMALL);
    write(store, &SMALL_LATE);
    finish(store)
}

/// Ingests and closes what is there, without a kill.
fn finish(store: &Path) -> Vec<Sums> {
    let (code, text) = said(dcpi_fleet(store, &["ingest"]));
    assert_eq!(code, 0, "{text}");
    for week in 0..2 {
        let arguments = close_arguments(week);
        let (code, text) = said(dcpi_fleet(store, &arguments.each_ref().map(String::as_str)));
        assert_eq!(code, 0, "{text}");
    }
    let (code, text) = said(dcpi_fleet(store, &["ingest"]));
    assert_eq!((code, text.as_str()), (0, "nothing new\n"));
    sums(store)
}

/// Runs the program until it was killed at no call of that name: at its first, then at its second,
/// and so on, each time on a store from `fresh`, and once more without a kill. Gives the number of
/// kills.
fn kill_at(
    call: &str,
    arguments: &[&str],
    fresh: impl Fn() -> tempfile::TempDir,
    check: impl Fn(&[Sums]),
) -> usize {
    for at in 1.. {
        let directory = fresh();
        let program = dcpi_fleet(directory.path(), arguments);
        let mut command = Command::new("strace");
        // Each thread's calls are counted for themselves.
        command.args(["-f", "-qqq", "-o", "/dev/null", "-e"]);
        command.arg(format!("trace={call}"));
        command.arg("-e").arg(format!("inject={call}:signal=KILL:when={at}"));
        command.arg(program.get_program()).args(program.get_args());
        let status = command.stdout(Stdio::null()).status().expect("strace");
        if status.success() {
            return at - 1;
        }
        use std::os::unix::process::ExitStatusExt as _;
        assert_eq!(status.signal(), Some(9), "{status}");
        let (code, text) = said(dcpi_fleet(directory.path(), arguments));
        assert_eq!(code, 0, "{call} {at}: {text}");
        check(&sums(directory.path()));
    }
    0
}

/// A small store, in which `commands` ran.
fn small(objects: &Objects, commands: &[&[&str]]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), objects);
    for command in commands {
        let (code, text) = said(dcpi_fleet(directory.path(), command));
        assert_eq!(code, 0, "{text}");
    }
    directory
}

#[test]
fn an_ingester_that_is_killed_at_any_call_is_followed_by_another() {
    let fleet = objects(&["web-1"], &[7], true);
    let expected = sums(small(&fleet, &[&["ingest"]]).path());
    assert_eq!(expected[1].epochs.len(), 1);
    let mut kills = 0;
    for call in CALLS {
        kills += kill_at(
            call,
            &["ingest"],
            || small(&fleet, &[]),
            |sums| {
                sums.iter().zip(&expected).for_each(|(sums, of)| sums.assert_ingested_as(of));
            },
        );
    }
    assert!(kills > 10, "{kills}");
}

#[test]
fn a_closer_that_is_killed_at_any_object_is_followed_by_another() {
    let fleet = objects(&["web-1"], &[7, 10], true);
    let arguments = close_arguments(1);
    let close = arguments.each_ref().map(String::as_str);
    let expected = sums(small(&fleet, &[&["ingest"], &close]).path());
    let from = small(&fleet, &[&["ingest"]]);
    let fresh = || {
        let directory = tempfile::tempdir().unwrap();
        let status =
            Command::new("cp").args(["-rT"]).args([from.path(), directory.path()]).status();
        assert!(status.unwrap().success());
        directory
    };
    let mut kills = 0;
    for call in ["linkat", "rename"] {
        kills += kill_at(call, &close, fresh, |sums| sums[1].assert_closed_as(&expected[1]));
    }
    // Each thread counts for itself, and how many threads put objects is chance.
    assert!(kills > 1, "{kills}");
}

struct Killed(Child);

impl Killed {
    fn spawn(store: &Path, arguments: &[&str]) -> Self {
        let mut command = dcpi_fleet(store, arguments);
        Self(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// Kills the program; true where it was killed, and had not ended.
    fn kill(mut self) -> bool {
        let _ = self.0.kill();
        let output = self.0.wait_with_output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!text.contains("panicked"), "{text}");
        output.status.code().is_none()
    }
}

/// Pushes, ingesters and closers at once, each of which is killed at some moment.
#[test]
fn programs_that_are_killed_at_any_moment_lose_nothing() {
    let expected = expected();
    let mut all = SMALL.clone();
    all.extend(SMALL_LATE.clone());
    assert_account(&expected, &all);
    let (mut kills, mut ends) = (0, 0);
    // Longest time until a kill, ms: follows how long the programs take on this machine.
    let mut longest = 400;
    for seed in 0..4 {
        let mut random = fastrand::Rng::with_seed(seed);
        let directory = tempfile::tempdir().unwrap();
        let store = directory.path();
        let mut pushed: Vec<(&String, &Vec<u8>)> = all.iter().collect();
        random.shuffle(&mut pushed);
        // The first week is there; of the other, epochs come one by one.
        for round in 0..8 {
            for (key, object) in pushed.drain(..pushed.len().min(2)) {
                write(store, &Objects::from([(key.clone(), object.clone())]));
            }
            fs::create_dir_all(store.join("raw")).unwrap();
            let mut running = Vec::new();
            for _ in 0..2 + round % 2 {
                running.push(Killed::spawn(store, &["ingest"]));
            }
            let arguments = close_arguments(1);
            running.push(Killed::spawn(store, &arguments.each_ref().map(String::as_str)));
            std::thread::sleep(Duration::from_millis(random.u64(1..longest)));
            random.shuffle(&mut running);
            let (killed, all) = (kills, running.len());
            for program in running {
                std::thread::sleep(Duration::from_millis(random.u64(0..=longest / 7)));
                if program.kill() { kills += 1 } else { ends += 1 }
            }
            let were_most_killed = 2 * (kills - killed) > all;
            longest = if were_most_killed { longest * 5 / 4 } else { longest * 3 / 4 };
            longest = longest.clamp(20, 4000);
            sums(store).iter().for_each(Sums::assert_once);
        }
        write(store, &all);
        for (sums, expected) in finish(store).iter().zip(&expected) {
            sums.assert_closed_as(expected);
        }
    }
    eprintln!("{kills} killed, {ends} ended");
    assert!(kills > 20, "{kills} killed, {ends} ended");
}

/// The number of threads is that of CPUs, and not to be seen in files.
#[test]
fn the_same_epochs_are_the_same_files_on_machines_with_other_cpus() {
    // One host's epochs are some of each thread's.
    let fleet = objects(&["web-1"], &[7, 8, 9, 10, 11, 12, 13], false);
    let files = |cpus: Option<&str>| {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), &fleet);
        let program = dcpi_fleet(directory.path(), &["ingest"]);
        let mut command = Command::new("taskset");
        command.args(["-c", cpus.unwrap_or("0-1023")]);
        command.arg(program.get_program()).args(program.get_args());
        let (code, text) = said(command);
        assert_eq!(code, 0, "{text}");
        sums(directory.path()).into_iter().map(|of| of.files).collect::<Vec<_>>()
    };
    assert_eq!(files(Some("0")), files(None));
}
