//! Measures the counter: its frequency, its step, and the cost of a read.

use crate::counter::{read, read_fenced};
use crate::pieces::fastest;
use crate::switches::raw_time;

/// Reads of a piece.
const READS: usize = 1000;

/// One measurement of the counter's cost and step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Clock {
    /// Time of a read among others, ns.
    pub read_ns: f64,
    /// Time of a read between two fences, ns.
    pub fenced_read_ns: f64,
    /// The smallest step by which the counter moves, in ticks: with a coarse one, single
    /// differences are multiples of it.
    pub step_ticks: f64,
}

/// Measures the cost of a read and the counter's step.
#[must_use]
pub fn clock() -> Clock {
    let per_read = |read: fn() -> u64| {
        let mut sum = 0_u64;
        let piece = || (0..READS).for_each(|_| sum = sum.wrapping_add(read()));
        let took = fastest(20, piece) / READS as f64;
        std::hint::black_box(sum);
        took
    };
    Clock {
        read_ns: per_read(read),
        fenced_read_ns: per_read(read_fenced),
        step_ticks: step_ticks(&reads_at_odd_times()),
    }
}

/// Reads of the counter with a few instructions between them, of a number that changes, so that the
/// cost of a read is not taken for the step.
fn reads_at_odd_times() -> Vec<u64> {
    let at = |number: usize| {
        for delay in 0..number * 7 % 23 {
            std::hint::black_box(delay);
        }
        read()
    };
    (0..8 * READS).map(at).collect()
}

/// Largest step that is looked for, in ticks: 1 us of a counter of 1 GHz.
const STEP_TICKS_MAX: u64 = 1000;
/// Share of differences that are whole multiples of the counter's step, except for one tick: a
/// hypervisor's scaling of the counter rounds.
const MULTIPLES_SHARE_MIN: f64 = 0.95;

/// The step of a counter that was read at times of no fixed distance: the largest number that
/// nearly all differences are multiples of. 1 where they are multiples of none.
fn step_ticks(reads: &[u64]) -> f64 {
    let differences: Vec<u64> = reads
        .windows(2)
        .filter_map(|pair| match pair {
            [a, b] => b.checked_sub(*a).filter(|difference| *difference > 0),
            _ => None,
        })
        .collect();
    let is_multiple = |difference: u64, step: u64| {
        let rest = difference % step;
        rest <= 1 || rest + 1 >= step
    };
    // Of steps up to 4, every number is a multiple except for one tick, or most are.
    let steps = (5..=STEP_TICKS_MAX).rev();
    let fits = |step: &u64| {
        let multiples = differences.iter().filter(|of| is_multiple(**of, *step)).count();
        // Differences of 0 or 1 alone say nothing of a step.
        let proof = differences.iter().filter(|of| **of + 1 >= *step).count();
        multiples as f64 >= MULTIPLES_SHARE_MIN * differences.len() as f64
            && proof * 4 > differences.len()
    };
    steps.into_iter().find(fits).map_or(1.0, |step| step as f64)
}

/// The counter and the clock that nobody steers, at one moment: the fastest of some tries, so that
/// nothing came between the two reads.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    ticks: u64,
    ns: f64,
}

impl Moment {
    /// Now.
    #[must_use]
    pub fn now() -> Self {
        let attempt = || {
            let before = read_fenced();
            let ns = raw_time().as_nanos() as f64;
            let after = read_fenced();
            (after.wrapping_sub(before), Self { ticks: before / 2 + after / 2, ns })
        };
        let mut best = attempt();
        for _ in 0..50 {
            let next = attempt();
            if next.0 < best.0 {
                best = next;
            }
        }
        best.1
    }

    /// Ticks per ns since `earlier`. The error is about 50 ns over the time between the two.
    #[must_use]
    pub fn ticks_per_ns_since(&self, earlier: &Self) -> f64 {
        self.ticks.wrapping_sub(earlier.ticks) as f64 / (self.ns - earlier.ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_a_coarse_counter_are_found() {
        // A counter that moves by 25.96 ticks every 10 ns.
        let reads: Vec<u64> = (0..4000_u64)
            .scan(0.0, |at, n| {
                *at += 9.5 + (n * 7 % 23) as f64 * 0.7;
                Some(((*at / 10.0_f64).floor() * 25.96).floor() as u64)
            })
            .collect();
        assert_eq!(step_ticks(&reads), 26.0);
        let fine: Vec<u64> = (0..4000_u64)
            .scan(0, |at, n| {
                *at += 24 + n * 7 % 23;
                Some(*at)
            })
            .collect();
        assert_eq!(step_ticks(&fine), 1.0);
        assert_eq!(step_ticks(&[5, 5, 5]), 1.0);
    }

    #[test]
    fn the_counter_ticks_at_the_rate_of_a_processor() {
        let begun = Moment::now();
        while raw_time().as_nanos() as f64 - begun.ns < 2e6 {}
        let rate = Moment::now().ticks_per_ns_since(&begun);
        assert!((0.001..10.0).contains(&rate), "{rate}");
    }
}
