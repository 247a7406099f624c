//! `dcpi topstalls`: the instructions that waited longest: the findings of `dcpi why` in code, by
//! the instruction that takes the time.

use std::io::Write;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};

use super::Outcome;
use super::costs::{self, OnMachine};
use super::ideal::Modelled;
use super::why::{Question, findings, once};
use crate::options::{Chosen, Output, RowLimit, SyntaxArgument};
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
    /// Leave out causes that are less probable than this
    #[arg(long, value_name = "SURE", value_enum, ignore_case = true, default_value = "low")]
    pub min_confidence: Sure,
    /// Leave out procedures with fewer samples than this [default: half a percent of all]
    #[arg(long, value_name = "N")]
    pub min_samples: Option<u64>,
    #[command(flatten)]
    pub syntax: SyntaxArgument,
    #[command(flatten)]
    pub on: OnMachine,
    #[command(flatten)]
    pub chosen: Chosen,
    #[command(flatten)]
    pub output: Output,
}

/// Probability of a cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sure {
    /// Any.
    #[value(alias = "l")]
    Low,
    /// 0.75: likely.
    #[value(alias = "m")]
    Medium,
    /// 0.95: certain.
    #[value(alias = "h")]
    High,
}

const NOTES: &str = "\
A row is a loop, or a procedure without loops that take its time, with the instruction that takes \
the time; where no single one can, the one with the most samples. The column lost % has the \
part of all samples of time that would be gained without the cause, and up to % the same at most. \
The cause is that of dcpi why: certain with a probability of at least 0.95, likely of at \
least 0.75, possible of less. dcpi why has its evidence; dcpi calc shows the procedure around the \
instruction, with all that each instruction may have waited for.

Exit codes: 0 done; 1 done, but part of the database could not be read; 2 could not.";

pub(crate) fn run(args: &Topstalls, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let samples = args.chosen.question(&args.images)?.samples()?;
    let damage = problem::damage(&samples.problems);
    super::write(&report(args, samples).map_err(|error| error.beside(damage))?, &args.output, out)
}

fn report(args: &Topstalls, mut samples: Samples) -> Result<TopstallsReport, AnalysisError> {
    let question = Question {
        procedure: None,
        on: &args.on,
        syntax: args.syntax.syntax(),
        waits: false,
        least: args.min_samples,
    };
    let found = findings(&question, &mut samples, &Modelled::new())?;
    let least = match args.min_confidence {
        Sure::Low => 0.0,
        Sure::Medium => 0.75,
        Sure::High => 0.95,
    };
    let mut stalls: Vec<StallRow> = found.stalled();
    stalls.retain(|row| row.finding.probability >= least);
    let omitted = stalls.split_off(args.max.of(stalls.len())).len();
    let epochs = samples.epochs.iter().map(|epoch| epoch.meta().clone()).collect();
    Ok(TopstallsReport {
        selection: Selection { db: samples.db.root().display().to_string(), epochs },
        events: costs::columns(&samples),
        machine: found.model,
        samples: found.samples,
        explained: found.explained.0,
        stalls,
        omitted,
        problems: once(found.problems),
    })
}
