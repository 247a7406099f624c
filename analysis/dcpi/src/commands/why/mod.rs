//! `dcpi why`: what takes the time, and why.

mod builds;
mod modelled;
mod places;
mod stacks;
mod sums;
mod tried;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use code::isa::Syntax;
use image::ImageId;
use stats::tally::Tally;
use stats::{Confidence, Share, wilson};
use verdict::{Evidence, Hardware, Mechanism, SAMPLES_MIN, Verdict, judge};

use super::Ideal;
use super::Outcome;
use super::costs::{self, OnMachine};
use super::ideal::Modelled;
use super::record::Record;
use super::scratch::temporary;
use crate::options::{self, Chosen, Format, Output, RowLimit};
use annotate::explained::{self, Asked, Explanation};
use builds::Loops;
use calls::USERTIME;
use names::named;
use names::procedures::{self, Needed};
use query::error::AnalysisError;
use query::load::Samples;
use query::problem::{self, Problem};
use report::{Model, Selection, StallRow, WhyAlternative, WhyExperiment, WhyFinding, WhyReport};
use stacks::Stacked;
use sums::Sums;

/// `dcpi why`.
#[derive(Debug, Args)]
#[command(after_help = NOTES, mut_arg("rows", |rows| rows.default_value("8")))]
pub struct Why {
    /// Only this image: name, path, or id (may be cut short)
    #[arg(value_name = "IMAGE", value_parser = NonEmptyStringValueParser::new())]
    pub image: Option<String>,
    /// Only procedures with this in their name, or the one with this address in it (0x1040)
    #[arg(value_name = "PROCEDURE", value_parser = NonEmptyStringValueParser::new())]
    pub procedure: Option<String>,
    #[command(flatten)]
    pub max: RowLimit,
    #[command(flatten)]
    pub on: OnMachine,
    #[command(flatten)]
    pub chosen: Chosen,
    #[command(flatten)]
    pub output: Output,
    /// Record the whole machine for this time first, such as 10s or 2min, or in seconds; needs root
    #[arg(long, value_name = "T", conflicts_with = "command", value_parser = seconds)]
    pub seconds: Option<String>,
    /// Also time COMMAND with huge pages, on one CPU and in other layouts, each beside COMMAND as
    /// it is, by the rules of dcpi time: some 100 further runs
    #[arg(long = "try", requires = "command")]
    pub tries: bool,
    /// Run this command twice, once sampled and once to count its executions exactly and to record
    /// bursts of them for models of this host's caches and branch predictor, and say why it takes
    /// its time; needs root
    #[arg(value_name = "COMMAND", last = true, conflicts_with_all = ["image", "procedure"])]
    pub command: Vec<OsString>,
}

const NOTES: &str = "\
Each finding is a loop, a procedure, a runtime's or the kernel's work, with what takes its time, \
the evidence, what could be gained, and what to try. A mechanism is said only where there is \
evidence for it: addresses and outcomes of branches from the registers at samples, the time of a \
loop's round by pairs of samples, the best case of the code on a model of the processor. The words \
mean probabilities: certain at least 0.95, likely at least 0.75, possible less; unknown: nothing \
that was seen tells.
The levels of caches are certain only where the sampled host was measured: dcpi machine -o \
/var/lib/dcpi/machine, before dcpid starts. Time in which threads wait counts with --event usertime.

Exit codes: 0 done; 1 done, but part of the database could not be read; 2 could not.";

/// Share of the time that a finding needs at least.
const SHARE_MIN: f64 = 0.01;
/// Bytes of hot code of an image that are judged as a whole, if no loop takes the part of the time
/// below.
const SPREAD_BYTES: usize = 32 << 10;
const LOOP: f64 = 0.2;

pub(crate) fn run(args: &Why, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    run_with(args, (&Modelled::new(), Vec::new()), out)
}

/// What is known of a command beside the database: by models, and by experiments.
type Beside<'a> = (&'a Modelled, Vec<WhyExperiment>);

fn run_with(args: &Why, beside: Beside<'_>, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    if !args.command.is_empty() {
        return commanded(args);
    }
    if let Some(seconds) = &args.seconds {
        return watched(args, seconds, out);
    }
    super::write(&told(args, beside)?, &args.output, out)
}

/// The report of a database.
pub(crate) fn of(args: &Why) -> Result<WhyReport, AnalysisError> {
    told(args, (&Modelled::new(), Vec::new()))
}

fn told(args: &Why, beside: Beside<'_>) -> Result<WhyReport, AnalysisError> {
    let images: Vec<String> = args.image.iter().cloned().collect();
    let mut question = args.chosen.question(&images)?;
    let waits = question.events.iter().any(|event| event == USERTIME);
    if let Some(image) = args.image.as_ref().filter(|_| waits) {
        let why = format!(
            "threads wait, not the code of {image}: leave IMAGE out; --unit, --container or --label \
             select threads"
        );
        return Err(AnalysisError::Refused(why));
    }
    // No samples have this name: a wait has a stack whose weight is the time waited, in ns.
    question.events.retain(|event| event != USERTIME);
    let samples = question.samples()?;
    let damage = problem::damage(&samples.problems);
    report(args, samples, beside).map_err(|error| error.beside(damage))
}

/// Samples and counts a command, and writes the report to standard error, because standard output
/// is the command's.
fn commanded(args: &Why) -> Result<Outcome, AnalysisError> {
    let directory = temporary("dcpi-why-")?;
    let db = directory.path().join("db");
    let mut words: Vec<OsString> = ["--sampled", "-o"].map(OsString::from).into();
    words.extend([db.clone().into(), "--".into()]);
    words.extend(args.command.iter().cloned());
    let mut ideal: Ideal = options::typed(words).map_err(wrong)?;
    ideal.silent = true;
    let sizes = modelled::sizes(&args.on)?;
    let (ran, modelled) = super::ideal::run_with(&ideal, Some(sizes))?;
    if !db.exists() {
        return Ok(ran);
    }
    let experiments = match args.tries {
        true => tried::experiments(&args.command)?,
        false => Vec::new(),
    };
    let err = &mut std::io::stderr();
    writeln!(err)?;
    let told = run_with(&args.of(&db)?, (&modelled, experiments), err)?;
    Ok(Outcome { code: ran.code, ..told })
}

/// Records the machine for some time, and says what took it.
fn watched(args: &Why, seconds: &str, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let directory = temporary("dcpi-why-")?;
    let db = directory.path().join("db");
    let words = ["--seconds".into(), seconds.into(), "-o".into(), db.clone().into_os_string()];
    let record: Record = options::typed::<Record>(words).map_err(wrong)?;
    super::record::run(&record, &mut std::io::sink())?;
    run(&args.of(&db)?, out)
}

fn wrong(error: clap::Error) -> AnalysisError {
    AnalysisError::Refused(error.to_string())
}

/// Refuses a time that dcpi record does not understand.
fn seconds(text: &str) -> Result<String, String> {
    super::record::duration(text).map(|_| text.to_owned())
}

impl Why {
    /// The same report of another database.
    fn of(&self, db: &Path) -> Result<Self, AnalysisError> {
        let mut words = self.on.words();
        words.extend(["--db".into(), db.into(), "-n".into(), self.max.rows.to_string().into()]);
        let format: &[&str] = match self.output.format {
            Format::Json => &["--format", "json"],
            Format::Csv => &["--format", "csv"],
            Format::Text => &[],
        };
        words.extend(format.iter().map(OsString::from));
        words.extend(self.image.iter().chain(&self.procedure).map(OsString::from));
        options::typed(words).map_err(wrong)
    }
}

/// A piece of a procedure, judged.
struct Judged {
    image: ImageId,
    name: String,
    procedure: String,
    begin: u64,
    samples: f64,
    is_loop: bool,
    verdict: Verdict,
    /// The instruction that takes the time, or else the one with the most samples.
    slowest: (u64, String),
}

/// What shares are of.
#[derive(Clone, Copy, Debug)]
struct Whole {
    /// Samples of time on a CPU, each of the event's weight ([`ImageSamples::equal`]).
    samples: u64,
    /// As many samples of one weight are as sure.
    as_sure: f64,
    /// Their share of all selected time; less than 1 where waits belong to it.
    on_cpu: f64,
}

impl Whole {
    /// All of it: samples that stand for `weight` each, as those of procedures do.
    fn of(counted: Tally, weight: f64) -> Self {
        let all = if weight > 0.0 { counted.occurrences / weight } else { counted.samples as f64 };
        let one = counted.weight();
        let as_sure = if one > 0.0 { counted.occurrences / one } else { all };
        Self { samples: all.round() as u64, as_sure, on_cpu: 1.0 }
    }

    fn share(self, samples: f64) -> Share {
        let value = samples / self.samples.max(1) as f64;
        let (part, all) = ((value * self.as_sure).round() as u64, self.as_sure.round() as u64);
        let share = wilson(part.min(all), all, Confidence::default());
        let of = |share: f64| share * self.on_cpu;
        Share { value: of(value), low: of(share.low.min(value)), high: of(share.high.max(value)) }
    }
}

/// What findings are asked of.
pub(crate) struct Question<'a> {
    /// Only procedures with this in their names, or the one with this address in it.
    pub(crate) procedure: Option<&'a str>,
    pub(crate) on: &'a OnMachine,
    /// The syntax of instructions that are shown.
    pub(crate) syntax: Syntax,
    /// Whether the time in which threads wait counts.
    pub(crate) waits: bool,
    /// Fewest samples of a procedure that is judged; none: half of what a finding needs.
    pub(crate) least: Option<u64>,
}

/// All findings of a selection, those with the largest gain first.
pub(crate) struct Found {
    pub(crate) findings: Vec<WhyFinding>,
    /// The pieces of code that the findings are of.
    judged: Vec<Judged>,
    loops: Loops,
    pub(crate) model: Model,
    /// Samples of time on a CPU.
    pub(crate) samples: u64,
    /// Samples among these in procedures that were explained, and the number of these.
    pub(crate) explained: (u64, u64),
    whole: Whole,
    pub(crate) problems: Vec<Problem>,
}

impl Found {
    /// The pieces of code that were judged, those with the largest gain first.
    pub(crate) fn stalled(&self) -> Vec<StallRow> {
        let of = |one: &Judged| {
            let (at, text) = &one.slowest;
            let finding = WhyFinding { address: Some(*at), ..of_code(one, self.whole) };
            StallRow { finding, text: text.clone() }
        };
        let mut all: Vec<StallRow> = self.judged.iter().map(of).collect();
        all.sort_by(|a, b| by_gain(&a.finding, &b.finding));
        all
    }
}

fn report(
    args: &Why,
    mut samples: Samples,
    (modelled, experiments): Beside<'_>,
) -> Result<WhyReport, AnalysisError> {
    let question = Question {
        procedure: args.procedure.as_deref(),
        on: &args.on,
        syntax: Syntax::Att,
        waits: args.chosen.events.iter().any(|event| event == USERTIME),
        least: None,
    };
    let mut found = findings(&question, &mut samples, modelled)?;
    let total = found.samples;
    let mut findings = found.findings;
    findings.retain(|found| found.share.value >= SHARE_MIN);
    let unexplained = unexplained(&findings, total);
    let omitted = findings.split_off(args.max.of(findings.len())).len();
    let places = args.on.places();
    places::mark_builds(&mut findings, &samples);
    let (machine, _) = args.on.model(&samples, None)?;
    found.loops.compare(&mut findings, &found.judged, (&samples, &machine, &places))?;
    places::add_sources(&mut findings, &found.judged, (&samples, &places), &mut found.problems);
    let epochs = samples.epochs.iter().map(|epoch| epoch.meta().clone()).collect();
    Ok(WhyReport {
        selection: Selection { db: samples.db.root().display().to_string(), epochs },
        events: costs::columns(&samples),
        machine: found.model,
        samples: total,
        findings,
        unexplained,
        experiments,
        seen: super::prof::seen(&samples),
        omitted,
        problems: once(found.problems),
    })
}

/// What takes the selected time, and why.
pub(crate) fn findings(
    question: &Question<'_>,
    samples: &mut Samples,
    modelled: &Modelled,
) -> Result<Found, AnalysisError> {
    let mut problems = std::mem::take(&mut samples.problems);
    let samples = &*samples;
    let (event, _) = samples.time()?;
    let (machine, model) = question.on.model(samples, None)?;
    let hardware = question.on.hardware(samples, machine.core_ghz)?;
    let counted = costs::columns(samples).get(event).map(|column| column.counted);
    let counted = counted.unwrap_or_default();
    let weight = samples.events.get(event).map_or(0.0, |event| event.weight);
    let places = question.on.places();
    let mut stacked = match question.procedure {
        Some(_) => None,
        None => Stacked::of(samples, &places, &mut problems).map(Some)?,
    };
    let mut whole = Whole::of(counted, weight);
    let total = whole.samples;
    let mut findings = Vec::new();
    if let Some(stacked) = stacked.as_mut().filter(|_| question.waits) {
        let waited = stacked.waits();
        let waited_ns: f64 = waited.values().flat_map(BTreeMap::values).sum();
        let on_cpu_ns = total as f64 * weight;
        whole.on_cpu = on_cpu_ns / (on_cpu_ns + waited_ns).max(f64::MIN_POSITIVE);
        findings.append(&mut sums::waits(&waited, on_cpu_ns + waited_ns));
    }
    let usual = ((total as f64 * SHARE_MIN / 2.0) as u64).max(SAMPLES_MIN);
    let (procedure, least) = (question.procedure, question.least.unwrap_or(usual));
    let mut sums = Sums::default();
    if procedure.is_none() {
        for image in samples.images.iter().filter(|image| image.wanted && !image.is_idle()) {
            let known = procedures::known(samples, image, &places, Needed::All, &mut problems);
            sums.add(image, known.ok().as_ref(), event);
        }
        let name = samples.events.get(event).map(|event| event.name.clone()).unwrap_or_default();
        let work = stacked.as_mut().map(|stacked| stacked.kernel(&name)).unwrap_or_default();
        let interpreted =
            stacked.as_mut().map(|stacked| stacked.interpreted(&name)).unwrap_or_default();
        findings.append(&mut sums.findings(whole, &work, &interpreted));
    }
    let spread = sums.spread(&hardware);
    let is_small = |samples: f64| samples < LOOP * total as f64;
    // An image whose code is judged as a whole need not be explained.
    let except = spread.as_ref().filter(|_| is_small(sums.largest as f64));
    let except = except.map(|(name, ..)| name.as_str());
    let syntax = Some(question.syntax);
    let asked = Asked { machine: &machine, procedure, except, only: None, least, syntax };
    let (mut judged, mut procedures, mut loops) = (Vec::new(), 0, Loops::default());
    let told = |found: &Explanation<'_>| {
        let judged = judge_procedure(found, (&hardware, modelled), question.syntax);
        (judged, builds::of(found))
    };
    let take = |(mut found, of)| {
        judged.append(&mut found);
        loops.add(of);
        procedures += 1;
    };
    let covered = explained::each(samples, &asked, &places, &mut problems, told, take)?;
    if let Some(procedure) = procedure.filter(|_| judged.is_empty()) {
        return Err(nothing_called(procedure, least, &problems));
    }
    judged.retain(|one: &Judged| !sums.is_runtime(&one.name, &one.procedure, whole));
    let largest = judged.iter().map(|one| one.samples).fold(0.0, f64::max);
    if let Some((name, verdict, of)) = spread.filter(|_| is_small(largest)) {
        judged.retain(|one| one.name != name);
        findings.push(finding(whole, of as f64, &verdict, (Some(name), None), None));
    }
    findings.append(&mut sums.generated(whole, |(image, procedure)| {
        judged.iter().any(|one| one.name == *image && one.procedure == *procedure)
    }));
    let of_code = judged.iter().map(|one| of_code(one, whole)).collect();
    findings.extend(joined(of_code, whole));
    findings.sort_by(by_gain);
    // Of the samples that were taken: their periods may have changed.
    let taken = counted.samples as f64 / total.max(1) as f64;
    let explained = ((covered.explained as f64 * taken).round() as u64, procedures);
    let samples = counted.samples;
    Ok(Found { findings, judged, loops, model, samples, explained, whole, problems })
}

/// The error where no procedure that was asked for can be judged.
fn nothing_called(procedure: &str, least: u64, problems: &[Problem]) -> AnalysisError {
    let of_no_machine = |problem: &&Problem| matches!(problem, Problem::NoMachine { .. });
    if let Some(problem) = problems.iter().find(of_no_machine) {
        return AnalysisError::Refused(problem.to_string());
    }
    let what = match named::address(procedure) {
        Some(_) => format!("at {procedure}"),
        None => format!("called {procedure:?}"),
    };
    let why = format!(
        "no procedure {what} with at least {} has code that can be read",
        report::counted(least, "sample")
    );
    AnalysisError::Refused(format!("{why}; procedures with samples: dcpi prof"))
}

fn by_gain(a: &WhyFinding, b: &WhyFinding) -> Ordering {
    let by = |of: fn(&WhyFinding) -> f64| of(b).total_cmp(&of(a));
    by(worthwhile).then(by(|found| found.share.value))
}

/// Gain below which findings are in the order of their shares: that of a program at its limit is
/// told before a hundredth of the time in system calls.
const GAIN_MIN: f64 = 0.03;

fn worthwhile(found: &WhyFinding) -> f64 {
    if found.gain.value < GAIN_MIN { 0.0 } else { found.gain.value }
}

/// Share of the time below which findings of one mechanism in one image are one.
const JOINED_MAX: f64 = 0.15;

/// Small findings of one mechanism in one image are joined, as they have one remedy; limits of
/// different code have nothing in common.
fn joined(findings: Vec<WhyFinding>, whole: Whole) -> Vec<WhyFinding> {
    let mut kept: Vec<WhyFinding> = Vec::new();
    type Of = (Mechanism, Option<String>, Option<ImageId>);
    let mut small: BTreeMap<Of, Vec<WhyFinding>> = BTreeMap::new();
    for found in findings {
        let is_of_its_own = matches!(
            found.mechanism,
            Mechanism::Unknown
                | Mechanism::AtLimit
                | Mechanism::DependencyChain
                | Mechanism::Throughput
        );
        if found.share.value > JOINED_MAX || is_of_its_own {
            kept.push(found);
        } else {
            let of = (found.mechanism, found.image.clone(), found.image_id);
            small.entry(of).or_default().push(found);
        }
    }
    for mut all in small.into_values() {
        all.sort_by(|a, b| b.share.value.total_cmp(&a.share.value));
        let count = all.len();
        let mut rest = all.into_iter();
        let Some(mut first) = rest.next() else { continue };
        let weigh = |found: &WhyFinding| found.probability * found.share.value;
        let mut weighted = weigh(&first);
        let mut names: Vec<String> = first.procedure.iter().cloned().collect();
        let mut sums = [first.share.value, first.gain.value, first.gain.low, first.gain.high];
        for other in rest {
            weighted += weigh(&other);
            let parts = [other.share.value, other.gain.value, other.gain.low, other.gain.high];
            sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
            names.extend(other.procedure.filter(|name| !names.contains(name)));
        }
        let [share, gain, low, high] = sums;
        if count > 1 {
            first.probability = (weighted / share).min(first.probability.max(weighted / share));
            first.share = whole.share(share / whole.on_cpu * whole.samples as f64);
            first.gain = Share { value: gain, low, high: high.min(first.share.high) };
            let shown = names.iter().take(4).cloned().collect::<Vec<_>>().join(", ");
            let more = if names.len() > 4 { ", and others" } else { "" };
            let text = format!("{count} pieces of code, in {shown}{more}");
            let evidence = Evidence::of("samples", text, count as f64, "pieces");
            first.evidence.insert(0, evidence.into());
        }
        kept.push(first);
    }
    kept
}

/// Problems that several looks at the same images found, once.
pub(crate) fn once(problems: Vec<Problem>) -> Vec<Problem> {
    let mut seen = BTreeSet::new();
    problems.into_iter().filter(|problem| seen.insert(problem.to_string())).collect()
}

fn unexplained(findings: &[WhyFinding], total: u64) -> Share {
    let known = findings.iter().filter(|found| found.mechanism != Mechanism::Unknown);
    let explained: f64 = known.map(|found| found.share.value).sum();
    let rest = (1.0 - explained).clamp(0.0, 1.0) * total as f64;
    wilson(rest as u64, total, Confidence::default())
}

/// The finding of a piece of a program's code.
fn of_code(one: &Judged, whole: Whole) -> WhyFinding {
    let name = (Some(one.name.clone()), Some(one.procedure.clone()));
    let of = finding(whole, one.samples, &one.verdict, name, Some(one.address()));
    WhyFinding { image_id: Some(one.image), ..of }
}

impl Judged {
    /// The instruction that takes the time, or the begin of the loop.
    fn address(&self) -> u64 {
        self.verdict.at.unwrap_or(if self.is_loop { self.begin } else { self.slowest.0 })
    }
}

fn judge_procedure(
    found: &Explanation<'_>,
    (hardware, modelled): (&Hardware, &Modelled),
    syntax: Syntax,
) -> Vec<Judged> {
    let pieces = found.graph.pieces(found.explained, hardware.ghz).into_iter();
    let pieces = pieces.map(|mut piece| {
        modelled::add(&mut piece.region, found, modelled);
        piece
    });
    let pieces = pieces.filter(|piece| piece.region.samples >= SAMPLES_MIN as f64);
    pieces
        .map(|piece| {
            let verdict = judge(&piece.region, hardware);
            let at = verdict.at.unwrap_or(piece.hottest);
            let mut parts = found.graph.parts.iter();
            let slowest = parts.find_map(|part| {
                let line = part.instructions.iter().find(|line| line.address == at)?;
                Some(line.text_in(syntax, part.isa?, found.known))
            });
            Judged {
                image: found.image.record.id,
                name: found.image.record.name.clone(),
                procedure: found.procedure.name().to_owned(),
                begin: piece.begin,
                samples: piece.region.samples,
                is_loop: piece.region.is_loop,
                slowest: (at, slowest.unwrap_or_default()),
                verdict,
            }
        })
        .collect()
}

fn finding(
    whole: Whole,
    samples: f64,
    verdict: &Verdict,
    (image, procedure): (Option<String>, Option<String>),
    address: Option<u64>,
) -> WhyFinding {
    of_share(whole.share(samples), verdict, (image, procedure), address)
}

fn of_share(
    share: Share,
    verdict: &Verdict,
    (image, procedure): (Option<String>, Option<String>),
    address: Option<u64>,
) -> WhyFinding {
    let (value, low, high) = verdict.gain;
    let gain = Share { value: share.value * value, low: share.low * low, high: share.high * high };
    let alternative = |(mechanism, probability): &(Mechanism, f64)| WhyAlternative {
        mechanism: *mechanism,
        probability: *probability,
    };
    WhyFinding {
        share,
        gain,
        image,
        image_id: None,
        is_one_of_builds: false,
        build_before: None,
        procedure,
        address,
        source: None,
        mechanism: verdict.mechanism,
        probability: verdict.probability,
        evidence: verdict.evidence.iter().cloned().map(Into::into).collect(),
        alternatives: verdict.alternatives.iter().map(alternative).collect(),
    }
}
