//! The lecture's techniques on this machine (`seeds/measuring-performance-lecture`): K-best, the
//! mean of five, Bernoulli counting, single shots and loops, of chains whose times are known.
//!
//! `cargo run --release -p dcpi-bench --example lecture [-- --quick]` prints the tables.

use dcpi_bench::{Bench, Settings, black_box};
use measure::bernoulli;
use measure::humps::median;
use measure::kbest;
use std::io::Write as _;
use std::time::{Duration, Instant};

/// Step of the coarse clock of the kernel at 250 ticks a second (CLOCK_MONOTONIC_COARSE).
const COARSE: Duration = Duration::from_millis(4);

/// Steps between two sleeps: a fifth of a millisecond.
const BURST: u64 = 200_000;

#[inline(always)]
fn step(x: u64) -> u64 {
    x.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7)
}

#[inline(never)]
fn chain(x: u64, steps: u64) -> u64 {
    (0..steps / 8).fold(x, |x, _| step(step(step(step(step(step(step(step(x)))))))))
}

fn ns(steps: u64) -> f64 {
    let begun = Instant::now();
    black_box(chain(black_box(1), steps));
    begun.elapsed().as_nanos() as f64
}

/// ns of a step, by the fastest of many chains of two lengths.
fn step_ns() -> f64 {
    let fastest = |steps| (0..5000).map(|_| ns(steps)).fold(f64::INFINITY, f64::min);
    (fastest(20_000) - fastest(10_000)) / 10_000.0
}

fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// K-best and the mean of five, beside each other: errors in percent of the truth.
fn kbest_table(step_ns: f64, tries: u64) {
    say("K-best (3, 0.001, 20): errors in % of the truth");
    say(&format!(
        "{:>10} {:>10} {:>10} {:>10} {:>16} {:>10}",
        "time ns", "converged", "median", "worst", "mean of 5: median", "worst"
    ));
    for steps in [15_200, 152_000, 1_520_000, 15_200_000] {
        let truth = steps as f64 * step_ns;
        let error = |ns: f64| (ns / truth - 1.0).abs() * 100.0;
        let (mut best, mut mean, mut converged) = (Vec::new(), Vec::new(), 0);
        // The longest would take minutes.
        let tries = if steps > 10_000_000 { tries.div_ceil(4) } else { tries };
        for _ in 0..tries {
            if let Some(of) = kbest::LECTURE.of((0..20).map(|_| ns(steps))) {
                best.push(error(of.value));
                converged += u64::from(of.converged);
            }
            mean.push(error((0..5).map(|_| ns(steps)).sum::<f64>() / 5.0));
        }
        let worst = |errors: &[f64]| errors.iter().copied().fold(0.0, f64::max);
        say(&format!(
            "{truth:>10.0} {:>10} {:>10.2} {:>10.2} {:>16.2} {:>10.2}",
            format!("{converged}/{tries}"),
            median(&best).unwrap_or_default(),
            worst(&best),
            median(&mean).unwrap_or_default(),
            worst(&mean)
        ));
    }
}

/// Times below the step of a clock.
fn bernoulli_table(step_ns: f64, part: u64) {
    let coarse = COARSE.as_nanos() as u64;
    say(&format!("\nBernoulli counting with a clock of {} ms", COARSE.as_millis()));
    say(&format!(
        "{:>12} {:>8} {:>8} {:>12} {:>24}",
        "truth ns", "n", "moves", "found", "Wilson 95 %"
    ));
    let begun = Instant::now();
    let now = || begun.elapsed().as_nanos() as u64 / coarse;
    for (steps, n) in [(1000, 400_000), (9_400, 40_000), (94_000, 8_000), (940_000, 1_500)] {
        let n = n / part;
        let mut moved = Vec::new();
        for at in 0..n {
            // Little at a time, and sleep of odd length: else the scheduler of a busy machine takes
            // the CPU away, and the clock goes on.
            if at * steps / BURST != (at + 1) * steps / BURST {
                std::thread::sleep(Duration::from_micros(1000 + at * 7919 % 2000));
            }
            let before = now();
            black_box(chain(black_box(at), steps));
            moved.push(now() - before);
        }
        if let Some(of) = bernoulli::time(&moved, coarse as f64, 0.05) {
            say(&format!(
                "{:>12.0} {n:>8} {:>8} {:>12.0} {:>24}",
                steps as f64 * step_ns,
                moved.iter().sum::<u64>(),
                of.value,
                format!("{:.0} to {:.0}", of.low, of.high)
            ));
        }
    }
}

/// Single shots and loops of the same functions.
fn shots_table(step_ns: f64, settings: Settings) {
    say("\nsingle shots beside loops, ns");
    say(&format!("{:>12} {:>12} {:>24} {:>12}", "truth", "shots", "their interval", "loops"));
    let mut bench = Bench::new(Settings { prints: false, ..settings });
    macro_rules! row {
        ($count:expr, $function:expr) => {
            let mut x = 1;
            bench.bench_function("shot", |b| b.iter_batched(|| black_box(7_u64), $function));
            bench.bench_function("loop", |b| {
                b.iter(|| {
                    x = $function(x);
                    x
                });
            });
            if let [.., (_, shot), (_, looped)] = bench.results() {
                say(&format!(
                    "{:>12.2} {:>12.2} {:>24} {:>12.2}",
                    f64::from($count) * step_ns,
                    shot.ns.value,
                    format!("{:.2} to {:.2}", shot.ns.low, shot.ns.high),
                    looped.ns.value
                ));
            }
        };
    }
    row!(3, |x: u64| step(step(step(x))));
    row!(9, |x: u64| step(step(step(step(step(step(step(step(step(x))))))))));
    row!(24, |x: u64| chain(x, 24));
    row!(96, |x: u64| chain(x, 96));
    row!(280, |x: u64| chain(x, 280));
}

fn main() {
    let settings = match Settings::of(std::env::args().skip(1)) {
        Ok(settings) => settings,
        Err(says) => return say(&says),
    };
    let quick = settings.spread < Duration::from_secs(3);
    let step_ns = step_ns();
    say(&format!("a step of a chain takes {step_ns:.4} ns\n"));
    kbest_table(step_ns, if quick { 5 } else { 20 });
    bernoulli_table(step_ns, if quick { 10 } else { 1 });
    shots_table(step_ns, settings);
}
