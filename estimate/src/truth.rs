//! The accuracy of estimates against exact counts: those of callgrind (`valgrind --tool=callgrind
//! --dump-instr=yes --collect-jumps=yes`).

use std::collections::HashMap;

use code::cfg::{Cfg, Edge, EdgeKind, To};
use image::Vaddr;

use crate::Estimate;

/// Exact counts of one object file.
#[derive(Clone, Debug, Default)]
pub struct ExactCounts {
    /// Executions by instruction.
    pub executed: HashMap<Vaddr, u64>,
    /// Executions of jumps, by the jump and its target.
    pub jumped: HashMap<(Vaddr, Vaddr), u64>,
}

/// Reads a file that callgrind wrote with `--compress-strings=no --compress-pos=no`, into counts by
/// object file (Valgrind's manual, "Callgrind Format Specification"). Addresses are those of the
/// object file.
#[must_use]
pub fn read(text: &str) -> HashMap<String, ExactCounts> {
    let mut objects: HashMap<String, ExactCounts> = HashMap::new();
    let mut object = String::new();
    let mut lines = text.lines();
    let address = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok().map(Vaddr);
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix("ob=") {
            name.clone_into(&mut object);
        } else if line.starts_with("calls=") {
            lines.next(); // the inclusive cost of the call
        } else if let Some(jump) = line.strip_prefix("jcnd=").or_else(|| line.strip_prefix("jump="))
        {
            let mut fields = jump.split_ascii_whitespace();
            let count = fields
                .next()
                .and_then(|count| count.split('/').next())
                .and_then(|count| count.parse().ok());
            let to = fields.next().and_then(address);
            let from = lines
                .next()
                .and_then(|line| line.split_ascii_whitespace().next())
                .and_then(address);
            if let (Some(count), Some(from), Some(to)) = (count, from, to) {
                let count: u64 = count;
                let sum = objects
                    .entry(object.clone())
                    .or_default()
                    .jumped
                    .entry((from, to))
                    .or_default();
                *sum = sum.saturating_add(count);
            }
        } else if line.starts_with("0x") {
            let mut fields = line.split_ascii_whitespace();
            let at = fields.next().and_then(address);
            if let (Some(at), Some(count)) =
                (at, fields.nth(1).and_then(|count| count.parse::<u64>().ok()))
            {
                let sum =
                    objects.entry(object.clone()).or_default().executed.entry(at).or_default();
                *sum = sum.saturating_add(count);
            }
        }
    }
    objects
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
    #[must_use]
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
    /// Of each block that was executed, its index and the logarithm of estimated by true
    /// executions, divided by `scale`.
    pub errors: Vec<(usize, f64)>,
    /// Samples in blocks with a true count of 0.
    pub phantom: f64,
    /// Estimated executions per true execution: the weighted median over blocks.
    pub scale: f64,
}

/// Scores a procedure's estimate, scaled by the factor that is the median over its samples. `None`
/// where no block was executed.
#[must_use]
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
            Branch { from: JUMP, to: HEAD, first: 9_900, later: 50_000 },
            Branch { from: JUMP, to: END, first: 100, later: 500 },
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

        let text = "fl=x\nob=/bin/x\nfn=f\n0x1000 0 7\n0x1002 0 700\n0x1004 0 700\n0x1006 0 700\njcnd=693/700 0x1002 0\n0x1006 0\n\
                    calls=7 0x2000\n0x1006 0 99999\n0x1008 0 7\n";
        let counts = read(text).remove("/bin/x").unwrap();
        assert_eq!(
            (counts.executed[&HEAD], counts.executed[&JUMP], counts.jumped[&(JUMP, HEAD)]),
            (700, 700, 693)
        );
        let scored = score(&graph, &estimate, &counts).unwrap();
        assert_eq!(scored.edges.shares(), [1.0; 3], "{scored:?}");
        // Against a truth of ten rounds, the estimate scores badly.
        let text = text.replace("700", "70").replace("693", "63");
        let scored = score(&graph, &estimate, &read(&text)["/bin/x"]).unwrap();
        assert!(scored.edges.shares()[2] < 0.95, "{scored:?}");
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
