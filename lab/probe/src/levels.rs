//! Finds levels of caches and TLBs as plateaus in curves of latency. Pure.

use std::ops::Range;

use measure::breaks::{rise, segments};
use measure::humps::median;

/// A plateau of a curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Level {
    /// Indices of the sizes on the plateau.
    pub sizes: Range<usize>,
    /// Cycles of a load on the plateau, the median.
    pub cycles: f64,
    /// Cycles of a load beyond the level: on the next plateau, or at four times the size (twice,
    /// where that is all) at which loads take half as long again, whichever is less: where others
    /// use a shared cache there may be no next plateau. None where the curve ends before.
    pub next: Option<f64>,
    /// The index of the last size that is surely within the level, and of the first that is surely
    /// beyond it. None where the curve ends before the level does.
    pub end: Option<(usize, usize)>,
}

/// Cost of a segment, in squared logarithms ([`segments`]). With 8 sizes a doubling, a level that
/// is 1.5 times as slow as the last one is found from half a doubling on.
const SEGMENT_COST: f64 = 0.25;
/// Sizes a doubling, where they are fine.
const SIZES_PER_DOUBLING: usize = 8;
/// Fewest sizes of a plateau. Fewer are part of a rise.
const PLATEAU_SIZES_MIN: usize = 6;
/// Fewest sizes between the starts of two levels, because each level of a cache or TLB is at least
/// four times as large as the one before. The curve of a level that ends gradually has flat parts
/// before the next level.
const LEVEL_SIZES_MIN: usize = 2 * SIZES_PER_DOUBLING;
/// Largest slope of a plateau, in logarithms from size to size: a factor of 1.5 a doubling, as that
/// of a shared cache under load has. Where a level ends gradually the factor is 1.9.
const PLATEAU_SLOPE_MAX: f64 = 0.4 / SIZES_PER_DOUBLING as f64;
/// Smallest factor between two levels. A smaller one takes a plateau's slope for a level.
const LEVELS_FACTOR_MIN: f64 = 1.5;

/// Smallest factor between the last level of the cache and memory. With a smaller one, a stretch of
/// the rise to memory, as long as others take turns in a shared cache, is a level.
const BEYOND_FACTOR_MIN: f64 = 2.5;

/// The levels of a curve, in cycles by size, of which the first `fine` sizes are evenly spaced in
/// the logarithm. `beyond` is what a load takes beyond the last level, if that is known; at most
/// `most` levels are found.
#[must_use]
pub fn levels(cycles: &[f64], fine: usize, beyond: Option<f64>, most: usize) -> Vec<Level> {
    let logs: Vec<f64> = cycles.iter().map(|cycles| cycles.max(0.1).ln()).collect();
    let of = |sizes: &Range<usize>| logs.get(sizes.clone()).unwrap_or_default();
    let is_flat = |sizes: &Range<usize>| {
        let (first, second) = of(sizes).split_at(sizes.len() / 2);
        let rise = median(second).zip(median(first)).map_or(0.0, |(second, first)| second - first);
        rise <= PLATEAU_SLOPE_MAX * sizes.len() as f64 / 2.0
    };
    let fine_sizes = fine.min(logs.len());
    let plateaus = segments(logs.get(..fine_sizes).unwrap_or_default(), SEGMENT_COST);
    let plateaus = plateaus.into_iter().filter(|sizes| sizes.len() >= PLATEAU_SIZES_MIN);
    let mut found: Vec<Level> = Vec::new();
    let factor = LEVELS_FACTOR_MIN;
    for sizes in plateaus.filter(is_flat) {
        let cycles = median(of(&sizes)).unwrap_or_default().exp();
        let slower = found.last().is_none_or(|last| cycles >= last.cycles * factor);
        let is_on_the_way =
            |last: &Level| sizes.start - last.sizes.start < LEVEL_SIZES_MIN && found.len() > 1;
        if slower && found.last().is_some_and(is_on_the_way) {
            found.pop();
        }
        if slower && beyond.is_none_or(|beyond| cycles * BEYOND_FACTOR_MIN <= beyond) {
            found.push(Level { sizes, cycles, next: None, end: None });
        }
    }
    let plateaus: Vec<f64> = found.iter().skip(1).map(|level| level.cycles).collect();
    let nexts = plateaus.into_iter().map(Some).chain([beyond]).chain(std::iter::repeat(None));
    for (level, next) in found.iter_mut().zip(nexts) {
        let rising = || {
            let left = (level.cycles * factor).ln();
            let end = rise(&logs, level.sizes.start, left, left)?.1;
            let beyond = [2, 1].map(|doublings| end + doublings * SIZES_PER_DOUBLING);
            beyond.into_iter().filter(|at| *at < fine_sizes).find_map(|at| cycles.get(at).copied())
        };
        let next = next.into_iter().chain(rising()).reduce(f64::min);
        level.next = next.filter(|next| *next >= level.cycles * factor);
        let ends = |next: f64| rise(&logs, level.sizes.start, level.cycles.ln(), next.ln());
        level.end = level.next.and_then(ends);
    }
    found.truncate(most);
    found
}

/// The cycles that each of `pages` loads, one in each page, take beyond those of as many loads from
/// adjoining lines in large pages: `latencies` has these by working set, in ascending order.
#[must_use]
pub fn beyond_caches(
    pages: &[(usize, f64)],
    latencies: &[(usize, f64)],
    line_bytes: usize,
) -> Vec<f64> {
    let cached = |bytes: usize| {
        let next = latencies
            .partition_point(|(size, _)| *size < bytes)
            .min(latencies.len().saturating_sub(1));
        let (high, before) =
            (latencies.get(next), next.checked_sub(1).and_then(|at| latencies.get(at)));
        match (before, high) {
            (Some((low_size, low)), Some((size, high))) if *size > *low_size && bytes < *size => {
                let part =
                    (bytes as f64 / *low_size as f64).ln() / (*size as f64 / *low_size as f64).ln();
                low + (high - low) * part
            }
            (_, Some((_, high))) => *high,
            _ => 0.0,
        }
    };
    pages.iter().map(|(count, cycles)| (cycles - cached(count * line_bytes)).max(0.0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes at 8 a doubling from 4 KiB, and latencies like those of a Zen 4: L1 ends at 32 KiB at
    /// once, L2 gradually at 1 MiB, L3 at about 6 MiB.
    fn zen4() -> (Vec<usize>, Vec<f64>) {
        let sizes: Vec<usize> =
            (0..88).map(|n| (4096.0 * (f64::from(n) / 8.0).exp2()) as usize).collect();
        let cycles = |size: &usize| {
            let kib = *size as f64 / 1024.0;
            match kib {
                ..=32.5 => 4.0 + 0.01 * (*size % 7) as f64,
                ..=320.0 => 14.0,
                ..=1900.0 => 14.0 + 36.0 * ((kib / 320.0).ln() / (1900.0_f64 / 320.0).ln()).powi(2),
                _ => 50.0 + (kib - 1900.0) / 800.0,
            }
        };
        let all = sizes.iter().map(cycles).collect();
        (sizes, all)
    }

    #[test]
    fn levels_of_a_curve_that_ends_gradually() {
        let (sizes, mut cycles) = zen4();
        let fine = cycles.len();
        cycles.extend([90.0, 300.0, 480.0]);
        let found = levels(&cycles, fine, Some(500.0), 4);
        assert_eq!(found.len(), 3, "{found:?}");
        let rounded: Vec<f64> = found.iter().map(|level| level.cycles.round()).collect();
        assert_eq!((rounded[0], rounded[1]), (4.0, 14.0));
        assert!((50.0..60.0).contains(&found[2].cycles), "{found:?}");
        let kib = |at: usize| sizes.get(at).map_or(0, |bytes| bytes >> 10);
        let (low, high) = found[0].end.unwrap();
        assert!(kib(low) <= 32 && kib(high) <= 35 && kib(high) > 32, "{found:?}");
        let (low, high) = found[1].end.unwrap();
        assert!((500..1024).contains(&kib(low)) && (1024..1600).contains(&kib(high)), "{found:?}");
        assert!(found[2].end.unwrap().1 >= fine, "{found:?}");
    }

    /// Between L2 and L3 some sizes took the same time, by chance: they were L3, and L3 was L4.
    #[test]
    fn a_flat_stretch_on_the_way_is_no_level() {
        let (_, mut cycles) = zen4();
        cycles.get_mut(62..70).unwrap().fill(26.0);
        let found = levels(&cycles, cycles.len(), Some(500.0), 4);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!((50.0..60.0).contains(&found[2].cycles), "{found:?}");
    }

    #[test]
    fn a_flat_curve_is_one_level_without_end() {
        let found = levels(&[4.0; 40], 40, None, 4);
        assert_eq!(found, [Level { sizes: 0..40, cycles: 4.0, next: None, end: None }]);
        assert_eq!(levels(&[], 0, None, 4), []);
    }

    /// Beyond the second TLB there was no plateau: the more pages, the longer the walks. The TLB
    /// was not found.
    #[test]
    fn a_level_ends_also_where_the_curve_goes_on_rising() {
        let cycles = |n: i32| match n {
            ..=26 => 4.0,
            27..=66 => 11.0,
            n => 11.0 + 12.0 * f64::from(n - 66),
        };
        let cycles: Vec<f64> = (0..81).map(cycles).collect();
        let found = levels(&cycles, 81, None, 3);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[0].end, Some((26, 27)));
        let (low, high) = found[1].end.unwrap();
        assert!(low == 66 && (68..72).contains(&high), "{found:?}");
    }

    #[test]
    fn what_pages_cost_is_beyond_what_lines_cost() {
        let latencies = [(4096, 4.0), (8192, 4.0), (16384, 14.0)];
        let beyond = beyond_caches(&[(64, 4.0), (192, 20.0), (1000, 90.0)], &latencies, 64);
        let part = 1.5_f64.ln() / 2.0_f64.ln();
        assert_eq!(beyond[0], 0.0);
        assert!((beyond[1] - (16.0 - 10.0 * part)).abs() < 1e-9 && beyond[2] == 76.0, "{beyond:?}");
        assert_eq!(beyond_caches(&[(5, 7.0)], &[], 64), [7.0]);
    }
}
