//! Runs of a command without events, for what its events cost in it.

use std::ffi::OsString;
use std::process::{Command, ExitStatus, Stdio};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use trace::Untraced;

use crate::TraceError;

/// The runs of a command, with events and without.
pub(crate) struct Runs<'a> {
    words: &'a [OsString],
    asked: u32,
    /// CPU time of each run without events, in ns.
    cpu_ns: Vec<f64>,
    ended: Vec<ExitStatus>,
    /// CPU time of children that ended before the traced run, in ns.
    before_ns: f64,
    traced_ns: f64,
}

impl<'a> Runs<'a> {
    /// Runs the command once, which brings its files into memory, and then the first half of so
    /// many times.
    ///
    /// # Errors
    /// [`TraceError::Refused`] where the command cannot be started.
    pub(crate) fn begin(
        words: &'a [OsString],
        asked: u32,
        stop: &dyn Fn() -> bool,
    ) -> Result<Self, TraceError> {
        let (cpu_ns, ended) = (Vec::new(), Vec::new());
        let mut runs = Self { words, asked, cpu_ns, ended, before_ns: 0.0, traced_ns: 0.0 };
        runs.run(stop)?;
        (runs.cpu_ns, runs.ended) = (Vec::new(), Vec::new());
        while runs.cpu_ns.len() < (asked / 2) as usize && !stop() {
            runs.run(stop)?;
        }
        runs.before_ns = children_cpu_ns();
        Ok(runs)
    }

    /// The traced run has ended and was waited for.
    pub(crate) fn traced_has_ended(&mut self) {
        self.traced_ns = children_cpu_ns() - self.before_ns;
    }

    /// Runs the command the remaining times: what changes the machine's speed as time goes by, does
    /// so to both halves. The CPU times, or why they say nothing of the traced run.
    pub(crate) fn end(
        mut self,
        traced: Option<ExitStatus>,
        stop: &dyn Fn() -> bool,
    ) -> Result<Untraced, String> {
        while self.cpu_ns.len() < self.asked as usize && !stop() {
            self.run(stop).map_err(|error| error.to_string())?;
        }
        if stop() {
            return Err("a signal ended the runs without events".to_owned());
        }
        if let Some(other) = self.ended.iter().find(|ended| Some(**ended) != traced) {
            return Err(format!("a run without events ended with {other}, the traced one did not"));
        }
        Ok(Untraced { traced_cpu_ns: self.traced_ns, cpu_ns: self.cpu_ns })
    }

    fn run(&mut self, stop: &dyn Fn() -> bool) -> Result<(), TraceError> {
        let Some((program, arguments)) = self.words.split_first() else { return Ok(()) };
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let before = children_cpu_ns();
        let ended =
            command.status().map_err(|error| TraceError::new("a run without events", &error))?;
        if !stop() {
            self.cpu_ns.push(children_cpu_ns() - before);
            self.ended.push(ended);
        }
        Ok(())
    }
}

/// CPU time that the kernel accounts to children that were waited for, and to those that they
/// waited for (getrusage(2), `RUSAGE_CHILDREN`), in ns.
fn children_cpu_ns() -> f64 {
    let micros = |used: nix::sys::resource::Usage| {
        used.user_time().num_microseconds() + used.system_time().num_microseconds()
    };
    getrusage(UsageWho::RUSAGE_CHILDREN).map_or(0.0, |used| micros(used) as f64 * 1e3)
}
