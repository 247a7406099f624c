//! Times of executions, as numbers at the instruction.

use image::ImageOffset;

/// CPU time from one execution of an instruction to the next, by two samples of a thread and a
/// register that counts the executions in between.
///
/// Counted in [`crate::Values`] at the instruction: the number has the logarithm of the time, with
/// which times are told to half a percent.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct ExecutionTime {
    /// The instruction.
    pub instruction: ImageOffset,
    /// Whether it is one of several, one of which is executed in each round of a loop: the time is
    /// that of a round.
    pub is_round: bool,
    /// What the samples tell.
    pub told: Told,
}

/// What two samples tell of an instruction's executions.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Told {
    /// Nothing: the loop began anew in between.
    Nothing,
    /// It was not executed.
    None,
    /// ns for each execution.
    Ns(f64),
}

/// Classes of times for each doubling.
const PER_DOUBLING: f64 = 64.0;
/// The number of 1 ns; shorter times have lower ones.
const ONE_NS: i64 = 1 << 10;
/// Numbers of times: 2^-15 ns, less than any cycle, to 2^48 ns, days.
const NUMBERS: std::ops::Range<i64> = 64..1 << 12;
/// Added to the number for rounds.
const ROUND: i64 = 1 << 12;
const NONE: i64 = 1;
const NOTHING: i64 = 0;

impl ExecutionTime {
    /// The time that a number at an instruction means; None where it means nothing.
    pub fn of((instruction, number): (ImageOffset, i64)) -> Option<Self> {
        let is_round = number & !(ROUND - 1) == ROUND;
        let told = match if is_round { number - ROUND } else { number } {
            NOTHING => Told::Nothing,
            NONE => Told::None,
            number if NUMBERS.contains(&number) => {
                Told::Ns(((number - ONE_NS) as f64 / PER_DOUBLING).exp2())
            }
            _ => return None,
        };
        Some(Self { instruction, is_round, told })
    }

    /// The number at the instruction that means this time, as near as numbers are.
    pub fn value(self) -> (ImageOffset, i64) {
        let number = match self.told {
            Told::Nothing => NOTHING,
            Told::None => NONE,
            Told::Ns(ns) => {
                let class = (ns.log2() * PER_DOUBLING).round();
                (class as i64 + ONE_NS).clamp(NUMBERS.start, NUMBERS.end - 1)
            }
        };
        (self.instruction, if self.is_round { number + ROUND } else { number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_mean_times() {
        let instruction = ImageOffset(0x10);
        for ns in [0.2, 1.0, 3.7, 242.0, 1e6, 3e12] {
            let is_round = ns > 1.0;
            let number = ExecutionTime { instruction, is_round, told: Told::Ns(ns) }.value();
            let Some(ExecutionTime { told: Told::Ns(told), is_round: was, .. }) =
                ExecutionTime::of(number)
            else {
                panic!("{number:?}")
            };
            assert_eq!(was, is_round);
            assert!((told / ns - 1.0).abs() < 0.0055, "{ns}: {told}");
        }
        for told in [Told::Nothing, Told::None] {
            let time = ExecutionTime { instruction, is_round: told == Told::None, told };
            assert_eq!(ExecutionTime::of(time.value()), Some(time));
        }
        for number in [i64::MIN, -1, 2, 63, 4098, 8192, i64::MAX] {
            assert_eq!(ExecutionTime::of((instruction, number)), None);
        }
    }
}
