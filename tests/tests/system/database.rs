//! The database under the real daemon: killed at any moment, read by many while it is written,
//! copied, packed, cleared of old epochs. These need root, as those of privileged.rs do.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tests::daemon::Place;
use tests::report::{dcpi, prof};
use tests::workload::Workload;
use tests::{require_root, run, succeed};

/// Damage that `dcpi check` finds: paths and messages. Leftovers of a killed writer are no damage.
fn damage(db: &Path) -> Vec<String> {
    let output = run(&mut dcpi(db, "check", &["--format", "json"]));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.code().is_some_and(|code| code <= 1),
        "dcpi check: {}\n{text}",
        output.status
    );
    let found: serde_json::Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}:\n{text}"));
    let problems = found["problems"].as_array().expect("problems");
    assert_eq!(
        output.status.code() == Some(0),
        problems.iter().all(|problem| !problem["damage"].as_bool().unwrap()),
        "the exit code says whether there is any: {text}"
    );
    let damaged = problems.iter().filter(|problem| problem["damage"].as_bool().unwrap());
    damaged.map(|problem| problem["message"].as_str().unwrap().to_owned()).collect()
}

fn epochs(db: &Path) -> Vec<String> {
    let text = succeed(&mut dcpi(db, "epochs", &["--format", "json"]));
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let rows = report["rows"].as_array().unwrap();
    rows.iter().map(|row| row["epoch"].as_str().unwrap().to_owned()).collect()
}

/// DCPI_TEST_KILLS kills it more often.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_daemon_killed_at_any_moment_leaves_a_whole_database() {
    require_root();
    let kills = std::env::var("DCPI_TEST_KILLS").map_or(12, |kills| kills.parse::<u64>().unwrap());
    let place = Place::default();
    let workload = Workload::build(place.path(), "churn17", &[]);
    // It ends with this test; on a busy machine a daemon may take long to begin.
    let load = workload.start(60 + 60 * u32::try_from(kills).unwrap());
    let mut acknowledged = 0;
    for kill in 0..kills {
        let mut command = place.dcpid();
        command.args([
            "--event",
            "cpu-clock@2000",
            "--drain-interval",
            "20ms",
            "--merge-interval",
            "1s",
        ]);
        let daemon = place.start_as(command);
        let (control, flushing) = (place.control(), AtomicBool::new(true));
        // Flushes in a storm; those that were answered are on disk, whatever happens now.
        let flushed = std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                let mut flushed = 0;
                while flushing.load(Ordering::Relaxed) {
                    let mut flush = Command::new(tests::binary("dcpictl"));
                    flushed += u64::from(
                        run(flush.arg("--control").arg(&control).arg("flush")).status.success(),
                    );
                }
                flushed
            });
            // Another moment each time, spread over 400 ms.
            std::thread::sleep(Duration::from_millis(100 + (kill * 137) % 400));
            daemon.kill();
            flushing.store(false, Ordering::Relaxed);
            client.join().unwrap()
        });
        acknowledged += flushed;
        assert_eq!(damage(&place.db()), [] as [String; 0], "after kill {kill}");
        let report = prof(&place.db(), &["--idle", "--epoch", "all"]);
        assert_eq!(report.serious(), [] as [&str; 0], "after kill {kill}");
        if kill % 10 == 9 {
            eprintln!(
                "{} kills, {acknowledged} flushes answered, {} samples",
                kill + 1,
                report.total()
            );
        }
    }
    assert!(acknowledged > 0, "no flush was answered, so nothing was tried");
    let before = prof(&place.db(), &["--idle", "--epoch", "all"]).total();
    assert!(before > 0);
    let daemon = place.start();
    assert!(daemon.terminate().success());
    assert!(
        prof(&place.db(), &["--idle", "--epoch", "all"]).total() > before,
        "the next daemon goes on"
    );
    drop(load);
    eprintln!("{kills} kills, {acknowledged} flushes answered, {before} samples in the end");
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn sixteen_readers_see_only_whole_states_while_the_daemon_flushes() {
    require_root();
    let place = Place::default();
    let workload = Workload::build(place.path(), "churn18", &[]);
    let daemon = place.start();
    let load = workload.start(20);
    daemon.flush();
    let (end, readings) = (Instant::now() + Duration::from_secs(6), AtomicU64::new(0));
    let last = std::thread::scope(|scope| {
        let read = || {
            let mut last = 0;
            while Instant::now() < end {
                let report = prof(&place.db(), &["--idle", "-i"]);
                // Profiles that do not fit the ledger, or files that could not be read, would be
                // told here.
                assert_eq!(report.serious(), [] as [&str; 0]);
                assert!(
                    report.total() >= last,
                    "{} samples after {last}: an older state",
                    report.total()
                );
                last = report.total();
                readings.fetch_add(1, Ordering::Relaxed);
            }
            last
        };
        let readers: Vec<_> = (0..16).map(|_| scope.spawn(read)).collect();
        let mut flushes = 0;
        while Instant::now() < end {
            daemon.flush();
            flushes += 1;
        }
        eprintln!("{flushes} flushes");
        readers.into_iter().map(|reader| reader.join().unwrap()).max().unwrap()
    });
    eprintln!("{} readings of up to {last} samples", readings.load(Ordering::Relaxed));
    assert!(readings.load(Ordering::Relaxed) >= 16 && last > 0);
    drop(load);
    assert!(daemon.terminate().success());
    assert_eq!(damage(&place.db()), [] as [String; 0]);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn old_epochs_go_and_the_newest_stay() {
    require_root();
    let place = Place::default();
    let mut command = place.dcpid();
    command.args(["--retain", "newest 2, 1KiB"]);
    let daemon = place.start_as(command);
    let mut names = epochs(&place.db());
    for label in ["b", "c", "d"] {
        let _ = succeed(&mut place.dcpictl(&["epoch", "--label", label]));
        names.extend(epochs(&place.db()).last().cloned());
    }
    // It removes them after the answer.
    let patience = Instant::now() + Duration::from_secs(10);
    while epochs(&place.db()).len() > 2 {
        assert!(Instant::now() < patience, "{:?}\n{}", epochs(&place.db()), daemon.log());
        std::thread::sleep(Duration::from_millis(20)); // the pace of the questions
    }
    assert_eq!(
        epochs(&place.db()),
        names.split_off(2),
        "the newest two, and the open one is among them"
    );
    assert!(daemon.log().contains("removed an old epoch"), "{}", daemon.log());
    assert!(daemon.terminate().success());
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_copy_an_archive_and_a_merged_epoch_say_what_the_database_says() {
    require_root();
    let place = Place::default();
    let workload = Workload::build(place.path(), "two_functions19", &[]);
    let daemon = place.start();
    let _ = workload.run(1);
    let _ = succeed(&mut place.dcpictl(&["epoch"]));
    let _ = workload.run(1);
    daemon.flush();
    let at = |name: &str| place.path().join(name);
    // Into another directory while the daemon writes, twice: the second time there is little to do.
    let to = at("copy");
    for words in ["2 epochs copied", "already there"] {
        let said = succeed(dcpi(&place.db(), "copy", &[]).arg("--to").arg(&to));
        assert!(said.contains(words) || said.contains("brought up to date"), "{said}");
    }
    assert!(daemon.terminate().success());
    let said = succeed(dcpi(&place.db(), "copy", &[]).arg("--to").arg(&to));
    eprintln!("{said}");
    let archive = at("archive.tar.gz");
    eprintln!(
        "{}",
        succeed(dcpi(&place.db(), "tar", &["--epoch", "all"]).arg("--output").arg(&archive))
    );
    let _ = succeed(Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(place.path()));
    let merged = at("merged");
    eprintln!(
        "{}",
        succeed(dcpi(&place.db(), "merge", &["--new-label", "both"]).arg("--to").arg(&merged))
    );
    let procedures = |db: &Path| {
        let report = prof(db, &["--idle", "--epoch", "all"]);
        assert_eq!(report.serious(), [] as [&str; 0], "{}", db.display());
        let of_image =
            report.of_image("two_functions19").map(|row| row.samples()).collect::<Vec<_>>();
        (report.total(), of_image)
    };
    let original = procedures(&place.db());
    assert!(!original.1.is_empty(), "{original:?}");
    // The workload is gone: its procedures come from the code that was kept, wherever the copy is.
    std::fs::remove_file(workload.program()).unwrap();
    let totals = |db: &Path| prof(db, &["--idle", "--epoch", "all"]).total();
    for db in [&to, &at("dcpi"), &merged] {
        assert_eq!(totals(db), original.0, "{}", db.display());
        assert_eq!(damage(db), [] as [String; 0], "{}", db.display());
        let report = prof(db, &["--idle", "--epoch", "all", "two_functions19"]);
        let found: Vec<u64> = report.of_image("two_functions19").map(|row| row.samples()).collect();
        assert_eq!(found, original.1, "{}", db.display());
    }
    assert_eq!(epochs(&merged).len(), 1);
}
