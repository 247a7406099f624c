//! The harness of the whole-system tests in `tests/`: the real programs, beside real workloads,
//! judged by their output. It depends on no crate of the programs, so that tests see only the
//! interfaces that users rely on.
//!
//! `tests/privileged.rs` needs root and says so by failing; `cargo xtask test` runs it. Everything
//! here panics to fail a test.
#![allow(clippy::print_stderr, reason = "what tests print is shown when they fail")]
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests panic to fail")]

pub mod cgroup;
pub mod container;
pub mod daemon;
pub mod guide;
pub mod report;
pub mod workload;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Longest time of a program that ends by itself, much longer than any takes: it bounds tests that
/// would hang.
const RUN_MAX: Duration = Duration::from_secs(90);

/// The program `name` as it was built beside this test: in `target/PROFILE`, or in `$DCPI_BIN_DIR`.
///
/// # Panics
/// When it is not there, saying how to build it.
#[must_use]
pub fn binary(name: &str) -> PathBuf {
    let directory = std::env::var_os("DCPI_BIN_DIR").map(PathBuf::from).unwrap_or_else(|| {
        // The test is target/PROFILE/deps/NAME-HASH.
        let test = std::env::current_exe().expect("the path of this test");
        test.parent()
            .and_then(|deps| deps.parent())
            .expect("a test lies in target/PROFILE/deps")
            .to_owned()
    });
    let path = directory.join(name);
    assert!(
        path.is_file(),
        "{} is missing; build them first: cargo build --workspace --bins, or run cargo xtask test",
        path.display()
    );
    path
}

/// Whether the processor is AMD's: the errors of some estimates are stated for Zen 3 and 4, and
/// larger ones for processors on which they were not measured.
///
/// # Panics
/// Where /proc/cpuinfo cannot be read.
#[must_use]
pub fn is_amd() -> bool {
    let about = std::fs::read_to_string("/proc/cpuinfo").expect("/proc is mounted");
    about.contains("AuthenticAMD")
}

/// The loader hook as `cargo xtask hook` built it: in `target/hook`, or in `$DCPI_BIN_DIR`.
///
/// # Panics
/// When it is not there, saying how to build it.
#[must_use]
pub fn hook() -> PathBuf {
    let directory = std::env::var_os("DCPI_BIN_DIR").map(PathBuf::from).unwrap_or_else(|| {
        let test = std::env::current_exe().expect("the path of this test");
        test.ancestors().nth(3).expect("a test lies in target/PROFILE/deps").join("hook")
    });
    let path = directory.join("libdcpi_loader_hook.so");
    assert!(
        path.is_file(),
        "{} is missing; build it first: cargo xtask hook, or run cargo xtask test",
        path.display()
    );
    path
}

/// Holds a setting of the kernel until it is dropped.
pub struct Setting {
    path: PathBuf,
    before: String,
}

impl Setting {
    /// Sets it: a file below /proc/sys or /sys.
    ///
    /// # Panics
    /// When the kernel refuses.
    #[must_use]
    pub fn set(path: &str, value: &str) -> Self {
        let before =
            std::fs::read_to_string(path).unwrap_or_else(|error| panic!("reading {path}: {error}"));
        std::fs::write(path, value).unwrap_or_else(|error| panic!("writing {path}: {error}"));
        Self { path: path.into(), before }
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = std::fs::write(&self.path, &self.before); // the kernel took it before
    }
}

/// Runs a program to its end.
///
/// # Panics
/// When it cannot be started, or is not done after 90 s; it is killed then.
#[must_use]
pub fn run(command: &mut Command) -> Output {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.unwrap_or_else(|error| panic!("starting {command:?}: {error}"));
    let pid = Pid::from_raw(child.id().cast_signed());
    let (sender, ended) = mpsc::channel();
    let waiter = std::thread::spawn(move || {
        let output = child.wait_with_output();
        let _ = sender.send(()); // the receiver has gone after its timeout
        output
    });
    let timeout = ended.recv_timeout(RUN_MAX).is_err();
    if timeout {
        let _ = kill(pid, Signal::SIGKILL); // it may have ended this moment
    }
    let output =
        waiter.join().unwrap().unwrap_or_else(|error| panic!("waiting for {command:?}: {error}"));
    assert!(!timeout, "{command:?} did not end in {RUN_MAX:?}; it said:\n{}", said(&output));
    output
}

/// The standard output of a program that must succeed.
///
/// # Panics
/// When its exit code is not 0.
#[must_use]
pub fn succeed(command: &mut Command) -> String {
    let output = run(command);
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, said(&output));
    String::from_utf8(output.stdout).expect("output is UTF-8")
}

/// Runs a program that must refuse, the way all of ours do: exit code 2, nothing on standard
/// output, and one line on standard error that names the program, says what happened, and ends in
/// the next step. Returns the line.
///
/// # Panics
/// When it does anything else.
#[must_use]
pub fn refuse(command: &mut Command) -> String {
    refuse_with(command, 2)
}

/// The same with exit code 75 (`EX_TEMPFAIL` of sysexits.h), for a reason that may pass.
///
/// # Panics
/// When it does anything else.
#[must_use]
pub fn refuse_for_now(command: &mut Command) -> String {
    refuse_with(command, 75)
}

fn refuse_with(command: &mut Command, code: i32) -> String {
    let output = run(command);
    let said = said(&output);
    let ended = output.status;
    assert_eq!(ended.code(), Some(code), "{command:?} ended with {ended}:\n{said}");
    assert!(output.stdout.is_empty(), "{command:?} writes errors to its standard output:\n{said}");
    let error = String::from_utf8(output.stderr).expect("errors are UTF-8");
    let line = error.strip_suffix('\n').filter(|line| !line.contains('\n'));
    let line = line.unwrap_or_else(|| panic!("{command:?} must say one line:\n{said}"));
    let program = ["dcpid: ", "dcpictl: ", "dcpilabel: ", "dcpi: "]
        .into_iter()
        .find(|name| line.starts_with(name));
    assert!(program.is_some(), "the line names the program that says it: {line}");
    assert!(
        line.contains("; "),
        "the line ends in the next step, `PROGRAM: what happened; next step`: {line}"
    );
    line.to_owned()
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Fails the test unless it runs as root: a test that cannot test must not pass.
///
/// # Panics
/// When the test is not run as root.
pub fn require_root() {
    assert!(
        nix::unistd::geteuid().is_root(),
        "this test needs root: sudo -E env PATH=\"$PATH\" cargo xtask test"
    );
}
