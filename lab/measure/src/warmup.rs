//! Finds first runs that are slower than the others, because caches, files or a JIT compiler were
//! cold. Statistical tests find them, not a fixed number.

use crate::humps::{median, quantile};
use crate::tails;

/// Probability that a test takes an ordinary run for a slow one. Small, because most programs have
/// no warm-up.
const CHANCE: f64 = 0.001;
/// Largest part of the runs that is warm-up: a longer one is a change of speed of another cause.
const PART_MAX: f64 = 0.34;
/// Most runs that are looked at: warm-up is at the begin.
const TESTED_MAX: usize = 3000;
/// Fewest runs that are tested.
const RUNS_MIN: usize = 6;
/// The scale is the distance from the median that this part of the slower half has at most: a
/// larger part would take a few interrupted runs for the scale, a smaller one overlooks that every
/// tenth run is disturbed.
const SLOWER: f64 = 0.9;
/// This distance of a normal distribution, in standard deviations: its 95th percentile.
const SLOWER_SD: f64 = 1.645;

/// Number of runs at the begin that are warm-up. `times` are of the same command in the order of
/// its runs.
///
/// Two tests, and the larger answer counts. By the first, each of the first w runs is farther above
/// the median of the later ones than Student's t is with probability 0.001; the scale is that of
/// the slower half, so that where many runs are disturbed, a disturbed first run is no warm-up. The
/// second compares the ranks of the first w runs with the others' (Mann and Whitney, 1947), for all
/// w, each at 0.001 over the number of w: many runs that are a little slower. Load of the machine
/// comes and goes, too, so no later w runs may have as large a median.
#[must_use]
pub fn runs(times: &[f64]) -> usize {
    if times.len() < RUNS_MIN {
        return 0;
    }
    // Each number of runs has a test of its own, which sorts.
    let times = times.get(..TESTED_MAX).unwrap_or(times);
    let most = (times.len() as f64 * PART_MAX) as usize;
    let far_above = (1..=most).rev().find(|count| are_far_above(times, *count));
    far_above.unwrap_or(0).max(by_ranks(times, most / 2))
}

/// Whether each of the first `count` runs is far above the later ones.
fn are_far_above(times: &[f64], count: usize) -> bool {
    let Some((first, later)) = times.split_at_checked(count) else { return false };
    let fastest = first.iter().copied().fold(f64::INFINITY, f64::min);
    let Some(centre) = median(later) else { return false };
    let mut above: Vec<f64> =
        later.iter().filter(|time| **time >= centre).map(|time| time - centre).collect();
    above.sort_by(f64::total_cmp);
    let scale = quantile(&above, SLOWER).unwrap_or_default() / SLOWER_SD;
    // Times that repeat exactly still differ by a tick of some clock.
    let scale = scale.max(centre.abs() * 1e-4);
    let df = (above.len() as f64 - 1.0).max(1.0);
    fastest - centre > scale * tails::student_quantile(CHANCE, df)
}

fn by_ranks(times: &[f64], most: usize) -> usize {
    let n = times.len() as f64;
    let ranks: Vec<f64> = times
        .iter()
        .map(|time| {
            let below = times.iter().filter(|other| *other < time).count() as f64;
            let equal = times.iter().filter(|other| *other == time).count() as f64;
            below + (equal + 1.0) / 2.0
        })
        .collect();
    let chance = 2.0 * CHANCE / (most.max(1) as f64);
    let (mut sum, mut best, mut at_best) = (0.0, 0.0, 0);
    for (count, rank) in (1..=most).zip(&ranks) {
        sum += rank;
        let w = count as f64;
        let z = (sum - w * (n + 1.0) / 2.0) / (w * (n - w) * (n + 1.0) / 12.0).sqrt();
        if z > best {
            (best, at_best) = (z, count);
        }
    }
    let (first, later) = times.split_at_checked(at_best).unwrap_or_default();
    let middle = median(first);
    let is_slowest = later.windows(at_best.max(1)).all(|part| median(part) < middle);
    // The normal approximation holds from some runs on each side.
    if at_best >= 3 && is_slowest && tails::normal(best) < chance { at_best } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(at: u32) -> f64 {
        f64::from(at.wrapping_mul(2_654_435_761) >> 8) / f64::from(1 << 24) - 0.5
    }

    #[test]
    fn cold_runs_are_found() {
        let mut times: Vec<f64> = (0..30).map(|at| 1.0 + 0.01 * noise(at)).collect();
        assert_eq!(runs(&times), 0);
        times[0] = 1.8;
        assert_eq!(runs(&times), 1);
        times[1] = 1.3;
        assert_eq!(runs(&times), 2);
        // A slow run in the middle is none.
        times[0] = 1.0;
        times[1] = 1.0;
        times[15] = 5.0;
        assert_eq!(runs(&times), 0);
    }

    #[test]
    fn many_runs_that_are_a_little_slower_are_found() {
        let times = |slow: fn(u32) -> bool| -> Vec<f64> {
            let extra = |at| if slow(at) { 0.02 } else { 0.0 };
            (0..100).map(|at| 1.0 + 0.02 * noise(at) + extra(at)).collect()
        };
        let found = runs(&times(|at| at < 12));
        assert!((10..=14).contains(&found), "{found}");
        // As many slow runs occur later: the machine is busy at times.
        assert_eq!(runs(&times(|at| at < 12 || (50..75).contains(&at))), 0);
    }

    /// Where every fifth run takes twice the time, a slow first run is an ordinary one.
    #[test]
    fn noise_is_no_warm_up() {
        let mut found = 0;
        for seed in 0..1000 {
            let times: Vec<f64> = (0..36)
                .map(|at| {
                    let slow = noise(seed * 131 + at) > 0.3;
                    1.0 + 0.02 * noise(seed * 77 + at + 5) + if slow { 0.9 } else { 0.0 }
                })
                .collect();
            found += usize::from(runs(&times) > 0);
        }
        assert!(found < 20, "{found} of 1000");
        assert_eq!(runs(&[5.0, 1.0, 1.0]), 0);
        assert_eq!(runs(&[1.0; 40]), 0);
        assert_eq!(runs(&[f64::NAN; 40]), 0);
    }
}
