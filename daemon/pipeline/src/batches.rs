//! A source of hand-made samples, for the tests of this crate.

use abi::{Entry, Snapshot, WaitLine};
use kernel::{Drained, RawStack, StacksTaken, TimedRecord, clock};
use sampling::sample_source::{Order, SampleSource, Steered};

/// A source for tests: one hand-made batch for each drain, then empty drains.
pub struct Batches {
    batches: std::collections::VecDeque<(Vec<Entry>, Drained, Vec<TimedRecord>)>,
    records: Vec<TimedRecord>,
}

impl Batches {
    /// A source that gives these batches in this order.
    pub fn new(batches: Vec<(Vec<Entry>, Drained, Vec<TimedRecord>)>) -> Self {
        Self { batches: batches.into(), records: Vec::new() }
    }
}

impl SampleSource for Batches {
    fn now_ns(&self) -> u64 {
        clock::monotonic_ns()
    }

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

    fn snapshots(&mut self, _into: &mut Vec<Snapshot>) -> u64 {
        0
    }

    fn stacks(&mut self, _into: &mut Vec<RawStack>) -> StacksTaken {
        StacksTaken::default()
    }

    fn wait_times(&mut self, _into: &mut Vec<WaitLine>) {}

    fn see_waits(&mut self, _samples: u32, _into: &mut Vec<RawStack>) -> Option<u32> {
        None
    }

    fn spill_used(&self) -> f64 {
        0.0
    }

    fn handler_cost(&self) -> Option<(u64, u64)> {
        None
    }

    fn steer(&mut self, order: Order) -> Steered {
        match order {
            Order::Stop => {
                self.batches.clear();
                Steered::Done
            }
            // The batches to come count as taken at the new period.
            Order::SetPeriod { .. } => Steered::Done,
            Order::KeepApart { .. }
            | Order::SetKernelScope { .. }
            | Order::ReleaseNumber { .. }
            | Order::DisputeNumber { .. }
            | Order::SnapshotEvery(_)
            | Order::StackEvery(_)
            | Order::AddRules(_)
            | Order::AddAhead(_)
            | Order::SetFileRanges(..)
            | Order::Runtime { .. }
            | Order::Waits(_)
            | Order::Pause(_)
            | Order::Revive { .. }
            | Order::Rotate
            | Order::MeasureCost => Steered::Unchanged,
        }
    }
}
