//! What an ELF file's headers say to the walker: where its bytes are mapped, and where its unwind
//! table is.

use object::LittleEndian;
use object::elf;

use crate::registers::Machine;

type FileHeader = elf::FileHeader64<LittleEndian>;
type ProgramHeader = elf::ProgramHeader64<LittleEndian>;
type SectionHeader = elf::SectionHeader64<LittleEndian>;

/// Largest number of program headers that are read; the largest programs have some 40.
const SEGMENTS_MAX: u16 = 512;
/// Largest number of section headers that are read.
const SECTIONS_MAX: u16 = 4096;
/// Bytes of the names of sections that are looked at.
const NAME: &[u8] = b".eh_frame\0";

/// A part of the file that is mapped as a whole.
#[derive(Copy, Clone, Debug)]
pub struct Segment {
    /// Offset in the file.
    pub offset: u64,
    /// Address in the file's own terms, before the file is loaded anywhere.
    pub address: u64,
    /// Number of bytes that the file has of it.
    pub len: u64,
}

/// Addresses are the file's own.
#[derive(Debug)]
pub struct Headers {
    pub machine: Machine,
    /// Where the program begins.
    pub entry: u64,
    pub segments: Vec<Segment>,
    /// The index of the unwind table (`PT_GNU_EH_FRAME`).
    pub index: Option<Segment>,
}

/// Reads bytes of the file.
pub trait Read {
    /// Fills `into` from `offset` on, or returns None.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Option<()>;
}

impl Headers {
    /// None unless this is an ELF file of one of the two machines.
    pub fn read(file: &mut impl Read) -> Option<Self> {
        let header = file_header(file)?;
        let machine = match header.e_machine.get(LittleEndian) {
            elf::EM_X86_64 => Machine::X86_64,
            elf::EM_AARCH64 => Machine::Aarch64,
            _ => return None,
        };
        let mut headers = Self {
            machine,
            entry: header.e_entry.get(LittleEndian),
            segments: Vec::new(),
            index: None,
        };
        let begin = header.e_phoff.get(LittleEndian);
        let stride = header.e_phentsize.get(LittleEndian);
        for number in 0..header.e_phnum.get(LittleEndian).min(SEGMENTS_MAX) {
            let at = begin.checked_add(u64::from(number) * u64::from(stride))?;
            let mut bytes = [0; size_of::<ProgramHeader>()];
            file.read(at, &mut bytes)?;
            let (header, _) = object::from_bytes::<ProgramHeader>(&bytes).ok()?;
            let segment = Segment {
                offset: header.p_offset.get(LittleEndian),
                address: header.p_vaddr.get(LittleEndian),
                len: header.p_filesz.get(LittleEndian),
            };
            match header.p_type.get(LittleEndian) {
                elf::PT_LOAD => headers.segments.push(segment),
                elf::PT_GNU_EH_FRAME => headers.index = Some(segment),
                _ => {}
            }
        }
        Some(headers)
    }

    /// The file's address of the byte at `offset`.
    pub fn address(&self, offset: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let into = offset.checked_sub(segment.offset)?;
            (into < segment.len).then(|| segment.address.wrapping_add(into))
        })
    }

    /// The offset of the byte at the file's address `address`, and the number of bytes that follow
    /// in its segment.
    pub fn offset(&self, address: u64) -> Option<(u64, u64)> {
        self.segments.iter().find_map(|segment| {
            let into = address.checked_sub(segment.address)?;
            let left = segment.len.checked_sub(into).filter(|&left| left > 0)?;
            Some((segment.offset.checked_add(into)?, left))
        })
    }
}

/// The section `.eh_frame`, for files without an index. Only then: programs that a tool has
/// rewritten have two tables, of which one alone has that name.
pub fn eh_frame_section(file: &mut impl Read) -> Option<Segment> {
    let header = file_header(file)?;
    let begin = header.e_shoff.get(LittleEndian);
    let stride = u64::from(header.e_shentsize.get(LittleEndian));
    let mut section = |number: u16| {
        let mut bytes = [0; size_of::<SectionHeader>()];
        file.read(begin.checked_add(u64::from(number) * stride)?, &mut bytes)?;
        let (header, _) = object::from_bytes::<SectionHeader>(&bytes).ok()?;
        let header = *header;
        Some(header)
    };
    let names = section(header.e_shstrndx.get(LittleEndian))?;
    let sections: Vec<SectionHeader> =
        (0..header.e_shnum.get(LittleEndian).min(SECTIONS_MAX)).map_while(&mut section).collect();
    sections.iter().find_map(|section| {
        let name = names.sh_offset.get(LittleEndian);
        let name = name.checked_add(u64::from(section.sh_name.get(LittleEndian)))?;
        let mut bytes = [0; NAME.len()];
        file.read(name, &mut bytes)?;
        let is_mapped = section.sh_flags.get(LittleEndian) & u64::from(elf::SHF_ALLOC) != 0;
        let has_bytes = section.sh_type.get(LittleEndian) != elf::SHT_NOBITS;
        (bytes == NAME && is_mapped && has_bytes).then(|| Segment {
            offset: section.sh_offset.get(LittleEndian),
            address: section.sh_addr.get(LittleEndian),
            len: section.sh_size.get(LittleEndian),
        })
    })
}

fn file_header(file: &mut impl Read) -> Option<FileHeader> {
    let mut bytes = [0; size_of::<FileHeader>()];
    file.read(0, &mut bytes)?;
    let (header, _) = object::from_bytes::<FileHeader>(&bytes).ok()?;
    let ident = header.e_ident;
    let is_known = ident.magic == elf::ELFMAG
        && ident.class == elf::ELFCLASS64
        && ident.data == elf::ELFDATA2LSB;
    is_known.then_some(*header)
}
