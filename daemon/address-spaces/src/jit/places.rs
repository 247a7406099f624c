//! Offsets for code that has no file: the process's address, but never one offset for two pieces of
//! code.

use crate::mapped_files::Image;
use image::{ImageId, ImageKind};
use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::ops::Range;
use std::sync::Arc;

/// Most pieces of code with samples in one image; the next piece begins another image.
const PIECES_MAX: usize = 65_536;
/// Pieces of code that may have been at one address, each at the same distance from the one before:
/// addresses have 57 bits.
const TURNS: u64 = 64;
/// The distance.
const TURN_BITS: u32 = 57;

/// The name of a process's image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Title {
    pub name: String,
    /// Path of the process's program.
    pub path: String,
    /// A number that no other process's image has.
    pub salt: String,
}

/// An image of generated code, and which of its offsets stand for what.
#[derive(Debug)]
pub struct Places {
    title: Title,
    image: Arc<Image>,
    /// Images that were full.
    full: u32,
    /// By turn and address.
    pieces: BTreeMap<(u64, u64), Known>,
}

/// A piece of code with samples.
#[derive(Debug)]
struct Known {
    /// The address after its last byte, and a hash of its name.
    is: (u64, u64),
    /// Its bytes are asked for already.
    is_asked_for: bool,
}

impl Places {
    /// An image without samples.
    pub fn new(title: Title) -> Self {
        Self { image: image(&title, 0), title, full: 0, pieces: BTreeMap::new() }
    }

    /// The image, and where in it the addresses of this piece of code begin to count: its address
    /// in the process, or, when other code had samples there before, the same address in the next
    /// turn. Profiles are kept for weeks, compilers overwrite their code in minutes.
    pub fn place(&mut self, piece: Range<u64>, name: &str) -> (Arc<Image>, u64) {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let wanted = (piece.end, hasher.finish());
        for turn in 0..TURNS {
            let before = self.pieces.range((turn, 0)..(turn, piece.end)).next_back();
            match before {
                Some((&(_, start), known)) if start == piece.start && known.is == wanted => {}
                Some((_, known)) if known.is.0 > piece.start => continue,
                _ if self.pieces.len() >= PIECES_MAX => break,
                _ => drop(self.pieces.insert((turn, piece.start), Known::new(wanted))),
            }
            return (self.image.clone(), (turn << TURN_BITS) + piece.start);
        }
        self.full += 1;
        self.image = image(&self.title, self.full);
        self.pieces = BTreeMap::from([((0, piece.start), Known::new(wanted))]);
        (self.image.clone(), piece.start)
    }

    /// Whether the bytes of the piece that begins there are asked for now, and were not before.
    pub fn ask_for(&mut self, image: ImageId, offset: u64) -> bool {
        let at = (offset >> TURN_BITS, offset & ((1 << TURN_BITS) - 1));
        let piece = self.pieces.get_mut(&at).filter(|_| self.image.id == image);
        piece.is_some_and(|piece| !std::mem::replace(&mut piece.is_asked_for, true))
    }
}

impl Known {
    fn new(is: (u64, u64)) -> Self {
        Self { is, is_asked_for: false }
    }
}

fn image(title: &Title, full: u32) -> Arc<Image> {
    let Title { name, path, salt } = title;
    let id = ImageId::from_name(name, &format!("{salt} {full}"));
    let (name, path) = (name.clone(), path.clone());
    Arc::new(Image { id, kind: ImageKind::Jit, name, path, size_bytes: None, procedures: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> Places {
        Places::new(Title { name: "[jit] x 1".into(), path: String::new(), salt: "a".into() })
    }

    /// Code was replaced by other code at the same address, and the samples of the first became the
    /// second's.
    #[test]
    fn no_offset_stands_for_two_pieces_of_code() {
        let mut places = places();
        let mut at = |start: u64, end: u64, name: &str| places.place(start..end, name).1;
        let turn = 1 << TURN_BITS;
        assert_eq!(at(0x1000, 0x1100, "a"), 0x1000);
        assert_eq!(at(0x1000, 0x1100, "b"), turn + 0x1000, "another name");
        assert_eq!(at(0x1000, 0x1080, "a"), 2 * turn + 0x1000, "another size: compiled anew");
        assert_eq!(at(0x10f0, 0x1200, "c"), 2 * turn + 0x10f0, "overlaps the first two");
        assert_eq!(at(0x1200, 0x1300, "d"), 0x1200, "touches only");
        assert_eq!(at(0x1000, 0x1100, "a"), 0x1000, "known ones stay where they are");
        assert_eq!(at(0x1000, 0x1100, "b"), turn + 0x1000);
    }

    #[test]
    fn the_bytes_of_a_piece_are_asked_for_once() {
        let mut places = places();
        let (image, at) = places.place(0x1000..0x1100, "a");
        let (_, other) = places.place(0x1000..0x1100, "b");
        let mut asks = |at| places.ask_for(image.id, at);
        assert!(asks(at) && !asks(at) && asks(other) && !asks(other) && !asks(0x1100));
        assert!(!places.ask_for(ImageId::from_name("other", ""), at));
    }

    #[test]
    fn a_full_image_is_followed_by_another() {
        let mut places = places();
        let ids: std::collections::BTreeSet<_> =
            (0..TURNS * 2).map(|n| places.place(0x1000..0x1100, &n.to_string()).0.id).collect();
        assert_eq!(ids.len(), 2);
        let mut places = self::places();
        let ids: std::collections::BTreeSet<_> = (0..PIECES_MAX as u64 + 1)
            .map(|n| places.place(n * 16..n * 16 + 16, "f").0.id)
            .collect();
        assert_eq!(ids.len(), 2);
    }
}
