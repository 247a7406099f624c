//! The database as its users see it: properties, a model, faults, damage, and writers that die.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that meets the unexpected is to fail"
)]

mod code;
mod copied;
mod corruption;
mod faults;
mod fixture;
mod fuzz;
mod histories;
mod killed;
mod measures;
mod properties;
mod sent;
mod simulated;
mod slices;
mod transfer;
mod writing;
