//! The governor: the highest sampling rate, and the parts of the budget for the rest, whose cost
//! fits the budget.
//!
//! What dcpid costs has three kinds. Samples: most of their cost is the interrupt itself, which no
//! profiler can make cheaper, about a microsecond on real hardware, 14 us where a hypervisor
//! emulates the timer. Call stacks, snapshots and waits: so many are taken as their part of the
//! budget pays for. All else, such as looking at the files of new programs and writing profiles,
//! grows with what the host does, and nothing lowers it. So the governor looks at the bill of each
//! term, keeps what all else costs, and divides the rest of the budget, the room. What a term has
//! cost beyond the budget is saved in the next ones.

use kernel::budget::{Budget, RATES, SAMPLES_PART_MAX, affordable};
use std::time::Duration;

/// A term: the time over which a bill is computed and judged. Longer terms react late, bills of
/// shorter ones are noise: a drain comes every 10 s.
pub const TERM: Duration = Duration::from_secs(30);
/// Part of the room that call stacks of samples may cost. A larger part leaves less for samples;
/// so it is with the next two.
pub const STACKS_PART: f64 = 0.2;
/// Part of the room that snapshots of registers may cost.
pub const SNAPSHOTS_PART: f64 = 0.15;
/// Part of the room that waits may cost: the sampler's work at each switch between threads, and the
/// call stacks of waits.
pub const WAITS_PART: f64 = 0.25;
/// Part of the room that samples have at least, whatever the others cost.
const SAMPLES_PART_MIN: f64 = 0.45;
/// Part of the budget that is room at least. All else may cost more than the whole budget, in a
/// storm of new programs; a smaller part would then end sampling, which does not lower it.
const ROOM_MIN: f64 = 0.3;
/// Weight of the newest term in the mean cost of all else. A larger weight lets the rate follow
/// noise, with a smaller one a load that begins is overspent for longer.
const NEWEST: f64 = 0.3;
/// Factor by which the cost of samples may exceed their part before the rate goes down. With a
/// smaller factor the rate follows noise.
const TOLERATED: f64 = 1.15;
/// Part of what samples may cost that they may cost after a step up. A larger part lets a step down
/// follow soon.
const AIM_UP: f64 = 0.9;
/// Terms in which what was overspent is saved.
const REPAY_TERMS: f64 = 10.0;
/// Most that may be owed, in budgets of a term. More would leave a host without samples long after
/// a storm.
const OWED_MAX: f64 = 5.0;
/// Terms in a row that must ask for a lower rate. A storm of compilers that makes the daemon work
/// for one term is not a reason.
const TERMS_DOWN: u32 = 2;
/// Terms of dcpid before that. In the first ones all files and all code are new to it, and a rate
/// that these ask for would stay for ten minutes.
const TERMS_FIRST: u32 = 4;
/// Part of the budget that a single term must cost for the rate to go down at once.
const FAR_TOO_MUCH: f64 = 2.0;
/// Part of the budget that two terms in a row must cost for less to be done than is done at the
/// lowest rate.
const TOO_MUCH: f64 = 1.25;
/// Share of such a bill above which snapshots and call stacks are given up. A smaller part gives
/// them up for next to nothing.
const WORTH_PART: f64 = 0.3;
/// Part of the budget below which a term has room for what [`SamplingLevel::CountsOnly`] leaves
/// out.
const ROOMY: f64 = 0.6;
/// Terms with room before more is done. Fewer bring it back between two commands of one build.
const ROOM_TERMS_MIN: u32 = 10;
/// Terms in a row that must allow a higher rate. Fewer let the rate go up between two busy times of
/// a host.
const PATIENCE_MIN: u32 = 20;
/// Most such terms before a step up. Each step down that follows a step up doubles the number, up
/// to this, so a host that is busy for some minutes of each hour soon keeps one rate.
const PATIENCE_MAX: u32 = 640;
/// Part of the memory limit below which more may be done.
const MEMORY_PLENTY: f64 = 0.8;

/// The cost of one term, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bill {
    /// Time of all CPUs in the term.
    pub cpu_ns: f64,
    /// Time in interrupts and the sampler.
    pub sampling_ns: f64,
    /// Time in which the sampler copies stacks and registers.
    pub copies_ns: f64,
    /// Time that is added to switches between threads.
    pub switches_ns: f64,
    /// CPU time of the daemon and its inspectors.
    pub daemon_ns: f64,
    /// The part of it that snapshots and call stacks took.
    pub walks_ns: f64,
    /// The part of it that passes over waiting threads took.
    pub passes_ns: f64,
    /// The part of it that keeping code took.
    pub keeping_ns: f64,
}

impl Bill {
    /// The cost as a part of all CPU time.
    pub fn share(&self) -> f64 {
        self.part_of_cpu(self.sum_ns())
    }

    /// `ns` as a part of all CPU time.
    pub fn part_of_cpu(&self, ns: f64) -> f64 {
        if self.cpu_ns > 0.0 { ns / self.cpu_ns } else { 0.0 }
    }

    fn sum_ns(&self) -> f64 {
        self.sampling_ns + self.copies_ns + self.switches_ns + self.daemon_ns
    }

    /// What call stacks, snapshots and waits cost, of which fewer may be taken.
    pub fn paced_ns(&self) -> f64 {
        self.copies_ns + self.switches_ns + self.walks_ns + self.passes_ns
    }

    /// What nothing lowers.
    pub fn rest_ns(&self) -> f64 {
        (self.daemon_ns - self.walks_ns - self.passes_ns).max(0.0)
    }

    /// The cost by what it was for, as parts of all CPU time.
    pub fn items(&self) -> [(&'static str, f64); 5] {
        let rest_ns = (self.rest_ns() - self.keeping_ns).max(0.0);
        let items = [
            ("samples", self.sampling_ns),
            ("stacks", self.copies_ns + self.walks_ns),
            ("waits", self.switches_ns + self.passes_ns),
            ("keeping_code", self.keeping_ns),
            ("rest", rest_ns),
        ];
        items.map(|(item, ns)| (item, self.part_of_cpu(ns)))
    }

    /// The part of the cost that snapshots and call stacks have.
    fn walks_part(&self) -> f64 {
        let sum = self.sum_ns();
        if sum > 0.0 { (self.walks_ns + self.copies_ns) / sum } else { 0.0 }
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

/// Compares bills with the budget, and memory with its limit. The rate follows the room. Where
/// memory is short, or the bill is too high at the lowest rate, only counts are taken, and then
/// nothing. After some terms with room the same steps are taken back.
#[derive(Clone, Debug)]
pub struct Governor {
    budget: Option<Budget>,
    /// True when the budget may choose the rate.
    adjustable: bool,
    step: usize,
    level: SamplingLevel,
    /// Mean cost of all else, and of what is paced, as parts of all CPU time; None before the first
    /// term.
    costs: Option<Costs>,
    /// What terms cost beyond the budget and was not saved since, in budgets of a term.
    owed: f64,
    /// Part of the budget that the previous term cost.
    used_before: f64,
    /// Terms so far.
    terms: u32,
    /// Terms in a row that asked for a lower rate.
    terms_down: u32,
    /// Terms in a row that allowed a higher rate, and the highest that all of them allowed.
    terms_up: (u32, usize),
    /// Number of such terms before a step up.
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

/// Parts of all CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Costs {
    rest: f64,
    paced: f64,
}

impl Costs {
    fn of(bill: &Bill) -> Self {
        Self { rest: bill.part_of_cpu(bill.rest_ns()), paced: bill.part_of_cpu(bill.paced_ns()) }
    }

    fn then(self, newest: Self) -> Self {
        let mean = |old: f64, new: f64| (1.0 - NEWEST) * old + NEWEST * new;
        Self { rest: mean(self.rest, newest.rest), paced: mean(self.paced, newest.paced) }
    }
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
            costs: None,
            owed: 0.0,
            used_before: 0.0,
            terms: 0,
            terms_down: 0,
            terms_up: (0, 0),
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

    /// The part of all CPU time that samples and what is paced may cost together: the budget
    /// without what all else costs and what is owed. None without a budget.
    pub fn room(&self) -> Option<Budget> {
        let Budget(budget) = self.budget?;
        let rest = self.costs.unwrap_or_default().rest;
        let saved = budget * self.owed / REPAY_TERMS;
        Some(Budget((budget - rest - saved).max(budget * ROOM_MIN)))
    }

    /// Lowers the rate to that of `step`, if it is higher and may be changed; gives the new one.
    pub fn keep_below(&mut self, step: usize, now_unix_s: u64) -> Option<u64> {
        if !self.adjustable || step <= self.step {
            return None;
        }
        let why = "the kernel throttles above kernel.perf_event_max_sample_rate".to_owned();
        self.change_to(step, why, now_unix_s);
        Some(rate(step))
    }

    fn change_to(&mut self, step: usize, why: String, now_unix_s: u64) {
        let (from, to) = (rate(self.step), rate(step));
        self.last_change = Some(Change { unix_s: now_unix_s, from, to, why });
        self.step = step;
        (self.terms_down, self.terms_up) = (0, (0, 0));
    }

    /// The step that the room allows when a sample of one of `events` events costs
    /// `ns_per_sample`: the one in force where that is nearly right.
    fn affordable(&self, ns_per_sample: f64, events: usize) -> usize {
        let (Some(Budget(room)), Some(Budget(budget))) = (self.room(), self.budget) else {
            return 0;
        };
        let paced = self.costs.unwrap_or_default().paced;
        let most = (budget * SAMPLES_PART_MAX).max(room * SAMPLES_PART_MIN);
        let part = (room - paced).clamp(room * SAMPLES_PART_MIN, most);
        let within = |part| affordable(part, ns_per_sample, events);
        match within(part) {
            lower if within(part * TOLERATED) > self.step => lower,
            // At the most that samples may cost there is no margin.
            higher if higher < self.step && part >= most => higher,
            _ => within(part * AIM_UP).min(self.step),
        }
    }

    /// Judges the bill of a term that ends now, and `memory`, the part of its limit that is used
    /// now (0 without a limit). A sample of one of `events` events costs `ns_per_sample`; `fastest`
    /// is the highest rate that the kernel takes, as a step of [`RATES`].
    pub fn judge(
        &mut self,
        bill: Bill,
        memory: f64,
        (ns_per_sample, events, fastest): (f64, usize, usize),
        now_unix_s: u64,
    ) -> Verdict {
        self.terms = self.terms.saturating_add(1);
        let used = self.budget.map_or(0.0, |budget| bill.share() / budget.0);
        let before = std::mem::replace(&mut self.used_before, used);
        let newest = Costs::of(&bill);
        self.costs = Some(self.costs.map_or(newest, |mean| mean.then(newest)));
        self.owed = (self.owed + used - 1.0).clamp(0.0, OWED_MAX);
        let allowed = self.affordable(ns_per_sample, events).max(fastest);
        let has_room = used < ROOMY && memory < MEMORY_PLENTY;
        self.terms_with_room = if has_room { self.terms_with_room + 1 } else { 0 };
        self.terms_down = if allowed > self.step { self.terms_down + 1 } else { 0 };
        self.terms_up = match self.terms_up {
            _ if allowed >= self.step || memory >= MEMORY_PLENTY => (0, 0),
            (terms, highest) => (terms + 1, highest.max(allowed)),
        };
        let lowest = RATES.len() - 1;
        let is_lower = allowed > self.step && self.is_adjustable();
        let lasts = self.terms_down >= TERMS_DOWN && self.terms > TERMS_FIRST;
        let too_much = used.min(before) > TOO_MUCH || used > FAR_TOO_MUCH;
        let is_less_worth_it = match self.level {
            SamplingLevel::All => bill.walks_part() >= WORTH_PART,
            SamplingLevel::CountsOnly | SamplingLevel::Nothing => used > 2.0 * FAR_TOO_MUCH,
        };
        let (mut step, mut level, mut why) = (self.step, self.level, String::new());
        if memory > 1.0 && self.is_adjustable() && self.step < lowest {
            step = lowest; // it may not have ten minutes
            why = "memory beyond --memory-limit".to_owned();
        } else if is_lower && (lasts || used > FAR_TOO_MUCH) {
            step = allowed;
            why = self.why_lower(used, before);
        } else if memory > 1.0 || (too_much && !is_lower && is_less_worth_it) {
            level = level.less();
        } else if level != SamplingLevel::All {
            if self.terms_with_room >= self.room_patience {
                level = level.more();
            }
        } else if self.terms_up.0 >= self.patience && self.is_adjustable() {
            step = self.terms_up.1;
            why = format!("the budget allowed it for {} terms", self.terms_up.0);
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
            self.terms_with_room = 0;
            self.level = level;
        }
        verdict
    }

    /// What takes the room of samples.
    fn why_lower(&self, used: f64, before: f64) -> String {
        let costs = self.costs.unwrap_or_default();
        let budget = self.budget.map_or(1.0, |budget| budget.0);
        let percent = |share: f64| 100.0 * share / budget;
        let (rest, paced) = (percent(costs.rest), percent(costs.paced));
        let worst = 100.0 * used.max(before);
        format!(
            "a term cost {worst:.0} % of the budget; dcpid without samples, stacks and waits costs \
             {rest:.0} %, stacks and waits {paced:.0} %"
        )
    }
}

fn rate(step: usize) -> u64 {
    RATES.get(step).copied().unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;
    /// A term of one CPU.
    const CPU_NS: f64 = 30e9;

    /// A bill of these parts of all CPU time, in percent: samples, walks, all else.
    fn bill(samples: f64, walks: f64, rest: f64) -> Bill {
        let of = |percent: f64| percent / 100.0 * CPU_NS;
        Bill {
            cpu_ns: CPU_NS,
            sampling_ns: of(samples),
            daemon_ns: of(walks + rest),
            walks_ns: of(walks),
            ..Bill::default()
        }
    }

    /// A host whose samples cost `ns`, and whose walks cost the part of the room that they may.
    struct Host {
        governor: Governor,
        ns: f64,
        events: usize,
    }

    impl Host {
        fn new(percent: f64, ns: f64) -> Self {
            let budget = Budget(percent / 100.0);
            let step = affordable(budget.0 * SAMPLES_PART_MAX, ns, 1);
            Self { governor: Governor::new(Some(budget), true, step), ns, events: 1 }
        }

        /// A term in which all else costs this part of all CPU time, in percent, and stacks and
        /// snapshots `walks` of what they may. Its bill and the verdict.
        fn term(&mut self, rest: f64, walks: f64) -> (Bill, Verdict) {
            let samples_per_s = self.governor.rate().unwrap() as f64;
            let room = self.governor.room().unwrap().0 * 100.0;
            let is_all = self.governor.level() == SamplingLevel::All;
            let walks = if is_all { walks * room * (STACKS_PART + SNAPSHOTS_PART) } else { 0.0 };
            let bill = bill(samples_per_s * self.ns / 1e7, walks, rest);
            (bill, self.governor.judge(bill, 0.0, (self.ns, self.events, 0), NOW))
        }
    }

    /// Beside a compile load dcpid cost 1.9 to 2.6 times its budget: samples had 0.8 of it, stacks,
    /// snapshots and waits 0.2 to 0.3 each, and what processes cost came on top.
    #[test]
    fn ten_minutes_cost_at_most_the_budget_whatever_takes_it() {
        for percent in [0.5, 1.0, 2.0] {
            for ns in [1_000.0, 5_000.0, 17_000.0, 31_000.0] {
                for (rest, walks) in [(0.05, 0.1), (0.1, 1.0), (0.3, 1.0), (0.5, 1.0), (0.6, 0.5)] {
                    let mut host = Host::new(percent, ns);
                    let mut sum = 0.0;
                    for _ in 0..20 {
                        sum += host.term(rest * percent, walks).0.share();
                    }
                    let used = sum / 20.0 / (percent / 100.0);
                    assert!(used < 1.03, "{percent} % {ns} ns {rest} {walks}: {used}");
                    assert_eq!(host.governor.level(), SamplingLevel::All);
                }
            }
        }
    }

    /// A program of 92 MB began, and stacks ended for five minutes.
    #[test]
    fn one_dear_term_ends_nothing_and_is_saved_later() {
        let mut host = Host::new(1.0, 17_000.0);
        for _ in 0..4 {
            assert_eq!(host.term(0.1, 1.0).1, Verdict::default());
        }
        let before = host.governor.room().unwrap().0;
        let (dear, _) = host.term(1.1, 1.0);
        assert!(dear.share() > 0.015);
        let mut shares = vec![dear.share()];
        for _ in 0..19 {
            shares.push(host.term(0.1, 1.0).0.share());
            assert_eq!(host.governor.level(), SamplingLevel::All);
        }
        let mean = shares.iter().sum::<f64>() / 20.0;
        assert!(mean < 0.0103, "{mean}");
        assert!(host.governor.room().unwrap().0 > 0.95 * before);
    }

    /// A build server's new programs made the daemon's own work cost twice the budget. The rate
    /// went to the lowest within minutes and call stacks were given up, which saved nothing.
    #[test]
    fn work_that_samples_do_not_cause_takes_not_all_samples_away() {
        let mut host = Host::new(1.0, 12_900.0);
        let first = (0..5).find_map(|_| host.term(1.5, 1.0).1.rate);
        let why = &host.governor.last_change().unwrap().why;
        assert!(why.contains("dcpid without samples, stacks and waits costs 1"), "{why}");
        let verdicts: Vec<Verdict> = (0..115).map(|_| host.term(1.5, 1.0).1).collect();
        let rates: Vec<u64> = verdicts.iter().filter_map(|verdict| verdict.rate).collect();
        assert!(first >= Some(80) && rates.len() <= 2, "{first:?}, {rates:?}");
        assert!(verdicts.iter().all(|verdict| verdict.level.is_none()), "they cost little");
    }

    #[test]
    fn long_plenty_raises_the_rate_and_later_each_time_it_was_too_early() {
        let mut host = Host::new(1.0, 17_000.0);
        let start = host.governor.rate();
        let until = |host: &mut Host, rest: f64, is_higher: bool| {
            let before = host.governor.rate();
            (1..2000).find(|_| {
                host.term(rest, 0.5);
                if is_higher {
                    host.governor.rate() > before
                } else {
                    host.governor.rate() < before
                }
            })
        };
        assert!(until(&mut host, 0.6, false).is_some_and(|terms| terms <= TERMS_FIRST + 1));
        let first = until(&mut host, 0.05, true).unwrap();
        assert!((PATIENCE_MIN..PATIENCE_MIN + 12).contains(&first), "{first}");
        (0..PATIENCE_MIN).for_each(|_| {
            host.term(0.05, 0.5);
        });
        assert_eq!(host.governor.rate(), start);
        assert!(until(&mut host, 0.6, false).is_some());
        let second = until(&mut host, 0.05, true).unwrap();
        assert!(second >= 2 * PATIENCE_MIN, "{second}");
    }

    /// A busy host's bills and costs went up and down by the minute, and the rate with them: 5200,
    /// 3700, 2600, 3700, ... in an hour.
    #[test]
    fn a_busy_hour_seldom_changes_the_rate_more_than_thrice() {
        let mut random = fastrand::Rng::with_seed(11);
        let mut more_than_thrice = 0;
        for hour in 0..1000 {
            let ns = 2_000.0 + 10_000.0 * random.f64();
            let busy = 0.2 + 0.8 * random.f64(); // the part of its minutes that are disturbed
            let rest = 0.1 + 0.2 * random.f64();
            let mut host = Host::new(1.0, ns);
            let mut changes = 0;
            for _ in 0..120 {
                let is_disturbed = random.f64() < busy;
                let factor = if is_disturbed { 1.0 + 2.0 * random.f64() } else { 1.0 };
                host.ns = ns * (0.9 + 0.2 * random.f64());
                changes += u32::from(host.term(rest * factor, 1.0).1.rate.is_some());
            }
            assert!(changes <= 6, "hour {hour}: {changes} changes");
            more_than_thrice += u32::from(changes > 3);
        }
        assert!(more_than_thrice <= 60, "{more_than_thrice} of 1000 hours");
    }

    #[test]
    fn the_ends_of_the_ladder_hold() {
        let mut governor = Governor::new(Some(Budget(0.01)), true, 0);
        let idle = bill(0.0, 0.0, 0.0);
        assert!((0..50).all(|_| governor.judge(idle, 0.0, (1e3, 1, 0), NOW) == Verdict::default()));
        let mut governor = Governor::new(None, true, 3);
        let dear = bill(99.0, 0.0, 0.0);
        assert!(
            (0..50).all(|_| governor.judge(dear, 0.9, (1e3, 1, 3), NOW) == Verdict::default()),
            "no budget, no limit"
        );
        assert_eq!((governor.rate(), governor.room()), (None, None));
        let mut governor = Governor::new(Some(Budget(0.01)), true, 5);
        let raised = (0..50).find_map(|_| governor.judge(idle, 0.0, (1e3, 1, 4), NOW).rate);
        assert_eq!(raised, Some(RATES[4]), "not beyond what the kernel takes");
    }

    #[test]
    fn under_pressure_less_is_done_step_by_step_and_after_plenty_more_again() {
        let level = |level| Verdict { rate: None, level: Some(level) };
        let lowest = RATES.len() - 1;
        let mut governor = Governor::new(Some(Budget(0.01)), true, lowest);
        let mut judge = |percent: f64| {
            governor.judge(bill(0.0, 0.8 * percent, 0.2 * percent), 0.0, (1e6, 1, lowest), NOW)
        };
        assert_eq!(judge(5.0), level(SamplingLevel::CountsOnly));
        assert_eq!(judge(5.0), level(SamplingLevel::Nothing));
        assert_eq!(judge(5.0), Verdict::default());
        for expected in [SamplingLevel::CountsOnly, SamplingLevel::All] {
            assert!((1..ROOM_TERMS_MIN).all(|_| judge(0.5) == Verdict::default()));
            assert_eq!(judge(0.5), level(expected));
        }
        assert_eq!(judge(5.0), level(SamplingLevel::CountsOnly));
        assert!((1..2 * ROOM_TERMS_MIN).all(|_| judge(0.5) == Verdict::default()));
        assert_eq!(judge(0.5), level(SamplingLevel::All), "later, since it was too early");
        // Memory: the lowest rate at once, and a rate that is not ours stays.
        let mut governor = Governor::new(Some(Budget(0.01)), true, 0);
        let mut judge = |memory| governor.judge(bill(0.0, 0.0, 0.0), memory, (1e3, 1, 0), NOW);
        assert_eq!(judge(1.1).rate, Some(28));
        assert_eq!(judge(1.1), level(SamplingLevel::CountsOnly));
        assert!((0..50).all(|_| judge(0.9) == Verdict::default()), "no plenty");
        let mut governor = Governor::new(None, false, 0);
        let found = governor.judge(bill(0.0, 0.0, 0.0), 1.1, (1e3, 1, 0), NOW);
        assert_eq!(found, level(SamplingLevel::CountsOnly));
    }
}
