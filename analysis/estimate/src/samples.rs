//! The samples of one procedure: the input of an estimate.

use code::cfg::{Cfg, Edge, To};
use image::Vaddr;

use crate::issue::IssuePoint;

/// Bias of the probabilities p of branches that are observed as the first after a sample, which no
/// number of observations removes, as a standard
/// deviation in units of sqrt(p (1 - p)). Samples are taken where time is spent, and a branch that
/// was mispredicted stays longer at the head of the reorder buffer, so the outcome at a sample is
/// chosen by time. How much longer depends on the processor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BranchBias(f64);

impl BranchBias {
    /// The bias on Zen 3 and 4: `bench walks --callgrind` finds a mean error of 0.026 in p. In
    /// `bench truth`, 99 % of the blocks of class [`crate::Confidence::High`] are within 10 % with
    /// this value, 96 % with 0; larger values call fewer blocks `High`.
    pub const ZEN: Self = Self(0.06);
    /// The bias on processors where it was not measured: that of Sapphire Rapids, the largest
    /// known, where a branch that is taken in 0.749 of its executions shows 0.584 of its samples
    /// taken. A smaller value calls blocks `High` that are wrong by a fifth.
    pub const UNKNOWN: Self = Self(0.38);

    /// The standard deviation in units of sqrt(p (1 - p)).
    pub(crate) fn standard_deviation(self) -> f64 {
        self.0
    }
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
    /// Observed count as a later branch of walks that begin at samples. Where a walk meets the
    /// branch again, it is counted again: these outcomes do not depend on where the sample was.
    pub later: u64,
    /// An upper limit (95 % confidence) of the share of its outcomes, in any direction, that those
    /// before do not tell ([`Outcomes::untold`]). None: not known.
    pub untold: Option<f64>,
}

/// How often a conditional branch jumped and did not, after equal outcomes before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// Times that it jumped.
    pub jumped: u64,
    /// Times that it did not.
    pub went_on: u64,
}

/// Fewest outcomes that [`Outcomes::untold`] is told of. A larger number leaves more branches
/// unknown; with fewer the limit says little.
const OUTCOMES_MIN: f64 = 40.0;
/// Outcomes of one walk that are worth one: they depend on data that lie together.
const OUTCOMES_ALIKE: f64 = 4.0;

impl Outcomes {
    /// An upper limit (95 % confidence) of the share of a branch's outcomes that the outcomes before
    /// do not tell. Each outcome is guessed from all others after equal ones; a processor that looks
    /// further back, or at other branches, guesses better. None where too few are known.
    pub fn untold(all: &[Self]) -> Option<f64> {
        let (mut told, mut sum) = (0.0, 0.0);
        for Self { jumped, went_on } in all {
            let (more, fewer) = (jumped.max(went_on), jumped.min(went_on));
            told += if more > fewer { *more as f64 } else { 0.0 };
            sum += (jumped + went_on) as f64;
        }
        let independent = sum / OUTCOMES_ALIKE;
        let share = 1.0 - told / sum;
        // Two standard deviations, and the rule of three for a share of 0.
        let limit = share + 2.0 * (share * (1.0 - share) / independent).sqrt() + 3.0 / independent;
        (sum >= OUTCOMES_MIN).then_some(limit.min(1.0))
    }
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
