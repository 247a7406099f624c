//! Hosts unlike those that run the same service.
//!
//! A host's *distance* is half the sum of absolute differences between its shares of the service's
//! time and those of its fellows' median: 0 where it does the same, 1 where it does nothing of it.
//! A part is expected: samples are few, and procedures differ from host to host for good. How far
//! hosts of this service are from each other decides which one is unlike them.

use crate::chance::beyond;

/// A procedure on the hosts of a service.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Fellow {
    /// Median of its share of the service's time.
    pub median: f64,
    /// Relative standard deviation between hosts beyond that of sampling.
    pub spread: f64,
}

impl Fellow {
    /// The procedure by its samples and those of the whole service, on each host that runs the
    /// service, also those without a sample of it.
    #[must_use]
    pub fn of(hosts: &[(u64, u64)]) -> Self {
        let of: Vec<(f64, f64)> =
            hosts.iter().filter(|(_, all)| *all > 0).map(|(x, y)| (*x as f64, *y as f64)).collect();
        let median = median(of.iter().map(|(x, y)| x / y).collect()).unwrap_or(0.0);
        if median <= 0.0 {
            return Self::default();
        }
        // 1.4826 of the median deviation is the standard deviation of normal variables.
        let squares = |(x, y): &(f64, f64)| {
            let deviation = 1.4826 * (x / y / median - 1.0).abs();
            (deviation, 1.0 / (median * y))
        };
        let deviation = self::median(of.iter().map(|host| squares(host).0).collect());
        let sampling = self::median(of.iter().map(|host| squares(host).1).collect());
        let beyond = deviation.unwrap_or(0.0).powi(2) - sampling.unwrap_or(0.0);
        Self { median, spread: beyond.max(0.0).sqrt() }
    }
}

/// How far a host is from its fellows.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Distance {
    /// The distance, 0..=1.
    pub distance: f64,
    /// The same that sampling and the typical spread would give.
    pub expected: f64,
    /// The procedure that differs most, as its number in the list given; None of none.
    pub most: Option<usize>,
}

impl Distance {
    /// The distance of a host with `all` samples of the service: of each procedure its samples, and
    /// what it is on the fellows. Procedures that a host has no sample of are in the list too.
    #[must_use]
    pub fn of(rows: impl IntoIterator<Item = (u64, Fellow)>, all: u64) -> Self {
        if all == 0 {
            return Self::default();
        }
        let all = all as f64;
        let (mut distance, mut expected) = (0.0, 0.0);
        let mut most = (0.0, None);
        for (at, (samples, fellow)) in rows.into_iter().enumerate() {
            if !(fellow.median.is_finite() && fellow.median >= 0.0 && fellow.spread.is_finite()) {
                continue;
            }
            let away = (samples as f64 / all - fellow.median).abs();
            distance += away / 2.0;
            expected += expected_deviation(fellow, all) / 2.0;
            if away > most.0 {
                most = (away, Some(at));
            }
        }
        Self { distance: distance.min(1.0), expected: expected.min(1.0), most: most.1 }
    }
}

/// The mean absolute deviation of a share by sampling and spread.
fn expected_deviation(fellow: Fellow, all: f64) -> f64 {
    let normal = std::f64::consts::FRAC_2_PI.sqrt();
    let samples = fellow.median * all;
    // Of few samples it is not that of the normal variable: a Poisson variable of a mean below 1
    // deviates by twice the mean times the probability of none (de Moivre).
    let sampling =
        if samples < 1.0 { 2.0 * samples * (-samples).exp() } else { normal * samples.sqrt() };
    (sampling / all).hypot(normal * fellow.median * fellow.spread)
}

/// For each host, the probability that a host like its fellows deviates this much from them, for
/// [`discoveries`](crate::discoveries): by the ratio of distance and expectation, whose logarithm's
/// median and spread are the fellows' own. 1 for all of fewer than eight hosts.
#[must_use]
pub fn unlike(hosts: &[Distance]) -> Vec<f64> {
    let log = |host: &Distance| {
        let ratio = (host.distance / host.expected).ln();
        ratio.is_finite().then_some(ratio)
    };
    let logs: Vec<f64> = hosts.iter().filter_map(log).collect();
    let count = logs.len();
    let middle = median(logs.clone());
    let spread =
        middle.and_then(|middle| median(logs.iter().map(|log| (log - middle).abs()).collect()));
    let (Some(middle), Some(spread), true) = (middle, spread, count >= HOSTS_LEAST) else {
        return vec![1.0; hosts.len()];
    };
    // As good as equal hosts would make one that is a hair farther a certainty.
    let sd = (1.4826 * spread).max(LOG_SPREAD_LEAST);
    // The median deviation is worth about 0.37 of as many normal numbers.
    let df = 0.37 * count as f64;
    let p = |host: &Distance| {
        log(host).filter(|log| *log > middle).map_or(1.0, |log| beyond((log - middle) / sd, df))
    };
    hosts.iter().map(p).collect()
}

/// Hosts from which their own spread is believed: a median deviation of fewer is nearly anything.
const HOSTS_LEAST: usize = 8;
/// The least standard deviation, between hosts that are alike, of the logarithm of a distance by
/// its expectation. With none, a hair would make a host unlike its fellows where these are equal;
/// with a larger one, hosts a third farther than others are not named.
const LOG_SPREAD_LEAST: f64 = 0.1;

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.retain(|value| value.is_finite());
    values.sort_by(f64::total_cmp);
    let above = values.get(values.len() / 2)?;
    let below = values.get((values.len() - 1) / 2)?;
    Some(f64::midpoint(*above, *below))
}

#[cfg(test)]
mod tests;
