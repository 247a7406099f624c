//! What an ELF file's headers say to the walker: where its bytes are mapped, and where its unwind
//! table is.

use object::LittleEndian;
use object::elf;
use object::read::elf::{FileHeader, ProgramHeader as _, SectionHeader as _};

use crate::registers::Machine;

/// Largest number of program headers that are read; the largest programs have some 40.
const SEGMENTS_MAX: u16 = 512;
/// Largest number of section headers that are read; programs have some 40.
const SECTIONS_MAX: u16 = 4096;
/// Most sections of stubs that are kept; linkers make up to four.
const STUBS_MAX: usize = 8;
/// Bytes of the names of sections that are looked at: the longest one that is asked for.
const NAME_BYTES: usize = b".data.rel.ro.gopclntab\0".len();

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
    /// None unless this is an ELF file of one of the machines.
    pub fn read(file: &mut impl Read) -> Option<Self> {
        if is_narrow(file)? {
            Self::read_class::<elf::FileHeader32<LittleEndian>>(file)
        } else {
            Self::read_class::<elf::FileHeader64<LittleEndian>>(file)
        }
    }

    fn read_class<H: FileHeader<Endian = LittleEndian>>(file: &mut impl Read) -> Option<Self> {
        let header: H = at(file, 0)?;
        let machine = match (header.e_machine(LittleEndian), header.is_class_64()) {
            (elf::EM_386, false) => Machine::X86,
            (elf::EM_X86_64, true) => Machine::X86_64,
            (elf::EM_AARCH64, true) => Machine::Aarch64,
            _ => return None,
        };
        let entry = header.e_entry(LittleEndian).into();
        let mut headers = Self { machine, entry, segments: Vec::new(), index: None };
        let begin: u64 = header.e_phoff(LittleEndian).into();
        let stride = header.e_phentsize(LittleEndian);
        for number in 0..header.e_phnum(LittleEndian).min(SEGMENTS_MAX) {
            let place = begin.checked_add(u64::from(number) * u64::from(stride))?;
            let header: H::ProgramHeader = at(file, place)?;
            let segment = Segment {
                offset: header.p_offset(LittleEndian).into(),
                address: header.p_vaddr(LittleEndian).into(),
                len: header.p_filesz(LittleEndian).into(),
            };
            match header.p_type(LittleEndian) {
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

impl Segment {
    /// Whether the part has the byte at `address`.
    pub fn contains(&self, address: u64) -> bool {
        address.checked_sub(self.address).is_some_and(|into| into < self.len)
    }
}

/// Sections that no program header names.
#[derive(Clone, Debug, Default)]
pub struct Sections {
    /// `.eh_frame`, for files without an index. Only then: programs that a tool has rewritten have
    /// two tables, of which one alone has that name.
    pub eh_frame: Option<Segment>,
    /// Stubs through which procedures call other files: `.plt`, `.plt.sec`, `.plt.got`, `.iplt`.
    pub stubs: Vec<Segment>,
    /// Go's table.
    pub go_table: Option<Segment>,
    /// `.data.rel.ro`.
    pub relocated_data: Option<Segment>,
    pub text: Option<Segment>,
    /// Module data: what Go's runtime records about the parts of the program.
    pub go_module: Option<Segment>,
    /// Whether Go's linker has left `.go.buildinfo`, as it does since Go 1.13.
    pub is_go: bool,
}

impl Sections {
    /// None found if the file has no section headers.
    pub fn read(file: &mut impl Read) -> Self {
        let mut sections = Self::default();
        let _ = match is_narrow(file) {
            Some(true) => sections.fill::<elf::FileHeader32<LittleEndian>>(file),
            _ => sections.fill::<elf::FileHeader64<LittleEndian>>(file),
        };
        sections
    }

    fn fill<H: FileHeader<Endian = LittleEndian>>(&mut self, file: &mut impl Read) -> Option<()> {
        let header: H = at(file, 0)?;
        let begin: u64 = header.e_shoff(LittleEndian).into();
        let stride = u64::from(header.e_shentsize(LittleEndian));
        let place = |number: u16| begin.checked_add(u64::from(number) * stride);
        let names: H::SectionHeader = at(file, place(header.e_shstrndx(LittleEndian))?)?;
        let names_begin: u64 = names.sh_offset(LittleEndian).into();
        let names_len: u64 = names.sh_size(LittleEndian).into();
        for number in 0..header.e_shnum(LittleEndian).min(SECTIONS_MAX) {
            let section: H::SectionHeader = at(file, place(number)?)?;
            let flags: u64 = section.sh_flags(LittleEndian).into();
            let is_mapped = flags & u64::from(elf::SHF_ALLOC) != 0;
            if !is_mapped || section.sh_type(LittleEndian) == elf::SHT_NOBITS {
                continue;
            }
            let into = u64::from(section.sh_name(LittleEndian));
            let len = usize::try_from(names_len.checked_sub(into)?).unwrap_or(NAME_BYTES);
            let mut bytes = [0; NAME_BYTES];
            let bytes = bytes.get_mut(..len.min(NAME_BYTES))?;
            file.read(names_begin.checked_add(into)?, bytes)?;
            let segment = Segment {
                offset: section.sh_offset(LittleEndian).into(),
                address: section.sh_addr(LittleEndian).into(),
                len: section.sh_size(LittleEndian).into(),
            };
            self.take(bytes.split(|&byte| byte == 0).next().unwrap_or_default(), segment);
        }
        Some(())
    }

    fn take(&mut self, name: &[u8], section: Segment) {
        match name {
            b".eh_frame" => self.eh_frame = Some(section),
            b".plt" | b".plt.sec" | b".plt.got" | b".iplt" if self.stubs.len() < STUBS_MAX => {
                self.stubs.push(section);
            }
            b".gopclntab" | b".data.rel.ro.gopclntab" => self.go_table = Some(section),
            b".data.rel.ro" => self.relocated_data = Some(section),
            b".text" => self.text = Some(section),
            b".go.module" => self.go_module = Some(section),
            b".go.buildinfo" => self.is_go = true,
            _ => {}
        }
    }
}

/// Whether this is a little-endian ELF file of a 32-bit machine; None where it is no little-endian
/// ELF file.
fn is_narrow(file: &mut impl Read) -> Option<bool> {
    let mut ident = [0; 6];
    file.read(0, &mut ident)?;
    let [magic @ .., class, data] = ident;
    let is_known = magic == elf::ELFMAG && data == elf::ELFDATA2LSB;
    match class {
        elf::ELFCLASS32 if is_known => Some(true),
        elf::ELFCLASS64 if is_known => Some(false),
        _ => None,
    }
}

/// Largest of the headers that are read, in bytes.
const HEADER_BYTES_MAX: usize = 64;

/// The header at an offset of the file.
fn at<T: object::Pod>(file: &mut impl Read, offset: u64) -> Option<T> {
    let mut bytes = [0; HEADER_BYTES_MAX];
    let bytes = bytes.get_mut(..size_of::<T>())?;
    file.read(offset, bytes)?;
    object::from_bytes::<T>(bytes).ok().map(|(header, _)| *header)
}
