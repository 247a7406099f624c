//! Breaks in a curve: the plateaus of latency over working-set size, found by optimal
//! segmentation (least squares with a cost for each segment; Jackson et al., *An algorithm for
//! optimal partitioning of data on an interval*, IEEE Signal Processing Letters 12, 2005).

use std::ops::Range;

/// Divides `values` into consecutive segments so that the sum of squared distances to the mean of
/// each value's segment, plus `cost` for each segment, is least. With logarithms of latencies, a
/// break to a latency that is the factor f higher is worth its cost if the shorter of the segments
/// has about `cost / ln(f)^2` values. Takes time in proportion to the square of the number of
/// values. Values that are not finite count as 0.
#[must_use]
pub fn segments(values: &[f64], cost: f64) -> Vec<Range<usize>> {
    let finite = |value: &f64| if value.is_finite() { *value } else { 0.0 };
    let values: Vec<f64> = values.iter().map(finite).collect();
    // least[n] is the cost of the first n values and where their last segment begins.
    let mut least: Vec<(f64, usize)> = vec![(0.0, 0)];
    for end in 1..=values.len() {
        let mut best = (f64::INFINITY, 0);
        let (mut sum, mut squares) = (0.0, 0.0);
        for begin in (0..end).rev() {
            let value = values.get(begin).copied().unwrap_or_default();
            (sum, squares) = (sum + value, squares + value * value);
            let count = (end - begin) as f64;
            let before = least.get(begin).map_or(0.0, |(total, _)| *total);
            let total = before + (squares - sum * sum / count).max(0.0) + cost;
            if total < best.0 {
                best = (total, begin);
            }
        }
        least.push(best);
    }
    let (mut found, mut end) = (Vec::new(), values.len());
    while let Some((_, begin)) = least.get(end).filter(|_| end > 0) {
        found.push(*begin..end);
        end = *begin;
    }
    found.reverse();
    found
}

/// Finds the rise of `values` from a plateau at the level `low` to the next one at `high`: the last
/// index from `begin` on before a quarter of the rise, and the first after three quarters. None
/// where they never rise so far. A single disturbed value is no rise: three in a row must be
/// higher, or all that follow.
#[must_use]
pub fn rise(values: &[f64], begin: usize, low: f64, high: f64) -> Option<(usize, usize)> {
    let above = |part: f64, from: usize| {
        let level = low + (high - low) * part;
        (from..values.len()).find(|index| {
            let next = values.get(*index..values.len().min(index + 3)).unwrap_or_default();
            next.iter().all(|value| *value >= level)
        })
    };
    let first = above(0.25, begin)?;
    Some((first.saturating_sub(1).max(begin), above(0.75, first)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_found_where_they_are_and_noise_is_none() {
        let curve: Vec<f64> = [(4.0_f64, 20), (14.0, 25), (50.0, 12), (560.0, 6)]
            .into_iter()
            .flat_map(|(level, count)| (0..count).map(move |at| (level, at)))
            .map(|(level, at)| (level * (1.0 + 0.02 * f64::from(at % 3))).ln())
            .collect();
        assert_eq!(segments(&curve, 0.3), [0..20, 20..45, 45..57, 57..63]);
        assert_eq!(segments(&[1.0; 30], 0.3), std::slice::from_ref(&(0..30)));
        assert_eq!(segments(&[], 0.3), []);
        assert_eq!(segments(&[f64::NAN, f64::INFINITY], 1.0), std::slice::from_ref(&(0..2)));
        // A single value that was disturbed is no plateau where a segment costs more than it.
        let mut disturbed = [1.0_f64; 20];
        disturbed[7] = 1.6;
        assert_eq!(segments(&disturbed, 0.3), std::slice::from_ref(&(0..20)));
    }

    /// Compares with the least over all ways to divide a few values.
    #[test]
    fn the_division_is_the_best_of_all() {
        let values = [0.3, 0.1, 2.0, 2.2, 1.9, 0.2, 5.0, 5.1];
        let cost = 0.5;
        let price = |cuts: u32| {
            let mut begin = 0;
            let mut total = 0.0;
            for end in 1..=values.len() {
                if end == values.len() || cuts >> (end - 1) & 1 == 1 {
                    let part = &values[begin..end];
                    let mean = part.iter().sum::<f64>() / part.len() as f64;
                    total += cost + part.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
                    begin = end;
                }
            }
            total
        };
        let best = (0..1_u32 << (values.len() - 1))
            .min_by(|a, b| price(*a).total_cmp(&price(*b)))
            .unwrap();
        let found = segments(&values, cost);
        let cuts = found.iter().skip(1).fold(0, |cuts, part| cuts | 1 << (part.start - 1));
        assert_eq!(cuts, best, "{found:?}");
    }

    #[test]
    fn a_rise_over_some_sizes_is_a_range() {
        let curve = [1.0, 1.0, 1.9, 1.0, 1.1, 1.4, 1.6, 2.0, 2.0, 2.0];
        assert_eq!(rise(&curve, 0, 1.0, 2.0), Some((4, 7)), "one disturbed value is none");
        assert_eq!(rise(&curve, 0, 1.0, 9.0), None);
        assert_eq!(rise(&curve, 7, 1.0, 2.0), Some((7, 7)));
    }
}
