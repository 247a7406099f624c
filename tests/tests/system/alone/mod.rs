//! Tests that run when no other test does: see `main.rs`.

mod code_store;
#[cfg(feature = "consumers")]
mod consumers;
mod generated;
mod guide;
mod hostile;
mod hostile_files;
mod ledger;
mod reading;
mod service;
mod soak;
mod stalls;
mod storm;
