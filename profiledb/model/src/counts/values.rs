//! Counts by place and number: a distribution at each place.

use image::ImageOffset;

use super::table::Table;

/// Number of times that a number was observed at a place of an image: by (place, number).
pub type Values = Table<(ImageOffset, i64)>;

/// Number of times in a row that a branch of a loop is going to go the same way.
///
/// Counted in [`Values`] at the branch: the number is the rounds where the branch jumps in these
/// rounds, and their negative where it falls through. Rounds are kept in classes: each number up to
/// 15, then eight classes from each power of two to the next, so a class is at most an eighth of
/// its numbers wide.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BranchRounds {
    /// The branch.
    pub branch: ImageOffset,
    /// True when the branch jumps in these rounds, false when it falls through.
    pub jumps: bool,
    /// Number of rounds, at least 1, as the lowest number of its class.
    pub rounds: u64,
}

impl BranchRounds {
    /// The class that `rounds` are counted in: the lowest number of the class.
    pub const fn class(rounds: u64) -> u64 {
        rounds & !(Self::class_width(rounds) - 1)
    }

    /// The number of numbers in the class of `rounds`.
    pub const fn class_width(rounds: u64) -> u64 {
        let bits = u64::BITS - rounds.leading_zeros();
        1 << bits.saturating_sub(4)
    }

    /// The rounds that a number at a branch means; None for 0, which means nothing.
    pub fn of((branch, number): (ImageOffset, i64)) -> Option<Self> {
        let (jumps, rounds) = (number > 0, number.unsigned_abs());
        (rounds != 0).then_some(Self { branch, jumps, rounds })
    }

    /// The number at the branch that means these rounds; None for no rounds, and for 2^62 and more.
    pub fn value(self) -> Option<(ImageOffset, i64)> {
        let Self { branch, jumps, rounds } = self;
        let rounds = i64::try_from(Self::class(rounds))
            .ok()
            .filter(|rounds| (1..1 << 62).contains(rounds))?;
        Some((branch, if jumps { rounds } else { -rounds }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_an_eighth_wide_and_leave_nothing_out() {
        let mut next = 1;
        while next < 1 << 40 {
            let (class, width) = (BranchRounds::class(next), BranchRounds::class_width(next));
            assert_eq!(class, next);
            assert!(width == 1 || width * 8 <= next, "{next}: {width}");
            assert_eq!(
                (
                    BranchRounds::class(next + width - 1),
                    BranchRounds::class_width(next + width - 1)
                ),
                (class, width)
            );
            next += width;
        }
        let classes = [1, 15, 16, 17, 18, 1000, u64::MAX].map(BranchRounds::class);
        assert_eq!(classes, [1, 15, 16, 16, 18, 960, 15 << 60]);
    }

    #[test]
    fn both_ways_are_told_apart() {
        assert_eq!(BranchRounds::of((ImageOffset(0x10), 0)), None);
        let turns =
            |branch, jumps, rounds| BranchRounds { branch: ImageOffset(branch), jumps, rounds };
        let counts = [
            (turns(0x10, true, 1000), 2),
            (turns(0x10, true, 1001), 3),
            (turns(0x10, false, 7), 1),
            (turns(0x20, true, 0), 9),
            (turns(0x20, true, u64::MAX), 9),
        ];
        let values = counts.into_iter().filter_map(|(turns, count)| Some((turns.value()?, count)));
        let rounds = Values::from_counts(values);
        let all: Vec<_> = rounds
            .iter()
            .filter_map(|(value, count)| Some((BranchRounds::of(value)?, count)))
            .collect();
        assert_eq!(all, [(turns(0x10, false, 7), 1), (turns(0x10, true, 960), 5)]);
        assert_eq!(rounds.total(), 6);
    }
}
