//! The subcommands, one file each.

use std::io::Write;

use serde::Serialize;

use crate::args::{Command, Format, Output};
use crate::error::AnalysisError;
use crate::problem::Problem;
use crate::report::Report;
use crate::terminal;

mod calc;
mod cat;
mod check;
mod clean;
mod costs;
mod diff;
mod epochs;
mod export;
mod flow;
pub mod html;
mod images;
mod list;
mod loops;
mod prof;
pub mod record;
mod stats;
pub mod top;
mod topcounts;
mod topstalls;
mod transfer;
mod truth;
mod whatcg;

pub use calc::Calc;
pub use cat::Cat;
pub use check::Check;
pub use clean::Clean;
pub use diff::DiffArgs;
pub use export::{Export, Target};
pub use flow::Flow;
pub use images::ImagesArgs;
pub use list::List;
pub use stats::StatsArgs;
pub use topcounts::TopcountsArgs;
pub use topstalls::Topstalls;
pub use transfer::{Copy, Merge, Tar};
pub use truth::Truth;
pub use whatcg::Whatcg;

/// How a command ended that did its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The report is what it should be; else it says what is not.
    pub sound: bool,
    /// What the reader must know and the form of the report has no place for: for standard error.
    pub aside: Vec<String>,
    /// Another exit code than these two: that of a command that was run.
    pub code: Option<u8>,
}

impl Default for Outcome {
    fn default() -> Self {
        Self { sound: true, aside: Vec::new(), code: None }
    }
}

/// Runs a command and writes its report.
///
/// # Errors
/// Whatever keeps it from its work; see [`AnalysisError`].
pub fn run(command: &Command, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    match command {
        Command::Prof(args) => prof::run(args, out),
        Command::List(args) => list::run(args, out),
        Command::Calc(args) => calc::run(args, out),
        Command::Whatcg(args) => whatcg::run(args, out),
        Command::Topstalls(args) => topstalls::run(args, out),
        Command::Flow(args) => flow::run(args, out),
        Command::Truth(args) => truth::run(args, out),
        Command::Topcounts(args) => topcounts::run(args, out),
        Command::Stats(args) => stats::run(args, out),
        Command::Diff(args) => diff::run(args, out),
        Command::Images(args) => images::run(args, out),
        Command::Epochs(args) => epochs::run(args, out),
        Command::Export(args) => export::run(args, out),
        Command::Cat(args) => cat::run(args, out),
        Command::Check(args) => check::run(args, out),
        Command::Copy(args) => transfer::copy(args, out),
        Command::Merge(args) => transfer::merge(args, out),
        Command::Tar(args) => transfer::tar(args, out),
        Command::Record(args) => record::run(args, out),
        Command::Clean(args) => clean::run(args, out),
        Command::Top(args) => top::run(args, out),
        Command::Html(args) => html::run(args, out),
    }
}

/// The object that a report is as JSON.
#[derive(Serialize)]
struct Versioned<T> {
    schema: Schema,
    #[serde(flatten)]
    report: T,
}

/// What the fields of an object mean: `docs/output.md` has them by name.
#[derive(Serialize)]
struct Schema {
    name: String,
    version: u32,
}

fn versioned<R: Report>(report: &R) -> impl Serialize + '_ {
    Versioned { schema: Schema { name: format!("dcpi.{}", R::NAME), version: R::VERSION }, report: report.json() }
}

fn write(report: &impl Report, output: &Output, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let mut aside = Vec::new();
    match output.format {
        Format::Text => report.text(&terminal::style(output.full_names), out)?,
        Format::Json => {
            serde_json::to_writer_pretty(&mut *out, &versioned(report)).map_err(AnalysisError::Json)?;
            writeln!(out)?;
        }
        Format::Csv => {
            report.csv(out)?;
            aside.extend(report.problems().iter().filter(|problem| problem.is_serious()).map(Problem::to_string));
        }
    }
    let sound = !report.problems().iter().any(Problem::is_serious);
    Ok(Outcome { sound, aside, code: None })
}
