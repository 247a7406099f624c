//! Programs whose files are gone, replaced, in memory only, or in another root: their code is kept
//! while they live, and they have names after they and the daemon have ended. Needs root, as
//! `privileged.rs` does; without it these fail.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tests::daemon::{Daemon, Place};
use tests::report::{Prof, prof};
use tests::workload::{Running, Workload};
use tests::{require_root, succeed};

/// A daemon that samples CPU time, and keeps code unless it is told not to.
fn start<'a>(place: &'a Place, flags: &[&str]) -> Daemon<'a> {
    let mut command = place.dcpid();
    command.args(["--event", "cpu-clock"]).args(flags);
    place.start_as(command)
}

/// Waits until all images of that name are kept.
fn wait_until_kept(daemon: &Daemon<'_>, place: &Place, image: &str) {
    let begin = Instant::now();
    loop {
        daemon.flush();
        let kept = kept_files(&place.db());
        let is_kept =
            |id: &str| kept.iter().any(|file| file.file_stem().is_some_and(|stem| stem == id));
        if prof(&place.db(), &["-i", image]).rows.iter().all(|row| is_kept(&row.image_id)) {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", daemon.status().code_store);
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The code files of a database.
fn kept_files(db: &Path) -> Vec<PathBuf> {
    let hosts = std::fs::read_dir(db.join("hosts")).unwrap();
    let directories =
        hosts.map(|host| host.unwrap().path().join("code")).filter(|code| code.is_dir());
    let files = directories
        .flat_map(|code| std::fs::read_dir(code).unwrap().map(|entry| entry.unwrap().path()));
    files.filter(|file| file.extension().is_some_and(|extension| extension == "code")).collect()
}

/// Fails the test unless two_functions has its two functions, in the shares it measured itself.
fn assert_named(prof: &Prof, image: &str, truth: f64) {
    let samples = |name: &str| prof.row(image, name).samples() as f64;
    let (three, one) = (samples("three_quarters"), samples("one_quarter"));
    let share = three / (three + one);
    eprintln!(
        "{image}: three_quarters has {share:.4} of {} samples, {truth:.4} by its own clock",
        three + one
    );
    assert!(
        three + one > 2000.0 && (share - truth).abs() < 0.03,
        "{share:.4}, {truth:.4}: {prof:#?}"
    );
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_program_deleted_while_it_runs_has_names_after_the_daemon_has_ended() {
    require_root();
    let place = Place::default();
    let workload = Workload::build(place.path(), "two_functions11", &[]);
    let daemon = start(&place, &[]);
    let running = workload.start(4);
    std::fs::remove_file(workload.program()).unwrap();
    let truth = running.wait().number("three_quarters");
    assert!(daemon.quit().success());
    let report = prof(&place.db(), &["two_functions11"]);
    assert_named(&report, "two_functions11", truth);
    assert_eq!(report.problem_kinds(), ["from_code_store"]);
}

/// Without the store, the same program's samples have no procedure names, so the names in the other
/// tests come from the store.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn without_a_code_store_nothing_is_kept() {
    require_root();
    let place = Place::default();
    let workload = Workload::build(place.path(), "two_functions12", &[]);
    let daemon = start(&place, &["--code-store", "off"]);
    let running = workload.start(2);
    std::fs::remove_file(workload.program()).unwrap();
    let _ = running.wait();
    assert!(daemon.status().code_store.is_none());
    assert!(daemon.quit().success());
    assert!(kept_files(&place.db()).is_empty());
    let text =
        succeed(&mut tests::report::dcpi(&place.db(), "prof", &["--idle", "--format", "json"]));
    assert!(text.contains("[no procedures: file gone]"), "{text}");
}

/// A build without a build id is also recognised, by its code.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_program_rebuilt_at_its_path_while_it_runs_keeps_its_own_names() {
    require_root();
    for build_id in ["-Wl,--build-id", "-Wl,--build-id=none"] {
        let place = Place::default();
        let workload = Workload::build(place.path(), "two_functions13", &[build_id]);
        let daemon = start(&place, &[]);
        let running = workload.start(4);
        // As installers do: another file takes the name.
        let new = Workload::build(place.path(), "stripped13", &[build_id]);
        std::fs::rename(new.program(), workload.program()).unwrap();
        let second = Running::start(Command::new(workload.program()).arg("2"));
        let truth = running.wait().number("three_quarters");
        let _ = second.wait();
        wait_until_kept(&daemon, &place, "two_functions13");
        assert!(daemon.quit().success());
        let report = prof(&place.db(), &["two_functions13"]);
        assert_named(&report, "two_functions13", truth);
        let ids: std::collections::BTreeSet<&str> =
            report.rows.iter().map(|row| row.image_id.as_str()).collect();
        assert_eq!(ids.len(), 2, "two builds at one path are two images: {report:#?}");
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_program_that_is_only_in_memory_has_names() {
    require_root();
    let place = Place::default();
    let workload = Workload::build(place.path(), "two_functions14", &[]);
    let loader = Workload::build(place.path(), "memfd", &[]);
    let daemon = start(&place, &[]);
    let running = Running::start(Command::new(loader.program()).arg(workload.program()).arg("4"));
    let truth = running.wait().number("three_quarters");
    assert!(daemon.quit().success());
    // The original file is the same build, so it is removed.
    std::fs::remove_file(workload.program()).unwrap();
    let report = prof(&place.db(), &["--idle"]);
    let image = report.rows.iter().find(|row| row.procedure.as_deref() == Some("three_quarters"));
    let image = image.unwrap_or_else(|| panic!("no three_quarters: {report:#?}")).image.clone();
    assert!(image.contains("memfd:in-memory"), "{image}");
    assert_named(&report, &image, truth);
}

/// Processes in a root of their own, where a path is a library of another build than outside, and
/// another is a program that does not exist outside.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_program_in_another_root_resolves_to_its_own_files() {
    require_root();
    let place = Place::default();
    // Outside, the library at this path does something else under other names.
    let outside = place.path().join("liblibrary.so");
    let workload = Workload::build_with_library(place.path());
    let root = place.path().join("root");
    let libraries = succeed(Command::new("ldd").arg(workload.program()));
    let needed =
        libraries.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from);
    for file in needed.chain([workload.program().to_owned()]) {
        let inside = root.join(file.strip_prefix("/").unwrap());
        std::fs::create_dir_all(inside.parent().unwrap()).unwrap();
        std::fs::copy(&file, inside).unwrap();
    }
    std::fs::remove_file(workload.program()).unwrap();
    let other = Workload::build(place.path(), "two_functions15", &["-shared", "-fPIC"]);
    std::fs::rename(other.program(), &outside).unwrap();

    let daemon = start(&place, &[]);
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--pid", "--fork", "--root"])
        .arg(&root)
        .arg(workload.program())
        .arg("4");
    let truth = Running::start(&mut command).wait().number("cpu_s");
    assert!(daemon.quit().success());
    std::fs::remove_dir_all(&root).unwrap();

    let report = prof(&place.db(), &["--idle"]);
    let seconds = report.seconds(report.row("liblibrary.so", "library_work").samples());
    eprintln!("library_work: {seconds:.3} s in samples, {truth:.3} s by its own clock");
    assert!(
        (0.8 * truth..1.2 * truth).contains(&seconds),
        "{seconds:.3} s, {truth:.3} s: {report:#?}"
    );
    assert_eq!(report.samples_of_image("two_functions15"), 0);
}

/// A daemon killed in the middle of its work leaves only complete files, and the next one
/// continues: it keeps nothing twice, and the third reads the second's records.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn the_next_daemon_goes_on_with_what_was_kept() {
    require_root();
    let place = Place::default();
    let workload = Workload::build(place.path(), "two_functions16", &["-Wl,--build-id=none"]);
    let daemon = start(&place, &[]);
    let _ = workload.run(2);
    wait_until_kept(&daemon, &place, "two_functions16");
    daemon.kill();
    let files = kept_files(&place.db());
    let times: Vec<_> = files
        .iter()
        .map(|file| (file.clone(), file.metadata().unwrap().modified().unwrap()))
        .collect();
    let daemon = start(&place, &[]);
    let _ = workload.run(2);
    let store = daemon.status().code_store.unwrap();
    assert!(store.images >= files.len() as u64, "{store:?}");
    assert!(daemon.quit().success());
    for (file, time) in times {
        assert_eq!(
            file.metadata().unwrap().modified().unwrap(),
            time,
            "{} was written again",
            file.display()
        );
    }
    let hosts: Vec<_> = std::fs::read_dir(place.db().join("hosts"))
        .unwrap()
        .map(|host| host.unwrap().path())
        .collect();
    assert!(
        hosts.iter().all(|host| host.join("catalogue.sum").is_file()),
        "what was learnt is on disk"
    );
    assert!(start(&place, &[]).quit().success());
    let log = place.log();
    assert!(!log.contains("put aside") && !log.contains("is damaged"), "{log}");
}
