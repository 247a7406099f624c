//! Generated code as an excerpt of an ELF file that never was: its file offsets and its addresses
//! are the offsets of the image, and it has the pieces of code that were kept. So every reader of
//! kept files reads it.

use std::collections::BTreeMap;
use std::ops::Range;

use object::elf;

use crate::elf::malformed;
use crate::{ImageError, KeptFile, KeptRanges};

/// Most bytes of code in one excerpt. A large node or Java program has samples in some hundred KiB
/// of its code; more would be written again and again as pieces come.
pub const EXCERPT_BYTES_MAX: u64 = 4 << 20;
/// Most program headers: as many as the kernel's limit of 64 KiB has room for is 1170.
const SEGMENTS_MAX: usize = 1024;
/// Bytes of a file header and of a program header of 64 bits.
const FILE_HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
/// Code begins behind the headers. No process has memory below (vm.mmap_min_addr).
const CODE_MIN: u64 = 1 << 16;
/// Bytes between two pieces up to which they share a program header. The distance is doubled until
/// there are at most [`SEGMENTS_MAX`] headers.
const NEAR: u64 = 4096;

/// An excerpt with more pieces of code, by their offset in the image. Pieces that overlap those
/// that are there, or that find no room, are left out. `machine` (`e_machine`) is that of a new
/// excerpt.
///
/// # Errors
/// [`ImageError::Malformed`] when `excerpt` is no such file; [`ImageError::TooLarge`] when it would
/// have too many pieces.
pub fn with_pieces(
    excerpt: Option<&KeptFile>,
    machine: u16,
    pieces: &BTreeMap<u64, Vec<u8>>,
) -> Result<KeptFile, ImageError> {
    let mut code: BTreeMap<u64, &[u8]> = BTreeMap::new();
    let mut left = EXCERPT_BYTES_MAX;
    let mut machine = machine;
    let there = excerpt.map(code_of).transpose()?;
    if let Some((its_machine, its_code)) = there {
        machine = its_machine;
        code = its_code;
        left = code.values().fold(left, |left, bytes| left.saturating_sub(bytes.len() as u64));
    }
    for (&start, bytes) in pieces {
        let Some(end) = start.checked_add(bytes.len() as u64) else { continue };
        let before = code.range(..end).next_back();
        let is_free = before.is_none_or(|(at, bytes)| at + bytes.len() as u64 <= start);
        if start >= CODE_MIN && is_free && !bytes.is_empty() && bytes.len() as u64 <= left {
            left -= bytes.len() as u64;
            code.insert(start, bytes);
        }
    }
    let headers = headers(machine, &segments(&code));
    let mut ranges: Vec<Range<u64>> = Vec::with_capacity(code.len() + 1);
    ranges.push(0..headers.len() as u64);
    let mut bytes = headers;
    for (start, piece) in &code {
        let end = start + piece.len() as u64;
        match ranges.last_mut() {
            Some(last) if last.end == *start => last.end = end,
            _ => ranges.push(*start..end),
        }
        bytes.extend_from_slice(piece);
    }
    let file_len = ranges.last().map_or(0, |last| last.end);
    KeptFile::new(KeptRanges::new(file_len, ranges)?, bytes).map(KeptFile::into_excerpt)
}

/// `e_machine` of an excerpt that [`with_pieces`] made, and its pieces by their offset.
fn code_of(excerpt: &KeptFile) -> Result<(u16, BTreeMap<u64, &[u8]>), ImageError> {
    let (_, ranges) =
        excerpt.ranges().ranges().split_first().ok_or_else(|| malformed("excerpt", 0))?;
    let machine = excerpt.get(18, 2).and_then(|bytes| <[u8; 2]>::try_from(bytes).ok());
    let machine = machine.ok_or_else(|| malformed("excerpt", 18))?;
    let piece = |range: &Range<u64>| {
        let len = usize::try_from(range.end - range.start).ok()?;
        Some((range.start, excerpt.get(range.start, len)?))
    };
    Ok((u16::from_le_bytes(machine), ranges.iter().filter_map(piece).collect()))
}

/// The ranges that program headers name: few enough, and with as little as possible between pieces.
fn segments(code: &BTreeMap<u64, &[u8]>) -> Vec<Range<u64>> {
    let mut near = NEAR;
    loop {
        let mut segments: Vec<Range<u64>> = Vec::new();
        for (&start, bytes) in code {
            let end = start + bytes.len() as u64;
            match segments.last_mut() {
                Some(last) if start - last.end <= near => last.end = end,
                _ => segments.push(start..end),
            }
        }
        if segments.len() <= SEGMENTS_MAX {
            return segments;
        }
        near = near.saturating_mul(2);
    }
}

/// The bytes of an ELF file header and of a program header for each segment, for a little-endian
/// machine of 64 bits (System V gABI, chapters 4 and 5).
fn headers(machine: u16, segments: &[Range<u64>]) -> Vec<u8> {
    let mut out = Vec::with_capacity(FILE_HEADER + segments.len() * PROGRAM_HEADER);
    out.extend(elf::ELFMAG);
    out.extend([elf::ELFCLASS64, elf::ELFDATA2LSB, elf::EV_CURRENT]);
    out.resize(16, 0);
    let (halves, words) = ([elf::ET_EXEC, machine], [u32::from(elf::EV_CURRENT)]);
    out.extend(halves.iter().flat_map(|half| half.to_le_bytes()));
    out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    // Entry, program headers, section headers; then flags.
    let longs = [0, FILE_HEADER as u64, 0];
    out.extend(longs.iter().flat_map(|long| long.to_le_bytes()));
    out.extend([0; 4]);
    // At most 1024.
    let count = segments.len() as u16;
    let halves = [FILE_HEADER as u16, PROGRAM_HEADER as u16, count, 0, 0, 0];
    out.extend(halves.iter().flat_map(|half| half.to_le_bytes()));
    for segment in segments {
        let size = segment.end - segment.start;
        let words = [elf::PT_LOAD, elf::PF_R | elf::PF_X];
        out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        let longs = [segment.start, segment.start, segment.start, size, size, 1];
        out.extend(longs.iter().flat_map(|long| long.to_le_bytes()));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Binary, ImageId, ImageOffset, Vaddr};

    fn pieces(pieces: &[(u64, &[u8])]) -> BTreeMap<u64, Vec<u8>> {
        pieces.iter().map(|(at, bytes)| (*at, bytes.to_vec())).collect()
    }

    fn bytes(excerpt: &KeptFile, at: u64, len: u64) -> Option<Vec<u8>> {
        let id = ImageId::from_name("[jit] x 1", "");
        let binary = Binary::of_kept(excerpt.clone(), None, Some(&id)).unwrap();
        assert_eq!((binary.machine(), binary.build_id()), (62, None));
        let code = binary.code(ImageOffset(at), len).ok()?;
        assert_eq!(binary.layout().file_offset_to_vaddr(ImageOffset(at)), Some(Vaddr(at)));
        Some(code)
    }

    #[test]
    fn pieces_are_read_where_they_were_and_nothing_elsewhere() {
        let turn = 1_u64 << 57;
        let first = pieces(&[(0x2_0000_0000, b"abc"), (0x2_0000_0003, b"d"), (0x7f00_0000, b"e")]);
        let excerpt = with_pieces(None, 62, &first).unwrap();
        // Later pieces, one in the place of code that was there before, one over known code.
        let more = [
            (0x2_0000_0000 + turn, &b"other"[..]),
            (0x2_0000_0002, b"over"),
            (0x8000, b"no code"),
            (u64::MAX, b"wraps"),
            (0x2_0000_1000, b""),
        ];
        let excerpt = with_pieces(Some(&excerpt), 183, &pieces(&more)).unwrap();
        for (at, len, expected) in [
            (0x2_0000_0000, 4, Some(&b"abcd"[..])),
            (0x2_0000_0001, 2, Some(b"bc")),
            (0x7f00_0000, 1, Some(b"e")),
            (0x2_0000_0000 + turn, 5, Some(b"other")),
            (0x2_0000_0004, 1, None),
            (0x8000, 1, None),
        ] {
            assert_eq!(bytes(&excerpt, at, len).as_deref(), expected, "{at:x}");
        }
        assert_eq!(with_pieces(Some(&excerpt), 62, &BTreeMap::new()).unwrap(), excerpt);
    }

    #[test]
    fn many_pieces_have_few_headers_and_a_full_excerpt_takes_no_more() {
        let far = |n: u64| (0x10_0000 + n * 0x10_0000, vec![n as u8; 16]);
        let excerpt = with_pieces(None, 62, &(0..5000).map(far).collect()).unwrap();
        assert_eq!(excerpt.ranges().ranges().len(), 5001);
        let layout = excerpt.layout().unwrap();
        assert!(layout.segments().len() <= SEGMENTS_MAX, "{}", layout.segments().len());
        assert_eq!(bytes(&excerpt, far(4321).0, 16), Some(far(4321).1));
        let large = |n: u64| (0x10_0000 + n * 0x10_0000, vec![1; 1 << 20]);
        let excerpt = with_pieces(None, 62, &(0..5).map(large).collect()).unwrap();
        let excerpt = with_pieces(Some(&excerpt), 62, &pieces(&[(0x7f00_0000, b"f")])).unwrap();
        let kept = excerpt.ranges().len() - excerpt.ranges().ranges()[0].end;
        assert_eq!((kept, bytes(&excerpt, 0x7f00_0000, 1)), (EXCERPT_BYTES_MAX, None));
    }

    #[test]
    fn what_is_no_excerpt_gets_no_pieces() {
        let nothing = KeptFile::new(KeptRanges::new(0, Vec::new()).unwrap(), Vec::new()).unwrap();
        assert!(with_pieces(Some(&nothing), 62, &BTreeMap::new()).is_err());
        let short =
            KeptFile::new(KeptRanges::new(9, std::iter::once(0..9).collect()).unwrap(), vec![1; 9])
                .unwrap();
        assert!(with_pieces(Some(&short), 62, &BTreeMap::new()).is_err());
    }
}
