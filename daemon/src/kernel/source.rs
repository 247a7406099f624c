//! Everything that needs privilege, behind one value: counts and records out, nothing else.

use super::counters::Counters;
use super::object::Sampler;
use super::sideband::{Sideband, TimedRecord};
use super::table::{Table, TableSettings, possible_cpus};
use super::{KernelError, Machine, cost, probe};
use crate::budget::{self, Budget};
use crate::event::PlannedEvent;
use abi::{EVENTS_MAX, Entry, HALVES};
use std::os::fd::RawFd;

/// What to open.
#[derive(Clone, Debug)]
pub struct SourceSettings {
    /// At most [`EVENTS_MAX`] events.
    pub events: Vec<PlannedEvent>,
    /// Sizes of the tables.
    pub table: TableSettings,
    /// What sampling may cost.
    pub budget: Option<Budget>,
}

/// What a sample costs here, and the step of [`budget::RATES`] that the budget allows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Time that one sample takes from the program it interrupts, ns.
    pub ns_per_sample: f64,
    /// Index of the rate.
    pub step: usize,
}

/// Assumed where a busy machine does not let itself be measured: dearer than any hardware interrupt, cheaper than the dearest virtual one.
const NS_PER_SAMPLE_ASSUMED: f64 = 5000.0;

/// What one CPU took in one drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuDrained {
    /// Which CPU.
    pub cpu: u32,
    /// Samples taken.
    pub taken: u64,
    /// Samples that the events' counts and periods imply: those taken and those missed.
    pub implied: u64,
}

/// Totals of one drain over all CPUs, as the samplers counted them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Samples taken since the last drain.
    pub taken: u64,
    /// Of these, samples that found no entry of theirs in the table.
    pub misses: u64,
    /// Of these, samples that are in no entry, by event number.
    pub lost: [u64; EVENTS_MAX],
    /// Samples that the events' counts and periods imply, by event number.
    pub implied: [u64; EVENTS_MAX],
    /// By CPU.
    pub cpus: Vec<CpuDrained>,
}

/// Open counters, tables and rings.
pub struct KernelSource {
    counters: Counters,
    table: Table,
    sideband: Sideband,
    sampler: Sampler,
    events: Vec<PlannedEvent>,
    cost: Option<Cost>,
}

impl KernelSource {
    /// Opens all of it; records flow at once, samples after [`KernelSource::start`].
    ///
    /// # Errors
    /// What the kernel refused and what to do about it.
    pub fn open(settings: &SourceSettings, machine: &Machine) -> Result<Self, KernelError> {
        let sideband = Sideband::open(&machine.cpus)?;
        let mut sampler = Sampler::load(settings.table, possible_cpus()?)?;
        let programs = (0..settings.events.len()).map(|event| sampler.program(event)).collect::<Result<Vec<_>, _>>()?;
        let table = sampler.table()?;
        let mut events = settings.events.clone();
        let cost = settings.budget.and_then(|budget| measure(budget, &events, &programs, machine));
        if let Some(cost) = cost {
            discard(&table, machine);
            let rate = budget::RATES.get(cost.step).copied().unwrap_or(1);
            for event in events.iter_mut().filter(|event| event.adjustable) {
                *event = event.at_rate(rate, probe::clock_hz());
            }
        }
        let counters = Counters::open(&events, &programs, &machine.cpus)?;
        counters.share_rings(|cpu| sideband.descriptor(cpu));
        Ok(Self { counters, table, sideband, sampler, events, cost })
    }

    /// The events with the periods they are sampled at.
    #[must_use]
    pub fn events(&self) -> &[PlannedEvent] {
        &self.events
    }

    /// What a sample costs; None where no budget limits an event.
    #[must_use]
    pub fn cost(&self) -> Option<Cost> {
        self.cost
    }

    /// The mean period of an event from the next drain on.
    pub fn set_period(&mut self, event: usize, period: u64) {
        self.counters.set_period(event, period);
    }

    /// Starts sampling.
    ///
    /// # Errors
    /// [`KernelError::Event`] when the kernel refuses to start a counter.
    pub fn start(&mut self) -> Result<(), KernelError> {
        self.counters.start(&self.events)
    }

    /// Stops sampling; what was taken can still be drained, once for each half.
    pub fn stop(&mut self) {
        self.counters.stop();
    }

    /// Moves what every CPU has counted since the last drain to `entries`, one after the other; sampling goes on.
    pub fn drain(&mut self, entries: &mut Vec<Entry>) -> Drained {
        let mut drained = Drained::default();
        let cpus: Vec<usize> = self.counters.cpus().collect();
        for (position, &cpu) in cpus.iter().enumerate() {
            let half = self.table.flip(cpu);
            let implied = self.counters.quiesce(position);
            let totals = self.table.drain(cpu, half, entries);
            drained.taken += totals.stats.taken;
            drained.implied.iter_mut().zip(implied).for_each(|(sum, implied)| *sum += implied);
            let implied = implied.iter().sum();
            drained.cpus.push(CpuDrained { cpu: cpu as u32, taken: totals.stats.taken, implied });
            drained.misses += u64::from(totals.stats.misses);
            drained.lost.iter_mut().zip(totals.losses).for_each(|(sum, lost)| *sum += lost);
        }
        drained
    }

    /// Moves all records of processes that are there now to `records`, not sorted.
    pub fn records(&mut self, records: &mut Vec<TimedRecord>) {
        self.sideband.read(records);
        self.sampler.execs(records);
    }

    /// Nanoseconds and runs of all programs, when the kernel measures them (kernel.bpf_stats_enabled, Linux 5.1).
    #[must_use]
    pub fn handler_cost(&self) -> Option<(u64, u64)> {
        Some(self.sampler.cost()).filter(|(_, runs)| *runs > 0)
    }
}

/// Measures a sample of the first adjustable event on the last CPU, which is the least likely to be busy with interrupts of devices.
fn measure(budget: Budget, events: &[PlannedEvent], programs: &[RawFd], machine: &Machine) -> Option<Cost> {
    let (plan, program) = events.iter().zip(programs).find(|(plan, _)| plan.adjustable)?;
    let cpu = *machine.cpus.last()?;
    let units_per_second = plan.event.unit.per_second(probe::clock_hz());
    let measured = cost::ns_per_sample(plan, units_per_second, *program, cpu);
    if measured.is_none() {
        tracing::warn!(cpu, "too busy to measure what a sample costs; {NS_PER_SAMPLE_ASSUMED} ns are assumed");
    }
    let ns_per_sample = measured.unwrap_or(NS_PER_SAMPLE_ASSUMED);
    Some(Cost { ns_per_sample, step: budget::affordable(budget, ns_per_sample, events.len()) })
}

/// Forgets what was sampled while measuring: nothing counts now, so both halves can be emptied.
fn discard(table: &Table, machine: &Machine) {
    let mut measured = Vec::new();
    for &cpu in &machine.cpus {
        for _ in 0..HALVES {
            let half = table.flip(cpu);
            table.drain(cpu, half, &mut measured);
        }
    }
}
