//! Everything that needs privilege, behind one type that returns only counts and records.

use super::bursts::Bursts;
use super::cost_meter::{Cost, Meter};
use super::counted::Counted;
use super::counters::Counters;
use super::object::{Sampler, Sharing};
use super::sample_table::{HalfTotals, Table, TableSettings, possible_cpus};
use super::sideband::{Sideband, TimedRecord};
use super::skid::{self, EventSkid};
use super::snapshots::Snapshots;
use super::stacks::{RawStack, StackRings, StacksTaken, WaitTimes};
use super::wait_samples::WaitSamples;
use super::{KernelError, Machine, choose_events, machine};
use crate::budget::{self, Budget};
use crate::clock;
use abi::{
    AheadKey, AheadWords, EVENTS_MAX, Entry, FileRanges, HALVES, KernelScopes, RuleKey, RuleWords,
    RuntimeLayout, Snapshot, WaitLine,
};
use events::{PlannedEvent, Unit};
use std::collections::BTreeMap;
use std::os::fd::RawFd;

/// Settings of the source.
#[derive(Clone, Debug)]
pub struct SourceSettings {
    /// At most [`EVENTS_MAX`] events.
    pub events: Vec<PlannedEvent>,
    /// Sizes of the tables.
    pub table: TableSettings,
    /// Limit on the cost of sampling.
    pub budget: Option<Budget>,
    /// Settings of what is counted once for all processes.
    pub sharing: Sharing,
}

/// Cost of a sample in ns that is assumed where a busy machine cannot be measured: more than any
/// hardware interrupt, less than the most expensive virtual one. A larger value samples too seldom,
/// a smaller one may exceed the budget until a measurement succeeds.
const NS_PER_SAMPLE_ASSUMED: f64 = 5000.0;

/// Samples of one CPU in one drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CpuDrained {
    /// Number of the CPU.
    pub cpu: u32,
    /// Samples taken.
    pub taken: u64,
    /// Samples that the events' counts and periods imply: those taken and those missed.
    pub implied: u64,
}

/// Totals of one drain over all CPUs, as the samplers counted them.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Drained {
    /// Samples taken since the last drain.
    pub taken: u64,
    /// Samples taken that found no entry of theirs in the table.
    pub misses: u64,
    /// Samples taken that are in no entry, by event number.
    pub lost: [u64; EVENTS_MAX],
    /// Counts of the events, by number.
    pub counted: [Counted; EVENTS_MAX],
    /// Samples by CPU.
    pub cpus: Vec<CpuDrained>,
    /// CPUs that went offline, each with the time (CLOCK_MONOTONIC, ns).
    pub gone: Vec<(u32, u64)>,
    /// CPUs that came back and are sampled again.
    pub back: Vec<u32>,
}

impl Drained {
    fn add(&mut self, cpu: usize, totals: &HalfTotals, counted: [Counted; EVENTS_MAX]) {
        self.taken += totals.stats.taken;
        self.misses += u64::from(totals.stats.misses);
        self.counted.iter_mut().zip(counted).for_each(|(sum, counted)| sum.add(counted));
        self.lost.iter_mut().zip(totals.losses).for_each(|(sum, lost)| *sum += lost);
        let implied = counted.iter().map(|counted| counted.implied).sum();
        self.cpus.push(CpuDrained { cpu: cpu as u32, taken: totals.stats.taken, implied });
    }
}

/// Open counters, tables and rings.
pub struct KernelSource {
    counters: Counters,
    table: Table,
    sideband: Sideband,
    sampler: Sampler,
    snapshots: Option<Snapshots>,
    bursts: Option<Bursts>,
    /// Samples of user code per snapshot.
    snapshot_every: u32,
    /// Snapshots that found no room, by CPU, as the samplers count them.
    snapshots_dropped: BTreeMap<usize, u32>,
    stacks: Option<StackRings>,
    wait_times: Option<WaitTimes>,
    wait_samples: Option<WaitSamples>,
    /// One of so many threads of a payer that appears in the next pass is sampled.
    wait_every: u32,
    /// Length of waits that are always taken, in us; 0: none are taken.
    wait_scale_us: u32,
    /// Samples per call stack.
    stack_every: u32,
    /// What kernel code is counted under.
    kernel_scopes: KernelScopes,
    /// By CPU, as the samplers count them: call stacks that found no room, and waits without a
    /// place.
    stacks_dropped: BTreeMap<usize, [u32; 2]>,
    events: Vec<PlannedEvent>,
    programs: Vec<RawFd>,
    cost: Cost,
    meter: Option<Meter>,
    skid: Option<EventSkid>,
    cpus_checked_ns: u64,
    /// Sampling is paused.
    paused: bool,
    /// Sampling has ended, and CPUs that come online are not opened.
    stopped: bool,
}

/// Time between two looks for CPUs that came or went.
const CPUS_INTERVAL_NS: u64 = 2_000_000_000;
/// At the first pass over waiting threads one of so many is chosen: their number is not known yet.
const WAIT_EVERY_FIRST: u32 = 16;
/// Largest part of every CPU that a period may cost. A shorter period is refused: the machine would
/// do little but sample.
const SHARE_MAX: f64 = 0.25;

impl KernelSource {
    /// Opens everything. Records flow at once, samples after [`KernelSource::start`].
    ///
    /// # Errors
    /// The kernel's refusal, with what to do about it.
    pub fn open(settings: &SourceSettings, machine: &Machine) -> Result<Self, KernelError> {
        let sideband = Sideband::open(&machine.cpus)?;
        let mut sampler = Sampler::load(settings.table, settings.sharing, possible_cpus()?)?;
        let programs = (0..settings.events.len())
            .map(|event| sampler.program(event))
            .collect::<Result<Vec<_>, _>>()?;
        let (table, snapshots) = (sampler.table()?, sampler.snapshots()?);
        let (stacks, wait_times) = (sampler.stacks()?, sampler.wait_times()?);
        let wait_samples = sampler.wait_samples()?;
        let mut events = settings.events.clone();
        let clock_hz = machine::clock_hz();
        let (cost, meter) = measure(settings.budget, &events, &programs, machine);
        // Discards the samples of the measurement.
        machine.cpus.iter().for_each(|cpu| empty(&table, *cpu, &mut Vec::new()));
        let skid = measure_skid(&events, &programs, machine, &table);
        let step = budget::highest(settings.budget, cost.ns_per_sample, budget::at_once(&events));
        let rate = budget::RATES.get(step).copied().unwrap_or(1);
        for event in events.iter_mut().filter(|event| event.adjustable) {
            *event = event.at_rate(rate, clock_hz);
        }
        events.iter().try_for_each(|event| affordable(event, cost, clock_hz))?;
        let counters = Counters::open(&events, &programs, &machine.cpus)?;
        counters.share_rings(|cpu| sideband.descriptor(cpu));
        let mut source = Self {
            counters,
            table,
            sideband,
            sampler,
            snapshots,
            bursts: None,
            snapshot_every: 0,
            snapshots_dropped: BTreeMap::new(),
            stacks,
            wait_times,
            wait_samples,
            wait_every: WAIT_EVERY_FIRST,
            wait_scale_us: 0,
            stack_every: 0,
            kernel_scopes: KernelScopes::default(),
            stacks_dropped: BTreeMap::new(),
            events,
            programs,
            cost,
            meter,
            skid,
            cpus_checked_ns: 0,
            paused: false,
            stopped: false,
        };
        if source.snapshots.is_some() {
            source.bursts = source
                .open_bursts()
                .inspect_err(|error| tracing::warn!("no times of loops: {error}"))
                .ok();
        }
        if settings.sharing.kernel_by_scope {
            source.kernel_scopes(KernelScopes::All);
        }
        Ok(source)
    }

    fn open_bursts(&mut self) -> Result<Bursts, KernelError> {
        let mut bursts = Bursts::new(self.sampler.burst()?);
        for cpu in self.counters.cpus() {
            let refused = |error| KernelError::Sampler { reason: format!("bursts: {error}") };
            bursts.add(cpu).map_err(refused)?;
        }
        Ok(bursts)
    }

    /// The events with the periods they are sampled at.
    pub fn events(&self) -> &[PlannedEvent] {
        &self.events
    }

    /// The cost of a sample, as measured at start.
    pub fn cost(&self) -> Cost {
        self.cost
    }

    /// A newer cost of a sample, where it was measured since the last call. Nothing is measured
    /// while sampling is paused.
    pub fn look_at_cost(&mut self) -> Option<Cost> {
        let meter = self.meter.as_mut().filter(|_| !self.paused && !self.stopped)?;
        meter.look(clock::monotonic_ns())
    }

    /// Skid of the first event's samples; None where it could not be measured.
    pub fn skid(&self) -> Option<EventSkid> {
        self.skid
    }

    /// Changes the mean period of an event at once.
    pub fn set_period(&mut self, event: usize, period: u64) {
        if let Some(event) = self.events.get_mut(event) {
            event.period = period;
        }
        self.counters.set_period(event, period);
    }

    /// Revives a CPU's events that the kernel has throttled. A new period does that
    /// (perf_event_period); on an idle CPU whose tick is stopped nothing else does for long.
    pub fn revive(&mut self, cpu: u32) {
        self.counters.begin_spans(cpu as usize);
    }

    /// Advances the turns of events; to be called at short intervals.
    pub fn rotate(&mut self) {
        if !self.paused {
            self.counters.rotate();
        }
    }

    /// Starts sampling.
    ///
    /// # Errors
    /// [`KernelError::Event`] when the kernel refuses to start a counter.
    pub fn start(&mut self) -> Result<(), KernelError> {
        self.counters.start(&self.events)
    }

    /// Pauses sampling, or with false continues it.
    pub fn pause(&mut self, pauses: bool) {
        if self.stopped || pauses == self.paused {
            return;
        }
        self.paused = pauses;
        if pauses {
            self.counters.hold();
        } else if let Err(error) = self.counters.start(&self.events) {
            tracing::error!("sampling does not go on everywhere: {error}");
        }
    }

    /// Stops sampling. Samples that were taken can still be drained, once for each half.
    pub fn stop(&mut self) {
        self.stopped = true;
        self.counters.stop();
    }

    /// Moves the counts of every CPU since the last drain to `entries`, one after the other;
    /// sampling goes on.
    pub fn drain(&mut self, entries: &mut Vec<Entry>) -> Drained {
        let mut drained = Drained::default();
        let cpus: Vec<usize> = self.counters.cpus().collect();
        for &cpu in &cpus {
            let half = self.table.flip(cpu);
            // Otherwise the half keeps its counts, and a later drain takes them.
            if self.sideband.quiesce(cpu) {
                let totals = self.table.drain(cpu, half, entries);
                drained.add(cpu, &totals, self.counters.measure(cpu));
            }
        }
        self.follow_cpus(entries, &mut drained);
        drained
    }

    /// Moves the snapshots that are there now to `into`. Returns the number of snapshots that found
    /// no room since the last call.
    pub fn snapshots(&mut self, into: &mut Vec<Snapshot>) -> u64 {
        let Some(snapshots) = &self.snapshots else { return 0 };
        let mut dropped = 0;
        let may_burst = self.snapshot_every > 0 && !self.paused && !self.stopped;
        for cpu in self.counters.cpus() {
            let held = into.len();
            let now = snapshots.take(cpu, into);
            if let Some(bursts) = self.bursts.as_mut().filter(|_| may_burst) {
                bursts.taken(cpu, (into.len() - held) as u32);
            }
            let before = self.snapshots_dropped.insert(cpu, now).unwrap_or(0);
            dropped += u64::from(now.wrapping_sub(before));
        }
        dropped
    }

    /// Moves the call stacks that are there now to `into`.
    pub fn stacks(&mut self, into: &mut Vec<RawStack>) -> StacksTaken {
        let mut taken = StacksTaken::default();
        let Some(stacks) = &self.stacks else { return taken };
        for cpu in self.counters.cpus() {
            let (now, fill) = stacks.take(cpu, into);
            let before = self.stacks_dropped.insert(cpu, now).unwrap_or_default();
            let ([dropped, crowded], [dropped_before, crowded_before]) = (now, before);
            taken.dropped += u64::from(dropped.wrapping_sub(dropped_before));
            taken.crowded += u64::from(crowded.wrapping_sub(crowded_before));
            taken.fill = taken.fill.max(fill);
        }
        taken
    }

    /// Makes every CPU take a call stack for each period of this many samples; 0: none.
    pub fn stack_every(&mut self, every: u32) {
        self.stack_every = every;
        self.counters.cpus().for_each(|cpu| self.table.stack_every(cpu, every));
    }

    /// Takes the times of threads, and the stacks of waits of this length (in us) and longer; 0:
    /// ends both.
    pub fn take_waits(&mut self, scale_us: u32) {
        if self.wait_scale_us == 0 && scale_us > 0 {
            // The activity of threads in this time is not known.
            self.wait_times.iter().for_each(WaitTimes::clear);
        }
        self.wait_scale_us = scale_us;
        self.counters.cpus().for_each(|cpu| self.table.wait_scale(cpu, scale_us));
    }

    /// Samples waiting threads in a pass over all threads, and moves the samples to `into`. While
    /// switches are traced, only threads are sampled that have not switched since tracing began.
    /// The next pass takes about `samples`. Returns the number of threads chosen, which is larger
    /// than that of the samples where these found no room; None where no pass is possible.
    pub fn see_waits(&mut self, samples: u32, into: &mut Vec<RawStack>) -> Option<u32> {
        let seen = self.wait_samples.as_ref()?;
        seen.begin(self.wait_scale_us > 0, self.wait_every);
        if let Err(error) = self.sampler.pass_over_threads() {
            tracing::info!("no samples of waits where threads change often: {error}");
            self.wait_samples = None;
            return None;
        }
        let chosen = seen.take(into);
        self.wait_every = self.sampler.share_wait_samples(samples);
        Some(chosen)
    }

    /// Copies the times of threads to `into`.
    pub fn wait_times(&self, into: &mut Vec<WaitLine>) {
        self.wait_times.iter().for_each(|times| times.read(into));
    }

    /// Tells the sampler which files a process has mapped, for rules that hold in all processes
    /// with these.
    pub fn set_file_ranges(&mut self, space: u32, ranges: &FileRanges) {
        self.sampler.set_file_ranges(space, ranges);
    }

    /// Adds rules by which the sampler walks stacks.
    pub fn add_rules(&mut self, rules: &[(RuleKey, RuleWords)]) {
        self.sampler.add_rules(rules);
    }

    /// Adds programs by which snapshots have the memory that the code ahead loads.
    pub fn add_ahead(&mut self, programs: &[(AheadKey, AheadWords)]) {
        self.sampler.add_ahead(programs);
    }

    /// Copies the frames of runtimes in this address space, where `layout` says; None: no longer.
    pub fn set_runtime(&mut self, space: u32, layout: Option<&RuntimeLayout>) {
        self.sampler.set_runtime(space, layout);
    }

    /// Makes every CPU take a snapshot for each period of this many samples of user code; 0: none.
    pub fn snapshot_every(&mut self, every: u32) {
        self.snapshot_every = every;
        self.counters.cpus().for_each(|cpu| self.table.snapshot_every(cpu, every));
    }

    /// Counts a process's own text no longer together with that of others, nor that of children it
    /// will have.
    pub fn keep_apart(&mut self, pid: u32) {
        let table = &self.table;
        self.sampler.writing_slot(pid, |is_ours| table.keep_apart(pid, is_ours));
    }

    /// Chooses what kernel code is counted under on every CPU.
    fn kernel_scopes(&mut self, scopes: KernelScopes) {
        self.kernel_scopes = scopes;
        self.counters.cpus().for_each(|cpu| self.table.kernel_scopes(cpu, scopes));
    }

    /// Counts the kernel code of a process, and of the children that it will have, under the scope
    /// of that number; 0: none. Nothing in a pid namespace of the daemon's own: there the daemon
    /// does not know the numbers by which the sampler finds scopes.
    pub fn set_kernel_scope(&mut self, pid: u32, number: u32) {
        if self.sampler.counts_kernel_by_process() || machine::pid_namespace().is_some() {
            return;
        }
        if self.kernel_scopes == KernelScopes::None {
            self.kernel_scopes(KernelScopes::Labelled);
        }
        self.table.set_kernel_scope(pid, number);
    }

    /// Lets other code have the number of a program or a library.
    pub fn release_number(&mut self, number: u32) {
        self.sampler.release_number(number);
    }

    /// Gives the number to no further process.
    pub fn dispute_number(&mut self, number: u32) {
        self.sampler.dispute_number(number);
    }

    /// Fill level of the fullest spill buffer that counts now, 0 to 1.
    pub fn spill_used(&self) -> f64 {
        self.counters.cpus().map(|cpu| self.table.spill_used(cpu)).fold(0.0, f64::max)
    }

    /// Opens the events of CPUs that came online, and closes those of CPUs that went offline.
    fn follow_cpus(&mut self, entries: &mut Vec<Entry>, drained: &mut Drained) {
        let now_ns = clock::monotonic_ns();
        if self.stopped || now_ns.saturating_sub(self.cpus_checked_ns) < CPUS_INTERVAL_NS {
            return;
        }
        self.cpus_checked_ns = now_ns;
        let Ok(online) = machine::cpu_list("online") else { return };
        let dead = self.sideband.dead(now_ns);
        let had: Vec<usize> = self.counters.cpus().collect();
        for &cpu in had.iter().filter(|cpu| dead.contains(cpu) || !online.contains(cpu)) {
            tracing::info!(cpu, "a CPU went offline");
            drained.gone.push((cpu as u32, self.sideband.alive_until(cpu).unwrap_or(now_ns)));
            self.counters.remove(cpu);
            self.bursts.iter_mut().for_each(|bursts| bursts.remove(cpu));
            self.sideband.remove(cpu);
            for half in 0..HALVES {
                drained.add(cpu, &self.table.drain(cpu, half, entries), Default::default());
            }
        }
        let had: Vec<usize> = self.counters.cpus().collect();
        if online.iter().any(|cpu| !had.contains(cpu)) {
            choose_events::follow(&mut self.events);
        }
        for &cpu in online.iter().filter(|cpu| !had.contains(cpu)) {
            let opened = self
                .sideband
                .add(cpu)
                .and_then(|()| self.counters.add(&self.events, &self.programs, cpu));
            let paused = self.paused;
            match opened
                .and_then(|()| if paused { Ok(()) } else { self.counters.start(&self.events) })
            {
                Ok(()) => {
                    tracing::info!(cpu, "a CPU came online and is sampled");
                    drained.back.push(cpu as u32);
                    let bursts = self.bursts.iter_mut();
                    bursts.for_each(|bursts| drop(bursts.add(cpu)));
                    self.table.snapshot_every(cpu, self.snapshot_every);
                    self.table.stack_every(cpu, self.stack_every);
                    self.table.wait_scale(cpu, self.wait_scale_us);
                    self.table.kernel_scopes(cpu, self.kernel_scopes);
                }
                Err(error) => {
                    tracing::warn!(cpu, "a CPU came online and cannot be sampled: {error}");
                    self.counters.remove(cpu);
                    self.sideband.remove(cpu);
                }
            }
        }
        // The kernel lets every reader of its old ring finish first, which takes about 15 ms for
        // each event: not while nothing has changed.
        if !(drained.gone.is_empty() && drained.back.is_empty()) {
            self.counters.share_rings(|cpu| self.sideband.descriptor(cpu));
        }
    }

    /// Moves all records of processes that are there now to `records`, not sorted.
    pub fn records(&mut self, records: &mut Vec<TimedRecord>) {
        self.sideband.read(records);
        self.sampler.changes(records);
    }

    /// Run time in ns and number of runs of all programs, when the kernel measures them
    /// (kernel.bpf_stats_enabled, Linux 5.1).
    pub fn handler_cost(&self) -> Option<(u64, u64)> {
        Some(self.sampler.cost()).filter(|(_, runs)| *runs > 0)
    }
}

/// Measures the cost of a sample with the first event whose frequency is known.
fn measure(
    budget: Option<Budget>,
    events: &[PlannedEvent],
    programs: &[RawFd],
    machine: &Machine,
) -> (Cost, Option<Meter>) {
    let measurable =
        events.iter().zip(programs).find(|(plan, _)| plan.event.unit != Unit::Occurrences);
    let budget = budget.map(|budget| budget.0);
    match measurable.and_then(|(plan, program)| Meter::start(plan, *program, &machine.cpus, budget))
    {
        Some((meter, measured)) => (Cost::of(measured), Some(meter)),
        None => {
            tracing::warn!(
                "the cost of a sample could not be measured; {NS_PER_SAMPLE_ASSUMED} ns are assumed"
            );
            (
                Cost {
                    ns_per_sample: NS_PER_SAMPLE_ASSUMED,
                    measured: None,
                    unix_s: clock::unix_s(),
                },
                None,
            )
        }
    }
}

/// Measures the skid on the last CPU, with the first event whose frequency is known. The tables are
/// empty before and after.
fn measure_skid(
    events: &[PlannedEvent],
    programs: &[RawFd],
    machine: &Machine,
    table: &Table,
) -> Option<EventSkid> {
    let measurable = events.iter().zip(programs).enumerate();
    let (event, (plan, program)) =
        measurable.into_iter().find(|(_, (plan, _))| plan.event.unit != Unit::Occurrences)?;
    let cpu = *machine.cpus.iter().rev().find(|cpu| plan.encoding(**cpu).is_some())?;
    let stalls = skid::run(plan, plan.event.unit.per_second(machine::clock_hz()), *program, cpu);
    let mut entries = Vec::new();
    empty(table, cpu, &mut entries);
    skid::found(event, &entries, stalls?)
}

/// Refuses a period so short that the machine would do little but sample: a virtual machine whose
/// timer takes 14 us hangs at a sample every 10 us.
fn affordable(plan: &PlannedEvent, cost: Cost, clock_hz: u64) -> Result<(), KernelError> {
    let rate = plan.event.unit.per_second(clock_hz) as f64 / plan.period as f64;
    let share = rate * cost.ns_per_sample / 1e9;
    if plan.event.unit == Unit::Occurrences || share <= SHARE_MAX {
        return Ok(());
    }
    let rate_max = (SHARE_MAX * 1e9 / cost.ns_per_sample) as u64;
    let (event, percent) = (plan.event.name.clone(), (100.0 * share) as u64);
    Err(KernelError::TooDear { event, percent, ns_per_sample: cost.ns_per_sample as u64, rate_max })
}

/// Empties both halves of a CPU on which nothing counts.
fn empty(table: &Table, cpu: usize, into: &mut Vec<Entry>) {
    for half in 0..HALVES {
        table.drain(cpu, half, into);
    }
}
