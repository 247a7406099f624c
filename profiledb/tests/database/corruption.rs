//! No damaged file is believed, and the error names it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use profiledb::storage::SimulatedDisk;
use profiledb::{Damage, DbError, Writer};

use crate::fixture::{
    EVENTS, HOST, NOW, full_delta, image, key, read, read_only_epoch, root, small_database, start, storage, writer,
};

/// A database whose writer was killed after it decided a merge and before it published a file.
fn decided_database() -> SimulatedDisk {
    for k in 0.. {
        let disk = small_database();
        let mut writer = writer(&disk);
        writer.begin(start(NOW + 25), false).unwrap();
        disk.stop_after(k);
        let outcome = writer.merge(&full_delta(NOW + 30, 70));
        drop(writer);
        disk.heal();
        if matches!(outcome, Err(DbError::Unfinished { .. })) {
            return disk;
        }
    }
    unreachable!("no merge was decided")
}

/// Reads a database with one changed file: must fail and name it.
fn must_be_seen(disk: &SimulatedDisk, path: &Path, bytes: Vec<u8>, what: &str) {
    let damaged = disk.copy();
    damaged.put(path, bytes);
    let Err(error) = read(&damaged) else {
        panic!("{what} of {} went unseen", path.display());
    };
    let text = error.to_string();
    assert!(text.contains(&path.display().to_string()), "{text}");
    assert!(!text.contains('\n'), "{text}");
}

fn flip_and_cut(disk: &SimulatedDisk, files: &BTreeMap<PathBuf, Vec<u8>>) {
    for (path, bytes) in files {
        for at in 0..bytes.len() {
            for flip in [0x01, 0x80, 0xff] {
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
    let mut files = disk.files();
    files.remove(&root().join("lock"));
    // format, meta, images, scopes, 4 profiles, symbols of one image.
    assert_eq!(files.len(), 9, "{:?}", files.keys());
    flip_and_cut(&disk, &files);
}

#[test]
fn every_flip_and_every_cut_of_a_decided_merge_is_seen() {
    let disk = decided_database();
    let mut files = disk.files();
    files.retain(|path, _| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.ends_with(".tmp") || name == "commit"
    });
    assert_eq!(files.len(), 8, "{:?}", files.keys());
    flip_and_cut(&disk, &files);
}

#[test]
fn a_file_in_the_place_of_another_is_seen() {
    let disk = small_database();
    let files = disk.files();
    let samples: Vec<&PathBuf> =
        files.keys().filter(|path| path.extension().is_some_and(|ext| ext == "samples")).collect();
    let damaged = disk.copy();
    damaged.put(samples[0], files[samples[1]].clone());
    let error = read(&damaged).unwrap_err();
    let DbError::Corrupt { path, damage, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(path, *samples[0]);
    assert!(matches!(damage, Damage::Misplaced));

    // A whole epoch under another name.
    let renamed = SimulatedDisk::new();
    for (path, bytes) in &files {
        let moved = path.to_str().unwrap().replace("20251121-", "20251122-");
        renamed.put(Path::new(&moved), bytes.clone());
    }
    let error = read(&renamed).unwrap_err();
    assert!(error.to_string().contains("belongs somewhere else"), "{error}");
}

#[test]
fn a_writer_changes_nothing_on_top_of_damage_and_a_new_epoch_helps() {
    let disk = small_database();
    let files = disk.files();
    let path = files.keys().find(|path| path.to_str().unwrap().ends_with(".cycles.samples")).unwrap();
    disk.put(path, b"zeros, after a crash".to_vec());
    let damaged = disk.files();
    let mut writer = writer(&disk);
    writer.begin(start(NOW + 25), false).unwrap();
    let error = writer.merge(&full_delta(NOW + 30, 1)).unwrap_err();
    assert!(matches!(error, DbError::Corrupt { .. }), "{error}");
    assert_eq!(disk.files(), damaged);
    let epoch = writer.next_epoch(start(NOW + 31)).unwrap();
    writer.merge(&full_delta(NOW + 32, 1)).unwrap();
    let database = profiledb::Database::open_on(storage(&disk), &root()).unwrap();
    let read = database.epoch(HOST, &epoch).unwrap();
    assert_eq!(read.profile(&key(0, EVENTS[0])).unwrap().total(), 2);
}

#[test]
fn an_epoch_with_a_damaged_description_is_passed_over_and_told() {
    for name in ["meta", "images", "scopes"] {
        let disk = small_database();
        let files = disk.files();
        let path = files.keys().find(|path| path.ends_with(name)).unwrap();
        let mut bytes = files[path].clone();
        bytes[40] ^= 1;
        disk.put(path, bytes.clone());
        let mut writer = writer(&disk);
        let epoch = writer.begin(start(NOW + 25), false).unwrap();
        assert_eq!(writer.findings().len(), 1);
        let finding = writer.findings()[0].to_string();
        assert!(finding.contains(path.to_str().unwrap()), "{finding}");
        writer.merge(&full_delta(NOW + 30, 1)).unwrap();
        assert_eq!(disk.files()[path], bytes);
        let database = profiledb::Database::open_on(storage(&disk), &root()).unwrap();
        assert!(database.epoch(HOST, &epoch).is_ok());
    }
}

/// Samples must not be out of reach because a list is.
#[test]
fn without_the_list_of_scopes_each_file_tells_its_own() {
    let disk = small_database();
    let whole = read_only_epoch(&disk);
    assert!(whole.profiles.keys().any(|key| key.scope.label.as_deref() == Some("run")));
    let files = disk.files();
    let list = files.keys().find(|path| path.ends_with("scopes")).unwrap();
    let mut bytes = files[list].clone();
    bytes[33] ^= 1;
    disk.put(list, bytes);
    let database = profiledb::Database::open_on(storage(&disk), &root()).unwrap();
    let epoch = database.epoch(HOST, &whole.meta.epoch).unwrap();
    let error = epoch.scopes().unwrap_err().to_string();
    assert!(error.contains("scopes is damaged"), "{error}");
    let keys = epoch.profiles().unwrap();
    assert!(keys.iter().eq(whole.profiles.keys()));
    assert!(keys.iter().all(|key| epoch.profile(key).unwrap() == whole.profiles[key]));
    epoch.check_ledgers().unwrap();
    // Where the file is damaged too, its samples are missed, and all others are there.
    let scoped = files.keys().find(|path| path.to_str().unwrap().ends_with(".0.samples")).unwrap();
    disk.put(scoped, vec![0; 40]);
    let epoch = database.epoch(HOST, &whole.meta.epoch).unwrap();
    assert_eq!(epoch.profiles().unwrap().len(), keys.len() - 1);
    assert!(matches!(epoch.check_ledgers(), Err(DbError::Unbalanced { .. })));
}

#[test]
fn a_damaged_commit_record_is_dropped_with_its_merge_and_told() {
    let disk = decided_database();
    let before = read_only_epoch(&small_database());
    let files = disk.files();
    let record = files.keys().find(|path| path.ends_with("commit")).unwrap();
    let mut bytes = files[record].clone();
    bytes[33] ^= 1;
    disk.put(record, bytes);
    let writer = Writer::open_on(storage(&disk), &root(), HOST).unwrap();
    assert_eq!(writer.findings().len(), 1);
    assert_eq!(read_only_epoch(&disk), before);
    assert!(crate::fixture::leftovers(&disk).is_empty());
}

#[test]
fn files_of_unknown_names_are_skipped() {
    let disk = small_database();
    let before = read_only_epoch(&disk);
    let files = disk.files();
    let meta = files.keys().find(|path| path.ends_with("meta")).unwrap();
    let epoch = meta.parent().unwrap();
    disk.put(&epoch.join(format!("{}.cycles.edges", image(0))), vec![1, 2]);
    disk.put(&epoch.join("README"), b"hello".to_vec());
    disk.put(&root().join("hosts/.cache/20250101-000000/meta"), vec![]);
    disk.put(&root().join("hosts/node-7/notes.txt"), vec![]);
    disk.put(&root().join("hosts/node-7/20250101-000000/junk"), vec![]);
    assert_eq!(read_only_epoch(&disk), before);
    // And a writer does not touch them.
    let mut writer = writer(&disk);
    writer.begin(start(NOW + 25), false).unwrap();
    writer.merge(&full_delta(NOW + 30, 1)).unwrap();
    assert!(disk.files().contains_key(&epoch.join("README")));
}

#[test]
fn newer_files_and_newer_databases_are_told_from_damaged_ones() {
    let disk = small_database();
    disk.put(&root().join("format"), b"dcpi database 2\n".to_vec());
    let error = read(&disk).unwrap_err();
    assert!(matches!(error, DbError::NewerFormat { found: 2, known: 1, .. }), "{error}");
    let error = Writer::open_on(storage(&disk), &root(), HOST).unwrap_err();
    assert!(matches!(error, DbError::NewerFormat { found: 2, .. }), "{error}");

    let disk = small_database();
    let files = disk.files();
    let path = files.keys().find(|path| path.extension().is_some_and(|ext| ext == "samples")).unwrap();
    let mut bytes = files[path].clone();
    bytes[8] = 9;
    let checksum = crc32c::crc32c(&bytes[..28]);
    bytes[28..32].copy_from_slice(&checksum.to_le_bytes());
    disk.put(path, bytes);
    let error = read(&disk).unwrap_err();
    assert!(matches!(error, DbError::NewerFormat { found: 9, known: 1, .. }), "{error}");
}
