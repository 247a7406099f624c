//! Counts per (image, event, scope, offset) that wait for the next merge.

use crate::accounts::Account;
use crate::images::Image;
use crate::kernel::Counted;
use crate::unresolved::{Loss, Reason};
use foldhash::fast::RandomState;
use image::{ImageId, ImageOffset};
use profiledb::{Delta, Edges, ImageRecord, Profile, ProfileKey, Rounds, Scope, Symbol, Turns};
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

/// An image, an event by number and, where somebody asked to keep processes apart, whose.
type Whose = (ImageId, usize, Option<Arc<Scope>>);

/// What one merge will add to the epoch.
#[derive(Debug, Default)]
pub struct Pending {
    profiles: HashMap<Whose, HashMap<ImageOffset, u64, RandomState>, RandomState>,
    images: HashMap<ImageId, Arc<Image>, RandomState>,
    symbols: HashMap<ImageId, BTreeMap<u64, Symbol>, RandomState>,
    /// One for each event, by number.
    accounts: Vec<Account>,
    places: usize,
    edges: HashMap<ImageId, EdgeCounts, RandomState>,
    rounds: HashMap<ImageId, RoundCounts, RandomState>,
    edges_len: usize,
}

impl Pending {
    /// Nothing yet, of `events` events.
    #[must_use]
    pub fn new(events: usize) -> Self {
        Self { accounts: vec![Account::default(); events], ..Self::default() }
    }

    /// The account of an event; None for a number that no event has.
    pub fn account(&mut self, event: usize) -> Option<&mut Account> {
        self.accounts.get_mut(event)
    }

    /// Accounts by event number.
    #[must_use]
    pub fn accounts(&self) -> &[Account] {
        &self.accounts
    }

    /// Counts samples of one event in one image, that are nobody's in particular or of a scope.
    pub fn count(
        &mut self,
        image: &Arc<Image>,
        event: usize,
        scope: Option<Arc<Scope>>,
        places: impl Iterator<Item = (ImageOffset, u64)>,
    ) {
        let Some(account) = self.accounts.get_mut(event) else { return };
        let counts = self.profiles.entry((image.id, event, scope)).or_insert_with(|| {
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
                account.lose(Loss::PendingFull, samples);
                continue;
            }
            account.resolved += samples;
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

    /// Counts samples without an image.
    pub fn unresolve(&mut self, event: usize, reason: Reason, samples: u64) {
        if let Some(account) = self.accounts.get_mut(event) {
            account.unresolve(reason, samples);
        }
    }

    /// Remembers the name of a procedure that has samples.
    pub fn name(&mut self, image: &ImageId, range: Range<u64>, name: &str) {
        let symbols = self.symbols.entry(*image).or_default();
        if symbols.get(&range.start).is_none_or(|known| known.name != name) {
            symbols.insert(range.start, Symbol { start: range.start, end: range.end, name: name.to_owned() });
        }
    }

    /// Samples in the waiting profiles of an event, summed up from the profiles themselves.
    #[must_use]
    pub fn samples(&self, event: usize) -> u64 {
        let of_event = self.profiles.iter().filter(|((_, number, _), _)| *number == event);
        of_event.flat_map(|(_, counts)| counts.values()).sum()
    }

    /// Whether a merge would add nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.accounts.iter().all(|account| account.taken == 0 && account.counted == Counted::default())
    }

    /// Distinct places waiting.
    #[must_use]
    pub fn places(&self) -> usize {
        self.places
    }

    /// Takes back what could not be written.
    pub fn absorb(&mut self, other: Pending) {
        for ((id, event, scope), counts) in other.profiles {
            if let Some(image) = other.images.get(&id) {
                self.count(image, event, scope, counts.into_iter());
            }
        }
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
        for (mine, theirs) in self.accounts.iter_mut().zip(other.accounts) {
            // `count` has booked the resolved ones already.
            mine.add(&Account { resolved: 0, ..theirs });
        }
    }

    /// What the database is to add, at `now_unix_s`; `names` are the events' by number.
    #[must_use]
    pub fn delta(&self, names: &[String], now_unix_s: u64) -> Delta {
        let name = |event: usize| names.get(event).cloned().unwrap_or_default();
        let counted = self.profiles.iter().filter(|(_, counts)| !counts.is_empty());
        let profiles = counted.map(|((image, event, scope), counts)| {
            let counts = Profile::from_counts(counts.iter().map(|(offset, samples)| (*offset, *samples)));
            let scope = scope.as_deref().cloned().unwrap_or_default();
            (ProfileKey { image: *image, event: name(*event), scope }, counts)
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
        Delta {
            profiles: profiles.collect(),
            images: images.collect(),
            symbols: self.symbols.iter().map(|(id, symbols)| (*id, symbols.values().cloned().collect())).collect(),
            ledgers: self.accounts.iter().enumerate().map(|(event, account)| (name(event), account.ledger())).collect(),
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
        let mut pending = Pending::new(1);
        for (name, offset, count) in samples {
            pending.count(&image(name), 0, None, [(ImageOffset(*offset), *count)].into_iter());
            pending.account(0).unwrap().taken += count;
        }
        pending
    }

    #[test]
    fn what_could_not_be_written_is_taken_back_whole() {
        let mut pending = counted(&[("a", 1, 10), ("b", 2, 5)]);
        pending.unresolve(0, Reason::Anonymous, 2);
        pending.account(0).unwrap().taken += 2;
        let failed = std::mem::replace(&mut pending, counted(&[("a", 1, 1), ("c", 3, 4)]));
        pending.absorb(failed);
        let delta = pending.delta(&["cycles".into()], 7);
        let ledger = &delta.ledgers["cycles"];
        assert!(ledger.closes(), "{ledger:?}");
        assert_eq!((ledger.taken, ledger.merged, pending.samples(0)), (22, 20, 20));
        let a = ProfileKey { image: image("a").id, event: "cycles".into(), scope: Scope::default() };
        assert_eq!(delta.profiles[&a].get(ImageOffset(1)), 11);
        assert_eq!(delta.images.len(), 3);
    }

    #[test]
    fn scopes_are_kept_apart_and_taken_back_as_they_were() {
        let run = Scope { label: Some("run".into()), ..Scope::default() };
        let of_run = Some(Arc::new(run.clone()));
        let mut pending = Pending::new(1);
        pending.count(&image("a"), 0, None, [(ImageOffset(1), 1)].into_iter());
        for samples in [2, 4] {
            // The same scope, though not the same value in memory.
            let scope = of_run.as_deref().cloned().map(Arc::new);
            let mut more = Pending::new(1);
            more.count(&image("a"), 0, scope, [(ImageOffset(1), samples)].into_iter());
            pending.absorb(more);
        }
        assert_eq!(pending.samples(0), 7);
        let delta = pending.delta(&["cycles".into()], 7);
        let total = |scope| delta.profiles[&ProfileKey { image: image("a").id, event: "cycles".into(), scope }].total();
        assert_eq!((total(Scope::default()), total(run), delta.ledgers["cycles"].merged), (1, 6, 7));
    }

    #[test]
    fn places_beyond_the_limit_are_lost_by_name_and_known_ones_still_count() {
        let mut pending = Pending::new(1);
        let a = image("a");
        pending.count(&a, 0, None, (0..PLACES_MAX as u64 + 3).map(|offset| (ImageOffset(offset), 1)));
        pending.count(&a, 0, None, [(ImageOffset(5), 2)].into_iter());
        let account = &pending.accounts()[0];
        assert_eq!(account.lost, BTreeMap::from([(Loss::PendingFull, 3)]));
        assert_eq!(account.resolved, PLACES_MAX as u64 + 2);
        assert_eq!(pending.samples(0), account.resolved);
    }
}
