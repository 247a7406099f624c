//! `cargo xtask fleet`: the programs of the fleet, which are a workspace of their own: format,
//! lints, tests. `cargo xtask fleet engines`: the shipped SQL on four engines.

use crate::Outcome;
use crate::process::{command, must, succeeds};
use std::path::Path;

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

/// Compares the rows of the shipped SQL files on DataFusion, on a Ballista cluster over an S3
/// server that runs here, on DuckDB and on Spark; see `fleet/engine/crosscheck/engines.py`.
pub fn engines() -> anyhow::Result<Outcome> {
    const WORK: &str = "target/fleet-engines";
    const SCRIPTS: &str = "fleet/engine/crosscheck";
    let of = "--manifest-path fleet/Cargo.toml --features dcpi-fleet/ballista";
    for line in [
        format!("cargo test {of} -p dcpi-fleet -p engine --lib --quiet"),
        format!("cargo build {of} -p dcpi-fleet"),
    ] {
        must(command(&line).env("CARGO_TARGET_DIR", TARGET))?;
    }
    let python = format!("{WORK}/venv/bin/python");
    if !Path::new(&python).exists() {
        must(&mut command(&format!("python3 -m venv {WORK}/venv")))?;
    }
    must(&mut command(&format!("{python} -m pip install --quiet -r {SCRIPTS}/requirements.txt")))?;
    let compared = succeeds(&mut command(&format!(
        "{python} {SCRIPTS}/engines.py --fleet {TARGET}/debug/dcpi-fleet --work {WORK}/store"
    )))?;
    Ok(if compared { Outcome::Clean } else { Outcome::Problems })
}
