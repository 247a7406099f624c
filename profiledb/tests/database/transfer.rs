//! What is done with databases while no daemon writes them.

use std::path::Path;

use crate::simulated::SimulatedDisk;
use image::ImageOffset;
use model::{EDGES, Edges, FIRST_EDGES, Facts, MergedFrom};
use profiledb::{
    Copied, Database, DbError, Epoch, Retention, Writer, copy_epoch, copy_host, merge_epochs, seal,
};

use crate::fixture::{
    EVENTS, HOST, NOW, delta, full_delta, image, key, problems, read, read_only_epoch, root,
    segments, small_database, start, storage, writer,
};

fn database(disk: &SimulatedDisk) -> Database {
    Database::open_on(storage(disk), &root()).unwrap()
}

fn empty() -> (SimulatedDisk, Database) {
    let disk = SimulatedDisk::new();
    drop(writer(&disk));
    let database = database(&disk);
    (disk, database)
}

fn epochs(disk: &SimulatedDisk) -> Vec<Epoch> {
    let database = database(disk);
    database.epochs(HOST).unwrap().iter().map(|id| database.epoch(HOST, id).unwrap()).collect()
}

/// Two epochs of the same events, the second one open.
fn two_epochs() -> SimulatedDisk {
    let disk = small_database();
    let mut writer = writer(&disk);
    writer.begin(start(NOW + 25), true).unwrap();
    writer.merge(&full_delta(NOW + 30, 100)).unwrap();
    disk
}

#[test]
fn what_a_daemon_left_open_is_sealed_as_of_its_last_merge() {
    let disk = small_database();
    let open = seal(&database(&disk), HOST).unwrap();
    let state = read_only_epoch(&disk);
    assert_eq!((open, state.meta.ended_unix_s), (Some(state.meta.epoch), Some(NOW + 20)));
    assert_eq!(segments(&disk).len(), 1);
    assert_eq!(seal(&database(&disk), HOST).unwrap(), None);
    let held = writer(&disk);
    assert!(matches!(seal(&database(&disk), HOST), Err(DbError::Locked { .. })));
    drop(held);
}

#[test]
fn epochs_made_one_have_all_counts_and_say_whose() {
    let disk = two_epochs();
    let (other, target) = empty();
    let merged =
        merge_epochs(&epochs(&disk), &target, "sum", Some("both"), &Facts::default()).unwrap();
    let all = read(&other).unwrap();
    let sum = &all[&("sum".to_owned(), merged)];
    assert_eq!(sum.samples(&key(0, EVENTS[0])).get(ImageOffset(0x10)), 114);
    assert_eq!(
        sum.observed::<Edges>(&EDGES, image(0)).get((ImageOffset(0x14), ImageOffset(0x10))),
        114
    );
    assert!(sum.observed::<Edges>(&FIRST_EDGES, image(0)).total() > 57);
    assert_eq!(sum.meta.ledgers.sum(EVENTS[0]).lost["table full"], 3);
    assert_eq!((sum.meta.started_unix_s, sum.meta.ended_unix_s), (NOW, Some(NOW + 30)));
    assert_eq!(sum.meta.machine.boot_id, "boot-1");
    let MergedFrom(from) = sum.meta.facts.get().unwrap();
    assert!(from.contains("node-7/20251121-040233"), "{from:?}");
    // What they do not agree in is not said.
    assert!(sum.meta.facts.value("skid").is_none());
    assert_eq!(problems(&other), Vec::<String>::new());
    // The order does not matter.
    let (third, target) = empty();
    let mut reversed = epochs(&disk);
    reversed.reverse();
    let merged = merge_epochs(&reversed, &target, "sum", None, &Facts::default()).unwrap();
    assert_eq!(read(&third).unwrap()[&("sum".to_owned(), merged)].profiles, sum.profiles);
}

#[test]
fn epochs_that_cannot_be_one_are_refused_by_name() {
    let disk = small_database();
    let mut writer = writer(&disk);
    let mut other = start(NOW + 25);
    other.events[1].unit.push('x');
    writer.begin(other, true).unwrap();
    let (target_disk, target) = empty();
    let before = target_disk.files();
    let error = merge_epochs(&epochs(&disk), &target, "sum", None, &Facts::default())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("units of cpu/event=0x3c/") && error.contains("20251121-040233"),
        "{error}"
    );
    // A host whose daemon has an epoch open is not written to.
    writer.merge(&delta(NOW + 30, &[])).unwrap();
    drop(writer);
    let error = merge_epochs(&epochs(&disk)[..1], &database(&disk), HOST, None, &Facts::default())
        .unwrap_err();
    assert!(matches!(error, DbError::InTheWay { .. }), "{error}");
    let changed: Vec<_> =
        target_disk.files().into_keys().filter(|path| !before.contains_key(path)).collect();
    assert!(changed.iter().all(|path| path.ends_with("lock")), "{changed:?}");
}

#[test]
fn a_copy_is_brought_up_to_date_and_never_goes_back() {
    let disk = small_database();
    let (other, target) = empty();
    let early = epochs(&disk).remove(0);
    assert_eq!(copy_epoch(&early, &target).unwrap(), Copied::New);
    let mut writer = writer(&disk);
    writer.begin(start(NOW + 25), false).unwrap();
    writer.merge(&full_delta(NOW + 30, 1)).unwrap();
    assert_eq!(copy_host(&database(&disk), HOST, &target).unwrap()[0].1, Copied::Updated);
    assert_eq!(copy_epoch(&early, &target).unwrap(), Copied::AlreadyThere);
    let (mine, theirs) = (read_only_epoch(&disk), read_only_epoch(&other));
    assert_eq!(mine.profiles, theirs.profiles);
    assert_eq!(theirs.meta.ended_unix_s, Some(NOW + 30));
    assert_eq!(segments(&other), segments(&disk));
    assert_eq!(problems(&other), Vec::<String>::new());
}

#[test]
fn a_damaged_epoch_is_not_copied() {
    let disk = small_database();
    let path = segments(&disk).remove(1);
    let mut bytes = disk.files()[&path].clone();
    bytes[40] ^= 1;
    disk.put(&path, bytes);
    let error = copy_epoch(&epochs(&disk)[0], &empty().1).unwrap_err();
    assert!(matches!(error, DbError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains("1-1.segment"), "{error}");
}

#[test]
fn every_failure_of_a_copy_leaves_it_whole_or_not_there() {
    let source = epochs(&two_epochs()).remove(0);
    for k in 0..60 {
        let (disk, target) = empty();
        disk.fail_after(k, 28);
        let copied = copy_epoch(&source, &target).is_ok();
        disk.heal();
        let there = read(&disk).unwrap();
        assert!(!copied || there.len() == 1, "{k}");
        assert!(
            matches!(copy_epoch(&source, &target).unwrap(), Copied::New | Copied::AlreadyThere),
            "{k}"
        );
        assert_eq!(read(&disk).unwrap().len(), 1);
        assert_eq!(problems(&disk), Vec::<String>::new(), "{k}");
        // Copying is fewer operations than were tried.
        assert!(copied || k < 59, "{k}");
    }
}

/// A committed database on a simulated disk.
fn committed(name: &str) -> SimulatedDisk {
    let disk = SimulatedDisk::new();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    let mut directories = vec![from.clone()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else {
                let to = root().join(path.strip_prefix(&from).unwrap());
                disk.put(&to, std::fs::read(&path).unwrap());
            }
        }
    }
    disk
}

/// A committed database of this format: what is written today is read for ever.
#[test]
fn a_committed_database_reads_as_it_was_written() {
    let disk = committed("format-3");
    assert_eq!(problems(&disk), Vec::<String>::new());
    assert_eq!(read(&disk).unwrap(), read(&two_epochs()).unwrap());
}

/// Makes the committed database; only for a new format.
#[test]
#[ignore = "writes the fixture anew"]
fn write_the_committed_database() {
    let to = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/format-3");
    for (path, bytes) in two_epochs().files() {
        let path = to.join(path.strip_prefix(root()).unwrap());
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
}

#[test]
fn what_may_go_goes_and_readers_see_no_half_of_it() {
    let disk = SimulatedDisk::new();
    let mut writer = writer(&disk);
    for day in 0..10 {
        writer.next_epoch(start(NOW + day * 86_400)).unwrap();
        writer.merge(&full_delta(NOW + day * 86_400 + 10, 1)).unwrap();
    }
    let now = NOW + 9 * 86_400 + 100;
    let gone = writer.collect_garbage(&Retention::default(), now).unwrap();
    assert_eq!(gone.len(), 2, "{gone:?}");
    assert!(gone.iter().all(|epoch| epoch.bytes > 500));
    assert_eq!(read(&disk).unwrap().len(), 8);
    let retention = Retention { max_age_s: Some(0), keep_newest: 0, max_bytes: Some(0) };
    writer.collect_garbage(&retention, now).unwrap();
    assert_eq!(read(&disk).unwrap().len(), 1, "the open one stays");
    writer.merge(&full_delta(now, 1)).unwrap();
    // What a killed writer left of one is removed by the next, and no reader sees it.
    let left = root().join("hosts").join(HOST).join("20251121-040233.gone");
    disk.put(&left.join("0-3.segment"), vec![1]);
    assert_eq!(read(&disk).unwrap().len(), 1);
    assert_eq!(problems(&disk).len(), 1);
    drop(writer);
    drop(Writer::open_on(storage(&disk), &root(), HOST).unwrap());
    assert_eq!(problems(&disk), Vec::<String>::new());
}
