//! The ratio of what two sets of runs took in all, and the verdict on it.
//!
//! Two errors are allowed for, as in [`significance`](crate::significance): sampling, and the
//! spread between the runs of a set, where a set has several.

use crate::{Confidence, tails, tally::Tally};

/// The error that the interval of a ratio allows for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ErrorSource {
    /// None: the event is counted exactly.
    Exact,
    /// Sampling alone: each set is one run, so the spread between runs is not known.
    Sampling,
    /// The spread between the runs of the sets, which includes the sampling error of each.
    Runs,
}

/// The ratio of two totals.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Ratio {
    /// The mean of the second set's runs, divided by that of the first's.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// The error that the interval allows for.
    pub error: ErrorSource,
}

impl Ratio {
    /// Where the second set lies by the interval alone: less than the first, more, or neither.
    pub fn side(&self) -> Side {
        match () {
            () if self.high < 1.0 => Side::Less,
            () if self.low > 1.0 => Side::More,
            () => Side::Neither,
        }
    }
}

/// The second set beside the first.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Side {
    /// The whole interval of the ratio is below 1.
    Less,
    /// The whole interval of the ratio is above 1.
    More,
    /// The interval holds 1.
    Neither,
}

/// The relative variances of a set's mean: by sampling, and by the spread between runs.
struct Mean {
    runs: f64,
    mean: f64,
    by_sampling: f64,
    between_runs: Option<f64>,
}

impl Mean {
    fn of(runs: &[Tally]) -> Option<Self> {
        let whole: Tally = runs.iter().copied().sum();
        let count = runs.len() as f64;
        let mean = whole.occurrences / count;
        if !(mean.is_finite() && mean > 0.0) {
            return None;
        }
        let squares: f64 = runs.iter().map(|run| (run.occurrences / mean - 1.0).powi(2)).sum();
        let between_runs = (runs.len() > 1).then(|| squares / (count - 1.0) / count);
        let by_sampling = whole.squares / whole.occurrences.powi(2);
        Some(Self { runs: count, mean, by_sampling, between_runs })
    }
}

/// The ratio of the mean run of `b` to that of `a`: the totals of each run, with their weights.
///
/// The interval is that of the logarithm of the ratio of means, whose variance is the sum of the
/// squared relative standard errors of both means (delta method), with Student's t of Welch's
/// degrees of freedom (B. L. Welch, "The generalization of 'Student's' problem when several
/// different population variances are involved", Biometrika 34, 1947). The variance of a mean is
/// at least that by sampling: few runs may agree by chance. A set of one run is taken to vary as
/// the runs of the other do. `is_exact` is true of counts without sampling error.
///
/// None where a set has no samples.
pub fn ratio(a: &[Tally], b: &[Tally], is_exact: bool, confidence: Confidence) -> Option<Ratio> {
    let sets = [Mean::of(a)?, Mean::of(b)?];
    let [first, second] = &sets;
    let value = second.mean / first.mean;
    let sampling = |set: &Mean| if is_exact { 0.0 } else { set.by_sampling };
    let (variance, df) = match (first.between_runs, second.between_runs) {
        (None, None) => (sampling(first) + sampling(second), f64::INFINITY),
        (Some(of_first), Some(of_second)) => {
            let of_first = of_first.max(sampling(first));
            let of_second = of_second.max(sampling(second));
            let sum = of_first + of_second;
            let by_df =
                of_first.powi(2) / (first.runs - 1.0) + of_second.powi(2) / (second.runs - 1.0);
            (sum, if by_df > 0.0 { sum.powi(2) / by_df } else { f64::INFINITY })
        }
        (Some(known), None) => one_run(first, known, sampling(first), sampling(second)),
        (None, Some(known)) => one_run(second, known, sampling(second), sampling(first)),
    };
    let is_one_each = first.between_runs.is_none() && second.between_runs.is_none();
    let error = match (is_one_each, is_exact) {
        (true, true) => ErrorSource::Exact,
        (true, false) => ErrorSource::Sampling,
        (false, _) => ErrorSource::Runs,
    };
    let z = match df.is_finite() {
        true => tails::student_quantile(1.0 - confidence.percent() / 100.0, df),
        false => confidence.z(),
    };
    let reach = (z * variance.sqrt()).exp();
    Some(Ratio { value, low: value / reach, high: value * reach, error })
}

/// Variance and degrees of freedom where only the set `several` has several runs.
fn one_run(several: &Mean, known: f64, sampling: f64, sampling_of_one: f64) -> (f64, f64) {
    let one = (known * several.runs).max(sampling_of_one);
    (known.max(sampling) + one, several.runs - 1.0)
}

#[cfg(test)]
mod tests;
