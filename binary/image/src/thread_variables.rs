//! Variables that each thread has, which a file exports, and how its code finds them.
//!
//! # Sources
//!
//! Drepper, "ELF Handling For Thread-Local Storage", 2013; Oliva and Araújo, "Thread-Local Storage
//! Descriptors for IA32 and AMD64/EM64T"; System V ABI, AMD64 supplement, relocation types.

use std::fs::File;

use object::elf;
use object::endian::Endianness;

use crate::elf::{Elf, malformed};
use crate::source::Source;
use crate::symbols::Names;
use crate::{ImageError, Vaddr};

/// Largest table of symbols, of names and of relocations that is read, in bytes.
const TABLE_LIMIT: u64 = 16 << 20;
/// Bytes of a symbol, and of a relocation with addend, in files of 64 bits.
const SYMBOL_BYTES: usize = 24;
const RELOCATION_BYTES: usize = 24;

/// How code of a file finds a variable of the thread. Addresses are the file's.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ThreadVariable {
    /// At this distance from the thread's pointer, in bytes: of programs.
    At(i64),
    /// At the distance in the word there, which the dynamic loader has written.
    Distance(Vaddr),
    /// In the memory of a module: two words there are its number and the distance in it.
    Module(Vaddr),
    /// By a descriptor: two words there are a procedure and its argument. The argument is the
    /// distance, or the address of two words like those of [`Self::Module`].
    Descriptor(Vaddr),
}

/// The variable of this name that an x86-64 file exports; None if it exports none, or has no code
/// that finds it.
///
/// # Errors
/// [`ImageError::NotElf`]; [`ImageError::Malformed`], [`ImageError::TooLarge`] when a table that is
/// needed is; [`ImageError::NotRegular`]; [`ImageError::Io`].
pub fn thread_variable_of_file(
    file: &File,
    name: &str,
) -> Result<Option<ThreadVariable>, ImageError> {
    let elf = Elf::parse(Source::file(file)?)?;
    let of_threads = elf.segments.iter().find(|segment| segment.kind == elf::PT_TLS);
    let is_known = elf.is_64 && elf.endian == Endianness::Little && elf.machine == elf::EM_X86_64;
    let Some(of_threads) = of_threads.filter(|_| is_known) else { return Ok(None) };
    let sections = elf.sections()?;
    let Some(at) = sections.iter().position(|section| section.kind == elf::SHT_DYNSYM) else {
        return Ok(None);
    };
    let Some(table) = sections.get(at) else { return Ok(None) };
    let strings = usize::try_from(table.link).ok().and_then(|link| sections.get(link));
    let strings = strings.ok_or_else(|| malformed("symbol names", table.offset))?;
    let symbols = elf.section_bytes("symbol table", table, TABLE_LIMIT)?;
    let strings = elf.section_bytes("symbol names", strings, TABLE_LIMIT)?;
    let strings = Names::new(strings.into_owned());
    // Elf64_Sym: name (4 bytes), info, other, section (2 bytes), value (8), size (8).
    let is_it = |symbol: &[u8]| {
        let kind = symbol.get(4).map(|info| info & 15);
        kind == Some(elf::STT_TLS)
            && number(symbol).and_then(|at| strings.get(at)) == Some(name.as_bytes())
            && symbol.get(6..8) != Some(&[0, 0])
    };
    let found = symbols.chunks_exact(SYMBOL_BYTES).enumerate().find(|(_, of)| is_it(of));
    let Some((index, symbol)) = found else { return Ok(None) };
    for section in sections.iter().filter(|section| section.kind == elf::SHT_RELA) {
        if section.link as usize != at {
            continue;
        }
        let all = elf.section_bytes("relocations", section, TABLE_LIMIT)?;
        for relocation in all.chunks_exact(RELOCATION_BYTES) {
            // Elf64_Rela: offset, type (4 bytes) and symbol (4), addend.
            let (place, kind) = (word(relocation), relocation.get(8..).and_then(number));
            let of = relocation.get(12..).and_then(number);
            let Some(place) = place.filter(|_| of.is_some_and(|of| of as usize == index)) else {
                continue;
            };
            let place = Vaddr(place);
            return Ok(Some(match kind {
                Some(elf::R_X86_64_TPOFF64) => ThreadVariable::Distance(place),
                Some(elf::R_X86_64_DTPMOD64) => ThreadVariable::Module(place),
                Some(elf::R_X86_64_TLSDESC) => ThreadVariable::Descriptor(place),
                _ => continue,
            }));
        }
    }
    // Code of a program, whose memory of the thread ends at the thread's pointer.
    let is_program = elf.entry != 0
        && elf.segments.iter().any(|segment| segment.kind == elf::PT_INTERP)
        || elf.segments.iter().all(|segment| segment.kind != elf::PT_DYNAMIC);
    let size = of_threads.memory_size.checked_next_multiple_of(of_threads.align.max(1));
    let distance = symbol.get(8..).and_then(word).zip(size);
    let distance = distance.map(|(value, size)| value.wrapping_sub(size).cast_signed());
    Ok(distance.filter(|distance| is_program && *distance < 0).map(ThreadVariable::At))
}

fn number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.first_chunk()?))
}

fn word(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.first_chunk()?))
}
