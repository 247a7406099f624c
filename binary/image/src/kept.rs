//! The kept part of an ELF file: the bytes that suffice to name, list and analyse the file's code
//! later without the file itself.
//!
//! The kept part has the headers, all code and read-only data, the symbols, the unwind tables, the
//! notes, the relocations, and the data that the dynamic loader makes read-only after relocating it
//! (which has tables of jumps). It has no debug information, which is large and found elsewhere. It
//! has no writable data, which is private; the one exception is `.go.module`, by which Go's table
//! of procedures is found. A kept file is as long as its original, and zero where nothing was kept.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use object::elf;

use crate::collect::collect;
use crate::elf::{Elf, ProgramHeader, Section, malformed};
use crate::identify::identify_elf;
use crate::source::Source;
use crate::{Finding, ImageError, ImageId, Layout, Procedures};

/// Most bytes kept of one file: the largest programs have less code and symbols. A larger file is
/// refused.
pub const KEPT_BYTES_MAX: u64 = 256 << 20;
/// Most separate pieces of one file; programs have some ten. The limit bounds the list of pieces.
const PIECES_MAX: usize = 65_536;
/// Bytes that are copied at a time.
const COPIED: usize = 64 << 10;

/// The ranges of a file that are kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptRanges {
    file_len: u64,
    /// Ranges in ascending order, not empty, and with a gap between any two.
    ranges: Vec<Range<u64>>,
}

impl KeptRanges {
    /// The ranges of an ELF file in memory.
    ///
    /// # Errors
    /// [`ImageError::NotElf`]; [`ImageError::Malformed`] when the file or program headers are,
    /// anything else being kept as far as it is there; [`ImageError::TooLarge`] when there is more
    /// than [`KEPT_BYTES_MAX`].
    pub fn of(data: &[u8]) -> Result<Self, ImageError> {
        Self::of_source(Source::Bytes(data))
    }

    /// The ranges of an open ELF file, of which only the headers are read.
    ///
    /// # Errors
    /// Returns the errors of [`KeptRanges::of`]; [`ImageError::NotRegular`]; [`ImageError::Io`].
    pub fn of_file(file: &File) -> Result<Self, ImageError> {
        Self::of_source(Source::file(file)?)
    }

    fn of_source(source: Source<'_>) -> Result<Self, ImageError> {
        let elf = Elf::parse(source)?;
        // Sections that cannot be read in the original cannot be read in the kept file either, for
        // the same reason.
        let sections = elf.sections().unwrap_or_default();
        let mut places: Vec<(u64, u64)> = elf.header_places(sections.len()).to_vec();
        places.extend(
            elf.segments
                .iter()
                .filter(|segment| keeps_segment(segment))
                .map(|s| (s.offset, s.file_size)),
        );
        let of_sections =
            sections.iter().filter(|section| keeps_section(section, elf.segments.is_empty()));
        places.extend(of_sections.map(|section| (section.offset, section.size)));
        Self::of_places(elf.source.len(), places)
    }

    /// The ranges that cover these places (offset, size), as far as the places are in the file.
    pub(crate) fn of_places(
        file_len: u64,
        mut places: Vec<(u64, u64)>,
    ) -> Result<Self, ImageError> {
        places.sort_unstable();
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (offset, size) in places {
            let end = offset.saturating_add(size).min(file_len);
            match ranges.last_mut() {
                _ if offset >= end => {}
                Some(last) if offset <= last.end => last.end = last.end.max(end),
                _ => ranges.push(offset..end),
            }
        }
        Self::new(file_len, ranges)
    }

    /// Ranges that were kept earlier.
    ///
    /// # Errors
    /// [`ImageError::Malformed`] unless they are in ascending order, not empty, with a gap between
    /// any two, and inside of a file of `file_len` bytes; [`ImageError::TooLarge`].
    pub fn new(file_len: u64, ranges: Vec<Range<u64>>) -> Result<Self, ImageError> {
        if ranges.len() > PIECES_MAX {
            let (size, limit) = (ranges.len() as u64, PIECES_MAX as u64);
            return Err(ImageError::TooLarge { what: "number of pieces to keep", size, limit });
        }
        let mut after = None;
        for range in &ranges {
            let ascends = after.is_none_or(|after| after < range.start);
            if !ascends || range.start >= range.end || range.end > file_len {
                return Err(malformed("kept piece", range.start));
            }
            after = Some(range.end);
        }
        let kept = Self { file_len, ranges };
        match kept.len() {
            size if size > KEPT_BYTES_MAX => Err(ImageError::TooLarge {
                what: "code to keep (bytes)",
                size,
                limit: KEPT_BYTES_MAX,
            }),
            _ => Ok(kept),
        }
    }

    /// Length of the whole file, in bytes.
    pub fn file_len(&self) -> u64 {
        self.file_len
    }

    /// The ranges of file offsets, in ascending order.
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// Whether all of a range is kept.
    pub fn has(&self, range: &Range<u64>) -> bool {
        let at = self.ranges.partition_point(|kept| kept.end <= range.start);
        self.ranges.get(at).is_some_and(|kept| kept.start <= range.start && range.end <= kept.end)
    }

    /// The number of bytes that are kept.
    pub fn len(&self) -> u64 {
        // The ranges are disjoint and below 2^64, so their sum is too.
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Passes the kept bytes of the file, in order, to `each`, at most 64 KiB at a time. Does not
    /// move the file's position.
    ///
    /// # Errors
    /// Errors of reading (`UnexpectedEof` when the file was truncated meanwhile) and of `each`,
    /// both of which end the copy.
    pub fn copy(
        &self,
        file: &File,
        mut each: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut buffer = vec![0; COPIED];
        for range in &self.ranges {
            let mut at = range.start;
            while at < range.end {
                let len = usize::try_from(range.end - at).unwrap_or(usize::MAX).min(COPIED);
                let piece = buffer.get_mut(..len).unwrap_or_default();
                file.read_exact_at(piece, at)?;
                each(piece)?;
                at += len as u64;
            }
        }
        Ok(())
    }
}

/// Whether a segment, or a piece that another program header names, is kept.
pub(crate) fn keeps_segment(segment: &ProgramHeader) -> bool {
    match segment.kind {
        // Code decides the identity of files without build id, even where it is writable.
        elf::PT_LOAD => segment.flags & elf::PF_W == 0 || segment.flags & elf::PF_X != 0,
        elf::PT_NOTE
        | elf::PT_DYNAMIC
        | elf::PT_GNU_EH_FRAME
        | elf::PT_GNU_PROPERTY
        | elf::PT_GNU_RELRO => true,
        _ => false,
    }
}

/// Whether a section is kept although perhaps no kept segment contains it. `alone`: there are no
/// segments (an object file).
pub(crate) fn keeps_section(section: &Section, alone: bool) -> bool {
    let name = &*section.name;
    let is_debug = [".debug_", ".zdebug_", ".rela.debug_", ".rel.debug_", ".gnu.debuglto_"];
    if section.has_bytes() && section.is_code() {
        return true;
    }
    if !section.has_bytes() || is_debug.iter().any(|prefix| name.starts_with(prefix)) {
        return false;
    }
    let by_name =
        [".eh_frame", ".gnu_debugdata", ".gnu_debuglink", ".gnu_debugaltlink", ".data.rel.ro"];
    // Addresses of the program's parts, which Go's table of procedures needs.
    let by_name = by_name.iter().chain(&[".go.module"]);
    let is_mapped = section.flags & u64::from(elf::SHF_ALLOC) != 0;
    let is_written = section.flags & u64::from(elf::SHF_WRITE) != 0;
    match section.kind {
        elf::SHT_SYMTAB
        | elf::SHT_DYNSYM
        | elf::SHT_STRTAB
        | elf::SHT_SYMTAB_SHNDX
        | elf::SHT_NOTE => true,
        elf::SHT_RELA | elf::SHT_REL | elf::SHT_RELR | elf::SHT_DYNAMIC => true,
        _ if by_name.clone().any(|prefix| name.starts_with(prefix)) => true,
        _ => alone && is_mapped && !is_written,
    }
}

/// The kept part of a file, used in the file's place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptFile {
    ranges: KeptRanges,
    /// True when code of the file is missing.
    is_excerpt: bool,
    /// The bytes of all ranges, concatenated.
    bytes: Vec<u8>,
    /// Begin of each range in `bytes`.
    starts: Vec<usize>,
}

impl KeptFile {
    /// The kept part of a file in memory.
    pub fn of(data: &[u8]) -> Result<Self, ImageError> {
        let ranges = KeptRanges::of(data)?;
        let piece = |range: &Range<u64>| {
            data.get(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?)
        };
        let bytes = ranges.ranges.iter().filter_map(piece).flatten().copied().collect();
        Self::new(ranges, bytes)
    }

    /// The kept part from bytes that were kept earlier: those of all ranges, one range behind the
    /// other.
    ///
    /// # Errors
    /// [`ImageError::Malformed`] when there are more or fewer bytes than the ranges have.
    pub fn new(ranges: KeptRanges, bytes: Vec<u8>) -> Result<Self, ImageError> {
        if bytes.len() as u64 != ranges.len() {
            return Err(malformed("kept bytes", bytes.len() as u64));
        }
        let mut start = 0;
        let mut starts = Vec::with_capacity(ranges.ranges.len());
        for range in &ranges.ranges {
            starts.push(start);
            // At most the length of `bytes`, as was just checked.
            start += (range.end - range.start) as usize;
        }
        Ok(Self { ranges, is_excerpt: false, bytes, starts })
    }

    /// An excerpt: the same without these pieces of its code (file offsets), which are in ascending
    /// order and do not overlap.
    ///
    /// # Errors
    /// [`ImageError::TooLarge`] when there would be too many separate pieces.
    pub fn without(&self, code: &[Range<u64>]) -> Result<Self, ImageError> {
        let mut ranges = Vec::new();
        for kept in &self.ranges.ranges {
            let mut at = kept.start;
            let first = code.partition_point(|gone| gone.end <= kept.start);
            for gone in code.iter().skip(first).take_while(|gone| gone.start < kept.end) {
                ranges.extend(
                    Some(at..gone.start.min(kept.end)).filter(|range| range.start < range.end),
                );
                at = at.max(gone.end);
            }
            ranges.extend(Some(at..kept.end).filter(|range| range.start < range.end));
        }
        let ranges = KeptRanges::new(self.ranges.file_len, ranges)?;
        let piece = |range: &Range<u64>| {
            self.get(range.start, usize::try_from(range.end - range.start).ok()?)
        };
        let bytes = ranges.ranges.iter().filter_map(piece).flatten().copied().collect();
        Self::new(ranges, bytes).map(Self::into_excerpt)
    }

    /// Marks the kept part as lacking some code of its file.
    #[must_use]
    pub fn into_excerpt(self) -> Self {
        Self { is_excerpt: true, ..self }
    }

    /// Whether code of the file is missing. Then [`KeptFile::identify`] says nothing where the id
    /// is a hash of the code.
    pub fn is_excerpt(&self) -> bool {
        self.is_excerpt
    }

    /// Whether the kept part can be of the build `id`. For an excerpt whose id is a hash of all
    /// code the answer is yes, because it cannot be checked.
    pub fn may_be(&self, id: &ImageId) -> Result<bool, ImageError> {
        let elf = Elf::parse(Source::Kept(self))?;
        if self.is_excerpt && id.build_id().is_none() {
            return Ok(elf.build_id().is_none());
        }
        Ok(id.is_build(&identify_elf(&elf)?))
    }

    /// The ranges that were kept.
    pub fn ranges(&self) -> &KeptRanges {
        &self.ranges
    }

    /// The bytes of all ranges, concatenated.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// `len` bytes from a file offset, if all of them were kept.
    pub fn get(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let at = self.ranges.ranges.partition_point(|range| range.end <= offset);
        let range = self.ranges.ranges.get(at)?;
        let into = usize::try_from(offset.checked_sub(range.start)?).ok()?;
        let fits = offset.checked_add(len as u64)? <= range.end;
        let start = self.starts.get(at)?.checked_add(into)?;
        self.bytes.get(start..start.checked_add(len)?).filter(|_| fits)
    }

    /// Reads `len` bytes from a file offset, zero where nothing was kept; the caller has bounded
    /// `len`.
    pub(crate) fn read(&self, offset: u64, len: usize) -> Cow<'_, [u8]> {
        if let Some(bytes) = self.get(offset, len) {
            return Cow::Borrowed(bytes);
        }
        let mut out = vec![0; len];
        let end = offset.saturating_add(len as u64);
        let first = self.ranges.ranges.partition_point(|range| range.end <= offset);
        for range in self.ranges.ranges.iter().skip(first).take_while(|range| range.start < end) {
            let (from, to) = (range.start.max(offset), range.end.min(end));
            // Both are within `offset..offset + len`, and `len` is a usize.
            let place = (from - offset) as usize..(to - offset) as usize;
            if let (Some(out), Some(bytes)) =
                (out.get_mut(place), self.get(from, (to - from) as usize))
            {
                out.copy_from_slice(bytes);
            }
        }
        Cow::Owned(out)
    }

    /// The whole file, zero where nothing was kept, for callers that need a slice.
    ///
    /// # Errors
    /// [`ImageError::TooLarge`] when the file had more than `limit` bytes.
    pub fn to_bytes(&self, limit: u64) -> Result<Vec<u8>, ImageError> {
        let bytes = Source::Kept(self).read("kept file (bytes)", 0, self.ranges.file_len, limit)?;
        Ok(bytes.into_owned())
    }

    /// The build, as [`crate::identify`] finds it for the original.
    pub fn identify(&self) -> Result<ImageId, ImageError> {
        identify_elf(&Elf::parse(Source::Kept(self))?)
    }

    /// The layout, as [`Layout::of`] finds it for the original.
    pub fn layout(&self) -> Result<Layout, ImageError> {
        Ok(Layout::of_elf(&Elf::parse(Source::Kept(self))?))
    }

    /// The procedures, as [`crate::procedures`] finds them for the original, which was at `path`; a
    /// debug file may still be near that path.
    pub fn procedures(
        &self,
        expect: Option<&ImageId>,
        path: Option<&Path>,
        debug_roots: &[PathBuf],
    ) -> Result<(Procedures, Vec<Finding>), ImageError> {
        collect(Source::Kept(self), expect, path, debug_roots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(file_len: u64, places: &[(u64, u64)]) -> Vec<Range<u64>> {
        KeptRanges::of_places(file_len, places.to_vec()).unwrap().ranges
    }

    #[test]
    fn places_become_ranges_that_are_apart() {
        for (story, given, expected) in [
            ("in any order", &[(50, 10), (0, 10)][..], &[0..10, 50..60][..]),
            ("touching", &[(0, 10), (10, 10)], std::slice::from_ref(&(0..20))),
            ("overlapping", &[(0, 30), (10, 10), (25, 15)], std::slice::from_ref(&(0..40))),
            (
                "cut at the end of the file",
                &[(90, 20), (100, 1), (300, 5)],
                std::slice::from_ref(&(90..100)),
            ),
            ("empty", &[(5, 0)], &[]),
            ("past the end of all numbers", &[(80, u64::MAX)], std::slice::from_ref(&(80..100))),
        ] {
            assert_eq!(places(100, given), expected, "{story}");
        }
    }

    #[test]
    fn ranges_of_a_stranger_are_checked() {
        for (story, file_len, ranges) in [
            ("empty", 100, vec![5..5, 7..8]),
            ("backwards", 100, vec![Range { start: 9, end: 3 }, 12..13]),
            ("touching", 100, vec![0..5, 5..6]),
            ("out of order", 100, vec![7..9, 0..5]),
            ("outside", 100, vec![0..2, 7..101]),
            (
                "too many bytes",
                u64::MAX,
                vec![0..KEPT_BYTES_MAX, KEPT_BYTES_MAX + 1..KEPT_BYTES_MAX + 2],
            ),
            (
                "too many pieces",
                u64::MAX,
                (0..=PIECES_MAX as u64).map(|n| 2 * n..2 * n + 1).collect(),
            ),
        ] {
            assert!(KeptRanges::new(file_len, ranges).is_err(), "{story}");
        }
        let ranges = KeptRanges::new(100, vec![0..5, 7..9]).unwrap();
        assert_eq!((ranges.len(), ranges.file_len()), (7, 100));
        assert!(KeptFile::new(ranges.clone(), vec![0; 6]).is_err());
        assert!(KeptFile::new(ranges, vec![0; 8]).is_err());
    }

    #[test]
    fn an_excerpt_has_all_but_what_was_left_out() {
        let ranges = KeptRanges::new(20, vec![2..6, 7..9, 15..20]).unwrap();
        let kept = KeptFile::new(ranges, (100..111).collect()).unwrap();
        let excerpt = kept.without(&[0..3, 4..5, 7..9, 18..30]).unwrap();
        assert_eq!(excerpt.ranges().ranges(), [3..4, 5..6, 15..18]);
        assert_eq!(excerpt.bytes(), [101, 103, 106, 107, 108]);
        assert!(excerpt.is_excerpt() && !kept.is_excerpt());
        assert_eq!(kept.without(&[]).unwrap().bytes(), kept.bytes());
        // A hash of all code can no longer be checked; a build id can.
        let own = KeptFile::of(&std::fs::read(std::env::current_exe().unwrap()).unwrap()).unwrap();
        let own_id = own.identify().unwrap();
        let segments = own.layout().unwrap();
        let code = segments.segments().iter().find(|segment| segment.executable).unwrap();
        let some =
            own.without(std::slice::from_ref(&(code.offset.0 + 64..code.offset.0 + 128))).unwrap();
        assert!(own.may_be(&own_id).unwrap() && some.may_be(&own_id).unwrap());
        assert!(!some.may_be(&ImageId::from_build_id(&[7; 20]).unwrap()).unwrap());
        assert!(!own.may_be(&ImageId::from_text([b"other"])).unwrap());
    }

    #[test]
    fn a_kept_file_reads_as_its_original_with_holes() {
        let ranges = KeptRanges::new(20, vec![2..5, 7..9, 15..20]).unwrap();
        let original: Vec<u8> = (100..120).collect();
        let mut holes = vec![0; 20];
        let mut bytes = Vec::new();
        for range in ranges.ranges() {
            let range = range.start as usize..range.end as usize;
            holes[range.clone()].copy_from_slice(&original[range.clone()]);
            bytes.extend_from_slice(&original[range]);
        }
        let kept = KeptFile::new(ranges, bytes).unwrap();
        assert_eq!(kept.to_bytes(20).unwrap(), holes);
        assert!(matches!(kept.to_bytes(19), Err(ImageError::TooLarge { size: 20, limit: 19, .. })));
        for start in 0..=20 {
            for end in start..=20 {
                let (offset, len) = (start as u64, end - start);
                assert_eq!(&*kept.read(offset, len), &holes[start..end], "{start}..{end}");
                let whole = kept
                    .ranges()
                    .ranges()
                    .iter()
                    .any(|r| r.contains(&offset) && end as u64 <= r.end);
                assert_eq!(kept.get(offset, len).is_some(), whole, "{start}..{end}");
            }
        }
    }
}
