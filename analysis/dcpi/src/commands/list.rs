//! `dcpi list`: a procedure's source lines and instructions, with samples.

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use image::{ImageKind, Procedure};

use super::Outcome;
use super::costs::{Finder, OnMachine};
use super::source_lines;
use crate::options::{Chosen, Output, ProcedureArguments, SyntaxArgument, parse_confidence};
use annotate::graphs::Surveyed;
use annotate::listing;
use names::named::{self, Candidate, InlinedInto, Meant};
use names::procedures::{self, Known, Needed, Places};
use names::sources::Sources;
use query::error::{AnalysisError, quoted};
use query::load::{self, ImageSamples, Samples};
use query::problem::{self, Problem};
use query::progress;
use report::{Costs, EventColumn, ImageName, ListReport, Selection, View, thousands};
use stats::tally::Tally;
use stats::{Confidence, exact, wilson};

/// `dcpi list`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct List {
    /// The image: name, path, or id (may be cut short); or a source file whose functions an
    /// interpreter ran
    #[arg(value_name = "IMAGE", value_parser = NonEmptyStringValueParser::new())]
    pub image: String,
    /// The procedure: its name, a part of its name, or an address in it (0x1040); of a source file
    /// a function [default: all of them]
    #[arg(value_name = "PROCEDURE", value_parser = NonEmptyStringValueParser::new())]
    pub procedure: Option<String>,
    /// Source lines only, by function and file
    #[arg(long, conflicts_with_all = ["asm", "both"])]
    pub source: bool,
    /// Instructions only
    #[arg(long, conflicts_with = "both")]
    pub asm: bool,
    /// Instructions, and above them their source lines [default, where source lines are known]
    #[arg(long)]
    pub both: bool,
    #[command(flatten)]
    pub syntax: SyntaxArgument,
    /// Samples where the processor reported them, without correction of the skid
    #[arg(long)]
    pub raw: bool,
    /// Executions, cycles and causes of stalls of each instruction, as in dcpi calc
    #[arg(long, conflicts_with_all = ["source", "raw"])]
    pub why: bool,
    /// Only the blocks that have 90 % of the samples
    #[arg(long)]
    pub hot: bool,
    /// Directory of source files that are no longer where they were compiled (may be repeated)
    #[arg(long, value_name = "DIR")]
    pub source_dir: Vec<PathBuf>,
    #[command(flatten)]
    pub on: OnMachine,
    /// Confidence of the intervals, in percent
    #[arg(long, value_name = "PERCENT", default_value = "95", value_parser = parse_confidence)]
    pub confidence: Confidence,
    #[command(flatten)]
    pub chosen: Chosen,
    #[command(flatten)]
    pub output: Output,
}

const NOTES: &str = "\
Shares are of the procedure's samples; the column ± is half the width of the share's interval. \
Exact counts (dcpi ideal) have no interval. Most processors report a sample at the instruction \
after the one that took the time: samples skid. dcpid measures the skid when it starts, and dcpi \
list moves each sample back to the instruction that took the time. At the begin of a loop samples \
stay: they may belong to the loop's last branch. --raw leaves all samples where the processor \
reported them. The samples of an inlined call belong to the inlined function, and calls are named \
from the inside to the outside. > marks the target of a jump.
With --why there are more columns, and above an instruction what it may have waited for. times \
per call: executions for one call of the procedure, with the confidence in them; cycles: of one \
execution, the estimate and the worst case. Columns without any number are left out, and where \
there is no room for them also ± and confidence.

Exit codes: 0 done; 1 done, but part of the database could not be read; 2 could not.";

pub(crate) fn run(args: &List, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let question = args.chosen.question(std::slice::from_ref(&args.image))?;
    let samples = match question.samples() {
        Err(only @ AnalysisError::FramesOnly { .. }) => {
            return super::write(&source_lines::report(args, &question, only)?, &args.output, out);
        }
        samples => samples?,
    };
    let Some(procedure) = args.procedure.clone() else {
        return Err(AnalysisError::Refused(format!(
            "{} is an image, of which dcpi list shows one procedure: dcpi list {} PROCEDURE{}; its \
             procedures, the hottest first: dcpi prof {}",
            args.image,
            quoted(&args.image),
            if args.source { " --source" } else { "" },
            quoted(&args.image),
        )));
    };
    let subject = ProcedureArguments { image: args.image.clone(), procedure };
    let damage = problem::damage(&samples.problems);
    let report = report(args, &subject, samples).map_err(|error| error.beside(damage))?;
    super::write(&report, &args.output, out)
}

fn report(
    args: &List,
    subject: &ProcedureArguments,
    mut samples: Samples,
) -> Result<ListReport, AnalysisError> {
    let places = args.on.places();
    let _stage = progress::stage("reading code and debug information", 0);
    let mut problems = std::mem::take(&mut samples.problems);
    let (candidates, without) = candidates(&samples, &places, &mut problems);
    let (Candidate { image, known, .. }, procedure) =
        meant(&candidates, &without, subject, &mut problems)?;
    let from = *image;
    let info = if args.asm { None } else { known.debug_info(image, &places, &mut problems) };
    let lines = info.as_ref().and_then(|info| procedures::lines(info, image, &mut problems));
    let syntax = args.syntax.syntax();
    let mut listing = listing::of(image, known, procedure, Some(syntax), lines.as_ref());
    problems.append(&mut listing.problems);
    let skid = samples.skid().filter(|_| !args.raw && listing.isa.is_some());
    skid.into_iter().for_each(|skid| listing.attribute(skid));
    if args.hot {
        listing.keep_hot();
    }
    if let Some(why) = lines.as_ref().and_then(image::Lines::cut) {
        problems.push(Problem::LinesCut {
            image: image.record.name.clone(),
            id: image.record.id,
            why,
        });
    }
    let record = &image.record;
    let (name, path) = (record.name.clone(), record.path.clone());
    let image = ImageName { id: record.id, kind: record.kind, name, path, ambiguous: false };
    let epochs = samples.epochs.iter().map(|epoch| epoch.meta().clone()).collect();
    let costs = args.why.then(|| costs(args, &samples, (from, known), procedure, &mut problems));
    let has_lines = listing.instructions.iter().any(|instruction| !instruction.frames.is_empty());
    let view = match args {
        _ if !has_lines => View::Instructions,
        List { source: true, .. } => View::Source,
        List { asm: true, .. } => View::Instructions,
        _ => View::Both,
    };
    let events = columns(&samples, &listing.counts, args.confidence);
    let shares = |counts: &[u64]| {
        counts
            .iter()
            .zip(&listing.counts)
            .zip(&samples.events)
            .map(|((count, all), event)| match event.is_exact() {
                true => exact(*count, *all),
                false => wilson(*count, *all, args.confidence),
            })
            .collect()
    };
    let shares =
        listing.instructions.iter().map(|instruction| shares(&instruction.counts)).collect();
    let names_for = info.as_ref().map(image::DebugInfo::names_for).unwrap_or_default();
    // Of code that was kept, without a file: it ran before its samples were seen.
    let seen = UNIX_EPOCH.checked_add(Duration::from_secs(record.first_seen_unix_s));
    let file = info.as_ref().and_then(image::DebugInfo::path);
    let written = file.and_then(|path| std::fs::metadata(path).ok()?.modified().ok());
    let sources = Sources::below(args.source_dir.clone(), names_for).built(written.or(seen));
    let mut report = ListReport {
        selection: Selection { db: samples.db.root().display().to_string(), epochs },
        events,
        confidence: args.confidence,
        whose: samples.whose.clone(),
        image,
        aliases: known.aliases(procedure, &places),
        listing,
        shares,
        skid: skid.and_then(|(event, skid)| Some((samples.events.get(event)?.name.clone(), skid))),
        costs,
        view,
        is_hot: args.hot,
        stacks: None,
        debug_file: info.and_then(|info| info.path().map(|path| path.display().to_string())),
        sources,
        problems,
    };
    report.look_at_sources();
    Ok(report)
}

/// Executions, cycles and causes of stalls of a procedure's instructions, or why these are not
/// known.
fn costs(
    args: &List,
    samples: &Samples,
    (image, known): (&ImageSamples, &Known),
    procedure: &Procedure,
    problems: &mut Vec<Problem>,
) -> Result<Costs, String> {
    let finder = Finder::new(samples, &args.on, args.confidence);
    finder.can(image, procedure)?;
    let surveyed = Surveyed::around(samples, image, known, procedure, problems);
    let surveyed = surveyed.ok_or_else(|| "the code of its image cannot be read".to_owned())?;
    finder.find(&surveyed, (image, known), procedure)
}

/// The images that were asked for: those with procedures as candidates, and for each of the others
/// the reason why it has none.
pub(super) fn candidates<'a>(
    samples: &'a Samples,
    places: &Places,
    problems: &mut Vec<Problem>,
) -> (Vec<Candidate<'a>>, Vec<String>) {
    let mut candidates = Vec::new();
    let mut without = Vec::new();
    for image in samples.images.iter().filter(|image| image.wanted) {
        match procedures::known(samples, image, places, Needed::All, problems) {
            Ok(known) => {
                candidates.push(Candidate { image, known, debug_roots: places.debug_roots.clone() })
            }
            Err(why) => {
                let name = &image.record.name;
                without.push(format!("; the procedures of {name} are not known: {why}"));
            }
        }
    }
    (candidates, without)
}

/// The procedure among `candidates` that `asked` names. `without` has the reasons why other images
/// have no procedures.
pub(super) fn meant<'a, 'b>(
    candidates: &'a [Candidate<'b>],
    without: &[String],
    asked: &ProcedureArguments,
    problems: &mut Vec<Problem>,
) -> Result<(&'a Candidate<'b>, &'a Procedure), AnalysisError> {
    let none = |why: &str| {
        let ProcedureArguments { image, procedure } = asked.clone();
        AnalysisError::NoProcedure { asked: procedure, image, why: why.to_owned() }
    };
    let found = named::find(candidates, &asked.procedure);
    // The whole name of an inlined function is rather meant than a part of a procedure's.
    let is_whole = |found: &Meant<'_>| !found.is_partial;
    let is_ambiguous = matches!(found, Err(AnalysisError::AmbiguousProcedure { .. }));
    if !is_ambiguous && !found.as_ref().is_ok_and(is_whole) {
        let into = named::inlined_into(candidates, &asked.procedure);
        if let Some(first) = into.first() {
            return Err(AnalysisError::Refused(inlined(&asked.procedure, &into, first)));
        }
    }
    let Meant { at, procedure, is_partial } = found.map_err(|error| match error {
        AnalysisError::NoProcedure { .. } => none(without.first().map_or("", String::as_str)),
        error => error,
    })?;
    if is_partial {
        let (asked, name) = (asked.procedure.clone(), procedure.name().to_owned());
        problems.push(Problem::PartOfName { asked, name });
    }
    let candidate = candidates.get(at).ok_or_else(|| none(""))?;
    problems.extend(other_pieces(candidate, procedure));
    Ok((candidate, procedure))
}

/// The note that other pieces of generated code have the procedure's name, too: reports by
/// procedure count all of them in one row.
fn other_pieces(Candidate { image, known, .. }: &Candidate<'_>, of: &Procedure) -> Option<Problem> {
    let is_other = |piece: &&Procedure| piece.raw_name() == of.raw_name() && *piece != of;
    let generated = (image.record.kind == ImageKind::Jit).then_some(&known.procedures);
    let mut others: Vec<(u64, u64)> = generated?
        .iter()
        .filter(is_other)
        .map(|piece| (named::samples(image, piece), known.address(piece.start)))
        .filter(|(samples, _)| *samples > 0)
        .collect();
    others.sort_by_key(|(samples, _)| std::cmp::Reverse(*samples));
    let samples = others.iter().map(|(samples, _)| samples).sum();
    let name = of.name().to_owned();
    let at = others.into_iter().map(|(_, at)| at).collect::<Vec<_>>();
    (!at.is_empty()).then_some(Problem::OtherPieces { name, samples, at })
}

/// The message about a function that is inlined wherever it ran, with the next step.
fn inlined(asked: &str, into: &[InlinedInto], first: &InlinedInto) -> String {
    const NAMED: usize = 5;
    let named = |InlinedInto { procedure, samples, all, .. }: &InlinedInto| {
        let (samples, all) = (thousands(*samples), thousands(*all));
        format!("{procedure} ({samples} of its {all} samples)")
    };
    let procedures: Vec<String> = into.iter().take(NAMED).map(named).collect();
    let more = match into.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let quoted = |name| shlex::try_quote(name).unwrap_or_default().into_owned();
    let image = quoted(&first.image);
    format!(
        "{asked} has no code of its own, because it is inlined into {}{more}; to see it there: \
         dcpi list {image} {}; for its callers: dcpi callers {image} {}",
        procedures.join(", "),
        quoted(&first.procedure),
        quoted(asked),
    )
}

/// The events; shares are of the procedure's samples.
pub(super) fn columns(
    samples: &Samples,
    counts: &[u64],
    confidence: Confidence,
) -> Vec<EventColumn> {
    let column = |(at, (event, counted)): (usize, (&load::EventSamples, &u64))| EventColumn {
        event: event.clone(),
        idle: samples.idle(at),
        counted: Tally::of(*counted, event.weight),
        occurrences: event.occurrences(confidence),
        unresolved: Vec::new(),
    };
    samples.events.iter().zip(counts).enumerate().map(column).collect()
}
