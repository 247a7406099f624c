//! Statistics of measurements: what repeated times of a program tell, and what measuring itself did
//! to them. Pure: no clock, no file, no process.
//!
//! - [`models`]: times of a traced program without its events
//! - [`tails`]: the distributions that tests need
#![forbid(unsafe_code)]

pub mod models;
pub mod tails;
