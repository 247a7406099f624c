//! `cargo xtask fleet`: the programs of the fleet, which are a workspace of their own: format,
//! lints, tests.

use crate::process::{command, is_root, output, succeeds};
use crate::{Outcome, packages};

/// Where its programs are built.
const TARGET: &str = "target/fleet";
/// What its programs are made of.
const PARTS: &str =
    "fleet profiledb image model analysis/stats analysis/report/src/escape.rs xtask";

/// Checks the workspace `fleet`.
pub fn run() -> anyhow::Result<Outcome> {
    packages::ensure(packages::COMPILER.iter().chain(&packages::FLEET_TOOLS))?;
    let of = "--manifest-path fleet/Cargo.toml";
    // A test that mounts a file system.
    let ignored = if is_root() { "-- --include-ignored" } else { "" };
    for line in [
        format!("cargo fmt {of} --all --check"),
        format!("cargo clippy {of} --workspace --all-targets --quiet -- -D warnings"),
        format!("cargo test {of} --workspace --quiet {ignored}"),
    ] {
        if !succeeds(command(&line).env("CARGO_TARGET_DIR", TARGET))? {
            return Ok(Outcome::Problems);
        }
    }
    Ok(Outcome::Clean)
}

/// Checks the workspace, unless nothing that it is made of differs from a commit that passed:
/// `CI_BASE`, where the caller knows one. Its SQL engine takes minutes to build.
pub fn run_if_changed() -> anyhow::Result<Outcome> {
    if let Ok(base) = std::env::var("CI_BASE") {
        let changed = output(&mut command(&format!("git diff --name-only {base} -- {PARTS}")))?;
        if changed.trim().is_empty() {
            println!("nothing of the fleet changed since {base}");
            return Ok(Outcome::Clean);
        }
    }
    run()
}
