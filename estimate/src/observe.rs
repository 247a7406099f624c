//! What samples say of a graph.

use std::collections::HashMap;

use code::cfg::{Cfg, Edge, EdgeKind, Ending, Entered, Loops, To};
use code::skid::Skid;
use image::Vaddr;

use crate::rounds::{Trips, Turned};
use crate::solve::{Observed, ObservedBlock, Way};

/// What part of executions goes back to where a loop begins, if nothing is known (Wu and Larus, MICRO 1994, measured 88 %).
const BACK: f64 = 0.85;
/// What part goes where the program ends.
const FATAL: f64 = 0.001;

/// What was sampled in a procedure. Addresses are the file's.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sampled<'a> {
    /// Samples of time by the instruction that they landed on.
    pub landed: &'a [(Vaddr, u64)],
    /// How far behind the instruction that takes the time samples land.
    pub skid: Skid,
    /// Branches that were seen, each at most once after each sample.
    pub branches: &'a [Branch],
    /// Rounds that loops were going to make.
    pub rounds: &'a [Turned],
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

/// What any number of branches that came later is worth at most, beside those that were the first after a sample. The first tell of each
/// round of a loop with the same probability. Who walks on sees the rest of the loop, so of loops with long and short runs the long ones more
/// often: that is off, but by little, and often all there is.
const LATER_MAX: f64 = 60.0;

/// The graph with its samples. None when it has no entry.
#[must_use]
pub fn observe(graph: &Cfg, loops: &Loops, sampled: &Sampled<'_>, trips: &[Trips]) -> Option<Observed> {
    let samples = samples_of_blocks(graph, sampled);
    let blocks = graph.blocks().iter().zip(samples).enumerate().map(|(number, (block, samples))| ObservedBlock {
        samples,
        instructions: block.instructions as f64,
        aside: !matches!(block.entered, Entered::No | Entered::Entry) && graph.entry() != Some(number),
    });
    let mut later: HashMap<Vaddr, f64> = HashMap::new();
    for branch in sampled.branches {
        *later.entry(branch.from).or_default() += branch.later as f64;
    }
    let mut seen: HashMap<(Vaddr, Vaddr), f64> = HashMap::new();
    for branch in sampled.branches {
        let worth = 1.0 / (1.0 + later.get(&branch.from).copied().unwrap_or(0.0) / LATER_MAX);
        *seen.entry((branch.from, branch.to)).or_default() += branch.first as f64 + branch.later as f64 * worth;
    }
    let told = trips.iter().filter(|trips| trips.only && !trips.once);
    let told: HashMap<usize, (f64, f64)> =
        told.map(|Trips { leaves, ends, spread, .. }| (*leaves, (*ends, *spread))).collect();
    let endless = endless(graph);
    let mut ways = Vec::with_capacity(graph.edges().len());
    for (number, block) in graph.blocks().iter().enumerate() {
        let numbered = || graph.out_of(number).filter_map(|edge| Some((edge, graph.edges().get(edge)?)));
        let goes_back = numbered().any(|(_, edge)| goes_back(loops, edge));
        // A loop that nobody leaves is left all the same: when the program ends, or by a signal.
        let end = endless.get(number).is_some_and(|endless| *endless && goes_back);
        let guesses: Vec<f64> = numbered().map(|(number, edge)| guess(graph, loops, (number, edge))).collect();
        let all = guesses.iter().sum::<f64>().max(f64::MIN_POSITIVE) / if end { BACK } else { 1.0 };
        ways.extend(numbered().zip(guesses).map(|((number, edge), guess)| {
            let (to, address) = match edge.to {
                To::Block(to) => (Some(to), graph.blocks().get(to).map(|to| to.start)),
                To::Outside(address) => (None, Some(address)),
                _ => (None, None),
            };
            let seen = address.and_then(|to| seen.get(&(block.last, to))).copied().unwrap_or(0.0);
            Way { edge: Some(number), from: edge.from, to, seen, guess: guess / all, told: told.get(&number).copied() }
        }));
        if end {
            ways.push(Way { edge: None, from: number, to: None, seen: 0.0, guess: 1.0 - BACK, told: None });
        }
    }
    Some(Observed { blocks: blocks.collect(), ways, entry: graph.entry()? })
}

/// Which blocks lead to no end of the procedure.
fn endless(graph: &Cfg) -> Vec<bool> {
    let mut endless = vec![true; graph.blocks().len()];
    let ends = graph.edges().iter().filter(|edge| !matches!(edge.to, To::Block(_)));
    let mut pending: Vec<usize> = ends.map(|edge| edge.from).collect();
    while let Some(block) = pending.pop() {
        if let Some(endless) = endless.get_mut(block).filter(|endless| **endless) {
            *endless = false;
            pending.extend(graph.predecessors(block));
        }
    }
    endless
}

/// Whether an edge leads to what comes before it, on the way from the entry.
fn goes_back(loops: &Loops, edge: &Edge) -> bool {
    matches!(edge.to, To::Block(to) if loops.position(to) <= loops.position(edge.from))
}

/// The samples that each block took the time of.
fn samples_of_blocks(graph: &Cfg, sampled: &Sampled<'_>) -> Vec<f64> {
    let blocks = graph.blocks();
    let mut samples = vec![0.0; blocks.len()];
    for (address, count) in sampled.landed {
        let Some(mut number) = graph.block_of(*address) else { continue };
        // On a block's first instruction lands what the one before took, if that is executed just before and is no branch. Filler takes none.
        let first = blocks.get(number).is_some_and(|block| block.start == *address);
        if let Some(before) = number.checked_sub(1).filter(|_| first && sampled.skid.instructions() > 0)
            && blocks.get(before).is_some_and(|b| b.ending == Ending::Next && b.end == *address && !b.padding)
        {
            number = before;
        }
        samples.get_mut(number).into_iter().for_each(|sum| *sum += *count as f64);
    }
    samples
}

/// How probable an edge is beside the others of its block, if nothing is known.
fn guess(graph: &Cfg, loops: &Loops, (number, edge): (usize, &Edge)) -> f64 {
    let To::Block(to) = edge.to else { return 1.0 };
    let fatal = graph.blocks().get(to).is_some_and(|block| matches!(block.ending, Ending::NoReturn | Ending::Trap));
    let back = goes_back(loops, edge) && loops.irreducible().binary_search(&number).is_err();
    match edge.kind {
        EdgeKind::Case => f64::from(edge.cases),
        _ if back => BACK / (1.0 - BACK),
        _ if fatal => FATAL,
        _ => 1.0,
    }
}
