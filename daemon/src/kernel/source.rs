//! Everything that needs privilege, behind one value: counts and records out, nothing else.

use super::counters::Counters;
use super::object::Sampler;
use super::sideband::{Sideband, TimedRecord};
use super::table::{Table, TableSettings, possible_cpus};
use super::{KernelError, Machine};
use crate::event::PlannedEvent;
use abi::{EVENTS_MAX, Entry};

/// What to open.
#[derive(Clone, Debug)]
pub struct SourceSettings {
    /// At most [`EVENTS_MAX`] events.
    pub events: Vec<PlannedEvent>,
    /// Sizes of the tables.
    pub table: TableSettings,
}

/// Totals of one drain over all CPUs, as the samplers counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Samples taken since the last drain.
    pub taken: u64,
    /// Of these, samples that found no entry of theirs in the table.
    pub misses: u64,
    /// Of these, samples that are in no entry, by event number.
    pub lost: [u64; EVENTS_MAX],
}

/// Open counters, tables and rings.
pub struct KernelSource {
    counters: Counters,
    table: Table,
    sideband: Sideband,
    sampler: Sampler,
    events: Vec<PlannedEvent>,
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
        let counters = Counters::open(&settings.events, &programs, &machine.cpus)?;
        Ok(Self { counters, table, sideband, sampler, events: settings.events.clone() })
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
        for (position, cpu) in self.counters.cpus().enumerate() {
            let half = self.table.flip(cpu);
            self.counters.quiesce(position);
            let totals = self.table.drain(cpu, half, entries);
            drained.taken += totals.stats.taken;
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
