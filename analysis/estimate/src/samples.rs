//! The samples of one procedure: the input of an estimate.

use code::cfg::{Cfg, Edge, To};
use image::Vaddr;

use crate::issue::IssuePoint;

/// The samples of one procedure. Addresses are the file's.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcedureSamples<'a> {
    /// Samples of time by the instruction that they landed on, or that they were attributed to.
    pub time: &'a [(Vaddr, u64)],
    /// Observed branches, each counted at most once per sample.
    pub branches: &'a [Branch],
    /// Samples in loops by the number of rounds that were left.
    pub remaining_rounds: &'a [RemainingRounds],
    /// The instructions of each block on a processor that issues in order; `None` on others.
    pub issue_points: Option<&'a [Vec<IssuePoint>]>,
}

/// A branch in one direction, with its observed counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    /// First byte of the branch instruction.
    pub from: Vaddr,
    /// First byte of the instruction that was executed next.
    pub to: Vaddr,
    /// Observed count as the first branch after a sample.
    pub first: u64,
    /// Observed count as a later branch of the walk that begins at a sample.
    pub later: u64,
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
