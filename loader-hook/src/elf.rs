//! Parses the parts of ELF (elf(5)) that have the addresses of an object's code and its build id.
//! The bytes may be malformed.

/// Bytes of a program header.
const HEADER_BYTES: usize = 56;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_NOTE: u32 = 4;
const PF_X: u32 = 1;
const PF_R: u32 = 4;
const NT_GNU_BUILD_ID: u32 = 3;

/// One program header.
struct Segment {
    kind: u32,
    flags: u32,
    /// Address in the file (p_vaddr).
    address: usize,
    file_bytes: usize,
    memory_bytes: usize,
    align: usize,
}

/// The table of program headers of one object.
#[derive(Clone, Copy)]
pub struct Segments<'a> {
    table: &'a [u8],
}

impl<'a> Segments<'a> {
    /// The segments of the object whose file begins with these bytes, if its whole table is in
    /// them.
    pub fn of_file(start: &'a [u8]) -> Option<Self> {
        // 64 bits, little-endian.
        if start.get(..6)? != [0x7f, b'E', b'L', b'F', 2, 1] {
            return None;
        }
        let (offset, size, count) = (word(start, 32)?, half(start, 54)?, half(start, 56)?);
        let end = offset.checked_add(count.checked_mul(HEADER_BYTES)?)?;
        (size == HEADER_BYTES).then_some(())?;
        Some(Self { table: start.get(offset..end)? })
    }

    /// The segments in a table of program headers.
    pub fn new(table: &'a [u8]) -> Self {
        Self { table }
    }

    fn iter(self) -> impl Iterator<Item = Segment> {
        self.table.chunks_exact(HEADER_BYTES).filter_map(|header| {
            Some(Segment {
                kind: u32_at(header, 0)?,
                flags: u32_at(header, 4)?,
                address: word(header, 16)?,
                file_bytes: word(header, 32)?,
                memory_bytes: word(header, 40)?,
                align: word(header, 48)?,
            })
        })
    }

    /// Whether the segments are those of the object whose dynamic section is at `dynamic` when the
    /// object is moved by `base`.
    pub fn are_of(self, base: usize, dynamic: usize) -> bool {
        self.iter().any(|segment| {
            segment.kind == PT_DYNAMIC && base.wrapping_add(segment.address) == dynamic
        })
    }

    /// First address of the code and first address after it, in the file. None without code.
    pub fn code(self) -> Option<(usize, usize)> {
        let code =
            self.iter().filter(|segment| segment.kind == PT_LOAD && segment.flags & PF_X != 0);
        let ranges = code
            .filter_map(|code| Some((code.address, code.address.checked_add(code.memory_bytes)?)));
        ranges.reduce(|all, next| (all.0.min(next.0), all.1.max(next.1)))
    }

    /// Address, size and alignment of each note segment that lies within a readable mapped segment.
    pub fn notes(self) -> impl Iterator<Item = (usize, usize, usize)> {
        self.iter().filter(|segment| segment.kind == PT_NOTE).filter_map(move |note| {
            let end = note.address.checked_add(note.file_bytes)?;
            let holds = |load: Segment| {
                let load_end = load.address.checked_add(load.file_bytes);
                load.kind == PT_LOAD
                    && load.flags & PF_R != 0
                    && load.address <= note.address
                    && load_end.is_some_and(|load_end| end <= load_end)
            };
            self.iter().any(holds).then_some((note.address, note.file_bytes, note.align))
        })
    }
}

/// The GNU build id among these notes, which are aligned to `align`.
pub fn build_id(mut notes: &[u8], align: usize) -> Option<&[u8]> {
    let align = if align == 8 { 8 } else { 4 };
    while let Some((header, rest)) = notes.split_at_checked(12) {
        let (name_len, content_len) = (u32_at(header, 0)? as usize, u32_at(header, 4)? as usize);
        let name = rest.get(..name_len)?;
        // The header has 12 bytes: positions are counted from its start.
        let content_at = (name_len + 12).next_multiple_of(align) - 12;
        let rest = rest.get(content_at..)?;
        let content = rest.get(..content_len)?;
        if u32_at(header, 8)? == NT_GNU_BUILD_ID && name == b"GNU\0" {
            return Some(content);
        }
        notes = rest.get(content_len.next_multiple_of(align)..)?;
    }
    None
}

fn half(bytes: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?)))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    Some(usize::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(name: &[u8], kind: u32, content: &[u8], align: usize) -> Vec<u8> {
        let mut bytes =
            [name.len() as u32, content.len() as u32, kind].map(u32::to_le_bytes).concat();
        for part in [name, content] {
            bytes.extend(part);
            bytes.resize(bytes.len().next_multiple_of(align), 0);
        }
        bytes
    }

    #[test]
    fn build_ids_among_notes() {
        for align in [4, 8] {
            let other = note(b"GNU\0", 5, &[1; 12], align);
            let id = note(b"GNU\0", NT_GNU_BUILD_ID, &[7; 20], align);
            let go = note(b"Go\0\0", NT_GNU_BUILD_ID, &[8; 20], align);
            assert_eq!(
                build_id(&[&other[..], &go, &id].concat(), align),
                Some(&[7; 20][..]),
                "{align}"
            );
            assert_eq!(build_id(&[&other[..], &go].concat(), align), None);
            assert_eq!(build_id(&[], align), None);
            for len in 0..id.len() - 1 {
                let _ = build_id(&id[..len], align); // must not panic; the padding may be cut
            }
        }
        for lengths in [[u32::MAX; 3], [4, u32::MAX, 3], [u32::MAX, 4, 3]] {
            assert_eq!(
                build_id(&[lengths.map(u32::to_le_bytes).concat(), vec![0; 64]].concat(), 4),
                None
            );
        }
    }

    #[test]
    fn the_headers_of_this_very_program() {
        let file = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let segments = Segments::of_file(&file[..4096]).unwrap();
        let (start, end) = segments.code().unwrap();
        assert!(start < end && end < file.len() * 2);
        let dynamic = segments.iter().find(|segment| segment.kind == PT_DYNAMIC).unwrap().address;
        assert!(segments.are_of(0x1000, 0x1000 + dynamic) && !segments.are_of(0, dynamic + 8));
        assert!(segments.notes().count() > 0);
    }

    #[test]
    fn hostile_headers_are_refused_or_read_without_a_panic() {
        let file = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let head = &file[..1024];
        for len in 0..head.len() {
            let _ = Segments::of_file(&head[..len])
                .map(|segments| (segments.code(), segments.notes().count()));
        }
        for at in 0..head.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut bytes = head.to_vec();
                bytes[at] ^= flip;
                if let Some(segments) = Segments::of_file(&bytes) {
                    let _ = (segments.code(), segments.are_of(usize::MAX, 1));
                    segments
                        .notes()
                        .for_each(|(address, len, _)| assert!(address.checked_add(len).is_some()));
                }
            }
        }
        // A note outside of what is mapped must not be read.
        let segment = |kind: u32, flags: u32, address: u64, bytes: u64| {
            let words = [0, address, address, bytes, bytes, 4].map(u64::to_le_bytes).concat();
            [kind.to_le_bytes().to_vec(), flags.to_le_bytes().to_vec(), words].concat()
        };
        let load = segment(PT_LOAD, PF_R | PF_X, 0x1000, 0x1000);
        for (note, expected) in [
            ((0x1000, 0x1000), 1),
            ((0xfff, 2), 0),
            ((0x1fff, 2), 0),
            ((u64::MAX, 2), 0),
            ((0x5000, 1), 0),
        ] {
            let table = [load.clone(), segment(PT_NOTE, PF_R, note.0, note.1)].concat();
            assert_eq!(Segments::new(&table).notes().count(), expected, "{note:x?}");
        }
        let unreadable =
            [segment(PT_LOAD, PF_X, 0x1000, 0x1000), segment(PT_NOTE, PF_R, 0x1000, 16)].concat();
        assert_eq!(Segments::new(&unreadable).notes().count(), 0);
    }
}
