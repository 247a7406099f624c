//! Sequences of a branch's outcomes, as numbers at the branch.

use image::ImageOffset;

/// An outcome of a conditional branch, and those before it in the same walk.
///
/// Counted in [`crate::Values`] at the branch: the number has, from its highest bit on, a 1, the
/// outcomes before, the oldest first, and the outcome; 1 is a jump.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BranchOutcome {
    /// The branch.
    pub branch: ImageOffset,
    /// Up to [`Self::HISTORY`] outcomes before, under a 1.
    pub history: u8,
    /// Whether the branch jumps.
    pub jumps: bool,
}

impl BranchOutcome {
    /// Outcomes before that are told. With 4, patterns of a period up to 5 are certain, and a
    /// branch has 60 numbers at most.
    pub const HISTORY: u32 = 4;

    /// The history of one more outcome; 1 is no history.
    pub fn after(history: u8, jumps: bool) -> u8 {
        let longer = history << 1 | u8::from(jumps);
        let full = 1 << Self::HISTORY;
        if longer >= 2 * full { longer & (full - 1) | full } else { longer }
    }

    /// The outcome that a number at a branch means; None where it means nothing.
    pub fn of((branch, number): (ImageOffset, i64)) -> Option<Self> {
        let history = u8::try_from(number >> 1).ok()?;
        let is_known = (2..2 << Self::HISTORY).contains(&history);
        is_known.then_some(Self { branch, history, jumps: number & 1 == 1 })
    }

    /// The number at the branch that means this outcome.
    pub fn value(self) -> (ImageOffset, i64) {
        (self.branch, i64::from(self.history) << 1 | i64::from(self.jumps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_outcomes_are_a_history() {
        let mut history = 1;
        let mut all = Vec::new();
        for jumps in [true, false, false, true, true, false] {
            history = BranchOutcome::after(history, jumps);
            all.push(history);
        }
        assert_eq!(all, [0b11, 0b110, 0b1100, 0b11001, 0b10011, 0b10110]);
        for history in 2..32 {
            for jumps in [false, true] {
                let outcome = BranchOutcome { branch: ImageOffset(0x10), history, jumps };
                assert_eq!(BranchOutcome::of(outcome.value()), Some(outcome));
            }
        }
        for number in [i64::MIN, -1, 0, 3, 64, i64::MAX] {
            assert_eq!(BranchOutcome::of((ImageOffset(0x10), number)), None);
        }
    }
}
