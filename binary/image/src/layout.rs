//! The layout of an ELF file: file offsets and virtual addresses of its bytes.

use std::fs::File;

use object::elf;

use crate::elf::Elf;
use crate::source::Source;
use crate::{ImageError, ImageOffset, Vaddr};

/// Smallest page of memory, in bytes.
const PAGE_BYTES: u64 = 4096;

/// One piece of the file that is mapped (a `PT_LOAD` program header): its bytes are at
/// consecutive offsets and at consecutive addresses.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Offset of its first byte in the file.
    pub offset: ImageOffset,
    /// Address of its first byte.
    pub vaddr: Vaddr,
    /// Bytes that are in the file (`p_filesz`); those only in memory have no offset.
    pub file_size_bytes: u64,
    /// Whether its bytes may be executed (`PF_X`).
    pub executable: bool,
}

impl Segment {
    /// The address of the byte at `offset`, if it is in this piece.
    pub fn vaddr_of(&self, offset: ImageOffset) -> Option<Vaddr> {
        let into = offset.0.checked_sub(self.offset.0)?;
        let vaddr = self.vaddr.0.checked_add(into)?;
        (into < self.file_size_bytes).then_some(Vaddr(vaddr))
    }

    /// The offset of the byte at `vaddr`, if it is in this piece.
    pub fn offset_of(&self, vaddr: Vaddr) -> Option<ImageOffset> {
        let into = vaddr.0.checked_sub(self.vaddr.0)?;
        let offset = self.offset.0.checked_add(into)?;
        (into < self.file_size_bytes).then_some(ImageOffset(offset))
    }

    /// The address after its last byte.
    pub(crate) fn vaddr_end(&self) -> u64 {
        self.vaddr.0.saturating_add(self.file_size_bytes)
    }
}

/// The mapped segments of an ELF file.
///
/// Strict: an offset or address in no segment has no counterpart, although the kernel maps whole
/// pages, and so also some bytes around each segment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    segments: Vec<Segment>,
}

impl Layout {
    /// The layout of an ELF file in memory.
    ///
    /// # Errors
    /// [`ImageError::NotElf`]; [`ImageError::Malformed`], [`ImageError::TooLarge`] when the file or
    /// program headers are.
    pub fn of(data: &[u8]) -> Result<Self, ImageError> {
        Ok(Self::of_elf(&Elf::parse(Source::Bytes(data))?))
    }

    /// The layout of an open ELF file, of which only the headers are read.
    ///
    /// # Errors
    /// Returns the errors of [`Layout::of`]; [`ImageError::NotRegular`]; [`ImageError::Io`].
    pub fn of_file(file: &File) -> Result<Self, ImageError> {
        Ok(Self::of_elf(&Elf::parse(Source::file(file)?)?))
    }

    pub(crate) fn of_elf(elf: &Elf<'_>) -> Self {
        Self {
            segments: elf
                .segments
                .iter()
                .filter(|header| header.kind == elf::PT_LOAD)
                .map(|header| Segment {
                    offset: ImageOffset(header.offset),
                    vaddr: Vaddr(header.vaddr),
                    file_size_bytes: header.file_size,
                    executable: header.flags & elf::PF_X != 0,
                })
                .collect(),
        }
    }

    /// The mapped pieces, in the order of the program headers.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The address of a byte of the file; where a byte is mapped twice, its address as code.
    pub fn file_offset_to_vaddr(&self, offset: ImageOffset) -> Option<Vaddr> {
        self.code_first().find_map(|segment| segment.vaddr_of(offset))
    }

    /// Difference between a process's addresses and the file's, where code is mapped at `address`
    /// from this offset on, the begin of a page. The page may also have the end of the piece before
    /// (lld lets pieces share pages of the file), which then is mapped elsewhere.
    pub fn bias(&self, address: u64, offset: ImageOffset) -> Option<u64> {
        self.code_first().find_map(|segment| {
            let first = offset.0.max(segment.offset.0);
            let Vaddr(vaddr) = segment.vaddr_of(ImageOffset(first))?;
            let is_near = first - offset.0 < PAGE_BYTES;
            is_near.then(|| address.wrapping_add(first - offset.0).wrapping_sub(vaddr))
        })
    }

    /// The offset of the byte at an address; `None` also for memory that is not in the file
    /// (`.bss`).
    pub fn vaddr_to_file_offset(&self, vaddr: Vaddr) -> Option<ImageOffset> {
        self.code_first().find_map(|segment| segment.offset_of(vaddr))
    }

    /// The executable piece that has an address.
    pub(crate) fn code_at(&self, vaddr: u64) -> Option<&Segment> {
        self.code().find(|segment| segment.offset_of(Vaddr(vaddr)).is_some())
    }

    /// The addresses of the `offsets` that are code, in order, each once. None in a file of which a
    /// byte of code is at two addresses, or an address has two bytes.
    pub(crate) fn code_addresses(&self, offsets: &[ImageOffset]) -> Option<Vec<u64>> {
        let is_disjoint = |place: fn(&Segment) -> u64| {
            let range = |segment: &Segment| {
                (place(segment), place(segment).saturating_add(segment.file_size_bytes))
            };
            let mut ranges: Vec<(u64, u64)> =
                self.code().map(range).filter(|(start, end)| start < end).collect();
            ranges.sort_unstable();
            ranges.is_sorted_by(|before, behind| before.1 <= behind.0)
        };
        if !is_disjoint(|segment| segment.offset.0) || !is_disjoint(|segment| segment.vaddr.0) {
            return None;
        }
        let address =
            |offset: &ImageOffset| self.code().find_map(|segment| segment.vaddr_of(*offset));
        let mut addresses: Vec<u64> =
            offsets.iter().filter_map(address).map(|vaddr| vaddr.0).collect();
        addresses.sort_unstable();
        addresses.dedup();
        Some(addresses)
    }

    /// The executable pieces.
    pub(crate) fn code(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(|segment| segment.executable)
    }

    fn code_first(&self) -> impl Iterator<Item = &Segment> {
        let rest = self.segments.iter().filter(|segment| !segment.executable);
        self.code().chain(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(offset: u64, vaddr: u64, size: u64, executable: bool) -> Segment {
        Segment {
            offset: ImageOffset(offset),
            vaddr: Vaddr(vaddr),
            file_size_bytes: size,
            executable,
        }
    }

    #[test]
    fn offsets_and_addresses_convert_both_ways() {
        let layout = Layout {
            segments: vec![
                segment(0, 0x400000, 0x1000, false),
                segment(0x1000, 0x402000, 0x500, true),
            ],
        };
        for (offset, vaddr) in [
            (0, Some(0x400000)),
            (0xfff, Some(0x400fff)),
            (0x1000, Some(0x402000)),
            (0x14ff, Some(0x4024ff)),
            (0x1500, None),
            (u64::MAX, None),
        ] {
            assert_eq!(layout.file_offset_to_vaddr(ImageOffset(offset)), vaddr.map(Vaddr));
            if let Some(vaddr) = vaddr {
                let back = layout.vaddr_to_file_offset(Vaddr(vaddr));
                assert_eq!(back, Some(ImageOffset(offset)));
            }
        }
        assert_eq!(layout.vaddr_to_file_offset(Vaddr(0x401000)), None);
    }

    /// Of libcoreclr.so, which lld linked: the address was a page off, and no method had a name.
    #[test]
    fn a_page_with_the_end_of_another_piece_is_that_of_the_code() {
        let layout = Layout {
            segments: vec![
                segment(0, 0, 0x1d29f8, false),
                segment(0x1d2a00, 0x1d3a00, 0x4eb3d0, true),
            ],
        };
        let base = 0x7f7e_2f80_0000;
        let bias = |offset, address| layout.bias(base + address, ImageOffset(offset));
        assert_eq!(bias(0x1d2000, 0x1d3000), Some(base));
        assert_eq!(bias(0x1d4000, 0x1d5000), Some(base), "a part");
        assert_eq!(bias(0, 0), Some(base));
        assert_eq!(bias(0x6be000, 0x6bf000), None);
        assert_eq!(layout.bias(0, ImageOffset(0x1d2000)), Some(0_u64.wrapping_sub(0x1d3000)));
    }

    #[test]
    fn a_byte_mapped_twice_has_its_address_as_code() {
        let layout = Layout {
            segments: vec![segment(0, 0x1000, 0x100, false), segment(0, 0x5000, 0x100, true)],
        };
        let vaddr = layout.file_offset_to_vaddr(ImageOffset(0x10));
        assert_eq!(vaddr, Some(Vaddr(0x5010)));
    }

    #[test]
    fn a_piece_at_the_end_of_the_address_space_does_not_overflow() {
        let layout = Layout { segments: vec![segment(u64::MAX - 1, u64::MAX - 1, u64::MAX, true)] };
        assert_eq!(layout.vaddr_to_file_offset(Vaddr(u64::MAX)), Some(ImageOffset(u64::MAX)));
        assert_eq!(layout.vaddr_to_file_offset(Vaddr(0)), None);
        assert_eq!(layout.code_at(u64::MAX - 2), None);
    }
}
