//! Dominators and natural loops.

use super::Cfg;
use super::dominators::Walk;

/// The loops of a graph, and the orders of blocks that find them. Blocks are named by number.
#[derive(Clone, Debug, Default)]
pub struct Loops {
    order: Vec<usize>,
    position: Vec<Option<usize>>,
    dominators: Vec<Option<usize>>,
    loops: Vec<Loop>,
    innermost: Vec<Option<usize>>,
    nested: Nested,
    irreducible: Vec<usize>,
}

/// A natural loop: all blocks from which a latch (a block that jumps back to the header) is reached
/// without passing the header. Loops with the same header are one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loop {
    /// The only block that it is entered at.
    pub header: usize,
    /// The blocks that jump back to the header.
    pub latches: Vec<usize>,
    /// Number of the loop around it, which is always smaller than its own.
    pub parent: Option<usize>,
    /// 1 for a loop that is in no other.
    pub depth: u32,
    /// Number of its blocks, those of inner loops included.
    pub blocks: usize,
}

impl Loops {
    /// The loops of `graph`.
    pub fn of(graph: &Cfg) -> Self {
        let count = graph.blocks().len();
        let mut this = Self { innermost: vec![None; count], ..Self::default() };
        let walk = Walk::of(graph);
        this.position = vec![None; count];
        for (position, &block) in walk.postorder.iter().rev().enumerate() {
            this.position.get_mut(block).into_iter().for_each(|at| *at = Some(position));
        }
        this.order = walk.postorder.iter().rev().copied().collect();
        this.dominators = super::dominators::dominators(graph, &walk);
        this.find_loops(graph);
        this
    }

    /// Blocks in reverse postorder: each comes before its successors, except for edges that go
    /// back. Filler is not among them.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// Position of `block` in [`Self::order`].
    pub fn position(&self, block: usize) -> Option<usize> {
        *self.position.get(block)?
    }

    /// The immediate dominator: the last block before `block` that is on every path to it. None for
    /// blocks that are entered from outside.
    pub fn dominator(&self, block: usize) -> Option<usize> {
        *self.dominators.get(block)?
    }

    /// Whether `before` dominates `block`, or is it. Takes time linear in the number of dominators
    /// of `block`.
    pub fn dominates(&self, before: usize, block: usize) -> bool {
        let mut at = Some(block);
        while let Some(current) = at {
            if current == before {
                return true;
            }
            // Dominators come earlier in the order.
            if self.position(current) <= self.position(before) {
                return false;
            }
            at = self.dominator(current);
        }
        false
    }

    /// The loops, outer ones before those in them.
    pub fn loops(&self) -> &[Loop] {
        &self.loops
    }

    /// The number of the innermost loop that `block` is in.
    pub fn innermost(&self, block: usize) -> Option<usize> {
        *self.innermost.get(block)?
    }

    /// The number of loops around `block`.
    pub fn depth(&self, block: usize) -> u32 {
        self.innermost(block).and_then(|inner| self.loops.get(inner)).map_or(0, |inner| inner.depth)
    }

    /// Whether `block` is in the loop with this number, or in a loop inside it.
    pub fn contains(&self, number: usize, block: usize) -> bool {
        self.innermost(block).is_some_and(|inner| self.nested.is_in(inner, number))
    }

    /// Numbers of edges that go back to a block that does not dominate the block they leave. Such
    /// edges close cycles with several entries, which are no natural loops.
    pub fn irreducible(&self) -> &[usize] {
        &self.irreducible
    }

    fn find_loops(&mut self, graph: &Cfg) {
        let nested = Nested::of(self.position.len(), self.order.iter().copied(), |block| {
            self.dominator(block)
        });
        let mut found: Vec<Loop> = Vec::new();
        // The loop that each block is the header of, and the outermost header so far of the loops
        // around it.
        let mut headed: Vec<Option<usize>> = vec![None; self.position.len()];
        let mut around: Vec<usize> = (0..self.position.len()).collect();
        let mut latches: Vec<Vec<usize>> = vec![Vec::new(); self.position.len()];
        for (number, edge) in graph.edges().iter().enumerate() {
            let super::To::Block(to) = edge.to else { continue };
            if self.position(edge.from).is_none() || self.position(edge.from) < self.position(to) {
                continue;
            }
            match latches.get_mut(to) {
                Some(latches) if nested.is_in(edge.from, to) => latches.push(edge.from),
                _ => self.irreducible.push(number),
            }
        }
        // Inner headers come later in the order, so inner loops are found first.
        for &header in self.order.iter().rev() {
            let Some(latches) =
                latches.get_mut(header).map(std::mem::take).filter(|latches| !latches.is_empty())
            else {
                continue;
            };
            let this = found.len();
            let mut pending = latches.clone();
            while let Some(block) = pending.pop() {
                let block = outermost(&mut around, block);
                if block == header {
                    continue;
                }
                around.get_mut(block).into_iter().for_each(|around| *around = header);
                match headed.get(block).copied().flatten().and_then(|inner| found.get_mut(inner)) {
                    Some(inner) => inner.parent = Some(this),
                    None => {
                        self.innermost.get_mut(block).into_iter().for_each(|at| *at = Some(this))
                    }
                }
                pending.extend(
                    graph.predecessors(block).filter(|&block| self.position(block).is_some()),
                );
            }
            self.innermost.get_mut(header).into_iter().for_each(|at| *at = Some(this));
            headed.get_mut(header).into_iter().for_each(|headed| *headed = Some(this));
            let mut latches = latches;
            latches.sort_unstable();
            latches.dedup();
            found.push(Loop { header, latches, parent: None, depth: 1, blocks: 0 });
        }
        self.keep(found);
    }

    /// Puts outer loops before inner ones.
    fn keep(&mut self, mut found: Vec<Loop>) {
        let last = found.len().saturating_sub(1);
        found.reverse();
        for number in self.innermost.iter_mut().flatten() {
            *number = last - *number;
        }
        for number in 0..found.len() {
            let parent =
                found.get(number).and_then(|inner| inner.parent).map(|parent| last - parent);
            let depth = parent.and_then(|parent| found.get(parent)).map_or(0, |outer| outer.depth);
            if let Some(inner) = found.get_mut(number) {
                (inner.parent, inner.depth) = (parent, depth + 1);
            }
        }
        for &number in self.innermost.iter().flatten() {
            found.get_mut(number).into_iter().for_each(|inner| inner.blocks += 1);
        }
        for number in (0..found.len()).rev() {
            let (blocks, parent) =
                found.get(number).map_or((0, None), |inner| (inner.blocks, inner.parent));
            parent
                .and_then(|parent| found.get_mut(parent))
                .into_iter()
                .for_each(|outer| outer.blocks += blocks);
        }
        self.nested = Nested::of(found.len(), 0..found.len(), |number| {
            found.get(number).and_then(|inner| inner.parent)
        });
        self.loops = found;
    }
}

/// The outermost header so far of the loops around a block. Halves the path at each step.
fn outermost(around: &mut [usize], mut block: usize) -> usize {
    while let Some(&next) = around.get(block)
        && next != block
    {
        let after = around.get(next).copied().unwrap_or(next);
        around.get_mut(block).into_iter().for_each(|around| *around = after);
        block = after;
    }
    block
}

/// The range of each node's descendants in a preorder walk of a forest.
#[derive(Clone, Debug, Default)]
struct Nested(Vec<(usize, usize)>);

impl Nested {
    /// Ranges for a forest of `count` nodes; `order` has each node before its descendants.
    fn of(
        count: usize,
        order: impl DoubleEndedIterator<Item = usize> + Clone,
        above: impl Fn(usize) -> Option<usize>,
    ) -> Self {
        let mut sizes = vec![1_usize; count];
        for node in order.clone().rev() {
            let size = sizes.get(node).copied().unwrap_or_default();
            let above = above(node).and_then(|above| sizes.get_mut(above));
            above.into_iter().for_each(|of_above| *of_above += size);
        }
        let mut begins = vec![(0, 0); count];
        let mut next = vec![0_usize; count];
        let mut top = 0;
        for node in order {
            let size = sizes.get(node).copied().unwrap_or_default();
            let free = above(node).and_then(|above| next.get_mut(above)).unwrap_or(&mut top);
            let begin = *free;
            *free += size;
            next.get_mut(node).into_iter().for_each(|next| *next = begin + 1);
            begins.get_mut(node).into_iter().for_each(|at| *at = (begin, begin + size));
        }
        Self(begins)
    }

    /// Whether a node is another, or a descendant of it.
    fn is_in(&self, node: usize, above: usize) -> bool {
        let (Some(node), Some(above)) = (self.0.get(node), self.0.get(above)) else { return false };
        above.0 <= node.0 && node.0 < above.1
    }
}

#[cfg(test)]
mod tests {
    use super::super::To;
    use super::*;

    /// The blocks that are reached from outside, or from `from`, without passing `without`.
    fn reached(graph: &Cfg, from: Option<usize>, without: Option<usize>) -> Vec<bool> {
        let mut seen = vec![false; graph.blocks().len()];
        let mut pending = from.map_or_else(|| graph.entrances(), |from| vec![from]);
        while let Some(block) = pending.pop() {
            if Some(block) != without && !std::mem::replace(&mut seen[block], true) {
                pending.extend(graph.successors(block));
            }
        }
        seen
    }

    #[test]
    fn dominators_are_those_of_the_definition() {
        for seed in 0..3000 {
            let graph = Cfg::random(seed);
            let loops = Loops::of(&graph);
            for a in 0..graph.blocks().len() {
                let others = reached(&graph, None, Some(a));
                for (b, &other) in others.iter().enumerate() {
                    assert_eq!(
                        loops.dominates(a, b),
                        a == b || !other,
                        "seed {seed}: {a} and {b} of {graph:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn loops_are_those_of_the_definition() {
        let mut found = 0;
        for seed in 0..3000 {
            let graph = Cfg::random(seed);
            let loops = Loops::of(&graph);
            let all = 0..graph.blocks().len();
            for (number, edge) in graph.edges().iter().enumerate() {
                let To::Block(to) = edge.to else { continue };
                let back = loops.position(edge.from) >= loops.position(to);
                assert_eq!(
                    loops.irreducible().contains(&number),
                    back && !loops.dominates(to, edge.from)
                );
            }
            for header in all.clone() {
                let mut latches: Vec<usize> =
                    graph.predecessors(header).filter(|&p| loops.dominates(header, p)).collect();
                latches.sort_unstable();
                latches.dedup();
                let this = loops.loops().iter().position(|this| this.header == header);
                assert_eq!(
                    this.is_some(),
                    !latches.is_empty(),
                    "seed {seed}: {header} of {graph:?}"
                );
                let Some(this) = this else { continue };
                found += 1;
                let inner = &loops.loops()[this];
                assert_eq!(inner.latches, latches);
                // From which blocks a latch is reached without the header.
                let is_in = |&block: &usize| {
                    block == header || {
                        let reached = reached(&graph, Some(block), Some(header));
                        latches.iter().any(|&latch| reached[latch])
                    }
                };
                let body: Vec<usize> = all.clone().filter(is_in).collect();
                let ours: Vec<usize> =
                    all.clone().filter(|&block| loops.contains(this, block)).collect();
                assert_eq!(ours, body, "seed {seed}: {header} of {graph:?}");
                assert_eq!(inner.blocks, body.len());
                assert_eq!(
                    loops.loops()[..this].iter().filter(|outer| outer.depth < inner.depth).count()
                        >= 1,
                    inner.depth > 1
                );
                if let Some(parent) = inner.parent {
                    assert!(
                        parent < this
                            && loops.contains(parent, header)
                            && loops.loops()[parent].depth + 1 == inner.depth
                    );
                }
            }
        }
        assert!(found > 1000, "{found}");
    }

    #[test]
    fn every_block_comes_before_those_it_goes_forward_to() {
        for seed in 0..1000 {
            let graph = Cfg::random(seed);
            let loops = Loops::of(&graph);
            assert_eq!(loops.order().len(), graph.blocks().len());
            for edge in graph.edges() {
                let To::Block(to) = edge.to else { continue };
                assert!(
                    loops.position(edge.from) < loops.position(to)
                        || reached(&graph, Some(to), None)[edge.from]
                );
            }
            for (position, &block) in loops.order().iter().enumerate() {
                assert_eq!(loops.position(block), Some(position));
                if let Some(dominator) = loops.dominator(block) {
                    assert!(loops.position(dominator) < Some(position));
                }
            }
        }
    }
}
