//! Statistics of repeated measurements, and corrections for the perturbation by measuring. Pure: no
//! clock, no file, no process.
//!
//! - [`bernoulli`]: times below the step of the clock; Wilson's interval of a share
//! - [`breaks`]: plateaus of a curve
//! - [`doubling`]: repetitions until a loop can be timed
//! - [`humps`]: times of short pieces with two humps, which a busy sibling thread makes
//! - [`kbest`]: the lecture's K-best
//! - [`layouts`]: whether a program is faster than another, over layouts of their code
//! - [`models`]: times of a traced program without its events
//! - [`perturbation`]: whether an observer changed how metrics move together
//! - [`rank`]: rank correlation
//! - [`tails`]: the distributions that tests need
//! - [`warmup`]: first runs that are slower than the others
//! - [`warp`]: two runs side by side, by dynamic time warping
#![forbid(unsafe_code)]

pub mod bernoulli;
pub mod breaks;
pub mod doubling;
pub mod humps;
mod interval;
pub mod kbest;
pub mod layouts;
pub mod models;
pub mod perturbation;
pub mod rank;
pub mod tails;
pub mod warmup;
pub mod warp;

pub use interval::Interval;
