//! What can be asked of dcpid, by whom, and what it answers.
//!
//! - `socket`: the control socket, from a connection to a request in the loop. The bytes of the
//!   control protocol are the crate `wire`'s.
//! - `connection_limits`: how many clients a user may have, and who loses a connection first.
//! - `privileges`: the capabilities that dcpid itself keeps.
//! - `status_parts`, `status_text`: the status as data, and as text for people.
//! - `watches`: counts as they come, for `dcpi top`.
//! - `metrics`: the same numbers for Prometheus.

pub mod connection_limits;
pub mod metrics;
pub mod privileges;
pub mod socket;
pub mod status_parts;
pub mod status_text;
pub mod watches;
