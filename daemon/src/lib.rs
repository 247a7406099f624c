//! dcpid and dcpictl.
//!
//! ```text
//! kernel ──drain──> Entry ──resolve──> (image, offset) ──count──> Pending ──merge──> epoch on disk
//!   └──────records──> Mappings ───────────┘
//! ```
//!
//! Modules in the order of that flow: [`kernel`] is the only one that needs privilege or unsafe code; [`collector`] does one drain;
//! [`mappings`], [`images`] and [`kernel_text`] say what is mapped where, with [`loader`]'s hints; [`resolve`] and [`pending`] turn entries into counts; [`flush`]
//! owns the database's writer; [`pipeline`] is the one loop; [`accounts`] keeps every sample accounted for.

pub mod accounts;
pub mod args;
pub mod budget;
pub mod clock;
pub mod collector;
pub mod config;
pub mod control;
pub mod daemon;
pub mod event;
pub mod flush;
pub mod images;
pub mod kernel;
pub mod kernel_text;
pub mod loader;
pub mod mappings;
pub mod pending;
pub mod pipeline;
pub mod resolve;
pub mod source;
pub mod status;
pub mod unresolved;
