//! Requests to dcpid: their rights, their limits and their answers.
//!
//! - `socket`: the control socket, from a connection to a request in the loop. The bytes of the
//!   control protocol are the crate `wire`'s.
//! - `connection_limits`: the number of clients, and which of them loses its connection first.
//! - `privileges`: the capabilities that dcpid itself keeps.
//! - `status_parts`, `status_text`: the status as data, and as text for people.
//! - `watches`: counts since a client's last question, for `dcpi top`.
//! - `metrics`: the same numbers for Prometheus.

pub mod connection_limits;
pub mod metrics;
pub mod privileges;
pub mod socket;
pub mod status_parts;
pub mod status_text;
pub mod watches;
