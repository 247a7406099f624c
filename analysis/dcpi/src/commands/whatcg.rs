//! `dcpi whatcg`: what cycles were spent on: of a procedure, an image, everything. The findings of
//! `dcpi why`, summed by what takes the time.

use std::io::Write;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use code::isa::Syntax;

use super::Outcome;
use super::costs::{self, OnMachine};
use super::ideal::Modelled;
use super::why::{Found, Question, findings, once};
use crate::options::{Chosen, Output};
use query::error::AnalysisError;
use query::load::Samples;
use query::problem;
use report::{Selection, WhatcgReport};

/// `dcpi whatcg`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct Whatcg {
    /// Only this image: name, path, or id (may be cut short)
    #[arg(value_name = "IMAGE", value_parser = NonEmptyStringValueParser::new())]
    pub image: Option<String>,
    /// Only procedures with this in their name, or the one with this address in it (0x1040)
    #[arg(value_name = "PROCEDURE", value_parser = NonEmptyStringValueParser::new())]
    pub procedure: Option<String>,
    /// Leave out procedures with fewer samples than this [default: half a percent of all]
    #[arg(long, value_name = "N")]
    pub min_samples: Option<u64>,
    #[command(flatten)]
    pub on: OnMachine,
    #[command(flatten)]
    pub chosen: Chosen,
    #[command(flatten)]
    pub output: Output,
}

const NOTES: &str = "\
The findings of dcpi why, summed by what takes the time. Shares are of all selected time and add \
up to 100 %. A cause has at least the time that findings with a probability of 0.95 or more give \
it, and at most all the time that it may take. \"The processor's limit\" is the time that the \
instructions need in the best case, of all procedures that were explained.

Exit codes: 0 done; 1 done, but part of the database could not be read; 2 could not.";

pub(crate) fn run(args: &Whatcg, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let images: Vec<String> = args.image.iter().cloned().collect();
    let samples = args.chosen.question(&images)?.samples()?;
    let damage = problem::damage(&samples.problems);
    super::write(&report(args, samples).map_err(|error| error.beside(damage))?, &args.output, out)
}

fn report(args: &Whatcg, mut samples: Samples) -> Result<WhatcgReport, AnalysisError> {
    let question = Question {
        procedure: args.procedure.as_deref(),
        on: &args.on,
        syntax: Syntax::Att,
        waits: false,
        least: args.min_samples,
    };
    let found = findings(&question, &mut samples, &Modelled::new())?;
    let Found { findings, model, samples: total, explained: (explained, procedures), .. } = found;
    let epochs = samples.epochs.iter().map(|epoch| epoch.meta().clone()).collect();
    Ok(WhatcgReport {
        selection: Selection { db: samples.db.root().display().to_string(), epochs },
        events: costs::columns(&samples),
        machine: model,
        procedures,
        samples: total,
        explained,
        findings,
        problems: once(found.problems),
    })
}
