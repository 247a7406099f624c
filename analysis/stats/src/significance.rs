//! What changed between sets of samples, and how sure that is.
//!
//! Two things are allowed for. *Sampling*: of the same program another sample would have been
//! drawn. *Spread*: a program does not do the same in each run or minute (caches, neighbours,
//! input), which no number of samples tells; where a set has several epochs or hosts, they do. If
//! samples of one epoch come in long phases (a second of this, a second of that), counts vary less
//! than those of independent draws, and the intervals are on the safe side. In a program that does
//! the same things in turns as short as the sampling period, always as long and in the same order,
//! they vary more: the period is drawn anew only every thousand samples, and beats against the
//! turns. That is spread too.

use super::{Confidence, Share, many, poisson_between, tails, wilson_between};

/// Fewer expected samples than this on a side are tested exactly, as counts; more by their mean and
/// variance.
const NORMAL_FROM: f64 = 25.0;
/// Samples up to which the exact test is the binomial one; above, with few on one side, that is as
/// good as the other.
const EXACT_MAX: f64 = 4000.0;
/// Rows from which the typical row is believed to say how much rows differ that nobody changed.
const TYPICAL_ROWS: usize = 20;
/// Samples in a part from which a row tells the spread of amounts between two runs. At 100, the
/// relative sampling error is 10 %, twice [`RUNS_CV_MAX`].
const TYPICAL_MIN_SAMPLES: f64 = 100.0;
/// Largest coefficient of variation of a row's amount between runs of one build, where no set has
/// several runs that would show it. Set by hand. With a larger value, real changes of most rows are
/// taken for noise; with a smaller one, noise is marked.
const RUNS_CV_MAX: f64 = 0.05;

/// The quantity that is compared.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Shares of each set's samples: sets may be of different length.
    Share,
    /// Samples themselves: what the sets did was the same work.
    Amount,
    /// Samples a second: sets may be of different length.
    Rate,
}

/// Samples of a row in one set, or in one part of it: its epochs on its hosts.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Counted {
    /// The row's samples. Where samples weigh differently, as many as would be as uncertain:
    /// `amount^2 / variance`.
    pub samples: f64,
    /// What they are of: as [`Measure::Share`] all samples, as [`Measure::Rate`] seconds by the
    /// weight of one, as [`Measure::Amount`] 1 by the weight
    /// of one.
    pub of: f64,
}

impl Counted {
    /// The share, or the amount; 0 of nothing.
    pub fn value(&self) -> f64 {
        if self.of > 0.0 { self.samples / self.of } else { 0.0 }
    }
}

/// How much more than by sampling a row varies where nothing changed: the factor of the variance,
/// and from how many degrees of freedom it is known; infinitely many where it is taken for known.
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

/// A change, with the interval that holds the true one with the confidence asked for, of this row
/// alone.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Change {
    /// The second set's value less the first's.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// The probability of a change at least so large where there is none, not corrected for other
    /// rows.
    pub p: f64,
}

/// A row of a table of changes.
#[derive(Clone, Debug)]
pub struct Compared {
    /// The first set.
    pub a: Counted,
    /// The second.
    pub b: Counted,
    /// The parts of both: their epochs on their hosts.
    pub parts: [Vec<Counted>; 2],
}

/// The verdict on a row.
#[derive(Copy, Clone, Debug)]
pub struct Judged {
    /// The change.
    pub change: Change,
    /// How much more than by sampling the row was taken to vary.
    pub spread: Spread,
    /// The change's `p`, corrected for the other rows ([`many::corrected`]).
    pub p_corrected: f64,
    /// It changed: with the confidence asked for, no row of the table is marked so that did not.
    pub significant: bool,
}

/// Judges the rows of a table, each by its own spread and that of all, which is given too.
pub fn changes(
    measure: Measure,
    rows: &[Compared],
    confidence: Confidence,
) -> (Typical, Vec<Judged>) {
    let owns: Vec<(Option<Spread>, f64)> =
        rows.iter().map(|row| (dispersion(measure, &row.parts), in_a_part(&row.parts))).collect();
    let replicated = rows.iter().any(|row| row.parts.iter().any(|parts| parts.len() > 1));
    let typical = if replicated {
        Typical::of(
            &owns.iter().filter_map(|(own, samples)| Some(((*own)?, *samples))).collect::<Vec<_>>(),
        )
    } else {
        typical_between(measure, rows)
    };
    let judge = |(row, (own, samples)): (&Compared, (Option<Spread>, f64))| {
        let spread = spread(own, typical.factor_of(samples));
        let change = change(measure, row.a, row.b, spread, confidence);
        Judged { change, spread, p_corrected: 1.0, significant: false }
    };
    let mut judged: Vec<Judged> = rows.iter().zip(owns).map(judge).collect();
    let tests: Vec<(f64, f64)> = rows
        .iter()
        .zip(&judged)
        .map(|(row, judged)| (judged.change.p, row.a.samples + row.b.samples))
        .collect();
    for (row, p_corrected) in judged.iter_mut().zip(many::corrected(&tests)) {
        row.p_corrected = p_corrected;
        row.significant = confidence.marks(p_corrected);
    }
    (typical, judged)
}

/// The changes of rows of exact counts: each is what it is, and differs if the counts of its parts
/// do in their mean.
pub fn exact_changes(rows: &[Compared]) -> Vec<Judged> {
    let judge = |row: &Compared| {
        let value = row.b.value() - row.a.value();
        let [a, b] = row.parts.each_ref().map(|parts| parts.len().max(1) as f64);
        let significant = (row.a.samples * b - row.b.samples * a).abs() > 0.0;
        let p = if significant { 0.0 } else { 1.0 };
        let change = Change { value, low: value, high: value, p };
        Judged { change, spread: Spread::default(), p_corrected: p, significant }
    };
    rows.iter().map(judge).collect()
}

/// The change from `a` to `b`.
///
/// The interval is R. G. Newcombe's ("Interval estimation for the difference between independent
/// proportions", Statistics in Medicine 17, 1998, method 10) from the score intervals of both:
/// unlike the textbook's it holds for few samples and shares near 0 too.
///
/// `p` is that of the score test, with the common value for the variance; for few samples it is
/// exact, given their sum.
pub fn change(
    measure: Measure,
    a: Counted,
    b: Counted,
    spread: Spread,
    confidence: Confidence,
) -> Change {
    let (va, vb) = (a.value(), b.value());
    let value = vb - va;
    if a.of <= 0.0 || b.of <= 0.0 {
        let most = if measure == Measure::Share { 1.0 } else { f64::INFINITY };
        return Change { value, low: -most, high: most, p: 1.0 };
    }
    let z = if spread.df.is_finite() {
        tails::student_quantile(1.0 - confidence.percent() / 100.0, spread.df)
    } else {
        confidence.z()
    };
    let (ia, ib) = (interval(measure, a, spread, z), interval(measure, b, spread, z));
    let low = value - (vb - ib.low).hypot(ia.high - va);
    let high = value + (ib.high - vb).hypot(va - ia.low);
    Change { value, low, high, p: probability(measure, a, b, spread) }
}

fn interval(measure: Measure, counted: Counted, spread: Spread, z: f64) -> Share {
    let (samples, of) = (counted.samples / spread.factor, counted.of / spread.factor);
    match measure {
        Measure::Share => wilson_between(samples, of, z),
        Measure::Amount | Measure::Rate => {
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
        Measure::Amount | Measure::Rate => common,
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

/// How much more than by sampling the parts of each set vary around their set's value: chi-squared
/// by its degrees of freedom, and these; none where no set has two parts.
pub fn dispersion(measure: Measure, sets: &[Vec<Counted>]) -> Option<Spread> {
    let mut df = 0.0;
    let mut squares = 0.0;
    for parts in sets {
        let parts: Vec<Counted> = parts.iter().filter(|part| part.of > 0.0).copied().collect();
        let variance = common_variance(measure, &parts);
        if parts.len() > 1 && variance > 0.0 {
            df += (parts.len() - 1) as f64;
            let value = common(&parts).value();
            squares += parts
                .iter()
                .map(|part| (part.value() - value).powi(2) * part.of / variance)
                .sum::<f64>();
        }
    }
    (df > 0.0).then(|| Spread { factor: squares / df, df })
}

/// How much rows vary that nobody changed, whatever their size.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Typical {
    /// The factor of the sampling variance, of the median row; at least 1.
    pub factor: f64,
    /// The squared coefficient of variation that adds to it, of the row that the median sample is
    /// in: 0.0025 where rows vary by 5 %.
    pub cv2: f64,
}

impl Default for Typical {
    fn default() -> Self {
        Self { factor: 1.0, cv2: 0.0 }
    }
}

impl Typical {
    /// The typical spread of rows, from each one's own and its samples in a part, on average.
    ///
    /// Both are medians, as some rows may vary much more, and 1 and 0 unless more rows than by
    /// chance vary more than sampling explains.
    pub fn of(rows: &[(Spread, f64)]) -> Self {
        // By the median of chi-squared by its degrees of freedom (Wilson and Hilferty's
        // approximation).
        let mut factors: Vec<(f64, f64)> = rows
            .iter()
            .map(|(own, samples)| (own.factor / (1.0 - 2.0 / (9.0 * own.df)).powi(3), *samples))
            .collect();
        let count = factors.len() as f64;
        let above = factors.iter().filter(|(factor, _)| *factor > 1.0).count() as f64;
        // The sign test, at 1 %.
        if above <= count / 2.0 + 2.33 * count.sqrt() / 2.0 {
            return Self::default();
        }
        factors.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let factor = factors.get(factors.len() / 2).map_or(1.0, |(factor, _)| factor.max(1.0));
        let more = |(factor, samples): &(f64, f64)| ((factor - 1.0) / samples, *samples);
        let mut more: Vec<(f64, f64)> =
            factors.iter().filter(|(_, samples)| *samples > 0.0).map(more).collect();
        more.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let half = more.iter().map(|(_, samples)| samples).sum::<f64>() / 2.0;
        let mut so_far = 0.0;
        let median = more.iter().find(|(_, samples)| {
            so_far += samples;
            so_far >= half
        });
        Self { factor, cv2: median.map_or(0.0, |(cv2, _)| cv2.max(0.0)) }
    }

    /// The factor for a row of so many samples in a part.
    pub fn factor_of(&self, samples: f64) -> f64 {
        self.factor.max(1.0 + self.cv2 * samples)
    }
}

/// What is typical where no set has several parts: from how much the rows differ between the two,
/// if there are enough of them that most cannot have been changed on purpose (the empirical null:
/// B. Efron, "Large-scale simultaneous hypothesis testing", JASA 99, 2004).
///
/// Shares sum to 1, so a change of the total leaves them. Amounts all change with it, and between
/// builds of different flags most rows do change on purpose: the difference between rows is then
/// no noise, and is bounded by what runs of one build differ by ([`RUNS_CV_MAX`]).
fn typical_between(measure: Measure, rows: &[Compared]) -> Typical {
    let comparable = rows.iter().filter(|row| row.a.of > 0.0 && row.b.of > 0.0);
    let own = |row: &Compared| Spread { factor: score(measure, row.a, row.b).powi(2), df: 1.0 };
    let mut rows: Vec<(Spread, f64)> =
        comparable.map(|row| (own(row), in_a_part(&row.parts))).collect();
    if rows.len() < TYPICAL_ROWS {
        return Typical::default();
    }
    if measure == Measure::Share {
        let all: Vec<(Spread, f64)> = rows.into_iter().map(|(own, _)| (own, 0.0)).collect();
        return Typical::of(&all);
    }
    // Rows of few samples show sampling error only.
    rows.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let large = rows.iter().take_while(|(_, samples)| *samples >= TYPICAL_MIN_SAMPLES).count();
    rows.truncate(large.max(TYPICAL_ROWS));
    let typical = Typical::of(&rows);
    if typical == Typical::default() {
        return typical;
    }
    // One equation for each row: z^2 = 1 + cv2 * samples, of the median of z^2.
    let median_of_square = (1.0 - 2.0 / 9.0_f64).powi(3);
    let mut cv2: Vec<f64> = rows
        .iter()
        .filter(|(_, samples)| *samples > 0.0)
        .map(|(own, samples)| (own.factor / median_of_square - 1.0) / samples)
        .collect();
    cv2.sort_by(f64::total_cmp);
    let cv2 = cv2.get(cv2.len() / 2).map_or(0.0, |cv2| cv2.clamp(0.0, RUNS_CV_MAX.powi(2)));
    Typical { factor: 1.0, cv2 }
}

/// The mean number of samples in a part.
pub fn in_a_part(parts: &[Vec<Counted>]) -> f64 {
    let (mut count, mut samples) = (0.0_f64, 0.0);
    for part in parts.iter().flatten().filter(|part| part.of > 0.0) {
        (count, samples) = (count + 1.0, samples + part.samples);
    }
    samples / count.max(1.0)
}

/// The spread to reckon with: a row's own, and never less than is `typical` for its size.
///
/// What exceeds the typical is known from the row's own degrees of freedom; of the sum of both
/// these are Satterthwaite's.
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

/// The probability that sets differ at least so much where they are all the same.
pub fn same(measure: Measure, sets: &[Counted], spread: Spread) -> f64 {
    let sets: Vec<Counted> = sets.iter().filter(|set| set.of > 0.0).copied().collect();
    let Some(own) = dispersion(measure, std::slice::from_ref(&sets)) else {
        return 1.0;
    };
    tails::squares(own.factor * own.df / spread.factor, own.df, spread.df)
}

/// The standard deviation that a set's value has by sampling alone, where all sets are the same:
/// mean over the sets.
pub fn deviation_by_sampling(measure: Measure, sets: &[Counted]) -> f64 {
    let sets: Vec<Counted> = sets.iter().filter(|set| set.of > 0.0).copied().collect();
    let variance = common_variance(measure, &sets);
    let mean = sets.iter().map(|set| variance / set.of).sum::<f64>() / sets.len().max(1) as f64;
    mean.sqrt()
}

#[cfg(test)]
mod tests;
