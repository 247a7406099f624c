//! One run of a command: started, waited for, ended where it takes too long; its times.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::words::Words;
use crate::commands::record::{children_cpu_s, shell_word};
use crate::signals;
use query::error::AnalysisError;

/// The environment variable that makes the environment larger.
const PADDING: &str = "DCPI_TIME_PADDING";
/// Bytes by which the environment is enlarged at most: a page, since a stack that is moved by more
/// lies in the same way again.
pub(super) const PADDING_MAX: usize = 4096;

pub(super) struct Runner {
    /// Standard input of every run; nothing, without.
    pub(super) input: Option<PathBuf>,
    pub(super) shows_output: bool,
    pub(super) timeout: Option<Duration>,
    stop: Arc<Stop>,
}

/// Passes a signal of this process on to the running command; no further command is started.
#[derive(Default)]
struct Stop {
    asked: AtomicBool,
    /// Process group of the running command; 0: none.
    group: AtomicI32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Ran {
    pub(super) wall_s: f64,
    pub(super) user_s: f64,
    pub(super) system_s: f64,
    /// Time in which the command's first thread was ready and no CPU was free.
    pub(super) delayed_s: f64,
    pub(super) status: ExitStatus,
}

pub(super) enum NotRun {
    Stopped,
    TimedOut,
    /// The reason, with the next step.
    Refused(AnalysisError),
}

impl Runner {
    /// From now on SIGINT, SIGTERM, SIGHUP and SIGQUIT end the run that goes on, and this process
    /// reports what it has.
    pub(super) fn new(
        input: Option<PathBuf>,
        shows_output: bool,
        timeout: Option<Duration>,
    ) -> io::Result<Self> {
        let stop = Arc::new(Stop::default());
        let heard = signals::hear(&[SIGINT, SIGTERM, SIGHUP, SIGQUIT])?;
        let told = Arc::clone(&stop);
        std::thread::Builder::new().name("stop".into()).spawn(move || {
            for signal in heard {
                let signal = match told.asked.swap(true, Ordering::SeqCst) {
                    false => Signal::from_named_raw(signal).unwrap_or(Signal::TERM),
                    // The command did not mind the first.
                    true => Signal::KILL,
                };
                end_group(told.group.load(Ordering::SeqCst), signal);
            }
        })?;
        Ok(Self { input, shows_output, timeout, stop })
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.asked.load(Ordering::SeqCst)
    }

    /// Runs a command to its end. CPU time is that of the command and of all its children that it
    /// waited for, as wait4(2) has it.
    pub(super) fn run(&self, words: &Words, padding: usize) -> Result<Ran, NotRun> {
        let Some((program, arguments)) = words.split_first() else { return Err(NotRun::Stopped) };
        let refused = |what: &str, error: &dyn std::fmt::Display| {
            let program = shell_word(program.as_ref());
            NotRun::Refused(AnalysisError::Refused(format!(
                "{what} {program}: {error}; try it without dcpi time"
            )))
        };
        let mut command = Command::new(program);
        command.args(arguments).env(PADDING, "x".repeat(padding)).process_group(0);
        command.stdin(self.stdin().map_err(|error| refused("cannot read the input of", &error))?);
        match self.shows_output {
            // Standard output is the report's.
            true => command.stdout(io::stderr()),
            false => command.stdout(Stdio::null()).stderr(Stdio::null()),
        };
        let before = children_cpu_s().unwrap_or_default();
        let begun = Instant::now();
        let mut child = command.spawn().map_err(|error| refused("cannot start", &error))?;
        let (ended, timed_out) = self.wait(&child, begun);
        let delayed_s = delay_s(child.id());
        let status = child.wait().map_err(|error| refused("cannot wait for", &error))?;
        self.stop.group.store(0, Ordering::SeqCst);
        let after = children_cpu_s().unwrap_or_default();
        if self.is_stopped() {
            return Err(NotRun::Stopped);
        }
        if timed_out {
            return Err(NotRun::TimedOut);
        }
        Ok(Ran {
            wall_s: ended.duration_since(begun).as_secs_f64(),
            user_s: after.0 - before.0,
            system_s: after.1 - before.1,
            delayed_s,
            status,
        })
    }

    /// Runs what is to be done between runs to its end, in no longer time than a run may take.
    /// `refused` says what an error of the system is about.
    pub(super) fn between_runs(
        &self,
        command: &mut Command,
        refused: impl Fn(io::Error) -> AnalysisError,
    ) -> Result<ExitStatus, NotRun> {
        let refused = |error| NotRun::Refused(refused(error));
        let begun = Instant::now();
        let mut child = command.process_group(0).spawn().map_err(refused)?;
        let (_, timed_out) = self.wait(&child, begun);
        let status = child.wait().map_err(refused)?;
        self.stop.group.store(0, Ordering::SeqCst);
        match timed_out {
            _ if self.is_stopped() => Err(NotRun::Stopped),
            true => Err(NotRun::TimedOut),
            false => Ok(status),
        }
    }

    fn stdin(&self) -> io::Result<Stdio> {
        self.input
            .as_ref()
            .map_or_else(|| Ok(Stdio::null()), |path| File::open(path).map(Stdio::from))
    }

    /// Waits until the child has ended, and leaves it to be waited for: while it is there, the
    /// kernel still tells how long it was delayed. Ends its process group at the timeout.
    fn wait(&self, child: &Child, begun: Instant) -> (Instant, bool) {
        let pid = Pid::from_child(child);
        self.stop.group.store(pid.as_raw_nonzero().get(), Ordering::SeqCst);
        // A signal between the last check and the start would go unnoticed.
        if self.is_stopped() {
            end_group(pid.as_raw_nonzero().get(), Signal::TERM);
        }
        let until_exit = || {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            let interrupted = Some(rustix::io::Errno::INTR);
            while rustix::process::waitid(WaitId::Pid(pid), options).err() == interrupted {}
            Instant::now()
        };
        let Some(timeout) = self.timeout else { return (until_exit(), false) };
        let (over, end) = channel::<()>();
        std::thread::scope(|scope| {
            let watcher = scope.spawn(move || {
                let left = (begun + timeout).saturating_duration_since(Instant::now());
                let is_late = end.recv_timeout(left) == Err(RecvTimeoutError::Timeout);
                if is_late {
                    end_group(pid.as_raw_nonzero().get(), Signal::KILL);
                }
                is_late
            });
            let ended = until_exit();
            drop(over);
            (ended, watcher.join().unwrap_or(false))
        })
    }
}

/// Sends a signal to a command's process group; 0 is none.
fn end_group(group: i32, signal: Signal) {
    if let Some(group) = Pid::from_raw(group) {
        let _ = rustix::process::kill_process_group(group, signal); // it may have ended
    }
}

/// Seconds that a process's first thread was ready to run and did not run: the second number of
/// /proc/PID/schedstat (Documentation/scheduler/sched-stats.rst), ns. 0 without.
fn delay_s(pid: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
    let ns = text.split_ascii_whitespace().nth(1).and_then(|ns| ns.parse::<u64>().ok());
    ns.unwrap_or_default() as f64 / 1e9
}

/// How a command ended, where that is no success, in words.
pub(super) fn failure(status: ExitStatus) -> Option<String> {
    match (status.code(), status.signal()) {
        (Some(0), _) => None,
        (Some(code), _) => Some(format!("exit code {code}")),
        (None, Some(signal)) => Some(format!("signal {signal}")),
        (None, None) => Some("no exit code".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Words {
        text.split(' ').map(Into::into).collect()
    }

    fn runner(timeout: Option<Duration>) -> Runner {
        Runner { input: None, shows_output: false, timeout, stop: Arc::default() }
    }

    #[test]
    fn a_run_has_its_times_and_end() {
        let Ok(ran) = runner(None).run(&words("sleep 0.2"), 100) else { panic!("it runs") };
        assert!(ran.wall_s >= 0.2 && ran.status.success(), "{ran:?}");
        assert!(ran.user_s + ran.system_s < 0.2, "sleeping is no CPU time: {ran:?}");
        let Ok(ran) = runner(None).run(&words("false"), 0) else { panic!("it runs") };
        assert_eq!(failure(ran.status).as_deref(), Some("exit code 1"));
        let Err(NotRun::Refused(error)) = runner(None).run(&words("/no/such"), 0) else {
            panic!("there is no such program")
        };
        assert!(error.to_string().starts_with("cannot start /no/such: "), "{error}");
    }

    /// A shell's child would go on after its shell was killed.
    #[test]
    fn a_run_that_takes_too_long_ends_with_its_children() {
        let script: Words = ["sh", "-c", "sleep 1000; true"].map(Into::into).into();
        let ended = runner(Some(Duration::from_millis(50))).run(&script, 0);
        assert!(matches!(ended, Err(NotRun::TimedOut)));
    }

    #[test]
    fn the_environment_is_as_large_as_asked() {
        let script: Words =
            ["sh", "-c", "test ${#DCPI_TIME_PADDING} = 1234"].map(Into::into).into();
        let Ok(ran) = runner(None).run(&script, 1234) else { panic!("it runs") };
        assert!(ran.status.success());
    }
}
