//! The interface between sources of samples and the rest of the daemon. A source is the kernel, or
//! a recording of what the kernel gave.

use abi::{
    AheadKey, AheadWords, Entry, FileRanges, RuleKey, RuleWords, RuntimeLayout, Snapshot, WaitLine,
};
use kernel::clock;
use kernel::{Cost, Drained, KernelSource, RawStack, StacksTaken, TimedRecord};

/// A source of samples and of the records that explain them. No method has a default, so each
/// source states its behaviour even where it does nothing.
pub trait SampleSource {
    /// Current time of the source: CLOCK_MONOTONIC in ns as in its records, or the time of a
    /// recording.
    fn now_ns(&self) -> u64;

    /// Moves the counts since the last call to `entries`.
    fn drain(&mut self, entries: &mut Vec<Entry>) -> Drained;

    /// Moves all records that are there now to `records`. To be called after
    /// [`SampleSource::drain`], so that whatever was mapped when a drained sample was taken is
    /// known.
    fn records(&mut self, records: &mut Vec<TimedRecord>);

    /// Moves the snapshots of registers that are there now to `into`. Returns how many found no
    /// room in the sampler's rings since the last call.
    fn snapshots(&mut self, into: &mut Vec<Snapshot>) -> u64;

    /// Moves the call stacks that are there now to `into`.
    fn stacks(&mut self, into: &mut Vec<RawStack>) -> StacksTaken;

    /// Copies the times of threads to `into`.
    fn wait_times(&mut self, into: &mut Vec<WaitLine>);

    /// Samples waiting threads in a pass over all threads, and moves the samples to `into`. While
    /// switches are traced, only threads are sampled that have not switched since tracing began.
    /// The next pass takes about `samples`. Returns the number of threads chosen, which is larger
    /// than that of the samples where these found no room; None where no pass is possible.
    fn see_waits(&mut self, samples: u32, into: &mut Vec<RawStack>) -> Option<u32>;

    /// Fill level of the fullest spill buffer that counts now, 0 to 1.
    fn spill_used(&self) -> f64;

    /// Run time in ns and number of runs of the sampler since the start. `None` where the kernel
    /// does not measure them (`kernel.bpf_stats_enabled`).
    fn handler_cost(&self) -> Option<(u64, u64)>;

    /// Changes how samples are taken.
    fn steer(&mut self, order: Order) -> Steered;
}

/// A change of how samples are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// From now on count this process's own text, and that of its future children, apart from that
    /// of other processes.
    KeepApart {
        /// Process.
        pid: u32,
    },
    /// Count the kernel code of this process and of its future children under a scope.
    SetKernelScope {
        /// Process.
        pid: u32,
        /// As in [`abi::Space::KernelScope`]; 0: none.
        number: u32,
    },
    /// Give the number of a program or a library to other code, if it comes.
    ReleaseNumber {
        /// As in [`abi::Space::Program`].
        number: u32,
    },
    /// Give the number to no further process, until it is released.
    DisputeNumber {
        /// As in [`abi::Space::Program`].
        number: u32,
    },
    /// Number of samples of user code per snapshot on each CPU; 0: none.
    SnapshotEvery(u32),
    /// Number of samples per call stack on each CPU; 0: none.
    StackEvery(u32),
    /// Tell the sampler where an address space has files mapped, so that it walks code of these by
    /// the rules that were learnt in any process.
    SetFileRanges(u32, FileRanges),
    /// Add these rules to those by which the sampler walks stacks.
    AddRules(Vec<(RuleKey, RuleWords)>),
    /// Add these programs to those by which snapshots have the memory that the code ahead loads.
    AddAhead(Vec<(AheadKey, AheadWords)>),
    /// Copy the frames of runtimes in an address space, where the layout says; None: no longer.
    Runtime {
        /// As of [`abi::StackRecord::space`].
        space: u32,
        /// Layout of the frames.
        layout: Option<RuntimeLayout>,
    },
    /// Take the times of threads, and the stacks of waits of this length (in us) and longer; 0:
    /// neither.
    Waits(u32),
    /// Pause sampling, or with false continue it.
    Pause(bool),
    /// Stop taking samples.
    Stop,
    /// Revive a CPU's events that the kernel has throttled.
    Revive {
        /// CPU.
        cpu: u32,
    },
    /// Advance the turns of events.
    Rotate,
    /// Change the mean period of an event at once.
    SetPeriod {
        /// Number of the event.
        event: usize,
        /// New period in the event's unit.
        period: u64,
    },
    /// Measure the cost of a sample again, if the last measurement is old.
    MeasureCost,
}

/// The outcome of an [`Order`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Steered {
    /// The order is in force.
    Done,
    /// A sample costs this much.
    Costs(Cost),
    /// Nothing changes: a recording has its samples, or there was nothing to do.
    Unchanged,
}

impl SampleSource for KernelSource {
    fn now_ns(&self) -> u64 {
        clock::monotonic_ns()
    }

    fn drain(&mut self, entries: &mut Vec<Entry>) -> Drained {
        KernelSource::drain(self, entries)
    }

    fn records(&mut self, records: &mut Vec<TimedRecord>) {
        KernelSource::records(self, records);
    }

    fn snapshots(&mut self, into: &mut Vec<Snapshot>) -> u64 {
        KernelSource::snapshots(self, into)
    }

    fn stacks(&mut self, into: &mut Vec<RawStack>) -> StacksTaken {
        KernelSource::stacks(self, into)
    }

    fn wait_times(&mut self, into: &mut Vec<WaitLine>) {
        KernelSource::wait_times(self, into);
    }

    fn see_waits(&mut self, samples: u32, into: &mut Vec<RawStack>) -> Option<u32> {
        KernelSource::see_waits(self, samples, into)
    }

    fn spill_used(&self) -> f64 {
        KernelSource::spill_used(self)
    }

    fn handler_cost(&self) -> Option<(u64, u64)> {
        KernelSource::handler_cost(self)
    }

    fn steer(&mut self, order: Order) -> Steered {
        match order {
            Order::KeepApart { pid } => self.keep_apart(pid),
            Order::SetKernelScope { pid, number } => self.set_kernel_scope(pid, number),
            Order::ReleaseNumber { number } => self.release_number(number),
            Order::DisputeNumber { number } => self.dispute_number(number),
            Order::SnapshotEvery(every) => self.snapshot_every(every),
            Order::StackEvery(every) => self.stack_every(every),
            Order::SetFileRanges(space, ranges) => self.set_file_ranges(space, &ranges),
            Order::AddRules(rules) => self.add_rules(&rules),
            Order::AddAhead(programs) => self.add_ahead(&programs),
            Order::Runtime { space, layout } => self.set_runtime(space, layout.as_ref()),
            Order::Waits(scale_us) => self.take_waits(scale_us),
            Order::Pause(pauses) => self.pause(pauses),
            Order::Stop => self.stop(),
            Order::Revive { cpu } => self.revive(cpu),
            Order::Rotate => self.rotate(),
            Order::SetPeriod { event, period } => self.set_period(event, period),
            Order::MeasureCost => {
                return self.look_at_cost().map_or(Steered::Unchanged, Steered::Costs);
            }
        }
        Steered::Done
    }
}
