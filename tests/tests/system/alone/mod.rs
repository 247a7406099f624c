//! Tests that run when no other test does: see `main.rs`.

mod code_store;
#[cfg(feature = "consumers")]
mod consumers;
mod hostile_files;
mod hostile_numbers;
mod ledger;
mod loops;
mod lost;
mod reading;
mod service;
mod soak;
mod stalls;
mod storm;
mod usertime;
mod waits;
mod why;
