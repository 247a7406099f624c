//! What slices of ten seconds cost, on simulated hosts.

use std::collections::BTreeMap;

use image::ImageOffset;
use model::Profile;
use profiledb::{Database, Delta, Epoch, EpochStart, ProfileKey, Scope, Writer};

use crate::{EVENTS, NOW, PERIOD, Random, close, event, image_id, mega, record};

/// Hours of merges every ten seconds, on hosts of several sizes.
pub fn hours() {
    for (cpus, procedures, all) in [(2, 200, 400), (4, 300, 1200), (4, 1000, 4000)] {
        hour(cpus, procedures, all);
    }
}

/// An hour of a host whose CPUs all work, at dcpid's highest rate: in each slice this many
/// procedures of so many, in images of a hundred procedures.
fn hour(cpus: u64, procedures: u64, all: u64) {
    let mut random = Random(88172645463325252);
    let directory = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(directory.path(), "bench").unwrap();
    // As the clock's hour begins.
    let began = NOW / 3600 * 3600;
    let id = writer.begin(of_hour(began), false).unwrap();
    let (mut merged_bytes, mut merge_ns, mut fold_ns, mut places, mut folded_bytes) =
        (0, 0, 0, 0, 0);
    for merge in 1..=360 {
        let now = began + merge * 10;
        let delta = ten_seconds(now, merge, (cpus * 52_000, procedures, all), &mut random);
        places += delta.profiles.values().map(model::Counts::len).sum::<usize>();
        let begun = cpu_ns();
        merged_bytes += writer.merge(&delta).unwrap().bytes_written;
        let merged = cpu_ns();
        loop {
            let folded = writer.fold(128 << 10, now).unwrap();
            folded_bytes += folded.written_bytes;
            if !folded.more {
                break;
            }
        }
        (merge_ns, fold_ns) = (merge_ns + merged - begun, fold_ns + cpu_ns() - merged);
    }
    let begun = cpu_ns();
    writer.seal(began + 3600).unwrap();
    fold_ns += cpu_ns() - begun;
    let epoch = Database::open(directory.path()).unwrap().epoch("bench", &id).unwrap();
    let bytes = epoch.size_bytes().unwrap();
    let longest = epoch.slices().iter().map(|one| one.until_unix_s - one.since_unix_s).max();
    let without = in_tens_of_minutes(&epoch, began);
    println!(
        "an hour of {cpus} CPUs at 5200 samples/s, {procedures} of {all} procedures in a slice, {} \
         places: {} in slices of {} s, {} without, so {} for slices (at most 1 MB); {} written by \
         merges, {} by folds; CPU time {:.2} ms a merge, {:.2} ms for its folds: {:.3} % of a CPU",
        places / 360,
        mega(bytes),
        longest.unwrap(),
        mega(without),
        mega(bytes - without),
        mega(merged_bytes),
        mega(folded_bytes),
        merge_ns as f64 / 1e6 / 360.0,
        fold_ns as f64 / 1e6 / 360.0,
        (merge_ns + fold_ns) as f64 / 1e7 / 3600.0,
    );
}

fn of_hour(began: u64) -> EpochStart {
    EpochStart { events: vec![event(EVENTS[0])], now_unix_s: began, ..EpochStart::default() }
}

/// What a merge of ten seconds adds, drawn by Zipf's law: of procedures, of which half change every
/// three minutes, and of twenty places in each.
fn ten_seconds(
    now: u64,
    merge: u64,
    (samples, procedures, all): (u64, u64, u64),
    random: &mut Random,
) -> Delta {
    const PLACES: u64 = 20;
    let phase = merge / 18 * (procedures / 2);
    let mut zipf = |n: u64| {
        let unit = (random.below(1 << 30) as f64 + 0.5) / f64::from(1 << 30);
        (((n + 1) as f64).powf(unit) as u64 - 1).min(n - 1)
    };
    let mut profiles: BTreeMap<ProfileKey, BTreeMap<ImageOffset, u64>> = BTreeMap::new();
    for _ in 0..samples {
        let procedure = (phase + zipf(procedures)) % all;
        let place = procedure * 7919 % 100_000 * 512 + zipf(PLACES) * 4;
        let image = image_id(usize::try_from(procedure / 100).unwrap());
        let key = ProfileKey::samples(image, EVENTS[0], PERIOD, Scope::default());
        *profiles.entry(key).or_default().entry(ImageOffset(place)).or_default() += 1;
    }
    let images = profiles.keys().map(|key| (key.image, record(key.image, now)));
    let mut delta = Delta { now_unix_s: now, images: images.collect(), ..Delta::default() };
    delta.profiles = profiles
        .into_iter()
        .map(|(key, counts)| (key, Profile::from_counts(counts).into()))
        .collect();
    close(&mut delta);
    delta
}

/// Bytes of the same hour in segments of ten minutes each, without slices.
fn in_tens_of_minutes(epoch: &Epoch, began: u64) -> u64 {
    let target = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(target.path(), "bench").unwrap();
    let id = writer.begin(of_hour(began), false).unwrap();
    for since_unix_s in (0..6).map(|ten| began + ten * 600) {
        let until_unix_s = since_unix_s + 600;
        let part = epoch.during(profiledb::Stretch { since_unix_s, until_unix_s }).unwrap();
        let images = part.images().unwrap();
        let mut delta = Delta { now_unix_s: until_unix_s, images, ..Delta::default() };
        for key in part.profiles().unwrap() {
            delta.profiles.insert(key.clone(), part.counts(&key).unwrap());
        }
        close(&mut delta);
        writer.merge(&delta).unwrap();
    }
    Database::open(target.path()).unwrap().epoch_bytes("bench", &id).unwrap()
}

/// CPU time of this thread so far, in ns.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}
