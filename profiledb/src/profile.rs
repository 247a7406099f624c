//! The samples of one event in one image.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use image::ImageOffset;

/// Samples per offset, in ascending order of offset.
///
/// Invariant: no entry has a count of zero. Counts are in samples and saturate at `u64::MAX`, so
/// that `merge` is commutative and associative for all values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    counts: BTreeMap<u64, u64>,
}

impl Profile {
    /// A profile without samples.
    #[must_use]
    pub const fn new() -> Self {
        Self { counts: BTreeMap::new() }
    }

    /// The profile of these counts; the same offset may come more than once.
    pub fn from_counts(counts: impl IntoIterator<Item = (ImageOffset, u64)>) -> Self {
        let mut profile = Self::new();
        for (offset, count) in counts {
            profile.add(offset, count);
        }
        profile
    }

    /// Adds `count` samples at `offset`.
    pub fn add(&mut self, offset: ImageOffset, count: u64) {
        if count == 0 {
            return;
        }
        match self.counts.entry(offset.0) {
            Entry::Vacant(vacant) => {
                vacant.insert(count);
            }
            Entry::Occupied(mut occupied) => {
                let sum = occupied.get().saturating_add(count);
                occupied.insert(sum);
            }
        }
    }

    /// Adds all samples of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (offset, count) in other.iter() {
            self.add(offset, count);
        }
    }

    /// All samples.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.values().fold(0, |sum: u64, count| sum.saturating_add(*count))
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

    /// The samples at `offset`.
    #[must_use]
    pub fn get(&self, offset: ImageOffset) -> u64 {
        self.counts.get(&offset.0).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(profile: &Profile) -> Vec<(u64, u64)> {
        profile.iter().map(|(o, c)| (o.0, c)).collect()
    }

    #[test]
    fn adds_sort_and_sum() {
        let profile = Profile::from_counts([(9, 1), (3, 2), (9, 4), (5, 0)].map(|(o, c)| (ImageOffset(o), c)));
        assert_eq!(pairs(&profile), [(3, 2), (9, 5)]);
        assert_eq!((profile.total(), profile.len()), (7, 2));
        assert_eq!(profile.get(ImageOffset(9)), 5);
        assert_eq!(profile.get(ImageOffset(5)), 0);
    }

    #[test]
    fn a_zero_count_is_no_entry() {
        let profile = Profile::from_counts([(ImageOffset(1), 0)]);
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
}
