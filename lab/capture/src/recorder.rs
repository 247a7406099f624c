//! Runs a command, or attaches to a process, and writes the events of its threads as a trace.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use trace::event::Cpu;
use trace::summary::Summary;
use trace::{
    Cost, Event, EventKind, Facts, Lost, Name, NameId, NameKind, Sampled, Thread, ThreadId, Writer,
    Written,
};

use crate::TraceError;
use crate::names::Names;
use crate::ordering::Waiting;
use crate::probes::Probes;
use crate::records::{Record, RecordKind};
use crate::rings::{Rings, Source, Watched};
use crate::sites::Site;
use crate::threads::Threads;
use crate::tracefs::{Tracefs, Tracepoint};
use crate::untraced::Runs;

/// Default size of a CPU's ring in bytes: 100,000 calls, a tenth of a second at the highest rate of
/// uprobes (1 us each).
pub const RING_BYTES: usize = 4 << 20;
/// Smallest (a page) and largest size of a CPU's ring in bytes.
pub const RING_BYTES_RANGE: (usize, usize) = (4 << 10, 1 << 30);
/// Time between two readings of the rings.
const PAUSE: Duration = Duration::from_millis(10);
/// Records of one reading above which the next reading follows at once.
const MANY_RECORDS: usize = 10_000;
/// Interval at which all events are written to the file, so that they survive a killed tracer.
const FLUSHED_EVERY: Duration = Duration::from_secs(1);
/// Largest time in ns between the two records of one wake, one among the waker's events and one
/// among the woken thread's.
const SAME_WAKE_NS: u64 = 10_000;

/// The events to trace.
#[derive(Clone, Debug)]
pub struct Options {
    /// Places to probe.
    pub sites: Vec<Site>,
    /// Whether system calls are traced.
    pub syscalls: bool,
    /// Whether switches and wakes are traced.
    pub sched: bool,
    /// The part of the calls that is kept; None: all.
    pub sampled: Option<Sampled>,
    /// Bytes of each CPU's ring, within [`RING_BYTES_RANGE`].
    pub ring_bytes: usize,
    /// Time after which tracing ends; None: with the command or process.
    pub duration: Option<Duration>,
    /// Sentences to keep with the trace.
    pub notes: Vec<String>,
    /// The costs of events, to be stored with the trace.
    pub costs: Vec<Cost>,
    /// Number of runs of a command without events, half before and half after the traced run. If it
    /// is not 0, no run has an input.
    pub untraced_runs: u32,
}

/// The processes to trace.
#[derive(Clone, Debug)]
pub enum Target {
    /// A command, with its children.
    Command(Vec<OsString>),
    /// A process that runs already, with the threads and processes that it begins.
    Process(u32),
}

/// A run that was traced.
#[derive(Debug)]
pub struct Captured {
    /// How the command ended; None for a process.
    pub status: Option<ExitStatus>,
    /// The result of writing.
    pub written: Written,
    /// The trace's facts, with what was lost.
    pub facts: Facts,
    /// Sums of the events.
    pub summary: Summary,
    /// Names by number.
    pub names: Vec<Name>,
    /// Threads by number.
    pub threads: Vec<Thread>,
}

/// Receives events as they arrive, in the order of time.
pub type Follower<'a> = &'a mut dyn FnMut(&Event, &Name, &Thread) -> io::Result<()>;

/// Traces until the command or process ends, the time is over, or `stop` returns true; its argument
/// is whether tracing has begun. Then waits for the command's end.
///
/// # Errors
/// [`TraceError`]. A command that was started has ended then, too.
pub fn run<W: Write>(
    options: &Options,
    target: &Target,
    out: W,
    follower: Option<Follower<'_>>,
    stop: &dyn Fn(bool) -> bool,
) -> Result<Captured, TraceError> {
    let tracefs = tracefs(options)?;
    // Dropped after the rings: a probe that is in use cannot be removed.
    let mut probes = match (&tracefs, options.sites.is_empty()) {
        (Some(tracefs), false) => Some(Probes::new(tracefs)?),
        _ => None,
    };
    let (sources, meanings) = sources(options, tracefs.as_ref(), probes.as_mut(), stop)?;
    let watched = match target {
        Target::Command(_) => Watched::Children,
        Target::Process(pid) => Watched::Threads(threads_of(*pid)?),
    };
    let open = || Rings::open(&watched, &sources, options.sched, options.ring_bytes);
    if options.untraced_runs > 0 {
        // A refusal has to come before the first run, and runs without events have no rings.
        drop(open()?);
    }
    let untraced = Runs::begin(options.untraced_runs, target, &|| stop(false))?;
    let mut rings = open()?;
    if stop(false) {
        return Err(TraceError::Stopped);
    }
    let mut facts = begin_facts(options, target);
    if !options.sites.is_empty() && !rings.keeps_processes_apart() {
        facts.notes.push(
            "before Linux 6.13 the kernel may remove the probes of a process when a child of it \
             ends: calls after that are missing"
                .to_owned(),
        );
    }
    // Before anything is written, so that a command that cannot start does not overwrite a trace.
    let mut child = match target {
        Target::Command(words) => Some(start(words, untraced.is_none())?),
        Target::Process(_) => {
            rings.enable()?;
            None
        }
    };
    let mut writer = Writer::new(out, &facts).map_err(TraceError::Output)?;
    let mut names = Names::default();
    let names_of_sources = meanings.iter().map(|meaning| match meaning {
        Meaning::Site(_, name) => names.number(name, &mut writer),
        Meaning::Tracepoint(..) => NameId(0),
    });
    let names_of_sources = names_of_sources.collect();
    let mut capture = Capture {
        writer,
        tracefs: tracefs.as_ref(),
        follower,
        sampled: options.sampled,
        meanings,
        names_of_sources,
        names,
        threads: Threads::default(),
        summary: Summary::default(),
        last_wake: None,
        unnamed_lost: 0,
        threads_lost: 0,
    };
    let until = Until { process: target, duration: options.duration, stop };
    let traced = capture.follow_rings(&mut rings, &mut child, &until);
    let lost = rings.lost(capture.meanings.len());
    drop(rings);
    // After any error, the command continues and ends by itself.
    let status = child.map(|mut child| child.wait()).transpose().map_err(TraceError::Output)?;
    traced?;
    if let Some(runs) = untraced {
        // The remaining runs take time, in which the tracer may be killed.
        capture.writer.flush().map_err(TraceError::Output)?;
        runs.end((status, capture.threads.living()), &|| stop(false), &mut facts);
    }
    capture.finish(facts, lost, status)
}

/// Opens tracefs if any option needs it.
fn tracefs(options: &Options) -> Result<Option<Tracefs>, TraceError> {
    if options.sites.is_empty() && !options.syscalls && !options.sched {
        return Ok(None);
    }
    Tracefs::open().map(Some).map_err(unavailable)
}

fn unavailable(error: io::Error) -> TraceError {
    match error.raw_os_error() {
        // EPERM, EACCES
        Some(1 | 13) => TraceError::Refused(
            "the kernel's tracepoints and probes are root's; run dcpi trace as root".to_owned(),
        ),
        _ => TraceError::new(
            "the kernel's tracepoints cannot be read (CONFIG_FTRACE_SYSCALLS, tracefs)",
            &error,
        ),
    }
}

/// The sources of the options' events, and their meanings, in the same order.
fn sources(
    options: &Options,
    tracefs: Option<&Tracefs>,
    probes: Option<&mut Probes<'_>>,
    stop: &dyn Fn(bool) -> bool,
) -> Result<(Vec<Source>, Vec<Meaning>), TraceError> {
    let (mut sources, mut meanings) = (Vec::new(), Vec::new());
    if let Some(probes) = probes {
        for site in &options.sites {
            let kind = match site.name.kind {
                NameKind::Procedure => EventKind::Enter,
                _ => EventKind::Instant,
            };
            let mut define = |is_return: bool, kind: EventKind| {
                if stop(false) {
                    return Err(TraceError::Stopped);
                }
                let id = probes.define(&site.path, site.offset, is_return)?;
                sources.push(Source { id, has_record: false });
                meanings.push(Meaning::Site(kind, site.name.clone()));
                Ok::<(), TraceError>(())
            };
            define(false, kind)?;
            if site.has_return {
                define(true, EventKind::Exit)?;
            }
        }
    }
    let mut tracepoints = Vec::new();
    if options.syscalls {
        tracepoints.push(("raw_syscalls/sys_enter", EventKind::SyscallEnter));
        tracepoints.push(("raw_syscalls/sys_exit", EventKind::SyscallExit));
    }
    if options.sched {
        // Not sched_wakeup: it may be reported by the woken thread's CPU while another thread runs
        // there. sched_waking is reported by the waker (kernel/sched/core.c, try_to_wake_up).
        tracepoints.push(("sched/sched_waking", EventKind::Wake));
    }
    for (name, kind) in tracepoints {
        let Some(tracefs) = tracefs else { break };
        let tracepoint = tracefs.tracepoint(name).map_err(unavailable)?;
        sources.push(Source { id: tracepoint.id, has_record: true });
        meanings.push(Meaning::Tracepoint(kind, tracepoint));
    }
    Ok((sources, meanings))
}

/// The meaning of a source's events.
#[derive(Clone, Debug)]
enum Meaning {
    Site(EventKind, Name),
    Tracepoint(EventKind, Tracepoint),
}

impl Meaning {
    /// The name under which lost events are reported.
    fn lost_name(&self) -> String {
        match self {
            Self::Site(EventKind::Exit, name) => format!("{}, returns", name.text),
            Self::Site(_, name) => name.text.clone(),
            Self::Tracepoint(kind, _) => kind.word().to_owned(),
        }
    }
}

/// The threads of a process.
fn threads_of(pid: u32) -> Result<Vec<u32>, TraceError> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).map_err(|_| {
        TraceError::Refused(format!("there is no process {pid}; see ps for those that run"))
    })?;
    let tasks = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok());
    // The main thread first: its event owns the ring.
    Ok(tasks.collect::<BTreeSet<u32>>().into_iter().collect())
}

fn start(words: &[OsString], has_input: bool) -> Result<Child, TraceError> {
    let Some((program, arguments)) = words.split_first() else {
        return Err(TraceError::Refused("no command follows --; name one".into()));
    };
    let mut command = Command::new(program);
    command.args(arguments).stdin(if has_input { Stdio::inherit() } else { Stdio::null() });
    command.spawn().map_err(|error| not_started(program, &error))
}

/// The error of a program that cannot be started.
pub(crate) fn not_started(program: &OsStr, error: &io::Error) -> TraceError {
    let program = Path::new(program).display();
    TraceError::Refused(format!("cannot start {program}: {error}; run it alone to see why"))
}

/// Whether a system call is the kernel's own: on x86-64, returns and entries that are probed call
/// into the kernel by system calls (uretprobe since Linux 6.11, uprobe since 6.18). Their ends have
/// the number -1.
fn is_of_uprobes(number: u64) -> bool {
    const URETPROBE: u64 = 335;
    const UPROBE: u64 = 336;
    let is_entry = cfg!(target_arch = "x86_64") && [URETPROBE, UPROBE].contains(&number);
    is_entry || number == u64::MAX
}

fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let (seconds, nanoseconds) = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
    seconds.unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(nanoseconds.unwrap_or(0))
}

fn begin_facts(options: &Options, target: &Target) -> Facts {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let command = match target {
        Target::Command(words) => {
            words.iter().map(|word| word.to_string_lossy().into_owned()).collect()
        }
        Target::Process(pid) => process_command(*pid),
    };
    Facts {
        command,
        host: host.trim_end().to_owned(),
        clock: "CLOCK_MONOTONIC".into(),
        begun_ns: monotonic_ns(),
        begun_unix_ns: u64::try_from(unix.as_nanos()).unwrap_or(0),
        source: "dcpi trace".into(),
        sampled: options.sampled,
        notes: options.notes.clone(),
        costs: options.costs.clone(),
        ..Facts::default()
    }
}

fn process_command(pid: u32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = line.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// The conditions that end tracing.
struct Until<'a> {
    process: &'a Target,
    duration: Option<Duration>,
    stop: &'a dyn Fn(bool) -> bool,
}

impl Until<'_> {
    fn is_over(&self, child: &mut Option<Child>, begun: Instant) -> bool {
        let has_ended = match (child, self.process) {
            // An error means that the child is gone.
            (Some(child), _) => !matches!(child.try_wait(), Ok(None)),
            (None, Target::Process(pid)) => !Path::new(&format!("/proc/{pid}")).exists(),
            (None, Target::Command(_)) => true,
        };
        let time_is_over = self.duration.is_some_and(|duration| begun.elapsed() >= duration);
        has_ended || time_is_over || (self.stop)(true)
    }
}

/// A trace that is being captured.
struct Capture<'f, 't, W: Write> {
    writer: Writer<W>,
    tracefs: Option<&'t Tracefs>,
    follower: Option<Follower<'f>>,
    sampled: Option<Sampled>,
    meanings: Vec<Meaning>,
    /// The name of each source that is a site.
    names_of_sources: Vec<NameId>,
    names: Names,
    threads: Threads,
    summary: Summary,
    /// CPU, waker, woken thread, and time of the last wake.
    last_wake: Option<(u32, u32, u64, u64)>,
    /// Records that the rings lost, of any event: for kernels that do not count them by event.
    unnamed_lost: u64,
    /// Events of threads above the limit of a trace.
    threads_lost: u64,
}

impl<W: Write> Capture<'_, '_, W> {
    fn follow_rings(
        &mut self,
        rings: &mut Rings,
        child: &mut Option<Child>,
        until: &Until<'_>,
    ) -> Result<(), TraceError> {
        let (begun, mut flushed) = (Instant::now(), Instant::now());
        let mut waiting = Waiting::default();
        loop {
            // Before the reading, so that the rings hold all events up to the command's end.
            let is_over = until.is_over(child, begun);
            if is_over {
                rings.disable();
            }
            let read_ns = monotonic_ns();
            rings.read(waiting.inbox());
            let records = waiting.take((!is_over).then_some(read_ns));
            let count = records.len();
            for record in records {
                self.take(record, rings).map_err(TraceError::Output)?;
            }
            if is_over {
                return Ok(());
            }
            if flushed.elapsed() >= FLUSHED_EVERY {
                self.writer.flush().map_err(TraceError::Output)?;
                flushed = Instant::now();
            }
            if count < MANY_RECORDS {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Adds a record. Records come in the order of time.
    fn take(&mut self, record: Record, rings: &Rings) -> io::Result<()> {
        let who = (record.pid, record.tid);
        // The kernel's idle thread belongs to no process.
        if record.tid == 0 && !matches!(record.kind, RecordKind::Lost { .. }) {
            return Ok(());
        }
        let at = (record.time_ns, record.cpu);
        match record.kind {
            RecordKind::Sample { id, raw } => {
                let Some(source) = rings.source(id) else { return Ok(()) };
                self.sample(source, &raw, who, at)
            }
            RecordKind::Comm(command) => {
                let Some(id) = self.thread(who, Some(&command)) else { return Ok(()) };
                let (pid, tid) = who;
                self.writer.set_thread(id, Thread { pid, tid, command });
                Ok(())
            }
            RecordKind::Fork { pid, tid } => {
                let parent = self.threads.known(who.1);
                let parent = parent.and_then(|id| self.writer.known_thread(id));
                let command = parent.map(|thread| thread.command.clone());
                self.threads.end(tid); // whose end was lost
                if self.thread((pid, tid), command.as_deref()).is_none() {
                    return Ok(());
                }
                let argument = u64::from(who.1);
                self.scheduling(EventKind::ThreadStart, argument, (pid, tid), at)
            }
            RecordKind::Exit => {
                self.scheduling(EventKind::ThreadEnd, 0, who, at)?;
                self.threads.end(who.1);
                Ok(())
            }
            RecordKind::SwitchOut { preempted } => {
                self.scheduling(EventKind::SwitchOut, u64::from(preempted), who, at)
            }
            RecordKind::SwitchIn => self.scheduling(EventKind::SwitchIn, 0, who, at),
            RecordKind::Lost { records } => {
                self.unnamed_lost = self.unnamed_lost.saturating_add(records);
                Ok(())
            }
        }
    }

    fn thread(&mut self, who: (u32, u32), command: Option<&str>) -> Option<ThreadId> {
        let living = self.threads.get(who, command, &mut self.writer);
        self.threads_lost += u64::from(living.is_none());
        living.map(|living| living.id)
    }

    fn sample(
        &mut self,
        source: usize,
        raw: &[u8],
        who: (u32, u32),
        at: (u64, u32),
    ) -> io::Result<()> {
        let (kind, tracepoint) = match self.meanings.get(source) {
            Some(Meaning::Site(kind, _)) => {
                let name = self.names_of_sources.get(source).copied().unwrap_or_default();
                return self.event(*kind, name, 0, who, at);
            }
            Some(Meaning::Tracepoint(kind, tracepoint)) => (*kind, tracepoint),
            None => return Ok(()),
        };
        let field = |name: &str| tracepoint.number(name, raw);
        match kind {
            EventKind::SyscallEnter | EventKind::SyscallExit => {
                let is_enter = kind == EventKind::SyscallEnter;
                let argument = if is_enter { field("args") } else { field("ret") };
                let Some(number) = field("id").filter(|number| !is_of_uprobes(*number)) else {
                    return Ok(());
                };
                let (name, is_int) = self.names.syscall(number, self.tracefs, &mut self.writer);
                let argument = argument.unwrap_or_default();
                let argument = match is_enter && is_int {
                    true => i64::from(argument as i32).cast_unsigned(),
                    false => argument,
                };
                self.event(kind, name, argument, who, at)
            }
            _ => {
                let Some(woken) = field("pid") else { return Ok(()) };
                let this = (at.1, who.1, woken, at.0);
                let is_same = self.last_wake.replace(this).is_some_and(|last| {
                    (last.0, last.1, last.2) == (this.0, this.1, this.2)
                        && this.3.saturating_sub(last.3) < SAME_WAKE_NS
                });
                if is_same {
                    return Ok(());
                }
                self.scheduling(kind, woken, who, at)
            }
        }
    }

    /// An event of the scheduler.
    fn scheduling(
        &mut self,
        kind: EventKind,
        argument: u64,
        who: (u32, u32),
        at: (u64, u32),
    ) -> io::Result<()> {
        let text = match kind {
            EventKind::ThreadStart | EventKind::ThreadEnd => "thread",
            EventKind::Wake => "wake",
            _ => "switch",
        };
        let name = Name::new(NameKind::Sched, text);
        let name = self.names.number(&name, &mut self.writer);
        self.event(kind, name, argument, who, at)
    }

    fn event(
        &mut self,
        kind: EventKind,
        name: NameId,
        argument: u64,
        who: (u32, u32),
        (time_ns, cpu): (u64, u32),
    ) -> io::Result<()> {
        let Some(living) = self.threads.get(who, None, &mut self.writer) else {
            self.threads_lost += 1;
            return Ok(());
        };
        if let Some(sampled) = self.sampled
            && !living.choice.keeps(sampled, kind, name)
        {
            return Ok(());
        }
        let thread = living.id;
        let event = Event { time_ns, argument, thread, name, cpu: Cpu::new(cpu), kind };
        self.summary.take(&event, time_ns);
        self.writer.event(&event)?;
        let known = self.writer.known_thread(thread).zip(self.names.list.get(name.0 as usize));
        match (&mut self.follower, known) {
            (Some(follow), Some((thread, name))) => follow(&event, name, thread),
            _ => Ok(()),
        }
    }

    fn finish(
        self,
        mut facts: Facts,
        lost: Option<Vec<u64>>,
        status: Option<ExitStatus>,
    ) -> Result<Captured, TraceError> {
        facts.ended_ns = monotonic_ns();
        let mut add = |name: String, reason: &str, events: u64| {
            if events > 0 {
                facts.lost.push(Lost { name, reason: reason.to_owned(), events });
            }
        };
        match lost {
            Some(lost) => {
                let names = self.meanings.iter().map(Meaning::lost_name);
                let names = names.chain(["threads and switches".to_owned()]);
                names.zip(lost).for_each(|(name, events)| add(name, "ring_full", events));
            }
            // Before Linux 6.0 the kernel does not report which events were lost.
            None => add("events of any name".to_owned(), "ring_full", self.unnamed_lost),
        }
        add("events of further threads".to_owned(), "too_many_threads", self.threads_lost);
        let threads = (0..).map_while(|id| self.writer.known_thread(ThreadId(id)).cloned());
        let threads = threads.collect();
        let (written, _) = self.writer.finish(&facts).map_err(TraceError::Output)?;
        let (summary, names) = (self.summary, self.names.list);
        Ok(Captured { status, written, facts, summary, names, threads })
    }
}
