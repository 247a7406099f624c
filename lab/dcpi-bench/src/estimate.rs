//! Estimates the time of a call from the times of pieces.

use measure::Interval;
use measure::bernoulli;
use measure::humps::{median, peak, quantile};

/// Quantile of pieces to which others are compared: the result is of pieces at most a tenth slower.
/// On a busy machine most long pieces are interrupted, and the densest ones are not the undisturbed
/// ones.
const FASTEST: f64 = 0.05;
const NEAR: f64 = 1.1;
/// Share of these pieces, the densest, whose median is the result. A larger share would include
/// pieces that another program slows a little; a smaller one is noisier.
const PART: f64 = 0.4;
/// Ratio to the result above which a piece counts as slow.
const SLOW: f64 = 1.2;
/// Resamples for the interval.
const RESAMPLES: usize = 400;
/// Probability that the interval misses the result of another measurement.
const MISS: f64 = 0.05;

/// The method by which a function was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Loops of this many calls.
    Loops {
        /// Calls in a loop.
        calls: u64,
    },
    /// Single calls, each much longer than a step of the clock.
    Shots,
    /// Single calls, by the steps that the clock moved.
    Bernoulli,
    /// One call, not measured.
    Once,
}

/// A function's time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Time of a call, ns, with an interval of 95 %.
    pub ns: Interval,
    /// Share of pieces that were slower by more than a fifth: neighbours, interrupts.
    pub slow_share: f64,
    /// Median of the slow pieces over the result; 1 without any.
    pub slow_factor: f64,
    /// Cost of the loop or the clock per call, in ns, which is subtracted.
    pub overhead_ns: f64,
    /// Pieces.
    pub pieces: usize,
    /// The method of measurement.
    pub way: Way,
}

/// The time of undisturbed pieces; None of none.
pub(crate) fn undisturbed(pieces: &[f64]) -> Option<f64> {
    let mut sorted: Vec<f64> = pieces.iter().copied().filter(|ns| ns.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let most = quantile(&sorted, FASTEST)? * NEAR;
    sorted.retain(|ns| *ns <= most);
    peak(&sorted, PART)
}

/// The result of batches of pieces, ns a call each; batches are far apart in time, pieces of a
/// batch are not. None of none.
pub(crate) fn of_batches(batches: &[Vec<f64>], overhead_ns: f64, way: Way) -> Option<Measured> {
    let all: Vec<f64> = batches.iter().flatten().copied().collect();
    let value = undisturbed(&all)?;
    let slow: Vec<f64> = all.iter().copied().filter(|ns| *ns > value * SLOW).collect();
    let slow_factor = median(&slow).map_or(1.0, |slow| slow / value);
    let (low, high) = interval(batches).unwrap_or((value, value));
    let ns = Interval { value, low: low.min(value), high: high.max(value) }.less(overhead_ns);
    Some(Measured {
        ns: Interval { value: ns.value.max(0.0), low: ns.low.max(0.0), high: ns.high.max(0.0) },
        slow_share: slow.len() as f64 / all.len() as f64,
        slow_factor,
        overhead_ns,
        pieces: all.len(),
        way,
    })
}

/// The bootstrap's interval (Efron, "Bootstrap Methods", Annals of Statistics 7, 1979): the same
/// result of batches that are drawn again, with replacement. Batches, not pieces, since pieces of a
/// batch have the same neighbours.
fn interval(batches: &[Vec<f64>]) -> Option<(f64, f64)> {
    if batches.len() < 2 {
        return None;
    }
    // A fixed seed: the same pieces give the same interval.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % below
    };
    let mut results: Vec<f64> = (0..RESAMPLES)
        .filter_map(|_| {
            let drawn = (0..batches.len()).filter_map(|_| batches.get(draw(batches.len())));
            undisturbed(&drawn.flatten().copied().collect::<Vec<f64>>())
        })
        .collect();
    results.sort_by(f64::total_cmp);
    Some((quantile(&results, MISS / 2.0)?, quantile(&results, 1.0 - MISS / 2.0)?))
}

/// The result of single calls, in steps of the clock of `step_ns`, beside single calls of work that
/// takes `known_ns`. Interrupted calls, above twice the median, are left out. None of none.
pub(crate) fn of_steps(
    shots: &[u64],
    known: &[u64],
    (step_ns, known_ns): (f64, f64),
) -> Option<Measured> {
    let without_interrupts = |steps: &[u64]| {
        let numbers: Vec<f64> = steps.iter().map(|steps| *steps as f64).collect();
        let most = (median(&numbers).unwrap_or_default() + 1.0) * 2.0;
        steps.iter().copied().filter(|steps| *steps as f64 <= most).collect::<Vec<u64>>()
    };
    let kept = without_interrupts(shots);
    let both = bernoulli::time(&kept, step_ns, MISS)?;
    let pair = bernoulli::time(&without_interrupts(known), step_ns, MISS)?.less(known_ns);
    let reach = |end: f64, other: f64| ((end - both.value).powi(2) + other.powi(2)).sqrt();
    let value = both.value - pair.value;
    let low = value - reach(both.low, pair.high - pair.value);
    let high = value + reach(both.high, pair.value - pair.low);
    let slow = shots.len() - kept.len();
    Some(Measured {
        ns: Interval { value: value.max(0.0), low: low.max(0.0), high: high.max(0.0) },
        slow_share: slow as f64 / shots.len().max(1) as f64,
        slow_factor: 1.0,
        overhead_ns: pair.value,
        pieces: shots.len(),
        way: Way::Bernoulli,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(at: usize) -> f64 {
        ((at as u32).wrapping_mul(2_654_435_761) >> 8) as f64 / f64::from(1 << 24)
    }

    /// A fifth of all pieces at twice the time, in bursts: whole batches of them.
    #[test]
    fn neighbours_do_not_move_the_result() {
        let batches: Vec<Vec<f64>> = (0..30)
            .map(|batch| {
                let factor = if batch % 5 == 0 { 1.9 } else { 1.0 };
                (0..50).map(|at| factor * (300.0 + noise(batch * 50 + at))).collect()
            })
            .collect();
        let of = of_batches(&batches, 0.3, Way::Shots).unwrap();
        assert!((of.ns.value - 300.2).abs() < 0.6, "{of:?}");
        assert!(
            of.ns.low <= of.ns.value && of.ns.value <= of.ns.high && of.ns.high < 301.0,
            "{of:?}"
        );
        assert!(
            (of.slow_share - 0.2).abs() < 0.01 && (of.slow_factor - 1.9).abs() < 0.01,
            "{of:?}"
        );
        assert_eq!(of_batches(&[], 0.0, Way::Shots), None);
    }

    /// Four of five pieces of 3 ms share their CPU.
    #[test]
    fn few_undisturbed_pieces_are_enough() {
        let slow = |at| if at % 5 == 0 { 0.0 } else { 3.2 + 0.2 * noise(at + 7) };
        let pieces: Vec<f64> = (0..200).map(|at| 3.0 + 0.01 * noise(at) + slow(at)).collect();
        let of = undisturbed(&pieces).unwrap();
        assert!((3.0..3.01).contains(&of), "{of}");
        assert_eq!(undisturbed(&[]), None);
    }

    /// Calls of 3 ns on a clock of 10 ns, whose reads take 14 ns beside work of 70 ns.
    #[test]
    fn steps_of_the_clock_tell_less_than_a_step() {
        let steps = |ns: f64, from: usize| -> Vec<u64> {
            (from..from + 200_000).map(|at| ((noise(at) * 10.0 + ns) / 10.0) as u64).collect()
        };
        let mut shots = steps(17.0, 0);
        shots[77] = 100_000;
        let of = of_steps(&shots, &steps(84.0, 1_000_000), (10.0, 70.0)).unwrap();
        assert!((of.ns.value - 3.0).abs() < 0.1, "{of:?}");
        assert!(of.ns.low < 3.0 && of.ns.high > 3.0 && of.ns.high - of.ns.low < 0.2, "{of:?}");
    }
}
