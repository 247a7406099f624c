//! Snapshots of user code, and the programs by which the sampler reads the memory that the code
//! ahead will load.

use core::mem::offset_of;

/// Snapshots that a CPU can keep for the daemon.
pub const SNAPSHOTS_PER_CPU: usize = 64;
/// Bytes of stack in a snapshot, at most. 256 bytes are worth nearly as much as 512 (69.5 and
/// 70.0 % of samples yield an edge without other memory), and the red zone below adds nothing.
pub const STACK_BYTES: usize = 256;
/// Lines of memory in a snapshot, at most.
pub const LINES_MAX: usize = 16;
/// Bytes of a line, at a multiple of that.
pub const LINE_BYTES: usize = 64;

/// Registers in a snapshot, the program counter and the flags last. x86-64: rax, rcx, rdx, rbx,
/// rsp, rbp, rsi, rdi, r8 to r15, rip, rflags. 64-bit Arm: x0 to x30, sp, pc, pstate.
pub const SNAPSHOT_REGISTERS: usize = if cfg!(target_arch = "aarch64") { 34 } else { 18 };

/// The registers of user code at a sample of event 0, the top of its stack, and lines of other
/// memory. Only of code in 64-bit mode.
///
/// They may hold secrets of the process: the next drain interprets and then wipes them, and nothing
/// writes them anywhere.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Snapshot {
    /// As in [`crate::Entry::key`], of event 0.
    pub key: u64,
    /// As in [`crate::Entry::space`].
    pub space: u32,
    /// Bytes of `stack` that could be read.
    pub stack_len: u16,
    /// Lines that could be read.
    pub lines: u16,
    /// Time at which the sampler began to copy, in ns of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// The kernel's number of the thread.
    pub thread: u32,
    /// The kernel's number of its process.
    pub process: u32,
    /// How often the thread had left a CPU, modulo 2^32.
    pub switches: u32,
    /// Fills the word.
    pub reserved: u32,
    /// In the order of [`SNAPSHOT_REGISTERS`].
    pub registers: [u64; SNAPSHOT_REGISTERS],
    /// Bytes from the stack pointer on.
    pub stack: [u8; STACK_BYTES],
    /// Addresses of the lines.
    pub line_addresses: [u64; LINES_MAX],
    /// The lines.
    pub line_bytes: [[u8; LINE_BYTES]; LINES_MAX],
}

impl Snapshot {
    /// A snapshot of nothing.
    pub const EMPTY: Self = Self {
        key: 0,
        space: 0,
        stack_len: 0,
        lines: 0,
        time_ns: 0,
        thread: 0,
        process: 0,
        switches: 0,
        reserved: 0,
        registers: [0; SNAPSHOT_REGISTERS],
        stack: [0; STACK_BYTES],
        line_addresses: [0; LINES_MAX],
        line_bytes: [[0; LINE_BYTES]; LINES_MAX],
    };
}

/// The ring of a CPU's snapshots. The positions only grow, and wrap at 2^32.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default)]
pub struct SnapshotRing {
    /// Snapshots written.
    pub written: u32,
    /// Snapshots that found no room.
    pub dropped: u32,
    /// Fills the cache line that the sampler writes.
    pub reserved: [u32; 14],
    /// Snapshots that the daemon has taken. The daemon alone writes this cache line.
    pub taken: u32,
    /// Fills the cache line that the daemon writes.
    pub reserved_too: [u32; 15],
}

/// Programs that there can be at once; the kernel removes those that were used least lately.
pub const AHEAD_MAX: usize = 2048;
/// Operations of a program, at most.
pub const AHEAD_OPERATIONS_MAX: usize = 46;

/// A program: computes addresses from the registers of a snapshot, and copies the lines there. It
/// has a value for each general register, in the order of [`Snapshot::registers`], and from number
/// 32 on the program counter, 0, and the result of each operation.
pub type AheadWords = [u64; AHEAD_OPERATIONS_MAX];

/// The place that a program is for: [`Snapshot::key`] and [`Snapshot::space`] of samples there.
pub type AheadKey = (u64, u32);

/// Operations of a program, which work on values by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AheadKind {
    /// The program ends.
    End,
    /// Copies the line with the byte at `a` + `immediate`.
    Line,
    /// The `argument` bytes (1, 2, 4 or 8) at `a` + `immediate`, with zeros above.
    Load,
    /// `a` + (`b` << `argument`) + `immediate`.
    Sum,
    /// `a` - `b`.
    Subtract,
    /// `a` * `b`.
    Multiply,
    /// `a` & `b`.
    And,
    /// `a` | `b`.
    Or,
    /// `a` ^ `b`.
    Xor,
    /// `a` >> `b`, with zeros.
    Right,
    /// `a` >> `b`, with copies of the sign.
    RightSigned,
    /// The lowest `argument` bits of `a`, with zeros above.
    Extended,
    /// The same, with copies of the sign.
    ExtendedSigned,
}

impl AheadKind {
    /// The operation in one word.
    #[must_use]
    pub fn word(self, a: u8, b: u8, argument: u8, immediate: i32) -> u64 {
        let [a, b, argument] = [a, b, argument].map(u64::from);
        let immediate = u64::from(immediate as u32);
        self as u64 | a << 8 | b << 16 | argument << 24 | immediate << 32
    }
}

const _: () = {
    let more = 8 * (SNAPSHOT_REGISTERS - 18);
    assert!(size_of::<Snapshot>() == 1592 + more);
    assert!(offset_of!(Snapshot, lines) == 14 && offset_of!(Snapshot, registers) == 40);
    assert!(offset_of!(Snapshot, stack) == 184 + more);
    assert!(offset_of!(Snapshot, line_addresses) == 440 + more);
    assert!(offset_of!(Snapshot, line_bytes) == 568 + more);
    assert!(size_of::<SnapshotRing>() == 128 && offset_of!(SnapshotRing, taken) == 64);
};
