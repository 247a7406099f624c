//! A graph with what was seen of it: what the solver is given.

use crate::issue::Told;

/// Standard deviation of a probability that remains however many branches were seen.
const BIAS: f64 = 0.012;
/// What is left of a guess where a branch was seen, but never that way: if probabilities of rare
/// ways are of any size between 1e-6 and 1/2 alike, that of one not seen in n times is .1/n in the
/// mean.
const UNSEEN: f64 = 0.1;

/// A graph with what was seen of it.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Its blocks.
    pub blocks: Vec<ObservedBlock>,
    /// Ways between them, sorted by where they come from.
    pub ways: Vec<Way>,
    /// The block that it is entered at.
    pub entry: usize,
    /// Ways into loops that only a guess decides, by their numbers.
    pub guarded: Vec<usize>,
}

/// A block with its samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ObservedBlock {
    /// Samples that took its time.
    pub samples: f64,
    /// Its instructions. 0 for what is no block, but a state between some, which takes no time.
    pub instructions: f64,
    /// Whether it is entered other than from other blocks.
    pub aside: bool,
    /// What its issue points say; none where nothing is known of the processor.
    pub(crate) told: Option<Told>,
}

/// A way from a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Way {
    /// The edge of the graph that it is; none: the end that a loop without one must have, or a way
    /// to or from a state between blocks.
    pub edge: Option<usize>,
    /// The block that it leaves.
    pub from: usize,
    /// The block that it goes to; none: it leaves the graph.
    pub to: Option<usize>,
    /// How often it was seen.
    pub seen: f64,
    /// What part of its block's executions takes it, if nothing is known. Those of a block add up
    /// to 1.
    pub guess: f64,
    /// What part takes it, as the rounds of a loop tell that it ends, and the standard deviation of
    /// its logarithm.
    pub told: Option<(f64, f64)>,
}

/// An edge that is two ways: to a state that other blocks lead to as well, and from there. Both are
/// numbers of ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joint {
    /// The edge of the graph.
    pub edge: usize,
    /// The way from its block to the common state.
    pub to_state: usize,
    /// The way from there to where it goes.
    pub from_state: usize,
}

/// Of each way, the logarithm of the share that was seen, and the weight of that.
pub(super) fn wanted(observed: &Observed) -> Vec<(f64, f64)> {
    let mut wanted = Vec::with_capacity(observed.ways.len());
    for ways in observed.ways.chunk_by(|a, b| a.from == b.from) {
        let all: f64 = ways.iter().map(|way| way.seen).sum();
        wanted.extend(ways.iter().map(|way| {
            if let Some((share, spread)) = way.told.filter(|_| ways.len() > 1) {
                return (share.max(1e-300).ln(), 1.0 / spread.max(1e-3));
            }
            // Most ways that were never seen are hardly ever taken.
            let guess = if all > 0.0 && way.seen == 0.0 { way.guess * UNSEEN } else { way.guess };
            let seen = (way.seen + guess) / (all + 1.0);
            let spread = (way.seen + 2.0 * way.guess) / (all + 2.0);
            // Never 0: counts may be anything.
            let variance = ((1.0 - spread) / spread * (1.0 / (all + 1.0) + BIAS * BIAS)).max(1e-12);
            (seen.ln(), if ways.len() > 1 { 1.0 / variance.sqrt() } else { 0.0 })
        }));
    }
    wanted
}
