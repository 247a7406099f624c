//! Reads a trace, up to where it is damaged or cut.

use std::io::{self, Read};

use crate::codec::{
    self, CHUNK_HEADER_BYTES, ChunkHeader, ChunkKind, HEADER_BYTES, MAGIC, VERSION,
};
use crate::event::{NAMES_MAX, Name, TEXTS_BYTES_MAX, THREADS_MAX, Thread, Trace};

/// Errors that leave nothing of a trace readable.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file is no trace of this format.
    #[error("it is no trace of dcpi trace")]
    NotATrace,
    /// The file is of another tool's format, or so it seems, and has no event that is understood.
    #[error(
        "no event in it is understood (taken for {what}); it may be a trace of dcpi trace, Chrome's \
         JSON, Perfetto's protocol buffers, text of perf script, or uftrace dump"
    )]
    NothingUnderstood {
        /// The format.
        what: String,
    },
    /// A later release wrote the file.
    #[error("its format {0} is newer than this dcpi (format {VERSION}); read it with a newer dcpi")]
    Newer(u16),
}

/// Whether a file that begins with these bytes is a trace.
#[must_use]
pub fn is_trace(begin: &[u8]) -> bool {
    begin.starts_with(&MAGIC)
}

/// Reads a whole trace. A trace that is cut or damaged is read up to there; [`Trace::cut`] has the
/// reason.
///
/// # Errors
/// [`ReadError`] where there is nothing to read.
pub fn read(mut input: impl Read) -> Result<Trace, ReadError> {
    let mut header = Vec::new();
    input.by_ref().take(HEADER_BYTES as u64).read_to_end(&mut header)?;
    check_header(&header)?;
    let mut reader = Reader::default();
    let cut = loop {
        match reader.chunk(&mut input) {
            Ok(Step::On) => {}
            Ok(Step::End) => break None,
            Ok(Step::Cut(why)) => break Some(why),
            Err(error) => break Some(format!("reading it failed: {error}")),
        }
    };
    let mut trace = reader.trace;
    trace.cut = cut;
    // Some blocks have corrected times and some have none: no corrected times are better than times
    // of other events.
    if trace.corrected.len() != trace.events.len() {
        trace.corrected.clear();
    }
    trace.sort();
    Ok(trace)
}

/// Checks the first bytes of a file.
pub(crate) fn check_header(header: &[u8]) -> Result<(), ReadError> {
    if !is_trace(header) {
        return Err(ReadError::NotATrace);
    }
    match header.get(MAGIC.len()..).and_then(|rest| rest.first_chunk()) {
        Some(version) if u16::from_le_bytes(*version) == VERSION => Ok(()),
        Some(version) => Err(ReadError::Newer(u16::from_le_bytes(*version))),
        None => Err(ReadError::NotATrace),
    }
}

/// The result of reading a chunk.
enum Step {
    On,
    End,
    Cut(String),
}

fn cut(why: &str) -> Step {
    Step::Cut(why.to_owned())
}

#[derive(Default)]
struct Reader {
    trace: Trace,
    text_bytes: usize,
}

impl Reader {
    fn chunk(&mut self, input: &mut impl Read) -> io::Result<Step> {
        let mut header = Vec::new();
        input.by_ref().take(CHUNK_HEADER_BYTES as u64).read_to_end(&mut header)?;
        let Some(header) = header.first_chunk() else {
            return Ok(cut(
                "the file ends before the trace does: its tracer was killed, or it is cut",
            ));
        };
        let Some(header) = ChunkHeader::read(header) else {
            return Ok(cut("it is damaged, and read up to the damage"));
        };
        let mut stored = Vec::new();
        input.by_ref().take(header.stored as u64).read_to_end(&mut stored)?;
        if stored.len() < header.stored {
            return Ok(cut("the file ends within a block: its tracer was killed, or it is cut"));
        }
        let Some(plain) = header.unpack(&stored) else {
            return Ok(cut("it is damaged, and read up to the damage"));
        };
        Ok(self
            .take(header.kind, &plain)
            .unwrap_or_else(|| cut("a block of it says what cannot be; it is read up to there")))
    }

    /// Takes the contents of a chunk; None where they are malformed.
    fn take(&mut self, kind: u8, plain: &[u8]) -> Option<Step> {
        let Some(kind) = ChunkKind::of_number(kind) else {
            return Some(Step::On); // A later release's.
        };
        if kind.is_of_sequences() {
            return Some(Step::On);
        }
        if kind != ChunkKind::Events {
            self.text_bytes = self.text_bytes.saturating_add(plain.len());
            if self.text_bytes > TEXTS_BYTES_MAX {
                return Some(cut("its names take more than 256 MiB; it is read up to there"));
            }
        }
        match kind {
            ChunkKind::Facts => self.trace.facts = serde_json::from_slice(plain).ok()?,
            ChunkKind::Names => {
                let names: Vec<Name> = serde_json::from_slice(plain).ok()?;
                if self.trace.names.len() + names.len() > NAMES_MAX {
                    return Some(cut("it has more than 1,048,576 names; it is read up to there"));
                }
                self.trace.names.extend(names);
            }
            ChunkKind::Threads => {
                for (number, thread) in serde_json::from_slice::<Vec<(u32, Thread)>>(plain).ok()? {
                    self.set_thread(number as usize, thread)?;
                }
            }
            ChunkKind::Events => return self.take_events(plain),
            ChunkKind::Program
            | ChunkKind::ProgramBlocks
            | ChunkKind::Stream
            | ChunkKind::Sequence => {}
            ChunkKind::End => {
                let events: usize = std::str::from_utf8(plain).ok()?.parse().ok()?;
                let is_whole = events == self.trace.events.len();
                return Some(if is_whole { Step::End } else { cut("blocks of it are missing") });
            }
        }
        Some(Step::On)
    }

    fn set_thread(&mut self, number: usize, thread: Thread) -> Option<()> {
        if number == self.trace.threads.len() && number < THREADS_MAX {
            self.trace.threads.push(thread);
        } else {
            *self.trace.threads.get_mut(number)? = thread;
        }
        Some(())
    }

    fn take_events(&mut self, plain: &[u8]) -> Option<Step> {
        let (thread, events, corrected) = codec::decode_events(plain)?;
        let names = self.trace.names.len();
        let is_known = (thread.0 as usize) < self.trace.threads.len()
            && events.iter().all(|event| (event.name.0 as usize) < names);
        if !is_known {
            return None;
        }
        if !self.trace.has_room(events.len(), corrected.len()) {
            let most = "its events take more than 1 GiB of memory; it is read up to there, so \
                        trace less: fewer places, --sample, or --duration";
            return Some(cut(most));
        }
        self.trace.events.extend(events);
        self.trace.corrected.extend(corrected);
        Some(Step::On)
    }
}
