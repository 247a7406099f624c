//! The programs that exports are written for take them: `tests/tests/consumers.rs`. They are half a gigabyte to install.

use crate::process::{command, must, succeeds};
use crate::{Outcome, packages};
use anyhow::Context as _;
use std::path::Path;

/// The Firefox profiler's own importer and questioner, from the npm registry.
const PROFILER_CLI: &str = "@firefox-devtools/profiler-cli@0.10.0";

/// Installs them, the importer to target/consumers, and runs the tests.
pub fn run() -> anyhow::Result<Outcome> {
    packages::ensure(packages::COMPILER.iter().chain(&packages::TEST_TOOLS).chain(&packages::CONSUMERS))?;
    let place = Path::new("target/consumers");
    let cli = place.join("node_modules/.bin/profiler-cli");
    if !cli.exists() {
        println!("installing: npm install --prefix {} {PROFILER_CLI}", place.display());
        must(command("npm install --no-fund --no-audit --prefix").arg(place).arg(PROFILER_CLI))?;
    }
    let cli = cli.canonicalize().context("finding profiler-cli")?;
    must(&mut command("cargo build --workspace --bins"))?;
    let mut tests = command(
        "cargo test --package tests --features consumers --test consumers -- --test-threads=1 --include-ignored",
    );
    Ok(if succeeds(tests.env("DCPI_PROFILER_CLI", cli))? { Outcome::Clean } else { Outcome::Problems })
}
