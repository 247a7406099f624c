//! Decides the rates of sampling, from measurements of cost and memory and from the wish to pause.
//!
//! [`Rates`] owns what the decisions depend on (the governor of the sampling rate, the restraint,
//! the cost of a sample, the current term). It does nothing itself: each method takes measurements
//! as values and returns a [`Decision`], which the loop carries out.

use crate::governor::{
    Bill, Governor, SNAPSHOTS_PART, STACKS_PART, SamplingLevel, TERM, WAITS_PART,
};
use crate::restraint::Restraint;
use abi::SNAPSHOTS_PER_CPU;
use events::PlannedEvent;
use kernel::Cost;
use kernel::budget::{Budget, RATES, at_once, highest, kernel_step};
use sampling::waits::Affords;
use sampling::walk_cost::WalkCost;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time between two looks at the rings of records while many records come. Each ring holds about
/// 4000 mappings; a longer time lets a storm of mappings overflow it.
const RECORDS_INTERVAL_BUSY: Duration = Duration::from_millis(100);
/// Interval of reading records while few come. A shorter one costs CPU time on an idle machine, a
/// longer one overflows rings when a storm begins.
const RECORDS_INTERVAL_QUIET: Duration = Duration::from_millis(400);
/// Number of walks of a term above which their measured mean is used. The cost of fewer is mostly
/// that of opening their files.
const WALKS_MEASURED_MIN: u64 = 500;
/// Weight of the newest term in the mean cost of a walk. A program whose tables are read for the
/// first time makes one term's walks dear.
const NEWEST: f64 = 0.5;
/// CPU time that a switch between threads costs where waits are taken, in ns: three tracepoints and
/// two cold cache lines, an estimate: the kernel's BPF statistics add the stacks that some of them
/// copy.
const SWITCH_NS: f64 = 450.0;

/// Cost of a kind of walk, as far as it is not measured.
#[derive(Clone, Copy, Debug)]
struct AssumedCost {
    /// CPU time of one in the sampler and in walks, ns, until [`WALKS_MEASURED_MIN`] were measured.
    ns: f64,
    /// Most per second on all CPUs together.
    per_s_max: f64,
    /// Part of the room that they may cost.
    part: f64,
}

/// Snapshots. More than this many would fill the buffer before the drain.
const SNAPSHOT_ASSUMED: AssumedCost =
    AssumedCost { ns: 30_000.0, per_s_max: 4000.0, part: SNAPSHOTS_PART };
/// Call stacks: at first an inspector walks most of them. More than this many would take ten
/// megabytes a second.
const STACK_ASSUMED: AssumedCost =
    AssumedCost { ns: 18_000.0, per_s_max: 16_000.0, part: STACKS_PART };
/// Share of a CPU's ring of snapshots that may fill between two looks at it, on average. The rest
/// is for bursts; a larger share drops snapshots.
const SNAPSHOT_RING_SHARE: f64 = 0.6;

/// The user's limits, which are read again with the configuration.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// Share of all CPU time that sampling may cost; `None`: any.
    pub budget: Option<Budget>,
    /// Resident memory of the daemon in bytes; `None`: any.
    pub memory_bytes: Option<u64>,
    /// Snapshots per second and CPU; `None`: the sampler takes none.
    pub snapshots_per_s: Option<f64>,
    /// Call stacks per second and CPU; `None`: the sampler takes none.
    pub stacks_per_s: Option<f64>,
    /// Path of the file whose existence pauses sampling.
    pub pause_file: Option<PathBuf>,
}

/// Costs of both kinds of walks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Walks {
    /// Cost of interpreting snapshots of registers.
    pub edges: WalkCost,
    /// Cost of walking call stacks.
    pub stacks: WalkCost,
}

impl Walks {
    fn cpu_ns(self) -> f64 {
        (self.edges.cpu_ns + self.stacks.cpu_ns) as f64
    }

    /// Time in which the sampler took what was walked, ns.
    fn sampler_ns(self) -> f64 {
        (self.edges.sampler_ns + self.stacks.sampler_ns) as f64
    }

    fn since(self, before: Self) -> Self {
        let since = |now: WalkCost, before: WalkCost| WalkCost {
            walked: now.walked.saturating_sub(before.walked),
            cpu_ns: now.cpu_ns.saturating_sub(before.cpu_ns),
            sampler_ns: now.sampler_ns.saturating_sub(before.sampler_ns),
        };
        Self { edges: since(self.edges, before.edges), stacks: since(self.stacks, before.stacks) }
    }
}

/// Mean cost of a walk in recent terms, ns; `None` until it was measured.
#[derive(Clone, Copy, Debug, Default)]
struct Means {
    edges: Option<f64>,
    stacks: Option<f64>,
}

impl Means {
    /// Takes over the walks of a term.
    fn add(&mut self, term: Walks) {
        for (mean, walks) in [(&mut self.edges, term.edges), (&mut self.stacks, term.stacks)] {
            if walks.walked >= WALKS_MEASURED_MIN {
                let ns = walks.cpu_ns + walks.sampler_ns;
                let newest = ns as f64 / walks.walked as f64;
                *mean = Some(mean.map_or(newest, |old| (1.0 - NEWEST) * old + NEWEST * newest));
            }
        }
    }
}

/// Running totals of the cost of the daemon and its samples.
#[derive(Clone, Copy, Debug)]
pub struct Spent {
    /// Time of the reading.
    pub at: Instant,
    /// Time of the reading, in seconds since 1970 UTC.
    pub unix_s: u64,
    /// Samples taken since the start.
    pub taken: u64,
    /// CPU time of the daemon since its start, ns.
    pub cpu_ns: u64,
    /// The part of it that passes over waiting threads took, ns.
    pub passes_ns: u64,
    /// The part of it that keeping code took, ns.
    pub keeping_ns: u64,
    /// Switches between threads of which times were taken, since the start.
    pub switches: u64,
    /// What walks have cost.
    pub walks: Walks,
    /// Resident memory of the daemon, bytes.
    pub resident_bytes: u64,
}

/// Actions for the loop. The default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Decision {
    /// Stop sampling (true) or go on (false).
    pub pause: Option<bool>,
    /// Number of samples of user code per snapshot; 0: none.
    pub snapshot_every: Option<u32>,
    /// Number of samples per call stack; 0: none.
    pub stack_every: Option<u32>,
    /// Sample adjustable events at this many samples per second and CPU.
    pub rate: Option<u64>,
    /// Merge soon.
    pub merge: bool,
}

impl Decision {
    fn and(self, other: Self) -> Self {
        Self {
            pause: other.pause.or(self.pause),
            snapshot_every: other.snapshot_every.or(self.snapshot_every),
            stack_every: other.stack_every.or(self.stack_every),
            rate: other.rate.or(self.rate),
            merge: self.merge || other.merge,
        }
    }
}

/// The state that decisions about rates depend on.
#[derive(Debug)]
pub struct Rates {
    limits: Limits,
    cpus: usize,
    governor: Governor,
    restraint: Restraint,
    cost: Cost,
    term_began: Instant,
    /// What was spent at the start of the term.
    before_term: Spent,
    means: Means,
    last_bill: Option<Bill>,
    /// Snapshots per second and CPU now; `None` before the first decision and where the sampler
    /// takes none.
    snapshot_rate: Option<f64>,
    /// Call stacks per second and CPU now; `None` as for snapshots.
    stack_rate: Option<f64>,
}

impl Rates {
    /// The state for `events` on `cpus` CPUs, where a sample costs `cost`. A term begins now.
    pub fn new(
        limits: Limits,
        cpus: usize,
        events: &[PlannedEvent],
        cost: Cost,
        now: &Spent,
    ) -> Self {
        let adjustable = events.iter().any(|event| event.adjustable);
        Self {
            governor: Governor::new(limits.budget, adjustable, planned_step(events)),
            limits,
            cpus,
            restraint: Restraint::default(),
            cost,
            term_began: now.at,
            before_term: *now,
            means: Means::default(),
            last_bill: None,
            snapshot_rate: None,
            stack_rate: None,
        }
    }

    /// Replaces the limits. Whether the sampler takes snapshots at all is decided when it is
    /// loaded, so their limit changes only from a number to a number.
    pub fn set_limits(&mut self, new: Limits) {
        let snapshots_per_s = self.limits.snapshots_per_s.and(new.snapshots_per_s);
        let snapshots_per_s = snapshots_per_s.or(self.limits.snapshots_per_s);
        let stacks_per_s = self.limits.stacks_per_s.and(new.stacks_per_s);
        let stacks_per_s = stacks_per_s.or(self.limits.stacks_per_s);
        self.governor.set_budget(new.budget);
        self.limits = Limits { snapshots_per_s, stacks_per_s, ..new };
    }

    /// Takes over a newer cost of a sample.
    pub fn set_cost(&mut self, cost: Cost) {
        self.cost = cost;
    }

    /// Path of the file that pauses sampling.
    pub fn pause_file(&self) -> Option<&Path> {
        self.limits.pause_file.as_deref()
    }

    /// Takes over whether the pause file `exists`.
    pub fn told_to_pause(&mut self, exists: bool, samples_per_s: f64) -> Decision {
        let changed = self.restraint.told_to_pause(exists, self.limits.pause_file.as_deref());
        if changed { self.restrain(samples_per_s) } else { Decision::default() }
    }

    /// Actions for the level of activity in force. The epoch gets it with the next merge.
    fn restrain(&mut self, samples_per_s: f64) -> Decision {
        let pause = Some(self.restraint.level() == SamplingLevel::Nothing);
        let merge = true;
        self.pace_snapshots(samples_per_s).and(Decision { pause, merge, ..Decision::default() })
    }

    /// Computes the rates of snapshots and call stacks that the room allows by the cost of walks so
    /// far.
    /// `samples_per_s` is the rate of the first event on one CPU.
    pub fn pace_snapshots(&mut self, samples_per_s: f64) -> Decision {
        let (all, room) = (self.restraint.level() == SamplingLevel::All, self.governor.room());
        let pace = |rate_max: Option<f64>, walk_ns: Option<f64>, assumed: AssumedCost| {
            let rate_max = rate_max?;
            let rate = if all { affordable_walks(room, rate_max, walk_ns, assumed) } else { 0.0 };
            let rate = rate.min(assumed.per_s_max / self.cpus.max(1) as f64);
            Some((rate, if all { every(samples_per_s, rate) } else { 0 }))
        };
        let snapshots = pace(self.limits.snapshots_per_s, self.means.edges, SNAPSHOT_ASSUMED);
        let stacks = pace(self.limits.stacks_per_s, self.means.stacks, STACK_ASSUMED);
        self.snapshot_rate = snapshots.map(|(rate, _)| rate).or(self.snapshot_rate);
        self.stack_rate = stacks.map(|(rate, _)| rate).or(self.stack_rate);
        let (snapshot_every, stack_every) =
            (snapshots.map(|(_, every)| every), stacks.map(|(_, every)| every));
        Decision { snapshot_every, stack_every, ..Decision::default() }
    }

    /// Whether the term ends with a drain at `now`, where drains come every `drain_interval`: the
    /// drain nearest to the end of the term ends it.
    pub fn is_term_over(&self, now: Instant, drain_interval: Duration) -> bool {
        now.saturating_duration_since(self.term_began) + drain_interval / 2 >= TERM
    }

    /// Ends a term: compares its cost with the budget, and the memory with its limit.
    pub fn end_term(
        &mut self,
        now: &Spent,
        events: &[PlannedEvent],
        samples_per_s: f64,
    ) -> Decision {
        let before = std::mem::replace(&mut self.before_term, *now);
        let since = |now: u64, before: u64| now.saturating_sub(before) as f64;
        let length = now.at.saturating_duration_since(self.term_began);
        let walks = now.walks.since(before.walks);
        self.term_began = now.at;
        self.means.add(walks);
        let bill = Bill {
            cpu_ns: length.as_nanos() as f64 * self.cpus as f64,
            sampling_ns: since(now.taken, before.taken) * self.cost.ns_per_sample,
            copies_ns: walks.sampler_ns(),
            switches_ns: since(now.switches, before.switches) * SWITCH_NS,
            daemon_ns: since(now.cpu_ns, before.cpu_ns),
            walks_ns: walks.cpu_ns(),
            passes_ns: since(now.passes_ns, before.passes_ns),
            keeping_ns: since(now.keeping_ns, before.keeping_ns),
        };
        self.last_bill = Some(bill);
        if self.restraint.is_told_to_pause() {
            return Decision::default();
        }
        let memory =
            self.limits.memory_bytes.map_or(0.0, |max| now.resident_bytes as f64 / max as f64);
        let cost = (self.cost.ns_per_sample, at_once(events), kernel_step());
        let verdict = self.governor.judge(bill, memory, cost, now.unix_s);
        // Counts that wait for the disk take memory too, so they are merged.
        let decision = Decision { rate: verdict.rate, merge: memory > 1.0, ..Decision::default() };
        if verdict.level.is_some_and(|level| self.restraint.allow(level)) {
            return decision.and(self.restrain(samples_per_s));
        }
        decision
    }

    /// Time until the rings of records are read again. It is short after a storm of records, where
    /// events take turns (which last as long as these intervals), and where a ring of snapshots
    /// would overflow.
    pub fn records_interval(&self, is_storm: bool, events: &[PlannedEvent]) -> Duration {
        let takes_turns = events.iter().any(|event| event.mux.is_some());
        let interval =
            if is_storm || takes_turns { RECORDS_INTERVAL_BUSY } else { RECORDS_INTERVAL_QUIET };
        let snapshots = self.snapshot_rate.filter(|rate| *rate > 0.0);
        snapshots.map_or(interval, |rate| interval.min(look_within(rate)))
    }

    /// Lowers the rate to what the kernel takes without throttling: an administrator, or the kernel
    /// by itself, may have lowered its limit.
    pub fn follow_kernel(&mut self, now_unix_s: u64) -> Decision {
        let rate = self.governor.keep_below(kernel_step(), now_unix_s);
        Decision { rate, ..Decision::default() }
    }

    /// The step of [`RATES`] that the budget allows by the cost of a sample, and the kernel.
    fn allowed_step(&self, events: &[PlannedEvent]) -> usize {
        highest(self.limits.budget, self.cost.ns_per_sample, at_once(events))
    }

    /// The highest rate that the budget allows by the cost of a sample, in samples per second and
    /// CPU.
    pub fn allowed_per_s(&self, events: &[PlannedEvent]) -> u64 {
        RATES.get(self.allowed_step(events)).copied().unwrap_or(1)
    }

    /// The share of all CPU time that sampling may cost.
    pub fn budget(&self) -> Option<Budget> {
        self.limits.budget
    }

    /// What waits may cost, and what they cost.
    pub fn waits_afford(&self) -> Affords {
        let room = self.governor.room();
        Affords {
            ns_per_s: room.map_or(f64::INFINITY, |room| room.0 * WAITS_PART * 1e9),
            switch_ns: SWITCH_NS,
            stack_ns: self.means.stacks.unwrap_or(STACK_ASSUMED.ns),
        }
    }

    /// What walking call stacks may cost, CPU time of all CPUs in ns per second, and how many times
    /// as many were taken if they cost nothing.
    pub fn walks_afford(&self) -> (f64, f64) {
        let part = self.governor.room().map(|room| room.0 * STACK_ASSUMED.part);
        let ns_per_s = part.map_or(f64::INFINITY, |part| part * 1e9 * self.cpus as f64);
        let rates = self.limits.stacks_per_s.zip(self.stack_rate.filter(|rate| *rate > 0.0));
        (ns_per_s, rates.map_or(1.0, |(most, rate)| most / rate))
    }

    /// The cost of a sample.
    pub fn cost(&self) -> Cost {
        self.cost
    }

    /// The bill of the last whole term; `None` during the first.
    pub fn last_bill(&self) -> Option<Bill> {
        self.last_bill
    }

    /// The governor, with the rate and its last change.
    pub fn governor(&self) -> &Governor {
        &self.governor
    }

    /// The level of activity, and the reason for it.
    pub fn restraint(&self) -> &Restraint {
        &self.restraint
    }

    /// Call stacks per second and CPU at most; `None` where the sampler takes none.
    pub fn stack_rate(&self) -> Option<f64> {
        self.stack_rate
    }

    /// Snapshots per second and CPU at most; `None` where the sampler takes none.
    pub fn snapshot_rate(&self) -> Option<f64> {
        self.snapshot_rate
    }

    /// Moves the start of the term back by this time.
    #[cfg(test)]
    pub fn age_term(&mut self, by: Duration) {
        self.term_began = self.term_began.checked_sub(by).unwrap();
    }
}

/// The step of [`RATES`] at which the adjustable events are planned.
fn planned_step(events: &[PlannedEvent]) -> usize {
    let rate = events.iter().find(|event| event.adjustable).and_then(|event| event.rate);
    RATES.iter().position(|step| Some(*step) == rate).unwrap_or(0)
}

/// Walks per second and CPU that fit their part of the room, at most `rate_max`.
fn affordable_walks(
    room: Option<Budget>,
    rate_max: f64,
    walk_ns: Option<f64>,
    assumed: AssumedCost,
) -> f64 {
    let ns = walk_ns.unwrap_or(assumed.ns);
    let fits = room.map_or(f64::INFINITY, |room| room.0 * assumed.part * 1e9 / ns);
    rate_max.min(fits)
}

/// Samples of user code for each snapshot, where a CPU takes `samples_per_s` samples and at most
/// `rate` snapshots per second.
fn every(samples_per_s: f64, rate: f64) -> u32 {
    (samples_per_s / rate.max(0.01)).ceil().clamp(1.0, 1e6) as u32
}

/// Longest time between two readings of the rings of snapshots such that none overflows at `rate`
/// snapshots per second and CPU.
fn look_within(rate: f64) -> Duration {
    let seconds = SNAPSHOT_RING_SHARE * SNAPSHOTS_PER_CPU as f64 / rate.max(1.0);
    Duration::from_secs_f64(seconds.clamp(0.01, 10.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use events::EventSpec;

    const RATE: f64 = 5200.0;

    fn limits() -> Limits {
        Limits {
            budget: Some(Budget(0.01)),
            memory_bytes: Some(100),
            snapshots_per_s: Some(50.0),
            stacks_per_s: None,
            pause_file: None,
        }
    }

    fn begun() -> Spent {
        Spent {
            at: Instant::now(),
            unix_s: 1,
            taken: 0,
            cpu_ns: 0,
            passes_ns: 0,
            keeping_ns: 0,
            switches: 0,
            walks: Walks::default(),
            resident_bytes: 10,
        }
    }

    /// On one CPU, where a sample costs a microsecond: 0.52 % at the highest rate.
    fn rates(limits: Limits, now: &Spent) -> (Rates, Vec<PlannedEvent>) {
        let events = vec![EventSpec::parse("cpu-clock").unwrap().plan(1)];
        let cost = Cost { ns_per_sample: 1000.0, ..Cost::default() };
        (Rates::new(limits, 1, &events, cost, now), events)
    }

    /// A term later, in which sampling and the daemon took this part of all CPU time.
    fn later(before: &Spent, share: f64) -> Spent {
        let cpu_ns = before.cpu_ns + (share * TERM.as_nanos() as f64) as u64;
        Spent { at: before.at + TERM, unix_s: before.unix_s + 30, cpu_ns, ..*before }
    }

    #[test]
    fn a_term_within_its_limits_changes_nothing() {
        let now = begun();
        let (mut rates, events) = rates(limits(), &now);
        let taken = 30 * 5200;
        let end = Spent { taken, ..later(&now, 0.001) };
        assert_eq!(rates.end_term(&end, &events, RATE), Decision::default());
        let share = rates.last_bill().unwrap().share();
        assert!((share - 0.0062).abs() < 1e-9, "5200 samples/s of 1 us, and the daemon: {share}");
    }

    #[test]
    fn a_term_far_beyond_the_budget_lowers_the_rate_and_nothing_else() {
        let now = begun();
        let (mut rates, events) = rates(limits(), &now);
        rates.set_cost(Cost { ns_per_sample: 10_000.0, ..Cost::default() });
        let end = Spent { taken: 30 * 5200, ..later(&now, 0.0) };
        let decision = rates.end_term(&end, &events, RATE);
        assert_eq!(decision, Decision { rate: Some(460), ..Decision::default() });
        assert_eq!(rates.governor().rate(), Some(460));
    }

    /// Each step against too much memory: the lowest rate, then no snapshots, then no samples.
    /// What waits for the disk is written each time.
    #[test]
    fn too_much_memory_means_less_and_less() {
        let mut now = Spent { resident_bytes: 101, ..begun() };
        let (mut rates, events) = rates(limits(), &now);
        let merge = Decision { merge: true, ..Decision::default() };
        for expected in [
            Decision { rate: Some(28), ..merge },
            Decision { pause: Some(false), snapshot_every: Some(0), ..merge },
            Decision { pause: Some(true), snapshot_every: Some(0), ..merge },
            merge,
        ] {
            now = later(&now, 0.001);
            assert_eq!(rates.end_term(&now, &events, RATE), expected);
        }
        assert_eq!(rates.snapshot_rate(), Some(0.0));
    }

    #[test]
    fn the_pause_file_stops_all_and_its_end_brings_all_back() {
        let now = begun();
        let (mut rates, events) = rates(limits(), &now);
        assert_eq!(rates.told_to_pause(false, RATE), Decision::default());
        let paused = rates.told_to_pause(true, RATE);
        let expected = Decision { pause: Some(true), snapshot_every: Some(0), ..paused };
        assert_eq!((paused, paused.merge), (expected, true), "the epoch is told");
        assert_eq!(rates.told_to_pause(true, RATE), Decision::default(), "once");
        let dear = rates.end_term(&later(&now, 0.5), &events, RATE);
        assert_eq!(dear, Decision::default(), "what a pause costs says nothing of sampling");
        let resumed = rates.told_to_pause(false, RATE);
        assert_eq!((resumed.pause, resumed.snapshot_every), (Some(false), Some(104)));
    }

    #[test]
    fn snapshots_fit_their_share_of_the_budget_by_what_walks_have_cost() {
        let affordable =
            |budget, walk_ns| affordable_walks(budget, 500.0, walk_ns, SNAPSHOT_ASSUMED);
        let one_percent = Some(Budget(0.01));
        assert_eq!(affordable(None, None), 500.0, "without a budget what was asked for");
        let assumed = affordable(one_percent, None);
        assert!((assumed - 0.0015e9 / 30_000.0).abs() < 1e-6, "nothing is measured");
        assert_eq!(affordable(one_percent, Some(1000.0)), 500.0, "a microsecond each");
        let dear = affordable(one_percent, Some(1e6));
        assert!((dear - 1.5).abs() < 0.01, "a millisecond each: {dear}");
        let mut means = Means::default();
        let term = |walked, cpu_ns| {
            let stacks = WalkCost { walked, cpu_ns, sampler_ns: 0 };
            Walks { stacks, ..Walks::default() }
        };
        means.add(term(WALKS_MEASURED_MIN - 1, 1));
        assert_eq!(means.stacks, None, "few walks are not believed");
        means.add(term(1000, 10_000_000));
        means.add(term(1000, 30_000_000));
        assert_eq!((means.stacks, means.edges), (Some(20_000.0), None));
        let now = begun();
        let (mut rates, _) = rates(Limits { stacks_per_s: Some(100.0), ..limits() }, &now);
        rates.cpus = 400;
        let decision = rates.pace_snapshots(RATE);
        assert_eq!((rates.snapshot_rate(), rates.stack_rate()), (Some(10.0), Some(40.0)));
        assert_eq!((decision.snapshot_every, decision.stack_every), (Some(520), Some(130)));
        assert_eq!(
            (every(5200.0, 50.0), every(5200.0, 1e9), every(5200.0, 0.0)),
            (104, 1, 520_000)
        );
    }

    #[test]
    fn rings_are_read_sooner_in_a_storm_and_where_snapshots_fill_them() {
        let now = begun();
        let (mut rates, events) = rates(limits(), &now);
        assert_eq!(rates.records_interval(true, &events), RECORDS_INTERVAL_BUSY);
        assert_eq!(rates.records_interval(false, &events), RECORDS_INTERVAL_QUIET);
        rates.set_limits(Limits { snapshots_per_s: Some(1e6), budget: None, ..limits() });
        let _ = rates.pace_snapshots(RATE);
        let rate = rates.snapshot_rate().unwrap();
        let filled = rate * rates.records_interval(false, &events).as_secs_f64();
        assert!(rate == 4000.0 && filled <= SNAPSHOTS_PER_CPU as f64, "{rate} {filled}");
    }

    #[test]
    fn a_term_ends_with_the_nearest_drain_and_snapshots_stay_on_or_off() {
        let now = begun();
        let (mut rates, _) = rates(limits(), &now);
        let ten = Duration::from_secs(10);
        assert!(!rates.is_term_over(now.at + TERM - ten / 2 - Duration::from_millis(1), ten));
        assert!(rates.is_term_over(now.at + TERM - ten / 2, ten));
        rates.set_limits(Limits { snapshots_per_s: None, ..limits() });
        assert_eq!(rates.limits.snapshots_per_s, Some(50.0), "the sampler is loaded with them");
    }
}
