//! Why instructions took their time.
//!
//! ```text
//! Work of instructions + Machine -> schedule -> best case; + Estimate + samples -> explain -> stalls and what may have caused them
//! ```
#![forbid(unsafe_code)]

pub mod best;
pub mod causes;
pub mod explain;
pub mod machine;
pub mod scale;
pub mod schedule;

pub use causes::{Cause, Suspect};
pub use explain::{Culprit, Explained, Explanation, Sums, Timed, explain, measure};
pub use machine::{Cpuid, Machine};
pub use scale::Scale;
pub use schedule::{Course, Slot, Wait};
