//! Events of a command's threads, as the kernel sees them: probes of procedures, system calls,
//! scheduling.
#![forbid(unsafe_code)]

pub mod blocks;
