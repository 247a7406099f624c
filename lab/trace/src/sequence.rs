//! Writes and reads the sequence of a program's basic blocks, by thread and without times, in
//! chunks of a trace that `FORMAT.md` describes.
//!
//! An event identifies the last executed block of a chain (see `asm-events`); the blocks of the
//! chain before it were executed, too.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

use crate::codec::{
    CHUNK_HEADER_BYTES, ChunkHeader, ChunkKind, HEADER_BYTES, MAGIC, Numbers, VERSION, chunk,
    unzigzag, varint, zigzag,
};
use crate::event::Facts;
use crate::reader::{ReadError, check_header};

/// Blocks of all programs of a trace, at most.
pub const BLOCKS_MAX: usize = 1 << 22;
/// Bytes of blocks, programs and streams of a trace in memory, with their texts, at most.
pub const BLOCKS_BYTES_MAX: usize = 1 << 30;
/// Most blocks of a chain; of a longer one, the last blocks alone count as executed. Each label and
/// call ends a chain.
pub const CHAIN_MAX: u32 = 1 << 12;
/// Streams of a trace, at most.
pub const STREAMS_MAX: usize = 1 << 16;
/// Blocks of a chunk: the names of 20,000 take some megabytes.
const BLOCKS_A_CHUNK: usize = 20_000;
/// Most events of a chunk, which readers unpack at once.
const EVENTS_A_CHUNK: usize = 1 << 20;
/// Base-2 logarithm of the number of contexts of a stream's predictor. 64 KiB per stream fit in a
/// cache; four times as many contexts save 2 % of bzip2's bytes.
const CONTEXT_BITS: u32 = 14;
/// The same for streams after the first [`STREAMS_OF_MANY_CONTEXTS`], so that all predictors take
/// at most 496 MiB. A program with thousands of threads has short streams.
const FEW_CONTEXT_BITS: u32 = 10;
/// Streams with many contexts.
const STREAMS_OF_MANY_CONTEXTS: usize = 1 << 12;

/// A basic block.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// Offset of its first instruction in the program's file, in bytes.
    pub offset: u64,
    /// The procedure that it is of; empty where that is not known.
    pub procedure: String,
    /// Number of the block in its procedure, from 0.
    pub number: u32,
    /// Source file; empty where it is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub file: String,
    /// Line of the source file, from 1; 0 where it is not known.
    #[serde(default)]
    pub line: u32,
    /// Whether only the block before leads to this one, so that its event implies that block's
    /// execution.
    #[serde(default)]
    pub chained: bool,
}

/// A program with events compiled in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Its path.
    pub path: String,
    /// Its blocks in the order of the object files, by their index.
    #[serde(skip)]
    pub blocks: Vec<Block>,
}

/// The events of one thread in one depth of signal handlers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stream {
    /// Index of the program.
    pub program: u32,
    /// Number of the process.
    pub pid: u32,
    /// Number of the thread in the system.
    pub tid: u32,
    /// Nesting depth of signal handlers, 0 to 7; 0 is code outside handlers. Each depth has a
    /// stream.
    pub handlers: u8,
}

/// Predicts a stream's next event: the one that followed the last three events when they occurred
/// last.
#[derive(Clone, Debug)]
struct Predictor {
    next: Vec<u32>,
    before: [u32; 3],
}

impl Predictor {
    /// The predictor of a stream that has `before` streams before it.
    fn of_stream(before: usize) -> Self {
        let is_early = before < STREAMS_OF_MANY_CONTEXTS;
        let bits = if is_early { CONTEXT_BITS } else { FEW_CONTEXT_BITS };
        Self { next: vec![0; 1 << bits], before: [0; 3] }
    }

    /// The entry with the predicted event, which the caller sets to the actual one.
    fn place(&mut self) -> Option<&mut u32> {
        let [a, b, c] = self.before;
        let mixed = a.wrapping_mul(0x9e37_79b1)
            ^ b.wrapping_mul(0x85eb_ca6b).rotate_left(11)
            ^ c.wrapping_mul(0xc2b2_ae35).rotate_left(22);
        let bits = self.next.len().trailing_zeros();
        let index = mixed.wrapping_mul(0x27d4_eb2f).checked_shr(32 - bits)?;
        self.next.get_mut(index as usize)
    }

    fn learn(&mut self, event: u32) {
        let [_, b, c] = self.before;
        self.before = [b, c, event];
    }
}

fn encode(predictor: &mut Predictor, events: &[u32], out: &mut Vec<u8>) {
    let mut right = 0_u64;
    for event in events {
        let last = u64::from(predictor.before[2]);
        match predictor.place() {
            Some(predicted) if *predicted == *event => right += 1,
            predicted => {
                varint(out, right);
                varint(out, zigzag(last, u64::from(*event)));
                right = 0;
                if let Some(place) = predicted {
                    *place = *event;
                }
            }
        }
        predictor.learn(*event);
    }
    varint(out, right);
}

fn decode(
    predictor: &mut Predictor,
    numbers: &mut Numbers<'_>,
    count: usize,
    out: &mut Vec<u32>,
) -> Option<()> {
    out.clear();
    while out.len() < count {
        let right = usize::try_from(numbers.next()?).ok()?;
        if right > count - out.len() {
            return None;
        }
        for _ in 0..right {
            let event = *predictor.place()?;
            predictor.learn(event);
            out.push(event);
        }
        if out.len() == count {
            return Some(());
        }
        let last = u64::from(predictor.before[2]);
        let event = u32::try_from(unzigzag(last, numbers.next()?)).ok()?;
        *predictor.place()? = event;
        predictor.learn(event);
        out.push(event);
    }
    // An unpredicted last event is followed by a run of 0 predicted ones.
    (numbers.next()? == 0).then_some(())
}

/// The result of writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Events.
    pub events: u64,
    /// Bytes, of everything.
    pub bytes: u64,
}

/// Writes sequences while they are captured.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    streams: Vec<Predictor>,
    programs: u32,
    written: Written,
}

impl<W: Write> Writer<W> {
    /// Begins a trace.
    ///
    /// # Errors
    /// Returns the errors of `out`.
    pub fn new(out: W, facts: &Facts) -> io::Result<Self> {
        let mut writer =
            Self { out, streams: Vec::new(), programs: 0, written: Written::default() };
        let mut header = MAGIC.to_vec();
        header.extend(VERSION.to_le_bytes());
        header.extend([0, 0]);
        writer.put(&header)?;
        writer.chunk(ChunkKind::Facts, &serde_json::to_vec(facts)?)?;
        Ok(writer)
    }

    /// Adds a program; its number.
    ///
    /// # Errors
    /// Returns the errors of `out`.
    pub fn program(&mut self, program: &Program) -> io::Result<u32> {
        let number = self.programs;
        self.programs += 1;
        self.chunk(ChunkKind::Program, &serde_json::to_vec(program)?)?;
        for blocks in program.blocks.chunks(BLOCKS_A_CHUNK) {
            self.chunk(ChunkKind::ProgramBlocks, &serde_json::to_vec(&(number, blocks))?)?;
        }
        Ok(number)
    }

    /// Adds a stream; its number, or None when there are [`STREAMS_MAX`].
    ///
    /// # Errors
    /// Returns the errors of `out`.
    pub fn stream(&mut self, stream: &Stream) -> io::Result<Option<u32>> {
        if self.streams.len() >= STREAMS_MAX {
            return Ok(None);
        }
        self.chunk(ChunkKind::Stream, &serde_json::to_vec(stream)?)?;
        self.streams.push(Predictor::of_stream(self.streams.len()));
        Ok(u32::try_from(self.streams.len() - 1).ok())
    }

    /// Adds events of a stream, indices of its program's blocks, in their order.
    ///
    /// # Errors
    /// Returns the errors of `out`; [`io::ErrorKind::InvalidInput`] for a stream that was not
    /// added.
    pub fn events(&mut self, stream: u32, events: &[u32]) -> io::Result<()> {
        for events in events.chunks(EVENTS_A_CHUNK) {
            let predictor = self
                .streams
                .get_mut(stream as usize)
                .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
            let mut plain = Vec::new();
            varint(&mut plain, u64::from(stream));
            varint(&mut plain, events.len() as u64);
            encode(predictor, events, &mut plain);
            self.chunk(ChunkKind::Sequence, &plain)?;
            self.written.events += events.len() as u64;
        }
        Ok(())
    }

    /// Ends the trace, with all that is known of the run now.
    ///
    /// # Errors
    /// Returns the errors of `out`.
    pub fn finish(mut self, facts: &Facts) -> io::Result<Written> {
        self.chunk(ChunkKind::Facts, &serde_json::to_vec(facts)?)?;
        // Events with times: none.
        self.chunk(ChunkKind::End, b"0")?;
        self.out.flush()?;
        Ok(self.written)
    }

    fn chunk(&mut self, kind: ChunkKind, plain: &[u8]) -> io::Result<()> {
        let bytes = chunk(kind, plain)?;
        self.put(&bytes)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written.bytes += bytes.len() as u64;
        self.out.write_all(bytes)
    }
}

/// The parts of a trace other than its events.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sequences {
    /// The run.
    pub facts: Facts,
    /// Its programs.
    pub programs: Vec<Program>,
    /// Its streams.
    pub streams: Vec<Stream>,
    /// Why the trace is not whole, in one sentence; None where it is.
    pub cut: Option<String>,
}

/// Reads sequences. `visit` gets the programs and streams read so far, a stream's number, and its
/// next events, without those of blocks that its program lacks.
///
/// # Errors
/// [`ReadError`] where there is nothing to read.
pub fn read(
    mut input: impl Read,
    mut visit: impl FnMut(&Sequences, u32, &[u32]),
) -> Result<Sequences, ReadError> {
    let mut header = Vec::new();
    input.by_ref().take(HEADER_BYTES as u64).read_to_end(&mut header)?;
    check_header(&header)?;
    let mut sequences = Sequences::default();
    let mut state = State::default();
    sequences.cut = loop {
        let mut header = Vec::new();
        input.by_ref().take(CHUNK_HEADER_BYTES as u64).read_to_end(&mut header)?;
        let Some(header) = header.first_chunk().and_then(ChunkHeader::read) else {
            break Some("it ends before the trace does: its tracer was killed, or it is cut");
        };
        let mut stored = Vec::new();
        input.by_ref().take(header.stored as u64).read_to_end(&mut stored)?;
        let Some(plain) = header.unpack(&stored) else {
            break Some("it is damaged, and read up to the damage");
        };
        let Some(kind) = ChunkKind::of_number(header.kind) else { continue };
        if kind == ChunkKind::End {
            break None;
        }
        if state.take(&mut sequences, kind, &plain, &mut visit).is_none() {
            break Some(match state.is_full {
                true => FULL,
                false => "a chunk of it says what cannot be; it is read up to there",
            });
        }
    }
    .map(str::to_owned);
    Ok(sequences)
}

/// The reason for cutting a trace that exceeds the limits.
const FULL: &str = "its programs and streams take more than 1 GiB of memory, or are more than \
                    4,194,304 blocks or 65,536 streams; it is read up to there";

#[derive(Default)]
struct State {
    predictors: Vec<Predictor>,
    blocks: usize,
    events: Vec<u32>,
    /// Memory of programs, blocks and streams, in bytes.
    bytes: usize,
    is_full: bool,
}

/// Bytes that a block takes in memory, with the allocator's overhead for each text.
fn bytes_of(block: &Block) -> usize {
    let text = |text: &str| if text.is_empty() { 0 } else { text.len() + 2 * size_of::<usize>() };
    size_of::<Block>() + text(&block.procedure) + text(&block.file)
}

impl State {
    /// Reserves this many bytes; None if they exceed the limit.
    fn keep(&mut self, bytes: usize) -> Option<()> {
        self.bytes = self.bytes.saturating_add(bytes);
        self.is_full |= self.bytes > BLOCKS_BYTES_MAX;
        (!self.is_full).then_some(())
    }

    fn take(
        &mut self,
        sequences: &mut Sequences,
        kind: ChunkKind,
        plain: &[u8],
        visit: &mut impl FnMut(&Sequences, u32, &[u32]),
    ) -> Option<()> {
        match kind {
            ChunkKind::Facts => sequences.facts = serde_json::from_slice(plain).ok()?,
            ChunkKind::Program => {
                let program: Program = serde_json::from_slice(plain).ok()?;
                self.keep(size_of::<Program>() + program.path.len())?;
                sequences.programs.push(program);
            }
            ChunkKind::ProgramBlocks => {
                let (number, blocks): (usize, Vec<Block>) = serde_json::from_slice(plain).ok()?;
                self.blocks = self.blocks.checked_add(blocks.len())?;
                self.is_full |= self.blocks > BLOCKS_MAX;
                self.keep(blocks.iter().map(bytes_of).sum())?;
                sequences.programs.get_mut(number)?.blocks.extend(blocks);
            }
            ChunkKind::Stream => {
                self.is_full |= sequences.streams.len() >= STREAMS_MAX;
                self.keep(size_of::<Stream>())?;
                sequences.streams.push(serde_json::from_slice(plain).ok()?);
                self.predictors.push(Predictor::of_stream(self.predictors.len()));
            }
            ChunkKind::Sequence => {
                let mut numbers = Numbers::new(plain);
                let stream = u32::try_from(numbers.next()?).ok()?;
                let count = usize::try_from(numbers.next()?).ok()?;
                let predictor = self.predictors.get_mut(stream as usize)?;
                (count <= EVENTS_A_CHUNK).then_some(())?;
                decode(predictor, &mut numbers, count, &mut self.events)?;
                let program = sequences.streams.get(stream as usize)?.program as usize;
                let known = sequences.programs.get(program)?.blocks.len();
                self.events.retain(|event| (*event as usize) < known);
                visit(sequences, stream, &self.events);
            }
            _ => {}
        }
        Some(())
    }
}

impl Program {
    /// The blocks that an event stands for, in the order of their execution.
    #[must_use]
    pub fn chain(&self, event: u32) -> std::ops::RangeInclusive<u32> {
        let least = event.saturating_sub(CHAIN_MAX - 1);
        let mut first = event;
        while first > least && self.blocks.get(first as usize).is_some_and(|block| block.chained) {
            first -= 1;
        }
        first..=event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(events: &[u32]) -> (Vec<u8>, Written) {
        let block = |number| Block { number, chained: number % 3 == 1, ..Block::default() };
        let program = Program { path: "/a".to_owned(), blocks: (0..100).map(block).collect() };
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out, &Facts::default()).unwrap();
        assert_eq!(writer.program(&program).unwrap(), 0);
        let stream = Stream { pid: 1, tid: 2, ..Stream::default() };
        assert_eq!(writer.stream(&stream).unwrap(), Some(0));
        for part in events.chunks(1000) {
            writer.events(0, part).unwrap();
        }
        let written = writer.finish(&Facts::default()).unwrap();
        assert_eq!(written.bytes, out.len() as u64);
        (out, written)
    }

    fn read_back(bytes: &[u8]) -> (Vec<u32>, Sequences) {
        let mut back = Vec::new();
        let all = read(bytes, |_, _, events| back.extend(events)).unwrap();
        (back, all)
    }

    #[test]
    fn sequences_come_back_and_loops_take_next_to_nothing() {
        let inner: Vec<u32> = (0..200_000).map(|n| [3, 4, 5, 4, 5, 7][n % 6]).collect();
        let mut state = 1_u32;
        let random: Vec<u32> = (0..20_000)
            .map(|_| {
                state = state.wrapping_mul(1_103_515_245).wrapping_add(12345);
                (state >> 16) % 100
            })
            .collect();
        for events in [vec![], vec![99], vec![0; 10], inner.clone(), random] {
            let (bytes, written) = written(&events);
            assert_eq!(written.events, events.len() as u64);
            let (back, all) = read_back(&bytes);
            assert_eq!(back, events);
            assert_eq!(all.cut, None);
            assert_eq!(all.programs[0].blocks.len(), 100);
            assert_eq!(all.streams[0].tid, 2);
        }
        assert!(written(&inner).1.bytes < 20_000);
    }

    /// A file of 5 MB made 5 GB of streams, and names of blocks had no end.
    #[test]
    fn programs_and_streams_have_a_total() {
        let mut state = State::default();
        let mut sequences = Sequences::default();
        let mut take = |kind, plain: &str, state: &mut State| {
            state.take(&mut sequences, kind, plain.as_bytes(), &mut |_, _, _| {})
        };
        let stream = serde_json::to_string(&Stream::default()).unwrap();
        for _ in 0..STREAMS_MAX {
            take(ChunkKind::Stream, &stream, &mut state).unwrap();
        }
        let all: usize = state.predictors.iter().map(|of| of.next.len() * 4).sum();
        assert_eq!(all, 496 << 20);
        assert_eq!(take(ChunkKind::Stream, &stream, &mut state), None);
        assert!(state.is_full);
        let mut state = State { bytes: BLOCKS_BYTES_MAX - 1000, ..State::default() };
        let program = |path: &str| format!("{{\"path\":\"{path}\"}}");
        take(ChunkKind::Program, &program("/a"), &mut state).unwrap();
        assert_eq!(take(ChunkKind::Program, &program(&"x".repeat(1000)), &mut state), None);
        let mut state = State { bytes: BLOCKS_BYTES_MAX - 1000, ..State::default() };
        let block = Block { procedure: "x".repeat(1000), ..Block::default() };
        let blocks = serde_json::to_string(&(0, [block])).unwrap();
        assert_eq!(take(ChunkKind::ProgramBlocks, &blocks, &mut state), None);
        assert!(state.is_full);
    }

    #[test]
    fn streams_beyond_the_first_thousands_come_back_too() {
        let events: Vec<u32> = (0..5000).map(|n| (n * n) % 97).collect();
        let mut both = [0, STREAMS_OF_MANY_CONTEXTS].map(Predictor::of_stream);
        let [many, few] = both.each_mut().map(|predictor| {
            let mut out = Vec::new();
            encode(predictor, &events, &mut out);
            out
        });
        for (before, bytes) in [(0, many), (STREAMS_OF_MANY_CONTEXTS, few)] {
            let (mut predictor, mut back) = (Predictor::of_stream(before), Vec::new());
            decode(&mut predictor, &mut Numbers::new(&bytes), events.len(), &mut back).unwrap();
            assert_eq!(back, events);
        }
    }

    #[test]
    fn an_event_stands_for_its_chain() {
        let chained = [false, true, true, false];
        let blocks = chained.map(|chained| Block { chained, ..Block::default() });
        let program = Program { blocks: blocks.into(), ..Program::default() };
        assert_eq!(program.chain(2), 0..=2);
        assert_eq!(program.chain(0), 0..=0);
        assert_eq!(program.chain(3), 3..=3);
        // A hostile file: each event of one endless chain was millions of lines.
        let block = Block { chained: true, ..Block::default() };
        let program = Program { blocks: vec![block; 10_000], ..Program::default() };
        assert_eq!(program.chain(9999), 9999 - (CHAIN_MAX - 1)..=9999);
    }

    #[test]
    fn damage_is_told_and_never_panics() {
        let events: Vec<u32> = (0..3000).map(|n| n * n % 100).collect();
        let (bytes, _) = written(&events);
        for cut in 0..bytes.len() {
            if let Ok(all) = read(&bytes[..cut], |_, _, _| {}) {
                assert!(all.cut.is_some(), "{cut}");
            }
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x55;
            _ = read(damaged.as_slice(), |_, _, _| {});
        }
    }
}
