//! From a database to sums over the selected epochs, for any program that asks: no command line, no
//! terminal.
//!
//! ```text
//! Question -> select -> open -> load -> Samples
//! ```
//!
//! A [`load::Question`] names the database, the epochs, the events, the images and whose samples;
//! [`load::Question::samples`] gives their sums by image, event and place, with what they stand
//! for. The crate `names` gives procedures and lines, `explain` executions and causes.
//!
//! Invariants:
//! - Every sum knows its weight: samples of several periods are added as occurrences.
//! - No sample of the selection is silently left out: code without a name has a row of its own,
//!   samples in no profile are counted by reason, and unreadable data is reported as a
//!   [`problem::Problem`].
#![forbid(unsafe_code)]

/// The default database.
pub const DEFAULT_DB: &str = "/var/lib/dcpi";

pub mod error;
pub mod load;
pub mod problem;
pub mod progress;
pub mod scope;
pub mod seen;
pub mod select;
pub mod stacks;
pub mod timeline;
pub mod times;
pub mod unresolved;
pub mod zone;

pub use error::AnalysisError;
pub use load::{Question, Samples};
pub use problem::{NoCode, NoProcedures, Problem};
