//! No damaged file is believed, and the error names it.

use std::path::{Path, PathBuf};

use crate::simulated::SimulatedDisk;
use model::{Shape, Weight};
use profiledb::{Damage, DbError, Lost, Writer};

use crate::fixture::{
    EVENTS, HOST, NOW, PERIOD, fold_all, full_delta, image, key, problems, read, read_only_epoch,
    root, segments, small_database, start, storage, writer,
};

/// One changed file: whoever looks for damage is told its name, and whoever reads is told it, or
/// gets what was written.
fn must_be_seen(disk: &SimulatedDisk, path: &Path, bytes: Vec<u8>, what: &str) {
    let damaged = disk.copy();
    damaged.put(path, bytes);
    let name = path.display().to_string();
    let told = problems(&damaged);
    assert!(told.iter().any(|line| line.contains(&name)), "{what} of {name}: check tells {told:?}");
    assert!(!told.iter().any(|line| line.contains('\n')), "{told:?}");
    match read(&damaged) {
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains(&name) && !text.contains('\n'), "{what} of {name}: {text}");
        }
        Ok(state) => assert_eq!(state, read(disk).unwrap(), "{what} of {name} went unseen"),
    }
}

fn flip_and_cut(disk: &SimulatedDisk) {
    let mut files = disk.files();
    files.retain(|path, _| !path.ends_with("lock"));
    for (path, bytes) in &files {
        for at in 0..bytes.len() {
            for flip in [0x01, 0x80] {
                let mut damaged = bytes.clone();
                damaged[at] ^= flip;
                must_be_seen(disk, path, damaged, &format!("flip of byte {at}"));
            }
            must_be_seen(disk, path, bytes[..at].to_vec(), &format!("cut at {at}"));
        }
        let mut longer = bytes.clone();
        longer.push(0);
        must_be_seen(disk, path, longer, "a byte more");
    }
}

#[test]
fn every_flip_and_every_cut_of_every_file_is_seen() {
    let disk = small_database();
    assert_eq!(problems(&disk), Vec::<String>::new());
    // The start and two merges.
    assert_eq!(segments(&disk).len(), 3);
    flip_and_cut(&disk);
}

#[test]
fn every_flip_and_every_cut_of_a_folded_epoch_is_seen() {
    let disk = small_database();
    let mut writer = writer(&disk);
    writer.begin(start(NOW + 25), false).unwrap();
    writer.seal(NOW + 30).unwrap();
    fold_all(&mut writer);
    drop(writer);
    assert_eq!(segments(&disk).len(), 1);
    assert_eq!(problems(&disk), Vec::<String>::new());
    flip_and_cut(&disk);
}

#[test]
fn a_file_in_the_place_of_another_is_seen() {
    let disk = small_database();
    let files = disk.files();
    let names = segments(&disk);
    let damaged = disk.copy();
    damaged.put(&names[1], files[&names[2]].clone());
    let database = profiledb::Database::open_on(storage(&damaged), &root()).unwrap();
    let id = read_only_epoch(&disk).meta.epoch;
    let epoch = database.epoch(HOST, &id).unwrap();
    let [DbError::Corrupt { path, damage: Damage::Misplaced, .. }] = epoch.damage() else {
        panic!("{:?}", epoch.damage());
    };
    assert_eq!(*path, names[1]);

    // A whole epoch under another name.
    let renamed = SimulatedDisk::new();
    for (path, bytes) in &files {
        let moved = path.to_str().unwrap().replace("20251121-", "20251122-");
        renamed.put(Path::new(&moved), bytes.clone());
    }
    let error = read(&renamed).unwrap_err();
    assert!(error.to_string().contains("belongs somewhere else"), "{error}");
}

/// Damage in one profile is damage in no other.
#[test]
fn what_is_not_damaged_can_be_read_and_what_is_lost_has_a_name() {
    let disk = small_database();
    let whole = read_only_epoch(&disk);
    let path = segments(&disk).pop().unwrap();
    let bytes = disk.files()[&path].clone();
    let (mut samples, mut stacks, mut merges, mut others) = (0, 0, 0, 0);
    for at in 0..bytes.len() {
        let damaged = disk.copy();
        let mut changed = bytes.clone();
        changed[at] ^= 0x10;
        damaged.put(&path, changed);
        let found = profiledb::check_on(storage(&damaged), &root(), u64::MAX).unwrap();
        assert!(found.iter().all(profiledb::Problem::is_damage));
        let database = profiledb::Database::open_on(storage(&damaged), &root()).unwrap();
        let epoch = database.epoch(HOST, &whole.meta.epoch).unwrap();
        match &found[0].lost {
            Lost::Samples { key, samples: count } => {
                samples += 1;
                assert!(count.unwrap() > 0);
                // The section alone does not tell the period that the description has.
                let mut key = key.clone();
                if key.measure.shape == Shape::Places && key.measure.period().is_none() {
                    key.measure.weight = Weight::Period(PERIOD);
                }
                for other in whole.profiles.keys() {
                    let read = epoch.counts(other);
                    assert_eq!(read.is_err(), *other == key, "byte {at}");
                    assert!(read.is_err() || read.unwrap() == whole.profiles[other], "byte {at}");
                }
            }
            Lost::Stacks { key, stacks: count } => {
                stacks += 1;
                assert_eq!(*count, 4);
                for other in whole.stacks.keys() {
                    let read = epoch.stacks(other);
                    assert_eq!(read.is_err(), other == key, "byte {at}");
                    assert!(read.is_err() || read.unwrap() == whole.stacks[other], "byte {at}");
                }
            }
            Lost::Merges { first: 2, last: 2 } => {
                merges += 1;
                assert_eq!(epoch.damage().len(), 1);
                // What the merge before left is whole.
                assert_eq!(epoch.meta().merges, 1);
                epoch.check_ledgers().unwrap();
            }
            Lost::Description | Lost::Images | Lost::Symbols(_) => others += 1,
            lost => panic!("byte {at}: {lost:?}"),
        }
    }
    assert!(samples > 20 && stacks > 100, "{samples} {stacks}");
    assert!(merges > 100 && others > 100, "{merges} {others}");
}

#[test]
fn a_segment_that_is_gone_is_told_and_all_others_are_read() {
    let disk = small_database();
    let files = disk.files();
    let names = segments(&disk);
    let without = SimulatedDisk::new();
    for (path, bytes) in files.iter().filter(|(path, _)| **path != names[1]) {
        without.put(path, bytes.clone());
    }
    let told = problems(&without);
    let first = told.iter().find(|line| line.contains("1-1.segment")).unwrap();
    assert!(first.ends_with("lost: what merge 1 added"), "{first}");
    let database = profiledb::Database::open_on(storage(&without), &root()).unwrap();
    let epoch = database.epoch(HOST, &database.epochs(HOST).unwrap()[0]).unwrap();
    assert!(matches!(
        epoch.damage(),
        [DbError::Corrupt { damage: Damage::Missing { first: 1, last: 1 }, .. }]
    ));
    assert_eq!(epoch.profile(&key(0, EVENTS[0])).unwrap().total(), 10);
    assert!(matches!(epoch.check_ledgers(), Err(DbError::Unbalanced { .. })));
}

/// Were the segments around it folded into one, nobody would ever be told again.
#[test]
fn a_segment_that_is_gone_is_still_told_after_folding() {
    let disk = small_database();
    let mut sealing = writer(&disk);
    sealing.begin(start(NOW + 25), false).unwrap();
    for merge in 3..8 {
        sealing.merge(&full_delta(NOW + 10 * merge, 1)).unwrap();
    }
    drop(sealing);
    let without = SimulatedDisk::new();
    for (path, bytes) in disk.files().iter().filter(|(path, _)| !path.ends_with("3-3.segment")) {
        without.put(path, bytes.clone());
    }
    let mut folding = writer(&without);
    fold_all(&mut folding);
    drop(folding);
    let left: Vec<String> = segments(&without)
        .iter()
        .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
        .collect();
    assert_eq!(left, ["0-2.segment", "4-7.segment"]);
    let told = problems(&without);
    assert!(told.iter().any(|line| line.ends_with("lost: what merge 3 added")), "{told:?}");
}

#[test]
fn a_writer_adds_nothing_to_a_damaged_epoch_and_begins_another() {
    let disk = small_database();
    for path in segments(&disk) {
        let disk = disk.copy();
        let mut bytes = disk.files()[&path].clone();
        bytes[41] ^= 1;
        disk.put(&path, bytes.clone());
        let mut writer = writer(&disk);
        let epoch = writer.begin(start(NOW + 25), false).unwrap();
        assert_eq!(writer.findings().len(), 1);
        let finding = writer.findings()[0].to_string();
        assert!(finding.contains(path.to_str().unwrap()), "{finding}");
        writer.merge(&full_delta(NOW + 30, 1)).unwrap();
        assert_eq!(disk.files()[&path], bytes);
        let database = profiledb::Database::open_on(storage(&disk), &root()).unwrap();
        assert!(database.epoch(HOST, &epoch).unwrap().damage().is_empty());
    }
}

/// What a fold would have to read is damaged: the good parts must not go with the bad.
#[test]
fn a_fold_of_damaged_segments_changes_nothing_and_merges_go_on() {
    let disk = small_database();
    let mut writer = writer(&disk);
    writer.begin(start(NOW + 25), false).unwrap();
    writer.merge(&full_delta(NOW + 30, 1)).unwrap();
    let path = segments(&disk).pop().unwrap();
    let mut bytes = disk.files()[&path].clone();
    *bytes.last_mut().unwrap() ^= 1;
    disk.put(&path, bytes);
    let before = disk.files();
    // The ten minutes of all merges are over.
    let later = NOW + 1200;
    let error = loop {
        match writer.fold(1, later) {
            Ok(folded) => assert!(folded.more, "the damage went unseen"),
            Err(error) => break error,
        }
    };
    assert!(matches!(&error, DbError::Corrupt { path: named, .. } if *named == path), "{error}");
    assert_eq!(disk.files(), before);
    assert!(!writer.fold(1, later).unwrap().more, "it is told once");
    writer.merge(&full_delta(NOW + 40, 1)).unwrap();
    assert_eq!(segments(&disk).len(), 5);
}

/// A wider segment that cannot be read is not a reason to remove those it stands for.
#[test]
fn recovery_removes_nothing_for_a_damaged_fold() {
    let disk = small_database();
    let before = disk.files();
    let mut folding = writer(&disk);
    folding.begin(start(NOW + 25), false).unwrap();
    folding.seal(NOW + 30).unwrap();
    fold_all(&mut folding);
    drop(folding);
    let folded = segments(&disk);
    let mut bytes = disk.files()[&folded[0]].clone();
    let end = bytes.len() - 1;
    bytes[end] ^= 1;
    disk.put(&folded[0], bytes);
    before.iter().for_each(|(path, bytes)| disk.put(path, bytes.clone()));
    let writer = Writer::open_on(storage(&disk), &root(), HOST).unwrap();
    assert_eq!(writer.findings().len(), 1);
    assert!(before.keys().all(|path| disk.files().contains_key(path)));
}

#[test]
fn files_of_unknown_names_are_skipped_and_named_by_check() {
    let disk = small_database();
    let before = read_only_epoch(&disk);
    let epoch = segments(&disk)[0].parent().unwrap().to_owned();
    let strangers: Vec<PathBuf> = vec![
        epoch.join(format!("{}.cycles.blocks", image(0))),
        epoch.join("README"),
        epoch.join("01-1.segment"),
        root().join("hosts/.cache/20250101-000000/meta"),
        root().join("hosts/node-7/notes.txt"),
        root().join("hosts/node-7/20250101-000000/junk"),
        root().join("thesis.tex"),
    ];
    strangers.iter().for_each(|path| disk.put(path, vec![1, 2]));
    assert_eq!(read_only_epoch(&disk), before);
    let found = profiledb::check_on(storage(&disk), &root(), u64::MAX).unwrap();
    assert!(found.iter().all(|problem| !problem.is_damage()), "{found:?}");
    for path in &strangers {
        let named = |problem: &profiledb::Problem| path.starts_with(&problem.path);
        assert!(found.iter().any(named), "{} is not named", path.display());
    }
    // And a writer does not touch them.
    let mut writer = writer(&disk);
    writer.begin(start(NOW + 25), false).unwrap();
    writer.merge(&full_delta(NOW + 30, 1)).unwrap();
    fold_all(&mut writer);
    assert!(strangers.iter().all(|path| disk.files().contains_key(path)));
}

#[test]
fn other_formats_are_told_from_damage() {
    let disk = small_database();
    disk.put(&root().join("format"), b"dcpi database 3\n".to_vec());
    let error = read(&disk).unwrap_err();
    assert!(matches!(error, DbError::NewerFormat { found: 3, known: 2, .. }), "{error}");
    let error = Writer::open_on(storage(&disk), &root(), HOST).unwrap_err();
    assert!(matches!(error, DbError::NewerFormat { found: 3, .. }), "{error}");
    assert_eq!(problems(&disk).len(), 1);
    disk.put(&root().join("format"), b"dcpi database 1\n".to_vec());
    let writer = Writer::open_on(storage(&disk), &root(), HOST).unwrap_err();
    let check = profiledb::check_on(storage(&disk), &root(), u64::MAX).unwrap_err();
    for error in [read(&disk).unwrap_err(), writer, check] {
        assert!(matches!(error, DbError::OlderFormat { found: 1, oldest: 2, .. }), "{error}");
        assert!(error.to_string().contains("; read it with the program that wrote it"), "{error}");
    }

    for (version, told) in [(9, "format 9, newer than 3"), (2, "format 2, older than 3")] {
        let disk = small_database();
        let path = segments(&disk).pop().unwrap();
        let mut bytes = disk.files()[&path].clone();
        bytes[8] = version;
        let checksum = crc32c::crc32c(&bytes[..28]);
        bytes[28..32].copy_from_slice(&checksum.to_le_bytes());
        disk.put(&path, bytes);
        let error = read(&disk).unwrap_err();
        assert!(error.to_string().contains(told), "{error}");
    }
}

#[test]
fn a_ledger_that_does_not_close_is_told() {
    let disk = small_database();
    let mut writer = writer(&disk);
    writer.begin(start(NOW + 25), false).unwrap();
    let mut delta = full_delta(NOW + 30, 1);
    delta.ledgers.entry(EVENTS[0], PERIOD).taken += 5;
    writer.merge(&delta).unwrap();
    let told = problems(&disk);
    assert_eq!(told.len(), 1);
    assert!(told[0].contains("samples taken and accounts for"), "{told:?}");
}

/// Names are listed 10 before 2, merges counted 2 before 10; and a link to nowhere is listed and
/// not there, however often one looks.
#[test]
fn a_link_to_nowhere_is_a_missing_segment() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(dir.path(), HOST).unwrap();
    let epoch = writer.begin(start(NOW), false).unwrap();
    for merge in 1..11 {
        writer.merge(&full_delta(NOW + 10 * merge, 1)).unwrap();
    }
    drop(writer);
    let path = dir.path().join("hosts").join(HOST).join(epoch.as_str()).join("10-10.segment");
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("nowhere", &path).unwrap();
    let told = profiledb::check(dir.path()).unwrap();
    let missing = told.iter().find(|problem| problem.path == path).unwrap();
    assert!(
        missing.is_damage() && missing.lost == Lost::Merges { first: 10, last: 10 },
        "{missing}"
    );
}
