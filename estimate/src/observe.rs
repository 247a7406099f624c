//! What samples say of a graph.

use std::collections::{BTreeMap, HashMap};

use code::cfg::{Cfg, Edge, EdgeKind, Ending, Entered, Loops, To};
use image::Vaddr;

use crate::issue;
use crate::observed::{Joint, Observed, ObservedBlock, Way};
use crate::rounds::Trips;
use crate::sampled::{Branch, Sampled, target};

/// What part of executions goes back to where a loop begins, if nothing is known (Wu and Larus,
/// MICRO 1994, measured 88 %).
const BACK: f64 = 0.85;
/// What part goes where the program ends.
const FATAL: f64 = 0.001;

/// What any number of branches that came later is worth at most, beside those that were the first
/// after a sample. The first tell of each round of a loop with the same probability. Who walks on
/// sees the rest of the loop, so of loops with long and short runs the long ones more often: that
/// is off, but by little, and often all there is.
const LATER_MAX: f64 = 60.0;

/// Jumps through one table with at least so many targets go there by a common state: an interpreter
/// jumps so after each of its instructions, and its edges are the square of those.
const SHARED_MIN: usize = 16;

/// The graph with its samples, and the edges that are no ways of their own. None when it has no
/// entry.
#[must_use]
pub fn observe(
    graph: &Cfg,
    loops: &Loops,
    sampled: &Sampled<'_>,
    trips: &[Trips],
) -> Option<(Observed, Vec<Joint>)> {
    let samples = samples_of_blocks(graph, sampled);
    let told = sampled.points.map(|points| issue::tell(graph, points));
    let blocks =
        graph.blocks().iter().zip(samples).enumerate().map(|(number, (block, samples))| {
            ObservedBlock {
                told: told.as_ref().and_then(|told| told.get(number)).copied(),
                samples,
                instructions: block.instructions as f64,
                aside: !matches!(block.entered, Entered::No | Entered::Entry)
                    && graph.entry() != Some(number),
            }
        });
    let seen = weighed(sampled.branches);
    let told = trips.iter().filter(|trips| trips.decides);
    let told: HashMap<usize, (f64, f64)> =
        told.map(|Trips { leaves, ends, spread, .. }| (*leaves, (*ends, *spread))).collect();
    let guards = guards(graph, loops, trips);
    let mut guarded = Vec::new();
    let endless = endless(graph);
    let shared = Shared::of(graph);
    let mut joint = Vec::new();
    let mut ways = Vec::with_capacity(graph.blocks().len() * 2);
    for (number, block) in graph.blocks().iter().enumerate() {
        let numbered =
            || graph.out_of(number).filter_map(|edge| Some((edge, graph.edges().get(edge)?)));
        let goes_back = numbered().any(|(_, edge)| goes_back(loops, edge));
        // A loop that nobody leaves is left all the same: when the program ends, or by a signal.
        let end = endless.get(number).is_some_and(|endless| *endless && goes_back);
        let guesses: Vec<f64> =
            numbered().map(|(number, edge)| guess(graph, loops, (number, edge))).collect();
        let guard = guards.get(&number).filter(|_| {
            let seen =
                |edge| target(graph, edge).is_some_and(|to| seen.contains_key(&(block.last, to)));
            !numbered().any(|(_, edge)| seen(edge))
        });
        let guesses = guard.map_or(guesses, |(enters, ends)| {
            numbered().map(|(edge, _)| if edge == *enters { 1.0 - ends } else { *ends }).collect()
        });
        let all = guesses.iter().sum::<f64>().max(f64::MIN_POSITIVE) / if end { BACK } else { 1.0 };
        let (state, first, mut common) = (shared.state_of(number), joint.len(), None);
        let begin = state.map_or(0, |state| shared.begin(state));
        ways.extend(numbered().zip(guesses).enumerate().filter_map(
            |(place, ((number, edge), guess))| {
                let to = if let To::Block(to) = edge.to { Some(to) } else { None };
                let seen = target(graph, edge)
                    .and_then(|to| seen.get(&(block.last, to)))
                    .copied()
                    .unwrap_or(0.0);
                let guess = guess / all;
                if state.is_some() {
                    // Which ways these are is known when all are there. The common state leads to
                    // what was seen, too.
                    joint.push(Joint { edge: number, to_state: 0, from_state: begin + place });
                    // What was seen of one block is not of others.
                    if seen == 0.0 {
                        common = Some(common.unwrap_or(0.0) + guess);
                        return None;
                    }
                }
                Some(Way {
                    edge: Some(number),
                    from: edge.from,
                    to,
                    seen,
                    guess,
                    told: told.get(&number).copied(),
                })
            },
        ));
        guarded.extend(
            guard.and_then(|(enters, _)| ways.iter().rposition(|way| way.edge == Some(*enters))),
        );
        if let Some((state, guess)) = state.zip(common) {
            joint.iter_mut().skip(first).for_each(|joint| joint.to_state = ways.len());
            let to = Some(graph.blocks().len() + state);
            ways.push(Way { edge: None, from: number, to, seen: 0.0, guess, told: None });
        } else {
            joint.truncate(first);
        }
        if end {
            ways.push(Way {
                edge: None,
                from: number,
                to: None,
                seen: 0.0,
                guess: 1.0 - BACK,
                told: None,
            });
        }
    }
    let mut blocks: Vec<ObservedBlock> = blocks.collect();
    blocks.resize(blocks.len() + shared.tables.len(), ObservedBlock::default());
    joint.iter_mut().for_each(|joint| joint.from_state += ways.len());
    shared.lead(graph, &mut ways);
    Some((Observed { blocks, ways, entry: graph.entry()?, guarded }, joint))
}

/// Blocks between a guard and its loop at most: compilers put what the loop needs there.
const PREHEADERS_MAX: usize = 4;

/// The guards of loops that count their rounds: of each block that decides whether such a loop is
/// entered, the edge that leads there, and the probability that it is not taken. Compilers make
/// `while (c) body` into `if (c) do body while (c)`, so the guard is one more of the loop's tests:
/// without samples of its own, it ends the loop as often as they do.
fn guards(graph: &Cfg, loops: &Loops, trips: &[Trips]) -> HashMap<usize, (usize, f64)> {
    let guard = |trips: &Trips| {
        let header = loops.loops().get(trips.number)?.header;
        let outside = |edge: &usize| {
            graph.edges().get(*edge).filter(|edge| !loops.contains(trips.number, edge.from))
        };
        let single = |block: usize, number: Option<usize>| {
            let mut into = graph
                .into_of(block)
                .iter()
                .filter(|edge| number.is_none() || outside(edge).is_some());
            into.next().copied().filter(|_| into.next().is_none() && !graph.is_entered(block))
        };
        let mut enters = single(header, Some(trips.number))?;
        for _ in 0..PREHEADERS_MAX {
            let from = graph.edges().get(enters)?.from;
            let edges = graph.edges().get(graph.out_of(from))?;
            if let [a, b] = edges {
                let conditional =
                    matches!(a.kind, EdgeKind::Taken | EdgeKind::NotTaken) && a.to != b.to;
                return conditional.then_some((from, (enters, trips.ends)));
            }
            enters = single(from, None).filter(|_| edges.len() == 1)?;
        }
        None
    };
    trips.iter().filter(|trips| trips.decides).filter_map(guard).collect()
}

/// How often each branch was seen, from its first byte to the next instruction's: those that came
/// later weigh less.
fn weighed(branches: &[Branch]) -> HashMap<(Vaddr, Vaddr), f64> {
    let mut later: HashMap<Vaddr, f64> = HashMap::new();
    for branch in branches {
        *later.entry(branch.from).or_default() += branch.later as f64;
    }
    let mut seen: HashMap<(Vaddr, Vaddr), f64> = HashMap::new();
    for branch in branches {
        let worth = 1.0 / (1.0 + later.get(&branch.from).copied().unwrap_or(0.0) / LATER_MAX);
        *seen.entry((branch.from, branch.to)).or_default() +=
            branch.first as f64 + branch.later as f64 * worth;
    }
    seen
}

/// Tables that several blocks jump through.
struct Shared {
    /// Each with its targets, and how many entries of it say so.
    tables: Vec<Vec<(usize, u32)>>,
    /// Which one a block jumps through.
    of_blocks: HashMap<usize, usize>,
}

impl Shared {
    fn of(graph: &Cfg) -> Self {
        let mut blocks: BTreeMap<Vec<(usize, u32)>, Vec<usize>> = BTreeMap::new();
        for number in
            (0..graph.blocks().len()).filter(|number| graph.out_of(*number).len() >= SHARED_MIN)
        {
            let edges = graph.edges().get(graph.out_of(number)).unwrap_or_default();
            let case = |edge: &Edge| match edge.to {
                To::Block(to) if edge.kind == EdgeKind::Case => Some((to, edge.cases)),
                _ => None,
            };
            // Those with other edges have more to choose from.
            if let Some(table) = edges.iter().map(case).collect() {
                blocks.entry(table).or_default().push(number);
            }
        }
        let mut this = Self { tables: Vec::new(), of_blocks: HashMap::new() };
        for (table, blocks) in blocks.into_iter().filter(|(_, blocks)| blocks.len() > 1) {
            this.of_blocks.extend(blocks.into_iter().map(|block| (block, this.tables.len())));
            this.tables.push(table);
        }
        this
    }

    /// Where the ways from a common state begin among those from all.
    fn begin(&self, state: usize) -> usize {
        self.tables.iter().take(state).map(Vec::len).sum()
    }

    fn state_of(&self, block: usize) -> Option<usize> {
        self.of_blocks.get(&block).copied()
    }

    /// Adds the ways from the common states, which come after the graph's blocks.
    fn lead(&self, graph: &Cfg, ways: &mut Vec<Way>) {
        for (state, table) in self.tables.iter().enumerate() {
            let all: f64 = table.iter().map(|(_, cases)| f64::from(*cases)).sum();
            let from = graph.blocks().len() + state;
            ways.extend(table.iter().map(|&(to, cases)| {
                let guess = f64::from(cases) / all.max(1.0);
                Way { edge: None, from, to: Some(to), seen: 0.0, guess, told: None }
            }));
        }
    }
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

/// The samples of each block.
fn samples_of_blocks(graph: &Cfg, sampled: &Sampled<'_>) -> Vec<f64> {
    let mut samples = vec![0.0; graph.blocks().len()];
    for (address, count) in sampled.landed {
        let block = graph.block_of(*address).and_then(|number| samples.get_mut(number));
        block.into_iter().for_each(|sum| *sum += *count as f64);
    }
    samples
}

/// How probable an edge is beside the others of its block, if nothing is known.
fn guess(graph: &Cfg, loops: &Loops, (number, edge): (usize, &Edge)) -> f64 {
    let To::Block(to) = edge.to else { return 1.0 };
    let fatal = graph
        .blocks()
        .get(to)
        .is_some_and(|block| matches!(block.ending, Ending::NoReturn | Ending::Trap));
    let back = goes_back(loops, edge) && loops.irreducible().binary_search(&number).is_err();
    match edge.kind {
        EdgeKind::Case => f64::from(edge.cases),
        _ if back => BACK / (1.0 - BACK),
        _ if fatal => FATAL,
        _ => 1.0,
    }
}
