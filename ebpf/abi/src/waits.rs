//! Times of threads, and samples of those that wait.

use crate::{STACK_KERNEL_BYTES, StackRecord};

/// Threads whose time is known at once. Of two with the same low bits, the one that was switched
/// last has the line.
pub const WAIT_LINES: usize = 16384;

/// The state of a thread.
#[repr(u16)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadState {
    /// The line is unused.
    Unknown = 0,
    /// It runs.
    Runs = 1,
    /// It waits for something.
    Blocked = 2,
    /// It could run, and has no CPU.
    Runnable = 3,
    /// It has ended.
    Ended = 4,
}

/// The time of a thread, since the sampler first saw it. The index is the low bits of its number in
/// the root namespace. The sampler alone writes it.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitLine {
    /// Start of its current state, CLOCK_MONOTONIC ns.
    pub since_ns: u64,
    /// Time of its wake-up; 0: not woken yet.
    pub woken_ns: u64,
    /// Time on a CPU, of what has ended.
    pub on_ns: u64,
    /// Time blocked, of what has ended.
    pub blocked_ns: u64,
    /// Time awake without CPU, of what has ended.
    pub runnable_ns: u64,
    /// When the sampler first saw it.
    pub born_ns: u64,
    /// Thread, in the root namespace.
    pub tid: u32,
    /// The number of a [`ThreadState`].
    pub state: u16,
    /// Weight of the wait that goes on; 0: it was not chosen; with the highest bit: its stack found
    /// no room.
    pub weight: u16,
    /// Length of its last waits that began awake, and of those that began blocked, those above the
    /// mean weighing more, in 16 us.
    pub typical: [u16; 2],
    /// Time of chosen waits of each kind that found no room, in 2^18 ns: the next one that does
    /// has it too.
    pub owed: [u16; 2],
}

/// Most samples of one pass over all threads.
pub const WAIT_SAMPLES_MAX: usize = 256;

/// Most payers with separate parts of a pass's samples.
pub const WAIT_PAYERS_MAX: usize = 1024;

/// A sample of a waiting thread, without bytes of its user stack.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WaitSample {
    /// Thread, registers, and the bytes used of `kernel`; its kind is
    /// [`crate::StackKind::SeenBlocked`] or [`crate::StackKind::SeenRunnable`].
    pub record: StackRecord,
    /// Return addresses in the kernel, innermost first.
    pub kernel: [u64; STACK_KERNEL_BYTES / 8],
}

/// A pass over all threads. The daemon writes it before the pass; the sampler counts in `chosen`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitPass {
    /// Not 0: sample only threads whose switches are not traced.
    pub is_rest: u32,
    /// Of a payer without a [`WaitPayer`], one of so many threads is sampled.
    pub every: u32,
    /// Threads sampled, including those beyond [`WAIT_SAMPLES_MAX`].
    pub chosen: u32,
    /// Unused.
    pub reserved: u32,
}

/// A payer of samples of waiting threads: a user, a control group of root's, or the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitPayer {
    /// Waiting threads in the last pass; the daemon resets it.
    pub threads: u32,
    /// One of so many is sampled.
    pub every: u32,
}
