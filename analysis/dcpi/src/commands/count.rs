//! `dcpi count`: whole-program counts of events, as SpeedShop's perfex had them.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitStatus;

use clap::Args;
use events::{Event, Unit};
use exact::Counts;
use exact::totals::{Total, Totals, TotalsError, TotalsRun};
use stats::tails;
use stats::{Confidence, Occurrences};

use super::ideal::database::{cpu_model, now_unix_s};
use super::ideal::engine;
use super::input::Input;
use super::passing::pass_on;
use super::record::{children_cpu_s, exit_code, runnable, shell_word};
use super::{Outcome, baseline, write};
use crate::destination::Destination;
use crate::options::{Output, parse_confidence, parse_effect};
use crate::plain_file;
use measure::Interval;
use measure::layouts::welch;
use query::error::AnalysisError;
use query::times::rfc3339;
use report::{CountReport, CountRow};
use serde::Deserialize;

/// `dcpi count`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct Count {
    /// Event to count: a name of perf's, a raw rNNN (hex) or PMU/term=value,.../, or instructions,
    /// blocks or calls; may be repeated, or a list with commas [default: those of DEFAULT that this
    /// machine has, see below]
    #[arg(short = 'e', long = "event", value_name = "EVENT")]
    pub events: Vec<String>,
    /// Number of runs, of which means and their intervals are told; the output of the first is seen
    #[arg(
        short = 'r',
        long,
        value_name = "RUNS",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    pub runs: u32,
    /// Confidence of the intervals in percent
    #[arg(long, value_name = "PERCENT", default_value = "95", value_parser = parse_confidence)]
    pub confidence: Confidence,
    /// File to write the report to [default: standard error]
    #[arg(short = 'o', long = "output", alias = "to", value_name = "FILE")]
    pub to: Option<PathBuf>,
    /// Compares with what dcpi count --format json wrote before, on the same kind of processor
    #[arg(long, value_name = "FILE", value_parser = plain_file::argument())]
    pub baseline: Option<PathBuf>,
    /// Change of a count that matters to you, in percent
    #[arg(long, value_name = "P%", default_value = "1%", value_parser = parse_effect)]
    pub effect: f64,
    /// Ends with exit code 1 where an event has this: a step of a build fails
    #[arg(long, value_name = "CHANGE", value_enum, requires = "baseline")]
    pub fail_on: Option<FailOn>,
    /// Also writes the counts to FILE, for Bencher; - is standard output
    #[arg(long, value_name = "FILE")]
    pub bencher: Option<PathBuf>,
    #[command(flatten)]
    pub output: Output,
    /// Command to run and count, with its children
    #[arg(value_name = "COMMAND", trailing_var_arg = true, required = true)]
    pub command: Vec<OsString>,
}

/// The change that ends with an exit code of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum FailOn {
    /// An event's count is larger than before by more than --effect.
    More,
}

/// Events that are counted unless others are asked for.
const DEFAULT: [&str; 8] = [
    "task-clock",
    "context-switches",
    "cpu-migrations",
    "page-faults",
    "cycles",
    "instructions",
    "branches",
    "branch-misses",
];
/// Events that `dcpi ideal` counts, exactly, in user code.
const BY_IDEAL: [&str; 3] = ["instructions", "blocks", "calls"];

const NOTES: &str = "\
DEFAULT: task-clock, context-switches, cpu-migrations, page-faults, cycles, instructions, \
branches and branch-misses. Events are counted for COMMAND and all its children, in the kernel, \
too, where the user may. If the processor has too few counters, events take turns: the column \
counted % has the part of the time in which an event counted, its value is scaled to the whole, \
and its interval tells what that leaves to chance.

Where the processor has no counter for instructions, and for blocks and calls, which none has, \
'dcpi ideal' counts them in a run of its own: exactly, of all user code.

With --baseline, change % has the change of each event's mean, and its interval where both have \
several runs. All intervals of a report hold together with --confidence. --fail-on more fails \
where a whole interval, or an exact count, is above --effect; not for times, which dcpi time judges.

Exit codes: that of COMMAND; 1 with --fail-on more, if a count is larger; or 128 + N if signal N \
ended it; 126 and 127 if COMMAND cannot be run; 2 if dcpi count could not do its work.";

pub(crate) fn run(args: &Count) -> Result<Outcome, AnalysisError> {
    let Some((program, arguments)) = args.command.split_first() else {
        return Ok(Outcome::default());
    };
    if let Err(why) = runnable(program, std::env::var_os("PATH").as_deref()) {
        let program = shell_word(program.as_ref());
        writeln!(io::stderr(), "dcpi: {program}: {}; nothing was counted", why.words())?;
        return Ok(Outcome { code: Some(why.code()), ..Outcome::default() });
    }
    let baseline: Option<Before> =
        args.baseline.as_deref().map(|path| baseline::read(path, "count")).transpose()?;
    baseline::check_outputs(args.baseline.as_deref(), [args.to.as_ref(), args.bencher.as_ref()])?;
    let mut out = output(args)?;
    let asked = asked(args)?;
    let (totals, by_ideal, mut notes) = chosen(&asked)?;
    let mut input = Input::keep_for(args.runs + u32::from(!by_ideal.is_empty()))?;
    let refused = |error: TotalsError| AnalysisError::Refused(error.to_string());
    let stopped = pass_on()?;
    let mut counted = Counted::new(totals.events().len());
    let before = children_cpu_s();
    while counted.runs() < args.runs && stopped.signal().is_none() {
        let streams = input.streams(counted.runs() == 0)?;
        let run = totals.run((program, arguments), streams).map_err(refused)?;
        // A run that a signal cut is not a measurement, unless it is the only one.
        if stopped.signal().is_none() || counted.runs() == 0 {
            counted.take(run);
        }
    }
    let done = counted.runs();
    let cut = stopped.signal().filter(|_| done < args.runs);
    let of_all = format!("{done} of {} were counted", args.runs);
    notes.extend(cut.map(|signal| format!("signal {signal} ended the runs: {of_all}")));
    let Counted { ends, seconds, values, after } = counted;
    let runs = seconds.len().max(1) as f64;
    let cpu_s = before.zip(after);
    let cpu_s =
        cpu_s.map(|((user, system), after)| ((after.0 - user) / runs, (after.1 - system) / runs));
    let row = |(event, values): (&Event, &Vec<_>)| {
        let unit = if event.unit == Unit::Nanoseconds { "ns" } else { "count" };
        row(&event.name, unit, values, args.confidence)
    };
    let mut rows: Vec<CountRow> = totals.events().zip(&values).map(row).collect();
    if !by_ideal.is_empty() && cut.is_none() {
        let streams = input.streams(false)?;
        let run = engine(None, false)?.run(&args.command, streams);
        let run = run.map_err(|error| AnalysisError::Refused(error.to_string()))?;
        rows.extend(by_ideal.iter().map(|event| exact_row(event, &run.counts)));
        let place = |row: &CountRow| asked.iter().position(|event| *event == row.event);
        rows.sort_by_key(place);
    }
    if let Some(other) = ends.iter().find(|end| Some(*end) != ends.first()) {
        notes.push(format!("a later run ended otherwise than the first: {other}"));
    }
    if let Some(baseline) = &baseline {
        baseline.compare(&mut rows, args.confidence);
        notes.extend(baseline.notes(&rows));
    }
    let words: Vec<String> = args.command.iter().map(|word| shell_word(word.as_ref())).collect();
    let report = CountReport {
        ended: rfc3339(now_unix_s()),
        cpu: cpu_model().unwrap_or_default(),
        command: words.join(" "),
        runs: done,
        seconds: mean(&seconds, 0.0, args.confidence),
        user_s: cpu_s.map(|(user, _)| user),
        system_s: cpu_s.map(|(_, system)| system),
        confidence: args.confidence,
        rows,
        notes,
    };
    if args.to.is_none() {
        writeln!(out)?;
    }
    let outcome = write(&report, &args.output, &mut out)?;
    out.flush()?;
    // What a command counts that fails is no measure of it.
    let is_done = ends.iter().all(ExitStatus::success) && cut.is_none();
    if is_done && is_more(args, &report)? {
        return Ok(Outcome { code: Some(1), ..outcome });
    }
    let code = cut.and(stopped.code());
    Ok(Outcome { code: code.or(ends.first().map(|status| exit_code(*status))), ..outcome })
}

/// Where the report goes. Checks before the command runs that all of the output can be written.
fn output(args: &Count) -> Result<Box<dyn Write>, AnalysisError> {
    let bencher = args.bencher.as_deref().map(Destination::from_argument);
    bencher.map_or(Ok(()), |bencher| bencher.check())?;
    let Some(path) = &args.to else { return Ok(Box::new(io::stderr())) };
    let file = File::create(path)
        .map_err(|source| AnalysisError::OutputFile { path: path.clone(), source })?;
    Ok(Box::new(BufWriter::new(file)))
}

/// Writes the counts for Bencher, and says whether they are too large by `--fail-on`.
///
/// # Errors
/// Returns those of [`baseline::write_bencher`], and [`AnalysisError::Refused`] where no count can
/// be judged.
fn is_more(args: &Count, report: &CountReport) -> Result<bool, AnalysisError> {
    let measure = |row: &CountRow| {
        let Occurrences { value, low, high } = row.of_run?;
        Some((row.event.clone(), Interval { value, low, high }))
    };
    let measures: Vec<(String, Interval)> = report.rows.iter().filter_map(measure).collect();
    baseline::write_bencher(args.bencher.as_ref(), &report.command, &measures)?;
    if args.fail_on.is_none() {
        return Ok(false);
    }
    if !report.rows.iter().any(CountRow::is_judged) {
        let why = "nothing could be judged: give both runs the same events, and -r 3 or more";
        return Err(AnalysisError::Refused(why.to_owned()));
    }
    let says = report.more_than(args.effect);
    if let Some(says) = &says {
        writeln!(io::stderr(), "dcpi: {says}")?;
        baseline::annotate("count", says)?;
    }
    Ok(says.is_some())
}

/// What `dcpi count --format json` wrote.
#[derive(Deserialize)]
struct Before {
    ended: String,
    command: String,
    rows: Vec<BeforeRow>,
}

#[derive(Deserialize)]
struct BeforeRow {
    event: String,
    unit: String,
    exact: bool,
    runs: Vec<f64>,
}

impl Before {
    /// Adds to each row its change since then. The intervals hold for all events together: each
    /// misses with its part of the probability (Bonferroni).
    fn compare(&self, rows: &mut [CountRow], confidence: Confidence) {
        let miss = (1.0 - confidence.percent() / 100.0) / rows.len().max(1) as f64;
        for row in rows {
            let before = self.rows.iter().find(|before| before.event == row.event);
            row.change = before.and_then(|before| change(before, row, miss));
        }
    }

    /// What the changes are of, and which events have none.
    fn notes(&self, rows: &[CountRow]) -> Vec<String> {
        let mut notes = vec![format!("change %: since {}, of {}", self.ended, self.command)];
        let open: Vec<&str> =
            rows.iter().filter(|row| !row.is_judged()).map(|row| row.event.as_str()).collect();
        if !open.is_empty() {
            let open = open.join(", ");
            notes.push(format!("not judged, for want of runs or of counts before: {open}"));
        }
        notes
    }
}

/// The change of an event's count, as a part of what it was; none where it was 0 and is not.
fn change(before: &BeforeRow, row: &CountRow, miss: f64) -> Option<Interval> {
    let is_count = |of: &f64| (0.0..COUNT_MAX).contains(of);
    if before.unit != row.unit || !before.runs.iter().all(is_count) {
        return None;
    }
    let was = before.runs.iter().sum::<f64>() / before.runs.len() as f64;
    let value = match (was == 0.0, row.of_run?.value == 0.0) {
        (true, true) => 0.0,
        // From nothing to something is no part of what it was, and more than any.
        (true, false) => f64::INFINITY,
        (false, _) => row.of_run?.value / was - 1.0,
    };
    if before.exact && row.exact {
        return Some(Interval::exact(value));
    }
    let (between, error) = welch([&before.runs, &row.runs], miss)?;
    if !between.low.is_finite() {
        return Some(Interval { value, low: f64::NEG_INFINITY, high: f64::INFINITY });
    }
    // A few equal counts do not say that all are: their spread is taken for half a count at least.
    let (n, m) = (before.runs.len() as f64, row.runs.len() as f64);
    let least = 0.5 * (1.0 / n + 1.0 / m).sqrt();
    let reach = (between.high - between.low) / 2.0;
    let reach = match error < least && row.unit != "ns" {
        true => reach.max(least * tails::student_quantile(miss, n + m - 2.0)),
        false => reach,
    };
    let middle = f64::midpoint(between.low, between.high);
    let end = |difference: f64| match was == 0.0 {
        true if difference > 0.0 => f64::INFINITY,
        true => 0.0,
        // Nothing can lose more than all of its count.
        false => (difference / was).max(-1.0),
    };
    Some(Interval { value, low: end(middle - reach), high: end(middle + reach) })
}

/// Counts from here on are not those of a computer.
const COUNT_MAX: f64 = 1e18;

/// The counts, one place for each run.
struct Counted {
    ends: Vec<ExitStatus>,
    seconds: Vec<f64>,
    /// `[event][run]`.
    values: Vec<Vec<Option<Total>>>,
    /// CPU time of all children so far, user and system, s.
    after: Option<(f64, f64)>,
}

impl Counted {
    fn new(events: usize) -> Self {
        let values = vec![Vec::new(); events];
        Self { ends: Vec::new(), seconds: Vec::new(), values, after: None }
    }

    fn runs(&self) -> u32 {
        u32::try_from(self.ends.len()).unwrap_or(u32::MAX)
    }

    fn take(&mut self, run: TotalsRun) {
        self.ends.push(run.status);
        self.seconds.push(run.took.as_secs_f64());
        self.values.iter_mut().zip(run.totals).for_each(|(all, total)| all.push(total));
        self.after = children_cpu_s();
    }
}

/// The requested events, split up and without duplicates.
///
/// # Errors
/// [`AnalysisError::Usage`] for an empty list.
fn asked(args: &Count) -> Result<Vec<String>, AnalysisError> {
    let list = args.events.join(",");
    let mut asked: Vec<String> = Vec::new();
    for event in profiledb::split_events(&list).map(str::trim).filter(|event| !event.is_empty()) {
        if !asked.iter().any(|known| known == event) {
            asked.push(event.to_owned());
        }
    }
    if asked.is_empty() && !args.events.is_empty() {
        let message = "-e names no event; leave it out for the usual ones".to_owned();
        return Err(AnalysisError::Usage { message, help: "dcpi count --help".to_owned() });
    }
    Ok(asked)
}

/// The events to count with perf, the events that `dcpi ideal` counts, and remarks.
fn chosen(asked: &[String]) -> Result<(Totals, Vec<String>, Vec<String>), AnalysisError> {
    let names = if asked.is_empty() { DEFAULT.map(str::to_owned).to_vec() } else { asked.to_vec() };
    let only_ideal = |name: &String| name == "blocks" || name == "calls";
    let (mut by_ideal, countable): (Vec<String>, Vec<String>) =
        names.into_iter().partition(only_ideal);
    let (totals, missing) = Totals::find(&countable);
    let mut lacking = Vec::new();
    for (name, error) in missing {
        match error {
            TotalsError::Refused { .. } if asked.is_empty() => lacking.push(name),
            TotalsError::Refused { .. } if BY_IDEAL.contains(&name.as_str()) => by_ideal.push(name),
            error => return Err(AnalysisError::Refused(error.to_string())),
        }
    }
    let mut notes = Vec::new();
    if !lacking.is_empty() {
        let names = lacking.join(", ");
        notes.push(format!(
            "not counted, because this machine has no such counter: {names}; -e instructions,blocks \
             counts by dcpi ideal"
        ));
    }
    if !totals.with_kernel() {
        notes.push("only user code was counted: root may count the kernel's part, too".to_owned());
    }
    Ok((totals, by_ideal, notes))
}

/// The mean of a run, with its interval by Student's t and the variance that each value has itself.
fn mean(values: &[f64], own_variance: f64, confidence: Confidence) -> Occurrences {
    let n = values.len() as f64;
    let value = values.iter().sum::<f64>() / n.max(1.0);
    if values.len() < 2 {
        let reach = confidence.z() * own_variance.sqrt();
        return Occurrences { value, low: (value - reach).max(0.0), high: value + reach };
    }
    // Spread of the values has what scaling leaves to chance in it.
    let squares: f64 = values.iter().map(|of| (of - value).powi(2)).sum();
    let error = (squares / (n - 1.0) / n).sqrt();
    let reach = error * tails::student_quantile(1.0 - confidence.percent() / 100.0, n - 1.0);
    Occurrences { value, low: (value - reach).max(0.0), high: value + reach }
}

fn row(
    event: &str,
    unit: &'static str,
    totals: &[Option<Total>],
    confidence: Confidence,
) -> CountRow {
    let known: Vec<Total> = totals.iter().flatten().copied().collect();
    let runs: Vec<f64> = known.iter().map(|total| total.value).collect();
    let n = known.len().max(1) as f64;
    let variance = known.iter().map(|total| total.variance).sum::<f64>() / n;
    let enabled_share = known.iter().map(|total| total.enabled_share).sum::<f64>() / n;
    CountRow {
        event: event.to_owned(),
        unit,
        of_run: (!runs.is_empty()).then(|| mean(&runs, variance, confidence)),
        varies: runs.len() > 1 || variance > 0.0,
        runs,
        enabled_share,
        change: None,
        exact: false,
    }
}

fn exact_row(event: &str, counts: &Counts) -> CountRow {
    let calls = || counts.calls.values().fold(0_u64, |sum, calls| sum.saturating_add(*calls));
    let value = match event {
        "instructions" => Some(counts.counted),
        "blocks" => counts.blocks,
        _ => Some(calls()),
    };
    let value = value.map(|value| value as f64);
    CountRow {
        event: event.to_owned(),
        unit: "count",
        of_run: value.map(|value| Occurrences { value, low: value, high: value }),
        runs: value.into_iter().collect(),
        enabled_share: 1.0,
        varies: false,
        change: None,
        exact: true,
    }
}
