//! Counts per (image, event, period, scope, offset) that wait for the next merge.

use crate::accounts::Account;
use crate::images::Image;
use crate::kernel::Counted;
use crate::unresolved::{Loss, Owner, Reason};
use foldhash::fast::RandomState;
use image::{ImageId, ImageOffset};
use profiledb::{Delta, Edges, ImageRecord, Ledgers, PeriodChange, Profile, ProfileKey, Rounds, Scope, Symbol, Turns};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

/// Distinct places that may wait, about 40 bytes each: a disk that takes nothing for long costs samples, not the machine's memory.
pub const PLACES_MAX: usize = 2_000_000;

/// Distinct edges, and rounds of loops, that may wait, about 50 bytes each; what finds no room is not counted.
pub const EDGES_MAX: usize = 200_000;

/// Edges of an image, from where, to where: how often, and how often as the first after a sample.
type EdgeCounts = HashMap<(ImageOffset, ImageOffset), (u64, u64), RandomState>;

/// How often loops of an image were to make so many more rounds.
type RoundCounts = HashMap<Turns, u64, RandomState>;

/// An image, an event at a period by its place in [`Pending::runs`] and, where somebody asked to keep
/// processes apart, whose.
type Whose = (ImageId, usize, Option<Arc<Scope>>);

/// An event as it was sampled for some time, and what came of it.
#[derive(Clone, Debug)]
struct Run {
    /// The event's number.
    event: usize,
    /// Mean distance of its samples, in the event's unit.
    period: u64,
    account: Account,
}

/// What one merge will add to the epoch.
#[derive(Debug, Default)]
pub struct Pending {
    profiles: HashMap<Whose, HashMap<ImageOffset, u64, RandomState>, RandomState>,
    images: HashMap<ImageId, Arc<Image>, RandomState>,
    symbols: HashMap<ImageId, BTreeMap<u64, Symbol>, RandomState>,
    /// The periods that each event has had: first those in force at the begin, by event number.
    runs: Vec<Run>,
    /// By event number: the place of its run that is in force.
    now: Vec<usize>,
    /// Periods that events got, in order of time.
    changes: Vec<(usize, PeriodChange)>,
    places: usize,
    edges: HashMap<ImageId, EdgeCounts, RandomState>,
    rounds: HashMap<ImageId, RoundCounts, RandomState>,
    edges_len: usize,
}

impl Pending {
    /// Nothing yet, of events that are sampled at these periods.
    #[must_use]
    pub fn new(periods: impl IntoIterator<Item = u64>) -> Self {
        let run = |(event, period)| Run { event, period, account: Account::default() };
        let runs: Vec<Run> = periods.into_iter().enumerate().map(run).collect();
        Self { now: (0..runs.len()).collect(), runs, ..Self::default() }
    }

    /// All that waits; what comes from now on is of the same periods.
    #[must_use]
    pub fn take(&mut self) -> Self {
        let periods: Vec<u64> = self.now.iter().filter_map(|run| self.runs.get(*run)).map(|run| run.period).collect();
        std::mem::replace(self, Self::new(periods))
    }

    /// Samples of this event that are counted from now on are of another period.
    pub fn set_period(&mut self, event: usize, change: PeriodChange) {
        let run = self.run(event, change.period);
        if let Some(now) = self.now.get_mut(event) {
            *now = run;
            self.changes.push((event, change));
        }
    }

    /// The place of the run of that event and period.
    fn run(&mut self, event: usize, period: u64) -> usize {
        let known = self.runs.iter().position(|run| (run.event, run.period) == (event, period));
        known.unwrap_or_else(|| {
            self.runs.push(Run { event, period, account: Account::default() });
            self.runs.len() - 1
        })
    }

    /// The account of an event at its period of now; None for a number that no event has.
    pub fn account(&mut self, event: usize) -> Option<&mut Account> {
        self.runs.get_mut(*self.now.get(event)?).map(|run| &mut run.account)
    }

    /// Event number and account of each event and period.
    pub fn accounts(&self) -> impl Iterator<Item = (usize, &Account)> {
        self.runs.iter().map(|run| (run.event, &run.account))
    }

    /// The number of events.
    #[must_use]
    pub fn events(&self) -> usize {
        self.now.len()
    }

    /// Counts samples of one event in one image, that are nobody's in particular or of a scope.
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

    /// Counts samples of a run. Those of unknown code are on its account already.
    fn count_in(
        &mut self,
        run: usize,
        image: &Arc<Image>,
        scope: Option<Arc<Scope>>,
        places: impl Iterator<Item = (ImageOffset, u64)>,
    ) {
        let Some(Run { account, .. }) = self.runs.get_mut(run) else { return };
        let is_known = !image.id.is_unresolved();
        let counts = self.profiles.entry((image.id, run, scope)).or_insert_with(|| {
            self.images.entry(image.id).or_insert_with(|| image.clone());
            HashMap::default()
        });
        for (offset, samples) in places {
            if let Some(count) = counts.get_mut(&offset) {
                *count += samples;
            } else if self.places < PLACES_MAX {
                counts.insert(offset, samples);
                self.places += 1;
            } else {
                if is_known {
                    account.lose(Loss::PendingFull, samples);
                }
                continue;
            }
            if is_known {
                account.resolved += samples;
            }
        }
    }

    /// Counts an edge of an image, and whether it was the first after a sample. False when there is no room for it.
    pub fn count_edge(&mut self, image: &Arc<Image>, edge: (ImageOffset, ImageOffset), first: bool) -> bool {
        self.images.entry(image.id).or_insert_with(|| image.clone());
        self.count_edges(image.id, edge, (1, u64::from(first)))
    }

    fn count_edges(&mut self, image: ImageId, edge: (ImageOffset, ImageOffset), times: (u64, u64)) -> bool {
        let counts = self.edges.entry(image).or_default();
        if let Some((all, first)) = counts.get_mut(&edge) {
            *all += times.0;
            *first += times.1;
        } else if self.edges_len < EDGES_MAX {
            counts.insert(edge, times);
            self.edges_len += 1;
        } else {
            return false;
        }
        true
    }

    /// Counts a sample in a loop that is to make so many more rounds. Without room, it is not counted.
    pub fn count_rounds(&mut self, image: &Arc<Image>, turns: Turns) {
        self.images.entry(image.id).or_insert_with(|| image.clone());
        self.add_rounds(image.id, Turns { rounds: Turns::class(turns.rounds), ..turns }, 1);
    }

    fn add_rounds(&mut self, image: ImageId, turns: Turns, times: u64) {
        let counts = self.rounds.entry(image).or_default();
        if let Some(count) = counts.get_mut(&turns) {
            *count += times;
        } else if self.edges_len < EDGES_MAX {
            counts.insert(turns, times);
            self.edges_len += 1;
        }
    }

    /// Counts samples without an image, and where their process is known, under its program and scope.
    pub fn unresolve(&mut self, event: usize, reason: Reason, samples: u64, owner: Option<&Owner>) {
        if let Some(account) = self.account(event) {
            account.unresolve(reason, samples);
        }
        if let Some(Owner { image, scope }) = owner {
            self.count(image, event, scope.clone(), [(ImageOffset(0), samples)].into_iter());
        }
    }

    /// Remembers the name of a procedure that has samples.
    pub fn name(&mut self, image: &ImageId, range: Range<u64>, name: &str) {
        let symbols = self.symbols.entry(*image).or_default();
        if symbols.get(&range.start).is_none_or(|known| known.name != name) {
            symbols.insert(range.start, Symbol { start: range.start, end: range.end, name: name.to_owned() });
        }
    }

    /// Samples of known code in the waiting profiles of an event, summed up from the profiles themselves.
    #[must_use]
    pub fn samples(&self, event: usize) -> u64 {
        let is_of = |run: &usize| self.runs.get(*run).is_some_and(|run| run.event == event);
        let of_event = self.profiles.iter().filter(|((image, run, _), _)| is_of(run) && !image.is_unresolved());
        of_event.flat_map(|(_, counts)| counts.values()).sum()
    }

    /// Whether a merge would add nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let counts_nothing = |account: &Account| account.taken == 0 && account.counted == Counted::default();
        self.changes.is_empty() && self.runs.iter().all(|run| counts_nothing(&run.account))
    }

    /// Distinct places waiting.
    #[must_use]
    pub fn places(&self) -> usize {
        self.places
    }

    /// Takes back what could not be written, which came before what waits here.
    pub fn absorb(&mut self, other: Pending) {
        let runs: Vec<usize> = other.runs.iter().map(|run| self.run(run.event, run.period)).collect();
        for ((id, run, scope), counts) in other.profiles {
            if let (Some(image), Some(run)) = (other.images.get(&id), runs.get(run)) {
                self.count_in(*run, image, scope, counts.into_iter());
            }
        }
        self.changes.splice(0..0, other.changes);
        for (id, counts) in other.edges {
            if let Some(image) = other.images.get(&id) {
                self.images.entry(id).or_insert_with(|| image.clone());
            }
            for (edge, times) in counts {
                self.count_edges(id, edge, times);
            }
        }
        for (id, counts) in other.rounds {
            if let Some(image) = other.images.get(&id) {
                self.images.entry(id).or_insert_with(|| image.clone());
            }
            for (turns, times) in counts {
                self.add_rounds(id, turns, times);
            }
        }
        for (id, symbols) in other.symbols {
            self.symbols.entry(id).or_default().extend(symbols);
        }
        for (at, theirs) in runs.into_iter().zip(other.runs) {
            if let Some(mine) = self.runs.get_mut(at) {
                // `count_in` has booked the resolved ones already.
                mine.account.add(&Account { resolved: 0, ..theirs.account });
            }
        }
    }

    /// What the database is to add, at `now_unix_s`; `names` are the events' by number.
    #[must_use]
    pub fn delta(&self, names: &[String], now_unix_s: u64) -> Delta {
        let name = |event: usize| names.get(event).cloned().unwrap_or_default();
        let counted = self.profiles.iter().filter(|(_, counts)| !counts.is_empty());
        let profiles = counted.map(|((image, run, scope), counts)| {
            let (event, period) = self.runs.get(*run).map_or((usize::MAX, 0), |run| (run.event, run.period));
            let counts = Profile::from_counts(counts.iter().map(|(offset, samples)| (*offset, *samples)));
            let scope = scope.as_deref().cloned().unwrap_or_default();
            (ProfileKey { image: *image, event: name(event), period, scope }, counts)
        });
        let images = self.images.values().map(|image| {
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
        let edges = |times: fn(&(u64, u64)) -> u64| {
            let counted = move |(id, counts): (&ImageId, &EdgeCounts)| {
                (*id, Edges::from_counts(counts.iter().map(|(edge, both)| (*edge, times(both)))))
            };
            self.edges.iter().map(counted).collect()
        };
        let rounds = |(id, counts): (&ImageId, &RoundCounts)| {
            (*id, Rounds::from_counts(counts.iter().map(|(turns, times)| (*turns, *times))))
        };
        let mut ledgers = Ledgers::default();
        for Run { event, period, account } in &self.runs {
            ledgers.entry(&name(*event), *period).add(&account.ledger());
        }
        let mut period_changes: BTreeMap<String, Vec<PeriodChange>> = BTreeMap::new();
        for (event, change) in &self.changes {
            period_changes.entry(name(*event)).or_default().push(change.clone());
        }
        Delta {
            profiles: profiles.collect(),
            images: images.collect(),
            symbols: self.symbols.iter().map(|(id, symbols)| (*id, symbols.values().cloned().collect())).collect(),
            ledgers,
            period_changes,
            edges: edges(|(all, _)| *all),
            first_edges: edges(|(_, first)| *first),
            rounds: self.rounds.iter().map(rounds).collect(),
            now_unix_s,
            ..Delta::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::ImageKind;

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
        pending.unresolve(0, Reason::Anonymous, 2, None);
        pending.account(0).unwrap().taken += 2;
        let failed = std::mem::replace(&mut pending, counted(&[("a", 1, 1), ("c", 3, 4)]));
        pending.absorb(failed);
        let delta = pending.delta(&["cycles".into()], 7);
        let ledger = &delta.ledgers.sum("cycles");
        assert!(ledger.closes(), "{ledger:?}");
        assert_eq!((ledger.taken, ledger.merged, pending.samples(0)), (22, 20, 20));
        let a = ProfileKey { image: image("a").id, event: "cycles".into(), period: PERIOD, scope: Scope::default() };
        assert_eq!(delta.profiles[&a].get(ImageOffset(1)), 11);
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
        let key = |scope| ProfileKey { image: image("a").id, event: "cycles".into(), period: PERIOD, scope };
        let total = |scope| delta.profiles[&key(scope)].total();
        assert_eq!((total(Scope::default()), total(run), delta.ledgers.sum("cycles").merged), (1, 6, 7));
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
        let merged = |period| delta.ledgers.at("cycles", period).map(|ledger| (ledger.taken, ledger.merged));
        assert_eq!((merged(PERIOD), merged(PERIOD / 2)), (Some((11, 11)), Some((7, 7))));
        assert_eq!(delta.period_changes["cycles"], [faster, back]);
        assert_eq!(delta.profiles.values().map(Profile::total).collect::<Vec<_>>(), [7, 11]);
    }

    #[test]
    fn places_beyond_the_limit_are_lost_by_name_and_known_ones_still_count() {
        let mut pending = Pending::new([PERIOD]);
        let a = image("a");
        pending.count(&a, 0, None, (0..PLACES_MAX as u64 + 3).map(|offset| (ImageOffset(offset), 1)));
        pending.count(&a, 0, None, [(ImageOffset(5), 2)].into_iter());
        let (_, account) = pending.accounts().next().unwrap();
        assert_eq!(account.lost, BTreeMap::from([(Loss::PendingFull, 3)]));
        assert_eq!(account.resolved, PLACES_MAX as u64 + 2);
        assert_eq!(pending.samples(0), account.resolved);
    }
}
