//! Every operation of every change fails once, or is the last one of the process, or of the
//! machine.

use std::collections::BTreeMap;

use crate::simulated::SimulatedDisk;
use profiledb::{DbError, Delta, EpochId, Retention, Writer};

use crate::fixture::{
    self, EVENTS, EpochState, HOST, NOW, PERIOD, fold_all, full_delta, leftovers, problems, read,
    read_only_epoch, root, segments, small_database, start, storage, writer,
};

/// errno(3).
const EIO: i32 = 5;
const ENOSPC: i32 = 28;

type All = BTreeMap<(String, EpochId), EpochState>;

/// Changes every sort of section, and makes a profile that was not there.
fn third() -> Delta {
    let mut delta = full_delta(NOW + 30, 70);
    let more = fixture::delta(NOW + 30, &[(2, EVENTS[1], 0x99, 4)]);
    delta.profiles.extend(more.profiles);
    delta.images.extend(more.images);
    let ledger = delta.ledgers.entry(EVENTS[1], PERIOD);
    ledger.add(&more.ledgers.sum(EVENTS[1]));
    // A scope that was not there.
    fixture::label_half(&mut delta, 2, EVENTS[1], "third");
    delta
}

fn begun(disk: &SimulatedDisk) -> Writer {
    let mut writer = writer(disk);
    writer.begin(start(NOW + 25), false).unwrap();
    writer
}

/// States before and after the third merge, and its number of operations.
fn before_and_after() -> (EpochState, EpochState, u64) {
    let disk = small_database();
    let mut writer = begun(&disk);
    let before = read_only_epoch(&disk);
    let operations = disk.operations();
    writer.merge(&third()).unwrap();
    let operations = disk.operations() - operations;
    let after = read_only_epoch(&disk);
    assert_ne!(before, after);
    // However much the epoch has: two looks whether it is still there, bytes, forced out, name,
    // name forced out.
    assert_eq!(operations, 6);
    (before, after, operations)
}

/// Whether a merge's outcome says that it is in the database.
fn is_kept(outcome: &Result<profiledb::MergeReport, DbError>) -> bool {
    matches!(outcome, Ok(_) | Err(DbError::Unfinished { .. }))
}

#[test]
fn a_merge_that_fails_anywhere_is_there_whole_or_not_at_all_and_the_writer_goes_on() {
    let (before, after, operations) = before_and_after();
    let fourth = {
        let disk = small_database();
        let mut writer = begun(&disk);
        writer.merge(&third()).unwrap();
        writer.merge(&full_delta(NOW + 40, 2)).unwrap();
        read_only_epoch(&disk)
    };
    let (mut kept, mut refused) = (0, 0);
    for errno in [EIO, ENOSPC] {
        for k in 0..operations {
            let disk = small_database();
            let mut writer = begun(&disk);
            disk.fail_after(k, errno);
            let outcome = writer.merge(&third());
            disk.heal();
            if is_kept(&outcome) {
                kept += 1;
                assert!(outcome.is_err(), "operation {k} failed unnoticed");
                assert_eq!(read_only_epoch(&disk), after, "operation {k}");
            } else {
                refused += 1;
                assert_eq!(read_only_epoch(&disk), before, "operation {k}");
                assert_eq!(leftovers(&disk), Vec::<std::path::PathBuf>::new());
                writer.merge(&third()).unwrap();
                assert_eq!(read_only_epoch(&disk), after, "again after operation {k}");
            }
            writer.merge(&full_delta(NOW + 40, 2)).unwrap();
            assert_eq!(read_only_epoch(&disk), fourth, "after operation {k}");
            assert!(leftovers(&disk).is_empty());
            assert!(problems(&disk).is_empty());
        }
    }
    assert!(kept == 2 && refused == 10, "{kept} {refused}");
}

/// Changes that were acknowledged, and the state each left: what a power failure may leave is the
/// last of them or any later one.
struct History {
    acknowledged: usize,
    states: Vec<All>,
}

/// What the random choices after a power failure are: nothing that was not forced out, all of it,
/// and eight mixtures.
fn choices() -> Vec<Box<dyn Fn(u64) -> u64>> {
    let mut choices: Vec<Box<dyn Fn(u64) -> u64>> =
        vec![Box::new(|_| 0), Box::new(|_| 1), Box::new(|_| 2)];
    for seed in 1..9_u64 {
        choices.push(Box::new(move |n| {
            let mixed = (n ^ (seed << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40
        }));
    }
    choices
}

/// Does some changes one after the other on a disk that stops after `k` operations; gives what was
/// acknowledged and what states there were.
fn run(disk: &SimulatedDisk, changes: &[(&str, Change)], reference: &[All]) -> History {
    let mut done = 0;
    let mut opened = Writer::open_on(storage(disk), &root(), HOST).ok();
    for (_, change) in changes {
        let Some(writer) = &mut opened else { break };
        if !change(writer) {
            break;
        }
        done += 1;
    }
    History { acknowledged: done, states: reference.to_vec() }
}

/// A change; false when it failed.
type Change = fn(&mut Writer) -> bool;

fn changes() -> Vec<(&'static str, Change)> {
    fn merge(writer: &mut Writer, now: u64) -> bool {
        writer.merge(&full_delta(now, now - NOW)).is_ok()
    }
    vec![
        ("begin", |writer| writer.begin(start(NOW), false).is_ok()),
        ("merge", |writer| merge(writer, NOW + 10)),
        ("merge", |writer| merge(writer, NOW + 20)),
        ("merge", |writer| writer.merge(&third()).is_ok()),
        ("fold a little", |writer| writer.fold(1, NOW).is_ok()),
        ("merge beside a fold", |writer| merge(writer, NOW + 40)),
        ("fold", |writer| {
            loop {
                match writer.fold(50, NOW) {
                    Ok(folded) if folded.more => {}
                    outcome => return outcome.is_ok(),
                }
            }
        }),
        ("merge", |writer| merge(writer, NOW + 50)),
        ("next epoch", |writer| writer.next_epoch(start(NOW + 60)).is_ok()),
        ("merge", |writer| merge(writer, NOW + 70)),
        ("next epoch", |writer| writer.next_epoch(start(NOW + 80)).is_ok()),
        ("garbage", |writer| {
            let retention = Retention { max_age_s: None, keep_newest: 1, max_bytes: Some(0) };
            writer.collect_garbage(&retention, NOW + 90).is_ok()
        }),
        ("merge", |writer| merge(writer, NOW + 90)),
    ]
}

/// The state after each change when nothing fails; a reading that is not an epoch yet is empty.
fn reference() -> Vec<All> {
    let disk = SimulatedDisk::new();
    let mut states = Vec::new();
    let mut writer = writer(&disk);
    states.push(read(&disk).unwrap());
    for (name, change) in changes() {
        assert!(change(&mut writer), "{name}");
        states.push(read(&disk).unwrap());
        assert!(problems(&disk).is_empty(), "{name}: {:?}", problems(&disk));
    }
    states
}

/// What can be read is one of the states from the last acknowledged one on; between "next epoch"
/// and its parts there are two that are sealed and not yet followed, so only epochs that were there
/// are compared.
fn must_be_whole(found: &Result<All, DbError>, history: &History, what: &str) {
    let all = match found {
        Ok(all) => all,
        Err(DbError::NotADatabase { .. }) if history.acknowledged == 0 => return,
        Err(error) => panic!("{what}: {error}"),
    };
    let at = history.acknowledged;
    let allowed: Vec<&All> = history.states.iter().skip(at).take(2).collect();
    for (id, state) in all {
        let fits = allowed
            .iter()
            .any(|all| all.get(id).is_some_and(|expected| same_but_end(expected, state)));
        // The start of the next epoch may be there before anybody was reported.
        let is_new = allowed.iter().all(|all| !all.contains_key(id)) && state.profiles.is_empty();
        assert!(fits || is_new, "{what}: {} is of no state that was: {:?}", id.1, state.meta);
    }
    // Nothing that was acknowledged is gone, unless the change underway removes it.
    for id in allowed[0].keys() {
        let may_go = allowed.get(1).is_some_and(|next| !next.contains_key(id));
        assert!(all.contains_key(id) || may_go, "{what}: {} is gone", id.1);
    }
}

/// An epoch may be sealed already while the next is not begun.
fn same_but_end(expected: &EpochState, found: &EpochState) -> bool {
    let counts = |state: &EpochState| {
        (
            state.profiles.clone(),
            state.symbols.clone(),
            state.images.clone(),
            state.meta.ledgers.clone(),
        )
    };
    counts(expected) == counts(found)
}

#[test]
fn every_operation_of_a_history_may_fail_or_be_the_last_of_the_process_or_of_the_machine() {
    let reference = reference();
    let changes = changes();
    let whole = SimulatedDisk::new();
    run(&whole, &changes, &reference);
    let operations = whole.operations();
    assert!(operations > 80, "{operations}");
    let mut failures = 0;
    for k in 0..operations {
        let disk = SimulatedDisk::new();
        disk.stop_after(k);
        let history = run(&disk, &changes, &reference);
        let what = format!("after {k} operations, {} changes", history.acknowledged);
        disk.heal();
        must_be_whole(&read(&disk), &history, &format!("killed {what}"));
        let cut: Vec<SimulatedDisk> =
            choices().into_iter().map(|choice| disk.cut_power(choice)).collect();
        for (choice, disk) in cut.into_iter().chain([disk]).enumerate() {
            failures += 1;
            let what = format!("without power {what}, choice {choice}");
            must_be_whole(&read(&disk), &history, &what);
            // The next writer mends all and goes on.
            let mut writer = begun(&disk);
            assert!(writer.findings().is_empty(), "{what}: {:?}", writer.findings());
            assert!(leftovers(&disk).is_empty(), "{what}");
            must_be_whole(&read(&disk), &history, &what);
            let before = writer.meta().unwrap().merges;
            writer.merge(&full_delta(NOW + 200, 2)).unwrap();
            assert_eq!(writer.meta().unwrap().merges, before + 1, "{what}");
            assert!(problems(&disk).is_empty(), "{what}: {:?}", problems(&disk));
        }
    }
    assert!(failures > 800, "{failures}");
}

/// A disk that fails once, at any operation, and then works: the same writer goes on and all that
/// it acknowledged is there.
#[test]
fn a_failure_poisons_nothing() {
    let operations = {
        let disk = SimulatedDisk::new();
        run(&disk, &changes(), &[]);
        disk.operations()
    };
    for errno in [EIO, ENOSPC] {
        for k in 0..operations {
            let disk = SimulatedDisk::new();
            disk.fail_after(k, errno);
            let Ok(mut writer) = Writer::open_on(storage(&disk), &root(), HOST) else { continue };
            let mut merged = 0;
            for (name, change) in changes() {
                if change(&mut writer) {
                    merged += u64::from(name.starts_with("merge"));
                } else if name.starts_with("merge") && writer.epoch().is_none() {
                    writer.begin(start(NOW + 100), false).unwrap();
                }
                // On a copy: reading is not what fails here.
                assert!(read(&disk.copy()).is_ok(), "operation {k}, {name}");
            }
            disk.heal();
            if writer.epoch().is_none() {
                writer.begin(start(NOW + 100), false).unwrap();
            }
            writer.merge(&full_delta(NOW + 200, 3)).unwrap();
            fold_all(&mut writer);
            assert!(merged >= 4, "operation {k}: {merged} merges");
            let told = problems(&disk);
            assert!(
                told.iter().all(|line| line.contains("was left by")),
                "operation {k}: {told:?}"
            );
            drop(writer);
            drop(begun(&disk));
            assert!(leftovers(&disk).is_empty(), "operation {k}");
        }
    }
}

#[test]
fn recovery_may_be_killed_as_well() {
    let reference = reference();
    let changes = changes();
    let whole = SimulatedDisk::new();
    run(&whole, &changes, &reference);
    for k in (0..whole.operations()).step_by(3) {
        let crashed = SimulatedDisk::new();
        crashed.stop_after(k);
        let history = run(&crashed, &changes, &reference);
        crashed.heal();
        for r in 0.. {
            let disk = crashed.copy();
            disk.stop_after(r);
            let opened = Writer::open_on(storage(&disk), &root(), HOST).is_ok();
            disk.heal();
            must_be_whole(&read(&disk), &history, &format!("{k} {r}"));
            drop(begun(&disk));
            must_be_whole(&read(&disk), &history, &format!("{k} {r}"));
            assert!(leftovers(&disk).is_empty());
            if opened {
                break;
            }
        }
    }
}

#[test]
fn a_database_whose_making_fails_anywhere_is_made_the_next_time() {
    for stop in [false, true] {
        for k in 0..30 {
            let disk = SimulatedDisk::new();
            if stop {
                disk.stop_after(k);
            } else {
                disk.fail_after(k, ENOSPC);
            }
            let made = Writer::open_on(storage(&disk), &root(), HOST)
                .and_then(|mut writer| writer.begin(start(NOW), false))
                .is_ok();
            disk.heal();
            match read(&disk) {
                Ok(epochs) => assert!(epochs.len() <= 1),
                Err(error) => assert!(matches!(error, DbError::NotADatabase { .. }), "{error}"),
            }
            let mut writer = writer(&disk);
            writer.begin(start(NOW + 1), false).unwrap();
            writer.merge(&full_delta(NOW + 2, 1)).unwrap();
            assert_eq!(read_only_epoch(&disk).meta.merges, 1, "{k}");
            assert!(leftovers(&disk).is_empty(), "{k}");
            // Making it is fewer operations than were tried.
            assert!(made || k < 29, "{k}");
        }
    }
}

#[test]
fn a_writer_that_cannot_finish_says_so_until_it_can() {
    let (_, after, operations) = before_and_after();
    // The last operation forces the name out.
    let disk = small_database();
    let mut writer = begun(&disk);
    disk.stop_after(operations - 1);
    let outcome = writer.merge(&third());
    assert!(matches!(outcome, Err(DbError::Unfinished { .. })), "{outcome:?}");
    let again = writer.merge(&full_delta(NOW + 40, 2)).unwrap_err();
    assert!(matches!(again, DbError::Io { .. }), "{again}");
    assert!(
        matches!(writer.fold(1, NOW).unwrap_err(), DbError::Io { .. }),
        "nothing is folded that may not stay"
    );
    disk.heal();
    assert_eq!(read_only_epoch(&disk), after);
    writer.merge(&full_delta(NOW + 40, 2)).unwrap();
    assert_eq!(read_only_epoch(&disk).meta.merges, after.meta.merges + 1);
}

/// A full disk has room for merges and none for folds: the epoch is in more files and reads the
/// same.
#[test]
fn a_seal_without_room_to_fold_is_a_seal() {
    let disk = small_database();
    let before = read_only_epoch(&disk);
    let mut writer = begun(&disk);
    // The six operations of the seal itself.
    let operations = disk.operations();
    writer.seal(NOW + 30).unwrap();
    let all = disk.operations() - operations;
    for k in 6..all {
        let disk = small_database();
        let mut writer = begun(&disk);
        disk.fail_after(k, ENOSPC);
        writer.seal(NOW + 30).unwrap();
        let sealed = read_only_epoch(&disk);
        assert!(
            same_but_end(&before, &sealed) && sealed.meta.ended_unix_s == Some(NOW + 30),
            "{k}"
        );
        fold_all(&mut writer);
        assert_eq!(segments(&disk).len(), 1, "{k}");
        assert_eq!(read_only_epoch(&disk), sealed);
    }
}

/// A fold whose name could not be forced out is there all the same. The next fold must not begin
/// inside it: two that overlap are not the epoch.
#[test]
fn a_fold_that_fails_anywhere_is_finished_or_taken_back_before_the_next() {
    let prepared = || {
        let disk = small_database();
        let mut writer = begun(&disk);
        writer.merge(&full_delta(NOW + 30, 1)).unwrap();
        (disk, writer)
    };
    let (disk, mut writer) = prepared();
    let operations = disk.operations();
    fold_all(&mut writer);
    let all = disk.operations() - operations;
    for k in 0..all {
        let (disk, mut writer) = prepared();
        disk.stop_after(k);
        while writer.fold(u64::MAX, NOW).is_ok_and(|folded| folded.more) {}
        disk.heal();
        for merge in 4..8 {
            writer.merge(&full_delta(NOW + 10 * merge, 1)).unwrap();
        }
        let before = read_only_epoch(&disk);
        fold_all(&mut writer);
        assert_eq!(read_only_epoch(&disk), before, "{k}");
        let told = problems(&disk);
        assert!(told.iter().all(|line| line.contains(".tmp was left")), "{k}: {told:?}");
    }
}

/// A failed fsync of a directory was tried again and then trusted: the system says such an error
/// once.
#[test]
fn after_a_failed_sync_of_a_directory_what_was_acknowledged_later_is_safe() {
    let operations = {
        let disk = small_database();
        let mut writer = begun(&disk);
        let before = disk.operations();
        writer.merge(&third()).unwrap();
        fold_all(&mut writer);
        disk.operations() - before
    };
    let mut unfinished = 0;
    for k in 0..operations {
        let disk = small_database();
        let mut writer = begun(&disk);
        disk.fail_after(k, EIO);
        let outcome = writer.merge(&third());
        unfinished += u64::from(matches!(outcome, Err(DbError::Unfinished { .. })));
        let mut merged = 2 + u64::from(is_kept(&outcome));
        let _ = writer.fold(u64::MAX, NOW);
        disk.heal();
        writer.merge(&full_delta(NOW + 40, 2)).unwrap();
        merged += 1;
        fold_all(&mut writer);
        writer.merge(&full_delta(NOW + 50, 2)).unwrap();
        merged += 1;
        // Without power, nothing that was not forced out is left.
        let after = disk.cut_power(|_| 0);
        assert_eq!(read_only_epoch(&after).meta.merges, merged, "operation {k}");
        assert_eq!(read_only_epoch(&after), read_only_epoch(&disk), "operation {k}");
    }
    assert!(unfinished >= 1);
}
