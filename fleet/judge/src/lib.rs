//! Decides how much of a difference between builds, or between weeks, is due to chance; pure.
//!
//! - [`paired`]: procedures of two builds, or of two weeks, paired by host
//! - [`discoveries`]: which of many probabilities are more than chance, over all services at once
//! - [`one_sided`]: procedures that are new, or gone
//! - [`moved`]: cost that went from procedures to others of their image, and is no regression
//! - [`cores`]: whether a build cost cores
//! - [`fellows`]: hosts unlike those that run the same service
//! - [`Finding`]: the promised and the actual saving of a finding
//!
//! Sums come from elsewhere (SQL), so a number here may be anything. What is not finite, negative
//! where it cannot be, or of too few hosts is not judged, and says so; it is never marked.
#![forbid(unsafe_code)]

mod chance;
pub mod cores;
mod discoveries;
pub mod fellows;
mod findings;
pub mod moved;
mod pairs;
mod sided;
mod typical;

pub use discoveries::{Discoveries, LEVEL, discoveries};
pub use findings::{Finding, Outcome};
pub use pairs::{Group, Judged, Rule, SAMPLES_ENOUGH, Sums, Untested, mark, paired, weight};
pub use sided::{Side, Sided, one_sided};
pub use typical::{Measured, Typical};
