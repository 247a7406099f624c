//! `dcpi truth`: how good estimates are, against exact counts.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{Read as _, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

mod counted;

use ::counted::callgrind::{self, ObjectCounts};
use clap::Args;
use code::skid::Skid;
use estimate::truth::{self, ExactCounts};
use stalls::clock::hertz;
use stalls::{Machine, Scale};

use self::counted::Executed;
use super::Outcome;
use super::costs::OnMachine;
use crate::options::{self, Chosen, Output, RowLimit};
use explain::graphs::Surveyed;
use names::procedures::{self, Needed, Places};
use query::error::AnalysisError;
use query::load::{ImageSamples, Samples};
use query::problem::Problem;
use report::{Selection, TruthReport, TruthRow};

/// Options that choose samples of a database: of no use with a COMMAND, which has its own.
const OF_OTHERS: [&str; 7] = ["events", "epoch", "host", "epoch_label", "label", "unit", "pid"];
/// Most bytes of a file of counts: a run of a compiler writes 200 MB.
const COUNTS_MAX: u64 = 1 << 30;

/// `dcpi truth`.
#[derive(Debug, Args)]
#[command(after_help = NOTES, mut_arg("rows", |rows| rows.default_value("20")))]
pub struct Truth {
    /// The file that callgrind wrote [default: callgrind's counts of COMMAND]
    #[arg(value_name = "COUNTS", required_unless_present = "command")]
    pub counts: Option<PathBuf>,
    /// Only these images: name, path, or id [default: all images that were counted]
    #[arg(value_name = "IMAGE")]
    pub images: Vec<String>,
    /// Leave out procedures with less than this percentage of the samples
    #[arg(long, value_name = "PERCENT", default_value = "0.1", value_parser = parse_keep)]
    pub keep: f64,
    /// Rows of the table.
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
    /// Number of runs of the program while it was sampled: with it cycles are compared, too
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "command",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub runs: Option<u32>,
    /// Processor model and directories of debug files.
    #[command(flatten)]
    pub on: OnMachine,
    /// Events, epochs, database and scope of the samples.
    #[command(flatten)]
    pub chosen: Chosen,
    /// Format and length of names.
    #[command(flatten)]
    pub output: Output,
    /// Count this command with callgrind, sample it as dcpi record does, into a database of its
    /// own, and compare; the command has no input and no output
    #[arg(
        last = true,
        value_name = "COMMAND",
        conflicts_with = "counts",
        conflicts_with_all = OF_OTHERS
    )]
    pub command: Vec<OsString>,
}

const NOTES: &str = "\
dcpi truth -- COMMAND does everything: valgrind counts COMMAND once, and a dcpid of its own \
samples COMMAND (needs root). By hand, run the same program with the same input twice, once \
sampled by dcpid and once counted by valgrind:
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
    let Some(counts) = &args.counts else { return run_both(args, out) };
    let ran = args.runs.and_then(|runs| Some(Ran { times: f64::from(runs), hertz: hertz()? }));
    compare(args, counts, (&args.chosen, ran), out)
}

/// The runs of the command while it was sampled.
#[derive(Clone, Copy)]
struct Ran {
    /// Number of runs.
    times: f64,
    /// Cycles per second of a CPU.
    hertz: f64,
}

fn compare(
    args: &Truth,
    path: &Path,
    (chosen, ran): (&Chosen, Option<Ran>),
    out: &mut dyn Write,
) -> Result<Outcome, AnalysisError> {
    let text = read(path)?;
    let counted = callgrind::read(text.as_bytes()).map_err(AnalysisError::from)?;
    let exact =
        |counts: ObjectCounts| ExactCounts { executed: counts.executed, jumped: counts.jumped };
    let counts: HashMap<String, ExactCounts> =
        counted.into_iter().map(|(object, counts)| (object, exact(counts))).collect();
    if counts.values().all(|counts| counts.executed.is_empty()) {
        let path = path.display();
        return Err(AnalysisError::Refused(format!(
            "{path} has no counts of instructions; see dcpi truth --help"
        )));
    }
    let samples = chosen.question(&args.images)?.samples()?;
    // A program that was run for this comparison may have all its time in libraries.
    if args.images.is_empty() && args.command.is_empty() {
        counted::is_sampled(path, &text, &counts, &samples)?;
    }
    super::write(&report(args, (path, &counts), samples, ran)?, &args.output, out)
}

/// Counts and samples the command, and compares.
fn run_both(args: &Truth, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let failed =
        |what: &str, why: &dyn std::fmt::Display| AnalysisError::Refused(format!("{what}: {why}"));
    let scratch = Scratch(std::env::temp_dir().join(format!("dcpi-truth-{}", std::process::id())));
    fs::create_dir(&scratch.0)
        .map_err(|error| failed("cannot make a directory for temporary files", &error))?;
    let (counts, db) = (scratch.0.join("counts"), scratch.0.join("db"));
    let quietly = |command: &mut Command| {
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
        status.map(|status| status.success())
    };
    let mut valgrind = Command::new("valgrind");
    let options =
        ["--tool=callgrind", "--dump-instr=yes", "--collect-jumps=yes", "--compress-strings=no"];
    valgrind
        .args(options)
        .arg("--compress-pos=no")
        .arg(format!("--callgrind-out-file={}", counts.display()));
    match quietly(valgrind.arg("-q").args(&args.command)) {
        Ok(true) => {}
        Ok(false) => {
            return Err(failed(
                "valgrind",
                &"valgrind or the command failed; try the command without dcpi truth",
            ));
        }
        Err(error) => {
            return Err(failed(
                "valgrind",
                &format!("{error}; install it: apt-get install valgrind"),
            ));
        }
    }
    let own = std::env::current_exe().map_err(|error| failed("dcpi cannot find itself", &error))?;
    let times = scratch.0.join("times");
    let again = format!(
        "n=0; end=$(($(date +%s) + {})); while [ $(date +%s) -lt $end ]; do \"$@\"; n=$((n + 1)); done; echo $n >\"$0\"",
        args.seconds
    );
    let mut record = Command::new(own);
    record.args(["record", "-n", "1", "--overhead-budget", "off", "-o"]).arg(&db);
    let edges = args.edges.as_deref().or(cfg!(target_arch = "x86_64").then_some("4000"));
    record.args(edges.map(|rate| ["--edges", rate]).into_iter().flatten());
    record.args(["--", "sh", "-c", &again]).arg(&times).args(&args.command).stderr(Stdio::piped());
    let recorded = record.stdin(Stdio::null()).stdout(Stdio::null()).output();
    match recorded {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.trim();
            return Err(AnalysisError::Refused(
                said.strip_prefix("dcpi: ").unwrap_or(said).to_owned(),
            ));
        }
        Err(error) => return Err(failed("dcpi record", &error)),
    }
    // Other programs that ran meanwhile were not counted. The label that dcpi record gave the shell
    // chooses the samples of the shell and its children.
    let words = ["--label=sh", "--db"].map(OsStr::new).into_iter();
    let words = words.chain([db.as_os_str(), counts.as_os_str()]);
    let again: Truth = options::typed(words).map_err(|error| failed("dcpi truth", &error))?;
    let times = fs::read_to_string(&times).ok().and_then(|times| times.trim().parse().ok());
    let ran = times.zip(hertz()).map(|(times, hertz)| Ran { times, hertz });
    compare(args, &counts, (&again.chosen, ran), out)
}

/// A directory that is removed when this is dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn read(path: &Path) -> Result<String, AnalysisError> {
    let unreadable = |why: String| {
        AnalysisError::Refused(format!(
            "cannot read {}: {why}; name a file that callgrind wrote",
            path.display()
        ))
    };
    let mut text = String::new();
    let file = fs::File::open(path).map_err(|error| unreadable(error.to_string()))?;
    let read = file
        .take(COUNTS_MAX + 1)
        .read_to_string(&mut text)
        .map_err(|error| unreadable(error.to_string()))?;
    if read as u64 > COUNTS_MAX {
        return Err(unreadable(format!("it is larger than {COUNTS_MAX} bytes")));
    }
    Ok(text)
}

fn report(
    args: &Truth,
    (path, counts): (&Path, &HashMap<String, ExactCounts>),
    mut samples: Samples,
    ran: Option<Ran>,
) -> Result<TruthReport, AnalysisError> {
    let mut problems = std::mem::take(&mut samples.problems);
    let (event, skid) = samples.time()?;
    let total = |image: &ImageSamples| image.equal(event).map_or(0, model::Profile::total);
    let images = counted::images(path, counts, &samples)?;
    let all = images.iter().fold(0, |sum: u64, (image, _)| sum.saturating_add(total(image)));
    if all == 0 {
        let why = "callgrind counted no image with samples; record the same program: dcpi record -- COMMAND";
        return Err(AnalysisError::Refused(format!("{}: {why}", path.display())));
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
        executed.is_of_this_build(path, image)?;
        rows.append(&mut scored);
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.samples));
    let epochs = samples.epochs.iter().map(|epoch| epoch.meta().clone()).collect();
    let selection = Selection { db: samples.db.root().display().to_string(), epochs };
    let shown = args.max.of(usize::MAX);
    let counts = path.display().to_string();
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
            blocks: found.graph.blocks().len(),
            scored,
            cycles,
        })
    };
    let rows = sampled.filter_map(row).collect();
    (rows, executed)
}
