//! The best case of every block of a procedure: in its loop where it is in one, else after the blocks that most often come before it.

use code::cfg::{Cfg, Loops, To};
use code::isa::work::Work;
use estimate::Estimate;
use image::Vaddr;

use crate::machine::Machine;
use crate::schedule::{Course, Slot, schedule};

/// Instructions before a block that still matter to it: about as many as a core has under way.
const BEFORE: usize = 64;
/// Instructions of the ways round all loops together at most: those of the rest are scheduled block by block.
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

    /// The last so many instructions that are most often executed before `block`, the nearest last.
    #[must_use]
    pub fn leading_to(&self, block: usize, instructions: usize, work: &[Vec<Work>]) -> Vec<Work> {
        let mut pieces: Vec<&[Work]> = Vec::new();
        let (mut at, mut left) = (block, instructions);
        while let Some(next) = self.before(at).filter(|_| left > 0 && pieces.len() < instructions) {
            let all = work.get(next).map(Vec::as_slice).unwrap_or_default();
            let piece = all.get(all.len().saturating_sub(left)..).unwrap_or_default();
            left -= piece.len();
            pieces.push(piece);
            at = next;
        }
        pieces.into_iter().rev().flatten().copied().collect()
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

    /// The most frequent way round a loop from its header, by blocks. None where it does not come back, or is long. `passed` has, of each
    /// block, the last loop that it was passed for.
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
                let goes_on = to == header || (passed.get(to) != Some(&number) && self.loops.contains(number, to));
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
    let alone = |(block, best): (usize, Option<Vec<Slot>>)| {
        best.unwrap_or_else(|| {
            let before = ways.leading_to(block, BEFORE, work);
            let trace: Vec<Work> = before.iter().chain(of(&block)).copied().collect();
            schedule(machine, &trace, Course::Once).split_off(before.len())
        })
    };
    best.into_iter().enumerate().map(alone).collect()
}
