//! The cost of reading the clock between pieces of work of several kinds: the delay of the work,
//! which differs from the cost of reading it alone. For `cargo xtask bench machine`.
#![allow(clippy::print_stdout, reason = "an example prints")]

use probe::counter::{read, read_fenced};
use probe::kernels::{adds, adds_apart, branches};
use probe::ladder::{Chain, by_block};
use probe::pieces::{fastest, ns_per_cycle};
use probe::region::{Pages, Region};
use std::hint::black_box;

/// Events per piece, and number of pieces; the fastest piece counts.
const EVENTS: usize = 400;
const PIECES: usize = 40;

/// Prints the cost of an event between pieces of work, in cycles.
fn row(name: &str, per_cycle: f64, mut work: impl FnMut()) {
    let mut time = |event: fn() -> u64| {
        let piece = || {
            for _ in 0..EVENTS {
                work();
                black_box(event());
            }
        };
        fastest(PIECES, piece) / EVENTS as f64 / per_cycle
    };
    let without = time(|| 0);
    let (plain, fenced) = (time(read) - without, time(read_fenced) - without);
    println!("{name:32} {without:>10.0} {plain:>10.1} {fenced:>10.1}");
}

fn main() {
    probe::switches::stay();
    let per_cycle = ns_per_cycle(100);
    println!("{:32} {:>10} {:>10} {:>10}", "cycles of", "the work", "plain", "fenced");
    row("nothing", per_cycle, || {});
    for rounds in [1, 8] {
        row(&format!("a chain of {} additions", rounds * 64), per_cycle, || adds(rounds));
        row(&format!("{} additions, 4 at a time", rounds * 64), per_cycle, || adds_apart(rounds));
        let random = rounds * 8;
        row(&format!("{random} branches at random"), per_cycle, || branches(false, random));
    }
    let Some(mut region) = Region::new(256 << 20, Pages::Large) else { return };
    let mut chain = Chain::new(&mut region, by_block, 1);
    chain.grow(1 << 18);
    row("8 loads from memory", per_cycle, || {
        chain.walk(8);
    });
}
