//! Why code takes its time: the cycles that each mechanism would cost, by the evidence, are
//! compared with the cycles that were measured.
//!
//! ```text
//! Region + Hardware -> candidates -> judge -> Verdict
//! ```
//!
//! A mechanism is said only with positive evidence; elimination alone decides nothing. The
//! probabilities are set by hand from programs whose cause is known (`tests/why`), so that of
//! what is said with a probability that share is true.
#![forbid(unsafe_code)]

mod candidates;
mod counted;
mod hardware;
mod judge;
mod mechanism;
mod modelled;
mod names;
mod region;
mod rivals;

pub use counted::{Counted, Counter};
pub use hardware::{Hardware, Level};
pub use judge::{SAMPLES_MIN, Verdict, judge};
pub use mechanism::{Certainty, Class, Mechanism};
pub use names::{Entry, interprets, of_kernel, of_runtime};
pub use region::{Instruction, Kind, Modelled, Region, Sketch};

/// What a verdict rests on.
#[derive(Clone, Debug, PartialEq)]
pub struct Evidence {
    /// What it is of: `time`, `limit`, `addresses`, `branches`, `code`, `counters`, `samples`,
    /// or [`Self::PAGES`].
    pub kind: &'static str,
    /// In words.
    pub text: String,
    /// The number in them.
    pub value: Option<f64>,
    /// Its unit.
    pub unit: Option<&'static str>,
}

impl Evidence {
    /// The kind that tells the share of accesses to huge pages.
    pub const PAGES: &'static str = "pages";

    /// Evidence with a number.
    pub fn of(kind: &'static str, text: String, value: f64, unit: &'static str) -> Self {
        Self { kind, text, value: Some(value), unit: Some(unit) }
    }
}
