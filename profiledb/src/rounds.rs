//! How many more rounds loops made.

use image::ImageOffset;

use crate::profile::Edges;

/// Of branches that were seen in loops: how often in a row they were going to go the same way, counted by (branch, way, rounds).
///
/// Rounds are kept in classes: each number up to 15, then eight classes from each power of two to the next, which are at most an eighth
/// wide. Counts saturate at `u64::MAX`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rounds(Edges);

/// How often in a row a branch was going to go the same way.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Turns {
    /// The branch.
    pub branch: ImageOffset,
    /// Whether it jumps, those times.
    pub jumps: bool,
    /// So often, at least 1; as the lowest number of its class.
    pub rounds: u64,
}

impl Turns {
    /// What `rounds` are counted as: the lowest number of their class.
    #[must_use]
    pub const fn class(rounds: u64) -> u64 {
        rounds & !(Self::class_width(rounds) - 1)
    }

    /// How many numbers are in the class of `rounds`.
    #[must_use]
    pub const fn class_width(rounds: u64) -> u64 {
        let bits = u64::BITS - rounds.leading_zeros();
        1 << bits.saturating_sub(4)
    }
}

impl Rounds {
    /// None.
    #[must_use]
    pub const fn new() -> Self {
        Self(Edges::new())
    }

    /// Those of these counts; the same may come more than once. What has no rounds, or 2^62 and more, is left out.
    pub fn from_counts(counts: impl IntoIterator<Item = (Turns, u64)>) -> Self {
        let counts = counts.into_iter().filter(|(turns, _)| (1..1 << 62).contains(&turns.rounds));
        Self(Edges::from_counts(counts.map(|(Turns { branch, jumps, rounds }, count)| {
            let rounds = Turns::class(rounds);
            let distance = if jumps { rounds } else { rounds.wrapping_neg() };
            ((branch, ImageOffset(branch.0.wrapping_add(distance))), count)
        })))
    }

    /// Adds all counts of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.0.merge(&other.0);
    }

    /// All counts together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.total()
    }

    /// True when there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each with its count, in the order of branches.
    pub fn iter(&self) -> impl Iterator<Item = (Turns, u64)> + '_ {
        self.0.iter().filter(|(branch, way, _)| branch != way).map(|(branch, way, count)| {
            let distance = way.0.wrapping_sub(branch.0).cast_signed();
            (Turns { branch, jumps: distance > 0, rounds: distance.unsigned_abs() }, count)
        })
    }

    /// As they are written.
    pub(crate) const fn as_edges(&self) -> &Edges {
        &self.0
    }

    pub(crate) const fn from_edges(edges: Edges) -> Self {
        Self(edges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_an_eighth_wide_and_leave_nothing_out() {
        let mut next = 1;
        while next < 1 << 40 {
            let (class, width) = (Turns::class(next), Turns::class_width(next));
            assert_eq!(class, next);
            assert!(width == 1 || width * 8 <= next, "{next}: {width}");
            assert_eq!((Turns::class(next + width - 1), Turns::class_width(next + width - 1)), (class, width));
            next += width;
        }
        assert_eq!([1, 15, 16, 17, 18, 1000, u64::MAX].map(Turns::class), [1, 15, 16, 16, 18, 960, 15 << 60]);
    }

    #[test]
    fn both_ways_are_told_apart() {
        let turns = |branch, jumps, rounds| Turns { branch: ImageOffset(branch), jumps, rounds };
        let counts = [
            (turns(0x10, true, 1000), 2),
            (turns(0x10, true, 1001), 3),
            (turns(0x10, false, 7), 1),
            (turns(0x20, true, 0), 9),
            (turns(0x20, true, u64::MAX), 9),
        ];
        let rounds = Rounds::from_counts(counts);
        let all: Vec<_> = rounds.iter().collect();
        assert_eq!(all, [(turns(0x10, false, 7), 1), (turns(0x10, true, 960), 5)]);
        assert_eq!(rounds.total(), 6);
    }
}
