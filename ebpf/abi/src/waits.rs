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

/// Waiting threads that one pass over all threads can choose.
pub const WAIT_SAMPLES_MAX: usize = 256;

/// Payers that a pass tells apart.
pub const WAIT_PAYERS_MAX: usize = 1024;

/// A thread that waits, as a pass saw it: without bytes of the user stack.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WaitSample {
    /// Thread, registers, and the bytes of `kernel`; of kind [`crate::StackKind::SeenBlocked`] or
    /// [`crate::StackKind::SeenRunnable`].
    pub record: StackRecord,
    /// Return addresses in the kernel, innermost first.
    pub kernel: [u64; STACK_KERNEL_BYTES / 8],
}

/// A pass over all threads. The daemon writes `is_rest` and `every` before it, and zeros; the
/// sampler the rest.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitPass {
    /// Not 0: only threads whose switches are not followed.
    pub is_rest: u32,
    /// Threads that were chosen, also those that found no room.
    pub chosen: u32,
    /// Waiting threads that were seen.
    pub threads: u32,
    /// One of so many threads of a new payer is chosen.
    pub every: u32,
    /// Threads of payers that found no room.
    pub unpaid: u32,
    /// Unused.
    pub reserved: u32,
}

/// Whose waiting threads share a part of a pass's samples: an ordinary user, a control group of
/// root's, or the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitPayer {
    /// Waiting threads that the pass saw.
    pub threads: u32,
    /// One of so many is chosen.
    pub every: u32,
}
