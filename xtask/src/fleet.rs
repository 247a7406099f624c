//! `cargo xtask fleet`: the programs of the fleet, which are a workspace of their own: format,
//! lints, tests, and as root the whole chain from dcpid on three hosts to a compiler.

use crate::process::{command, is_root, succeeds};
use crate::{Outcome, packages};

/// Where its programs are built.
const TARGET: &str = "target/fleet";
/// Where the host's programs are built.
const PROGRAMS: &str = "target/debug";

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
    if !is_root() {
        println!("not root: fleet/cli/tests/chain.rs did not run");
        return Ok(Outcome::Clean);
    }
    packages::ensure(&packages::CHAIN)?;
    // As the tests of the main workspace build them, so that nothing is built twice.
    if !succeeds(&mut command("cargo build --workspace --bins --quiet"))? {
        return Ok(Outcome::Problems);
    }
    let chain = format!("cargo test {of} --package dcpi-fleet --test chain -- --ignored");
    let mut chain = command(&chain);
    chain.env("CARGO_TARGET_DIR", TARGET);
    chain.env("DCPI_PROGRAMS", std::env::current_dir()?.join(PROGRAMS));
    Ok(if succeeds(&mut chain)? { Outcome::Clean } else { Outcome::Problems })
}
