//! Tail probabilities of the distributions of statistical tests.
//!
//! All are the regularised incomplete gamma and beta functions, by the series and continued
//! fractions of the NIST Handbook of Mathematical Functions (dlmf.nist.gov: 5.11 and 5.5, 8.11.4,
//! 8.9.2, 8.17.22), to about 1 part in 10^10: far finer than sampling blurs.

/// Most steps of a series or continued fraction. No call here needs as many; the limit bounds the
/// time of malformed arguments.
const STEPS_MAX: u32 = 20_000;
/// A step that changes the result by less ends it.
const EXACT: f64 = 1e-14;
/// Stands for 0 in a denominator (Lentz's method).
const TINY: f64 = 1e-300;

/// The probability that a standard normal variable lies farther from 0 than `z`, on either side.
#[must_use]
pub fn normal(z: f64) -> f64 {
    gamma_above(0.5, z * z / 2.0)
}

/// The probability that Student's t with `df` degrees of freedom lies farther from 0, on either
/// side. It is normal for infinite `df`.
#[must_use]
pub fn student(t: f64, df: f64) -> f64 {
    if df.is_finite() { beta(df / (df + t * t), df / 2.0, 0.5) } else { normal(t) }
}

/// The `t` that Student's t passes, on either side, with this probability: 1.96 for 0.05 and
/// infinitely many degrees of freedom.
#[must_use]
pub fn student_quantile(p: f64, df: f64) -> f64 {
    let (mut low, mut high) = (0.0, 2.0);
    while student(high, df) > p && high < 1e12 {
        (low, high) = (high, high * 2.0);
    }
    // Each halves the error: 60 leave none that a double could tell.
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if student(middle, df) > p { low = middle } else { high = middle }
    }
    f64::midpoint(low, high)
}

/// The probability that a sum of `df` squared standard normal variables is above `x` (chi-squared),
/// or, where its scale is known from `scale_df` degrees of freedom only, that such a ratio is
/// (Fisher's F, times `df`).
#[must_use]
pub fn squares(x: f64, df: f64, scale_df: f64) -> f64 {
    if scale_df.is_finite() {
        beta(scale_df / (scale_df + x), scale_df / 2.0, df / 2.0)
    } else {
        gamma_above(df / 2.0, x / 2.0)
    }
}

/// The probability of `k` or more of `n`, each with probability `share`.
#[must_use]
pub fn binomial_from(k: f64, n: f64, share: f64) -> f64 {
    if k <= 0.0 {
        1.0
    } else if k > n {
        0.0
    } else {
        beta(share, k, n - k + 1.0)
    }
}

/// The probability that a gamma variable of this shape is above `x`: Q(shape, x).
fn gamma_above(shape: f64, x: f64) -> f64 {
    if x <= 0.0 || shape <= 0.0 || x.is_nan() {
        return 1.0;
    }
    if x.is_infinite() {
        return 0.0;
    }
    let front = (shape * x.ln() - x - ln_gamma(shape)).exp();
    let above = if x < shape + 1.0 {
        let (mut term, mut sum, mut n) = (1.0 / shape, 1.0 / shape, shape);
        for _ in 0..STEPS_MAX {
            n += 1.0;
            term *= x / n;
            sum += term;
            if term < sum * EXACT {
                break;
            }
        }
        1.0 - front * sum
    } else {
        let mut b = x + 1.0 - shape;
        let (mut c, mut d) = (1.0 / TINY, 1.0 / b);
        let mut fraction = d;
        for step in 1..=STEPS_MAX {
            let a = -f64::from(step) * (f64::from(step) - shape);
            b += 2.0;
            d = 1.0 / nonzero(a * d + b);
            c = nonzero(b + a / c);
            fraction *= d * c;
            if (d * c - 1.0).abs() < EXACT {
                break;
            }
        }
        front * fraction
    };
    above.clamp(0.0, 1.0)
}

/// The probability that a beta variable with parameters `a` and `b` is below `x`: I_x(a, b).
fn beta(x: f64, a: f64, b: f64) -> f64 {
    if x.is_nan() || x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    let front = (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (-x).ln_1p()).exp();
    // The fraction converges fast on this side of the mean only.
    let below = if x < (a + 1.0) / (a + b + 2.0) {
        front * beta_fraction(x, a, b) / a
    } else {
        1.0 - front * beta_fraction(1.0 - x, b, a) / b
    };
    below.clamp(0.0, 1.0)
}

fn beta_fraction(x: f64, a: f64, b: f64) -> f64 {
    let (mut c, mut d) = (1.0, 1.0 / nonzero(1.0 - (a + b) * x / (a + 1.0)));
    let mut fraction = d;
    for step in 1..=STEPS_MAX {
        let m = f64::from(step);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let mut change = 1.0;
        for term in [even, odd] {
            d = 1.0 / nonzero(1.0 + term * d);
            c = nonzero(1.0 + term / c);
            change = d * c;
            fraction *= change;
        }
        if (change - 1.0).abs() < EXACT {
            break;
        }
    }
    fraction
}

fn nonzero(x: f64) -> f64 {
    if x.abs() < TINY { TINY } else { x }
}

/// The logarithm of the gamma function, for `x > 0`: Stirling's series far out, and from there by
/// recurrence.
fn ln_gamma(x: f64) -> f64 {
    let (mut far, mut product) = (x, 1.0);
    while far < 12.0 {
        product *= far;
        far += 1.0;
    }
    let inverse = 1.0 / (far * far);
    let series =
        [1.0 / 12.0, -1.0 / 360.0, 1.0 / 1260.0, -1.0 / 1680.0, 1.0 / 1188.0, -691.0 / 360_360.0];
    let series =
        series.iter().rev().fold(0.0, |sum, coefficient| sum * inverse + coefficient) / far;
    (far - 0.5) * far.ln() - far + 0.5 * (2.0 * std::f64::consts::PI).ln() + series - product.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(is: f64, expected: f64) {
        assert!((is / expected - 1.0).abs() < 1e-6, "{is}, not {expected}");
    }

    #[test]
    fn factorials_are_gammas() {
        for (x, factorial) in
            [(1.0, 1.0_f64), (5.0, 24.0), (11.0, 3_628_800.0), (21.0, 2.432_902_008_176_64e18)]
        {
            assert!((ln_gamma(x) - factorial.ln()).abs() < 1e-12, "{x}");
        }
        assert!((ln_gamma(0.5) - std::f64::consts::PI.sqrt().ln()).abs() < 1e-12);
    }

    /// Values of the tables in every textbook.
    #[test]
    fn tails_are_those_of_the_tables() {
        near(normal(1.959_963_984_540_054), 0.05);
        near(normal(-5.0), 5.733_031_437_583_866e-7);
        near(normal(0.0), 1.0);
        near(student(2.228_138_851_986_273, 10.0), 0.05);
        near(student(12.706_204_736_174_7, 1.0), 0.05);
        near(student(63.656_741_162_871_5, 1.0), 0.01);
        near(student(1.959_963_984_540_054, f64::INFINITY), 0.05);
        near(squares(14.067_140_449_340_169, 7.0, f64::INFINITY), 0.05);
        near(squares(6.634_896_601_021_213, 1.0, f64::INFINITY), 0.01);
        near(squares(2.0 * 4.102_821_015_128_4, 2.0, 10.0), 0.05);
        // 2^-10, and 56 of 1024.
        near(binomial_from(10.0, 10.0, 0.5), 1.0 / 1024.0);
        near(binomial_from(8.0, 10.0, 0.5), 56.0 / 1024.0);
        assert_eq!((binomial_from(0.0, 10.0, 0.5), binomial_from(11.0, 10.0, 0.5)), (1.0, 0.0));
        assert_eq!((squares(-1.0, 3.0, f64::INFINITY), normal(f64::INFINITY)), (1.0, 0.0));
    }

    #[test]
    fn quantiles_are_where_the_tails_begin() {
        for df in [1.0, 2.5, 10.0, 1e6, f64::INFINITY] {
            for p in [0.5, 0.05, 0.001, 1e-9] {
                near(student(student_quantile(p, df), df), p);
            }
        }
    }

    /// Series and fraction, and both sides of the beta fraction, must meet.
    #[test]
    fn formulas_agree_where_they_meet() {
        for shape in [0.5, 3.0, 40.0, 1e4] {
            let edge: f64 = shape + 1.0;
            let (below, above) = (
                gamma_above(shape, edge * (1.0 - 1e-12)),
                gamma_above(shape, edge * (1.0 + 1e-12)),
            );
            assert!((below - above).abs() < 1e-9, "{shape}: {below} {above}");
        }
        for (a, b) in [(0.5, 0.5), (3.0, 40.0), (1000.0, 1001.0)] {
            let edge = (a + 1.0) / (a + b + 2.0);
            let (below, above) =
                (beta(edge * (1.0 - 1e-12), a, b), beta(edge * (1.0 + 1e-12), a, b));
            assert!((below - above).abs() < 1e-8, "{a} {b}: {below} {above}");
        }
    }

    #[test]
    fn nonsense_ends_and_is_a_probability() {
        for bad in [f64::NAN, f64::INFINITY, -1.0, 0.0, 1e300] {
            for p in [
                normal(bad),
                student(bad, 3.0),
                squares(bad, 5.0, 4.0),
                binomial_from(bad, 1e300, 0.5),
            ] {
                assert!((0.0..=1.0).contains(&p) || p.is_nan(), "{bad}: {p}");
            }
        }
    }
}
