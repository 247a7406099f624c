//! Loops and single calls between reads of the clock.
//!
//! The clock is `Instant`: its reads cost 30 ns, of which a piece of 20 us has a thousandth, and
//! that is taken off. Reading the counter itself (rdtsc) would cost 10 ns and unsafe code.

use std::hint::black_box;
use std::time::{Duration, Instant};

use measure::doubling;
use measure::humps::peak;

use crate::arguments::Settings;
use crate::estimate::{Measured, Way, of_batches, of_steps, undisturbed};
use measure::Interval;

/// Time of a loop, at least, ns. Shorter ones are blurred by the clock's reads, longer ones hold
/// more interrupts and neighbours' bursts.
const PIECE_NS: f64 = 20_000.0;
/// Batches over the time of a function.
const BATCHES: u32 = 30;
/// Pieces of a batch, at most.
const PIECES_MAX: usize = 60;
/// Single calls of a batch, at most.
const SHOTS_MAX: usize = 4000;
/// Part of the time that is measured; the rest is slept, so that the scheduler of a busy machine
/// lets the next batch begin at once.
const BUSY: f64 = 0.5;
/// For longer calls, the loop's cost is less than a thousandth.
const LOOP_MATTERS_NS: f64 = 300.0;
/// Share of the clock's moves that are multiples of its step.
const STEP_SHARE_MIN: f64 = 0.95;
/// Calls of fewer steps of the clock are counted by steps.
const STEPS_MIN: f64 = 200.0;

fn ns_of(work: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    work();
    begun.elapsed().as_nanos() as f64
}

/// The loop that is measured.
#[inline(never)]
fn plain<R>(function: &mut impl FnMut() -> R, calls: u64) {
    for _ in 0..calls {
        black_box(function());
    }
}

/// The loop with its own work doubled: a store and a comparison of a number, and a jump. Like the
/// loop's work, the added work does not depend on the call before.
#[inline(never)]
fn doubled<R>(function: &mut impl FnMut() -> R, calls: u64) {
    for call in 0..calls {
        black_box(function());
        if black_box(call) == u64::MAX {
            return;
        }
    }
}

/// The cost of two reads of the clock, ns.
fn pair_ns() -> f64 {
    let pairs: Vec<f64> = (0..2000).map(|_| ns_of(|| {})).collect();
    let mean = |pairs: &[f64]| pairs.iter().sum::<f64>() / pairs.len().max(1) as f64;
    // The clock's steps are as long as the pair: the mean of the undisturbed ones tells more.
    let near = peak(&pairs, 0.5).unwrap_or_default();
    mean(&pairs.into_iter().filter(|ns| *ns <= near * 2.0 + 20.0).collect::<Vec<_>>())
}

/// The step by which the clock moves, ns.
fn step_ns() -> f64 {
    let begun = Instant::now();
    let read = |number: u64| {
        // Odd distances: of equal ones a multiple of the step would be left.
        for delay in 0..number * 7 % 23 {
            black_box(delay);
        }
        begun.elapsed().as_nanos() as u64
    };
    let reads: Vec<u64> = (0..10_000).map(read).collect();
    let moves = reads.windows(2).filter_map(|pair| pair.last()?.checked_sub(*pair.first()?));
    step_of(&moves.filter(|moved| *moved > 0).collect::<Vec<u64>>())
}

/// The largest number that nearly all moves are multiples of, except for the ns that rounding
/// leaves; 1 where there is none.
fn step_of(moves: &[u64]) -> f64 {
    let least = moves.iter().copied().min().unwrap_or(1);
    let fits = |step: u64| {
        let near = |moved: &&u64| **moved % step <= 1 || **moved % step >= step - 1;
        moves.iter().filter(near).count() as f64 >= STEP_SHARE_MIN * moves.len() as f64
    };
    // With a step of 4 ns, three of four numbers would be near a multiple.
    (5..=least + 1).rev().find(|step| fits(*step)).unwrap_or(1) as f64
}

/// Runs `batch` in equal distances over the time, and sleeps between. `batch` gets the time that it
/// may take.
fn spread(settings: &Settings, mut batch: impl FnMut(Duration)) {
    let begun = Instant::now();
    let slot = settings.spread / BATCHES;
    for number in 0..BATCHES {
        let due = slot * number;
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
        batch(slot.mul_f64(BUSY));
        // A function of seconds: two batches have to do.
        if number > 0 && begun.elapsed() > settings.spread * 2 {
            break;
        }
    }
}

/// The time of a call in loops.
pub(crate) fn loops<R>(function: &mut impl FnMut() -> R, settings: &Settings) -> Measured {
    let calls = doubling::repetitions(PIECE_NS, |calls| ns_of(|| plain(function, calls)));
    let pair = pair_ns();
    let (mut once, mut twice, mut empty) = (Vec::new(), Vec::new(), Vec::new());
    let of_calls = |ns: f64| (ns - pair) / calls as f64;
    // Above, a loop's cost is less than the noise.
    let loop_matters = ns_of(|| plain(function, calls)) / (calls as f64) < LOOP_MATTERS_NS;
    spread(settings, |allowed| {
        let begun = Instant::now();
        // Caches and branch predictors are cold after sleep.
        plain(function, calls);
        let (mut of_once, mut of_twice) = (Vec::new(), Vec::new());
        while of_once.len() < PIECES_MAX && (of_once.is_empty() || begun.elapsed() < allowed) {
            of_once.push(of_calls(ns_of(|| plain(function, calls))));
            if loop_matters {
                of_twice.push(of_calls(ns_of(|| doubled(function, calls))));
                empty.push(of_calls(ns_of(|| plain(&mut || (), calls))));
            }
        }
        once.push(of_once);
        twice.push(of_twice);
    });
    let way = Way::Loops { calls };
    let at = |pieces: &[f64]| undisturbed(pieces).unwrap_or_default();
    let flat = |batches: &[Vec<f64>]| batches.iter().flatten().copied().collect::<Vec<f64>>();
    let overhead = match loop_matters {
        // Doubling costs as much again, or nothing behind what the processor waits for anyway; no
        // loop costs more than an empty one.
        true => (at(&flat(&twice)) - at(&flat(&once))).clamp(0.0, at(&empty).max(0.0)),
        false => 0.0,
    };
    of_batches(&once, overhead, way).unwrap_or_else(|| nothing(way))
}

/// Work of about 70 ns in dependent steps.
#[inline(never)]
fn known(x: u64) -> u64 {
    (0..64).fold(x, |x, _| x.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7))
}

/// The time of [`known`] in loops, ns.
fn known_ns() -> f64 {
    let (mut x, calls) = (1, 64);
    let mut call = || {
        x = known(x);
        x
    };
    let pair = pair_ns();
    let piece = |_| (ns_of(|| plain(&mut call, calls)) - pair) / calls as f64;
    undisturbed(&(0..1000).map(piece).collect::<Vec<f64>>()).unwrap_or_default()
}

/// The time of single calls. Two reads of the clock cost less around work than around nothing,
/// where the second read waits for the first instead of for the work. So the cost is measured by
/// single calls of work whose time is known from loops: 15 ns, where an empty pair shows 24.
pub(crate) fn shots<I, R>(
    setup: &mut impl FnMut() -> I,
    routine: &mut impl FnMut(I) -> R,
    settings: &Settings,
) -> Measured {
    let (step, known_ns) = (step_ns(), known_ns());
    let (mut batches, mut beside) = (Vec::new(), Vec::new());
    spread(settings, |allowed| {
        let begun = Instant::now();
        let mut batch = Vec::new();
        while batch.len() < SHOTS_MAX && (batch.is_empty() || begun.elapsed() < allowed) {
            // A compiler may not do a part of the call before the clock is read.
            let input = black_box(setup());
            batch.push(ns_of(|| drop(black_box(routine(input)))));
            let x = black_box(1);
            beside.push(ns_of(|| {
                black_box(known(x));
            }));
        }
        batches.push(batch);
    });
    let all: Vec<f64> = batches.iter().flatten().copied().collect();
    let short = undisturbed(&all).is_some_and(|ns| ns < STEPS_MIN * step);
    let steps = |of: &[f64]| of.iter().map(|ns| (ns / step).round() as u64).collect::<Vec<u64>>();
    let found = match short {
        true => of_steps(&steps(&all), &steps(&beside), (step, known_ns)),
        false => {
            let pair = undisturbed(&beside).unwrap_or_default() - known_ns;
            of_batches(&batches, pair, Way::Shots)
        }
    };
    found.unwrap_or_else(|| nothing(Way::Shots))
}

/// Runs a function once, without measuring.
pub(crate) fn once(work: impl FnOnce()) -> Measured {
    work();
    nothing(Way::Once)
}

fn nothing(way: Way) -> Measured {
    let ns = Interval::default();
    Measured { ns, slow_share: 0.0, slow_factor: 1.0, overhead_ns: 0.0, pieces: 0, way }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ways_measure() {
        let settings = Settings { spread: Duration::from_millis(60), ..Settings::default() };
        let mut sum = 0_u64;
        let mut add = || {
            sum = sum.wrapping_mul(3).rotate_left(7);
            sum
        };
        let of = loops(&mut add, &settings);
        assert!(matches!(of.way, Way::Loops { calls } if calls > 100), "{of:?}");
        assert!(of.ns.value > 0.0 && of.pieces >= 30 && of.overhead_ns >= 0.0, "{of:?}");
        let of = shots(&mut || 3_u64, &mut |n| n.wrapping_mul(7), &settings);
        assert!(of.way == Way::Bernoulli && of.pieces > 1000, "{of:?}");
        let work = |n: u64| (0..n).fold(0_u64, |sum, n| black_box(sum.wrapping_add(n)));
        let of = shots(&mut || 100_000_u64, &mut |n| work(n), &settings);
        assert!(of.way == Way::Shots && of.ns.value > 1000.0, "{of:?}");
    }

    #[test]
    fn the_clock_has_a_step_and_a_cost() {
        assert!((1.0..=10_000_000.0).contains(&step_ns()));
        assert!(pair_ns() > 0.0);
        let rounded: Vec<u64> = (1..1000).map(|n| 10 * (2 + n % 7) + n % 2).collect();
        assert_eq!(step_of(&rounded), 10.0);
        let fine: Vec<u64> = (1..1000).map(|n| 20 + n * 13 % 41).collect();
        assert_eq!(step_of(&fine), 1.0);
        assert_eq!(step_of(&[]), 1.0);
    }
}
