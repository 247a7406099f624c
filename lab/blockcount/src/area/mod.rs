//! Layout of the file that holds a process's counts. The engine maps it shared, so that the counts
//! of a killed process survive; `reader` reads it during or after the run.
//!
//! ```text
//! header | mappings | strings | blocks | lengths | calls | events | notes | records | counters
//! ```
//!
//! Tables have fixed places and the file is sparse, so nothing ever moves. An entry is complete
//! before the header's number of entries grows. Numbers are little-endian.

#[cfg(feature = "reader")]
mod edges;
#[cfg(feature = "reader")]
pub mod reader;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) mod writer;

/// First bytes of an area.
pub const MAGIC: u64 = u64::from_le_bytes(*b"DCPIBLKC");
/// Version of the layout.
pub const VERSION: u32 = 4;
/// Name of a socket in the folder of areas: the engine sends it a descriptor of each file that code
/// is mapped from (`SCM_RIGHTS`, unix(7)).
pub const SOCKET: &str = "files";

/// A table: its place in the file, the bytes of one entry, and the entries it has room for.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Offset in the file.
    pub offset: u64,
    /// Bytes of one entry.
    pub entry: u64,
    /// Most entries.
    pub capacity: u64,
}

const fn after(before: Table, entry: u64, capacity: u64) -> Table {
    Table { offset: before.offset + before.entry * before.capacity, entry, capacity }
}

/// Most translated blocks of a process.
pub const BLOCKS_MAX: u64 = 4_194_304;
/// Most pairs of an indirect branch and its target.
pub const CALLS_MAX: u64 = 2_097_152;
/// Most events that differ.
pub const EVENTS_MAX: u64 = 2_097_152;
/// Most threads at once.
pub const THREADS_MAX: u64 = 1024;

/// The header, [`Header`].
pub const HEADER: Table = Table { offset: 0, entry: 4096, capacity: 1 };
/// The files that code was mapped from, [`Mapping`].
pub const MAPPINGS: Table = after(HEADER, size_of::<Mapping>() as u64, 1 << 16);
/// Bytes of paths and of the command.
pub const STRINGS: Table = after(MAPPINGS, 1, 1 << 25);
/// Translated blocks, [`Block`].
pub const BLOCKS: Table = after(STRINGS, size_of::<Block>() as u64, BLOCKS_MAX);
/// Lengths of the blocks' instructions, one byte each.
pub const LENGTHS: Table = after(BLOCKS, 1, 1 << 27);
/// Indirect calls and jumps by site and target, [`Call`].
pub const CALLS: Table = after(LENGTHS, size_of::<Call>() as u64, CALLS_MAX);
/// Special events in single executions of blocks, [`Event`].
pub const EVENTS: Table = after(CALLS, size_of::<Event>() as u64, EVENTS_MAX);
/// Notes on operations that were refused or not counted: [`NOTE_BYTES`] of text each, padded with
/// zeros, up to the first empty one. Children without an area of their own write here too.
pub const NOTES: Table = after(EVENTS, NOTE_BYTES as u64, 1 << 12);
/// Words of what bursts recorded, [`record`].
pub const RECORDS: Table = after(NOTES, 8, RECORDS_MAX);
/// Most recorded words of a process, 128 MiB. With fewer, caches of tens of megabytes do not fill
/// in a model; with more, the models take longer than the command.
pub const RECORDS_MAX: u64 = 1 << 24;
/// Threads' slots. A thread's counters begin [`COUNTERS_IN_SLOT`] bytes after the start of its
/// slot.
pub const SLOTS: Table = Table { offset: 1 << 30, entry: 1 << 26, capacity: THREADS_MAX };
/// Bytes of a slot that are not in the file: the engine has private memory in their place.
pub const COUNTERS_IN_SLOT: u64 = 4 << 20;
/// Most counters of a thread.
pub const COUNTERS_MAX: u64 = (SLOTS.entry - COUNTERS_IN_SLOT) / 8;
/// Size of the whole file, nearly all of it a hole.
pub const SIZE: u64 = SLOTS.offset + SLOTS.entry * SLOTS.capacity;

const _: () = assert!(RECORDS.offset + RECORDS.entry * RECORDS.capacity <= SLOTS.offset);

/// Offset of the number of notes whose writing has begun. Several processes increment it.
pub const NOTES_BEGUN: u64 = 2048;
const _: () = assert!(size_of::<Header>() <= NOTES_BEGUN as usize);

/// Bytes of a note.
pub const NOTE_BYTES: usize = 256;

/// Marks an absent counter.
pub const NONE: u32 = u32::MAX;

/// The start of an area.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// [`MAGIC`], written last.
    pub magic: u64,
    /// [`VERSION`].
    pub version: u32,
    /// Process number.
    pub pid: u32,
    /// Process number of the process that made this one.
    pub parent: u32,
    /// Number of the area among those of the same process number: each exec makes a new area.
    pub sequence: u32,
    /// [`EDGES`] and others.
    pub flags: u32,
    /// Slots in use; a slot is used again after its thread's end.
    pub slots: u32,
    /// Counters in use, the same in all slots.
    pub counters: u32,
    /// Length of the program's path, the first string.
    pub path_len: u32,
    /// Entries of each table.
    pub mappings: u64,
    /// Bytes of strings.
    pub strings: u64,
    /// Entries of the table of blocks.
    pub blocks: u64,
    /// Bytes of lengths.
    pub lengths: u64,
    /// Entries of the table of calls.
    pub calls: u64,
    /// Entries of the table of events.
    pub events: u64,
    /// Words of records.
    pub records: u64,
}

/// Flag of a header: taken edges and indirect calls are counted.
pub const EDGES: u32 = 1;
/// Flag of a header: indirect jumps are counted, too.
pub const JUMPS: u32 = 2;
/// Flag of a header: bursts of instructions are recorded, with addresses and outcomes.
pub const BURSTS: u32 = 4;

/// A range of addresses with code, as /proc/PID/maps says.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// Address after the last byte.
    pub end: u64,
    /// Offset in the file of the first address.
    pub offset: u64,
    /// Major number of the file's device in the high half, minor in the low one.
    pub device: u64,
    /// The file's inode; zero where no file is mapped.
    pub inode: u64,
    /// The file's size in bytes when it was mapped.
    pub size: u64,
    /// Time of the file's last modification when it was mapped, in ns since 1970; zero where the
    /// engine did not see the file mapped.
    pub modified_ns: u64,
    /// Offset of the path among the strings.
    pub path: u32,
    /// Length of the path; zero where memory has no name.
    pub path_len: u32,
}

/// A block as it was translated. The same address has several when its code was dropped and
/// translated again; an instruction's executions are the sum over all blocks that have it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Address of the first instruction.
    pub address: u64,
    /// Target of its last instruction, if that is a direct jump or call.
    pub target: u64,
    /// Index of its mapping.
    pub mapping: u32,
    /// Its counter.
    pub counter: u32,
    /// Counter of its taken branch, or [`NONE`].
    pub taken: u32,
    /// Index of its first instruction's length.
    pub lengths: u32,
    /// Length in bytes.
    pub len: u16,
    /// Number of instructions.
    pub instructions: u8,
    /// Kind of its end, one of [`kind`].
    pub kind: u8,
    /// [`INDIRECT`].
    pub flags: u32,
}

/// Flag of a block: indirect branches enter it, whose edges are not counted.
pub const INDIRECT: u32 = 1;

/// Kinds of a block's end.
pub mod kind {
    /// Cut because it was long: the next block follows.
    pub const CUT: u8 = 0;
    /// Direct jump.
    pub const JUMP: u8 = 1;
    /// Conditional branch.
    pub const CONDITIONAL: u8 = 2;
    /// Direct call.
    pub const CALL: u8 = 3;
    /// Indirect call.
    pub const INDIRECT_CALL: u8 = 4;
    /// Indirect jump.
    pub const INDIRECT_JUMP: u8 = 5;
    /// Return.
    pub const RETURN: u8 = 6;
    /// System call.
    pub const SYSTEM_CALL: u8 = 7;
    /// An instruction that raises a signal, or cannot be executed.
    pub const TRAP: u8 = 8;
}

/// Calls of one indirect call, or jumps of one jump to procedures, to one target.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Index of the block that the call or jump ends.
    pub block: u32,
    /// Its counter.
    pub counter: u32,
    /// Address of the target; zero for all targets beyond the first few.
    pub target: u64,
}

/// Executions in which a block was not entered or left by its edges.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Index of the block.
    pub block: u32,
    /// One of [`event`].
    pub kind: u32,
    /// Address of an instruction of the block.
    pub at: u64,
    /// Number of such executions.
    pub times: u64,
}

/// Kinds of events.
pub mod event {
    /// The block was left before the instruction `at`, and is counted: its instructions from `at`
    /// on have one execution less.
    pub const LEFT: u32 = 0;
    /// The block was left before the instruction `at`, and is not counted: its instructions
    /// before `at` have one execution more.
    pub const LEFT_UNCOUNTED: u32 = 1;
    /// The block was entered by no edge: begin of a process, thread or handler of a signal, end of
    /// a handler.
    pub const ENTERED: u32 = 2;
    /// The block's end led nowhere: the thread or process ended, or a handler did.
    pub const ENDED: u32 = 3;
}

/// Words of records: the kind in the low 4 bits, an address or a number in the 48 bits above.
pub mod record {
    /// A burst begins; the number of the thread's slot.
    pub const BURST: u64 = 0;
    /// A block is executed; its index. What it does follows.
    pub const BLOCK: u64 = 1;
    /// An access to memory; its address. Above are 4 bits with the number of the instruction in the
    /// block, 7 with the bytes, and one that says that it is a store.
    pub const ACCESS: u64 = 2;
    /// The conditional branch at the end of the block; 1: it is taken.
    pub const BRANCH: u64 = 3;
    /// The indirect branch at the end of the block; its target.
    pub const TARGET: u64 = 4;

    /// Before a burst, memory in huge pages: zero, and then the first address of each range and the
    /// address behind it.
    pub const HUGE: u64 = 5;

    /// The first bit of the number.
    pub const NUMBER: u32 = 4;
    /// The first bit of an access's instruction, of its bytes, and the bit of a store.
    pub const INSTRUCTION: u32 = 52;
    pub(crate) const BYTES: u32 = 56;
    pub(crate) const STORE: u32 = 63;

    /// The number or address of a word.
    pub fn number(word: u64) -> u64 {
        word >> NUMBER & ((1 << 48) - 1)
    }

    /// Of an access: number of its instruction, bytes, and whether it stores.
    pub fn access(word: u64) -> (usize, u64, bool) {
        let bytes = word >> BYTES & 0x7f;
        ((word >> INSTRUCTION & 0xf) as usize, bytes, word >> STORE != 0)
    }
}
