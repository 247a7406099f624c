//! What was sampled in a procedure: the input of an estimate.

use code::cfg::{Cfg, Edge, To};
use image::Vaddr;

use crate::issue::Point;

/// What was sampled in a procedure. Addresses are the file's.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sampled<'a> {
    /// Samples of time by the instruction that they landed on, or were given back to.
    pub landed: &'a [(Vaddr, u64)],
    /// Branches that were seen, each at most once after each sample.
    pub branches: &'a [Branch],
    /// Rounds that loops were going to make.
    pub rounds: &'a [Turned],
    /// The instructions of each block on a processor that issues in order.
    pub points: Option<&'a [Vec<Point>]>,
}

/// A branch that was seen, from its first byte to the next instruction's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    /// The branch.
    pub from: Vaddr,
    /// What was next.
    pub to: Vaddr,
    /// How often it was the first after a sample.
    pub first: u64,
    /// How often it came later.
    pub later: u64,
}

/// Samples in a loop whose test, a branch, was going to go the same way `rounds` times in a row, or
/// up to `width` - 1 times more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turned {
    /// The test.
    pub branch: Vaddr,
    /// Whether it jumps, those times.
    pub jumps: bool,
    /// Rounds, at least 1.
    pub rounds: u64,
    /// How many numbers of rounds are counted together.
    pub width: u64,
    /// Samples.
    pub count: u64,
}

/// The first byte that an edge leads to, if that is known.
pub(crate) fn target(graph: &Cfg, edge: &Edge) -> Option<Vaddr> {
    match edge.to {
        To::Block(to) => graph.blocks().get(to).map(|to| to.start),
        To::Outside(address) => Some(address),
        _ => None,
    }
}
