//! The order of a command's basic blocks, from programs that have events compiled in.
//!
//! ```text
//! program ──events──> shared file (lab/tracer/src/area.rs) ──> [area] ──indices──> trace::sequence
//! its file ──list of blocks──> [program] ──┘
//! ```

mod area;
mod program;

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use trace::sequence::{Program, Stream, Writer};
use tracer::area::LOSS;

pub use area::Area;
pub use program::{BlocksError, Located, blocks_of};

/// Most repetitions of a block that are written at once; a loop may have any number.
const REPETITIONS_AT_ONCE: u64 = 1 << 20;

/// The data captured so far.
#[derive(Debug, Default)]
pub struct Captured {
    /// Programs that had events, and how often each of their blocks was executed.
    pub programs: Vec<(Program, Vec<u64>)>,
    /// Streams.
    pub streams: Vec<Stream>,
    /// Events. Each stands for a chain of blocks.
    pub events: u64,
    /// Events that threads lost because the reader was too slow, or threads too many.
    pub lost_by_threads: u64,
    /// Events of more streams than a trace takes.
    pub lost: u64,
    /// Events at addresses that no list of blocks has.
    pub unknown: u64,
    /// Why programs have no list of blocks, one sentence each.
    pub problems: Vec<String>,
}

/// Captures sequences from an area into a trace.
#[derive(Debug)]
pub struct Capture<W> {
    area: Area,
    writer: Writer<W>,
    located: Vec<Option<Located>>,
    by_path: HashMap<PathBuf, usize>,
    numbers: HashMap<Stream, u32>,
    captured: Captured,
    /// Places that were 0 at the end of a stream's last chunk.
    repeated: HashMap<Stream, u64>,
    events: Vec<u32>,
}

impl<W: Write> Capture<W> {
    /// Captures from an area.
    #[must_use]
    pub fn new(area: Area, writer: Writer<W>) -> Self {
        Self {
            area,
            writer,
            located: Vec::new(),
            by_path: HashMap::new(),
            numbers: HashMap::new(),
            captured: Captured::default(),
            repeated: HashMap::new(),
            events: Vec::new(),
        }
    }

    /// Reads the chunks that are full, and with `all` also the last ones of threads that have
    /// ended. Returns the number of chunks.
    ///
    /// # Errors
    /// Errors of the area's file and of the trace's file.
    pub fn poll(&mut self, all: bool) -> io::Result<usize> {
        let chunks = self.area.full(all)?;
        let taken = chunks.len();
        for chunk in chunks {
            let bytes = self.area.bytes(&chunk)?;
            let program = self.program(&chunk.program)?;
            let stream = Stream {
                program: u32::try_from(program).unwrap_or(u32::MAX),
                pid: chunk.pid,
                tid: chunk.tid,
                handlers: chunk.depth,
            };
            self.take(stream, program, chunk.origin, &bytes)?;
            self.area.free(&chunk)?;
        }
        self.captured.lost_by_threads = self.area.lost();
        Ok(taken)
    }

    fn take(
        &mut self,
        stream: Stream,
        program: usize,
        origin: u64,
        bytes: &[u8],
    ) -> io::Result<()> {
        let (words, _) = bytes.as_chunks::<4>();
        let located = self.located.get(program).and_then(Option::as_ref);
        let Some(located) = located else {
            self.captured.unknown += words.len() as u64;
            return Ok(());
        };
        self.events.clear();
        // Places that are 0 repeat the first block of the next event's chain, which may be in the
        // next chunk.
        let mut repeated = self.repeated.remove(&stream).unwrap_or_default();
        for word in words.iter().map(|word| i32::from_le_bytes(*word)) {
            if word == 0 {
                repeated += 1;
                continue;
            }
            if word == LOSS {
                // The event that would identify the loop is lost.
                self.captured.lost += std::mem::take(&mut repeated);
                continue;
            }
            let Some(index) = located.index(origin, word) else {
                self.captured.unknown += 1 + std::mem::take(&mut repeated);
                continue;
            };
            let of = self.captured.programs.get(program);
            let head = of.map_or(index, |(program, _)| *program.chain(index).start());
            while repeated > 0 {
                let some = repeated.min(REPETITIONS_AT_ONCE);
                let len = self.events.len() + usize::try_from(some).unwrap_or_default();
                self.events.resize(len, head);
                repeated -= some;
                if repeated > 0 {
                    write(
                        &mut self.writer,
                        &mut self.numbers,
                        &mut self.captured,
                        stream,
                        &mut self.events,
                    )?;
                }
            }
            self.events.push(index);
        }
        if repeated > 0 {
            self.repeated.insert(stream, repeated);
        }
        write(&mut self.writer, &mut self.numbers, &mut self.captured, stream, &mut self.events)
    }

    fn program(&mut self, path: &Path) -> io::Result<usize> {
        if let Some(known) = self.by_path.get(path) {
            return Ok(*known);
        }
        let (program, located) = match blocks_of(path) {
            Ok((program, located)) => (program, Some(located)),
            Err(error) => {
                self.captured.problems.push(error.to_string());
                let path = path.display().to_string();
                (Program { path, ..Program::default() }, None)
            }
        };
        self.writer.program(&program)?;
        let number = self.captured.programs.len();
        let counts = vec![0; program.blocks.len()];
        self.captured.programs.push((program, counts));
        self.located.push(located);
        self.by_path.insert(path.to_path_buf(), number);
        Ok(number)
    }

    /// Ends the capture. Returns the result, with events converted to executions of blocks, and the
    /// writer.
    #[must_use]
    pub fn end(self) -> (Captured, Writer<W>) {
        let mut captured = self.captured;
        captured.lost = captured.lost.saturating_add(captured.lost_by_threads);
        for (program, counts) in &mut captured.programs {
            executions(program, counts);
        }
        (captured, self.writer)
    }
}

/// Writes the next events of a stream, and counts them.
fn write<W: Write>(
    writer: &mut Writer<W>,
    numbers: &mut HashMap<Stream, u32>,
    captured: &mut Captured,
    stream: Stream,
    events: &mut Vec<u32>,
) -> io::Result<()> {
    if events.is_empty() {
        return Ok(());
    }
    if let Some((_, counts)) = captured.programs.get_mut(stream.program as usize) {
        for event in &*events {
            if let Some(count) = counts.get_mut(*event as usize) {
                *count += 1;
            }
        }
    }
    captured.events += events.len() as u64;
    let number = match numbers.get(&stream) {
        Some(number) => *number,
        None => {
            let Some(number) = writer.stream(&stream)? else {
                captured.lost += events.len() as u64;
                return Ok(());
            };
            captured.streams.push(stream);
            *numbers.entry(stream).or_insert(number)
        }
    };
    let written = writer.events(number, events);
    events.clear();
    written
}

/// Converts events of blocks to executions: each event of a block is also an execution of the
/// blocks before it in its chain.
pub fn executions(program: &Program, events: &mut [u64]) {
    let mut after = 0;
    for (block, count) in program.blocks.iter().zip(events.iter_mut()).rev() {
        *count += after;
        after = if block.chained { *count } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace::sequence::Block;

    #[test]
    fn events_of_a_chain_count_for_the_blocks_before() {
        let chained = [false, true, true, false, true];
        let blocks = chained.map(|chained| Block { chained, ..Block::default() });
        let program = Program { blocks: blocks.into(), ..Program::default() };
        let mut counts = [1, 2, 3, 4, 5];
        executions(&program, &mut counts);
        assert_eq!(counts, [6, 5, 3, 9, 5]);
    }
}
