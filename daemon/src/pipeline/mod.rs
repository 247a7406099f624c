//! From drained entries to merges: the one loop, the drain, resolution, pending counts, the ledger
//! of every sample, and the decisions about rates.

pub mod drain;
pub mod governor;
pub mod image_allowance;
pub mod ledger;
pub mod main_loop;
pub mod pending;
pub mod rates;
pub mod resolve;
mod resolve_stacks;
pub mod restraint;
pub mod ticks;
