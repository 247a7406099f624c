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
        let _ = sections.fill(file);
        sections
    }

    fn fill(&mut self, file: &mut impl Read) -> Option<()> {
        let header = file_header(file)?;
        let begin = header.e_shoff.get(LittleEndian);
        let stride = u64::from(header.e_shentsize.get(LittleEndian));
        let section = |file: &mut _, number: u16| {
            let mut bytes = [0; size_of::<SectionHeader>()];
            Read::read(file, begin.checked_add(u64::from(number) * stride)?, &mut bytes)?;
            let (header, _) = object::from_bytes::<SectionHeader>(&bytes).ok()?;
            Some(*header)
        };
        let names = section(file, header.e_shstrndx.get(LittleEndian))?;
        let names_begin = names.sh_offset.get(LittleEndian);
        let names_len = names.sh_size.get(LittleEndian);
        for number in 0..header.e_shnum.get(LittleEndian).min(SECTIONS_MAX) {
            let section = section(file, number)?;
            let is_mapped = section.sh_flags.get(LittleEndian) & u64::from(elf::SHF_ALLOC) != 0;
            if !is_mapped || section.sh_type.get(LittleEndian) == elf::SHT_NOBITS {
                continue;
            }
            let into = u64::from(section.sh_name.get(LittleEndian));
            let len = usize::try_from(names_len.checked_sub(into)?).unwrap_or(NAME_BYTES);
            let mut bytes = [0; NAME_BYTES];
            let bytes = bytes.get_mut(..len.min(NAME_BYTES))?;
            file.read(names_begin.checked_add(into)?, bytes)?;
            let segment = Segment {
                offset: section.sh_offset.get(LittleEndian),
                address: section.sh_addr.get(LittleEndian),
                len: section.sh_size.get(LittleEndian),
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
