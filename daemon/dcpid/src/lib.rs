//! dcpid, dcpictl and dcpilabel.
//!
//! This crate starts and ends the daemon and puts its parts together; the parts are the crates
//! below. [`daemon`] is dcpid from start to end; [`control`] has the sockets; [`player`] replays a
//! recording instead of sampling; [`log`] limits the log. The crate samples, resolves and writes
//! nothing itself. Begin with [`daemon::run`].

#![forbid(unsafe_code)]

pub mod control;
pub mod daemon;
pub mod host_checks;
pub mod log;
pub mod player;
