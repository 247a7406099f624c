//! Everything that the user can set: the command lines of dcpid, dcpictl and dcpilabel, and the
//! configuration of dcpid from flags, file and defaults.
//!
//! [`args`] defines the arguments (`manual` makes the man pages from them); [`config`] checks them
//! and turns them into the values that the loop and the sockets use; [`access`] says who may ask
//! dcpid for what. The crate changes nothing and starts nothing. Begin with [`config::Config`], one
//! field per setting.

#![forbid(unsafe_code)]

pub mod access;
pub mod args;
pub mod config;
