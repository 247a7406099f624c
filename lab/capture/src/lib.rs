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

/// Errors of tracing. Each message is one line and names the next step.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The kernel refuses an event, a file cannot be probed, or an argument is wrong.
    #[error("{0}")]
    Refused(String),
    /// The trace cannot be written.
    #[error("{0}")]
    Output(#[source] io::Error),
    /// A signal stopped tracing before the command began.
    #[error("a signal came before the command began; nothing was run")]
    Stopped,
}

impl TraceError {
    fn new(what: &str, error: &io::Error) -> Self {
        Self::Refused(format!("{what}: {error}"))
    }
}
