//! Measures a processor by code whose instructions are known: the resolution of its clock, the cost
//! of events, sizes and latencies of caches and TLBs, and the cost of a misprediction.
//!
//! ```text
//! kernels (assembly) + Region (memory) -> pieces of some 0.1 ms, spread over seconds -> Machine
//! ```
//!
//! The only rooms with unsafe code are [`counter`], [`kernels`] and [`region`]; [`calibrate`] has
//! procedures in assembly. Everything is for x86-64 and for arm64.
#![allow(unsafe_code, reason = "instructions that are timed")]

pub mod calibrate;
pub mod clock;
pub mod counter;
pub mod events;
pub mod kernels;
pub mod ladder;
pub mod levels;
pub mod machine;
pub mod memory;
pub mod mountain;
pub mod pieces;
pub mod region;
pub mod stated;
pub mod switches;
