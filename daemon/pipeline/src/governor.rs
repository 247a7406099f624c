//! The governor: the highest sampling rate whose cost fits the budget.
//!
//! Most of the cost is the interrupt itself, which no profiler can make cheaper: about a
//! microsecond on real hardware, 14 us where a hypervisor emulates the timer. So the daemon
//! measures the cost at start, picks a rate, and then compares the bill (the cost of a term) with
//! the budget.

use kernel::budget::{Budget, RATES};
use std::time::Duration;

/// A term: the time over which a bill is computed and judged.
pub const TERM: Duration = Duration::from_secs(60);
/// Part of the budget that two terms in a row must cost for the rate to go down. A storm of
/// compilers that makes the daemon work for one minute is not a reason. Larger values let sampling
/// cost more, smaller ones let the rate follow noise.
const TOO_MUCH: f64 = 1.25;
/// Part of the budget that a single term must cost for the rate to go down at once.
const FAR_TOO_MUCH: f64 = 4.0;
/// Part of the budget that the bill should be after a step down. In a simulation of busy hours (the
/// test below) 1.0 takes a second step down more than twice as often.
const AIM_DOWN: f64 = 0.8;
/// Part of the budget that samples may always cost while all is done. A bill that the daemon's own
/// work makes too high (a build server's new programs: twice the budget) is not lowered by a lower
/// rate. A larger part leaves the bill higher, a smaller one gives up samples for nothing.
const SAMPLES_PART: f64 = 0.3;
/// Part of the budget that samples may always cost while only counts are taken.
const COUNTS_PART: f64 = 0.1;
/// Share of an excessive bill above which snapshots and call stacks are given up. A smaller part
/// gives them up for next to nothing.
const WORTH_PART: f64 = 0.3;
/// Part of the budget below which a term has room for what [`SamplingLevel::CountsOnly`] leaves
/// out: snapshots and call stacks, which are held to 0.2 of the budget each. Together they stay
/// below [`TOO_MUCH`].
const ROOM: f64 = 0.8;
/// Terms with room before more is done. Fewer bring it back between two commands of one build.
const ROOM_TERMS_MIN: u32 = 5;
/// Part of the budget below which a term counts as a term of plenty. A bill between this and
/// [`TOO_MUCH`] changes nothing.
const PLENTY: f64 = 0.5;
/// Part of the budget that the most expensive of the terms of plenty would have cost at the rate
/// after a step up. A step by the square root of 2 from [`PLENTY`] stays below it, so a step up
/// does not cause a step down.
const AIM_UP: f64 = 0.75;
/// Terms of plenty before a step up. Fewer let the rate go up between two busy times of a host.
const PATIENCE_MIN: u32 = 30;
/// Most such terms before a step up. Each step down that follows a step up doubles the number, up
/// to this, so a host that is busy for some minutes of each hour soon keeps one rate.
const PATIENCE_MAX: u32 = 320;
/// Part of the memory limit below which a term may count as a term of plenty.
const MEMORY_PLENTY: f64 = 0.8;

/// The cost of one term.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bill {
    /// Time of all CPUs in the term, ns.
    pub cpu_ns: f64,
    /// Time in interrupts and the sampler, ns.
    pub sampling_ns: f64,
    /// CPU time of the daemon, ns.
    pub daemon_ns: f64,
    /// The part of it that snapshots and call stacks took, ns.
    pub walks_ns: f64,
}

impl Bill {
    /// The cost as a part of all CPU time.
    pub fn share(&self) -> f64 {
        if self.cpu_ns > 0.0 { (self.sampling_ns + self.daemon_ns) / self.cpu_ns } else { 0.0 }
    }

    /// `part_ns` as a part of the cost, from 0 to 1.
    fn part(&self, part_ns: f64) -> f64 {
        let sum = self.sampling_ns + self.daemon_ns;
        if sum > 0.0 { part_ns / sum } else { 0.0 }
    }
}

/// The level of activity, from all to nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SamplingLevel {
    /// Samples and snapshots of registers are taken.
    #[default]
    All,
    /// Only samples are taken, no snapshots and no call stacks.
    CountsOnly,
    /// Nothing is sampled.
    Nothing,
}

impl SamplingLevel {
    /// Name of the level in the log and in the status.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::CountsOnly => "counts only",
            Self::Nothing => "nothing",
        }
    }

    fn less(self) -> Self {
        if self == Self::All { Self::CountsOnly } else { Self::Nothing }
    }

    fn more(self) -> Self {
        if self == Self::Nothing { Self::CountsOnly } else { Self::All }
    }
}

/// Changes at the end of a term.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Verdict {
    /// The new rate.
    pub rate: Option<u64>,
    /// The new level.
    pub level: Option<SamplingLevel>,
}

/// A change of the rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Time of the change, in seconds since 1970 UTC.
    pub unix_s: u64,
    /// Samples per second and CPU before the change.
    pub from: u64,
    /// Samples per second and CPU after the change.
    pub to: u64,
    /// Reason for the change.
    pub why: String,
}

/// Compares bills with the budget, and memory with its limit. Under pressure first the rate goes
/// down, as far as that saves something. Then, if that saves something, only counts are taken, at a
/// lower rate; under far too much pressure nothing is taken. After some terms with room, and after
/// long plenty, the same steps are taken back.
#[derive(Clone, Debug)]
pub struct Governor {
    budget: Option<Budget>,
    /// True when the budget may choose the rate.
    adjustable: bool,
    step: usize,
    level: SamplingLevel,
    /// Part of the budget that the previous term cost.
    used_before: f64,
    terms_of_plenty: u32,
    /// Part of the budget that the most expensive of the terms of plenty cost.
    dearest: f64,
    /// Number of terms of plenty before a step up.
    patience: u32,
    /// True when the last change of the rate was a step up.
    went_up: bool,
    terms_with_room: u32,
    /// Number of terms with room before more is done.
    room_patience: u32,
    /// True when the last change of the level was to do more.
    did_more: bool,
    last_change: Option<Change>,
}

impl Governor {
    /// A governor that starts at `step` of [`RATES`].
    pub fn new(budget: Option<Budget>, adjustable: bool, step: usize) -> Self {
        let step = step.min(RATES.len() - 1);
        Self {
            budget,
            adjustable,
            step,
            level: SamplingLevel::All,
            used_before: 0.0,
            terms_of_plenty: 0,
            dearest: 0.0,
            patience: PATIENCE_MIN,
            went_up: false,
            terms_with_room: 0,
            room_patience: ROOM_TERMS_MIN,
            did_more: false,
            last_change: None,
        }
    }

    /// Replaces the budget; None: no limit.
    pub fn set_budget(&mut self, budget: Option<Budget>) {
        self.budget = budget;
    }

    /// The rate in force, in samples per second and CPU; None where the budget does not choose it.
    pub fn rate(&self) -> Option<u64> {
        self.is_adjustable().then(|| rate(self.step))
    }

    fn is_adjustable(&self) -> bool {
        self.adjustable && self.budget.is_some()
    }

    /// The level of activity in force.
    pub fn level(&self) -> SamplingLevel {
        self.level
    }

    /// The last change of the rate; None before the first.
    pub fn last_change(&self) -> Option<&Change> {
        self.last_change.as_ref()
    }

    /// Lowers the rate to that of `step`, if it is higher and may be changed; gives the new one.
    pub fn keep_below(&mut self, step: usize, now_unix_s: u64) -> Option<u64> {
        if !self.adjustable || step <= self.step {
            return None;
        }
        let why = "the kernel throttles above kernel.perf_event_max_sample_rate".to_owned();
        self.change_to(step, why, now_unix_s);
        self.begin_anew();
        Some(rate(step))
    }

    fn change_to(&mut self, step: usize, why: String, now_unix_s: u64) {
        let (from, to) = (rate(self.step), rate(step));
        self.last_change = Some(Change { unix_s: now_unix_s, from, to, why });
        self.step = step;
    }

    /// What it cost before a change says nothing of what it costs now.
    fn begin_anew(&mut self) {
        (self.terms_of_plenty, self.dearest) = (0, 0.0);
        (self.used_before, self.terms_with_room) = (0.0, 0);
    }

    /// Judges the bill of a term that ends now, and `memory`, the part of its limit that is used
    /// now (0 without a limit). `allowed` is the step of [`RATES`] that the measured cost of a
    /// sample allows: no step up goes beyond it.
    pub fn judge(&mut self, bill: Bill, memory: f64, allowed: usize, now_unix_s: u64) -> Verdict {
        let used = self.budget.map_or(0.0, |budget| bill.share() / budget.0);
        let before = std::mem::replace(&mut self.used_before, used);
        let is_plenty = used < PLENTY && memory < MEMORY_PLENTY;
        (self.terms_of_plenty, self.dearest) =
            if is_plenty { (self.terms_of_plenty + 1, self.dearest.max(used)) } else { (0, 0.0) };
        // The cheaper of two terms decides, because the surplus of the other may come from a burst.
        let too_much = Some(used.min(before)).filter(|both| *both > TOO_MUCH);
        let too_much = too_much.or(Some(used).filter(|used| *used > FAR_TOO_MUCH));
        let has_room = used < ROOM && memory < MEMORY_PLENTY;
        self.terms_with_room = if has_room { self.terms_with_room + 1 } else { 0 };
        let lowest = RATES.len() - 1;
        let can_go_down = self.is_adjustable() && self.step < lowest;
        let lower = too_much.and_then(|used| self.step_down(used, bill.part(bill.sampling_ns)));
        let is_less_worth_it = |used: f64| match self.level {
            SamplingLevel::All => bill.part(bill.walks_ns) >= WORTH_PART,
            SamplingLevel::CountsOnly | SamplingLevel::Nothing => used > FAR_TOO_MUCH,
        };
        let (mut step, mut level, mut why) = (self.step, self.level, String::new());
        match too_much {
            _ if memory > 1.0 && can_go_down => {
                step = lowest; // it may not have ten minutes
                why = "memory beyond --memory-limit".to_owned();
            }
            Some(used) if lower.is_some() => {
                step = lower.unwrap_or(lowest);
                why = format!("sampling cost {used:.1} times the budget");
            }
            too_much if memory > 1.0 || too_much.is_some_and(is_less_worth_it) => {
                level = level.less();
            }
            _ if level != SamplingLevel::All && self.terms_with_room >= self.room_patience => {
                level = level.more();
            }
            _ if level != SamplingLevel::All || self.terms_of_plenty < self.patience => {}
            _ if self.is_adjustable() && allowed < self.step => {
                let fits = |higher: &usize| self.dearest * factor(self.step, *higher) <= AIM_UP;
                step = (allowed..self.step).find(fits).unwrap_or(self.step);
                let (terms, dearest) = (self.terms_of_plenty, 100.0 * self.dearest);
                why = format!(
                    "sampling cost at most {dearest:.0} % of the budget for {terms} minutes"
                );
            }
            _ => {}
        }
        let verdict = Verdict {
            rate: (step != self.step).then(|| rate(step)),
            level: (level != self.level).then_some(level),
        };
        if step != self.step {
            let goes_up = step < self.step;
            if self.went_up && !goes_up {
                self.patience = (self.patience * 2).min(PATIENCE_MAX);
            }
            self.went_up = goes_up;
            self.change_to(step, why, now_unix_s);
        }
        if let Some(level) = verdict.level {
            let is_more = level < self.level;
            if self.did_more && !is_more {
                self.room_patience = (self.room_patience * 2).min(PATIENCE_MAX);
            }
            self.did_more = is_more;
        }
        if verdict != Verdict::default() {
            self.level = level;
            self.begin_anew();
        }
        verdict
    }

    /// The step after a bill of `used` times the budget, of which `samples` are the samples; None
    /// when a lower rate saves nothing worth its samples.
    fn step_down(&self, used: f64, samples: f64) -> Option<usize> {
        let lowest = RATES.len() - 1;
        if !self.is_adjustable() || self.step >= lowest {
            return None;
        }
        let of_samples = |lower: usize| used * samples * factor(self.step, lower);
        let fits = |lower: &usize| used * (1.0 - samples) + of_samples(*lower) <= AIM_DOWN;
        let least = if self.level == SamplingLevel::All { SAMPLES_PART } else { COUNTS_PART };
        let worth_it = (self.step + 1..=lowest).take_while(|lower| of_samples(*lower) >= least);
        worth_it.clone().find(fits).or_else(|| worth_it.last())
    }
}

fn rate(step: usize) -> u64 {
    RATES.get(step).copied().unwrap_or(1)
}

/// Factor by which a change of the rate changes the bill.
fn factor(from: usize, to: usize) -> f64 {
    rate(to) as f64 / rate(from) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::budget::affordable;

    fn bill(percent: f64) -> Bill {
        let [sampling_ns, daemon_ns, walks_ns] = [0.5e7, 0.5e7, 0.4e7].map(|part| percent * part);
        Bill { cpu_ns: 1e9, sampling_ns, daemon_ns, walks_ns }
    }

    const NOW: u64 = 1_800_000_000;

    #[test]
    fn a_bill_above_the_budget_lowers_the_rate_and_long_plenty_raises_it() {
        let mut governor = Governor::new(Some(Budget(0.01)), true, 2);
        let rate = |governor: &mut Governor, bill| governor.judge(bill, 0.5, 0, NOW).rate;
        assert!((bill(2.0).share() - 0.02).abs() < 1e-12);
        assert_eq!(
            [1.2, 1.2, 3.9, 1.2].map(|percent| rate(&mut governor, bill(percent))),
            [None; 4],
            "one dear term"
        );
        assert_eq!(rate(&mut governor, bill(1.3)), None);
        assert_eq!(rate(&mut governor, bill(1.35)), Some(1300));
        let change = Change {
            unix_s: NOW,
            from: 2600,
            to: 1300,
            why: "sampling cost 1.3 times the budget".into(),
        };
        assert_eq!(governor.last_change(), Some(&change));
        for _ in 1..PATIENCE_MIN {
            assert_eq!(rate(&mut governor, bill(0.4)), None);
        }
        assert_eq!(
            rate(&mut governor, bill(0.7)),
            None,
            "one dearer term, and patience begins anew"
        );
        for _ in 1..PATIENCE_MIN {
            assert_eq!(rate(&mut governor, bill(0.4)), None);
        }
        assert_eq!(rate(&mut governor, bill(0.4)), Some(1850));
        assert_eq!(
            rate(&mut governor, bill(4.1)),
            Some(325),
            "far too much: at once, and as far as saves something"
        );
        for _ in 1..2 * PATIENCE_MIN {
            assert_eq!(rate(&mut governor, bill(0.1)), None, "it was up too early");
        }
        assert_eq!(rate(&mut governor, bill(0.1)), Some(1850), "as far as the bill allows");
    }

    /// A busy host's bills and costs went up and down by the minute, and the rate with them: 5200,
    /// 3700, 2600, 3700, ... in an hour.
    #[test]
    fn a_busy_hour_seldom_changes_the_rate_more_than_twice() {
        let mut random = fastrand::Rng::with_seed(11);
        let mut more_than_twice = 0;
        for hour in 0..1000 {
            let ns = 2_000.0 + 10_000.0 * random.f64();
            let busy = 0.2 + 0.8 * random.f64(); // the part of its minutes that are disturbed
            let daemon_ns = 200.0 + 3_000.0 * random.f64();
            let budget = Budget(0.01);
            let mut governor = Governor::new(Some(budget), true, affordable(budget, ns, 1));
            let mut changes = 0;
            for minute in 0..60 {
                let is_disturbed = random.f64() < busy;
                let factor = if is_disturbed { 1.0 + 3.0 * random.f64() } else { 1.0 };
                let (cpu_ns, samples) = (60e9, 60.0 * governor.rate().unwrap() as f64);
                let measured_ns = ns * (0.8 + 0.4 * random.f64());
                let bill = Bill {
                    cpu_ns,
                    sampling_ns: samples * measured_ns,
                    daemon_ns: samples * daemon_ns * factor,
                    walks_ns: 0.4 * samples * daemon_ns * factor,
                };
                let allowed = affordable(budget, measured_ns, 1);
                changes +=
                    u32::from(governor.judge(bill, 0.0, allowed, NOW + 60 * minute).rate.is_some());
            }
            assert!(changes <= 4, "hour {hour}: {changes} changes, {:?}", governor.last_change());
            more_than_twice += u32::from(changes > 2);
        }
        assert!(more_than_twice <= 20, "{more_than_twice} of 1000 hours");
    }

    /// A build server's new programs made the daemon's own work cost twice the budget. The rate
    /// went from 460 to 28 within minutes and call stacks were given up, which saved nothing.
    #[test]
    fn work_that_samples_do_not_cause_takes_few_samples_away() {
        let bill = |governor: &Governor, walks_percent| {
            let samples_per_s = governor.rate().unwrap();
            let is_less = governor.level() != SamplingLevel::All;
            let percent = if is_less { 0.3 } else { 1.5 };
            Bill {
                cpu_ns: 60e9,
                sampling_ns: 60.0 * samples_per_s as f64 * 12_900.0,
                daemon_ns: percent * 0.6e9,
                walks_ns: walks_percent * 0.6e9,
            }
        };
        let verdicts = |governor: &mut Governor, walks_percent, minutes| {
            let mut verdicts = Vec::new();
            for _ in 0..minutes {
                let bill = bill(governor, walks_percent);
                verdicts.extend(Some(governor.judge(bill, 0.0, 7, NOW)));
            }
            verdicts.retain(|verdict| *verdict != Verdict::default());
            verdicts
        };
        let mut governor = Governor::new(Some(Budget(0.01)), true, 7);
        let lower = Verdict { rate: Some(325), level: None };
        assert_eq!(verdicts(&mut governor, 0.3, 60), [lower], "call stacks are little of it");
        let [all, less] = [SamplingLevel::All, SamplingLevel::CountsOnly]
            .map(|level| Verdict { rate: None, level: Some(level) });
        assert_eq!(verdicts(&mut governor, 1.2, 60), [less, all, less, all, less, all, less]);
        assert_eq!(governor.rate(), Some(325));
    }

    #[test]
    fn the_measured_cost_limits_what_plenty_may_raise() {
        let mut governor = Governor::new(Some(Budget(0.01)), true, 5);
        assert!(
            (0..200).all(|_| governor.judge(bill(0.1), 0.0, 5, NOW) == Verdict::default()),
            "no margin"
        );
        let raised = (0..200).find_map(|_| governor.judge(bill(0.1), 0.0, 4, NOW).rate);
        assert_eq!(raised, Some(RATES[4]), "and no further");
    }

    #[test]
    fn the_ends_of_the_ladder_hold() {
        let mut governor = Governor::new(Some(Budget(0.01)), true, 0);
        assert!((0..50).all(|_| governor.judge(bill(0.0), 0.0, 0, NOW) == Verdict::default()));
        let mut governor = Governor::new(None, true, 3);
        assert!(
            (0..50).all(|_| governor.judge(bill(99.0), 0.9, 0, NOW) == Verdict::default()),
            "no budget, no limit"
        );
        assert_eq!(governor.rate(), None);
    }

    #[test]
    fn under_pressure_less_is_done_step_by_step_and_after_plenty_more_again() {
        let level = |level| Verdict { rate: None, level: Some(level) };
        let lowest = RATES.len() - 1;
        let mut governor = Governor::new(Some(Budget(0.01)), true, lowest - 1);
        let mut judge = |percent, memory| governor.judge(bill(percent), memory, 0, NOW);
        assert_eq!(judge(5.0, 0.0).rate, Some(28));
        assert_eq!(judge(5.0, 0.0), level(SamplingLevel::CountsOnly));
        assert_eq!(judge(5.0, 0.0), level(SamplingLevel::Nothing));
        assert_eq!(judge(5.0, 0.0), Verdict::default());
        for expected in [SamplingLevel::CountsOnly, SamplingLevel::All] {
            assert!((1..ROOM_TERMS_MIN).all(|_| judge(0.7, 0.1) == Verdict::default()));
            assert_eq!(judge(0.7, 0.1), level(expected));
        }
        assert_eq!(judge(5.0, 0.0), level(SamplingLevel::CountsOnly));
        assert!((1..2 * ROOM_TERMS_MIN).all(|_| judge(0.7, 0.1) == Verdict::default()));
        assert_eq!(judge(0.7, 0.1), level(SamplingLevel::All), "later, since it was too early");
        assert!((1..PATIENCE_MIN).all(|_| judge(0.4, 0.1) == Verdict::default()));
        assert_eq!(judge(0.4, 0.1).rate, Some(40));
        // Memory: the lowest rate at once, and a rate that is not ours stays.
        let mut governor = Governor::new(Some(Budget(0.01)), true, 0);
        let mut judge = |percent, memory| governor.judge(bill(percent), memory, 0, NOW);
        assert_eq!(judge(0.0, 1.1).rate, Some(28));
        assert_eq!(judge(0.0, 1.1), level(SamplingLevel::CountsOnly));
        assert!((0..50).all(|_| judge(0.0, 0.9) == Verdict::default()), "no plenty");
        let mut governor = Governor::new(None, false, 0);
        assert_eq!(governor.judge(bill(0.0), 1.1, 0, NOW), level(SamplingLevel::CountsOnly));
    }
}
