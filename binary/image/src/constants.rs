//! Memory of a file that never changes once the loader has done its work.

use std::fs::File;

use object::elf;
use object::endian::Endianness;

use crate::elf::{Elf, ProgramHeader, malformed};
use crate::layout::Layout;
use crate::source::Source;
use crate::{ImageError, ImageOffset, Segment, Vaddr};

/// Largest table of relocations, and largest region of relocated words, in bytes: each is read at
/// once. Only the very largest libraries have more (a compiler's, 10 MB); their constants stay
/// unknown.
const RELOCATIONS_LIMIT: u64 = 4 << 20;
/// Most places that packed relocations may name, because a few bytes can name millions.
const PLACES_MAX: usize = 4 << 20;
/// Largest dynamic section, in bytes.
const DYNAMIC_LIMIT: u64 = 1 << 16;
/// Most relocated words kept, 4 bytes each. A file with more has none: Debian's largest libraries
/// have a fifth.
const WORDS_MAX: usize = 1 << 18;
/// Bytes of an entry of `DT_RELA`.
const RELA_BYTES: usize = 24;

/// The source of a constant.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Constant {
    /// Bytes of the file, unchanged.
    InFile(ImageOffset),
    /// An address in the file itself: this value plus the distance from the file's addresses to the
    /// process's.
    Address(Vaddr),
}

/// The constant bytes of an ELF file: segments that nobody may write to, and addresses in the file
/// itself that the loader writes before it protects them (`PT_GNU_RELRO`: tables of functions,
/// computed gotos, entries of the global offset table).
///
/// *Other* words that the loader protects later are left out: programs do write to them while they
/// start.
#[derive(Clone, Debug, Default)]
pub struct Constants {
    read_only: Vec<Segment>,
    /// Begin of the protected words.
    protected_begin: u64,
    /// The protected words that become addresses of the file, in order, as runs of 4 bytes each,
    /// since most such words are adjacent.
    runs: Vec<Run>,
    addresses: Vec<u32>,
}

/// Adjacent words: the distance of the first from the start of the protected words, and its number
/// among all addresses.
#[derive(Clone, Copy, Debug)]
struct Run {
    into: u32,
    first: u32,
}

impl Constants {
    /// The constants of an ELF file in memory. Empty for a 32-bit or big-endian file.
    ///
    /// # Errors
    /// [`ImageError::NotElf`]; [`ImageError::Malformed`], [`ImageError::TooLarge`] when a table
    /// that is needed is.
    pub fn of(data: &[u8]) -> Result<Self, ImageError> {
        Self::of_elf(&Elf::parse(Source::Bytes(data))?)
    }

    /// The constants of an open ELF file, of which headers and relocations are read.
    ///
    /// # Errors
    /// Returns the errors of [`Constants::of`]; [`ImageError::NotRegular`]; [`ImageError::Io`].
    pub fn of_file(file: &File) -> Result<Self, ImageError> {
        Self::of_elf(&Elf::parse(Source::file(file)?)?)
    }

    /// The source of the `len` bytes, 1 to 8, at `vaddr`, if they are constant. An address is known
    /// only as all its 8 bytes.
    pub fn at(&self, vaddr: Vaddr, len: u8) -> Option<Constant> {
        let last = Vaddr(vaddr.0.checked_add(u64::from(len).checked_sub(1)?)?);
        let in_file =
            |segment: &Segment| segment.offset_of(last).and_then(|_| segment.offset_of(vaddr));
        if let Some(offset) = self.read_only.iter().find_map(in_file) {
            return Some(Constant::InFile(offset));
        }
        let into = u32::try_from(vaddr.0.checked_sub(self.protected_begin)?).ok()?;
        let behind = self.runs.partition_point(|run| run.into <= into);
        let run = self.runs.get(behind.checked_sub(1)?)?;
        let distance = into - run.into;
        let index =
            run.first.checked_add(distance / 8).filter(|_| len == 8 && distance % 8 == 0)?;
        if self.runs.get(behind).is_some_and(|next| index >= next.first) {
            return None;
        }
        self.addresses
            .get(index as usize)
            .map(|&address| Constant::Address(Vaddr(u64::from(address))))
    }

    /// Bytes of memory that the constants take, approximately.
    pub fn size_bytes(&self) -> usize {
        let words = size_of_val(&*self.addresses) + size_of_val(&*self.runs);
        size_of::<Self>() + words + size_of_val(&*self.read_only)
    }

    pub(crate) fn of_elf(elf: &Elf<'_>) -> Result<Self, ImageError> {
        if !elf.is_64 || elf.endian != Endianness::Little {
            return Ok(Self::default());
        }
        let layout = Layout::of_elf(elf);
        let dynamic = Dynamic::of(elf)?;
        if dynamic.writes_text {
            // Relocations write anywhere, not only where memory is protected afterwards.
            return Ok(Self::default());
        }
        let is_read_only =
            |header: &&ProgramHeader| header.kind == elf::PT_LOAD && header.flags & elf::PF_W == 0;
        let read_only = elf.segments.iter().filter(is_read_only);
        let read_only = read_only
            .map(|header| Segment {
                offset: ImageOffset(header.offset),
                vaddr: Vaddr(header.vaddr),
                file_size_bytes: header.file_size,
                executable: header.flags & elf::PF_X != 0,
            })
            .collect();
        let mut this = Self { read_only, ..Self::default() };
        if let Some(protected) = elf.segments.iter().find(|header| header.kind == elf::PT_GNU_RELRO)
        {
            this.protected_begin = protected.vaddr;
            let mut words = match dynamic.words(elf, &layout, protected) {
                // Memory that is never written is constant, too.
                Err(ImageError::TooLarge { .. }) => Vec::new(),
                words => words?,
            };
            if words.len() <= WORDS_MAX {
                words.sort_unstable_by_key(|&(into, _)| into);
                // A word that is relocated twice is taken for unknown.
                let groups = words.chunk_by(|a, b| a.0 == b.0);
                let once = groups.filter_map(|group| {
                    if let &[(into, Some(address))] = group { Some((into, address)) } else { None }
                });
                once.for_each(|(into, address)| this.push(into, address));
                this.runs.shrink_to_fit();
                this.addresses.shrink_to_fit();
            }
        }
        Ok(this)
    }

    /// Adds the word behind all others. A word beyond 4 GiB is left out: no file that is read is as
    /// large.
    fn push(&mut self, into: u32, address: u64) {
        let (Ok(address), Ok(number)) =
            (u32::try_from(address), u32::try_from(self.addresses.len()))
        else {
            return;
        };
        let follows = |run: &Run| into.checked_sub(run.into) == Some((number - run.first) * 8);
        if !self.runs.last().is_some_and(follows) {
            self.runs.push(Run { into, first: number });
        }
        self.addresses.push(address);
    }
}

/// A relocated word: its distance from the first protected byte, and the address to which the
/// loader adds the load bias.
type Word = (u32, Option<u64>);

/// The tables of relocations in the dynamic section (gABI, "Dynamic Section"): addresses and sizes.
#[derive(Default)]
struct Dynamic {
    rela: (u64, u64),
    relr: (u64, u64),
    writes_text: bool,
}

impl Dynamic {
    fn of(elf: &Elf<'_>) -> Result<Self, ImageError> {
        let mut this = Self::default();
        let Some(header) = elf.segments.iter().find(|header| header.kind == elf::PT_DYNAMIC) else {
            return Ok(this);
        };
        let bytes =
            elf.source.read("dynamic section", header.offset, header.file_size, DYNAMIC_LIMIT)?;
        for entry in words_of(&bytes).collect::<Vec<_>>().chunks_exact(2) {
            let &[tag, value] = entry else { continue };
            match tag as i64 {
                elf::DT_NULL => break,
                elf::DT_RELA => this.rela.0 = value,
                elf::DT_RELASZ => this.rela.1 = value,
                elf::DT_RELR => this.relr.0 = value,
                elf::DT_RELRSZ => this.relr.1 = value,
                elf::DT_TEXTREL => this.writes_text = true,
                elf::DT_FLAGS => this.writes_text |= value & 4 != 0,
                _ => {}
            }
        }
        Ok(this)
    }

    /// The words in `protected` that are relocated, each with its address if it becomes an address
    /// of the file itself.
    fn words(
        &self,
        elf: &Elf<'_>,
        layout: &Layout,
        protected: &ProgramHeader,
    ) -> Result<Vec<Word>, ImageError> {
        // System V ABI for x86-64, table 4.9; ELF for the Arm 64-bit Architecture, 5.7.
        let relative = match elf.machine {
            62 => 8,
            183 => 1027,
            _ => return Ok(Vec::new()),
        };
        let into = |vaddr: u64| {
            let into = vaddr
                .checked_sub(protected.vaddr)
                .filter(|into| into.saturating_add(8) <= protected.file_size);
            into.and_then(|into| u32::try_from(into).ok())
        };
        let table = |(vaddr, size): (u64, u64)| {
            if size == 0 {
                return Ok(std::borrow::Cow::default());
            }
            let offset =
                layout.segments().iter().find_map(|segment| segment.offset_of(Vaddr(vaddr)));
            let offset = offset.ok_or_else(|| malformed("relocations", 0))?;
            elf.source.read("relocations", offset.0, size, RELOCATIONS_LIMIT)
        };
        let mut words = Vec::new();
        for entry in table(self.rela)?.chunks_exact(RELA_BYTES) {
            let mut parts = words_of(entry);
            let (Some(vaddr), Some(info), Some(addend)) =
                (parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            if let Some(into) = into(vaddr).filter(|_| words.len() <= WORDS_MAX) {
                words.push((into, (info & 0xffff_ffff == relative).then_some(addend)));
            }
        }
        let packed = table(self.relr)?;
        if !packed.is_empty() {
            let content = elf.source.read(
                "relocated words",
                protected.offset,
                protected.file_size,
                RELOCATIONS_LIMIT,
            )?;
            let addend = |into: u32| {
                let word = content.get(into as usize..)?.first_chunk()?;
                Some(u64::from_le_bytes(*word))
            };
            for vaddr in unpacked(words_of(&packed)).take(PLACES_MAX) {
                if words.len() > WORDS_MAX {
                    break;
                }
                words.extend(into(vaddr).map(|into| (into, addend(into))));
            }
        }
        Ok(words)
    }
}

/// The places that `DT_RELR` names: an even word is the address of one, an odd one has a bit for
/// each of the 63 words that follow (gABI, "Relative relocation table").
fn unpacked(entries: impl Iterator<Item = u64>) -> impl Iterator<Item = u64> {
    let mut next = 0_u64;
    entries.flat_map(move |entry| {
        let (base, bits) = if entry & 1 == 0 { (entry, 1) } else { (next, entry >> 1) };
        next = base.wrapping_add(if entry & 1 == 0 { 8 } else { 63 * 8 });
        (0..63_u64)
            .filter(move |bit| bits >> bit & 1 == 1)
            .map(move |bit| base.wrapping_add(bit * 8))
    })
}

fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_where_they_are_and_nowhere_else() {
        let words = [
            (0, 0x10),
            (8, 0x20),
            (16, 0x30),
            (28, 0x40),
            (36, 0x50),
            (52, 1 << 32),
            (60, 0x60),
            (200, 0x70),
        ];
        let mut constants = Constants { protected_begin: 0x1000, ..Constants::default() };
        words.iter().for_each(|&(into, address)| constants.push(into, address));
        assert_eq!(
            constants.runs.len(),
            4,
            "three follow each other, two, and one by itself twice"
        );
        for into in 0..300 {
            let word = words.iter().find(|&&(at, address)| at == into && address < 1 << 32);
            let wanted = word.map(|&(_, address)| Constant::Address(Vaddr(address)));
            assert_eq!(constants.at(Vaddr(0x1000 + u64::from(into)), 8), wanted, "{into}");
            assert_eq!(constants.at(Vaddr(0x1000 + u64::from(into)), 4), None, "half an address");
        }
        assert_eq!(constants.at(Vaddr(0xff8), 8), None);
    }

    #[test]
    fn packed_relocations_are_unpacked() {
        let places: Vec<u64> =
            unpacked([0x1000, 0b1011, 1 << 63 | 1, 0x9000].into_iter()).collect();
        // After 0x1000: the first and third of the 63 words from 0x1008; the last of the 63 from
        // there; and one by itself.
        assert_eq!(places, [0x1000, 0x1008, 0x1018, 0x1008 + 63 * 8 + 62 * 8, 0x9000]);
    }
}
