//! The file that programs with events share with `dcpi trace`, byte for byte. All numbers are
//! little-endian.
//!
//! ```text
//! 0        header: magic, whether programs wait, slots that were ever used, events without a slot
//! 64 KiB   slot 0, slot 1, ...: 1 MiB each, one for each thread at a time
//!            0        the slot's header
//!            32 KiB   chunk 0, 1, ... 14: 64 KiB each; events of 4 bytes fill the first half, and
//!                     the second takes those until the next check for room
//! ```
//!
//! A chunk's state is one word. The thread takes a free chunk, fills it and marks it as full; the
//! reader frees it. A thread clears a chunk before it takes it, so places without event are 0: they
//! repeat the first block of the chain of the next event (`lab/asm-events/src/rewrite.rs`), or are
//! what a thread that has ended, or was killed, left of its last chunk, which stays open.

/// The first 8 bytes: a name, and the version of the layout.
pub const MAGIC: u64 = u64::from_le_bytes(*b"dcpiblk1");
/// The variable of the environment with the file's path.
pub const VARIABLE: &str = "DCPI_TRACE_BLOCKS";
/// Threads at a time. More are traced when others have ended; their events are counted as lost.
pub const SLOTS: usize = 1024;
/// Bytes of the file's header.
pub const HEADER_BYTES: usize = 0x1_0000;
/// Bytes of a slot. Positions need its address to be a multiple of 64 KiB.
pub const SLOT_BYTES: usize = 0x10_0000;
/// Bytes of a chunk: a period of bit 15 of positions.
pub const CHUNK_BYTES: usize = 0x1_0000;
/// Bytes of a chunk that are filled before a check finds it full.
pub const CHUNK_FILL_BYTES: usize = 0x8000;
/// Offset of the first chunk in its slot. Bit 15 of a position is set while the chunk has room.
pub const FIRST_CHUNK: usize = 0x8000;
/// Chunks of a slot: few, so that those in use stay in caches; enough for 30 ms of a reader that
/// has no CPU, at an event a ns.
pub const CHUNKS: usize = 15;
/// Bytes of an event: a signed distance from `dcpi_trace_origin` back to the event's address.
pub const EVENT_BYTES: usize = 4;
/// A value in place of an event that marks lost events of the thread before it. Zero places before
/// it belong to a loop whose event is lost. No block has this distance from the origin.
pub const LOSS: i32 = i32::MIN;
/// Signal handlers within signal handlers whose events are kept.
pub const DEPTH_MAX: u32 = 7;
/// Longest path of a program that is reported, in bytes.
pub const PATH_BYTES: usize = 1024;

/// Offsets in the file's header.
pub mod header {
    /// u64: [`super::MAGIC`].
    pub const MAGIC: usize = 0;
    /// u32: 1 if threads wait for the reader when all of their chunks are full, 0 if they lose
    /// events.
    pub const WAIT: usize = 8;
    /// u32: one more than the highest slot that was ever taken.
    pub const USED: usize = 12;
    /// u64: events of threads that found no slot.
    pub const LOST: usize = 16;
}

/// Offsets in a slot's header.
pub mod slot {
    /// u32: 1 while a thread has the slot. The reader sets it to 0 when the thread has ended.
    pub const OWNED: usize = 0;
    /// u32: number of the process, 0 until the rest of this header holds.
    pub const PID: usize = 4;
    /// u32: number of the thread.
    pub const TID: usize = 8;
    /// u32: chunks that the thread took so far.
    pub const TAKEN: usize = 12;
    /// u64: events that were lost because no chunk was free.
    pub const LOST: usize = 16;
    /// u64: address of `dcpi_trace_origin` less that of the program's ELF header.
    pub const ORIGIN: usize = 24;
    /// u32: depth of signal handlers.
    pub const DEPTH: usize = 32;
    /// u32: the chunk that the thread fills.
    pub const CURRENT: usize = 36;
    /// u64 for each chunk: its state.
    pub const STATES: usize = 64;
    /// u32 for each chunk: bytes that must be cleared before it is taken.
    pub const DIRTY: usize = 256;
    /// For each depth of handlers, two u32: one more than the chunk that handlers fill there, and
    /// its bytes so far. A handler goes on where the last one of its depth ended.
    pub const HANDLERS: usize = 384;
    /// The program's path, ended by a 0 byte.
    pub const PATH: usize = 1024;
}

// Nothing overlaps.
const _: () = assert!(slot::STATES + CHUNKS * 8 <= slot::DIRTY);
const _: () = assert!(slot::DIRTY + CHUNKS * 4 <= slot::HANDLERS);
const _: () = assert!(slot::HANDLERS + 8 * (DEPTH_MAX as usize + 1) <= slot::PATH);
const _: () = assert!(slot::PATH + PATH_BYTES <= FIRST_CHUNK);
const _: () = assert!(FIRST_CHUNK + CHUNKS * CHUNK_BYTES <= SLOT_BYTES);

/// The meaning of a chunk's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Which of its thread's chunks it is, from 1. 0: the chunk is free.
    pub number: u32,
    /// Nesting depth of signal handlers, 0 to 7.
    pub depth: u8,
    /// Bytes of events; None while the thread writes more.
    pub bytes: Option<u32>,
}

impl State {
    /// An unused chunk.
    pub const FREE: u64 = 0;

    /// The state of a word.
    #[must_use]
    pub fn read(word: u64) -> Self {
        let open = word & 1 << 23 != 0;
        Self {
            number: (word >> 24) as u32,
            depth: ((word >> 20) & 7) as u8,
            bytes: if open { None } else { Some((word & 0xf_ffff) as u32) },
        }
    }

    /// The word of a state.
    #[must_use]
    pub fn word(self) -> u64 {
        let bytes = self.bytes.map_or(1 << 23, |bytes| u64::from(bytes & 0xf_ffff));
        u64::from(self.number) << 24 | u64::from(self.depth & 7) << 20 | bytes
    }
}

/// Offset of a slot in the file.
#[must_use]
pub fn slot_offset(slot: usize) -> usize {
    HEADER_BYTES + slot * SLOT_BYTES
}

/// Offset of a chunk in its slot.
#[must_use]
pub fn chunk_offset(chunk: usize) -> usize {
    FIRST_CHUNK + chunk * CHUNK_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_its_word() {
        for bytes in [None, Some(4), Some(CHUNK_BYTES as u32)] {
            for number in [1, u32::MAX] {
                let state = State { number, depth: 7, bytes };
                assert_eq!(State::read(state.word()), state);
                assert_ne!(state.word(), State::FREE);
            }
        }
    }

    #[test]
    fn positions_say_whether_there_is_room() {
        for chunk in 0..CHUNKS {
            let begin = chunk_offset(chunk);
            assert_eq!(begin & 0x8000, 0x8000);
            assert_eq!((begin + CHUNK_FILL_BYTES - 1) & 0x8000, 0x8000);
            assert_eq!((begin + CHUNK_FILL_BYTES) & 0x8000, 0);
        }
    }
}
