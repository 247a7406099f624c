//! `dcpi tree`: the tree of calls, from the threads' first procedures or from those that took the
//! time.

use std::io::Write;

use clap::Args;

use super::Outcome;
use super::stacks::{Loaded, callee, functions, nobody_has};
use super::trees::{TreeOf, roots, tree_rows};
use crate::options::{Chosen, DisplayArgs, OfCalls, OfThreads, Output, parse_min};
use calls::{Direction, EventCalls};
use names::procedures::Rows;
use query::error::AnalysisError;
use report::{OmittedCalls, TreeReport};

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
    /// A tree for each value of a label (Go) or attribute (OpenTelemetry) that programs set for
    /// their threads
    #[arg(long, value_name = "KEY", conflicts_with = "by_thread")]
    pub by_attribute: Option<String>,
    /// A row for each source line of a procedure that took time or called another
    #[arg(long, conflicts_with_all = ["from", "no_inlined"])]
    pub lines: bool,
    /// Leave out calls with less than this share of all time
    #[arg(long, value_name = "P%", default_value = "1%", value_parser = parse_min)]
    pub min: f64,
    #[command(flatten)]
    pub part: OfCalls,
    #[command(flatten)]
    pub look: DisplayArgs,
    #[command(flatten)]
    pub chosen: Chosen,
    #[command(flatten)]
    pub threads: OfThreads,
    #[command(flatten)]
    pub output: Output,
}

const NOTES: &str = "\
A row is a call: a procedure with all callers above it. % is the share of all time of the \
procedure and of all that it called there; own % is the procedure's own. A procedure that is \
called from several places has several rows; dcpi prof --inclusive adds them up. Calls of which \
each only leads to the next are one row (a > b); -v shows each.

With --bottom-up, the first rows are the procedures that took the time, and % is their own time; \
below each are its callers, and % is the part of that time that was for the caller.

Exit codes: 0 done; 1 done, but part of the database could not be read; 2 could not.";

pub(crate) fn run(args: &TreeArgs, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    super::write(&report(args)?, &args.output, out)
}

fn report(args: &TreeArgs) -> Result<TreeReport, AnalysisError> {
    let question = args.threads.narrow(args.chosen.question(&[])?);
    let rows = if args.lines { Rows::Lines } else { functions(args.part.no_inlined) };
    let look = (&args.look, rows);
    let mut loaded = Loaded::of(&question, look)?;
    if args.lines {
        // Most lines with samples have no stack of their own: stacks alone tell their callers.
        loaded.forget_samples();
    }
    let event = loaded.event(&args.chosen)?;
    let of = TreeOf {
        direction: if args.bottom_up { Direction::BottomUp } else { Direction::TopDown },
        part: &args.part,
        roots: roots(args.by_thread, args.by_attribute.as_deref()),
        min: args.min,
        confidence: args.look.confidence,
    };
    let (tree, timed, from) = loaded.tree(&event, &of)?;
    if from.is_some() && tree.nodes.is_empty() {
        return Err(nobody_has(&args.part.from, &question, (&args.chosen, look)));
    }
    let all = timed.whole().occurrences;
    // The share refers to the stacks with the procedure, not to all stacks.
    let contexts = if from.is_some() { timed.contexts().clone() } else { event.contexts.clone() };
    let event = EventCalls { contexts, ..event };
    Ok(TreeReport {
        of: loaded.head(&event, &timed, args.look.confidence),
        from: from.map(|from| callee(&loaded.calls.subjects, from)),
        direction: if args.bottom_up { "bottom-up" } else { "top-down" },
        rows: tree_rows(&tree, &loaded.calls.subjects, all),
        omitted: OmittedCalls {
            rows: tree.left_out_nodes,
            share: tree.left_out / all.max(f64::MIN_POSITIVE),
        },
        problems: loaded.problems,
    })
}
