//! dcpid, dcpictl and dcpilabel.
//!
//! ```text
//! kernel ──drain──> Entry ──resolve──> (image, offset) ──count──> Pending ──merge──> epoch on disk
//!   └──────records──> Mappings ───────────┘
//! ```
//!
//! Modules in the order of that flow: [`kernel`] is the only one that needs privilege or unsafe
//! code; [`collector`] does one drain; [`mappings`], [`images`], [`jit`] and [`kernel_text`] say
//! what is mapped where, with [`loader`]'s hints, [`apart`] and [`cgroup`] whose it is; [`resolve`]
//! and [`pending`] turn entries into counts; [`flush`] owns the database's writer; [`librarian`]
//! keeps the code of images with samples, [`catalogue`] what was learnt of files; [`pipeline`] is
//! the one loop; [`watch`] tells who asks what came since; [`accounts`] keeps every sample
//! accounted for.

pub mod accounts;
pub mod apart;
pub mod args;
pub mod budget;
pub mod catalogue;
pub mod cgroup;
pub mod clients;
pub mod clock;
pub mod collector;
pub mod config;
pub mod control;
pub mod daemon;
pub mod edges;
pub mod event;
pub mod flush;
pub mod images;
pub mod jit;
pub mod kernel;
pub mod kernel_text;
pub mod librarian;
pub mod loader;
pub mod log;
pub mod mappings;
pub mod metrics;
pub mod opening;
pub mod pending;
pub mod pipeline;
pub mod privilege;
pub mod rates;
pub mod resolve;
pub mod restraint;
pub mod sample_cost;
pub mod served;
pub mod source;
pub mod stand;
pub mod status_text;
pub mod ticks;
pub mod unresolved;
pub mod vdso;
pub mod vdso_memory;
pub mod versions;
pub mod watch;
pub mod written;
