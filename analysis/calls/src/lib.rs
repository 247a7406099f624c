//! Call stacks as calls between procedures: who called a procedure, what it called, and how much
//! time a procedure took with all that it called.
//!
//! ```text
//! model::Stacks -> Contexts -> Timed -> inclusive | callers, callees | Tree
//! ```
//!
//! Stacks are some hundred a second; samples are thousands. So where an event has samples, the time
//! of a procedure itself is that of its samples, and stacks only say how this time is divided among
//! its callers: `inclusive(Q)` is the sum over procedures `P` of `time(P)` times the share of `P`'s
//! stacks through `Q`. Where an event has stacks only (time off the CPU), their weights are the
//! time.
#![forbid(unsafe_code)]

mod by_calls;
mod contexts;
mod inlined;
mod lent;
mod load;
mod neighbours;
mod subjects;
mod timed;
mod tree;
mod usertime;

pub use by_calls::ByCalls;
pub use contexts::{Contexts, Entry, NodeId, SubjectId};
pub use inlined::Spot;
pub use lent::Group;
pub use load::{Calls, EventCalls, Roots, load};
pub use neighbours::{Neighbour, callees, callers};
pub use query::load::USERTIME;
pub use subjects::{ImageRow, Subject, Subjects};
pub use timed::{Estimate, Timed};
pub use tree::{Direction, Shape, Tree, TreeNode};
pub use usertime::{FrameOf, USERTIME_SAMPLE_NS};
