//! Tests whether one program is faster than another, over layouts of their code in memory.
//!
//! Where code and data lie changes times by some percent (Mytkowicz et al., "Producing Wrong Data
//! Without Doing Anything Obviously Wrong!", ASPLOS 2009), equally in every run of one build. So
//! runs vary on two levels: between layouts, and within one. Runs within a layout are many and
//! cheap, but of one layout they tell nothing about others. Hence each layout gives one number, the
//! difference of the logarithms of times, and Student's t over layouts has one degree of freedom
//! less than there are layouts.
//!
//! Runs of both programs take turns in random order, so what happens to the machine happens to both
//! alike: of the same program against itself, a layout's number is as often above 0 as below, and
//! as far. That alone makes the test hold its level (Efron, "Student's t-Test under Symmetry
//! Conditions", JASA 64, 1969), however noise is distributed.

use crate::Interval;
use crate::humps::{median, quantile};
use crate::tails;

/// Times of one layout: a pair of runs next to each other in time, A's and B's, both above 0.
pub type Layout = Vec<(f64, f64)>;

/// Probability of finding an effect of the size asked for.
const POWER: f64 = 0.8;
/// Upper bound of the number of layouts that a verdict asks for.
const LAYOUTS_MAX: u32 = 100_000;

/// A summary of the runs of a layout in one number. Noise only adds to times; the number and length
/// of disturbances determine which summary excludes most of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Estimator {
    /// The median of the differences of pairs: for noise that both runs of a pair have.
    Pairs,
    /// The difference of medians: where more than half of all runs are undisturbed.
    Medians,
    /// The difference of lower quartiles.
    Quartiles,
    /// The difference of minima: where few runs are undisturbed.
    Minima,
}

const ESTIMATORS: [Estimator; 4] =
    [Estimator::Pairs, Estimator::Medians, Estimator::Quartiles, Estimator::Minima];

impl Estimator {
    /// Description for users.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Pairs => "median of the pairs of runs",
            Self::Medians => "medians of runs",
            Self::Quartiles => "lower quartiles of runs",
            Self::Minima => "fastest runs",
        }
    }

    /// The logarithm of B's time over A's in a layout; None without runs.
    fn of(self, layout: &Layout) -> Option<f64> {
        let logs: Vec<(f64, f64)> = layout
            .iter()
            .map(|(a, b)| (a.ln(), b.ln()))
            .filter(|(a, b)| a.is_finite() && b.is_finite())
            .collect();
        let side = |of: fn(&(f64, f64)) -> f64, share: f64| {
            let mut sorted: Vec<f64> = logs.iter().map(of).collect();
            sorted.sort_by(f64::total_cmp);
            quantile(&sorted, share)
        };
        let between = |share: f64| Some(side(|pair| pair.1, share)? - side(|pair| pair.0, share)?);
        match self {
            Self::Pairs => median(&logs.iter().map(|(a, b)| b - a).collect::<Vec<_>>()),
            Self::Medians => between(0.5),
            Self::Quartiles => between(0.25),
            Self::Minima => between(0.0),
        }
    }
}

/// The verdict on two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// B takes less time.
    Faster,
    /// B takes more time.
    Slower,
    /// The interval contains 0, and no effect much larger than the size asked for.
    NotDistinguishable,
    /// The interval contains 0 and effects of the size asked for, which `more` further layouts
    /// would find in four of five cases.
    TooFewLayouts {
        /// Layouts that are missing.
        more: u32,
    },
}

/// The comparison of two programs.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The change of time from A to B as a part of A's: -0.02 is 2 % less time.
    pub change: Interval,
    /// The answer.
    pub verdict: Verdict,
    /// Number of layouts with runs of both programs.
    pub layouts: usize,
    /// The estimator of each layout's number.
    pub estimator: Estimator,
    /// Standard deviation of layouts' numbers, as a part of the time: chance of layouts, and what
    /// runs leave of theirs.
    pub layouts_sd: f64,
    /// Standard deviation of the difference of two runs next to each other within a layout, as a
    /// part of the time. Not a number where each layout has one pair only.
    pub runs_sd: f64,
    /// The change in each layout, in their order.
    pub each: Vec<f64>,
}

/// Compares two programs. `miss` is the probability that the interval misses the true change
/// (0.05), `effect` the smallest change that matters, as a part of the time (0.02). None without
/// layouts.
///
/// The estimator whose numbers have the smallest sum of squares is chosen. Swapping the programs in
/// a layout changes only the sign of its number, not the sum of squares, so the choice does not
/// bias the test.
#[must_use]
pub fn compare(layouts: &[Layout], miss: f64, effect: f64) -> Option<Comparison> {
    let of = |estimator: Estimator| -> Vec<f64> {
        layouts.iter().filter_map(|layout| estimator.of(layout)).collect()
    };
    let squares = |numbers: &Vec<f64>| numbers.iter().map(|number| number * number).sum::<f64>();
    let candidates = ESTIMATORS.map(|estimator| (estimator, of(estimator)));
    let (estimator, numbers) =
        candidates.into_iter().min_by(|a, b| squares(&a.1).total_cmp(&squares(&b.1)))?;
    let n = numbers.len() as f64;
    if numbers.is_empty() {
        return None;
    }
    let mean = numbers.iter().sum::<f64>() / n;
    let df = n - 1.0;
    let sd = (numbers.iter().map(|number| (number - mean).powi(2)).sum::<f64>() / df).sqrt();
    let reach = match numbers.len() {
        1 => f64::INFINITY,
        _ => tails::student_quantile(miss, df) * sd / n.sqrt(),
    };
    let share = |log: f64| log.exp_m1();
    let change =
        Interval { value: share(mean), low: share(mean - reach), high: share(mean + reach) };
    let more = needed(sd, miss, effect).saturating_sub(numbers.len() as u32);
    let is_small = change.low > -effect && change.high < effect;
    let verdict = match change {
        Interval { high, .. } if high < 0.0 => Verdict::Faster,
        Interval { low, .. } if low > 0.0 => Verdict::Slower,
        _ if numbers.len() < 2 => Verdict::TooFewLayouts { more: 1 },
        _ if is_small || more == 0 => Verdict::NotDistinguishable,
        _ => Verdict::TooFewLayouts { more },
    };
    Some(Comparison {
        change,
        verdict,
        layouts: numbers.len(),
        estimator,
        layouts_sd: sd,
        runs_sd: within(layouts),
        each: numbers.into_iter().map(share).collect(),
    })
}

/// Compares two programs that were measured at different times, by Welch's t of the logarithms of
/// times: each layout's median run is one number. `drift` is the largest part by which times of one
/// program may differ between the two for the machine's sake; no spread of runs tells it, so it is
/// added to both sides of the interval. None where a program has no runs.
///
/// `miss` and `effect` are those of [`compare`].
#[must_use]
pub fn compare_apart(
    [a, b]: [&[Vec<f64>]; 2],
    (miss, drift): (f64, f64),
    effect: f64,
) -> Option<Comparison> {
    let logs = |layouts: &[Vec<f64>]| -> Vec<f64> {
        let medians = layouts.iter().filter_map(|runs| median(runs)).map(f64::ln);
        medians.filter(|log| log.is_finite()).collect()
    };
    let (a, b) = (logs(a), logs(b));
    let (change, error) = welch([&a, &b], miss)?;
    let reach = drift.ln_1p();
    let share = |log: f64| log.exp_m1();
    let (low, high) = (share(change.low - reach), share(change.high + reach));
    let change_share = Interval { value: share(change.value), low, high };
    let n = a.len().min(b.len()) as u32;
    let sd = error * f64::from(n).sqrt();
    let more = needed(sd, miss, effect.max(drift)).saturating_sub(n);
    let verdict = match change_share {
        _ if high < 0.0 => Verdict::Faster,
        _ if low > 0.0 => Verdict::Slower,
        _ if n < 2 => Verdict::TooFewLayouts { more: 1 },
        _ if more == 0 => Verdict::NotDistinguishable,
        _ => Verdict::TooFewLayouts { more },
    };
    let mean = a.iter().sum::<f64>() / a.len() as f64;
    Some(Comparison {
        change: change_share,
        verdict,
        layouts: b.len(),
        estimator: Estimator::Medians,
        layouts_sd: sd,
        runs_sd: f64::NAN,
        each: b.into_iter().map(|log| share(log - mean)).collect(),
    })
}

/// The difference of the means of two independent samples, b's less a's, and its standard error
/// (Welch, "The generalization of Student's problem when several different population variances are
/// involved", Biometrika 34, 1947). Without two numbers in each the interval is not finite. None
/// where one is empty.
#[must_use]
pub fn welch([a, b]: [&[f64]; 2], miss: f64) -> Option<(Interval, f64)> {
    let of = |all: &[f64]| {
        let n = all.len() as f64;
        let mean = all.iter().sum::<f64>() / n;
        let squares = all.iter().map(|of| (of - mean).powi(2)).sum::<f64>();
        (!all.is_empty()).then(|| (mean, squares / (n - 1.0) / n, n - 1.0))
    };
    let ((mean_a, variance_a, df_a), (mean_b, variance_b, df_b)) = (of(a)?, of(b)?);
    let (value, variance) = (mean_b - mean_a, variance_a + variance_b);
    let df = variance.powi(2) / (variance_a.powi(2) / df_a + variance_b.powi(2) / df_b);
    let reach = match a.len().min(b.len()) {
        1 => f64::INFINITY,
        // No spread: both are the same in each run.
        _ if variance == 0.0 => 0.0,
        _ => tails::student_quantile(miss, df) * variance.sqrt(),
    };
    Some((Interval { value, low: value - reach, high: value + reach }, variance.sqrt()))
}

/// Layouts with which an effect of this size is found in four of five cases, when layouts' numbers
/// have this standard deviation. The degrees of freedom depend on the answer, so it is looked for.
#[must_use]
pub fn needed(sd: f64, miss: f64, effect: f64) -> u32 {
    if !sd.is_finite() || effect <= 0.0 {
        return LAYOUTS_MAX;
    }
    let suffices = |count: u32| {
        let df = f64::from(count) - 1.0;
        // One side of the power: the other one's chance to be wrong is nothing.
        let t =
            tails::student_quantile(miss, df) + tails::student_quantile(2.0 * (1.0 - POWER), df);
        t * sd <= effect.ln_1p() * f64::from(count).sqrt()
    };
    let (mut low, mut high) = (1_u32, 2_u32);
    while !suffices(high) && high < LAYOUTS_MAX {
        (low, high) = (high, high * 2);
    }
    while high - low > 1 {
        let middle = u32::midpoint(low, high);
        if suffices(middle) { high = middle } else { low = middle }
    }
    high.min(LAYOUTS_MAX)
}

/// Standard deviation of pairs' differences around their layout's mean.
fn within(layouts: &[Layout]) -> f64 {
    let (mut squares, mut df) = (0.0, 0.0);
    for layout in layouts {
        let differences: Vec<f64> =
            layout.iter().map(|(a, b)| b.ln() - a.ln()).filter(|of| of.is_finite()).collect();
        let n = differences.len() as f64;
        if n > 1.0 {
            let mean = differences.iter().sum::<f64>() / n;
            squares += differences.iter().map(|of| (of - mean).powi(2)).sum::<f64>();
            df += n - 1.0;
        }
    }
    (squares / df).sqrt()
}

/// The mean of one program's time over layouts, with its interval: each layout's median run is one
/// number. With one layout the interval is not finite. None without runs.
#[must_use]
pub fn mean(layouts: &[Vec<f64>], miss: f64) -> Option<Interval> {
    let medians: Vec<f64> = layouts.iter().filter_map(|runs| median(runs)).collect();
    let n = medians.len() as f64;
    if medians.is_empty() {
        return None;
    }
    let value = medians.iter().sum::<f64>() / n;
    let sd = (medians.iter().map(|of| (of - value).powi(2)).sum::<f64>() / (n - 1.0)).sqrt();
    let reach = match medians.len() {
        1 => f64::INFINITY,
        _ => tails::student_quantile(miss, n - 1.0) * sd / n.sqrt(),
    };
    Some(Interval { value, low: (value - reach).max(0.0), high: value + reach })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Repeatable noise: xorshift.
    struct Noise(u64);

    impl Noise {
        fn even(&mut self) -> f64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) as f64 / (1_u64 << 53) as f64
        }

        /// About normal, with a standard deviation of 1.
        fn normal(&mut self) -> f64 {
            (0..12).map(|_| self.even()).sum::<f64>() - 6.0
        }
    }

    /// Layouts with a spread of their own, runs with small noise, and a fifth of all runs
    /// disturbed.
    fn simulated(noise: &mut Noise, layouts: usize, change: f64, layout_sd: f64) -> Vec<Layout> {
        (0..layouts)
            .map(|_| {
                let own = [(); 2].map(|()| 1.0 + layout_sd * noise.normal());
                let mut run = |base: f64| {
                    let disturbed = if noise.even() < 0.2 { noise.even() } else { 0.0 };
                    base * (1.0 + 0.005 * noise.normal() + disturbed)
                };
                (0..5).map(|_| (run(own[0]), run(own[1] * (1.0 + change)))).collect()
            })
            .collect()
    }

    #[test]
    fn the_same_against_the_same_is_seldom_different() {
        let mut noise = Noise(9);
        for sd in [0.0, 0.017] {
            let wrong = (0..1000)
                .filter(|_| {
                    let layouts = simulated(&mut noise, 12, 0.0, sd);
                    let found = compare(&layouts, 0.05, 0.02).unwrap().verdict;
                    matches!(found, Verdict::Faster | Verdict::Slower)
                })
                .count();
            assert!((20..65).contains(&wrong), "{wrong} of 1000, with {sd}");
        }
    }

    /// The design's figure: spread over layouts 1.2 % of each, 1.7 % of the difference.
    #[test]
    fn two_percent_are_found_with_twelve_layouts() {
        let mut noise = Noise(7);
        let found = (0..500)
            .filter(|_| {
                let layouts = simulated(&mut noise, 12, -0.02, 0.012);
                compare(&layouts, 0.05, 0.02).unwrap().verdict == Verdict::Faster
            })
            .count();
        assert!(found > 400, "{found} of 500");
    }

    #[test]
    fn the_interval_holds_the_truth_as_often_as_it_says() {
        let mut noise = Noise(3);
        let held = (0..500)
            .filter(|_| {
                let layouts = simulated(&mut noise, 8, 0.05, 0.01);
                let change = compare(&layouts, 0.05, 0.02).unwrap().change;
                (change.low..=change.high).contains(&0.05)
            })
            .count();
        assert!(held > 460, "{held} of 500");
    }

    #[test]
    fn verdicts() {
        let layouts = |changes: &[f64]| -> Vec<Layout> {
            changes.iter().map(|change| vec![(1.0, 1.0 + change); 3]).collect()
        };
        let of = |changes: &[f64]| compare(&layouts(changes), 0.05, 0.02).unwrap();
        assert_eq!(of(&[-0.02, -0.021, -0.022]).verdict, Verdict::Faster);
        assert_eq!(of(&[0.02, 0.021, 0.022]).verdict, Verdict::Slower);
        assert_eq!(of(&[0.001, -0.001, 0.0, 0.001]).verdict, Verdict::NotDistinguishable);
        assert_eq!(of(&[0.0; 4]).verdict, Verdict::NotDistinguishable);
        assert_eq!(of(&[0.1]).verdict, Verdict::TooFewLayouts { more: 1 });
        let Verdict::TooFewLayouts { more } = of(&[0.03, -0.03, 0.02, -0.01]).verdict else {
            panic!("an effect of 2 % may well be there")
        };
        assert!((5..30).contains(&more), "{more}");
        assert_eq!(compare(&[], 0.05, 0.02), None);
        assert_eq!(compare(&[vec![]], 0.05, 0.02), None);
        assert!(of(&[0.01, 0.03]).runs_sd.abs() < 1e-9);
    }

    /// (1.96 + 0.84)^2 (0.017 / 0.02)^2 = 5.7 for known variances; t asks for two more.
    #[test]
    fn how_many_layouts_an_effect_needs() {
        assert_eq!(needed(0.017, 0.05, 0.02), 8);
        assert_eq!(needed(0.024, 0.05, 0.02), 14);
        assert_eq!(needed(0.0, 0.05, 0.02), 2);
        assert_eq!(needed(f64::NAN, 0.05, 0.02), LAYOUTS_MAX);
        assert_eq!(needed(1.0, 0.05, 1e-9), LAYOUTS_MAX);
    }

    #[test]
    fn a_mean_is_over_layouts() {
        let of = mean(&[vec![1.0, 1.0, 9.0], vec![3.0], vec![2.0]], 0.05).unwrap();
        assert_eq!(of.value, 2.0);
        // t of 2 degrees of freedom: 4.303 / sqrt(3).
        assert!((of.high - 2.0 - 2.484).abs() < 0.001, "{of:?}");
        assert_eq!(mean(&[], 0.05), None);
        assert!(mean(&[vec![1.0]], 0.05).unwrap().high.is_infinite());
    }
}
