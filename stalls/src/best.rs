//! The best case of every block of a procedure: in its loop where it is in one, else after the
//! blocks that most often come before it.

use code::cfg::{Cfg, Ending, Loops, To};
use code::isa::work::Work;
use estimate::Estimate;
use image::Vaddr;

use crate::in_order::Pipeline;
use crate::machine::Machine;
use crate::schedule::{Before, Course, Slot, schedule};

/// Instructions before a block that still matter to it: about as many as a core has under way.
const BEFORE: usize = 64;
/// The same on a processor that issues in order: what is under way is done after the longest
/// latencies.
const IN_ORDER_BEFORE: usize = 24;
/// Blocks before one in which its branch is looked for.
const BRANCH_BLOCKS: usize = 4;
/// Ways into a block that are looked at there.
const WAYS_MAX: usize = 8;
/// Instructions of the ways round all loops together at most: those of the rest are scheduled block
/// by block.
const SCHEDULED_MAX: usize = 1 << 17;
/// Instructions of the way round a loop at most.
const ROUND_MAX: usize = 2048;

/// What is executed before what, as far as it is the rule.
#[derive(Debug)]
pub struct Ways<'a> {
    graph: &'a Cfg,
    loops: &'a Loops,
    estimate: &'a Estimate,
    before: Vec<Option<usize>>,
}

impl<'a> Ways<'a> {
    /// Those of a graph with what was estimated of it.
    #[must_use]
    pub fn new(graph: &'a Cfg, loops: &'a Loops, estimate: &'a Estimate) -> Self {
        let mut this = Self { graph, loops, estimate, before: Vec::new() };
        let most = |block| {
            let edges = graph.into_of(block).iter();
            let most = edges.max_by(|a, b| this.flow(**a).total_cmp(&this.flow(**b)))?;
            Some(graph.edges().get(*most)?.from)
        };
        this.before = (0..graph.blocks().len()).map(most).collect();
        this
    }

    /// Executions of an edge.
    fn flow(&self, edge: usize) -> f64 {
        self.estimate.edges.get(edge).copied().unwrap_or(0.0)
    }

    /// The block that most often comes before `block`.
    #[must_use]
    pub fn before(&self, block: usize) -> Option<usize> {
        *self.before.get(block)?
    }

    /// Where execution goes on after a block, by a number from 0 to 1: each edge has as much of
    /// that as it is taken. None where it leaves.
    fn chosen(&self, block: usize, number: f64) -> Option<usize> {
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

    /// The last so many instructions that are most often executed before `block`, in pieces, the
    /// nearest last. They are the same for all blocks with the same [`Ways::before`].
    #[must_use]
    pub fn leading_to<'w>(
        &self,
        block: usize,
        instructions: usize,
        work: &'w [Vec<Work>],
    ) -> Vec<&'w [Work]> {
        let mut pieces: Vec<&[Work]> = Vec::new();
        let (mut at, mut left) = (block, instructions);
        while let Some(next) = self.before(at).filter(|_| left > 0 && pieces.len() < instructions) {
            let all = work.get(next).map(Vec::as_slice).unwrap_or_default();
            let piece = all.get(all.len().saturating_sub(left)..).unwrap_or_default();
            left -= piece.len();
            pieces.push(piece);
            at = next;
        }
        pieces.reverse();
        pieces
    }

    /// The instruction so many before `block`'s first.
    #[must_use]
    pub fn address_before(&self, block: usize, behind: usize) -> Option<Vaddr> {
        let mut at = block;
        // Few are asked for, and blocks have at least one.
        let mut left = behind;
        for _ in 0..behind {
            at = self.before(at)?;
            let count = self.graph.blocks().get(at)?.instructions;
            if left <= count {
                return self.graph.instructions(at).nth(count - left);
            }
            left -= count;
        }
        None
    }

    /// The branch before a block, on the way that is taken most often; none where there is none in
    /// the few blocks before.
    pub fn branch_before(&self, block: usize) -> Option<Vaddr> {
        let mut at = block;
        for _ in 0..BRANCH_BLOCKS {
            at = self.before(at)?;
            let before = self.graph.blocks().get(at)?;
            if before.ending != Ending::Next {
                return Some(before.last);
            }
        }
        None
    }

    /// The most frequent way round a loop from its header, by blocks. None where it does not come
    /// back, or is long. `passed` has, of each block, the last loop that it was passed for.
    fn round(&self, number: usize, passed: &mut [usize]) -> Option<Vec<usize>> {
        let header = self.loops.loops().get(number)?.header;
        let mut way = vec![header];
        let mut instructions = 0;
        let mut at = header;
        loop {
            *passed.get_mut(at)? = number;
            instructions += self.graph.blocks().get(at)?.instructions;
            if instructions > ROUND_MAX {
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
                return Some(way);
            }
            way.push(to);
            at = to;
        }
    }
}

/// The best case of each instruction of each block. `work` has the instructions of each block.
#[must_use]
pub fn best_cases(ways: &Ways<'_>, machine: &Machine, work: &[Vec<Work>]) -> Vec<Vec<Slot>> {
    if machine.in_order() {
        let walked = walked(ways, machine, work);
        let seldom = |block| after_all(ways, machine, block, work);
        return walked
            .into_iter()
            .enumerate()
            .map(|(block, often)| often.unwrap_or_else(|| seldom(block)))
            .collect();
    }
    let mut best: Vec<Option<Vec<Slot>>> = vec![None; work.len()];
    let of = |block: &usize| work.get(*block).map(Vec::as_slice).unwrap_or_default();
    let mut passed = vec![usize::MAX; work.len()];
    let mut scheduled = 0;
    // Inner loops come after those around them; the blocks of one in another are scheduled already.
    for number in (0..ways.loops.loops().len()).rev() {
        let header = ways.loops.loops().get(number).map(|this| this.header);
        let known = header.and_then(|header| best.get(header)).is_some_and(Option::is_some);
        if known || scheduled > SCHEDULED_MAX {
            continue;
        }
        let Some(way) = ways.round(number, &mut passed) else { continue };
        let trace: Vec<Work> = way.iter().flat_map(|block| of(block).iter().copied()).collect();
        scheduled += trace.len();
        // What calls does not go on where it was.
        let course = if trace.iter().any(Work::leaves) { Course::Once } else { Course::Again };
        let slots = schedule(machine, &trace, course);
        let mut rest = slots.as_slice();
        for block in way {
            let (own, others) = rest.split_at(of(&block).len().min(rest.len()));
            rest = others;
            if let Some(best) = best.get_mut(block).filter(|best| best.is_none()) {
                *best = Some(own.to_vec());
            }
        }
    }
    let mut alone: Vec<usize> =
        (0..best.len()).filter(|block| best.get(*block).is_some_and(Option::is_none)).collect();
    alone.sort_by_key(|block| ways.before(*block));
    for alike in alone.chunk_by(|a, b| ways.before(*a) == ways.before(*b)) {
        let Some(first) = alike.first() else { continue };
        let mut before = Before::new(machine, ways.leading_to(*first, BEFORE, work));
        for block in alike {
            best.get_mut(*block)
                .into_iter()
                .for_each(|best| *best = Some(before.schedule(of(block))));
        }
    }
    best.into_iter().map(Option::unwrap_or_default).collect()
}

/// Instructions of a walk: so many for each of the procedure, at least and at most.
const STEPS: usize = 512;
const STEPS_MIN: usize = 1 << 13;
const STEPS_MAX: usize = 1 << 16;
/// A block that comes less often than this in it is looked at alone.
const OFTEN: usize = 32;

/// The best cases of blocks on a processor that issues in order: the mean over a walk by chance,
/// that goes on as often as is estimated. With what the first instruction of a block is issued, and
/// what that waits for, is decided by what comes before it, which may be other each time.
fn walked(ways: &Ways<'_>, machine: &Machine, work: &[Vec<Work>]) -> Vec<Option<Vec<Slot>>> {
    let mut random = fastrand::Rng::with_seed(0x5eed);
    let mut sums: Vec<(usize, Vec<Slot>)> =
        work.iter().map(|own| (0, vec![Slot::default(); own.len()])).collect();
    let steps =
        work.iter().map(Vec::len).sum::<usize>().saturating_mul(STEPS).clamp(STEPS_MIN, STEPS_MAX);
    let (mut pipeline, mut at, mut left) = (Pipeline::new(machine), None, steps);
    while let Some(block) = at.or_else(|| ways.graph.entry()).filter(|_| left > 0) {
        let own = work.get(block).map(Vec::as_slice).unwrap_or_default();
        left = left.saturating_sub(own.len().max(1));
        if let Some((count, slots)) = sums.get_mut(block) {
            *count += 1;
            for (sum, work) in slots.iter_mut().zip(own) {
                let one = pipeline.issue(work);
                // What it waits for is told as where it waits longest.
                let longest = if one.cycles > sum.share { one } else { *sum };
                *sum = Slot {
                    cycles: sum.cycles + one.cycles,
                    share: one.cycles.max(sum.share),
                    ..longest
                };
            }
        }
        let next = ways.chosen(block, random.f64());
        if next.is_none() {
            pipeline = Pipeline::new(machine);
        }
        at = next;
    }
    let mean = |((count, slots), own): ((usize, Vec<Slot>), &Vec<Work>)| {
        let mean = |(slot, work): (&Slot, &Work)| Slot {
            cycles: slot.cycles / count as f64,
            share: machine.share(work),
            ..*slot
        };
        (count >= OFTEN).then(|| slots.iter().zip(own).map(mean).collect())
    };
    sums.into_iter().zip(work).map(mean).collect()
}

/// The best case of a block on a processor that issues in order: the mean over the ways that lead
/// to it, as often as they are taken. What is before it matters: with what its first instruction is
/// issued, and what that waits for.
fn after_all(ways: &Ways<'_>, machine: &Machine, block: usize, work: &[Vec<Work>]) -> Vec<Slot> {
    let own = work.get(block).map(Vec::as_slice).unwrap_or_default();
    let edges = ways.graph.into_of(block).iter();
    let mut from: Vec<(f64, usize)> = edges
        .filter_map(|edge| Some((ways.flow(*edge), ways.graph.edges().get(*edge)?.from)))
        .collect();
    from.sort_by(|a, b| b.0.total_cmp(&a.0));
    from.truncate(WAYS_MAX);
    let all: f64 = from.iter().map(|(flow, _)| flow).sum();
    let after = |before: Vec<Work>| {
        let trace: Vec<Work> = before.iter().chain(own).copied().collect();
        schedule(machine, &trace, Course::Once).split_off(before.len())
    };
    if all <= 0.0 {
        return after(Vec::new());
    }
    let mut mean: Vec<Slot> = Vec::new();
    for (flow, from) in from {
        let last = work.get(from).map(Vec::as_slice).unwrap_or_default();
        let mut before =
            ways.leading_to(from, IN_ORDER_BEFORE.saturating_sub(last.len()), work).concat();
        before.extend_from_slice(
            last.get(last.len().saturating_sub(IN_ORDER_BEFORE)..).unwrap_or_default(),
        );
        let slots = after(before);
        if mean.is_empty() {
            mean = slots.iter().map(|slot| Slot { cycles: 0.0, ..*slot }).collect();
        }
        mean.iter_mut().zip(slots).for_each(|(mean, slot)| mean.cycles += slot.cycles * flow / all);
    }
    mean
}
