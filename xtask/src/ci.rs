//! The whole gate, one step after the other.

use crate::process::{command, succeeds};
use crate::{Outcome, book, ebpf, face, fleet, packages, test, tidy};
use std::process::Command;
use std::time::Instant;

type Step = (&'static str, fn() -> anyhow::Result<Outcome>);

const STEPS: [Step; 8] = [
    ("fmt", || judged(&mut command("cargo fmt --all --check"))),
    ("tidy", tidy::run),
    ("ebpf --check", ebpf::check),
    ("face --check", face::check),
    ("doc", || {
        judged(
            command("cargo doc --workspace --no-deps --quiet")
                .env("RUSTDOCFLAGS", "-D warnings")
                .env_remove(WRAPPER),
        )
    }),
    ("book", book::run),
    ("fleet", fleet::run_if_changed),
    ("test", || test::run(&[])),
];

/// Cargo's variable for the program that compiles the crates of a workspace instead of rustc.
const WRAPPER: &str = "RUSTC_WORKSPACE_WRAPPER";
/// The wrapper that lints what it compiles.
const LINTER: &str = "clippy-driver";

/// Whether clippy's driver compiles the crates, and no other wrapper does.
pub fn is_linting() -> bool {
    std::env::var_os(WRAPPER).is_some_and(|wrapper| wrapper == LINTER)
}

/// Runs every step; stops at the first that fails, and says how long each took.
///
/// All crates of ours are compiled by clippy's driver, with its lints as errors, as `cargo clippy`
/// does it; but since the driver writes what rustc writes, programs and tests come from the same
/// compilation, and nothing is compiled a second time to be linted.
pub fn run() -> anyhow::Result<Outcome> {
    packages::ensure(&packages::COMPILER)?;
    if !is_linting() {
        // The variables of `cargo clippy -- -D warnings` (clippy 1.95, src/main.rs).
        let mut linted = command("cargo xtask ci");
        linted.env(WRAPPER, LINTER);
        linted.env("CLIPPY_ARGS", "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__");
        return judged(&mut linted);
    }
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
