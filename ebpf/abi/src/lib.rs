//! The bytes that cross the kernel boundary: what the sampler (`ebpf/src/`) writes and the daemon
//! reads.
//!
//! Writer: the eBPF program, on every counter overflow, in the memory of the CPU it runs on.
//! Reader: the daemon, through `mmap` of the same maps, one half at a time. Every structure here
//! has its twin of the same name in `ebpf/src/abi.h`, `runtime_abi.h` or `snapshot_abi.h`; sizes
//! and offsets are asserted on both sides, so a change made on one side alone does not compile.
//!
//! [`notice`] has the bytes that the loader hook sends to the daemon.
//!
//! DCPI's driver kept 16-byte entries, four to a cache line (SOSP 1997, section 4.2.1); so do we.
#![no_std]
#![forbid(unsafe_code)]

mod attributes;
mod kernel_scopes;
pub mod notice;
mod python;
mod rules;
mod runtimes;
mod snapshots;
mod stacks;
mod waits;

pub use attributes::{
    ATTRIBUTE_KEY_BYTES, ATTRIBUTE_VALUE_BYTES, ATTRIBUTES_BYTES_MAX, ATTRIBUTES_HEAD_BYTES,
    ATTRIBUTES_IN_LIST, ATTRIBUTES_IN_MAP, ATTRIBUTES_IN_RECORD, ATTRIBUTES_MAX, ATTRIBUTES_NONE,
    ATTRIBUTES_RECORD_BYTES, Attribute, AttributeLayout,
};
pub use kernel_scopes::{KernelScope, KernelScopes};
pub use python::{
    PYTHON_BLOCK_MAX, PYTHON_DIRECT, PYTHON_FLAGS_THERE, PYTHON_FRAMES_MAX, PythonFrame,
    PythonLayout,
};
pub use rules::{
    EXTENT_RULES_MAX, Extent, FILE_RANGES_MAX, FILE_SPACES_MAX, FRAME_LOST, FileRange, FileRanges,
    FrameBase, GoroutineWay, RULE_BLOCK_BYTES, RULES_MAX, Rule, RuleKey, RuleWords,
    WALK_FRAMES_MAX, WALK_WHOLE, WALK_WITHOUT_RULE, rule_words,
};
pub use runtimes::{
    CONTEXT_BEGINS, CONTEXT_FIRST, CONTEXT_NAMED, CONTEXT_START_SHIFT, CONTEXTS_MAX, ContextLayout,
    ERLANG_AREAS_MAX, ERLANG_BLOCK_WORDS, ERLANG_BLOCKS_MAX, ErlangArea, ErlangLayout, FrameLayout,
    LIST_ENTRY, LIST_ENTRY_BYTES, LUA_CALLBACK, ListLayout, LuaJitLayout, RUNTIME_BLOCK_BYTES,
    RUNTIME_FRAMES_MAX, RUNTIME_PROCESSES_MAX, RUNTIME_WORDS, RuntimeFrame, RuntimeLayout,
};
pub use snapshots::{
    AHEAD_MAX, AHEAD_OPERATIONS_MAX, AheadKey, AheadKind, AheadWords, LINE_BYTES, LINES_MAX,
    SNAPSHOT_REGISTERS, SNAPSHOTS_PER_CPU, STACK_BYTES, Snapshot, SnapshotRing,
};
pub use stacks::{
    COMM_BYTES, STACK_COPY_BYTES, STACK_DATA_BYTES, STACK_KERNEL_BYTES, STACK_REGISTERS,
    STACK_RING_BYTES, SharedCode, StackKind, StackRecord, StackRing, USER_HIDDEN, USER_NONE,
    USER_REGISTERS, USER_RESUMED, USER_WALKED,
};
pub use waits::{
    ThreadState, WAIT_LINES, WAIT_PAYERS_MAX, WAIT_SAMPLES_MAX, WaitLine, WaitPass, WaitPayer,
    WaitSample,
};

use core::mem::{offset_of, size_of};

/// Entries in a bucket: four 16-byte entries fill one 64-byte cache line.
pub const WAYS: usize = 4;
/// Buckets in a half of a CPU's table.
pub const BUCKETS: usize = 31;

/// Halves of a CPU's table: one counts while the other is drained.
pub const HALVES: usize = 2;

/// Programs in the object, `sample_0` to `sample_15`. Each counts under its own event number, which
/// is a constant in its instructions, so no sample has to look the number up.
pub const EVENTS_MAX: usize = 16;

/// Bits of [`Entry::key`] that hold the program counter: x86-64 with five-level paging has 57
/// significant address bits (Intel SDM volume 1, 3.3.7.1), arm64 with LVA 52; bit 56 is the sign.
pub const PC_BITS: u32 = 57;

/// [`Entry::space`] of a program counter in kernel addresses: they mean the same in every process,
/// so they are counted once.
pub const SPACE_KERNEL: u32 = 0;

/// Bits of [`Entry::space`] that hold the process id: `PID_MAX_LIMIT` is 2^22
/// (include/linux/threads.h).
pub const PID_BITS: u32 = 22;

/// Set in [`Entry::key`] when the program counter is in text that is counted once for all
/// processes. The program counter is then the distance from the start of the text, and
/// [`Entry::space`] is the number of the program. In kernel addresses, which are whole,
/// [`Entry::space`] is the number of a scope.
pub const IN_PROGRAM: u64 = 1 << 63;

/// [`Slot::program`] of a process that is kept apart: its samples are not added to those of others.
pub const PROGRAM_APART: u32 = u32::MAX;

/// log2 of the lines in the sampler's table of processes.
pub const SLOT_BITS: u32 = 15;

/// Numbers that programs and libraries can have at once.
pub const CLAIMS_MAX: usize = 8192;

/// [`Entry::space`] of a process that the daemon's pid namespace cannot see. No user code runs as
/// process 0.
pub const SPACE_FOREIGN: u32 = 1 << PID_BITS;

/// The address space that the program counter of an entry belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Space {
    /// Addresses of the kernel.
    Kernel,
    /// Addresses of a process that the daemon's pid namespace cannot see.
    Foreign,
    /// Addresses of a process.
    Process {
        /// Process id.
        pid: u32,
        /// Generation, as in [`Entry::generation`].
        generation: u16,
    },
    /// Addresses of the kernel, for all processes of a scope; the number is one that the daemon
    /// gave in a [`KernelScope`].
    KernelScope(u32),
    /// Distances from the start of a program's text, for all processes that run the program; the
    /// number is that of [`Change::program`].
    Program(u32),
}

/// One counted place: `count` samples of one event at one program counter in one address space.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// [`IN_PROGRAM`], event number in the 6 bits below it, the low [`PC_BITS`] of the program
    /// counter in the rest.
    pub key: u64,
    /// Process id (thread-group id) as the daemon's pid namespace names it in the low [`PID_BITS`],
    /// its generation above; [`SPACE_KERNEL`] or [`SPACE_FOREIGN`]; or the number of a program or a
    /// scope.
    pub space: u32,
    /// Samples; 0 marks an entry that was never used.
    pub count: u32,
}

impl Entry {
    /// The event's number, 0 to 63: the number of the `sample_N` program that counted the entry.
    #[must_use]
    pub fn event(&self) -> usize {
        ((self.key & !IN_PROGRAM) >> PC_BITS) as usize
    }

    /// The address space that [`Entry::pc`] belongs to.
    #[must_use]
    pub fn whose(&self) -> Space {
        match self.space {
            scope if self.key & IN_PROGRAM != 0 && (self.pc() as i64) < 0 => {
                Space::KernelScope(scope)
            }
            program if self.key & IN_PROGRAM != 0 => Space::Program(program),
            SPACE_KERNEL => Space::Kernel,
            SPACE_FOREIGN => Space::Foreign,
            _ => Space::Process { pid: self.pid(), generation: self.generation() },
        }
    }

    /// The program counter, sign-extended from bit 56 as the processor does.
    #[must_use]
    pub fn pc(&self) -> u64 {
        (((self.key << (64 - PC_BITS)) as i64) >> (64 - PC_BITS)) as u64
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.space & ((1 << PID_BITS) - 1)
    }

    /// Tells this address space from the others that had or will have the same process id; 0 where
    /// the kernel does not let the sampler read the task.
    #[must_use]
    pub fn generation(&self) -> u16 {
        (self.space >> PID_BITS) as u16
    }

    /// The entry that the sampler writes for the text of a program, `distance` bytes from its
    /// start.
    #[must_use]
    pub fn in_program(event: u8, distance: u64, program: u32, count: u32) -> Entry {
        let entry = Entry::new(event, distance, program, count);
        Entry { key: entry.key | IN_PROGRAM, ..entry }
    }

    /// The entry that the sampler writes for kernel code at `pc`, counted for a scope.
    #[must_use]
    pub fn in_kernel_scope(event: u8, pc: u64, scope: u32, count: u32) -> Entry {
        let entry = Entry::new(event, pc, scope, count);
        Entry { key: entry.key | IN_PROGRAM, ..entry }
    }

    /// The entry that the sampler writes for these values.
    #[must_use]
    pub fn new(event: u8, pc: u64, space: u32, count: u32) -> Entry {
        let pc = pc & ((1 << PC_BITS) - 1);
        Entry { key: (u64::from(event) << PC_BITS) | pc, space, count }
    }
}

/// One cache line of the table, most recently used entry first.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default)]
pub struct Bucket {
    /// Entries by recency; unused ones have count 0.
    pub entries: [Entry; WAYS],
}

/// Statistics of one half since the daemon last emptied it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HalfStats {
    /// Samples taken. Equals the counts in the half's buckets and spill buffer plus its [`Losses`]:
    /// the daemon checks that.
    pub taken: u64,
    /// Samples that found no entry of theirs in their bucket.
    pub misses: u32,
    /// Entries in the spill buffer.
    pub spilled: u32,
}

/// The private page of one CPU. The daemon writes `half`, `snapshot_every`, `stack_every`,
/// `wait_scale_us`, `kernel_scopes`, and the half that it drains; the sampler on that CPU writes
/// all the rest.
#[repr(C, align(4096))]
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuBlock {
    /// Number of the half that counts now: 0 or 1.
    pub half: u32,
    /// Samples of user code before the one with the next snapshot.
    pub snapshot_in: u32,
    /// Statistics of each half.
    pub stats: [HalfStats; HALVES],
    /// One [`Snapshot`] is taken for this many samples of user code; 0: none. The daemon writes it.
    pub snapshot_every: u32,
    /// Samples before the one with the next call stack.
    pub stack_in: u32,
    /// One [`StackRecord`] is taken for this many samples; 0: none. The daemon writes it.
    pub stack_every: u32,
    /// A wait as long as this, in us, always has its stack taken, a shorter one with the
    /// probability of its part; 0: none has. The daemon writes it.
    pub wait_scale_us: u32,
    /// The number of a [`KernelScopes`]. The daemon writes it.
    pub kernel_scopes: u32,
    /// The table of each half: as many buckets as fit in the page. Each further page that a sample
    /// touches costs a miss in the TLB, because the program had 200 us to evict its translation.
    pub table: [[Bucket; BUCKETS]; HALVES],
}

/// Samples of one half that were taken but not counted, by event number. A sample is seldom lost,
/// so these counters are not in the CPU's page.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// The bucket was full and so was the spill buffer.
    pub spill_full: [u64; EVENTS_MAX],
}

/// A mapping of a file whose code is counted once for all processes, wherever each maps it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Library {
    /// First address.
    pub start: u64,
    /// Bytes; 0: the mapping is not counted once for all.
    pub len: u32,
    /// Number of the library, drawn like that of a program; 0: the process has mapped none yet.
    pub number: u32,
}

impl Library {
    /// No mapping.
    pub const NONE: Self = Self { start: 0, len: 0, number: 0 };
}

/// The sampler's state of a process, in one cache line. The programs at forks, execs and mappings
/// of files write it; the daemon writes the lines of processes that it keeps apart. The index is
/// the low [`SLOT_BITS`] of the process's number in the root namespace.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// The kernel's address of the process's memory (`mm`), which tells whether the line is about
    /// the current process; 0: the line is unused.
    pub mm: u64,
    /// First address of the program's text.
    pub text: u64,
    /// Bytes of the text; 0: the text is not counted once for all processes.
    pub text_len: u32,
    /// Number of the program, 0 when it is not known, or [`PROGRAM_APART`].
    pub program: u32,
    /// As in [`Entry::space`].
    pub space: u32,
    /// When the process began to run its program, in units of 2^20 ns.
    pub born: u32,
    /// The mappings of its ELF interpreter and its C library.
    pub libraries: [Library; 2],
}

/// Identity of the code that is counted under the number of a program or a library. No identity is
/// all zeros.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The file's inode.
    pub inode: u64,
    /// Its size in bytes.
    pub size: u64,
    /// When it was last changed, ns.
    pub change_time_ns: u64,
    /// The part of the file.
    pub part: u64,
    /// Bytes of the code.
    pub len: u64,
    /// The file system's device, as the kernel keeps it.
    pub device: u64,
}

/// The kinds of a [`Change`]. 0 is no kind, so that a zeroed message is refused.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// The process has exec'ed `program`, whose text is at `text` where it is counted once for all;
    /// from now on the process's samples have `generation`.
    Exec = 1,
    /// The process is mapping a file where another may have been before: its samples had
    /// `generation_before` and have `generation` from now on.
    Remap = 2,
    /// The process is mapping a library at `text` whose code is counted under `program`, once for
    /// all processes that map it.
    Library = 3,
    /// The next record of the process is of a mapping at `text`, of a file whose size has the lower
    /// half `text_len`, and whose last change was at [`Change::changed_ns`].
    File = 4,
}

impl ChangeKind {
    /// The kind for a number of [`Change::kind`]; None for a number that no sampler of this version
    /// writes.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        let kinds = [Self::Exec, Self::Remap, Self::Library, Self::File];
        kinds.into_iter().find(|kind| *kind as u32 == number)
    }
}

/// A message from the sampler to the daemon about a process's address space. Fields that the kind
/// does not use are 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// CLOCK_MONOTONIC, ns.
    pub time_ns: u64,
    /// The number of a [`ChangeKind`], which says what the fields below mean.
    pub kind: u32,
    /// Process id, as in [`Entry::pid`].
    pub pid: u32,
    /// First address of the program's text, or of the library's mapping.
    pub text: u64,
    /// Bytes of the text; 0: the program's text is not counted once for all.
    pub text_len: u32,
    /// Number of the program or library, or of the file in [`FileRange`]; 0 when it is not known.
    pub program: u32,
    /// As in [`Entry::generation`].
    pub generation: u32,
    /// The generation that samples had until this change; of [`ChangeKind::Exec`] the process's
    /// real user.
    pub generation_before: u32,
}

impl Change {
    /// When the file of a [`ChangeKind::File`] was last changed: its ctime, ns since 1970. The
    /// lower half is in `generation`, the upper in `generation_before`.
    #[must_use]
    pub fn changed_ns(&self) -> u64 {
        u64::from(self.generation) | u64::from(self.generation_before) << 32
    }
}

const _: () = {
    assert!(
        size_of::<Slot>() == 64
            && offset_of!(Slot, text_len) == 16
            && offset_of!(Slot, space) == 24
    );
    assert!(
        offset_of!(Slot, libraries) == 32
            && offset_of!(Library, len) == 8
            && offset_of!(Library, number) == 12
    );
    assert!(
        size_of::<Change>() == 40
            && offset_of!(Change, kind) == 8
            && offset_of!(Change, pid) == 12
            && offset_of!(Change, text) == 16
            && offset_of!(Change, text_len) == 24
            && offset_of!(Change, program) == 28
            && offset_of!(Change, generation) == 32
            && offset_of!(Change, generation_before) == 36
    );
    assert!(
        size_of::<Identity>() == 48
            && offset_of!(Identity, part) == 24
            && offset_of!(Identity, device) == 40
    );
    assert!(size_of::<Entry>() == 16);
    assert!(size_of::<Bucket>() == 64);
    assert!(size_of::<HalfStats>() == 16);
    assert!(size_of::<CpuBlock>() == 4096 && offset_of!(CpuBlock, snapshot_every) == 40);
    assert!(
        offset_of!(CpuBlock, stack_in) == 44
            && offset_of!(CpuBlock, stack_every) == 48
            && offset_of!(CpuBlock, wait_scale_us) == 52
            && offset_of!(CpuBlock, kernel_scopes) == 56
            && offset_of!(CpuBlock, table) == 64
    );
    assert!(size_of::<WaitLine>() == 64 && offset_of!(WaitLine, tid) == 48);
    assert!(offset_of!(WaitLine, owed) == 60);
    assert!(size_of::<WaitSample>() == 1464 && size_of::<WaitPass>() == 16);
    assert!(size_of::<WaitPayer>() == 8);
    assert!(offset_of!(Entry, space) == 8 && offset_of!(Entry, count) == 12);
    assert!(offset_of!(CpuBlock, stats) == 8);
    assert!(offset_of!(HalfStats, misses) == 8 && offset_of!(HalfStats, spilled) == 12);
    assert!(size_of::<Losses>() == 128);
};

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    #[test]
    fn numbers_are_those_of_the_c_source() {
        let source = [
            include_str!("../../src/abi.h"),
            include_str!("../../src/runtime_abi.h"),
            include_str!("../../src/snapshot_abi.h"),
        ]
        .concat();
        let words: std::vec::Vec<&str> = source.split([' ', '\t', '\n', ',']).collect();
        for (name, number) in [
            ("WAYS", WAYS),
            ("BUCKETS", BUCKETS),
            ("HALVES", HALVES),
            ("PC_BITS", PC_BITS as usize),
            ("EVENTS_MAX", EVENTS_MAX),
            ("PID_BITS", PID_BITS as usize),
            ("SLOT_BITS", SLOT_BITS as usize),
            ("CLAIMS_MAX", CLAIMS_MAX),
            ("SNAPSHOTS_PER_CPU", SNAPSHOTS_PER_CPU),
            ("SNAPSHOT_REGISTERS", SNAPSHOT_REGISTERS),
            ("STACK_BYTES", STACK_BYTES),
            ("LINES_MAX", LINES_MAX),
            ("LINE_BYTES", LINE_BYTES),
            ("AHEAD_MAX", AHEAD_MAX),
            ("AHEAD_OPERATIONS_MAX", AHEAD_OPERATIONS_MAX),
            ("AHEAD_LINE", AheadKind::Line as usize),
            ("AHEAD_LOAD", AheadKind::Load as usize),
            ("AHEAD_SUM", AheadKind::Sum as usize),
            ("AHEAD_SUBTRACT", AheadKind::Subtract as usize),
            ("AHEAD_MULTIPLY", AheadKind::Multiply as usize),
            ("AHEAD_AND", AheadKind::And as usize),
            ("AHEAD_OR", AheadKind::Or as usize),
            ("AHEAD_XOR", AheadKind::Xor as usize),
            ("AHEAD_RIGHT", AheadKind::Right as usize),
            ("AHEAD_RIGHT_SIGNED", AheadKind::RightSigned as usize),
            ("AHEAD_EXTENDED", AheadKind::Extended as usize),
            ("AHEAD_EXTENDED_SIGNED", AheadKind::ExtendedSigned as usize),
            ("STACK_REGISTERS", STACK_REGISTERS),
            ("STACK_KERNEL_BYTES", STACK_KERNEL_BYTES),
            ("USER_WALKED", USER_WALKED as usize),
            ("USER_RESUMED", USER_RESUMED as usize),
            ("RULES_MAX", RULES_MAX),
            ("EXTENT_RULES_MAX", EXTENT_RULES_MAX),
            ("RULE_BLOCK_BYTES", RULE_BLOCK_BYTES as usize),
            ("FILE_RANGES_MAX", FILE_RANGES_MAX),
            ("FILE_SPACES_MAX", FILE_SPACES_MAX),
            ("WALK_FRAMES_MAX", WALK_FRAMES_MAX),
            ("WALK_WITHOUT_RULE", WALK_WITHOUT_RULE as usize),
            ("WALK_WHOLE", WALK_WHOLE as usize),
            ("COMM_BYTES", COMM_BYTES),
            ("PYTHON_FRAMES_MAX", PYTHON_FRAMES_MAX),
            ("PYTHON_BLOCK_MAX", PYTHON_BLOCK_MAX),
            ("RUNTIME_PROCESSES_MAX", RUNTIME_PROCESSES_MAX),
            ("RUNTIME_FRAMES_MAX", RUNTIME_FRAMES_MAX),
            ("RUNTIME_BLOCK_BYTES", RUNTIME_BLOCK_BYTES),
            ("RUNTIME_WORDS", RUNTIME_WORDS),
            ("PYTHON_DIRECT", usize::from(PYTHON_DIRECT)),
            ("PYTHON_FLAGS_THERE", usize::from(PYTHON_FLAGS_THERE)),
            ("ERLANG_AREAS_MAX", ERLANG_AREAS_MAX),
            ("ERLANG_BLOCKS_MAX", ERLANG_BLOCKS_MAX),
            ("CONTEXTS_MAX", CONTEXTS_MAX),
            ("CONTEXT_START_SHIFT", CONTEXT_START_SHIFT as usize),
            ("WAIT_LINES", WAIT_LINES),
            ("WAIT_SAMPLES_MAX", WAIT_SAMPLES_MAX),
            ("WAIT_PAYERS_MAX", WAIT_PAYERS_MAX),
            ("CHANGE_EXEC", ChangeKind::Exec as usize),
            ("CHANGE_REMAP", ChangeKind::Remap as usize),
            ("CHANGE_LIBRARY", ChangeKind::Library as usize),
            ("CHANGE_FILE", ChangeKind::File as usize),
        ]
        .into_iter()
        .chain(rules::NUMBERS.map(|(name, number)| (name, number as usize)))
        {
            let number = std::format!("{number}");
            let is_twin = |words: &[&str]| *words == [name, "=", number.as_str()];
            assert!(words.windows(3).any(is_twin), "{name} is {number} here");
        }
    }

    #[test]
    fn a_kind_has_one_number_and_other_numbers_have_none() {
        let library = ChangeKind::Library;
        for kind in [ChangeKind::Exec, ChangeKind::Remap, library, ChangeKind::File] {
            assert_eq!(ChangeKind::from_number(kind as u32), Some(kind));
        }
        for number in [0, 5, u32::MAX] {
            assert_eq!(ChangeKind::from_number(number), None, "{number}");
        }
    }

    #[test]
    fn key_keeps_event_and_program_counter() {
        for pc in [
            0,
            0x1000,
            0x7fff_ffff_f000,
            0x00ff_ffff_ffff_f123,
            0xffff_ffff_8100_0000,
            0xff00_0000_0000_0000,
            u64::MAX,
        ] {
            for event in [0u8, 1, 15, 63] {
                let entry = Entry::new(event, pc, 7, 1);
                assert_eq!(
                    (entry.event(), entry.pc(), entry.space),
                    (usize::from(event), pc, 7),
                    "pc {pc:#x}"
                );
            }
        }
        let entry = Entry::in_program(15, 0x1234, 0, 1);
        assert_eq!((entry.event(), entry.pc(), entry.whose()), (15, 0x1234, Space::Program(0)));
        assert_eq!(Entry::new(1, 5, SPACE_KERNEL, 1).whose(), Space::Kernel);
        assert_eq!(Entry::new(1, 5, SPACE_FOREIGN, 1).whose(), Space::Foreign);
        let space = 3 << PID_BITS | 77;
        assert_eq!(Entry::new(1, 5, space, 1).whose(), Space::Process { pid: 77, generation: 3 });
    }
}
