//! The runs: in random order, layout by layout, each pair with an environment of another size.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use report::RunRow;

use super::host::Host;
use super::one_run::{NotRun, PADDING_MAX, Runner, failure};
use super::pages;
use super::words::Words;
use crate::commands::record::shell_word;
use query::error::AnalysisError;

/// The variable through which the command of `--relink` gets the number of its layout.
const LAYOUT: &str = "DCPI_LAYOUT";
/// Pairs of runs in a layout, where the user does not say: at least and at most.
const PAIRS: (u32, u32) = (3, 15);
/// Time that pairs above the least may take in a layout.
const LAYOUT_TIME: Duration = Duration::from_secs(2);

pub(in crate::commands) struct Plan {
    pub(super) commands: Vec<Words>,
    /// Runs of each command in a layout; chosen by their time, without.
    pub(super) runs: Option<u32>,
    pub(super) layouts: u32,
    /// The command that links both programs again.
    pub(super) relink: Option<Words>,
    pub(super) seed: u64,
    pub(super) ignores_failure: bool,
}

pub(super) struct Measured {
    pub(super) rows: Vec<RunRow>,
    pub(super) host: Host,
    pub(super) ended: Option<String>,
}

enum End {
    Early(String),
    Refused(AnalysisError),
}

/// Runs everything.
///
/// # Errors
/// [`AnalysisError::Refused`] where a command cannot be run or fails.
pub(super) fn measure(plan: &Plan, runner: &Runner) -> Result<Measured, AnalysisError> {
    let mut measured = Measured { rows: Vec::new(), host: Host::new(), ended: None };
    let mut random = fastrand::Rng::with_seed(plan.seed);
    let begun = Instant::now();
    let (mut pairs, progress) = (plan.runs, Progress::new());
    for layout in 0..plan.layouts {
        progress.show(layout, plan.layouts, measured.rows.len(), begun);
        match one_layout(plan, runner, layout, pairs, &mut random, &mut measured) {
            Ok(made) => pairs = pairs.or(Some(made)),
            Err(End::Early(why)) => {
                measured.ended = Some(why);
                break;
            }
            Err(End::Refused(error)) => {
                progress.clear();
                return Err(error);
            }
        }
    }
    progress.clear();
    Ok(measured)
}

/// Runs all pairs of a layout: `pairs`, or as many as its time allows. Returns how many.
fn one_layout(
    plan: &Plan,
    runner: &Runner,
    layout: u32,
    pairs: Option<u32>,
    random: &mut fastrand::Rng,
    measured: &mut Measured,
) -> Result<u32, End> {
    match &plan.relink {
        // Numbers that shells and scripts compute with.
        Some(words) => relink(words, random.u32(..1 << 31), runner)?,
        None => {
            let programs: BTreeSet<&OsString> =
                plan.commands.iter().filter_map(|words| words.first()).collect();
            programs.into_iter().for_each(|program| pages::draw(program.as_ref(), random));
        }
    }
    let begun = Instant::now();
    let mut pair = 0;
    loop {
        let enough = match pairs {
            Some(pairs) => pair >= pairs,
            None => pair >= PAIRS.1 || pair >= PAIRS.0 && begun.elapsed() > LAYOUT_TIME,
        };
        if enough {
            return Ok(pair);
        }
        measured.host.look();
        // Both runs of a pair have the same environment: its chance is no difference of theirs.
        let padding = random.usize(..PADDING_MAX);
        let mut order: Vec<usize> = (0..plan.commands.len()).collect();
        random.shuffle(&mut order);
        let mut rows = Vec::with_capacity(order.len());
        for command in order {
            let row = one_run(plan, runner, command, padding)?;
            rows.push(RunRow { layout: layout as usize, pair: pair as usize, ..row });
        }
        // Half a pair would be of one command only.
        measured.rows.extend(rows);
        pair += 1;
    }
}

fn one_run(plan: &Plan, runner: &Runner, command: usize, padding: usize) -> Result<RunRow, End> {
    let Some(words) = plan.commands.get(command) else {
        return Err(End::Early("there is no command".to_owned()));
    };
    let ran = runner.run(words, padding).map_err(|why| end(words, why))?;
    if let Some(how) = failure(ran.status).filter(|_| !plan.ignores_failure) {
        let is_shells = |word: &OsString| {
            ["<", ">", ">>", "|", "&&", "||", ";"].iter().any(|shells| word == *shells)
        };
        let next = match words.iter().any(is_shells) {
            true => "no shell reads it: give sh -c '...', or --input FILE",
            false => "--show-output shows why, --ignore-failure measures nevertheless",
        };
        return Err(End::Refused(AnalysisError::Refused(format!(
            "{} failed: {how}; {next}",
            shown(words)
        ))));
    }
    Ok(RunRow {
        layout: 0,
        pair: 0,
        command,
        wall_s: ran.wall_s,
        user_s: ran.user_s,
        system_s: ran.system_s,
        delayed_s: ran.delayed_s,
        padding,
        warm_up: false,
        code: ran.status.code(),
    })
}

/// Has both programs linked again.
fn relink(words: &Words, seed: u32, runner: &Runner) -> Result<(), End> {
    let Some((program, arguments)) = words.split_first() else { return Ok(()) };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env(LAYOUT, seed.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let refused = |why: &dyn std::fmt::Display| {
        AnalysisError::Refused(format!(
            "--relink {}: {why}; it must make both programs anew by the number in ${LAYOUT}",
            shown(words)
        ))
    };
    let status = runner.between_runs(&mut command, |error| refused(&error));
    let status = status.map_err(|why| match why {
        NotRun::TimedOut => {
            End::Early(format!("--relink {}: it took longer than --timeout allows", shown(words)))
        }
        why => end(words, why),
    })?;
    failure(status).map_or(Ok(()), |how| Err(End::Refused(refused(&how))))
}

/// The result for a command without runs.
fn end(words: &Words, why: NotRun) -> End {
    match why {
        NotRun::Stopped => End::Early("a signal ended the runs".to_owned()),
        NotRun::TimedOut => {
            let words = shown(words);
            End::Early(format!("{words} took longer than --timeout allows, and was ended"))
        }
        NotRun::Refused(error) => End::Refused(error),
    }
}

/// A command as a shell takes it.
pub(super) fn shown(words: &Words) -> String {
    let words: Vec<String> = words.iter().map(|word| shell_word(word.as_ref())).collect();
    words.join(" ")
}

/// The progress shown on a terminal while commands run.
struct Progress {
    is_shown: bool,
}

impl Progress {
    fn new() -> Self {
        Self { is_shown: io::stderr().is_terminal() }
    }

    fn show(&self, layout: u32, layouts: u32, runs: usize, begun: Instant) {
        if !self.is_shown {
            return;
        }
        let left = begun.elapsed().as_secs_f64() / f64::from(layout.max(1))
            * f64::from(layouts.saturating_sub(layout));
        let left = match layout {
            0 => String::new(),
            _ => format!(", about {left:.0} s left"),
        };
        // A terminal that has gone away is not a reason to stop.
        let _ = write!(
            io::stderr(),
            "\r\x1b[Klayout {} of {layouts}: {runs} runs so far{left}",
            layout + 1
        );
        let _ = io::stderr().flush();
    }

    fn clear(&self) {
        if self.is_shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
