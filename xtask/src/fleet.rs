//! `cargo xtask fleet`: the programs of the fleet, which are a workspace of their own: format,
//! lints, tests.

use crate::process::{command, is_root, succeeds};
use crate::{Outcome, packages};

/// Where its programs are built.
const TARGET: &str = "target/fleet";

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
