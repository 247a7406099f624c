//! The samples of one event in one image.

use std::ops::Range;

use image::ImageOffset;

/// Samples per offset, in ascending order of offset.
///
/// Invariant: no entry has a count of zero. Counts are in samples and saturate at `u64::MAX`, so
/// that `merge` is commutative and associative for all values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Strictly ascending by offset.
    counts: Vec<(u64, u64)>,
}

impl Profile {
    /// A profile without samples.
    #[must_use]
    pub const fn new() -> Self {
        Self { counts: Vec::new() }
    }

    /// The profile of these counts; the same offset may come more than once.
    pub fn from_counts(counts: impl IntoIterator<Item = (ImageOffset, u64)>) -> Self {
        Self { counts: summed(counts.into_iter().map(|(offset, count)| (offset.0, count))) }
    }

    /// The profile of entries that are known to be in strictly ascending order and without zeros.
    pub(crate) const fn from_sorted(counts: Vec<(u64, u64)>) -> Self {
        Self { counts }
    }

    /// Adds `count` samples at `offset`. Cheap at the end; elsewhere all that follows is moved, so many are better added with
    /// [`Profile::from_counts`] and [`Profile::merge`].
    pub fn add(&mut self, offset: ImageOffset, count: u64) {
        if count == 0 {
            return;
        }
        let at = self.counts.partition_point(|(known, _)| *known < offset.0);
        match self.counts.get_mut(at) {
            Some((known, sum)) if *known == offset.0 => *sum = sum.saturating_add(count),
            _ => self.counts.insert(at, (offset.0, count)),
        }
    }

    /// Adds all samples of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.counts = joined(std::mem::take(&mut self.counts), &other.counts);
    }

    /// All samples.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().fold(0, |sum: u64, (_, count)| sum.saturating_add(*count))
    }

    /// Number of offsets that have samples.
    #[must_use]
    pub fn len(&self) -> usize {
        self.counts.len()
    }

    /// True when there are no samples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// The entries in ascending order of offset.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (ImageOffset, u64)> + '_ {
        self.counts.iter().map(|(offset, count)| (ImageOffset(*offset), *count))
    }

    /// Those of the entries that are within `offsets`; others are not looked at.
    pub fn within(&self, offsets: Range<ImageOffset>) -> impl ExactSizeIterator<Item = (ImageOffset, u64)> + '_ {
        let before = |end: ImageOffset| self.counts.partition_point(|(known, _)| *known < end.0);
        let within = self.counts.get(before(offsets.start)..before(offsets.end)).unwrap_or_default();
        within.iter().map(|(offset, count)| (ImageOffset(*offset), *count))
    }

    /// The samples at `offset`.
    #[must_use]
    pub fn get(&self, offset: ImageOffset) -> u64 {
        let found = self.counts.binary_search_by_key(&offset.0, |(known, _)| *known);
        found.ok().and_then(|at| self.counts.get(at)).map_or(0, |(_, count)| *count)
    }
}

/// How often control went from one place of an image to another: counts by (from, to), in ascending order of both.
///
/// Invariant: no entry has a count of zero. Counts saturate at `u64::MAX`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edges {
    counts: Vec<((u64, u64), u64)>,
}

impl Edges {
    /// No edges.
    #[must_use]
    pub const fn new() -> Self {
        Self { counts: Vec::new() }
    }

    /// The edges of these counts of (from, to); the same pair may come more than once.
    pub fn from_counts(counts: impl IntoIterator<Item = ((ImageOffset, ImageOffset), u64)>) -> Self {
        Self { counts: summed(counts.into_iter().map(|((from, to), count)| ((from.0, to.0), count))) }
    }

    /// The edges of entries that are known to be in strictly ascending order and without zeros.
    pub(crate) const fn from_sorted(counts: Vec<((u64, u64), u64)>) -> Self {
        Self { counts }
    }

    /// Adds all counts of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.counts = joined(std::mem::take(&mut self.counts), &other.counts);
    }

    /// All counts together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().fold(0, |sum: u64, (_, count)| sum.saturating_add(*count))
    }

    /// Number of pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.counts.len()
    }

    /// True when there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// The entries: from, to and count, in ascending order of from and to.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (ImageOffset, ImageOffset, u64)> + '_ {
        self.counts.iter().map(|((from, to), count)| (ImageOffset(*from), ImageOffset(*to), *count))
    }

    /// The count of one pair.
    #[must_use]
    pub fn get(&self, from: ImageOffset, to: ImageOffset) -> u64 {
        let found = self.counts.binary_search_by_key(&(from.0, to.0), |(known, _)| *known);
        found.ok().and_then(|at| self.counts.get(at)).map_or(0, |(_, count)| *count)
    }
}

/// Sorts, and adds up what has the same key; without zeros.
fn summed<K: Ord + Copy>(counts: impl Iterator<Item = (K, u64)>) -> Vec<(K, u64)> {
    let mut counts: Vec<(K, u64)> = counts.filter(|(_, count)| *count > 0).collect();
    counts.sort_unstable_by_key(|(key, _)| *key);
    counts.dedup_by(|later, kept| {
        let same = later.0 == kept.0;
        if same {
            kept.1 = kept.1.saturating_add(later.1);
        }
        same
    });
    counts
}

/// The sum of two lists, each in strictly ascending order: one pass over both.
fn joined<K: Ord + Copy>(mine: Vec<(K, u64)>, theirs: &[(K, u64)]) -> Vec<(K, u64)> {
    let mut mine = mine;
    let follows = match (mine.last(), theirs.first()) {
        (Some((last, _)), Some((first, _))) => last < first,
        _ => true,
    };
    if follows {
        mine.extend_from_slice(theirs);
        return mine;
    }
    let mut sum = Vec::with_capacity(mine.len() + theirs.len());
    let mut rest = theirs;
    for (key, count) in mine {
        while let Some(((next, more), after)) = rest.split_first()
            && *next < key
        {
            sum.push((*next, *more));
            rest = after;
        }
        match rest.split_first() {
            Some(((next, more), after)) if *next == key => {
                sum.push((key, count.saturating_add(*more)));
                rest = after;
            }
            _ => sum.push((key, count)),
        }
    }
    sum.extend_from_slice(rest);
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(profile: &Profile) -> Vec<(u64, u64)> {
        profile.iter().map(|(o, c)| (o.0, c)).collect()
    }

    #[test]
    fn adds_sort_and_sum() {
        let counts = [(9, 1), (3, 2), (9, 4), (5, 0)].map(|(o, c)| (ImageOffset(o), c));
        let mut one_by_one = Profile::new();
        counts.iter().for_each(|(offset, count)| one_by_one.add(*offset, *count));
        for profile in [Profile::from_counts(counts), one_by_one] {
            assert_eq!(pairs(&profile), [(3, 2), (9, 5)]);
            assert_eq!((profile.total(), profile.len()), (7, 2));
            assert_eq!(profile.get(ImageOffset(9)), 5);
            assert_eq!(profile.get(ImageOffset(5)), 0);
        }
    }

    #[test]
    fn what_is_within_is_found() {
        let profile = Profile::from_counts([3, 5, 9].map(|offset| (ImageOffset(offset), 1)));
        for (start, end, expected) in
            [(0, 3, &[][..]), (3, 9, &[3, 5]), (4, 10, &[5, 9]), (0, u64::MAX, &[3, 5, 9]), (9, 3, &[])]
        {
            let within: Vec<u64> = profile.within(ImageOffset(start)..ImageOffset(end)).map(|(o, _)| o.0).collect();
            assert_eq!(within, expected, "{start}..{end}");
        }
    }

    #[test]
    fn a_zero_count_is_no_entry() {
        let mut profile = Profile::from_counts([(ImageOffset(1), 0)]);
        profile.add(ImageOffset(2), 0);
        assert!(profile.is_empty());
        assert_eq!(profile, Profile::new());
    }

    #[test]
    fn counts_saturate() {
        let mut profile = Profile::from_counts([(ImageOffset(1), u64::MAX)]);
        profile.merge(&Profile::from_counts([(ImageOffset(1), 1), (ImageOffset(2), 1)]));
        assert_eq!(pairs(&profile), [(1, u64::MAX), (2, 1)]);
        assert_eq!(profile.total(), u64::MAX);
    }

    #[test]
    fn lists_are_joined_wherever_they_meet() {
        for (a, b, sum) in [
            (&[][..], &[(1, 1)][..], &[(1, 1)][..]),
            (&[(1, 1)], &[], &[(1, 1)]),
            (&[(1, 1)], &[(2, 2)], &[(1, 1), (2, 2)]),
            (&[(2, 2)], &[(1, 1)], &[(1, 1), (2, 2)]),
            (&[(1, 1), (5, 5)], &[(0, 9), (1, 2), (3, 3), (5, 1), (7, 7)], &[(0, 9), (1, 3), (3, 3), (5, 6), (7, 7)]),
        ] {
            assert_eq!(joined(a.to_vec(), b), sum);
        }
    }

    #[test]
    fn edges_add_by_pair() {
        let at = ImageOffset;
        let mut edges = Edges::from_counts([((at(5), at(1)), 2), ((at(5), at(1)), 1), ((at(2), at(9)), 4)]);
        edges.merge(&Edges::from_counts([((at(5), at(0)), 7), ((at(2), at(9)), 1)]));
        let all: Vec<_> = edges.iter().map(|(from, to, count)| (from.0, to.0, count)).collect();
        assert_eq!(all, [(2, 9, 5), (5, 0, 7), (5, 1, 3)]);
        assert_eq!((edges.get(at(5), at(1)), edges.get(at(5), at(2)), edges.total(), edges.len()), (3, 0, 15, 3));
    }
}
