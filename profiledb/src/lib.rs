//! Epochs of profiles on disk.
//!
//! Input: samples per (image, event) and, where asked for, scope of processes; descriptions of
//! images and events; and ledgers. Output: a directory that any number of programs can read while
//! one program per host writes to it; `FORMAT.md` describes every byte. Kernels, counters,
//! instruction sets and the clock are unknown here (time is an argument).
//!
//! Invariants:
//! - A reader has one state of an epoch, that of some merge: files are added or replaced, never
//!   changed.
//! - A merge that returns an error other than [`DbError::Unfinished`] has changed nothing.
//! - A process killed, or a machine without power, at any moment leaves a database that reads
//!   without error and has what was acknowledged.
//! - Nothing in a file is used before its checksum was checked; no length in a file sizes an
//!   allocation.
//!
//! Entry points: [`Writer`] and [`CodeStore`] for the daemon, [`Database`] for readers;
//! [`check()`], [`seal`], [`merge_epochs`] and [`copy_host`] for work on databases that no daemon
//! writes.
//!
//! # Example
//!
//! Another profiler's samples, written and read:
//!
//! ```
//! use std::collections::BTreeMap;
//! use image::{ImageId, ImageKind, ImageOffset};
//! use model::{Ledger, Ledgers, Profile};
//! use profiledb::{Database, Delta, EpochStart, EventMeta, ImageRecord, ProfileKey, Scope, Writer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let root = directory.path().join("db");
//! let mut writer = Writer::open(&root, "my-host")?;
//! let cycles = EventMeta {
//!     name: "cycles".into(),
//!     unit: "cycles".into(),
//!     period: 100_000,
//!     ..EventMeta::default()
//! };
//! let now_unix_s = 1_763_697_753;
//! let start = EpochStart { events: vec![cycles], now_unix_s, ..EpochStart::default() };
//! let epoch = writer.begin(start, false)?;
//!
//! let id = ImageId::from_build_id(&[0xab, 0xcd]).ok_or("no build id")?;
//! let counts = Profile::from_counts([(ImageOffset(0x1130), 7), (ImageOffset(0x1134), 2)]);
//! let image = ImageRecord {
//!     id,
//!     kind: ImageKind::File,
//!     name: "program".into(),
//!     path: "/usr/bin/program".into(),
//!     size_bytes: None,
//!     first_seen_unix_s: now_unix_s,
//!     last_seen_unix_s: now_unix_s,
//! };
//! // Nine samples were taken, and all of them are in the profile.
//! let mut ledgers = Ledgers::default();
//! *ledgers.entry("cycles", 100_000) = Ledger { taken: 9, merged: 9, ..Ledger::default() };
//! let key = ProfileKey::samples(id, "cycles", 100_000, Scope::default());
//! writer.merge(&Delta {
//!     profiles: BTreeMap::from([(key, counts.into())]),
//!     images: BTreeMap::from([(id, image)]),
//!     ledgers,
//!     now_unix_s: now_unix_s + 600,
//!     ..Delta::default()
//! })?;
//!
//! let database = Database::open(&root)?;
//! let epoch = database.epoch("my-host", &epoch)?;
//! for key in epoch.profiles()? {
//!     let name = &epoch.images()?[&key.image].name;
//!     assert_eq!((name.as_str(), epoch.profile(&key)?.total()), ("program", 9));
//! }
//! epoch.check_ledgers()?;
//! assert!(profiledb::check(&root)?.is_empty());
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod codec;
pub mod envelope;
pub mod shapes;
pub mod storage;

mod check;
mod checked_file;
mod code;
mod decoded;
mod description;
mod epoch;
mod error;
mod fold;
mod fold_job;
mod format_file;
mod host_lock;
mod images;
mod listing;
mod merge;
mod naming;
mod outgoing;
mod reader;
mod recovery;
mod retention;
mod scope;
mod section_sum;
mod segment;
mod sent;
mod sliced;
mod slices;
mod snapshot;
mod stacks;
mod symbols;
mod transfer;
mod writer;

pub use check::{Fault, Lost, Problem, check, check_on};
pub use checked_file::CheckedFile;
pub use code::{CodeStore, Kept, keep_excerpt};
pub use description::{EpochMeta, EpochStart, EventMeta, Machine, PeriodChange};
pub use epoch::{EpochId, moment};
pub use error::{Damage, DbError, NameFault, NameKind, NotADatabase, Operation, advice};
pub use fold::Folded;
pub use images::ImageRecord;
pub use merge::{Delta, IMAGES_MAX, MergeReport};
pub use naming::{ProfileKey, event_name, is_event_name, split_events};
pub use outgoing::Outgoing;
pub use reader::{Database, Epoch};
pub use retention::{EpochSize, Retention};
pub use scope::{
    Container, PROCESS_SCOPES_MAX, SCOPES_MAX, Scope, check_label, check_unit, without_tag,
};
pub use sent::Sent;
pub use slices::{Covered, Stretch};
pub use stacks::StacksKey;
pub use symbols::Symbol;
pub use transfer::{
    CodeFile, Copied, FORMAT, check_code_object, check_epoch_object, code_files, copy_code,
    copy_epoch, copy_host, copy_readable_code, is_same_epoch, merge_epochs, outgoing,
    outgoing_place, seal,
};
pub use writer::Writer;
