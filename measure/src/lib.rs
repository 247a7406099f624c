//! Statistics of measurements: what repeated times of a program tell, and what measuring itself did
//! to them. Pure: no clock, no file, no process.
//!
//! - [`models`]: times of a traced program without its events
//! - [`perturbation`]: whether an observer changed how metrics move together
//! - [`rank`]: rank correlation
//! - [`tails`]: the distributions that tests need
//! - [`warp`]: two runs side by side, by dynamic time warping
#![forbid(unsafe_code)]

pub mod models;
pub mod perturbation;
pub mod rank;
pub mod tails;
pub mod warp;
