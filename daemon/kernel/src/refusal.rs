//! Explains the kernel's refusals of events, with what can be done about them.

use super::KernelError;
use events::Event;
use std::io;

/// The kernel's refusal with what can be done about it.
pub fn refused(event: &Event, source: io::Error) -> KernelError {
    let hint = match source.raw_os_error() {
        Some(errno::ENOENT | errno::EOPNOTSUPP | errno::ENODEV) if event.needs_hardware() => {
            "it has no such hardware counter: use --event cpu-clock"
        }
        Some(errno::EACCES | errno::EPERM) => "run dcpid as root",
        Some(errno::EMFILE) => "raise the limit of open files (LimitNOFILE=)",
        _ => "`perf list` shows the events it has",
    };
    KernelError::Event { event: event.name.clone(), hint: hint.to_owned(), source }
}

/// Values of asm-generic/errno.h, the same on x86-64 and arm64.
pub mod errno {
    pub const EPERM: i32 = 1;
    pub const ENOENT: i32 = 2;
    pub const EACCES: i32 = 13;
    pub const ENODEV: i32 = 19;
    pub const EINVAL: i32 = 22;
    pub const EMFILE: i32 = 24;
    pub const EOPNOTSUPP: i32 = 95;
}
