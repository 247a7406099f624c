//! Symbols that a file exports by name, and parts of a procedure that the compiler put elsewhere.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;

use object::elf;
use object::endian::Endianness;

use crate::elf::{Elf, malformed};
use crate::source::Source;
use crate::symbols::Names;
use crate::{ImageError, ImageOffset, Layout, Vaddr, eh_frame};

/// Largest table of symbols and of names that is read, in bytes. Only the very largest libraries
/// have more.
const TABLE_LIMIT: u64 = 16 << 20;
/// Bytes of a symbol in files of 64 bits.
const SYMBOL_BYTES: usize = 24;
/// Largest procedure whose jumps are looked at, in bytes.
const PROCEDURE_LIMIT: u64 = 1 << 20;
/// Largest unwind table that is searched for parts of a procedure, in bytes: an interpreter's has
/// one or two MiB, and its ranges take as much memory again.
const UNWIND_LIMIT: u64 = 16 << 20;
/// Jumps into a range of the unwind table that make it a part of the procedure. Bytes that only
/// look like jumps lead to any place, hardly ever twice into one range.
const JUMPS_MIN: usize = 3;

/// A symbol.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Address in the file.
    pub vaddr: Vaddr,
    /// Length in bytes; 0: not told.
    pub size_bytes: u64,
}

/// Symbols that are returned of one prefix; further ones are left out.
const PREFIXED_MAX: usize = 4096;

/// The symbols of these names that the file defines for others (`.dynsym`), in the order of the
/// names. None of a 32-bit or big-endian file.
///
/// # Errors
/// [`ImageError::NotElf`]; [`ImageError::Malformed`], [`ImageError::TooLarge`] when a table that is
/// needed is; [`ImageError::NotRegular`]; [`ImageError::Io`].
pub fn exports_of_file(file: &File, names: &[&str]) -> Result<Vec<Option<Export>>, ImageError> {
    let mut found = vec![None; names.len()];
    for_each_export(file, |name, export| {
        let place = names.iter().position(|it| it.as_bytes() == name);
        if let Some(place) = place.and_then(|place| found.get_mut(place)) {
            *place = Some(export);
        }
    })?;
    Ok(found)
}

/// The symbols whose names begin so that the file defines for others, by name; at most 4096. None
/// of a 32-bit or big-endian file.
///
/// # Errors
/// As [`exports_of_file`].
pub fn prefixed_exports_of_file(
    file: &File,
    prefix: &str,
) -> Result<BTreeMap<String, Export>, ImageError> {
    let mut found = BTreeMap::new();
    for_each_export(file, |name, export| {
        if name.starts_with(prefix.as_bytes())
            && found.len() < PREFIXED_MAX
            && let Ok(name) = std::str::from_utf8(name)
        {
            found.insert(name.to_owned(), export);
        }
    })?;
    Ok(found)
}

fn for_each_export(file: &File, mut each: impl FnMut(&[u8], Export)) -> Result<(), ImageError> {
    let elf = Elf::parse(Source::file(file)?)?;
    if !elf.is_64 || elf.endian != Endianness::Little {
        return Ok(());
    }
    let sections = elf.sections()?;
    let Some(table) = sections.iter().find(|section| section.kind == elf::SHT_DYNSYM) else {
        return Ok(());
    };
    let strings = usize::try_from(table.link).ok().and_then(|link| sections.get(link));
    let strings = strings.ok_or_else(|| malformed("symbol names", table.offset))?;
    let symbols = elf.section_bytes("symbol table", table, TABLE_LIMIT)?;
    let strings = elf.section_bytes("symbol names", strings, TABLE_LIMIT)?;
    let strings = Names::new(strings.into_owned());
    // Elf64_Sym: name (4 bytes), info, other, section (2 bytes), value (8), size (8).
    for symbol in symbols.chunks_exact(SYMBOL_BYTES) {
        let word = |at: usize| {
            Some(u64::from_le_bytes(*symbol.get(at..).and_then(|rest| rest.first_chunk())?))
        };
        let (Some(head), Some(vaddr), Some(size_bytes)) = (word(0), word(8), word(16)) else {
            continue;
        };
        let is_defined = (head >> 48) as u16 != elf::SHN_UNDEF;
        if let Some(name) = strings.get(head as u32).filter(|_| is_defined) {
            each(name, Export { vaddr: Vaddr(vaddr), size_bytes });
        }
    }
    Ok(())
}

/// Addresses of an x86-64 procedure and of its cold parts: code that hardly ever runs, which the
/// compiler put elsewhere with a range of its own in the unwind table. A cold part is a range that
/// only conditional jumps of the procedure lead to.
pub fn parts_of_procedure(file: &File, of: Range<u64>) -> Result<Vec<Range<u64>>, ImageError> {
    let mut parts = vec![of.clone()];
    let elf = Elf::parse(Source::file(file)?)?;
    let layout = Layout::of_elf(&elf);
    let (size, begin) =
        (of.end.saturating_sub(of.start), layout.vaddr_to_file_offset(Vaddr(of.start)));
    let Some(ImageOffset(begin)) = begin.filter(|_| elf.machine == elf::EM_X86_64) else {
        return Ok(parts);
    };
    let code = elf.source.read("procedure", begin, size, PROCEDURE_LIMIT)?;
    let sections = elf.sections()?;
    let table = sections.iter().find(|section| &*section.name == ".eh_frame");
    if table.is_none_or(|table| table.size > UNWIND_LIMIT) {
        return Ok(parts);
    }
    let (mut ranges, _) = eh_frame::ranges(&elf, &sections);
    ranges.sort_unstable();
    let mut jumps: BTreeMap<(u64, u64), usize> = BTreeMap::new();
    for (at, bytes) in (of.start..).zip(code.windows(6)) {
        // Intel SDM, volume 2, Jcc: `0F 80` to `0F 8F` with a 32-bit distance.
        let [0x0f, 0x80..=0x8f, distance @ ..] = bytes else { continue };
        let Some(distance) = distance.first_chunk() else { continue };
        let distance = i64::from(i32::from_le_bytes(*distance));
        let target = at.wrapping_add(6).wrapping_add_signed(distance);
        if of.contains(&target) {
            continue;
        }
        let after = ranges.partition_point(|(start, _)| *start <= target);
        let range = after.checked_sub(1).and_then(|place| ranges.get(place));
        if let Some(range) = range.filter(|(_, end)| target < *end) {
            *jumps.entry(*range).or_default() += 1;
        }
    }
    let outside = jumps.into_iter().filter(|(_, jumps)| *jumps >= JUMPS_MIN);
    parts.extend(outside.map(|((start, end), _)| start..end));
    Ok(parts)
}

/// Most ranges that are returned of one file.
const LARGE_MAX: usize = 4096;

/// Ranges of the unwind table of at least this length, which are procedures or parts of them, in
/// ascending order; at most 4096. None of a file whose table is larger than 16 MiB.
///
/// # Errors
/// As [`exports_of_file`].
pub fn large_procedures_of_file(
    file: &File,
    bytes_min: u64,
) -> Result<Vec<Range<u64>>, ImageError> {
    let elf = Elf::parse(Source::file(file)?)?;
    let sections = elf.sections()?;
    let table = sections.iter().find(|section| &*section.name == ".eh_frame");
    if table.is_none_or(|table| table.size > UNWIND_LIMIT) {
        return Ok(Vec::new());
    }
    let (mut ranges, _) = eh_frame::ranges(&elf, &sections);
    ranges.retain(|(begin, end)| end.saturating_sub(*begin) >= bytes_min);
    ranges.sort_unstable();
    ranges.truncate(LARGE_MAX);
    Ok(ranges.into_iter().map(|(begin, end)| begin..end).collect())
}
