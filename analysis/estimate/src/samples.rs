//! The samples of one procedure: the input of an estimate.

use code::cfg::{Cfg, Edge, To};
use image::Vaddr;

use crate::issue::IssuePoint;
use crate::sequence::Sequence;

/// Bias of the probabilities p of branches that are observed as the first after a sample, which no
/// number of observations removes. Samples are taken where time is spent, and a branch that was
/// mispredicted stays longer at the head of the reorder buffer, so the outcome at a sample is
/// chosen by time. How much longer depends on the processor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BranchBias {
    /// Standard deviation of the logarithm of the odds: first branches weigh less than others where
    /// there are others.
    pub(crate) of_odds: f64,
    /// The bias of p as a standard deviation in units of sqrt(p (1 - p)), where first branches
    /// weigh less.
    pub(crate) lessened: f64,
    /// The same elsewhere.
    pub(crate) full: f64,
}

impl BranchBias {
    /// The bias on Zen 3 and 4: `bench walks --callgrind` finds a mean error of 0.026 in p, and
    /// other observations are no better. In `bench truth`, 99 % of the blocks of class
    /// [`crate::Confidence::High`] are within 10 % with this value, 96 % with 0; larger values call
    /// fewer blocks `High`.
    pub const ZEN: Self = Self { of_odds: 0.0, lessened: 0.06, full: 0.06 };
    /// The bias on processors where it was not measured: that of Sapphire Rapids, the largest
    /// known, where a branch that is taken in 0.749 of its executions shows 0.584 of its samples
    /// taken. A smaller value calls blocks `High` that are wrong by a fifth.
    pub const UNKNOWN: Self = Self { of_odds: 0.75, lessened: 0.1, full: 0.38 };
}

impl Default for BranchBias {
    fn default() -> Self {
        Self::UNKNOWN
    }
}

/// The samples of one procedure. Addresses are the file's.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcedureSamples<'a> {
    /// Samples of time by the instruction that they landed on, or that they were attributed to.
    pub time: &'a [(Vaddr, u64)],
    /// Observed branches.
    pub branches: &'a [Branch],
    /// Bias of first branches on the processor that was sampled.
    pub branch_bias: BranchBias,
    /// Samples in loops by the number of rounds that were left.
    pub remaining_rounds: &'a [RemainingRounds],
    /// The instructions of each block on a processor that issues in order; `None` on others.
    pub issue_points: Option<&'a [Vec<IssuePoint>]>,
}

/// A branch in one direction, with its observed counts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Branch {
    /// First byte of the branch instruction.
    pub from: Vaddr,
    /// First byte of the instruction that was executed next.
    pub to: Vaddr,
    /// Observed count as the first branch after a sample.
    pub first: u64,
    /// Observed count as a later branch of walks that begin at samples, of each walk any number of
    /// times.
    pub later: u64,
    /// Of a conditional branch that walks met again: the same for both directions.
    pub sequence: Option<Sequence>,
}

/// Samples in a loop by how many times in a row its test was going to go the same direction: a
/// class of `rounds` to `rounds + width - 1` times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemainingRounds {
    /// The test: a conditional branch.
    pub branch: Vaddr,
    /// The direction: whether the branch is taken.
    pub jumps: bool,
    /// Fewest rounds of the class, at least 1.
    pub rounds: u64,
    /// How many numbers of rounds the class has.
    pub width: u64,
    /// Samples of the class.
    pub count: u64,
}

/// The first byte that an edge leads to, if its target is known.
pub(crate) fn target(graph: &Cfg, edge: &Edge) -> Option<Vaddr> {
    match edge.to {
        To::Block(to) => graph.blocks().get(to).map(|to| to.start),
        To::Outside(address) => Some(address),
        _ => None,
    }
}
