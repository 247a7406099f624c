//! Epochs of profiles on disk.
//!
//! Given: samples per (image, event) and, where asked for, scope of processes, what images and events they are of, and where every sample
//! went. Gives: a directory that any number of programs can read while one program per database
//! writes to it, byte by byte described in `FORMAT.md`. Does not know: kernels, counters,
//! instruction sets, the clock (time is an argument).
//!
//! Invariants:
//! - A reader sees each file whole, as of one merge: files are replaced, never changed.
//! - A merge that returns an error other than [`DbError::Unfinished`] has changed nothing.
//! - A process killed at any moment leaves a database that reads without error.
//! - Nothing in a file is believed before its checksum is; no allocation trusts a length from a file.
//!
//! Entry points: [`Writer`] and [`CodeStore`] for the daemon, [`Database`] for everybody else.
#![forbid(unsafe_code)]

pub mod codec;
pub mod columns;
pub mod envelope;
pub mod storage;

mod check;
mod code;
mod epoch;
mod error;
mod fold;
mod format;
mod format1;
mod images;
mod join;
mod key;
mod meta;
mod profile;
mod reader;
mod reasons;
mod recovery;
mod retention;
mod scope;
mod segment;
mod snapshot;
mod symbols;
mod transfer;
mod writer;

pub use check::{Fault, Lost, Problem, check, check_on};
pub use code::{CodeStore, Kept};
pub use epoch::EpochId;
pub use error::{Damage, DbError, NameFault, NameKind, Operation};
pub use fold::Folded;
pub use images::ImageRecord;
pub use key::{ProfileKey, event_name, is_event_name};
pub use meta::{EpochMeta, EpochStart, EventMeta, Ledger, Machine, PeriodChange};
pub use profile::{Edges, Profile};
pub use reader::{Database, Epoch};
pub use reasons::meaning;
pub use retention::{EpochSize, Retention};
pub use scope::{PROCESS_SCOPES_MAX, SCOPES_MAX, Scope, check_label, check_unit};
pub use symbols::Symbol;
pub use transfer::{Copied, copy_code, copy_epoch, copy_host, merge_epochs, seal};
pub use writer::{Delta, MergeReport, Writer};
