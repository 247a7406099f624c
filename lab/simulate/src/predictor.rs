//! Branch predictors of TAGE's kind (Seznec, Michaud: *A case for (partially) tagged geometric
//! history length branch prediction*, JILP 2006): tables that are indexed by more and more of the
//! history; the longest history whose tag fits foretells. A processor's own is larger and secret;
//! it learns what this one learns, and longer histories.

use super::cache::mix;

/// Lengths of the histories, in outcomes: geometric.
const LENGTHS: [usize; 6] = [4, 9, 20, 44, 97, 213];
/// Bits of the index of a tagged table, of a tag, of the table without history.
const INDEX_BITS: usize = 12;
const TAG_BITS: usize = 11;
const BASE_BITS: u32 = 14;
/// Outcomes that are remembered: more than the longest history.
const OUTCOMES: usize = 256;
/// Allocations after which entries that have not been useful become free.
const AGING: u32 = 1 << 18;

/// A history of outcomes, folded to a number of bits as each is added.
#[derive(Clone, Copy, Debug, Default)]
struct Folded {
    value: u64,
    length: usize,
    bits: usize,
}

impl Folded {
    fn add(&mut self, new: bool, old: bool) {
        let value = self.value << 1 | u64::from(new);
        let value = value ^ u64::from(old) << (self.length % self.bits);
        let value = value ^ value >> self.bits;
        self.value = value & ((1 << self.bits) - 1);
    }
}

/// The outcomes of all branches.
#[derive(Debug)]
struct History {
    outcomes: [bool; OUTCOMES],
    next: usize,
    /// For the index and for the tag of each table.
    folded: [[Folded; 2]; LENGTHS.len()],
}

impl Default for History {
    fn default() -> Self {
        let of = |length| [INDEX_BITS, TAG_BITS].map(|bits| Folded { value: 0, length, bits });
        Self { outcomes: [false; OUTCOMES], next: 0, folded: LENGTHS.map(of) }
    }
}

impl History {
    fn add(&mut self, outcome: bool) {
        for folded in self.folded.iter_mut().flatten() {
            let place = (self.next + OUTCOMES - folded.length) % OUTCOMES;
            folded.add(outcome, self.outcomes.get(place).copied().unwrap_or(false));
        }
        if let Some(place) = self.outcomes.get_mut(self.next) {
            *place = outcome;
        }
        self.next = (self.next + 1) % OUTCOMES;
    }

    fn add_bits(&mut self, bits: u64, count: u32) {
        (0..count).for_each(|bit| self.add(bits >> bit & 1 != 0));
    }

    /// Index and tag of a branch in each table.
    fn places(&self, at: u64) -> [(usize, u16); LENGTHS.len()] {
        let mut table = 0;
        self.folded.map(|[index, tag]| {
            table += 1;
            let spread = mix(at.wrapping_add(table << 56));
            let place = (spread ^ index.value) & ((1 << INDEX_BITS) - 1);
            let tag = (spread >> 32 ^ tag.value) & ((1 << TAG_BITS) - 1);
            (place as usize, tag as u16)
        })
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry<T> {
    tag: u16,
    useful: u8,
    /// -4 to 3: not negative for taken; of a target 0 to 3, how sure it is.
    sure: i8,
    what: T,
}

/// Tagged tables of one predictor.
#[derive(Debug)]
struct Tables<T> {
    tables: Vec<Vec<Entry<T>>>,
    history: History,
    allocations: u32,
}

impl<T: Copy + Default> Default for Tables<T> {
    fn default() -> Self {
        let table = vec![Entry { tag: u16::MAX, ..Entry::default() }; 1 << INDEX_BITS];
        Self { tables: vec![table; LENGTHS.len()], history: History::default(), allocations: 0 }
    }
}

impl<T: Copy + Default> Tables<T> {
    fn entry(&mut self, table: usize, place: (usize, u16)) -> Option<&mut Entry<T>> {
        self.tables.get_mut(table)?.get_mut(place.0)
    }

    /// The tables whose entries fit, the longest history first: at most two.
    fn fitting(&mut self, places: &[(usize, u16)]) -> (Option<usize>, Option<usize>) {
        let mut found = (None, None);
        for (table, place) in places.iter().enumerate().rev() {
            if self.entry(table, *place).is_some_and(|entry| entry.tag == place.1) {
                if found.0.is_none() {
                    found.0 = Some(table);
                } else {
                    return (found.0, Some(table));
                }
            }
        }
        found
    }

    /// Takes an entry of a longer history for a branch that was foretold wrongly.
    fn allocate(&mut self, above: Option<usize>, places: &[(usize, u16)], new: Entry<T>) {
        let first = above.map_or(0, |table| table + 1);
        for (table, place) in places.iter().enumerate().skip(first) {
            let Some(entry) = self.entry(table, *place) else { continue };
            if entry.useful == 0 {
                *entry = Entry { tag: place.1, ..new };
                break;
            }
            entry.useful -= 1;
        }
        self.allocations += 1;
        if self.allocations.is_multiple_of(AGING) {
            self.tables.iter_mut().flatten().for_each(|entry| entry.useful >>= 1);
        }
    }
}

/// Conditional branches.
#[derive(Debug)]
pub(crate) struct Conditional {
    base: Vec<i8>,
    tables: Tables<()>,
}

impl Default for Conditional {
    fn default() -> Self {
        Self { base: vec![0; 1 << BASE_BITS], tables: Tables::default() }
    }
}

fn towards(value: &mut i8, taken: bool, (low, high): (i8, i8)) {
    *value = (*value + if taken { 1 } else { -1 }).clamp(low, high);
}

impl Conditional {
    /// Whether the way of a branch is foretold. The predictor learns it.
    pub(crate) fn foretells(&mut self, at: u64, taken: bool) -> bool {
        let places = self.tables.history.places(at);
        let base = (mix(at) >> (64 - BASE_BITS)) as usize;
        let of_base = self.base.get(base).is_some_and(|sure| *sure >= 0);
        let (first, second) = self.tables.fitting(&places);
        let mut of = |table: Option<usize>| {
            let place = places.get(table?).copied()?;
            self.tables.entry(table?, place).map(|entry| (entry.sure, entry.useful))
        };
        let other = of(second).map_or(of_base, |(sure, _)| sure >= 0);
        let told = match of(first) {
            // A new entry knows less than the one before it.
            Some((-1..=0, 0)) => other,
            Some((sure, _)) => sure >= 0,
            None => of_base,
        };
        let of_first = of(first).map(|(sure, _)| sure >= 0);
        if let Some((table, of_first)) = first.zip(of_first)
            && let Some(place) = places.get(table).copied()
            && let Some(entry) = self.tables.entry(table, place)
        {
            towards(&mut entry.sure, taken, (-4, 3));
            if of_first != other {
                let useful = entry.useful as i8 + if of_first == taken { 1 } else { -1 };
                entry.useful = useful.clamp(0, 3) as u8;
            }
        } else if let Some(sure) = self.base.get_mut(base) {
            towards(sure, taken, (-2, 1));
        }
        if told != taken {
            let sure = if taken { 0 } else { -1 };
            self.tables.allocate(first, &places, Entry { sure, ..Entry::default() });
        }
        self.tables.history.add(taken);
        told == taken
    }

    /// Adds to the history what other branches did.
    pub(crate) fn history(&mut self, bits: u64, count: u32) {
        self.tables.history.add_bits(bits, count);
    }
}

/// Indirect jumps and calls.
#[derive(Debug)]
pub(crate) struct Indirect {
    base: Vec<u64>,
    tables: Tables<u64>,
}

impl Default for Indirect {
    fn default() -> Self {
        Self { base: vec![0; 1 << BASE_BITS], tables: Tables::default() }
    }
}

impl Indirect {
    /// Whether the target of a branch is foretold. The predictor learns it.
    pub(crate) fn foretells(&mut self, at: u64, target: u64) -> bool {
        let places = self.tables.history.places(at);
        let base = (mix(at) >> (64 - BASE_BITS)) as usize;
        let of_base = self.base.get(base).copied().unwrap_or(0);
        let (first, _) = self.tables.fitting(&places);
        let place = first.and_then(|table| places.get(table).copied());
        let known = first.zip(place).and_then(|(table, place)| self.tables.entry(table, place));
        let told = match known {
            Some(entry) => {
                let told = entry.what;
                let right = told == target;
                entry.useful = if right { (entry.useful + 1).min(3) } else { 0 };
                if !right && entry.sure == 0 {
                    entry.what = target;
                }
                towards(&mut entry.sure, right, (0, 3));
                told
            }
            None => of_base,
        };
        if let Some(base) = self.base.get_mut(base) {
            *base = target;
        }
        if told != target {
            self.tables.allocate(first, &places, Entry { what: target, ..Entry::default() });
        }
        self.history(mix(target) >> 62, 2);
        told == target
    }

    /// Adds to the history what other branches did.
    pub(crate) fn history(&mut self, bits: u64, count: u32) {
        self.tables.history.add_bits(bits, count);
    }
}

/// Return addresses that a processor remembers: 16 of Intel's cores until Golden Cove, 24 since,
/// 32 of AMD's.
const DEPTH: usize = 24;

/// The return stack.
#[derive(Debug, Default)]
pub(crate) struct Returns {
    addresses: [u64; DEPTH],
    next: usize,
    /// Calls that have not returned.
    open: usize,
}

impl Returns {
    pub(crate) fn call(&mut self, returns_to: u64) {
        if let Some(place) = self.addresses.get_mut(self.next) {
            *place = returns_to;
        }
        self.next = (self.next + 1) % DEPTH;
        self.open += 1;
    }

    /// Whether a return is foretold. One from a call before the burst is: it is not known.
    pub(crate) fn foretells(&mut self, target: u64) -> bool {
        if self.open == 0 {
            return true;
        }
        self.open -= 1;
        self.next = (self.next + DEPTH - 1) % DEPTH;
        self.addresses.get(self.next) == Some(&target)
    }
}
