//! `bench perturb`: how observers change programs, a table for each subcommand.

use super::load::Load;
use super::{count, perturb_loops, perturb_observers, perturb_uprobes};
use crate::Outcome;
use anyhow::bail;

type Table = fn(&[&str]) -> anyhow::Result<Outcome>;

const TABLES: [(&str, Table); 3] = [
    ("loops", perturb_loops::run),
    ("observers", perturb_observers::run),
    ("uprobes", perturb_uprobes::run),
];

/// Prints the table that is asked for.
pub fn run(arguments: &[&str]) -> anyhow::Result<Outcome> {
    let asked = arguments.split_first();
    let known = asked.and_then(|(asked, rest)| {
        let (_, table) = TABLES.iter().find(|(name, _)| name == asked)?;
        Some((table, rest))
    });
    let Some((table, rest)) = known else {
        let names = TABLES.map(|(name, _)| name).join(", ");
        bail!("bench perturb takes one of {names}; `cargo xtask` lists their options");
    };
    // The load runs while the programs are built, too: builds are not measured.
    let Some(at) = rest.iter().position(|word| *word == LOAD) else { return table(rest) };
    let _load = Load::start(count(rest, LOAD, 0)?)?;
    let others = rest.iter().enumerate().filter(|(number, _)| !(at..at + 2).contains(number));
    table(&others.map(|(_, word)| *word).collect::<Vec<_>>())
}

/// Option: number of busy loops that run during the measurement.
const LOAD: &str = "--load";
