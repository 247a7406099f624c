//! The best case of every block of a procedure: scheduled in its loop if it is in one, else after
//! the blocks that most often precede it.

use code::cfg::{Cfg, Ending, Loops, To};
use code::isa::work::Work;
use estimate::Estimate;
use image::Vaddr;

use crate::in_order::Pipeline;
use crate::machine::Machine;
use crate::schedule::{BestCase, TraceContext, WarmCore, schedule};

/// Instructions before a block that are scheduled ahead of it: the order of magnitude that a core
/// has in flight. Set by hand. Fewer make the block wait for operands that are ready in truth; more
/// cost time and change nothing.
const CONTEXT_INSTRUCTIONS: usize = 64;
/// The same on a processor that issues in order, where instructions are in flight for no longer
/// than the longest latency. Set by hand.
const IN_ORDER_CONTEXT_INSTRUCTIONS: usize = 24;
/// Most blocks before a block in which the branch that led to it is searched. Set by hand. More
/// would blame branches that were resolved long before.
const BRANCH_SEARCH_BLOCKS: usize = 4;
/// Most predecessors of a block whose traces are scheduled on a processor that issues in order:
/// those with the most executions. Set by hand: the others hardly change the mean.
const PREDECESSORS_MAX: usize = 8;
/// Instructions of a procedure's loops after which no further loop is scheduled as one; the blocks
/// of further loops are scheduled one by one. Set by hand, to bound the time for hostile code.
const LOOP_INSTRUCTIONS_MAX: usize = 1 << 17;
/// Most instructions of one round of a loop that is scheduled as a loop. Set by hand. Longer rounds
/// fill the reorder buffer anyway, so their blocks are scheduled one by one.
const ROUND_INSTRUCTIONS_MAX: usize = 2048;

/// The most frequent paths through a graph, by the estimated executions of its edges.
#[derive(Debug)]
pub struct FrequentPaths<'a> {
    graph: &'a Cfg,
    loops: &'a Loops,
    estimate: &'a Estimate,
    /// For each block, its most frequent predecessor.
    predecessors: Vec<Option<usize>>,
}

impl<'a> FrequentPaths<'a> {
    /// The paths of a graph.
    pub fn new(graph: &'a Cfg, loops: &'a Loops, estimate: &'a Estimate) -> Self {
        let mut this = Self { graph, loops, estimate, predecessors: Vec::new() };
        let most = |block| {
            let edges = graph.into_of(block).iter();
            let most = edges.max_by(|a, b| this.flow(**a).total_cmp(&this.flow(**b)))?;
            Some(graph.edges().get(*most)?.from)
        };
        this.predecessors = (0..graph.blocks().len()).map(most).collect();
        this
    }

    /// Executions of an edge.
    fn flow(&self, edge: usize) -> f64 {
        self.estimate.edges.get(edge).copied().unwrap_or(0.0)
    }

    /// The block that most often precedes `block`.
    pub fn predecessor(&self, block: usize) -> Option<usize> {
        *self.predecessors.get(block)?
    }

    /// The block that follows `block` for a random `number` from 0 to 1: each edge has the
    /// probability of its executions. `None` where the edge leaves the procedure.
    fn random_successor(&self, block: usize, number: f64) -> Option<usize> {
        let all: f64 = self.graph.out_of(block).map(|edge| self.flow(edge)).sum();
        let mut left = number * all;
        let mut edges = self.graph.out_of(block).filter(|edge| {
            left -= self.flow(*edge);
            left < 0.0
        });
        match self.graph.edges().get(edges.next()?)?.to {
            To::Block(to) => Some(to),
            _ => None,
        }
    }

    /// The last `instructions` instructions on the most frequent path to `block`, in pieces by
    /// block, the nearest last. Blocks with the same [`FrequentPaths::predecessor`] have the same
    /// pieces.
    pub fn leading_to<'w>(
        &self,
        block: usize,
        instructions: usize,
        work: &'w [Vec<Work>],
    ) -> Vec<&'w [Work]> {
        let mut pieces: Vec<&[Work]> = Vec::new();
        let (mut at, mut left) = (block, instructions);
        while let Some(next) =
            self.predecessor(at).filter(|_| left > 0 && pieces.len() < instructions)
        {
            let all = work.get(next).map(Vec::as_slice).unwrap_or_default();
            let piece = all.get(all.len().saturating_sub(left)..).unwrap_or_default();
            left -= piece.len();
            pieces.push(piece);
            at = next;
        }
        pieces.reverse();
        pieces
    }

    /// The instruction that is `behind` instructions before the first of `block`, on the most
    /// frequent path.
    pub fn address_before(&self, block: usize, behind: usize) -> Option<Vaddr> {
        let mut at = block;
        // Bounded by `behind`, which is small, since each block has at least one instruction.
        let mut left = behind;
        for _ in 0..behind {
            at = self.predecessor(at)?;
            let count = self.graph.blocks().get(at)?.instructions;
            if left <= count {
                return self.graph.instructions(at).nth(count - left);
            }
            left -= count;
        }
        None
    }

    /// The branch before a block on the most frequent path; `None` if none is in the last
    /// `BRANCH_SEARCH_BLOCKS` blocks.
    pub fn branch_before(&self, block: usize) -> Option<Vaddr> {
        let mut at = block;
        for _ in 0..BRANCH_SEARCH_BLOCKS {
            at = self.predecessor(at)?;
            let before = self.graph.blocks().get(at)?;
            if before.ending != Ending::Next {
                return Some(before.last);
            }
        }
        None
    }

    /// The blocks of the most frequent round of a loop, from its header. `None` if the path does
    /// not come back to the header, or is too long. `passed` has, of each block, the last loop for
    /// which a path passed it.
    fn frequent_round(&self, number: usize, passed: &mut [usize]) -> Option<Vec<usize>> {
        let header = self.loops.loops().get(number)?.header;
        let mut round = vec![header];
        let mut instructions = 0;
        let mut at = header;
        loop {
            *passed.get_mut(at)? = number;
            instructions += self.graph.blocks().get(at)?.instructions;
            if instructions > ROUND_INSTRUCTIONS_MAX {
                return None;
            }
            let next = self.graph.out_of(at).filter_map(|edge| {
                let To::Block(to) = self.graph.edges().get(edge)?.to else { return None };
                let goes_on = to == header
                    || (passed.get(to) != Some(&number) && self.loops.contains(number, to));
                goes_on.then_some((self.flow(edge), to))
            });
            let (_, to) = next.max_by(|a, b| a.0.total_cmp(&b.0))?;
            if to == header {
                return Some(round);
            }
            round.push(to);
            at = to;
        }
    }
}

/// The best case of each instruction of each block. `work` has the instructions of each block.
pub fn best_cases(
    paths: &FrequentPaths<'_>,
    machine: &Machine,
    work: &[Vec<Work>],
) -> Vec<Vec<BestCase>> {
    if machine.in_order() {
        let walked = mean_over_walk(paths, machine, work);
        let seldom = |block| mean_over_predecessors(paths, machine, block, work);
        return walked
            .into_iter()
            .enumerate()
            .map(|(block, often)| often.unwrap_or_else(|| seldom(block)))
            .collect();
    }
    let mut best: Vec<Option<Vec<BestCase>>> = vec![None; work.len()];
    let of = |block: &usize| work.get(*block).map(Vec::as_slice).unwrap_or_default();
    let mut passed = vec![usize::MAX; work.len()];
    let mut scheduled = 0;
    // Inner loops have larger indices than the loops around them. The blocks of an inner loop keep
    // the best cases that they have in it.
    for number in (0..paths.loops.loops().len()).rev() {
        let header = paths.loops.loops().get(number).map(|this| this.header);
        let known = header.and_then(|header| best.get(header)).is_some_and(Option::is_some);
        if known || scheduled > LOOP_INSTRUCTIONS_MAX {
            continue;
        }
        let Some(round) = paths.frequent_round(number, &mut passed) else { continue };
        let trace: Vec<Work> = round.iter().flat_map(|block| of(block).iter().copied()).collect();
        scheduled += trace.len();
        // A loop that calls does not find the pipeline as it left it.
        let context =
            if trace.iter().any(Work::leaves) { TraceContext::Busy } else { TraceContext::Loop };
        let of_round = schedule(machine, &trace, context);
        let mut rest = of_round.as_slice();
        for block in round {
            let (own, others) = rest.split_at(of(&block).len().min(rest.len()));
            rest = others;
            if let Some(best) = best.get_mut(block).filter(|best| best.is_none()) {
                *best = Some(own.to_vec());
            }
        }
    }
    let mut alone: Vec<usize> =
        (0..best.len()).filter(|block| best.get(*block).is_some_and(Option::is_none)).collect();
    alone.sort_by_key(|block| paths.predecessor(*block));
    for siblings in alone.chunk_by(|a, b| paths.predecessor(*a) == paths.predecessor(*b)) {
        let Some(first) = siblings.first() else { continue };
        let mut core = WarmCore::new(machine, paths.leading_to(*first, CONTEXT_INSTRUCTIONS, work));
        for block in siblings {
            best.get_mut(*block)
                .into_iter()
                .for_each(|best| *best = Some(core.schedule(of(block))));
        }
    }
    best.into_iter().map(Option::unwrap_or_default).collect()
}

/// Instructions of the random walk per instruction of the procedure. Set by hand for the scores of
/// `analysis/stalls/tests/in_order`; a shorter walk leaves noise in the best cases.
const WALK_INSTRUCTIONS_FACTOR: usize = 512;
/// Fewest instructions of the random walk, so that short procedures have enough rounds.
const WALK_INSTRUCTIONS_MIN: usize = 1 << 13;
/// Most instructions of the random walk. Bounds its time to milliseconds; blocks that it seldom
/// visits are scheduled alone.
const WALK_INSTRUCTIONS_MAX: usize = 1 << 16;
/// Fewest visits of a block whose mean over the walk is used. With fewer, the mean has a grain of
/// more than 1/32 cycle.
const WALK_VISITS_MIN: usize = 32;

/// The best cases of blocks on a processor that issues in order, as means over a random walk with
/// the estimated branch probabilities. What precedes a block decides with which instruction its
/// first is issued and what that waits for, and may differ each time. `None` for blocks that the
/// walk seldom visits.
fn mean_over_walk(
    paths: &FrequentPaths<'_>,
    machine: &Machine,
    work: &[Vec<Work>],
) -> Vec<Option<Vec<BestCase>>> {
    let mut random = fastrand::Rng::with_seed(0x5eed);
    let mut sums: Vec<(usize, Vec<BestCase>)> =
        work.iter().map(|own| (0, vec![BestCase::default(); own.len()])).collect();
    let steps = work
        .iter()
        .map(Vec::len)
        .sum::<usize>()
        .saturating_mul(WALK_INSTRUCTIONS_FACTOR)
        .clamp(WALK_INSTRUCTIONS_MIN, WALK_INSTRUCTIONS_MAX);
    let (mut pipeline, mut at, mut left) = (Pipeline::new(machine), None, steps);
    while let Some(block) = at.or_else(|| paths.graph.entry()).filter(|_| left > 0) {
        let own = work.get(block).map(Vec::as_slice).unwrap_or_default();
        left = left.saturating_sub(own.len().max(1));
        if let Some((count, own_sums)) = sums.get_mut(block) {
            *count += 1;
            for (sum, work) in own_sums.iter_mut().zip(own) {
                let issued = pipeline.issue(work);
                // Over all visits, the reason for the longest wait is kept. Until `mean` overwrites
                // `issue_cycles`, that field holds the cycles of the longest wait.
                let longest = if issued.cycles > sum.issue_cycles { issued } else { *sum };
                *sum = BestCase {
                    cycles: sum.cycles + issued.cycles,
                    issue_cycles: issued.cycles.max(sum.issue_cycles),
                    ..longest
                };
            }
        }
        let next = paths.random_successor(block, random.f64());
        if next.is_none() {
            pipeline = Pipeline::new(machine);
        }
        at = next;
    }
    let mean = |((count, sums), own): ((usize, Vec<BestCase>), &Vec<Work>)| {
        let mean = |(best_case, work): (&BestCase, &Work)| BestCase {
            cycles: best_case.cycles / count as f64,
            issue_cycles: machine.issue_cycles(work),
            ..*best_case
        };
        (count >= WALK_VISITS_MIN).then(|| sums.iter().zip(own).map(mean).collect())
    };
    sums.into_iter().zip(work).map(mean).collect()
}

/// The best case of a block on a processor that issues in order, as the mean over its predecessors,
/// weighted by the executions of their edges.
fn mean_over_predecessors(
    paths: &FrequentPaths<'_>,
    machine: &Machine,
    block: usize,
    work: &[Vec<Work>],
) -> Vec<BestCase> {
    let own = work.get(block).map(Vec::as_slice).unwrap_or_default();
    let edges = paths.graph.into_of(block).iter();
    let mut from: Vec<(f64, usize)> = edges
        .filter_map(|edge| Some((paths.flow(*edge), paths.graph.edges().get(*edge)?.from)))
        .collect();
    from.sort_by(|a, b| b.0.total_cmp(&a.0));
    from.truncate(PREDECESSORS_MAX);
    let all: f64 = from.iter().map(|(flow, _)| flow).sum();
    let after = |before: Vec<Work>| {
        let trace: Vec<Work> = before.iter().chain(own).copied().collect();
        schedule(machine, &trace, TraceContext::Busy).split_off(before.len())
    };
    if all <= 0.0 {
        return after(Vec::new());
    }
    let mut mean: Vec<BestCase> = Vec::new();
    for (flow, from) in from {
        let last = work.get(from).map(Vec::as_slice).unwrap_or_default();
        let mut before = paths
            .leading_to(from, IN_ORDER_CONTEXT_INSTRUCTIONS.saturating_sub(last.len()), work)
            .concat();
        before.extend_from_slice(
            last.get(last.len().saturating_sub(IN_ORDER_CONTEXT_INSTRUCTIONS)..)
                .unwrap_or_default(),
        );
        let after_one = after(before);
        if mean.is_empty() {
            mean =
                after_one.iter().map(|best_case| BestCase { cycles: 0.0, ..*best_case }).collect();
        }
        mean.iter_mut()
            .zip(after_one)
            .for_each(|(mean, best_case)| mean.cycles += best_case.cycles * flow / all);
    }
    mean
}
