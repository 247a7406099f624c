//! `bench soak`: the soak test of `tests`, for any time, with release builds.

use super::{count, refuse_others, require_root};
use crate::Outcome;
use crate::packages;
use crate::process::{command, must, succeeds};
use anyhow::Context as _;
use std::fs;

/// Runs it.
pub fn run(arguments: &[&str]) -> anyhow::Result<Outcome> {
    refuse_others("soak", arguments, &[], &["--minutes"])?;
    require_root("soak")?;
    packages::ensure(packages::COMPILER.iter().chain(&packages::TEST_TOOLS))?;
    let seconds = count(arguments, "--minutes", 60)? * 60;
    must(&mut command("cargo build -q --release -p dcpid -p dcpi --bins"))?;
    let programs = fs::canonicalize("target/release").context("target/release")?;
    // cargo test, because nextest ends long tests.
    let mut soak = command("cargo test -q -p tests --test system soak -- --ignored --nocapture");
    soak.env("DCPI_SOAK_S", seconds.to_string()).env("DCPI_BIN_DIR", programs);
    Ok(if succeeds(&mut soak)? { Outcome::Clean } else { Outcome::Problems })
}
