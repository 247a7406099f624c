//! `dcpi whatcg`: what cycles were spent on: of a procedure, an image, everything.

use std::io::Write;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use stalls::TimeBreakdown;

use super::Outcome;
use super::costs::{self, OnMachine};
use crate::options::{Chosen, Output};
use annotate::explained::{self, Asked, Explanation};
use names::named;
use query::error::AnalysisError;
use query::load::Samples;
use query::problem::{self, Problem};
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
    /// Leave out procedures with fewer samples than this
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub min_samples: u64,
    #[command(flatten)]
    pub on: OnMachine,
    #[command(flatten)]
    pub chosen: Chosen,
    #[command(flatten)]
    pub output: Output,
}

const NOTES: &str = "\
Shares are of the time of the procedures that were explained; the header gives their share of all \
time. Each cause has a range: at least the time that no other cause can have taken, at most all \
the time that this cause can have taken. Several causes may explain the same cycles. The rows \
dynamic, static and execution have ranges, too, unless samples of instructions or exact counts \
tell how often code was executed: a procedure that is executed twice as often spends twice as \
much of its time on its best case. The time of a procedure is not known if most of it may have \
been spent on waiting for memory, and on processors on which it was not measured how much slower \
than its best case code is. dcpi ideal --sampled counts executions; dcpi lost measures what \
misses cost.

Exit codes: 0 done; 1 done, but part of the database could not be read; 2 could not.";

pub(crate) fn run(args: &Whatcg, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let images: Vec<String> = args.image.iter().cloned().collect();
    let samples = args.chosen.question(&images)?.samples()?;
    let damage = problem::damage(&samples.problems);
    super::write(&report(args, samples).map_err(|error| error.beside(damage))?, &args.output, out)
}

fn report(args: &Whatcg, mut samples: Samples) -> Result<WhatcgReport, AnalysisError> {
    let mut problems = std::mem::take(&mut samples.problems);
    let (machine, model) = args.on.model(&samples, None)?;
    let asked = Asked {
        machine: &machine,
        procedure: args.procedure.as_deref(),
        least: args.min_samples,
        syntax: None,
    };
    let places = args.on.places();
    let (mut sums, mut procedures) = (TimeBreakdown::default(), 0_u64);
    let told = |found: &Explanation<'_>| found.explained.sums.clone();
    let covered = explained::each(&samples, &asked, &places, &mut problems, told, |of_one| {
        sums.add(&of_one);
        procedures += 1;
    })?;
    if procedures == 0 {
        let what =
            args.procedure.as_ref().map_or_else(String::new, |asked| match named::address(asked) {
                Some(_) => format!(" at {asked}"),
                None => format!(" called {asked:?}"),
            });
        if let Some(problem) =
            problems.iter().find(|problem| matches!(problem, Problem::NoMachine { .. }))
        {
            return Err(AnalysisError::Refused(problem.to_string()));
        }
        let why = format!(
            "no procedure{what} with at least {} has code that can be read and analysed",
            report::counted(args.min_samples, "sample")
        );
        return Err(AnalysisError::Refused(format!("{why}; procedures with samples: dcpi prof")));
    }
    let epochs = samples.epochs.iter().map(|epoch| epoch.meta().clone()).collect();
    Ok(WhatcgReport {
        selection: Selection { db: samples.db.root().display().to_string(), epochs },
        events: costs::columns(&samples),
        machine: model,
        procedures,
        samples: covered.samples,
        explained: covered.explained,
        sums,
        problems,
    })
}
