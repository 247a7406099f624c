//! `dcpi topstalls`: the instructions that waited longest.

use std::collections::BTreeMap;
use std::io::Write;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use estimate::Confidence;

use super::Outcome;
use super::costs::{self, OnMachine};
use crate::options::{Chosen, Output, RowLimit, SyntaxArgument};
use annotate::explained::{self, Asked, Explanation};
use query::error::AnalysisError;
use query::load::Samples;
use query::problem;
use report::{Selection, StallRow, TopstallsReport};

/// `dcpi topstalls`.
#[derive(Debug, Args)]
#[command(after_help = NOTES, mut_arg("rows", |rows| rows.default_value("20")))]
pub struct Topstalls {
    /// Only these images: name, path, or id (may be cut short)
    #[arg(value_name = "IMAGE", value_parser = NonEmptyStringValueParser::new())]
    pub images: Vec<String>,
    #[command(flatten)]
    pub max: RowLimit,
    /// Leave out instructions whose executions are known with less confidence than this
    #[arg(long, value_name = "SURE", value_enum, ignore_case = true, default_value = "low")]
    pub min_confidence: Sure,
    /// Leave out procedures with fewer samples than this
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub min_samples: u64,
    #[command(flatten)]
    pub syntax: SyntaxArgument,
    #[command(flatten)]
    pub on: OnMachine,
    #[command(flatten)]
    pub chosen: Chosen,
    #[command(flatten)]
    pub output: Output,
}

/// Confidence in the number of an instruction's executions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sure {
    /// The error is not known.
    #[value(alias = "l")]
    Low,
    /// The number is probably within 15 %.
    #[value(alias = "m")]
    Medium,
    /// The number is probably within 10 %.
    #[value(alias = "h")]
    High,
}

const NOTES: &str = "\
The column stall % has the part of all samples of time that the instruction took beyond its best \
case, and up to % the same for the fewest executions that are possible. The column cycles has the \
cycles of each execution beyond the best case; ? means that they are not known, because memory may \
have taken all the time. The column sure has the confidence in the number of executions, and the \
column may be has the letters of possible causes. dcpi calc --help explains the letters; dcpi calc \
shows the procedure around the instruction.

Exit codes: 0 done; 1 done, but part of the database could not be read; 2 could not.";

pub(crate) fn run(args: &Topstalls, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let samples = args.chosen.question(&args.images)?.samples()?;
    let damage = problem::damage(&samples.problems);
    super::write(&report(args, samples).map_err(|error| error.beside(damage))?, &args.output, out)
}

fn report(args: &Topstalls, mut samples: Samples) -> Result<TopstallsReport, AnalysisError> {
    let mut problems = std::mem::take(&mut samples.problems);
    let (machine, model) = args.on.model(&samples, None)?;
    let syntax = args.syntax.syntax();
    let asked =
        Asked { machine: &machine, procedure: None, least: args.min_samples, syntax: Some(syntax) };
    let places = args.on.places();
    let least = match args.min_confidence {
        Sure::Low => Confidence::Low,
        Sure::Medium => Confidence::Medium,
        Sure::High => Confidence::High,
    };
    let mut rows: Vec<StallRow> = Vec::new();
    let told = |found: &Explanation<'_>| {
        stalled(found).into_iter().filter(|row| row.confidence >= least).collect()
    };
    let covered =
        explained::each(&samples, &asked, &places, &mut problems, told, |mut found: Vec<_>| {
            rows.append(&mut found)
        })?;
    rows.sort_by(|a, b| b.most.total_cmp(&a.most));
    let omitted = rows.split_off(args.max.of(rows.len())).len();
    let epochs = samples.epochs.iter().map(|epoch| epoch.meta().clone()).collect();
    Ok(TopstallsReport {
        selection: Selection { db: samples.db.root().display().to_string(), epochs },
        events: costs::columns(&samples),
        machine: model,
        samples: covered.samples,
        explained: covered.explained,
        stalls: rows,
        omitted,
        problems,
    })
}

fn stalled(found: &Explanation<'_>) -> Vec<StallRow> {
    let lines = found.graph.parts.iter().flat_map(|part| &part.instructions);
    let lines: BTreeMap<u64, &str> = lines.map(|line| (line.address, line.text.as_str())).collect();
    let estimate = found.graph.estimate.as_ref();
    let Some(scale) = found.explained.scale else { return Vec::new() };
    let known = scale.is_known();
    let mut rows = Vec::new();
    for (number, block) in found.explained.blocks.iter().enumerate() {
        let runs =
            estimate.and_then(|estimate| estimate.blocks.get(number)).copied().unwrap_or_default();
        let samples = |cycles: f64| cycles * runs.executions * scale.samples_per_cycle;
        for (why, at) in block.iter().zip(found.graph.graph.instructions(number)) {
            let largest = why.culprits.first().map_or(0.0, |culprit| culprit.high);
            let stall = (why.cycles - why.best.cycles).max(0.0);
            if samples(stall.max(largest)) < 1.0 {
                continue;
            }
            // Where cycles are not known, executions may have been as many as the best case allows.
            let surely = samples(why.cycles) - why.best.cycles * runs.executions * scale.upper;
            rows.push(StallRow {
                stall: if known { samples(stall) } else { surely.max(0.0) },
                most: samples(stall.max(largest)),
                cycles: known.then_some(stall),
                confidence: runs.confidence,
                culprits: why.culprits.clone(),
                unexplained: why.unexplained > stall / 10.0,
                image: found.image.record.name.clone(),
                procedure: found.procedure.name().to_owned(),
                address: at.0,
                text: lines.get(&at.0).map(|text| (*text).to_owned()).unwrap_or_default(),
            });
        }
    }
    rows
}
