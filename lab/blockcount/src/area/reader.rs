//! Reads areas, which may be malformed: sizes are checked, and memory grows only with valid
//! entries.

use super::{
    BLOCKS, Block, CALLS, COUNTERS_IN_SLOT, Call, EDGES, EVENTS, Event, HEADER, Header, INDIRECT,
    LENGTHS, MAGIC, MAPPINGS, Mapping, NONE, NOTE_BYTES, NOTES, RECORDS, SLOTS, STRINGS, Table,
    VERSION, event, kind,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

/// `open(2)` does not wait until somebody writes to a FIFO (include/uapi/asm-generic/fcntl.h).
const O_NONBLOCK: i32 = 0o4000;

/// Errors of reading an area.
#[derive(Debug)]
pub enum ReadError {
    /// The file cannot be read.
    Io(io::Error),
    /// The file is no area, or of another version.
    NotAnArea,
    /// A table exceeds its capacity, or an entry is not valid.
    Damaged(&'static str),
}

impl std::fmt::Display for ReadError {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(error) => error.fmt(to),
            Self::NotAnArea => to.write_str("not a file of counts, or of another version"),
            Self::Damaged(what) => write!(to, "damaged: {what}"),
        }
    }
}

impl std::error::Error for ReadError {}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The counts of a process.
#[derive(Debug)]
pub struct Counted {
    /// The process that counted.
    pub header: Header,
    /// Path of the program.
    pub program: Vec<u8>,
    /// The files that code was mapped from, with paths.
    pub mappings: Vec<(Mapping, Vec<u8>)>,
    /// Blocks with their counts.
    pub blocks: Vec<CountedBlock>,
    /// Indirect calls and jumps by site and target, with their counts.
    pub calls: Vec<(Call, u64)>,
    /// Special events in single executions.
    pub events: Vec<Event>,
    /// Operations that were refused or not counted.
    pub notes: Vec<String>,
}

/// A block with its counts, before [`Counted::events`].
#[derive(Clone, Debug)]
pub struct CountedBlock {
    /// The block.
    pub block: Block,
    /// Lengths of its instructions, bytes.
    pub lengths: Vec<u8>,
    /// Executions.
    pub count: u64,
    /// Executions that took the branch at its end, where these are counted.
    pub taken: u64,
}

impl CountedBlock {
    /// Address after the last instruction.
    pub fn end(&self) -> u64 {
        self.block.address.wrapping_add(u64::from(self.block.len))
    }

    /// Address of the last instruction.
    pub fn last(&self) -> u64 {
        self.end().wrapping_sub(u64::from(self.lengths.last().copied().unwrap_or(0)))
    }
}

/// A place in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// Index of the file, as in [`Counted::files`].
    pub file: usize,
    /// Offset in the file; the address where no file is mapped.
    pub offset: u64,
}

/// Executions of a file's instructions.
#[derive(Clone, Debug, Default)]
pub struct FileCounts {
    /// Path; `[vdso]` or empty where no file is mapped.
    pub path: Vec<u8>,
    /// Device, as in [`Mapping::device`].
    pub device: u64,
    /// Inode, zero without a file.
    pub inode: u64,
    /// As [`Mapping::size`].
    pub size: u64,
    /// As [`Mapping::modified_ns`].
    pub modified_ns: u64,
    /// Length in bytes and executions of each instruction, by [`Location::offset`].
    pub instructions: BTreeMap<u64, (u8, u64)>,
}

/// Executions of one edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The branch or call.
    pub from: Location,
    /// The target; `None` for targets of an indirect call beyond the first few.
    pub to: Option<Location>,
    /// Executions.
    pub count: u64,
}

/// Comparison of the executions of blocks with the sums of their incoming edges.
#[derive(Clone, Debug, Default)]
pub struct Flow {
    /// Addresses at which blocks begin.
    pub addresses: usize,
    /// The blocks that no indirect branch enters, so that all their edges are counted.
    pub exact: usize,
    /// Blocks whose executions and sum of edges differ: address, executions, edges. Each thread
    /// that ran when counting ended may cause a difference of one.
    pub differences: Vec<(u64, i64, i64)>,
}

trait Entry: Sized {
    const BYTES: usize;
    fn parse(bytes: &[u8]) -> Option<Self>;
}

/// Little-endian fields one after the other.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }
}

/// Entries of the types with these fields, in their order.
macro_rules! entries {
    ($($entry:ident { $($field:ident: $number:ident),+ })+) => {$(
        impl Entry for $entry {
            const BYTES: usize = size_of::<Self>();

            fn parse(bytes: &[u8]) -> Option<Self> {
                let mut fields = Fields(bytes);
                Some(Self { $($field: fields.bytes().map($number::from_le_bytes)?),+ })
            }
        }
    )+};
}

entries! {
    Header {
        magic: u64, version: u32, pid: u32, parent: u32, sequence: u32, flags: u32, slots: u32,
        counters: u32, path_len: u32, mappings: u64, strings: u64, blocks: u64, lengths: u64,
        calls: u64, events: u64, records: u64
    }
    Mapping {
        start: u64, end: u64, offset: u64, device: u64, inode: u64, size: u64, modified_ns: u64,
        path: u32, path_len: u32
    }
    Block {
        address: u64, target: u64, mapping: u32, counter: u32, taken: u32, lengths: u32, len: u16,
        instructions: u8, kind: u8, flags: u32
    }
    Call { block: u32, counter: u32, target: u64 }
    Event { block: u32, kind: u32, at: u64, times: u64 }
}

/// Bytes that are read at once.
const PART: usize = 1 << 16;

/// Reads a table entry by entry; `check` returns whether an entry is valid.
fn table<T: Entry>(
    file: &File,
    table: Table,
    used: u64,
    what: &'static str,
    mut check: impl FnMut(&T) -> bool,
) -> Result<Vec<T>, ReadError> {
    if used > table.capacity {
        return Err(ReadError::Damaged(what));
    }
    let mut entries = Vec::new();
    let mut part = vec![0_u8; PART / T::BYTES * T::BYTES];
    let total = used * table.entry;
    let mut done = 0;
    while done < total {
        let len = (total - done).min(part.len() as u64) as usize;
        let part = part.get_mut(..len).unwrap_or_default();
        file.read_exact_at(part, table.offset + done)?;
        for bytes in part.chunks_exact(T::BYTES) {
            match T::parse(bytes).filter(&mut check) {
                Some(entry) => entries.push(entry),
                None => return Err(ReadError::Damaged(what)),
            }
        }
        done += len as u64;
    }
    Ok(entries)
}

/// Longest path that is read, bytes.
const PATH_MAX: u32 = 4096;

fn string(file: &File, start: u32, len: u32) -> Result<Vec<u8>, ReadError> {
    let mut string = vec![0; len.min(PATH_MAX) as usize];
    if u64::from(start) + string.len() as u64 > STRINGS.capacity {
        return Err(ReadError::Damaged("a path"));
    }
    file.read_exact_at(&mut string, STRINGS.offset + u64::from(start))?;
    Ok(string)
}

impl Counted {
    /// Reads the area at a path; its process may still run.
    ///
    /// # Errors
    /// The file cannot be read, is no area, or makes no sense.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        // The counted program may put something else there, such as a FIFO, which nobody writes.
        let file = File::options().read(true).custom_flags(O_NONBLOCK).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(ReadError::NotAnArea);
        }
        Self::read(&file)
    }

    /// Reads an open area.
    ///
    /// # Errors
    /// Returns the errors of [`Self::open`].
    pub fn read(file: &File) -> Result<Self, ReadError> {
        let mut head = [0; Header::BYTES];
        file.read_exact_at(&mut head, HEADER.offset)?;
        let header = Header::parse(&head).ok_or(ReadError::NotAnArea)?;
        if header.magic != MAGIC || header.version != VERSION {
            return Err(ReadError::NotAnArea);
        }
        let mapping = |mapping: &Mapping| mapping.start < mapping.end;
        let mappings = table(file, MAPPINGS, header.mappings, "a mapping", mapping)?;
        let block = |block: &Block| {
            block.instructions > 0
                && block.len >= u16::from(block.instructions)
                && block.address.checked_add(u64::from(block.len)).is_some()
                && u64::from(block.lengths) + u64::from(block.instructions) <= header.lengths
                && block.counter < header.counters
                && (block.taken == NONE || block.taken < header.counters)
        };
        let blocks: Vec<Block> = table(file, BLOCKS, header.blocks, "a block", block)?;
        let call =
            |call: &Call| u64::from(call.block) < header.blocks && call.counter < header.counters;
        let calls: Vec<Call> = table(file, CALLS, header.calls, "a call", call)?;
        let event = |event: &Event| {
            u64::from(event.block) < header.blocks && event.kind <= event::ENDED && event.times > 0
        };
        let events = table(file, EVENTS, header.events, "an event", event)?;
        let counters = counters(file, &header, blocks.len(), calls.len())?;
        let count = |counter: u32| counters.get(counter as usize).copied().unwrap_or(0);
        let lengths = lengths(file, &header, &blocks)?;
        let counted = |(block, lengths): (Block, Vec<u8>)| CountedBlock {
            block,
            lengths,
            count: count(block.counter),
            taken: count(block.taken),
        };
        Ok(Self {
            header,
            program: string(file, 0, header.path_len)?,
            mappings: mappings
                .into_iter()
                .map(|mapping: Mapping| {
                    Ok((mapping, string(file, mapping.path, mapping.path_len)?))
                })
                .collect::<Result<_, ReadError>>()?,
            blocks: blocks.into_iter().zip(lengths).map(counted).collect(),
            calls: calls.into_iter().map(|call| (call, count(call.counter))).collect(),
            events,
            notes: notes(file)?,
        })
    }

    /// Executions by which an event of a block changes the count of its instruction at `at`.
    fn changes(event: &Event, at: u64) -> i64 {
        let times = event.times as i64;
        match event.kind {
            event::LEFT if at >= event.at => times.wrapping_neg(),
            event::LEFT_UNCOUNTED if at < event.at => times,
            _ => 0,
        }
    }

    /// Executions of every instruction, by file.
    pub fn files(&self) -> Vec<FileCounts> {
        let (mut files, of_mapping) = self.by_file();
        let mut events: BTreeMap<u32, Vec<&Event>> = BTreeMap::new();
        for event in &self.events {
            events.entry(event.block).or_default().push(event);
        }
        for (index, counted) in self.blocks.iter().enumerate() {
            let events = events.get(&(index as u32)).map(Vec::as_slice).unwrap_or_default();
            let mapping = counted.block.mapping as usize;
            let Some(file) = of_mapping.get(mapping).and_then(|file| files.get_mut(*file)) else {
                continue;
            };
            let mut at = counted.block.address;
            for len in &counted.lengths {
                let changes = events.iter().map(|event| Self::changes(event, at));
                let count = changes.fold(counted.count as i64, i64::wrapping_add).max(0) as u64;
                let offset = self.offset(mapping, at);
                let entry = file.instructions.entry(offset).or_insert((*len, 0));
                entry.1 = entry.1.wrapping_add(count);
                at = at.wrapping_add(u64::from(*len));
            }
        }
        files
    }

    /// The place of each instruction of each block.
    pub fn places(&self) -> Vec<Vec<Option<Location>>> {
        let (_, of_mapping) = self.by_file();
        let of_block = |counted: &CountedBlock| {
            let mapping = counted.block.mapping as usize;
            let file = of_mapping.get(mapping).copied();
            let mut at = counted.block.address;
            let place = |len: &u8| {
                let offset = self.offset(mapping, at);
                at = at.wrapping_add(u64::from(*len));
                file.map(|file| Location { file, offset })
            };
            counted.lengths.iter().map(place).collect()
        };
        self.blocks.iter().map(of_block).collect()
    }

    /// Executions of all instructions, from the blocks alone: the sum of [`Self::files`], unless
    /// executions were lost on the way there.
    pub fn instructions(&self) -> u64 {
        let of_block =
            |counted: &CountedBlock| counted.count.wrapping_mul(counted.lengths.len() as u64);
        let blocks = self.blocks.iter().map(of_block).fold(0, u64::wrapping_add);
        let changes = self.events.iter().map(|event| {
            let Some(counted) = self.blocks.get(event.block as usize) else { return 0 };
            let mut at = counted.block.address;
            let mut sum = 0_i64;
            for len in &counted.lengths {
                sum = sum.wrapping_add(Self::changes(event, at));
                at = at.wrapping_add(u64::from(*len));
            }
            sum
        });
        blocks.wrapping_add_signed(changes.fold(0, i64::wrapping_add))
    }

    /// Files without counts, and the file of each mapping.
    pub(super) fn by_file(&self) -> (Vec<FileCounts>, Vec<usize>) {
        let mut files: Vec<FileCounts> = Vec::new();
        let mut known = BTreeMap::new();
        let of_mapping = self.mappings.iter().map(|(mapping, path)| {
            let Mapping { device, inode, size, modified_ns, .. } = *mapping;
            let key = (device, inode, size, modified_ns, path.as_slice());
            *known.entry(key).or_insert_with(|| {
                files.push(FileCounts {
                    path: path.clone(),
                    device,
                    inode,
                    size,
                    modified_ns,
                    ..FileCounts::default()
                });
                files.len() - 1
            })
        });
        let of_mapping = of_mapping.collect();
        (files, of_mapping)
    }

    /// Offset in its file of an address of a mapping; the address itself without a file.
    fn offset(&self, mapping: usize, at: u64) -> u64 {
        match self.mappings.get(mapping) {
            Some((mapping, _)) if mapping.inode != 0 => {
                at.wrapping_sub(mapping.start).wrapping_add(mapping.offset)
            }
            _ => at,
        }
    }

    /// The place of an address: in `near` if it has it, else in the mapping that came last.
    pub(super) fn location(&self, of_mapping: &[usize], near: usize, at: u64) -> Option<Location> {
        let has = |index: &usize| {
            self.mappings
                .get(*index)
                .is_some_and(|(mapping, _)| (mapping.start..mapping.end).contains(&at))
        };
        let mapping = Some(near).filter(has).or_else(|| (0..self.mappings.len()).rev().find(has));
        let mapping = mapping?;
        let file = of_mapping.get(mapping).copied()?;
        Some(Location { file, offset: self.offset(mapping, at) })
    }

    /// Compares executions of each block with the sum of the edges into it. Says nothing when
    /// edges were not counted.
    pub fn flow(&self) -> Flow {
        let mut flow = Flow::default();
        if self.header.flags & EDGES == 0 {
            return flow;
        }
        // Executions, edges, and whether indirect branches come in.
        let mut sums: BTreeMap<u64, (i64, i64, bool)> = BTreeMap::new();
        let mut edges: BTreeMap<u64, i64> = BTreeMap::new();
        let mut left = vec![0_i64; self.blocks.len()];
        for event in &self.events {
            let times = event.times as i64;
            let block = event.block as usize;
            let address = self.blocks.get(block).map_or(0, |counted| counted.block.address);
            match event.kind {
                event::LEFT | event::ENDED => {
                    if let Some(left) = left.get_mut(block) {
                        *left = left.wrapping_add(times);
                    }
                }
                event::LEFT_UNCOUNTED => {
                    let sum = &mut sums.entry(address).or_default().0;
                    *sum = sum.wrapping_add(times);
                }
                _ => add(&mut edges, address, times),
            }
        }
        for (counted, left) in self.blocks.iter().zip(left) {
            let block = &counted.block;
            let sum = sums.entry(block.address).or_default();
            sum.0 = sum.0.wrapping_add(counted.count as i64);
            sum.2 |= block.flags & INDIRECT != 0;
            let (out, taken) = ((counted.count as i64).wrapping_sub(left), counted.taken as i64);
            match block.kind {
                kind::CUT | kind::SYSTEM_CALL | kind::TRAP => add(&mut edges, counted.end(), out),
                kind::JUMP | kind::CALL => add(&mut edges, block.target, out),
                kind::CONDITIONAL => {
                    add(&mut edges, block.target, taken);
                    add(&mut edges, counted.end(), out.wrapping_sub(taken));
                }
                _ => {}
            }
        }
        for (call, count) in &self.calls {
            add(&mut edges, call.target, *count as i64);
        }
        flow.addresses = sums.len();
        for (address, (executions, _, indirect)) in sums {
            let edges = edges.get(&address).copied().unwrap_or(0);
            flow.exact += usize::from(!indirect);
            if edges > executions || !indirect && edges != executions {
                flow.differences.push((address, executions, edges));
            }
        }
        flow
    }
}

/// What the bursts of the area at a path recorded, word by word: words that are no record are the
/// receiver's to leave out.
///
/// # Errors
/// Returns the errors of [`Counted::open`].
pub fn records(path: &Path, header: &Header, mut each: impl FnMut(u64)) -> Result<(), ReadError> {
    let file = File::options().read(true).custom_flags(O_NONBLOCK).open(path)?;
    let mut part = vec![0_u8; PART];
    let total = header.records.min(RECORDS.capacity) * RECORDS.entry;
    let mut done = 0;
    while done < total {
        let part = part.get_mut(..(total - done).min(PART as u64) as usize).unwrap_or_default();
        file.read_exact_at(part, RECORDS.offset + done)?;
        part.as_chunks::<8>().0.iter().for_each(|word| each(u64::from_le_bytes(*word)));
        done += part.len() as u64;
    }
    Ok(())
}

fn add(edges: &mut BTreeMap<u64, i64>, to: u64, count: i64) {
    let edge = edges.entry(to).or_default();
    *edge = edge.wrapping_add(count);
}

/// Sums of the counters over all threads.
fn counters(
    file: &File,
    header: &Header,
    blocks: usize,
    calls: usize,
) -> Result<Vec<u64>, ReadError> {
    // A block has two at most, and a call has one.
    if header.counters as usize > 2 * blocks + calls + 2 || u64::from(header.slots) > SLOTS.capacity
    {
        return Err(ReadError::Damaged("the number of counters"));
    }
    let mut sums = vec![0_u64; header.counters as usize];
    let mut part = vec![0_u8; PART];
    for slot in 0..u64::from(header.slots) {
        let start = SLOTS.offset + slot * SLOTS.entry + COUNTERS_IN_SLOT;
        for (index, sums) in sums.chunks_mut(PART / 8).enumerate() {
            let part = part.get_mut(..8 * sums.len()).unwrap_or_default();
            file.read_exact_at(part, start + (index * PART) as u64)?;
            for (sum, bytes) in sums.iter_mut().zip(part.as_chunks::<8>().0) {
                *sum = sum.wrapping_add(u64::from_le_bytes(*bytes));
            }
        }
    }
    Ok(sums)
}

/// Lengths of the instructions of each block.
fn lengths(file: &File, header: &Header, blocks: &[Block]) -> Result<Vec<Vec<u8>>, ReadError> {
    if header.lengths > LENGTHS.capacity {
        return Err(ReadError::Damaged("the number of instructions"));
    }
    let mut all = Vec::with_capacity(blocks.len());
    for block in blocks {
        let mut lengths = vec![0; usize::from(block.instructions)];
        file.read_exact_at(&mut lengths, LENGTHS.offset + u64::from(block.lengths))?;
        let sum: u16 = lengths.iter().map(|len| u16::from(*len)).sum();
        if sum != block.len || lengths.contains(&0) {
            return Err(ReadError::Damaged("lengths of instructions"));
        }
        all.push(lengths);
    }
    Ok(all)
}

fn notes(file: &File) -> Result<Vec<String>, ReadError> {
    let mut notes = Vec::new();
    for index in 0..NOTES.capacity {
        let mut text = [0; NOTE_BYTES];
        file.read_exact_at(&mut text, NOTES.offset + index * NOTES.entry)?;
        let len = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        if len == 0 {
            break;
        }
        let text = text.get(..len).unwrap_or_default();
        notes.push(String::from_utf8_lossy(text).into_owned());
    }
    Ok(notes)
}
