//! Every operation of every change fails once, or is the last one of the process.

use profiledb::storage::SimulatedDisk;
use profiledb::{DbError, Delta, Writer};

use crate::fixture::{
    self, EVENTS, EpochState, HOST, NOW, full_delta, leftovers, read, read_only_epoch, root, small_database, start,
    storage, writer,
};

/// errno(3).
const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// Changes every sort of file, and makes a profile that was not there.
fn third() -> Delta {
    let mut delta = full_delta(NOW + 30, 70);
    let more = fixture::delta(NOW + 30, &[(2, EVENTS[1], 0x99, 4)]);
    delta.profiles.extend(more.profiles);
    delta.images.extend(more.images);
    let ledger = delta.ledgers.get_mut(EVENTS[1]).unwrap();
    ledger.add(&more.ledgers[EVENTS[1]]);
    // A scope that was not there, so that the list changes too.
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
    // 6 profiles, scopes, images, symbols, meta: each written, forced out, renamed at least.
    assert!(operations > 30, "{operations}");
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
        }
    }
    assert!(kept > 10 && refused > 20, "{kept} {refused}");
}

#[test]
fn a_writer_killed_at_any_operation_of_a_merge_leaves_the_old_state_or_the_new() {
    let (before, after, operations) = before_and_after();
    let mut seen_new = 0;
    for k in 0..operations {
        let disk = small_database();
        let mut writer = begun(&disk);
        disk.stop_after(k);
        let outcome = writer.merge(&third());
        drop(writer);
        disk.heal();
        let expected = if is_kept(&outcome) { &after } else { &before };
        seen_new += u32::from(is_kept(&outcome));
        assert_eq!(read_only_epoch(&disk), *expected, "killed before {k}");

        let mut writer = begun(&disk);
        assert!(leftovers(&disk).is_empty(), "killed before {k}");
        assert!(writer.findings().is_empty());
        assert_eq!(read_only_epoch(&disk), *expected, "reopened after {k}");
        writer.merge(&full_delta(NOW + 40, 2)).unwrap();
        assert_eq!(read_only_epoch(&disk).meta.merges, expected.meta.merges + 1);
    }
    assert!(seen_new > 5 && seen_new < operations as u32);
}

#[test]
fn recovery_may_be_killed_as_well() {
    let (before, after, operations) = before_and_after();
    for k in (0..operations).step_by(3) {
        let crashed = small_database();
        let mut writer = begun(&crashed);
        crashed.stop_after(k);
        let kept = is_kept(&writer.merge(&third()));
        drop(writer);
        crashed.heal();
        let expected = if kept { &after } else { &before };
        for r in 0.. {
            let disk = crashed.copy();
            disk.stop_after(r);
            let opened = Writer::open_on(storage(&disk), &root(), HOST).is_ok();
            disk.heal();
            assert_eq!(read_only_epoch(&disk), *expected, "{k} {r}");
            drop(begun(&disk));
            assert_eq!(read_only_epoch(&disk), *expected, "{k} {r}");
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
        for k in 0.. {
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
            if made {
                assert!(k > 10, "{k}");
                break;
            }
        }
    }
}

#[test]
fn an_epoch_whose_change_fails_anywhere_keeps_all_samples() {
    let reference = read_only_epoch(&small_database());
    for stop in [false, true] {
        for k in 0.. {
            let disk = small_database();
            let mut writer = begun(&disk);
            if stop {
                disk.stop_after(k);
            } else {
                disk.fail_after(k, EIO);
            }
            let changed = writer.next_epoch(start(NOW + 50)).is_ok();
            disk.heal();
            let epochs = read(&disk).unwrap();
            let first = epochs.values().next().unwrap();
            assert_eq!(first.profiles, reference.profiles, "{k}");
            assert_eq!(first.meta.ledgers, reference.meta.ledgers, "{k}");
            if changed {
                assert_eq!(epochs.len(), 2);
                break;
            }
            // The same writer, or the next one, can go on.
            if stop {
                drop(writer);
                writer = begun(&disk);
            }
            let epoch = writer.begin(start(NOW + 60), false).unwrap();
            writer.merge(&full_delta(NOW + 70, 1)).unwrap();
            let epochs = read(&disk).unwrap();
            let (newest, state) = epochs.iter().next_back().unwrap();
            assert_eq!(newest.1, epoch);
            assert!(state.meta.ended_unix_s.is_none());
            let open = epochs.values().filter(|e| e.meta.ended_unix_s.is_none());
            assert_eq!(open.count(), 1, "{k}");
            assert!(leftovers(&disk).is_empty() || !stop, "{k}");
        }
    }
}

#[test]
fn a_writer_that_cannot_finish_says_so_until_it_can() {
    let (_, after, operations) = before_and_after();
    // The last operation removes the commit record.
    let disk = small_database();
    let mut writer = begun(&disk);
    disk.stop_after(operations - 1);
    let outcome = writer.merge(&third());
    assert!(matches!(outcome, Err(DbError::Unfinished { .. })), "{outcome:?}");
    let again = writer.merge(&full_delta(NOW + 40, 2)).unwrap_err();
    assert!(matches!(again, DbError::Io { .. }), "{again}");
    disk.heal();
    assert_eq!(read_only_epoch(&disk), after);
    writer.merge(&full_delta(NOW + 40, 2)).unwrap();
    assert_eq!(read_only_epoch(&disk).meta.merges, after.meta.merges + 1);
}

/// A reader that looked for the commit record just before it came takes files under their final
/// names only. What it then has of two merges it can tell only when the description is last.
#[test]
fn whoever_sees_the_new_description_sees_all_new_files() {
    let (_, after, operations) = before_and_after();
    let mut mixed = 0;
    for k in 0..operations {
        let disk = small_database();
        let mut writer = begun(&disk);
        disk.stop_after(k);
        let _ = writer.merge(&third());
        let seen = SimulatedDisk::new();
        for (path, bytes) in disk.files() {
            if !path.ends_with("commit") {
                seen.put(&path, bytes);
            }
        }
        let database = profiledb::Database::open_on(storage(&seen), &root()).unwrap();
        let id = &after.meta.epoch;
        let epoch = database.epoch(HOST, id).unwrap();
        if epoch.meta().merges == after.meta.merges {
            assert_eq!(read_only_epoch(&seen), after, "killed before {k}");
        } else {
            mixed += u32::from(epoch.check_ledgers().is_err());
        }
    }
    assert!(mixed > 0, "the case this is about did not happen");
}
