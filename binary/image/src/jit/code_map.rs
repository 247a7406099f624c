//! The code in a process's memory at this time, from all that its compiler has published so far.

use super::{Code, DumpPlace};
use std::collections::BTreeMap;

/// Most pieces of code kept of one process; further pieces are refused and counted. A large node or
/// Java program has about 50 thousand.
pub const CODE_MAX: usize = 262_144;
/// Most bytes of names kept of one process.
pub const NAMES_MAX: usize = 32 << 20;
/// Bytes of names of removed code above which they are freed, if they are also half of all names.
const DEAD_MAX: usize = 64 << 10;

/// A piece of code.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Piece<'a> {
    /// Address of its first byte.
    pub start: u64,
    /// The address after its last byte.
    pub end: u64,
    /// Its name.
    pub name: &'a str,
    /// Where its bytes are, if a jitdump has them.
    pub bytes: Option<DumpPlace>,
}

/// Pieces of code, never overlapping. Compilers reuse memory, so a piece that is published later
/// replaces all earlier pieces that it overlaps, wholly: code of which a part was overwritten is
/// gone.
#[derive(Clone, Debug, Default)]
pub struct CodeMap {
    /// Entries by start.
    entries: BTreeMap<u64, Entry>,
    /// Names, each ended by a NUL, which no name contains.
    names: String,
    /// Bytes of names that no entry uses any longer.
    dead: usize,
    refused: u64,
}

#[derive(Copy, Clone, Debug)]
struct Entry {
    size: u32,
    /// Begin of its name in `names`.
    name: u32,
    bytes: Option<DumpPlace>,
}

impl CodeMap {
    /// Adds a piece of code.
    pub fn insert(&mut self, code: &Code<'_>) {
        let end = code.start.saturating_add(u64::from(code.size));
        let is_it = |piece: &Piece<'_>| {
            (piece.start, piece.end, piece.name) == (code.start, end, &*code.name)
        };
        if self.find(code.start).is_some_and(|piece| is_it(&piece)) {
            // A map and a dump may both name it; the newest bytes count.
            let entry = self.entries.get_mut(&code.start);
            entry.into_iter().for_each(|entry| entry.bytes = code.bytes.or(entry.bytes));
            return;
        }
        self.remove(code.start, end);
        if self.entries.len() >= CODE_MAX || self.names.len() + code.name.len() >= NAMES_MAX {
            self.refused += 1;
            return;
        }
        let Ok(name) = u32::try_from(self.names.len()) else { return };
        self.names.push_str(&code.name);
        self.names.push('\0');
        self.entries.insert(code.start, Entry { size: code.size, name, bytes: code.bytes });
        self.tidy();
    }

    /// Moves the code at `from` to `to`.
    pub fn relocate(&mut self, from: u64, to: u64) {
        let Some(piece) = self.find(from).filter(|piece| piece.start == from) else { return };
        let (size, name) = (piece.end - piece.start, piece.name.to_owned());
        let bytes = piece.bytes;
        self.remove(from, from + size);
        if let Some(code) = Code::new(to, size, name.as_bytes()) {
            self.insert(&Code { bytes, ..code });
        }
    }

    /// The piece that holds `address`. Takes time logarithmic in the number of pieces.
    pub fn find(&self, address: u64) -> Option<Piece<'_>> {
        let (&start, entry) = self.entries.range(..=address).next_back()?;
        let end = start + u64::from(entry.size);
        (address < end).then(|| Piece {
            start,
            end,
            name: self.name(entry.name),
            bytes: entry.bytes,
        })
    }

    /// Removes all pieces.
    pub fn clear(&mut self) {
        *self = Self { refused: self.refused, ..Self::default() };
    }

    /// The number of pieces.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no pieces.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The number of pieces refused because of a limit.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Bytes of memory that the map takes, approximately: a B-tree's nodes are two thirds full.
    pub fn memory_bytes(&self) -> usize {
        self.names.capacity() + self.entries.len() * (size_of::<(u64, Entry)>() * 3 / 2)
    }

    fn name(&self, at: u32) -> &str {
        let from = self.names.get(at as usize..).unwrap_or_default();
        from.split('\0').next().unwrap_or_default()
    }

    /// Removes the pieces that overlap `start..end`.
    fn remove(&mut self, start: u64, end: u64) {
        while let Some((&at, entry)) = self.entries.range(..end).next_back() {
            if at + u64::from(entry.size) <= start {
                return;
            }
            self.dead += self.name(entry.name).len() + 1;
            self.entries.remove(&at);
        }
    }

    /// Frees the names of removed code.
    fn tidy(&mut self) {
        if self.dead < DEAD_MAX || self.dead * 2 < self.names.len() {
            return;
        }
        let mut names = String::with_capacity(self.names.len() - self.dead);
        let old = std::mem::take(&mut self.names);
        for entry in self.entries.values_mut() {
            let name = old
                .get(entry.name as usize..)
                .unwrap_or_default()
                .split('\0')
                .next()
                .unwrap_or_default();
            // The names only shrink, so each still begins below 4 GiB.
            entry.name = names.len() as u32;
            names.push_str(name);
            names.push('\0');
        }
        self.names = names;
        self.dead = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn map(told: &[(u64, u64, &str)]) -> CodeMap {
        let mut map = CodeMap::default();
        told.iter().for_each(|(start, size, name)| {
            map.insert(&Code::new(*start, *size, name.as_bytes()).unwrap())
        });
        map
    }

    fn shown(map: &CodeMap) -> Vec<(u64, u64, String)> {
        map.entries
            .keys()
            .filter_map(|start| map.find(*start))
            .map(|p| (p.start, p.end, p.name.to_owned()))
            .collect()
    }

    #[test]
    fn what_is_told_later_replaces_what_it_overlaps() {
        for (story, told, expected) in [
            ("apart", &[(10, 5, "a"), (20, 5, "b")][..], &[(10, 15, "a"), (20, 25, "b")][..]),
            ("touching", &[(10, 5, "a"), (15, 5, "b")], &[(10, 15, "a"), (15, 20, "b")]),
            ("the same place", &[(10, 5, "a"), (10, 5, "b")], &[(10, 15, "b")]),
            ("told twice", &[(10, 5, "a"), (10, 5, "a")], &[(10, 15, "a")]),
            ("inside: the old code is gone", &[(10, 50, "a"), (20, 5, "b")], &[(20, 25, "b")]),
            (
                "across three",
                &[(10, 5, "a"), (15, 5, "b"), (20, 5, "c"), (14, 7, "d")],
                &[(14, 21, "d")],
            ),
            ("over the head", &[(10, 5, "a"), (5, 6, "b")], &[(5, 11, "b")]),
        ] {
            let expected: Vec<_> =
                expected.iter().map(|(a, b, n)| (*a, *b, (*n).to_owned())).collect();
            assert_eq!(shown(&map(told)), expected, "{story}");
        }
    }

    #[test]
    fn code_moves_with_its_name() {
        let mut map = map(&[(10, 5, "a"), (20, 5, "b")]);
        map.relocate(10, 22);
        assert_eq!(shown(&map), [(22, 27, "a".to_owned())], "and overwrites what was there");
        map.relocate(23, 40);
        assert_eq!(map.len(), 1, "nothing begins there");
        map.relocate(22, u64::MAX);
        assert!(map.is_empty(), "no code can be there");
    }

    #[test]
    fn the_place_of_the_bytes_moves_with_the_code() {
        let (mut map, place) = (CodeMap::default(), DumpPlace::new(1, 99));
        let code = |bytes| Code { bytes, ..Code::new(0x10, 5, b"f").unwrap() };
        map.insert(&code(None));
        map.insert(&code(place));
        map.insert(&code(None));
        map.relocate(0x10, 0x20);
        assert_eq!(map.find(0x21).and_then(|piece| piece.bytes), place);
    }

    /// A compiler that replaces one procedure for ever grew the map for ever.
    #[test]
    fn names_of_gone_code_are_let_go() {
        let mut map = CodeMap::default();
        for n in 0..100_000_u64 {
            map.insert(
                &Code::new(0x1000, 0x10, format!("procedure number {n}").as_bytes()).unwrap(),
            );
        }
        assert_eq!(map.find(0x1008).map(|piece| piece.name), Some("procedure number 99999"));
        assert!(map.memory_bytes() < 4 * DEAD_MAX, "{}", map.memory_bytes());
    }

    #[test]
    fn what_is_beyond_the_limit_is_refused_and_counted() {
        let mut map = CodeMap::default();
        for n in 0..CODE_MAX as u64 + 7 {
            map.insert(&Code::new(n * 16, 16, b"f").unwrap());
        }
        assert_eq!((map.len(), map.refused()), (CODE_MAX, 7));
        map.insert(&Code::new(0, 16, b"newer").unwrap());
        assert_eq!(
            map.find(3).map(|piece| piece.name),
            Some("newer"),
            "what is known is still replaced"
        );
    }

    proptest! {
        /// Against a plain list in which the newest that holds the address counts, and has not been
        /// overwritten.
        #[test]
        fn the_newest_wins(told in prop::collection::vec((0_u64..200, 1_u64..40, 0_u8..5), 0..60)) {
            let mut list: Vec<(u64, u64, String)> = Vec::new();
            let mut map = CodeMap::default();
            for (start, size, name) in told {
                let name = format!("f{name}");
                map.insert(&Code::new(start, size, name.as_bytes()).unwrap());
                list.retain(|(s, e, _)| *e <= start || *s >= start + size);
                list.push((start, start + size, name));
            }
            for address in 0..260 {
                let has = |(start, end, _): &&(u64, u64, String)| (*start..*end).contains(&address);
                let expected = list.iter().find(has);
                let found = map.find(address);
                let found = found.map(|piece| (piece.start, piece.end, piece.name.to_owned()));
                prop_assert_eq!(found.as_ref(), expected, "{}", address);
            }
        }
    }
}
