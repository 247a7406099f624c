//! `dcpi tree`: the tree of calls, from the threads' first procedures or from those that took the
//! time.

use std::io::Write;

use clap::Args;

use super::Outcome;
use super::stacks::{Loaded, tree_rows};
use crate::options::{Chosen, Look, Output, Threads, parse_min};
use calls::{Direction, Tree};
use query::error::AnalysisError;
use report::TreeReport;

/// `dcpi tree`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct TreeArgs {
    /// Begin at the procedures that took the time; below each are its callers
    #[arg(long)]
    pub bottom_up: bool,
    /// A tree for each thread; threads of short-lived processes are joined by command
    #[arg(long)]
    pub by_thread: bool,
    /// Leave out calls with less than this share of all time
    #[arg(long, value_name = "P%", default_value = "1%", value_parser = parse_min)]
    pub min: f64,
    /// Threads of the call stacks.
    #[command(flatten)]
    pub threads: Threads,
    /// Idle loop, confidence and debug files.
    #[command(flatten)]
    pub look: Look,
    /// Events, epochs, database and scope of the stacks.
    #[command(flatten)]
    pub chosen: Chosen,
    /// Format and length of names.
    #[command(flatten)]
    pub output: Output,
}

const NOTES: &str = "\
A row is a call: a procedure with all callers above it. % is the share of all time of the \
procedure and of all that it called there; own % is the procedure's own. A procedure that is \
called from several places has several rows; dcpi prof --inclusive adds them up.

Exit codes: 0 done; 1 done, but part of the database could not be read; 2 could not.";

pub(crate) fn run(args: &TreeArgs, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    super::write(&report(args)?, &args.output, out)
}

fn report(args: &TreeArgs) -> Result<TreeReport, AnalysisError> {
    let mut loaded = Loaded::of(&args.chosen.question(&[])?, &args.threads, &args.look)?;
    let event = loaded.event(&args.chosen)?;
    let confidence = args.look.confidence;
    let timed = loaded.calls.timed(&event, args.by_thread);
    let direction = if args.bottom_up { Direction::BottomUp } else { Direction::TopDown };
    let tree = Tree::of(&timed, direction, args.min, confidence);
    let all = timed.whole().occurrences;
    Ok(TreeReport {
        of: loaded.head(&event, &timed, confidence),
        is_bottom_up: args.bottom_up,
        rows: tree_rows(&tree, &loaded.calls.subjects, all),
        omitted: (tree.left_out_nodes, tree.left_out / all.max(f64::MIN_POSITIVE)),
        problems: loaded.problems,
    })
}
