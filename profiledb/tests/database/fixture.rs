//! Small databases, and all that can be read of one as a value to compare.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::simulated::SimulatedDisk;
use image::{ImageId, ImageKind, ImageOffset};
use model::{
    BranchRounds, Counted, Counts, Cut, EDGES, Edges, FIRST_EDGES, Frame, Ledger, Measure, Profile,
    ROUNDS, Stacks, Thread, Value, Values, Wait,
};
use profiledb::storage::Storage;
use profiledb::{
    Database, DbError, Delta, EpochId, EpochMeta, EpochStart, EventMeta, ImageRecord, Machine,
    ProfileKey, Scope, StacksKey, Symbol, Writer,
};

pub const HOST: &str = "node-7";
pub const EVENTS: [&str; 2] = ["cycles", "cpu/event=0x3c/"];
/// The period of both, as [`start`] describes it.
pub const PERIOD: u64 = 62_000;
/// Another, which samples of the first event have in [`full_delta`].
pub const FASTER: u64 = 31_000;
/// 2025-11-21 04:02:33 UTC.
pub const NOW: u64 = 1_763_697_753;

pub fn root() -> PathBuf {
    PathBuf::from("/db")
}

pub fn image(number: u8) -> ImageId {
    ImageId::from_build_id(&[number + 1; 20]).unwrap()
}

pub fn key(number: u8, event: &str) -> ProfileKey {
    scoped(number, event, None)
}

pub fn scoped(number: u8, event: &str, label: Option<&str>) -> ProfileKey {
    let scope = Scope { label: label.map(str::to_owned), ..Scope::default() };
    ProfileKey::samples(image(number), event, PERIOD, scope)
}

pub fn record(number: u8, seen: u64) -> ImageRecord {
    ImageRecord {
        id: image(number),
        kind: ImageKind::File,
        name: format!("prog{number}"),
        path: format!("/usr/bin/prog{number}"),
        size_bytes: Some(1000 + u64::from(number)),
        first_seen_unix_s: seen,
        last_seen_unix_s: seen,
    }
}

pub fn symbol(start: u64, end: u64, name: &str) -> Symbol {
    Symbol { start, end, name: name.to_owned() }
}

pub fn start(now_unix_s: u64) -> EpochStart {
    let event = |name: &str| EventMeta {
        name: name.to_owned(),
        unit: "cycles".to_owned(),
        period: PERIOD,
        ..EventMeta::default()
    };
    EpochStart {
        label: None,
        machine: Machine {
            arch: "x86_64".to_owned(),
            cpu_model: "Test CPU".to_owned(),
            cpus: 2,
            kernel_release: "6.18.0".to_owned(),
            kernel_build_id: None,
            boot_id: "boot-1".to_owned(),
        },
        events: EVENTS.map(event).to_vec(),
        now_unix_s,
        writer_version: "1.2.3".to_owned(),
    }
}

/// A delta with these samples (image, event, offset, count), whose ledgers close.
pub fn delta(now_unix_s: u64, samples: &[(u8, &str, u64, u64)]) -> Delta {
    let mut delta = Delta { now_unix_s, ..Delta::default() };
    for (number, event, offset, count) in samples {
        add(
            &mut delta,
            key(*number, event),
            Profile::from_counts([(ImageOffset(*offset), *count)]),
        );
        let met = record(*number, now_unix_s);
        delta.images.insert(met.id, met);
        let ledger = delta.ledgers.entry(event, PERIOD);
        ledger.add(&Ledger { taken: *count, merged: *count, ..Ledger::default() });
    }
    delta
}

/// Adds counts to what a delta has of a key.
pub fn add(delta: &mut Delta, key: ProfileKey, counts: impl Into<Counts>) {
    let shape = key.measure.shape;
    assert!(delta.profiles.entry(key).or_insert(Counts::none(shape)).merge(&counts.into()));
}

/// Counts as samples by place.
pub fn profile(counts: &Counts) -> Profile {
    Profile::of(counts.clone()).unwrap()
}

/// Moves half of what a delta has of an image and event to a label.
pub fn label_half(delta: &mut Delta, number: u8, event: &str, label: &str) {
    let (mut mine, mut theirs) = (Profile::new(), Profile::new());
    for (offset, count) in profile(&delta.profiles[&key(number, event)]).iter() {
        mine.add(offset, count / 2);
        theirs.add(offset, count - count / 2);
    }
    delta.profiles.insert(key(number, event), mine.into());
    delta.profiles.insert(scoped(number, event, Some(label)), theirs.into());
}

/// Samples of unknown code of a labelled run, which the ledger has among its unresolved ones.
pub fn unknown_code(period: u64) -> ProfileKey {
    let image = ImageId::unresolved("prog0", "no mapping");
    let scope = scoped(0, EVENTS[0], Some("run")).scope;
    ProfileKey::samples(image, EVENTS[0], period, scope)
}

/// Stacks of two images that wait and run, each with this weight in ns.
pub fn stacks(weight: u64) -> Stacks {
    let mut stacks = Stacks::new();
    let thread = |pid| Thread { command: "prog0".to_owned(), pid, ..Thread::default() };
    let main = Frame::Code(image(0), ImageOffset(0x13));
    let called = Frame::Code(image(1), ImageOffset(0x7fff));
    stacks.add_stack([main, called], &thread(7), Value::of_one(weight));
    stacks.add_stack([main, called], &thread(0), Value::of_one(weight));
    stacks.add_stack([main, Frame::Wait(Wait::Pipe)], &thread(7), Value::of_one(weight));
    let cut = Frame::Cut(Cut::Truncated);
    stacks.add_stack([cut, called], &thread(0), Value::of_one(weight));
    stacks
}

/// A delta that has every sort of section: two images, two events, one of them of two periods, a
/// labelled run, code that is not known, symbols, edges, stacks, facts, a loss.
pub fn full_delta(now_unix_s: u64, count: u64) -> Delta {
    let mut delta = delta(
        now_unix_s,
        &[
            (0, EVENTS[0], 0x10, count),
            (0, EVENTS[0], 0x400, 1),
            (0, EVENTS[1], 0x10, 2),
            (1, EVENTS[0], 0x7fff, count + 1),
        ],
    );
    label_half(&mut delta, 1, EVENTS[0], "run");
    let symbols = vec![symbol(0x10, 0x20, "main"), symbol(count, count + 1, "jit")];
    delta.symbols.insert(image(0), symbols);
    let pair = |from, to| (ImageOffset(from), ImageOffset(to));
    let of = |measure| ProfileKey::of(image(0), measure);
    add(
        &mut delta,
        of(&EDGES),
        Edges::from_counts([(pair(0x14, 0x10), count), (pair(0x14, 0x18), 1)]),
    );
    add(&mut delta, of(&FIRST_EDGES), Edges::from_counts([(pair(0x14, 0x10), count / 2 + 1)]));
    let turns =
        |rounds| BranchRounds { branch: ImageOffset(0x14), jumps: true, rounds }.value().unwrap();
    add(
        &mut delta,
        of(&ROUNDS),
        Values::from_counts([(turns(7), 1), (turns(1000 + count), count)]),
    );
    delta.facts.state_value("skid", count.into());
    for label in [None, Some("run")] {
        let (event, scope) = ("off-cpu".to_owned(), scoped(0, EVENTS[0], label).scope);
        delta.stacks.insert(StacksKey { event, scope }, stacks(count * 1000));
    }
    let key = StacksKey { event: EVENTS[0].to_owned(), scope: Scope::default() };
    delta.stacks.insert(key, stacks(count << 20));
    let ledger = delta.ledgers.entry(EVENTS[0], PERIOD);
    ledger.taken += 3;
    ledger.unresolved.insert("no mapping".to_owned(), 2);
    ledger.lost.insert("table full".to_owned(), 1);
    let id = unknown_code(PERIOD).image;
    let kind = ImageKind::Unresolved;
    delta.images.insert(
        id,
        ImageRecord { id, kind, path: "no mapping".to_owned(), ..record(0, now_unix_s) },
    );
    add(&mut delta, unknown_code(PERIOD), Profile::from_counts([(ImageOffset(0), 1)]));
    let faster = ProfileKey::samples(image(0), EVENTS[0], FASTER, Scope::default());
    add(&mut delta, faster, Profile::from_counts([(ImageOffset(0x10), count)]));
    *delta.ledgers.entry(EVENTS[0], FASTER) =
        Ledger { taken: count, merged: count, ..Ledger::default() };
    delta
}

pub fn storage(disk: &SimulatedDisk) -> Arc<dyn Storage> {
    Arc::new(disk.clone())
}

pub fn writer(disk: &SimulatedDisk) -> Writer {
    Writer::open_on(storage(disk), &root(), HOST).unwrap()
}

impl EpochState {
    /// Samples of an event by place.
    pub fn samples(&self, key: &ProfileKey) -> Profile {
        profile(&self.profiles[key])
    }

    /// All samples.
    pub fn sampled(&self) -> u64 {
        let sampled = self.profiles.iter().filter(|(key, _)| key.measure.period().is_some());
        sampled.map(|(_, counts)| counts.total()).sum()
    }

    /// Observations of a measure in an image.
    pub fn observed<Shaped: Counted>(&self, measure: &Measure, image: ImageId) -> Shaped {
        Shaped::of(self.profiles[&ProfileKey::of(image, measure)].clone()).unwrap()
    }
}

/// Everything a reader gets of one epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct EpochState {
    pub meta: EpochMeta,
    pub images: BTreeMap<ImageId, ImageRecord>,
    pub scopes: Vec<Scope>,
    /// Of every measure.
    pub profiles: BTreeMap<ProfileKey, Counts>,
    pub symbols: BTreeMap<ImageId, Vec<Symbol>>,
    pub stacks: BTreeMap<StacksKey, Stacks>,
}

/// Everything a reader gets of a database, and that its ledgers fit its profiles.
pub fn read_database(
    database: &Database,
) -> Result<BTreeMap<(String, EpochId), EpochState>, DbError> {
    let mut all = BTreeMap::new();
    for host in database.hosts()? {
        for id in database.epochs(&host)? {
            let epoch = database.epoch(&host, &id)?;
            if let Some(damage) = epoch.damage().first() {
                return Err(DbError::Damaged { host, epoch: id, why: damage.to_string() });
            }
            let images = epoch.images()?;
            let scopes = epoch.scopes()?;
            let mut profiles = BTreeMap::new();
            for key in epoch.keys()? {
                let counts = epoch.counts(&key)?;
                assert_eq!(epoch.total(&key)?, counts.total());
                profiles.insert(key, counts);
            }
            let mut symbols = BTreeMap::new();
            for id in images.keys() {
                let found = epoch.symbols(id)?;
                if !found.is_empty() {
                    symbols.insert(*id, found);
                }
            }
            let mut stacks = BTreeMap::new();
            for key in epoch.stacks_keys() {
                let all = epoch.stacks(&key)?;
                stacks.insert(key, all);
            }
            epoch.check_ledgers()?;
            assert!(epoch.is_current()?);
            assert!(epoch.size_bytes()? > 0);
            let meta = epoch.meta().clone();
            let state = EpochState { meta, images, scopes, profiles, symbols, stacks };
            all.insert((host.clone(), id), state);
        }
    }
    Ok(all)
}

pub fn read(disk: &SimulatedDisk) -> Result<BTreeMap<(String, EpochId), EpochState>, DbError> {
    read_database(&Database::open_on(storage(disk), &root())?)
}

/// The only epoch of a database.
pub fn read_only_epoch(disk: &SimulatedDisk) -> EpochState {
    let all = read(disk).unwrap();
    assert_eq!(all.len(), 1);
    all.into_values().next().unwrap()
}

/// A database with one open epoch of two merges.
pub fn small_database() -> SimulatedDisk {
    let disk = SimulatedDisk::new();
    let mut writer = writer(&disk);
    writer.begin(start(NOW), false).unwrap();
    writer.merge(&full_delta(NOW + 10, 5)).unwrap();
    writer.merge(&full_delta(NOW + 20, 9)).unwrap();
    drop(writer);
    disk
}

/// The files of segments, by name.
pub fn segments(disk: &SimulatedDisk) -> Vec<PathBuf> {
    let files = disk.files().into_keys();
    files.filter(|path| path.extension().is_some_and(|ext| ext == "segment")).collect()
}

/// Folds until nothing is left to fold.
pub fn fold_all(writer: &mut Writer) {
    // The ten minutes that all merges are in are over.
    while writer.fold(1, NOW + 1200).unwrap().more {}
    // Long after, nothing is left for copies of the directory.
    writer.fold(1, NOW + 10_000).unwrap();
}

/// What `check` tells, a line each.
pub fn problems(disk: &SimulatedDisk) -> Vec<String> {
    let problems = profiledb::check_on(storage(disk), &root(), u64::MAX).unwrap();
    problems.iter().map(ToString::to_string).collect()
}

/// Names of files that only a crash leaves.
pub fn leftovers(disk: &SimulatedDisk) -> Vec<PathBuf> {
    let is_leftover = |path: &Path| path.extension().is_some_and(|ext| ext == "tmp");
    let files = disk.files().into_keys();
    files.filter(|path| is_leftover(path)).collect()
}
