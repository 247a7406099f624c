//! Reads profile databases and says where the time went: the `dcpi` program.
//!
//! ```text
//! arguments -> select -> load -> procedures -> report -> text, JSON or CSV
//! ```
//!
//! Given: a database that the daemon writes, and the executables its samples are of. Gives: reports,
//! as plain data ([`report`]) and rendered. Never writes to the database, and needs no privilege
//! beyond reading it and the images.
//!
//! Invariants:
//! - Every share is of a stated number of samples and carries its confidence interval.
//! - No sample of the selection is silently left out: what has no name is a row of its own, what is
//!   in no profile is told by reason, what could not be read is a [`Problem`].
#![forbid(unsafe_code)]

pub mod args;
pub mod by_line;
pub mod commands;
pub mod debuginfod;
pub mod destination;
pub mod excerpts;
pub mod export;
pub mod graphs;
mod in_order;
pub mod listing;
pub mod load;
pub mod named;
pub mod procedures;
pub mod progress;
pub mod report;
pub mod scope;
pub mod select;
pub mod sets;
pub mod signals;
pub mod sources;
pub mod stats;
pub mod suggestion;
pub mod tally;
pub mod terminal;
pub mod unresolved;

mod error;
mod explained;
mod problem;

pub use error::AnalysisError;
pub use problem::{NoCode, NoProcedures, Problem};
