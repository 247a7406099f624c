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

/// Holds bills against the budget.
#[derive(Clone, Debug)]
pub struct Governor {
    budget: Budget,
    step: usize,
    terms_of_plenty: u32,
}

impl Governor {
    /// Starts at `step` of [`RATES`].
    #[must_use]
    pub fn new(budget: Budget, step: usize) -> Self {
        Self { budget, step: step.min(RATES.len() - 1), terms_of_plenty: 0 }
    }

    /// The rate in force, samples per second and CPU.
    #[must_use]
    pub fn rate(&self) -> u64 {
        RATES.get(self.step).copied().unwrap_or(1)
    }

    /// Judges the bill of a term; the new rate, if it changes.
    pub fn judge(&mut self, bill: Bill) -> Option<u64> {
        let used = bill.share() / self.budget.0;
        self.terms_of_plenty = if used < PLENTY { self.terms_of_plenty + 1 } else { 0 };
        let step = match used {
            used if used > TOO_MUCH => (self.step + 1).min(RATES.len() - 1),
            _ if self.terms_of_plenty >= PLENTY_TERMS => self.step.saturating_sub(1),
            _ => self.step,
        };
        if step == self.step {
            return None;
        }
        self.step = step;
        self.terms_of_plenty = 0;
        Some(self.rate())
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
        let mut governor = Governor::new(Budget(0.01), 2);
        assert!((bill(2.0).share() - 0.02).abs() < 1e-12);
        assert_eq!(governor.judge(bill(1.2)), None, "a little above is no reason");
        assert_eq!(governor.judge(bill(1.3)), Some(1850));
        for _ in 1..PLENTY_TERMS {
            assert_eq!(governor.judge(bill(0.4)), None);
        }
        assert_eq!(governor.judge(bill(0.7)), None, "one dearer term, and patience begins anew");
        for _ in 1..PLENTY_TERMS {
            assert_eq!(governor.judge(bill(0.4)), None);
        }
        assert_eq!(governor.judge(bill(0.4)), Some(2600));
    }

    #[test]
    fn the_ends_of_the_ladder_hold() {
        let mut governor = Governor::new(Budget(0.01), RATES.len() - 1);
        assert_eq!(governor.judge(bill(50.0)), None);
        let mut governor = Governor::new(Budget(0.01), 0);
        assert!((0..50).all(|_| governor.judge(bill(0.0)).is_none()));
    }
}
