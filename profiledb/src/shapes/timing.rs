//! The timing of counts: how the count of each entry of a section is spread over the slices of its
//! segment. `FORMAT.md` describes the same bytes.
//!
//! What an entry should have in a slice is known from what all have in it together, which comes
//! first: a count takes as few bits as it is unexpected.

use std::ops::Range;

use model::Value;

use super::columns::{PREALLOCATED_ENTRIES, column, ended, put_block, take_block_of};
use super::pairs::{unzigzag, zigzag};
use super::range_coder::{Decoder, Encoder, Numbers};
use crate::codec::{DecodeError, Input, put_varint};
use crate::error::Damage;

/// Most slices of a segment: a day of ten seconds each. More cost each reader memory.
pub(crate) const SLICES_MAX: usize = 8640;
/// Most entries of a section times slices of its segment: a reader looks at each. A count of an
/// entry in a slice takes 16 bytes of memory. A writer whose section has more makes its slices
/// longer.
pub(crate) const CELLS_MAX: usize = 64 << 20;
/// Most bytes of a number in a column: the longest varint.
const NUMBER_BYTES: u64 = 10;

/// What an entry has in one slice.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Cell {
    slice: u32,
    count: u64,
}

/// Weight, and sum of squares, of the stacks of a cell.
type Weights = (u64, u64);

/// The counts of each entry of a section by slice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Timing {
    slices: usize,
    /// For each entry the end of its cells.
    ends: Vec<usize>,
    /// The cells of the entries, one entry after the other, each in ascending order of slices.
    cells: Vec<Cell>,
    /// The weights of each cell; of counts there are none.
    weights: Vec<Weights>,
}

/// The entries of a section: counts, or values of call stacks.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Entries<'a> {
    Counts(&'a [u64]),
    Stacks(&'a [Value]),
}

impl Entries<'_> {
    const fn len(self) -> usize {
        match self {
            Self::Counts(counts) => counts.len(),
            Self::Stacks(values) => values.len(),
        }
    }

    fn value(self, entry: usize) -> Value {
        match self {
            Self::Counts(counts) => {
                let stacks = counts.get(entry).copied().unwrap_or(0);
                Value { stacks, ..Value::default() }
            }
            Self::Stacks(values) => values.get(entry).copied().unwrap_or_default(),
        }
    }
}

/// What equal weights would have: the part of a sum that `count` of `all` have.
fn share(sum: u64, count: u64, all: u64) -> u64 {
    let share = u128::from(sum) * u128::from(count) / u128::from(all.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

impl Timing {
    /// All counts in one of some slices.
    pub(crate) fn within_one(entries: Entries<'_>, slice: usize, slices: usize) -> Self {
        let slice = u32::try_from(slice).unwrap_or(u32::MAX);
        let cells =
            (0..entries.len()).map(|entry| Cell { slice, count: entries.value(entry).stacks });
        let weights = match entries {
            Entries::Counts(_) => Vec::new(),
            Entries::Stacks(values) => {
                values.iter().map(|value| (value.weight, value.squares)).collect()
            }
        };
        let ends = (1..=entries.len()).collect();
        Self { slices, ends, cells: cells.collect(), weights }
    }

    /// Number of cells.
    pub(crate) const fn len(&self) -> usize {
        self.cells.len()
    }

    /// The sum of timings of several sources. Each comes with the slice that each of its slices
    /// becomes, in ascending order, and the entry that each of its entries becomes.
    pub(crate) fn sum(
        sources: &[(Self, &[usize], Vec<usize>)],
        (entries, slices): (usize, usize),
    ) -> Self {
        let of = |source: &(Self, &[usize], Vec<usize>), cell: &Cell| {
            let slice = source.1.get(cell.slice as usize).copied().unwrap_or(0);
            u32::try_from(slice).unwrap_or(u32::MAX)
        };
        let is_weighted = sources.iter().any(|(source, ..)| !source.weights.is_empty());
        // Where the entries' cells come in the order of sources they are already in that of slices,
        // but for epochs that are merged; each entry is sorted where it is not.
        let mut room = vec![0_usize; entries + 1];
        for (timing, _, becomes) in sources {
            for (entry, cells) in timing.by_entry() {
                if let Some(room) = becomes.get(entry).and_then(|at| room.get_mut(at + 1)) {
                    *room += cells.len();
                }
            }
        }
        let mut next = room;
        for at in 1..next.len() {
            let before = next.get(at - 1).copied().unwrap_or(0);
            if let Some(begin) = next.get_mut(at) {
                *begin += before;
            }
        }
        let ends: Vec<usize> = next.iter().skip(1).copied().collect();
        let all = ends.last().copied().unwrap_or(0);
        let mut cells = vec![(Cell { slice: 0, count: 0 }, (0, 0)); all];
        for source in sources {
            let (timing, _, becomes) = source;
            for (entry, range) in timing.by_entry() {
                let Some(next) = becomes.get(entry).and_then(|at| next.get_mut(*at)) else {
                    continue;
                };
                for at in range {
                    let Some(cell) = timing.cells.get(at) else { continue };
                    let weights = timing.weights.get(at).copied().unwrap_or_default();
                    if let Some(place) = cells.get_mut(*next) {
                        *place = (Cell { slice: of(source, cell), count: cell.count }, weights);
                    }
                    *next += 1;
                }
            }
        }
        let mut sum = Self { slices, ..Self::default() };
        let mut begin = 0;
        for end in ends {
            let of_entry = cells.get_mut(begin..end).unwrap_or_default();
            if !of_entry.is_sorted_by_key(|(cell, _)| cell.slice) {
                of_entry.sort_by_key(|(cell, _)| cell.slice);
            }
            sum.push(of_entry, is_weighted);
            begin = end;
        }
        sum
    }

    /// Adds an entry; cells of one slice become one.
    fn push(&mut self, cells: &[(Cell, Weights)], is_weighted: bool) {
        let begin = self.cells.len();
        for (cell, (weight, squares)) in cells {
            let last = if self.cells.len() > begin { self.cells.last_mut() } else { None };
            match last.filter(|last| last.slice == cell.slice) {
                Some(last) => {
                    last.count = last.count.saturating_add(cell.count);
                    if let Some(sums) = self.weights.last_mut() {
                        sums.0 = sums.0.saturating_add(*weight);
                        sums.1 = sums.1.saturating_add(*squares);
                    }
                }
                None => {
                    self.cells.push(*cell);
                    self.weights.extend(is_weighted.then_some((*weight, *squares)));
                }
            }
        }
        self.ends.push(self.cells.len());
    }

    /// Entries, each with the range of its cells.
    fn by_entry(&self) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        begins.zip(&self.ends).map(|(begin, end)| begin..*end).enumerate()
    }

    /// What each of these entries has in some of the slices, and the timing of those that have
    /// something there.
    pub(crate) fn part(&self, slices: &Range<usize>, entries: Entries<'_>) -> (Vec<Value>, Self) {
        let (first, count) =
            (slices.start, slices.end.min(self.slices).saturating_sub(slices.start));
        let mut part = Self { slices: count, ..Self::default() };
        let mut values = Vec::with_capacity(entries.len());
        for (entry, range) in self.by_entry() {
            let (all, begin, mut sum) = (range.len(), part.cells.len(), Value::default());
            for at in range {
                let Some(cell) = self.cells.get(at) else { continue };
                let slice = (cell.slice as usize).checked_sub(first).filter(|at| *at < count);
                let Some(slice) = slice.and_then(|slice| u32::try_from(slice).ok()) else {
                    continue;
                };
                part.cells.push(Cell { slice, count: cell.count });
                let weights = self.weights.get(at).copied();
                part.weights.extend(weights);
                let (weight, squares) = weights.unwrap_or_default();
                sum.add(Value { stacks: cell.count, weight, squares });
            }
            let found = part.cells.len() - begin;
            if found > 0 {
                part.ends.push(part.cells.len());
            }
            values.push(if found == all { entries.value(entry) } else { sum });
        }
        (values, part)
    }

    /// The section of the timing of these entries; None where a sum is larger than a number can be,
    /// so that cells do not add up to what the entries have.
    pub(crate) fn encode(&self, entries: Entries<'_>) -> Option<Vec<u8>> {
        let mut sums = vec![0_u64; self.slices];
        for cell in &self.cells {
            let sum = sums.get_mut(cell.slice as usize)?;
            *sum = sum.checked_add(cell.count.max(1))?;
        }
        let mut expected = Expected::of(sums.clone())?;
        let mut coder = Encoder::new();
        let mut columns = Columns::<Vec<u8>>::default();
        for (entry, range) in self.by_entry() {
            let of_entry = self.cells.get(range.clone())?;
            let without = of_entry.iter().filter(|cell| cell.count == 0).count() as u64;
            let whole = entries.value(entry);
            let all = whole.stacks.checked_add(without)?;
            put_varint(&mut columns.without, without);
            let (mut left, end) = (all, range.end);
            let mut cells = range.zip(of_entry).peekable();
            expected.begin();
            for slice in 0..self.slices {
                let cell = cells.next_if(|(_, cell)| cell.slice as usize == slice);
                let count = cell.map_or(0, |(_, cell)| cell.count.max(1));
                expected.next(slice, left, |known, mean| {
                    coder.put(known, code(count, mean));
                    Some(count)
                })?;
                left = left.checked_sub(count)?;
                if let Some((_, cell)) = cell.filter(|_| without > 0 && count == 1) {
                    put_varint(&mut columns.ones, cell.count);
                }
                let weighted = cell.and_then(|(at, _)| Some((at, self.weights.get(at)?)));
                if let Some((_, (weight, sum))) = weighted.filter(|(at, _)| at + 1 < end) {
                    let equal = share(whole.weight, count, all);
                    put_varint(&mut columns.weights, zigzag(weight.wrapping_sub(equal)));
                    let equal = share(whole.squares, count, all);
                    put_varint(&mut columns.squares, zigzag(sum.wrapping_sub(equal)));
                }
                if left == 0 {
                    break;
                }
            }
            if left > 0 || cells.next().is_some() {
                return None;
            }
        }
        let mut column = Vec::with_capacity(sums.len());
        sums.iter().for_each(|sum| put_varint(&mut column, *sum));
        let mut out = Vec::new();
        put_block(&mut out, &column);
        if matches!(entries, Entries::Stacks(_)) {
            let Columns { without, ones, weights, squares } = &columns;
            [without, ones, weights, squares].iter().for_each(|column| put_block(&mut out, column));
        } else if columns.without.iter().any(|without| *without > 0) {
            // A place that was not sampled is no cell.
            return None;
        }
        out.extend_from_slice(&coder.finish());
        Some(out)
    }

    /// The sums of a section's counts by slice, which come first.
    ///
    /// # Errors
    /// Damage.
    pub(crate) fn decode_sums(section: &[u8], slices: usize) -> Result<Vec<u64>, DecodeError> {
        sums(&mut Input::new(section), slices)
    }

    /// Decodes the timing of these entries.
    ///
    /// # Errors
    /// [`DecodeError`] when the bytes are not what [`Timing::encode`] writes for such entries.
    pub(crate) fn decode(
        section: &[u8],
        slices: usize,
        entries: Entries<'_>,
    ) -> Result<Self, DecodeError> {
        let mut input = Input::new(section);
        let error = |damage| DecodeError { offset: 0, damage };
        let asked = (entries.len() as u64).saturating_mul(slices as u64);
        if asked > CELLS_MAX as u64 {
            return Err(error(Damage::Count { count: asked }));
        }
        let sums = sums(&mut input, slices)?;
        let mut column_of = || match entries {
            Entries::Counts(_) => Ok(Vec::new()),
            Entries::Stacks(_) => take_block_of(&mut input, CELLS_MAX as u64 * NUMBER_BYTES),
        };
        let blocks = [column_of()?, column_of()?, column_of()?, column_of()?];
        let mut coder = Decoder::new(input.rest());
        let [without, ones, weights, squares] = blocks.each_ref().map(|block| Input::new(block));
        let mut columns = Columns { without, ones, weights, squares };
        let mut expected = Expected::of(sums).ok_or_else(|| error(Damage::Varint))?;
        let mut timing = Self { slices, ..Self::default() };
        timing.ends.reserve(entries.len().min(PREALLOCATED_ENTRIES));
        for entry in 0..entries.len() {
            let whole = entries.value(entry);
            let without = match entries {
                Entries::Counts(_) => 0,
                Entries::Stacks(_) => column(&mut columns.without, 0)?,
            };
            let all = whole.stacks.checked_add(without).ok_or_else(|| error(Damage::Varint))?;
            let (mut left, mut rest) = (all, whole);
            expected.begin();
            for slice in 0..slices {
                let count = expected
                    .next(slice, left, |known, mean| decoded(coder.take(known), mean))
                    .ok_or_else(|| error(Damage::Order))?;
                left -= count;
                if count > 0 {
                    let cell = (u32::try_from(slice).unwrap_or(u32::MAX), count, left == 0);
                    match entries {
                        Entries::Counts(_) => timing.cells.push(Cell { slice: cell.0, count }),
                        Entries::Stacks(_) => {
                            timing.take(cell, (whole, without), &mut rest, &mut columns)?;
                        }
                    }
                }
                if left == 0 {
                    break;
                }
            }
            if left > 0 {
                return Err(error(Damage::Order));
            }
            timing.ends.push(timing.cells.len());
        }
        let Columns { without, ones, weights, squares } = columns;
        ended(&[without, ones, weights, squares], 0)?;
        match (coder.is_at_end(), expected.is_empty()) {
            (true, true) => Ok(timing),
            (false, _) => Err(error(Damage::TrailingBytes)),
            (_, false) => Err(error(Damage::Order)),
        }
    }

    /// Adds a cell of call stacks that was decoded, with the rest from these columns.
    fn take(
        &mut self,
        (slice, count, is_last): (u32, u64, bool),
        (whole, without): (Value, u64),
        rest: &mut Value,
        columns: &mut Columns<Input<'_>>,
    ) -> Result<(), DecodeError> {
        let error = DecodeError { offset: 0, damage: Damage::Varint };
        let all = whole.stacks.saturating_add(without);
        let stacks = match (without, count) {
            (1.., 1) => column(&mut columns.ones, 0)?,
            _ => count,
        };
        let part = |of: &mut Input<'_>, sum, left: u64| {
            if is_last {
                return Ok(left);
            }
            let number = share(sum, count, all).wrapping_add(unzigzag(column(of, 0)?));
            let is_part = number <= left;
            if is_part {
                Ok(number)
            } else {
                Err(DecodeError { offset: 0, damage: Damage::Varint })
            }
        };
        let weight = part(&mut columns.weights, whole.weight, rest.weight)?;
        let sum = part(&mut columns.squares, whole.squares, rest.squares)?;
        let left = rest.stacks.checked_sub(stacks).filter(|left| !is_last || *left == 0);
        rest.stacks = left.ok_or(error)?;
        (rest.weight, rest.squares) = (rest.weight - weight, rest.squares - sum);
        self.cells.push(Cell { slice, count: stacks });
        self.weights.push((weight, sum));
        Ok(())
    }
}

/// Columns of the timing of call stacks.
#[derive(Default)]
struct Columns<Column> {
    /// For each entry its cells without stacks: a part of a wait that has not ended.
    without: Column,
    /// For each cell of count 1 of an entry that has some without, its stacks.
    ones: Column,
    weights: Column,
    squares: Column,
}

/// Means from which a number is coded as its distance from the mean.
const DISTANCES_FROM: u64 = 16;
/// Contexts of numbers by their mean: two for each doubling, from a 64th on.
const MEANS: usize = 96;
/// Contexts by the count before of the entry: none, 0, less than its mean, and others.
const BEFORE: usize = 4;
/// The mean is reckoned in parts of this.
const MEAN_PARTS: u64 = 64;

/// A count as it is coded where this mean is expected.
const fn code(count: u64, mean: u64) -> u64 {
    if mean < DISTANCES_FROM { count } else { zigzag(count.wrapping_sub(mean)) }
}

const fn decoded(number: u64, mean: u64) -> Option<u64> {
    if mean < DISTANCES_FROM {
        Some(number)
    } else {
        mean.checked_add_signed(unzigzag(number).cast_signed())
    }
}

/// What an entry should have in a slice, by what the slices have that is not yet some entry's: an
/// image that runs in one slice only needs no bits to say so.
struct Expected {
    /// Of each slice what is left.
    left: Vec<u64>,
    /// The sum over the slices from each one on.
    from: Vec<u64>,
    contexts: Vec<Numbers>,
    /// The context by the count before.
    before: usize,
}

impl Expected {
    /// None where the sums together are larger than a number can be.
    fn of(left: Vec<u64>) -> Option<Self> {
        let mut from = vec![0_u64; left.len() + 1];
        for at in (0..left.len()).rev() {
            let sum = from.get(at + 1)?.checked_add(*left.get(at)?)?;
            *from.get_mut(at)? = sum;
        }
        // At first, a count is 0 with the chance 1 / (1 + mean).
        let zero = |context: usize| {
            let (bits, half) = (context % MEANS / 2, context % 2);
            let parts = ((2 + half as u64) << bits.min(32)) >> 2;
            Numbers::zero_with(u16::try_from(4096 * MEAN_PARTS / (MEAN_PARTS + parts)).unwrap_or(0))
        };
        let contexts = (0..MEANS * BEFORE).map(zero).collect();
        Some(Self { left, from, contexts, before: 0 })
    }

    /// The next entry begins.
    const fn begin(&mut self) {
        self.before = 0;
    }

    /// The count of the next slice, of an entry that has `rest` in this slice and later ones:
    /// by `coded`, which gets what is known of such counts and their mean, where there is a choice.
    /// None for a count that cannot be.
    fn next(
        &mut self,
        slice: usize,
        rest: u64,
        coded: impl FnOnce(&mut Numbers, u64) -> Option<u64>,
    ) -> Option<u64> {
        let (has, all) = (*self.left.get(slice)?, *self.from.get(slice)?);
        let most = has.min(rest);
        let later = all.checked_sub(has)?;
        // What later slices have no room for is here.
        let least = rest.saturating_sub(later);
        if least > most {
            return None;
        }
        let count = if least == most {
            most
        } else {
            let parts =
                u128::from(rest) * u128::from(has) * u128::from(MEAN_PARTS) / u128::from(all);
            let parts = u64::try_from(parts).unwrap_or(u64::MAX);
            let bits = (u64::BITS - parts.leading_zeros()) as usize;
            let half = bits.checked_sub(2).map_or(0, |shift| parts >> shift & 1);
            let context = (2 * bits + usize::from(half == 1)).min(MEANS - 1);
            let known = self.contexts.get_mut(self.before * MEANS + context)?;
            let count = coded(known, parts / MEAN_PARTS)?;
            self.before = match count {
                0 => 1,
                few if few < parts / MEAN_PARTS => 2,
                _ => 3,
            };
            count
        };
        if !(least..=most).contains(&count) {
            return None;
        }
        if count > 0 {
            *self.left.get_mut(slice)? -= count;
            self.from.get_mut(..=slice)?.iter_mut().for_each(|sum| *sum -= count);
        }
        Some(count)
    }

    /// Whether all that slices have is some entry's.
    fn is_empty(&self) -> bool {
        self.from.first().is_none_or(|sum| *sum == 0)
    }
}

fn sums(input: &mut Input<'_>, slices: usize) -> Result<Vec<u64>, DecodeError> {
    let most = slices as u64 * NUMBER_BYTES;
    let block = take_block_of(input, most)?;
    let mut numbers = Input::new(&block);
    let sums = (0..slices).map(|_| column(&mut numbers, 0)).collect::<Result<_, _>>()?;
    ended(&[numbers], 0)?;
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Each entry by slice: number of stacks and weight of each.
    fn by_slice() -> impl Strategy<Value = (usize, Vec<Vec<Value>>)> {
        let value = (
            prop_oneof![
                4 => Just(0_u64),
                2 => 1_u64..4,
                1 => 0_u64..3000,
                1 => Just(u64::MAX / 512)
            ],
            0_u64..1 << 30,
        )
            .prop_map(|(stacks, weight)| {
                // A part of a wait has weight and no stack.
                let weight = if stacks == 0 && weight % 4 > 0 { 0 } else { weight };
                Value { stacks, weight, squares: weight / 7 }
            });
        (1_usize..20).prop_flat_map(move |slices| {
            let entry = proptest::collection::vec(value.clone(), slices);
            (Just(slices), proptest::collection::vec(entry, 0..20))
        })
    }

    fn timing(slices: usize, entries: &[Vec<Value>], is_weighted: bool) -> (Timing, Vec<Value>) {
        let mut timing = Timing { slices, ..Timing::default() };
        let mut totals = Vec::new();
        for entry in entries {
            let cell = |(slice, value): (u32, &Value)| {
                let cell = Cell { slice, count: value.stacks };
                let is_cell = value.stacks > 0 || is_weighted && value.weight > 0;
                is_cell.then_some((cell, (value.weight, value.squares)))
            };
            let cells: Vec<_> = (0..).zip(entry).filter_map(cell).collect();
            let mut total = Value::default();
            entry.iter().for_each(|value| total.add(*value));
            if !cells.is_empty() {
                timing.push(&cells, is_weighted);
                totals.push(total);
            }
        }
        (timing, totals)
    }

    proptest! {
        #[test]
        fn a_timing_reads_back((slices, entries) in by_slice(), to in 0_usize..20) {
            let (stacks, values) = timing(slices, &entries, true);
            let bytes = stacks.encode(Entries::Stacks(&values)).unwrap();
            let read = Timing::decode(&bytes, slices, Entries::Stacks(&values)).unwrap();
            prop_assert_eq!(&read, &stacks);
            let (places, totals) = timing(slices, &entries, false);
            let counts: Vec<u64> = totals.iter().map(|value| value.stacks).collect();
            let bytes = places.encode(Entries::Counts(&counts)).unwrap();
            let read = Timing::decode(&bytes, slices, Entries::Counts(&counts)).unwrap();
            prop_assert_eq!(&read, &places);
            // The two parts of the time have together what there is.
            let to = to.min(slices);
            let within = |range| stacks.part(&range, Entries::Stacks(&values)).0.into_iter();
            let parts = within(0..to).zip(within(to..slices));
            let sums: Vec<Value> = parts.map(|(mut one, other)| { one.add(other); one }).collect();
            prop_assert_eq!(sums, values);
            let sums = Timing::decode_sums(&bytes, slices).unwrap();
            prop_assert_eq!(sums.iter().sum::<u64>(), counts.iter().sum::<u64>());
        }
    }

    /// Of three slices: 1 in the last; 2 and 3 in the first and last; 7 in the middle.
    fn example() -> Timing {
        let cell = |slice, count| (Cell { slice, count }, (0, 0));
        let mut timing = Timing { slices: 3, ..Timing::default() };
        timing.push(&[cell(2, 1)], false);
        timing.push(&[cell(0, 2), cell(2, 3)], false);
        timing.push(&[cell(1, 7)], false);
        timing
    }

    #[test]
    fn a_timing_has_the_documented_bytes() {
        let bytes = example().encode(Entries::Counts(&[1, 5, 7])).unwrap();
        assert_eq!(bytes, b"\x03\x03\x02\x07\x04\x77\x20\x74\x88");
    }

    #[test]
    fn what_no_encoder_writes_is_refused() {
        let bytes = example().encode(Entries::Counts(&[1, 5, 7])).unwrap();
        let longer = [bytes.as_slice(), b"\x01\x01"].concat();
        let fewer = [b"\x03\x03\x02\x07\x05", &bytes[5..]].concat();
        for (bytes, counts, what) in [
            (&longer, &[1, 5, 7][..], "bytes follow"),
            (&fewer, &[1, 5, 7], "order"),
            (&bytes, &[1, 5], "order"),
            (&bytes, &[1, 5, 8], "order"),
            (&b"\x02\x02\x02\x07".to_vec(), &[1, 5, 7], "early"),
        ] {
            let error = Timing::decode(bytes, 3, Entries::Counts(counts)).unwrap_err();
            let told = error.damage.to_string();
            assert!(told.contains(what), "{bytes:x?}: {told}");
        }
        // So many that a reader would be busy for long.
        let many = vec![1; 10_000];
        let error = Timing::decode(&bytes, SLICES_MAX, Entries::Counts(&many)).unwrap_err();
        assert!(matches!(error.damage, Damage::Count { count: 86_400_000 }));
    }

    /// Sums of counts end at the largest number, and what is cut off was in some slice.
    #[test]
    fn sums_that_do_not_add_up_have_no_timing() {
        let cell = |slice, count| (Cell { slice, count }, (0, 0));
        let mut timing = Timing { slices: 2, ..Timing::default() };
        timing.push(&[cell(0, u64::MAX), cell(1, 3)], false);
        assert_eq!(timing.encode(Entries::Counts(&[u64::MAX])), None);
    }

    #[test]
    fn an_entry_that_runs_when_its_image_does_takes_no_bytes() {
        let counts = vec![3; 5000];
        let timing = Timing::within_one(Entries::Counts(&counts), 7, 60);
        let bytes = timing.encode(Entries::Counts(&counts)).unwrap().len();
        assert!(bytes < 40, "{bytes}");
    }

    #[test]
    fn slices_become_longer_and_entries_meet() {
        let first = Timing::within_one(Entries::Counts(&[4, 1]), 0, 1);
        let second = Timing::within_one(Entries::Counts(&[2]), 0, 1);
        let sum = Timing::sum(
            &[(first.clone(), &[0], vec![0, 2]), (second.clone(), &[1], vec![2])],
            (3, 2),
        );
        let counts = |timing: &Timing, range, entries: &[u64]| -> Vec<u64> {
            let (within, _) = timing.part(&range, Entries::Counts(entries));
            within.iter().map(|value| value.stacks).collect()
        };
        let all = [4, 0, 3];
        assert_eq!(counts(&sum, 0..1, &all), [4, 0, 1]);
        assert_eq!(counts(&sum, 1..2, &all), [0, 0, 2]);
        let longer = Timing::sum(&[(sum, &[0, 0], vec![0, 1, 2])], (3, 1));
        assert_eq!((counts(&longer, 0..1, &all), longer.len()), (vec![4, 0, 3], 2));
        // Sources of other epochs need not come in the order of time.
        let late = Timing::sum(&[(second, &[1], vec![0]), (first, &[0], vec![0, 1])], (2, 2));
        assert_eq!(counts(&late, 0..1, &[6, 1]), [4, 1]);
        assert_eq!(counts(&late, 1..2, &[6, 1]), [2, 0]);
    }
}
