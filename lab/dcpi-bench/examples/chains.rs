//! Functions whose times are known, against what is measured: chains of multiplications and
//! rotations, each step of which waits for the one before it (4 cycles on processors of this
//! decade). The truth is the time of a step in a chain of 20,000, times the number of steps.
//!
//! `cargo run --release -p dcpi-bench --example chains [-- --seconds S]` prints a table.

use dcpi_bench::{Bench, Settings, black_box};
use std::io::Write as _;
use std::time::Instant;

/// A step. The rotation keeps a compiler from making one multiplication of several.
#[inline(always)]
fn step(x: u64) -> u64 {
    x.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7)
}

/// Steps without a loop: leaving a loop costs a wrong guess, which the chain's length does not
/// tell.
#[inline(always)]
fn steps_16(x: u64) -> u64 {
    let four = |x| step(step(step(step(x))));
    four(four(four(four(x))))
}

/// 277 steps: 1108 cycles, 299 ns at 3.7 GHz. Never inlined: else the closure around it would not
/// be, and the chain would go through memory from call to call, 5 cycles more.
#[inline(never)]
fn steps_277(x: u64) -> u64 {
    let of_64 = |x| steps_16(steps_16(steps_16(steps_16(x))));
    let of_256 = |x| of_64(of_64(of_64(of_64(x))));
    step(step(step(step(step(steps_16(of_256(x)))))))
}

fn rolled(x: u64, sixteens: u64) -> u64 {
    (0..sixteens).fold(x, |x, _| steps_16(x))
}

/// ns of a step: the fastest of many long chains, less the fastest of half as long ones.
fn step_ns() -> f64 {
    let fastest = |sixteens: u64| {
        let times = (0..5000).map(|_| {
            let begun = Instant::now();
            black_box(rolled(black_box(1), sixteens));
            begun.elapsed().as_nanos() as f64
        });
        times.fold(f64::INFINITY, f64::min)
    };
    (fastest(1250) - fastest(625)) / (625.0 * 16.0)
}

fn main() {
    let mut out = std::io::stdout();
    let settings = match Settings::of(std::env::args().skip(1)) {
        Ok(settings) => Settings { prints: false, ..settings },
        Err(says) => {
            let _ = writeln!(out, "{says}");
            return;
        }
    };
    let mut bench = Bench::new(settings);
    let before = step_ns();
    let mut x = 1;
    let mut steps = Vec::new();
    let mut chain =
        |bench: &mut Bench, count: f64, of: &mut dyn FnMut(&mut dcpi_bench::Bencher)| {
            bench.bench_function(&format!("{count} steps"), |b| of(b));
            steps.push(count);
        };
    macro_rules! looped {
        ($count:expr, $function:expr) => {
            chain(&mut bench, $count, &mut |b| {
                b.iter(|| {
                    x = $function(x);
                    x
                });
            });
        };
    }
    looped!(3.0, |x| step(step(step(x))));
    looped!(9.0, |x| step(step(step(step(step(step(step(step(step(x))))))))));
    looped!(32.0, |x| steps_16(steps_16(x)));
    looped!(277.0, steps_277);
    looped!(16.0 * 175.0, |x| rolled(x, 175));
    looped!(16.0 * 17_500.0, |x| rolled(x, 17_500));
    looped!(16.0 * 175_000.0, |x| rolled(x, 175_000));
    // The slower of both would be a neighbour's.
    let step_ns = before.min(self::step_ns());
    let _ = writeln!(out, "a step takes {step_ns:.4} ns\n");
    let _ = writeln!(
        out,
        "{:>12} {:>12} {:>12} {:>9} {:>9} {:>12} {:>7}",
        "steps", "truth ns", "measured ns", "error %", "interval", "loop cost ns", "slow %"
    );
    for ((_, measured), count) in bench.results().iter().zip(&steps) {
        let truth = count * step_ns;
        let width = (measured.ns.high - measured.ns.low) / measured.ns.value / 2.0;
        let _ = writeln!(
            out,
            "{count:>12} {truth:>12.2} {:>12.2} {:>9.2} {:>8.2}% {:>12.3} {:>7.1}",
            measured.ns.value,
            (measured.ns.value / truth - 1.0) * 100.0,
            width * 100.0,
            measured.overhead_ns,
            measured.slow_share * 100.0
        );
    }
}
