//! Exact counts of executions: in the place of estimates, and the accuracy of estimates against
//! them.

use std::collections::HashMap;

use code::cfg::{Cfg, Edge, EdgeKind, To};
use image::Vaddr;

use crate::{BlockEstimate, Confidence, Estimate};

/// Exact counts of one object file.
#[derive(Clone, Debug, Default)]
pub struct ExactCounts {
    /// Executions by instruction.
    pub executed: HashMap<Vaddr, u64>,
    /// Executions of jumps, by the jump and its target.
    pub jumped: HashMap<(Vaddr, Vaddr), u64>,
}

/// Executions of a procedure's blocks and edges by exact counts. `samples` are those of each block.
/// None where the procedure was not executed.
pub fn exact(
    graph: &Cfg,
    counts: &ExactCounts,
    samples: impl Iterator<Item = f64>,
) -> Option<Estimate> {
    let mut blocks = Vec::with_capacity(graph.blocks().len());
    for (block, samples) in graph.blocks().iter().zip(samples) {
        let executions = counts.executed.get(&block.start).copied().unwrap_or(0) as f64;
        let confidence = Confidence::High;
        blocks.push(BlockEstimate { samples, executions, log_sd: 0.0, confidence });
    }
    blocks.iter().any(|block| block.executions > 0.0).then(|| {
        let edges = graph.edges().iter().map(|edge| taken(graph, counts, edge)).collect();
        Estimate { blocks, edges, ..Estimate::default() }
    })
}

/// A distribution of errors, by weight.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// Weight of the estimates within 5, 10 and 15 %.
    pub within: [f64; 3],
    /// Weight of all estimates.
    pub all: f64,
}

impl Score {
    /// Adds an estimate that is off by the factor e^`error`.
    pub fn add(&mut self, error: f64, weight: f64) {
        for (within, limit) in self.within.iter_mut().zip([0.05, 0.10, 0.15]) {
            *within += if (error.exp() - 1.0).abs() <= limit { weight } else { 0.0 };
        }
        self.all += weight;
    }

    /// Adds the weights of another score.
    pub fn merge(&mut self, other: &Self) {
        self.within.iter_mut().zip(other.within).for_each(|(within, more)| *within += more);
        self.all += other.all;
    }

    /// `within` as shares of all, from 0 to 1.
    pub fn shares(&self) -> [f64; 3] {
        self.within.map(|within| within / self.all.max(f64::MIN_POSITIVE))
    }
}

/// The scores of a procedure's estimate.
#[derive(Clone, Debug, Default)]
pub struct ProcedureScore {
    /// Executions of blocks, weighted by samples, by confidence: low, medium, high.
    pub blocks: [Score; 3],
    /// Executions of edges, weighted by true executions.
    pub edges: Score,
    /// Trip counts of loops with one exit, weighted by the samples that the trip count is from.
    pub rounds: Score,
    /// For each block that was executed, its index and the logarithm of estimated by true
    /// executions, divided by `scale`.
    pub errors: Vec<(usize, f64)>,
    /// Samples in blocks with a true count of 0.
    pub phantom: f64,
    /// Estimated executions per true execution: the weighted median over blocks.
    pub scale: f64,
}

/// Scores a procedure's estimate, scaled by the factor that is the median over its samples. `None`
/// where no block was executed.
pub fn score(graph: &Cfg, estimate: &Estimate, truth: &ExactCounts) -> Option<ProcedureScore> {
    let executed =
        |block: &code::cfg::Block| truth.executed.get(&block.start).copied().unwrap_or(0) as f64;
    let blocks: Vec<(f64, f64, f64)> = graph
        .blocks()
        .iter()
        .zip(&estimate.blocks)
        .map(|(block, estimated)| (estimated.executions, executed(block), estimated.samples))
        .collect();
    let ratios =
        blocks.iter().filter(|(estimated, executed, _)| *estimated > 0.0 && *executed > 0.0);
    let mut ratios: Vec<(f64, f64)> =
        ratios.map(|(e, t, samples)| ((e / t).ln(), *samples)).collect();
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    let half = ratios.iter().map(|(_, weight)| weight).sum::<f64>() / 2.0;
    let mut sum = 0.0;
    let scale = ratios.iter().find(|(_, weight)| {
        sum += weight;
        sum >= half
    });
    let scale = scale?.0;
    let mut scored = ProcedureScore { scale: scale.exp(), ..ProcedureScore::default() };
    for (number, ((estimated, executed, samples), block)) in
        blocks.iter().zip(&estimate.blocks).enumerate()
    {
        if *executed == 0.0 {
            scored.phantom += samples;
        }
        let error = if *estimated > 0.0 && *executed > 0.0 {
            (estimated / executed).ln() - scale
        } else {
            f64::INFINITY
        };
        if *executed > 0.0 {
            scored.errors.push((number, error));
        }
        if let Some(score) = scored.blocks.get_mut(block.confidence as usize) {
            score.add(error, *samples);
        }
    }
    for (edge, flow) in graph.edges().iter().zip(&estimate.edges) {
        let truly = taken(graph, truth, edge);
        if truly > 0.0 {
            scored
                .edges
                .add(if *flow > 0.0 { (flow / truly).ln() - scale } else { f64::INFINITY }, truly);
        }
    }
    for trips in estimate.trips.iter().filter(|trips| trips.only_exit && !trips.single_test_entries)
    {
        let leaves = graph.edges().get(trips.exit_edge);
        let tests = leaves.and_then(|edge| graph.blocks().get(edge.from)).map_or(0.0, executed);
        let ended = leaves.map_or(0.0, |edge| taken(graph, truth, edge));
        if tests > 0.0 {
            let error = if ended > 0.0 {
                (trips.exit_probability * tests / ended).ln()
            } else {
                f64::INFINITY
            };
            scored.rounds.add(error, trips.samples as f64);
        }
    }
    Some(scored)
}

/// The true executions of an edge.
fn taken(graph: &Cfg, truth: &ExactCounts, edge: &Edge) -> f64 {
    let Some(block) = graph.blocks().get(edge.from) else { return 0.0 };
    let all = truth.executed.get(&block.start).copied().unwrap_or(0) as f64;
    let jumped = |edge: &Edge| {
        let to = match edge.to {
            To::Block(to) => graph.blocks().get(to).map(|to| to.start),
            To::Outside(to) => Some(to),
            _ => None,
        };
        to.and_then(|to| truth.jumped.get(&(block.last, to))).copied().unwrap_or(0) as f64
    };
    match edge.kind {
        EdgeKind::Taken | EdgeKind::Case | EdgeKind::Observed => jumped(edge),
        EdgeKind::NotTaken => {
            let others = graph.edges().get(graph.out_of(edge.from)).unwrap_or_default();
            all - others.iter().find(|other| other.kind == EdgeKind::Taken).map_or(0.0, jumped)
        }
        _ => all,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Branch, Confidence, ProcedureSamples, estimate};
    use code::cfg::{Knowledge, Loops, Part};
    use code::isa::Isa;

    fn graph(code: &[u8]) -> (Cfg, Loops) {
        let parts = [Part { begin: Vaddr(0x1000), bytes: code }];
        let graph = Cfg::build(Isa::X86_64, &parts, &mut (), &Knowledge::default());
        let loops = Loops::of(&graph);
        (graph, loops)
    }

    /// `xor eax, eax`; `1: inc eax; cmp eax, edi; jne 1b`; `ret`.
    const COUNTED: [u8; 9] = [0x31, 0xc0, 0xff, 0xc0, 0x39, 0xf8, 0x75, 0xfa, 0xc3];
    const JUMP: Vaddr = Vaddr(0x1006);
    const HEAD: Vaddr = Vaddr(0x1002);
    const END: Vaddr = Vaddr(0x1008);

    #[test]
    fn a_loop_of_a_hundred_rounds_is_found_and_scored() {
        let (graph, loops) = graph(&COUNTED);
        let branches = [
            Branch { from: JUMP, to: HEAD, first: 9_900, later: 50_000, sequence: None },
            Branch { from: JUMP, to: END, first: 100, later: 500, sequence: None },
        ];
        // Samples on the first instruction of the loop are of the loop: the instruction executed
        // before it was mostly the loop's jump.
        let landed = [(Vaddr(0x1000), 30), (HEAD, 4_000), (Vaddr(0x1004), 6_000), (END, 20)];
        let sampled =
            ProcedureSamples { time: &landed, branches: &branches, ..ProcedureSamples::default() };
        let estimate = estimate(&graph, &loops, &sampled).unwrap();
        let rounds = estimate.blocks[1].executions / estimate.blocks[0].executions;
        assert!((rounds / 100.0).ln().abs() < 0.05, "{rounds}");
        assert_eq!(estimate.blocks[1].confidence, Confidence::High);

        let counts = |rounds: u64| ExactCounts {
            executed: [
                (Vaddr(0x1000), 7),
                (HEAD, rounds),
                (Vaddr(0x1004), rounds),
                (JUMP, rounds),
                (END, 7),
            ]
            .into(),
            jumped: [((JUMP, HEAD), rounds - 7)].into(),
        };
        let scored = score(&graph, &estimate, &counts(700)).unwrap();
        assert_eq!(scored.edges.shares(), [1.0; 3], "{scored:?}");
        // Against a truth of ten rounds, the estimate scores badly.
        let scored = score(&graph, &estimate, &counts(70)).unwrap();
        assert!(scored.edges.shares()[2] < 0.95, "{scored:?}");
    }

    #[test]
    fn exact_counts_take_the_place_of_estimates() {
        let (graph, _) = graph(&COUNTED);
        let counts = ExactCounts {
            executed: [(Vaddr(0x1000), 7), (HEAD, 700), (JUMP, 700), (END, 7)].into(),
            jumped: [((JUMP, HEAD), 693)].into(),
        };
        let exact = exact(&graph, &counts, [1.0, 2.0, 3.0].into_iter()).unwrap();
        let executions: Vec<f64> = exact.blocks.iter().map(|block| block.executions).collect();
        assert_eq!(executions, [7.0, 700.0, 7.0]);
        assert!(exact.blocks.iter().all(|block| block.confidence == Confidence::High));
        let jump = graph.edges().iter().position(|edge| edge.kind == EdgeKind::Taken).unwrap();
        assert_eq!(
            (exact.edges[jump], exact.edges.iter().sum::<f64>()),
            (693.0, 7.0 + 693.0 + 7.0 + 7.0)
        );
        let never = ExactCounts::default();
        assert!(super::exact(&graph, &never, [0.0; 3].into_iter()).is_none());
    }

    #[test]
    fn nothing_is_sure_of_what_was_not_sampled() {
        let (graph, loops) = graph(&COUNTED);
        let estimate = estimate(&graph, &loops, &ProcedureSamples::default()).unwrap();
        assert!(
            estimate.blocks.iter().all(|block| block.confidence == Confidence::Low),
            "{estimate:?}"
        );
    }

    #[test]
    fn what_has_too_many_instructions_is_not_estimated() {
        // `clc` again and again; `ret`.
        let [fits, too_many] = [1 << 10, 1 << 21].map(|many| {
            let (graph, loops) = graph(&[vec![0xf8; many], vec![0xc3]].concat());
            assert_eq!(
                graph.blocks().iter().map(|block| block.instructions).sum::<usize>(),
                many + 1
            );
            estimate(&graph, &loops, &ProcedureSamples::default()).is_some()
        });
        assert!(fits && !too_many);
    }

    #[test]
    fn a_loop_without_an_end_runs_as_its_time_says() {
        // `nop`; `1: inc eax; jmp 1b`.
        let (graph, loops) = graph(&[0x90, 0xff, 0xc0, 0xeb, 0xfc]);
        let landed = [(Vaddr(0x1000), 100), (Vaddr(0x1001), 100_000), (Vaddr(0x1003), 100_000)];
        let sampled = ProcedureSamples { time: &landed, ..ProcedureSamples::default() };
        let estimate = estimate(&graph, &loops, &sampled).unwrap();
        assert_eq!(estimate.edges.len(), graph.edges().len());
        let rounds = estimate.blocks[1].executions / estimate.blocks[0].executions;
        assert!((100.0..10_000.0).contains(&rounds), "{rounds}");
    }
}
