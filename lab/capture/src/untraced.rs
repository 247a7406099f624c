//! Runs of a command without events: their CPU time shows the cost of events in this command.

use std::ffi::OsString;
use std::io::{self, Read};
use std::process::{Command, ExitStatus, Stdio};

use perf_event::events::Software;
use perf_event::{Builder, Counter};
use trace::{Facts, Untraced};

use crate::TraceError;
use crate::recorder::{Target, not_started};

/// The runs of a command, with events and without.
pub(crate) struct Runs<'a> {
    words: &'a [OsString],
    asked: u32,
    /// CPU time of each run without events, in ns.
    cpu_ns: Vec<f64>,
    ended: Vec<ExitStatus>,
    /// Clock of the traced run.
    traced: Clock,
}

impl<'a> Runs<'a> {
    /// Runs the command once, which brings its files into memory, and then the first half of so
    /// many times. None where no run, or no command, is asked for.
    ///
    /// # Errors
    /// [`TraceError::Refused`] where the command cannot be started, or its time not be counted.
    pub(crate) fn begin(
        asked: u32,
        target: &'a Target,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<Self>, TraceError> {
        let Target::Command(words) = target else { return Ok(None) };
        if asked == 0 {
            return Ok(None);
        }
        let (cpu_ns, ended) = (Vec::new(), Vec::new());
        let mut runs = Self { words, asked, cpu_ns, ended, traced: Clock::of_children()? };
        runs.run(stop)?;
        (runs.cpu_ns, runs.ended) = (Vec::new(), Vec::new());
        while runs.cpu_ns.len() < (asked / 2) as usize && !stop() {
            runs.run(stop)?;
        }
        runs.traced = Clock::of_children()?;
        Ok(Some(runs))
    }

    /// Called after the traced run has ended; `outlived` is the number of its threads that still
    /// run. Runs the command the remaining times. Half of the runs come before and half after the
    /// traced run, so that a slow drift of the machine's speed cancels. Adds the CPU times to the
    /// facts, or a note with the reason why they cannot be used.
    pub(crate) fn end(
        mut self,
        (status, outlived): (Option<ExitStatus>, usize),
        stop: &dyn Fn() -> bool,
        facts: &mut Facts,
    ) {
        let traced_cpu_ns = self.traced.ns();
        let told = match outlived {
            0 => self.remaining(status, stop),
            _ => Err(format!("{outlived} threads of the traced run outlived the command")),
        };
        match told {
            Ok(()) => facts.untraced = Some(Untraced { traced_cpu_ns, cpu_ns: self.cpu_ns }),
            Err(why) => facts.notes.push(format!("costs are not known in situ: {why}")),
        }
    }

    fn remaining(
        &mut self,
        traced: Option<ExitStatus>,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), String> {
        while self.cpu_ns.len() < self.asked as usize && !stop() {
            self.run(stop).map_err(|error| error.to_string())?;
        }
        if stop() {
            return Err("a signal ended the command".to_owned());
        }
        match self.ended.iter().find(|ended| Some(**ended) != traced) {
            Some(other) => {
                Err(format!("a run without events ended with {other}, the traced one did not"))
            }
            None => Ok(()),
        }
    }

    fn run(&mut self, stop: &dyn Fn() -> bool) -> Result<(), TraceError> {
        let Some((program, arguments)) = self.words.split_first() else { return Ok(()) };
        let mut clock = Clock::of_children()?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| not_started(program, &error))?;
        // A pipe, not /dev/null: GNU grep stops at the first match when it writes to /dev/null.
        child.stdout.take().into_iter().for_each(drain);
        child.stderr.take().into_iter().for_each(drain);
        let ended = child.wait().map_err(|error| not_started(program, &error))?;
        if !stop() {
            self.cpu_ns.push(clock.ns());
            self.ended.push(ended);
        }
        Ok(())
    }
}

/// Discards a command's output until every process that holds the pipe has ended.
fn drain(mut pipe: impl Read + Send + 'static) {
    std::thread::spawn(move || io::copy(&mut pipe, &mut io::sink()));
}

/// CPU time, ns, of the programs that children of the calling thread execute, and of their children
/// (perf's task-clock, inherited, enabled at exec). Traced and other runs are timed alike.
struct Clock(Counter);

impl Clock {
    fn of_children() -> Result<Self, TraceError> {
        let mut builder = Builder::new(Software::TASK_CLOCK);
        builder.observe_self().any_cpu().inherit(true).enable_on_exec(true).enabled(false);
        let counter = builder.include_kernel().include_hv().build();
        counter.map(Self).map_err(|error| TraceError::new("cannot count CPU time", &error))
    }

    fn ns(&mut self) -> f64 {
        self.0.read().unwrap_or(0) as f64
    }
}
