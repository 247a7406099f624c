//! Merges a recording like live samples: the same drain, resolution and merge, on recorded answers
//! and at recorded times. Nothing of this machine decides any byte of the database.

use abi::{Entry, Snapshot, WaitLine};
use address_spaces::kernel_text::KernelText;
use address_spaces::system::System;
use address_spaces::vdso32::restored;
use image::ImageId;
use kernel::{Drained, RawStack, StacksTaken, TimedRecord};
use pending::processes::Processes;
use pipeline::drain::{Collector, Replay};
use profiledb::{EpochId, Writer};
use sampling::call_stacks::WalkedStack;
use sampling::recording::steps::{Start, Step};
use sampling::recording::tape::Recording;
use sampling::sample_source::{Order, SampleSource, Steered};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

/// The result of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// The last epoch.
    pub epoch: EpochId,
    /// Samples taken, as the samplers counted them.
    pub taken: u64,
    /// Number of merges.
    pub merges: u64,
    /// Questions that the recording has no answer for, because another version made it.
    pub unanswered: u64,
}

/// The source of a replay. What the next call returns is set before the call.
#[derive(Default)]
struct Player {
    now_ns: u64,
    /// Entries and statistics of the next drain, and the time of its end.
    drain: Option<(Vec<Entry>, Drained, u64)>,
    /// Records and time of each next reading.
    records: VecDeque<(u64, Vec<TimedRecord>)>,
    system: System,
}

impl SampleSource for Player {
    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn drain(&mut self, entries: &mut Vec<Entry>) -> Drained {
        self.system.next_step();
        let Some((batch, drained, ended_ns)) = self.drain.take() else {
            return Drained::default();
        };
        entries.extend(batch);
        self.now_ns = ended_ns;
        drained
    }

    fn records(&mut self, records: &mut Vec<TimedRecord>) {
        self.system.next_step();
        if let Some((time_ns, batch)) = self.records.pop_front() {
            records.extend(batch);
            self.now_ns = self.now_ns.max(time_ns);
        }
    }

    fn snapshots(&mut self, _into: &mut Vec<Snapshot>) -> u64 {
        0
    }

    fn stacks(&mut self, _: &mut Vec<RawStack>) -> StacksTaken {
        StacksTaken::default() // recorded as they were counted
    }

    fn wait_times(&mut self, _: &mut Vec<WaitLine>) {}

    fn see_waits(&mut self, _samples: u32, _into: &mut Vec<RawStack>) -> Option<u32> {
        None
    }

    fn spill_used(&self) -> f64 {
        0.0
    }

    fn handler_cost(&self) -> Option<(u64, u64)> {
        None
    }

    fn steer(&mut self, _order: Order) -> Steered {
        Steered::Unchanged
    }
}

/// Merges a recording into the database at `db`, which is made if there is none.
///
/// # Errors
/// One line: the database's error, or an impossible value in the recording.
pub fn replay(recording: Recording, db: &Path) -> anyhow::Result<Replayed> {
    let Recording { start, steps, answers } = recording;
    let system = System::replay(answers);
    let mut writer = Writer::open(db, &start.host)?;
    let epoch = writer.begin(start.epoch.clone().into(), true)?;
    let names: Vec<String> = start.epoch.events.iter().map(|event| event.name.clone()).collect();
    let mut replay = State {
        collector: collector(&start, &system)?,
        writer,
        names,
        processes: Processes::default(),
        done: Replayed { epoch, taken: 0, merges: 0, unanswered: 0 },
    };
    let mut steps = VecDeque::from(steps);
    while let Some(step) = steps.pop_front() {
        replay.play(step, &mut steps)?;
    }
    replay.done.unanswered = system.unanswered();
    Ok(replay.done)
}

fn collector(start: &Start, system: &System) -> anyhow::Result<Collector<Player>> {
    let no_id = || anyhow::anyhow!("the recording's kernel has no id; record anew");
    let kernel_id: ImageId = start.kernel_id.parse().map_err(|_| no_id())?;
    let kernel = KernelText::new(&start.kernel_release, kernel_id, system.clone());
    let vdso = start.vdso.as_ref().and_then(|stored| restored("[vdso]", stored)).map(Arc::new);
    let periods: Vec<u64> = start.epoch.events.iter().map(|event| event.period).collect();
    let player = Player { now_ns: start.now_ns, system: system.clone(), ..Player::default() };
    let replay = Replay { system: system.clone(), run: start.run, ..Replay::default() };
    let mut collector = Collector::new(player, kernel, vdso, &periods, Default::default(), replay);
    collector.spaces.mappings.keep_apart(start.rules.clone());
    Ok(collector)
}

struct State {
    collector: Collector<Player>,
    writer: Writer,
    names: Vec<String>,
    processes: Processes,
    done: Replayed,
}

impl State {
    /// Carries out a step of the recording; `rest` has the later steps.
    fn play(&mut self, step: Step, rest: &mut VecDeque<Step>) -> anyhow::Result<()> {
        let collector = &mut self.collector;
        match step {
            Step::Drain { begun_ns, ended_ns, entries, drained } => {
                self.done.taken += drained.taken;
                let entries = entries.into_iter();
                let entries =
                    entries.map(|(key, space, count)| Entry { key, space, count }).collect();
                let records = records_of_drain(rest);
                let player = collector.source_mut();
                player.now_ns = begun_ns;
                player.drain = Some((entries, *drained, ended_ns));
                player.records.push_back((ended_ns, records));
                collector.drain();
            }
            Step::Records { time_ns, records } => {
                collector.source_mut().records.push_back((time_ns, records));
                collector.collect_records();
            }
            Step::Learnt(record) => collector.spaces.mappings.apply(record),
            Step::Observed(all) => {
                for (image, observations) in all.iter().filter_map(|one| one.restored()) {
                    for (measure, observation) in observations {
                        collector.pending.observe(&image, measure, observation);
                    }
                }
            }
            Step::Stacks(stacks) => {
                let stacks = stacks.iter().filter_map(WalkedStack::restored).collect();
                collector.count_restored_stacks(stacks);
            }
            Step::Period { event, change } => collector.pending.set_period(event, change),
            // A request that was refused then is refused again, without consequences.
            Step::Label { pid, start_time, label, with_children } => {
                drop(collector.label(pid, start_time, &label, with_children));
            }
            Step::Register(told) => drop(collector.register(&told)),
            Step::Unregister { pid, start } => drop(collector.unregister(pid, start)),
            Step::Merge { unix_s, facts, cost } => {
                collector.end_wait_for_names();
                let mut stated = Some((facts, cost));
                for part in collector.pending.take().parts() {
                    let mut delta = part.delta(&self.names, unix_s);
                    self.processes.join(&mut delta.stacks, unix_s);
                    if let Some((facts, cost)) = stated.take() {
                        (delta.facts, delta.cost) = (facts, cost);
                    }
                    self.writer.merge(&delta)?;
                }
                self.done.merges += 1;
            }
            Step::Epoch(start) => {
                self.done.epoch = self.writer.next_epoch(start.into())?;
                collector.spaces.allowances.begin_epoch();
            }
        }
        Ok(())
    }
}

/// The records that a drain read, with the mappings that were learnt before its samples were
/// resolved.
fn records_of_drain(rest: &mut VecDeque<Step>) -> Vec<TimedRecord> {
    let mut records = Vec::new();
    if let Some(Step::Records { .. }) = rest.front()
        && let Some(Step::Records { records: read, .. }) = rest.pop_front()
    {
        records = read;
    }
    while let Some(Step::Learnt(_)) = rest.front()
        && let Some(Step::Learnt(record)) = rest.pop_front()
    {
        records.push(record);
    }
    records
}
