//! Which pieces of an image were mapped, for formats that have mappings.

use super::{Image, Place};

/// Mappings are of whole pages, of the smallest size there is.
const PAGE_BYTES: u64 = 4096;

/// An executable piece of an image that has places with samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The first address, as those of places.
    pub(super) start: u64,
    /// The address after the last.
    pub(super) limit: u64,
    /// Where `start` is in the file.
    pub(super) offset: u64,
    /// The offsets of its places: the first, and the one after the last.
    places: (u64, u64),
}

impl Piece {
    pub(super) fn holds(&self, place: &Place) -> bool {
        (self.places.0..self.places.1).contains(&place.offset)
    }
}

impl Image {
    /// The pieces; at least one.
    pub(super) fn pieces(&self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for segment in &self.segments {
            let (offset, size) = (segment.offset.0, segment.file_size_bytes);
            // Whole pages: the file's bytes before the piece are mapped with it.
            let before = (offset % PAGE_BYTES).min(segment.vaddr.0);
            let piece = Piece {
                start: segment.vaddr.0 - before,
                limit: segment.vaddr.0.saturating_add(size),
                offset: offset - before,
                places: (offset, offset.saturating_add(size)),
            };
            if self.places.iter().any(|place| piece.holds(place)) {
                pieces.push(piece);
            }
        }
        if pieces.is_empty() {
            // No file to see, or none at all: offsets are addresses.
            let end = self.places.last().map_or(0, |place| place.offset.saturating_add(1));
            pieces.push(Piece { start: 0, limit: end.max(1), offset: 0, places: (0, end) });
        }
        pieces
    }
}
