//! Locks, epochs, refusals: what a daemon relies on.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::simulated::SimulatedDisk;
use image::ImageOffset;
use model::{Ledger, Ledgers, Profile};
use profiledb::{
    Database, DbError, Delta, EpochId, PeriodChange, ProfileKey, Retention, SCOPES_MAX, Scope,
    Writer, check,
};

use crate::fixture::{
    EVENTS, HOST, NOW, PERIOD, delta, full_delta, image, key, read, read_database, read_only_epoch,
    record, root, small_database, start, symbol, writer,
};

#[test]
fn a_second_writer_is_locked_out_and_told_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("db");
    let first = Writer::open(&root, HOST).unwrap();
    let before: Vec<_> = fs::read_dir(&root).unwrap().map(|e| e.unwrap().path()).collect();
    let error = Writer::open(&root, HOST).unwrap_err();
    let DbError::Locked { path } = &error else {
        panic!("{error}");
    };
    let lock = root.join("hosts").join(HOST).join("lock");
    assert_eq!(*path, lock);
    assert!(error.to_string().contains(lock.to_str().unwrap()));
    let after: Vec<_> = fs::read_dir(&root).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(before, after);
    // Readers need no lock.
    assert!(Database::open(&root).is_ok());
    drop(first);
    assert!(Writer::open(&root, HOST).is_ok());
}

/// A lock file that somebody removed kept nobody out: the next daemon locked another file of that
/// name, and both wrote.
#[test]
fn what_was_removed_under_a_writer_is_not_written_to_before_it_is_opened_anew() {
    for what in ["", "hosts", "hosts/HOST/EPOCH", "hosts/HOST/lock", "format"] {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("db");
        let mut writer = Writer::open(&root, HOST).unwrap();
        let epoch = writer.begin(start(NOW), false).unwrap();
        writer.merge(&full_delta(NOW, 1)).unwrap();
        let gone = root.join(what.replace("HOST", HOST).replace("EPOCH", epoch.as_str()));
        if gone.is_dir() {
            fs::remove_dir_all(&gone).unwrap()
        } else {
            fs::remove_file(&gone).unwrap()
        }
        let listed = || walk(dir.path());
        let before = listed();
        for result in [
            writer.merge(&full_delta(NOW, 1)).map(drop),
            writer.begin(start(NOW), true).map(drop),
            writer.seal(NOW),
        ] {
            assert!(matches!(result, Err(DbError::Removed { .. })), "{what}: {result:?}");
        }
        assert_eq!(writer.fold(u64::MAX, NOW).unwrap(), Default::default());
        assert_eq!(listed(), before, "{what}: nothing is written");
        writer.reopen().unwrap();
        writer.begin(start(NOW), false).unwrap();
        writer.merge(&full_delta(NOW, 1)).unwrap();
        assert!(
            matches!(Writer::open(&root, HOST), Err(DbError::Locked { .. })),
            "{what}: the lock is held again"
        );
        assert!(check(&root).unwrap().is_empty(), "{what}");
    }
}

/// The paths below a directory.
fn walk(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(walk(&path));
        }
        found.push(path);
    }
    found.sort();
    found
}

#[test]
fn a_writer_whose_place_was_taken_writes_nothing_until_the_other_has_gone() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("db");
    let mut writer = Writer::open(&root, HOST).unwrap();
    writer.begin(start(NOW), false).unwrap();
    fs::remove_dir_all(&root).unwrap();
    let other = Writer::open(&root, HOST).unwrap();
    let before = walk(&root);
    for _ in 0..2 {
        assert!(matches!(writer.merge(&full_delta(NOW, 1)), Err(DbError::Removed { .. })));
        assert!(matches!(writer.reopen(), Err(DbError::Locked { .. })));
    }
    assert_eq!(walk(&root), before);
    drop(other);
    writer.reopen().unwrap();
    writer.begin(start(NOW), false).unwrap();
    writer.merge(&full_delta(NOW, 1)).unwrap();
}

#[test]
fn a_directory_of_something_else_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    fs::write(root.join("thesis.tex"), "x").unwrap();
    let error = Writer::open(root, HOST).unwrap_err();
    assert!(matches!(error, DbError::NotADatabase { .. }), "{error}");
    assert_eq!(fs::read_dir(root).unwrap().count(), 1);
    for path in [root, &root.join("missing")] {
        let error = Database::open(path).unwrap_err();
        assert!(matches!(error, DbError::NotADatabase { .. }), "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()));
    }
}

#[test]
fn a_new_file_system_is_an_empty_directory() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("lost+found")).unwrap();
    assert!(Writer::open(dir.path(), HOST).is_ok());
}

#[test]
fn a_file_where_the_directory_should_be_is_an_error_with_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("db");
    fs::write(&root, "x").unwrap();
    let error = Writer::open(&root, HOST).unwrap_err().to_string();
    assert!(error.contains(root.to_str().unwrap()), "{error}");
}

#[test]
fn everything_is_there_on_a_real_disk() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("deep/db");
    let mut writer = Writer::open(&root, HOST).unwrap();
    let epoch = writer.begin(start(NOW), false).unwrap();
    assert_eq!(epoch.as_str(), "20251121-040233");
    let report = writer.merge(&full_delta(NOW + 10, 5)).unwrap();
    assert_eq!((report.files_written, report.samples_widened), (1, 0));
    writer.merge(&full_delta(NOW + 20, 9)).unwrap();
    let real = read_database(&Database::open(&root).unwrap()).unwrap();
    assert_eq!(real, read(&small_database()).unwrap());
    let state = real.values().next().unwrap();
    assert_eq!(state.samples(&key(0, EVENTS[0])).get(ImageOffset(0x10)), 14);
    assert_eq!(
        state.symbols[&image(0)],
        [symbol(5, 6, "jit"), symbol(9, 10, "jit"), symbol(0x10, 0x20, "main")]
    );
    let met = &state.images[&image(1)];
    assert_eq!((met.first_seen_unix_s, met.last_seen_unix_s), (NOW + 10, NOW + 20));
    assert_eq!(state.meta.merges, 2);
    assert!(state.meta.ledgers.iter().all(|(_, _, ledger)| ledger.closes()));
    assert_eq!(fs::read_to_string(root.join("format")).unwrap(), "dcpi database 2\n");
    let names = |path: &Path| {
        let mut names: Vec<String> = fs::read_dir(path)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(&root), ["format", "hosts"]);
    let files = ["0-0.segment", "1-1.segment", "2-2.segment"];
    assert_eq!(names(&root.join("hosts").join(HOST).join(epoch.as_str())), files);
    assert!(
        report.bytes_written
            < Database::open(&root).unwrap().epoch(HOST, &epoch).unwrap().size_bytes().unwrap()
    );
}

#[test]
fn the_next_writer_continues_the_epoch_only_when_samples_can_be_added() {
    let again = |change: fn(&mut profiledb::EpochStart), new: bool| {
        let disk = small_database();
        let mut start = start(NOW + 100);
        change(&mut start);
        let mut writer = writer(&disk);
        writer.begin(start, new).unwrap();
        writer.merge(&full_delta(NOW + 110, 1)).unwrap();
        let all = read(&disk).unwrap();
        let first = all.values().next().unwrap().meta.clone();
        (all.len(), first)
    };
    let (epochs, first) = again(|_| {}, false);
    assert_eq!((epochs, first.merges, first.ended_unix_s), (1, 3, None));
    let (_, first) = again(|start| start.writer_version = "2.0.0".to_owned(), false);
    assert_eq!((first.merges, first.writer_version.as_str()), (3, "2.0.0"));

    // A change of rate, by the budget or by another setting, ended epochs, and their label with
    // them.
    let (epochs, _) = again(|start| start.events[0].period += 1, false);
    assert_eq!(epochs, 1);

    type Change = fn(&mut profiledb::EpochStart);
    let changes: [(Change, bool); 5] = [
        (|_| {}, true),
        (|start| start.machine.boot_id = "boot-2".to_owned(), false),
        (|start| start.machine.kernel_build_id = Some("ab".to_owned()), false),
        (|start| start.events[0].unit.push('x'), false),
        (|start| start.label = Some("after".to_owned()), false),
    ];
    for (change, new) in changes {
        let (epochs, first) = again(change, new);
        assert_eq!(epochs, 2);
        // Sealed as of its last merge: nobody sampled since.
        assert_eq!(first.ended_unix_s, Some(NOW + 20));
        assert_eq!(first.machine.boot_id, "boot-1");
    }
}

#[test]
fn a_sealed_epoch_never_changes() {
    let disk = small_database();
    let mut writer = writer(&disk);
    let first = writer.begin(start(NOW + 25), false).unwrap();
    writer.seal(NOW + 30).unwrap();
    assert_eq!(writer.epoch(), None);
    let sealed = read_only_epoch(&disk);
    assert_eq!(sealed.meta.ended_unix_s, Some(NOW + 30));
    for error in [writer.merge(&full_delta(NOW, 1)).unwrap_err(), writer.seal(NOW).unwrap_err()] {
        assert!(matches!(error, DbError::NoOpenEpoch { .. }), "{error}");
    }
    let second = writer.begin(start(NOW + 40), false).unwrap();
    assert!(second > first);
    writer.merge(&full_delta(NOW + 50, 1)).unwrap();
    let all = read(&disk).unwrap();
    assert_eq!(all[&(HOST.to_owned(), first)], sealed);
    assert_eq!(all.len(), 2);
}

#[test]
fn the_end_is_never_before_the_last_merge() {
    let disk = small_database();
    let mut writer = writer(&disk);
    writer.begin(start(NOW + 25), false).unwrap();
    writer.seal(5).unwrap();
    assert_eq!(read_only_epoch(&disk).meta.ended_unix_s, Some(NOW + 20));
}

#[test]
fn epochs_of_one_second_and_of_a_clock_set_back_stay_in_order() {
    let disk = SimulatedDisk::new();
    let mut writer = writer(&disk);
    let mut names = Vec::new();
    for now in [NOW, NOW, NOW, NOW - 5000, NOW + 60] {
        names.push(writer.next_epoch(start(now)).unwrap().to_string());
    }
    assert_eq!(
        names,
        [
            "20251121-040233",
            "20251121-040234",
            "20251121-040235",
            "20251121-040236",
            "20251121-040333"
        ]
    );
    let all = read(&disk).unwrap();
    let begun: Vec<u64> = all.values().map(|state| state.meta.started_unix_s).collect();
    assert_eq!(begun, [NOW, NOW, NOW, NOW - 5000, NOW + 60]);
    assert_eq!(all.values().filter(|s| s.meta.ended_unix_s.is_none()).count(), 1);
}

#[test]
fn when_names_run_out_nothing_is_overwritten() {
    let disk = SimulatedDisk::new();
    let mut writer = writer(&disk);
    writer.begin(start(u64::MAX), false).unwrap();
    let error = writer.next_epoch(start(u64::MAX)).unwrap_err();
    assert!(matches!(error, DbError::Io { .. }), "{error}");
    assert_eq!(read_only_epoch(&disk).meta.epoch.as_str(), "99991231-235959");
}

#[test]
fn a_delta_that_contradicts_itself_changes_nothing() {
    let disk = small_database();
    let mut writer = writer(&disk);
    writer.begin(start(NOW + 25), false).unwrap();
    let before = disk.files();
    let broken = |change: fn(&mut Delta)| {
        let mut delta = full_delta(NOW + 30, 4);
        change(&mut delta);
        delta
    };
    type Expected = fn(&DbError) -> bool;
    let cases: [(Delta, Expected); 8] = [
        (broken(|d| d.ledgers.entry(EVENTS[0], PERIOD).merged += 1), |e| {
            matches!(e, DbError::Unbalanced { ledger: 11, profiles: 10, .. })
        }),
        (broken(|d| d.ledgers = Ledgers::default()), |e| {
            matches!(e, DbError::Unbalanced { ledger: 0, .. })
        }),
        (broken(|d| drop(d.profiles.pop_first())), |e| matches!(e, DbError::Unbalanced { .. })),
        (delta(NOW, &[(0, "unheard-of", 1, 1)]), |e| matches!(e, DbError::UnknownEvent { .. })),
        (broken(|d| crate::fixture::label_half(d, 0, EVENTS[0], "a/b")), |e| {
            matches!(e, DbError::InvalidName { .. })
        }),
        (broken(|d| crate::fixture::label_half(d, 0, EVENTS[0], "")), |e| {
            matches!(e, DbError::InvalidName { .. })
        }),
        (broken(|d| drop(d.symbols.insert(image(7), vec![symbol(1, 2, "x")]))), |e| {
            matches!(e, DbError::UnknownImage { .. })
        }),
        (broken(|d| drop(d.images.insert(image(7), record(8, NOW)))), |e| {
            matches!(e, DbError::UnknownImage { .. })
        }),
    ];
    for (delta, expected) in cases {
        let error = writer.merge(&delta).unwrap_err();
        assert!(expected(&error), "{error}");
        assert_eq!(disk.files(), before);
    }
    // An image described by an earlier merge needs no second description.
    let mut later = full_delta(NOW + 30, 4);
    later.images.clear();
    writer.merge(&later).unwrap();
}

#[test]
fn what_may_not_be_stored_is_refused_before_anything_is_made() {
    let disk = SimulatedDisk::new();
    let storage = crate::fixture::storage(&disk);
    for host in ["", "..", "a/b", "a\nb"] {
        let error = Writer::open_on(storage.clone(), &root(), host).unwrap_err();
        assert!(matches!(error, DbError::InvalidName { .. }), "{error}");
        assert!(!error.to_string().contains('\n'));
    }
    assert!(disk.files().is_empty());
    let mut writer = writer(&disk);
    let before = disk.files();
    let mut slashed = start(NOW);
    slashed.label = Some("../../etc".to_owned());
    let mut twice = start(NOW);
    twice.events[1] = twice.events[0].clone();
    let mut nameless = start(NOW);
    nameless.events[0].name.clear();
    for start in [slashed, twice, nameless] {
        assert!(writer.begin(start, false).is_err());
    }
    assert_eq!(disk.files(), before);
    let database = Database::open_on(storage, &root()).unwrap();
    assert!(database.epochs("../x").is_err());
    assert!(database.epoch("../x", &EpochId::from_unix_s(NOW)).is_err());
}

/// An epoch that was begun before anybody asked to keep anything apart goes on, and its first files
/// stay what they are.
#[test]
fn an_epoch_without_scopes_takes_some_later() {
    let disk = SimulatedDisk::new();
    let mut writer = writer(&disk);
    writer.begin(start(NOW), false).unwrap();
    writer.merge(&delta(NOW + 10, &[(0, EVENTS[0], 0x10, 5)])).unwrap();
    let mut later = delta(NOW + 20, &[(0, EVENTS[0], 0x10, 9)]);
    crate::fixture::label_half(&mut later, 0, EVENTS[0], "run");
    writer.merge(&later).unwrap();
    drop(writer);
    let mut writer = crate::fixture::writer(&disk);
    writer.begin(start(NOW + 25), false).unwrap();
    crate::fixture::label_half(&mut later, 0, EVENTS[0], "another");
    writer.merge(&later).unwrap();
    let state = read_only_epoch(&disk);
    let total = |label| state.profiles[&crate::fixture::scoped(0, EVENTS[0], label)].total();
    assert_eq!((total(None), total(Some("run")), total(Some("another"))), (5 + 4 + 2, 5 + 5, 2));
    let labels: Vec<_> = state.scopes.iter().map(|scope| scope.label.as_deref().unwrap()).collect();
    assert_eq!(labels, ["another", "run"]);
}

/// Every process of a storm was kept apart. The epoch has room for a limited number, and the rest
/// is counted together.
#[test]
fn an_epoch_has_room_for_so_many_scopes_and_no_sample_is_lost_beyond() {
    let disk = SimulatedDisk::new();
    let mut writer = writer(&disk);
    writer.begin(start(NOW), false).unwrap();
    let mut full = delta(NOW + 10, &[(0, EVENTS[0], 0x10, 1)]);
    full.profiles.clear();
    let of = |unit: usize| {
        let scope = Scope { unit: Some(format!("u{unit}")), ..Scope::default() };
        ProfileKey { scope, ..key(0, EVENTS[0]) }
    };
    for unit in 0..SCOPES_MAX + 3 {
        full.profiles.insert(of(unit), Profile::from_counts([(ImageOffset(0x10), 2)]).into());
    }
    let all = 2 * (SCOPES_MAX as u64 + 3);
    let ledger = full.ledgers.entry(EVENTS[0], PERIOD);
    (ledger.taken, ledger.merged) = (all, all);
    assert_eq!(writer.merge(&full).unwrap().samples_widened, 6);
    let state = read_only_epoch(&disk);
    assert_eq!(state.scopes.len(), SCOPES_MAX);
    assert_eq!(state.profiles[&key(0, EVENTS[0])].total(), 6);
}

#[test]
fn a_merge_without_samples_still_keeps_the_ledger() {
    let disk = small_database();
    let mut writer = writer(&disk);
    writer.begin(start(NOW + 25), false).unwrap();
    let mut lost = delta(NOW + 30, &[]);
    let ledger =
        Ledger { taken: 4, lost: [("ring full".to_owned(), 4)].into(), ..Ledger::default() };
    *lost.ledgers.entry(EVENTS[0], PERIOD) = ledger;
    assert_eq!(writer.merge(&lost).unwrap().files_written, 1);
    let state = read_only_epoch(&disk);
    assert_eq!(state.meta.ledgers.sum(EVENTS[0]).lost["ring full"], 4);
}

#[test]
fn a_reader_can_tell_that_a_merge_happened_and_misses_no_removed_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(dir.path(), HOST).unwrap();
    let id = writer.begin(start(NOW), false).unwrap();
    writer.merge(&full_delta(NOW + 10, 5)).unwrap();
    let database = Database::open(dir.path()).unwrap();
    let epoch = database.epoch(HOST, &id).unwrap();
    assert!(epoch.is_current().unwrap());
    writer.merge(&full_delta(NOW + 20, 5)).unwrap();
    assert!(!epoch.is_current().unwrap());
    // It is the state that it was.
    epoch.check_ledgers().unwrap();
    let keys = epoch.profiles().unwrap();
    assert_eq!(epoch.profile(&keys[0]).unwrap().total(), 2);

    // The epoch goes while it is read.
    fs::remove_dir_all(dir.path().join("hosts").join(HOST).join(id.as_str())).unwrap();
    assert_eq!(epoch.profile(&keys[0]).unwrap().total(), 2);
    assert!(!epoch.is_current().unwrap());
    assert!(database.epochs(HOST).unwrap().is_empty());
    let error = database.epoch(HOST, &id).unwrap_err();
    assert!(matches!(error, DbError::NoSuchEpoch { .. }), "{error}");
    assert!(database.epochs("nobody").unwrap().is_empty());
}

#[test]
fn hosts_write_to_one_database_at_the_same_time() {
    let disk = small_database();
    let storage = crate::fixture::storage(&disk);
    let mut mine = writer(&disk);
    mine.begin(start(NOW + 25), false).unwrap();
    let mut other = Writer::open_on(storage.clone(), &root(), "alpha").unwrap();
    other.begin(start(NOW), false).unwrap();
    other.merge(&full_delta(NOW + 1, 1)).unwrap();
    mine.merge(&full_delta(NOW + 30, 1)).unwrap();
    let database = Database::open_on(storage, &root()).unwrap();
    assert_eq!(database.hosts().unwrap(), ["alpha", HOST]);
    let all = read(&disk).unwrap();
    assert_eq!(all.len(), 2);
    assert_eq!(all.values().next_back().unwrap().meta.merges, 3);
}

/// Names come with each merge and are written once; so are images that were not met again.
#[test]
fn a_merge_writes_what_is_new() {
    let disk = SimulatedDisk::new();
    let mut writer = writer(&disk);
    writer.begin(start(NOW), false).unwrap();
    let mut named = delta(NOW + 10, &[(0, EVENTS[0], 0x10, 5)]);
    let names =
        (0..500).map(|n| symbol(n * 16, n * 16 + 9, &format!("procedure {n} of {}", n * 7919)));
    named.symbols.insert(image(0), names.collect());
    let first = writer.merge(&named).unwrap().bytes_written;
    let second = writer.merge(&named).unwrap().bytes_written;
    assert!(second + 2000 < first, "{first} {second}");
    named.symbols.get_mut(&image(0)).unwrap()[3].name = "another".to_owned();
    let third = writer.merge(&named).unwrap().bytes_written;
    assert!(second < third && third < second + 100, "{second} {third}");
    drop(writer);
    let mut writer = crate::fixture::writer(&disk);
    writer.begin(start(NOW + 20), false).unwrap();
    let fourth = writer.merge(&named).unwrap().bytes_written;
    assert!(fourth.abs_diff(second) < 20, "{second} {fourth}");
    let state = read_only_epoch(&disk);
    assert_eq!(
        (state.symbols[&image(0)].len(), state.symbols[&image(0)][3].name.as_str()),
        (500, "another")
    );
}

#[test]
fn facts_the_bill_and_changes_of_a_period_are_kept() {
    let disk = small_database();
    let mut writer = writer(&disk);
    writer.begin(start(NOW + 25), false).unwrap();
    let change = |at_unix_s, period| PeriodChange { at_unix_s, period, rate_per_s: None };
    let mut told = delta(NOW + 30, &[]);
    told.cost = Some(serde_json::json!({"share": 0.007}));
    told.facts.state_value("clock", "tsc".into());
    told.period_changes.insert(EVENTS[0].to_owned(), vec![change(NOW + 28, 70_000)]);
    writer.merge(&told).unwrap();
    told.cost = None;
    told.period_changes.insert(EVENTS[0].to_owned(), vec![change(NOW + 38, 80_000)]);
    writer.merge(&told).unwrap();
    let meta = read_only_epoch(&disk).meta;
    assert_eq!(
        (meta.facts.value("skid"), meta.facts.value("clock")),
        (Some(&9.into()), Some(&"tsc".into()))
    );
    assert_eq!(meta.cost, Some(serde_json::json!({"share": 0.007})));
    assert_eq!(
        meta.period_changes[EVENTS[0]],
        [change(NOW + 28, 70_000), change(NOW + 38, 80_000)]
    );
    told.facts.state_value("much", "x".repeat(70_000).into());
    let error = writer.merge(&told).unwrap_err();
    assert!(matches!(error, DbError::FactsTooLarge { limit: 65_536, .. }), "{error}");
    let unheard = [("unheard-of".to_owned(), vec![])].into();
    let error = writer.merge(&Delta { period_changes: unheard, ..Delta::default() }).unwrap_err();
    assert!(matches!(error, DbError::UnknownEvent { .. }), "{error}");
}

/// 16 readers, each reading all there is again and again, while merges and folds go on as fast as
/// they can, and epochs begin and go.
#[test]
fn readers_beside_a_storm_of_merges_and_folds_see_only_whole_states() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(dir.path(), HOST).unwrap();
    writer.begin(start(NOW), false).unwrap();
    let done = AtomicBool::new(false);
    let merges = 160;
    let readings: u64 = std::thread::scope(|scope| {
        let reader = |_| {
            scope.spawn(|| {
                let database = Database::open(dir.path()).unwrap();
                let (mut readings, mut newest) = (0, None);
                while !done.load(Ordering::Relaxed) {
                    for id in database.epochs(HOST).unwrap() {
                        let epoch = match database.epoch(HOST, &id) {
                            Ok(epoch) => epoch,
                            // It went since it was listed.
                            Err(DbError::NoSuchEpoch { .. }) => continue,
                            Err(error) => panic!("{error}"),
                        };
                        assert!(epoch.damage().is_empty(), "{:?}", epoch.damage());
                        epoch.check_ledgers().unwrap();
                        let state = Some((id, epoch.meta().merges));
                        assert!(
                            state >= newest
                                || state.as_ref().map(|s| &s.0) < newest.as_ref().map(|s| &s.0),
                            "back in time"
                        );
                        newest = newest.max(state);
                        epoch.symbols(&image(0)).unwrap();
                        assert!(epoch.meta().merges == 0 || epoch.images().unwrap().len() == 3);
                        readings += 1;
                    }
                }
                readings
            })
        };
        let readers: Vec<_> = (0..16).map(reader).collect();
        for round in 0..merges {
            writer.merge(&full_delta(NOW + round, 3)).unwrap();
            writer.fold(u64::MAX, NOW + round).unwrap();
            if round % 40 == 39 {
                writer.next_epoch(start(NOW + round)).unwrap();
                let retention = Retention { max_age_s: None, keep_newest: 2, max_bytes: Some(0) };
                writer.collect_garbage(&retention, NOW + round).unwrap();
            }
        }
        done.store(true, Ordering::Relaxed);
        readers.into_iter().map(|reader| reader.join().unwrap()).sum()
    });
    assert!(readings >= 100, "{readings}");
    assert_eq!(Database::open(dir.path()).unwrap().epochs(HOST).unwrap().len(), 2);
    assert!(profiledb::check(dir.path()).unwrap().is_empty());
}
