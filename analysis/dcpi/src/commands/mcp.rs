//! `dcpi mcp`: reports for agents.

use clap::Args;

use super::Outcome;
use crate::options::Place;
use query::error::AnalysisError;

/// `dcpi mcp`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct Mcp {
    #[command(flatten)]
    pub place: Place,
    /// Also review this store of a fleet, with the dcpi-fleet beside this program
    #[arg(long, value_name = "STORE")]
    pub fleet: Option<String>,
}

const NOTES: &str = "\
The Model Context Protocol on standard input and output: an agent's client starts this command. \
Tools: epochs, why, prof, callers, callees, list, diff, timeline, explain; with --fleet also \
fleet_review. Each only reads, runs for at most two minutes and answers with at most 24 KiB, the \
first line being the dcpi command that prints the same.

Exit codes: 0 the client closed the standard input; 2 it does not speak the protocol.";

/// Serves until the standard input ends.
///
/// # Errors
/// The path of this program is not known, or the client does not speak the protocol.
pub fn run(args: &Mcp) -> Result<Outcome, AnalysisError> {
    let refused = |error: std::io::Error| {
        AnalysisError::Refused(format!(
            "{error}; an agent's client starts dcpi mcp, see dcpi mcp --help"
        ))
    };
    let dcpi = std::env::current_exe().map_err(refused)?;
    let db = args.place.db().to_owned();
    mcp::serve(mcp::Reads { dcpi, db, fleet: args.fleet.clone() }).map_err(refused)?;
    Ok(Outcome::default())
}
