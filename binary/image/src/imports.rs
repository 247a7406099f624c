//! Words of a file that become the addresses of procedures of other files: entries of the global
//! offset table.

use std::fs::File;

use object::elf;
use object::endian::Endianness;

use crate::elf::{Elf, Section, malformed};
use crate::source::Source;
use crate::symbols::Names;
use crate::{ImageError, Vaddr};

/// Largest table of relocations, of symbols and of names that is read, in bytes. Only the very
/// largest libraries have more.
const TABLE_LIMIT: u64 = 16 << 20;
/// Most imports kept; of a file with more, the first ones.
const IMPORTS_MAX: usize = 1 << 18;
/// Most bytes of all names of imports: many relocations may have one long name.
const NAMES_BYTES_MAX: usize = 16 << 20;
/// Most tables of relocations read: linkers make two.
const TABLES_MAX: usize = 16;
/// Bytes of an entry of `SHT_RELA`, and of a symbol, in files of 64 bits.
const RELA_BYTES: usize = 24;
const SYMBOL_BYTES: usize = 24;

/// The words through which a file calls other files, each with the symbol's name whose address it
/// becomes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imports(Vec<(Vaddr, Box<str>)>);

impl Imports {
    /// The imports of an ELF file in memory. Empty for a 32-bit or big-endian file, or one without
    /// section headers.
    ///
    /// # Errors
    /// [`ImageError::NotElf`]; [`ImageError::Malformed`], [`ImageError::TooLarge`] when a table
    /// that is needed is.
    pub fn of(data: &[u8]) -> Result<Self, ImageError> {
        Self::of_elf(&Elf::parse(Source::Bytes(data))?)
    }

    /// The imports of an open ELF file.
    ///
    /// # Errors
    /// Returns the errors of [`Imports::of`]; [`ImageError::NotRegular`]; [`ImageError::Io`].
    pub fn of_file(file: &File) -> Result<Self, ImageError> {
        Self::of_elf(&Elf::parse(Source::file(file)?)?)
    }

    /// Address of each word and the symbol's name (without version), by address.
    pub fn iter(&self) -> impl Iterator<Item = (Vaddr, &str)> {
        self.0.iter().map(|(vaddr, name)| (*vaddr, &**name))
    }

    /// The name of the symbol whose address the word becomes.
    pub(crate) fn name(&self, vaddr: u64) -> Option<&str> {
        let at = self.0.binary_search_by_key(&vaddr, |(word, _)| word.0).ok()?;
        self.0.get(at).map(|(_, name)| &**name)
    }

    /// With the words that become the result of a procedure of the file's own, named after its
    /// address as objdump does: `*ABS*+0x1175`.
    pub(crate) fn of_elf_with_resolvers(elf: &Elf<'_>) -> Result<Self, ImageError> {
        let mut this = Self::of_elf(elf)?;
        // `R_*_IRELATIVE`
        let kind = match elf.machine {
            elf::EM_X86_64 => 37,
            _ => 1032,
        };
        let sections = if elf.is_64 { elf.sections()? } else { Vec::new() };
        let tables = sections.iter().filter(|section| section.kind == elf::SHT_RELA);
        for section in tables.take(TABLES_MAX) {
            let bytes = elf.section_bytes("relocations", section, TABLE_LIMIT)?;
            for entry in bytes.chunks_exact(RELA_BYTES) {
                let word = |at| word(entry, at);
                if let (Some(vaddr), Some(info), Some(resolver)) = (word(0), word(8), word(16))
                    && info & 0xffff_ffff == kind
                    && this.0.len() < IMPORTS_MAX
                {
                    this.0.push((Vaddr(vaddr), format!("*ABS*+{resolver:#x}").into()));
                }
            }
        }
        this.0.sort_unstable();
        Ok(this)
    }

    pub(crate) fn of_elf(elf: &Elf<'_>) -> Result<Self, ImageError> {
        let mut this = Self::default();
        // `R_*_GLOB_DAT` and `R_*_JUMP_SLOT` (System V ABI for x86-64, table 4.9; ELF for the Arm
        // 64-bit Architecture, 5.7).
        let kinds = match elf.machine {
            elf::EM_X86_64 => [6, 7],
            elf::EM_AARCH64 => [1025, 1026],
            _ => return Ok(this),
        };
        if !elf.is_64 || elf.endian != Endianness::Little {
            return Ok(this);
        }
        let sections = elf.sections()?;
        for section in
            sections.iter().filter(|section| section.kind == elf::SHT_RELA).take(TABLES_MAX)
        {
            let linked = |link: u32| sections.get(usize::try_from(link).ok()?);
            if let Some(symbols) =
                linked(section.link).filter(|symbols| symbols.kind == elf::SHT_DYNSYM)
            {
                let names = linked(symbols.link)
                    .ok_or_else(|| malformed("symbol names", symbols.offset))?;
                this.add(elf, section, symbols, names, kinds)?;
            }
        }
        this.0.sort_unstable();
        this.0.dedup_by_key(|(vaddr, _)| *vaddr);
        Ok(this)
    }

    fn add(
        &mut self,
        elf: &Elf<'_>,
        relocations: &Section,
        symbols: &Section,
        names: &Section,
        kinds: [u64; 2],
    ) -> Result<(), ImageError> {
        let relocations = elf.section_bytes("relocations", relocations, TABLE_LIMIT)?;
        let symbols = elf.section_bytes("symbol table", symbols, TABLE_LIMIT)?;
        let names = Names::new(elf.section_bytes("symbol names", names, TABLE_LIMIT)?.into_owned());
        let mut names_bytes = self.0.iter().map(|(_, name)| name.len()).sum::<usize>();
        for entry in relocations.chunks_exact(RELA_BYTES) {
            let (Some(vaddr), Some(info)) = (word(entry, 0), word(entry, 8)) else { continue };
            if self.0.len() >= IMPORTS_MAX || names_bytes >= NAMES_BYTES_MAX {
                break;
            }
            if !kinds.contains(&(info & 0xffff_ffff)) {
                continue;
            }
            let symbol =
                usize::try_from(info >> 32).ok().and_then(|index| index.checked_mul(SYMBOL_BYTES));
            let name = symbol.and_then(|at| word(&symbols, at)).map(|name| name as u32);
            if let Some(name) = name.and_then(|name| names.get(name)) {
                names_bytes += name.len();
                self.0.push((Vaddr(vaddr), String::from_utf8_lossy(name).into()));
            }
        }
        Ok(())
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|word| u64::from_le_bytes(*word))
}
