//! `dcpi callers` and `dcpi callees`: from where a procedure's time came, and where it went.

use std::io::Write;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::Outcome;
use super::stacks::{Loaded, callee, functions, nobody_has};
use crate::options::{Chosen, DisplayArgs, OfThreads, Output, RowLimit};
use calls::{ByCalls, Estimate, Neighbour, Roots, SubjectId, Timed};
use model::CALLS;
use query::error::AnalysisError;
use report::{
    Callee, CalleesReport, CallersReport, Inclusive, NeighbourRow, Neighbours, OfStacks,
    OmittedRows,
};
use stats::Confidence;

/// `dcpi callers` and `dcpi callees`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct CallersArgs {
    /// The procedure: its name, a part of its name, or the address of its begin, where needed with
    /// its image before it (name, path, or id)
    #[arg(
        value_name = "[IMAGE] PROCEDURE",
        num_args = 1..=2,
        required = true,
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub subject: Vec<String>,
    /// Leave out the kernel's frames: what the kernel does for a procedure is its own time
    #[arg(long)]
    pub no_kernel: bool,
    /// Leave out inlined functions: their time is that of the procedure with the code
    #[arg(long)]
    pub no_inlined: bool,
    #[command(flatten)]
    pub max: RowLimit,
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
Shares are of the time of the procedure with all that it called, and sum up to 100 %. Of a stack \
that has the procedure several times, the caller of the outermost call counts and the callee of \
the innermost. [itself] is the procedure's own time, [first] a procedure that nothing called. \
A function that is inlined into a procedure is a \
caller and a callee of its own, marked (inlined), where debug information is on this machine. \
Other names in brackets say why frames are not known ([truncated]), or why a thread did not run \
([futex]; --event off-cpu). Samples without a stack are [no stack]. For callers of callers, and so \
on: dcpi tree --bottom-up --from PROCEDURE.

Exit codes: 0 done; 1 done, but part of the database could not be read; 2 could not.";

pub(crate) fn callers(args: &CallersArgs, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let report = report(args, (calls::callers, ByCalls::callers), "[first]")?;
    super::write(&CallersReport::new(report), &args.output, out)
}

pub(crate) fn callees(args: &CallersArgs, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let report = report(args, (calls::callees, ByCalls::callees), "[itself]")?;
    super::write(&CalleesReport::new(report), &args.output, out)
}

/// How neighbours are found, without frames that the predicate holds of.
type Find = fn(&Timed, SubjectId, &dyn Fn(SubjectId) -> bool, Confidence) -> Vec<Neighbour>;

/// How neighbours are found by numbers of calls.
type FindByCalls = fn(&ByCalls, SubjectId) -> Vec<Neighbour>;

/// The callers or callees; `nobody` is the name of none.
fn report(
    args: &CallersArgs,
    (find, find_by_calls): (Find, FindByCalls),
    nobody: &str,
) -> Result<Neighbours, AnalysisError> {
    let question = args.threads.narrow(args.chosen.question(&[])?);
    let look = (&args.look, functions(args.no_inlined));
    let elsewhere = || nobody_has(&args.subject, &question, (&args.chosen, look));
    let mut loaded = Loaded::of(&question, look)?;
    if let Some((at, by_calls)) = loaded.counted(&args.chosen) {
        let calls = loaded.calls.events.iter().find(|event| event.name == CALLS).cloned();
        let calls = calls.ok_or_else(elsewhere)?;
        let subject = loaded.procedure(&args.subject, &calls)?;
        let of = loaded.counted_head((at, &by_calls), args.look.confidence);
        let inclusive = by_calls.inclusive();
        let inclusive = inclusive.get(subject as usize).copied().unwrap_or_default();
        let found = find_by_calls(&by_calls, subject);
        return Ok(neighbours(args, loaded, of, (subject, inclusive), &found, nobody));
    }
    let event = loaded.event(&args.chosen)?;
    let subject = loaded.procedure(&args.subject, &event).map_err(|error| match error {
        AnalysisError::NoProcedure { .. } if question.whose.is_by_thread() => elsewhere(),
        error => error,
    })?;
    let confidence = args.look.confidence;
    let timed = loaded.calls.timed(&event, Roots::Procedures);
    let inclusive = timed.inclusive(loaded.calls.subjects.len(), confidence);
    let inclusive = inclusive.get(subject as usize).copied().unwrap_or_default();
    let is_left_out = |subject| args.no_kernel && loaded.calls.is_kernel(subject);
    let found = find(&timed, subject, &is_left_out, confidence);
    if found.is_empty() {
        return Err(elsewhere());
    }
    let of = loaded.head(&event, &timed, confidence);
    Ok(neighbours(args, loaded, of, (subject, inclusive), &found, nobody))
}

/// The report of a procedure and those that were found.
fn neighbours(
    args: &CallersArgs,
    loaded: Loaded,
    of: OfStacks,
    (subject, inclusive): (SubjectId, Estimate),
    found: &[Neighbour],
    nobody: &str,
) -> Neighbours {
    let shown = args.max.of(found.len());
    let row = |neighbour: &Neighbour| NeighbourRow {
        procedure: match neighbour.subject {
            Some(subject) => callee(&loaded.calls.subjects, subject),
            None => Callee::nobody(nobody),
        },
        time: neighbour.estimate.time,
        share: neighbour.estimate.share,
        stacks: neighbour.estimate.stacks,
    };
    Neighbours {
        of,
        procedure: callee(&loaded.calls.subjects, subject),
        inclusive: Inclusive { time: inclusive.time, share: inclusive.share },
        rows: found.iter().take(shown).map(row).collect(),
        omitted: OmittedRows { rows: found.len() - shown },
        problems: loaded.problems,
    }
}
