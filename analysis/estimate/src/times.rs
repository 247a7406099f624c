//! How long an instruction of a loop takes from one execution to the next, by pairs of samples of
//! one thread.
//!
//! A pair has the number of executions in between from a register's difference. Where the loop
//! ended and began anew in between, the difference has nothing to do with time: it is too small, or
//! goes backwards. So times are believed only where hardly a pair goes backwards, or where most of
//! the pairs that go forward agree on one of the shortest times. The pairs' lengths differ by a
//! factor of ten, so that differences of loops that began anew agree on none.

use image::Vaddr;

/// Fewest pairs that agree.
const PAIRS_MIN: u64 = 8;
/// Largest share of pairs that go backwards. Of pairs that lie in two activations half do.
const BACKWARDS_MAX: f64 = 0.35;
/// Pairs, and the largest share of them that goes backwards, with which the loop's activations are
/// so much longer than pairs that all others lie in one. Their times may then differ, as data and
/// other threads make rounds longer and shorter.
const LASTS_MIN: u64 = 30;
const LASTS_BACKWARDS_MAX: f64 = 0.03;
/// Share of the pairs whose times are shorter than the reference time. The shortest time itself is
/// no reference, because chance makes some pairs shorter.
const SHORTEST: f64 = 0.1;
/// A pair agrees with the reference time if its time is at least this part of it.
const AGREES_FROM: f64 = 0.8;
/// A pair agrees with the reference time if its time is at most this many times as long. Data make
/// rounds longer and shorter. Of pairs that lie in two activations, a third agrees by chance.
const AGREES_TO: f64 = 1.6;
/// Times, in ns, of which pairs are not many times longer.
const LONG_NS: f64 = 20_000.0;
/// Error that all pairs have alike, as a share: the time of an interrupt, 17 us in a virtual
/// machine, is taken off each, and known to a fifth; pairs are of 50 to 500 us.
const UNSURE: f64 = 0.025;
/// Smallest share of the pairs that go forward that must agree.
const AGREE_MIN: f64 = 0.6;

/// What pairs of samples told of one instruction.
#[derive(Clone, Debug, Default)]
pub struct Pairs {
    /// ns from one execution to the next, and pairs that told it.
    pub ns: Vec<(f64, u64)>,
    /// Pairs without an execution in between.
    pub none: u64,
    /// Pairs of which the second sample is of another activation of the loop.
    pub backwards: u64,
}

/// Time from one execution of an instruction to the next, while its loop runs, calls included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExecutionNs {
    /// The instruction.
    pub at: Vaddr,
    /// Whether it is one of several, one of which is executed in each round of its loop: the time
    /// is that of a round.
    pub is_round: bool,
    /// The mean, in ns: the inverse of the mean rate.
    pub value: f64,
    /// Limits of 95 % confidence.
    pub low: f64,
    /// The upper one.
    pub high: f64,
    /// Pairs that tell it.
    pub pairs: u64,
}

impl ExecutionNs {
    /// The time by pairs; None where they do not tell one.
    pub fn of((at, is_round): (Vaddr, bool), pairs: &Pairs) -> Option<Self> {
        let Pairs { ns, none, backwards } = pairs;
        let told: u64 = ns.iter().fold(*none, |sum, (_, times)| sum.saturating_add(*times));
        let mut sorted = ns.clone();
        sorted.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let mut seen = 0_u64;
        let (shortest, _) = *sorted.iter().find(|(_, times)| {
            seen = seen.saturating_add(*times);
            seen as f64 >= SHORTEST * told as f64
        })?;
        let all = told.saturating_add(*backwards) as f64;
        let lasts = told >= LASTS_MIN && *backwards as f64 <= LASTS_BACKWARDS_MAX * all;
        let agrees =
            if lasts { 0.0..=f64::INFINITY } else { shortest * AGREES_FROM..=shortest * AGREES_TO };
        let is_near = |(ns, _): &&(f64, u64)| agrees.contains(ns);
        let near_pairs = sorted.iter().filter(is_near).map(|(_, times)| *times);
        let near_pairs = near_pairs.fold(0, u64::saturating_add);
        // A pair without an execution agrees where executions are as rare as pairs are long.
        let none = if *none > 0 && shortest > LONG_NS { *none } else { 0 };
        let agree = near_pairs.saturating_add(none) as f64;
        if agree < PAIRS_MIN as f64
            || agree < AGREE_MIN * told as f64
            || *backwards as f64 > BACKWARDS_MAX * all
        {
            return None;
        }
        // Rates are what adds up; a pair without an execution has the rate 0.
        let pairs = near_pairs.saturating_add(none);
        let rates = sorted.iter().filter(is_near).map(|(ns, times)| (1.0 / ns, *times as f64));
        let mean = rates.clone().map(|(rate, times)| rate * times).sum::<f64>() / pairs as f64;
        let square = |rate: f64| (rate - mean).powi(2);
        let squares = rates.map(|(rate, times)| square(rate) * times).sum::<f64>()
            + square(0.0) * none as f64;
        let of_mean = (squares / pairs.saturating_sub(1).max(1) as f64 / pairs as f64).sqrt();
        let error = 2.0 * of_mean / mean;
        let value = 1.0 / mean;
        let error = error + UNSURE;
        let (low, high) = (value * (1.0 - error), value * (1.0 + error));
        (value.is_finite() && low > 0.0).then_some(Self { at, is_round, value, low, high, pairs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(ns: &[(f64, u64)], none: u64, backwards: u64) -> Option<ExecutionNs> {
        ExecutionNs::of((Vaddr(0), false), &Pairs { ns: ns.to_vec(), none, backwards })
    }

    #[test]
    fn the_mean_rate_is_inverted() {
        let same = time(&[(5.0, 20)], 0, 0).unwrap();
        assert_eq!((same.value, same.low, same.high, same.pairs), (5.0, 4.875, 5.125, 20));
        // Two pairs of three have one execution of 12 ms in 6 ms of time.
        let long = time(&[(6e6, 20)], 20, 0).unwrap();
        assert!((long.value - 12e6).abs() < 1.0 && long.high > 14e6, "{long:?}");
    }

    #[test]
    fn what_begins_anew_is_not_told() {
        assert_eq!(time(&[(5.0, 7)], 0, 0), None, "too few");
        assert!(time(&[(5.0, 8)], 0, 0).is_some());
        assert_eq!(time(&[(5.0, 50)], 0, 50), None, "half goes backwards");
        assert!(time(&[(5.0, 50)], 0, 20).is_some());
        // Of any size, as the difference of two activations.
        let any: Vec<(f64, u64)> = (1..40).map(|n| (1e6 / f64::from(n), 1)).collect();
        assert_eq!(time(&any, 0, 10), None);
        // Pairs that all go forward are of one activation, whatever their times.
        assert!(time(&any, 0, 0).is_some());
        // A pair that is far off is none of the loop's.
        let one = time(&[(5.0, 20), (5e4, 2)], 0, 0).unwrap();
        assert_eq!((one.value, one.pairs), (5.0, 20));
    }
}
