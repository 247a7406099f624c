//! Whole-system tests: the real programs, beside real workloads, judged by what they print. One
//! binary, because each one more costs a compilation and a link.
//!
//! Tests that are `#[ignore]`d need root: `cargo xtask test` runs them, and without root they
//! fail. Several run at once, as several daemons may sample one machine. Tests below a module
//! `alone` run when no other test does: they change a setting of the machine, hold samples against
//! seconds so narrowly that a neighbour's load would be seen, or wait for dcpid's threads of the
//! lowest priority (`.config/nextest.toml`).
#![allow(
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "what tests print is shown when they fail"
)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests panic to fail"
)]

mod abuse;
mod alone;
mod attached;
#[cfg(target_arch = "x86_64")]
mod attributes;
mod cli;
mod database;
#[cfg(target_arch = "x86_64")]
mod dotnet;
mod edges;
#[cfg(target_arch = "x86_64")]
mod erlang;
mod exceptions;
mod generated;
#[cfg(target_arch = "x86_64")]
mod goroutines;
mod guide;
mod hostile;
mod interpreted;
mod java;
mod listing;
mod lists;
mod live;
mod loader;
mod mappings;
mod multiplexed;
mod operation;
mod perturbed;
mod privileged;
mod privileged_apart;
mod python;
mod screens;
mod stacks;
mod timed;
mod traces;
mod v8;
mod walked;
