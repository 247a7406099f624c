//! Recordings of the daemon's input: from the kernel (counts, records, statistics), from the system
//! when resolution asked it, and from clients. `dcpid --record-input FILE` writes one while it
//! samples; `dcpid --replay FILE --db DIR` merges one like live samples, without privilege, to the
//! same bytes each time. `docs/src/recordings.md` describes every line of the format.

pub mod player;
pub mod recorder;
pub mod recording;
pub mod steps;
