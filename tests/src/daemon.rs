//! dcpid, started for one test and ended with it, and dcpictl to steer it.

use crate::{binary, succeed};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use wire::{Client, Reply, Request, Samples, Status};

/// Longest time for dcpid to start, or to end. Either takes a fraction of a second on an idle
/// machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A place of its own for a test: database, control socket, log. Removed at the end.
pub struct Place {
    directory: tempfile::TempDir,
}

impl Default for Place {
    fn default() -> Self {
        let anybody_may_enter = PermissionsExt::from_mode(0o755);
        let directory =
            tempfile::Builder::new().prefix("dcpi-test-").permissions(anybody_may_enter).tempdir();
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

    /// Path of the database, which dcpid makes.
    #[must_use]
    pub fn db(&self) -> PathBuf {
        self.path().join("db")
    }

    /// Path of the control socket.
    #[must_use]
    pub fn control(&self) -> PathBuf {
        self.path().join("control.sock")
    }

    /// Path of the socket for the loader hook's notices.
    #[must_use]
    pub fn loader_socket(&self) -> PathBuf {
        self.path().join("loader.sock")
    }

    /// Path of a configuration that replaces the machine's: the paper's rate, without a limit of
    /// overhead. Flags override it.
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

    /// A command line that ends in the path of dcpid, such as `setpriv ... dcpid`, completed with
    /// this database and socket, not started.
    #[must_use]
    pub fn dcpid_under(&self, command: Command) -> Command {
        self.complete(command, &self.db(), &self.control())
    }

    fn complete(&self, mut command: Command, db: &Path, control: &Path) -> Command {
        command
            .arg("--config")
            .arg(self.config())
            .arg("--db")
            .arg(db)
            .arg("--control")
            .arg(control);
        command
    }

    /// dcpictl for this socket, not started.
    #[must_use]
    pub fn dcpictl(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary("dcpictl"));
        command.arg("--control").arg(self.control()).args(arguments);
        command
    }

    /// Asks the daemon in this place.
    ///
    /// # Panics
    /// When no daemon answers, or it refuses.
    pub fn ask(&self, request: &Request) -> Reply {
        Client::new(self.control()).ask(request).unwrap_or_else(|error| panic!("{error}"))
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

    /// Starts dcpid by one of the commands above.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start_as(&self, mut command: Command) -> Daemon<'_> {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.log_path())
            .expect("the log");
        // As a service manager does: dcpid says READY=1 once it samples.
        let notify = self.path().join("notify.sock");
        let _ = std::fs::remove_file(&notify); // of the daemon before it in the same place
        let ready = UnixDatagram::bind(&notify).expect("the notification socket");
        command
            .env("NOTIFY_SOCKET", &notify)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let child = command.spawn().unwrap_or_else(|error| panic!("starting {command:?}: {error}"));
        let mut daemon = Daemon { place: self, child };
        daemon.wait_until_ready(&ready);
        let _ = daemon.status(); // the control socket answers
        daemon
    }

    fn log_path(&self) -> PathBuf {
        self.path().join("dcpid.log")
    }

    /// The daemon's output so far.
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

    /// Its log.
    #[must_use]
    pub fn log(&self) -> String {
        self.place.log()
    }

    /// The daemon's status.
    ///
    /// # Panics
    /// When the daemon does not answer.
    #[must_use]
    pub fn status(&self) -> Status {
        *self.place.ask(&Request::Status).status.expect("a status")
    }

    /// The status as text.
    ///
    /// # Panics
    /// When the daemon does not answer.
    #[must_use]
    pub fn status_text(&self) -> String {
        succeed(&mut self.place.dcpictl(&["status"]))
    }

    /// Writes all samples taken before the call to disk.
    ///
    /// # Panics
    /// When that fails.
    pub fn flush(&self) {
        let _ = self.place.ask(&Request::Flush);
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
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM)
            .expect("SIGTERM to dcpid");
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
            // Std cannot wait for a child with a timeout.
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("dcpid did not end in {PATIENCE:?}");
    }

    fn wait_until_ready(&mut self, ready: &UnixDatagram) {
        let start = Instant::now();
        ready.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
        let mut message = [0; 512];
        loop {
            match ready.recv(&mut message) {
                Ok(length)
                    if message.get(..length).is_some_and(|said| said.starts_with(b"READY=1")) =>
                {
                    return;
                }
                Ok(_) => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
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

/// Fails the test unless every sample is accounted for, exactly, and the sampler's own count agrees
/// with its entries.
///
/// # Panics
/// When a sample is not accounted for.
pub fn assert_closes(samples: &Samples) {
    let accounted = samples.merged + samples.pending + samples.unresolved() + samples.lost();
    assert_eq!(
        samples.taken, accounted,
        "taken = merged + pending + unresolved + lost: {samples:?}"
    );
    assert_eq!(samples.lost.get("uncounted").copied().unwrap_or(0), 0, "{samples:?}");
}
