//! Many tests at once: of a thousand rows that did not change, fifty look changed at 95 %.

use measure::perturbation::weighted_holm;

/// The part of the weights that goes by samples.
const BY_SAMPLES: f64 = 0.8;

/// The probabilities `p` of rows under "nothing changed", corrected for there being many, by Holm's
/// method with weights (S. Holm, "A simple sequentially rejective multiple test procedure",
/// Scandinavian Journal of Statistics 6, 1979).
///
/// Who marks the rows whose corrected number is at most 0.05 makes a false mark, a single one in
/// the whole table, in 5 % of tables at most, however the rows depend on each other: shares add up
/// to 1, so they do. (The method of Benjamini and Hochberg would mark more, of which 5 % are false
/// on average; a table that is read by people after each change had better say nothing where there
/// is nothing.)
///
/// The weights say of which rows one would rather know: a row of weight 2 is held to half as strict
/// a bound as one of weight 1. They must not depend on what changed. Here a row's samples in all
/// sets together are four fifths of the weight, and the rest is the same for each row, so that a
/// thousand procedures of ten samples do not hide a change in one that has half of the time, and
/// yet are looked at.
///
/// `rows` are each row's `p` and samples.
///
/// Gives as many numbers as there are rows, `0..=1`.
pub fn corrected(rows: &[(f64, f64)]) -> Vec<f64> {
    let total: f64 = rows.iter().map(|(_, samples)| samples).sum();
    let even = 1.0 / rows.len().max(1) as f64;
    let weight = |samples: f64| {
        if total > 0.0 { BY_SAMPLES * samples / total + (1.0 - BY_SAMPLES) * even } else { even }
    };
    let weighted: Vec<_> = rows.iter().map(|(p, samples)| (*p, weight(*samples))).collect();
    weighted_holm(&weighted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_weights_are_holms() {
        let rows = [0.01, 0.04, 0.03, 0.005].map(|p| (p, 10.0));
        let expected = [0.03, 0.06, 0.06, 0.02];
        for (is, expected) in corrected(&rows).iter().zip(expected) {
            assert!((is - expected).abs() < 1e-12, "{is}, not {expected}");
        }
        assert!(corrected(&[]).is_empty());
        assert_eq!(corrected(&[(0.02, 0.0)]), [0.02]);
    }

    #[test]
    fn rows_with_more_samples_need_less() {
        let mut rows = vec![(0.01, 9000.0)];
        rows.extend(vec![(0.5, 10.0); 100]);
        // Weight 0.8 * 0.9 + 0.2 / 101 of 1.
        let first = corrected(&rows)[0];
        assert!((0.0138..0.0139).contains(&first), "{first}");
        rows[0].1 = 10.0;
        assert!(corrected(&rows)[0] > 0.9);
    }
}
