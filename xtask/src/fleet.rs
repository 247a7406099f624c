//! `cargo xtask fleet`: the programs of the fleet, which are a workspace of their own: format,
//! lints, tests, and as root the whole chain from dcpid on six hosts to a compiler.
//! `cargo xtask fleet engines`: the shipped SQL on four engines.

use crate::process::{command, is_root, must, output, succeeds};
use crate::{Outcome, packages};
use std::path::Path;

/// Where its programs are built.
const TARGET: &str = "target/fleet";
/// Where the host's programs are built.
const PROGRAMS: &str = "target/debug";
/// What its programs are made of, and how they are checked.
const PARTS: [&str; 11] = [
    "fleet",
    "profiledb",
    "analysis/draw",
    "face",
    "binary/image",
    "analysis/names",
    "analysis/stats",
    "analysis/report/src/csv.rs",
    "analysis/report/src/escape.rs",
    "xtask/src/fleet.rs",
    "xtask/src/packages.rs",
];
/// The parts that passed last: written by a check as root, committed with them.
const PASSED: &str = "xtask/fleet.passed";

/// Checks the workspace `fleet`.
pub fn run() -> anyhow::Result<Outcome> {
    packages::ensure(packages::COMPILER.iter().chain(&packages::FLEET_TOOLS))?;
    let of = "--manifest-path fleet/Cargo.toml";
    // Under `cargo xtask ci` clippy's driver compiles what is tested.
    let is_linted = crate::ci::is_linting();
    let clippy = format!("cargo clippy {of} --workspace --all-targets --quiet -- -D warnings");
    for line in [
        Some(format!("cargo fmt {of} --all --check")),
        Some(clippy).filter(|_| !is_linted),
        Some(format!("cargo test {of} --workspace --quiet")),
    ]
    .into_iter()
    .flatten()
    {
        if !succeeds(command(&line).env("CARGO_TARGET_DIR", TARGET))? {
            return Ok(Outcome::Problems);
        }
    }
    if !is_root() {
        println!("not root: the tests of a full disk and of hosts in containers did not run");
        return Ok(Outcome::Clean);
    }
    packages::ensure(&packages::CHAIN)?;
    // As the tests of the main workspace build them, so that nothing is built twice.
    if !succeeds(&mut command("cargo build --workspace --bins --quiet"))? {
        return Ok(Outcome::Problems);
    }
    let mut ignored = command(&format!("cargo test {of} --workspace --tests -- --ignored"));
    ignored.env("CARGO_TARGET_DIR", TARGET);
    ignored.env("DCPI_PROGRAMS", std::env::current_dir()?.join(PROGRAMS));
    if !succeeds(&mut ignored)? {
        return Ok(Outcome::Problems);
    }
    if let Some(parts) = parts()? {
        std::fs::write(PASSED, parts)?;
        println!("{PASSED} is written: once committed, the gate leaves the fleet out");
    }
    Ok(Outcome::Clean)
}

/// Checks the workspace, unless these very parts passed before. Its SQL engine takes minutes to
/// build.
pub fn run_if_changed() -> anyhow::Result<Outcome> {
    let passed = std::fs::read_to_string(PASSED).unwrap_or_default();
    if parts()?.is_some_and(|parts| parts == passed) {
        println!("the fleet's sources and the compiler are those that passed: see {PASSED}");
        return Ok(Outcome::Clean);
    }
    run()
}

/// The compiler, and Git's hash of each part; none while a part differs from the commit.
fn parts() -> anyhow::Result<Option<String>> {
    let parts = PARTS.join(" ");
    if !output(&mut command(&format!("git status --porcelain -- {parts}")))?.is_empty() {
        return Ok(None);
    }
    let mut lines = output(&mut command("rustc --version"))?;
    for part in PARTS {
        let hash = output(&mut command(&format!("git rev-parse HEAD:{part}")))?;
        lines += &format!("{} {part}\n", hash.trim_end());
    }
    Ok(Some(lines))
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
