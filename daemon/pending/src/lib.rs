//! Counts per (image, measure, scope, observation) that wait for the next merge, and the account of
//! every sample.
//!
//! [`Pending`] takes the counts of one drain after the other and becomes one [`Delta`] of the
//! database for each merge. It also adds up the [`Account`] of each event and period: taken =
//! merged + pending + unresolved + lost. The crate reads no clock, no file and no process; it knows
//! the shapes of the counts and the limits on them. Begin with [`Pending::count`]; `parts.rs` cuts
//! what is larger than a segment, `waiting_stacks.rs` keeps call stacks, of which [`processes`] has
//! the processes, and [`ledger`] has the accounts.

#![forbid(unsafe_code)]

pub mod ledger;
mod parts;
pub mod processes;
mod waiting_stacks;

pub use waiting_stacks::{StackEvent, WaitingStacks};

use crate::ledger::Account;
use address_spaces::mapped_files::Image;
use address_spaces::unknown_code::Owner;
use address_spaces::users::Payer;
use foldhash::fast::RandomState;
use image::{ImageId, ImageOffset};
use kernel::Counted;
use model::{
    Counts, Edges, Frame, Ledgers, Loss, Measure, Observation, Profile, Shape, Thread, Unresolved,
    Value, Values,
};
use profiledb::{Delta, ImageRecord, PeriodChange, ProfileKey, Scope, Symbol};
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::ops::Range;
use std::sync::Arc;

/// Most distinct places that wait, about 40 bytes each. When a disk accepts nothing for long,
/// samples are lost rather than the machine's memory.
pub const PLACES_MAX: usize = 2_000_000;

/// Distinct observations of measures other than samples (edges, rounds of loops) that may wait,
/// about 50 bytes each; an observation that finds no room is not counted.
pub const OBSERVATIONS_MAX: usize = 400_000;

/// Places that may wait in the images that one user brought, once half of [`PLACES_MAX`] wait: a
/// user's flood of places leaves room for everybody else's.
const USER_PLACES_MAX: usize = 500_000;

/// Images that wait for observations other than samples alone: those of a program that was seen
/// between two drains, whose samples come with the next. Beyond it their observations are not
/// counted.
const UNSAMPLED_MAX: usize = 1024;

/// Bytes that the names of procedures in the images of one user may have until the next merge, and
/// those of all. Beyond either procedures have no names. A kernel with its modules has some
/// kilobytes with samples, a large Java program a megabyte.
const USER_NAMES_BYTES_MAX: usize = 16 << 20;
const NAMES_BYTES_MAX: usize = 64 << 20;

/// The measure of a count: an event at a period, by its index in [`Pending::runs`], or another
/// measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Series {
    Run(usize),
    Observed(&'static Measure),
}

/// An image, a measure and, where the user asked to keep processes apart, the scope.
type Whose = (ImageId, Series, Option<Arc<Scope>>);

/// Unsorted counts, by place, pair of places, or number at a place.
#[derive(Debug)]
enum Waiting {
    Places(HashMap<ImageOffset, u64, RandomState>),
    Pairs(HashMap<(ImageOffset, ImageOffset), u64, RandomState>),
    Values(HashMap<(ImageOffset, i64), u64, RandomState>),
}

impl Waiting {
    fn of(shape: Shape) -> Self {
        match shape {
            Shape::Places => Self::Places(HashMap::default()),
            Shape::Pairs => Self::Pairs(HashMap::default()),
            Shape::Values => Self::Values(HashMap::default()),
        }
    }

    /// Counts an observation `times` times. False when the observation is new and there is no room,
    /// or is of another shape.
    fn count(&mut self, observation: Observation, times: u64, room: &mut Room) -> bool {
        match (self, observation) {
            (Self::Places(counts), Observation::Place(at)) => room.count(counts, at, times),
            (Self::Pairs(counts), Observation::Pair(from, to)) => {
                room.count(counts, (from, to), times)
            }
            (Self::Values(counts), Observation::Value(at, number)) => {
                room.count(counts, (at, number), times)
            }
            _ => false,
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Places(counts) => counts.is_empty(),
            Self::Pairs(counts) => counts.is_empty(),
            Self::Values(counts) => counts.is_empty(),
        }
    }

    /// The sum of all counts.
    fn total(&self) -> u64 {
        match self {
            Self::Places(counts) => counts.values().sum(),
            Self::Pairs(counts) => counts.values().sum(),
            Self::Values(counts) => counts.values().sum(),
        }
    }

    /// Each observation with its count.
    fn iter(&self) -> Box<dyn Iterator<Item = (Observation, u64)> + '_> {
        match self {
            Self::Places(counts) => {
                Box::new(counts.iter().map(|(at, n)| (Observation::Place(*at), *n)))
            }
            Self::Pairs(counts) => {
                Box::new(counts.iter().map(|((from, to), n)| (Observation::Pair(*from, *to), *n)))
            }
            Self::Values(counts) => Box::new(
                counts.iter().map(|((at, number), n)| (Observation::Value(*at, *number), *n)),
            ),
        }
    }

    /// The counts sorted, as the database needs them.
    fn counts(&self) -> Counts {
        match self {
            Self::Places(counts) => {
                Profile::from_counts(counts.iter().map(|(key, n)| (*key, *n))).into()
            }
            Self::Pairs(counts) => {
                Edges::from_counts(counts.iter().map(|(key, n)| (*key, *n))).into()
            }
            Self::Values(counts) => {
                Values::from_counts(counts.iter().map(|(key, n)| (*key, *n))).into()
            }
        }
    }
}

/// Number of distinct observations that wait, and the limit on it.
#[derive(Debug)]
struct Room {
    used: usize,
    max: usize,
}

impl Room {
    fn count<K: Eq + Hash>(
        &mut self,
        counts: &mut HashMap<K, u64, RandomState>,
        key: K,
        times: u64,
    ) -> bool {
        if let Some(count) = counts.get_mut(&key) {
            *count += times;
        } else if self.used < self.max {
            counts.insert(key, times);
            self.used += 1;
        } else {
            return false;
        }
        true
    }
}

/// A stretch of time in which an event has one period, with its account.
#[derive(Clone, Debug)]
struct Run {
    /// The event's number.
    event: usize,
    /// Mean distance of its samples, in the event's unit.
    period: u64,
    account: Account,
}

/// An image that waits for the merge, and the user whose limits it counts against.
#[derive(Clone, Debug)]
struct PendingImage {
    image: Arc<Image>,
    payer: Payer,
}

/// The waiting counts of one user's images.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    places: usize,
    names_bytes: usize,
}

/// The counts that one merge will add to the epoch.
#[derive(Debug)]
pub struct Pending {
    profiles: HashMap<Whose, Waiting, RandomState>,
    images: HashMap<ImageId, PendingImage, RandomState>,
    /// Images that have no samples.
    unsampled: usize,
    used: HashMap<Payer, Used>,
    names_bytes: usize,
    symbols: HashMap<ImageId, BTreeMap<u64, Symbol>, RandomState>,
    /// The periods of events in the order in which they came into force; the first ones by event
    /// number.
    runs: Vec<Run>,
    /// Index of the run in force of each event, by event number.
    now: Vec<usize>,
    /// Changes of periods, in order of time.
    changes: Vec<(usize, PeriodChange)>,
    /// Call stacks.
    pub stacks: WaitingStacks,
    /// Room for places of samples.
    places: Room,
    /// Room for other observations.
    observations: Room,
}

impl Pending {
    /// No counts yet, for events that are sampled at these periods.
    pub fn new(periods: impl IntoIterator<Item = u64>) -> Self {
        let run = |(event, period)| Run { event, period, account: Account::default() };
        let runs: Vec<Run> = periods.into_iter().enumerate().map(run).collect();
        Self {
            profiles: HashMap::default(),
            images: HashMap::default(),
            unsampled: 0,
            used: HashMap::default(),
            names_bytes: 0,
            symbols: HashMap::default(),
            now: (0..runs.len()).collect(),
            runs,
            changes: Vec::new(),
            stacks: WaitingStacks::default(),
            places: Room { used: 0, max: PLACES_MAX },
            observations: Room { used: 0, max: OBSERVATIONS_MAX },
        }
    }

    /// Takes all counts out; later counts have the same periods.
    #[must_use]
    pub fn take(&mut self) -> Self {
        let periods: Vec<u64> =
            self.now.iter().filter_map(|run| self.runs.get(*run)).map(|run| run.period).collect();
        std::mem::replace(self, Self::new(periods))
    }

    /// Changes the period of an event's later samples.
    pub fn set_period(&mut self, event: usize, change: PeriodChange) {
        let run = self.run(event, change.period);
        if let Some(now) = self.now.get_mut(event) {
            *now = run;
            self.changes.push((event, change));
        }
    }

    /// The index of the run of that event and period.
    fn run(&mut self, event: usize, period: u64) -> usize {
        let known = self.runs.iter().position(|run| (run.event, run.period) == (event, period));
        known.unwrap_or_else(|| {
            self.runs.push(Run { event, period, account: Account::default() });
            self.runs.len() - 1
        })
    }

    /// The account of an event at its current period; None for an unknown number.
    pub fn account(&mut self, event: usize) -> Option<&mut Account> {
        self.runs.get_mut(*self.now.get(event)?).map(|run| &mut run.account)
    }

    /// Event number and account of each event and period.
    pub fn accounts(&self) -> impl Iterator<Item = (usize, &Account)> {
        self.runs.iter().map(|run| (run.event, &run.account))
    }

    /// The number of events.
    pub fn events(&self) -> usize {
        self.now.len()
    }

    /// Whether an image waits already.
    pub fn has(&self, image: &ImageId) -> bool {
        self.images.contains_key(image)
    }

    /// From now on, the waiting counts of an image are charged to that payer, unless another payer
    /// is charged already.
    pub fn charge(&mut self, image: &Arc<Image>, payer: Payer) {
        let entry = self.images.entry(image.id);
        entry.or_insert_with(|| PendingImage { image: image.clone(), payer });
    }

    /// Counts samples of one event in one image, of a scope or of none.
    pub fn count(
        &mut self,
        image: &Arc<Image>,
        event: usize,
        scope: Option<Arc<Scope>>,
        places: impl Iterator<Item = (ImageOffset, u64)>,
    ) {
        let Some(&run) = self.now.get(event) else { return };
        self.count_in(run, image, scope, places);
    }

    /// Counts samples of a run. Samples of unknown code are on its account already.
    fn count_in(
        &mut self,
        run: usize,
        image: &Arc<Image>,
        scope: Option<Arc<Scope>>,
        places: impl Iterator<Item = (ImageOffset, u64)>,
    ) {
        let Some(Run { account, .. }) = self.runs.get_mut(run) else { return };
        let is_known = !image.id.is_unresolved();
        let unattributed = || PendingImage { image: image.clone(), payer: Payer::Nobody };
        let payer = self.images.entry(image.id).or_insert_with(unattributed).payer;
        let counts = self
            .profiles
            .entry((image.id, Series::Run(run), scope))
            .or_insert_with(|| Waiting::of(Shape::Places));
        let used = self.used.entry(payer).or_default();
        let all = &mut self.places;
        let before = all.used;
        let mut room = Room { used: all.used, max: all.max };
        if payer != Payer::Nobody {
            let left = USER_PLACES_MAX.saturating_sub(used.places);
            room.max = room.max.min((PLACES_MAX / 2).max(all.used.saturating_add(left)));
        }
        for (offset, samples) in places {
            let counted = counts.count(Observation::Place(offset), samples, &mut room);
            match (is_known, counted) {
                (true, true) => account.resolved += samples,
                (true, false) => account.lose(Loss::PendingFull, samples),
                (false, _) => {}
            }
        }
        all.used = room.used;
        used.places += room.used - before;
    }

    /// Whether there is room for an image, which is one of those that wait from now on.
    pub fn admit(&mut self, image: &Arc<Image>) -> bool {
        if !self.images.contains_key(&image.id) {
            if self.unsampled >= UNSAMPLED_MAX {
                return false;
            }
            self.unsampled += 1;
            self.charge(image, Payer::Nobody);
        }
        true
    }

    /// Counts a call stack, frames from the thread's first to the innermost, that stands for
    /// `samples` samples of an event at its current period. Each image of a frame was
    /// [admitted](Self::admit).
    pub fn count_stack(
        &mut self,
        event: usize,
        scope: Option<Arc<Scope>>,
        stack: (&[Frame], &Thread),
        samples: u32,
        payer: Payer,
    ) {
        let Some(run) = self.now.get(event).and_then(|run| self.runs.get(*run)) else { return };
        let value = Value::of_one(run.period.saturating_mul(u64::from(samples)));
        self.add_stack(StackEvent::Sampled(event), scope, stack, value, payer);
    }

    /// Adds a call stack of an event or of waits, as [`Self::count_stack`].
    pub fn add_stack(
        &mut self,
        event: StackEvent,
        scope: Option<Arc<Scope>>,
        stack: (&[Frame], &Thread),
        value: Value,
        payer: Payer,
    ) {
        self.stacks.add(event, scope, stack, value, payer);
    }

    /// Counts one observation of a measure in an image, for all processes together. False when
    /// there is no room, or the shape differs from the measure's.
    pub fn observe(
        &mut self,
        image: &Arc<Image>,
        measure: &'static Measure,
        observation: Observation,
    ) -> bool {
        self.observe_times(image, measure, observation, 1)
    }

    /// The same, of some equal observations.
    pub fn observe_times(
        &mut self,
        image: &Arc<Image>,
        measure: &'static Measure,
        observation: Observation,
        times: u64,
    ) -> bool {
        if !self.admit(image) {
            return false;
        }
        let counts = self
            .profiles
            .entry((image.id, Series::Observed(measure), None))
            .or_insert_with(|| Waiting::of(measure.shape));
        counts.count(observation, times, &mut self.observations)
    }

    /// Counts samples without an image and, where their process is known, a profile under its
    /// program and scope.
    pub fn unresolve(
        &mut self,
        event: usize,
        reason: Unresolved,
        samples: u64,
        owner: Option<&Owner>,
    ) {
        if let Some(account) = self.account(event) {
            account.unresolve(reason, samples);
        }
        if let Some(Owner { image, scope }) = owner {
            self.count(image, event, scope.clone(), [(ImageOffset(0), samples)].into_iter());
        }
    }

    /// Stores the name of a procedure that has samples.
    pub fn name(&mut self, image: &ImageId, range: Range<u64>, name: &str) {
        let known = self.symbols.get(image).and_then(|symbols| symbols.get(&range.start));
        if known.is_none_or(|known| known.name != name) {
            let symbol = Symbol { start: range.start, end: range.end, name: name.to_owned() };
            self.learn(image, symbol);
        }
    }

    /// Remembers a name, if there is room for it.
    fn learn(&mut self, image: &ImageId, symbol: Symbol) {
        let payer = self.images.get(image).map_or(Payer::Nobody, |waiting| waiting.payer);
        let used = self.used.entry(payer).or_default();
        let symbols = self.symbols.entry(*image).or_default();
        let bytes_of = |symbol: &Symbol| symbol.name.len() + size_of::<Symbol>();
        let (replaced, bytes) = (symbols.get(&symbol.start).map_or(0, bytes_of), bytes_of(&symbol));
        let full = used.names_bytes + bytes > USER_NAMES_BYTES_MAX + replaced
            || self.names_bytes + bytes > NAMES_BYTES_MAX + replaced;
        if full && payer != Payer::Nobody {
            return;
        }
        used.names_bytes = (used.names_bytes + bytes).saturating_sub(replaced);
        self.names_bytes = (self.names_bytes + bytes).saturating_sub(replaced);
        symbols.insert(symbol.start, symbol);
    }

    /// Samples of known code in the waiting profiles of an event, computed from the profiles
    /// themselves.
    pub fn samples(&self, event: usize) -> u64 {
        let is_of = |series: &Series| match series {
            Series::Run(run) => self.runs.get(*run).is_some_and(|run| run.event == event),
            Series::Observed(_) => false,
        };
        let of_event = self
            .profiles
            .iter()
            .filter(|((image, series, _), _)| is_of(series) && !image.is_unresolved());
        of_event.map(|(_, counts)| counts.total()).sum()
    }

    /// Whether a merge would add nothing.
    pub fn is_empty(&self) -> bool {
        let counts_nothing =
            |account: &Account| account.taken == 0 && account.counted == Counted::default();
        self.changes.is_empty()
            && self.stacks.is_empty()
            && self.runs.iter().all(|run| counts_nothing(&run.account))
    }

    /// The number of distinct places that wait.
    pub fn places(&self) -> usize {
        self.places.used
    }

    /// Takes back counts that could not be written; they are older than the counts that wait here.
    pub fn absorb(&mut self, other: Pending) {
        let runs: Vec<usize> =
            other.runs.iter().map(|run| self.run(run.event, run.period)).collect();
        for ((id, series, scope), counts) in other.profiles {
            let Some(PendingImage { image, payer }) = other.images.get(&id) else { continue };
            self.charge(image, *payer);
            match series {
                Series::Run(run) => {
                    let Some(run) = runs.get(run) else { continue };
                    let places =
                        counts.iter().filter_map(|(observation, times)| match observation {
                            Observation::Place(at) => Some((at, times)),
                            _ => None,
                        });
                    self.count_in(*run, image, scope, places);
                }
                Series::Observed(measure) => {
                    for (observation, times) in counts.iter() {
                        self.observe_times(image, measure, observation, times);
                    }
                }
            }
        }
        for id in other.stacks.images() {
            if let Some(waiting) = other.images.get(&id) {
                self.charge(&waiting.image, waiting.payer);
            }
        }
        self.stacks.absorb(other.stacks);
        self.changes.splice(0..0, other.changes);
        for (id, symbols) in other.symbols {
            // The counts that wait here are newer.
            for (start, symbol) in symbols {
                let is_known = self.symbols.get(&id).is_some_and(|mine| mine.contains_key(&start));
                if !is_known {
                    self.learn(&id, symbol);
                }
            }
        }
        for (at, theirs) in runs.into_iter().zip(other.runs) {
            if let Some(mine) = self.runs.get_mut(at) {
                // `count_in` has booked the resolved samples already.
                mine.account.add(&Account { resolved: 0, ..theirs.account });
            }
        }
    }

    /// The counts as the database takes them, at `now_unix_s`; `names` are the events' names by
    /// number.
    pub fn delta(&self, names: &[String], now_unix_s: u64) -> Delta {
        let name = |event: usize| names.get(event).cloned().unwrap_or_default();
        let counted = self.profiles.iter().filter(|(_, counts)| !counts.is_empty());
        let profiles = counted.map(|((image, series, scope), counts)| {
            let measure = match series {
                Series::Observed(measure) => (*measure).clone(),
                Series::Run(run) => {
                    let (event, period) =
                        self.runs.get(*run).map_or((usize::MAX, 0), |run| (run.event, run.period));
                    Measure::samples(&name(event), period)
                }
            };
            let scope = scope.as_deref().cloned().unwrap_or_default();
            (ProfileKey { image: *image, measure, scope }, counts.counts())
        });
        let images = self.images.values().map(|PendingImage { image, .. }| {
            let record = ImageRecord {
                id: image.id,
                kind: image.kind,
                name: image.name.clone(),
                path: image.path.clone(),
                size_bytes: image.size_bytes,
                first_seen_unix_s: now_unix_s,
                last_seen_unix_s: now_unix_s,
            };
            (image.id, record)
        });
        let mut ledgers = Ledgers::default();
        for Run { event, period, account } in &self.runs {
            ledgers.entry(&name(*event), *period).add(&account.ledger());
        }
        let mut period_changes: BTreeMap<String, Vec<PeriodChange>> = BTreeMap::new();
        for (event, change) in &self.changes {
            period_changes.entry(name(*event)).or_default().push(change.clone());
        }
        Delta {
            stacks: self.stacks.delta(name),
            profiles: profiles.collect(),
            images: images.collect(),
            symbols: self
                .symbols
                .iter()
                .map(|(id, symbols)| (*id, symbols.values().cloned().collect()))
                .collect(),
            ledgers,
            period_changes,
            now_unix_s,
            ..Delta::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::ImageKind;
    use model::{EDGES, ROUNDS};

    const PERIOD: u64 = 62_000;

    fn image(name: &str) -> Arc<Image> {
        let id = ImageId::from_name(name, "");
        Arc::new(Image {
            id,
            kind: ImageKind::File,
            name: name.into(),
            path: name.into(),
            size_bytes: None,
            procedures: None,
        })
    }

    /// Every image has samples of two events and an edge, and there are some of unknown code.
    fn flood(images: u64) -> Pending {
        let mut pending = Pending::new([PERIOD, PERIOD]);
        let path = ImageRecord::escape_path(std::path::Path::new("/tmp/x"));
        for number in 0..images {
            let image = Arc::new(Image {
                id: ImageId::from_build_id(&[(number + 1).to_le_bytes(); 3].concat()[..20])
                    .unwrap(),
                kind: ImageKind::File,
                name: "x".into(),
                path: path.clone(),
                size_bytes: None,
                procedures: None,
            });
            pending.charge(&image, Payer::User(1000));
            for event in [0, 1] {
                pending.count(&image, event, None, [(ImageOffset(number), 2)].into_iter());
                pending.account(event).unwrap().taken += 2;
            }
            if number % 1000 == 0 {
                let edge = Observation::Pair(ImageOffset(1), ImageOffset(2));
                assert!(pending.observe(&image, &EDGES, edge));
                pending.name(&image.id, 0..8, "main");
            }
        }
        let mut unknown = address_spaces::unknown_code::UnknownCode::default();
        for reason in [Unresolved::TooManyImages, Unresolved::Anonymous] {
            let owner = Owner { image: unknown.of("x", reason).unwrap(), scope: None };
            pending.unresolve(1, reason, 5, Some(&owner));
            pending.unresolve(1, reason, 1, None);
        }
        pending.account(1).unwrap().taken += 14;
        pending.account(1).unwrap().lose(Loss::SpillFull, 2);
        pending.set_period(0, PeriodChange { at_unix_s: 1, period: 9, rate_per_s: None });
        pending
    }

    /// A segment's directory has an end: the delta of a user who ran 79,000 build ids was refused,
    /// and so was every merge after it, until dcpid ended and 2.3 million samples were lost.
    #[test]
    fn more_images_than_a_segment_takes_are_several_merges_each_right_by_itself() {
        const IMAGES: u64 = 65_500;
        let names = ["cycles".to_owned(), "other".to_owned()];
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("db");
        let event = |name: &String| profiledb::EventMeta {
            name: name.clone(),
            period: PERIOD,
            ..profiledb::EventMeta::default()
        };
        let start = profiledb::EpochStart {
            events: names.iter().map(event).collect(),
            ..profiledb::EpochStart::default()
        };
        let mut writer = profiledb::Writer::open(&root, "h").unwrap();
        let epoch = writer.begin(start.clone(), false).unwrap();
        let whole = flood(IMAGES).delta(&names, 7);
        let refused = writer.merge(&whole);
        assert!(matches!(refused, Err(profiledb::DbError::TooMany { .. })), "{refused:?}");

        let mut parts = flood(IMAGES).parts();
        assert!(parts.len() >= 3, "{} parts", parts.len());
        writer.merge(&parts.pop_front().unwrap().delta(&names, 7)).unwrap();
        // Killed between two parts.
        drop(writer);
        let read = || profiledb::Database::open(&root).unwrap().epoch("h", &epoch).unwrap();
        read().check_ledgers().unwrap();
        let ledger = read().meta().ledgers.sum("other");
        assert!(ledger.closes() && ledger.lost["spill_full"] == 2, "{ledger:?}");
        let mut writer = profiledb::Writer::open(&root, "h").unwrap();
        assert_eq!(writer.begin(start, false).unwrap(), epoch);
        // Counts that the disk did not accept wait for the next merge.
        let mut waiting = Pending::new([PERIOD, PERIOD]);
        for part in parts.into_iter().rev() {
            waiting.absorb(part);
        }
        for part in waiting.parts() {
            writer.merge(&part.delta(&names, 8)).unwrap();
        }
        let epoch = read();
        epoch.check_ledgers().unwrap();
        assert!(profiledb::check(&root).unwrap().is_empty());
        assert_eq!(epoch.meta().ledgers.sum("cycles"), whole.ledgers.sum("cycles"));
        assert_eq!(epoch.meta().ledgers.sum("other"), whole.ledgers.sum("other"));
        let keys = epoch.keys().unwrap();
        assert_eq!(keys.len(), whole.profiles.len());
        for key in keys.iter().step_by(101) {
            assert_eq!(epoch.counts(key).unwrap(), whole.profiles[key], "{key:?}");
        }
        let of_all: u64 = whole.profiles.values().map(Counts::total).sum();
        assert_eq!(of_all, keys.iter().map(|key| epoch.total(key).unwrap()).sum::<u64>());
        assert_eq!(epoch.images().unwrap().len(), IMAGES as usize + 2);
    }

    #[test]
    fn what_one_segment_takes_is_one_part() {
        assert_eq!(flood(1000).parts().len(), 1);
        assert_eq!(Pending::new([PERIOD]).parts().len(), 1);
        // Long paths need more memory than long lists.
        let mut pending = Pending::new([PERIOD]);
        for number in 0..4096_u32 {
            let long = Image {
                id: ImageId::from_build_id(&(number + 1).to_le_bytes()).unwrap(),
                kind: ImageKind::File,
                name: "x".into(),
                path: "/".repeat(16_384),
                size_bytes: None,
                procedures: None,
            };
            pending.count(&Arc::new(long), 0, None, [(ImageOffset(1), 1)].into_iter());
        }
        assert_eq!(pending.parts().len(), 3);
    }

    /// The places of one user's images filled the memory for all, and others' samples were lost.
    #[test]
    fn a_flood_of_places_and_names_costs_the_user_who_sends_it() {
        let mut pending = Pending::new([PERIOD]);
        let (enemys, mine) = (image("enemy"), image("mine"));
        pending.charge(&enemys, Payer::User(1001));
        pending.charge(&mine, Payer::User(1000));
        let many = (0..PLACES_MAX as u64).map(|offset| (ImageOffset(offset), 1));
        pending.count(&enemys, 0, None, many.clone());
        assert_eq!(pending.places(), PLACES_MAX / 2);
        pending.count(&mine, 0, None, many.clone().take(USER_PLACES_MAX));
        assert_eq!(pending.places(), PLACES_MAX / 2 + USER_PLACES_MAX);
        pending.count(&enemys, 0, None, many);
        assert_eq!(pending.places(), PLACES_MAX / 2 + USER_PLACES_MAX);
        let name = "x".repeat(1 << 20);
        for at in 0..100 {
            pending.name(&enemys.id, at..at + 1, &name);
        }
        pending.name(&mine.id, 0..1, "main");
        assert_eq!(pending.symbols[&enemys.id].len(), 15);
        assert_eq!(pending.symbols[&mine.id].len(), 1);
    }

    #[test]
    fn images_without_samples_have_an_end() {
        let mut pending = Pending::new([PERIOD]);
        let edge = Observation::Pair(ImageOffset(1), ImageOffset(2));
        let observed =
            |pending: &mut Pending, name: String| pending.observe(&image(&name), &EDGES, edge);
        let seen = (0..2000).filter(|n| observed(&mut pending, n.to_string()));
        assert_eq!(seen.count(), UNSAMPLED_MAX);
        pending.charge(&image("sampled"), Payer::Unknown);
        assert!(observed(&mut pending, "sampled".into()) && observed(&mut pending, "3".into()));
    }

    fn counted(samples: &[(&str, u64, u64)]) -> Pending {
        let mut pending = Pending::new([PERIOD]);
        for (name, offset, count) in samples {
            pending.count(&image(name), 0, None, [(ImageOffset(*offset), *count)].into_iter());
            pending.account(0).unwrap().taken += count;
        }
        pending
    }

    #[test]
    fn what_could_not_be_written_is_taken_back_whole() {
        let mut pending = counted(&[("a", 1, 10), ("b", 2, 5)]);
        pending.unresolve(0, Unresolved::Anonymous, 2, None);
        pending.account(0).unwrap().taken += 2;
        let failed = std::mem::replace(&mut pending, counted(&[("a", 1, 1), ("c", 3, 4)]));
        pending.absorb(failed);
        let delta = pending.delta(&["cycles".into()], 7);
        let ledger = &delta.ledgers.sum("cycles");
        assert!(ledger.closes(), "{ledger:?}");
        assert_eq!((ledger.taken, ledger.merged, pending.samples(0)), (22, 20, 20));
        let a = ProfileKey::samples(image("a").id, "cycles", PERIOD, Scope::default());
        assert_eq!(delta.profiles[&a], Profile::from_counts([(ImageOffset(1), 11)]).into());
        assert_eq!(delta.images.len(), 3);
    }

    #[test]
    fn scopes_are_kept_apart_and_taken_back_as_they_were() {
        let run = Scope { label: Some("run".into()), ..Scope::default() };
        let of_run = Some(Arc::new(run.clone()));
        let mut pending = Pending::new([PERIOD]);
        pending.count(&image("a"), 0, None, [(ImageOffset(1), 1)].into_iter());
        for samples in [2, 4] {
            // The same scope, though not the same value in memory.
            let scope = of_run.as_deref().cloned().map(Arc::new);
            let mut more = Pending::new([PERIOD]);
            more.count(&image("a"), 0, scope, [(ImageOffset(1), samples)].into_iter());
            pending.absorb(more);
        }
        assert_eq!(pending.samples(0), 7);
        let delta = pending.delta(&["cycles".into()], 7);
        let key = |scope| ProfileKey::samples(image("a").id, "cycles", PERIOD, scope);
        let total = |scope| delta.profiles[&key(scope)].total();
        assert_eq!(
            (total(Scope::default()), total(run), delta.ledgers.sum("cycles").merged),
            (1, 6, 7)
        );
    }

    /// A change of rate began an epoch, and the label of the one before was lost with it.
    #[test]
    fn samples_of_each_period_are_kept_apart_through_failed_merges() {
        let mut pending = counted(&[("a", 1, 10)]);
        let faster = PeriodChange { at_unix_s: 5, period: PERIOD / 2, rate_per_s: Some(9) };
        pending.set_period(0, faster.clone());
        pending.count(&image("a"), 0, None, [(ImageOffset(1), 3)].into_iter());
        pending.account(0).unwrap().taken += 3;
        let failed = pending.take();
        assert!(pending.is_empty() && pending.samples(0) == 0);
        pending.count(&image("a"), 0, None, [(ImageOffset(1), 4)].into_iter());
        pending.account(0).unwrap().taken += 4;
        let back = PeriodChange { at_unix_s: 6, period: PERIOD, ..faster.clone() };
        pending.set_period(0, back.clone());
        pending.count(&image("a"), 0, None, [(ImageOffset(1), 1)].into_iter());
        pending.account(0).unwrap().taken += 1;
        pending.absorb(failed);
        let delta = pending.delta(&["cycles".into()], 7);
        let merged =
            |period| delta.ledgers.at("cycles", period).map(|ledger| (ledger.taken, ledger.merged));
        assert_eq!((merged(PERIOD), merged(PERIOD / 2)), (Some((11, 11)), Some((7, 7))));
        assert_eq!(delta.period_changes["cycles"], [faster, back]);
        assert_eq!(delta.profiles.values().map(Counts::total).collect::<Vec<_>>(), [7, 11]);
    }

    #[test]
    fn places_beyond_the_limit_are_lost_by_name_and_known_ones_still_count() {
        let mut pending = Pending::new([PERIOD]);
        let a = image("a");
        pending.count(
            &a,
            0,
            None,
            (0..PLACES_MAX as u64 + 3).map(|offset| (ImageOffset(offset), 1)),
        );
        pending.count(&a, 0, None, [(ImageOffset(5), 2)].into_iter());
        let (_, account) = pending.accounts().next().unwrap();
        assert_eq!(account.lost, BTreeMap::from([(Loss::PendingFull, 3)]));
        assert_eq!(account.resolved, PLACES_MAX as u64 + 2);
        assert_eq!(pending.samples(0), account.resolved);
    }

    #[test]
    fn observations_of_every_shape_wait_and_are_taken_back_as_they_were() {
        static PLACES: Measure = Measure::observed("places", Shape::Places);
        let (a, at) = (image("a"), ImageOffset);
        let observe = |pending: &mut Pending| {
            assert!(pending.observe(&a, &EDGES, Observation::Pair(at(1), at(2))));
            assert!(pending.observe(&a, &ROUNDS, Observation::Value(at(1), -7)));
            assert!(pending.observe(&a, &PLACES, Observation::Place(at(5))));
        };
        let mut pending = Pending::new([PERIOD]);
        observe(&mut pending);
        let failed = pending.take();
        observe(&mut pending);
        pending.absorb(failed);
        assert!(!pending.observe(&a, &EDGES, Observation::Place(at(1))), "of another shape");
        let delta = pending.delta(&["cycles".into()], 7);
        let twice = [
            (&EDGES, Counts::from(Edges::from_counts([((at(1), at(2)), 2)]))),
            (&PLACES, Profile::from_counts([(at(5), 2)]).into()),
            (&ROUNDS, Values::from_counts([((at(1), -7), 2)]).into()),
        ];
        let twice = twice.map(|(measure, counts)| (ProfileKey::of(a.id, measure), counts));
        assert_eq!(delta.profiles, BTreeMap::from(twice));
        assert_eq!(delta.images.len(), 1);
    }
}
