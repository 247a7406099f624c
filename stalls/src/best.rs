//! The best case of every block of a procedure: in its loop where it is in one, else after the blocks that most often come before it.

use code::cfg::{Cfg, Loops, To};
use code::isa::work::Work;
use estimate::Estimate;

use crate::machine::Machine;
use crate::schedule::{Course, Slot, schedule};

/// Instructions before a block that still matter to it: about as many as a core has under way.
const BEFORE: usize = 64;
/// Instructions of the way round a loop at most.
const ROUND_MAX: usize = 2048;

/// What is executed before what, as far as it is the rule.
#[derive(Debug)]
pub struct Ways<'a> {
    graph: &'a Cfg,
    loops: &'a Loops,
    estimate: &'a Estimate,
}

impl<'a> Ways<'a> {
    /// Those of a graph with what was estimated of it.
    #[must_use]
    pub fn new(graph: &'a Cfg, loops: &'a Loops, estimate: &'a Estimate) -> Self {
        Self { graph, loops, estimate }
    }

    /// Executions of an edge.
    fn flow(&self, edge: usize) -> f64 {
        self.estimate.edges.get(edge).copied().unwrap_or(0.0)
    }

    /// The block that most often comes before `block`, and whether it ends in a call or comes in some other way than its edges.
    #[must_use]
    pub fn before(&self, block: usize) -> Option<usize> {
        let most = self.graph.into_of(block).iter().max_by(|a, b| self.flow(**a).total_cmp(&self.flow(**b)))?;
        Some(self.graph.edges().get(*most)?.from)
    }

    /// The blocks that most often come before `block`, the nearest last, up to so many instructions.
    #[must_use]
    pub fn leading_to(&self, block: usize, instructions: usize) -> Vec<usize> {
        let mut before = Vec::new();
        let (mut at, mut left) = (block, instructions);
        while let Some(next) = self.before(at) {
            before.push(next);
            let count = self.graph.blocks().get(next).map_or(0, |block| block.instructions);
            if count == 0 || count >= left || before.len() > instructions {
                break;
            }
            (at, left) = (next, left - count);
        }
        before.reverse();
        before
    }

    /// The most frequent way round a loop from its header, by blocks. None where it does not come back.
    fn round(&self, number: usize) -> Option<Vec<usize>> {
        let header = self.loops.loops().get(number)?.header;
        let mut way = vec![header];
        let mut instructions = 0;
        let mut at = header;
        loop {
            instructions += self.graph.blocks().get(at)?.instructions;
            let next = self.graph.out_of(at).filter_map(|edge| {
                let To::Block(to) = self.graph.edges().get(edge)?.to else { return None };
                let goes_on = to == header || (self.loops.contains(number, to) && !way.contains(&to));
                goes_on.then_some((self.flow(edge), to))
            });
            let (_, to) = next.max_by(|a, b| a.0.total_cmp(&b.0))?;
            if to == header {
                return Some(way);
            }
            if instructions > ROUND_MAX {
                return None;
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
    // Inner loops come after those around them.
    for number in (0..ways.loops.loops().len()).rev() {
        let Some(way) = ways.round(number) else { continue };
        let trace: Vec<Work> = way.iter().flat_map(|block| of(block).iter().copied()).collect();
        // What calls does not go on where it was.
        let course = if trace.iter().any(|work| work.calls) { Course::Once } else { Course::Again };
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
            let before: Vec<Work> =
                ways.leading_to(block, BEFORE).iter().flat_map(|block| of(block).iter().copied()).collect();
            let before = before.get(before.len().saturating_sub(BEFORE)..).unwrap_or_default();
            let trace: Vec<Work> = before.iter().chain(of(&block)).copied().collect();
            schedule(machine, &trace, Course::Once).split_off(before.len())
        })
    };
    best.into_iter().enumerate().map(alone).collect()
}
