//! Student's t for degrees of freedom that may be anything.

use stats::{Confidence, tails};

/// Degrees of freedom from which Student's t is taken for normal. The two differ by less than one
/// in 10^5 there, and the beta function of `stats::tails` loses digits at far larger ones.
const NORMAL_FROM: f64 = 1e6;

/// The probability that Student's t is farther from 0 than `t`, on either side; 1 where nothing is
/// known: not a number, or no degree of freedom.
pub(crate) fn beyond(t: f64, df: f64) -> f64 {
    if t.is_nan() || df.is_nan() || df <= 0.0 {
        return 1.0;
    }
    tails::student(t, usable(df)).clamp(0.0, 1.0)
}

/// The t that is passed, on either side, with the probability that `confidence` leaves; infinite
/// without a degree of freedom.
pub(crate) fn reach(df: f64, confidence: Confidence) -> f64 {
    if df.is_nan() || df <= 0.0 {
        return f64::INFINITY;
    }
    let df = usable(df);
    if df.is_infinite() {
        return confidence.z();
    }
    tails::student_quantile(1.0 - confidence.percent() / 100.0, df)
}

fn usable(df: f64) -> f64 {
    if df > NORMAL_FROM { f64::INFINITY } else { df }
}

/// The least value at which the weights of all lesser or equal ones are half of all weights or
/// more; None of nothing. Values that are no number and weights that are not positive are left
/// out.
pub(crate) fn weighted_median(values: impl Iterator<Item = (f64, f64)>) -> Option<f64> {
    let mut sorted: Vec<(f64, f64)> = values
        .filter(|(value, weight)| value.is_finite() && weight.is_finite() && *weight > 0.0)
        .collect();
    sorted.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let half = sorted.iter().map(|(_, weight)| weight).sum::<f64>() / 2.0;
    let mut so_far = 0.0;
    sorted.iter().find_map(|(value, weight)| {
        so_far += weight;
        (so_far >= half).then_some(*value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_certain_of_nonsense() {
        for df in [f64::NAN, 0.0, -1.0] {
            assert_eq!(beyond(1e9, df), 1.0);
            assert_eq!(reach(df, Confidence::default()), f64::INFINITY);
        }
        assert_eq!(beyond(f64::NAN, 5.0), 1.0);
        assert_eq!(beyond(f64::INFINITY, 5.0), 0.0);
        for df in [1e5, 1e7, 1e18, f64::INFINITY] {
            assert!((beyond(1.959_964, df) - 0.05).abs() < 1e-5, "{df}");
            assert!((reach(df, Confidence::default()) - 1.96).abs() < 1e-3, "{df}");
        }
    }

    #[test]
    fn the_median_is_by_weight() {
        let of = |values: &[(f64, f64)]| weighted_median(values.iter().copied());
        assert_eq!(of(&[(3.0, 1.0), (1.0, 1.0), (2.0, 1.0)]), Some(2.0));
        assert_eq!(of(&[(3.0, 10.0), (1.0, 1.0), (2.0, 1.0)]), Some(3.0));
        assert_eq!(of(&[(f64::NAN, 1.0), (1.0, 0.0), (7.0, f64::INFINITY)]), None);
        assert_eq!(of(&[]), None);
    }
}
