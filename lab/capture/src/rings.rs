//! Opens perf events and reads the rings that they write to.
//!
//! There is one ring for each CPU: a ring of one event of all CPUs cannot be mapped where children
//! inherit the event (perf_mmap, kernel/events/core.c). A dummy event owns it, which also reports
//! threads and their switches. All other events of that CPU write to the same ring
//! (PERF_EVENT_IOC_SET_OUTPUT), so that a CPU's records are in one order.
//!
//! When the kernel switches between a process and its child, whose events are the same, it
//! exchanges their events instead of changing them (perf_event_context_sched_out). Probes then
//! belong to the wrong process: once the child has ended, the kernel removes the probes of the
//! parent (uprobe_perf_func, kernel/trace/trace_uprobe.c, 6.18). Inherited events whose samples
//! have READ are never exchanged (Linux 6.13), so the dummy event, which makes no samples, asks for
//! it.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::AsRawFd as _;

use perf_event::events::{Event, Software, Tracepoint};
use perf_event::{Builder, Clock, Counter, ReadFormat, SampleFlag, Sampler};

use crate::TraceError;
use crate::records::{self, Record};

nix::ioctl_write_int_bad!(perf_event_ioc_set_output, nix::request_code_none!(b'$', 5));

/// ESRCH, EACCES, EPERM, EMFILE (errno(3), the same on all of Linux's architectures here).
const ESRCH: i32 = 3;
const EACCES: i32 = 13;
const EPERM: i32 = 1;
const EMFILE: i32 = 24;

/// A tracepoint whose events are captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// The tracepoint's number.
    pub(crate) id: u64,
    /// Whether the tracepoint's own record is captured, beside time and thread.
    pub(crate) has_record: bool,
}

/// The processes whose events are captured. Threads and processes that they start are included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    /// Programs that children of the calling thread execute.
    Children,
    /// Threads that run already.
    Threads(Vec<u32>),
}

/// Rings of all CPUs, and the events that write to them.
pub(crate) struct Rings {
    cpus: Vec<CpuRing>,
    /// Index of an event's source, by the id in its records.
    by_id: HashMap<u64, usize>,
    abilities: Abilities,
}

/// The features of the kernel.
#[derive(Clone, Copy, Debug)]
struct Abilities {
    /// Counts lost records for each event: PERF_FORMAT_LOST, Linux 6.0.
    counts_lost: bool,
    /// Does not exchange the events of parent and child (see the module's documentation): Linux
    /// 6.13.
    keeps_apart: bool,
}

/// The ring of a CPU.
struct CpuRing {
    ring: Sampler,
    /// Dummy events of threads after the first.
    dummies: Vec<Counter>,
    /// Events, with the index of their source.
    events: Vec<(usize, Counter)>,
}

impl Rings {
    /// Opens rings of `ring_bytes` (rounded up to pages, a power of two) and, disabled, the events
    /// of all sources. Events of children are enabled when the child executes a program.
    pub(crate) fn open(
        watched: &Watched,
        sources: &[Source],
        switches: bool,
        ring_bytes: usize,
    ) -> Result<Self, TraceError> {
        let list = fs::read_to_string("/sys/devices/system/cpu/online");
        let list = list.map_err(|error| TraceError::new("cannot list the CPUs", &error))?;
        let abilities = abilities()?;
        let mut rings = Self { cpus: Vec::new(), by_id: HashMap::new(), abilities };
        for cpu in parse_cpus(list.trim()) {
            let open = Opening { watched, cpu, abilities };
            let Some(mut of_cpu) = open.ring(switches, ring_bytes)? else {
                return Err(TraceError::Refused(
                    "the process has ended; nothing was traced".into(),
                ));
            };
            for (index, source) in sources.iter().enumerate() {
                for counter in open.events(source)? {
                    rings.by_id.insert(counter.id(), index);
                    redirect(&counter, &of_cpu.ring)?;
                    of_cpu.events.push((index, counter));
                }
            }
            rings.cpus.push(of_cpu);
        }
        Ok(rings)
    }

    /// Enables all events: those of threads that run already.
    pub(crate) fn enable(&mut self) -> Result<(), TraceError> {
        let failed = |error: io::Error| TraceError::new("cannot enable the events", &error);
        for cpu in &mut self.cpus {
            cpu.ring.as_counter_mut().enable().map_err(failed)?;
            let events = cpu.events.iter_mut().map(|(_, counter)| counter);
            for counter in cpu.dummies.iter_mut().chain(events) {
                counter.enable().map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Disables all events, so that no further record comes.
    pub(crate) fn disable(&mut self) {
        for cpu in &mut self.cpus {
            let events = cpu.events.iter_mut().map(|(_, counter)| counter);
            for counter in cpu.dummies.iter_mut().chain(events) {
                // Fails for a thread that has ended.
                let _ = counter.disable();
            }
            let _ = cpu.ring.as_counter_mut().disable();
        }
    }

    /// Moves every record that is in the rings now to `into`, CPU by CPU.
    pub(crate) fn read(&mut self, into: &mut Vec<Record>) {
        for cpu in &mut self.cpus {
            while let Some(record) = cpu.ring.next_record() {
                into.extend(records::parse(record.ty(), record.misc(), &record.to_contiguous()));
            }
        }
    }

    /// Whether a parent keeps its probes when its child ends.
    pub(crate) fn keeps_processes_apart(&self) -> bool {
        self.abilities.keeps_apart
    }

    /// Index of the source of the records with this id.
    pub(crate) fn source(&self, id: u64) -> Option<usize> {
        self.by_id.get(&id).copied()
    }

    /// Records that each source lost because a ring was full, by its index; None where the kernel
    /// does not count them for each event (before Linux 6.0). The last one is of records of threads
    /// and switches.
    pub(crate) fn lost(&mut self, sources: usize) -> Option<Vec<u64>> {
        let mut lost = vec![0_u64; sources + 1];
        let mut add = |index: usize, counter: &mut Counter| {
            let of_event = counter.read_full().ok()?.lost()?;
            let sum = lost.get_mut(index)?;
            *sum = sum.saturating_add(of_event);
            Some(())
        };
        for cpu in &mut self.cpus {
            add(sources, cpu.ring.as_counter_mut())?;
            for counter in &mut cpu.dummies {
                add(sources, counter)?;
            }
            for (index, counter) in &mut cpu.events {
                add(*index, counter)?;
            }
        }
        Some(lost)
    }
}

/// Parameters of the events of one CPU.
struct Opening<'a> {
    watched: &'a Watched,
    cpu: usize,
    abilities: Abilities,
}

impl Opening<'_> {
    /// The ring; None where no thread is left.
    fn ring(&self, switches: bool, ring_bytes: usize) -> Result<Option<CpuRing>, TraceError> {
        let mut of_cpu: Option<CpuRing> = None;
        for thread in self.threads() {
            let mut builder = self.builder(Software::DUMMY, thread);
            builder.comm(true).task(true).context_switch(switches);
            if self.abilities.keeps_apart {
                builder.sample(SampleFlag::READ);
            }
            let Some(counter) = build(&builder, thread)? else { continue };
            match &mut of_cpu {
                Some(of_cpu) => {
                    redirect(&counter, &of_cpu.ring)?;
                    of_cpu.dummies.push(counter);
                }
                None => {
                    let mapped = counter.sampled(ring_bytes);
                    let ring = mapped.map_err(|error| {
                        TraceError::new(&format!("cannot map a ring of {ring_bytes} bytes"), &error)
                    })?;
                    of_cpu = Some(CpuRing { ring, dummies: Vec::new(), events: Vec::new() });
                }
            }
        }
        Ok(of_cpu)
    }

    /// The events of a source, one for each thread that is watched.
    fn events(&self, source: &Source) -> Result<Vec<Counter>, TraceError> {
        let mut counters = Vec::new();
        for thread in self.threads() {
            let mut builder = self.builder(Tracepoint::with_id(source.id), thread);
            if source.has_record {
                builder.sample(SampleFlag::RAW);
            }
            counters.extend(build(&builder, thread)?);
        }
        Ok(counters)
    }

    /// Threads by number; None: the calling one, for its children.
    fn threads(&self) -> Vec<Option<u32>> {
        match self.watched {
            Watched::Children => vec![None],
            Watched::Threads(threads) => threads.iter().copied().map(Some).collect(),
        }
    }

    fn builder(&self, event: impl Event, thread: Option<u32>) -> Builder<'static> {
        let mut builder = Builder::new(event);
        match thread.and_then(|thread| i32::try_from(thread).ok()) {
            Some(thread) => builder.observe_pid(thread),
            None => builder.observe_self().enable_on_exec(true),
        };
        builder.one_cpu(self.cpu).inherit(true).enabled(false).include_kernel().include_hv();
        // Each occurrence is a record.
        builder.sample_period(1).sample_id_all(true).clockid(Clock::MONOTONIC);
        builder
            .sample(SampleFlag::IDENTIFIER | SampleFlag::TID | SampleFlag::TIME | SampleFlag::CPU);
        if self.abilities.counts_lost {
            builder.read_format(ReadFormat::LOST);
        }
        builder
    }
}

fn abilities() -> Result<Abilities, TraceError> {
    let dummy = || {
        let mut builder = Builder::new(Software::DUMMY);
        builder.exclude_kernel(true).exclude_hv(true).inherit(true);
        builder
    };
    if let Err(error) = dummy().build() {
        return Err(refusal(&error));
    }
    let counts_lost = dummy().read_format(ReadFormat::LOST).build().is_ok();
    let sampled = SampleFlag::READ | SampleFlag::TID;
    let keeps_apart = dummy().sample(sampled).sample_period(1).build().is_ok();
    Ok(Abilities { counts_lost, keeps_apart })
}

/// Opens an event; None where its thread has ended.
fn build(builder: &Builder<'_>, thread: Option<u32>) -> Result<Option<Counter>, TraceError> {
    match builder.build() {
        Ok(counter) => Ok(Some(counter)),
        Err(error) if thread.is_some() && error.raw_os_error() == Some(ESRCH) => Ok(None),
        Err(error) => Err(refusal(&error)),
    }
}

/// The error of an event that the kernel refuses.
fn refusal(error: &io::Error) -> TraceError {
    TraceError::Refused(match error.raw_os_error() {
        Some(EACCES | EPERM) => {
            "the kernel lets only root trace (or a program with CAP_PERFMON); run dcpi trace as root"
                .to_owned()
        }
        Some(EMFILE) => {
            "there are more events than this process may have open files: each probe takes one for \
             each CPU and thread, two with returns; probe fewer places, or raise the limit: \
             ulimit -n 65536"
                .to_owned()
        }
        _ => format!("the kernel refuses the events of threads: {error}"),
    })
}

/// Sends the records of an event to a ring of its CPU.
fn redirect(counter: &Counter, ring: &Sampler) -> Result<(), TraceError> {
    // SAFETY: both descriptors are open perf events'. The kernel checks that they are of one CPU
    // and one clock, and neither reads nor writes memory of this process.
    let set =
        unsafe { perf_event_ioc_set_output(counter.as_raw_fd(), ring.as_counter().as_raw_fd()) };
    let failed =
        |errno| TraceError::new("cannot bring events into one ring", &io::Error::from(errno));
    set.map(|_| ()).map_err(failed)
}

/// CPUs of a list of the kernel's, such as `0-3,8`.
fn parse_cpus(list: &str) -> Vec<usize> {
    let range = |part: &str| -> Option<std::ops::RangeInclusive<usize>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse::<usize>().ok()?.min(8191))
    };
    list.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        assert_eq!(parse_cpus("0-2,8,10-11"), [0, 1, 2, 8, 10, 11]);
        assert_eq!(parse_cpus("0"), [0]);
        assert!(parse_cpus("").is_empty());
    }

    #[test]
    fn refusals_are_one_line_with_the_next_step() {
        for errno in [ESRCH, EACCES, EPERM, EMFILE] {
            let error = refusal(&io::Error::from_raw_os_error(errno));
            let said = error.to_string();
            assert!(!said.contains('\n') && !said.contains("  "), "{said}");
        }
    }
}
