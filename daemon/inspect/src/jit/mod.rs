//! What a process says about the code that it makes at run time, and whether that is believed.

pub mod code_events;
pub mod files;
pub mod process;
