//! How sure a share is: confidence intervals of a proportion.
//!
//! A profile is a sample: of `n` samples, `k` fell into a procedure. If samples are taken at random
//! moments, `k` is binomial, and the procedure's true share of the time lies near `k / n`.
//!
//! - [`significance`]: what changed between sets of samples
//! - [`many`]: marks in a table of many rows
//! - [`totals`]: the ratio of what two sets of runs took in all
//! - [`tails`]: the distributions behind them
#![forbid(unsafe_code)]

use measure::Interval;

use crate::tally::Tally;

pub use measure::tails;

#[cfg(test)]
mod chance;
pub mod many;
pub mod significance;
pub mod tally;
pub mod totals;

/// How sure an interval is to hold the truth, as a fraction: `0 < level < 1`.
#[derive(Copy, Clone, Debug, PartialEq, PartialOrd)]
pub struct Confidence {
    level: f64,
}

impl Default for Confidence {
    /// 95 %, as the options' default.
    fn default() -> Self {
        Self { level: 0.95 }
    }
}

impl Confidence {
    /// A confidence of this many percent; `None` unless above 0 and below 100.
    pub fn from_percent(percent: f64) -> Option<Self> {
        // Comparisons with NaN are false.
        (percent > 0.0 && percent < 100.0).then_some(Self { level: percent / 100.0 })
    }

    /// The confidence in percent.
    pub fn percent(self) -> f64 {
        // 99.9 / 100 * 100 is not 99.9; nobody asks for more than nine digits.
        (self.level * 1e11).round() / 1e9
    }

    /// Whether what has this probability by chance is said to be none.
    pub fn marks(self, p: f64) -> bool {
        // 1 - 0.95 is not 0.05: what is as probable as that, but for rounding, counts.
        p <= (1.0 - self.level) * (1.0 + 1e-12)
    }

    /// The distance from the mean, in standard deviations, within which a normal variable lies with
    /// this probability: 1.96 at 95 %.
    pub fn z(self) -> f64 {
        // The lower tail: for a high confidence it is a small number, known to full precision.
        -normal_quantile((1.0 - self.level) / 2.0)
    }
}

/// A share and where the truth lies: `0 <= low <= value <= high <= 1`.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Share {
    /// The share seen.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl Share {
    /// The smallest symmetric distance from the value that covers the interval.
    pub fn reach(&self) -> f64 {
        (self.high - self.value).max(self.value - self.low)
    }
}

/// The share `k / n` with Wilson's score interval (E. B. Wilson, "Probable inference, the law of
/// succession, and statistical inference", JASA 22, 1927): it holds the truth about as often as it
/// says also for few samples and for shares near 0 and 1, where the textbook interval ([`wald`])
/// fails (Brown, Cai, DasGupta, "Interval estimation for a binomial proportion", 2001).
///
/// Without samples nothing is known: `0` in `0..1`. A `k` above `n` counts as `n`.
pub fn wilson(k: u64, n: u64, confidence: Confidence) -> Share {
    if n == 0 {
        return Share { value: 0.0, low: 0.0, high: 1.0 };
    }
    let (value, count) = proportion(k, n);
    let share = wilson_between(value * count, count, confidence.z());
    // 0 and n are exact; with many samples rounding is seen.
    let low = if k == 0 { 0.0 } else { share.low };
    let high = if k >= n { 1.0 } else { share.high };
    Share { value, low, high }
}

/// The share `k / n` of exact counts, whose interval is the share itself; 0 of nothing. A `k` above
/// `n` counts as `n`.
pub fn exact(k: u64, n: u64) -> Share {
    let value = if n == 0 { 0.0 } else { proportion(k, n).0 };
    Share { value, low: value, high: value }
}

/// The share of `part` in `whole`, by what their samples stand for, with Wilson's interval for as
/// many samples as would be as sure.
///
/// The ratio of sums of weighted Poisson counts has, to first order, the variance `((1 - p)^2 V +
/// p^2 (U - V)) / W^2`, where `V` and `U` are the sums of the squared weights of part and whole and
/// `W` is the sum of the whole's weights (W. G. Cochran, "Sampling Techniques", 3rd edition, 1977,
/// section 6.4). A binomial share of `n` has `p (1 - p) / n`: that gives `n`, which is the number
/// of samples where all weigh the same, and Kish's effective sample size `W^2 / U` where `p` is 0
/// or 1.
///
/// What is not told apart ([`tally::Doubt`]) is added at both ends.
///
/// Few samples of a large weight may all be missing, and then nothing in `V` tells of them. So the
/// upper end is that of the part with one more sample of the largest weight, as Fay and Feuer have
/// it for weighted sums of Poisson counts ("Confidence intervals for directly standardized rates",
/// Statistics in Medicine 16, 1997).
pub fn share(part: Tally, whole: Tally, confidence: Confidence) -> Share {
    if whole.occurrences <= 0.0 {
        return wilson(0, 0, confidence);
    }
    let mean = whole.weight();
    if part.doubtful() <= 0.0
        && (part.occurrences - part.samples as f64 * mean).abs() <= 1e-9 * part.occurrences
        && (whole.occurrences - whole.samples as f64 * mean).abs() <= 1e-9 * whole.occurrences
    {
        return wilson(part.samples, whole.samples, confidence);
    }
    let share = weighted(part, whole, confidence);
    // As much may be missing from the rest: that bounds the share from below.
    let rest = weighted(
        with_one_more(whole.without(part), whole),
        with_one_more(whole, whole),
        confidence,
    );
    let more = weighted(with_one_more(part, whole), with_one_more(whole, whole), confidence);
    let low = if part.is_empty() { 0.0 } else { share.low.min(1.0 - rest.high) };
    let high = if whole.without(part).is_empty() { 1.0 } else { share.high.max(more.high) };
    let [less, more] = [part.less, part.more].map(|of| of / whole.occurrences);
    let (low, high) = ((low - less).max(0.0), (high + more).min(1.0));
    Share { value: share.value, low: low.min(share.value), high: high.max(share.value) }
}

/// An estimated share `p` with the variance `variance`, as Wilson's interval for as many samples as
/// would be as unsure. Where the variance says nothing, because the share is 0 or 1, as if of `n`
/// samples.
pub fn estimated(p: f64, variance: f64, n: f64, confidence: Confidence) -> Share {
    let p = if p.is_finite() { p.clamp(0.0, 1.0) } else { 0.0 };
    let as_unsure = p * (1.0 - p) / variance;
    let n = if as_unsure.is_finite() && as_unsure > 0.0 { as_unsure } else { n };
    wilson_between(p * n.max(1.0), n.max(1.0), confidence.z())
}

/// By how much the share of each part is less sure than its samples say, since it varies from group
/// to group more than samples do by chance: the factor on the variance, at least 1, by which
/// [`Tally::dispersed`] makes an interval hold it. `groups` has, for each group, its parts and its
/// whole; all have the same parts, and there is a factor for each.
///
/// Of one part that is Pearson's statistic over its degrees of freedom (P. McCullagh and J. A.
/// Nelder, "Generalized Linear Models", 2nd edition, 1989, section 4.5). Groups are few, so it is
/// drawn to that of all parts together, and the factor has Student's t instead of the normal
/// distribution (G. K. Smyth, "Linear Models and Empirical Bayes Methods", Statistical Applications
/// in Genetics and Molecular Biology 3, 2004, section 3). Of fewer than two groups nothing is
/// known: all factors are 1.
pub fn dispersions(groups: &[(&[Tally], Tally)], confidence: Confidence) -> Vec<f64> {
    let as_sure = |whole: Tally| whole.occurrences.powi(2) / whole.squares;
    let parts = groups.iter().map(|(parts, _)| parts.len()).min().unwrap_or_default();
    let known: Vec<(&[Tally], Tally, f64)> = groups
        .iter()
        .map(|(parts, whole)| (*parts, *whole, as_sure(*whole)))
        .filter(|(.., n)| n.is_finite() && *n > 0.0)
        .collect();
    let freedom = known.len() as f64 - 1.0;
    if freedom < 1.0 {
        return vec![1.0; parts];
    }
    let whole: f64 = known.iter().map(|(_, whole, _)| whole.occurrences).sum();
    let statistic = |part: usize| {
        let of = |parts: &[Tally]| parts.get(part).map_or(0.0, |tally| tally.occurrences);
        let share = known.iter().map(|(parts, ..)| of(parts)).sum::<f64>() / whole;
        let variance = share * (1.0 - share);
        // Of fewer samples the statistic is not distributed as its degrees of freedom say.
        let are_enough = known.iter().all(|(.., n)| n * share >= DISPERSED_MIN);
        let of_group = |(parts, whole, n): &(&[Tally], Tally, f64)| {
            n * (of(parts) / whole.occurrences - share).powi(2) / variance
        };
        (variance > 0.0 && are_enough).then(|| known.iter().map(of_group).sum::<f64>() / freedom)
    };
    let own: Vec<Option<f64>> = (0..parts).map(statistic).collect();
    let all: Vec<f64> = own.iter().flatten().copied().collect();
    let usual = (all.iter().sum::<f64>() / all.len().max(1) as f64).max(1.0);
    let few = |freedom: f64| {
        let miss = 1.0 - confidence.percent() / 100.0;
        (tails::student_quantile(miss, freedom) / confidence.z()).powi(2)
    };
    let factor = |own: &Option<f64>| match own {
        Some(own) => {
            let drawn = (own * freedom + usual * PRIOR_FREEDOM) / (freedom + PRIOR_FREEDOM);
            drawn.max(1.0) * few(freedom + PRIOR_FREEDOM)
        }
        // Many parts know the usual factor well.
        None => usual,
    };
    own.iter().map(factor).collect()
}

/// Degrees of freedom of what all parts say of the dispersion of one.
const PRIOR_FREEDOM: f64 = 4.0;
/// Samples that a part of a group has at least, where it counts for [`dispersions`]: the usual
/// rule for Pearson's statistic (W. G. Cochran, "Some Methods for Strengthening the Common
/// Chi-square Tests", Biometrics 10, 1954).
const DISPERSED_MIN: f64 = 5.0;

/// Samples and one more of the largest weight that `whole` has.
fn with_one_more(tally: Tally, whole: Tally) -> Tally {
    tally + Tally::of(1, whole.heaviest)
}

/// Wilson's interval for as many samples as would be as sure as these are by their own weights.
fn weighted(part: Tally, whole: Tally, confidence: Confidence) -> Share {
    let p = (part.occurrences / whole.occurrences).clamp(0.0, 1.0);
    let variance =
        (1.0 - p).powi(2) * part.squares + p.powi(2) * (whole.squares - part.squares).max(0.0);
    let variance = (variance + part.divided) / whole.occurrences.powi(2);
    let kish = whole.occurrences.powi(2) / whole.squares;
    let n = if p > 0.0 && p < 1.0 && variance > 0.0 { p * (1.0 - p) / variance } else { kish };
    if !n.is_finite() {
        return Share { value: p, low: p, high: p }; // counts without variance: exact ones
    }
    wilson_between(p * n, n, confidence.z())
}

/// The same for numbers of samples that need not be whole, and any distance `z` from the mean; `n >
/// 0`.
fn wilson_between(k: f64, n: f64, z: f64) -> Share {
    let Interval { value, low, high } = measure::bernoulli::wilson(k, n, z);
    Share { value, low, high }
}

/// Between which means `n` samples, taken for a Poisson variable, lie: the score interval.
fn poisson_between(n: f64, z: f64) -> (f64, f64) {
    let (middle, reach) = (n + z * z / 2.0, z * (n + z * z / 4.0).sqrt());
    ((middle - reach).max(0.0), middle + reach)
}

/// The ratio of two numbers of occurrences, with its interval: given the samples of both, those of
/// `x` are binomial, so it is Wilson's of `x / (x + y)`. Where samples of one have several weights,
/// as many of one weight stand for them as would be as unsure. None where nothing is known of a
/// weight, of which `x_weight` and `y_weight` are those of all samples of the events. The value and
/// the upper end are infinite where `y` is 0; of no samples it is 0 in `0..inf`.
pub fn ratio(x: (Tally, f64), y: (Tally, f64), confidence: Confidence) -> Option<Share> {
    let as_sure = |(tally, weight): (Tally, f64)| {
        let weight = if tally.occurrences > 0.0 { tally.weight() } else { weight };
        (tally.occurrences / weight, weight)
    };
    let ((x, x_weight), (y, y_weight)) = (as_sure(x), as_sure(y));
    let weight = x_weight / y_weight;
    if !(weight.is_finite() && weight > 0.0) {
        return None;
    }
    let share = if x + y > 0.0 {
        wilson_between(x, x + y, confidence.z())
    } else {
        wilson(0, 0, confidence)
    };
    let share =
        if y > 0.0 || x + y <= 0.0 { share } else { Share { value: 1.0, high: 1.0, ..share } };
    let odds = |share: f64| weight * share / (1.0 - share);
    Some(Share { value: odds(share.value), low: odds(share.low), high: odds(share.high) })
}

/// A number of occurrences and where the truth lies: `0 <= low <= value <= high`.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Occurrences {
    /// The estimate.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// The number of occurrences that samples stand for: of each part `n` samples of a weight, which is
/// the period times, where the event had a counter for a part of the time only, the whole time by
/// that part.
///
/// The value is the sum of `n * weight`. `n` is taken for a Poisson variable, so that the variance
/// is the sum of `n * weight^2`: the scale of the time enters squared. The interval is the score
/// interval of a Poisson mean, `n + z^2/2 ± z * sqrt(n + z^2/4)`, which like [`wilson`]'s holds for
/// few samples too, of `n = value / weight` samples of the mean weight `sum(n * weight^2) / value`
/// (the weight itself, of one part).
///
/// Left out: that a program does other things in an event's turns than in those of others (the
/// spread between turns, which sums do not tell: the more turns, the less it matters), and that the
/// mean of the random periods drawn is not quite the mean period (each is within 3.2 %). Where an
/// event counted all the time, counting leaves less to chance than this interval allows for.
pub fn occurrences(parts: &[(u64, f64)], confidence: Confidence) -> Occurrences {
    let sum = |of: fn(f64, f64) -> f64| {
        parts.iter().map(|(n, weight)| of(*n as f64, *weight)).sum::<f64>()
    };
    let value = sum(|n, weight| n * weight);
    let heaviest = parts.iter().map(|(_, weight)| *weight).fold(0.0, f64::max);
    let weight = if value > 0.0 { sum(|n, weight| n * weight * weight) / value } else { heaviest };
    let n = if weight > 0.0 { value / weight } else { 0.0 };
    let (low, high) = poisson_between(n, confidence.z());
    // The ends pass the value by rounding only.
    let (low, high) = ((weight * low).clamp(0.0, value), (weight * high).max(value));
    Occurrences { value, low, high }
}

/// The number of occurrences that weighted samples stand for: [`occurrences`] of as many samples of
/// one weight as would be as unsure. Without squares nothing is unsure, and the interval is the
/// value.
pub fn weighted_occurrences(of: Tally, confidence: Confidence) -> Occurrences {
    let value = of.occurrences;
    let weight = of.weight();
    if weight <= 0.0 {
        return Occurrences { value, low: value, high: value };
    }
    let (low, high) = poisson_between(value / weight, confidence.z());
    Occurrences { value, low: (weight * low).clamp(0.0, value), high: (weight * high).max(value) }
}

/// The share `k / n` with the textbook (Wald) interval, `p ± z * sqrt(p * (1 - p) / n)`, cut to
/// `0..1`. Here to compare with; reports use [`wilson`].
pub fn wald(k: u64, n: u64, confidence: Confidence) -> Share {
    if n == 0 {
        return Share { value: 0.0, low: 0.0, high: 1.0 };
    }
    let (value, count) = proportion(k, n);
    let reach = confidence.z() * (value * (1.0 - value) / count).sqrt();
    Share { value, low: (value - reach).max(0.0), high: (value + reach).min(1.0) }
}

/// `k / n` and `n` as real numbers. Above 2^53 they are rounded, far below what sampling blurs.
fn proportion(k: u64, n: u64) -> (f64, f64) {
    let count = n as f64;
    (k.min(n) as f64 / count, count)
}

/// The `x` below which a standard normal variable lies with probability `p`, to about 1 part in
/// 10^16: algorithm AS 241, PPND16 (M. J. Wichura, "The percentage points of the normal
/// distribution", Applied Statistics 37, 1988). `-inf` and `+inf` at 0 and 1.
fn normal_quantile(p: f64) -> f64 {
    let q = p - 0.5;
    if q.abs() <= 0.425 {
        let r = 0.180_625 - q * q;
        return q * polynomial(&as241::CENTRE_TOP, r) / polynomial(&as241::CENTRE_BOTTOM, r);
    }
    let tail = if q < 0.0 { p } else { 1.0 - p };
    if tail <= 0.0 {
        return if q < 0.0 { f64::NEG_INFINITY } else { f64::INFINITY };
    }
    let r = (-tail.ln()).sqrt();
    let x = if r <= 5.0 {
        polynomial(&as241::TAIL_TOP, r - 1.6) / polynomial(&as241::TAIL_BOTTOM, r - 1.6)
    } else {
        polynomial(&as241::FAR_TOP, r - 5.0) / polynomial(&as241::FAR_BOTTOM, r - 5.0)
    };
    if q < 0.0 { -x } else { x }
}

/// `c[0] + c[1] x + c[2] x^2 + ...`
fn polynomial(coefficients: &[f64; 8], x: f64) -> f64 {
    coefficients.iter().rev().fold(0.0, |sum, coefficient| sum * x + coefficient)
}

#[allow(clippy::excessive_precision, reason = "as printed in the paper, to be compared with it")]
mod as241 {
    pub(super) const CENTRE_TOP: [f64; 8] = [
        3.387_132_872_796_366_608_0,
        1.331_416_678_917_843_774_5e2,
        1.971_590_950_306_551_442_7e3,
        1.373_169_376_550_946_112_5e4,
        4.592_195_393_154_987_145_7e4,
        6.726_577_092_700_870_085_3e4,
        3.343_057_558_358_812_810_5e4,
        2.509_080_928_730_122_672_7e3,
    ];
    pub(super) const CENTRE_BOTTOM: [f64; 8] = [
        1.0,
        4.231_333_070_160_091_125_2e1,
        6.871_870_074_920_579_083_0e2,
        5.394_196_021_424_751_107_7e3,
        2.121_379_430_158_659_586_7e4,
        3.930_789_580_009_271_061_0e4,
        2.872_908_573_572_194_267_4e4,
        5.226_495_278_852_854_561_0e3,
    ];
    pub(super) const TAIL_TOP: [f64; 8] = [
        1.423_437_110_749_683_577_34,
        4.630_337_846_156_545_295_90,
        5.769_497_221_460_691_405_50,
        3.647_848_324_763_204_605_04,
        1.270_458_252_452_368_382_58,
        2.417_807_251_774_506_117_70e-1,
        2.272_384_498_926_918_458_33e-2,
        7.745_450_142_783_414_076_40e-4,
    ];
    pub(super) const TAIL_BOTTOM: [f64; 8] = [
        1.0,
        2.053_191_626_637_758_821_87,
        1.676_384_830_183_803_849_40,
        6.897_673_349_851_000_045_50e-1,
        1.481_039_764_274_800_745_90e-1,
        1.519_866_656_361_645_719_66e-2,
        5.475_938_084_995_344_946_00e-4,
        1.050_750_071_644_416_843_24e-9,
    ];
    pub(super) const FAR_TOP: [f64; 8] = [
        6.657_904_643_501_103_777_20,
        5.463_784_911_164_114_369_90,
        1.784_826_539_917_291_335_80,
        2.965_605_718_285_048_912_30e-1,
        2.653_218_952_657_612_309_30e-2,
        1.242_660_947_388_078_438_60e-3,
        2.711_555_568_743_487_578_15e-5,
        2.010_334_399_292_288_132_65e-7,
    ];
    pub(super) const FAR_BOTTOM: [f64; 8] = [
        1.0,
        5.998_322_065_558_879_376_90e-1,
        1.369_298_809_227_358_053_10e-1,
        1.487_536_129_085_061_485_25e-2,
        7.868_691_311_456_132_591_00e-4,
        1.846_318_317_510_054_681_80e-5,
        1.421_511_758_316_445_888_70e-7,
        2.044_263_103_389_939_785_64e-15,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(percent: f64) -> Confidence {
        Confidence::from_percent(percent).unwrap()
    }

    fn percent(share: Share) -> (f64, f64) {
        let round = |x: f64| (x * 1e6).round() / 1e4;
        (round(share.low), round(share.high))
    }

    /// Of a copied database with such values the reports of call stacks panicked.
    /// Two groups of 100 samples with 40 and 60 in a part: Pearson's statistic is 2 x 100 x 0.1^2 /
    /// (0.5 x 0.5) = 8 for the part, and as much for the other.
    #[test]
    fn groups_that_differ_are_dispersed() {
        let group = |in_it: u64| [Tally::of(in_it, 2.0), Tally::of(100 - in_it, 2.0)];
        let whole = Tally::of(100, 2.0);
        let (few, many, same) = (group(40), group(60), group(50));
        let of = |groups: &[(&[Tally], Tally)]| dispersions(groups, at(95.0));
        // t of 5 degrees of freedom is 2.5706.
        let for_few = (2.5706_f64 / 1.9600).powi(2);
        let far = of(&[(&few, whole), (&many, whole)]);
        assert!(far.len() == 2 && (far[0] - 8.0 * for_few).abs() < 0.01, "{far:?}");
        let near = of(&[(&same, whole), (&same, whole)]);
        assert!((near[1] - for_few).abs() < 0.01, "{near:?}");
        assert_eq!(of(&[(&few, whole)]), [1.0, 1.0]);
        let (rare, never) = (group(1), group(0));
        let unsaid = of(&[(&rare[..1], whole), (&never[..1], whole)]);
        assert_eq!(unsaid, [1.0], "too few samples");
        // A share that is four times as unsure has an interval of about twice the width.
        let width = |times: f64| {
            let part = Tally::of(400, 2.0).dispersed(times);
            let of = share(part, Tally::of(1000, 2.0).dispersed(times), Confidence::default());
            of.high - of.low
        };
        assert!((width(4.0) / width(1.0) - 2.0).abs() < 0.05, "{} {}", width(4.0), width(1.0));
    }

    #[test]
    fn counts_without_variance_have_no_interval() {
        let exact =
            |samples, occurrences| Tally { samples, occurrences, squares: 0.0, ..Tally::default() };
        let Share { value, low, high } = share(exact(1, 30.0), exact(5, 100.0), at(95.0));
        assert_eq!((low, value, high), (0.3, 0.3, 0.3));
    }

    #[test]
    fn z_is_that_of_the_tables() {
        for (confidence, z) in [
            (50.0, 0.674_489_750_196_081_7),
            (90.0, 1.644_853_626_951_472_7),
            (95.0, 1.959_963_984_540_054_2),
            (99.0, 2.575_829_303_548_901),
            (99.9, 3.290_526_731_491_925_6),
            (99.999_999_9, 6.109_410_209_383_45),
        ] {
            assert!((at(confidence).z() - z).abs() < 1e-7, "{confidence}: {}", at(confidence).z());
        }
    }

    #[test]
    fn the_quantile_holds_in_the_centre_and_both_tails() {
        // Percentage points from Wichura's paper (section 3) and of round x.
        for (p, x) in [
            (0.25, -0.674_489_750_196_081_7),
            (0.001, -3.090_232_306_167_813_6),
            (1e-20, -9.262_340_089_798_408),
            (0.5, 0.0),
            (0.975, 1.959_963_984_540_054_2),
            (0.999, 3.090_232_306_167_813_6),
        ] {
            assert!((normal_quantile(p) - x).abs() < 1e-13, "{p}: {}", normal_quantile(p));
        }
        assert_eq!(normal_quantile(0.0), f64::NEG_INFINITY);
        assert_eq!(normal_quantile(1.0), f64::INFINITY);
        // Where the formulas meet, they agree.
        for edge in [0.075, 1.388_794_386_496_402e-11] {
            let step = normal_quantile(edge * (1.0 + 1e-9)) - normal_quantile(edge * (1.0 - 1e-9));
            assert!(step > 0.0 && step < 1e-8, "{edge}: {step}");
        }
    }

    #[test]
    fn many_samples_the_lectures_example() {
        // 36,128 of 250,000 at 90 %: 14.4 to 14.6 %. With so many, both intervals agree.
        let share = wilson(36_128, 250_000, at(90.0));
        assert_eq!(percent(share), (14.3359, 14.5673));
        assert_eq!(percent(wald(36_128, 250_000, at(90.0))), (14.3355, 14.5669));
        assert!((share.value - 0.144_512).abs() < 1e-12);
    }

    #[test]
    fn few_samples_the_lectures_example() {
        // 12 of 800 at 99 %: Wald says 0.39 to 2.61 %; Wilson is not symmetric and reaches higher.
        assert_eq!(percent(wald(12, 800, at(99.0))), (0.3930, 2.6070));
        assert_eq!(percent(wilson(12, 800, at(99.0))), (0.7266, 3.0713));
    }

    #[test]
    fn ends_stay_in_range_and_around_the_value() {
        for confidence in [50.0, 95.0, 99.999] {
            for n in [1, 2, 3, 10, 1000, u64::MAX] {
                for k in [0, 1, n / 2, n - 1, n] {
                    let share = wilson(k, n, at(confidence));
                    assert!(0.0 <= share.low && share.low <= share.value, "{k} of {n}: {share:?}");
                    assert!(
                        share.value <= share.high && share.high <= 1.0,
                        "{k} of {n}: {share:?}"
                    );
                    assert!(share.reach() >= 0.0);
                }
            }
        }
        let none = wilson(0, 100, at(95.0));
        // (z^2 / n) / (1 + z^2 / n)
        assert_eq!(percent(none), (0.0, 3.6993));
        assert_eq!(percent(wilson(100, 100, at(95.0))), (96.3007, 100.0));
        assert_eq!(wilson(0, 0, at(95.0)), Share { value: 0.0, low: 0.0, high: 1.0 });
        assert_eq!(wilson(5, 3, at(95.0)).value, 1.0);
    }

    /// Two epochs of different rates with one expected sample each: intervals held the truth 68
    /// times in 100.
    #[test]
    fn few_samples_of_a_large_weight_may_be_missing() {
        let mut random = fastrand::Rng::with_seed(5);
        // Knuth's: the number of uniform factors until the product is below e^-mean.
        let mut poisson = |mean: f64| {
            let (mut n, mut product) = (0, random.f64());
            while product > (-mean).exp() {
                product *= random.f64();
                n += 1;
            }
            n
        };
        for heavy in [16.0, 185.0] {
            for expected in [1.0, 3.0, 30.0] {
                let truth = expected * (1.0 + heavy) / (10.0 * expected * (1.0 + heavy));
                let held = (0..2000).filter(|_| {
                    let mut drawn =
                        |mean: f64| Tally::of(poisson(mean), 1.0) + Tally::of(poisson(mean), heavy);
                    let (part, rest) = (drawn(expected), drawn(9.0 * expected));
                    let of = share(part, part + rest, at(95.0));
                    (of.low..=of.high).contains(&truth)
                });
                let held = held.count();
                assert!(held >= 1860, "{held} of 2000 at {expected} samples of {heavy}");
            }
        }
    }

    #[test]
    fn occurrences_scale_with_their_weight() {
        // 10000 samples: 10001.92 ± 1.96 * sqrt(10000.96).
        let one = occurrences(&[(10_000, 1.0)], at(95.0));
        assert_eq!((one.value, one.low.round(), one.high.round()), (10_000.0, 9806.0, 10_198.0));
        // A third of the time: three times as many, and three times as unsure of each.
        let scaled = occurrences(&[(10_000, 3.0)], at(95.0));
        assert!(
            (scaled.low - 3.0 * one.low).abs() < 1e-6
                && (scaled.high - 3.0 * one.high).abs() < 1e-6
        );
        // Parts of one weight are one part; of several, the heavy ones make it less sure.
        let halves = occurrences(&[(4000, 3.0), (6000, 3.0)], at(95.0));
        assert!((halves.low - scaled.low).abs() < 1e-6 && halves.value == scaled.value);
        let mixed = occurrences(&[(10_000, 1.0), (2000, 10.0)], at(95.0));
        assert_eq!(mixed.value, 30_000.0);
        // sqrt(10000 + 2000 * 100) = 458.
        assert!((mixed.high - mixed.low - 2.0 * 1.96 * 458.3).abs() < 10.0, "{mixed:?}");
        // None seen: at most z^2 = 3.84 periods.
        let none = occurrences(&[(0, 100.0)], at(95.0));
        assert_eq!((none.value, none.low, none.high.round()), (0.0, 0.0, 384.0));
        assert_eq!(occurrences(&[], at(95.0)), Occurrences::default());
    }

    /// Scaled counts of an event that has a counter for a random third of the time, many times: the
    /// interval holds the truth as often as it says.
    #[test]
    fn occurrences_that_are_all_counted_have_no_interval() {
        let confidence = Confidence::default();
        let exact = Tally { samples: 55, occurrences: 59e9, ..Tally::default() };
        let all = Occurrences { value: 59e9, low: 59e9, high: 59e9 };
        assert_eq!(weighted_occurrences(exact, confidence), all, "was 0 to 0");
        let sampled = Tally::of(100, 7.0);
        assert_eq!(
            weighted_occurrences(sampled, confidence),
            occurrences(&[(100, 7.0)], confidence)
        );
    }

    #[test]
    fn intervals_of_scaled_counts_hold_the_truth() {
        let mut state = 1_u64;
        let mut random = || {
            // Knuth's MMIX generator, as the test must be the same each time.
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as f64 / f64::from(1_u32 << 31)
        };
        let mut held = 0;
        for _ in 0..2000 {
            // 300 samples would come in all, at random times; those in our third are taken.
            let taken = (0..300).filter(|_| random() < 1.0 / 3.0).count() as u64;
            let estimate = occurrences(&[(taken, 3.0 * 62_000.0)], at(95.0));
            held += u32::from((estimate.low..=estimate.high).contains(&(300.0 * 62_000.0)));
        }
        // With 300 given, what is taken is binomial and varies a little less than Poisson's.
        assert!((1900..=1995).contains(&held), "{held} of 2000");
    }

    #[test]
    fn more_confidence_is_wider_and_more_samples_narrower() {
        let width = |k, n, confidence| {
            let share = wilson(k, n, at(confidence));
            share.high - share.low
        };
        assert!(width(10, 100, 99.0) > width(10, 100, 95.0));
        assert!(width(10, 100, 95.0) > width(100, 1000, 95.0));
    }

    #[test]
    fn confidence_is_a_percentage_between() {
        for bad in [0.0, 100.0, -1.0, 101.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Confidence::from_percent(bad), None, "{bad}");
        }
        assert_eq!(at(99.9).percent(), 99.9);
        assert_eq!(at(95.0).percent(), 95.0);
    }
}
