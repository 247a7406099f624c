//! Databases of format 1, as its last writer left them, are read for ever.

use std::path::{Path, PathBuf};

use image::ImageOffset;
use profiledb::storage::SimulatedDisk;
use profiledb::{Copied, Database, DbError, Writer, copy_epoch, merge_epochs};

use crate::fixture::{
    EVENTS, EpochState, HOST, NOW, full_delta, image, key, problems, read, root, scoped, start,
    storage, symbol, writer,
};

/// A committed database on a simulated disk.
pub fn committed(name: &str) -> SimulatedDisk {
    let disk = SimulatedDisk::new();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    let mut directories: Vec<PathBuf> = vec![from.clone()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else {
                disk.put(
                    &root().join(path.strip_prefix(&from).unwrap()),
                    std::fs::read(&path).unwrap(),
                );
            }
        }
    }
    disk
}

fn states(disk: &SimulatedDisk) -> Vec<EpochState> {
    read(disk).unwrap().into_values().collect()
}

#[test]
fn an_old_database_reads_as_it_was_written() {
    let disk = committed("format-1");
    let [first, second] = &states(&disk)[..] else { panic!("two epochs were written") };
    assert_eq!((first.meta.merges, first.meta.ended_unix_s), (3, Some(NOW + 50)));
    assert_eq!((second.meta.merges, second.meta.ended_unix_s), (1, None));
    assert_eq!(first.profiles.len(), 4);
    assert_eq!(first.samples(&key(0, EVENTS[0])).get(ImageOffset(0x10)), 14);
    assert_eq!(first.profiles[&scoped(1, EVENTS[0], Some("run"))].total(), 8);
    assert_eq!(
        first.symbols[&image(0)],
        [symbol(5, 6, "jit"), symbol(9, 10, "jit"), symbol(0x10, 0x20, "main")]
    );
    assert_eq!(first.images[&image(1)].path, "/usr/bin/prog1");
    assert_eq!(first.meta.ledgers.sum(EVENTS[0]).lost["table full"], 2);
    assert!(
        first.profiles.keys().all(|key| key.measure.period().is_some())
            && first.meta.facts.is_empty()
    );
    assert_eq!(problems(&disk), Vec::<String>::new());
}

/// Its writer was killed between the record that decides and the last rename.
#[test]
fn an_old_merge_that_was_decided_and_not_finished_counts() {
    let disk = committed("format-1-unfinished");
    let [state] = &states(&disk)[..] else { panic!("one epoch was written") };
    assert_eq!(state.meta.merges, 3);
    assert_eq!(state.samples(&key(0, EVENTS[0])).get(ImageOffset(0x10)), 84);
    let told = problems(&disk);
    assert!(
        !told.is_empty() && told.iter().all(|line| line.ends_with("lost: nothing")),
        "{told:?}"
    );
}

/// A writer of today begins a new epoch beside the old ones and changes none of their files; a
/// writer of yesterday is reported.
#[test]
fn a_writer_goes_on_beside_old_epochs() {
    for name in ["format-1", "format-1-unfinished"] {
        let disk = committed(name);
        let before = disk.files();
        let old = read(&disk).unwrap();
        let mut writer = writer(&disk);
        let epoch = writer.begin(start(NOW + 100), false).unwrap();
        assert!(writer.findings().is_empty());
        writer.merge(&full_delta(NOW + 110, 4)).unwrap();
        let all = read(&disk).unwrap();
        assert_eq!(all.len(), old.len() + 1);
        assert!(all.contains_key(&(HOST.to_owned(), epoch)));
        assert!(old.iter().all(|(id, state)| all[id] == *state));
        for (path, bytes) in &before {
            let now = &disk.files()[path];
            assert!(now == bytes || path.ends_with("format"), "{}", path.display());
        }
        assert_eq!(disk.files()[&root().join("format")], b"dcpi database 2\n");
    }
}

#[test]
fn an_old_daemon_that_still_writes_is_not_disturbed() {
    let disk = committed("format-1");
    let storage = storage(&disk);
    let held = storage.lock(&root().join("lock")).unwrap().unwrap();
    let error = Writer::open_on(storage.clone(), &root(), HOST).unwrap_err();
    assert!(matches!(&error, DbError::Locked { path } if *path == root().join("lock")), "{error}");
    assert_eq!(disk.files()[&root().join("format")], b"dcpi database 1\n");
    drop(held);
    assert!(Writer::open_on(storage, &root(), HOST).is_ok());
}

#[test]
fn old_epochs_are_copied_and_made_one_in_the_new_format() {
    let disk = committed("format-1");
    let database = Database::open_on(storage(&disk), &root()).unwrap();
    let epochs: Vec<_> =
        database.epochs(HOST).unwrap().iter().map(|id| database.epoch(HOST, id).unwrap()).collect();
    let other = SimulatedDisk::new();
    drop(writer(&other));
    let target = Database::open_on(storage(&other), &root()).unwrap();
    for epoch in &epochs {
        assert_eq!(copy_epoch(epoch, &target).unwrap(), Copied::New);
        assert_eq!(copy_epoch(epoch, &target).unwrap(), Copied::AlreadyThere);
    }
    for (old, new) in states(&disk).iter().zip(states(&other)) {
        assert_eq!(
            (&old.profiles, &old.images, &old.symbols),
            (&new.profiles, &new.images, &new.symbols)
        );
        assert_eq!(old.meta.ledgers, new.meta.ledgers);
        assert!(new.meta.ended_unix_s.is_some());
    }
    let merged =
        merge_epochs(&epochs, &target, "both", Some("all of it"), &model::Facts::default())
            .unwrap();
    let all = read(&other).unwrap();
    let merged = &all[&("both".to_owned(), merged)];
    assert_eq!(merged.samples(&key(0, EVENTS[0])).get(ImageOffset(0x10)), 17);
    assert_eq!(merged.meta.label.as_deref(), Some("all of it"));
    assert_eq!(problems(&other), Vec::<String>::new());
}
