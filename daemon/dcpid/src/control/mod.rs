//! Requests to dcpid: the sockets, and their limits.
//!
//! - `socket`: the control socket, from a connection to a request in the loop. The bytes of the
//!   control protocol are the crate `wire`'s; `settings::access` says who may ask for what.
//! - `connection_limits`: the number of clients, and which of them loses its connection first.
//! - `metrics`: the status for Prometheus.

pub mod connection_limits;
pub mod metrics;
pub mod socket;
