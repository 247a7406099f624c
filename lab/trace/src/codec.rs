//! Encodes and decodes the format's chunks and blocks of events, which `FORMAT.md` describes.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;

use crate::event::{Corrected, Cpu, Event, EventKind, NameId, ThreadId};

/// The first bytes of every trace: a byte that is no text, a word, and a line feed, which a
/// transfer in text mode would change.
pub(crate) const MAGIC: [u8; 8] = *b"\x89DCPITR\n";
/// Version of the format.
pub(crate) const VERSION: u16 = 1;
/// Bytes before the first chunk: magic, version, two zero bytes.
pub(crate) const HEADER_BYTES: usize = 12;
/// Bytes of a chunk before its payload.
pub(crate) const CHUNK_HEADER_BYTES: usize = 16;
/// Most bytes of a chunk's unpacked content. Blocks of [`BLOCK_EVENTS`] take at most 300 KB.
pub(crate) const PLAIN_BYTES_MAX: usize = 16 << 20;
/// Events of a block. Larger blocks are packed a little tighter, but more events of each thread
/// wait in memory, and are lost if the tracer is killed.
pub(crate) const BLOCK_EVENTS: usize = 4096;
/// Most events of a block that is read: bounds the memory of its unpacked copy.
const BLOCK_EVENTS_MAX: usize = 1 << 16;
/// Compression level of deflate: on traces of calls, 1 takes half the time of 6 and writes 5 % more
/// bytes.
const LEVEL: u32 = 1;

/// The content of a chunk. Numbers are those on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkKind {
    /// Facts as JSON; the last one counts.
    Facts = 1,
    /// Names as a JSON list; numbers continue those of earlier chunks.
    Names = 2,
    /// Threads as a JSON list of pairs (number, thread). The last pair of a number counts.
    Threads = 3,
    /// Events of one thread.
    Events = 4,
    /// The end: the number of events as JSON.
    End = 5,
    /// A program with events compiled in, as JSON; numbers count such chunks.
    Program = 6,
    /// Blocks of a program as JSON: its number, and a list.
    ProgramBlocks = 7,
    /// A stream of blocks as JSON; numbers count such chunks.
    Stream = 8,
    /// Blocks of one stream in their order.
    Sequence = 9,
}

impl ChunkKind {
    /// The kind of a number; None for kinds of later releases.
    pub(crate) fn of_number(number: u8) -> Option<Self> {
        [
            Self::Facts,
            Self::Names,
            Self::Threads,
            Self::Events,
            Self::End,
            Self::Program,
            Self::ProgramBlocks,
            Self::Stream,
            Self::Sequence,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == number)
    }
}

impl ChunkKind {
    /// Whether the chunk is one of `sequence.rs`.
    pub(crate) fn is_of_sequences(self) -> bool {
        self as u8 >= Self::Program as u8
    }
}

/// A chunk with its header, packed.
pub(crate) fn chunk(kind: ChunkKind, plain: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut packer = DeflateEncoder::new(Vec::new(), Compression::new(LEVEL));
    packer.write_all(plain)?;
    let stored = packer.finish()?;
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).map_err(std::io::Error::other);
    let mut out = Vec::with_capacity(CHUNK_HEADER_BYTES + stored.len());
    out.extend([kind as u8, 0, 0, 0]);
    out.extend(length(&stored)?.to_le_bytes());
    out.extend(length(plain)?.to_le_bytes());
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&out), &stored);
    out.extend(checksum.to_le_bytes());
    out.extend(stored);
    Ok(out)
}

/// The header of a chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkHeader {
    /// Kind, as stored.
    pub(crate) kind: u8,
    /// Bytes of the payload.
    pub(crate) stored: usize,
    /// Bytes of the payload, unpacked.
    pub(crate) plain: usize,
    checksum: u32,
    before_checksum: u32,
}

impl ChunkHeader {
    /// Reads a header; None where it is malformed, or its sizes exceed the limits.
    pub(crate) fn read(bytes: &[u8; CHUNK_HEADER_BYTES]) -> Option<Self> {
        let (before, checksum) = bytes.split_at_checked(12)?;
        let [kind, 0, 0, 0] = *before.first_chunk()? else { return None };
        let number = |at: usize| {
            let bytes = before.get(at..)?.first_chunk()?;
            usize::try_from(u32::from_le_bytes(*bytes)).ok()
        };
        let (stored, plain) = (number(4)?, number(8)?);
        let is_possible = plain <= PLAIN_BYTES_MAX && stored <= PLAIN_BYTES_MAX + 1024;
        let checksum = u32::from_le_bytes(*checksum.first_chunk()?);
        let before_checksum = crc32c::crc32c(before);
        is_possible.then_some(Self { kind, stored, plain, checksum, before_checksum })
    }

    /// Unpacks the payload; None where it is damaged.
    pub(crate) fn unpack(&self, stored: &[u8]) -> Option<Vec<u8>> {
        if crc32c::crc32c_append(self.before_checksum, stored) != self.checksum {
            return None;
        }
        let mut plain = Vec::new();
        let limit = u64::try_from(self.plain).ok()?.checked_add(1)?;
        DeflateDecoder::new(stored).take(limit).read_to_end(&mut plain).ok()?;
        (plain.len() == self.plain).then_some(plain)
    }
}

/// Appends a LEB128 number: seven bits a byte, the lowest first; all but the last byte have the top
/// bit.
pub(crate) fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Zigzag code of the wrapped difference of two numbers: small for small differences of either
/// sign.
pub(crate) fn zigzag(from: u64, to: u64) -> u64 {
    let difference = to.wrapping_sub(from).cast_signed();
    ((difference << 1) ^ (difference >> 63)).cast_unsigned()
}

pub(crate) fn unzigzag(from: u64, code: u64) -> u64 {
    from.wrapping_add((code >> 1) ^ (code & 1).wrapping_neg())
}

/// Reads numbers out of bytes.
pub(crate) struct Numbers<'a> {
    bytes: &'a [u8],
}

impl<'a> Numbers<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// The next number; None at the end, or where it has more than 64 bits.
    pub(crate) fn next(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.bytes.split_first()?;
            self.bytes = rest;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn next_u32(&mut self) -> Option<u32> {
        u32::try_from(self.next()?).ok()
    }
}

/// Encodes events of one thread as columns, which deflate packs better than rows. `corrected` is
/// empty, or has a time for each event.
pub(crate) fn encode_events(
    thread: ThreadId,
    events: &[Event],
    corrected: &[Corrected],
) -> Vec<u8> {
    let mut out = Vec::with_capacity(events.len() * 8);
    let has_corrected = !corrected.is_empty();
    varint(&mut out, u64::from(thread.0));
    varint(&mut out, events.len() as u64);
    varint(&mut out, u64::from(has_corrected));
    let mut codes: Vec<(EventKind, NameId)> = Vec::new();
    let mut by_event = Vec::with_capacity(events.len());
    let mut numbers = std::collections::HashMap::new();
    for event in events {
        let code = (event.kind, event.name);
        let number = *numbers.entry(code).or_insert_with(|| {
            codes.push(code);
            codes.len() as u64 - 1
        });
        varint(&mut by_event, number);
    }
    varint(&mut out, codes.len() as u64);
    for (kind, name) in codes {
        out.push(kind as u8);
        varint(&mut out, u64::from(name.0));
    }
    out.extend(by_event);
    let mut last = 0;
    for event in events {
        varint(&mut out, zigzag(last, event.time_ns));
        last = event.time_ns;
    }
    encode_cpus(&mut out, events);
    let mut last = 0;
    for event in events {
        varint(&mut out, zigzag(last, event.argument));
        last = event.argument;
    }
    let mut shift = 0;
    for (event, corrected) in events.iter().zip(corrected) {
        let value = corrected.value_ns.wrapping_sub(event.time_ns);
        varint(&mut out, zigzag(shift, value));
        varint(&mut out, zigzag(corrected.low_ns, corrected.value_ns));
        varint(&mut out, zigzag(corrected.value_ns, corrected.high_ns));
        shift = value;
    }
    out
}

/// Appends CPUs as runs: number of events, and the CPU's number + 1, or 0 for an unknown CPU.
fn encode_cpus(out: &mut Vec<u8>, events: &[Event]) {
    for run in events.chunk_by(|a, b| a.cpu == b.cpu) {
        varint(out, run.len() as u64);
        let cpu = run.first().and_then(|event| event.cpu);
        varint(out, cpu.map_or(0, |cpu| u64::from(cpu.number()) + 1));
    }
}

/// The thread, events and corrected times of a block; None where the block is malformed.
pub(crate) fn decode_events(plain: &[u8]) -> Option<(ThreadId, Vec<Event>, Vec<Corrected>)> {
    let mut numbers = Numbers::new(plain);
    let thread = ThreadId(numbers.next_u32()?);
    let count = usize::try_from(numbers.next()?).ok()?;
    let has_corrected = match numbers.next()? {
        0 => false,
        1 => true,
        _ => return None,
    };
    // Each event takes at least a byte in each of the columns of codes, times and arguments.
    if count > plain.len() / 3 || count > BLOCK_EVENTS_MAX {
        return None;
    }
    let codes = usize::try_from(numbers.next()?).ok().filter(|codes| *codes <= count)?;
    let codes = (0..codes).map(|_| {
        let kind = u8::try_from(numbers.next()?).ok()?;
        Some((EventKind::of_number(kind)?, NameId(numbers.next_u32()?)))
    });
    let codes = codes.collect::<Option<Vec<(EventKind, NameId)>>>()?;
    let mut events = Vec::with_capacity(count);
    for _ in 0..count {
        let (kind, name) = *codes.get(usize::try_from(numbers.next()?).ok()?)?;
        events.push(Event { kind, name, thread, ..Event::default() });
    }
    let mut last = 0;
    for event in &mut events {
        last = unzigzag(last, numbers.next()?);
        event.time_ns = last;
    }
    let mut rest = events.as_mut_slice();
    while !rest.is_empty() {
        let length = usize::try_from(numbers.next()?).ok().filter(|length| *length > 0)?;
        let cpu = numbers.next_u32()?.checked_sub(1).and_then(Cpu::new);
        let (run, after) = rest.split_at_mut_checked(length)?;
        run.iter_mut().for_each(|event| event.cpu = cpu);
        rest = after;
    }
    let mut last = 0;
    for event in &mut events {
        last = unzigzag(last, numbers.next()?);
        event.argument = last;
    }
    let mut corrected = Vec::new();
    let mut shift = 0;
    for event in events.iter().filter(|_| has_corrected) {
        shift = unzigzag(shift, numbers.next()?);
        let value_ns = event.time_ns.wrapping_add(shift);
        let low_ns = value_ns.wrapping_sub(unzigzag(0, numbers.next()?));
        let high_ns = unzigzag(value_ns, numbers.next()?);
        corrected.push(Corrected { low_ns, value_ns, high_ns });
    }
    numbers.bytes.is_empty().then_some((thread, events, corrected))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_of_the_format_description() {
        let mut out = Vec::new();
        varint(&mut out, 300);
        assert_eq!(out, [0xac, 0x02]);
        assert_eq!(Numbers::new(&out).next(), Some(300));
        assert_eq!([(0, 0), (0, 1), (1, 0), (5, 3)].map(|(a, b)| zigzag(a, b)), [0, 2, 1, 3]);
        out.clear();
        varint(&mut out, u64::MAX);
        assert_eq!(Numbers::new(&out).next(), Some(u64::MAX));
        assert_eq!(Numbers::new(&[0x80; 11]).next(), None, "more than 64 bits");
        assert_eq!(Numbers::new(&[0x80]).next(), None, "cut");
    }

    fn any_event() -> impl Strategy<Value = Event> {
        (any::<u64>(), any::<u64>(), 0_u32..5, prop::option::of(0_u32..65535), 1_u8..20).prop_map(
            |(time_ns, argument, name, cpu, kind)| Event {
                time_ns,
                argument,
                thread: ThreadId(7),
                name: NameId(name),
                cpu: cpu.and_then(Cpu::new),
                kind: EventKind::of_number(kind).unwrap(),
            },
        )
    }

    proptest! {
        #[test]
        fn blocks_come_back_as_they_were(
            events in prop::collection::vec(any_event(), 1..50),
            times in prop::collection::vec(any::<[u64; 3]>(), 50),
            has_corrected: bool,
        ) {
            let corrected: Vec<Corrected> = times
                .iter()
                .take(if has_corrected { events.len() } else { 0 })
                .map(|[low_ns, value_ns, high_ns]| Corrected {
                    low_ns: *low_ns, value_ns: *value_ns, high_ns: *high_ns,
                })
                .collect();
            let plain = encode_events(ThreadId(7), &events, &corrected);
            prop_assert_eq!(decode_events(&plain), Some((ThreadId(7), events, corrected)));
            for length in (0..plain.len()).step_by(plain.len() / 20 + 1) {
                prop_assert_eq!(decode_events(&plain[..length]), None);
            }
        }

        #[test]
        fn damaged_blocks_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some((_, events, corrected)) = decode_events(&bytes) {
                prop_assert!(events.len() <= bytes.len());
                prop_assert!(corrected.is_empty() || corrected.len() == events.len());
            }
        }
    }

    #[test]
    fn a_changed_byte_of_a_chunk_is_found() {
        let whole = chunk(ChunkKind::Facts, b"{\"host\":\"h\"}").unwrap();
        let unpack = |bytes: &[u8]| {
            ChunkHeader::read(bytes.first_chunk().unwrap())?.unpack(&bytes[CHUNK_HEADER_BYTES..])
        };
        assert_eq!(unpack(&whole).unwrap(), b"{\"host\":\"h\"}");
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 4;
            assert_eq!(unpack(&changed), None, "byte {at}");
        }
    }

    #[test]
    fn a_chunk_that_unpacks_to_more_than_it_says_is_refused() {
        let mut bomb = chunk(ChunkKind::Names, &vec![b' '; 1 << 20]).unwrap();
        bomb[8..12].copy_from_slice(&5_u32.to_le_bytes());
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&bomb[..12]), &bomb[16..]);
        bomb[12..16].copy_from_slice(&checksum.to_le_bytes());
        let header = ChunkHeader::read(bomb.first_chunk().unwrap()).unwrap();
        assert_eq!(header.unpack(&bomb[CHUNK_HEADER_BYTES..]), None);
    }
}
