//! Why instructions took their time.
//!
//! ```text
//! Work of instructions + Machine -> schedule -> best case
//! best case + Estimate + samples -> explain -> stalls and what may have caused them
//! ```
#![forbid(unsafe_code)]

mod arrivals;
pub mod best;
pub mod causes;
pub mod explain;
mod in_order;
pub mod machine;
mod pace;
pub mod scale;
pub mod schedule;

pub use causes::{Cause, Suspect};
pub use explain::{Culprit, Explained, Explanation, Sums, Timed, explain};
pub use machine::Machine;
pub use pace::estimate;
pub use scale::{By, Scale, Steady};
pub use schedule::{Course, Slot, Wait};
