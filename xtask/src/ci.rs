//! The whole gate, one step after the other.

use crate::process::{command, succeeds};
use crate::{Outcome, ebpf, fleet, packages, test, tidy};
use std::process::Command;
use std::time::Instant;

type Step = (&'static str, fn() -> anyhow::Result<Outcome>);

const STEPS: [Step; 7] = [
    ("fmt", || judged(&mut command("cargo fmt --all --check"))),
    ("tidy", tidy::run),
    ("ebpf --check", ebpf::check),
    ("clippy", || {
        judged(&mut command("cargo clippy --workspace --all-targets --quiet -- -D warnings"))
    }),
    ("doc", || {
        judged(
            command("cargo doc --workspace --no-deps --quiet").env("RUSTDOCFLAGS", "-D warnings"),
        )
    }),
    ("fleet", fleet::run_if_changed),
    ("test", || test::run(&[])),
];

/// Runs every step; stops at the first that fails, and says how long each took.
pub fn run() -> anyhow::Result<Outcome> {
    packages::ensure(&packages::COMPILER)?;
    let begun = Instant::now();
    for (name, step) in STEPS {
        println!("== {name}");
        let started = Instant::now();
        let outcome = step()?;
        let seconds = started.elapsed().as_secs();
        if outcome != Outcome::Clean {
            println!("== {name}: FAILED after {seconds} s; the output above says why");
            return Ok(outcome);
        }
        println!("== {name}: ok, {seconds} s");
    }
    println!("== all: ok, {} s", begun.elapsed().as_secs());
    Ok(Outcome::Clean)
}

fn judged(command: &mut Command) -> anyhow::Result<Outcome> {
    Ok(if succeeds(command)? { Outcome::Clean } else { Outcome::Problems })
}
