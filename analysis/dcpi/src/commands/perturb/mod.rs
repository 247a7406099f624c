//! `dcpi perturb`: what an observer does to a command: how much slower it becomes, and whether its
//! metrics still move together as they do without one.

mod amounts;
mod columns;
mod observer;
mod session;

use std::ffi::OsString;
use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use exact::series::Plan;
use measure::perturbation::{BASELINES_MIN, Comparison, ratio};
use query::error::AnalysisError;
use report::{FalseAlarms, Group, MetricRow, Moved, PerturbReport, Relation, Slowdown};

use super::input::Input;
use super::passing::pass_on;
use super::record::{runnable, shell_word};
use super::{Outcome, write};
use crate::options::{Output, parse_time};
use columns::{Names, Run};
use observer::{Observer, split};
use session::{Judged, Runs, Session};

/// `dcpi perturb`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct Perturb {
    /// Command that observes, put before COMMAND, such as 'uftrace record' [default: dcpi record]
    #[arg(long, value_name = "CMD")]
    pub observer: Option<OsString>,
    /// Command to run instead of COMMAND: a build with the observer in it, perhaps behind a command
    /// that reads its events, and --
    #[arg(long, value_name = "CMD", conflicts_with = "observer")]
    pub observed: Option<OsString>,
    /// Number of runs without the observer
    #[arg(
        long,
        value_name = "N",
        default_value_t = 14,
        value_parser = clap::value_parser!(u32).range(BASELINES_MIN as i64..=1000)
    )]
    pub baselines: u32,
    /// Number of runs with the observer
    #[arg(
        short = 'r',
        long,
        value_name = "RUNS",
        default_value_t = 4,
        value_parser = clap::value_parser!(u32).range(2..=1000)
    )]
    pub runs: u32,
    /// Events that are metrics beside the procedures' time; a list with commas, or repeated
    #[arg(
        short = 'e',
        long = "event",
        value_name = "EVENT",
        value_delimiter = ',',
        default_value = "page-faults,context-switches"
    )]
    pub events: Vec<String>,
    /// CPU time of a record; runs are cut into records
    #[arg(long, value_name = "T", default_value = "10ms", value_parser = parse_interval)]
    pub interval: Duration,
    /// Samples of a second of CPU time
    #[arg(
        long,
        value_name = "RATE",
        default_value_t = 4000,
        value_parser = clap::value_parser!(u32).range(100..=20_000)
    )]
    pub rate: u32,
    /// What the observer collects: events of dcpi record, or what is to stand for {} in CMD
    #[arg(long, value_name = "ITEM,...", value_delimiter = ',')]
    pub collect: Vec<String>,
    /// If the observer perturbs, split what it collects over several runs that it does not
    #[arg(long, requires = "collect")]
    pub split: bool,
    /// Without an observer: in how many of N comparisons of the command with itself a perturbation
    /// is found
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=100_000),
        conflicts_with_all = ["observer", "observed", "collect"]
    )]
    pub false_alarms: Option<u32>,
    /// Probability of finding a perturbation where there is none, in percent
    #[arg(long, value_name = "P%", default_value = "1%", value_parser = parse_level)]
    pub level: f64,
    #[command(flatten)]
    pub output: Output,
    /// Command to run
    #[arg(value_name = "COMMAND", trailing_var_arg = true, required = true)]
    pub command: Vec<OsString>,
}

const NOTES: &str = "\
COMMAND runs some 18 times, without and with the observer in turns; its output is seen nowhere. \
Metrics are the time of each large procedure, and events. They are read from outside by perf \
events, in records of equal CPU time.

inner: the rank correlation of two metrics within a run; outer: of a metric with itself in a run \
without the observer, aligned by time warping. A change counts where it is beyond the spread of \
runs without the observer, corrected for the number of comparisons.

The shares of time and the number of events are compared, too: a share that moves by 2 % of all \
time or more is named.

A word of CMD with {} in it is given once for each item of --collect: --observer 'dcpi trace \
--at={} -o /dev/null --'.

Exit codes: 0 whatever the verdict; 126 and 127 if COMMAND or CMD cannot be run; 128 + N if \
signal N ended the runs; 2 if dcpi perturb could not do its work.";

fn parse_interval(text: &str) -> Result<Duration, String> {
    parse_time(text, Duration::from_millis(1), Duration::from_secs(60))
}

fn parse_level(text: &str) -> Result<f64, String> {
    let percent = text.strip_suffix('%').unwrap_or(text).parse().ok();
    percent
        .filter(|percent: &f64| (0.0001..=50.0).contains(percent))
        .map(|percent| percent / 100.0)
        .ok_or_else(|| "must be a percentage from 0.0001 to 50, such as 1%".to_owned())
}

pub(crate) fn run(args: &Perturb, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let observer = match (&args.observer, &args.observed) {
        (Some(words), _) => Observer::Before(split(words)?),
        (_, Some(words)) => Observer::Instead(split(words)?),
        _ => Observer::Own,
    };
    let observing = match &observer {
        Observer::Before(words) | Observer::Instead(words) => words.first(),
        Observer::Own => None,
    };
    for program in args.command.first().into_iter().chain(observing) {
        if let Err(why) = runnable(program, std::env::var_os("PATH").as_deref()) {
            let program = shell_word(program.as_ref());
            writeln!(io::stderr(), "dcpi: {program}: {}; nothing was measured", why.words())?;
            return Ok(Outcome { code: Some(why.code()), ..Outcome::default() });
        }
    }
    let period_ns = 1_000_000_000 / u64::from(args.rate);
    let per_record = args.interval.as_nanos() / u128::from(period_ns);
    let plan = Plan::new(period_ns, &args.events)
        .map_err(|error| AnalysisError::Refused(error.to_string()))?;
    let stopped = pass_on()?;
    let mut session = Session {
        plan,
        command: &args.command,
        observer,
        names: Names::default(),
        input: Input::keep()?,
        ended: None,
        per_record: usize::try_from(per_record).unwrap_or(usize::MAX).max(1),
        // Half for how metrics move, half for their shares.
        level: args.level / 2.0,
        notes: Vec::new(),
        stopped: stopped.clone(),
    };
    match (report(args, &mut session), stopped.code()) {
        (Ok(report), _) => write(&report, &args.output, out),
        (Err(error), code @ Some(_)) => {
            Ok(Outcome { code, aside: vec![error.to_string()], ..Outcome::default() })
        }
        (Err(error), None) => Err(error),
    }
}

fn report(args: &Perturb, session: &mut Session<'_>) -> Result<PerturbReport, AnalysisError> {
    // The first run brings files into memory, and is no baseline.
    let first = session.baseline()?;
    session.long_enough(first.ticks(), first.cpu_s)?;
    match args.false_alarms {
        Some(trials) => false_alarms(args, session, trials),
        None => compare(args, session),
    }
}

fn sizes(args: &Perturb) -> (usize, usize) {
    (args.baselines as usize, args.runs as usize)
}

fn false_alarms(
    args: &Perturb,
    session: &mut Session<'_>,
    trials: u32,
) -> Result<PerturbReport, AnalysisError> {
    let (baselines, observed) = sizes(args);
    let (flagged, pool) = session.false_alarms(trials as usize, baselines, observed)?;
    let alarms = FalseAlarms { trials, flagged: flagged as u32, pool: pool as u32 };
    Ok(PerturbReport { false_alarms: Some(alarms), ..head(args, session, &[]) })
}

fn compare(args: &Perturb, session: &mut Session<'_>) -> Result<PerturbReport, AnalysisError> {
    let (baselines, observed) = sizes(args);
    let mut runs = session.runs(baselines, observed, &args.collect)?;
    let judged = session.judge(&runs)?;
    let groups = match args.split && judged.judgement.any {
        true => {
            let mut more = Runs { observed: Vec::new(), ..runs.clone() };
            session.split(&args.collect, &mut more, observed)?
        }
        false => Vec::new(),
    };
    if args.split && !judged.judgement.any && judged.shares_moved {
        let note = "nothing is split: how metrics move did not change, and shares are not \
                    what --split goes by";
        session.notes.push(note.to_owned());
    }
    let metrics = rows(&judged, session.level);
    let of = |all: &[Run], value: fn(&Run) -> f64| all.iter().map(value).collect::<Vec<f64>>();
    let times =
        |value: fn(&Run) -> f64| ratio(&of(&runs.baselines, value), &of(&runs.observed, value));
    let (cpu, wall) = (times(|run| run.cpu_s), times(|run| run.wall_s));
    let baseline_cpu_s = of(&runs.baselines, |run| run.cpu_s);
    let cpu_s = baseline_cpu_s.iter().sum::<f64>() / baseline_cpu_s.len().max(1) as f64;
    runs.observed.clear();
    Ok(PerturbReport {
        records: judged.columns.records,
        cpu_s,
        slowdown: Slowdown { cpu: cpu.unwrap_or_default(), wall: wall.unwrap_or_default() },
        relations_changed: judged.judgement.any,
        shares_changed: judged.shares_moved,
        comparisons: judged.judgement.inner.len() + judged.judgement.outer.len(),
        metrics,
        groups: groups.into_iter().map(|(items, perturbed)| Group { items, perturbed }).collect(),
        ..head(args, session, &args.collect)
    })
}

/// Remarks that the report always has.
fn head(args: &Perturb, session: &Session<'_>, items: &[String]) -> PerturbReport {
    let words: Vec<String> = args.command.iter().map(|word| shell_word(word.as_ref())).collect();
    PerturbReport {
        command: words.join(" "),
        observer: session.observer.words(items),
        baselines: args.baselines,
        runs: args.runs,
        interval_ns: u64::try_from(args.interval.as_nanos()).unwrap_or(u64::MAX),
        level: args.level,
        notes: session.notes.clone(),
        ..PerturbReport::default()
    }
}

/// The rows of metrics: their amounts, and the relations that changed most.
fn rows(judged: &Judged, level: f64) -> Vec<MetricRow> {
    let Judged { columns, judgement, moved, .. } = judged;
    let relation = |with: Option<usize>, of: &Comparison| Relation {
        with: with.and_then(|with| columns.names.get(with).cloned()),
        baseline: of.baseline,
        spread: of.spread,
        observed: of.observed,
        deviations: of.deviations,
        chance: of.chance,
        changed: of.chance <= level,
    };
    let of_metric = |(at, (name, moved)): (usize, (&String, &Moved))| {
        let mut inner: Vec<_> = judgement
            .inner
            .iter()
            .filter(|(a, b, _)| *a == at || *b == at)
            .map(|(a, b, of)| (if *a == at { *b } else { *a }, of))
            .collect();
        let by_distance = |of: &Comparison| -of.deviations.abs();
        inner.sort_by(|(_, a), (_, b)| by_distance(a).total_cmp(&by_distance(b)));
        let outer = judgement.outer.iter().find(|(metric, _)| *metric == at);
        MetricRow {
            name: name.clone(),
            is_time: columns.is_time(at),
            amount: *moved,
            inner: inner.first().map(|(with, of)| relation(Some(*with), of)),
            inner_changed: inner.iter().filter(|(_, of)| of.chance <= level).count(),
            outer: outer.map(|(_, of)| relation(None, of)),
            perturbed: judgement.perturbed.get(at).copied().unwrap_or_default(),
            unknown: judgement.unknown.get(at).copied().unwrap_or_default(),
        }
    };
    columns.names.iter().zip(moved).enumerate().map(of_metric).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_percentages() {
        assert_eq!(parse_level("1%"), Ok(0.01));
        assert_eq!(parse_level("5"), Ok(0.05));
        assert!(parse_level("0").is_err() && parse_level("60%").is_err());
        assert!(parse_level("many").is_err());
    }
}
