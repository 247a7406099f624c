//! The headers of an ELF file, read into one form for both word sizes and byte orders
//! (System V gABI, chapters 4 and 5).

use std::borrow::Cow;

use object::endian::Endianness;
use object::pod;
use object::read::elf::{NoteIterator, ProgramHeader as _, SectionHeader as _};
use object::{elf, read};

use crate::source::Source;
use crate::{ImageError, ImageId};

/// Largest table of program headers, in bytes: the limit of Linux itself (fs/binfmt_elf.c,
/// `load_elf_phdrs`).
const PROGRAM_HEADERS_LIMIT: u64 = 65_536;
/// Largest table of section headers, and of their names, in bytes: a quarter of a million sections.
const SECTION_HEADERS_LIMIT: u64 = 16 << 20;
/// Largest piece of notes that is searched, in bytes: notes of real files have a few hundred.
const NOTES_LIMIT: u64 = 1 << 20;
/// Most pieces of notes that are searched.
const NOTES_PIECES: usize = 64;
/// Longest section name kept, in bytes.
const SECTION_NAME_MAX: usize = 256;

/// The headers of an ELF file.
pub(crate) struct Elf<'a> {
    pub(crate) source: Source<'a>,
    pub(crate) is_64: bool,
    pub(crate) endian: Endianness,
    /// `e_machine`.
    pub(crate) machine: u16,
    /// `e_entry`.
    pub(crate) entry: u64,
    pub(crate) segments: Vec<ProgramHeader>,
    program_headers: (u64, u64),
    section_table: SectionTable,
}

#[derive(Copy, Clone, Debug)]
pub(crate) struct ProgramHeader {
    pub(crate) kind: u32,
    pub(crate) flags: u32,
    pub(crate) offset: u64,
    pub(crate) vaddr: u64,
    pub(crate) file_size: u64,
    pub(crate) memory_size: u64,
    pub(crate) align: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Section {
    pub(crate) name: Box<str>,
    pub(crate) kind: u32,
    pub(crate) flags: u64,
    pub(crate) vaddr: u64,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) link: u32,
    pub(crate) align: u64,
}

impl Section {
    /// Whether the section holds instructions.
    pub(crate) fn is_code(&self) -> bool {
        self.flags & u64::from(elf::SHF_EXECINSTR) != 0
    }

    /// Whether the section's bytes are in the file.
    pub(crate) fn has_bytes(&self) -> bool {
        self.kind != elf::SHT_NOBITS && self.kind != elf::SHT_NULL
    }
}

/// Place of the section headers, from the file header.
#[derive(Copy, Clone)]
struct SectionTable {
    offset: u64,
    count: u16,
    names: u16,
}

impl<'a> Elf<'a> {
    /// Reads the file header and the program headers.
    pub(crate) fn parse(source: Source<'a>) -> Result<Self, ImageError> {
        let ident_len = 16.min(source.len());
        let ident = source.read("file header", 0, ident_len, 16)?;
        if !ident.starts_with(&elf::ELFMAG) {
            return Err(ImageError::NotElf);
        }
        match ident.get(4) {
            Some(&elf::ELFCLASS64) => Self::parse_class::<elf::FileHeader64<Endianness>>(source),
            Some(&elf::ELFCLASS32) => Self::parse_class::<elf::FileHeader32<Endianness>>(source),
            _ => Err(malformed("file class", 4)),
        }
    }

    fn parse_class<H>(source: Source<'a>) -> Result<Self, ImageError>
    where
        H: read::elf::FileHeader<Endian = Endianness>,
    {
        let size = size_of::<H>() as u64;
        let bytes = source.read("file header", 0, size, size)?;
        let (header, _) = pod::from_bytes::<H>(&bytes).map_err(|()| malformed("file header", 0))?;
        let endian = header.endian().map_err(|_| malformed("byte order", 5))?;
        if !header.is_supported() {
            return Err(malformed("file version", 6));
        }
        let count = header.e_phnum(endian);
        let offset: u64 = header.e_phoff(endian).into();
        let entry = size_of::<H::ProgramHeader>() as u64;
        if count > 0 && u64::from(header.e_phentsize(endian)) != entry {
            return Err(malformed("program header size", offset));
        }
        let table =
            source.read("program headers", offset, u64::from(count) * entry, PROGRAM_HEADERS_LIMIT);
        // With no program headers their offset may be anything.
        let table = if count == 0 { Cow::default() } else { table? };
        let headers = pod::slice_from_all_bytes::<H::ProgramHeader>(&table)
            .map_err(|()| malformed("program headers", offset))?;
        Ok(Self {
            source,
            is_64: header.is_class_64(),
            endian,
            machine: header.e_machine(endian),
            entry: header.e_entry(endian).into(),
            segments: headers
                .iter()
                .map(|header| ProgramHeader {
                    kind: header.p_type(endian),
                    flags: header.p_flags(endian),
                    offset: header.p_offset(endian).into(),
                    vaddr: header.p_vaddr(endian).into(),
                    file_size: header.p_filesz(endian).into(),
                    memory_size: header.p_memsz(endian).into(),
                    align: header.p_align(endian).into(),
                })
                .collect(),
            program_headers: (offset, table.len() as u64),
            section_table: SectionTable {
                offset: header.e_shoff(endian).into(),
                count: header.e_shnum(endian),
                names: header.e_shstrndx(endian),
            },
        })
    }

    /// Reads the section headers; empty if the file has none.
    pub(crate) fn sections(&self) -> Result<Vec<Section>, ImageError> {
        if self.is_64 {
            self.sections_class::<elf::FileHeader64<Endianness>>()
        } else {
            self.sections_class::<elf::FileHeader32<Endianness>>()
        }
    }

    fn sections_class<H>(&self) -> Result<Vec<Section>, ImageError>
    where
        H: read::elf::FileHeader<Endian = Endianness>,
    {
        let SectionTable { offset, count, names } = self.section_table;
        if offset == 0 {
            return Ok(Vec::new());
        }
        let endian = self.endian;
        let entry = size_of::<H::SectionHeader>() as u64;
        let what = "section headers";
        let parse = |count: u64| {
            let size = count.saturating_mul(entry);
            self.source.read(what, offset, size, SECTION_HEADERS_LIMIT)
        };
        // Section 0 has the numbers that do not fit into the file header (gABI, "sh_size").
        let first = parse(1)?;
        let (first, _) =
            pod::from_bytes::<H::SectionHeader>(&first).map_err(|()| malformed(what, offset))?;
        let count = match count {
            0 => first.sh_size(endian).into(),
            count => u64::from(count),
        };
        let names = match names {
            elf::SHN_XINDEX => first.sh_link(endian),
            names => u32::from(names),
        };
        let table = parse(count)?;
        let headers = pod::slice_from_all_bytes::<H::SectionHeader>(&table)
            .map_err(|()| malformed(what, offset))?;
        // Names are only a convenience: without them the sections still distinguish code from data.
        let names = usize::try_from(names)
            .ok()
            .and_then(|names| headers.get(names))
            .filter(|names| names.sh_type(endian) == elf::SHT_STRTAB)
            .and_then(|names| {
                let (offset, size) = (names.sh_offset(endian).into(), names.sh_size(endian).into());
                self.source.read("section names", offset, size, SECTION_HEADERS_LIMIT).ok()
            })
            .unwrap_or_default();
        Ok(headers
            .iter()
            .map(|header| Section {
                name: section_name(&names, header.sh_name(endian)),
                kind: header.sh_type(endian),
                flags: header.sh_flags(endian).into(),
                vaddr: header.sh_addr(endian).into(),
                offset: header.sh_offset(endian).into(),
                size: header.sh_size(endian).into(),
                link: header.sh_link(endian),
                align: header.sh_addralign(endian).into(),
            })
            .collect())
    }

    /// Places of the headers (offset, size): of the file header, the program headers, and the
    /// headers of `sections` sections, the first of which may have the number of the others.
    pub(crate) fn header_places(&self, sections: usize) -> [(u64, u64); 3] {
        let (file, section) = if self.is_64 {
            (
                size_of::<elf::FileHeader64<Endianness>>(),
                size_of::<elf::SectionHeader64<Endianness>>(),
            )
        } else {
            (
                size_of::<elf::FileHeader32<Endianness>>(),
                size_of::<elf::SectionHeader32<Endianness>>(),
            )
        };
        let table = match self.section_table.offset {
            0 => (0, 0),
            offset => (offset, (sections.max(1) * section) as u64),
        };
        [(0, file as u64), self.program_headers, table]
    }

    pub(crate) fn section_bytes(
        &self,
        what: &'static str,
        section: &Section,
        limit: u64,
    ) -> Result<Cow<'a, [u8]>, ImageError> {
        if !section.has_bytes() {
            return Err(malformed(what, section.offset));
        }
        self.source.read(what, section.offset, section.size, limit)
    }

    /// The GNU build id: from the mapped notes, else from sections of notes (an object file has
    /// only those).
    pub(crate) fn build_id(&self) -> Option<ImageId> {
        self.segments
            .iter()
            .filter(|segment| segment.kind == elf::PT_NOTE)
            .map(|segment| (segment.offset, segment.file_size, segment.align))
            .take(NOTES_PIECES)
            .find_map(|place| self.build_id_at(place))
            .or_else(|| {
                self.sections()
                    .ok()?
                    .iter()
                    .filter(|section| section.kind == elf::SHT_NOTE)
                    .map(|section| (section.offset, section.size, section.align))
                    .take(NOTES_PIECES)
                    .find_map(|place| self.build_id_at(place))
            })
    }

    fn build_id_at(&self, (offset, size, align): (u64, u64, u64)) -> Option<ImageId> {
        let bytes = self.source.read("notes", offset, size, NOTES_LIMIT).ok()?;
        build_id_in_notes(self.endian, align, &bytes)
    }
}

/// The GNU build id among ELF notes, whose parts are aligned to `align` bytes.
pub(crate) fn build_id_in_notes(endian: Endianness, align: u64, bytes: &[u8]) -> Option<ImageId> {
    // Both word sizes have the same note header.
    let align = if align == 8 { 8 } else { 4 };
    NoteIterator::<elf::FileHeader64<Endianness>>::new(endian, align, bytes)
        .ok()?
        .map_while(Result::ok)
        .filter(|note| note.name() == elf::ELF_NOTE_GNU)
        .filter(|note| note.n_type(endian) == elf::NT_GNU_BUILD_ID)
        .find_map(|note| ImageId::from_build_id(note.desc()))
}

fn section_name(names: &[u8], at: u32) -> Box<str> {
    let name = usize::try_from(at).ok().and_then(|at| names.get(at..)).unwrap_or_default();
    let name = name.get(..SECTION_NAME_MAX).unwrap_or(name);
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(0);
    String::from_utf8_lossy(name.get(..end).unwrap_or_default()).into()
}

pub(crate) fn malformed(what: &'static str, offset: u64) -> ImageError {
    ImageError::Malformed { what, offset }
}
