//! Samples and call stacks of generated code that had no name when they were drained. They count as
//! not taken yet until the process tells the name, ends, or somebody wants everything on disk.

use abi::{EVENTS_MAX, Entry};
use address_spaces::mappings::{Mapping, Window};
use address_spaces::scopes::Tags;
use inspect::open_mapped::MappedAt;
use model::Unresolved;
use pending::ledger::Account;
use profiledb::Scope;
use sampling::call_stacks::WalkedStack;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Places whose samples wait, and call stacks that wait, of all processes. Further ones have no
/// name.
const PLACES_MAX: usize = 65_536;
const STACKS_MAX: usize = 8192;

/// What waits.
#[derive(Default)]
pub struct LateSamples {
    places: BTreeMap<Key, Place>,
    /// Samples that the count of each event implies and that wait, too.
    implied: [u64; EVENTS_MAX],
    pub(crate) stacks: Vec<(WalkedStack, Window)>,
    /// Frames of the stack that is being resolved wait.
    pub(crate) has_late_frame: bool,
    /// Nothing waits any more: all that is unknown stays so.
    pub(crate) is_final: bool,
    /// End of the last drain, CLOCK_MONOTONIC ns.
    pub(crate) now_ns: u64,
}

/// Samples of one key wait as one place, whenever they were taken.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    pid: u32,
    generation: u16,
    event: usize,
    address: u64,
    is_left_out: bool,
    scope: Option<Arc<Scope>>,
}

/// Samples of one event at one place.
pub(crate) struct Place {
    pub(crate) entry: Entry,
    pub(crate) at: MappedAt,
    pub(crate) generation: u16,
    pub(crate) mapping: Mapping,
    pub(crate) tags: Tags,
    pub(crate) reason: Unresolved,
}

impl Place {
    fn key(&self) -> Key {
        Key {
            pid: self.at.pid,
            generation: self.generation,
            event: self.entry.event(),
            address: self.entry.pc(),
            is_left_out: self.tags.excluded(),
            scope: self.tags.scope().cloned(),
        }
    }
}

impl LateSamples {
    /// Whether the samples may wait.
    pub(crate) fn takes(&self, place: &Place) -> bool {
        if self.is_final {
            return false;
        }
        match self.places.get(&place.key()) {
            Some(waiting) => waiting.entry.count.checked_add(place.entry.count).is_some(),
            None => self.places.len() < PLACES_MAX,
        }
    }

    /// Has samples wait that [`Self::takes`]: from now on `account` has not taken them.
    pub(crate) fn add(&mut self, place: Place, account: Option<&mut Account>) {
        let samples = u64::from(place.entry.count);
        if let Some(account) = account
            && let Some(waiting) = self.implied.get_mut(place.entry.event())
        {
            let implied = samples.min(account.counted.implied);
            account.taken = account.taken.saturating_sub(samples);
            account.counted.implied -= implied;
            *waiting += implied;
        }
        let count = place.entry.count;
        let waiting = self.places.entry(place.key());
        waiting
            .and_modify(|waiting| waiting.entry.count = waiting.entry.count.saturating_add(count))
            .or_insert(place);
    }

    /// All places that wait; those that go on waiting are put back by [`Self::put_back`].
    pub(crate) fn take_places(&mut self) -> impl Iterator<Item = Place> + use<> {
        std::mem::take(&mut self.places).into_values()
    }

    /// The samples of a place go on waiting.
    pub(crate) fn put_back(&mut self, place: Place) {
        self.places.insert(place.key(), place);
    }

    /// Samples that waited are counted now: `account` has taken them.
    pub(crate) fn end(&mut self, entry: &Entry, account: Option<&mut Account>) {
        if let Some(account) = account
            && let Some(waiting) = self.implied.get_mut(entry.event())
        {
            let samples = u64::from(entry.count);
            let implied = samples.min(*waiting);
            account.taken += samples;
            account.counted.implied += implied;
            *waiting -= implied;
        }
    }

    /// Whether another stack may wait.
    pub(crate) fn takes_stacks(&self) -> bool {
        !self.is_final && self.stacks.len() < STACKS_MAX
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty() && self.stacks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_spaces::mapped_files::Files;
    use kernel::MappedFileId;

    fn place(event: u8, address: u64, generation: u16, count: u32) -> Place {
        let id = MappedFileId::Inode { major: 0, minor: 0, inode: 0 };
        let file = Files::default().intern(id, b"//anon");
        let mapping = Mapping { start: 0x1000, end: 0x9000, file_offset: 0, file };
        let at = MappedAt { pid: 7, start: 0x1000, end: 0x9000 };
        let entry = Entry::new(event, address, 7, count);
        let (tags, reason) = (Tags::default(), Unresolved::JitNotInMap);
        Place { entry, at, generation, mapping, tags, reason }
    }

    /// Each drain's samples of an address waited on their own: after 22 minutes of 500 addresses in
    /// each drain, further samples had no name.
    #[test]
    fn samples_of_one_address_wait_as_one_place() {
        let mut late = LateSamples::default();
        let mut account = Account { taken: 40_000_000, ..Account::default() };
        account.counted.implied = 50_000_000;
        let before = account.clone();
        for _drain in 0..2000 {
            for address in 0..500 {
                let place = place(0, 0x1000 + address, 1, 3);
                assert!(late.takes(&place));
                late.add(place, Some(&mut account));
            }
        }
        late.add(place(0, 0x1000, 2, 5), Some(&mut account));
        late.add(place(1, 0x1000, 1, 5), None);
        let waiting = 2000 * 500 * 3 + 5;
        assert_eq!(account.taken, 40_000_000 - waiting);
        assert_eq!(account.counted.implied, 50_000_000 - waiting);
        let places: Vec<Place> = late.take_places().collect();
        assert_eq!(places.len(), 502, "another generation and another event are apart");
        assert_eq!(places[0].entry.count, 6000);
        for place in places {
            late.end(&place.entry, (place.entry.event() == 0).then_some(&mut account));
        }
        assert_eq!(account, before);
        assert!(late.is_empty() && late.implied.iter().all(|waiting| *waiting == 0));
    }

    #[test]
    fn no_more_samples_wait_than_there_is_room_for() {
        let mut late = LateSamples::default();
        (0..PLACES_MAX as u64).for_each(|at| late.add(place(0, 0x1000 + at, 1, 1), None));
        assert!(!late.takes(&place(0, 0x1000 + PLACES_MAX as u64, 1, 1)));
        assert!(late.takes(&place(0, 0x1000, 1, 1)), "a place that waits already");
        assert!(!late.takes(&place(0, 0x1000, 1, u32::MAX)), "more than a place can have");
        late.is_final = true;
        assert!(!late.takes(&place(0, 0x1000, 1, 1)));
    }
}
