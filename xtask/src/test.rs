//! Every test. Privileged ones are marked `#[ignore]` and live in the `tests` package: they run
//! when root, and never skip themselves.

use crate::Outcome;
use crate::process::{command, is_root, must, output, succeeds};
use crate::{container, hook, package, packages};
use anyhow::bail;

/// Tests that boot a container with the package in it.
const SERVICE: &str = "service";

/// Runs them; `FILTER` is a part of their names.
pub fn run(arguments: &[&str]) -> anyhow::Result<Outcome> {
    let (unprivileged, filter) = match arguments {
        [] => (false, ""),
        ["--unprivileged"] => (true, ""),
        ["--unprivileged", filter] | [filter, "--unprivileged"] => (true, *filter),
        [filter] if !filter.starts_with('-') => (false, *filter),
        other => bail!("test takes [--unprivileged] [FILTER], not '{}'", other.join(" ")),
    };
    packages::ensure(packages::COMPILER.iter().chain(&packages::TEST_TOOLS))?;
    let privileged = is_root() && !unprivileged;
    println!("building the programs that the whole-system tests start");
    must(&mut command("cargo build --workspace --bins"))?;
    hook::build()?;
    if privileged && (SERVICE.contains(filter) || filter.contains(SERVICE)) {
        packages::ensure(&packages::PACKAGERS)?;
        container::ensure()?;
        package::assemble(package::Profile::Dev)?;
    }
    let nextest = output(&mut command("cargo nextest --version")).is_ok();
    let passed =
        if nextest { with_nextest(privileged, filter)? } else { with_cargo(privileged, filter)? };
    if !passed {
        println!("tests FAILED; the output above names them");
        return Ok(Outcome::Problems);
    }
    if privileged {
        return Ok(Outcome::Clean);
    }
    println!("\nnot run, because they need root:\n{}", not_run(nextest)?);
    if unprivileged {
        return Ok(Outcome::Clean);
    }
    println!(
        "run `sudo -E env PATH=\"$PATH\" cargo xtask test`, or say --unprivileged to do without them"
    );
    Ok(Outcome::Problems)
}

fn with_nextest(privileged: bool, filter: &str) -> anyhow::Result<bool> {
    // A filter may leave nothing of a kind.
    let none = if filter.is_empty() { "" } else { "--no-tests pass" };
    println!("tests without privilege: cargo nextest");
    let tests = succeeds(&mut command(&format!(
        "cargo nextest run --workspace --no-fail-fast {none} {filter}"
    )))?;
    let docs = succeeds(&mut command(&format!("cargo test --workspace --doc --quiet {filter}")))?;
    if !privileged {
        return Ok(tests && docs);
    }
    println!("tests that need root: cargo nextest, one at a time");
    let run = format!(
        "cargo nextest run --package tests --run-ignored only --no-fail-fast {none} {filter}"
    );
    Ok(succeeds(&mut command(&run))? && tests && docs)
}

fn with_cargo(privileged: bool, filter: &str) -> anyhow::Result<bool> {
    println!("tests: cargo test (cargo-nextest is not installed)");
    let others = succeeds(&mut command(&format!(
        "cargo test --workspace --exclude tests --no-fail-fast {filter}"
    )))?;
    // One at a time: each starts a daemon that samples the whole machine.
    let ignored = if privileged { "--include-ignored" } else { "" };
    let system = succeeds(&mut command(&format!(
        "cargo test --package tests --no-fail-fast {filter} -- --test-threads=1 {ignored}"
    )))?;
    Ok(others && system)
}

fn not_run(nextest: bool) -> anyhow::Result<String> {
    let list = if nextest {
        "cargo nextest list --package tests --run-ignored only"
    } else {
        "cargo test --package tests -- --ignored --list"
    };
    Ok(output(&mut command(list))?.trim_end().to_owned())
}
