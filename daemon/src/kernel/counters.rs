//! The counters: one perf event per event and CPU, each with the sampler attached.

use super::KernelError;
use crate::event::{Event, EventSpec, PlannedEvent, Unit};
use abi::EVENTS_MAX;
use perf_event::events::Software;
use perf_event::{Builder, Clock, Counter, SampleFlag};
use std::io;
use std::os::fd::{AsRawFd, RawFd};

nix::ioctl_write_ptr!(perf_event_ioc_period, b'$', 4, u64);
nix::ioctl_write_int_bad!(perf_event_ioc_set_output, nix::request_code_none!(b'$', 5));

/// What records carry besides their own fields, the same for all events that share a ring.
pub const RECORD_FIELDS: SampleFlag = SampleFlag::TID.union(SampleFlag::TIME).union(SampleFlag::CPU);

/// The period varies by this part of its mean to either side: the paper's 60K to 64K cycles (SOSP 1997, section 4.1.1).
const PERIOD_SPREAD: f64 = 2.0 / 62.0;

/// An event has its period changed after so many samples: a change throws the begun period away, half of one on average.
const SPAN_SAMPLES: u64 = 1000;

/// All open counters, enabled until dropped or stopped.
pub struct Counters {
    /// By CPU, then by event number.
    cpus: Vec<(usize, Vec<OpenEvent>)>,
    periods: Vec<u64>,
}

/// One event on one CPU, in a span of time in which its period is the same.
struct OpenEvent {
    counter: Counter,
    period: u64,
    /// Its count, or its running time, when the span began.
    begin: u64,
    /// Samples of this span that were said to be implied.
    implied: u64,
    /// Samples that spans before it implied, not said yet.
    untold: u64,
    /// A timer: its own count stands still while it is throttled, its running time does not.
    timer: bool,
}

impl OpenEvent {
    /// Units that passed while the event was scheduled on its CPU.
    fn read(&mut self) -> Option<u64> {
        let read = self.counter.read_count_and_time().ok()?;
        Some(if self.timer { read.time_running } else { read.count })
    }

    /// Samples that the count implies since the last call.
    fn imply(&mut self) -> u64 {
        let Some(count) = self.read() else { return 0 };
        let implied = count.saturating_sub(self.begin) / self.period.max(1);
        let new = implied.saturating_sub(self.implied);
        self.implied = self.implied.max(implied);
        new
    }

    /// Begins a span with a new random period. The kernel throws the begun one away (perf_event_period clears period_left), so an event
    /// whose period was changed at every drain would be sampled too seldom, and a rare one never.
    fn begin_span(&mut self, mean: u64) {
        let period = random_period(mean);
        self.untold += self.imply();
        // SAFETY: the descriptor is an open perf event's, and the pointer is to a live u64 that the kernel only reads.
        let set = unsafe { perf_event_ioc_period(self.counter.as_raw_fd(), &raw const period) };
        if set.is_ok() {
            self.period = period;
            self.begin = self.read().unwrap_or(self.begin);
            self.implied = 0;
        }
    }
}

fn builder(event: &Event, cpu: usize, period: u64) -> Builder<'static> {
    let mut builder = Builder::new(Software::CPU_CLOCK);
    builder.attrs_mut().type_ = event.kind;
    builder.attrs_mut().config = event.config;
    builder.any_pid().one_cpu(cpu).include_kernel().include_hv().sample_period(period);
    // As the side-band events have it, whose ring takes the records of throttling.
    builder.sample_id_all(true).sample(RECORD_FIELDS).clockid(Clock::MONOTONIC);
    builder
}

/// The events to sample: those asked for, or `cycles`, or `cpu-clock` on a machine without hardware counters.
///
/// # Errors
/// [`KernelError::Event`] for an asked event that the machine does not have.
pub fn resolve_event(specs: &[EventSpec], cpus: &[usize]) -> Result<Vec<PlannedEvent>, KernelError> {
    let clock_hz = super::probe::clock_hz();
    let cpu = cpus.first().copied().unwrap_or(0);
    let has = |plan: &PlannedEvent| builder(&plan.event, cpu, plan.period).build().map(drop);
    if specs.is_empty() {
        let default = |name| EventSpec::parse(name).map(|spec| spec.plan(clock_hz));
        let unknown = |error| KernelError::Sampler { reason: format!("default event: {error}") };
        let cycles = default("cycles").map_err(unknown)?;
        if has(&cycles).is_ok() {
            return Ok(vec![cycles]);
        }
        let mut clock = default("cpu-clock").map_err(unknown)?;
        clock.note = Some("no hardware counters on this machine: cpu-clock (a timer) instead of cycles".to_owned());
        return Ok(vec![clock]);
    }
    let mut plans: Vec<_> = specs.iter().map(|spec| spec.plan(clock_hz)).collect();
    let counters = EventSpec::parse("cycles").is_ok_and(|cycles| has(&cycles.plan(clock_hz)).is_ok());
    for plan in &mut plans {
        has(plan).map_err(|source| refused(&plan.event, source))?;
        if plan.event.unit == Unit::Nanoseconds {
            let why = if counters { "" } else { "; this machine has no hardware counters" };
            plan.note = Some(format!("{} is a timer: samples are time, not cycles{why}", plan.event.name));
        }
    }
    Ok(plans)
}

fn refused(event: &Event, source: io::Error) -> KernelError {
    let hint = match source.raw_os_error() {
        Some(libc_errno::ENOENT | libc_errno::EOPNOTSUPP | libc_errno::ENODEV) if event.needs_hardware() => {
            "it has no such hardware counter: use --event cpu-clock"
        }
        Some(libc_errno::EACCES | libc_errno::EPERM) => "run dcpid as root",
        Some(libc_errno::EMFILE) => "raise the limit of open files (LimitNOFILE=)",
        _ => "`perf list` shows the events it has",
    };
    KernelError::Event { event: event.name.clone(), hint: hint.to_owned(), source }
}

/// errno values of asm-generic/errno.h, the same on x86-64 and arm64.
mod libc_errno {
    pub const EPERM: i32 = 1;
    pub const ENOENT: i32 = 2;
    pub const EACCES: i32 = 13;
    pub const ENODEV: i32 = 19;
    pub const EMFILE: i32 = 24;
    pub const EOPNOTSUPP: i32 = 95;
}

impl Counters {
    /// Opens every event on every CPU and attaches `programs[n]` to event n. Nothing counts before [`Counters::start`].
    pub fn open(events: &[PlannedEvent], programs: &[RawFd], cpus: &[usize]) -> Result<Self, KernelError> {
        let mut counters = Self { cpus: Vec::new(), periods: events.iter().map(|plan| plan.period).collect() };
        for &cpu in cpus {
            counters.add(events, programs, cpu)?;
        }
        Ok(counters)
    }

    /// Opens every event on one more CPU.
    pub fn add(&mut self, events: &[PlannedEvent], programs: &[RawFd], cpu: usize) -> Result<(), KernelError> {
        let mut opened = Vec::with_capacity(events.len());
        for (plan, program) in events.iter().zip(programs) {
            let open = || {
                let period = random_period(plan.period);
                let mut counter = builder(&plan.event, cpu, period).build()?;
                counter.set_bpf(*program)?;
                let timer = plan.event.unit == Unit::Nanoseconds;
                io::Result::Ok(OpenEvent { counter, period, begin: 0, implied: 0, untold: 0, timer })
            };
            opened.push(open().map_err(|source| refused(&plan.event, source))?);
        }
        self.cpus.push((cpu, opened));
        Ok(())
    }

    /// Closes the counters of a CPU; no sampler runs there any more.
    pub fn remove(&mut self, cpu: usize) {
        self.cpus.retain(|(of, _)| *of != cpu);
    }

    /// Lets all of them count.
    /// The same again for one CPU is no error.
    pub fn start(&mut self, events: &[PlannedEvent]) -> Result<(), KernelError> {
        for (_, opened) in &mut self.cpus {
            for (open, plan) in opened.iter_mut().zip(events) {
                open.counter.enable().map_err(|source| refused(&plan.event, source))?;
            }
        }
        Ok(())
    }

    /// Stops all of them. Each is disabled on its own CPU, so afterwards no sampler runs any more.
    pub fn stop(&mut self) {
        for open in self.cpus.iter_mut().flat_map(|(_, counters)| counters) {
            // Only a closed or broken descriptor fails here, and such a counter does not count.
            let _ = open.counter.disable();
        }
    }

    /// The CPUs that have counters.
    pub fn cpus(&self) -> impl Iterator<Item = usize> + '_ {
        self.cpus.iter().map(|(cpu, _)| *cpu)
    }

    /// Changes the mean period of an event, now.
    pub fn set_period(&mut self, event: usize, mean: u64) {
        if let Some(period) = self.periods.get_mut(event) {
            *period = mean;
        }
        for open in self.cpus.iter_mut().filter_map(|(_, opened)| opened.get_mut(event)) {
            open.begin_span(mean);
        }
    }

    /// Gives every event on that CPU a new period, now.
    pub fn begin_spans(&mut self, cpu: usize) {
        for (_, opened) in self.cpus.iter_mut().filter(|(of, _)| *of == cpu) {
            opened.iter_mut().zip(&self.periods).for_each(|(open, mean)| open.begin_span(*mean));
        }
    }

    /// The samples, by event number, that the events' counts on that CPU imply since the last call. Events that have had their samples of
    /// one period get another.
    pub fn imply(&mut self, cpu: usize) -> [u64; EVENTS_MAX] {
        let mut implied = [0; EVENTS_MAX];
        let here = self.cpus.iter_mut().find(|(of, _)| *of == cpu);
        let Some((_, opened)) = here else { return implied };
        for ((open, mean), implied) in opened.iter_mut().zip(&self.periods).zip(&mut implied) {
            *implied = open.imply() + std::mem::take(&mut open.untold);
            if open.implied >= SPAN_SAMPLES {
                open.begin_span(*mean);
            }
        }
        implied
    }

    /// Sends records of throttling to the side-band ring of the same CPU; `ring` gives its descriptor.
    pub fn share_rings(&self, ring: impl Fn(usize) -> Option<RawFd>) {
        for (cpu, counters) in &self.cpus {
            for (open, ring) in counters.iter().filter_map(|open| Some((open, ring(*cpu)?))) {
                // SAFETY: both descriptors are open perf events'. Where the kernel refuses, throttling goes without its name.
                let _ = unsafe { perf_event_ioc_set_output(open.counter.as_raw_fd(), ring) };
            }
        }
    }
}

/// Uniform around `mean`, so that nothing stays in step with a program, and the mean is what tools report.
fn random_period(mean: u64) -> u64 {
    let spread = (mean as f64 * PERIOD_SPREAD) as u64;
    fastrand::u64(mean - spread..=mean + spread).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_spread_evenly_around_the_mean() {
        let periods: Vec<u64> = (0..20_000).map(|_| random_period(62_000)).collect();
        assert!(periods.iter().all(|period| (60_000..=64_000).contains(period)));
        let mean = periods.iter().sum::<u64>() as f64 / 20_000.0;
        // The standard error of the mean is 4000 / sqrt(12 * 20000) = 8.2.
        assert!((mean - 62_000.0).abs() < 60.0, "{mean}");
        assert_eq!(random_period(1), 1);
    }
}
