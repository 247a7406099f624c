//! A Debian container with systemd and the package to install, both made by `cargo xtask test`.
//! Changes in it are discarded.

use crate::succeed;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longest time to boot.
const PATIENCE: Duration = Duration::from_secs(60);

/// A booted container. Dropping it ends it.
pub struct Container {
    spawned: Child,
    /// Process number of its init, outside of the container.
    leader: u32,
}

/// A folder below `target`.
fn target(folder: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    test.ancestors().nth(3).expect("a test lies in target/PROFILE/deps").join(folder)
}

impl Container {
    /// Boots it; `shared` is `/shared` in it, and the package's folder `/package`.
    ///
    /// # Panics
    /// When it does not boot.
    #[must_use]
    pub fn boot(shared: &Path) -> Self {
        let (tree, package) = (target("container/tree"), target("package"));
        for made in [&tree, &package] {
            assert!(made.is_dir(), "{} is missing; run cargo xtask test service", made.display());
        }
        let mut command = Command::new("systemd-nspawn");
        command.args([
            "--quiet",
            "--register=no",
            "--keep-unit",
            "--boot",
            "--volatile=overlay",
            "--private-network",
        ]);
        // The capabilities that sampling takes; the service has only those of its unit.
        command.args([
            "--capability=all",
            "--system-call-filter=bpf perf_event_open",
            "--console=pipe",
        ]);
        command
            .arg("--directory")
            .arg(tree)
            .arg(format!("--machine=dcpi-test-{}", std::process::id()));
        command.arg(format!("--bind-ro={}:/package", package.display()));
        command.arg(format!("--bind-ro={}:/shared", shared.display()));
        let log = std::fs::File::create(shared.join("console.log")).expect("a log");
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        let spawned =
            command.spawn().unwrap_or_else(|error| panic!("starting {command:?}: {error}"));
        let mut container = Self { leader: 0, spawned };
        let begun = Instant::now();
        let children = format!("/proc/{0}/task/{0}/children", container.spawned.id());
        loop {
            let first = std::fs::read_to_string(&children).ok();
            container.leader =
                first.and_then(|first| first.split_whitespace().next()?.parse().ok()).unwrap_or(0);
            let state = container.run("systemctl is-system-running --wait");
            if container.leader > 0 && String::from_utf8_lossy(&state.stdout).trim() == "running" {
                return container;
            }
            let log = || std::fs::read_to_string(shared.join("console.log")).unwrap_or_default();
            assert!(begun.elapsed() < PATIENCE, "it has not booted: {state:?}\n{}", log());
            std::thread::sleep(Duration::from_millis(100)); // the pace of the questions
        }
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.leader.to_string(), "--all", "--", "sh", "-c", line]);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C.UTF-8");
        command
    }

    /// Runs a line of shell in it, as root.
    #[must_use]
    pub fn run(&self, line: &str) -> Output {
        crate::run(&mut self.command(line))
    }

    /// The output of a shell command that must succeed.
    ///
    /// # Panics
    /// When it fails; the journal of the service is shown.
    pub fn ok(&self, line: &str) -> String {
        let output = self.run(line);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if !output.status.success() {
            let journal = self.run(
                "systemctl status --no-pager dcpid; journalctl --no-pager --lines=60 --unit=dcpid",
            );
            let said = [&output.stdout, &output.stderr, &journal.stdout]
                .map(|bytes| text(bytes))
                .join("\n");
            panic!("{line}: {}\n{said}", output.status);
        }
        text(&output.stdout)
    }

    /// Whether a line of shell succeeds.
    #[must_use]
    pub fn is(&self, line: &str) -> bool {
        self.run(line).status.success()
    }

    /// Waits until a line of shell succeeds.
    ///
    /// # Panics
    /// When it does not in a minute.
    pub fn until(&self, line: &str) {
        let begun = Instant::now();
        while !self.is(line) {
            assert!(
                begun.elapsed() < PATIENCE,
                "not in {PATIENCE:?}: {}",
                self.ok(&format!("{line}; true"))
            );
            std::thread::sleep(Duration::from_millis(200)); // the pace of the questions
        }
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // Twice --force powers off at once, without stopping units.
        let _ = crate::run(&mut self.command("systemctl poweroff --force --force"));
        let _ = self.spawned.kill(); // it may have ended this moment
        let _ = self.spawned.wait();
    }
}

/// The text of a package's version, as dpkg-deb tells it, to say what was tried.
///
/// # Panics
/// When there is no package.
#[must_use]
pub fn package() -> String {
    let files =
        std::fs::read_dir(target("package")).expect("a package; run cargo xtask test service");
    let found = files
        .flatten()
        .map(|file| file.path())
        .find(|path| path.extension().is_some_and(|end| end == "deb"));
    let path = found.expect("a package; run cargo xtask test service");
    let name = path.file_name().and_then(|name| name.to_str()).expect("plain names").to_owned();
    let _ = succeed(Command::new("dpkg-deb").arg("--info").arg(&path));
    name
}
