//! `dcpi record`: a private dcpid for a command or for some seconds, and a report: for users who
//! know `perf record`.
//!
//! The daemon is the installed `dcpid`, started as a child process. It holds the reading end of a
//! pipe and ends at the end of the pipe's data, so it never outlives `dcpi record`, however that
//! ends.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use clap::Args;
use exact::Streams;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

use super::Outcome;

use crate::signals;
use query::error::AnalysisError;

mod attach;
mod experiment;
mod fpe;
pub(super) mod private;
mod repeated;
mod summary;

use attach::Attached;
pub use experiment::Experiment;
use experiment::Kind;
use private::Private;
pub(super) use repeated::{Repeated, repeated};
pub(super) use summary::shell_word;
use summary::{Part, Recorded};

/// Default overhead budget: enough for the full rate where a sample costs as much as on a virtual
/// machine with an emulated timer. A smaller budget lowers the rate there.
const BUDGET: &str = "10%";
/// Time between SIGTERM and SIGKILL for a command that does not end.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two looks whether attached processes run. A look reads a file in /proc for each.
const ATTACHED_LOOK: Duration = Duration::from_millis(100);
/// Longest time that `--duration` takes.
const DURATION_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// Most bytes of a label: the limit of the database.
const LABEL_BYTES_MAX: usize = 128;

/// `dcpi record`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct Record {
    /// Time to record, such as 10s, 500ms or 5m, or in seconds; a COMMAND that still runs then is
    /// sent SIGTERM
    #[arg(short = 'd', long, value_name = "T", value_parser = duration, allow_hyphen_values = true)]
    pub duration: Option<Duration>,
    /// The same
    #[arg(long, value_name = "T", value_parser = duration, conflicts_with = "duration")]
    pub seconds: Option<Duration>,
    /// Record these processes, which run already, with their children, until they end; separated by
    /// commas
    #[arg(
        short = 'p',
        long = "pid",
        value_name = "PID",
        value_delimiter = ',',
        conflicts_with = "command"
    )]
    pub pids: Vec<u32>,
    /// Record these threads, which run already; separated by commas. The report has their call
    /// stacks; samples are those of their processes
    #[arg(
        short = 't',
        long = "tid",
        value_name = "TID",
        value_delimiter = ',',
        conflicts_with_all = ["command", "pids"]
    )]
    pub tids: Vec<u32>,
    /// Record one of SpeedShop's experiments: usertime, fpe, pcsamp, gi_hwc, cy_hwc, ic_hwc,
    /// dc_hwc, dsc_hwc, tlb_hwc, with f before the name at a shorter interval; prof_hwc: the events
    /// of --event
    #[arg(long, value_name = "NAME")]
    pub experiment: Option<Experiment>,
    /// With --experiment fpe: count inexact results, too
    #[arg(long, requires = "experiment")]
    pub inexact: bool,
    /// Run COMMAND twice, at the normal and the shorter interval of the experiment, and say whether
    /// the profiles agree
    #[arg(long, requires_all = ["experiment", "command"])]
    pub agree: bool,
    /// Database to record into; made if it does not exist [default: a new one in the directory for
    /// temporary files, see dcpi clean; $DCPIDB is for reports only]
    #[arg(short = 'o', long, value_name = "DIR", alias = "output")]
    pub db: Option<PathBuf>,
    /// Event to sample, as for dcpid: NAME, NAME:PERIOD or NAME@RATE; may be repeated [default:
    /// cycles, or cpu-clock]
    #[arg(short = 'e', long = "event", value_name = "SPEC")]
    pub events: Vec<String>,
    /// Part of all CPU time that sampling may cost; off: no limit
    #[arg(long, value_name = "P%", default_value = BUDGET, allow_hyphen_values = true)]
    pub overhead_budget: String,
    /// Most snapshots of registers per second on each CPU, from which edges are computed; off:
    /// none; as for dcpid [default: 500]
    #[arg(long, value_name = "RATE|off")]
    pub edges: Option<String>,
    /// Most call stacks per second on each CPU; off: none; as for dcpid [default: 100]
    #[arg(long, value_name = "RATE|off")]
    pub stacks: Option<String>,
    /// Times and call stacks of waiting threads; off: none; as for dcpid [default: auto]
    #[arg(long, value_name = "auto|off")]
    pub waits: Option<String>,
    /// At most N rows in the report, 0 for all [default: 40 rows of at least 0.1 % of the samples]
    #[arg(
        short = 'n',
        value_name = "N",
        value_parser = crate::options::parse_rows,
        allow_negative_numbers = true
    )]
    pub rows: Option<usize>,
    /// Record this command, with its children, and report on it
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

const NOTES: &str = "\
Without COMMAND, dcpi record samples the whole machine for the time of -d, or until Ctrl-C. With \
COMMAND, too, samples of the whole machine are recorded: dcpi prof --db DIR shows the samples of \
COMMAND, and with -a all samples. With COMMAND the report goes to standard error, since standard \
output is for the output of COMMAND. A dcpid that already runs goes on as before.

With --pid, samples of these processes and of their children count, from the moment on when they \
are found; a thread that already waits then has no call stack until it runs again.

usertime is wall-clock time of threads, running or not, by procedure: dcpi prof --inclusive \
--event usertime. fpe counts every floating-point exception of COMMAND with its call stack, and \
needs no dcpid; each costs some 20 to 50 us. Intervals of the other experiments are SpeedShop's, \
those of counters times 32, because processors do some 32 times as much in a second.

Exit codes: that of COMMAND, or 128 + N if signal N ended it; 0 without COMMAND; 126 and 127 if \
COMMAND cannot be run; 2 if dcpi record could not do its work.";

#[derive(Debug, PartialEq, Eq)]
enum End {
    Command(ExitStatus),
    /// The time is over, or a signal interrupted the recording.
    Time,
}

pub(crate) fn run(args: &Record, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    args.check()?;
    if let Some(program) = args.command.first()
        && let Err(why) = runnable(program, std::env::var_os("PATH").as_deref())
    {
        // Before there is a database, which would have nothing in it.
        say(&format!("{}: {}; nothing was recorded", shell_word(Path::new(program)), why.words()));
        return Ok(Outcome { code: Some(why.code()), ..Outcome::default() });
    }
    if args.experiment.as_ref().is_some_and(|of| of.kind == Kind::Exceptions) {
        return fpe::run(args);
    }
    let attached = Attached::find(&args.pids, &args.tids)?;
    let heard = signals::hear(&[SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD])
        .map_err(lost_sight)?;
    let usertime = args.experiment.as_ref().is_some_and(|of| of.kind == Kind::Usertime);
    if args.command.is_empty() {
        let label = attached.as_ref().map(Attached::label);
        let (recorded, took) = watched(args, attached.as_ref(), label.as_deref(), &heard)?;
        let tids = attached.as_ref().map_or(&[][..], |attached| &attached.tids);
        let part = Part { label: label.as_deref(), used_s: None, tids, usertime };
        summary::show(args, &recorded, part, took, out)?;
        return Ok(Outcome::default());
    }
    let first = commanded(args, args.experiment.as_ref(), None, &heard)?;
    // Its standard output is the command's.
    let out = &mut io::stderr();
    let part =
        Part { label: Some(&first.label), used_s: first.used_s, usertime, ..Part::default() };
    summary::show(args, &first.recorded, part, first.took, out)?;
    let mut code = exit_code(first.status);
    if args.agree
        && let Some(experiment) = &args.experiment
    {
        let other = experiment.other().map_err(AnalysisError::Refused)?;
        let db = first.recorded.db.as_path();
        let second = commanded(args, Some(&other), Some(db), &heard)?;
        let both = [&first.recorded, &second.recorded];
        let names = [experiment.name.as_str(), other.name.as_str()];
        summary::agreement(both, names, &first.label, out)?;
        code = if code == 0 { exit_code(second.status) } else { code };
    }
    Ok(Outcome { code: Some(code), ..Outcome::default() })
}

impl Record {
    /// Refuses options that do not go together and that the parser does not know.
    fn check(&self) -> Result<(), AnalysisError> {
        let wrong = |message: String| {
            Err(AnalysisError::Usage { message, help: "dcpi record --help".to_owned() })
        };
        let Some(experiment) = &self.experiment else { return Ok(()) };
        let name = &experiment.name;
        if self.inexact && experiment.kind != Kind::Exceptions {
            return wrong(format!("{name} samples: --inexact is for --experiment fpe"));
        }
        match (experiment.kind, self.events.is_empty()) {
            (Kind::Named, true) => {
                return wrong(format!("{name} samples what --event names: name it"));
            }
            (Kind::Usertime | Kind::Sampled { .. }, false) => {
                return wrong(format!(
                    "{name} has its own event: leave --event out, or use prof_hwc"
                ));
            }
            (Kind::Exceptions, false) => {
                return wrong(format!("{name} counts and samples nothing: leave --event out"));
            }
            (Kind::Exceptions, true) if self.command.is_empty() => {
                return wrong(format!("{name} needs a COMMAND, which it runs"));
            }
            (Kind::Exceptions, true) if self.until(Instant::now()).is_some() => {
                return wrong(format!("{name} lasts as long as COMMAND: leave the time out"));
            }
            _ => {}
        }
        let is_off = |text: &Option<String>| text.as_deref() == Some("off");
        if experiment.kind == Kind::Usertime && (is_off(&self.stacks) || is_off(&self.waits)) {
            return wrong(format!("{name} is made of call stacks and waits: leave them on"));
        }
        match experiment.other() {
            Err(why) if self.agree => wrong(why),
            _ => Ok(()),
        }
    }

    /// When the recording ends, if it has a time.
    fn until(&self, begun: Instant) -> Option<Instant> {
        self.duration.or(self.seconds).map(|duration| begun + duration)
    }
}

/// Records what runs already, or the whole machine.
fn watched(
    args: &Record,
    attached: Option<&Attached>,
    label: Option<&str>,
    heard: &Receiver<i32>,
) -> Result<(Recorded, Duration), AnalysisError> {
    let mut private = Private::start(args, args.experiment.as_ref(), None, label)?;
    let begun = Instant::now();
    let until = args.until(begun);
    if let (Some(attached), Some(label)) = (attached, label)
        && let Err(error) = private.attach(attached, label)
    {
        return Err(recorded_nobody(error, private.end().ok()));
    }
    if until.is_none() {
        let what = label.unwrap_or("the whole machine");
        say(&format!("recording {what}; Ctrl-C ends the recording"));
    }
    let subject = attached.map_or(Subject::Machine, Subject::Attached);
    wait(&mut private, subject, until, heard)?;
    Ok((private.end()?, begun.elapsed()))
}

/// The error if processes ended before dcpid could keep them apart; it names the recording.
fn recorded_nobody(error: AnalysisError, recorded: Option<Recorded>) -> AnalysisError {
    let Some(recorded) = recorded else { return error };
    let db = shell_word(&recorded.db);
    AnalysisError::Refused(format!(
        "{error}; {db} has {} of the whole machine until then: dcpi prof -a --db {db}, or dcpi \
         clean to remove recordings",
        report::counted(recorded.samples, "sample")
    ))
}

struct Commanded {
    recorded: Recorded,
    label: String,
    status: ExitStatus,
    /// CPU time by the kernel's accounting, s.
    used_s: Option<f64>,
    took: Duration,
}

/// Runs the command and records it; into this database, if there is one.
fn commanded(
    args: &Record,
    experiment: Option<&Experiment>,
    db: Option<&Path>,
    heard: &Receiver<i32>,
) -> Result<Commanded, AnalysisError> {
    let label = args.command.first().map(|program| label(program)).unwrap_or_default();
    let mut private = Private::start(args, experiment, db, Some(&label))?;
    let begun = Instant::now();
    let before = children_cpu_s();
    let mut child = private.labelled(&label, &args.command, Streams::default())?;
    let ended = wait(&mut private, Subject::Command(&mut child), args.until(begun), heard);
    let status = match ended {
        Ok(End::Command(status)) => status,
        Ok(End::Time) => end(&mut child, heard)?,
        Err(error) => {
            // The end of our daemon is no reason to end a command that is running.
            let _ = child.wait();
            return Err(error);
        }
    };
    let used_s = before.zip(children_cpu_s());
    let used_s = used_s.map(|(before, after)| after.0 + after.1 - before.0 - before.1);
    let recorded = private.end()?;
    Ok(Commanded { recorded, label, status, used_s, took: begun.elapsed() })
}

enum Subject<'a> {
    Machine,
    Command(&'a mut Child),
    Attached(&'a Attached),
}

/// CPU time, user and system, that the kernel accounts to children that have ended and were waited
/// for, with theirs (getrusage(2), `RUSAGE_CHILDREN`), s.
pub(super) fn children_cpu_s() -> Option<(f64, f64)> {
    let used = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_CHILDREN).ok()?;
    let seconds =
        |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Some((seconds(used.user_time()), seconds(used.system_time())))
}

/// Why a command cannot be run. Shells have an exit code for each reason.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum NotRunnable {
    NotFound,
    NotExecutable,
}

impl NotRunnable {
    pub(super) fn code(self) -> u8 {
        if self == Self::NotFound { 127 } else { 126 }
    }

    pub(super) fn words(self) -> &'static str {
        if self == Self::NotFound { "no such command" } else { "cannot be executed" }
    }
}

/// Checks that a command can be executed: the file at its path, or a file in a directory of `path`.
pub(super) fn runnable(program: &OsStr, path: Option<&OsStr>) -> Result<(), NotRunnable> {
    let below = |directory: PathBuf| directory.join(program);
    let candidates: Vec<PathBuf> = match path {
        _ if program.is_empty() => Vec::new(),
        _ if program.as_bytes().contains(&b'/') => vec![PathBuf::from(program)],
        Some(path) => std::env::split_paths(path).map(below).collect(),
        // The C library looks there then.
        None => ["/bin", "/usr/bin"].map(PathBuf::from).map(below).into(),
    };
    let found: Vec<&PathBuf> = candidates.iter().filter(|path| path.exists()).collect();
    let executable = |path: &&&PathBuf| {
        path.metadata()
            .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    match found.iter().find(executable) {
        Some(_) => Ok(()),
        None if found.is_empty() => Err(NotRunnable::NotFound),
        None => Err(NotRunnable::NotExecutable),
    }
}

/// Waits for the end of the command, of the attached processes, or of the time. Without a command,
/// an interrupt ends the recording. With a command, the first interrupt is passed on to it, and the
/// second ends the recording.
fn wait(
    private: &mut Private,
    mut subject: Subject<'_>,
    until: Option<Instant>,
    heard: &Receiver<i32>,
) -> Result<End, AnalysisError> {
    let mut interrupted = false;
    loop {
        match &mut subject {
            Subject::Command(child) => {
                if let Some(status) = child.try_wait().map_err(lost_sight)? {
                    return Ok(End::Command(status));
                }
            }
            Subject::Attached(attached) if attached.have_ended() => return Ok(End::Time),
            Subject::Attached(_) | Subject::Machine => {}
        }
        private.must_run()?;
        let left =
            until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return Ok(End::Time);
        }
        let look = match subject {
            Subject::Attached(_) => ATTACHED_LOOK,
            // Should a SIGCHLD be lost, who ended is seen a second later.
            Subject::Command(_) | Subject::Machine => Duration::from_secs(1),
        };
        let signal = match heard.recv_timeout(left.min(look)) {
            Ok(SIGCHLD) | Err(RecvTimeoutError::Timeout) => continue,
            Ok(signal) => signal,
            Err(RecvTimeoutError::Disconnected) => return Ok(End::Time),
        };
        let ends = [SIGINT, SIGTERM, SIGHUP, SIGQUIT].contains(&signal);
        match &subject {
            Subject::Command(child) if !(ends && interrupted) => {
                pass_on(child, signal);
                interrupted |= ends;
            }
            _ if ends => return Ok(End::Time),
            _ => {}
        }
    }
}

/// Passes a signal on to the command, unless the terminal has sent it there already: Ctrl-C goes to
/// all processes in the foreground.
fn pass_on(child: &Child, signal: i32) {
    let of_terminal = [SIGINT, SIGQUIT].contains(&signal) && in_foreground();
    if !of_terminal && let Some(signal) = rustix::process::Signal::from_named_raw(signal) {
        // Ending already.
        let _ = rustix::process::kill_process(rustix::process::Pid::from_child(child), signal);
    }
}

pub(super) fn in_foreground() -> bool {
    let terminal = File::open("/dev/tty")
        .map_err(|_| ())
        .and_then(|tty| rustix::termios::tcgetpgrp(tty).map_err(|_| ()));
    terminal == Ok(rustix::process::getpgrp())
}

/// Ends the command: with SIGTERM, and after [`PATIENCE`] with SIGKILL.
fn end(child: &mut Child, heard: &Receiver<i32>) -> Result<ExitStatus, AnalysisError> {
    pass_on(child, SIGTERM);
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().map_err(lost_sight)? {
            return Ok(status);
        }
        let left = until.saturating_duration_since(Instant::now());
        match heard.recv_timeout(left.min(Duration::from_secs(1))) {
            Ok(signal) if signal != SIGCHLD => pass_on(child, signal),
            _ => {}
        }
        if left.is_zero() {
            child.kill().map_err(lost_sight)?;
            return child.wait().map_err(lost_sight);
        }
    }
}

fn lost_sight(error: io::Error) -> AnalysisError {
    AnalysisError::Refused(format!(
        "cannot wait for the command: {error}; ps shows whether it runs"
    ))
}

/// The command's name, if it can be a label.
pub(super) fn label(program: &OsStr) -> String {
    label_of(Path::new(program).file_name().and_then(OsStr::to_str).unwrap_or_default())
}

/// The name, if it can be a label.
fn label_of(name: &str) -> String {
    let fits = !name.is_empty()
        && name.len() <= LABEL_BYTES_MAX
        && !name.chars().any(|character| character.is_control() || character == '/');
    if fits { name.to_owned() } else { "command".to_owned() }
}

/// The exit code of a command, as shells report it.
pub(super) fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(2);
    u8::try_from(code).unwrap_or(2)
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    crate::options::parse_time(text, Duration::from_millis(1), DURATION_MAX)
}

/// Writes a line to standard error during the recording.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "dcpi: {line}"); // nowhere left to say it
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options;

    #[test]
    fn a_recording_of_nobody_says_what_it_has() {
        let error = || AnalysisError::Refused("cannot record: there is no process 7".to_owned());
        let epochs = (String::new(), String::new());
        let db = "/tmp/a b".into();
        let recorded = Recorded { db, host: String::new(), epochs, samples: 1 };
        assert_eq!(
            recorded_nobody(error(), Some(recorded)).to_string(),
            "cannot record: there is no process 7; '/tmp/a b' has 1 sample of the whole machine \
             until then: dcpi prof -a --db '/tmp/a b', or dcpi clean to remove recordings"
        );
        assert_eq!(recorded_nobody(error(), None).to_string(), error().to_string());
    }

    #[test]
    fn a_command_is_labelled_by_its_name_if_that_can_be_a_label() {
        for (program, expected) in [
            ("/usr/bin/make", "make"),
            ("./a b", "a b"),
            ("..", "command"),
            ("/", "command"),
            ("a\nb", "command"),
        ] {
            assert_eq!(label(OsStr::new(program)), expected, "{program}");
        }
        assert_eq!(label(OsStr::new(&"x".repeat(129))), "command");
    }

    /// A database was made for a command that there is not.
    #[test]
    fn what_cannot_be_run_is_told_before_anything_is_recorded() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("data"), "").unwrap();
        let path = Some(dir.path().as_os_str());
        let runnable = |program: &str| runnable(OsStr::new(program), path);
        assert_eq!(runnable("/bin/sh"), Ok(()));
        assert_eq!(runnable("sh"), Err(NotRunnable::NotFound), "not in that $PATH");
        assert_eq!(runnable(""), Err(NotRunnable::NotFound));
        assert_eq!(runnable("./no/such"), Err(NotRunnable::NotFound));
        assert_eq!(runnable("data"), Err(NotRunnable::NotExecutable));
        assert_eq!(runnable("/"), Err(NotRunnable::NotExecutable));
        assert_eq!(super::runnable(OsStr::new("sh"), None), Ok(()));
        assert_eq!((NotRunnable::NotFound.code(), NotRunnable::NotExecutable.code()), (127, 126));
    }

    #[test]
    fn exit_codes_are_the_shells() {
        for (raw, code) in [(0, 0), (7 << 8, 7), (9, 137), (255 << 8, 255)] {
            assert_eq!(exit_code(ExitStatus::from_raw(raw)), code);
        }
    }

    #[test]
    fn the_command_begins_where_the_options_end() {
        let understood =
            |line: &str| options::typed::<Record>(line.split(' ').skip(2).map(OsString::from));
        let parse = |line: &str| understood(line).unwrap();
        let both = parse("dcpi record -d 2s -- make -j 4 -d");
        assert_eq!((both.duration, both.command.len()), (Some(Duration::from_secs(2)), 4));
        let seconds = |line: &str| (parse(line).duration, parse(line).seconds);
        let five = Some(Duration::from_secs(5));
        assert_eq!(seconds("dcpi record -d 5"), (five, None));
        assert_eq!(seconds("dcpi record --seconds 5s"), (None, five));
        assert_eq!(parse("dcpi record ls -l").command, ["ls", "-l"], "as perf record has it");
        assert_eq!(parse("dcpi record -o /d").db, Some("/d".into()));
        for bad in [
            "dcpi record -d 5x",
            "dcpi record -d 0s",
            "dcpi record --nonsense",
            "dcpi record -d 99d",
        ] {
            assert!(understood(bad).is_err(), "{bad}");
        }
    }
}
