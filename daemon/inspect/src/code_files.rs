//! The code of images with snapshots, and their constant data: pieces of files, read when they are
//! needed.

use crate::open_mapped::keeps_busy;
use code::interpret::{CodeView, Place};
use image::{Constant, Constants, ImageId, ImageOffset, Layout, Vaddr};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

/// Most files kept open; fewer are opened again and again where many programs run.
const FILES_MAX: usize = 64;
/// Bytes that all tables of constants may take together. An image whose table finds no room has
/// none, so its computed jumps are not followed.
const CONSTANTS_BYTES_MAX: usize = 1 << 20;
/// Pieces of code kept. With fewer, hot code on a busy machine is read again.
const PIECES: usize = 512;
/// Bytes of a piece of code: a walk stays within a few hundred bytes. Larger pieces hold more bytes
/// that no walk comes to.
const PIECE_BYTES: usize = 1024;
/// Time without use after which a file is closed: an open file keeps its disk space taken.
const UNUSED_MAX: Duration = Duration::from_secs(120);
/// Snapshots until opening a file that failed is tried again. Fewer cost a system call per snapshot
/// of a file that cannot be opened; more lose edges after the file is back.
const RETRY_AFTER: u64 = 10_000;

/// A direct-mapped table of pieces of files: a new piece replaces the one that had its place, so
/// nothing is allocated.
#[derive(Default)]
struct Pieces {
    known: Vec<Piece>,
    bytes: Vec<u8>,
}

/// A piece: bytes of the text with this number. No text has number 0.
#[derive(Clone, Copy, Default)]
struct Piece {
    text: u32,
    len: usize,
    number: u64,
}

impl Pieces {
    fn get(&mut self, text: &CodeFile, number: u64) -> Option<&[u8]> {
        if self.known.is_empty() {
            self.known.resize(PIECES, Piece::default());
            self.bytes.resize(PIECES * PIECE_BYTES, 0);
        }
        // Fibonacci hashing spreads neighbours.
        let hash = (number ^ u64::from(text.number) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let index = (hash >> 55) as usize % PIECES;
        let piece = self.known.get_mut(index)?;
        let room = self.bytes.get_mut(index * PIECE_BYTES..(index + 1) * PIECE_BYTES)?;
        if (piece.text, piece.number) != (text.number, number) {
            *piece = Piece::default();
            let at = number.checked_mul(PIECE_BYTES as u64)?;
            let mut len = 0;
            // A file that has been truncated meanwhile has fewer bytes, or none.
            while let Some(rest) = room.get_mut(len..).filter(|rest| !rest.is_empty()) {
                let read = text.file.as_ref().map(|file| file.read_at(rest, at + len as u64));
                match read {
                    None | Some(Ok(0) | Err(_)) => break,
                    Some(Ok(more)) => len += more,
                }
            }
            *piece = Piece { text: text.number, len, number };
        }
        room.get(..piece.len)
    }
}

/// Open files by image.
#[derive(Default)]
pub struct CodeFiles {
    by_image: HashMap<ImageId, Known, foldhash::fast::RandomState>,
    pieces: Pieces,
    /// Number of the next text. Numbers are never used again, so that walkers may keep decoded
    /// instructions by number.
    next: u32,
    constants_bytes: usize,
    /// Snapshots so far, and their number when unused files were last looked for.
    now: u64,
    swept: u64,
}

struct Known {
    /// None: the file could not be opened.
    file: Option<CodeFile>,
    used: u64,
    used_at: Instant,
}

struct CodeFile {
    number: u32,
    /// None between two questions, if `is_lent`.
    file: Option<File>,
    /// Its file system is not the root's, so somebody may want to unmount it.
    is_lent: bool,
    layout: Layout,
    constants: Constants,
}

/// An open text.
pub struct OpenCode<'a> {
    file: &'a CodeFile,
    pieces: &'a mut Pieces,
}

impl OpenCode<'_> {
    pub fn number(&self) -> u32 {
        self.file.number
    }
}

impl CodeFiles {
    /// Files opened so far; wraps.
    pub fn opened(&self) -> u32 {
        self.next
    }

    /// The text of an image, whose file `open` opens.
    pub fn get(&mut self, image: ImageId, open: impl Fn() -> Option<File>) -> Option<OpenCode<'_>> {
        self.now += 1;
        let now = self.now;
        let stale = |known: &Known| known.file.is_none() && now > known.used + RETRY_AFTER;
        if self.by_image.get(&image).is_none_or(stale) {
            if self.by_image.len() >= FILES_MAX {
                self.forget_oldest();
            }
            let file = open().and_then(|file| self.take_up(file));
            self.by_image.insert(image, Known { file, used: now, used_at: Instant::now() });
        }
        let is_closed = |code: &CodeFile| code.file.is_none();
        if self.by_image.get(&image)?.file.as_ref().is_some_and(is_closed) {
            let Some(file) = open() else {
                self.forget(image);
                let failed = Known { file: None, used: now, used_at: Instant::now() };
                self.by_image.insert(image, failed);
                return None;
            };
            let code = self.by_image.get_mut(&image).and_then(|known| known.file.as_mut());
            code?.file = Some(file);
        }
        let known = self.by_image.get_mut(&image)?;
        let file = known.file.as_ref()?;
        known.used = now;
        Some(OpenCode { file, pieces: &mut self.pieces })
    }

    fn take_up(&mut self, file: File) -> Option<CodeFile> {
        let layout = Layout::of_file(&file).ok()?;
        let mut constants = Constants::of_file(&file).unwrap_or_default();
        if self.constants_bytes + constants.size_bytes() > CONSTANTS_BYTES_MAX {
            constants = Constants::default();
        }
        self.constants_bytes += constants.size_bytes();
        self.next = self.next.wrapping_add(1);
        let is_lent = keeps_busy(&file);
        Some(CodeFile { number: self.next, file: Some(file), is_lent, layout, constants })
    }

    /// Closes files of file systems that somebody may want to unmount; to be called when a question
    /// is answered.
    pub fn let_go(&mut self) {
        for known in self.by_image.values_mut().filter_map(|known| known.file.as_mut()) {
            known.file.take_if(|_| known.is_lent);
        }
    }

    /// Closes files that were long unused; to be called at intervals.
    pub fn close_unused(&mut self) {
        let (by_image, now) = (&mut self.by_image, self.now);
        for known in by_image.values_mut().filter(|known| known.used > self.swept) {
            known.used_at = Instant::now();
        }
        self.swept = now;
        let unused = |known: &Known| known.file.is_some() && known.used_at.elapsed() > UNUSED_MAX;
        let unused: Vec<ImageId> =
            by_image.iter().filter(|(_, known)| unused(known)).map(|(image, _)| *image).collect();
        unused.into_iter().for_each(|image| self.forget(image));
    }

    fn forget_oldest(&mut self) {
        let oldest =
            self.by_image.iter().min_by_key(|(_, known)| known.used).map(|(image, _)| *image);
        oldest.into_iter().for_each(|image| self.forget(image));
    }

    fn forget(&mut self, image: ImageId) {
        let gone = self.by_image.remove(&image).and_then(|known| known.file);
        if let Some(gone) = gone {
            self.constants_bytes = self.constants_bytes.saturating_sub(gone.constants.size_bytes());
        }
    }
}

/// An image as the sampled process has it mapped. Only the mapping that was sampled is read.
pub struct View<'a> {
    text: OpenCode<'a>,
    place: Place,
    /// Difference between the process's addresses and the file's.
    distance: u64,
}

impl<'a> View<'a> {
    /// None where the sampled address is not in the file's code.
    pub fn new(text: OpenCode<'a>, place: Place, sampled: Vaddr) -> Option<Self> {
        let offset = place.offset.0.checked_add(sampled.0.checked_sub(place.begin.0)?)?;
        let vaddr = text.file.layout.file_offset_to_vaddr(ImageOffset(offset))?;
        Some(Self { text, place, distance: sampled.0.wrapping_sub(vaddr.0) })
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> usize {
        let mut done = 0;
        while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let at = offset.saturating_add(done as u64);
            let Some(piece) = self.text.pieces.get(self.text.file, at / PIECE_BYTES as u64) else {
                break;
            };
            let from = piece.get((at % PIECE_BYTES as u64) as usize..).unwrap_or_default();
            let len = from.len().min(rest.len());
            if len == 0 {
                break;
            }
            if let (Some(to), Some(from)) = (rest.get_mut(..len), from.get(..len)) {
                to.copy_from_slice(from);
            }
            done += len;
        }
        done
    }
}

impl CodeView for View<'_> {
    fn place(&mut self, address: Vaddr) -> Option<Place> {
        (self.place.begin <= address && address < self.place.end).then_some(self.place)
    }

    fn bytes(&mut self, image: u32, offset: ImageOffset, into: &mut [u8]) -> usize {
        if image == self.text.number() { self.read(offset.0, into) } else { 0 }
    }

    fn constant(&mut self, address: Vaddr, len: u8) -> Option<u64> {
        match self.text.file.constants.at(Vaddr(address.0.wrapping_sub(self.distance)), len)? {
            Constant::Address(vaddr) => Some(vaddr.0.wrapping_add(self.distance)),
            Constant::InFile(offset) => {
                let mut bytes = [0; 8];
                let wanted = bytes.get_mut(..usize::from(len))?;
                let read = self.read(offset.0, wanted);
                (read == usize::from(len)).then(|| u64::from_le_bytes(bytes))
            }
        }
    }
}
