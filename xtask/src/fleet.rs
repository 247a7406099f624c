//! `cargo xtask fleet`: the programs of the fleet, which are a workspace of their own: format,
//! lints, tests.

use crate::Outcome;
use crate::process::{command, succeeds};

/// Where its programs are built.
const TARGET: &str = "target/fleet";

/// Checks the workspace `fleet`.
pub fn run() -> anyhow::Result<Outcome> {
    let of = "--manifest-path fleet/Cargo.toml";
    for line in [
        format!("cargo fmt {of} --all --check"),
        format!("cargo clippy {of} --workspace --all-targets --quiet -- -D warnings"),
        format!("cargo test {of} --workspace --quiet"),
    ] {
        if !succeeds(command(&line).env("CARGO_TARGET_DIR", TARGET))? {
            return Ok(Outcome::Problems);
        }
    }
    Ok(Outcome::Clean)
}
