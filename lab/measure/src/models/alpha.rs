//! Alpha: what one event costs the program that it is recorded in, ns (the paper's section V).
//!
//! The cost has two spreads. *Within* a place, the cost varies from event to event, which averages
//! out over many events. *Between* places (another instruction under the probe, another working
//! set), the mean differs, which does not average out and determines the error of a corrected time.

use crate::{Interval, tails};

/// The cost of one kind of event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alpha {
    /// Mean cost of an event, ns.
    pub mean: f64,
    /// Standard deviation of the mean cost between places, ns.
    pub between: f64,
    /// Standard deviation of the cost of one event within a place, ns.
    pub within: f64,
    /// Places that `mean` and `between` come from; at least 1.
    pub places: u32,
}

/// Probability that the true value lies outside of an interval.
const OUTSIDE: f64 = 0.05;
/// Assumed standard deviation between places, as a part of the mean, where only one place was
/// measured. Uprobes under loops of 12 kinds cost 930 to 1012 ns, a standard deviation of 3 %. A
/// larger value widens intervals needlessly; with a smaller one they miss the true value.
const BETWEEN_UNKNOWN: f64 = 0.05;

/// Least standard deviation between places, as a part of the mean, that of uprobes under 12 loops:
/// a few measured places may agree by chance.
const BETWEEN_LEAST: f64 = 0.03;

impl Alpha {
    /// From the mean cost at each of several places, ns, and the standard deviation of one event
    /// within a place, ns. None without any place.
    #[must_use]
    pub fn of_means(means: &[f64], within: f64) -> Option<Self> {
        let (mean, variance, n) = moments(means)?;
        let between = if n < 2.0 { BETWEEN_UNKNOWN * mean.abs() } else { variance.sqrt() };
        Some(Self { mean, between, within, places: means.len().min(u32::MAX as usize) as u32 })
    }

    /// From the mean cost at each of several places with its standard error, ns, and the standard
    /// deviation of one event within a place, ns: what a cost differs between places is told from
    /// what its measurement errs (R. DerSimonian, N. Laird, "Meta-Analysis in Clinical Trials",
    /// Controlled Clinical Trials 7, 1986).
    ///
    /// A program is none of these places, and may be as costly as the cheapest or the costliest of
    /// them, as those differ beyond what measuring errs: in three programs uprobes cost 1.01, 1.09
    /// and 1.25 times the mean of loops, and 1.2 in the loop that walks through 512 KiB. So the
    /// cost is the middle between those two, and its spread at least that of a uniform distribution
    /// between them. None without a place that has a positive error.
    #[must_use]
    pub fn of_measured(places: &[(f64, f64)], within: f64) -> Option<Self> {
        let sum = |weight: &dyn Fn(f64) -> f64, of: &dyn Fn(f64) -> f64| {
            places.iter().map(|(mean, error)| weight(*error) * of(*mean)).sum::<f64>()
        };
        if places.is_empty() || places.iter().any(|(_, error)| *error <= 0.0) {
            return None;
        }
        let exact = |error: f64| 1.0 / (error * error);
        let whole = sum(&exact, &|_| 1.0);
        let middle = sum(&exact, &|mean| mean) / whole;
        let scatter = sum(&exact, &|mean| (mean - middle).powi(2));
        let squares: f64 = places.iter().map(|(_, error)| exact(*error).powi(2)).sum();
        let scale = whole - squares / whole;
        let excess = scatter - (places.len() as f64 - 1.0);
        let between = if scale > 0.0 { (excess / scale).max(0.0) } else { 0.0 };
        let weight = |error: f64| 1.0 / (error * error + between);
        let whole = sum(&weight, &|_| 1.0);
        let mean = sum(&weight, &|mean| mean) / whole;
        let drawn = |(of, error): &(f64, f64)| match between + error * error {
            variance if variance > 0.0 => mean + (of - mean) * between / variance,
            _ => mean,
        };
        let drawn = places.iter().map(drawn);
        let (low, high) = (drawn.clone().fold(mean, f64::min), drawn.fold(mean, f64::max));
        let error = 1.0 / whole;
        let mean = (low + high) / 2.0;
        // The mean's own error is part of what another place is off.
        let uniform = (high - low).powi(2) / 12.0;
        let spread = (uniform.max(between) + error).sqrt().max(BETWEEN_LEAST * mean.abs());
        let spread =
            if places.len() < 2 { spread.max(BETWEEN_UNKNOWN * mean.abs()) } else { spread };
        let places = places.len().min(u32::MAX as usize) as u32;
        Some(Self { mean, between: spread, within, places })
    }

    /// The cost of this event in a program whose own factor was not measured: this cost times the
    /// mean factor of programs, with the spread of that factor ([`OF_PROGRAMS`]).
    #[must_use]
    pub fn in_unknown_program(&self) -> Self {
        let (factor, deviation) = OF_PROGRAMS;
        let mean = self.mean * factor;
        Self { mean, between: self.between.hypot(deviation * mean), ..*self }
    }

    /// The cost of this event in a program whose factor is known from [`in_situ`].
    #[must_use]
    pub fn in_program(&self, factor: Interval) -> Self {
        let mean = self.mean * factor.value;
        // The factor is the mean over all places of the program; a single place still differs.
        let spread = self.mean * (factor.high - factor.low) / (2.0 * quantile(f64::INFINITY));
        Self {
            mean,
            between: spread.max(BETWEEN_LEAST * mean.abs()),
            within: self.within * factor.value,
            places: u32::MAX,
        }
    }

    /// Spread between places over the mean: what the rule when a corrected time holds takes
    /// ([`super::relative_error`]).
    #[must_use]
    pub fn relative_spread(&self) -> f64 {
        if self.mean > 0.0 { self.between / self.mean } else { f64::INFINITY }
    }

    /// What `events` events at one more place cost, as a sum to which others may be added.
    #[must_use]
    pub fn times(&self, events: u64) -> Sum {
        let n = events as f64;
        let mut sum = Sum::default();
        sum.add(self, n);
        sum
    }
}

/// The factor of a program: the cost of its events in situ (in the program itself) over their cost
/// in vitro (in loops of nothing else), with a 95 % interval.
///
/// `raw` has the times of the program's runs without events, ns. `traced` is the time of one run
/// with events, ns, and `known_cost` the sum of the in-vitro costs of that run's events, ns. The
/// factor is (`traced` - mean of `raw` - set-up) / `known_cost`. The time to set up tracing is not
/// known: it lies between 0 and `begin_most` ns, and the interval covers both. The traced run's
/// random error is taken as the relative standard deviation of `raw` times `traced`; the interval
/// is Student's t with one degree of freedom less than raw runs. None for fewer than
/// [`RAW_RUNS_LEAST`] raw runs, for a `known_cost` of 0, and where a time is not finite.
#[must_use]
pub fn in_situ(raw: &[f64], traced: f64, known_cost: f64, begin_most: f64) -> Option<Interval> {
    let (mean, variance, n) = moments(raw).filter(|_| raw.len() >= RAW_RUNS_LEAST)?;
    let slowdown = (traced / mean).max(1.0);
    let reach = quantile(n - 1.0) * (variance * (slowdown * slowdown + 1.0 / n)).sqrt();
    let cost = traced - mean;
    let of = Interval {
        low: (cost - begin_most - reach) / known_cost,
        value: (cost - begin_most / 2.0) / known_cost,
        high: (cost + reach) / known_cost,
    };
    (known_cost > 0.0 && of.low.is_finite() && of.high.is_finite()).then_some(of)
}

/// Prediction of the time of a further run, ns: the mean of earlier runs' times, with the 95 %
/// prediction interval (Student's t). None for fewer than [`RAW_RUNS_LEAST`] runs.
#[must_use]
pub fn one_more_run(raw: &[f64]) -> Option<Interval> {
    let (value, variance, n) = moments(raw).filter(|_| raw.len() >= RAW_RUNS_LEAST)?;
    let reach = quantile(n - 1.0) * (variance * (1.0 + 1.0 / n)).sqrt();
    Some(Interval { low: (value - reach).max(0.0), value, high: value + reach })
}

/// Least number of raw runs from which their standard deviation is estimated.
pub const RAW_RUNS_LEAST: usize = 3;

/// Mean and standard deviation, over eight programs, of the factor of [`in_situ`]. Measured on a
/// virtual machine (AMD EPYC, Linux 6.18, uprobes with returns, 12 runs without events, two or
/// three times each): lua 1.2, bzip2 0.95, sqlite 1.02, deflate 1.1, two threads with a lock 1.08;
/// perl 1.14, gcc 1.00, git 1.1. Repeated values of one program differ by 0.1, because each
/// includes a new calibration. A smaller deviation makes intervals too narrow; a larger one rejects
/// corrections that hold.
pub const OF_PROGRAMS: (f64, f64) = (1.07, 0.08);

/// The cost of many events, perhaps of several kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sum {
    /// Mean, ns.
    pub mean: f64,
    /// Standard deviation from spread between places, ns. Those of several kinds are added: what
    /// makes one kind dear at a place (a cold cache, a busy sibling) makes the others dear too.
    between: f64,
    /// Variance from spread within a place, ns^2.
    within: f64,
    /// Fewest places of a kind that is in the sum; 0 in an empty sum.
    places: u32,
}

impl Sum {
    /// Adds the cost of `n` events of a kind.
    pub fn add(&mut self, alpha: &Alpha, n: f64) {
        let places = f64::from(alpha.places.max(1));
        self.mean += alpha.mean * n;
        // One more place deviates from the mean of the known ones, which itself is not exact.
        self.between += alpha.between * (1.0 + 1.0 / places).sqrt() * n;
        self.within += alpha.within * alpha.within * n;
        self.places = match self.places {
            0 => alpha.places.max(1),
            places => places.min(alpha.places.max(1)),
        };
    }

    /// The part that was added since an earlier state of the same sum.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            mean: self.mean - earlier.mean,
            between: (self.between - earlier.between).max(0.0),
            within: (self.within - earlier.within).max(0.0),
            places: self.places,
        }
    }

    /// Adds another sum.
    pub fn add_sum(&mut self, other: &Self) {
        self.mean += other.mean;
        self.between += other.between;
        self.within += other.within;
        self.places = match (self.places, other.places) {
            (0, places) | (places, 0) => places,
            (a, b) => a.min(b),
        };
    }

    /// Standard deviation of the sum, ns.
    #[must_use]
    pub fn deviation(&self) -> f64 {
        self.between.hypot(self.within.sqrt())
    }

    /// Half the width of the interval, ns: Student's t for as many places as were measured.
    #[must_use]
    pub fn reach(&self) -> f64 {
        if self.deviation() <= 0.0 {
            return 0.0;
        }
        // With one place the spread was assumed, not estimated: t of infinitely many.
        let freedom = if self.places < 2 { f64::INFINITY } else { f64::from(self.places - 1) };
        quantile(freedom) * self.deviation()
    }
}

/// Student's t for intervals, cached where it is asked for with each event.
pub(super) fn quantile(freedom: f64) -> f64 {
    /// Distance in standard deviations that a normal variable passes in 5 of 100 cases.
    const NORMAL: f64 = 1.959_963_984_540_054;
    if freedom.is_infinite() { NORMAL } else { tails::student_quantile(OUTSIDE, freedom) }
}

/// Mean, variance (of a sample) and number; the variance of one value is 0. None without values.
fn moments(values: &[f64]) -> Option<(f64, f64, f64)> {
    let n = values.len() as f64;
    if values.is_empty() {
        return None;
    }
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some((mean, squares / (n - 1.0).max(1.0), n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn within_averages_out_and_between_does_not() {
        let noisy = Alpha { mean: 1000.0, between: 0.0, within: 100.0, places: 10 };
        let uneven = Alpha { mean: 1000.0, between: 100.0, within: 0.0, places: 10 };
        assert!(noisy.times(10_000).deviation() < 0.002 * noisy.times(10_000).mean);
        assert!(uneven.times(10_000).deviation() > 0.1 * uneven.times(10_000).mean);
    }

    #[test]
    fn a_program_raw_and_traced_gives_the_factor_of_its_costs() {
        // 10 events of 90 in vitro cost 1000, and runs differ by a deviation of 2 %: of 2000, 40.
        let factor = in_situ(&[1000.0, 1020.0, 980.0], 2000.0, 900.0, 0.0).unwrap();
        let reach = 4.302_652_7 * 20.0 * (4.0 + 1.0_f64 / 3.0).sqrt() / 900.0;
        assert!((factor.value - 1000.0 / 900.0).abs() < 1e-9);
        assert!((factor.high - factor.value - reach).abs() < 1e-6, "{factor:?} {reach}");
        let begun = in_situ(&[1000.0, 1020.0, 980.0], 2000.0, 900.0, 90.0).unwrap();
        assert!((factor.low - begun.low - 0.1).abs() < 1e-9 && factor.high == begun.high);
        assert!((factor.value - begun.value - 0.05).abs() < 1e-9, "{begun:?}");
        assert_eq!(in_situ(&[1.0, 2.0], 5.0, 1.0, 0.0), None, "two runs may agree by chance");
        assert_eq!(in_situ(&[1.0, 2.0, 3.0], 5.0, 0.0, 0.0), None);
        assert_eq!(in_situ(&[1.0, 2.0, f64::NAN], 5.0, 1.0, 0.0), None);
        let next = one_more_run(&[1000.0, 1020.0, 980.0]).unwrap();
        let reach_of_one = 4.302_652_7 * 20.0 * (4.0_f64 / 3.0).sqrt();
        assert!((next.high - 1000.0 - reach_of_one).abs() < 1e-4, "{next:?}");

        let of = Alpha { mean: 90.0, between: 30.0, within: 9.0, places: 7 };
        let here = of.in_program(factor);
        assert!((here.mean - 100.0).abs() < 1e-9 && (here.within - 10.0).abs() < 1e-9);
        let sum = Alpha { within: 0.0, ..here }.times(10);
        assert!((sum.reach() - 900.0 * reach).abs() < 1.0, "{} {reach}", sum.reach());
        let unknown = Alpha { between: 0.0, ..of }.in_unknown_program();
        assert!((unknown.mean - 96.3).abs() < 1e-9 && (unknown.between - 7.704).abs() < 1e-9);
        let exact = Interval { low: 1.0, value: 1.0, high: 1.0 };
        assert!(of.in_program(exact).between > 2.0, "places within the program still differ");
    }

    #[test]
    fn errors_of_measuring_are_no_differences_of_places() {
        // All places cost 1000; one is measured badly.
        let alike = [(1002.0, 5.0), (998.0, 5.0), (1001.0, 5.0), (3000.0, 2000.0)];
        let alpha = Alpha::of_measured(&alike, 0.0).unwrap();
        assert!(
            (alpha.mean - 1000.0).abs() < 5.0 && alpha.between == 0.03 * alpha.mean,
            "{alpha:?}"
        );
        // Places that differ by far more than is measured badly.
        let apart = [(900.0, 5.0), (1100.0, 5.0), (1000.0, 5.0)];
        let alpha = Alpha::of_measured(&apart, 0.0).unwrap();
        assert!((90.0..130.0).contains(&alpha.between), "{alpha:?}");
        assert_eq!(Alpha::of_measured(&[], 0.0), None);
        assert_eq!(Alpha::of_measured(&[(1.0, 0.0)], 0.0), None);
    }

    #[test]
    fn sums_are_added_and_taken_apart() {
        let alpha = Alpha { mean: 10.0, between: 1.0, within: 2.0, places: 4 };
        let (mut sum, early) = (alpha.times(5), alpha.times(2));
        let since = sum.since(&early);
        assert!((since.mean - 30.0).abs() < 1e-9);
        assert!((since.deviation() - alpha.times(3).deviation()).abs() < 1e-9);
        sum.add_sum(&since);
        assert!((sum.reach() - alpha.times(8).reach()).abs() < 1e-9);
    }

    #[test]
    fn one_place_is_not_taken_for_a_certain_cost() {
        let alpha = Alpha::of_means(&[1000.0], 0.0).unwrap();
        assert!(alpha.times(100).reach() > 0.05 * 100_000.0);
        assert_eq!(Alpha::of_means(&[1000.0, 1000.0], 0.0).unwrap().times(100).reach(), 0.0);
    }

    #[test]
    fn intervals_hold_the_cost_at_a_place_that_was_not_measured_in_95_of_100() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut normal = || (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
        let cases = 2000;
        let mut right = 0;
        for _ in 0..cases {
            let means: Vec<f64> = (0..6).map(|_| 1000.0 + 50.0 * normal()).collect();
            let sum = Alpha::of_means(&means, 0.0).unwrap().times(1000);
            let truth = 1000.0 * (1000.0 + 50.0 * normal());
            right += u32::from((truth - sum.mean).abs() <= sum.reach());
        }
        let share = f64::from(right) / f64::from(cases);
        assert!((0.935..=0.965).contains(&share), "{share}");
    }
}
