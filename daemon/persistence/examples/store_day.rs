//! A day of the code store, simulated: the samples of a real database, taken again and again as
//! fast as the librarian copies. `store_day DB HOURS whole|paid [PART...]` prints the bytes of the
//! store by hour, of files with one of these parts in their path, or of all.
//!
//! An image has samples at the rate that the database says. A sample lands where one of the
//! database landed, or, with the chance of Good and Turing (the share of places that were seen
//! once), at a place of the file's code that had none. So a short recording of a program with much
//! code does not end with the procedures that it saw. Files must be where they were.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "an experiment prints, and ends where something is wrong"
)]

use address_spaces::library::{Library, Offer, Wanted};
use image::{Binary, ImageId, ImageKind, ImageOffset};
use inspect::file_catalogue::Catalogue;
use inspect::open_mapped::MappedAt;
use inspect::pool::Inspectors;
use inspect::questions::FileAt;
use kernel::MappedFileId;
use kernel::latin1::Bytes;
use model::{Counts, Profile};
use persistence::librarian::{Librarian, StoreLimits};
use profiledb::{CodeStore, Database, Delta, ProfileKey, Writer};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Simulated seconds between two merges. A day of merges every ten seconds would take as long as
/// their copies.
const STEP_S: u64 = 300;
const LIMIT: u64 = 512 << 20;

struct Sampled {
    id: ImageId,
    path: String,
    /// Places, and the sum of samples up to each.
    places: Vec<(ImageOffset, u64)>,
    /// Of a million samples, those at new places.
    new_ppm: u64,
    code: Vec<std::ops::Range<u64>>,
    offer: Arc<Offer>,
}

/// Knuth's MMIX generator: the same day each time.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 16) % limit.max(1)
    }
}

impl Sampled {
    fn of(db: &Database, host: &str) -> (Vec<Self>, u64) {
        let mut counts: BTreeMap<ImageId, BTreeMap<ImageOffset, u64>> = BTreeMap::new();
        let (mut paths, mut seconds) = (BTreeMap::new(), 0);
        for epoch in db.epochs(host).unwrap() {
            let epoch = db.epoch(host, &epoch).unwrap();
            seconds += epoch.meta().updated_unix_s - epoch.meta().started_unix_s;
            let is_file = |kind| kind == ImageKind::File;
            let images = epoch.images().unwrap().into_values();
            let files = images.filter(|image| is_file(image.kind));
            paths.extend(files.map(|image| (image.id, image.path)));
            for key in epoch.profiles().unwrap() {
                let of = counts.entry(key.image).or_default();
                for (offset, count) in epoch.profile(&key).unwrap().iter() {
                    *of.entry(offset).or_default() += count;
                }
            }
        }
        let new = |(id, path): (ImageId, String)| {
            let counts = counts.get(&id)?;
            let binary = Binary::open(Path::new(&path), Some(&id)).ok()?;
            let code = binary.layout().segments().iter().filter(|segment| segment.executable);
            let code = code.map(|one| one.offset.0..one.offset.0 + one.file_size_bytes).collect();
            let total: u64 = counts.values().sum();
            let once = counts.values().filter(|count| **count == 1).count() as u64;
            let mut sum = 0;
            let add = |(offset, count): (&ImageOffset, &u64)| {
                sum += count;
                (*offset, sum)
            };
            let places = counts.iter().map(add).collect();
            let new_ppm = once * 1_000_000 / total.max(1);
            Some(Self { id, path, places, new_ppm, code, offer: Arc::default() })
        };
        (paths.into_iter().filter_map(new).collect(), seconds.max(1))
    }

    fn total(&self) -> u64 {
        self.places.last().map_or(0, |(_, sum)| *sum)
    }

    fn sample(&self, random: &mut Random) -> ImageOffset {
        if random.below(1_000_000) < self.new_ppm && !self.code.is_empty() {
            let code = &self.code[random.below(self.code.len() as u64) as usize];
            return ImageOffset(code.start + random.below(code.end - code.start));
        }
        let at = random.below(self.total());
        self.places[self.places.partition_point(|(_, sum)| *sum <= at)].0
    }

    fn wanted(&self) -> Wanted {
        let facts = Path::new(&self.path).metadata().unwrap();
        let (major, minor) =
            (nix::sys::stat::major(facts.dev()) as u32, nix::sys::stat::minor(facts.dev()) as u32);
        let id = MappedFileId::Inode { major, minor, inode: facts.ino() };
        let at = MappedAt { pid: std::process::id(), start: 0, end: 0 };
        let file = FileAt { id, path: Bytes(self.path.clone().into_bytes()), at };
        Wanted { id: self.id, kind: ImageKind::File, file }
    }
}

fn settle(library: &Library) {
    let begin = Instant::now();
    let mut last = (Instant::now(), (u64::MAX, 0));
    while begin.elapsed() < Duration::from_secs(60) {
        let status = library.status().unwrap();
        let now = (status.waiting, status.bytes);
        if now != last.1 {
            last = (Instant::now(), now);
        }
        if now.0 == 0 && last.0.elapsed() > Duration::from_millis(50) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (db, hours) = (Path::new(&arguments[0]), arguments[1].parse::<u64>().unwrap());
    let whole = arguments[2] == "whole";
    let parts = &arguments[3..];
    let db = Database::open(db).unwrap();
    let host = db.hosts().unwrap().remove(0);
    let (mut images, seconds) = Sampled::of(&db, &host);
    images.retain(|image| {
        parts.is_empty() || parts.iter().any(|part| image.path.contains(part.as_str()))
    });
    let samples: u64 = images.iter().map(Sampled::total).sum();
    println!("{} images, {samples} samples in {seconds} s", images.len());
    let directory = tempfile::tempdir().unwrap();
    let writer = Writer::open(directory.path(), "here").unwrap();
    let store = CodeStore::open(&writer, LIMIT).unwrap();
    let limits = StoreLimits { bytes: LIMIT, cpu_share: None, private: true, whole };
    let started =
        Librarian::start(Catalogue::default(), Some(store), limits, Inspectors::default());
    let (librarian, library) = started.unwrap();
    let (mut random, mut taken) = (Random(1), 0);
    for step in 1..=hours * 3600 / STEP_S {
        let mut delta = Delta::default();
        for image in &images {
            // Whole samples, and the rest by chance.
            let expected = image.total() * STEP_S;
            let more = u64::from(random.below(seconds) < expected % seconds);
            let count = expected / seconds + more;
            if count == 0 {
                continue;
            }
            if library.wants(&image.offer) {
                library.offer(image.wanted(), &image.offer);
            }
            let drawn = (0..count).map(|_| (image.sample(&mut random), 1));
            let counts = Counts::Places(Profile::from_counts(drawn));
            let key = ProfileKey::samples(image.id, "cpu-clock", 1, Default::default());
            delta.profiles.insert(key, counts);
            taken += count;
        }
        library.sampled(&delta);
        settle(&library);
        let minutes = step * STEP_S / 60;
        if [5, 10, 20, 40].contains(&minutes)
            || (minutes.is_multiple_of(60) && (minutes / 60).is_power_of_two())
            || minutes == hours * 60
        {
            let status = library.status().unwrap();
            println!(
                "{minutes:5} min: {:6.1} MB of {:3} images, {:5.1} bytes a sample",
                status.bytes as f64 / 1e6,
                status.images,
                status.bytes as f64 / taken as f64
            );
        }
    }
    librarian.finish();
}
