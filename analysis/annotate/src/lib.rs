//! How often each block of a procedure ran, what an execution cost and what may have stalled it:
//! the models of `code`, `estimate` and `stalls` on what a database holds.
#![forbid(unsafe_code)]

mod counters;
pub mod evidence;
pub mod excerpts;
pub mod explained;
pub mod graphs;
pub mod listing;
mod observed;
pub mod rates;
pub mod surveys;
