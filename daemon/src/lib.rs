//! dcpid, dcpictl and dcpilabel.
//!
//! ```text
//! kernel ──drain──> Entry ──resolve──> (image, offset) ──count──> Pending ──merge──> epoch on disk
//!   └──────records──> Mappings ───────────┘
//! ```
//!
//! Modules in the order of that flow: [`kernel`] is the only one that needs privilege or unsafe
//! code; [`instruments`] take measurements; [`spaces`] knows the mappings and scopes of processes;
//! [`inspect`] looks into strangers' processes and files, in a process of its own; [`pipeline`] is
//! the one loop, from the drain to the merge; [`keep`] has the threads that write to disk;
//! [`control`] answers requests.

pub mod args;
pub mod clock;
pub mod config;
pub mod control;
pub mod daemon;
pub mod inspect;
pub mod instruments;
pub mod keep;
pub mod kernel;
pub mod latin1;
pub mod log;
pub mod pipeline;
pub mod replay;
pub mod spaces;
