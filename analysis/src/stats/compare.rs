//! What changed between sets of samples, and how sure that is.
//!
//! Two things are allowed for. *Sampling*: of the same program another sample would have been drawn. *Spread*: a program does not do the same
//! in each run or minute (caches, neighbours, input), which no number of samples tells; where a set has several epochs or hosts, they do. If
//! samples of one epoch come in phases (a second of this, a second of that), counts vary less than those of independent draws, not more: the
//! intervals are then on the safe side.

use super::tails;
use super::{Confidence, Share, poisson_between, wilson_between};

/// Fewer expected samples than this on a side are tested exactly, as counts; more by their mean and variance.
const NORMAL_FROM: f64 = 25.0;
/// Samples up to which the exact test is the binomial one; above, with few on one side, that is as good as the other.
const EXACT_MAX: f64 = 4000.0;
/// Rows from which the typical row is believed to say how much rows differ that nobody changed.
const TYPICAL_ROWS: usize = 20;

/// What is compared.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Shares of each set's samples: sets may be of different length.
    Share,
    /// Samples themselves: what the sets did was the same work.
    Amount,
}

/// Samples of a row in one set, or in one part of it: its epochs on its hosts.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Counted {
    /// The row's samples. Where samples weigh differently, as many as would be as uncertain: `amount^2 / variance`.
    pub samples: f64,
    /// What they are of: as [`Measure::Share`] all samples, as [`Measure::Amount`] 1 by the weight of one.
    pub of: f64,
}

impl Counted {
    /// The share, or the amount; 0 of nothing.
    #[must_use]
    pub fn value(&self) -> f64 {
        if self.of > 0.0 { self.samples / self.of } else { 0.0 }
    }
}

/// How much more than by sampling a row varies where nothing changed: the factor of the variance, and from how many degrees of freedom it is
/// known; infinitely many where it is taken for known.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Spread {
    /// The factor, at least 1.
    pub factor: f64,
    /// Degrees of freedom.
    pub df: f64,
}

impl Default for Spread {
    fn default() -> Self {
        Self { factor: 1.0, df: f64::INFINITY }
    }
}

/// A change, with the interval that holds the true one with the confidence asked for, of this row alone.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Change {
    /// The second set's value less the first's.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// The probability of a change at least so large where there is none, not corrected for other rows.
    pub p: f64,
}

/// The change from `a` to `b`.
///
/// The interval is R. G. Newcombe's ("Interval estimation for the difference between independent proportions", Statistics in Medicine 17,
/// 1998, method 10) from the score intervals of both: unlike the textbook's it holds for few samples and shares near 0 too.
///
/// `p` is that of the score test, with the common value for the variance; for few samples it is exact, given their sum.
#[must_use]
pub fn change(measure: Measure, a: Counted, b: Counted, spread: Spread, confidence: Confidence) -> Change {
    let (va, vb) = (a.value(), b.value());
    let value = vb - va;
    if a.of <= 0.0 || b.of <= 0.0 {
        let most = if measure == Measure::Share { 1.0 } else { f64::INFINITY };
        return Change { value, low: -most, high: most, p: 1.0 };
    }
    let z = tails::student_quantile(1.0 - confidence.percent() / 100.0, spread.df);
    let (ia, ib) = (interval(measure, a, spread, z), interval(measure, b, spread, z));
    let low = value - (vb - ib.low).hypot(ia.high - va);
    let high = value + (ib.high - vb).hypot(va - ia.low);
    Change { value, low, high, p: probability(measure, a, b, spread) }
}

fn interval(measure: Measure, counted: Counted, spread: Spread, z: f64) -> Share {
    let (samples, of) = (counted.samples / spread.factor, counted.of / spread.factor);
    match measure {
        Measure::Share => wilson_between(samples, of, z),
        Measure::Amount => {
            let (low, high) = poisson_between(samples, z);
            Share { value: samples / of, low: low / of, high: high / of }
        }
    }
}

/// What the change is by its standard deviation, where there was none.
fn score(measure: Measure, a: Counted, b: Counted) -> f64 {
    let variance = common_variance(measure, &[a, b]) * (1.0 / a.of + 1.0 / b.of);
    if variance > 0.0 { (b.value() - a.value()) / variance.sqrt() } else { 0.0 }
}

/// The variance of a value, times what it is of, where all have the same value.
fn common_variance(measure: Measure, parts: &[Counted]) -> f64 {
    let common = common(parts).value();
    match measure {
        Measure::Share => common * (1.0 - common).max(0.0),
        Measure::Amount => common,
    }
}

fn common(parts: &[Counted]) -> Counted {
    let sum = |of: fn(&Counted) -> f64| parts.iter().map(of).sum();
    Counted { samples: sum(|part| part.samples), of: sum(|part| part.of) }
}

fn probability(measure: Measure, a: Counted, b: Counted, spread: Spread) -> f64 {
    let by_score = tails::student(score(measure, a, b) / spread.factor.sqrt(), spread.df);
    let samples = (a.samples + b.samples).round();
    let in_a = a.of / (a.of + b.of);
    let fewest = samples * in_a.min(1.0 - in_a);
    if fewest >= NORMAL_FROM || samples > EXACT_MAX {
        return by_score;
    }
    // Given the sum, each sample is in the first set with this probability, where nothing changed.
    let seen = a.samples.round().min(samples);
    let up = tails::binomial_from(seen, samples, in_a);
    let down = tails::binomial_from(samples - seen, samples, 1.0 - in_a);
    by_score.max((2.0 * up.min(down)).min(1.0))
}

/// How much more than by sampling the parts of each set vary around their set's value: chi-squared by its degrees of freedom, and these; none
/// where no set has two parts.
#[must_use]
pub fn dispersion(measure: Measure, sets: &[Vec<Counted>]) -> Option<Spread> {
    let mut df = 0.0;
    let mut squares = 0.0;
    for parts in sets {
        let parts: Vec<Counted> = parts.iter().filter(|part| part.of > 0.0).copied().collect();
        let variance = common_variance(measure, &parts);
        if parts.len() > 1 && variance > 0.0 {
            df += (parts.len() - 1) as f64;
            let value = common(&parts).value();
            squares += parts.iter().map(|part| (part.value() - value).powi(2) * part.of / variance).sum::<f64>();
        }
    }
    (df > 0.0).then(|| Spread { factor: squares / df, df })
}

/// The factor of the typical row, the median, from the rows' own; at least 1.
#[must_use]
pub fn typical(rows: impl Iterator<Item = Spread>) -> f64 {
    // The median of chi-squared by its degrees of freedom (Wilson and Hilferty's approximation).
    let mut factors: Vec<f64> = rows.map(|own| own.factor / (1.0 - 2.0 / (9.0 * own.df)).powi(3)).collect();
    factors.sort_by(f64::total_cmp);
    factors.get(factors.len() / 2).copied().unwrap_or(1.0).max(1.0)
}

/// The typical factor where no set has several parts: from how much the rows differ between the two, if there are enough of them that most
/// cannot have been changed on purpose (the empirical null: B. Efron, "Large-scale simultaneous hypothesis testing", JASA 99, 2004).
#[must_use]
pub fn typical_between(measure: Measure, rows: &[(Counted, Counted)]) -> f64 {
    if rows.len() < TYPICAL_ROWS {
        return 1.0;
    }
    typical(rows.iter().map(|(a, b)| Spread { factor: score(measure, *a, *b).powi(2), df: 1.0 }))
}

/// The spread to reckon with: a row's own, and never less than that of the typical row or of sampling.
///
/// What exceeds the typical is known from the row's own degrees of freedom; of the sum of both these are Satterthwaite's.
#[must_use]
pub fn spread(own: Option<Spread>, typical: f64) -> Spread {
    let floor = typical.max(1.0);
    match own {
        Some(own) if own.factor > floor => {
            let known = own.factor / (own.factor - floor);
            Spread { factor: own.factor, df: own.df * known * known }
        }
        _ => Spread { factor: floor, df: f64::INFINITY },
    }
}

/// The probability that sets differ at least so much where they are all the same, and the variance that a set's value has then.
#[must_use]
pub fn same(measure: Measure, sets: &[Counted], spread: Spread) -> f64 {
    let sets: Vec<Counted> = sets.iter().filter(|set| set.of > 0.0).copied().collect();
    let Some(own) = dispersion(measure, std::slice::from_ref(&sets)) else {
        return 1.0;
    };
    tails::squares(own.factor * own.df / spread.factor, own.df, spread.df)
}

/// The standard deviation that a set's value has by sampling alone, where all sets are the same: mean over the sets.
#[must_use]
pub fn deviation_by_sampling(measure: Measure, sets: &[Counted]) -> f64 {
    let sets: Vec<Counted> = sets.iter().filter(|set| set.of > 0.0).copied().collect();
    let variance = common_variance(measure, &sets);
    let mean = sets.iter().map(|set| variance / set.of).sum::<f64>() / sets.len().max(1) as f64;
    mean.sqrt()
}
