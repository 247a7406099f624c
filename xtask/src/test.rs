//! Every test. Privileged ones are marked `#[ignore]` and live in the `tests` package: they run
//! when root, and never skip themselves.

use crate::Outcome;
use crate::process::{command, is_root, must, output, succeeds};
use crate::{blockcount, blocks, container, dotnet, hook, package, packages};
use anyhow::bail;

/// Tests that boot a container with the package in it.
const SERVICE: &str = "service";

/// Environment variables of tests that repeat something, and how often or for how many seconds they
/// do it with `--all`. Without, a gate of minutes has a part of it.
const LONG: [(&str, &str); 7] = [
    ("DCPI_TEST_CHURN_S", "58"),
    ("DCPI_SOAK_S", "600"),
    ("DCPI_TEST_KILLS", "100"),
    ("PROFILEDB_TEST_KILLED_ROUNDS", "200"),
    ("PROFILEDB_FUZZ_S", "180"),
    ("IMAGE_FUZZ_S", "180"),
    ("WALKS_FUZZ", "10000000"),
];

/// Privileged tests that run at once. Most of a test is one workload of some seconds of CPU time:
/// one for each CPU of a small machine, and one that starts or ends a daemon. With four, daemons'
/// threads of the lowest priority were late on two CPUs.
const PRIVILEGED_AT_ONCE: usize = 3;

/// The commands to run.
#[derive(Clone, Copy)]
struct Choice<'a> {
    privileged: bool,
    /// The long suite.
    all: bool,
    /// A part of the tests' names.
    filter: &'a str,
}

/// Runs them; `FILTER` is a part of their names.
pub fn run(arguments: &[&str]) -> anyhow::Result<Outcome> {
    let flags = ["--unprivileged", "--all"];
    let has = |flag: &str| arguments.contains(&flag);
    let others: Vec<&str> =
        arguments.iter().copied().filter(|argument| !flags.contains(argument)).collect();
    let filter = match others.as_slice() {
        [] => "",
        [filter] if !filter.starts_with('-') => filter,
        _ => bail!("test takes [--unprivileged] [--all] [FILTER], not '{}'", arguments.join(" ")),
    };
    let unprivileged = has("--unprivileged");
    packages::ensure(packages::COMPILER.iter().chain(&packages::TEST_TOOLS))?;
    let choice = Choice { privileged: is_root() && !unprivileged, all: has("--all"), filter };
    println!("building the programs and the tests");
    must(&mut command("cargo build --workspace --bins --tests"))?;
    hook::build()?;
    blockcount::build()?;
    blocks::build()?;
    if choice.privileged && cfg!(target_arch = "x86_64") {
        dotnet::ensure()?;
    }
    if choice.privileged && (SERVICE.contains(filter) || filter.contains(SERVICE)) {
        packages::ensure(&packages::PACKAGERS)?;
        container::ensure()?;
        package::assemble(package::Profile::Dev)?;
    }
    let nextest = output(&mut command("cargo nextest --version")).is_ok();
    if choice.all && !nextest {
        bail!("test --all needs cargo-nextest; install it: cargo install cargo-nextest");
    }
    let passed = if nextest { with_nextest(choice)? } else { with_cargo(choice)? };
    if !passed {
        println!("tests FAILED; the output above names them");
        return Ok(Outcome::Problems);
    }
    if choice.privileged {
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

fn with_nextest(Choice { privileged, all, filter }: Choice<'_>) -> anyhow::Result<bool> {
    // A filter may leave nothing of a kind.
    let none = if filter.is_empty() { "" } else { "--no-tests pass" };
    let profile = if all { "--profile all" } else { "" };
    // Always of the whole workspace: with `--package`, Cargo would build what several packages
    // depend on again, with fewer features.
    let run = |which: &str| {
        let words =
            format!("cargo nextest run --workspace {profile} --no-fail-fast {none} {which}");
        succeeds(command(&words).envs(LONG.into_iter().filter(|_| all)))
    };
    println!("tests without privilege: cargo nextest");
    let mut passed = run(filter)?;
    passed &= succeeds(&mut command(&format!("cargo test --workspace --doc --quiet {filter}")))?;
    if all {
        println!("fuzzers of files and databases, minutes each: cargo nextest");
        passed &= run("--run-ignored only -E test(fuzz_for_long)")?;
    }
    if !privileged {
        return Ok(passed);
    }
    println!("tests that need root: cargo nextest, {PRIVILEGED_AT_ONCE} at once");
    let these = "-E package(tests) --run-ignored only";
    passed &= run(&format!("{these} --test-threads {PRIVILEGED_AT_ONCE} {filter}"))?;
    Ok(passed)
}

fn with_cargo(Choice { privileged, filter, .. }: Choice<'_>) -> anyhow::Result<bool> {
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
        "cargo nextest list --workspace -E package(tests) --run-ignored only"
    } else {
        "cargo test --package tests -- --ignored --list"
    };
    Ok(output(&mut command(list))?.trim_end().to_owned())
}
