//! Times of short pieces of equal work: whether their distribution has two humps, and the time of
//! the fast one.
//!
//! A piece of some microseconds runs either undisturbed, or beside a busy SMT sibling at about half
//! the speed; hardly any piece has a speed between, because programs on the sibling run for
//! milliseconds. Times of long runs mix both, and steal time does not include the effect.

/// The two humps of a distribution of times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Humps {
    /// Median of the fast pieces.
    pub fast: f64,
    /// Median of the slow pieces.
    pub slow: f64,
    /// Slow pieces, as a share of all.
    pub slow_share: f64,
}

/// Fewest pieces that are divided into humps.
const PIECES_MIN: usize = 20;
/// Least between-class variance over total variance (Otsu's criterion) of two humps. A normal
/// distribution has 0.64 and a uniform one 0.75, so neither passes.
const PARTED: f64 = 0.8;
/// Least ratio of the medians of two humps: the core's frequency alone varies by a tenth.
const APART: f64 = 1.2;
/// Least share of each hump: a smaller share of slow pieces is interrupts.
const SHARE_MIN: f64 = 0.03;

/// The two humps of these times; None where there is one.
///
/// Otsu's threshold ("A Threshold Selection Method from Gray-Level Histograms", 1979) over the
/// logarithms: the split with the largest variance between both sides. The slowest hundredth of the
/// pieces, which were interrupted, is left out first.
#[must_use]
pub fn humps(times: &[f64]) -> Option<Humps> {
    let mut logs: Vec<f64> = times
        .iter()
        .filter(|time| time.is_finite() && **time > 0.0)
        .map(|time| time.ln())
        .collect();
    if logs.len() < PIECES_MIN {
        return None;
    }
    logs.sort_by(f64::total_cmp);
    logs.truncate(logs.len() - logs.len() / 100);
    let n = logs.len() as f64;
    let mean = logs.iter().sum::<f64>() / n;
    let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / n;
    let (mut sum, mut best, mut split) = (0.0, 0.0, 0);
    for (at, log) in logs.iter().enumerate() {
        sum += log;
        let below = (at + 1) as f64;
        let above = n - below;
        let between = (sum - below * mean).powi(2) / (below * above.max(f64::MIN_POSITIVE));
        if above > 0.0 && between > best {
            (best, split) = (between, at + 1);
        }
    }
    let (fast, slow) = logs.split_at(split);
    let found = Humps {
        fast: middle(fast)?.exp(),
        slow: middle(slow)?.exp(),
        slow_share: slow.len() as f64 / n,
    };
    let two = best > PARTED * variance
        && found.slow > APART * found.fast
        && found.slow_share >= SHARE_MIN
        && found.slow_share <= 1.0 - SHARE_MIN;
    two.then_some(found)
}

/// The time of an undisturbed piece: the middle of the shortest stretch that holds a part of all
/// pieces. `part` is 0 to 1; a quarter finds the fast hump even if most pieces are slow, because
/// the slow ones are spread more. None of none.
///
/// The minimum would depend on how many pieces there are, and the median on the neighbours.
#[must_use]
pub fn peak(times: &[f64], part: f64) -> Option<f64> {
    let mut sorted: Vec<f64> = times.iter().copied().filter(|time| time.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let held = ((sorted.len() as f64 * part).ceil() as usize).max(2).min(sorted.len());
    let stretch = sorted.windows(held.max(1)).min_by(|a, b| width(a).total_cmp(&width(b)))?;
    middle(stretch)
}

/// From the first to the last of sorted values.
fn width(sorted: &[f64]) -> f64 {
    sorted.first().zip(sorted.last()).map_or(f64::INFINITY, |(first, last)| last - first)
}

/// The median of sorted values.
fn middle(sorted: &[f64]) -> Option<f64> {
    quantile(sorted, 0.5)
}

/// The value below which a share of sorted values lies, between neighbours in proportion; None of
/// none.
#[must_use]
pub fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let place = share.clamp(0.0, 1.0) * sorted.len().checked_sub(1)? as f64;
    let (below, above) = (sorted.get(place.floor() as usize)?, sorted.get(place.ceil() as usize)?);
    Some(below + (above - below) * place.fract())
}

/// The median of values; None of none.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| !value.is_nan()).collect();
    sorted.sort_by(f64::total_cmp);
    middle(&sorted)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A repeatable number from 0 to 1.
    fn noise(at: u32) -> f64 {
        f64::from(at.wrapping_mul(2_654_435_761) >> 8) / f64::from(1 << 24)
    }

    #[test]
    fn a_busy_sibling_has_a_hump() {
        let times: Vec<f64> = (0..1000)
            .map(|at| (1.0 + 0.05 * noise(at)) * if at % 5 == 0 { 1.95 } else { 1.0 })
            .collect();
        let found = humps(&times).unwrap();
        assert!((found.slow_share - 0.2).abs() < 0.02, "{found:?}");
        assert!((found.slow / found.fast - 1.95).abs() < 0.05, "{found:?}");
    }

    #[test]
    fn one_hump_is_no_two() {
        let even: Vec<f64> = (0..1000).map(|at| 1.0 + noise(at)).collect();
        assert_eq!(humps(&even), None);
        let narrow: Vec<f64> = (0..1000).map(|at| 100.0 + noise(at)).collect();
        assert_eq!(humps(&narrow), None);
        // Interrupts: one piece in a hundred takes much longer.
        let interrupted: Vec<f64> = (0..1000)
            .map(|at| 1.0 + 0.02 * noise(at) + if at % 100 == 7 { 9.0 } else { 0.0 })
            .collect();
        assert_eq!(humps(&interrupted), None);
        assert_eq!(humps(&[1.0; 100]), None);
        assert_eq!(humps(&[1.0, 2.0]), None);
    }

    #[test]
    fn the_peak_is_the_fast_hump() {
        let times: Vec<f64> = (0..1000)
            .map(|at| {
                10.0 + 0.1 * noise(at) + if at % 3 > 0 { 8.0 + noise(at + 7) * 4.0 } else { 0.0 }
            })
            .collect();
        let peak = peak(&times, 0.25).unwrap();
        assert!((10.0..10.1).contains(&peak), "{peak}");
        assert_eq!(super::peak(&[], 0.25), None);
        assert_eq!(super::peak(&[3.0], 0.25), Some(3.0));
        assert_eq!(median(&[3.0, 1.0]), Some(2.0));
    }
}
