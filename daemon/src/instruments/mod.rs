//! What takes measurements: the seam to the source of samples, the events, what a sample costs, and
//! the branches that snapshots of registers show. The kernel's side is in [`crate::kernel`].

pub mod branch_edges;
pub mod events;
pub mod quiet_windows;
pub mod sample_source;
