//! Numbers drawn: by hash, so that each is a function of what it is of, and counts.

use std::sync::OnceLock;

use fastrand::Rng;

/// Entries of a table of normal quantiles. The farthest is 4.3 standard deviations out.
const QUANTILES: usize = 1 << 16;

/// A number made of several: the same for the same, whatever the order in which hosts are asked for
/// (SplitMix64's finaliser: G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number
/// generators", OOPSLA 2014).
pub fn hash(parts: &[u64]) -> u64 {
    parts.iter().fold(0x9e37_79b9_7f4a_7c15, |state, part| mix(state ^ part))
}

/// One more part.
pub const fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number in `0..1` from a hash.
pub fn unit(hash: u64) -> f64 {
    (hash >> 11) as f64 / (1_u64 << 53) as f64
}

/// Factors of a logarithmic normal distribution with mean 1, by hash.
pub struct Factors(Vec<f32>);

impl Factors {
    /// The standard deviation of the logarithm for a relative standard deviation `sd`, 0 or more.
    pub fn new(sd: f64) -> Self {
        static QUANTILES_ONCE: OnceLock<Vec<f64>> = OnceLock::new();
        if sd <= 0.0 {
            return Self(Vec::new());
        }
        let quantile = |at: usize| normal_quantile((at as f64 + 0.5) / QUANTILES as f64);
        let quantiles = QUANTILES_ONCE.get_or_init(|| (0..QUANTILES).map(quantile).collect());
        Self(quantiles.iter().map(|z| sd.mul_add(*z, -sd * sd / 2.0).exp() as f32).collect())
    }

    /// The factor of a hash; 1 where nothing varies.
    pub fn of(&self, hash: u64) -> f64 {
        // The upper bits: the lower ones choose other things of the same hash.
        self.0.get((hash >> 48) as usize).map_or(1.0, |factor| f64::from(*factor))
    }
}

/// The x below which a standard normal variable lies with probability p, `0 < p < 1`.
fn normal_quantile(p: f64) -> f64 {
    if p > 0.5 {
        return -normal_quantile(1.0 - p);
    }
    // Newton's method from the logistic approximation; `tails::normal` is of both sides.
    let mut x = (p / (1.0 - p)).ln() / 1.702;
    for _ in 0..8 {
        let below = stats::tails::normal(x) / 2.0;
        let below = if x <= 0.0 { below } else { 1.0 - below };
        let density = (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt();
        // Far out the density is small and a whole step leads away.
        x -= ((below - p) / density).clamp(-0.5, 0.5);
    }
    x
}

/// A Poisson variable of this mean; 0 of a mean that is no positive number.
///
/// Below 10 by inversion; above by transformed rejection (W. Hörmann, "The transformed rejection
/// method for generating Poisson random variables", Insurance: Mathematics and Economics 12, 1993,
/// algorithm PTRS), which needs about 1.1 pairs of uniform numbers, and a logarithm in one of ten.
pub fn poisson(mean: f64, random: &mut Rng) -> u64 {
    // A mean beyond 2^52 has no place for chance in a double.
    if mean.is_nan() || mean <= 0.0 {
        0
    } else if mean < 10.0 {
        by_inversion(mean, random)
    } else if mean < 4e15 {
        by_rejection(mean, random)
    } else {
        mean as u64
    }
}

fn by_inversion(mean: f64, random: &mut Rng) -> u64 {
    let (mut left, mut probability, mut count) = (random.f64(), (-mean).exp(), 0);
    while left > probability && count < 200 {
        left -= probability;
        count += 1;
        probability *= mean / count as f64;
    }
    count
}

fn by_rejection(mean: f64, random: &mut Rng) -> u64 {
    let b = 0.931 + 2.53 * mean.sqrt();
    let a = -0.059 + 0.02483 * b;
    let inverse_alpha = 1.1239 + 1.1328 / (b - 3.4);
    let v_r = 0.9277 - 3.6224 / (b - 2.0);
    loop {
        let (u, v) = (random.f64() - 0.5, random.f64());
        let us = 0.5 - u.abs();
        let k = ((2.0 * a / us + b) * u + mean + 0.43).floor();
        if us >= 0.07 && v <= v_r {
            return k as u64;
        }
        if k < 0.0 || (us < 0.013 && v > us) {
            continue;
        }
        let log = (v * inverse_alpha / (a / (us * us) + b)).ln();
        if log <= k * mean.ln() - mean - ln_factorial(k) {
            return k as u64;
        }
    }
}

/// Stirling's series; of small numbers by recurrence.
fn ln_factorial(k: f64) -> f64 {
    let (mut far, mut product) = (k + 1.0, 1.0);
    while far < 10.0 {
        product *= far;
        far += 1.0;
    }
    let inverse = 1.0 / (far * far);
    let series = (1.0 / 12.0 - inverse * (1.0 / 360.0 - inverse / 1260.0)) / far;
    (far - 0.5) * far.ln() - far + 0.5 * std::f64::consts::TAU.ln() + series - product.ln()
}

/// A binomial variable: how many of `n`, each with probability `p`. Where both outcomes are
/// expected more than 50 times, the normal variable of the same mean and variance, rounded.
pub fn binomial(n: u64, p: f64, random: &mut Rng) -> u64 {
    if p.is_nan() || p <= 0.0 || n == 0 {
        return 0;
    }
    if p > 0.5 {
        return n - binomial(n, 1.0 - p, random);
    }
    let mean = n as f64 * p;
    if mean > 50.0 {
        let angle = std::f64::consts::TAU * random.f64();
        let normal = (-2.0 * (1.0 - random.f64()).ln()).sqrt() * angle.cos();
        return ((mean * (1.0 - p)).sqrt().mul_add(normal, mean).round().max(0.0) as u64).min(n);
    }
    let (mut left, mut probability) = (random.f64(), (n as f64 * (-p).ln_1p()).exp());
    let mut count = 0;
    while left > probability && count < n {
        left -= probability;
        probability *= (n - count) as f64 / (count + 1) as f64 * p / (1.0 - p);
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean and variance of draws.
    fn moments(mut draw: impl FnMut() -> f64) -> (f64, f64) {
        let drawn: Vec<f64> = (0..200_000).map(|_| draw()).collect();
        let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
        let squares = drawn.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
        (mean, squares / drawn.len() as f64)
    }

    #[test]
    fn poisson_has_its_mean_variance_and_none() {
        let mut random = Rng::with_seed(1);
        for expected in [0.05, 1.0, 9.9, 10.0, 47.0, 3000.0, 1e9] {
            let (mean, variance) = moments(|| poisson(expected, &mut random) as f64);
            let error = (expected / 200_000.0_f64).sqrt();
            assert!((mean - expected).abs() < 5.0 * error, "{mean}, not {expected}");
            assert!((variance / expected - 1.0).abs() < 0.06, "{variance}, not {expected}");
        }
        // The share of a single value, where inversion ends and rejection begins.
        for (mean, k, p) in [(2.0, 0, 0.135_335), (10.0, 10, 0.125_110), (10.0, 3, 0.007_567)] {
            let hits = (0..400_000).filter(|_| poisson(mean, &mut random) == k).count() as f64;
            let error = f64::sqrt(400_000.0 * p * (1.0 - p));
            assert!((hits - 400_000.0 * p).abs() < 5.0 * error, "{mean} {k}: {hits}");
        }
        for bad in [0.0, -1.0, f64::NAN, f64::NEG_INFINITY] {
            assert_eq!(poisson(bad, &mut random), 0);
        }
        assert!(poisson(1e300, &mut random) > 1 << 60);
    }

    #[test]
    fn binomial_has_its_mean_and_variance_and_stays_in_range() {
        let mut random = Rng::with_seed(2);
        for (n, p) in [(10, 0.3), (1000, 0.01), (1000, 0.97), (1_000_000, 0.25)] {
            let (mean, variance) = moments(|| binomial(n, p, &mut random) as f64);
            let expected = n as f64 * p;
            let spread = expected * (1.0 - p);
            assert!((mean - expected).abs() < 5.0 * (spread / 200_000.0).sqrt(), "{n} {p}: {mean}");
            assert!((variance / spread - 1.0).abs() < 0.03, "{n} {p}: {variance}");
        }
        let whole = [(5, 1.0), (5, 2.0), (0, 0.5), (5, 0.0), (5, f64::NAN)]
            .map(|(n, p)| binomial(n, p, &mut random));
        assert_eq!(whole, [5, 5, 0, 0, 0]);
    }

    #[test]
    fn factors_have_mean_one_and_their_spread() {
        let factors = Factors::new(0.2);
        let (mean, variance) = {
            let mut state = 7;
            moments(|| {
                state = mix(state);
                factors.of(state)
            })
        };
        assert!((mean - 1.0).abs() < 0.003 && (variance.sqrt() - 0.202).abs() < 0.004, "{mean}");
        assert_eq!(Factors::new(0.0).of(12345), 1.0);
    }
}
