//! Chooses the pieces of generated code whose bytes the librarian reads from jitdumps: those that
//! have samples.

use super::{Jit, JitPlace};
use crate::library::PiecesWanted;
use crate::mappings::Mappings;
use image::jit::{DumpPlace, EXCERPT_BYTES_MAX};
use inspect::questions::{DUMPED_BYTES_MAX, DumpedCode};

/// Most bytes of a piece whose bytes are asked for: the largest procedures that compilers make have
/// some 100 KiB.
const PIECE_BYTES_MAX: u64 = 256 << 10;
/// Most bytes that are asked for of one process.
const ASKED_BYTES_MAX: u64 = 4 << 20;
const _: () = assert!(ASKED_BYTES_MAX <= EXCERPT_BYTES_MAX);

/// A piece of an image whose bytes are wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct WantedPiece {
    /// Offset in the image.
    offset: u64,
    bytes: DumpPlace,
    len: u32,
}

impl Jit {
    /// Wants the bytes of code that has samples, once for each piece.
    pub fn want_bytes(&mut self, pid: u32, code: &JitPlace) {
        let Some(bytes) = code.bytes else { return };
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let (image, size) = (code.image.id, code.range.end - code.range.start);
        let all = process.wanted_bytes + size;
        let Ok(len) = u32::try_from(size) else { return };
        let is_new = process.images.get_mut(&None).is_some_and(|places| {
            size <= PIECE_BYTES_MAX
                && all <= ASKED_BYTES_MAX
                && places.ask_for(image, code.range.start)
        });
        if is_new {
            process.wanted_bytes = all;
            let of_dump = process.wanted.entry((image, bytes.dump())).or_default();
            of_dump.push(WantedPiece { offset: code.range.start, bytes, len });
        }
    }

    /// Has the librarian read the bytes that are wanted: at once, because the dump of a process
    /// that has ended may be gone soon.
    pub fn offer_bytes(&mut self, mappings: &Mappings) {
        for (&pid, process) in &mut self.processes {
            let Some(who) = process.who.as_ref().filter(|_| !process.wanted.is_empty()) else {
                continue;
            };
            let dumps = super::look::dumps(pid, mappings);
            for ((image, dump), pieces) in std::mem::take(&mut process.wanted) {
                let Some(dump) = process.dumps.get(usize::from(dump)) else { continue };
                let mut wanted = PiecesWanted {
                    image,
                    offsets: Vec::new(),
                    question: DumpedCode {
                        dumps: dumps.clone(),
                        dump: dump.clone(),
                        owners: who.owners,
                        private: false,
                        pieces: Vec::new(),
                    },
                };
                let mut bytes = 0;
                for WantedPiece { offset, bytes: place, len } in pieces {
                    bytes += len as usize;
                    if bytes > DUMPED_BYTES_MAX {
                        let full = wanted.clone();
                        mappings.files.library.offer_pieces(full);
                        (wanted.offsets, wanted.question.pieces) = Default::default();
                        bytes = len as usize;
                    }
                    wanted.offsets.push(offset);
                    wanted.question.pieces.push((place.offset(), len));
                }
                mappings.files.library.offer_pieces(wanted);
            }
        }
    }
}
