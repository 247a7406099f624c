//! A source that records its samples and records on a tape.

use super::steps::Step;
use super::tape::Tape;
use crate::sample_source::{Order, SampleSource, Steered};
use abi::{Entry, Snapshot, WaitLine};
use address_spaces::system::System;
use kernel::{Drained, RawStack, StacksTaken, TimedRecord};

/// A source and its tape. With a tape that keeps nothing, it behaves as the source alone.
pub struct Recorder<Source> {
    source: Source,
    tape: Tape,
    system: System,
}

impl<Source: SampleSource> Recorder<Source> {
    /// Records the output of `source` on `tape`; the answers of `system` belong to these steps.
    pub fn new(source: Source, tape: Tape, system: System) -> Self {
        Self { source, tape, system }
    }
}

impl<Source: SampleSource> SampleSource for Recorder<Source> {
    fn now_ns(&self) -> u64 {
        self.source.now_ns()
    }

    fn drain(&mut self, entries: &mut Vec<Entry>) -> Drained {
        let (before, begun_ns) = (entries.len(), self.source.now_ns());
        let drained = self.source.drain(entries);
        self.system.next_step();
        self.tape.note(|| {
            let entries = entries.get(before..).unwrap_or_default();
            Step::drain(begun_ns, self.source.now_ns(), entries, &drained)
        });
        drained
    }

    fn records(&mut self, records: &mut Vec<TimedRecord>) {
        let before = records.len();
        self.source.records(records);
        self.system.next_step();
        self.tape.note(|| Step::Records {
            time_ns: self.source.now_ns(),
            records: records.get(before..).unwrap_or_default().to_vec(),
        });
    }

    fn snapshots(&mut self, into: &mut Vec<Snapshot>) -> u64 {
        self.source.snapshots(into)
    }

    fn stacks(&mut self, into: &mut Vec<RawStack>) -> StacksTaken {
        self.source.stacks(into)
    }

    fn wait_times(&mut self, into: &mut Vec<WaitLine>) {
        self.source.wait_times(into);
    }

    fn see_waits(&mut self, samples: u32, into: &mut Vec<RawStack>) -> Option<u32> {
        self.source.see_waits(samples, into)
    }

    fn spill_used(&self) -> f64 {
        self.source.spill_used()
    }

    fn handler_cost(&self) -> Option<(u64, u64)> {
        self.source.handler_cost()
    }

    fn steer(&mut self, order: Order) -> Steered {
        self.source.steer(order)
    }
}
