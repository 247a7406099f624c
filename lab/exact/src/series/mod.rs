//! Time series of a command: the places of its CPU time, and its events, in the order of time, by
//! perf events from outside the program.
//!
//! The clock is the event `cpu-clock`, which ticks while a thread of the command runs: n ticks are
//! n periods of CPU time, whatever else the machine did meanwhile. Cutting a run by ticks rather
//! than by wall clock keeps preemption out of the records.

mod processes;
mod records;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use events::{DEVICES, Event, EventError, Pmus, Site, parse_cpu_list};
use perf_event::events::Software;
use perf_event::{Builder, SampleFlag, Sampler};

use crate::{Streams, run_beside, set_encoding};
use processes::Processes;
use records::{Recorded, Seen, What};

/// Interval of reading the rings: 40 samples at 4 kHz.
const LOOK: Duration = Duration::from_millis(10);
/// Bytes of a ring: one for each event and CPU. 512 KiB hold 13,000 samples, 3 s at 4 kHz.
const RING_BYTES: usize = 512 << 10;
/// Records of a run at most: 1.5 GiB of memory. A run with more is cut there.
const RECORDS_MAX: usize = 1 << 25;
/// PERF_TYPE_SOFTWARE (linux/perf_event.h).
const SOFTWARE: u32 = 1;
/// Samples per second and CPU of an event whose period is not fixed.
const FREQUENCY: u64 = 1000;

/// The quantities measured in each run.
#[derive(Debug)]
pub struct Plan {
    period_ns: u64,
    events: Vec<(String, Vec<Site>)>,
    cpus: Vec<usize>,
}

/// The place in the code of a tick.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// In this file, at this offset in bytes.
    File(String, u64),
    /// In the kernel.
    Kernel,
    /// In code that is in no file.
    Elsewhere,
}

/// A tick or an event of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// A tick of CPU time, at the place of that number.
    Tick(u32),
    /// Occurrences of the event of that number.
    Event(u32, u64),
}

/// A run of a command.
#[derive(Debug)]
pub struct Captured {
    /// How the command ended.
    pub status: ExitStatus,
    /// Time from start to end.
    pub took: Duration,
    /// The events in the program, in the order of time.
    pub happened: Vec<Happened>,
    /// Places of ticks.
    pub places: Vec<Place>,
    /// Records that were lost, since rings were full or the run was cut.
    pub lost: u64,
    /// Whether a process executed the program.
    pub executed: bool,
}

impl Captured {
    /// Ticks of CPU time of the program.
    #[must_use]
    pub fn ticks(&self) -> usize {
        self.happened.iter().filter(|what| matches!(what, Happened::Tick(_))).count()
    }
}

/// Errors of capturing time series.
#[derive(Debug, thiserror::Error)]
pub enum SeriesError {
    /// The name of an event is not known.
    #[error(transparent)]
    Name(#[from] EventError),
    /// The kernel refuses an event.
    #[error("cannot sample '{event}' of a command: {why}; run as root, or leave the event out")]
    Refused {
        /// The event.
        event: String,
        /// The kernel's reason.
        why: io::Error,
    },
    /// This machine has no such event.
    #[error("this machine has no event '{0}'; leave it out")]
    NoEvent(String),
    /// The command cannot be started.
    #[error("cannot start {0}: {1}; try it without dcpi perturb")]
    NotStarted(String, io::Error),
}

impl Plan {
    /// Ticks each `period_ns` of CPU time, and these events.
    ///
    /// # Errors
    /// [`SeriesError`] where an event is not known or not here.
    pub fn new(period_ns: u64, names: &[String]) -> Result<Self, SeriesError> {
        let pmus = Pmus::read(Path::new(DEVICES));
        let mut events = Vec::new();
        for name in names {
            let event = Event::countable(name)?;
            let everywhere = |encoding| Site { pmu: None, cpus: None, encoding };
            let sites: Vec<Site> = match event.is_software() {
                true => event.encoding().into_iter().map(everywhere).collect(),
                false => pmus.sites(&event)?,
            };
            if sites.is_empty() {
                return Err(SeriesError::NoEvent(name.clone()));
            }
            events.push((event.name, sites));
        }
        let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
        let cpus = parse_cpu_list(online.trim());
        Ok(Self { period_ns, events, cpus })
    }

    /// Names of the events, in the order of [`Happened::Event`]'s numbers.
    pub fn events(&self) -> impl Iterator<Item = &str> {
        self.events.iter().map(|(name, _)| name.as_str())
    }

    /// CPU time of a tick, ns.
    #[must_use]
    pub fn period_ns(&self) -> u64 {
        self.period_ns
    }

    /// Runs a command to its end. What is captured is the program of name `program` with its
    /// children: the command itself, or what an observer runs.
    ///
    /// # Errors
    /// [`SeriesError`] where an event is refused or the command cannot be started.
    pub fn run(
        &self,
        command: &[OsString],
        program: &OsStr,
        streams: Streams,
    ) -> Result<Captured, SeriesError> {
        let samplers = self.open()?;
        let Some((first, arguments)) = command.split_first() else {
            let nothing = io::Error::from(io::ErrorKind::InvalidInput);
            return Err(SeriesError::NotStarted("nothing".to_owned(), nothing));
        };
        let not_started = |why| SeriesError::NotStarted(first.to_string_lossy().into_owned(), why);
        let mut child = Command::new(first);
        streams.give(child.args(arguments));
        let read = |end: &Receiver<()>| read_until(samplers, end);
        let (status, took, rings) = run_beside(&mut child, read).map_err(not_started)?;
        let (happened, places, executed) = Processes::follow(rings.records, program);
        Ok(Captured { status, took, happened, places, lost: rings.lost, executed })
    }

    /// A ring for each event and CPU: events that are inherited have none for all CPUs together
    /// (kernel/events/core.c, `perf_mmap`).
    fn open(&self) -> Result<Vec<(Option<u32>, Sampler)>, SeriesError> {
        let mut samplers = Vec::new();
        for &cpu in &self.cpus {
            let mut clock = builder(cpu);
            clock.attrs_mut().config = 0; // PERF_COUNT_SW_CPU_CLOCK
            clock.sample_period(self.period_ns);
            clock.task(true).comm(true).comm_exec(true).mmap(true).mmap2(true);
            samplers.push((None, sampler(&clock, "cpu-clock")?));
            for (number, (name, sites)) in (0_u32..).zip(&self.events) {
                let Some(site) = sites.iter().find(|site| site.has(cpu)) else { continue };
                let encoding = site.encoding;
                let mut event = builder(cpu);
                set_encoding(&mut event, encoding);
                match encoding.kind == SOFTWARE {
                    true => event.sample_period(1),
                    false => event.sample_frequency(FREQUENCY),
                };
                samplers.push((Some(number), sampler(&event, name)?));
            }
        }
        Ok(samplers)
    }
}

/// An event of the thread that opens it, for the programs that its children execute, on one CPU.
fn builder(cpu: usize) -> Builder<'static> {
    let mut builder = Builder::new(Software::CPU_CLOCK);
    builder.observe_self().one_cpu(cpu).enabled(false).inherit(true).enable_on_exec(true);
    builder.include_kernel().sample_id_all(true).wakeup_watermark(RING_BYTES / 2);
    // The flags that `records::parse` expects; later flags are added to earlier ones.
    builder.sample(SampleFlag::IP | SampleFlag::TID | SampleFlag::TIME | SampleFlag::PERIOD);
    builder
}

fn sampler(builder: &Builder<'_>, event: &str) -> Result<Sampler, SeriesError> {
    let opened = builder.build().and_then(|counter| counter.sampled(RING_BYTES));
    opened.map_err(|why| SeriesError::Refused { event: event.to_owned(), why })
}

/// The content of the rings.
#[derive(Default)]
struct Rings {
    records: Vec<Seen>,
    lost: u64,
}

/// Reads the rings until the command has ended.
fn read_until(mut samplers: Vec<(Option<u32>, Sampler)>, end: &Receiver<()>) -> Rings {
    let mut rings = Rings::default();
    loop {
        let over = end.recv_timeout(LOOK) != Err(RecvTimeoutError::Timeout);
        for (event, sampler) in &mut samplers {
            while let Some(record) = sampler.next_record() {
                let of = records::parse(record.ty(), record.misc(), &record.to_contiguous());
                rings.add(*event, of);
            }
        }
        if over {
            rings.records.sort_by_key(|seen| seen.time_ns);
            return rings;
        }
    }
}

impl Rings {
    fn add(&mut self, event: Option<u32>, record: Option<Recorded>) {
        match record {
            Some(Recorded::Seen(mut seen)) => {
                // Samples of all events look the same; the ring identifies the event.
                if let (Some(event), What::Tick(_, period)) = (event, &seen.what) {
                    seen.what = What::Event(event, *period);
                }
                self.push(seen);
            }
            Some(Recorded::Lost(records)) => self.lost = self.lost.saturating_add(records),
            None => {}
        }
    }

    fn push(&mut self, seen: Seen) {
        if self.records.len() < RECORDS_MAX {
            self.records.push(seen);
        } else {
            self.lost += 1;
        }
    }
}

/// Numbers of places, each once.
#[derive(Default)]
struct Places {
    numbers: HashMap<Place, u32>,
    places: Vec<Place>,
}

impl Places {
    fn number(&mut self, place: Place) -> u32 {
        if let Some(number) = self.numbers.get(&place) {
            return *number;
        }
        let number = u32::try_from(self.places.len()).unwrap_or(u32::MAX);
        self.numbers.insert(place.clone(), number);
        self.places.push(place);
        number
    }
}
