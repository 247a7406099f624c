//! The seam between what takes samples and the pipeline: the kernel, or a recording in tests.

use crate::kernel::{Cost, Drained, KernelSource, TimedRecord};
use abi::{Entry, Snapshot};

/// Gives samples and the records that explain them.
pub trait SampleSource {
    /// Moves what was counted since the last call to `entries`.
    fn drain(&mut self, entries: &mut Vec<Entry>) -> Drained;
    /// Moves all records that are there now to `records`; to be called after
    /// [`SampleSource::drain`], so that whatever was mapped when a drained sample was taken is
    /// known.
    fn records(&mut self, records: &mut Vec<TimedRecord>);
    /// Counts a process's own text no longer together with that of others, nor that of children it
    /// will have.
    fn keep_apart(&mut self, _pid: u32) {}
    /// How full the fullest spill buffer is that counts now, 0 to 1.
    fn spill_used(&self) -> f64 {
        0.0
    }
    /// Moves the snapshots that are there now to `into`. Gives the number of those that found no
    /// room since the last call.
    fn snapshots(&mut self, _into: &mut Vec<Snapshot>) -> u64 {
        0
    }
    /// Has every CPU take a snapshot for so many samples of user code; 0: none.
    fn snapshot_every(&mut self, _every: u32) {}
    /// Takes no samples until the next call, with false.
    fn pause(&mut self, _pauses: bool) {}
    /// Takes no more samples.
    fn stop(&mut self);
    /// Lets a CPU's events go on that the kernel has throttled.
    fn revive(&mut self, _cpu: u32) {}
    /// Has events that take turns do so.
    fn rotate(&mut self) {}
    /// Changes the mean period of an event, now.
    fn set_period(&mut self, _event: usize, _period: u64) {}
    /// Nanoseconds and runs of the sampler as the kernel measured them; None where it does not
    /// measure.
    fn handler_cost(&self) -> Option<(u64, u64)> {
        None
    }
    /// What a sample costs by now, where that was measured since the last call.
    fn look_at_cost(&mut self) -> Option<Cost> {
        None
    }
}

impl SampleSource for KernelSource {
    fn drain(&mut self, entries: &mut Vec<Entry>) -> Drained {
        KernelSource::drain(self, entries)
    }

    fn records(&mut self, records: &mut Vec<TimedRecord>) {
        KernelSource::records(self, records);
    }

    fn keep_apart(&mut self, pid: u32) {
        KernelSource::keep_apart(self, pid);
    }

    fn spill_used(&self) -> f64 {
        KernelSource::spill_used(self)
    }

    fn snapshots(&mut self, into: &mut Vec<Snapshot>) -> u64 {
        KernelSource::snapshots(self, into)
    }

    fn snapshot_every(&mut self, every: u32) {
        KernelSource::snapshot_every(self, every);
    }

    fn pause(&mut self, pauses: bool) {
        KernelSource::pause(self, pauses);
    }

    fn stop(&mut self) {
        KernelSource::stop(self);
    }

    fn revive(&mut self, cpu: u32) {
        KernelSource::revive(self, cpu);
    }

    fn rotate(&mut self) {
        KernelSource::rotate(self);
    }

    fn set_period(&mut self, event: usize, period: u64) {
        KernelSource::set_period(self, event, period);
    }

    fn handler_cost(&self) -> Option<(u64, u64)> {
        KernelSource::handler_cost(self)
    }

    fn look_at_cost(&mut self) -> Option<Cost> {
        KernelSource::look_at_cost(self)
    }
}

/// A recording: one batch for each drain, then nothing more.
#[cfg(test)]
pub struct Recording {
    batches: std::collections::VecDeque<(Vec<Entry>, Drained, Vec<TimedRecord>)>,
    records: Vec<TimedRecord>,
}

#[cfg(test)]
impl Recording {
    /// Gives these, in this order.
    pub fn new(batches: Vec<(Vec<Entry>, Drained, Vec<TimedRecord>)>) -> Self {
        Self { batches: batches.into(), records: Vec::new() }
    }
}

#[cfg(test)]
impl SampleSource for Recording {
    fn drain(&mut self, entries: &mut Vec<Entry>) -> Drained {
        let Some((batch, drained, records)) = self.batches.pop_front() else {
            return Drained::default();
        };
        entries.extend(batch);
        self.records = records;
        drained
    }

    fn records(&mut self, records: &mut Vec<TimedRecord>) {
        records.append(&mut self.records);
    }

    fn stop(&mut self) {
        self.batches.clear();
    }
}
