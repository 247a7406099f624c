//! Reads profile databases and says where the time went: the `dcpi` program.
//!
//! ```text
//! arguments -> select -> load -> procedures -> report -> text, JSON or CSV
//! ```
//!
//! Given: a database that the daemon writes, and the executables its samples are of. Gives:
//! reports, as plain data ([`report`]) and rendered. Never writes to the database, and needs no
//! privilege beyond reading it and the images.
//!
//! Invariants:
//! - Every share is of a stated number of samples and carries its confidence interval.
//! - No sample of the selection is silently left out: code without a name has a row of its own,
//!   samples in no profile are counted by reason, and unreadable data is reported as a
//!   [`query::Problem`].
#![forbid(unsafe_code)]

pub mod command_line;
mod commands;
pub mod completions;
mod destination;
mod options;
mod plain_file;
mod signals;
pub mod suggestion;
pub mod terminal;

pub use commands::{Outcome, page_of_fields, schemas};
