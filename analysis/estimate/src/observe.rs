//! From a procedure's graph and its samples to the flow graph that the solver is given.

use std::collections::{BTreeMap, HashMap};

use code::cfg::{Block, Cfg, Edge, EdgeKind, Ending, Entered, Loops, To};
use image::Vaddr;

use crate::flow_graph::{ExitEstimate, FlowGraph, Node, SplitEdge, Transition};
use crate::issue;
use crate::rounds::TripCount;
use crate::samples::{Branch, BranchBias, ProcedureSamples, target};
use crate::sequence::Steady;

/// Prior probability of a back edge (Wu and Larus, MICRO 1994, measured 88 %). A larger prior makes
/// loops without observations longer.
const BACK_EDGE_PRIOR: f64 = 0.85;
/// Prior weight of an edge to a block that ends the program, beside 1 for other edges. Set by hand:
/// code for failures is hardly ever executed.
const NO_RETURN_PRIOR_WEIGHT: f64 = 0.001;

/// Observations that the later branches of walks are worth at most, for each branch instruction,
/// beside those that were the first branch after a sample. A first branch shows each round of a
/// loop with the same probability. A walk that goes on shows the rest of the loop, so a loop with
/// long and short runs shows too many rounds of the long ones: the later branches have a small
/// bias, but are often all there is. Set by hand. A larger limit lets the bias of later branches
/// overrule first branches; a smaller one wastes what later branches say.
const LATER_MAX: f64 = 60.0;
/// Fewest observations that [`crate::Steady`] probabilities are worth where first branches weigh
/// less. With fewer, samples of time overrule what first branches say.
const STEADY_MIN: f64 = 20.0;

/// Smallest share that the rarer of a branch's outcomes has of the other's chance that the walk
/// goes on to the branch's next execution, for all later outcomes to count. A branch that leaves a
/// loop has nearly none. A larger value counts none where walks are short.
const GOES_ON_MIN: f64 = 0.9;

/// Fewest targets of a jump table for which blocks that jump through it share a node. An
/// interpreter jumps through its table after each of its instructions, and without the shared node
/// its edges are the square of their number. A table of fewer targets costs little without one.
const SHARED_TARGETS_MIN: usize = 16;

/// Most blocks between a guard and the loop that it guards: compilers put what the loop needs
/// there. A larger number takes unrelated branches for guards.
const PREHEADERS_MAX: usize = 4;

/// The flow graph of a procedure, and the edges that are two transitions each. `None` for a graph
/// without an entry.
pub fn observe(
    graph: &Cfg,
    loops: &Loops,
    sampled: &ProcedureSamples<'_>,
    trips: &[TripCount],
) -> Option<(FlowGraph, Vec<SplitEdge>)> {
    let entry = graph.entry()?;
    let mut nodes = nodes(graph, sampled);
    let mut builder = Builder::new(graph, loops, sampled, trips);
    for (number, block) in graph.blocks().iter().enumerate() {
        builder.add_block(number, block);
    }
    let Builder { tables, mut transitions, mut split, guard_transitions, .. } = builder;
    nodes.resize(nodes.len() + tables.tables.len(), Node::default());
    split.iter_mut().for_each(|split| split.from_table += transitions.len());
    tables.add_transitions(graph, &mut transitions);
    Some((FlowGraph { nodes, transitions, entry, guards: guard_transitions }, split))
}

/// The nodes of the graph's blocks.
fn nodes(graph: &Cfg, sampled: &ProcedureSamples<'_>) -> Vec<Node> {
    let mut samples = vec![0.0; graph.blocks().len()];
    for (address, count) in sampled.time {
        let block = graph.block_of(*address).and_then(|number| samples.get_mut(number));
        block.into_iter().for_each(|sum| *sum += *count as f64);
    }
    let issue = sampled.issue_points.map(|points| issue::rates_of_blocks(graph, points));
    let node = |(number, (block, samples)): (usize, (&Block, f64))| Node {
        issue: issue.as_ref().and_then(|rates| rates.get(number)).copied(),
        samples,
        instructions: block.instructions as f64,
        side_entry: !matches!(block.entered, Entered::No | Entered::Entry)
            && graph.entry() != Some(number),
    };
    graph.blocks().iter().zip(samples).enumerate().map(node).collect()
}

/// The transitions of a flow graph, block by block.
struct Builder<'a> {
    graph: &'a Cfg,
    loops: &'a Loops,
    /// Observed branches, by the branch instruction and the next one.
    observed: HashMap<(Vaddr, Vaddr), &'a Branch>,
    bias: BranchBias,
    /// Probabilities of edges that trip counts decide.
    by_trips: HashMap<usize, ExitEstimate>,
    guards: HashMap<usize, Guard>,
    /// Blocks from which no path leaves the procedure.
    endless: Vec<bool>,
    tables: SharedTables,
    transitions: Vec<Transition>,
    /// Edges through tables. `to_table` is final. `from_table` is relative to the first transition
    /// from a table, whose index is known when all blocks are added.
    split: Vec<SplitEdge>,
    /// Transitions of guards that have no observation.
    guard_transitions: Vec<usize>,
}

impl<'a> Builder<'a> {
    fn new(
        graph: &'a Cfg,
        loops: &'a Loops,
        sampled: &ProcedureSamples<'a>,
        trips: &[TripCount],
    ) -> Self {
        let branches = sampled.branches.iter();
        let deciding = trips.iter().filter(|trips| trips.decides);
        let by_trips = deciding.map(|trips| (trips.exit_edge, trips.exit()));
        Self {
            graph,
            loops,
            observed: branches.map(|branch| ((branch.from, branch.to), branch)).collect(),
            bias: sampled.branch_bias,
            by_trips: by_trips.collect(),
            guards: guards(graph, loops, trips),
            endless: endless(graph),
            tables: SharedTables::of(graph),
            transitions: Vec::with_capacity(graph.blocks().len() * 2),
            split: Vec::new(),
            guard_transitions: Vec::new(),
        }
    }

    /// Adds the transitions from a block.
    fn add_block(&mut self, number: usize, block: &Block) {
        let graph = self.graph;
        let edges: Vec<(usize, &Edge)> = graph
            .out_of(number)
            .filter_map(|edge| Some((edge, graph.edges().get(edge)?)))
            .collect();
        // A loop that no path leaves is left all the same: when the program ends, or by a signal.
        let ends = self.endless.get(number).is_some_and(|endless| *endless)
            && edges.iter().any(|(_, edge)| is_back_edge(self.loops, edge));
        let guard = self.guards.get(&number).copied().filter(|_| {
            !edges.iter().any(|(_, edge)| {
                target(graph, edge).is_some_and(|to| self.observed.contains_key(&(block.last, to)))
            })
        });
        let priors = self.priors(&edges, guard, ends);
        let table = self.tables.of_block(number);
        let first_split = self.split.len();
        let from_table = table.map_or(0, |table| self.tables.first_transition(table));
        let mut unobserved = None;
        let branch = |edge: &Edge| {
            let to = target(graph, edge)?;
            self.observed.get(&(block.last, to)).copied()
        };
        let branches: Vec<(Option<&Branch>, EdgeKind)> =
            edges.iter().map(|(_, edge)| (branch(edge), edge.kind)).collect();
        let (worth, bias) = worth(&branches, self.bias);
        let edges = edges.into_iter().zip(priors).zip(worth);
        for (place, (((edge_number, edge), prior), observed)) in edges.enumerate() {
            if table.is_some() {
                // Also an edge with observations of its own is one through the table: the table's
                // node, which other blocks share, leads to all targets. The index of the transition
                // to the table is known when all edges of the block are added.
                let from_table = from_table + place;
                self.split.push(SplitEdge { edge: edge_number, to_table: 0, from_table });
                if observed == 0.0 {
                    unobserved = Some(unobserved.unwrap_or(0.0) + prior);
                    continue;
                }
            }
            self.transitions.push(Transition {
                edge: Some(edge_number),
                from: edge.from,
                to: if let To::Block(to) = edge.to { Some(to) } else { None },
                observed,
                prior,
                bias,
                by_trips: self.by_trips.get(&edge_number).copied(),
            });
        }
        self.guard_transitions.extend(guard.and_then(|guard| {
            self.transitions.iter().rposition(|transition| transition.edge == Some(guard.enters))
        }));
        if let Some((table, prior)) = table.zip(unobserved) {
            let to_table = self.transitions.len();
            self.split.iter_mut().skip(first_split).for_each(|split| split.to_table = to_table);
            let to = Some(graph.blocks().len() + table);
            self.transitions.push(unobserved_transition(number, to, prior));
        } else {
            self.split.truncate(first_split);
        }
        if ends {
            self.transitions.push(unobserved_transition(number, None, 1.0 - BACK_EDGE_PRIOR));
        }
    }

    /// Prior probabilities of the edges of a block; they add up to 1, or to [`BACK_EDGE_PRIOR`] if
    /// the block gets an artificial end.
    fn priors(&self, edges: &[(usize, &Edge)], guard: Option<Guard>, ends: bool) -> Vec<f64> {
        let weight = |(number, edge): &(usize, &Edge)| match guard {
            Some(guard) if *number == guard.enters => 1.0 - guard.exit_probability,
            Some(guard) => guard.exit_probability,
            None => prior_weight(self.graph, self.loops, (*number, edge)),
        };
        let mut priors: Vec<f64> = edges.iter().map(weight).collect();
        let all = priors.iter().sum::<f64>().max(f64::MIN_POSITIVE)
            / if ends { BACK_EDGE_PRIOR } else { 1.0 };
        priors.iter_mut().for_each(|prior| *prior /= all);
        priors
    }
}

/// A transition that is not an edge of the graph, and so has no observations.
fn unobserved_transition(from: usize, to: Option<usize>, prior: f64) -> Transition {
    Transition { edge: None, from, to, observed: 0.0, prior, bias: 0.0, by_trips: None }
}

/// The guard of a loop: the block that decides whether the loop is entered.
#[derive(Clone, Copy)]
struct Guard {
    /// The edge from the guard towards the loop.
    enters: usize,
    /// Probability that the guard skips the loop.
    exit_probability: f64,
}

/// The guards of the loops whose trip counts decide, by their blocks. Compilers make `while (c)
/// body` into `if (c) do body while (c)`, so the guard is one more of the loop's tests: without
/// observations of its own, it ends the loop with the same probability as they do.
fn guards(graph: &Cfg, loops: &Loops, trips: &[TripCount]) -> HashMap<usize, Guard> {
    let guard = |trips: &TripCount| {
        let header = loops.loops().get(trips.loop_number)?.header;
        let outside = |edge: &usize| {
            graph.edges().get(*edge).filter(|edge| !loops.contains(trips.loop_number, edge.from))
        };
        let single = |block: usize, is_header: bool| {
            let mut into =
                graph.into_of(block).iter().filter(|edge| !is_header || outside(edge).is_some());
            into.next().copied().filter(|_| into.next().is_none() && !graph.is_entered(block))
        };
        let mut enters = single(header, true)?;
        for _ in 0..PREHEADERS_MAX {
            let from = graph.edges().get(enters)?.from;
            let edges = graph.edges().get(graph.out_of(from))?;
            if let [a, b] = edges {
                let conditional =
                    matches!(a.kind, EdgeKind::Taken | EdgeKind::NotTaken) && a.to != b.to;
                let exit_probability = trips.exit_probability;
                return conditional.then_some((from, Guard { enters, exit_probability }));
            }
            enters = single(from, false).filter(|_| edges.len() == 1)?;
        }
        None
    };
    trips.iter().filter(|trips| trips.decides).filter_map(guard).collect()
}

/// The observations that the edges of a block are worth, and their bias, as [`BranchBias::full`].
fn worth(edges: &[(Option<&Branch>, EdgeKind)], bias: BranchBias) -> (Vec<f64>, f64) {
    let again = |branch: &Branch, kind| {
        let again = branch.sequence.map(|sequence| sequence.again).unwrap_or_default();
        match kind {
            EdgeKind::Taken => again.jumped,
            EdgeKind::NotTaken => again.went_on,
            _ => 0,
        }
    };
    let counts = |(branch, kind): &(Option<&Branch>, EdgeKind)| {
        let Some(branch) = branch else { return (0.0, 0.0) };
        let once = branch.later.saturating_sub(again(branch, *kind));
        (branch.first as f64, once as f64)
    };
    let all: Vec<(f64, f64)> = edges.iter().map(counts).collect();
    let (first, later) = all.iter().fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
    let usual = all.iter().map(|counts| counts.0 / first.max(1.0)).fold(0.0, f64::max);
    let of_later = 1.0 / (1.0 + later / LATER_MAX);
    let steady = steady(edges);
    let of_steady = steady
        .map_or(0.0, |Steady { probability, worth, bias }| worth * limit(worth, probability, bias));
    let (of_first, left) = if of_steady >= STEADY_MIN {
        (limit(first, usual, bias.of_odds), bias.lessened)
    } else {
        (1.0, bias.full)
    };
    let of = |((_, kind), (first, later)): (&(Option<&Branch>, EdgeKind), (f64, f64))| {
        let probability = match (steady, kind) {
            (Some(steady), EdgeKind::Taken) => steady.probability,
            (Some(steady), EdgeKind::NotTaken) => 1.0 - steady.probability,
            _ => 0.0,
        };
        first * of_first + later * of_later + probability * of_steady
    };
    (edges.iter().zip(all).map(of).collect(), left)
}

/// The probability of a conditional branch from outcomes that time did not choose: of all that
/// walks met later, if a walk goes on as often after either.
fn steady(edges: &[(Option<&Branch>, EdgeKind)]) -> Option<Steady> {
    let sequence = edges.iter().find_map(|(branch, _)| (*branch)?.sequence)?;
    let seen = |wanted| {
        let of_kind = edges.iter().filter(|(_, kind)| *kind == wanted);
        let counts = of_kind.filter_map(|(branch, _)| *branch).map(|of| (of.first, of.later));
        counts.map(|(first, later)| first as f64 + later as f64).sum::<f64>()
    };
    let goes_on = |after: u64, kind| after as f64 / seen(kind);
    let after_jump = goes_on(sequence.after.jumped, EdgeKind::Taken);
    let after_other = goes_on(sequence.after.went_on, EdgeKind::NotTaken);
    let (less, more) = (after_jump.min(after_other), after_jump.max(after_other));
    // An outcome that was never seen has no such share: the comparison is false.
    sequence.pooled.filter(|_| less >= more * GOES_ON_MIN).or(sequence.steady)
}

/// The part of `count` observations of a branch that is left with a bias of its odds, as a standard
/// deviation of their logarithm. `probability` is that of its usual way. A bias of the odds says
/// nothing against a way that is seldom seen.
fn limit(count: f64, probability: f64, bias: f64) -> f64 {
    1.0 / (1.0 + count * probability * (1.0 - probability) * bias * bias)
}

/// Jump tables that several blocks jump through. Each is a node of the flow graph, after those of
/// the blocks.
struct SharedTables {
    /// For each table, its targets, and the number of table entries that lead to each.
    tables: Vec<Vec<(usize, u32)>>,
    /// The table that a block jumps through.
    of_blocks: HashMap<usize, usize>,
}

impl SharedTables {
    fn of(graph: &Cfg) -> Self {
        let mut blocks: BTreeMap<Vec<(usize, u32)>, Vec<usize>> = BTreeMap::new();
        for number in (0..graph.blocks().len())
            .filter(|number| graph.out_of(*number).len() >= SHARED_TARGETS_MIN)
        {
            let edges = graph.edges().get(graph.out_of(number)).unwrap_or_default();
            let case = |edge: &Edge| match edge.to {
                To::Block(to) if edge.kind == EdgeKind::Case => Some((to, edge.cases)),
                _ => None,
            };
            // A block with an edge of another kind chooses among more than the table.
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

    /// Index of the first transition from a table among those from all tables.
    fn first_transition(&self, table: usize) -> usize {
        self.tables.iter().take(table).map(Vec::len).sum()
    }

    fn of_block(&self, block: usize) -> Option<usize> {
        self.of_blocks.get(&block).copied()
    }

    /// Adds the transitions from the tables' nodes.
    fn add_transitions(&self, graph: &Cfg, transitions: &mut Vec<Transition>) {
        for (number, table) in self.tables.iter().enumerate() {
            let all: f64 = table.iter().map(|(_, cases)| f64::from(*cases)).sum();
            let from = graph.blocks().len() + number;
            transitions.extend(table.iter().map(|&(to, cases)| {
                unobserved_transition(from, Some(to), f64::from(cases) / all.max(1.0))
            }));
        }
    }
}

/// For each block, whether no path from it leaves the procedure.
fn endless(graph: &Cfg) -> Vec<bool> {
    let mut endless = vec![true; graph.blocks().len()];
    let exits = graph.edges().iter().filter(|edge| !matches!(edge.to, To::Block(_)));
    let mut pending: Vec<usize> = exits.map(|edge| edge.from).collect();
    while let Some(block) = pending.pop() {
        if let Some(endless) = endless.get_mut(block).filter(|endless| **endless) {
            *endless = false;
            pending.extend(graph.predecessors(block));
        }
    }
    endless
}

/// Whether an edge leads back, or stays, in the order of [`Loops::position`].
fn is_back_edge(loops: &Loops, edge: &Edge) -> bool {
    matches!(edge.to, To::Block(to) if loops.position(to) <= loops.position(edge.from))
}

/// Prior probability of an edge, not yet divided by the sum over the edges of its block.
fn prior_weight(graph: &Cfg, loops: &Loops, (number, edge): (usize, &Edge)) -> f64 {
    let To::Block(to) = edge.to else { return 1.0 };
    let fatal = graph
        .blocks()
        .get(to)
        .is_some_and(|block| matches!(block.ending, Ending::NoReturn | Ending::Trap));
    let back = is_back_edge(loops, edge) && loops.irreducible().binary_search(&number).is_err();
    match edge.kind {
        EdgeKind::Case => f64::from(edge.cases),
        _ if back => BACK_EDGE_PRIOR / (1.0 - BACK_EDGE_PRIOR),
        _ if fatal => NO_RETURN_PRIOR_WEIGHT,
        _ => 1.0,
    }
}
