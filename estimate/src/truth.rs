//! How good estimates are, against exact counts: callgrind's (`valgrind --tool=callgrind --dump-instr=yes --collect-jumps=yes`).

use std::collections::HashMap;

use code::cfg::{Cfg, EdgeKind, To};
use image::Vaddr;

use crate::Estimate;

/// Exact counts of one object.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Executions by instruction.
    pub executed: HashMap<Vaddr, u64>,
    /// Jumps by where they are and where they go.
    pub jumped: HashMap<(Vaddr, Vaddr), u64>,
}

/// Reads what callgrind wrote with `--compress-strings=no --compress-pos=no`: counts by object (Valgrind's manual, "Callgrind Format
/// Specification"). Addresses are the object's own.
#[must_use]
pub fn read(text: &str) -> HashMap<String, Counts> {
    let mut objects: HashMap<String, Counts> = HashMap::new();
    let mut object = String::new();
    let mut lines = text.lines();
    let address = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok().map(Vaddr);
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix("ob=") {
            name.clone_into(&mut object);
        } else if line.starts_with("calls=") {
            lines.next(); // what the call cost, with all in it
        } else if let Some(jump) = line.strip_prefix("jcnd=").or_else(|| line.strip_prefix("jump=")) {
            let mut fields = jump.split_ascii_whitespace();
            let count = fields.next().and_then(|count| count.split('/').next()).and_then(|count| count.parse().ok());
            let to = fields.next().and_then(address);
            let from = lines.next().and_then(|line| line.split_ascii_whitespace().next()).and_then(address);
            if let (Some(count), Some(from), Some(to)) = (count, from, to) {
                let count: u64 = count;
                *objects.entry(object.clone()).or_default().jumped.entry((from, to)).or_default() += count;
            }
        } else if line.starts_with("0x") {
            let mut fields = line.split_ascii_whitespace();
            let at = fields.next().and_then(address);
            if let (Some(at), Some(count)) = (at, fields.nth(1).and_then(|count| count.parse::<u64>().ok())) {
                *objects.entry(object.clone()).or_default().executed.entry(at).or_default() += count;
            }
        }
    }
    objects
}

/// How far estimates are off: weights of what was off by less than 5, 10, 15 %, and of all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// Within 5, 10, 15 %.
    pub within: [f64; 3],
    /// All.
    pub all: f64,
}

impl Score {
    /// Adds something that weighs `weight` and is off by the factor e^`error`.
    pub fn add(&mut self, error: f64, weight: f64) {
        for (within, limit) in self.within.iter_mut().zip([0.05, 0.10, 0.15]) {
            *within += if (error.exp() - 1.0).abs() <= limit { weight } else { 0.0 };
        }
        self.all += weight;
    }

    /// Adds what another counted.
    pub fn merge(&mut self, other: &Self) {
        self.within.iter_mut().zip(other.within).for_each(|(within, more)| *within += more);
        self.all += other.all;
    }

    /// Shares, of 1.
    #[must_use]
    pub fn shares(&self) -> [f64; 3] {
        self.within.map(|within| within / self.all.max(f64::MIN_POSITIVE))
    }
}

/// What a procedure's estimate scores.
#[derive(Clone, Debug, Default)]
pub struct Scored {
    /// Blocks, weighted by samples; by confidence: low, medium, high.
    pub blocks: [Score; 3],
    /// Edges, weighted by true executions.
    pub edges: Score,
    /// Logarithms of estimated by true executions of each block that was executed, after scaling.
    pub errors: Vec<(usize, f64)>,
    /// Samples in blocks that were not executed in truth.
    pub phantom: f64,
}

/// Scores a procedure's estimate, with the one factor for all its blocks that suits most samples. None where nothing was executed.
#[must_use]
pub fn score(graph: &Cfg, estimate: &Estimate, truth: &Counts) -> Option<Scored> {
    let executed = |block: &code::cfg::Block| truth.executed.get(&block.start).copied().unwrap_or(0) as f64;
    let blocks: Vec<(f64, f64, f64)> = graph
        .blocks()
        .iter()
        .zip(&estimate.blocks)
        .map(|(block, estimated)| (estimated.executions, executed(block), estimated.samples))
        .collect();
    let ratios = blocks.iter().filter(|(estimated, executed, _)| *estimated > 0.0 && *executed > 0.0);
    let mut ratios: Vec<(f64, f64)> = ratios.map(|(e, t, samples)| ((e / t).ln(), *samples)).collect();
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    let half = ratios.iter().map(|(_, weight)| weight).sum::<f64>() / 2.0;
    let mut sum = 0.0;
    let scale = ratios.iter().find(|(_, weight)| {
        sum += weight;
        sum >= half
    });
    let scale = scale?.0;
    let mut scored = Scored::default();
    for (number, ((estimated, executed, samples), block)) in blocks.iter().zip(&estimate.blocks).enumerate() {
        if *executed == 0.0 {
            scored.phantom += samples;
        }
        let error =
            if *estimated > 0.0 && *executed > 0.0 { (estimated / executed).ln() - scale } else { f64::INFINITY };
        if *executed > 0.0 {
            scored.errors.push((number, error));
        }
        if let Some(score) = scored.blocks.get_mut(block.confidence as usize) {
            score.add(error, *samples);
        }
    }
    for (edge, flow) in graph.edges().iter().zip(&estimate.edges) {
        let Some(block) = graph.blocks().get(edge.from) else { continue };
        let all = executed(block);
        let to = match edge.to {
            To::Block(to) => graph.blocks().get(to).map(|to| to.start),
            To::Outside(to) => Some(to),
            _ => None,
        };
        let jumped = |to| truth.jumped.get(&(block.last, to)).copied().unwrap_or(0) as f64;
        let taken = |kind| {
            let others = graph.edges().get(graph.out_of(edge.from)).unwrap_or_default();
            others.iter().find(|other| other.kind == kind).and_then(|other| match other.to {
                To::Block(to) => graph.blocks().get(to).map(|to| jumped(to.start)),
                To::Outside(to) => Some(jumped(to)),
                _ => None,
            })
        };
        let truly = match edge.kind {
            EdgeKind::Taken => to.map_or(0.0, jumped),
            EdgeKind::NotTaken => all - taken(EdgeKind::Taken).unwrap_or(0.0),
            EdgeKind::Case | EdgeKind::Observed => to.map_or(0.0, jumped),
            _ => all,
        };
        if truly > 0.0 {
            scored.edges.add(if *flow > 0.0 { (flow / truly).ln() - scale } else { f64::INFINITY }, truly);
        }
    }
    Some(scored)
}
