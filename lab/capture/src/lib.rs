//! Events of a command's threads, as the kernel sees them: probes of procedures and lines, system
//! calls, scheduling.
//!
//! [`sites`] finds the places to probe, [`recorder`] runs the command, or attaches to a process,
//! and writes a [`trace`]. [`blocks`] reads what programs with events compiled in write. Unsafe
//! code: one ioctl(2), in `rings.rs`.
#![allow(unsafe_code, reason = "one ioctl(2), in `rings.rs`")]

pub mod blocks;
mod images;
mod names;
mod ordering;
mod probes;
pub mod recorder;
mod records;
mod rings;
pub mod sites;
mod threads;
mod tracefs;
mod untraced;

use std::io;

/// Why nothing is traced, in one line with the next step.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The kernel, or a file, does not allow it.
    #[error("{0}")]
    Refused(String),
    /// The trace cannot be written.
    #[error("{0}")]
    Output(#[source] io::Error),
    /// It was asked to stop before the command began; nothing was run.
    #[error("a signal came before the command began; nothing was run")]
    Stopped,
}

impl TraceError {
    fn new(what: &str, error: &io::Error) -> Self {
        Self::Refused(format!("{what}: {error}"))
    }
}
