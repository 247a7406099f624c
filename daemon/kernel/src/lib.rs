//! The border to the kernel, and the only crate of the daemon that names aya, perf events or unsafe
//! code.
//!
//! [`KernelSource`] has everything that needs privilege: the counters, the sampler's tables and the
//! records of processes. Only plain values leave this crate: [`Entry`](abi::Entry) counts and
//! [`Record`]s. The crate does not know which file or image an address belongs to, and of the
//! daemon's crates it names only `events`.
//!
//! Begin with `source.rs`, which opens everything and drains it; `sample_table.rs` has the proof
//! that a drain misses no sample, and `sideband.rs` the records. `choose_events.rs` decides which
//! events are sampled, `cost_meter.rs` measures what a sample costs, and [`budget`] says which rate
//! that cost allows. The small modules that every other crate of the daemon needs are here too:
//! [`clock`], [`procfs`] and [`privileges`] ask the kernel without aya and perf events, and
//! [`latin1`] writes the kernel's bytes as text.
#![allow(
    unsafe_code,
    reason = "memory shared with the kernel, and system calls without a safe wrapper"
)]

mod alarm;
pub mod budget;
mod bursts;
mod choose_events;
pub mod clock;
mod cost_meter;
mod counted;
mod counters;
pub mod latin1;
mod machine;
mod mapped;
mod memory;
mod multiplexer;
mod object;
mod page_tables;
pub mod privileges;
pub mod procfs;
pub mod quiet_windows;
mod refusal;
mod runtime_bytes;
mod sample_table;
mod sideband;
mod skid;
mod snapshots;
mod source;
mod stacks;
mod wait_samples;

pub use alarm::Alarm;
pub use choose_events::resolve_event;
pub use cost_meter::Cost;
pub use counted::Counted;
pub use machine::{
    Machine, clock_hz, kernel_modules, kernel_symbols, require_privileges, thread_record,
};
pub use memory::{give_back, give_back_code, share_heap};
pub use object::Sharing;
pub use object::compares_walks;
pub use page_tables::PageTables;
pub use sample_table::TableSettings;
pub use sideband::{KernelSymbol, MappedFileId, Program, Record, RecordKind, TimedRecord};
pub use skid::EventSkid;
pub use source::{CpuDrained, Drained, KernelSource, SourceSettings};
pub use stacks::{RawStack, StacksTaken};

/// A refusal of the kernel, with what can be done about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The process lacks a capability.
    #[error(
        "sampling the whole machine needs {missing}; run dcpid as root, or as its systemd service; in a container, allow them"
    )]
    Privilege {
        /// Names of the missing capabilities.
        missing: String,
    },
    /// The kernel took the system call but refused this event.
    #[error("event '{event}' cannot be sampled on this machine ({source}); {hint}")]
    Event {
        /// The event as the user named it.
        event: String,
        /// Advice: what to try instead.
        hint: String,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// A PMU or a term that the machine does not have.
    #[error(transparent)]
    Spec(#[from] events::EventError),
    /// Sampling at this rate would take most of the machine.
    #[error(
        "event '{event}' would take {percent} % of every CPU at that rate: a sample costs {ns_per_sample} ns here; ask for at most {event}@{rate_max}"
    )]
    TooDear {
        /// The event.
        event: String,
        /// Percent of each CPU that sampling would take.
        percent: u64,
        /// Cost of a sample, in ns, as measured.
        ns_per_sample: u64,
        /// The highest rate accepted.
        rate_max: u64,
    },
    /// perf_event_open failed for the side-band records.
    #[error(
        "the kernel refused the records of processes and mappings on CPU {cpu} ({source}); it needs perf events (CONFIG_PERF_EVENTS) and Linux 5.10 or later"
    )]
    Sideband {
        /// The CPU of the ring.
        cpu: usize,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The sampler could not be loaded.
    #[error(
        "the kernel refused the eBPF sampler ({reason}); it needs CONFIG_BPF_SYSCALL, Linux 5.10 or later and CAP_BPF: see `dmesg` and `sysctl kernel.bpf_stats_enabled`"
    )]
    Sampler {
        /// The message of the loader or the verifier, on one line.
        reason: String,
    },
    /// A map of the sampler could not be mapped.
    #[error(
        "mapping the sampler's {what} ({bytes} bytes) failed ({source}); lower --spill-entries or --table-entries"
    )]
    Map {
        /// Name of the map.
        what: &'static str,
        /// Size of the map.
        bytes: usize,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// A file of /proc or /sys could not be read.
    #[error("reading {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// The kernel's answer.
        source: std::io::Error,
    },
}
