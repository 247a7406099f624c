//! The engine's side of an area.

use super::{
    BLOCKS, BURSTS, Block, CALLS, COUNTERS_IN_SLOT, COUNTERS_MAX, Call, EDGES, EVENTS, Event,
    Header, INDIRECT, JUMPS, LENGTHS, MAGIC, MAPPINGS, Mapping, NONE, NOTE_BYTES, NOTES,
    NOTES_BEGUN, RECORDS, SIZE, SLOTS, STRINGS, Table, VERSION,
};
use crate::memory::{self, load, store};
use crate::pc_map::PcMap;
use crate::system::{self, number};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

const READ_WRITE: u64 = system::PROT_READ | system::PROT_WRITE;
/// Sequence numbers that are tried for a free name.
const SEQUENCE_MAX: u32 = 1 << 20;

/// An area that this process counts into.
pub struct Area {
    base: u64,
    /// Folder of areas, without a final zero byte.
    folder: Vec<u8>,
    header: Header,
    /// Places of events in their table.
    events: PcMap,
}

impl Area {
    /// Makes an area in a folder and maps it. `counted` are flags of its header.
    pub fn create(folder: &[u8], path: &[u8], counted: u32) -> Result<Self, i64> {
        let (descriptor, sequence) = create_file(folder)?;
        let flags = system::MAP_SHARED | system::MAP_NORESERVE;
        // SAFETY: the kernel takes a place that is free.
        let base = unsafe { system::map(0, SIZE, READ_WRITE, flags, Some((descriptor, 0))) };
        system::close(descriptor);
        let mut area = Self {
            base: base.ok_or(system::EINVAL)?,
            folder: folder.to_vec(),
            header: Header {
                version: VERSION,
                sequence,
                flags: counted,
                path_len: path.len() as u32,
                ..Header::default()
            },
            events: PcMap::new(),
        };
        area.string(path);
        area.begin();
        Ok(area)
    }

    /// Writes the header, and last its magic number, which makes the area valid.
    fn begin(&mut self) {
        self.header.pid = system::pid() as u32;
        self.header.parent = system::parent() as u32;
        self.header.magic = MAGIC;
        self.publish();
    }

    /// In a child after fork that cannot have an area: replaces the area by private memory, whose
    /// counts are dropped.
    pub fn fork_uncounted(&mut self, slot: u64) {
        self.folder.clear();
        let flags = system::MAP_PRIVATE | system::MAP_ANONYMOUS | system::MAP_NORESERVE;
        let counters = self.slot(slot) + COUNTERS_IN_SLOT - self.base;
        for (from, to) in [(0, self.slot(slot) - self.base), (counters, SIZE)] {
            let flags = flags | system::MAP_FIXED;
            // SAFETY: the place is the area's own, and is read again after this.
            let own = unsafe { system::map(self.base + from, to - from, READ_WRITE, flags, None) };
            if own.is_none() {
                system::refuse(&[b"no memory for a child process"]);
            }
        }
        self.publish();
    }

    /// In a child after fork: maps an area of its own at the same address, with the parent's tables
    /// and zero counts. The private part of this thread's slot stays.
    pub fn fork(&mut self, slot: u64) -> Result<(), i64> {
        let (descriptor, sequence) = create_file(&self.folder)?;
        self.header.sequence = sequence;
        self.header.events = 0;
        self.header.records = 0;
        self.events = PcMap::new();
        for (table, used) in [
            (MAPPINGS, self.header.mappings),
            (STRINGS, self.header.strings),
            (BLOCKS, self.header.blocks),
            (LENGTHS, self.header.lengths),
            (CALLS, self.header.calls),
        ] {
            let (from, len) = (self.base + table.offset, used * table.entry);
            let arguments = [descriptor, from, len, table.offset, 0, 0];
            // SAFETY: the kernel reads the used part of a table of the area.
            let answer = unsafe { system::call(number::PWRITE64, arguments) };
            if answer != len as i64 {
                return Err(answer.min(-1));
            }
        }
        let flags = system::MAP_SHARED | system::MAP_NORESERVE | system::MAP_FIXED;
        let counters = self.slot(slot) + COUNTERS_IN_SLOT - self.base;
        for (from, to) in [(0, self.slot(slot) - self.base), (counters, SIZE)] {
            let file = Some((descriptor, from));
            // SAFETY: the place is the area's own, and the file has what was there.
            unsafe { system::map(self.base + from, to - from, READ_WRITE, flags, file) }
                .ok_or(system::EINVAL)?;
        }
        system::close(descriptor);
        self.begin();
        Ok(())
    }

    fn publish(&self) {
        store(self.base, self.header);
    }

    /// Address range of the area.
    pub fn range(&self) -> core::ops::Range<u64> {
        self.base..self.base + SIZE
    }

    pub fn counts_edges(&self) -> bool {
        self.header.flags & EDGES != 0
    }

    pub fn counts_jumps(&self) -> bool {
        self.header.flags & JUMPS != 0
    }

    pub fn records_bursts(&self) -> bool {
        self.header.flags & BURSTS != 0
    }

    /// Words of records for which there is room.
    pub fn records_room(&self) -> u64 {
        RECORDS.capacity - self.header.records
    }

    /// Records a word, which must have room. The number of records is published by
    /// [`Self::recorded`].
    pub fn record(&mut self, word: u64) {
        self.append(RECORDS, self.header.records, word);
        self.header.records += 1;
    }

    /// Publishes what was recorded.
    pub fn recorded(&mut self) {
        self.publish();
    }

    pub fn folder(&self) -> &[u8] {
        &self.folder
    }

    /// Address of a thread's slot, which is its context.
    pub fn slot(&self, slot: u64) -> u64 {
        self.base + SLOTS.offset + slot * SLOTS.entry
    }

    /// Records the number of used slots.
    pub fn used_slots(&mut self, slots: u64) {
        self.header.slots = self.header.slots.max(slots as u32);
        self.publish();
    }

    /// Allocates a counter, which is zero in all threads.
    pub fn counter(&mut self) -> u32 {
        let counter = self.header.counters;
        if u64::from(counter) + 1 >= COUNTERS_MAX {
            system::refuse(&[b"more code than it has counters for"]);
        }
        self.header.counters += 1;
        counter
    }

    fn append<T>(&self, table: Table, index: u64, entry: T) {
        if index >= table.capacity {
            system::refuse(&[b"a table of its counts is full"]);
        }
        store(self.base + table.offset + index * table.entry, entry);
    }

    fn string(&mut self, string: &[u8]) -> u32 {
        let start = self.header.strings;
        if start + string.len() as u64 > STRINGS.capacity {
            system::refuse(&[b"the table of paths is full"]);
        }
        memory::put(self.base + STRINGS.offset + start, string);
        self.header.strings += string.len() as u64;
        start as u32
    }

    /// Adds a mapping with its path. Returns its index.
    pub fn mapping(&mut self, mapping: Mapping, path: &[u8]) -> u32 {
        let index = self.header.mappings;
        let start = self.string(path);
        self.append(
            MAPPINGS,
            index,
            Mapping { path: start, path_len: path.len() as u32, ..mapping },
        );
        self.header.mappings += 1;
        self.publish();
        index as u32
    }

    /// Adds a block with the lengths of its instructions. Returns its index.
    pub fn block(&mut self, block: Block, lengths: &[u8]) -> u32 {
        let (index, start) = (self.header.blocks, self.header.lengths);
        if start + lengths.len() as u64 > LENGTHS.capacity {
            system::refuse(&[b"the table of instructions is full"]);
        }
        memory::put(self.base + LENGTHS.offset + start, lengths);
        self.append(BLOCKS, index, Block { lengths: start as u32, ..block });
        self.header.lengths += lengths.len() as u64;
        self.header.blocks += 1;
        self.publish();
        index as u32
    }

    /// Marks a block as entered by indirect branches.
    pub fn entered_indirectly(&mut self, block: u32) {
        let place = self.base + BLOCKS.offset + u64::from(block) * BLOCKS.entry;
        let found: Block = load(place);
        store(place, Block { flags: found.flags | INDIRECT, ..found });
    }

    /// The counter of a block's taken branch.
    pub fn taken_counter(&self, block: u32) -> Option<u32> {
        let found: Block = load(self.base + BLOCKS.offset + u64::from(block) * BLOCKS.entry);
        (found.taken != NONE).then_some(found.taken)
    }

    /// Allocates a counter for calls of one site to one target.
    pub fn call(&mut self, block: u32, target: u64) -> u32 {
        let counter = self.counter();
        self.append(CALLS, self.header.calls, Call { block, counter, target });
        self.header.calls += 1;
        self.publish();
        counter
    }

    /// Counts an event once more.
    pub fn event(&mut self, kind: u32, block: u32, at: u64) {
        let key = at << 2 ^ u64::from(kind) ^ u64::from(block) << 40 | 1 << 63;
        if let Some(index) = self.events.get(key) {
            let place = self.base + EVENTS.offset + u64::from(index) * EVENTS.entry;
            let event: Event = load(place);
            if (event.kind, event.block, event.at) == (kind, block, at) {
                return store(place, Event { times: event.times + 1, ..event });
            }
        }
        let index = self.header.events;
        self.append(EVENTS, index, Event { block, kind, at, times: 1 });
        self.events.insert(key, index as u32);
        self.header.events += 1;
        self.publish();
    }

    /// Notes an operation that was refused or not counted.
    pub fn note(&mut self, words: &[&[u8]]) {
        // SAFETY: the counter is in the mapped header, aligned, and only used atomically.
        let begun = unsafe { AtomicU64::from_ptr((self.base + NOTES_BEGUN) as *mut u64) };
        let index = begun.fetch_add(1, Ordering::Relaxed);
        if index >= NOTES.capacity {
            return;
        }
        let mut text = [0_u8; NOTE_BYTES];
        let bytes = words.iter().copied().flatten();
        for (place, byte) in text.iter_mut().zip(bytes) {
            *place = *byte;
        }
        self.append(NOTES, index, text);
    }
}

/// A new file of an area's size, named by the process and the first sequence number that is free.
fn create_file(folder: &[u8]) -> Result<(u64, u32), i64> {
    const O_RDWR: u64 = 2;
    const O_CREAT: u64 = 0o100;
    const O_EXCL: u64 = 0o200;
    if !is_allowed() {
        return Err(system::EFBIG);
    }
    for sequence in 0..SEQUENCE_MAX {
        let mut path = folder.to_vec();
        path.push(b'/');
        decimal(system::pid(), &mut path);
        path.push(b'.');
        decimal(u64::from(sequence), &mut path);
        path.push(0);
        match system::open(&path, O_RDWR | O_CREAT | O_EXCL, 0o600) {
            Ok(descriptor) => {
                let answer = system::set_len(descriptor, SIZE);
                if system::is_error(answer) {
                    system::close(descriptor);
                    return Err(answer);
                }
                return Ok((descriptor, sequence));
            }
            Err(system::EEXIST) => {}
            Err(error) => return Err(error),
        }
    }
    Err(system::EEXIST)
}

/// Whether the limit of file sizes allows an area; where it does not, ftruncate(2) ends the program
/// by SIGXFSZ.
pub fn is_allowed() -> bool {
    system::file_size_limit() >= SIZE
}

/// Appends a number in decimal digits.
pub fn decimal(value: u64, to: &mut Vec<u8>) {
    if value >= 10 {
        decimal(value / 10, to);
    }
    to.push(b'0' + (value % 10) as u8);
}
