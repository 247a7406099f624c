//! Instruments: the interface to sources of samples, the cost of a sample, edges
//! from snapshots of registers, call stacks,
//! and waits. The kernel's side is in [`crate::kernel`].

pub mod branch_edges;
pub mod call_stacks;
pub mod quiet_windows;
pub mod sample_source;
pub mod waits;
