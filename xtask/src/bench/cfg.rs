//! `bench cfg`: control-flow graphs of every procedure that is installed, checked against
//! compilers' listings and the executions that callgrind and qemu saw (`binary/code/tests/graphs`).
//! With PATHs, of the files there alone.

use super::{parted, refuse_others};
use crate::process::{command, output, succeeds};
use crate::{Outcome, packages};

/// The files that `--quick` examines: a library, an interpreter, a database, libraries for Arm, a
/// compiler.
const FEW: [&str; 5] = [
    "/lib/x86_64-linux-gnu/libc.so.6",
    "/usr/bin/python3",
    "/usr/lib/x86_64-linux-gnu/libsqlite3.so.0",
    "/usr/aarch64-linux-gnu/lib/libc.so.6",
    "/usr/aarch64-linux-gnu/lib/libstdc++.so.6",
];
/// Directories that are examined without `--quick`.
const ALL: &str = "/usr/bin:/usr/lib:/usr/aarch64-linux-gnu/lib";

pub fn run(arguments: &[&str]) -> anyhow::Result<Outcome> {
    let (paths, arguments) = parted(arguments);
    refuse_others("cfg", &arguments, &["--quick", "--json"], &[])?;
    packages::ensure(
        packages::COMPILER
            .iter()
            .chain(&packages::WALKED)
            .chain(&packages::CALLGRIND)
            .chain(&packages::CLANG)
            .chain(&packages::ARM),
    )?;
    let mut tests = vec!["everything_that_is_installed"];
    if !arguments.contains(&"--json") && paths.is_empty() {
        tests.extend(["what_cc_builds_is_understood", "what_clang_builds_is_understood"]);
        tests.extend([
            "what_gcc_builds_for_arm_is_understood",
            "what_clang_builds_for_arm_is_understood",
        ]);
        if !arguments.contains(&"--quick") {
            tests.extend([
                "every_jump_that_is_executed_is_an_edge",
                "every_jump_that_is_executed_on_arm_is_an_edge",
            ]);
        }
    }
    let mut clean = true;
    for test in tests {
        let mut cargo = command(
            "cargo test --quiet --release --package code --test graphs -- --include-ignored --nocapture",
        );
        cargo.arg(test);
        if !paths.is_empty() {
            cargo.env("GRAPHS_OF", paths.join(":"));
        } else if arguments.contains(&"--quick") {
            let compiler = output(&mut command("gcc -print-prog-name=cc1"))?;
            cargo.env("GRAPHS_OF", format!("{}:{}", FEW.join(":"), compiler.trim()));
        } else {
            cargo.env("GRAPHS_OF", ALL);
        }
        if arguments.contains(&"--json") {
            cargo.env("GRAPHS_JSON", "1");
        }
        clean &= succeeds(&mut cargo)?;
    }
    Ok(if clean { Outcome::Clean } else { Outcome::Problems })
}
