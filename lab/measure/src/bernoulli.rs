//! Bernoulli counting: times below the step of the clock (the lecture, slides 45 to 50).
//!
//! A clock that moves in steps of `c` moves during a time `t` shorter than `c` with probability
//! `t/c`, if the time begins anywhere in a step. So `m` moves in `n` measurements tell `c * m/n`.
//! The interval is Wilson's ("Probable Inference, the Law of Succession, and Statistical
//! Inference", JASA 22, 1927). The lecture's own (Wald's) is discredited, as the lecture says: of
//! no move at all it knows that the time is 0.

use crate::{Interval, tails};

/// The `z` that a standard normal variable passes, on either side, with this probability: 1.96 for
/// 0.05.
#[must_use]
pub fn z(p: f64) -> f64 {
    tails::student_quantile(p, f64::INFINITY)
}

/// A share, 0 to 1, estimated by `k` hits in `n` samples, with Wilson's interval: its ends lie `z`
/// standard deviations ([`z`]) from the share. Weighted samples have numbers that are not whole;
/// `k` is taken for 0 to `n`. Of no sample the share is anything from 0 to 1.
#[must_use]
pub fn wilson(k: f64, n: f64, z: f64) -> Interval {
    if n <= 0.0 {
        return Interval { value: 0.0, low: 0.0, high: 1.0 };
    }
    let value = (k / n).clamp(0.0, 1.0);
    let z2_n = z * z / n;
    let middle = (value + z2_n / 2.0) / (1.0 + z2_n);
    let reach = z / (1.0 + z2_n) * (value * (1.0 - value) / n + z2_n / (4.0 * n)).sqrt();
    // The ends meet 0 and 1 exactly in theory, and pass the value by rounding only.
    Interval {
        value,
        low: (middle - reach).clamp(0.0, value),
        high: (middle + reach).clamp(value, 1.0),
    }
}

/// The time of a piece of work from how many steps a clock moved during each of its executions.
/// `step` is the length of a step. The whole steps that every execution has are certain; what is
/// above them is a share.
///
/// The interval is Wilson's as long as no execution has more than one step above the least. Beyond,
/// executions differ by more than the clock's step, and the interval is that of a mean. None of
/// none.
#[must_use]
pub fn time(steps: &[u64], step: f64, p: f64) -> Option<Interval> {
    let (least, most) = (*steps.iter().min()?, *steps.iter().max()?);
    let n = steps.len() as f64;
    if most - least <= 1 {
        let above = steps.iter().filter(|moved| **moved > least).count();
        // Where none is above, all may have been in the step before, nearly.
        let share = wilson(above as f64, n, z(p));
        return Some(share.less(-(least as f64)).times(step));
    }
    let mean = steps.iter().map(|moved| *moved as f64).sum::<f64>() / n;
    let squares: f64 = steps.iter().map(|moved| (*moved as f64 - mean).powi(2)).sum();
    let reach = z(p) * (squares / (n - 1.0) / n).sqrt();
    Some(Interval { value: mean, low: mean - reach, high: mean + reach }.times(step))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(is: f64, expected: f64) {
        assert!((is - expected).abs() < 5e-5 * expected.abs().max(1.0), "{is}, not {expected}");
    }

    /// The lecture's examples (slides 49, 59 and 61), with Wilson's interval.
    #[test]
    fn the_lectures_examples() {
        let of = wilson(467.0, 8764.0, z(0.05));
        near(of.value, 0.053_286);
        assert!((of.low - 0.0488).abs() < 1e-4 && (of.high - 0.0582).abs() < 1e-4, "{of:?}");
        let of = wilson(36_128.0, 250_000.0, z(0.1));
        assert!((of.low - 0.1434).abs() < 1e-4 && (of.high - 0.1457).abs() < 1e-4, "{of:?}");
        // Wald: 0.39 to 2.61 %. Wilson's is not symmetric.
        let of = wilson(12.0, 800.0, z(0.01));
        assert!((of.low - 0.0072).abs() < 1e-4 && (of.high - 0.0307).abs() < 1e-4, "{of:?}");
    }

    #[test]
    fn no_move_is_not_no_time() {
        let none = wilson(0.0, 100.0, z(0.05));
        assert!(none.low == 0.0 && (0.03..0.04).contains(&none.high), "{none:?}");
        assert_eq!(wilson(5.0, 0.0, z(0.05)), Interval { value: 0.0, low: 0.0, high: 1.0 });
        near(wilson(9.0, 3.0, z(0.05)).high, 1.0);
    }

    #[test]
    fn whole_steps_are_certain() {
        let steps: Vec<u64> = (0..1000).map(|at| 3 + u64::from(at % 4 == 0)).collect();
        let of = time(&steps, 10.0, 0.05).unwrap();
        near(of.value, 32.5);
        assert!(of.low > 32.2 && of.high < 32.9, "{of:?}");
        let wild = time(&[0, 0, 10, 0], 1.0, 0.05).unwrap();
        near(wild.value, 2.5);
        assert!(wild.low < 0.0, "one slow execution of four says little: {wild:?}");
        assert_eq!(time(&[], 1.0, 0.05), None);
    }

    /// Wilson's interval holds the truth as often as it says, at a share where Wald's does not.
    #[test]
    fn it_covers_as_it_says() {
        let mut held = 0.0;
        let (n, truth) = (50_u64, 0.02_f64);
        for m in 0..=n {
            let (from, above) = (
                tails::binomial_from(m as f64, n as f64, truth),
                tails::binomial_from(m as f64 + 1.0, n as f64, truth),
            );
            let of = wilson(m as f64, n as f64, z(0.05));
            if (of.low..=of.high).contains(&truth) {
                held += from - above;
            }
        }
        assert!((0.9..0.99).contains(&held), "{held}");
    }
}
