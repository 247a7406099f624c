//! Writes a trace while it is captured: blocks of each thread's events, packed as they fill.

use std::collections::HashMap;
use std::io::{self, Write};

use crate::codec::{self, BLOCK_EVENTS, ChunkKind, MAGIC, VERSION};
use crate::event::{
    Corrected, Event, Facts, NAMES_MAX, Name, NameId, THREADS_MAX, Thread, ThreadId, Trace,
};

/// Most events of all threads that wait for their blocks to fill: 32 MiB. Above, all blocks are
/// written unfilled, and packed less tightly.
const WAITING_MAX: usize = 1 << 20;
/// Names or threads of one chunk.
const LIST_MAX: usize = 256;
/// Most bytes of a name's text, path or file; the rest is cut off.
const TEXT_BYTES_MAX: usize = 4096;

/// A trace that is being written.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    names: HashMap<Name, NameId>,
    new_names: Vec<Name>,
    threads: Vec<Thread>,
    /// Numbers of threads that are new or have changed since the last chunk of threads.
    changed_threads: Vec<ThreadId>,
    /// Events that wait, by thread.
    waiting: Vec<Waiting>,
    waiting_events: usize,
    written: Written,
}

/// Events of a thread that wait for their block to fill.
#[derive(Debug, Default)]
struct Waiting {
    events: Vec<Event>,
    /// Empty, or a time for each event.
    corrected: Vec<Corrected>,
}

/// The result of writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Events.
    pub events: u64,
    /// Bytes of the whole file.
    pub bytes: u64,
    /// Bytes of the blocks of events alone.
    pub event_bytes: u64,
}

impl Written {
    /// Bytes of the file for each event; 0 without events.
    #[must_use]
    pub fn bytes_an_event(&self) -> f64 {
        self.bytes as f64 / (self.events.max(1)) as f64
    }
}

impl<W: Write> Writer<W> {
    /// Begins a trace. The facts may be written again, more completely, at the end.
    ///
    /// # Errors
    /// Returns the errors of `out`.
    pub fn new(out: W, facts: &Facts) -> io::Result<Self> {
        let mut writer = Self {
            out,
            names: HashMap::new(),
            new_names: Vec::new(),
            threads: Vec::new(),
            changed_threads: Vec::new(),
            waiting: Vec::new(),
            waiting_events: 0,
            written: Written::default(),
        };
        let mut header = MAGIC.to_vec();
        header.extend(VERSION.to_le_bytes());
        header.extend([0, 0]);
        writer.put(&header)?;
        writer.chunk(ChunkKind::Facts, &serde_json::to_vec(facts)?)?;
        Ok(writer)
    }

    /// The number of a name, which is added if it is new. Beyond [`NAMES_MAX`] all names have the
    /// last number. Texts beyond 4096 bytes are cut.
    pub fn name(&mut self, name: &Name) -> NameId {
        if let Some(known) = self.names.get(name) {
            return *known;
        }
        let number = NameId(u32::try_from(self.names.len()).unwrap_or(u32::MAX));
        if self.names.len() >= NAMES_MAX {
            return NameId(number.0.saturating_sub(1));
        }
        let mut short = name.clone();
        for text in [&mut short.text, &mut short.image, &mut short.file] {
            text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        }
        self.names.insert(name.clone(), number);
        self.new_names.push(short);
        number
    }

    /// Adds a thread; None where there are [`THREADS_MAX`].
    pub fn thread(&mut self, thread: Thread) -> Option<ThreadId> {
        if self.threads.len() >= THREADS_MAX {
            return None;
        }
        let number = ThreadId(u32::try_from(self.threads.len()).ok()?);
        self.threads.push(thread);
        self.waiting.push(Waiting::default());
        self.changed_threads.push(number);
        Some(number)
    }

    /// Changes the description of a thread, such as its command after an exec.
    pub fn set_thread(&mut self, number: ThreadId, thread: Thread) {
        let known = self.threads.get_mut(number.0 as usize);
        if let Some(known) = known.filter(|known| **known != thread) {
            *known = thread;
            self.changed_threads.push(number);
        }
    }

    /// The description of a thread.
    #[must_use]
    pub fn known_thread(&self, number: ThreadId) -> Option<&Thread> {
        self.threads.get(number.0 as usize)
    }

    /// Adds an event. Events of one thread come in their order.
    ///
    /// # Errors
    /// Returns the errors of `out`; [`io::ErrorKind::InvalidInput`] for a thread that was not
    /// added.
    pub fn event(&mut self, event: &Event) -> io::Result<()> {
        self.add(event, None)
    }

    /// Adds an event with its corrected time.
    ///
    /// # Errors
    /// Returns the errors of [`Self::event`].
    pub fn corrected_event(&mut self, event: &Event, corrected: Corrected) -> io::Result<()> {
        self.add(event, Some(corrected))
    }

    fn add(&mut self, event: &Event, corrected: Option<Corrected>) -> io::Result<()> {
        let Some(waiting) = self.waiting.get_mut(event.thread.0 as usize) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "an event of no known thread"));
        };
        // A block has corrected times of all its events, or of none.
        let is_alike =
            waiting.events.is_empty() || corrected.is_some() != waiting.corrected.is_empty();
        if !is_alike {
            self.write_block(event.thread)?;
        }
        let Some(waiting) = self.waiting.get_mut(event.thread.0 as usize) else { return Ok(()) };
        waiting.events.push(*event);
        waiting.corrected.extend(corrected);
        let is_full = waiting.events.len() >= BLOCK_EVENTS;
        self.waiting_events += 1;
        if is_full {
            self.write_block(event.thread)?;
        } else if self.waiting_events >= WAITING_MAX {
            self.write_blocks()?;
        }
        Ok(())
    }

    fn write_block(&mut self, thread: ThreadId) -> io::Result<()> {
        let Some(waiting) = self.waiting.get_mut(thread.0 as usize) else { return Ok(()) };
        if waiting.events.is_empty() {
            return Ok(());
        }
        let waiting = std::mem::take(waiting);
        self.waiting_events -= waiting.events.len();
        // Names and threads come before their events, so that a truncated file is readable.
        self.write_names()?;
        self.write_threads()?;
        let plain = codec::encode_events(thread, &waiting.events, &waiting.corrected);
        let before = self.written.bytes;
        self.chunk(ChunkKind::Events, &plain)?;
        self.written.event_bytes += self.written.bytes - before;
        self.written.events += waiting.events.len() as u64;
        Ok(())
    }

    fn write_blocks(&mut self) -> io::Result<()> {
        for number in 0..self.waiting.len() {
            self.write_block(ThreadId(u32::try_from(number).unwrap_or(u32::MAX)))?;
        }
        Ok(())
    }

    fn write_names(&mut self) -> io::Result<()> {
        let names = std::mem::take(&mut self.new_names);
        names
            .chunks(LIST_MAX)
            .try_for_each(|names| self.chunk(ChunkKind::Names, &serde_json::to_vec(names)?))
    }

    fn write_threads(&mut self) -> io::Result<()> {
        let changed = std::mem::take(&mut self.changed_threads);
        for numbers in changed.chunks(LIST_MAX) {
            let threads: Vec<(u32, &Thread)> = numbers
                .iter()
                .filter_map(|number| Some((number.0, self.known_thread(*number)?)))
                .collect();
            let plain = serde_json::to_vec(&threads)?;
            self.chunk(ChunkKind::Threads, &plain)?;
        }
        Ok(())
    }

    fn chunk(&mut self, kind: ChunkKind, plain: &[u8]) -> io::Result<()> {
        let bytes = codec::chunk(kind, plain)?;
        self.put(&bytes)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.written.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Writes all waiting events, so that they survive if the tracer is killed.
    ///
    /// # Errors
    /// Returns the errors of `out`.
    pub fn flush(&mut self) -> io::Result<()> {
        self.write_blocks()?;
        self.out.flush()
    }

    /// Ends the trace with the final facts. Returns the sizes and the output.
    ///
    /// # Errors
    /// Returns the errors of `out`.
    pub fn finish(mut self, facts: &Facts) -> io::Result<(Written, W)> {
        self.write_blocks()?;
        self.write_names()?;
        self.write_threads()?;
        self.chunk(ChunkKind::Facts, &serde_json::to_vec(facts)?)?;
        let events = self.written.events.to_string();
        self.chunk(ChunkKind::End, events.as_bytes())?;
        self.out.flush()?;
        Ok((self.written, self.out))
    }
}

/// Writes a trace that is in memory.
///
/// # Errors
/// Returns the errors of `out`; [`io::ErrorKind::InvalidInput`] for an event of a thread that the
/// trace lacks.
pub fn write<W: Write>(trace: &Trace, out: W) -> io::Result<(Written, W)> {
    let mut writer = Writer::new(out, &trace.facts)?;
    // Numbers are kept as they are, also of names that are there twice.
    let names = trace.names.iter().map(|name| writer.name(name)).collect::<Vec<NameId>>();
    for thread in trace.threads.iter().take(THREADS_MAX) {
        writer.thread(thread.clone());
    }
    let mut corrected = trace.corrected.iter();
    for event in &trace.events {
        let name = names.get(event.name.0 as usize).copied().unwrap_or(event.name);
        let event = Event { name, ..*event };
        match corrected.next() {
            Some(time) => writer.corrected_event(&event, *time)?,
            None => writer.event(&event)?,
        }
    }
    writer.finish(&trace.facts)
}
