//! Skid: how many instructions after the stalled one a sample lands.
//!
//! An interrupt is taken when the oldest instruction has retired, so the sample names the
//! instruction *after* the one that took the time: on the machine that this was written on, exactly
//! one after. A precise counter, or another processor, may name the instruction itself. The skid of
//! a machine is measured with a loop whose time is known to go to one instruction: see
//! [`Skid::measured`].

use std::fmt;

/// How many instructions after the stalled one a sample lands, 0 to [`Skid::MAX`].
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Skid(u8);

/// Share of the loop's samples that must land on one instruction for the measurement to count. Set
/// by hand: a lower share accepts loops disturbed by other work, a higher one refuses quiet loops
/// on machines where a few samples land elsewhere.
const CLEAR: f64 = 0.8;
/// Samples below which a loop measures nothing: with fewer, chance decides where most land.
const SAMPLES_MIN: u64 = 100;

impl Skid {
    /// Largest skid in instructions. A sample that lands farther away has another cause than skid,
    /// and moving it would blame the wrong instruction.
    pub const MAX: u8 = 3;

    /// A skid of this many instructions; None when it is more than [`Skid::MAX`].
    pub fn new(instructions: u8) -> Option<Self> {
        (instructions <= Self::MAX).then_some(Self(instructions))
    }

    /// The skid in instructions.
    pub fn instructions(self) -> u8 {
        self.0
    }

    /// Measures the skid from the samples of a known loop. `counts` has the samples of each
    /// instruction in the order of execution. The instruction at `stalled` takes nearly all the
    /// time (a division that waits for the one before). At least [`Skid::MAX`] cheap instructions
    /// must follow it that are neither branches nor fused with one. None when there are too few
    /// samples, or no instruction has most of them.
    pub fn measured(counts: &[u64], stalled: usize) -> Option<Self> {
        let total: u64 = counts.iter().fold(0, |sum, count| sum.saturating_add(*count));
        if total < SAMPLES_MIN {
            return None;
        }
        (0..=Self::MAX).map(Self).find(|skid| {
            let place = stalled.saturating_add(usize::from(skid.0));
            counts.get(place).is_some_and(|count| *count as f64 >= total as f64 * CLEAR)
        })
    }

    /// The samples of each instruction, moved back to the instruction that took the time.
    /// `instructions` are those of one procedure in the order of their addresses, without a gap.
    ///
    /// A sample moves back within its block. A sample on a block's first instruction came from any
    /// block before it: it moves to the instruction before only if that falls through, is not a
    /// branch and no padding, and no loop begins there; else it stays. A sample after a call
    /// belongs to the procedure that was called, which has none of these instructions, so it stays
    /// too.
    pub fn attributed(self, instructions: &[Sampled]) -> Attributed {
        let mut attributed = Attributed { samples: vec![0; instructions.len()], kept: 0 };
        for (index, instruction) in instructions.iter().enumerate() {
            let (place, is_whole) = self.source(instructions, index);
            if !is_whole {
                attributed.kept = attributed.kept.saturating_add(instruction.samples);
            }
            if let Some(sum) = attributed.samples.get_mut(place) {
                *sum = sum.saturating_add(instruction.samples);
            }
        }
        attributed
    }

    /// The instruction that samples on the one at `index` move back to, and whether they move by
    /// the whole skid.
    pub fn source(self, instructions: &[Sampled], index: usize) -> (usize, bool) {
        let mut place = index;
        for _ in 0..self.0 {
            let before = place.checked_sub(1);
            let open = before.filter(|at| instructions.get(*at).is_some_and(|before| !before.bars));
            let Some(before) = open else { return (place, false) };
            place = before;
        }
        (place, true)
    }
}

impl fmt::Display for Skid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("on the instruction"),
            1 => f.write_str("1 instruction after"),
            n => write!(f, "{n} instructions after"),
        }
    }
}

/// The samples of each instruction after [`Skid::attributed`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributed {
    /// Samples by instruction, in the order of the instructions.
    pub samples: Vec<u64>,
    /// Samples that could not go back by the whole skid, because a jump, a call, a no-op, or the
    /// start of a loop or of the procedure is before the instruction that they landed on.
    pub kept: u64,
}

/// An instruction with its samples.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// Samples that landed on the instruction.
    pub samples: u64,
    /// True when samples behind this instruction stay where they are: it is a jump (conditional or
    /// not), a call or a return, or a loop begins after it, so that execution rather came from
    /// elsewhere; or it is a no-op.
    pub bars: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampled(samples: u64) -> Sampled {
        Sampled { samples, bars: false }
    }

    fn branch(samples: u64) -> Sampled {
        Sampled { samples, bars: true }
    }

    #[test]
    fn a_loop_shows_where_samples_land() {
        assert_eq!(Skid::measured(&[3, 2, 500, 4, 1, 0], 1), Skid::new(1));
        assert_eq!(Skid::measured(&[3, 500, 2, 4, 1, 0], 1), Skid::new(0));
        assert_eq!(Skid::measured(&[3, 2, 0, 4, 501, 0], 1), Skid::new(3));
        // Half here and half there; too few; before the stalled one; too far.
        assert_eq!(Skid::measured(&[0, 250, 250, 0, 0], 1), None);
        assert_eq!(Skid::measured(&[0, 0, 99, 0, 0], 1), None);
        assert_eq!(Skid::measured(&[500, 0, 0, 0, 0], 1), None);
        assert_eq!(Skid::measured(&[0, 0, 0, 0, 0, 500], 1), None);
        assert_eq!(Skid::measured(&[], usize::MAX), None);
        assert_eq!(Skid::measured(&[u64::MAX, u64::MAX], 0), Skid::new(0));
        assert_eq!(Skid::new(Skid::MAX + 1), None);
    }

    #[test]
    fn samples_go_back_to_what_took_the_time_and_not_across_branches() {
        let instructions =
            [sampled(5), sampled(100), sampled(7), branch(30), sampled(11), sampled(13)];
        let attributed = |skid| {
            let Attributed { samples, kept } = Skid::new(skid).unwrap().attributed(&instructions);
            (samples, kept)
        };
        // Kept: the 5 of the procedure's begin, and the 11 after the branch.
        assert_eq!(attributed(1), (vec![105, 7, 30, 0, 24, 0], 16));
        assert_eq!(attributed(0), (vec![5, 100, 7, 30, 11, 13], 0));
        assert_eq!(attributed(2), (vec![112, 30, 0, 0, 24, 0], 5 + 100 + 11 + 13));
        assert_eq!(Skid::default().attributed(&[]), Attributed::default());
    }
}
