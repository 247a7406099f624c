//! Instruments: the interface to sources of samples, the events, the cost of a sample, and edges
//! from snapshots of registers. The kernel's side is in [`crate::kernel`].

pub mod branch_edges;
pub mod events;
pub mod quiet_windows;
pub mod sample_source;
