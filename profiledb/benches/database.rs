//! What the database costs, on profiles that were really recorded: `cargo bench -p profiledb
//! --bench database -- DATABASE [--week DIR] [--perf-bytes N --perf-samples N]`, where the
//! simulated week is kept in DIR, and one with call stacks in DIR.stacks; neither must be there
//! yet. `cargo xtask bench db` records them, starts this, and reads the weeks with `dcpi`. With
//! `--hour` alone: what slices of ten seconds cost on a simulated host.
#![allow(clippy::print_stdout, reason = "a benchmark prints")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a measurement that meets the unexpected is to end"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use flate2::{Compression, write::GzEncoder};
use image::{ImageId, ImageOffset};
use model::{Frame, Ledger, Profile, Stacks};
use profiledb::codec::put_varint;
use profiledb::shapes::{decode_samples, encode_samples, encode_stacks};
use profiledb::{
    Database, Delta, Epoch, EpochId, EpochStart, EventMeta, ImageRecord, ProfileKey, Retention,
    Scope, StacksKey, Writer, copy_host, seal,
};

mod hour;

const IMAGES: usize = 480;
const EVENTS: [&str; 2] = ["cycles", "L1-icache-load-misses"];
/// A merge every ten minutes for a week.
const MERGES: u64 = 7 * 24 * 6;
const MERGE_S: u64 = 600;
const NOW: u64 = 1_763_697_753;
/// A week of the paper's: 13 MB (SOSP 1997, table 5), its next format a third of that.
const PAPER_BYTES: f64 = 13e6;

fn main() {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    hour::hours();
    if arguments.iter().any(|argument| argument == "--hour") {
        return;
    }
    let Some(path) = arguments.first() else {
        println!("name a database with a recorded epoch; cargo xtask bench db records one");
        return;
    };
    let database = Database::open(Path::new(path)).unwrap();
    let mut recorded = None;
    for host in database.hosts().unwrap() {
        for id in database.epochs(&host).unwrap() {
            let epoch = database.epoch(&host, &id).unwrap();
            let entries: usize = profiles(&epoch).values().map(Profile::len).sum();
            if recorded.as_ref().is_none_or(|(most, _)| *most < entries) {
                recorded = Some((entries, epoch));
            }
        }
    }
    let (_, epoch) = recorded.expect("an epoch was recorded");
    let real = profiles(&epoch);
    let mut random = Random(88172645463325252);
    coding(&real);
    let option = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        Some(arguments.get(at + 1).expect("a value behind each option").clone())
    };
    let number = |name: &str| option(name).map(|number| number.parse::<u64>().unwrap());
    beside(&epoch, &real, number("--perf-bytes").zip(number("--perf-samples")));
    merging(&mut random);
    let temporary = tempfile::tempdir().unwrap();
    let place = option("--week").map_or_else(|| temporary.path().join("week"), PathBuf::from);
    std::fs::create_dir(&place).unwrap();
    week(&real, None, &mut random, &place);
    let stacks = stacks(&epoch, &real);
    if !stacks.is_empty() {
        let with_stacks = place.with_extension("stacks");
        std::fs::create_dir(&with_stacks).unwrap();
        println!("with call stacks:");
        week(&real, Some(&stacks), &mut random, &with_stacks);
    }
}

/// What the call stacks of an epoch take. Those of time on CPUs, with the images of the simulated
/// week.
fn stacks(epoch: &Epoch, real: &BTreeMap<ProfileKey, Profile>) -> Stacks {
    let mut on_cpu = Stacks::new();
    for key in epoch.stacks_keys() {
        let stacks = epoch.stacks(&key).unwrap();
        let (bytes, _) = encode_stacks(&stacks);
        let contexts: BTreeSet<_> = stacks.values().map(|(node, ..)| node).collect();
        println!(
            "call stacks of {}: {} distinct, {} nodes, {} bytes: {:.1} a stack",
            key.event,
            contexts.len(),
            stacks.len(),
            bytes.len(),
            bytes.len() as f64 / contexts.len().max(1) as f64
        );
        if real.keys().any(|profile| profile.name() == key.event) {
            on_cpu.merge(&stacks);
        }
    }
    let mut largest: Vec<_> = real.iter().collect();
    largest.sort_by_key(|(_, profile)| std::cmp::Reverse(profile.len()));
    let mut numbers = BTreeMap::new();
    for (key, _) in largest {
        let number = numbers.len() % IMAGES;
        numbers.entry(key.image).or_insert(number);
    }
    let mut simulated = Stacks::new();
    for (node, thread, value) in on_cpu.values() {
        let mut frames: Vec<Frame> = on_cpu.frames(node).collect();
        frames.reverse();
        for frame in &mut frames {
            if let Frame::Code(image, _) = frame {
                *image = image_id(numbers.get(image).copied().unwrap_or(IMAGES - 1));
            }
        }
        simulated.add_stack(frames, thread, value);
    }
    simulated
}

/// A tenth of the call stacks, by chance.
fn some(stacks: &Stacks, random: &mut Random) -> Stacks {
    let mut some = Stacks::new();
    for (node, thread, value) in stacks.values() {
        if random.below(10) == 0 {
            let mut frames: Vec<Frame> = stacks.frames(node).collect();
            frames.reverse();
            some.add_stack(frames, thread, value);
        }
    }
    some
}

/// All profiles of an epoch, those of one image and event together.
fn profiles(epoch: &Epoch) -> BTreeMap<ProfileKey, Profile> {
    let mut all: BTreeMap<ProfileKey, Profile> = BTreeMap::new();
    // Samples of unknown code are not samples of an image.
    for key in epoch.profiles().unwrap().into_iter().filter(|key| !key.image.is_unresolved()) {
        let unscoped = ProfileKey { scope: Scope::default(), ..key.clone() };
        all.entry(unscoped).or_default().merge(&epoch.profile(&key).unwrap());
    }
    all
}

/// Bytes an entry, and how fast it is read.
fn coding(real: &BTreeMap<ProfileKey, Profile>) {
    let entries: usize = real.values().map(Profile::len).sum();
    let samples: u64 = real.values().map(Profile::total).sum();
    println!(
        "recorded: {} profiles, {entries} distinct (image, event, offset), {samples} samples",
        real.len()
    );
    let (mut encoding, mut decoding, mut bytes) = (f64::INFINITY, f64::INFINITY, 0);
    for _ in 0..5 {
        let started = Instant::now();
        let sections: Vec<Vec<u8>> = real.values().map(encode_samples).collect();
        encoding = encoding.min(started.elapsed().as_secs_f64());
        bytes = sections.iter().map(Vec::len).sum();
        let started = Instant::now();
        for (section, profile) in sections.iter().zip(real.values()) {
            assert_eq!(decode_samples(section, profile.len() as u64).unwrap().len(), profile.len());
        }
        decoding = decoding.min(started.elapsed().as_secs_f64());
    }
    let million = entries as f64 / 1e6;
    let each = bytes as f64 / entries as f64;
    println!(
        "  {each:.3} bytes an entry (at most 2), encoded {:.1} M/s, decoded {:.1} M/s (at least \
        30)",
        million / encoding,
        million / decoding
    );
}

/// The same counts in other formats.
fn beside(epoch: &Epoch, real: &BTreeMap<ProfileKey, Profile>, perf: Option<(u64, u64)>) {
    let entries: usize = real.values().map(Profile::len).sum();
    let samples: u64 = real.values().map(Profile::total).sum();
    let ours = rewritten(real);
    println!("the same counts, {samples} samples at {entries} places:");
    println!("  {:<62} {:>12} {:>9} {:>9} {:>6}", "", "bytes", "a place", "a sample", "ratio");
    let row = |name: &str, bytes: u64, samples: u64| {
        let (of_entries, of_samples) =
            (bytes as f64 / entries as f64, bytes as f64 / samples as f64);
        let ratio = bytes as f64 / ours as f64;
        println!("  {name:<62} {bytes:>12} {of_entries:>9.2} {of_samples:>9.3} {ratio:>6.2}");
    };
    row("this format, one segment, with names, ids and ledgers", ours, samples);
    row(
        "the recorded epoch as it lies there, with the kernel's names",
        epoch.size_bytes().unwrap(),
        samples,
    );
    row("format 1, a file for each profile", format1_like(real), samples);
    row("pprof, gzip, addresses only, without any name", pprof_like(real), samples);
    if let Some((bytes, samples)) = perf {
        row(&format!("perf record -a of the same minutes ({samples} samples)"), bytes, samples);
    }
}

/// Bytes of an epoch that has exactly these profiles.
fn rewritten(real: &BTreeMap<ProfileKey, Profile>) -> u64 {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(directory.path(), "bench").unwrap();
    let events: Vec<EventMeta> = {
        let mut names: Vec<&str> = real.keys().map(ProfileKey::name).collect();
        names.sort();
        names.dedup();
        names.iter().map(|name| event(name)).collect()
    };
    let id = writer
        .begin(EpochStart { events, now_unix_s: NOW, ..EpochStart::default() }, false)
        .unwrap();
    let images = real.keys().map(|key| (key.image, record(key.image, 0)));
    let mut delta = Delta {
        profiles: real.iter().map(|(key, counts)| (key.clone(), counts.clone().into())).collect(),
        images: images.collect(),
        now_unix_s: NOW,
        ..Delta::default()
    };
    close(&mut delta);
    writer.merge(&delta).unwrap();
    writer.seal(NOW).unwrap();
    Database::open(directory.path()).unwrap().epoch("bench", &id).unwrap().size_bytes().unwrap()
}

/// A file of 32 bytes and names, and two plain numbers an entry.
fn format1_like(real: &BTreeMap<ProfileKey, Profile>) -> u64 {
    let bytes = real.iter().map(|(key, profile)| {
        let mut out = Vec::new();
        let mut last = 0;
        for (offset, count) in profile.iter() {
            put_varint(&mut out, offset.0 - last);
            put_varint(&mut out, count);
            last = offset.0;
        }
        32 + key.image.to_string().len() + key.name().len() + 4 + out.len()
    });
    bytes.sum::<usize>() as u64
}

/// A profile.proto (github.com/google/pprof) of addresses without names: a location and a sample
/// for each entry, then gzip.
fn pprof_like(real: &BTreeMap<ProfileKey, Profile>) -> u64 {
    let mut out = Vec::new();
    let mut message = |field: u64, numbers: &[(u64, u64)]| {
        let mut inner = Vec::new();
        for (number, value) in numbers {
            put_varint(&mut inner, number << 3);
            put_varint(&mut inner, *value);
        }
        put_varint(&mut out, field << 3 | 2);
        put_varint(&mut out, inner.len() as u64);
        out.extend(inner);
    };
    let mut location = 0;
    for (mapping, profile) in (1..).zip(real.values()) {
        message(3, &[(1, mapping), (5, mapping)]);
        for (offset, count) in profile.iter() {
            location += 1;
            message(4, &[(1, location), (2, mapping), (3, offset.0)]);
            message(2, &[(1, location), (2, count)]);
        }
    }
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(&out).unwrap();
    gzip.finish().unwrap().len() as u64
}

/// Adding up a million counts.
fn merging(random: &mut Random) {
    const COUNTS: u64 = 1_000_000;
    let mut profile = |stride: u64| {
        let offsets = (0..COUNTS)
            .map(|n| (ImageOffset(n * stride + random.below(stride)), 1 + random.below(9)));
        Profile::from_counts(offsets)
    };
    let (base, added) = (profile(4), profile(4));
    let mut best = f64::INFINITY;
    for _ in 0..10 {
        let mut sum = base.clone();
        let started = Instant::now();
        sum.merge(&added);
        best = best.min(started.elapsed().as_secs_f64());
        assert!(sum.total() == base.total() + added.total());
    }
    println!(
        "merging {COUNTS} counts into as many: {:.0} M/s (at least 20)",
        COUNTS as f64 / 1e6 / best
    );
}

/// A week of merges: 480 images, 2 events, as many distinct offsets as were recorded, and a tenth
/// of the call stacks in each.
fn week(
    real: &BTreeMap<ProfileKey, Profile>,
    stacks: Option<&Stacks>,
    random: &mut Random,
    place: &Path,
) {
    let images = simulated(real);
    let entries: usize = images.iter().flatten().map(Profile::len).sum();
    println!(
        "a week: {IMAGES} images, {} events, {entries} distinct offsets, {MERGES} merges",
        EVENTS.len()
    );
    let mut writer = Writer::open(place, "bench").unwrap();
    let events = EVENTS.map(event).to_vec();
    let id = writer
        .begin(EpochStart { events, now_unix_s: NOW, ..EpochStart::default() }, false)
        .unwrap();
    let path = place.join("hosts/bench").join(id.as_str());
    let (mut merged_bytes, mut folded_bytes, mut longest_merge, mut longest_fold, mut most_files) =
        (0, 0, 0.0_f64, 0.0_f64, 0);
    let mut spent = 0.0;
    for merge in 0..MERGES {
        let mut delta = ten_minutes(&images, merge, random);
        if let Some(stacks) = stacks {
            let some = some(stacks, random);
            for frame in some.distinct_frames() {
                if let Frame::Code(image, _) = frame {
                    let seen = record(*image, NOW + merge * MERGE_S);
                    delta.images.entry(*image).or_insert(seen);
                }
            }
            let key = StacksKey { event: EVENTS[0].to_owned(), scope: Scope::default() };
            delta.stacks.insert(key, some);
        }
        let started = Instant::now();
        merged_bytes += writer.merge(&delta).unwrap().bytes_written;
        let took = started.elapsed().as_secs_f64();
        longest_merge = longest_merge.max(took);
        spent += took;
        // Ten minutes have room for 600 of these.
        for _ in 0..600 {
            let started = Instant::now();
            let folded = writer.fold(128 << 10, NOW + merge * MERGE_S).unwrap();
            let took = started.elapsed().as_secs_f64();
            longest_fold = longest_fold.max(took);
            spent += took;
            folded_bytes += folded.written_bytes;
            if !folded.more {
                break;
            }
        }
        most_files = most_files.max(std::fs::read_dir(&path).unwrap().count());
    }
    println!(
        "  written: {} by merges (longest {:.1} ms), {} by folds (longest {:.1} ms); {:.2} s of time in a week; at most {most_files} files",
        mega(merged_bytes),
        longest_merge * 1e3,
        mega(folded_bytes),
        longest_fold * 1e3,
        spent
    );
    sizes(place, &id, &mut writer);
    let none = Retention { max_age_s: None, keep_newest: 0, max_bytes: None };
    assert!(writer.collect_garbage(&none, NOW).unwrap().is_empty());
}

/// What the week has, open and sealed.
fn sizes(root: &Path, id: &EpochId, writer: &mut Writer) {
    let database = Database::open(root).unwrap();
    let path = root.join("hosts/bench").join(id.as_str());
    for what in ["while it is open", "sealed"] {
        let epoch = database.epoch("bench", id).unwrap();
        let bytes = epoch.size_bytes().unwrap();
        let files =
            std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
        let (count, blocks) =
            files.fold((0, 0), |(count, blocks), file| (count + 1, blocks + file.blocks() * 512));
        let (mut best, mut opened) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..5 {
            let started = Instant::now();
            let epoch = database.epoch("bench", id).unwrap();
            opened = opened.min(started.elapsed().as_secs_f64());
            let mut sums: BTreeMap<(ImageId, String), u64> = BTreeMap::new();
            for key in epoch.profiles().unwrap() {
                let total = epoch.profile(&key).unwrap().total();
                *sums.entry((key.image, key.name().to_owned())).or_default() += total;
            }
            assert!(sums.len() <= IMAGES * EVENTS.len());
            best = best.min(started.elapsed().as_secs_f64());
        }
        let found: usize = profiles(&epoch).values().map(Profile::len).sum();
        println!(
            "  {what}: {} ({:.2} times the paper's 13 MB; a third of it is 0.33), {} on the disk in {count} files; {found} entries, {:.2} bytes each; opened in {:.0} ms, and summed in {:.0} ms (at most 100)",
            mega(bytes),
            bytes as f64 / PAPER_BYTES,
            mega(blocks),
            bytes as f64 / found as f64,
            opened * 1e3,
            best * 1e3
        );
        if writer.epoch().is_some() {
            let started = Instant::now();
            writer.seal(NOW + MERGES * MERGE_S).unwrap();
            println!("  sealed in {:.0} ms", started.elapsed().as_secs_f64() * 1e3);
        } else {
            let one = tempfile::tempdir().unwrap();
            let target = one.path().join("db");
            drop(Writer::open(&target, "bench").unwrap());
            let copy = Database::open(&target).unwrap();
            copy_host(&database, "bench", &copy).unwrap();
            seal(&copy, "bench").unwrap();
            let copied = Database::open(&target).unwrap().epoch_bytes("bench", id).unwrap();
            println!("  as slices of a week: {}", mega(copied));
        }
    }
}

fn mega(bytes: u64) -> String {
    format!("{:.2} MB", bytes as f64 / 1e6)
}

/// The recorded profiles as those of 480 images, largest first: where fewer were recorded, the
/// smaller ones come again; the second event has samples at every fourth place. All together have
/// as many offsets as were recorded, or the largest are split.
fn simulated(real: &BTreeMap<ProfileKey, Profile>) -> Vec<[Profile; 2]> {
    let mut largest: Vec<&Profile> = real.values().collect();
    largest.sort_by_key(|profile| std::cmp::Reverse(profile.len()));
    largest.truncate(IMAGES);
    let half = largest.len() / 2;
    let again: Vec<&Profile> =
        largest[half..].iter().copied().cycle().take(IMAGES - largest.len()).collect();
    let fourth = |profile: &Profile| {
        let some = profile.iter().filter(|(offset, _)| (offset.0 >> 2) % 4 == 0);
        Profile::from_counts(some.map(|(offset, count)| (offset, count.div_ceil(8))))
    };
    largest.into_iter().chain(again).map(|profile| [profile.clone(), fourth(profile)]).collect()
}

/// What one merge adds: some of the images, of each a part of its offsets, more of those with many
/// samples.
fn ten_minutes(images: &[[Profile; 2]], merge: u64, random: &mut Random) -> Delta {
    let now = NOW + merge * MERGE_S;
    let mut delta = Delta { now_unix_s: now, ..Delta::default() };
    for (number, events) in images.iter().enumerate() {
        // The busy ones run always, the others now and then; in the last merges all that was
        // recorded has been seen.
        if number > 60 && random.below(5) > 0 {
            continue;
        }
        let id = image_id(number);
        for (event, profile) in EVENTS.iter().zip(events) {
            let mut counts = Vec::new();
            // A place of n samples a week is sampled in a merge with the chance n in so many.
            for (offset, count) in profile.iter() {
                let weight = count.saturating_mul(3).min(120);
                if random.below(120) < weight {
                    counts.push((offset, 1 + random.below(count.div_ceil(40))));
                }
            }
            if !counts.is_empty() {
                let key = ProfileKey::samples(id, event, PERIOD, Scope::default());
                delta.profiles.insert(key, Profile::from_counts(counts).into());
                delta.images.insert(id, record(id, now));
            }
        }
    }
    close(&mut delta);
    delta
}

fn image_id(number: usize) -> ImageId {
    ImageId::from_name(&format!("image {number}"), "bench")
}

fn record(id: ImageId, now: u64) -> ImageRecord {
    let name = format!("lib{}.so.6", &id.to_string()[5..13]);
    ImageRecord {
        id,
        kind: image::ImageKind::File,
        path: format!("/usr/lib/x86_64-linux-gnu/{name}"),
        name,
        size_bytes: Some(1_000_000 + u64::from(id.to_string().len() as u32)),
        first_seen_unix_s: now,
        last_seen_unix_s: now,
    }
}

/// Of all events, in cycles.
const PERIOD: u64 = 62_000;

fn event(name: &str) -> EventMeta {
    EventMeta {
        name: name.to_owned(),
        unit: "cycles".to_owned(),
        period: PERIOD,
        ..EventMeta::default()
    }
}

/// Ledgers that fit the profiles.
fn close(delta: &mut Delta) {
    for (key, profile) in &delta.profiles {
        let samples = profile.total();
        let ledger =
            Ledger { taken: samples, implied: samples, merged: samples, ..Ledger::default() };
        delta.ledgers.entry(key.name(), key.period()).add(&ledger);
    }
}

/// xorshift64 (Marsaglia 2003): the same numbers each time.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end.max(1)
    }
}
