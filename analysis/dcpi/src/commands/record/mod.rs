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
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

use super::{Outcome, clean};

use crate::options::{self, Prof};
use crate::signals;
use explain::excerpts;
use names::procedures::Places;
use query::error::AnalysisError;
use query::load::Samples;
use report::bytes;

pub(super) mod private;

use private::Private;

/// Default overhead budget: enough for the full rate where a sample costs as much as on a virtual
/// machine with an emulated timer. A smaller budget lowers the rate there.
const BUDGET: &str = "10%";
/// Time between SIGTERM and SIGKILL for a command that does not end.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest time that `--duration` takes.
const DURATION_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// Most bytes of a label: the limit of the database.
const LABEL_BYTES_MAX: usize = 128;

/// `dcpi record`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct Record {
    /// Time to record, such as 10s, 500ms or 5m; a COMMAND that still runs then is sent SIGTERM
    #[arg(short = 'd', long, value_name = "T", value_parser = duration, allow_hyphen_values = true)]
    pub duration: Option<Duration>,
    /// Database to record into; made if it does not exist [default: a new one in the directory for
    /// temporary files, see dcpi clean]
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

Exit codes: that of COMMAND, or 128 + N if signal N ended it; 0 without COMMAND; 126 and 127 if \
COMMAND cannot be run; 2 if dcpi record could not do its work.";

/// The reason why a recording ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The command ended.
    Command(ExitStatus),
    /// The time is over, or a signal interrupted the recording.
    Time,
}

pub(crate) fn run(args: &Record, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    if let Some(program) = args.command.first()
        && let Err(why) = runnable(program, std::env::var_os("PATH").as_deref())
    {
        // Before there is a database, which would have nothing in it.
        say(&format!("{}: {}; nothing was recorded", shell_word(Path::new(program)), why.words()));
        return Ok(Outcome { code: Some(why.code()), ..Outcome::default() });
    }
    let heard = signals::hear(&[SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD])
        .map_err(lost_sight)?;
    let mut private = Private::start(args)?;
    let begun = Instant::now();
    let until = args.duration.map(|duration| begun + duration);
    let Some(program) = args.command.first() else {
        if until.is_none() {
            say("recording the whole machine; Ctrl-C ends the recording");
        }
        wait(&mut private, None, until, &heard)?;
        let recorded = private.end()?;
        show(args, &recorded, None, begun.elapsed(), out)?;
        return Ok(Outcome::default());
    };
    let label = label(program);
    let before = children_cpu_s();
    let mut child = private.labelled(&label, &args.command)?;
    let ended = wait(&mut private, Some(&mut child), until, &heard);
    let status = match ended {
        Ok(End::Command(status)) => status,
        Ok(End::Time) => end(&mut child, &heard)?,
        Err(error) => {
            // What runs is not ours to end because our daemon did.
            let _ = child.wait();
            return Err(error);
        }
    };
    let used_s = before.zip(children_cpu_s()).map(|(before, after)| after - before);
    let recorded = private.end()?;
    // Its standard output is the command's.
    show(args, &recorded, Some((&label, used_s)), begun.elapsed(), &mut io::stderr().lock())?;
    Ok(Outcome { code: Some(exit_code(status)), ..Outcome::default() })
}

/// CPU time, user and system, that the kernel accounts to children that have ended and were waited
/// for, with theirs (getrusage(2), `RUSAGE_CHILDREN`), s.
fn children_cpu_s() -> Option<f64> {
    let used = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_CHILDREN).ok()?;
    let seconds =
        |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Some(seconds(used.user_time()) + seconds(used.system_time()))
}

/// Why a command cannot be run. Shells have an exit code for each reason.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum NotRunnable {
    NotFound,
    NotExecutable,
}

impl NotRunnable {
    fn code(self) -> u8 {
        if self == Self::NotFound { 127 } else { 126 }
    }

    fn words(self) -> &'static str {
        if self == Self::NotFound { "no such command" } else { "cannot be executed" }
    }
}

/// Checks that a command can be executed: the file at its path, or a file in a directory of `path`.
fn runnable(program: &OsStr, path: Option<&OsStr>) -> Result<(), NotRunnable> {
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

/// Waits for the end of the command or of the time. Without a command, an interrupt ends the
/// recording. With a command, the first interrupt is passed on to it, and the second ends the
/// recording.
fn wait(
    private: &mut Private,
    mut child: Option<&mut Child>,
    until: Option<Instant>,
    heard: &Receiver<i32>,
) -> Result<End, AnalysisError> {
    let mut interrupted = false;
    loop {
        if let Some(status) =
            child.as_mut().map(|child| child.try_wait()).transpose().map_err(lost_sight)?.flatten()
        {
            return Ok(End::Command(status));
        }
        private.must_run()?;
        let left =
            until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return Ok(End::Time);
        }
        // Should a SIGCHLD be lost, who ended is seen a second later.
        let signal = match heard.recv_timeout(left.min(Duration::from_secs(1))) {
            Ok(SIGCHLD) | Err(RecvTimeoutError::Timeout) => continue,
            Ok(signal) => signal,
            Err(RecvTimeoutError::Disconnected) => return Ok(End::Time),
        };
        let ends = [SIGINT, SIGTERM, SIGHUP, SIGQUIT].contains(&signal);
        match &child {
            None if ends => return Ok(End::Time),
            None => {}
            Some(_) if ends && interrupted => return Ok(End::Time),
            Some(child) => {
                pass_on(child, signal);
                interrupted |= ends;
            }
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

fn in_foreground() -> bool {
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

/// A recording: its place in a database, and its samples.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Recorded {
    db: PathBuf,
    host: String,
    /// First and last epoch.
    epochs: (String, String),
    samples: u64,
}

impl Recorded {
    /// Arguments of `dcpi prof` that select the recording.
    fn selection(&self, label: Option<&str>) -> Vec<OsString> {
        let (first, last) = &self.epochs;
        let epoch = if first == last { first.clone() } else { format!("{first}..{last}") };
        let mut words: Vec<OsString> = vec!["--db".into(), self.db.clone().into()];
        words.extend(["--host", &self.host, "--epoch", &epoch].map(OsString::from));
        // In one word: a label may begin with a dash.
        words.extend(label.map(|label| OsString::from(format!("--label={label}"))));
        words
    }
}

fn show(
    args: &Record,
    recorded: &Recorded,
    of_command: Option<(&str, Option<f64>)>,
    took: Duration,
    out: &mut dyn Write,
) -> Result<(), AnalysisError> {
    let label = of_command.map(|(label, _)| label);
    let rows = args.rows.map(|rows| [OsString::from("-n"), rows.to_string().into()]);
    let words = recorded.selection(label).into_iter().chain(rows.into_iter().flatten());
    let prof: Prof = options::typed(words).map_err(|error| {
        AnalysisError::Refused(format!("cannot report: {}; see dcpi prof --help", error.kind()))
    })?;
    let (samples, seconds) = (recorded.samples, took.as_secs_f64());
    writeln!(out)?;
    let mut sampled_s = None;
    let reported =
        prof.chosen.question(&prof.images).and_then(|question| question.samples()).and_then(
            |mut samples| {
                sampled_s = sampled_cpu_s(&samples);
                super::write(&super::prof::report(&prof, &mut samples)?, &prof.output, out)
            },
        );
    match reported {
        Ok(outcome) => outcome.aside.iter().try_for_each(|line| writeln!(out, "{line}"))?,
        Err(AnalysisError::NoScope { .. }) => {
            let name = label.unwrap_or_default();
            writeln!(
                out,
                "{name} has no samples: it used too little CPU time; for a higher rate: --event cpu-clock@20000"
            )?;
        }
        Err(AnalysisError::Empty { .. }) => writeln!(out, "no samples; record for longer")?,
        Err(error) => return Err(error),
    }
    let debug_roots = Places::with_debug_roots(Vec::new()).debug_roots;
    // A database with other samples, or one that cannot be written, keeps all code: only its size
    // differs.
    if let Err(error) = excerpts::take(&recorded.db, &recorded.host, &debug_roots) {
        writeln!(
            out,
            "note: the recording keeps the code of procedures without samples, too: {error}"
        )?;
    }
    let db = shell_word(&recorded.db);
    let times = of_command
        .zip(sampled_s)
        .map(|((label, used_s), sampled_s)| cpu_times(label, sampled_s, used_s));
    let times = times.unwrap_or_default();
    let all = label.map(|_| " (-a: the whole machine)").unwrap_or_default();
    writeln!(
        out,
        "\nrecorded {samples} samples in {seconds:.1} s; {times}to see the report again: dcpi prof --db {db}{all}"
    )?;
    let size = bytes(clean::size_bytes(&recorded.db));
    match args.db {
        Some(_) => writeln!(out, "{size} in {db}")?,
        None => writeln!(out, "{size} in {db}; to remove recordings: dcpi clean")?,
    }
    Ok(out.flush()?)
}

/// CPU time that the samples stand for, including those of unknown code, s. None where no event
/// counts time in ns.
fn sampled_cpu_s(samples: &Samples) -> Option<f64> {
    let (event, _) = samples.time().ok()?;
    let event = samples.events.get(event).filter(|event| event.unit == "ns")?;
    Some(event.taken.occurrences / 1e9)
}

/// CPU time of a command by its samples, and by the kernel's accounting.
fn cpu_times(label: &str, sampled_s: f64, used_s: Option<f64>) -> String {
    let used = used_s
        .map(|used| format!(", {} by the kernel's accounting", cpu_time(used)))
        .unwrap_or_default();
    format!("{label} used {} of CPU time by its samples{used}; ", cpu_time(sampled_s))
}

/// CPU time with its unit: below 1 s in ms, since two digits of seconds make nothing of a short
/// command.
fn cpu_time(seconds: f64) -> String {
    match seconds * 1e3 {
        ms if ms < 9.995 => format!("{ms:.2} ms"),
        ms if ms < 999.5 => format!("{ms:.0} ms"),
        _ => format!("{seconds:.2} s"),
    }
}

/// A path as a shell takes it for one word.
fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+,:@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

/// The command's name, if it can be a label.
fn label(program: &OsStr) -> String {
    let name = Path::new(program).file_name().and_then(OsStr::to_str).unwrap_or_default();
    let fits =
        !name.is_empty() && name.len() <= LABEL_BYTES_MAX && !name.chars().any(char::is_control);
    if fits { name.to_owned() } else { "command".to_owned() }
}

/// The exit code of a command, as shells report it.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(2);
    u8::try_from(code).unwrap_or(2)
}

fn duration(text: &str) -> Result<Duration, String> {
    crate::options::parse_time(text, Duration::from_millis(1), DURATION_MAX)
}

/// Writes a line to standard error during the recording.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "dcpi: {line}"); // nowhere left to say it
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// What `true` took was 0.00 s by both accounts.
    #[test]
    fn cpu_time_below_a_second_is_in_ms() {
        assert_eq!(
            [0.0, 0.0004, 0.0123, 0.9994].map(cpu_time),
            ["0.00 ms", "0.40 ms", "12 ms", "999 ms"]
        );
        assert_eq!([0.9996, 1.0, 12.345].map(cpu_time), ["1.00 s", "1.00 s", "12.35 s"]);
        assert_eq!(
            cpu_times("ls", 0.0, Some(0.0021)),
            "ls used 0.00 ms of CPU time by its samples, 2.10 ms by the kernel's accounting; "
        );
    }

    #[test]
    fn exit_codes_are_the_shells() {
        for (raw, code) in [(0, 0), (7 << 8, 7), (9, 137), (255 << 8, 255)] {
            assert_eq!(exit_code(ExitStatus::from_raw(raw)), code);
        }
    }

    #[test]
    fn what_is_shown_to_be_typed_again_can_be() {
        for (path, word) in
            [("/tmp/db", "/tmp/db"), ("/a b", "'/a b'"), ("it's", "'it'\\''s'"), ("", "''")]
        {
            assert_eq!(shell_word(Path::new(path)), word);
        }
        let epochs = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        let mut recorded = Recorded {
            db: "/d".into(),
            host: "h".into(),
            epochs: epochs("20260101-000000", "20260101-000000"),
            samples: 1,
        };
        let words = |recorded: &Recorded| {
            let words =
                recorded.selection(Some("-x")).into_iter().map(|word| word.into_string().unwrap());
            words.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(words(&recorded), "--db /d --host h --epoch 20260101-000000 --label=-x");
        recorded.epochs = epochs("20260101-000000", "20260101-000100");
        assert!(words(&recorded).contains("--epoch 20260101-000000..20260101-000100"));
        assert!(options::typed::<Prof>(recorded.selection(Some("-x"))).is_ok());
    }

    #[test]
    fn the_command_begins_where_the_options_end() {
        let understood =
            |line: &str| options::typed::<Record>(line.split(' ').skip(2).map(OsString::from));
        let parse = |line: &str| understood(line).unwrap();
        let both = parse("dcpi record -d 2s -- make -j 4 -d");
        assert_eq!((both.duration, both.command.len()), (Some(Duration::from_secs(2)), 4));
        assert_eq!(parse("dcpi record ls -l").command, ["ls", "-l"], "as perf record has it");
        assert_eq!(parse("dcpi record -o /d").db, Some("/d".into()));
        for bad in [
            "dcpi record -d 5",
            "dcpi record -d 0s",
            "dcpi record --nonsense",
            "dcpi record -d 99d",
        ] {
            assert!(understood(bad).is_err(), "{bad}");
        }
    }
}
