//! The executable mappings of one address space.

use crate::mapped_files::MappedFile;
use std::sync::Arc;

/// Mappings that one process may have; more are refused, and their samples stay unresolved. The
/// kernel's own limit is 65530 (vm.max_map_count); executable ones are a small part of them.
pub const MAPPINGS_MAX: usize = 16_384;

/// Addresses `start..end` show `file` from `file_offset` on.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// File offset that `start` shows.
    pub file_offset: u64,
    /// The file.
    pub file: Arc<MappedFile>,
}

impl Mapping {
    /// Whether both show the same byte of the same file at each address that both have.
    fn shows_the_same_as(&self, other: &Mapping) -> bool {
        let base = |mapping: &Mapping| mapping.file_offset.wrapping_sub(mapping.start);
        base(self) == base(other) && self.file.is_same_build(&other.file)
    }
}

/// Sorted, non-overlapping mappings.
#[derive(Clone, Debug, Default)]
pub struct AddressMap {
    mappings: Vec<Mapping>,
}

impl AddressMap {
    /// Adds a mapping; where it overlaps others it replaces them, as mmap(2) with MAP_FIXED does.
    /// Gives the ones that showed something else there; None when there are too many.
    pub fn insert(&mut self, new: Mapping) -> Option<Vec<Mapping>> {
        if new.start >= new.end {
            return Some(Vec::new());
        }
        let first = self.mappings.partition_point(|old| old.end <= new.start);
        let last = self.mappings.partition_point(|old| old.start < new.end);
        if self.mappings.len() >= MAPPINGS_MAX && last <= first {
            return None;
        }
        let overlapped = self.mappings.get(first..last).unwrap_or_default();
        let head = overlapped
            .first()
            .filter(|old| old.start < new.start)
            .map(|old| Mapping { end: new.start, ..old.clone() });
        let tail = overlapped.last().filter(|old| old.end > new.end).map(|old| Mapping {
            start: new.end,
            file_offset: old.file_offset.wrapping_add(new.end - old.start),
            ..old.clone()
        });
        let replaced =
            overlapped.iter().filter(|old| !old.shows_the_same_as(&new)).cloned().collect();
        let last = last.max(first);
        self.mappings.splice(first..last, head.into_iter().chain([new]).chain(tail));
        Some(replaced)
    }

    /// The mapping that shows `address`.
    pub fn find(&self, address: u64) -> Option<&Mapping> {
        let index = self.mappings.partition_point(|mapping| mapping.end <= address);
        self.mappings.get(index).filter(|mapping| mapping.start <= address)
    }

    /// The mappings that have an address in `start..end`.
    pub fn overlapping(&self, start: u64, end: u64) -> &[Mapping] {
        let first = self.mappings.partition_point(|old| old.end <= start);
        let last = self.mappings.partition_point(|old| old.start < end);
        self.mappings.get(first..last).unwrap_or_default()
    }

    /// Whether `new` would show something else where there is something already.
    pub fn differs_from(&self, new: &Mapping) -> bool {
        self.overlapping(new.start, new.end).iter().any(|old| !old.shows_the_same_as(new))
    }

    /// All of them, by address.
    pub fn iter(&self) -> std::slice::Iter<'_, Mapping> {
        self.mappings.iter()
    }

    /// Number of mappings.
    pub fn len(&self) -> usize {
        self.mappings.len()
    }

    /// Returns whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.mappings.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapped_files::Files;
    use kernel::MappedFileId;

    fn map(mappings: &[(u64, u64, u64, &str)]) -> AddressMap {
        let mut files = Files::default();
        let mut map = AddressMap::default();
        for (start, end, file_offset, name) in mappings {
            let file =
                files.intern(MappedFileId::Inode { major: 0, minor: 1, inode: 2 }, name.as_bytes());
            map.insert(Mapping { start: *start, end: *end, file_offset: *file_offset, file });
        }
        map
    }

    fn shown(map: &AddressMap) -> Vec<(u64, u64, u64, String)> {
        let shown = |m: &Mapping| {
            (m.start, m.end, m.file_offset, String::from_utf8(m.file.path.clone()).unwrap())
        };
        map.mappings.iter().map(shown).collect()
    }

    fn rows(rows: &[(u64, u64, u64, &str)]) -> Vec<(u64, u64, u64, String)> {
        rows.iter()
            .map(|(start, end, offset, name)| (*start, *end, *offset, (*name).to_owned()))
            .collect()
    }

    #[test]
    fn a_new_mapping_replaces_what_it_covers() {
        for (story, mappings, expected) in [
            (
                "apart",
                &[(10, 20, 0, "a"), (30, 40, 0, "b")][..],
                &[(10, 20, 0, "a"), (30, 40, 0, "b")][..],
            ),
            (
                "in reverse order",
                &[(30, 40, 0, "b"), (10, 20, 0, "a")],
                &[(10, 20, 0, "a"), (30, 40, 0, "b")],
            ),
            ("same place", &[(10, 20, 0, "a"), (10, 20, 5, "b")], &[(10, 20, 5, "b")]),
            (
                "head stays",
                &[(10, 20, 0, "a"), (15, 25, 0, "b")],
                &[(10, 15, 0, "a"), (15, 25, 0, "b")],
            ),
            (
                "tail stays",
                &[(10, 20, 100, "a"), (5, 15, 0, "b")],
                &[(5, 15, 0, "b"), (15, 20, 105, "a")],
            ),
            (
                "hole",
                &[(10, 20, 100, "a"), (12, 14, 0, "b")],
                &[(10, 12, 100, "a"), (12, 14, 0, "b"), (14, 20, 104, "a")],
            ),
            (
                "covers several",
                &[(10, 20, 0, "a"), (20, 30, 0, "b"), (30, 40, 0, "c"), (15, 35, 0, "d")],
                &[(10, 15, 0, "a"), (15, 35, 0, "d"), (35, 40, 5, "c")],
            ),
            ("empty", &[(10, 20, 0, "a"), (15, 15, 0, "b"), (18, 12, 0, "c")], &[(10, 20, 0, "a")]),
        ] {
            assert_eq!(shown(&map(mappings)), rows(expected), "{story}");
        }
    }

    #[test]
    fn addresses_are_found_where_they_are_mapped() {
        let map = map(&[(10, 20, 0, "a"), (20, 30, 7, "b"), (u64::MAX - 5, u64::MAX, 0, "c")]);
        let name = |address| map.find(address).map(|mapping| mapping.file.path.clone());
        for (address, expected) in [
            (9, None),
            (10, Some("a")),
            (19, Some("a")),
            (20, Some("b")),
            (30, None),
            (u64::MAX - 1, Some("c")),
            (u64::MAX, None),
        ] {
            assert_eq!(
                name(address),
                expected.map(|name: &str| name.as_bytes().to_vec()),
                "{address}"
            );
        }
    }

    #[test]
    fn the_number_of_mappings_is_bounded() {
        let file =
            Files::default().intern(MappedFileId::Inode { major: 0, minor: 1, inode: 2 }, b"a");
        let mut map = AddressMap::default();
        let at =
            |n: u64| Mapping { start: n * 10, end: n * 10 + 5, file_offset: 0, file: file.clone() };
        assert!((0..MAPPINGS_MAX as u64).all(|n| map.insert(at(n)).is_some()));
        assert!(map.insert(at(MAPPINGS_MAX as u64 + 1)).is_none());
        assert!(
            map.insert(at(3)).is_some_and(|replaced| replaced.is_empty()),
            "the same again replaces nothing"
        );
        assert_eq!(map.len(), MAPPINGS_MAX);
    }
}
