//! Instruments: what turns the kernel's raw samples into observations.
//!
//! [`sample_source`] is the interface to whatever samples: the kernel, a recording, or a test.
//! [`branch_edges`] makes edges and rounds of loops from snapshots of registers; [`call_stacks`]
//! has copies of stacks walked, and frames of CPython found; [`waits`] turns switches of threads
//! into times and reasons. Walks themselves happen in inspectors: this crate asks for them, and
//! says by [`walk_cost`] what they took. [`recording`] writes down the daemon's input.
//!
//! The crate decides no rate and writes no database; the pipeline does both. The kernel's side of
//! each instrument is in [`kernel`]. Begin with [`sample_source::SampleSource`].

#![forbid(unsafe_code)]

pub mod branch_edges;
pub mod call_stacks;
mod observed;
pub mod recording;
pub mod sample_source;
pub mod waits;
pub mod walk_cost;
