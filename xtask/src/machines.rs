//! `machines`: the tables of processors that `stalls` schedules on, made again from LLVM's models.

use crate::process::{command, succeeds};
use crate::{Outcome, packages};

pub fn run() -> anyhow::Result<Outcome> {
    packages::ensure(&packages::MACHINE_MODELS)?;
    let mut cargo =
        command("cargo run --quiet --release --package stalls --example machines -- llvm-mca-22");
    Ok(if succeeds(&mut cargo)? { Outcome::Clean } else { Outcome::Problems })
}
