//! `bench walks`: the interpreter of sampled registers, held against what programs do (`code/tests/walks`), with what a walk costs; with
//! `--callgrind`, how well samples tell how often branches are taken.

use super::refuse_others;
use crate::process::{command, succeeds};
use crate::{Outcome, packages};

const STATES: &str = "1000000";
const STATES_QUICK: &str = "50000";
/// At random moments of each program: a hot image has so many in a few minutes.
const SAMPLES: &str = "20000";
const SAMPLES_QUICK: &str = "2000";

pub fn run(arguments: &[&str]) -> anyhow::Result<Outcome> {
    refuse_others("walks", arguments, &["--quick", "--callgrind"], &[])?;
    packages::ensure(packages::COMPILER.iter().chain(&packages::WALKED))?;
    let quick = arguments.contains(&"--quick");
    let mut tests = vec!["walks_go_where_many_programs_go"];
    if arguments.contains(&"--callgrind") {
        packages::ensure(&packages::CALLGRIND)?;
        tests.push("samples_tell_how_often_branches_are_taken");
    }
    let mut clean = true;
    for test in tests {
        let mut cargo = command("cargo test --release --package code --test walks -- --ignored --nocapture");
        cargo.arg(test);
        cargo.env("WALKS_STATES", if quick { STATES_QUICK } else { STATES });
        cargo.env("WALKS_SAMPLES", if quick { SAMPLES_QUICK } else { SAMPLES });
        clean &= succeeds(&mut cargo)?;
    }
    Ok(if clean { Outcome::Clean } else { Outcome::Problems })
}
