//! Counts by place.

use std::ops::Range;

use image::ImageOffset;

use super::table::Table;

/// Samples per offset of an image.
pub type Profile = Table<ImageOffset>;

impl Profile {
    /// Adds `count` samples at `offset`. Cheap for an offset behind all others; elsewhere all later
    /// entries are moved, so [`Table::from_counts`] and [`Table::merge`] add many entries faster.
    pub fn add(&mut self, offset: ImageOffset, count: u64) {
        if count == 0 {
            return;
        }
        let at = self.counts.partition_point(|(known, _)| *known < offset);
        match self.counts.get_mut(at) {
            Some((known, sum)) if *known == offset => *sum = sum.saturating_add(count),
            _ => self.counts.insert(at, (offset, count)),
        }
    }

    /// The entries within `offsets`, found by binary search.
    pub fn within(
        &self,
        offsets: Range<ImageOffset>,
    ) -> impl ExactSizeIterator<Item = (ImageOffset, u64)> + '_ {
        let before = |end: ImageOffset| self.counts.partition_point(|(known, _)| *known < end);
        let within =
            self.counts.get(before(offsets.start)..before(offsets.end)).unwrap_or_default();
        within.iter().copied()
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
        for (start, end, expected) in [
            (0, 3, &[][..]),
            (3, 9, &[3, 5]),
            (4, 10, &[5, 9]),
            (0, u64::MAX, &[3, 5, 9]),
            (9, 3, &[]),
        ] {
            let range = ImageOffset(start)..ImageOffset(end);
            let within: Vec<u64> = profile.within(range).map(|(o, _)| o.0).collect();
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
}
