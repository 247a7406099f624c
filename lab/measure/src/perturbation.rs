//! Inner and outer perturbation (T. Mytkowicz, A. Diwan, M. Hauswirth, P. F. Sweeney,
//! "Understanding Measurement Perturbation in Trace-based Data", IPDPS 2007): whether an observer
//! changed how the metrics of a program move together.
//!
//! - *Inner*: the correlation of two metrics within a run, against that of runs without an
//!   observer.
//! - *Outer*: the correlation of a metric with itself in a run without an observer, which is
//!   aligned first. Sampled metrics do not correlate 1 with themselves: runs without an observer
//!   are held against each other for what to expect.
//!
//! A difference counts only beyond the spread of runs without an observer, corrected for the number
//! of comparisons.

use crate::models::Range;
use crate::rank::spearman;
use crate::tails;
use crate::warp;

/// Fewest runs without an observer. With 5, one of 138 comparisons reached 6.6 standard deviations
/// by chance; with 13 none did.
pub const BASELINES_MIN: usize = 12;
/// Degrees of freedom of the prior of a spread, which is taken from the other comparisons (G. K.
/// Smyth, "Linear Models and Empirical Bayes Methods for Assessing Differential Expression",
/// Statistical Applications in Genetics and Molecular Biology 3, 2004, section 3). Without a prior,
/// some of a hundred spreads from a dozen runs are much too small by chance, and their comparisons
/// are flagged.
const PRIOR_FREEDOM: f64 = 4.0;
/// Correlations nearer to 1 are not told apart from it: Fisher's z of 1 is infinite.
const CORRELATION_MAX: f64 = 0.999;

/// The metrics of one run: `[metric][record]`. All runs have the same metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// One column for each metric.
    pub columns: Vec<Vec<f64>>,
}

/// Correlations within runs and between each two runs.
#[derive(Clone, Debug)]
pub struct Correlations {
    metrics: usize,
    /// `[run][pair]`, in the order of [`pairs`].
    inner: Vec<Vec<Option<f64>>>,
    /// `[run][reference][metric]`.
    outer: Vec<Vec<Vec<Option<f64>>>>,
}

/// Each two different metrics once.
fn pairs(metrics: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..metrics).flat_map(move |a| (a + 1..metrics).map(move |b| (a, b)))
}

impl Correlations {
    /// Those of all runs; `references` are the runs that others are aligned with.
    #[must_use]
    pub fn of(runs: &[Series], references: &[usize]) -> Self {
        let metrics = runs.first().map_or(0, |run| run.columns.len());
        let inner = |run: &Series| {
            let column = |metric: usize| run.columns.get(metric).map(Vec::as_slice);
            let of = |(a, b)| spearman(column(a)?, column(b)?);
            pairs(metrics).map(of).collect()
        };
        let outer = |at: usize, run: &Series| {
            let of = |reference: usize| match runs.get(reference) {
                Some(against) if reference != at && references.contains(&reference) => {
                    with_itself(against, run)
                }
                _ => Vec::new(),
            };
            (0..runs.len()).map(of).collect()
        };
        Self {
            metrics,
            inner: runs.iter().map(inner).collect(),
            outer: runs.iter().enumerate().map(|(at, run)| outer(at, run)).collect(),
        }
    }

    fn outer(&self, run: usize, references: &[usize], metric: usize) -> Option<f64> {
        let of = self.outer.get(run)?;
        let others = references.iter().filter(|reference| **reference != run);
        let all: Option<Vec<f64>> = others
            .map(|reference| of.get(*reference)?.get(metric).copied().flatten().map(fisher))
            .collect();
        all.and_then(|all| mean(&all))
    }
}

/// Each metric of a run with itself in a reference, after alignment.
fn with_itself(reference: &Series, run: &Series) -> Vec<Option<f64>> {
    let Some(path) = warp::align(&reference.columns, &run.columns) else { return Vec::new() };
    let metrics = reference.columns.iter().zip(&run.columns);
    metrics.map(|(of, other)| spearman(of, &warp::warped(other, &path))).collect()
}

/// One comparison of observed runs with those without an observer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Mean correlation without an observer.
    pub baseline: f64,
    /// Standard deviation of the correlation between runs without an observer.
    pub spread: f64,
    /// Mean correlation with the observer.
    pub observed: f64,
    /// Distance of the two, in standard deviations of a run.
    pub deviations: f64,
    /// Probability of such a distance by chance, corrected for the number of comparisons (Holm).
    pub chance: f64,
}

/// The verdict on an observer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Judgement {
    /// Comparisons of pairs of metrics whose correlation is defined in all runs.
    pub inner: Vec<(usize, usize, Comparison)>,
    /// Comparisons of metrics with themselves, where the correlation is defined.
    pub outer: Vec<(usize, Comparison)>,
    /// Whether each metric is perturbed: its outer correlation changed, no observed run has it, or
    /// it is one of the fewest metrics that cover all changed pairs.
    pub perturbed: Vec<bool>,
    /// Whether each metric has no comparison, because it does not vary within runs.
    pub unknown: Vec<bool>,
    /// Whether anything changed.
    pub any: bool,
}

/// Judges the `observed` runs against the `baselines`, both by their numbers among the runs of
/// `correlations`. `level` is the probability of finding any perturbation where there is none.
/// Without two baselines and an observed run nothing is compared.
#[must_use]
pub fn judge(
    correlations: &Correlations,
    baselines: &[usize],
    observed: &[usize],
    level: f64,
) -> Judgement {
    let metrics = correlations.metrics;
    let inner_of = |run: usize, pair: usize| {
        correlations.inner.get(run)?.get(pair).copied().flatten().map(fisher)
    };
    let values = |runs: &[usize], of: &dyn Fn(usize) -> Option<f64>| {
        runs.iter().map(|run| of(*run)).collect::<Option<Vec<f64>>>()
    };
    let both =
        |of: &dyn Fn(usize) -> Option<f64>| Some((values(baselines, of)?, values(observed, of)?));
    let inner: Vec<_> = pairs(metrics)
        .enumerate()
        .filter_map(|(at, (a, b))| Some(((a, b), both(&|run| inner_of(run, at))?)))
        .collect();
    let outer: Vec<_> = (0..metrics)
        .filter_map(|metric| {
            Some((metric, both(&|run| correlations.outer(run, baselines, metric))?))
        })
        .collect();
    let inner_compared = compared(inner.iter().map(|(_, both)| both));
    let outer_compared = compared(outer.iter().map(|(_, both)| both));
    let chances: Vec<f64> =
        inner_compared.iter().chain(&outer_compared).map(|of| of.chance).collect();
    let mut chances = holm(&chances).into_iter();
    let mut corrected = |of: Comparison| Comparison { chance: chances.next().unwrap_or(1.0), ..of };
    let inner: Vec<_> =
        inner.iter().zip(inner_compared).map(|(((a, b), _), of)| (*a, *b, corrected(of))).collect();
    let outer: Vec<_> = outer
        .iter()
        .zip(outer_compared)
        .map(|((metric, _), of)| (*metric, corrected(of)))
        .collect();
    let mut perturbed = vec![false; metrics];
    let marked = |of: &Comparison| of.chance <= level;
    for (metric, _) in outer.iter().filter(|(_, of)| marked(of)) {
        mark(&mut perturbed, *metric);
    }
    let mut unknown = vec![true; metrics];
    for (metric, is_unknown) in unknown.iter_mut().enumerate() {
        *is_unknown = inner.iter().all(|(a, b, _)| *a != metric && *b != metric)
            && outer.iter().all(|(of, _)| *of != metric);
        let has = |run: &usize| correlations.outer(*run, baselines, metric).is_some();
        if *is_unknown && baselines.iter().all(has) && !observed.iter().any(has) {
            mark(&mut perturbed, metric);
            *is_unknown = false;
        }
    }
    let changed = inner.iter().filter(|(.., of)| marked(of)).map(|(a, b, _)| (*a, *b));
    cover(&mut perturbed, changed.collect());
    let any = perturbed.contains(&true);
    Judgement { inner, outer, perturbed, unknown, any }
}

/// Marks the fewest metrics that all pairs have one of, greedily: a metric that many relations
/// changed with changed itself; its partners did not for that reason.
fn cover(perturbed: &mut [bool], mut pairs: Vec<(usize, usize)>) {
    let is_marked = |of: &[bool], metric: usize| of.get(metric).copied().unwrap_or(true);
    loop {
        pairs.retain(|(a, b)| !is_marked(perturbed, *a) && !is_marked(perturbed, *b));
        let of = |metric: usize| pairs.iter().filter(|(a, b)| *a == metric || *b == metric).count();
        let most = (0..perturbed.len()).max_by_key(|metric| of(*metric));
        match most {
            // Of a single pair nobody can say which of the two it was.
            Some(metric) if of(metric) > 1 => mark(perturbed, metric),
            _ => break,
        }
    }
    for (a, b) in pairs {
        mark(perturbed, a);
        mark(perturbed, b);
    }
}

fn mark(perturbed: &mut [bool], metric: usize) {
    if let Some(of) = perturbed.get_mut(metric) {
        *of = true;
    }
}

/// Compares correlations of baselines with those of observed runs, by Fisher's z. Spreads are
/// shrunk towards the usual one of these comparisons.
fn compared<'a>(all: impl Iterator<Item = &'a (Vec<f64>, Vec<f64>)> + Clone) -> Vec<Comparison> {
    let mut variances: Vec<f64> =
        all.clone().filter_map(|(baselines, _)| variance(baselines)).collect();
    variances.sort_by(f64::total_cmp);
    let usual = variances.get(variances.len() / 2).copied().unwrap_or_default();
    all.map(|(baselines, observed)| {
        let (n, m) = (baselines.len() as f64, observed.len() as f64);
        let (base, seen) = (mean(baselines).unwrap_or(0.0), mean(observed).unwrap_or(0.0));
        let of_these = variance(baselines).unwrap_or_default();
        let freedom = n - 1.0 + PRIOR_FREEDOM;
        let variance = (of_these * (n - 1.0) + usual * PRIOR_FREEDOM) / freedom;
        let deviation = variance.sqrt();
        let distance = seen - base;
        let error = deviation * (1.0 / n + 1.0 / m).sqrt();
        let chance = match (n < 2.0 || m < 1.0, error > 0.0) {
            (true, _) => 1.0,
            (false, true) => tails::student(distance / error, freedom),
            (false, false) if distance == 0.0 => 1.0,
            (false, false) => 0.0,
        };
        let deviations = if deviation > 0.0 { distance / deviation } else { 0.0 };
        let correlations: Vec<f64> = baselines.iter().map(|z| z.tanh()).collect();
        Comparison {
            baseline: mean(&correlations).unwrap_or_default(),
            spread: self::variance(&correlations).unwrap_or_default().sqrt(),
            observed: mean(&observed.iter().map(|z| z.tanh()).collect::<Vec<_>>())
                .unwrap_or_default(),
            deviations,
            chance,
        }
    })
    .collect()
}

/// Probabilities corrected for there being many by Holm's method (S. Holm, "A simple sequentially
/// rejective multiple test procedure", Scandinavian Journal of Statistics 6, 1979): marks where
/// the corrected one is at most 5 % are all right in 95 of 100 cases, however they depend on each
/// other.
#[must_use]
pub fn holm(chances: &[f64]) -> Vec<f64> {
    weighted_holm(&chances.iter().map(|chance| (*chance, 1.0)).collect::<Vec<_>>())
}

/// Holm's correction ([`holm`]) of weighted probabilities. The bound for a probability is
/// proportional to its weight, which is above 0 and must not depend on the tested data.
#[must_use]
pub fn weighted_holm(chances: &[(f64, f64)]) -> Vec<f64> {
    let mut order: Vec<(usize, f64, f64)> =
        chances.iter().enumerate().map(|(at, (chance, weight))| (at, *chance, *weight)).collect();
    order.sort_by(|(_, a, of_a), (_, b, of_b)| (a / of_a).total_cmp(&(b / of_b)));
    let mut left: f64 = chances.iter().map(|(_, weight)| weight).sum();
    let mut corrected = vec![1.0; chances.len()];
    let mut so_far = 0.0_f64;
    for (at, chance, weight) in order {
        // Once one is not marked, none after it is.
        so_far = so_far.max(chance * left / weight).min(1.0);
        left -= weight;
        if let Some(of) = corrected.get_mut(at) {
            *of = so_far;
        }
    }
    corrected
}

/// The ratio of the means of `with` to those of `without`, with its interval of 95 %, from the
/// logarithms by Welch's t. None with fewer than two values on a side or values that are not
/// positive.
#[must_use]
pub fn ratio(without: &[f64], with: &[f64]) -> Option<Range> {
    let logs = |of: &[f64]| {
        of.iter().map(|value| (*value > 0.0).then(|| value.ln())).collect::<Option<Vec<f64>>>()
    };
    difference(&logs(without)?, &logs(with)?).map(|of| Range {
        low: of.low.exp(),
        value: of.value.exp(),
        high: of.high.exp(),
    })
}

/// The mean of `with` minus that of `without`, with its interval of 95 % by Welch's t. None with
/// fewer than two values on a side.
#[must_use]
pub fn difference(without: &[f64], with: &[f64]) -> Option<Range> {
    let part = |of: &[f64]| Some((mean(of)?, variance(of)? / of.len() as f64, of.len() as f64));
    let ((a, va, na), (b, vb, nb)) = (part(without)?, part(with)?);
    let error = va + vb;
    let value = b - a;
    if error <= 0.0 {
        return Some(Range::exact(value));
    }
    let freedom = error * error / (va * va / (na - 1.0) + vb * vb / (nb - 1.0));
    let reach = tails::student_quantile(0.05, freedom) * error.sqrt();
    Some(Range { low: value - reach, value, high: value + reach })
}

/// Probability that the means of two groups differ as they do, or more, where whatever made `with`
/// does nothing: both then have the spread of `without`. By Student's t; the two-sided probability,
/// 0 to 1, and 1 with fewer than two values of `without` or none of `with`.
///
/// Welch's test would take the spread of `with` from its values, which are few: of four values, a
/// spread that is too small by chance is common.
#[must_use]
pub fn difference_chance(without: &[f64], with: &[f64]) -> f64 {
    let (Some(a), Some(b), Some(variance)) = (mean(without), mean(with), variance(without)) else {
        return 1.0;
    };
    let (n, m) = (without.len() as f64, with.len() as f64);
    let error = (variance * (1.0 / n + 1.0 / m)).sqrt();
    match error > 0.0 {
        true => tails::student((b - a) / error, n - 1.0),
        // All values were the same: any other one is something new.
        false => f64::from(u8::from(a == b)),
    }
}

fn fisher(correlation: f64) -> f64 {
    correlation.clamp(-CORRELATION_MAX, CORRELATION_MAX).atanh()
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Variance of a sample; None of fewer than two values.
fn variance(values: &[f64]) -> Option<f64> {
    let of = mean(values).filter(|_| values.len() > 1)?;
    let squares: f64 = values.iter().map(|value| (value - of).powi(2)).sum();
    Some(squares / (values.len() as f64 - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program of three metrics: the second follows the first to some degree, the third does not.
    fn run(random: &mut fastrand::Rng, follows: f64) -> Series {
        let mut normal = || (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
        let (mut a, mut b, mut c) = (Vec::new(), Vec::new(), Vec::new());
        for record in 0..60 {
            let wave = (f64::from(record) / 6.0).sin() * 2.0 + normal();
            a.push(wave);
            b.push(follows * wave + normal());
            c.push((f64::from(record) / 15.0).cos() + 0.3 * normal());
        }
        Series { columns: vec![a, b, c] }
    }

    fn judged(random: &mut fastrand::Rng, follows: f64) -> Judgement {
        let mut runs: Vec<Series> = (0..14).map(|_| run(random, 1.0)).collect();
        runs.extend((0..4).map(|_| run(random, follows)));
        let baselines: Vec<usize> = (0..14).collect();
        let correlations = Correlations::of(&runs, &baselines);
        judge(&correlations, &baselines, &[14, 15, 16, 17], 0.01)
    }

    #[test]
    fn a_relation_that_an_observer_ends_is_found() {
        let judgement = judged(&mut fastrand::Rng::with_seed(1), 0.0);
        assert!(judgement.any);
        let (_, _, pair) = judgement.inner.iter().find(|(a, b, _)| (*a, *b) == (0, 1)).unwrap();
        assert!(pair.baseline > 0.6 && pair.observed.abs() < 0.3 && pair.chance < 1e-4, "{pair:?}");
        assert!(pair.deviations < -3.0);
        // Which of the two changed is told by itself in other runs: the second one did.
        assert!(judgement.perturbed[1] && !judgement.perturbed[2], "{:?}", judgement.perturbed);
    }

    #[test]
    fn runs_without_an_observer_are_not_flagged() {
        let mut random = fastrand::Rng::with_seed(3);
        let flagged = (0..100).filter(|_| judged(&mut random, 1.0).any).count();
        // At a level of 1 % one is expected; more than 5 come in 1 of 1000 cases.
        assert!(flagged <= 5, "{flagged} of 100");
    }

    #[test]
    fn the_metric_of_many_changed_pairs_is_the_one() {
        let mut perturbed = vec![false; 5];
        cover(&mut perturbed, vec![(0, 3), (1, 3), (2, 3)]);
        assert_eq!(perturbed, [false, false, false, true, false]);
        let mut perturbed = vec![false; 3];
        cover(&mut perturbed, vec![(0, 2)]);
        assert_eq!(perturbed, [true, false, true], "of one pair nobody knows");
        let mut perturbed = vec![true, false, false];
        cover(&mut perturbed, vec![(0, 2)]);
        assert_eq!(perturbed, [true, false, false], "a known one explains its pairs");
    }

    #[test]
    fn metrics_without_a_correlation_are_left_out() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut runs: Vec<Series> = (0..6).map(|_| run(&mut random, 1.0)).collect();
        for run in &mut runs {
            run.columns[2] = vec![0.0; 60];
        }
        let correlations = Correlations::of(&runs, &[0, 1, 2, 3]);
        let judgement = judge(&correlations, &[0, 1, 2, 3], &[4, 5], 0.01);
        assert_eq!(judgement.inner.len(), 1);
        assert_eq!(judgement.outer.len(), 2);
        assert_eq!(judgement.unknown, [false, false, true]);
        assert!(!judgement.perturbed[2], "no run has it");
        // A metric that only the observer took away is not to be believed.
        for of in &mut runs[..4] {
            of.columns[2] = run(&mut random, 1.0).columns[2].clone();
        }
        let correlations = Correlations::of(&runs, &[0, 1, 2, 3]);
        let judgement = judge(&correlations, &[0, 1, 2, 3], &[4, 5], 0.01);
        assert!(judgement.perturbed[2] && judgement.any, "{judgement:?}");
        assert!(!judge(&correlations, &[], &[], 0.01).any);
        assert!(!judge(&Correlations::of(&[], &[]), &[0], &[7], 0.01).any);
    }

    #[test]
    fn holms_correction() {
        let corrected = holm(&[0.01, 0.04, 0.03, 0.005]);
        for (is, expected) in corrected.iter().zip([0.03, 0.06, 0.06, 0.02]) {
            assert!((is - expected).abs() < 1e-12, "{corrected:?}");
        }
    }

    #[test]
    fn ratios_have_intervals() {
        let of = ratio(&[1.0, 1.1, 0.9], &[2.0, 2.2, 1.8]).unwrap();
        assert!((of.value - 2.0).abs() < 1e-9 && of.low > 1.5 && of.high < 2.6, "{of:?}");
        assert_eq!(ratio(&[1.0], &[2.0, 2.0]), None);
        assert_eq!(ratio(&[1.0, 0.0], &[2.0, 2.0]), None);
        assert_eq!(difference(&[1.0, 1.0], &[2.0, 2.0]), Some(Range::exact(1.0)));
    }
}
