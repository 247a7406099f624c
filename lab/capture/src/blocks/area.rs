//! The reader's side of the file that traced programs write their events to. The file is read and
//! written, not mapped, because the program may change it at any time.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use tracer::area::{
    CHUNK_BYTES, CHUNKS, HEADER_BYTES, MAGIC, PATH_BYTES, SLOT_BYTES, SLOTS, State, chunk_offset,
    header, slot, slot_offset,
};

/// Most programs of one trace. Any process that can write the file can name any number.
const PROGRAMS_MAX: usize = 1024;

/// The shared file, which is removed when the value is dropped.
#[derive(Debug)]
pub struct Area {
    file: File,
    path: PathBuf,
    lost_of_ended: u64,
    lost_now: u64,
    programs: HashSet<PathBuf>,
}

/// A chunk of events that is ready to be read.
#[derive(Clone, Debug)]
pub struct Chunk {
    slot: usize,
    chunk: usize,
    bytes: usize,
    number: u32,
    release: bool,
    /// Number of the process.
    pub pid: u32,
    /// Number of the thread.
    pub tid: u32,
    /// Depth of signal handlers.
    pub depth: u8,
    /// The program's path.
    pub program: PathBuf,
    /// Distance of the origin of events from the program's ELF header.
    pub origin: u64,
}

/// A slot's header, up to the end of the path.
struct Header([u8; slot::PATH + PATH_BYTES]);

impl Header {
    fn half(&self, at: usize) -> u32 {
        self.0.get(at..).and_then(|it| it.first_chunk()).map_or(0, |it| u32::from_le_bytes(*it))
    }

    fn word(&self, at: usize) -> u64 {
        self.0.get(at..).and_then(|it| it.first_chunk()).map_or(0, |it| u64::from_le_bytes(*it))
    }

    fn path(&self) -> PathBuf {
        let bytes = self.0.get(slot::PATH..).unwrap_or_default();
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        OsStr::from_bytes(bytes.get(..end).unwrap_or_default()).into()
    }
}

impl Area {
    /// Makes the file, which this user alone can open. Where all chunks of a thread are full, it
    /// waits for the reader if `wait`, and loses events otherwise. The file is sparse: 1 GiB, of
    /// which a thread uses at most 1 MiB.
    ///
    /// # Errors
    /// Errors of making a file in memory (/dev/shm), or else in the directory for temporary files.
    pub fn new(wait: bool) -> io::Result<Self> {
        let name = format!("dcpi-blocks-{}-{:x}", std::process::id(), unique());
        let make = |directory: &Path| {
            let path = directory.join(&name);
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true).mode(0o600);
            Ok::<_, io::Error>((options.open(&path)?, path))
        };
        let (file, path) = make(Path::new("/dev/shm")).or_else(|_| make(&std::env::temp_dir()))?;
        let area = Self { file, path, lost_of_ended: 0, lost_now: 0, programs: HashSet::new() };
        area.file.set_len((HEADER_BYTES + SLOTS * SLOT_BYTES) as u64)?;
        area.file.write_all_at(&u32::from(wait).to_le_bytes(), header::WAIT as u64)?;
        area.file.write_all_at(&MAGIC.to_le_bytes(), header::MAGIC as u64)?;
        Ok(area)
    }

    /// Its path, for [`tracer::area::VARIABLE`].
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Events that programs lost, as of the last reading.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost_of_ended.saturating_add(self.lost_now)
    }

    /// Chunks that are full, in the order of each thread; with `all`, also the last chunks of
    /// threads that have ended.
    ///
    /// # Errors
    /// Errors of reading the file, or a program that names too many others.
    pub fn full(&mut self, all: bool) -> io::Result<Vec<Chunk>> {
        let mut first = [0; 32];
        self.file.read_exact_at(&mut first, 0)?;
        let half = |at: usize| first.get(at..).and_then(|it| it.first_chunk()).copied();
        let word = |at: usize| first.get(at..).and_then(|it| it.first_chunk()).copied();
        let used = half(header::USED).map_or(0, u32::from_le_bytes) as usize;
        let mut chunks = Vec::new();
        self.lost_now = word(header::LOST).map_or(0, u64::from_le_bytes);
        for slot in 0..used.min(SLOTS) {
            let mut header = Header([0; slot::PATH + PATH_BYTES]);
            self.file.read_exact_at(&mut header.0, slot_offset(slot) as u64)?;
            let (pid, tid) = (header.half(slot::PID), header.half(slot::TID));
            if header.half(slot::OWNED) == 0 || pid == 0 {
                continue;
            }
            let lost = header.word(slot::LOST);
            // Whether the thread has ended is asked before its chunks are read, which are then
            // final.
            let ended = all && !Path::new(&format!("/proc/{pid}/task/{tid}")).exists();
            if ended {
                // Read again, because the thread may have changed the states after the first
                // reading.
                self.file.read_exact_at(&mut header.0, slot_offset(slot) as u64)?;
            }
            let of_slot = self.of_slot(slot, &header, ended)?;
            if ended {
                self.lost_of_ended = self.lost_of_ended.saturating_add(lost);
                if of_slot.is_empty() {
                    self.release(slot)?;
                }
            } else {
                self.lost_now = self.lost_now.saturating_add(lost);
            }
            chunks.extend(of_slot);
        }
        Ok(chunks)
    }

    fn of_slot(&mut self, slot: usize, header: &Header, ended: bool) -> io::Result<Vec<Chunk>> {
        let mut chunks = Vec::new();
        for chunk in 0..CHUNKS {
            let word = header.word(slot::STATES + chunk * 8);
            if word == State::FREE {
                continue;
            }
            let state = State::read(word);
            let bytes = match state.bytes {
                Some(bytes) => bytes as usize,
                None if ended => CHUNK_BYTES,
                None => continue,
            };
            chunks.push(Chunk {
                slot,
                chunk,
                bytes: bytes.min(CHUNK_BYTES),
                number: state.number,
                release: false,
                pid: header.half(slot::PID),
                tid: header.half(slot::TID),
                depth: state.depth,
                program: header.path(),
                origin: header.word(slot::ORIGIN),
            });
        }
        chunks.sort_by_key(|chunk| chunk.number);
        if let (Some(last), true) = (chunks.last_mut(), ended) {
            last.release = true;
        }
        if let Some(first) = chunks.first()
            && !self.programs.contains(&first.program)
        {
            if self.programs.len() >= PROGRAMS_MAX {
                return Err(io::Error::other(
                    "the command ran more than 1024 programs with events",
                ));
            }
            self.programs.insert(first.program.clone());
        }
        Ok(chunks)
    }

    /// The events of a chunk. The chunk of a thread that has ended is given whole, with places that
    /// are 0 at its end.
    ///
    /// # Errors
    /// Returns the errors of the file.
    pub fn bytes(&self, chunk: &Chunk) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; chunk.bytes];
        let begin = slot_offset(chunk.slot) + chunk_offset(chunk.chunk);
        self.file.read_exact_at(&mut bytes, begin as u64)?;
        Ok(bytes)
    }

    /// Marks a chunk as free for its thread.
    ///
    /// # Errors
    /// Returns the errors of the file.
    pub fn free(&self, chunk: &Chunk) -> io::Result<()> {
        let state = slot_offset(chunk.slot) + slot::STATES + chunk.chunk * 8;
        if chunk.release {
            return self.release(chunk.slot);
        }
        self.file.write_all_at(&State::FREE.to_le_bytes(), state as u64)
    }

    /// Frees the slot of a thread that has ended. The next thread must clear all chunks.
    fn release(&self, slot: usize) -> io::Result<()> {
        let begin = slot_offset(slot);
        for chunk in 0..CHUNKS {
            let dirty = begin + slot::DIRTY + chunk * 4;
            self.file.write_all_at(&(CHUNK_BYTES as u32).to_le_bytes(), dirty as u64)?;
        }
        self.file.write_all_at(&0_u32.to_le_bytes(), (begin + slot::PID) as u64)?;
        self.file.write_all_at(&0_u32.to_le_bytes(), (begin + slot::OWNED) as u64)
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        _ = fs::remove_file(&self.path);
    }
}

/// A number for the file's name: the time in ns.
fn unique() -> u128 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |time| time.as_nanos())
}
