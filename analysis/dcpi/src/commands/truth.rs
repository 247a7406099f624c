//! `dcpi truth`: how good estimates are, against exact counts.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

mod both;
mod exact;

use clap::Args;
use code::skid::Skid;
use estimate::truth::{self, ExactCounts};
use stalls::clock::hertz;
use stalls::{Machine, Scale};

use self::exact::{Exact, Executed};
use super::Outcome;
use super::costs::OnMachine;
use super::ideal::EngineName;
use crate::options::{Chosen, Output, RowLimit};
use annotate::graphs::Surveyed;
use names::procedures::{self, Needed, Places};
use query::error::AnalysisError;
use query::load::{ImageSamples, Samples};
use query::problem::Problem;
use report::{Selection, TruthReport, TruthRow};

/// Options that choose samples of a database: of no use with a COMMAND, which has its own.
const OF_OTHERS: [&str; 7] = ["events", "epoch", "host", "epoch_label", "label", "unit", "pid"];

/// `dcpi truth`.
#[derive(Debug, Args)]
#[command(after_help = NOTES, mut_arg("rows", |rows| rows.default_value("20")))]
pub struct Truth {
    /// The file that callgrind wrote [default: the engine's counts of COMMAND]
    #[arg(value_name = "COUNTS", required_unless_present = "command")]
    pub counts: Option<PathBuf>,
    /// Only these images: name, path, or id [default: all images that were counted]
    #[arg(value_name = "IMAGE")]
    pub images: Vec<String>,
    /// Leave out procedures with less than this percentage of the samples
    #[arg(long, value_name = "PERCENT", default_value = "0.1", value_parser = parse_keep)]
    pub keep: f64,
    #[command(flatten)]
    pub max: RowLimit,
    /// With COMMAND: run and sample it repeatedly for this many seconds
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 30,
        value_parser = clap::value_parser!(u32).range(1..=3600)
    )]
    pub seconds: u32,
    /// With COMMAND: most snapshots of registers per second, of all CPUs together, as for dcpi
    /// record. By default --seconds has as many as dcpid takes of a program that runs for a quarter
    /// of an hour [default: 4000]
    #[arg(long, value_name = "RATE|off", conflicts_with = "counts")]
    pub edges: Option<String>,
    /// With COMMAND: what counts [default: own on x86-64, elsewhere valgrind]
    #[arg(long, value_enum, conflicts_with = "counts")]
    pub engine: Option<EngineName>,
    /// Number of runs of the program while it was sampled: with it cycles are compared, too
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "command",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub runs: Option<u32>,
    #[command(flatten)]
    pub on: OnMachine,
    #[command(flatten)]
    pub chosen: Chosen,
    #[command(flatten)]
    pub output: Output,
    /// Count this command as dcpi ideal does, sample it as dcpi record does, into a database of
    /// its own, and compare; the command has no input and no output
    #[arg(
        last = true,
        value_name = "COMMAND",
        conflicts_with = "counts",
        conflicts_with_all = OF_OTHERS
    )]
    pub command: Vec<OsString>,
}

const NOTES: &str = "\
dcpi truth -- COMMAND does everything: COMMAND is counted once, and a dcpid of its own samples it \
(needs root). By hand, run the same program with the same input twice, once sampled by dcpid and \
once counted by valgrind:
  valgrind --tool=callgrind --dump-instr=yes --collect-jumps=yes --compress-strings=no \\
    --compress-pos=no --callgrind-out-file=COUNTS COMMAND
  dcpi truth COUNTS
A block is within 10 % if its estimated executions are, after one factor has scaled all estimates \
of the procedure. The weight of a block is its samples, the weight of an edge its true executions. \
Cycles of an execution are a range, as in dcpi calc; for a COMMAND that dcpi truth ran, or with \
--runs, the report says how often the range holds the true cycles. A library that other programs \
use has their samples too, which callgrind did not count: name the images, or label the run \
(dcpilabel). dcpi truth refuses counts of a program without samples unless images are named, and \
counts of another build than the one that was sampled.

Exit codes: 0 done; 1 done, but part of the database could not be read; 2 could not.";

pub(crate) fn run(args: &Truth, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let Some(counts) = &args.counts else { return both::run(args, out) };
    let exact = Exact::of_file(counts)?;
    let ran = args.runs.and_then(|runs| Some(Ran { times: f64::from(runs), hertz: hertz()? }));
    compare(args, &exact, (&args.chosen, ran), out)
}

/// The runs of the command while it was sampled.
#[derive(Clone, Copy)]
struct Ran {
    times: f64,
    hertz: f64,
}

fn compare(
    args: &Truth,
    exact: &Exact,
    (chosen, ran): (&Chosen, Option<Ran>),
    out: &mut dyn Write,
) -> Result<Outcome, AnalysisError> {
    let samples = chosen.question(&args.images)?.samples()?;
    // A program that was run for this comparison may have all its time in libraries.
    if args.images.is_empty() && args.command.is_empty() {
        exact.is_sampled(&samples)?;
    }
    super::write(&report(args, exact, samples, ran)?, &args.output, out)
}

fn report(
    args: &Truth,
    exact: &Exact,
    mut samples: Samples,
    ran: Option<Ran>,
) -> Result<TruthReport, AnalysisError> {
    let mut problems = std::mem::take(&mut samples.problems);
    let (event, skid) = samples.time()?;
    let total = |image: &ImageSamples| image.equal(event).map_or(0, model::Profile::total);
    let images = exact.images(&samples)?;
    let all = images.iter().fold(0, |sum: u64, (image, _)| sum.saturating_add(total(image)));
    if all == 0 {
        let why =
            "no image with samples was counted; record the same program: dcpi record -- COMMAND";
        return Err(AnalysisError::Refused(format!("{}: {why}", exact.source)));
    }
    let least = (all as f64 * args.keep / 100.0).max(1.0) as u64;
    let places = args.on.places();
    let per_cycle = per_cycle(&samples, event, ran);
    let machine = per_cycle.map(|_| args.on.model(&samples, None)).transpose()?;
    let (machine, model) = machine.unzip();
    let truth =
        Truly { samples: &samples, time: (event, skid), least, per_cycle: machine.zip(per_cycle) };
    let mut rows = Vec::new();
    for (image, counts) in images.into_iter().filter(|(image, _)| total(image) >= least) {
        let (mut scored, executed) = score(&truth, (image, counts), &places, &mut problems);
        executed.is_of_this_build(&exact.source, image)?;
        rows.append(&mut scored);
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.samples));
    let epochs = samples.epochs.iter().map(|epoch| epoch.meta().clone()).collect();
    let selection = Selection { db: samples.db.root().display().to_string(), epochs };
    let shown = args.max.of(usize::MAX);
    let counts = exact.source.clone();
    Ok(TruthReport { selection, counts, model, samples: all, least, rows, shown, problems })
}

fn parse_keep(text: &str) -> Result<f64, String> {
    let percent = text.parse().ok().filter(|percent| (0.0..=100.0).contains(percent));
    percent.ok_or_else(|| "must be a percentage from 0 to 100".to_owned())
}

/// The samples that procedures are scored with.
struct Truly<'a> {
    samples: &'a Samples,
    time: (usize, Skid),
    least: u64,
    /// Processor model, and samples per cycle of one execution of the command.
    per_cycle: Option<(Machine, f64)>,
}

/// Samples per cycle of one execution of the command, where the number of runs is known.
fn per_cycle(samples: &Samples, event: usize, ran: Option<Ran>) -> Option<f64> {
    let (ran, event) = ran.zip(samples.events.get(event))?;
    let weight = event.mean_weight().unwrap_or(0.0);
    let cycles = match event.unit.as_str() {
        "ns" => weight * 1e-9 * ran.hertz,
        "cycles" => weight,
        _ => return None,
    };
    (cycles > 0.0 && ran.times > 0.0).then(|| ran.times / cycles)
}

/// The procedures of an image with enough samples, and the instructions that were executed.
fn score(
    truth: &Truly<'_>,
    (image, counts): (&ImageSamples, &ExactCounts),
    places: &Places,
    problems: &mut Vec<Problem>,
) -> (Vec<TruthRow>, Executed) {
    let Truly { samples, time: (event, skid), least, per_cycle } = truth;
    let mut executed = Executed::of(counts);
    let Ok(known) = procedures::known(samples, image, places, Needed::All, problems) else {
        return (Vec::new(), executed);
    };
    let Some(surveyed) = Surveyed::of(samples, image, &known, problems) else {
        return (Vec::new(), executed);
    };
    let sampled =
        surveyed.sampled(image, *event).into_iter().filter(|(_, samples)| samples >= least);
    // The model of a processor holds for its own instruction set only.
    let per_cycle = per_cycle.as_ref().filter(|(machine, _)| machine.isa == surveyed.isa());
    if let Some((machine, _)) = truth.per_cycle.as_ref().filter(|_| per_cycle.is_none()) {
        problems
            .push(Problem::NoMachine { image: image.record.name.clone(), machine: machine.name });
    }
    let row = |(procedure, samples): (&image::Procedure, u64)| {
        let found = surveyed.graph(
            image,
            &known,
            procedure,
            None,
            (*event, *skid),
            per_cycle.map(|(machine, _)| machine),
        )?;
        executed.hold(&found.graph);
        let scored = truth::score(&found.graph, found.estimate.as_ref()?, counts)?;
        let cycles = per_cycle.and_then(|(machine, per_cycle)| {
            let scale = found
                .explained(machine, *event, truth.samples.executions(*event))?
                .scale
                .filter(Scale::is_known)?;
            let truly = per_cycle / scored.scale;
            Some([truly / scale.upper, truly / scale.samples_per_cycle, truly / scale.lower])
        });
        Some(TruthRow {
            image: image.record.name.clone(),
            procedure: procedure.name().to_owned(),
            samples,
            graph_blocks: found.graph.blocks().len(),
            scored,
            cycles,
        })
    };
    let rows = sampled.filter_map(row).collect();
    (rows, executed)
}
