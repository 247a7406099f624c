//! The subcommands, one file each.

use std::io::Write;

use crate::args::{Command, Format};
use crate::error::AnalysisError;
use crate::problem::Problem;
use crate::report::Report;

mod diff;
mod epochs;
mod images;
mod prof;
mod stats;
mod topcounts;

pub use diff::DiffArgs;
pub use images::ImagesArgs;
pub use stats::StatsArgs;
pub use topcounts::TopcountsArgs;

/// How a command ended that did its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The report is what it should be; else it says what is not.
    pub sound: bool,
    /// What the reader must know and the form of the report has no place for: for standard error.
    pub aside: Vec<String>,
}

/// Runs a command and writes its report.
///
/// # Errors
/// Whatever keeps it from its work; see [`AnalysisError`].
pub fn run(command: &Command, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    match command {
        Command::Prof(args) => prof::run(args, out),
        Command::Topcounts(args) => topcounts::run(args, out),
        Command::Stats(args) => stats::run(args, out),
        Command::Diff(args) => diff::run(args, out),
        Command::Images(args) => images::run(args, out),
        Command::Epochs(args) => epochs::run(args, out),
    }
}

fn write(report: &impl Report, format: Format, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let mut aside = Vec::new();
    match format {
        Format::Text => report.text(out)?,
        Format::Json => {
            serde_json::to_writer_pretty(&mut *out, &report.json()).map_err(AnalysisError::Json)?;
            writeln!(out)?;
        }
        Format::Csv => {
            report.csv(out)?;
            aside.extend(report.problems().iter().filter(|problem| problem.is_serious()).map(Problem::to_string));
        }
    }
    let sound = !report.problems().iter().any(Problem::is_serious);
    Ok(Outcome { sound, aside })
}
