//! Counts are kept apart by slices of time, and readers get those of a stretch.

use crate::simulated::SimulatedDisk;
use model::{Facts, Frame, Ledger, Stacks, Thread, Value};
use profiledb::{
    Copied, Database, DbError, Epoch, EpochId, Scope, StacksKey, Stretch, Writer, copy_epoch,
    copy_host, merge_epochs, seal,
};

use crate::fixture::{
    EVENTS, HOST, NOW, PERIOD, add, fold_all, full_delta, image, key, problems, profile, read,
    read_only_epoch, root, segments, start, storage, writer,
};
use image::ImageOffset;
use model::Profile;

const DAY: u64 = 86_400;

/// An epoch with a merge every ten minutes, the Nth with N samples of image 0, and its writer.
fn merged(merges: u64) -> (SimulatedDisk, Writer) {
    let disk = SimulatedDisk::new();
    let mut writer = writer(&disk);
    writer.begin(start(NOW), false).unwrap();
    for merge in 1..=merges {
        // Some seconds late.
        let mut delta = full_delta(NOW + merge * 600 + merge % 5, 1);
        let more = Profile::from_counts([(ImageOffset(0x900), merge)]);
        add(&mut delta, key(0, EVENTS[0]), more);
        let ledger = delta.ledgers.entry(EVENTS[0], PERIOD);
        ledger.add(&Ledger { taken: merge, merged: merge, ..Ledger::default() });
        writer.merge(&delta).unwrap();
        while writer.fold(u64::MAX, delta.now_unix_s).unwrap().more {}
    }
    (disk, writer)
}

fn open(disk: &SimulatedDisk) -> Database {
    Database::open_on(storage(disk), &root()).unwrap()
}

fn epoch_of(database: &Database) -> Result<profiledb::Epoch, DbError> {
    let ids: Vec<EpochId> = database.epochs(HOST)?;
    database.epoch(HOST, &ids[0])
}

/// The samples that the merges of a stretch had at the place that tells them apart.
fn between(disk: &SimulatedDisk, since_s: u64, until_s: u64) -> Option<u64> {
    let stretch = Stretch { since_unix_s: NOW + since_s, until_unix_s: NOW + until_s };
    let epoch = epoch_of(&open(disk).during(stretch)).ok()?;
    epoch.check_ledgers().unwrap();
    assert!(epoch.is_current().unwrap() && epoch.damage().is_empty());
    let meta = epoch.meta();
    let covered = meta.covered.unwrap().stretch;
    assert!(covered.overlaps(stretch) && covered.since_unix_s == meta.started_unix_s);
    // Names and stacks are there in each part; images are those of all segments.
    assert!(epoch.images().unwrap().contains_key(&image(1)));
    assert!(!epoch.symbols(&image(0)).unwrap().is_empty());
    assert!(epoch.stacks_keys().iter().all(|key| epoch.stacks(key).unwrap().total().stacks > 0));
    let counts = epoch.counts(&key(0, EVENTS[0])).unwrap();
    Some(profile(&counts).get(ImageOffset(0x900)))
}

#[test]
fn a_stretch_has_the_counts_and_ledgers_of_its_slices() {
    let (disk, writer) = merged(20);
    drop(writer);
    for (since_s, until_s, samples) in [
        // Within the third merge's time, which began some seconds late.
        (1300, 1310, Some(3)),
        (1190, 1310, Some(2 + 3)),
        (0, 600, Some(1)),
        (0, 20_000, Some(210)),
        (11_500, 90_000, Some(20)),
        (20_000, 90_000, None),
    ] {
        assert_eq!(between(&disk, since_s, until_s), samples, "{since_s} to {until_s}");
    }
    let epoch = epoch_of(&open(&disk)).unwrap();
    assert_eq!((epoch.slices().len(), epoch.meta().covered), (20, None));
    let third = epoch.slices()[2];
    assert_eq!((third.since_unix_s, third.until_unix_s), (NOW + 1202, NOW + 1803));
    let again = epoch.during(third).unwrap();
    assert_eq!((again.slices(), again.during(third).unwrap().slices()), (vec![third], vec![third]));
    // A part of an epoch is merged as what it is.
    let target = SimulatedDisk::new();
    drop(crate::fixture::writer(&target));
    merge_epochs(&[again], &open(&target), "part", None, &Facts::default()).unwrap();
    let state = read(&target).unwrap().into_values().next().unwrap();
    assert_eq!(profile(&state.profiles[&key(0, EVENTS[0])]).get(ImageOffset(0x900)), 3);
}

#[test]
fn what_is_old_is_folded_into_longer_slices_and_loses_nothing() {
    let (disk, mut writer) = merged(200);
    // One of each merge, since each is as long as the slices of nine weeks.
    let slices = |disk: &SimulatedDisk| {
        let all = epoch_of(&open(disk)).unwrap().slices();
        let longest = all.iter().map(|one| one.until_unix_s - one.since_unix_s).max().unwrap();
        (all.len(), longest / 60)
    };
    let whole = read(&disk).unwrap();
    assert_eq!(slices(&disk), (200, 10));
    // By the hour, what is older than a day.
    assert_eq!(segments_there(&disk), 145 + 10);
    assert_eq!(between(&disk, 0, 3600), Some(1 + 2 + 3 + 4 + 5 + 6));
    writer.seal(NOW + 200 * 600 + 5).unwrap();
    assert_eq!(slices(&disk), (200, 10), "ending an epoch leaves its slices");
    drop(writer);
    // The next writer goes on as they age.
    let mut next = crate::fixture::writer(&disk);
    for (days, expected, files) in [(2, (200, 10), 80), (9, (200, 10), 2), (80, (2, 1200), 1)] {
        while next.fold(u64::MAX, NOW + days * DAY).unwrap().more {}
        assert_eq!((slices(&disk), segments_there(&disk)), (expected, files), "after {days} days");
    }
    let mut state = read(&disk).unwrap().into_values().next().unwrap();
    let before = whole.into_values().next().unwrap();
    (state.meta.merges, state.meta.ended_unix_s) = (before.meta.merges, None);
    assert_eq!(state, before);
    assert_eq!(problems(&disk), Vec::<String>::new());
}

/// Frequent merges of one slice are few files, and all become one when the slice is over.
#[test]
fn merges_of_one_slice_are_folded_as_before() {
    let disk = SimulatedDisk::new();
    let mut writer = writer(&disk);
    writer.begin(start(NOW), false).unwrap();
    for merge in 1..=100 {
        writer.merge(&full_delta(NOW + merge, 3)).unwrap();
        while writer.fold(u64::MAX, NOW + merge).unwrap().more {}
    }
    writer.fold(1, NOW + 599 + 600).unwrap();
    assert!(segments(&disk).len() < 70, "{}", segments(&disk).len());
    fold_all(&mut writer);
    while writer.fold(u64::MAX, NOW + 1200).unwrap().more {}
    writer.fold(1, NOW + 10_000).unwrap();
    assert_eq!(segments(&disk).len(), 1);
}

/// A clock that jumps ahead with each merge makes a slice of each; they are folded all the same
/// before the directory is too large to be listed at once.
#[test]
fn a_clock_that_jumps_does_not_fill_the_directory() {
    let disk = SimulatedDisk::new();
    let mut writer = writer(&disk);
    writer.begin(start(NOW), false).unwrap();
    let mut now = NOW;
    for _ in 0..600_u64 {
        now += 700;
        writer.merge(&full_delta(now, 3)).unwrap();
        // The daemon's own clock of folds stands still.
        while writer.fold(u64::MAX, NOW).unwrap().more {}
    }
    writer.fold(1, NOW + 10_000).unwrap();
    let files = segments(&disk).len();
    assert!((400..=500).contains(&files), "{files}");
    assert_eq!(problems(&disk), Vec::<String>::new());
}

/// The begin of ten minutes of the clock.
const BEGIN: u64 = NOW / 600 * 600;

/// Merges every ten seconds from [`BEGIN`] on, of which some have much of a place, and the writer.
/// Each has samples, edges and stacks, and twenty thousand places are so many that all their slices
/// would take more than they may, if `is_busy`.
fn every_ten_seconds(merges: u64, is_busy: bool) -> (SimulatedDisk, Writer) {
    let disk = SimulatedDisk::new();
    let mut writer = writer(&disk);
    writer.begin(start(BEGIN), false).unwrap();
    for merge in 1..=merges {
        let mut delta = full_delta(BEGIN + merge * 10, 1);
        let burst = if (31..=35).contains(&merge) { 5000 } else { merge % 3 };
        let mut counts = vec![(ImageOffset(0x900), burst)];
        if is_busy {
            let places = (0..20_000).map(|n| (n, scattered(merge << 20 | n) % 4));
            counts.extend(places.map(|(n, count)| (ImageOffset(0x1000 + 4 * n), count)));
        }
        let more = Profile::from_counts(counts);
        let ledger = Ledger { taken: more.total(), merged: more.total(), ..Ledger::default() };
        delta.ledgers.entry(EVENTS[0], PERIOD).add(&ledger);
        add(&mut delta, key(0, EVENTS[0]), more);
        delta.stacks.insert(waits_key(), waits(merge));
        writer.merge(&delta).unwrap();
        while writer.fold(u64::MAX, delta.now_unix_s).unwrap().more {}
    }
    (disk, writer)
}

fn waits_key() -> StacksKey {
    StacksKey { event: "runnable".to_owned(), scope: Scope::default() }
}

/// Waits of three threads, whose order is not that in which the tree has them; parts of waits have
/// no stack.
fn waits(merge: u64) -> Stacks {
    let mut stacks = Stacks::new();
    let thread = |pid| Thread { command: "waits".to_owned(), pid, ..Thread::default() };
    for (offset, pid) in [(1, 9), (2, 4), (2, 9), (3, 4), (3, 6)] {
        let frame = Frame::Code(image(0), ImageOffset(offset));
        let ends = u64::from((merge + u64::from(pid)).is_multiple_of(4));
        let value = Value { stacks: ends, weight: 1000 * merge + u64::from(pid), squares: merge };
        stacks.add_stack([frame], &thread(pid), value);
    }
    stacks
}

/// A number without order (the finalizer of splitmix64).
const fn scattered(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

/// The samples at the place of the burst in each slice of an epoch, and the slice's length.
fn by_slice(disk: &SimulatedDisk) -> Vec<(u64, u64)> {
    let epoch = epoch_of(&open(disk)).unwrap();
    let of = |slice: &Stretch| {
        let part = epoch.during(*slice).unwrap();
        part.check_ledgers().unwrap();
        let counts = part.counts(&key(0, EVENTS[0])).unwrap();
        assert_eq!(part.total(&key(0, EVENTS[0])).unwrap(), counts.total());
        (slice.until_unix_s - slice.since_unix_s, profile(&counts).get(ImageOffset(0x900)))
    };
    epoch.slices().iter().map(of).collect()
}

/// 45 s of xz within ten minutes had the time and the height of all ten minutes.
#[test]
fn a_segment_keeps_slices_of_ten_seconds_apart() {
    let (disk, mut writer) = every_ten_seconds(450, false);
    // Eight groups: seven are over, and the merges of the last are still as they came.
    assert_eq!(segments_there(&disk), 7 + 30);
    let expected: Vec<(u64, u64)> = (1..=450)
        .map(|merge| (10, if (31..=35).contains(&merge) { 5000 } else { merge % 3 }))
        .collect();
    assert_eq!(by_slice(&disk), expected);
    let before = read_only_epoch(&disk);
    // Each slice has its own stacks and ledgers.
    let slice = Stretch { since_unix_s: BEGIN + 300, until_unix_s: BEGIN + 310 };
    let part = epoch_of(&open(&disk).during(slice)).unwrap();
    let ledger = part.meta().ledgers.at(EVENTS[0], PERIOD).unwrap();
    assert_eq!((ledger.taken, ledger.lost["table full"]), (5000 + 1 + 1 + 2 + 3, 1));
    for key in part.stacks_keys().into_iter().filter(|key| *key != waits_key()) {
        assert_eq!(part.stacks(&key).unwrap().total(), full_delta(0, 1).stacks[&key].total());
    }
    assert_eq!(part.stacks(&waits_key()).unwrap(), waits(31));
    assert_eq!(part.meta().covered.unwrap().slice_s, 10);
    assert_eq!(part.keys().unwrap(), epoch_of(&open(&disk)).unwrap().keys().unwrap());
    writer.seal(BEGIN + 4500).unwrap();
    assert_eq!((by_slice(&disk), segments_there(&disk)), (expected.clone(), 8));
    // Minutes when they are a day old, ten minutes after a week.
    for (days, length_s) in [(2, 60), (9, 600)] {
        while writer.fold(u64::MAX, BEGIN + days * DAY).unwrap().more {}
        let times = (length_s / 10) as usize;
        let sums: Vec<(u64, u64)> = expected
            .chunks(times)
            .map(|of| (10 * of.len() as u64, of.iter().map(|(_, samples)| samples).sum()))
            .collect();
        assert_eq!(by_slice(&disk), sums, "after {days} days");
    }
    let mut after = read_only_epoch(&disk);
    (after.meta.merges, after.meta.ended_unix_s) = (before.meta.merges, None);
    assert_eq!(after, before);
    assert_eq!(problems(&disk), Vec::<String>::new());
}

/// The number of segments that readers add up.
fn segments_there(disk: &SimulatedDisk) -> usize {
    let name = |path: &std::path::PathBuf| {
        let (first, last) = path.file_stem()?.to_str()?.split_once('-')?;
        Some((first.parse::<u64>().ok()?, last.parse::<u64>().ok()?))
    };
    let all: Vec<(u64, u64)> = segments(disk).iter().filter_map(name).collect();
    let is_covered = |one: &&(u64, u64)| {
        all.iter().any(|wide| wide != *one && wide.0 <= one.0 && one.1 <= wide.1)
    };
    all.iter().filter(|one| !is_covered(one)).count()
}

/// On a busy host slices are longer, so that they take no more than a megabyte an hour.
#[test]
fn slices_that_would_take_too_much_are_longer() {
    let (disk, mut writer) = every_ten_seconds(60, true);
    writer.seal(BEGIN + 600).unwrap();
    let slices = by_slice(&disk);
    let longest = slices.iter().map(|(length_s, _)| *length_s).max().unwrap();
    assert!((20..=300).contains(&longest) && slices.len() > 1, "{slices:?}");
    assert_eq!(slices.iter().map(|(_, samples)| samples).sum::<u64>(), 5 * 5000 + 54);
    // Those of the burst have all of it, and no others.
    let burst: Vec<bool> = slices.iter().map(|(_, samples)| *samples >= 5000).collect();
    assert!(burst.contains(&true) && burst.contains(&false), "{slices:?}");
    assert_eq!(problems(&disk), Vec::<String>::new());
}

/// A copy has the slices, and so has a merge of hosts whose merges come at the same times.
#[test]
fn copies_and_merges_keep_slices_within_a_segment() {
    let (disk, writer) = every_ten_seconds(70, false);
    drop(writer);
    let copy = target();
    copy_host(&open(&disk), HOST, &open(&copy)).unwrap();
    assert_eq!(by_slice(&copy), by_slice(&disk));
    assert_eq!(problems(&copy), Vec::<String>::new());
    let epoch = epoch_of(&open(&disk)).unwrap();
    let stretch = Stretch { since_unix_s: BEGIN + 300, until_unix_s: BEGIN + 660 };
    let part = epoch.during(stretch).unwrap();
    let sum = target();
    merge_epochs(&[part, epoch], &open(&sum), "sum", None, &Facts::default()).unwrap();
    let database = open(&sum);
    let id = database.epochs("sum").unwrap().pop().unwrap();
    let merged = database.epoch("sum", &id).unwrap();
    let of = |since_s: u64| {
        let stretch = Stretch { since_unix_s: BEGIN + since_s, until_unix_s: BEGIN + since_s + 10 };
        let part = merged.during(stretch).unwrap();
        part.check_ledgers().unwrap();
        assert_eq!(part.meta().covered.unwrap().stretch, stretch);
        profile(&part.counts(&key(0, EVENTS[0])).unwrap()).get(ImageOffset(0x900))
    };
    assert_eq!([of(0), of(290), of(310), of(350), of(360), of(670)], [1, 0, 10_000, 0, 2, 2]);
    assert_eq!(problems(&sum), Vec::<String>::new());
}

fn target() -> SimulatedDisk {
    let disk = SimulatedDisk::new();
    drop(crate::fixture::writer(&disk));
    disk
}

/// An epoch of a host with merges at these seconds after the start of all, the Nth with N samples.
fn of_host(host: &str, began_s: u64, merges_s: &[u64]) -> Epoch {
    let disk = SimulatedDisk::new();
    let mut writer = Writer::open_on(storage(&disk), &root(), host).unwrap();
    let id = writer.begin(start(NOW + began_s), false).unwrap();
    for (at_s, samples) in merges_s.iter().zip(1..) {
        writer.merge(&full_delta(NOW + at_s, samples)).unwrap();
    }
    drop(writer);
    open(&disk).epoch(host, &id).unwrap()
}

/// The number of samples of a stretch in the only epoch of a host; None where it has no slice.
fn samples(disk: &SimulatedDisk, host: &str, (since_s, until_s): (u64, u64)) -> Option<u64> {
    let stretch = Stretch { since_unix_s: NOW + since_s, until_unix_s: NOW + until_s };
    let database = open(disk);
    let id = database.epochs(host).unwrap().pop()?;
    let epoch = database.epoch(host, &id).unwrap().during(stretch)?;
    epoch.check_ledgers().unwrap();
    Some(epoch.counts(&key(0, EVENTS[0])).unwrap().total())
}

/// Each stretch of a day has the same counts in a copy, whatever the slices of the copy were before
/// it was brought up to date.
#[test]
fn a_copy_has_the_slices_of_its_source() {
    let (disk, mut writer) = merged(20);
    let stretches = [(0, 600), (1190, 1310), (1300, 1310), (6000, 9000), (11_900, 90_000)];
    let all = |disk: &SimulatedDisk| stretches.map(|(since, until)| between(disk, since, until));
    let copy = target();
    assert_eq!(copy_epoch(&epoch_of(&open(&disk)).unwrap(), &open(&copy)).unwrap(), Copied::New);
    assert_eq!(all(&copy), all(&disk));
    assert_eq!(segments(&copy), segments(&disk));
    let slices = |disk: &SimulatedDisk| epoch_of(&open(disk)).unwrap().slices();
    assert_eq!(slices(&copy), slices(&disk));
    // The copy is folded otherwise than its source, which gets more.
    seal(&open(&copy), HOST).unwrap();
    assert_eq!((segments(&copy).len(), slices(&copy).len()), (1, 1));
    for merge in [21, 22] {
        writer.merge(&full_delta(NOW + merge * 600, 1)).unwrap();
    }
    while writer.fold(u64::MAX, NOW + DAY + 14_400).unwrap().more {}
    assert_eq!(copy_host(&open(&disk), HOST, &open(&copy)).unwrap()[0].1, Copied::Updated);
    let (mine, theirs) = (read_only_epoch(&disk), read_only_epoch(&copy));
    assert_eq!(mine.profiles, theirs.profiles);
    assert_eq!(mine.meta.ledgers, theirs.meta.ledgers);
    // The hour of the merges 19 to 22 has two that the copy had, as one slice: it has all anew.
    assert_eq!((slices(&disk).len(), slices(&copy)), (22, slices(&disk)));
    assert_eq!(problems(&copy), Vec::<String>::new());
}

/// Whatever fails while a copy is brought up to date, the copy is the state of some merge.
#[test]
fn every_failure_of_an_update_leaves_a_state_that_was() {
    let (disk, mut writer) = merged(4);
    let old = epoch_of(&open(&disk)).unwrap();
    for merge in 5..=8 {
        writer.merge(&full_delta(NOW + merge * 600, 1)).unwrap();
    }
    let new = epoch_of(&open(&disk)).unwrap();
    let mut states = std::collections::BTreeSet::new();
    for k in 0.. {
        let copy = target();
        let database = open(&copy);
        copy_epoch(&old, &database).unwrap();
        copy.stop_after(k);
        let done = copy_epoch(&new, &database).is_ok();
        copy.heal();
        let state = read_only_epoch(&copy);
        states.insert(state.meta.merges);
        assert!(epoch_of(&open(&copy)).unwrap().check_ledgers().is_ok(), "{k}");
        copy_epoch(&new, &database).unwrap();
        assert_eq!(read_only_epoch(&copy).profiles, read_only_epoch(&disk).profiles, "{k}");
        assert_eq!(problems(&copy), Vec::<String>::new(), "{k}");
        if done {
            break;
        }
    }
    assert_eq!(states, (4..=8).collect());
}

/// Slices of two hosts that begin and end together stay apart, and so does the time between two
/// epochs; slices that overlap in part become one.
#[test]
fn a_merge_has_the_sums_of_each_slice() {
    let of_full = |count: u64| count + 1;
    let [a, b, shifted, later] = [
        of_host("a", 0, &[600, 1200, 1800]),
        of_host("b", 0, &[600, 1200, 1800]),
        of_host("c", 900, &[1500]),
        of_host("a", 9000, &[9600]),
    ];
    let merged = |epochs: &[Epoch]| {
        let disk = target();
        merge_epochs(epochs, &open(&disk), "sum", None, &Facts::default()).unwrap();
        assert_eq!(problems(&disk), Vec::<String>::new());
        disk
    };
    let sum = merged(&[later.clone(), a.clone(), b.clone()]);
    for (stretch, expected) in [
        ((0, 600), Some(2 * of_full(1))),
        ((700, 800), Some(2 * of_full(2))),
        ((600, 1800), Some(2 * (of_full(2) + of_full(3)))),
        ((0, 10_000), Some(2 * (of_full(1) + of_full(2) + of_full(3)) + of_full(1))),
        ((9000, 9001), Some(of_full(1))),
        ((1800, 9000), Some(0)),
    ] {
        assert_eq!(samples(&sum, "sum", stretch), expected, "{stretch:?}");
    }
    // The second and third slice have a part of the one that began at 900.
    let sum = merged(&[a, shifted]);
    let both = of_full(2) + of_full(3) + of_full(1);
    for (stretch, expected) in
        [((0, 600), Some(of_full(1))), ((600, 700), Some(both)), ((1700, 1800), Some(both))]
    {
        assert_eq!(samples(&sum, "sum", stretch), expected, "{stretch:?}");
    }
}
