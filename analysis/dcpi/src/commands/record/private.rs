//! A private dcpid: its start, its end, and its answers. It never outlives this process.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use exact::Streams;
use wire::{Client, ClientError, Request};

use super::super::scratch::{SCRATCH_PREFIX, control_path};
use super::attach::Attached;
use super::summary::Recorded;
use super::{Experiment, Record};
use crate::destination::through_links;
use query::error::AnalysisError;

/// Longest time that dcpid may take to start, or to end. Either takes a fraction of a second on an
/// idle machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes at the end of dcpid's log that are searched for the last message.
const LAST_WORDS_BYTES: u64 = 4096;

/// A running dcpid. It ends when this is dropped: its standard input is a pipe.
pub(super) struct Private {
    daemon: Child,
    scratch: Scratch,
    db: PathBuf,
    host: String,
    first_epoch: String,
}

impl Private {
    /// Starts dcpid and waits until it samples.
    ///
    /// `experiment` samples its own events. `db` is the database of an earlier recording of this
    /// call; reports on the recording begin with the samples of the label `opens_on`.
    pub(super) fn start(
        args: &Record,
        experiment: Option<&Experiment>,
        db: Option<&Path>,
        opens_on: Option<&str>,
    ) -> Result<Self, AnalysisError> {
        let dcpid = program("dcpid")?;
        let scratch = Scratch::make()?;
        let directory = &scratch.0;
        let db = match db.or(args.db.as_deref()) {
            Some(db) => {
                let db = through_links(db).and_then(std::path::absolute);
                db.map_err(cannot("naming the database"))?
            }
            None => directory.join("db"),
        };
        let ready = UnixDatagram::bind(directory.join("ready.sock"))
            .map_err(cannot("waiting for dcpid"))?;
        let log = File::create(log_path(directory)).map_err(cannot("writing dcpid's log"))?;
        let mut command = daemon(&dcpid, &db, &control_path(directory));
        sampling(&mut command, args, experiment, opens_on);
        command
            .env("NOTIFY_SOCKET", directory.join("ready.sock"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log);
        // Ctrl-C is for us and the command.
        let daemon = command.process_group(0).spawn().map_err(cannot("starting dcpid"))?;
        let mut private =
            Self { daemon, scratch, db, host: String::new(), first_epoch: String::new() };
        private.wait_until_ready(&ready)?;
        let status = private.client().with_silence_max(PATIENCE).status().map_err(not_answered)?;
        (private.host, private.first_epoch) = (status.host, status.epoch);
        Ok(private)
    }

    fn wait_until_ready(&mut self, ready: &UnixDatagram) -> Result<(), AnalysisError> {
        ready
            .set_read_timeout(Some(Duration::from_millis(50)))
            .map_err(cannot("waiting for dcpid"))?;
        let until = Instant::now() + PATIENCE;
        let mut message = [0; 512];
        while Instant::now() < until {
            match ready.recv(&mut message) {
                Ok(length)
                    if message.get(..length).is_some_and(|said| said.starts_with(b"READY=1")) =>
                {
                    return Ok(());
                }
                Err(error)
                    if ![ErrorKind::WouldBlock, ErrorKind::TimedOut, ErrorKind::Interrupted]
                        .contains(&error.kind()) =>
                {
                    return Err(cannot("waiting for dcpid")(error));
                }
                _ => self.must_run()?,
            }
        }
        Err(AnalysisError::Refused(format!(
            "dcpid was not ready after {} s; try again",
            PATIENCE.as_secs()
        )))
    }

    /// Fails with the last message of dcpid, if dcpid has ended.
    pub(super) fn must_run(&mut self) -> Result<(), AnalysisError> {
        match self.daemon.try_wait().map_err(cannot("waiting for dcpid"))? {
            None => Ok(()),
            Some(_) => {
                let is_root = rustix::process::geteuid().is_root();
                Err(AnalysisError::Refused(refusal(&self.last_words(), is_root)))
            }
        }
    }

    pub(super) fn labelled(
        &self,
        label: &str,
        command: &[OsString],
        streams: Streams,
    ) -> Result<Child, AnalysisError> {
        let mut labelled = Command::new(program("dcpilabel")?);
        labelled
            .arg("--control")
            .arg(control_path(&self.scratch.0))
            .arg("--")
            .arg(label)
            .args(command);
        streams.give(&mut labelled);
        labelled.spawn().map_err(cannot("starting dcpilabel"))
    }

    /// Labels processes that run already, with their children.
    pub(super) fn attach(&self, attached: &Attached, label: &str) -> Result<(), AnalysisError> {
        for process in attached.processes() {
            let (pid, start_time) = (Some(process.pid), Some(process.start_time));
            let labelled = Request::Label { pid, start_time, label: label.to_owned() };
            let _ = self.client().ask(&labelled).map_err(not_answered)?;
        }
        Ok(())
    }

    /// Ends dcpid, with all samples on disk.
    pub(super) fn end(mut self) -> Result<Recorded, AnalysisError> {
        // However long the disk takes: the recording is on it when the daemon answers.
        let reply = self.client().ask(&Request::Quit).map_err(not_answered)?;
        self.wait(PATIENCE)?;
        let epochs = (std::mem::take(&mut self.first_epoch), reply.epoch.unwrap_or_default());
        let samples = reply.taken.unwrap_or_default();
        Ok(Recorded { db: self.db.clone(), host: std::mem::take(&mut self.host), epochs, samples })
    }

    fn client(&self) -> Client {
        Client::new(control_path(&self.scratch.0))
    }

    fn wait(&mut self, patience: Duration) -> Result<(), AnalysisError> {
        let until = Instant::now() + patience;
        while self.daemon.try_wait().map_err(cannot("waiting for dcpid"))?.is_none() {
            if Instant::now() >= until {
                return Err(AnalysisError::Refused(
                    "dcpid did not end and was killed; its database is whole".into(),
                ));
            }
            // Std cannot wait for a child with a timeout.
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn last_words(&self) -> String {
        let read = || -> std::io::Result<String> {
            let mut log = File::open(log_path(&self.scratch.0))?;
            let end = log.seek(SeekFrom::End(0))?;
            log.seek(SeekFrom::Start(end.saturating_sub(LAST_WORDS_BYTES)))?;
            let mut bytes = Vec::new();
            log.take(LAST_WORDS_BYTES).read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        let said = read().unwrap_or_default();
        let last = said.lines().rev().find(|line| !line.trim().is_empty()).map(without_name);
        last.map_or_else(
            || "dcpid ended without a message; run dcpid by hand: dcpid --help".to_owned(),
            str::to_owned,
        )
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        drop(self.daemon.stdin.take());
        if self.wait(PATIENCE / 6).is_err() {
            let _ = self.daemon.kill(); // it may have ended this moment
            let _ = self.daemon.wait();
        }
    }
}

/// The command line of dcpid for a recording.
fn daemon(dcpid: &Path, db: &Path, control: &Path) -> Command {
    let mut command = Command::new(dcpid);
    // The machine's own configuration is that of its service. Earlier recordings in the directory
    // are the user's, who alone removes any.
    command.args([
        "--until-eof",
        "--new-epoch",
        "--epoch-length",
        "off",
        "--retain",
        "all",
        "--log",
        "warn",
        "--loader-socket",
        "off",
        // What no report needs goes when the recording has ended.
        "--whole-code",
        "--config",
        "/dev/null",
    ]);
    command.arg("--db").arg(db).arg("--control").arg(control);
    command
}

/// Adds the sampled events to the command line of dcpid.
fn sampling(
    command: &mut Command,
    args: &Record,
    experiment: Option<&Experiment>,
    opens_on: Option<&str>,
) {
    command.args(["--overhead-budget", &args.overhead_budget]);
    let own = experiment.map(Experiment::events).unwrap_or_default();
    for event in args.events.iter().chain(&own) {
        command.args(["--event", event]);
    }
    // Ten times dcpid's default: a recording is short.
    let edges = args.edges.as_deref().or(Some("500"));
    for (flag, value) in [
        ("--edges", edges),
        ("--stacks", args.stacks.as_deref()),
        ("--waits", args.waits.as_deref()),
    ] {
        command.args(value.map(|value| [flag, value]).into_iter().flatten());
    }
    if let Some(label) = opens_on {
        // The kernel's work for the processes counts as theirs.
        command.arg("--kernel-by-process");
        // Reports on the recording are on them, unless all is asked for.
        command.arg(format!("--opens-on={label}"));
    }
}

/// Why nothing is recorded, from the last message of dcpid. The message advises who starts dcpid by
/// hand, and names the capabilities that are missing; who ran dcpi record needs other advice.
fn refusal(last: &str, is_root: bool) -> String {
    match last.split_once("; ") {
        Some((what, _)) if !is_root && what.contains("CAP_") => {
            format!("cannot record: {what}; dcpi record needs root: sudo dcpi record ...")
        }
        _ => format!("cannot record: {last}"),
    }
}

/// `dcpid: ...` without the name.
fn without_name(line: &str) -> &str {
    line.strip_prefix("dcpid: ").unwrap_or(line)
}

fn log_path(directory: &Path) -> PathBuf {
    directory.join("dcpid.log")
}

/// The error of a system call that must work.
fn cannot(what: &'static str) -> impl Fn(io::Error) -> AnalysisError {
    move |error| {
        AnalysisError::Refused(format!(
            "cannot record: {what}: {error}; check memory, disk and limits of this machine"
        ))
    }
}

fn not_answered(error: ClientError) -> AnalysisError {
    AnalysisError::Refused(format!("cannot record: {error}"))
}

/// A new directory that nobody else may enter, for control socket and log; removed at the end,
/// unless the database is in it.
struct Scratch(PathBuf);

/// A new directory for a recording, as `dcpi clean` knows them.
#[cfg(target_arch = "x86_64")]
pub(super) fn new_directory() -> Result<PathBuf, AnalysisError> {
    // Data that the caller puts in stays.
    Scratch::make().map(|scratch| std::mem::ManuallyDrop::new(scratch).0.clone())
}

impl Scratch {
    fn make() -> Result<Self, AnalysisError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = format!("{SCRATCH_PREFIX}{}-{:06}", std::process::id(), now.subsec_micros());
        let path = std::env::temp_dir().join(name);
        // It fails where something of that name is, whatever it is.
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| {
            AnalysisError::Refused(format!(
                "cannot make {}: {error}; name another directory in $TMPDIR",
                path.display()
            ))
        })?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for name in ["ready.sock", "control.sock", "dcpid.log"] {
            let _ = fs::remove_file(self.0.join(name)); // there may be none
        }
        let _ = fs::remove_dir(&self.0); // not where the database is in it
    }
}

/// A program of ours: beside this one, else in the search path.
pub(crate) fn program(name: &str) -> Result<PathBuf, AnalysisError> {
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name(name));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|directory| directory.join(name));
    let found = beside.into_iter().chain(in_path).find(|path| path.is_file());
    found.ok_or_else(|| {
        AnalysisError::Refused(format!(
            "{name} is neither beside dcpi nor in $PATH; install it there"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error of dcpi record advised to run dcpid as root.
    #[test]
    fn an_ordinary_user_is_told_to_record_with_sudo() {
        let last = "sampling the whole machine needs CAP_PERFMON and CAP_BPF; run dcpid as root";
        assert_eq!(
            refusal(last, false),
            "cannot record: sampling the whole machine needs CAP_PERFMON and CAP_BPF; dcpi record \
             needs root: sudo dcpi record ..."
        );
        assert_eq!(refusal(last, true), format!("cannot record: {last}"), "in a container");
        let other = "no event 'x'; `perf list` shows the events it has";
        assert_eq!(refusal(other, false), format!("cannot record: {other}"));
    }

    #[test]
    fn earlier_recordings_stay_and_a_recording_is_one_epoch() {
        let asked: Record = crate::options::typed(["-e", "cycles", "--", "true"]).unwrap();
        let (db, control) = (Path::new("/db"), Path::new("/control"));
        let mut command = daemon(Path::new("dcpid"), db, control);
        sampling(&mut command, &asked, None, Some("true"));
        let arguments: Vec<_> =
            command.get_args().map(|argument| argument.to_str().unwrap()).collect();
        for pair in
            [["--retain", "all"], ["--epoch-length", "off"], ["--db", "/db"], ["--event", "cycles"]]
        {
            assert!(arguments.windows(2).any(|two| two == pair), "{pair:?}: {arguments:?}");
        }
        assert!(
            arguments.contains(&"--new-epoch") && arguments.contains(&"--kernel-by-process"),
            "{arguments:?}"
        );
    }
}
