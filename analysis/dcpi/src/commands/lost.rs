//! `dcpi lost`: the time of a command beside the time that its executions need.

use std::io::Write;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use model::IDEAL;
use names::procedures::Rows;

use super::Outcome;
use super::costs::OnMachine;
use super::prof;
use crate::options::{Chosen, Output, RowLimit, parse_confidence};
use annotate::explained::{self, Asked, Explanation};
use query::error::AnalysisError;
use query::load::{ImageSamples, Samples};
use query::problem::{self, Problem};
use report::{LostBlock, LostReport, LostRow, ProcedureName, Selection};
use stats::tally::Tally;
use stats::{Confidence, Occurrences, occurrences};

/// `dcpi lost`.
#[derive(Debug, Args)]
#[command(after_help = NOTES, mut_arg("rows", |rows| rows.default_value("20")))]
pub struct Lost {
    /// Only these images: name, path, or id (may be cut short)
    #[arg(value_name = "IMAGE", value_parser = NonEmptyStringValueParser::new())]
    pub images: Vec<String>,
    /// A row per procedure, or per basic block with its executions and possible causes
    #[arg(long, value_name = "WHAT", value_enum, default_value = "procedure")]
    pub by: By,
    #[command(flatten)]
    pub max: RowLimit,
    /// Confidence of the intervals in percent
    #[arg(long, value_name = "PERCENT", default_value = "95", value_parser = parse_confidence)]
    pub confidence: Confidence,
    #[command(flatten)]
    pub on: OnMachine,
    #[command(flatten)]
    pub chosen: Chosen,
    #[command(flatten)]
    pub output: Output,
}

/// Smallest share of the time, spent or ideal, that a row has unless all are asked for.
const SHARE_MIN: f64 = 0.0005;

/// The subject of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum By {
    Procedure,
    /// A basic block.
    Block,
}

const NOTES: &str = "\
dcpi lost reads a database of 'dcpi ideal --sampled': samples of a command, and the exact \
executions of one run. The time that samples tell, less the cycles of these executions on the \
model of a processor where all loads hit the first cache and no branch is mispredicted, is what \
cache misses, mispredicted branches and waits of the pipeline cost. A processor may be faster than \
its model: then less than nothing is lost. dcpi explain explains the letters of causes; dcpi \
calc, whatcg and topstalls give absolute cycles for such a database.

Exit codes: 0 done; 1 done, but part of the database could not be read; 2 could not.";

pub(crate) fn run(args: &Lost, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let samples = args.chosen.question(&args.images)?.samples()?;
    let damage = problem::damage(&samples.problems);
    super::write(&report(args, samples).map_err(|error| error.beside(damage))?, &args.output, out)
}

/// The data shared by all rows.
struct Measured {
    /// Indices of the sampled and of the counted event.
    time: usize,
    ideal: usize,
    /// Cycles that an occurrence of the sampled event stands for, in one run.
    cycles: f64,
    confidence: Confidence,
}

impl Measured {
    /// Cycles of one run.
    fn spent(&self, of: Tally) -> Occurrences {
        let weight = self.cycles * of.weight();
        // For samples of several weights, the number of samples of one weight with the same
        // uncertainty.
        let samples = if weight > 0.0 { of.occurrences / of.weight() } else { 0.0 };
        occurrences(&[(samples.round() as u64, weight)], self.confidence)
    }
}

fn report(args: &Lost, mut samples: Samples) -> Result<LostReport, AnalysisError> {
    let mut problems = std::mem::take(&mut samples.problems);
    let refused = |why: &str| Err(AnalysisError::Refused(why.to_owned()));
    let Some((runs, hertz)) = samples.sampled_runs() else {
        return refused(
            "these epochs have no samples of a command beside its exact counts; --epoch chooses \
             others (dcpi epochs), and --sampled makes them (dcpi ideal --help)",
        );
    };
    let counted = samples.ideal_machine().unwrap_or_default();
    if let Some(machine) = args.on.machine.as_ref().filter(|machine| **machine != counted) {
        return refused(&format!(
            "the ideal cycles are those of {counted}, not of {machine}; leave --machine out, or \
             count again with it"
        ));
    }
    let (time, _) = samples.time()?;
    let ideal = samples.events.iter().position(|event| event.name == IDEAL);
    let per_sample = samples.cycles(time).zip(samples.events.get(time));
    let (Some(ideal), Some((per_sample, event))) = (ideal, per_sample) else {
        return refused(
            "cycles cannot be told from these samples: they have no frequency, or the event \
             'ideal' was left out; leave --event out",
        );
    };
    let cycles = per_sample / event.weight / runs;
    let hertz = hertz.filter(|_| event.unit == "ns");
    let confidence = args.confidence;
    let measured = Measured { time, ideal, cycles, confidence };
    let total = |is_counted: bool| {
        let images = samples.images.iter().filter(|image| image.wanted && !image.is_idle());
        let images = images.filter(|image| is_counted == is_of(image, ideal));
        images.filter_map(|image| image.profiles.get(time)).map(|profile| profile.total()).sum()
    };
    let unknown: Tally = if args.images.is_empty() {
        samples.events.get(time).map(|event| event.unknown.values().copied().sum())
    } else {
        None
    }
    .unwrap_or_default();
    let uncounted: Tally = total(false);
    let uncounted = uncounted + unknown;
    let (mut rows, by_block) = match args.by {
        By::Procedure => (procedures(args, &samples, &measured, &mut problems), false),
        By::Block => (blocks(args, &samples, &measured, &mut problems)?, true),
    };
    let ideal = samples.total(ideal, |image| image.wanted).occurrences;
    rows.retain(|row| row.samples > 0 || row.ideal > 0.0);
    rows.sort_by(|a, b| b.lost().value.total_cmp(&a.lost().value));
    let spent = measured.spent(total(true) + uncounted);
    let matters = |row: &LostRow| {
        args.max.rows == 0 || row.spent.value.max(row.ideal) >= spent.value * SHARE_MIN
    };
    let all = rows.len();
    rows.retain(matters);
    rows.truncate(args.max.of(rows.len()));
    let omitted = all - rows.len();
    let epochs = samples.epochs.iter().map(|epoch| epoch.meta().clone()).collect();
    Ok(LostReport {
        selection: Selection { db: samples.db.root().display().to_string(), epochs },
        whose: samples.whose.clone(),
        runs,
        hertz,
        machine: counted,
        confidence,
        spent,
        uncounted: measured.spent(uncounted),
        ideal,
        by_block,
        rows,
        omitted,
        problems,
    })
}

/// Whether an image has counts of an event.
fn is_of(image: &ImageSamples, event: usize) -> bool {
    image.profiles.get(event).is_some_and(|profile| !profile.total().is_empty())
}

fn procedures(
    args: &Lost,
    samples: &Samples,
    measured: &Measured,
    problems: &mut Vec<Problem>,
) -> Vec<LostRow> {
    let images = samples.images.iter().filter(|image| image.wanted);
    let images: Vec<&ImageSamples> = images.filter(|image| is_of(image, measured.ideal)).collect();
    let rows =
        prof::procedure_rows(samples, &images, (Rows::Procedures, &args.on.places()), problems);
    let lost = |row: report::Row| {
        Some(LostRow {
            of_image: row.image?,
            of_procedure: row.procedure?,
            block: None,
            samples: row.counts.get(measured.time)?.samples,
            spent: measured.spent(row.counts.get(measured.time).copied()?),
            ideal: row.counts.get(measured.ideal).map_or(0.0, |ideal| ideal.occurrences),
        })
    };
    rows.into_iter().filter_map(lost).collect()
}

fn blocks(
    args: &Lost,
    samples: &Samples,
    measured: &Measured,
    problems: &mut Vec<Problem>,
) -> Result<Vec<LostRow>, AnalysisError> {
    // The best case is that of the ideal, which has generic latencies.
    let (machine, _) = args.on.generic(samples, None)?;
    let asked = Asked {
        machine: &machine,
        procedure: None,
        except: None,
        only: None,
        least: 1,
        syntax: None,
    };
    let weight = samples.events.get(measured.time).map_or(0.0, |event| event.weight);
    let images: Vec<&ImageSamples> = samples.images.iter().collect();
    let told = |found: &Explanation<'_>| of_procedure(found, &images, (measured, weight));
    let mut rows = Vec::new();
    let take = |mut found: Vec<LostRow>| rows.append(&mut found);
    let _ = explained::each(samples, &asked, &args.on.places(), problems, told, take)?;
    Ok(rows)
}

fn of_procedure(
    found: &Explanation<'_>,
    images: &[&ImageSamples],
    (measured, weight): (&Measured, f64),
) -> Vec<LostRow> {
    let Some(estimate) = found.graph.estimate.as_ref().filter(|_| found.graph.is_exact) else {
        return Vec::new();
    };
    let image = prof::image_name(found.image, images, false);
    let blocks = found.graph.graph.blocks().iter().zip(&estimate.blocks);
    let blocks = blocks.zip(&found.explained.blocks);
    let row = |((block, runs), instructions): ((&code::cfg::Block, _), &Vec<_>)| {
        let runs: &estimate::BlockEstimate = runs;
        let best: f64 = instructions.iter().map(|why: &stalls::Explanation| why.best.cycles).sum();
        let stall = |why: &stalls::Explanation| why.cycles - why.best.cycles;
        let longest = instructions.iter().max_by(|a, b| stall(a).total_cmp(&stall(b)));
        let (culprits, unexplained) = longest
            .map(|why| (why.culprits.clone(), why.unexplained > stall(why) / 10.0))
            .unwrap_or_default();
        let name = found.procedure.name().to_owned();
        LostRow {
            of_image: image.clone(),
            of_procedure: ProcedureName {
                name,
                address: None,
                ambiguous: false,
                needs_suffix: false,
                inlined: false,
            },
            block: Some(LostBlock {
                start: block.start.0,
                end: block.end.0,
                executions: runs.executions,
                causes: culprits,
                unexplained,
            }),
            samples: runs.samples as u64,
            spent: measured.spent(Tally::of(runs.samples as u64, weight)),
            ideal: best * runs.executions,
        }
    };
    blocks.filter(|((_, runs), _)| runs.executions > 0.0).map(row).collect()
}
