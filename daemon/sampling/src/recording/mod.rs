//! Recordings of the daemon's input: from the kernel (counts, records, statistics), from the system
//! when resolution asked it, and from clients.
//!
//! `dcpid --record-input FILE` writes a recording while it samples; `dcpid --replay FILE --db DIR`
//! merges one like live samples, without privilege, to the same bytes each time (the player is
//! `player.rs` of the crate `dcpid`). `docs/src/recordings.md` describes every line of the format.

pub mod recorder;
pub mod steps;
mod stored_stacks;
pub mod tape;
