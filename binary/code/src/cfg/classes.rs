//! Blocks and edges that are executed equally often, whatever the input.

use super::{Cfg, To};
use crate::values::mixed;

/// Frequency classes of blocks and edges (DCPI paper, section 6.1.2). Members of a class are
/// executed equally often in every run that ends or is back at the place where it began.
///
/// In a strongly connected graph, two edges are in the same cycles exactly if every conserved flow
/// gives them the same value (Johnson, Pearson, Pingali: The Program Structure Tree, 1994). So one
/// random flow tells the classes: random numbers on the edges outside of a spanning tree, and on
/// the tree's edges the values that conservation requires, in arithmetic modulo 2^64. Two edges of
/// different classes get the same number with a probability of about 2^-64. This takes linear time.
///
/// The outside of the procedure is a block too: entrances come from it and exits go to it. Loops
/// without an exit, such as an idle loop, go to the outside from one of their blocks (the paper's
/// extension).
///
/// **A graph that misses edges** has a class for each block and each edge.
#[derive(Clone, Debug, Default)]
pub struct Classes {
    blocks: Vec<usize>,
    edges: Vec<usize>,
    count: usize,
}

/// An edge of the flow: from the end of a block to the start of a block, or through a block. Its
/// ends are numbers of nodes.
#[derive(Copy, Clone, Debug)]
struct Arc {
    from: usize,
    to: usize,
}

impl Classes {
    /// The classes of `graph`.
    pub fn of(graph: &Cfg) -> Self {
        let (blocks, edges) = (graph.blocks().len(), graph.edges().len());
        if graph.missing_edges() {
            return Self {
                blocks: (0..blocks).collect(),
                edges: (blocks..blocks + edges).collect(),
                count: blocks + edges,
            };
        }
        let arcs = arcs(graph);
        let flow = random_flow(&arcs, 2 * blocks + 1);
        let mut this =
            Self { blocks: Vec::with_capacity(blocks), edges: Vec::with_capacity(edges), count: 0 };
        let mut known = std::collections::HashMap::new();
        for (number, &flow) in flow.iter().take(blocks + edges).enumerate() {
            // Filler is executed as often as no other block.
            let padding = graph.blocks().get(number).is_some_and(|block| block.padding);
            let new = this.count;
            let class = if padding { new } else { *known.entry(flow).or_insert(new) };
            this.count += usize::from(class == new);
            if number < blocks { this.blocks.push(class) } else { this.edges.push(class) }
        }
        this
    }

    /// The class of a block.
    pub fn of_block(&self, block: usize) -> Option<usize> {
        self.blocks.get(block).copied()
    }

    /// The class of an edge.
    pub fn of_edge(&self, edge: usize) -> Option<usize> {
        self.edges.get(edge).copied()
    }

    /// The number of classes; they are numbered from 0.
    pub fn count(&self) -> usize {
        self.count
    }
}

/// The arcs of the flow: one through each block, one for each edge, and the arcs from and to the
/// outside. Node 0 is the outside, `2 b + 1` is the start of block `b` and `2 b + 2` its end.
fn arcs(graph: &Cfg) -> Vec<Arc> {
    let begin = |block: usize| 2 * block + 1;
    let end = |block: usize| 2 * block + 2;
    let blocks = 0..graph.blocks().len();
    let mut arcs: Vec<Arc> =
        blocks.clone().map(|block| Arc { from: begin(block), to: end(block) }).collect();
    arcs.extend(graph.edges().iter().map(|edge| {
        let to = if let To::Block(block) = edge.to { begin(block) } else { 0 };
        Arc { from: end(edge.from), to }
    }));
    arcs.extend(graph.entrances().into_iter().map(|block| Arc { from: 0, to: begin(block) }));
    arcs.extend(endless(graph).into_iter().map(|block| Arc { from: end(block), to: 0 }));
    arcs
}

/// One block of each part of the graph that no edge leaves.
fn endless(graph: &Cfg) -> Vec<usize> {
    let mut ended: Vec<bool> = graph.blocks().iter().map(|block| block.padding).collect();
    for edge in graph.edges().iter().filter(|edge| !matches!(edge.to, To::Block(_))) {
        mark(graph, &mut ended, edge.from, None);
    }
    // The block that a walk against the edges finishes last is in a part that no edge leaves
    // (Kosaraju); without all blocks that lead to that part, the same holds for the rest.
    let mut finished = Vec::new();
    let mut seen = ended.clone();
    for block in 0..seen.len() {
        mark(graph, &mut seen, block, Some(&mut finished));
    }
    let mut chosen = Vec::new();
    for &block in finished.iter().rev() {
        if ended.get(block) == Some(&false) {
            chosen.push(block);
            mark(graph, &mut ended, block, None);
        }
    }
    chosen
}

/// Marks all unmarked blocks from which `root` is reached through unmarked blocks, and lists them
/// in the order in which the walk finishes them.
fn mark(graph: &Cfg, marks: &mut [bool], root: usize, mut finished: Option<&mut Vec<usize>>) {
    let mut met = Some(root);
    let mut path = Vec::new();
    loop {
        if let Some(block) = met.take()
            && let Some(mark @ false) = marks.get_mut(block)
        {
            *mark = true;
            path.push((block, graph.predecessors(block)));
        }
        let Some((block, before)) = path.last_mut() else { break };
        met = before.next();
        if met.is_none() {
            if let Some(finished) = &mut finished {
                finished.push(*block);
            }
            path.pop();
        }
    }
}

/// A flow that is conserved at each node and random otherwise: one number for each arc.
fn random_flow(arcs: &[Arc], nodes: usize) -> Vec<u64> {
    // Arcs at each node: sorted, as a compressed table.
    let mut at: Vec<(usize, usize)> = Vec::with_capacity(arcs.len() * 2);
    for (number, arc) in arcs.iter().enumerate() {
        at.push((arc.from, number));
        at.push((arc.to, number));
    }
    at.sort_unstable();
    let begins: Vec<usize> =
        (0..=nodes).map(|node| at.partition_point(|&(other, _)| other < node)).collect();
    let near = |node: usize| {
        let range = begins.get(node).copied().unwrap_or_default()
            ..begins.get(node + 1).copied().unwrap_or_default();
        at.get(range).unwrap_or_default().iter().map(|&(_, arc)| arc)
    };
    let mut up: Vec<Option<usize>> = vec![None; nodes];
    let mut met = vec![false; nodes];
    let mut order = Vec::with_capacity(nodes);
    for root in 0..nodes {
        let mut pending = vec![root];
        met.get_mut(root).into_iter().for_each(|met| {
            if *met {
                pending.clear()
            }
            *met = true;
        });
        while let Some(node) = pending.pop() {
            order.push(node);
            for number in near(node) {
                let Some(arc) = arcs.get(number) else { continue };
                let other = if arc.from == node { arc.to } else { arc.from };
                if met.get(other) == Some(&false) {
                    met.get_mut(other).into_iter().for_each(|met| *met = true);
                    up.get_mut(other).into_iter().for_each(|up| *up = Some(number));
                    pending.push(other);
                }
            }
        }
    }
    let mut in_tree = vec![false; arcs.len()];
    up.iter().flatten().for_each(|&arc| in_tree.get_mut(arc).into_iter().for_each(|is| *is = true));
    let mut flow: Vec<u64> =
        (0_u64..).map(|number| mixed(number, 0x5eed)).take(arcs.len()).collect();
    // Inflow less outflow of each node, so far.
    let mut excess = vec![0_u64; nodes];
    for ((arc, flow), in_tree) in arcs.iter().zip(&mut flow).zip(&in_tree) {
        if *in_tree {
            *flow = 0;
        }
        excess.get_mut(arc.to).into_iter().for_each(|excess| *excess = excess.wrapping_add(*flow));
        excess
            .get_mut(arc.from)
            .into_iter()
            .for_each(|excess| *excess = excess.wrapping_sub(*flow));
    }
    for &node in order.iter().rev() {
        let Some(number) = up.get(node).copied().flatten() else { continue };
        let Some(arc) = arcs.get(number) else { continue };
        let missing = excess.get(node).copied().unwrap_or_default();
        // The arc to the parent node takes or brings the excess.
        let (other, value) =
            if arc.from == node { (arc.to, missing) } else { (arc.from, missing.wrapping_neg()) };
        flow.get_mut(number).into_iter().for_each(|flow| *flow = value);
        excess.get_mut(other).into_iter().for_each(|excess| *excess = excess.wrapping_add(missing));
    }
    flow
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The simple cycles that each arc is in.
    fn cycles(arcs: &[Arc], nodes: usize) -> Vec<Vec<usize>> {
        let mut of_arcs = vec![Vec::new(); arcs.len()];
        let mut count = 0;
        for root in 0..nodes {
            // Cycles whose least node is the root.
            let mut pending = vec![(root, vec![root], Vec::new())];
            while let Some((node, path, taken)) = pending.pop() {
                for (number, arc) in
                    arcs.iter().enumerate().filter(|(_, arc)| arc.from == node && arc.to >= root)
                {
                    let mut taken: Vec<usize> = taken.clone();
                    taken.push(number);
                    if arc.to == root {
                        taken.iter().for_each(|&arc| of_arcs[arc].push(count));
                        count += 1;
                    } else if !path.contains(&arc.to) {
                        let path = path.iter().copied().chain([arc.to]).collect();
                        pending.push((arc.to, path, taken));
                    }
                }
            }
        }
        of_arcs
    }

    #[test]
    fn classes_are_those_of_the_same_cycles() {
        let mut equal = 0;
        for seed in 0..3000 {
            let graph = Cfg::random(seed);
            let (blocks, edges) = (graph.blocks().len(), graph.edges().len());
            let cycles = cycles(&arcs(&graph), 2 * blocks + 1);
            let classes = Classes::of(&graph);
            let class = |number: usize| {
                if number < blocks {
                    classes.of_block(number)
                } else {
                    classes.of_edge(number - blocks)
                }
                .unwrap()
            };
            for a in 0..blocks + edges {
                assert!(
                    !cycles[a].is_empty(),
                    "everything is in a cycle through outside: {graph:?}"
                );
                assert!(class(a) < classes.count());
                for b in 0..a {
                    assert_eq!(
                        class(a) == class(b),
                        cycles[a] == cycles[b],
                        "seed {seed}: {a} and {b} of {graph:?}"
                    );
                    equal += usize::from(class(a) == class(b));
                }
            }
        }
        assert!(equal > 10_000, "{equal}");
    }

    #[test]
    fn a_branch_and_a_loop() {
        // 0 -> 1 or 2 -> 3; 3 -> 3 or 4.
        let graph = Cfg::of_pairs(5, &[(0, 1), (0, 2), (1, 3), (2, 3), (3, 3), (3, 4)]);
        let classes = Classes::of(&graph);
        let of = |block| classes.of_block(block).unwrap();
        assert_eq!(of(0), of(4));
        assert!(of(1) != of(2) && of(0) != of(3));
        assert_eq!(classes.of_edge(0), classes.of_block(1));
        // Blocks 0 and 4, 1, 2, 3, and its edge to itself.
        assert_eq!(classes.count(), 5);
    }

    #[test]
    fn a_loop_without_an_exit_is_left_from_one_block() {
        // 0 -> 1 -> 2 -> 1, and 0 -> 3.
        let graph = Cfg::of_pairs(4, &[(0, 1), (1, 2), (2, 1), (0, 3)]);
        assert_eq!(endless(&graph).len(), 1);
        let classes = Classes::of(&graph);
        let of = |block| classes.of_block(block).unwrap();
        assert!(of(0) != of(1) && of(0) != of(3));
    }

    #[test]
    fn a_graph_that_misses_edges_has_no_two_in_a_class() {
        let mut graph = Cfg::of_pairs(3, &[(0, 1), (1, 2)]);
        graph.blocks[1].targets_incomplete = true;
        let classes = Classes::of(&graph);
        assert_eq!(classes.count(), 6);
        assert_ne!(classes.of_block(0), classes.of_block(1));
    }

    #[test]
    fn a_large_graph_takes_no_time() {
        // A loop whose 5,000 blocks each go to 20 others.
        let pairs: Vec<(usize, usize)> =
            (0..5000).flat_map(|a| (1..=20).map(move |b| (a, (a * b + b) % 5000))).collect();
        assert!(Classes::of(&Cfg::of_pairs(5000, &pairs)).count() > 5000);
    }
}
