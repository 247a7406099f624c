//! Makes the recordings that `daemon/dcpid/tests/attribution.rs` replays:
//! `tests/examples/record.rs` says what runs in each.

use crate::Outcome;
use crate::packages;
use crate::process::{command, is_root, must};
use anyhow::bail;

/// Makes those of these names, or all.
pub fn run(names: &[&str]) -> anyhow::Result<Outcome> {
    if !is_root() {
        bail!(
            "recording samples the whole machine, and that needs root; run: sudo -E env PATH=\"$PATH\" cargo xtask record"
        );
    }
    packages::ensure(packages::COMPILER.iter().chain(&packages::TEST_TOOLS))?;
    // Of the whole workspace, as the tests are built: a build of one package has fewer features.
    must(&mut command("cargo build --workspace --bins --example record"))?;
    must(command("target/debug/examples/record").args(names))?;
    Ok(Outcome::Clean)
}
