//! `dcpi calc`: how often each block of a procedure ran.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use code::cfg::{EdgeKind, To};
use code::isa::Syntax;
use image::Vaddr;

use super::Outcome;
use super::list::{candidates, columns, meant};
use crate::args::{Chosen, Output, parse_confidence};
use crate::error::AnalysisError;
use crate::graphs::{Graph, Surveyed};
use crate::listing::{self, ListedInstruction};
use crate::load::{self, Samples};
use crate::named::Candidate;
use crate::procedures::Places;
use crate::report::{BlockRow, CalcReport, EdgeRow, ImageName, InstructionCost, Selection};
use crate::stats::Confidence;

/// `dcpi calc`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct Calc {
    /// The image: name, path, or id (may be cut short)
    #[arg(value_name = "IMAGE", value_parser = NonEmptyStringValueParser::new())]
    pub image: String,
    /// The procedure: its name, part of that, or an address in it (0x1040)
    #[arg(value_name = "PROCEDURE", value_parser = NonEmptyStringValueParser::new())]
    pub procedure: String,
    /// Instructions as Intel's manuals write them, destination first [default: AT&T's syntax]
    #[arg(long)]
    pub intel: bool,
    /// Where separate debug files are, besides /usr/lib/debug (may be repeated)
    #[arg(long, value_name = "DIR")]
    pub debug_root: Vec<PathBuf>,
    /// Confidence of the intervals, in percent
    #[arg(long, value_name = "PERCENT", default_value = "95", value_parser = parse_confidence)]
    pub confidence: Confidence,
    /// Which samples.
    #[command(flatten)]
    pub chosen: Chosen,
    /// How to write.
    #[command(flatten)]
    pub output: Output,
}

const NOTES: &str = "\
runs: executions of a block for one entry of the procedure. They come from the branches that
dcpid followed from registers at samples, and where there were few, from the time that blocks took;
what comes into a block always goes out. The interval is what chance does, to the entry too; high,
medium and low say how sure a block is beside the other blocks of its procedure.
cost: time of an execution per instruction, beside the procedure's mean of 1. A sample tells of
time, not of how many executions it took, so cycles are not told.

Exit codes: 0 done; 1 done, but part of the database could not be read; 2 could not.";

pub(super) fn run(args: &Calc, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let samples = load::chosen(&args.chosen, std::slice::from_ref(&args.image))?;
    super::write(&report(args, samples)?, args.output.format, out)
}

fn report(args: &Calc, mut samples: Samples) -> Result<CalcReport, AnalysisError> {
    let places = Places::with_debug_roots(args.debug_root.clone());
    let mut problems = std::mem::take(&mut samples.problems);
    let (candidates, without) = candidates(&samples, &places, &mut problems);
    let (Candidate { image, known }, procedure) = meant(&candidates, &without, (&args.image, &args.procedure))?;
    let (event, skid) = samples.time()?;
    let syntax = if args.intel { Syntax::Intel } else { Syntax::Att };
    let surveyed = Surveyed::of(&samples, image, known, &mut problems);
    let found = surveyed.and_then(|surveyed| surveyed.graph(image, known, procedure, syntax, (event, skid)));
    let refused = |why: &str| AnalysisError::Refused(format!("{}: {why}", procedure.name()));
    let without_code = || match listing::code(image, known, procedure) {
        Err(why) => refused(&format!("its instructions cannot be had: {why}; its samples: dcpi list")),
        Ok(_) => refused("its image's code cannot be surveyed; its samples: dcpi list"),
    };
    let mut graph = found.ok_or_else(without_code)?;
    let sampled = graph.parts.iter().any(|part| part.counts.get(event).is_some_and(|count| *count > 0));
    if !sampled && graph.branches.is_empty() {
        return Err(refused("no samples in this procedure; those with some: dcpi prof"));
    }
    if graph.estimate.is_none() {
        let why =
            "it has no entry, or too many ways through it, to say how often its blocks ran; its samples: dcpi list";
        return Err(refused(why));
    }
    for part in &mut graph.parts {
        problems.append(&mut part.problems);
        part.attribute((event, skid));
    }
    let mut counts = vec![0_u64; samples.events.len()];
    for part in &graph.parts {
        counts.iter_mut().zip(&part.counts).for_each(|(sum, count)| *sum = sum.saturating_add(*count));
    }
    let record = &image.record;
    let (name, path) = (record.name.clone(), record.path.clone());
    let epochs = samples.epochs.iter().map(|epoch| epoch.meta().clone()).collect();
    Ok(CalcReport {
        selection: Selection { db: samples.db.root().display().to_string(), epochs },
        event: columns(&samples, &counts, args.confidence).into_iter().nth(event),
        confidence: args.confidence,
        whose: args.chosen.source.scope.clone(),
        image: ImageName { id: record.id, kind: record.kind, name, path, ambiguous: false },
        procedure: procedure.name().to_owned(),
        parts: graph.parts.iter().map(|part| part.addresses.clone()).collect(),
        skid,
        branches: graph
            .branches
            .iter()
            .fold(0, |sum: u64, seen| sum.saturating_add(seen.first).saturating_add(seen.later)),
        missing_edges: graph.graph.missing_edges(),
        findings: graph.graph.findings().iter().map(|found| (found.address.0, found.kind.to_string())).collect(),
        blocks: blocks(&graph, event, args.confidence),
        edges: edges(&graph),
        problems,
    })
}

/// The blocks, without filler.
fn blocks(graph: &Graph, event: usize, confidence: Confidence) -> Vec<BlockRow> {
    let Some(estimate) = &graph.estimate else { return Vec::new() };
    let lines = graph.parts.iter().flat_map(|part| &part.instructions).map(|line| (line.address, line));
    let lines: BTreeMap<u64, &ListedInstruction> = lines.collect();
    let blocks =
        || graph.graph.blocks().iter().zip(&estimate.blocks).enumerate().filter(|(_, (block, _))| !block.padding);
    let sums = blocks().map(|(_, (block, runs))| (runs.samples, runs.executions * block.instructions as f64));
    let (samples, executed) = sums.fold((0.0, 0.0), |sum, block| (sum.0 + block.0, sum.1 + block.1));
    let cost = |samples_here: f64, executions: f64| {
        (executions > 0.0 && samples > 0.0).then(|| samples_here / executions * executed / samples)
    };
    let entry = graph.graph.entry().and_then(|entry| estimate.blocks.get(entry)).map_or(0.0, |entry| entry.spread);
    let row = |(number, (block, runs)): (usize, (&code::cfg::Block, &estimate::BlockEstimate))| {
        let instructions = graph.graph.instructions(number).map(|at| {
            let line = lines.get(&at.0);
            let samples = line.and_then(|line| line.counts.get(event)).copied().unwrap_or(0);
            let text = line.map(|line| line.text.clone()).unwrap_or_default();
            InstructionCost { address: at.0, text, samples, cost: cost(samples as f64, runs.executions) }
        });
        // For one entry: how often the procedure was entered is as unsure as any other block.
        let spread = if Some(number) == graph.graph.entry() { 0.0 } else { runs.spread.hypot(entry) };
        let wide = (spread * confidence.z()).exp();
        BlockRow {
            start: block.start.0,
            end: block.end.0,
            samples: runs.samples,
            runs: runs.executions,
            low: runs.executions / wide,
            high: runs.executions * wide,
            confidence: runs.confidence,
            cost: cost(runs.samples / block.instructions.max(1) as f64, runs.executions),
            instructions: instructions.collect(),
        }
    };
    blocks().map(row).collect()
}

fn edges(graph: &Graph) -> Vec<EdgeRow> {
    let Some(estimate) = &graph.estimate else { return Vec::new() };
    let seen: BTreeMap<(Vaddr, Vaddr), u64> = graph
        .branches
        .iter()
        .map(|branch| ((branch.from, branch.to), branch.first.saturating_add(branch.later)))
        .collect();
    let row = |(edge, runs): (&code::cfg::Edge, &f64)| {
        let from = graph.graph.blocks().get(edge.from)?;
        let to = match edge.to {
            To::Block(to) => Some(graph.graph.blocks().get(to)?.start),
            To::Outside(to) => Some(to),
            _ => None,
        };
        let observed = to.and_then(|to| seen.get(&(from.last, to))).copied().unwrap_or(0);
        let kind = match (edge.kind, edge.to) {
            (EdgeKind::Next | EdgeKind::NotTaken, _) => "falls through",
            (EdgeKind::Taken, _) => "taken",
            (EdgeKind::Jump, _) => "jump",
            (EdgeKind::Case, _) => "case",
            (EdgeKind::Observed, _) => "seen",
            (EdgeKind::Indirect, To::Elsewhere) => "leaves",
            (EdgeKind::Indirect, _) => "unknown",
            (EdgeKind::Return, _) => "return",
            (EdgeKind::End, _) => "end",
        };
        let (to, share) = (to.map(|to| to.0), estimate.blocks.get(edge.from).map(|block| runs / block.executions));
        let share = share.filter(|share| share.is_finite()).unwrap_or(0.0);
        Some(EdgeRow { from: from.start.0, to, kind, runs: *runs, share, observed })
    };
    graph.graph.edges().iter().zip(&estimate.edges).filter_map(row).collect()
}
