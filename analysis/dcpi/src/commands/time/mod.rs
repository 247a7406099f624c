//! `dcpi time`: whether one command is faster than another, really.

mod before;
mod function;
mod host;
mod one_run;
mod pages;
mod picture;
mod session;
mod words;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use measure::humps::median;
use measure::{Interval, kbest, layouts, warmup};
use report::{Clock, RunRow, TimeReport, Timed, Times};
use stats::Confidence;

use super::ideal::database::{cpu_model, now_unix_s};
use super::record::{runnable, shell_word};
use super::{Outcome, baseline, write_and_keep};
use crate::destination::{Destination, svg_path};
use crate::options::{Format, Output, parse_confidence, parse_effect, parse_timeout};
use crate::plain_file;
use before::Before;
use one_run::Runner;
use query::error::AnalysisError;
use query::times::rfc3339;
use session::{Measured, Plan};

/// Most runs of a command: each takes about 100 bytes of memory, and its line in JSON.
const RUNS_MAX: u64 = 100_000;
/// Part of a run's wall-clock time that neither CPU time nor waiting for a CPU explains, up to
/// which a command only computes.
const UNEXPLAINED: f64 = 0.05;
/// The same as a time, s: starting a process takes a part of a millisecond of another process's.
const UNEXPLAINED_S: f64 = 0.000_5;

/// `dcpi time`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct Time {
    /// Runs of each command in each layout [default: 3, and more up to 15 within 2 seconds]
    #[arg(
        short = 'r',
        long,
        value_name = "RUNS",
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    pub runs: Option<u32>,
    /// Layouts of the programs in memory
    #[arg(
        long,
        value_name = "N",
        default_value_t = 12,
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    pub layouts: u32,
    /// Command that links both programs in a new order for each layout, by the number in
    /// $DCPI_LAYOUT
    #[arg(long, value_name = "COMMAND")]
    pub relink: Option<OsString>,
    /// Change of the time that matters to you, in percent
    #[arg(long, value_name = "P%", default_value = "2%", value_parser = parse_effect)]
    pub effect: f64,
    /// Time that decides [default: CPU time where the commands only compute, else wall-clock time]
    #[arg(long, value_name = "CLOCK", value_enum)]
    pub clock: Option<ClockChoice>,
    /// Confidence of the intervals in percent
    #[arg(long, value_name = "PERCENT", default_value = "95", value_parser = parse_confidence)]
    pub confidence: Confidence,
    /// Time of one call of PROCEDURE of the file IMAGE, too: its sampled share of the CPU time over
    /// its counted calls
    #[arg(long, value_names = ["IMAGE", "PROCEDURE"], num_args = 2)]
    pub function: Vec<String>,
    /// Draws all runs as dots by layout, as SVG; - writes it on standard output instead of a
    /// report
    #[arg(short = 'o', long = "picture", value_name = "FILE.svg", value_parser = svg_path())]
    pub picture: Option<PathBuf>,
    /// File that each run reads as its standard input [default: nothing]
    #[arg(long, value_name = "FILE", value_parser = plain_file::argument())]
    pub input: Option<PathBuf>,
    /// Longest time of a run, and of --relink: a command that takes longer is killed, and the runs
    /// before it are reported
    #[arg(long, value_name = "T", value_parser = parse_timeout)]
    pub timeout: Option<Duration>,
    /// Measures runs that fail, too
    #[arg(short = 'i', long)]
    pub ignore_failure: bool,
    /// Shows the output of the commands, on standard error [default: it goes nowhere]
    #[arg(long)]
    pub show_output: bool,
    /// Number that random orders are made of: the same one makes the same orders
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Ends with exit code 1 where the verdict is this: a step of a build fails
    #[arg(long, value_name = "VERDICT", value_enum)]
    pub fail_on: Option<FailOn>,
    /// Compares the command, as B, with what dcpi time --format json wrote of one command before,
    /// on the same kind of processor
    #[arg(long, value_name = "FILE", value_parser = plain_file::argument(),
        conflicts_with = "function")]
    pub baseline: Option<PathBuf>,
    /// Also writes the time that decides to FILE, for Bencher; - is standard output
    #[arg(long, value_name = "FILE")]
    pub bencher: Option<PathBuf>,
    #[command(flatten)]
    pub output: Output,
    /// Commands: 'A words' 'B words', or A words -- B words; or one alone
    #[arg(value_name = "A [-- B]", trailing_var_arg = true, required = true)]
    pub command: Vec<OsString>,
}

/// The time that decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ClockChoice {
    /// CPU time of the command and its children.
    Cpu,
    /// Time from start to end.
    Wall,
}

/// The verdict that ends with an exit code of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum FailOn {
    /// B is slower than A.
    Slower,
}

const NOTES: &str = "\
Commands run without a shell: sh -c '...' is a command, too. Each pair runs both, in random \
order. Before each pair of runs the environment gets another size, which moves the stack, and the \
kernel draws other addresses; --relink also draws an order of the programs' parts, which moves \
times by some percent and which no number of runs of one build can tell.

With --baseline, A was measured before. What the machine does otherwise since then looks like a \
change of the program: the interval allows for --effect, or for more where a fixed loop takes \
another time than then. Both in one run, A -- B, are compared with less doubt.

The interval is of layouts: each layout gives one number. 'Not distinguishable' says how large the \
difference may still be; 'too few layouts' says how many more would show a change of --effect in \
four of five cases. To add layouts until the answer pleases makes it wrong more often than the \
confidence says: choose their number first.

The first runs are left out as warm-up where a test finds them slower than the later ones. A busy \
sibling thread, load of other programs, steal time, throttling and fixed addresses are found and \
said.

Exit codes: 0 done, whatever the verdict; 1 if B is slower, with --fail-on slower; 2 if a command \
fails or cannot be run. After Ctrl-C or a timeout, the runs so far are reported.";

pub(crate) fn run(args: &Time, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    // Checks before the runs that the request can be met.
    let picture = args.picture.as_deref().map(Destination::from_argument);
    picture.as_ref().map_or(Ok(()), Destination::check)?;
    let bencher = args.bencher.as_deref().map(Destination::from_argument);
    bencher.map_or(Ok(()), |bencher| bencher.check())?;
    baseline::check_outputs(
        args.baseline.as_deref(),
        [args.picture.as_ref(), args.bencher.as_ref()],
    )?;
    let commands = words::commands(&args.command)?.len();
    let refused = |message: &str| {
        let (message, help) = (message.to_owned(), "dcpi time --help".to_owned());
        Err(AnalysisError::Usage { message, help })
    };
    let is_stdout = |path: &Option<PathBuf>| path.as_deref() == Some(Path::new("-"));
    if is_stdout(&args.bencher) && args.output.format != Format::Text {
        return refused("--bencher - and --format would both be on standard output");
    }
    match (commands, &args.baseline, args.fail_on) {
        (2, Some(_), _) => return refused("--baseline stands for A: name one command, B"),
        (1, None, Some(_)) => return refused("--fail-on needs two commands, or --baseline"),
        _ => {}
    }
    let (plan, mut report) = timed(args)?;
    let functions = functions(args, &plan, &mut report);
    let is_slower =
        report.comparison.as_ref().is_some_and(|found| found.verdict == layouts::Verdict::Slower);
    let outcome = kept(&report, &args.output, (picture.as_ref(), functions), out)?;
    let fails = args.fail_on == Some(FailOn::Slower) && is_slower;
    if let Some(timed) = report.commands.last() {
        let times = if report.clock.is_cpu() { timed.cpu_s } else { timed.wall_s };
        let ns = |seconds: f64| seconds * 1e9;
        let Interval { value, low, high } = times.layouts;
        let latency = Interval { value: ns(value), low: ns(low), high: ns(high) };
        let measures = [("latency".to_owned(), latency)];
        baseline::write_bencher(args.bencher.as_ref(), &timed.command, &measures)?;
    }
    if fails {
        baseline::annotate("time", &report.verdict())?;
    }
    Ok(Outcome { code: fails.then_some(1).or(outcome.code), ..outcome })
}

/// Times the commands; what was planned, and what it gave.
pub(super) fn timed(args: &Time) -> Result<(Plan, TimeReport), AnalysisError> {
    let commands = words::commands(&args.command)?;
    // Programs that --relink makes are not there yet.
    let there = commands.iter().filter_map(|words| words.first()).filter(|_| args.relink.is_none());
    for program in there {
        if let Err(why) = runnable(program, std::env::var_os("PATH").as_deref()) {
            let (program, why) = (shell_word(program.as_ref()), why.words());
            return Err(AnalysisError::Refused(format!("{program}: {why}; see dcpi time --help")));
        }
    }
    if u64::from(args.layouts) * u64::from(args.runs.unwrap_or(1)) > RUNS_MAX {
        let message = format!("more than {RUNS_MAX} runs of a command; lower --layouts or -r");
        return Err(AnalysisError::Usage { message, help: "dcpi time --help".to_owned() });
    }
    let relink = args.relink.as_ref().map(words::split).transpose()?;
    if let ([image, procedure], None) = (args.function.as_slice(), &relink) {
        function::check((image, procedure), &commands)?;
    }
    let plan = Plan {
        commands,
        runs: args.runs,
        layouts: args.layouts,
        relink,
        seed: args.seed.unwrap_or_else(|| fastrand::u64(..)),
        ignores_failure: args.ignore_failure,
    };
    let before = args.baseline.as_deref().map(Before::read).transpose()?;
    let runner = Runner::new(args.input.clone(), args.show_output, args.timeout)?;
    let measured = session::measure(&plan, &runner)?;
    if measured.rows.is_empty() {
        let why = measured.ended.unwrap_or_else(|| "there was no run".to_owned());
        return Err(AnalysisError::Refused(format!("nothing was measured: {why}; run it again")));
    }
    let report = evaluated(args, &plan, measured, before);
    Ok((plan, report))
}

/// Times the procedure of `--function` in each command.
///
/// # Errors
/// Returns the error of [`function::time`] for the first command that it cannot time.
fn functions(args: &Time, plan: &Plan, report: &mut TimeReport) -> Result<(), AnalysisError> {
    let [image, procedure] = args.function.as_slice() else { return Ok(()) };
    let miss = miss(args.confidence);
    for (timed, words) in report.commands.iter_mut().zip(&plan.commands) {
        let first = plan.commands.first().unwrap_or(words);
        let image = function::image_of(image.as_ref(), first, words);
        let cpu = timed.cpu_s.layouts;
        timed.function = Some(function::time((&image, procedure), words, cpu, miss)?);
    }
    Ok(())
}

/// Writes the report and the picture of runs, even where something else `failed` after them.
fn kept(
    report: &TimeReport,
    output: &Output,
    (picture, failed): (Option<&Destination>, Result<(), AnalysisError>),
    out: &mut dyn Write,
) -> Result<Outcome, AnalysisError> {
    let draw = |out: &mut dyn Write| {
        let Some(picture) = picture else { return Ok(()) };
        let svg = picture::svg(report, &report.verdict());
        picture.write(out, |out| Ok(out.write_all(svg.as_bytes())?))
    };
    if picture == Some(&Destination::Stdout) {
        draw(out)?;
        failed?;
        return Ok(Outcome::default());
    }
    write_and_keep(report, output, out, |out| draw(out).and(failed))
}

/// The probability with which an interval misses the truth.
fn miss(confidence: Confidence) -> f64 {
    1.0 - confidence.percent() / 100.0
}

fn evaluated(args: &Time, plan: &Plan, measured: Measured, before: Option<Before>) -> TimeReport {
    let Measured { mut rows, host, ended } = measured;
    let mut commands: Vec<String> = plan.commands.iter().map(session::shown).collect();
    let loop_ns = host.loop_ns();
    let drift = before.as_ref().map(|before| before.drift(loop_ns, args.effect));
    let mut notes: Vec<String> =
        ended.map(|why| format!("not all layouts: {why}")).into_iter().collect();
    if let Some(before) = before {
        notes.push(before.note(loop_ns));
        rows.iter_mut().for_each(|row| row.command = 1);
        rows.splice(..0, before.rows);
        commands.insert(0, before.command);
    }
    let clock = clock(args.clock, &rows);
    let warm_up = leave_out_warm_up(&mut rows, clock, commands.len());
    let miss = miss(args.confidence);
    let compare = |of: fn(&RunRow) -> f64| match drift {
        Some(drift) => {
            let [a, b] = [0, 1].map(|command| by_layout(&rows, command, of));
            layouts::compare_apart([&a, &b], (miss, drift), args.effect)
        }
        None if commands.len() < 2 => None,
        None => layouts::compare(&pairs(&rows, of), miss, args.effect),
    };
    let (by_cpu, by_wall) = (compare(RunRow::cpu_s), compare(|row| row.wall_s));
    let (comparison, other) = if clock.is_cpu() { (by_cpu, by_wall) } else { (by_wall, by_cpu) };
    let commands: Vec<Timed> = commands
        .into_iter()
        .enumerate()
        .map(|(index, command)| {
            let of_command = || rows.iter().filter(move |row| row.command == index);
            let (delayed, wall) = of_command()
                .fold((0.0, 0.0), |sum, row| (sum.0 + row.delayed_s, sum.1 + row.wall_s));
            Timed {
                command,
                cpu_s: times(&rows, index, RunRow::cpu_s, miss),
                wall_s: times(&rows, index, |row| row.wall_s, miss),
                delayed: delayed / f64::max(wall, f64::MIN_POSITIVE),
                warm_up: warm_up.get(index).copied().unwrap_or_default(),
                failed: of_command().filter(|row| row.code != Some(0)).count(),
                function: None,
            }
        })
        .collect();
    let delayed: Vec<f64> = commands.iter().map(|timed| timed.delayed).collect();
    notes.extend(of_commands(&commands));
    notes.extend(host.notes(&delayed));
    TimeReport {
        layouts: rows.last().map_or(0, |row| row.layout + 1),
        drawn: drawn(plan).to_owned(),
        clock,
        comparison,
        by_other: other,
        effect: args.effect,
        confidence: args.confidence,
        ended: rfc3339(now_unix_s()),
        cpu: cpu_model().unwrap_or_default(),
        loop_ns,
        commands,
        runs: rows,
        notes,
    }
}

/// The properties that differ between layouts.
fn drawn(plan: &Plan) -> &'static str {
    match plan.relink {
        Some(_) => "link order by --relink; the environment's size and addresses in each run",
        None => {
            "the environment's size and addresses in each run, the files' places in memory; the \
             order of code is that of one build (--relink draws others)"
        }
    }
}

fn of_commands(commands: &[Timed]) -> Vec<String> {
    let mut notes = Vec::new();
    for (timed, letter) in commands.iter().zip(["A", "B"]) {
        if timed.warm_up > 0 {
            let runs = report::counted(timed.warm_up as u64, "run");
            notes.push(format!("{letter}: the first {runs} left out: warm-up, by test"));
        }
        if timed.failed > 0 {
            notes.push(format!("{letter}: {} failed", report::counted(timed.failed as u64, "run")));
        }
    }
    notes
}

/// The time that decides. A command that only computes, in one thread, needs its CPU time; what its
/// wall-clock time has above that is the machine's load.
fn clock(asked: Option<ClockChoice>, rows: &[RunRow]) -> Clock {
    match asked {
        Some(ClockChoice::Cpu) => return Clock::CpuAsked,
        Some(ClockChoice::Wall) => return Clock::WallAsked,
        None => {}
    }
    let computes = |command: usize| {
        let of_command = rows.iter().filter(|row| row.command == command);
        let rest: Vec<f64> = of_command
            .map(|row| {
                let rest = (row.wall_s - row.cpu_s() - row.delayed_s).abs();
                (rest - UNEXPLAINED_S).max(0.0) / row.wall_s.max(f64::MIN_POSITIVE)
            })
            .collect();
        median(&rest).is_none_or(|rest| rest <= UNEXPLAINED)
    };
    if [0, 1].into_iter().all(computes) { Clock::CpuOnly } else { Clock::Waits }
}

/// Marks warm-up, and returns how many runs of each command are.
fn leave_out_warm_up(rows: &mut [RunRow], clock: Clock, commands: usize) -> Vec<usize> {
    (0..commands)
        .map(|command| {
            let time = |row: &RunRow| if clock.is_cpu() { row.cpu_s() } else { row.wall_s };
            let times: Vec<f64> =
                rows.iter().filter(|row| row.command == command).map(time).collect();
            let count = warmup::runs(&times);
            let own = rows.iter_mut().filter(|row| row.command == command);
            own.take(count).for_each(|row| row.warm_up = true);
            count
        })
        .collect()
}

/// The pairs of each layout in which no run is warm-up; none of one command alone.
fn pairs(rows: &[RunRow], of: fn(&RunRow) -> f64) -> Vec<layouts::Layout> {
    let mut all: Vec<layouts::Layout> = Vec::new();
    let at = |row: &RunRow| (row.layout, row.pair);
    for both in rows.chunk_by(|a, b| at(a) == at(b)) {
        let time = |command| both.iter().find(|row| row.command == command && !row.warm_up).map(of);
        let Some((layout, pair)) = both.first().map(|row| row.layout).zip(time(0).zip(time(1)))
        else {
            continue;
        };
        all.resize(all.len().max(layout + 1), Vec::new());
        if let Some(pairs) = all.get_mut(layout) {
            pairs.push(pair);
        }
    }
    all
}

/// A command's runs by layout, without warm-up.
fn by_layout(rows: &[RunRow], command: usize, of: fn(&RunRow) -> f64) -> Vec<Vec<f64>> {
    let own: Vec<&RunRow> =
        rows.iter().filter(|row| row.command == command && !row.warm_up).collect();
    let layouts = own.chunk_by(|a, b| a.layout == b.layout);
    layouts.map(|runs| runs.iter().map(|row| of(row)).collect()).collect()
}

fn times(rows: &[RunRow], command: usize, of: fn(&RunRow) -> f64, miss: f64) -> Times {
    let own: Vec<&RunRow> =
        rows.iter().filter(|row| row.command == command && !row.warm_up).collect();
    let all: Vec<f64> = own.iter().map(|row| of(row)).collect();
    Times {
        layouts: layouts::mean(&by_layout(rows, command, of), miss).unwrap_or_default(),
        mean: all.iter().sum::<f64>() / all.len().max(1) as f64,
        median: median(&all).unwrap_or_default(),
        fastest: all.iter().copied().reduce(f64::min).unwrap_or_default(),
        kbest: kbest::LECTURE.of(all.iter().copied()),
    }
}
