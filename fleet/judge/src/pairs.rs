//! Procedures of two builds, or of two weeks, paired by host.
//!
//! A *pair* is a host that ran both sides of a comparison: two builds of an image in one service
//! and one week, or the same service in two weeks. On host h the old side spent `x1` of the
//! service's time `y1` in the procedure, the new one `x2` of `y2`; `d = x2/y2 - x1/y1`. A pair has
//! one weight w ([`weight`]) on both sides, so that a roll-out that reaches large hosts first
//! compares builds and not hosts (Simpson's paradox). The change of the share is `D = sum(w d) /
//! sum(w)`; its variance is that between hosts, and never less than that of sampling.

use std::collections::BTreeMap;

use stats::Confidence;
use stats::significance::{Counted, Measure, change};

use crate::chance::{beyond, reach as reach_of};
use crate::discoveries;
use crate::typical::{Measured, Typical};

/// Expected samples of a procedure on the side with fewer, below which the exact test of the counts
/// must agree: differences between hosts are no normal numbers then.
const EXACT_BELOW: f64 = 25.0;

/// Harmonic samples (`n1 n2 / (n1 + n2)`) of a pair from which its own ways, and not sampling, are
/// most of its error, and more samples bring less and less weight: those at which a procedure of
/// 0.1 % has a relative error by sampling like that between hosts (about 6 %, two sides of 4 %).
/// With far more, large hosts decide alone and the error is that of a few; with far less, hosts of
/// few samples count like others.
pub const SAMPLES_ENOUGH: f64 = 300_000.0;

/// The weight of a pair whose service has `n1` and `n2` samples on its sides: near the one of the
/// least variance, `1 / (spread^2 + 1/(share n1) + 1/(share n2))`. In SQL, with `h` for `n1 * n2 /
/// (n1 + n2)`: `h / (1 + h / 300000)`. 0 where a side has none: that is no pair.
#[must_use]
pub fn weight(n1: f64, n2: f64) -> f64 {
    let harmonic = n1 * n2 / (n1 + n2);
    if n1 > 0.0 && n2 > 0.0 && harmonic.is_finite() {
        harmonic / (1.0 + harmonic / SAMPLES_ENOUGH)
    } else {
        0.0
    }
}

/// Sums over the pairs of a group, of one procedure. Hosts without the procedure have `d = 0` and
/// add nothing.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Sums {
    /// `sum(w d)`.
    pub wd: f64,
    /// `sum(w^2 d)`.
    pub w2d: f64,
    /// `sum(w^2 d^2)`.
    pub w2d2: f64,
    /// `sum(w x1/y1)`: the old share, times `sum(w)`.
    pub w_old: f64,
    /// Hosts that had samples of it, on either side.
    pub hosts: u64,
    /// Samples of it on the old side.
    pub samples_old: u64,
    /// Samples of it on the new side.
    pub samples_new: u64,
}

/// A comparison: service, image, old build and new build; or a service in two weeks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// Pairs.
    pub pairs: u64,
    /// `sum(w)` over all of them.
    pub w: f64,
    /// `sum(w^2)`.
    pub w2: f64,
    /// `sum(w^2 (1/n1 + 1/n2))`, n the service's samples on the host and side: what sampling adds
    /// to the variance, for each unit of share.
    pub sampling: f64,
    /// Samples of the whole service on the pairs' hosts on the old side: while the old build ran.
    pub samples_old: u64,
    /// The same on the new side.
    pub samples_new: u64,
    /// The procedures. A whole image is a group of its own, with one row: what a group's procedures
    /// have in common is subtracted from each, and an image's change may be just that.
    pub rows: Vec<Sums>,
}

/// How to judge.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Rule {
    /// Of the intervals, each for itself.
    pub confidence: Confidence,
    /// Share of the service's time that a procedure must have in the mean of both sides, to be
    /// tested. A lower one tests more procedures, which costs power in all others.
    pub share_least: f64,
    /// Relative standard deviation by which a procedure changes at least that nobody changed, for
    /// reasons that all hosts share. Where the procedures themselves show more ([`Typical`]), that
    /// is taken.
    pub spread_least: f64,
}

impl Rule {
    /// For builds in one week. The least spread is 0.1 %: about the smallest that the procedures of
    /// an image show ([`Typical`]), so that very many hosts make no certainty of nothing.
    #[must_use]
    pub fn builds() -> Self {
        Self { confidence: Confidence::default(), share_least: 1e-4, spread_least: 0.001 }
    }

    /// For a week and an earlier one. The least spread is 0.3 %: weekly traffic and data, assumed.
    /// From earlier weeks' [`Typical::spread`] a better number may be known.
    #[must_use]
    pub fn weeks() -> Self {
        Self { spread_least: 0.003, ..Self::builds() }
    }
}

/// Why a procedure was not tested.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Untested {
    /// Fewer than two hosts ran both sides.
    Hosts,
    /// Its share is below [`Rule::share_least`].
    Small,
    /// Only the new side has it, so that nothing can be said in percent: see
    /// [`one_sided`](crate::one_sided).
    New,
    /// The sums are of no set of hosts: not finite, or negative.
    Nonsense,
}

impl Untested {
    /// The reason as one word, as tables have it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Hosts => "hosts",
            Self::Small => "small",
            Self::New => "new",
            Self::Nonsense => "nonsense",
        }
    }
}

/// The verdict on a procedure.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Judged {
    /// Relative change of its share of the service's time, less the typical change; 0.02: 2 % more.
    /// 0 where nothing is known.
    pub value: f64,
    /// Lower end of its interval, `-1..`.
    pub low: f64,
    /// Upper end, up to infinity.
    pub high: f64,
    /// Share of the service's time on the old side.
    pub share_old: f64,
    /// Change of that share, less the typical change. Times the service's cores: cores.
    pub share_change: f64,
    /// Standard deviation of the change of the share; infinite where nothing is known.
    pub share_sd: f64,
    /// The probability of such a change by chance, of this row alone; 1 where it was not tested.
    pub p: f64,
    /// `p` corrected for everything compared, by [`mark`]; 1 before.
    pub q: f64,
    /// More than chance, by [`mark`].
    pub marked: bool,
    /// Why it was not tested.
    pub untested: Option<Untested>,
}

impl Judged {
    fn not(untested: Untested, share_old: f64) -> Self {
        Self {
            value: 0.0,
            low: -1.0,
            high: f64::INFINITY,
            share_old,
            share_change: 0.0,
            share_sd: f64::INFINITY,
            p: 1.0,
            q: 1.0,
            marked: false,
            untested: Some(untested),
        }
    }
}

/// The typical change and spread of each group, and its procedures in the order given, each with
/// `p`; [`mark`] makes the marks.
///
/// Of builds, a group is (service, image, old build, new build). Of weeks, it is a service in a
/// week and the one before: its typical spread is then what all hosts share in a week, which the
/// differences between hosts do not show.
#[must_use]
pub fn paired(groups: &[Group], rule: &Rule) -> Vec<(Typical, Vec<Judged>)> {
    let measured: Vec<Vec<Result<Row, Judged>>> = groups
        .iter()
        .map(|group| group.rows.iter().map(|row| Row::of(group, row, rule)).collect())
        .collect();
    let relative = |rows: &Vec<Result<Row, Judged>>| -> Vec<Measured> {
        rows.iter().flatten().map(Row::relative).collect()
    };
    let owns: Vec<Vec<Measured>> = measured.iter().map(relative).collect();
    // Groups of few procedures have the spread of all groups, and no median change.
    let all = Typical::of(&owns.concat()).map_or(0.0, |typical| typical.spread);
    // A quantile takes as long as a hundred probabilities, and many rows have as many hosts.
    let mut reaches: BTreeMap<u64, f64> = BTreeMap::new();
    let mut judged = Vec::with_capacity(groups.len());
    for ((group, rows), own) in groups.iter().zip(measured).zip(owns) {
        let own = Typical::of(&own).unwrap_or(Typical { spread: all, ..Typical::default() });
        let typical = Typical { spread: own.spread.max(rule.spread_least), ..own };
        let judge = |(row, sums): (Result<Row, Judged>, &Sums)| {
            let row = match row {
                Ok(row) => row,
                Err(untested) => return untested,
            };
            let reach = reaches.entry(row.df.to_bits());
            let reach = *reach.or_insert_with(|| reach_of(row.df, rule.confidence));
            row.judge(group, sums, typical, rule, reach)
        };
        judged.push((typical, rows.into_iter().zip(&group.rows).map(judge).collect()));
    }
    judged
}

/// Corrects the probabilities of everything that was compared in a week, of all services, and marks
/// what is more than chance: of the marks, the share `level` is false on average. Rows that were
/// not tested do not count.
pub fn mark<'a>(rows: impl IntoIterator<Item = &'a mut Judged>, level: f64) {
    let mut rows: Vec<&mut Judged> =
        rows.into_iter().filter(|row| row.untested.is_none()).collect();
    let p: Vec<f64> = rows.iter().map(|row| row.p).collect();
    let found = discoveries(&p, level);
    for ((row, q), marked) in rows.iter_mut().zip(found.q).zip(found.marked) {
        (row.q, row.marked) = (q, marked);
    }
}

/// A procedure that can be tested: its change, before anything typical is subtracted.
#[derive(Copy, Clone, Debug)]
struct Row {
    /// Old share, above 0.
    old: f64,
    /// Change of the share.
    change: f64,
    /// Standard deviation of the change, above 0.
    sd: f64,
    /// Degrees of freedom of the standard deviation.
    df: f64,
}

impl Row {
    fn of(group: &Group, sums: &Sums, rule: &Rule) -> Result<Self, Judged> {
        let all = [group.w, group.w2, group.sampling, sums.wd, sums.w2d, sums.w2d2, sums.w_old];
        let positive = [group.w, group.w2, group.sampling].iter().all(|sum| *sum > 0.0);
        if group.pairs < 2 {
            return Err(Judged::not(Untested::Hosts, 0.0));
        }
        if !all.iter().all(|sum| sum.is_finite()) || !positive {
            return Err(Judged::not(Untested::Nonsense, 0.0));
        }
        let (old, change) = (sums.w_old / group.w, sums.wd / group.w);
        let new = old + change;
        // Rounding leaves a little below 0 of shares that are 0.
        if old < -1e-9 || new < -1e-9 || sums.w2d2 < 0.0 {
            return Err(Judged::not(Untested::Nonsense, 0.0));
        }
        let mean = f64::midpoint(old, new);
        if mean < rule.share_least {
            return Err(Judged::not(Untested::Small, old));
        }
        if old < 1e-9 * new {
            return Err(Judged::not(Untested::New, old));
        }
        // As many hosts of equal weight would be as unsure.
        let hosts = (group.w * group.w / group.w2).min(group.pairs as f64);
        let squares = sums.w2d2 - 2.0 * change * sums.w2d + change * change * group.w2;
        let between = squares.max(0.0) / (group.w * group.w) * hosts / (hosts - 1.0);
        // The larger share: a side without a sample does not show that it has none.
        let sampling = old.max(new) * group.sampling / (group.w * group.w);
        let sd = between.max(sampling).sqrt();
        let df = hosts.min(sums.hosts as f64) - 1.0;
        // One host's worth is left where one pair has all the weight; sums of nonsense may do more.
        if sd.is_finite() && sd > 0.0 && df.is_finite() && df > 0.0 {
            Ok(Self { old, change, sd, df })
        } else {
            Err(Judged::not(Untested::Hosts, old))
        }
    }

    fn relative(&self) -> Measured {
        Measured { change: self.change / self.old, sd: self.sd / self.old }
    }

    fn judge(
        &self,
        group: &Group,
        sums: &Sums,
        typical: Typical,
        rule: &Rule,
        reach: f64,
    ) -> Judged {
        let Self { old, df, .. } = *self;
        // All others' shares fall by the typical change where one grew: to this the row compares.
        let scale = 1.0 + typical.change;
        if scale <= 0.0 {
            return Judged::not(Untested::Nonsense, old);
        }
        let expected = old * scale;
        let change = self.change - old * typical.change;
        let mean = f64::midpoint(expected, expected + change);
        let sd = self.sd.hypot(mean * typical.spread).hypot(old * typical.change_sd);
        let value = change / expected;
        // The ratio's error grows with the ratio, as the old share is not known exactly either:
        // with equal relative errors on both sides its variance is 2 g^2 / (1 + g^2) times that of
        // the difference by the old share, g the ratio.
        let ratio = (1.0 + value).max(1.0);
        let growth = (2.0 * ratio * ratio / (1.0 + ratio * ratio)).sqrt();
        let reach = reach * sd / expected * growth;
        let p = beyond(change / sd, df).max(Self::counts(group, sums, scale, rule));
        Judged {
            value,
            low: (value - reach).max(-1.0),
            high: value + reach,
            share_old: old,
            share_change: change / scale,
            share_sd: sd / scale,
            p,
            q: 1.0,
            marked: false,
            untested: None,
        }
    }

    /// The probability by the counts alone where there are few; 0 where there are many, which then
    /// have no say.
    fn counts(group: &Group, sums: &Sums, scale: f64, rule: &Rule) -> f64 {
        let (old, new) = (group.samples_old as f64 * scale.recip(), group.samples_new as f64);
        if old <= 0.0 || new <= 0.0 {
            return 1.0;
        }
        let samples = sums.samples_old as f64 + sums.samples_new as f64;
        if samples * (old / (old + new)).min(new / (old + new)) >= EXACT_BELOW {
            return 0.0;
        }
        let counted = |samples: u64, of: f64| Counted { samples: samples as f64, of };
        let (a, b) = (counted(sums.samples_old, old), counted(sums.samples_new, new));
        let p =
            change(Measure::Share, a, b, stats::significance::Spread::default(), rule.confidence).p;
        if p.is_nan() { 1.0 } else { p }
    }
}

#[cfg(test)]
mod tests;
