//! From drained entries to merges: the one loop of the daemon.
//!
//! ```text
//! kernel ──drain──> Entry ──resolve──> (image, offset) ──count──> Pending ──merge──> epoch on disk
//!   └──────records──> Mappings ───────────┘
//! ```
//!
//! [`main_loop`] owns all state and is the only place where things happen in turn: timers
//! ([`ticks`]), requests, signals, answers of the disk. [`drain`] is one drain: it takes the
//! counts, applies the records in order of time, and has [`resolve`] attribute every sample to its
//! image or to a reason. [`governor`], [`rates`] and [`restraint`] decide how much is sampled;
//! [`image_allowance`] limits what one user brings. [`status_parts`] and [`status_text`] are the
//! status as data and as text, [`watches`] the counts for `dcpi top`.
//!
//! The crate opens no socket and no file of its own, and takes its samples from any
//! [`SampleSource`](sampling::sample_source::SampleSource), so tests and replays run it without
//! privilege. Begin with [`main_loop`]: its `enum Event` is the closed list of what can happen.

#![forbid(unsafe_code)]

#[cfg(test)]
mod batches;
pub mod cpu_ledger;
pub mod drain;
pub mod epoch_clock;
pub mod governor;
pub mod image_allowance;
mod late;
pub mod main_loop;
pub mod rates;
pub mod resolve;
mod resolve_late;
mod resolve_stacks;
pub mod restraint;
pub mod status_parts;
pub mod status_text;
pub mod ticks;
pub mod watches;
