//! `bench walks`: compares walks from sampled registers with the execution of programs
//! (`binary/code/tests/walks`), and times them; with `--arm`, of 64-bit Arm with what an emulated
//! processor does; with `--callgrind`, compares branch probabilities
//! from samples with exact ones.

use super::{branches, refuse_others};
use crate::process::{command, succeeds};
use crate::{Outcome, packages};

const STATES: &str = "1000000";
const STATES_QUICK: &str = "50000";
/// Samples per program, as many as a hot image gets in a few minutes.
const SNAPSHOTS: u64 = 100_000;
const SNAPSHOTS_QUICK: u64 = 5_000;

pub fn run(arguments: &[&str]) -> anyhow::Result<Outcome> {
    refuse_others("walks", arguments, &["--quick", "--callgrind", "--arm"], &[])?;
    packages::ensure(packages::COMPILER.iter().chain(&packages::WALKED))?;
    let quick = arguments.contains(&"--quick");
    let clean = if arguments.contains(&"--callgrind") {
        branches::run(if quick { SNAPSHOTS_QUICK } else { SNAPSHOTS })?
    } else {
        let is_arm = arguments.contains(&"--arm");
        if is_arm {
            packages::ensure(&packages::ARM)?;
        }
        let mut cargo =
            command("cargo test --release --package code --test walks -- --ignored --nocapture");
        cargo
            .arg(if is_arm {
                "walks_go_where_programs_go_on_arm"
            } else {
                "walks_go_where_many_programs_go"
            })
            .env("WALKS_STATES", if quick { STATES_QUICK } else { STATES });
        succeeds(&mut cargo)?
    };
    Ok(if clean { Outcome::Clean } else { Outcome::Problems })
}
