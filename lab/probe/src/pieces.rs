//! Times of pieces: the same work, a tenth of a millisecond at a time, spread over seconds.

use std::time::Instant;

use measure::humps::quantile;

use crate::kernels::{LINKS, adds};
use crate::switches::preemptions;

/// A measured quantity: the value, and how far it moved over the time of the measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stable {
    /// The lowest of the rounds.
    pub low: f64,
    /// The median of the rounds.
    pub value: f64,
    /// The highest of the rounds.
    pub high: f64,
}

impl Stable {
    /// The range of the values of all rounds; None without values.
    #[must_use]
    pub fn of(rounds: &[f64]) -> Option<Self> {
        Self::between(rounds, 0.0, 1.0)
    }

    /// Summarises a distribution: the 5th percentile, the median and the 99th percentile.
    #[must_use]
    pub fn of_pieces(pieces: &[f64]) -> Option<Self> {
        Self::between(pieces, 0.05, 0.99)
    }

    fn between(values: &[f64], low: f64, high: f64) -> Option<Self> {
        let mut sorted: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let at = |share| quantile(&sorted, share);
        Some(Self { low: at(low)?, value: at(0.5)?, high: at(high)? })
    }
}

/// Time of a piece in ns; None if another thread had the CPU in between.
pub fn time(piece: impl FnOnce()) -> Option<f64> {
    let before = preemptions();
    let begun = Instant::now();
    piece();
    let took = begun.elapsed();
    (preemptions() == before).then_some(took.as_nanos() as f64)
}

/// Times as many pieces as were asked for, at most, until one has kept the CPU.
const TRIES_FACTOR: usize = 4;

/// Time of the fastest of some pieces, ns: other programs only make pieces slower. If all pieces
/// lost the CPU, more are tried; infinite if these did, too.
pub fn fastest(pieces: usize, mut piece: impl FnMut()) -> f64 {
    let mut tries = (0..pieces * TRIES_FACTOR).map(|_| time(&mut piece));
    let asked = tries.by_ref().take(pieces).flatten().reduce(f64::min);
    asked.or_else(|| tries.flatten().next()).unwrap_or(f64::INFINITY)
}

/// Rounds of a piece of additions: about 8000 cycles.
const CORE_ROUNDS: u64 = 128;

/// ns per cycle of the core now: of a chain of additions, the fastest of `pieces` pieces of 2 us.
#[must_use]
pub fn ns_per_cycle(pieces: usize) -> f64 {
    fastest(pieces, || adds(CORE_ROUNDS)) / (CORE_ROUNDS * LINKS) as f64
}
