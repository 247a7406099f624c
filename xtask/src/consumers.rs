//! The programs that exports are written for take them: `tests/tests/system/alone/consumers.rs`. A
//! browser shows pages and drawings: `analysis/dcpi/tests/cli/browser.rs`.
//! They are half a gigabyte to install.

use crate::process::{command, must, succeeds};
use crate::{Outcome, packages};
use anyhow::Context as _;
use std::path::Path;

/// The Firefox profiler's own importer and questioner, from the npm registry.
const PROFILER_CLI: &str = "@firefox-devtools/profiler-cli@0.10.0";

/// OpenTelemetry's messages, from the Python package index.
const OTLP_MESSAGES: &str = "opentelemetry-proto==1.45.2";

/// Perfetto's messages, from the same.
const PERFETTO_MESSAGES: &str = "perfetto==0.59.1";

/// Installs them, the importer and the messages to target/consumers, and runs the tests.
pub fn run() -> anyhow::Result<Outcome> {
    packages::ensure(
        packages::COMPILER.iter().chain(&packages::TEST_TOOLS).chain(&packages::CONSUMERS),
    )?;
    let place = Path::new("target/consumers");
    let cli = place.join("node_modules/.bin/profiler-cli");
    if !cli.exists() {
        println!("installing: npm install --prefix {} {PROFILER_CLI}", place.display());
        must(command("npm install --no-fund --no-audit --prefix").arg(place).arg(PROFILER_CLI))?;
    }
    let cli = cli.canonicalize().context("finding profiler-cli")?;
    let python = place.join("python/bin/python3");
    if !place.join("python/bin/pip").exists() {
        // Where that needs Debian's python3-venv, it says so itself.
        must(command("python3 -m venv").arg(place.join("python")))?;
    }
    println!(
        "installing: pip install {OTLP_MESSAGES} {PERFETTO_MESSAGES}, to target/consumers/python"
    );
    // Not what it links to: that would be another Python.
    let python =
        std::path::absolute(python).context("finding the python3 that has opentelemetry-proto")?;
    let mut pip = std::process::Command::new(&python);
    must(pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        OTLP_MESSAGES,
        PERFETTO_MESSAGES,
    ]))?;
    must(&mut command("cargo build --workspace --bins"))?;
    let mut tests = command(
        "cargo test --package tests --features consumers --test system consumers -- --test-threads=1 --include-ignored",
    );
    tests.env("DCPI_PROFILER_CLI", cli).env("DCPI_OTLP_PYTHON", python);
    let mut browser = command("cargo test --package dcpi --test cli browser -- --include-ignored");
    let passed = succeeds(&mut tests)? & succeeds(&mut browser)?;
    Ok(if passed { Outcome::Clean } else { Outcome::Problems })
}
