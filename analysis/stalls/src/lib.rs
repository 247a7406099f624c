//! Why executions took their time: best cases on models of processors, and what may have stalled
//! each instruction beyond its best case.
//!
//! ```text
//! Work + Machine -> schedule -> BestCase
//! BestCase + Estimate + samples -> explain -> Explained (culprits, time breakdown)
//! ```
#![forbid(unsafe_code)]

mod arrivals;
pub mod best_case;
pub mod causes;
pub mod clock;
pub mod explain;
mod frequency;
mod in_order;
mod limits;
pub mod machine;
mod neighbours;
pub mod scale;
pub mod schedule;

pub use causes::{Cause, Suspect};
pub use explain::{Culprit, Explained, Explanation, ProfiledProcedure, TimeBreakdown, explain};
pub use frequency::estimate;
pub use machine::Machine;
pub use scale::{Scale, ScaleBasis};
pub use schedule::{BestCase, TraceContext, Wait};
