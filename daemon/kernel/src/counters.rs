//! The counters: one perf event per event and CPU, each with the sampler attached.

use super::KernelError;
use super::counted::Counted;
use super::multiplexer::Multiplexer;
use super::refusal::refused;
use abi::EVENTS_MAX;
use events::{Encoding, PlannedEvent, Unit};
use perf_event::events::Software;
use perf_event::{Builder, Clock, CountAndTime, Counter, SampleFlag};
use std::io;
use std::os::fd::{AsRawFd, RawFd};

nix::ioctl_write_ptr!(perf_event_ioc_period, b'$', 4, u64);
nix::ioctl_write_int_bad!(perf_event_ioc_set_output, nix::request_code_none!(b'$', 5));

/// Fields that records have besides their own, the same for all events that share a ring.
pub const RECORD_FIELDS: SampleFlag =
    SampleFlag::TID.union(SampleFlag::TIME).union(SampleFlag::CPU);

/// The period varies by this part of its mean to either side: the paper's 60K to 64K cycles (SOSP
/// 1997, section 4.1.1). Without variation, samples stay in step with a program's loops.
const PERIOD_SPREAD: f64 = 2.0 / 62.0;

/// Samples after which an event gets a new period. A change discards the begun period, half a
/// period on average: fewer samples lose more time, more leave a program longer in step with one
/// period.
const SPAN_SAMPLES: u64 = 1000;

/// Period of an event that is opened only to see whether the kernel takes it: long enough not to
/// overflow before it is closed.
const PERIOD_TRIED: u64 = 1_000_000;

/// All open counters, enabled until dropped or stopped.
pub struct Counters {
    cpus: Vec<OnCpu>,
    periods: Vec<u64>,
}

struct OnCpu {
    cpu: usize,
    /// The counters by event number; None: this CPU lacks the event.
    opened: Vec<Option<OpenEvent>>,
    turns: Multiplexer,
}

/// One event on one CPU, in a span of time in which its period does not change.
struct OpenEvent {
    counter: Counter,
    period: u64,
    /// The event's count, or its running time, when the span began.
    begin: u64,
    /// Samples of this span that were already reported as implied.
    implied: u64,
    /// Counts of earlier spans that were not reported yet.
    untold: Counted,
    /// True for a timer: its own count stands still while it is throttled, its running time does
    /// not.
    timer: bool,
    /// Times enabled and running that were already reported, in ns.
    told: (u64, u64),
}

impl OpenEvent {
    /// Units that passed while the event was scheduled on its CPU. Neither these nor the rest of
    /// the period change while the event is disabled.
    fn read(&mut self) -> Option<u64> {
        let read = self.counter.read_count_and_time().ok()?;
        Some(self.units(&read))
    }

    fn units(&self, read: &CountAndTime) -> u64 {
        if self.timer { read.time_running } else { read.count }
    }

    /// The event's counts since the last call.
    fn measure(&mut self) -> Counted {
        let Ok(read) = self.counter.read_count_and_time() else { return Counted::default() };
        let implied = self.units(&read).saturating_sub(self.begin) / self.period.max(1);
        let counted = Counted {
            implied: implied.saturating_sub(self.implied),
            enabled_ns: read.time_enabled.saturating_sub(self.told.0),
            running_ns: read.time_running.saturating_sub(self.told.1),
        };
        self.implied = self.implied.max(implied);
        self.told = (read.time_enabled, read.time_running);
        counted
    }

    /// Begins a span with a new random period. The kernel discards the begun period
    /// (perf_event_period clears period_left), so an event whose period was changed at every drain
    /// would be sampled too seldom, and a rare event never.
    fn begin_span(&mut self, mean: u64) {
        let period = random_period(mean);
        let measured = self.measure();
        self.untold.add(measured);
        // SAFETY: the descriptor is an open perf event's, and the pointer is to a live u64 that the
        // kernel only reads.
        let set = unsafe { perf_event_ioc_period(self.counter.as_raw_fd(), &raw const period) };
        if set.is_ok() {
            self.period = period;
            self.begin = self.read().unwrap_or(self.begin);
            self.implied = 0;
        }
    }
}

fn builder(encoding: Encoding, cpu: usize, period: u64) -> Builder<'static> {
    let mut builder = Builder::new(Software::CPU_CLOCK);
    let [config, config1, config2] = encoding.config;
    let attributes = builder.attrs_mut();
    (attributes.type_, attributes.config) = (encoding.kind, config);
    (attributes.config1, attributes.config2) = (config1, config2);
    builder.any_pid().one_cpu(cpu).include_kernel().include_hv().sample_period(period);
    // The same fields as the side-band events have, whose ring takes the records of throttling.
    builder.sample_id_all(true).sample(RECORD_FIELDS).clockid(Clock::MONOTONIC);
    builder
}

/// Tries to open an event for sampling on a CPU, with a period that does not overflow before it is
/// closed again.
pub fn try_open(encoding: Encoding, cpu: usize) -> io::Result<()> {
    builder(encoding, cpu, PERIOD_TRIED).build().map(drop)
}

/// The timer of the kernel, as perf_event_attr has it: PERF_TYPE_SOFTWARE,
/// PERF_COUNT_SW_CPU_CLOCK.
pub const CPU_CLOCK: Encoding = Encoding { kind: 1, config: [0; 3] };

/// Opens an event that runs a program at each overflow, once it is enabled.
pub fn open_sampled(
    encoding: Encoding,
    cpu: usize,
    period: u64,
    program: RawFd,
) -> io::Result<Counter> {
    let mut counter = builder(encoding, cpu, period).build()?;
    counter.set_bpf(program)?;
    Ok(counter)
}

/// Opens an event that overflows without a sampler and without a ring: only interrupts, until the
/// event is dropped.
pub fn open_bare(encoding: Encoding, cpu: usize, period: u64) -> io::Result<Counter> {
    let mut counter = builder(encoding, cpu, period).build()?;
    counter.enable()?;
    Ok(counter)
}

impl Counters {
    /// Opens every event on every CPU and attaches `programs[n]` to event n. Nothing counts before
    /// [`Counters::start`].
    pub fn open(
        events: &[PlannedEvent],
        programs: &[RawFd],
        cpus: &[usize],
    ) -> Result<Self, KernelError> {
        let mut counters =
            Self { cpus: Vec::new(), periods: events.iter().map(|plan| plan.period).collect() };
        for &cpu in cpus {
            counters.add(events, programs, cpu)?;
        }
        Ok(counters)
    }

    /// Opens all events on one more CPU.
    pub fn add(
        &mut self,
        events: &[PlannedEvent],
        programs: &[RawFd],
        cpu: usize,
    ) -> Result<(), KernelError> {
        let mut opened = Vec::with_capacity(events.len());
        for (plan, program) in events.iter().zip(programs) {
            let open = |encoding| {
                let period = random_period(plan.period);
                let mut counter = builder(encoding, cpu, period).build()?;
                counter.set_bpf(*program)?;
                let timer = plan.event.unit == Unit::Nanoseconds;
                io::Result::Ok(OpenEvent {
                    counter,
                    period,
                    begin: 0,
                    implied: 0,
                    untold: Counted::default(),
                    timer,
                    told: (0, 0),
                })
            };
            let open = plan.encoding(cpu).map(open).transpose();
            opened.push(open.map_err(|source| refused(&plan.event, source))?);
        }
        let turns =
            Multiplexer::new(events, |event| opened.get(event).is_some_and(Option::is_some));
        self.cpus.push(OnCpu { cpu, opened, turns });
        Ok(())
    }

    /// Closes the counters of a CPU; afterwards no sampler runs there.
    pub fn remove(&mut self, cpu: usize) {
        self.cpus.retain(|on| on.cpu != cpu);
    }

    /// Lets events count, of each group the one whose turn it is. Idempotent: starting a CPU that
    /// already counts is not an error.
    pub fn start(&mut self, events: &[PlannedEvent]) -> Result<(), KernelError> {
        for on in &mut self.cpus {
            for (number, (open, plan)) in on.opened.iter_mut().zip(events).enumerate() {
                if let Some(open) = open.as_mut().filter(|_| on.turns.may_count(number)) {
                    open.counter.enable().map_err(|source| refused(&plan.event, source))?;
                }
            }
        }
        Ok(())
    }

    /// Advances the turns of groups by a tick. The event whose turn ends is disabled before the
    /// next is enabled, so no two events of a group count together on a CPU.
    pub fn rotate(&mut self) {
        for on in &mut self.cpus {
            for change in on.turns.tick() {
                // Only a closed or broken descriptor fails here, and such a counter does not count.
                if let Some(Some(ends)) = on.opened.get_mut(change.ends) {
                    let _ = ends.counter.disable();
                }
                if let Some(Some(begins)) = on.opened.get_mut(change.begins) {
                    let _ = begins.counter.enable();
                }
            }
        }
    }

    /// Lets no event count until [`Counters::start`].
    pub fn hold(&mut self) {
        for open in self.cpus.iter_mut().flat_map(|on| on.opened.iter_mut().flatten()) {
            // Only a closed or broken descriptor fails here, and such a counter does not count.
            let _ = open.counter.disable();
        }
    }

    /// Stops all events for good. Each is disabled on its own CPU, so no sampler runs after the
    /// call.
    pub fn stop(&mut self) {
        self.cpus.iter_mut().for_each(|on| on.turns.end());
        self.hold();
    }

    /// The CPUs that have counters.
    pub fn cpus(&self) -> impl Iterator<Item = usize> + '_ {
        self.cpus.iter().map(|on| on.cpu)
    }

    /// Changes the mean period of an event at once.
    pub fn set_period(&mut self, event: usize, mean: u64) {
        if let Some(period) = self.periods.get_mut(event) {
            *period = mean;
        }
        for open in self.cpus.iter_mut().filter_map(|on| on.opened.get_mut(event)?.as_mut()) {
            open.begin_span(mean);
        }
    }

    /// Gives every event on that CPU a new period at once.
    pub fn begin_spans(&mut self, cpu: usize) {
        for on in self.cpus.iter_mut().filter(|on| on.cpu == cpu) {
            let opened = on.opened.iter_mut().zip(&self.periods);
            opened
                .filter_map(|(open, mean)| Some((open.as_mut()?, mean)))
                .for_each(|(open, mean)| open.begin_span(*mean));
        }
    }

    /// The counts of each event on that CPU since the last call, by event number. Events that had
    /// their samples of one period get another period.
    pub fn measure(&mut self, cpu: usize) -> [Counted; EVENTS_MAX] {
        let mut measured = [Counted::default(); EVENTS_MAX];
        let Some(on) = self.cpus.iter_mut().find(|on| on.cpu == cpu) else { return measured };
        for ((open, mean), counted) in on.opened.iter_mut().zip(&self.periods).zip(&mut measured) {
            let Some(open) = open else { continue };
            *counted = std::mem::take(&mut open.untold);
            counted.add(open.measure());
            if open.implied >= SPAN_SAMPLES {
                open.begin_span(*mean);
            }
        }
        on.turns.share_time(&mut measured);
        measured
    }

    /// Sends records of throttling to the side-band ring of the same CPU, whose descriptor `ring`
    /// returns.
    pub fn share_rings(&self, ring: impl Fn(usize) -> Option<RawFd>) {
        for on in &self.cpus {
            for (open, ring) in
                on.opened.iter().flatten().filter_map(|open| Some((open, ring(on.cpu)?)))
            {
                // SAFETY: both descriptors are open perf events'. Where the kernel refuses,
                // throttling goes without its name.
                let _ = unsafe { perf_event_ioc_set_output(open.counter.as_raw_fd(), ring) };
            }
        }
    }
}

/// A random period, uniform around `mean`, so that samples do not stay in step with a program.
/// Tools report the mean.
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
