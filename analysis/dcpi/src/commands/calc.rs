//! `dcpi calc`: how often each block of a procedure ran, what an execution cost, and why.

use std::collections::BTreeMap;
use std::io::Write;

use clap::Args;
use code::cfg::{EdgeKind, To};
use estimate::{BranchBias, Estimate, independent};
use image::Vaddr;
use stalls::{Explained, Explanation};

use super::Outcome;
use super::costs::OnMachine;
use super::list::{candidates, columns, meant};
use super::loops::loops;
use crate::options::{Chosen, Output, ProcedureArguments, SyntaxArgument, parse_confidence};
use annotate::graphs::{Graph, NOT_ESTIMATED, Surveyed};
use annotate::listing::{self, ByAddress, Listing};
use names::named::Candidate;
use query::error::AnalysisError;
use query::error::quoted;
use query::load::Samples;
use query::problem;
use query::progress;
use report::{BlockRow, CalcReport, EdgeRow, Found, ImageName, InstructionCost, Runs, Selection};
use stats::{Confidence, wilson};

/// `dcpi calc`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct Calc {
    #[command(flatten)]
    pub subject: ProcedureArguments,
    #[command(flatten)]
    pub syntax: SyntaxArgument,
    /// Only the blocks that have 90 % of the samples
    #[arg(long)]
    pub hot: bool,
    #[command(flatten)]
    pub on: OnMachine,
    /// Confidence of the intervals, in percent
    #[arg(long, value_name = "PERCENT", default_value = "95", value_parser = parse_confidence)]
    pub confidence: Confidence,
    #[command(flatten)]
    pub chosen: Chosen,
    #[command(flatten)]
    pub output: Output,
}

const NOTES: &str = "\
times per call: executions of a block for one entry of the procedure. They are estimated from \
executions of branches, which dcpid computes from the registers at samples, and, where few \
branches were observed, from the time that blocks took. As many executions leave a block as enter \
it. The interval covers the chance of sampling, both of the block and of the procedure's entry. \
Confidence high: the number is probably within 10 %; medium: probably within 15 %; low: its error \
is not known.
A procedure that is hardly ever entered has one sample at its begin and thousands in its loops. \
All of its numbers are low: compare its blocks with each other instead. dcpi topstalls says how \
sure the executions of a block are beside those of the other blocks.
cycles: those of one execution. Samples measure time, not executions. Cycles follow from the \
rounds that a loop makes between two samples, from exact counts (dcpi ideal --sampled), from \
samples of instructions (dcpid --event cycles --event instructions), or, on processors that issue \
in order (Cortex-A53, -A55, -A510), from instructions that hardly ever stalled, as in the DCPI \
paper; the last was compared with a simulation only. With -v the head says which, and the range \
of the truth.
Without any of these the report has bounds only: the best case, in which every load hits the \
first-level cache and every branch is predicted, and the cycles with every suspected stall at its \
most. Cycles within one procedure can be compared all the same.
loop: blocks that are executed in rounds (iterations). The rounds for one entry follow from these \
executions. Where the loop's test compares numbers that change by the same amount in each round, \
the registers at a sample tell how many rounds are left, and so how many rounds entries make. \
Entries so short that hardly any sample falls into them are not seen, however many there are.
stalled: the causes that may have stalled the instruction below, the largest first, without those \
that something rules out. JSON alone has causes below a tenth of the largest. \"Waits for an \
earlier result\" means that an operand came later than in the best case, from another instruction \
or with a longer latency. CSV has a letter for each cause:
  i instruction cache        p branch mispredicted  w store buffer full
  I instruction TLB          r front-end redirect   f store forwarding
  d data cache               u busy unit            v divider
  D data TLB                 s barrier              l lock
  o earlier result           m microcode            ? none of these

Exit codes: 0 done; 1 done, but part of the database could not be read; 2 could not.";

pub(crate) fn run(args: &Calc, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let samples = args.chosen.question(std::slice::from_ref(&args.subject.image))?.samples()?;
    let damage = problem::damage(&samples.problems);
    super::write(&report(args, samples).map_err(|error| error.beside(damage))?, &args.output, out)
}

pub(super) fn report(args: &Calc, mut samples: Samples) -> Result<CalcReport, AnalysisError> {
    let places = args.on.places();
    let _stage = progress::stage("reading code and debug information", 0);
    let mut problems = std::mem::take(&mut samples.problems);
    let (candidates, without) = candidates(&samples, &places, &mut problems);
    let (Candidate { image, known, .. }, procedure) =
        meant(&candidates, &without, &args.subject, &mut problems)?;
    let (event, skid) = samples.time()?;
    let syntax = args.syntax.syntax();
    let surveyed = Surveyed::around(&samples, image, known, procedure, &mut problems);
    let isa = surveyed.as_ref().map(Surveyed::isa);
    let (machine, model) = args.on.model(&samples, isa)?;
    let found = surveyed.and_then(|surveyed| {
        surveyed.graph(image, known, procedure, Some(syntax), (event, skid), Some(&machine))
    });
    let refused = |why: &str| AnalysisError::Refused(format!("{}: {why}", procedure.name()));
    let ProcedureArguments { image: of, procedure: name } = &args.subject;
    let listing = format!("dcpi list {} {}", quoted(of), quoted(name));
    let without_code = || match listing::code(image, known, procedure) {
        Err(why) => {
            refused(&format!("its instructions cannot be read: {why}; its samples: {listing}"))
        }
        Ok(_) => refused(&format!("the code of its image cannot be read; its samples: {listing}")),
    };
    let mut graph = found.ok_or_else(without_code)?;
    let is_sampled = |part: &Listing| part.counts.get(event).is_some_and(|count| *count > 0);
    if !graph.parts.iter().any(is_sampled) && graph.branches.is_empty() {
        return Err(refused("the procedure has no samples; procedures with samples: dcpi prof"));
    }
    if graph.estimate.is_none() {
        return Err(refused(&format!("{NOT_ESTIMATED}; its samples: dcpi list")));
    }
    graph.parts.iter_mut().for_each(|part| problems.append(&mut part.problems));
    let explained = graph.explained(&machine, event, samples.executions(event)).unwrap_or_default();
    let counts = counts(&graph, samples.events.len());
    let mut shown = blocks(&graph, &explained, event, args.confidence);
    let mut edges = edges(&graph, machine.branch_bias(), args.confidence);
    let omitted = if args.hot { keep_hot(&mut shown, &mut edges) } else { (0, 0.0) };
    let (record, name) = (&image.record, image.record.name.clone());
    let path = record.path.clone();
    let epochs = samples.epochs.iter().map(|epoch| epoch.meta().clone()).collect();
    Ok(CalcReport {
        selection: Selection { db: samples.db.root().display().to_string(), epochs },
        events: columns(&samples, &counts, args.confidence),
        time: event,
        confidence: args.confidence,
        whose: samples.whose.clone(),
        image: ImageName { id: record.id, kind: record.kind, name, path, ambiguous: false },
        procedure: graph
            .parts
            .first()
            .map_or_else(|| procedure.name().to_owned(), |part| part.procedure.clone()),
        aliases: known.aliases(procedure, &places),
        parts: graph
            .parts
            .iter()
            .map(|part| (part.procedure.clone(), part.addresses.clone()))
            .collect(),
        landing: skid,
        samples_kept: graph.parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.kept)),
        branches: graph
            .branches
            .iter()
            .fold(0, |sum: u64, seen| sum.saturating_add(seen.first).saturating_add(seen.later)),
        is_exact: graph.is_exact,
        missing_edges: graph.graph.missing_edges(),
        findings: graph
            .graph
            .findings()
            .iter()
            .map(|found| Found { address: found.address.0, kind: found.kind.to_string() })
            .collect(),
        machine: model,
        scale: explained.scale,
        sums: explained.sums.clone(),
        loops: loops(&graph, &explained, &args.on.hardware(&samples, machine.core_ghz)?),
        omitted,
        blocks: shown,
        edges,
        problems,
    })
}

/// Leaves the hot blocks, with the edges that leave them. The number of the others, and their
/// samples of time.
fn keep_hot(blocks: &mut Vec<BlockRow>, edges: &mut Vec<EdgeRow>) -> (usize, f64) {
    let samples: Vec<f64> = blocks.iter().map(|block| block.samples).collect();
    let mut hot = listing::hottest(&samples).into_iter();
    let cold = blocks.extract_if(.., |_| !hot.next().unwrap_or(false));
    let omitted = cold.fold((0, 0.0), |(n, sum), block| (n + 1, sum + block.samples));
    edges.retain(|edge| blocks.iter().any(|block| block.start == edge.from));
    omitted
}

fn counts(graph: &Graph, events: usize) -> Vec<u64> {
    let mut counts = vec![0_u64; events];
    for part in &graph.parts {
        counts
            .iter_mut()
            .zip(&part.counts)
            .for_each(|(sum, count)| *sum = sum.saturating_add(*count));
    }
    counts
}

/// The blocks, without filler.
pub(super) fn blocks(
    graph: &Graph,
    explained: &Explained,
    event: usize,
    confidence: Confidence,
) -> Vec<BlockRow> {
    let Some(estimate) = &graph.estimate else { return Vec::new() };
    let mut lines = ByAddress::of(&graph.parts);
    let blocks = || {
        graph
            .graph
            .blocks()
            .iter()
            .zip(&estimate.blocks)
            .enumerate()
            .filter(|(_, (block, _))| !block.padding)
    };
    let row = |(number, (block, runs)): (usize, (&code::cfg::Block, &estimate::BlockEstimate))| {
        let explanations = explained.blocks.get(number).map(Vec::as_slice).unwrap_or_default();
        let instructions = graph.graph.instructions(number).enumerate().map(|(index, at)| {
            let line = lines.at(at.0);
            let counts = line.map(|line| line.counts.clone()).unwrap_or_default();
            let samples = counts.get(event).copied().unwrap_or(0);
            let text = line.map(|line| line.text.clone()).unwrap_or_default();
            let why = explanations.get(index).cloned().unwrap_or_default();
            InstructionCost { address: at.0, text, counts, samples, why }
        });
        let ran = runs.executions > 0.0 && explained.scale.is_some();
        let cycles = |of: fn(&Explanation) -> f64| ran.then(|| explanations.iter().map(of).sum());
        let known = explained.scale.is_some_and(|scale| scale.is_known());
        BlockRow {
            start: block.start.0,
            end: block.end.0,
            samples: runs.samples,
            runs: runs_of(graph, estimate, number, confidence),
            best: cycles(|why| why.best.cycles),
            cycles: cycles(|why| why.cycles).filter(|_| known),
            cycles_most: cycles(|why| why.cycles_max),
            instructions: instructions.collect(),
        }
    };
    blocks().map(row).collect()
}

/// Executions of a block, with their interval.
fn runs_of(graph: &Graph, estimate: &Estimate, number: usize, confidence: Confidence) -> Runs {
    let runs = estimate.blocks.get(number).copied().unwrap_or_default();
    // Executions are for one entry: the number of entries is as unsure as that of any other block.
    let entry = graph
        .graph
        .entry()
        .and_then(|entry| estimate.blocks.get(entry))
        .map_or(0.0, |entry| entry.log_sd);
    let spread = if Some(number) == graph.graph.entry() { 0.0 } else { runs.log_sd.hypot(entry) };
    let wide = (spread * confidence.z()).exp();
    let value = runs.executions;
    Runs {
        value,
        low: value / wide,
        high: value * wide,
        confidence: estimate::Confidence::of(spread),
    }
}

/// Executions of an edge. The only edge of a block has the block's executions. Of several edges,
/// the interval comes from the edge's share of the `all` observed executions of the block's edges,
/// which are worth `independent` ones; without observed executions the interval has no bounds but
/// the block's.
fn runs_of_edge(
    value: f64,
    block: Runs,
    observed: u64,
    (all, independent, edges): (u64, f64, usize),
    confidence: Confidence,
) -> Runs {
    let (low, high, sure) = match (edges, all) {
        (1, _) => (1.0, 1.0, block.confidence),
        (_, 0) => (0.0, 1.0, estimate::Confidence::Low),
        _ => {
            let part = observed as f64 / all as f64 * independent;
            let share = wilson(part.round() as u64, independent.ceil() as u64, confidence);
            (share.low, share.high, block.confidence)
        }
    };
    Runs {
        value,
        low: value.min(block.low * low),
        high: value.max(block.high * high),
        confidence: sure,
    }
}

fn edges(graph: &Graph, bias: BranchBias, confidence: Confidence) -> Vec<EdgeRow> {
    let Some(estimate) = &graph.estimate else { return Vec::new() };
    let seen: BTreeMap<(Vaddr, Vaddr), u64> = graph
        .branches
        .iter()
        .map(|branch| ((branch.from, branch.to), branch.first.saturating_add(branch.later)))
        .collect();
    let target = |edge: &code::cfg::Edge| match edge.to {
        To::Block(to) => Some(graph.graph.blocks().get(to)?.start),
        To::Outside(to) => Some(to),
        _ => None,
    };
    let observed = |edge: &code::cfg::Edge| {
        let from = graph.graph.blocks().get(edge.from)?;
        seen.get(&(from.last, target(edge)?)).copied()
    };
    let mut rows = Vec::with_capacity(graph.graph.edges().len());
    for (number, from) in graph.graph.blocks().iter().enumerate() {
        let range = graph.graph.out_of(number);
        let edges = graph.graph.edges().get(range.clone()).unwrap_or_default();
        if edges.is_empty() {
            continue;
        }
        let block = runs_of(graph, estimate, number, confidence);
        let executions = estimate.blocks.get(number).map_or(0.0, |block| block.executions);
        let seen: Vec<u64> = edges.iter().map(|edge| observed(edge).unwrap_or(0)).collect();
        let all = seen.iter().fold(0, |sum: u64, seen| sum.saturating_add(*seen));
        let taken = estimate.edges.get(range).unwrap_or_default();
        let sequence = graph.branches.iter().find(|branch| branch.from == from.last);
        let sequence = sequence.and_then(|branch| branch.sequence);
        let untold = sequence.and_then(|sequence| sequence.untold);
        for ((edge, taken), observed) in edges.iter().zip(taken).zip(seen) {
            let observed = if graph.is_exact { taken.round() as u64 } else { observed };
            let share = Some(taken / executions).filter(|share| share.is_finite()).unwrap_or(0.0);
            let runs = match graph.is_exact {
                true => Runs { value: *taken, low: *taken, high: *taken, ..block },
                false => {
                    let worth = (all, independent((observed, all), sequence, bias), edges.len());
                    runs_of_edge(*taken, block, observed, worth, confidence)
                }
            };
            let to = target(edge).map(|to| to.0);
            let kind = kind(edge);
            rows.push(EdgeRow { from: from.start.0, to, kind, runs, share, observed, untold });
        }
    }
    rows
}

fn kind(edge: &code::cfg::Edge) -> &'static str {
    match (edge.kind, edge.to) {
        (EdgeKind::Next | EdgeKind::NotTaken, _) => "falls through",
        (EdgeKind::Taken, _) => "taken",
        (EdgeKind::Jump, _) => "jump",
        (EdgeKind::Case, _) => "case",
        (EdgeKind::Observed, _) => "seen",
        (EdgeKind::Indirect, To::Elsewhere) => "leaves",
        (EdgeKind::Indirect, _) => "unknown",
        (EdgeKind::Return, _) => "return",
        (EdgeKind::End, _) => "end",
    }
}
