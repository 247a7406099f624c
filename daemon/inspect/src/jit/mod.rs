//! Reads a process's reports on code that it generates at run time, and checks them.

pub mod code_events;
pub mod files;
pub mod process;
