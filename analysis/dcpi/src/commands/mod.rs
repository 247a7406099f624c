//! The subcommands, one file each.

use std::io::Write;

use serde::Serialize;

use crate::options::{Format, Output};
use crate::terminal;
use query::error::AnalysisError;
use query::problem::Problem;
use report::Report;
use report::Schema;
use report::fields::SchemaName;

mod baseline;
mod blocks;
mod builds;
mod by_thread;
pub(crate) mod calc;
pub(crate) mod calibrate;
pub(crate) mod callers;
pub(crate) mod cat;
mod chains;
pub(crate) mod check;
pub(crate) mod clean;
mod correct;
mod costs;
pub(crate) mod count;
mod cpu_ticks;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod epochs;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod flame;
pub(crate) mod flow;
pub mod html;
pub(crate) mod ideal;
pub(crate) mod images;
mod inclusive;
mod input;
pub(crate) mod list;
mod loops;
pub(crate) mod lost;
pub(crate) mod machine;
pub(crate) mod mcp;
mod page;
mod passing;
pub(crate) mod perturb;
pub(crate) mod prof;
pub(crate) mod push;
pub mod record;
mod scratch;
pub mod serve;
mod source_lines;
mod stacks;
pub(crate) mod stats;
pub(crate) mod time;
pub(crate) mod timeline;
pub mod top;
pub(crate) mod topcounts;
pub(crate) mod topstalls;
pub(crate) mod trace;
pub(crate) mod transfer;
pub(crate) mod tree;
mod trees;
pub(crate) mod truth;
pub(crate) mod whatcg;
pub(crate) mod why;

pub use calc::Calc;
pub use calibrate::CalibrationWork;
pub use callers::CallersArgs;
pub use cat::Cat;
pub use check::Check;
pub use clean::Clean;
pub use count::Count;
pub use diff::DiffArgs;
pub use doctor::Doctor;
pub use explain::Explain;
pub use export::Export;
pub use flame::FlameArgs;
pub use flow::Flow;
pub use ideal::Ideal;
pub use images::ImagesArgs;
pub use list::List;
pub use lost::Lost;
pub use machine::MachineArgs;
pub use mcp::Mcp;
pub use perturb::Perturb;
pub use push::Push;
pub use stats::StatsArgs;
pub use time::Time;
pub use timeline::TimelineArgs;
pub use topcounts::TopcountsArgs;
pub use topstalls::Topstalls;
pub use trace::Trace;
pub use transfer::{Copy, Merge, Tar};
pub use tree::TreeArgs;
pub use truth::Truth;
pub use whatcg::Whatcg;
pub use why::Why;

/// The end of a command that did its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether the report is complete; otherwise it has a problem that says what is missing.
    pub sound: bool,
    /// Notes that the format of the report has no place for: lines for standard error.
    pub aside: Vec<String>,
    /// Exit code of the command that was run, instead of 0 or 1.
    pub code: Option<u8>,
}

impl Default for Outcome {
    fn default() -> Self {
        Self { sound: true, aside: Vec::new(), code: None }
    }
}

/// The object that a report is as JSON.
#[derive(Serialize)]
struct Versioned<T> {
    schema: SchemaName,
    #[serde(flatten)]
    report: T,
}

/// The sum of the weights of one context's stacks. Squares are in units of 1024.
fn of_stacks(value: model::Value) -> ::stats::tally::Tally {
    let (occurrences, squares) = (value.weight as f64, value.squares as f64 * (1024.0 * 1024.0));
    let heaviest = if occurrences > 0.0 { squares / occurrences } else { 0.0 };
    ::stats::tally::Tally {
        samples: value.stacks,
        occurrences,
        squares,
        heaviest,
        ..Default::default()
    }
}

/// The name of time that no call stacks report.
const NO_STACKS: &str = "[no call stacks]";

/// Stacks that would be as sure as the samples of a time without stacks, about.
const SURE_AS_STACKS: u64 = 1000;

/// Time that samples report and no call stacks.
fn of_no_stacks(time: f64) -> ::stats::tally::Tally {
    let heaviest = time / SURE_AS_STACKS as f64;
    let squares = time * heaviest;
    ::stats::tally::Tally { samples: 0, occurrences: time, squares, heaviest, ..Default::default() }
}

/// The schemas of all reports, in the order of the guide's page of fields.
pub fn schemas() -> Vec<Schema> {
    vec![
        Schema::of::<report::ProfReport>(),
        Schema::of::<report::CallersReport>(),
        Schema::of::<report::CalleesReport>(),
        Schema::of::<report::TreeReport>(),
        Schema::of::<report::ListReport>(),
        Schema::of::<report::CalcReport>(),
        Schema::of::<report::WhyReport>(),
        Schema::of::<report::WhatcgReport>(),
        Schema::of::<report::TopstallsReport>(),
        Schema::of::<report::LostReport>(),
        Schema::of::<report::CountReport>(),
        Schema::of::<report::MachineReport>(),
        Schema::of::<report::TimeReport>(),
        Schema::of::<report::TraceReport>(),
        Schema::of::<report::CorrectionReport>(),
        report::trace_events::schema(),
        Schema::of::<report::PerturbReport>(),
        Schema::of::<blocks::Table>(),
        Schema::of::<report::TruthReport>(),
        Schema::of::<report::TopcountsReport>(),
        Schema::of::<report::TimelineReport>(),
        Schema::of::<report::StatsReport>(),
        Schema::of::<report::DiffReport>(),
        Schema::of::<report::ImagesReport>(),
        Schema::of::<report::EpochsReport>(),
        Schema::of::<cat::Dump>(),
        Schema::of::<check::Checked>(),
        Schema::of::<clean::Recordings>(),
        Schema::of::<report::TopReport>(),
        Schema::of::<report::DoctorReport>(),
    ]
}

/// The guide's page of the fields of all reports, `docs/src/output.md`.
pub fn page_of_fields() -> String {
    report::page_of_fields(&schemas())
}

fn versioned<R: Report>(report: &R) -> impl Serialize + '_ {
    Versioned {
        schema: SchemaName { name: format!("dcpi.{}", R::NAME), version: R::VERSION },
        report: report.json(),
    }
}

/// Writes a report, and then by `keep` the files that have the rest of the same work: neither is
/// lost where the other cannot be written.
fn write_and_keep(
    report: &impl Report,
    output: &Output,
    out: &mut dyn Write,
    keep: impl FnOnce(&mut dyn Write) -> Result<(), AnalysisError>,
) -> Result<Outcome, AnalysisError> {
    let mut flushed = || {
        let outcome = write(report, output, out)?;
        out.flush()?;
        Ok::<_, AnalysisError>(outcome)
    };
    let written = flushed();
    let kept = keep(out);
    let outcome = written?;
    kept?;
    Ok(outcome)
}

fn write(
    report: &impl Report,
    output: &Output,
    out: &mut dyn Write,
) -> Result<Outcome, AnalysisError> {
    let mut aside = Vec::new();
    match output.format {
        Format::Text => report.text(&terminal::style(output.full_names, output.verbose), out)?,
        Format::Json => {
            serde_json::to_writer_pretty(report::Spelt(&mut *out), &versioned(report))
                .map_err(AnalysisError::Json)?;
            writeln!(out)?;
        }
        Format::Csv => {
            report.csv(out)?;
            aside.extend(
                report
                    .problems()
                    .iter()
                    .filter(|problem| problem.is_serious())
                    .map(Problem::to_string),
            );
        }
    }
    let sound = !report.problems().iter().any(Problem::is_serious);
    Ok(Outcome { sound, aside, code: None })
}
