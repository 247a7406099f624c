//! Recordings of what the daemon was told: by the kernel (counts, records, statistics), by the
//! system when resolution asked it, and by clients. `dcpid --record-input FILE` writes one while it
//! samples; `dcpid --replay FILE --db DIR` merges one like live samples, without privilege, to the
//! same bytes each time. Every line of the format is in `docs/src/recordings.md`.

pub mod player;
pub mod recorder;
pub mod recording;
pub mod steps;
