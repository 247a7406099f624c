//! What sampling may cost, and the highest rate that fits.
//!
//! Most of the bill is the interrupt itself, which no profiler can make cheaper: about a microsecond on real hardware, 14 us where a
//! hypervisor emulates the timer. So the daemon measures it at start and picks its rate; then it holds the bill against the budget.

use std::time::Duration;

/// Rates in samples per second and CPU, highest first, each 1/sqrt(2) of the one before. Few values, so that a restart, whose measurement
/// differs a little, continues the epoch at the same rate.
pub const RATES: [u64; 16] = [5200, 3700, 2600, 1850, 1300, 920, 650, 460, 325, 230, 160, 115, 80, 57, 40, 28];

/// Part of the budget that is kept for the daemon's own work.
const DAEMON_PART: f64 = 0.2;
/// A bill is judged over this time.
pub const TERM: Duration = Duration::from_secs(60);
/// Above this part of the budget the rate goes down a step, below the other, after so many terms, up again.
const TOO_MUCH: f64 = 1.25;
const PLENTY: f64 = 0.5;
const PLENTY_TERMS: u32 = 10;
/// Below this part of its limit there is plenty of memory.
const MEMORY_PLENTY: f64 = 0.8;

/// The part of all CPU time that sampling may cost: 0.01 is 1 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget(pub f64);

/// The index in [`RATES`] of the highest rate that fits when a sample of one of `events` events costs `ns_per_sample`; the lowest when
/// none does.
#[must_use]
pub fn affordable(budget: Budget, ns_per_sample: f64, events: usize) -> usize {
    let share = |rate: u64| rate as f64 * events as f64 * ns_per_sample / 1e9;
    let fits = |rate: &u64| share(*rate) <= budget.0 * (1.0 - DAEMON_PART);
    RATES.iter().position(fits).unwrap_or(RATES.len() - 1)
}

/// What one term cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bill {
    /// Time of all CPUs in the term, ns.
    pub cpu_ns: f64,
    /// Time in interrupts and the sampler, ns.
    pub sampling_ns: f64,
    /// CPU time of the daemon, ns.
    pub daemon_ns: f64,
}

impl Bill {
    /// The part of all CPU time that it is.
    #[must_use]
    pub fn share(&self) -> f64 {
        if self.cpu_ns > 0.0 { (self.sampling_ns + self.daemon_ns) / self.cpu_ns } else { 0.0 }
    }
}

/// How much is done, from all to nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doing {
    /// Samples and snapshots of registers.
    #[default]
    All,
    /// Samples.
    CountsOnly,
    /// Nothing is sampled.
    Nothing,
}

impl Doing {
    /// For people, and in the status.
    #[must_use]
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

/// What changes after a term.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Verdict {
    /// A new rate.
    pub rate: Option<u64>,
    /// More or less is done.
    pub doing: Option<Doing>,
}

/// Holds bills against the budget, and memory against its limit: under pressure first the rate goes down, then there are only counts, then nothing;
/// after long plenty the other way.
#[derive(Clone, Debug)]
pub struct Governor {
    budget: Option<Budget>,
    /// The rate is ours to choose.
    adjustable: bool,
    step: usize,
    doing: Doing,
    terms_of_plenty: u32,
}

impl Governor {
    /// Starts at `step` of [`RATES`].
    #[must_use]
    pub fn new(budget: Option<Budget>, adjustable: bool, step: usize) -> Self {
        let step = step.min(RATES.len() - 1);
        Self { budget, adjustable, step, doing: Doing::All, terms_of_plenty: 0 }
    }

    /// Another budget from now on, or none.
    pub fn set_budget(&mut self, budget: Option<Budget>) {
        self.budget = budget;
    }

    /// The rate in force, samples per second and CPU.
    #[must_use]
    pub fn rate(&self) -> u64 {
        RATES.get(self.step).copied().unwrap_or(1)
    }

    /// How much may be done.
    #[must_use]
    pub fn doing(&self) -> Doing {
        self.doing
    }

    /// Judges the bill of a term, and `memory`, the part of its limit that is used at its end (0 without a limit).
    pub fn judge(&mut self, bill: Bill, memory: f64) -> Verdict {
        let used = self.budget.map_or(0.0, |budget| bill.share() / budget.0);
        let is_plenty = used < PLENTY && memory < MEMORY_PLENTY;
        self.terms_of_plenty = if is_plenty { self.terms_of_plenty + 1 } else { 0 };
        let lowest = RATES.len() - 1;
        let adjustable = self.adjustable && self.budget.is_some();
        let can_go_down = adjustable && self.step < lowest;
        let (mut step, mut doing) = (self.step, self.doing);
        match used {
            _ if memory > 1.0 && can_go_down => step = lowest, // it may not have ten minutes
            used if used > TOO_MUCH && can_go_down => step += 1,
            used if used > TOO_MUCH || memory > 1.0 => doing = doing.less(),
            _ if self.terms_of_plenty < PLENTY_TERMS => {}
            _ if doing != Doing::All => doing = doing.more(),
            _ if adjustable => step = step.saturating_sub(1),
            _ => {}
        }
        let verdict = Verdict {
            rate: (step != self.step).then(|| RATES.get(step).copied().unwrap_or(1)),
            doing: (doing != self.doing).then_some(doing),
        };
        if verdict != Verdict::default() {
            (self.step, self.doing, self.terms_of_plenty) = (step, doing, 0);
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_the_highest_that_fits() {
        let rate = |percent: f64, ns, events| RATES[affordable(Budget(percent / 100.0), ns, events)];
        assert_eq!(rate(1.0, 1_000.0, 1), 5200, "real hardware: 0.52 %");
        assert_eq!(rate(1.0, 14_000.0, 1), 460, "a virtual timer: 0.64 %, and 650/s would be 0.91 %");
        assert_eq!(rate(1.0, 14_000.0, 2), 230);
        assert_eq!(rate(10.0, 14_000.0, 1), 5200);
        assert_eq!(rate(0.001, 14_000.0, 1), 28, "never nothing at all");
        assert!(RATES.windows(2).all(|pair| pair[0] > pair[1] && pair[0] < pair[1] * 3 / 2));
    }

    fn bill(percent: f64) -> Bill {
        Bill { cpu_ns: 1e9, sampling_ns: percent * 0.5e7, daemon_ns: percent * 0.5e7 }
    }

    #[test]
    fn a_bill_above_the_budget_lowers_the_rate_and_long_plenty_raises_it() {
        let mut governor = Governor::new(Some(Budget(0.01)), true, 2);
        let rate = |governor: &mut Governor, bill| governor.judge(bill, 0.5).rate;
        assert!((bill(2.0).share() - 0.02).abs() < 1e-12);
        assert_eq!(rate(&mut governor, bill(1.2)), None, "a little above is no reason");
        assert_eq!(rate(&mut governor, bill(1.3)), Some(1850));
        for _ in 1..PLENTY_TERMS {
            assert_eq!(rate(&mut governor, bill(0.4)), None);
        }
        assert_eq!(rate(&mut governor, bill(0.7)), None, "one dearer term, and patience begins anew");
        for _ in 1..PLENTY_TERMS {
            assert_eq!(rate(&mut governor, bill(0.4)), None);
        }
        assert_eq!(rate(&mut governor, bill(0.4)), Some(2600));
    }

    #[test]
    fn the_ends_of_the_ladder_hold() {
        let mut governor = Governor::new(Some(Budget(0.01)), true, 0);
        assert!((0..50).all(|_| governor.judge(bill(0.0), 0.0) == Verdict::default()));
        let mut governor = Governor::new(None, true, 3);
        assert!((0..50).all(|_| governor.judge(bill(99.0), 0.9) == Verdict::default()), "no budget, no limit");
    }

    #[test]
    fn under_pressure_less_is_done_step_by_step_and_after_plenty_more_again() {
        let doing = |doing| Verdict { rate: None, doing: Some(doing) };
        let lowest = RATES.len() - 1;
        let mut governor = Governor::new(Some(Budget(0.01)), true, lowest - 1);
        assert_eq!(governor.judge(bill(5.0), 0.0).rate, Some(28));
        assert_eq!(governor.judge(bill(5.0), 0.0), doing(Doing::CountsOnly));
        assert_eq!(governor.judge(bill(5.0), 0.0), doing(Doing::Nothing));
        assert_eq!(governor.judge(bill(5.0), 0.0), Verdict::default());
        for expected in [Doing::CountsOnly, Doing::All] {
            assert!((1..PLENTY_TERMS).all(|_| governor.judge(bill(0.0), 0.1) == Verdict::default()));
            assert_eq!(governor.judge(bill(0.0), 0.1), doing(expected));
        }
        assert!((1..PLENTY_TERMS).all(|_| governor.judge(bill(0.0), 0.1) == Verdict::default()));
        assert_eq!(governor.judge(bill(0.0), 0.1).rate, Some(40));
        // Memory: the lowest rate at once, and a rate that is not ours stays.
        let mut governor = Governor::new(Some(Budget(0.01)), true, 0);
        assert_eq!(governor.judge(bill(0.0), 1.1).rate, Some(28));
        assert_eq!(governor.judge(bill(0.0), 1.1), doing(Doing::CountsOnly));
        assert!((0..50).all(|_| governor.judge(bill(0.0), 0.9) == Verdict::default()), "no plenty");
        let mut governor = Governor::new(None, false, 0);
        assert_eq!(governor.judge(bill(0.0), 1.1), doing(Doing::CountsOnly));
    }
}
