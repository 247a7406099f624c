//! Call stacks as the sampler leaves them.

use crate::Library;
use core::mem::{offset_of, size_of};

/// Bytes of a CPU's ring of call stacks.
pub const STACK_RING_BYTES: usize = 128 << 10;
/// Most bytes of a thread's stack that are copied. A larger copy costs more, and a stack with
/// deeper frames is walked once the rules of those above are learnt.
pub const STACK_COPY_BYTES: usize = 16 << 10;
/// Bytes of one CPU in the map `STACK_DATA`: the ring, and room behind it for the record that
/// begins at the ring's end.
pub const STACK_DATA_BYTES: usize = STACK_RING_BYTES + STACK_COPY_BYTES + 20480;
/// Bytes of a [`StackRecord`]'s return addresses in the kernel, where it has any.
pub const STACK_KERNEL_BYTES: usize = 1024;
/// In [`StackRecord::user`]: nothing is known of user code.
pub const USER_HIDDEN: u32 = 0;
/// In [`StackRecord::user`]: `registers` are those of user code.
pub const USER_REGISTERS: u32 = 1;
/// In [`StackRecord::user`]: the thread executes kernel code only, as workers of io_uring do.
pub const USER_NONE: u32 = 2;
/// In [`StackRecord::user`]: the sampler has walked the stack to its end.
pub const USER_WALKED: u32 = 3;
/// In [`StackRecord::user`]: program counter, stack pointer and frame pointer in `registers` are
/// those in the last of the frames that the sampler has walked, and the copy begins there.
pub const USER_RESUMED: u32 = 4;
/// Bytes of a thread's name (`comm`), a zero byte at the end included (TASK_COMM_LEN,
/// include/linux/sched.h).
pub const COMM_BYTES: usize = 16;

/// Registers of user code in a [`StackRecord`]: as many of the kernel's structure as the machine
/// has.
pub const STACK_REGISTERS: usize = 34;

/// The fixed part of a call stack's record. Behind it are `python_frames` times a
/// [`crate::PythonFrame`], innermost first, then `attribute_bytes` of attributes, then
/// [`STACK_KERNEL_BYTES`] of return addresses in the
/// kernel, innermost first, if `kernel_bytes` is not 0, then `user_frames` addresses of user code,
/// then `runtime_frames` times a [`crate::RuntimeFrame`], and then the copy of the user stack.
///
/// Registers and stacks may hold secrets: they are wiped as soon as they are walked, and nothing
/// writes them anywhere.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackRecord {
    /// Bytes of the whole record, a multiple of 8.
    pub bytes: u32,
    /// The number of a [`StackKind`].
    pub kind: u32,
    /// CLOCK_MONOTONIC, ns.
    pub time_ns: u64,
    /// Process and generation, as in [`crate::Entry::space`]; never a program.
    pub space: u32,
    /// Thread, as the daemon's pid namespace names it; 0: it has no number there.
    pub tid: u32,
    /// Samples that the record stands for.
    pub weight: u32,
    /// [`USER_REGISTERS`] where `registers` are those of user code, or [`USER_NONE`].
    pub user: u32,
    /// Bytes of return addresses in the kernel.
    pub kernel_bytes: u32,
    /// Bytes of user stack.
    pub stack_bytes: u32,
    /// Name of the process's first thread.
    pub command: [u8; COMM_BYTES],
    /// Name of the thread.
    pub name: [u8; COMM_BYTES],
    /// Address of the first byte of the user stack.
    pub begin: u64,
    /// Thread, in the root namespace.
    pub root_tid: u32,
    /// Frames of CPython; [`crate::PYTHON_FRAMES_MAX`]: there may be more.
    pub python_frames: u32,
    /// Frames of user code that the sampler has walked, at most [`crate::WALK_FRAMES_MAX`].
    pub user_frames: u32,
    /// The end of that walk: [`crate::WALK_WITHOUT_RULE`], or 1 more than the place of another end
    /// in the walker's list of them.
    pub user_end: u32,
    /// Frames of functions that a runtime runs, at most [`crate::RUNTIME_FRAMES_MAX`].
    pub runtime_frames: u32,
    /// Whether the process has a [`crate::FrameLayout`]; the sampler's own.
    pub has_frame_layout: u32,
    /// The thread's attributes: [`crate::ATTRIBUTES_NONE`] and so on.
    pub attribute_kind: u32,
    /// Their bytes, a multiple of 8, at most [`crate::ATTRIBUTES_BYTES_MAX`].
    pub attribute_bytes: u32,
    /// Further ones, which are not copied.
    pub attributes_left_out: u32,
    /// Fills up.
    pub reserved: u32,
    /// Where the process has code that is counted under numbers.
    pub code: SharedCode,
    /// x86-64: `struct pt_regs` (arch/x86/include/asm/ptrace.h), 21 registers; arm64: `struct
    /// user_pt_regs` (arch/arm64/include/uapi/asm/ptrace.h), 34.
    pub registers: [u64; STACK_REGISTERS],
}

impl StackRecord {
    /// All zeros: no stack.
    pub const EMPTY: Self = Self {
        bytes: 0,
        kind: 0,
        time_ns: 0,
        space: 0,
        tid: 0,
        weight: 0,
        user: 0,
        kernel_bytes: 0,
        stack_bytes: 0,
        command: [0; COMM_BYTES],
        name: [0; COMM_BYTES],
        begin: 0,
        root_tid: 0,
        python_frames: 0,
        user_frames: 0,
        user_end: 0,
        runtime_frames: 0,
        has_frame_layout: 0,
        attribute_kind: 0,
        attribute_bytes: 0,
        attributes_left_out: 0,
        reserved: 0,
        code: SharedCode { text: 0, text_len: 0, program: 0, libraries: [Library::NONE; 2] },
        registers: [0; STACK_REGISTERS],
    };
}

/// Where a process has code that is counted under numbers, as in [`crate::Slot`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedCode {
    /// First address of the program's text.
    pub text: u64,
    /// Bytes of the text; 0: it has no number.
    pub text_len: u32,
    /// Number of the program.
    pub program: u32,
    /// The mappings of its ELF interpreter and its C library.
    pub libraries: [Library; 2],
}

impl SharedCode {
    /// The number of the code at an address, and the distance from the begin of that code.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<(u32, u64)> {
        let [interpreter, libc] = self.libraries;
        let program = (self.text, self.text_len, self.program);
        let library = |library: Library| (library.start, library.len, library.number);
        let all = [program, library(libc), library(interpreter)];
        all.into_iter().find_map(|(start, len, number)| {
            let distance = address.wrapping_sub(start);
            (distance < u64::from(len)).then_some((number, distance))
        })
    }
}

/// The kinds of a [`StackRecord`].
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackKind {
    /// A sample of a thread that runs.
    Sample = 0,
    /// A thread leaves its CPU at `time_ns`. `weight` is the inverse of the probability with which
    /// the wait was chosen.
    Wait = 1,
    /// A thread whose wait was chosen is back on a CPU: `time_ns` is that of [`StackKind::Wait`],
    /// `begin` the time in which it was blocked, and the first register that in which it was awake
    /// without CPU, both in ns. `weight` is the wait's at its end: 1 where it was a long one.
    WaitEnd = 2,
    /// A thread whose wait was not chosen, and was a long one, is back on a CPU. As
    /// [`StackKind::WaitEnd`], with the thread and its names, and without a stack.
    LongWait = 3,
    /// A thread that is blocked at `time_ns`, in a [`crate::WaitSample`]. `weight` is the inverse
    /// of the probability with which it was chosen among the waiting threads.
    SeenBlocked = 4,
    /// Likewise a thread that is awake without CPU.
    SeenRunnable = 5,
}

/// The ring of a CPU's call stacks. The positions are in bytes; they only grow, and wrap at 2^32.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default)]
pub struct StackRing {
    /// Bytes written.
    pub written: u32,
    /// Records that found no room.
    pub dropped: u32,
    /// 1 while a record of a wait is being written: a sample that interrupts it is dropped.
    pub is_busy: u32,
    /// Waits of threads that found no [`crate::WaitLine`], or whose line another thread took.
    pub crowded: u32,
    /// Fills the cache line that the sampler writes.
    pub reserved: [u32; 12],
    /// Bytes that the daemon has taken. The daemon alone writes this cache line.
    pub taken: u32,
    /// Fills the cache line that the daemon writes.
    pub reserved_too: [u32; 15],
}

const _: () = {
    assert!(
        size_of::<StackRecord>() == 440
            && offset_of!(StackRecord, command) == 40
            && offset_of!(StackRecord, begin) == 72
            && offset_of!(StackRecord, user_frames) == 88
            && offset_of!(StackRecord, attribute_kind) == 104
            && offset_of!(StackRecord, code) == 120
            && offset_of!(StackRecord, registers) == 168
    );
    assert!(size_of::<SharedCode>() == 48);
    assert!(size_of::<StackRing>() == 128 && offset_of!(StackRing, taken) == 64);
    assert!(STACK_DATA_BYTES.is_multiple_of(4096));
};
