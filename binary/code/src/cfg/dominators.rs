//! Immediate dominators of blocks, by Semi-NCA (Georgiadis, Tarjan, Werneck: Finding Dominators in
//! Practice, 2006).

use super::Cfg;

/// A depth-first walk over all blocks that are reached.
pub(super) struct Walk {
    /// Blocks in the order in which the walk met them.
    preorder: Vec<usize>,
    /// Parent of each block in that order, as its number in that order counted from 1; 0 for blocks
    /// that are entered from outside.
    parents: Vec<usize>,
    pub(super) postorder: Vec<usize>,
}

impl Walk {
    pub(super) fn of(graph: &Cfg) -> Self {
        let mut numbers = vec![0_usize; graph.blocks().len()];
        let mut this = Self { preorder: Vec::new(), parents: Vec::new(), postorder: Vec::new() };
        // The procedure's entry comes last, so that it is the first in reverse postorder.
        for root in graph.entrances().into_iter().rev() {
            let mut path = Vec::new();
            let mut met = Some((root, 0));
            loop {
                if let Some((block, parent)) = met.take()
                    && let Some(number @ 0) = numbers.get_mut(block)
                {
                    this.preorder.push(block);
                    this.parents.push(parent);
                    *number = this.preorder.len();
                    path.push((block, *number, graph.successors(block)));
                }
                let Some((block, number, successors)) = path.last_mut() else { break };
                match successors.next() {
                    Some(next) => met = Some((next, *number)),
                    None => {
                        this.postorder.push(*block);
                        path.pop();
                    }
                }
            }
        }
        this
    }
}

/// The forest of the blocks linked so far, each with the least semidominator on its path upwards.
/// Numbers as in a walk; 0 is the outside of the procedure.
struct Forest {
    ancestors: Vec<usize>,
    least: Vec<usize>,
    semi: Vec<usize>,
}

impl Forest {
    fn semi(&self, number: usize) -> usize {
        self.semi.get(number).copied().unwrap_or_default()
    }

    fn ancestor(&self, number: usize) -> usize {
        self.ancestors.get(number).copied().unwrap_or_default()
    }

    fn least(&self, number: usize) -> usize {
        self.least.get(number).copied().unwrap_or_default()
    }

    /// The number with the least semidominator from `number` up to below the root of its tree, all
    /// of which are after `last`.
    fn eval(&mut self, number: usize, last: usize) -> usize {
        if number <= last {
            return number;
        }
        let mut path = vec![number];
        let mut at = number;
        while self.ancestor(at) > last {
            at = self.ancestor(at);
            path.push(at);
        }
        let root = self.ancestor(at);
        let mut best = self.least(at);
        for &below in path.iter().rev() {
            if self.semi(self.least(below)) < self.semi(best) {
                best = self.least(below);
            }
            self.least.get_mut(below).into_iter().for_each(|least| *least = best);
            self.ancestors.get_mut(below).into_iter().for_each(|ancestor| *ancestor = root);
        }
        best
    }
}

/// The immediate dominator of each block; None for blocks that are entered from outside, or from
/// several entrances, or not at all.
pub(super) fn dominators(graph: &Cfg, walk: &Walk) -> Vec<Option<usize>> {
    let count = walk.preorder.len();
    let mut numbers = vec![0_usize; graph.blocks().len()];
    for (number, &block) in (1..).zip(&walk.preorder) {
        numbers.get_mut(block).into_iter().for_each(|at| *at = number);
    }
    let mut parents = vec![0];
    parents.extend(&walk.parents);
    let all: Vec<usize> = (0..=count).collect();
    let mut forest = Forest { ancestors: parents.clone(), least: all.clone(), semi: all };
    for number in (1..=count).rev() {
        let Some(&block) = walk.preorder.get(number - 1) else { continue };
        let mut semi = parents.get(number).copied().unwrap_or_default();
        if graph.is_entered(block) {
            semi = 0;
        }
        for before in graph
            .predecessors(block)
            .filter_map(|before| numbers.get(before).copied())
            .filter(|&n| n != 0)
        {
            let best = forest.eval(before, number);
            semi = semi.min(forest.semi(best));
        }
        forest.semi.get_mut(number).into_iter().for_each(|at| *at = semi);
    }
    let mut dominators = parents;
    for number in 1..=count {
        let semi = forest.semi(number);
        let mut at = dominators.get(number).copied().unwrap_or_default();
        while at > semi {
            at = dominators.get(at).copied().unwrap_or_default();
        }
        dominators.get_mut(number).into_iter().for_each(|dominator| *dominator = at);
    }
    let mut of_blocks = vec![None; graph.blocks().len()];
    for (&block, &dominator) in walk.preorder.iter().zip(dominators.iter().skip(1)) {
        let dominator =
            dominator.checked_sub(1).and_then(|index| walk.preorder.get(index).copied());
        of_blocks.get_mut(block).into_iter().for_each(|at| *at = dominator);
    }
    of_blocks
}
