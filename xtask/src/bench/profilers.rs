//! The configurations that are compared: each is started, watched, and ended whatever happens.

use super::json::number_at;
use super::machine::{memory_bytes, process_cpu_s, size_bytes};
use crate::process::{command, must, output};
use anyhow::{Context as _, bail};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use wire::{Client, Request, Status};

/// Samples per second and CPU, of every configuration (the paper's rate).
pub const RATE: u64 = 5200;
const START_MAX: Duration = Duration::from_secs(30);
const END_MAX: Duration = Duration::from_secs(20);

named! {
    /// The profiler that samples while a workload runs.
    pub enum Configuration {
        /// No profiler.
        Nothing = "nothing",
        /// dcpid's event with a BPF program that returns 0: the lower limit of the cost of
        /// sampling.
        Empty = "empty",
        /// `dcpid`.
        Dcpid = "dcpid",
        /// `perf record`.
        Perf = "perf",
    }
}

/// The profiler's counters since its start, its own and the kernel's.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    /// CPU time of the profiler's process.
    pub cpu_s: f64,
    /// Part of `cpu_s` spent on interpreting snapshots of registers.
    pub edges_cpu_s: f64,
    /// Samples taken.
    pub taken: f64,
    /// Samples whose place had no entry in the table.
    pub misses: f64,
    /// Sum over drains of the different places in each.
    pub places: f64,
    /// Samples without an image.
    pub unresolved: f64,
    /// Samples that are in no profile.
    pub lost: f64,
    /// Time in the BPF handler, ns, by the kernel's BPF statistics; 0 without them.
    pub handler_ns: f64,
    /// Runs of the handler, by the same statistics.
    pub handler_runs: f64,
    /// Kernel memory of the tables, in bytes per CPU.
    pub table_bytes_per_cpu: f64,
}

/// A running program, which is ended when the value is dropped.
pub struct Program {
    child: Child,
    name: &'static str,
}

impl Program {
    /// Starts a command line. The program gets SIGTERM when this process ends, even if it is
    /// killed.
    fn start(name: &'static str, line: &str, stdout: Stdio, log: &str) -> anyhow::Result<Self> {
        let log = fs::File::create(log).with_context(|| format!("creating {log}"))?;
        let mut command = command(&format!("setpriv --pdeathsig TERM {line}"));
        let child = command.stdin(Stdio::null()).stdout(stdout).stderr(log).spawn();
        Ok(Self { child: child.with_context(|| format!("starting {name}"))?, name })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Ends the program by SIGTERM, or by SIGKILL after [`END_MAX`].
    pub fn end(&mut self) -> anyhow::Result<()> {
        if self.ended() {
            return Ok(());
        }
        // The shell's built-in kill: /bin/kill may not be installed.
        let kill = format!("kill -TERM {}", self.child.id());
        let _ = Command::new("sh").args(["-c", &kill]).stderr(Stdio::null()).status();
        let deadline = Instant::now() + END_MAX;
        while !self.ended() {
            if Instant::now() > deadline {
                let _ = self.child.kill();
                let _ = self.child.wait();
                bail!("{} did not end in {} s and was killed", self.name, END_MAX.as_secs());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.end(); // said already where it matters
    }
}

/// The program `tests/bench/empty_event.c`: an empty BPF program at an event, or the kernel's BPF
/// statistics switched on.
struct EmptyEvent {
    program: Program,
    stdout: BufReader<ChildStdout>,
}

impl EmptyEvent {
    fn start(folder: &str, argument: &str) -> anyhow::Result<Self> {
        let log = format!("{folder}/empty_event.log");
        let line = format!("{folder}/empty_event {argument}");
        let mut program = Program::start("empty_event", &line, Stdio::piped(), &log)?;
        let mut stdout =
            BufReader::new(program.child.stdout.take().context("empty_event has no output")?);
        let mut said = String::new();
        stdout.read_line(&mut said)?;
        if said.trim() != "ready" {
            bail!(
                "empty_event did not start; it said: {}",
                fs::read_to_string(log).unwrap_or_default().trim()
            );
        }
        Ok(Self { program, stdout })
    }

    fn end(mut self) -> anyhow::Result<Reading> {
        self.program.end()?;
        let mut said = String::new();
        self.stdout.read_to_string(&mut said)?;
        let number = |name| number_at(&said, &[name]).unwrap_or(0.0);
        let (handler_ns, handler_runs) = (number("run_ns"), number("runs"));
        Ok(Reading { handler_ns, handler_runs, taken: handler_runs, ..Reading::default() })
    }
}

/// Keeps the kernel's BPF statistics on while the value lives: the kernel switches them off when
/// the process that asked for them ends.
pub struct BpfStatistics(#[expect(dead_code, reason = "held, not used")] EmptyEvent);

impl BpfStatistics {
    /// Switches them on.
    pub fn on(folder: &str) -> anyhow::Result<Self> {
        EmptyEvent::start(folder, "--stats").map(Self)
    }
}

/// An empty program at each switch between threads.
pub struct Switches(EmptyEvent);

impl Switches {
    /// Starts it.
    pub fn start(folder: &str) -> anyhow::Result<Self> {
        EmptyEvent::start(folder, "--switches").map(Self)
    }

    /// Ends it. Returns its runs and their time in ns, which the kernel counts only with BPF
    /// statistics.
    pub fn end(self) -> anyhow::Result<(f64, f64)> {
        let Reading { handler_runs, handler_ns, .. } = self.0.end()?;
        Ok((handler_runs, handler_ns))
    }
}

/// Runs of dcpid's program at switches, and the time of all its programs at tracepoints of the
/// scheduler in ns: only with BPF statistics.
pub fn waits_cost(folder: &str) -> anyhow::Result<(f64, f64)> {
    let said = output(&mut command(&format!("{folder}/empty_event --waits")))?;
    let number = |name| number_at(&said, &[name]).context("empty_event tells no numbers");
    Ok((number("runs")?, number("run_ns")?))
}

/// Samples a process's resident memory every 100 ms while a workload runs.
struct MemoryWatch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<f64>>,
}

impl MemoryWatch {
    fn start(pid: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut seen = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                seen.extend(memory_bytes(pid, "VmRSS"));
                std::thread::sleep(Duration::from_millis(100));
            }
            seen
        });
        Self { stop, thread }
    }

    fn mean(self) -> f64 {
        self.stop.store(true, Ordering::Relaxed);
        let seen = self.thread.join().unwrap_or_default();
        seen.iter().sum::<f64>() / seen.len() as f64
    }
}

/// The observations of a profiler during one run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Counters over the run; those of the empty event are over its life.
    pub during: Reading,
    /// CPU time of the profiler's start, before the run.
    pub start_cpu_s: f64,
    /// CPU time of writing the run's samples to disk after it; dcpid only.
    pub flush_cpu_s: Option<f64>,
    /// Mean resident memory during the run; dcpid only.
    pub rss_mean_bytes: Option<f64>,
    /// Peak of resident memory from start to flush; dcpid only.
    pub rss_peak_bytes: Option<f64>,
    /// Size of the profiler's data on disk.
    pub disk_bytes: Option<f64>,
}

enum Inner {
    Nothing,
    Empty(EmptyEvent),
    Dcpid { program: Program, watch: Option<MemoryWatch> },
    Perf(Program),
}

/// A running profiler.
pub struct Profiler<'a> {
    folder: &'a str,
    inner: Inner,
    before: Reading,
    start_cpu_s: f64,
}

impl<'a> Profiler<'a> {
    /// Starts the profiler of a configuration, and returns when it samples.
    pub fn start(configuration: Configuration, folder: &'a str) -> anyhow::Result<Self> {
        let inner = match configuration {
            Configuration::Nothing => Inner::Nothing,
            Configuration::Empty => {
                Inner::Empty(EmptyEvent::start(folder, &(1_000_000_000 / RATE).to_string())?)
            }
            Configuration::Dcpid => Inner::Dcpid {
                program: start_dcpid(folder, &format!("--event cpu-clock@{RATE}"))?,
                watch: None,
            },
            Configuration::Perf => Inner::Perf(start_perf(folder)?),
        };
        let mut profiler = Self { folder, inner, before: Reading::default(), start_cpu_s: 0.0 };
        profiler.before = profiler.reading()?;
        profiler.start_cpu_s = profiler.before.cpu_s;
        if let Inner::Dcpid { program, watch } = &mut profiler.inner {
            *watch = Some(MemoryWatch::start(program.child.id()));
        }
        Ok(profiler)
    }

    /// Writes the samples so far to disk, and leaves the cost so far out of the run's.
    pub fn settle(&mut self) -> anyhow::Result<()> {
        if matches!(self.inner, Inner::Dcpid { .. }) {
            client(self.folder).ask(&Request::Flush)?;
        }
        self.before = self.reading()?;
        Ok(())
    }

    /// Its process.
    pub fn pid(&self) -> Option<u32> {
        match &self.inner {
            Inner::Nothing => None,
            Inner::Empty(empty) => Some(empty.program.child.id()),
            Inner::Dcpid { program, .. } | Inner::Perf(program) => Some(program.child.id()),
        }
    }

    fn reading(&self) -> anyhow::Result<Reading> {
        match &self.inner {
            Inner::Dcpid { .. } => Ok(reading_of(&client(self.folder).status()?)),
            _ => Ok(Reading {
                cpu_s: self.pid().and_then(process_cpu_s).unwrap_or(0.0),
                ..Reading::default()
            }),
        }
    }

    /// Ends the profiler and returns its cost. Call it right after the workload.
    pub fn end(self) -> anyhow::Result<Seen> {
        let after = self.reading()?;
        let (before, folder) = (self.before, self.folder);
        let during = difference(&before, &after);
        let seen = Seen { during, start_cpu_s: self.start_cpu_s, ..Seen::default() };
        match self.inner {
            Inner::Nothing => Ok(Seen::default()),
            Inner::Empty(empty) => {
                Ok(Seen { during: Reading { cpu_s: during.cpu_s, ..empty.end()? }, ..seen })
            }
            Inner::Perf(mut program) => {
                program.end()?;
                let disk_bytes =
                    Some(size_bytes(Path::new(folder).join("perf.data").as_path()) as f64);
                let taken = perf_samples(
                    &fs::read_to_string(format!("{folder}/perf.log")).unwrap_or_default(),
                );
                Ok(Seen { during: Reading { taken, ..during }, disk_bytes, ..seen })
            }
            Inner::Dcpid { mut program, watch } => {
                let rss_mean_bytes = watch.map(MemoryWatch::mean);
                client(folder).ask(&Request::Flush)?;
                let flushed = reading_of(&client(folder).status()?);
                let rss_peak_bytes = memory_bytes(program.child.id(), "VmHWM");
                program.end()?;
                let disk_bytes = Some(size_bytes(Path::new(folder).join("db").as_path()) as f64);
                let flush_cpu_s = Some(flushed.cpu_s - after.cpu_s);
                Ok(Seen { flush_cpu_s, rss_mean_bytes, rss_peak_bytes, disk_bytes, ..seen })
            }
        }
    }
}

/// Builds programs and copies them, so that another build cannot replace them during a measurement.
pub fn build(folder: &str, programs: &[&str]) -> anyhow::Result<()> {
    let mut cargo = command("cargo build --release -p dcpid -p dcpi");
    must(cargo.args(programs.iter().flat_map(|program| ["--bin", program])))?;
    for program in programs {
        fs::copy(format!("target/release/{program}"), format!("{folder}/{program}"))
            .with_context(|| format!("copying target/release/{program}"))?;
    }
    Ok(())
}

/// The client of the dcpid in `folder`.
pub fn client(folder: &str) -> Client {
    Client::new(format!("{folder}/control.sock"))
}

/// Starts the dcpid in `folder` with these arguments and a database there of its own.
pub fn start_dcpid(folder: &str, arguments: &str) -> anyhow::Result<Program> {
    // A fresh database, so that its size is this run's.
    let _ = fs::remove_dir_all(format!("{folder}/db"));
    let control = format!("{folder}/control.sock");
    let line =
        format!("{folder}/dcpid --db {folder}/db --control {control} --log warn {arguments}");
    start_daemon(&line, &control, &format!("{folder}/dcpid.log"))
}

/// Starts a dcpid by its command line, and waits until it answers at its socket `control`.
pub fn start_daemon(line: &str, control: &str, log: &str) -> anyhow::Result<Program> {
    start_until("dcpid", line, log, || Client::new(control).status().is_ok())
}

/// Starts a program and waits until `is_ready`.
pub fn start_until(
    name: &'static str,
    line: &str,
    log: &str,
    is_ready: impl Fn() -> bool,
) -> anyhow::Result<Program> {
    let mut program = Program::start(name, line, Stdio::null(), log)?;
    let deadline = Instant::now() + START_MAX;
    while !is_ready() {
        if program.ended() || Instant::now() > deadline {
            let said = fs::read_to_string(log).unwrap_or_default();
            bail!("{name} did not start; it said: {}", said.trim());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(program)
}

/// Starts perf's configuration. With -N perf copies no binaries to ~/.debug.
fn start_perf(folder: &str) -> anyhow::Result<Program> {
    let data = format!("{folder}/perf.data");
    let _ = fs::remove_file(&data); // there is none before the first run
    let line = format!("perf record -a -F {RATE} -e cpu-clock -N -o {data}");
    start_recorder(&line, &data, &format!("{folder}/perf.log"))
}

/// Starts a `perf record` and waits until it writes.
fn start_recorder(line: &str, data: &str, log: &str) -> anyhow::Result<Program> {
    let is_writing = || fs::metadata(data).is_ok_and(|file| file.len() > 0);
    let program = start_until("perf", line, log, is_writing)?;
    // perf writes the file's header before it opens its events.
    std::thread::sleep(Duration::from_millis(200));
    Ok(program)
}

/// A `perf record` whose file other parts of the benchmark read.
pub struct Recorder {
    program: Program,
    log: String,
}

impl Recorder {
    /// Starts a `perf record` by its command line, which must write to `data`.
    pub fn start(line: &str, data: &str, log: &str) -> anyhow::Result<Self> {
        let _ = fs::remove_file(data); // there may be none
        Ok(Self { program: start_recorder(line, data, log)?, log: log.to_owned() })
    }

    /// CPU time of the recorder so far.
    pub fn cpu_s(&self) -> f64 {
        process_cpu_s(self.program.child.id()).unwrap_or(0.0)
    }

    /// Ends perf, which completes the file. Returns the number of samples that perf reports.
    pub fn end(mut self) -> anyhow::Result<f64> {
        self.program.end()?;
        Ok(perf_samples(&fs::read_to_string(&self.log).unwrap_or_default()))
    }
}

/// The number before `samples)` in perf's messages; 0 without one.
fn perf_samples(said: &str) -> f64 {
    let count = said.split(" samples)").next().and_then(|words| words.rsplit('(').next());
    count.and_then(|count| count.parse().ok()).unwrap_or(0.0)
}

fn reading_of(status: &Status) -> Reading {
    let edges = status.edges.unwrap_or_default();
    let handler_runs = status.handler.calls as f64;
    Reading {
        // The code store works once for each new image. In a run's fresh database every image is
        // new, so its time is left out.
        cpu_s: status.daemon.cpu_s - status.code_store.map_or(0.0, |store| store.cpu_s),
        edges_cpu_s: edges.cpu_s,
        taken: status.samples.taken as f64,
        misses: status.table.misses as f64,
        places: status.table.places as f64,
        unresolved: status.samples.unresolved() as f64,
        lost: status.samples.lost() as f64,
        handler_ns: status.handler.ns_per_sample.unwrap_or(0.0) * handler_runs,
        handler_runs,
        table_bytes_per_cpu: status.table.bytes_per_cpu as f64,
    }
}

fn difference(before: &Reading, after: &Reading) -> Reading {
    macro_rules! differences {
        ($($field:ident)+) => { Reading { $($field: after.$field - before.$field,)+ ..*after } };
    }
    differences!(cpu_s edges_cpu_s taken misses places unresolved lost handler_ns handler_runs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{CodeStoreStatus, EdgesStatus, HandlerStatus};

    #[test]
    fn perf_says_how_many_samples() {
        assert_eq!(
            perf_samples("[ perf record: Captured and wrote 0.610 MB t.data (10413 samples) ]\n"),
            10413.0
        );
        assert_eq!(perf_samples("perf: no such event"), 0.0);
        assert_eq!(perf_samples(""), 0.0);
    }

    #[test]
    fn a_reading_leaves_out_the_code_store_and_adds_up_reasons() {
        let mut status = Status::default();
        status.daemon.cpu_s = 0.5;
        status.code_store = Some(CodeStoreStatus { cpu_s: 0.125, ..CodeStoreStatus::default() });
        status.samples.unresolved = [("a".to_owned(), 1), ("b".to_owned(), 2)].into();
        status.handler = HandlerStatus { ns_per_sample: Some(50.0), calls: 8 };
        status.edges = Some(EdgesStatus { cpu_s: 4.0, ..EdgesStatus::default() });
        let reading = reading_of(&status);
        assert_eq!((reading.cpu_s, reading.unresolved, reading.handler_ns), (0.375, 3.0, 400.0));
        assert_eq!(reading.edges_cpu_s, 4.0);
    }
}
