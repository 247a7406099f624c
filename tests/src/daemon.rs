//! dcpid, started for one test and ended with it, and dcpictl to steer it.

use crate::{binary, succeed};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long dcpid may take to start, or to end. Either takes a fraction of a second on an idle machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A place of its own for a test: database, control socket, log. Removed at the end.
pub struct Place {
    directory: tempfile::TempDir,
}

impl Default for Place {
    fn default() -> Self {
        let anybody_may_enter = PermissionsExt::from_mode(0o755);
        let directory = tempfile::Builder::new().prefix("dcpi-test-").permissions(anybody_may_enter).tempdir();
        let place = Self { directory: directory.expect("a temporary directory") };
        std::fs::write(place.config(), "overhead-budget = \"off\"\n").expect("a configuration");
        place
    }
}

/// A daemon that samples CPU time, so that samples can be compared with seconds on any machine.
///
/// # Panics
/// When it does not start.
#[must_use]
pub fn start_by_time(place: &Place) -> Daemon<'_> {
    let mut command = place.dcpid();
    command.args(["--event", "cpu-clock"]);
    place.start_as(command)
}

impl Place {
    /// The directory. Anybody may enter and read it.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Where the database is; dcpid makes it.
    #[must_use]
    pub fn db(&self) -> PathBuf {
        self.path().join("db")
    }

    /// Where the control socket is.
    #[must_use]
    pub fn control(&self) -> PathBuf {
        self.path().join("control.sock")
    }

    /// Where the loader hook's notices go.
    #[must_use]
    pub fn loader_socket(&self) -> PathBuf {
        self.path().join("loader.sock")
    }

    /// Read instead of the machine's own configuration: the paper's rate, whatever it costs here. Flags win over it.
    fn config(&self) -> PathBuf {
        self.path().join("dcpid.toml")
    }

    /// dcpid with this database and socket, not started.
    #[must_use]
    pub fn dcpid(&self) -> Command {
        self.dcpid_on(&self.db(), &self.control())
    }

    /// dcpid with another database or socket, not started.
    #[must_use]
    pub fn dcpid_on(&self, db: &Path, control: &Path) -> Command {
        self.complete(Command::new(binary("dcpid")), db, control)
    }

    /// dcpid with a command before it that ends in the name of a dcpid: `setpriv ... dcpid`.
    #[must_use]
    pub fn dcpid_under(&self, command: Command) -> Command {
        self.complete(command, &self.db(), &self.control())
    }

    fn complete(&self, mut command: Command, db: &Path, control: &Path) -> Command {
        command.arg("--config").arg(self.config()).arg("--db").arg(db).arg("--control").arg(control);
        command
    }

    /// dcpictl for this socket, not started.
    #[must_use]
    pub fn dcpictl(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary("dcpictl"));
        command.arg("--control").arg(self.control()).args(arguments);
        command
    }

    /// dcpilabel with this label for this socket, to be given a command; not started.
    #[must_use]
    pub fn dcpilabel(&self, label: &str) -> Command {
        let mut command = Command::new(binary("dcpilabel"));
        command.arg("--control").arg(self.control()).arg(label);
        command
    }

    /// A dcpid that samples.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start(&self) -> Daemon<'_> {
        self.start_as(self.dcpid())
    }

    /// The same, from one of the commands above.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start_as(&self, mut command: Command) -> Daemon<'_> {
        let log = std::fs::File::options().create(true).append(true).open(self.log_path()).expect("the log");
        // As a service manager does: dcpid says READY=1 once it samples.
        let notify = self.path().join("notify.sock");
        let _ = std::fs::remove_file(&notify); // of the daemon before it in the same place
        let ready = UnixDatagram::bind(&notify).expect("the notification socket");
        command.env("NOTIFY_SOCKET", &notify).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().unwrap_or_else(|error| panic!("starting {command:?}: {error}"));
        let mut daemon = Daemon { place: self, child };
        daemon.wait_until_ready(&ready);
        let _ = daemon.status(); // the control socket answers
        daemon
    }

    fn log_path(&self) -> PathBuf {
        self.path().join("dcpid.log")
    }

    /// What the daemon has said so far.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }
}

/// A running dcpid. Dropping it kills the process that was started, and no other.
pub struct Daemon<'a> {
    place: &'a Place,
    child: Child,
}

impl Daemon<'_> {
    /// The process that was started.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it logged.
    #[must_use]
    pub fn log(&self) -> String {
        self.place.log()
    }

    /// Where samples went.
    ///
    /// # Panics
    /// When the daemon does not answer, or says something else than spec/cli.md.
    #[must_use]
    pub fn status(&self) -> Status {
        let text = succeed(&mut self.place.dcpictl(&["status", "--json"]));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("status --json: {error}:\n{text}"))
    }

    /// The same for people.
    ///
    /// # Panics
    /// When the daemon does not answer.
    #[must_use]
    pub fn status_text(&self) -> String {
        succeed(&mut self.place.dcpictl(&["status"]))
    }

    /// Puts everything sampled before the call on disk.
    ///
    /// # Panics
    /// When that fails.
    pub fn flush(&self) {
        let _ = succeed(&mut self.place.dcpictl(&["flush"]));
    }

    /// Kills it as a power cut would, without a chance to write.
    ///
    /// # Panics
    /// When it was not there to be killed.
    pub fn kill(mut self) {
        self.child.kill().expect("killing dcpid");
        let status = self.child.wait().expect("waiting for dcpid");
        assert!(!status.success(), "dcpid was killed but ended with {status}");
    }

    /// Tells it to end as a service manager does (SIGTERM) and waits until it has.
    ///
    /// # Panics
    /// When it does not end in 30 s.
    #[must_use]
    pub fn terminate(mut self) -> ExitStatus {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM).expect("SIGTERM to dcpid");
        self.wait()
    }

    /// Tells it to end through its control socket and waits until it has.
    ///
    /// # Panics
    /// When dcpictl fails, or dcpid does not end in 30 s.
    #[must_use]
    pub fn quit(mut self) -> ExitStatus {
        let _ = succeed(&mut self.place.dcpictl(&["quit"]));
        self.wait()
    }

    fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait().expect("waiting for dcpid") {
                return status;
            }
            std::thread::sleep(Duration::from_millis(10)); // std cannot wait for a child with a timeout
        }
        panic!("dcpid did not end in {PATIENCE:?}");
    }

    fn wait_until_ready(&mut self, ready: &UnixDatagram) {
        let start = Instant::now();
        ready.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
        let mut message = [0; 512];
        loop {
            match ready.recv(&mut message) {
                Ok(length) if message.get(..length).is_some_and(|said| said.starts_with(b"READY=1")) => return,
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => panic!("waiting for dcpid: {error}"),
            }
            if let Some(status) = self.child.try_wait().expect("waiting for dcpid") {
                panic!("dcpid did not start: {status}");
            }
            assert!(start.elapsed() < PATIENCE, "dcpid was not ready after {PATIENCE:?}");
        }
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill(); // it may have ended this moment
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            eprintln!("dcpid's log:\n{}", self.place.log());
        }
    }
}

/// `dcpictl status --json`, as far as tests look at it.
#[derive(Debug, Deserialize)]
pub struct Status {
    /// What is sampled.
    pub events: Vec<Event>,
    /// Where samples went since the daemon started.
    pub samples: Samples,
    /// Seconds since 1970; None before the first merge.
    pub last_merge: Option<u64>,
    /// By CPU: what it took, and what it should have.
    pub cpus: Vec<Cpu>,
    /// The daemon's own cost.
    pub daemon: OwnCost,
    /// Processes known.
    pub processes: u64,
    /// Records of processes that the kernel dropped.
    pub lost_records: u64,
    /// What sampling costs, and may.
    pub overhead: Overhead,
    /// What is kept apart.
    pub apart: Apart,
    /// The code kept beside the profiles; None: it is off.
    #[serde(default)]
    pub code_store: Option<CodeStore>,
    /// Snapshots of registers and the edges made of them; None: it is off.
    #[serde(default)]
    pub edges: Option<Edges>,
    /// What the loader hook said.
    pub loader: Loader,
    /// How much is done.
    pub restraint: Restraint,
    /// Why the last merge failed, if it did.
    #[serde(default)]
    pub merge_error: Option<String>,
}

/// How much is done.
#[derive(Debug, Deserialize)]
pub struct Restraint {
    /// `all`, `counts only` or `nothing`.
    pub doing: String,
}

/// One CPU.
#[derive(Debug, Deserialize)]
pub struct Cpu {
    /// Which.
    pub cpu: u32,
    /// Samples taken.
    pub taken: u64,
    /// Samples that the events' counts and periods imply.
    pub implied: u64,
    /// Implied and not taken, by reason.
    pub missed: BTreeMap<String, u64>,
    /// How often it went offline.
    pub offline: u64,
    /// How long it was not sampled because of that, s.
    pub offline_s: f64,
}

/// The daemon's own cost.
#[derive(Debug, Deserialize)]
pub struct OwnCost {
    /// CPU time, user and system, s.
    pub cpu_s: f64,
    /// Resident memory.
    pub rss_bytes: u64,
}

/// The code kept beside the profiles.
#[derive(Debug, Deserialize)]
pub struct CodeStore {
    /// Images in it.
    pub images: u64,
    /// Its size on disk.
    pub bytes: u64,
    /// Images kept since the daemon started.
    pub kept: u64,
    /// Files opened and not kept yet.
    pub waiting: u64,
}

/// Notices of the loader hook.
#[derive(Debug, Deserialize, PartialEq, Eq)]
pub struct Loader {
    /// Objects that somebody said he has mapped.
    pub received: u64,
    /// The kernel's records had told of them.
    pub known: u64,
    /// /proc confirmed them.
    pub learnt: u64,
    /// Not believed.
    pub refused: u64,
}

/// Parts of all CPU time, and what a sample takes from the program it interrupts.
#[derive(Debug, Deserialize)]
pub struct Overhead {
    /// May cost.
    pub budget: Option<f64>,
    /// Measured at start.
    pub ns_per_sample: Option<f64>,
}

/// What is kept apart.
#[derive(Debug, Deserialize)]
pub struct Apart {
    /// Labels in force.
    pub labels: Vec<String>,
}

/// One event.
#[derive(Debug, Deserialize)]
pub struct Event {
    /// perf's name.
    pub name: String,
    /// Mean period.
    pub period: u64,
    /// What the period counts.
    pub unit: String,
    /// Samples taken.
    pub samples: u64,
    /// Time in which it should have counted.
    pub enabled_ns: u64,
    /// Time in which it did.
    pub running_ns: u64,
    /// What the reader should know.
    pub note: Option<String>,
}

/// Snapshots of registers, and the edges made of them.
#[derive(Debug, Deserialize)]
pub struct Edges {
    /// Taken.
    pub taken: u64,
    /// Of those taken, the ones that gave an edge.
    pub fruitful: u64,
    /// Edges.
    pub edges: u64,
}

/// taken = merged + pending + unresolved + lost.
#[derive(Debug, Deserialize)]
pub struct Samples {
    /// By the sampler.
    pub taken: u64,
    /// On disk, in profiles.
    pub merged: u64,
    /// On the way there.
    pub pending: u64,
    /// Without an image, by reason.
    pub unresolved: BTreeMap<String, u64>,
    /// In no profile, by reason.
    pub lost: BTreeMap<String, u64>,
}

impl Samples {
    /// Samples without an image, of all reasons.
    #[must_use]
    pub fn unresolved(&self) -> u64 {
        self.unresolved.values().sum()
    }

    /// Samples in no profile, of all reasons.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.values().sum()
    }

    /// Fails the test unless every sample is accounted for, exactly, and the sampler's own count agrees with its entries.
    ///
    /// # Panics
    /// When it is not.
    pub fn assert_closes(&self) {
        let accounted = self.merged + self.pending + self.unresolved() + self.lost();
        assert_eq!(self.taken, accounted, "taken = merged + pending + unresolved + lost: {self:?}");
        assert_eq!(self.lost.get("uncounted").copied().unwrap_or(0), 0, "{self:?}");
    }
}
