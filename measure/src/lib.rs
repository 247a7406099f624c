//! Statistics of measurements: what repeated times of a program tell, and what measuring itself did
//! to them. Pure: no clock, no file, no process.
//!
//! - [`breaks`]: plateaus of a curve, medians, quantiles
//! - [`tails`]: the distributions that tests need
#![forbid(unsafe_code)]

pub mod breaks;
pub mod tails;
