//! Candidates for procedures from an ELF symbol table.

use std::cmp::Ordering;

use object::endian::Endianness;
use object::read::elf::Sym as _;
use object::{elf, pod};

use crate::ImageError;
use crate::cover::Span;
use crate::elf::{Elf, Section, malformed};
use crate::layout::Layout;

/// Largest symbol table read, in bytes: eight million symbols.
const SYMBOLS_LIMIT: u64 = 192 << 20;
/// Largest table of names read, in bytes, and most bytes of names looked at in it: names may share
/// their tails, so a table can hold more names than bytes.
const NAMES_LIMIT: u64 = 512 << 20;
/// Longest name kept, in bytes; a symbol with a longer one is left out.
const NAME_MAX: usize = 32 << 10;
/// How much of two equally long names is compared, in bytes.
const COMPARED: usize = 64;

/// What a range of code is called.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Label {
    /// The name at a byte of a symbol table's names.
    Symbol { table: u8, name: u32 },
    /// The name of a section, by its number.
    Section(u32),
    /// Its address.
    Address,
}

/// A symbol of code.
pub(crate) struct Candidate {
    pub(crate) span: Span<Label>,
    rank: u8,
    name_len: u32,
}

/// The names of a symbol table.
pub(crate) struct Names(Vec<u8>);

/// A symbol table, read.
pub(crate) struct Symbols {
    pub(crate) candidates: Vec<Candidate>,
    pub(crate) names: Names,
    /// Symbols of code that were left out: an unreadable name, or outside of the mapped code.
    pub(crate) left_out: usize,
}

/// Reads the table of type `kind` (`SHT_SYMTAB`, `SHT_DYNSYM`), if there is one with bytes.
/// `layout` is of the file that is mapped, which for a debug file is another one.
pub(crate) fn read(
    elf: &Elf<'_>,
    sections: &[Section],
    kind: u32,
    layout: &Layout,
    table: u8,
) -> Result<Option<Symbols>, ImageError> {
    let Some(section) = sections.iter().find(|section| section.kind == kind) else {
        return Ok(None);
    };
    let bytes = elf.section_bytes("symbol table", section, SYMBOLS_LIMIT)?;
    let names = usize::try_from(section.link)
        .ok()
        .and_then(|link| sections.get(link))
        .ok_or_else(|| malformed("symbol names", section.offset))?;
    let names = elf.section_bytes("symbol names", names, NAMES_LIMIT)?;
    let mut reader = Reader {
        endian: elf.endian,
        thumb: elf.machine == elf::EM_ARM,
        sections,
        layout,
        table,
        names_left: NAMES_LIMIT,
        out: Symbols { candidates: Vec::new(), names: Names(names.into_owned()), left_out: 0 },
    };
    if elf.is_64 {
        reader.read::<elf::FileHeader64<Endianness>>(whole::<elf::Sym64<Endianness>>(&bytes));
    } else {
        reader.read::<elf::FileHeader32<Endianness>>(whole::<elf::Sym32<Endianness>>(&bytes));
    }
    Ok(Some(reader.out))
}

/// As many whole records as there are.
fn whole<T: pod::Pod>(bytes: &[u8]) -> &[T] {
    let len = bytes.len() - bytes.len() % size_of::<T>();
    let bytes = bytes.get(..len).unwrap_or_default();
    pod::slice_from_all_bytes(bytes).unwrap_or_default()
}

struct Reader<'a> {
    endian: Endianness,
    /// Bit 0 of a procedure's address says that it is Thumb code.
    thumb: bool,
    sections: &'a [Section],
    layout: &'a Layout,
    table: u8,
    names_left: u64,
    out: Symbols,
}

impl Reader<'_> {
    fn read<H>(&mut self, symbols: &[H::Sym])
    where
        H: object::read::elf::FileHeader<Endian = Endianness>,
    {
        let endian = self.endian;
        for symbol in symbols {
            let kind = symbol.st_type();
            let rank_of_kind = match kind {
                elf::STT_FUNC => 0,
                elf::STT_GNU_IFUNC => 1,
                elf::STT_NOTYPE => 2,
                _ => continue,
            };
            let Some(section_end) = self.section_end(symbol.st_shndx(endian)) else {
                continue;
            };
            let mut start: u64 = symbol.st_value(endian).into();
            if self.thumb && kind != elf::STT_NOTYPE {
                start &= !1;
            }
            let size: u64 = symbol.st_size(endian).into();
            // Markers of a section's end are in no one's way.
            if size == 0 && start >= section_end {
                continue;
            }
            let is_local = symbol.st_bind() == elf::STB_LOCAL;
            let rank = rank_of_kind << 2 | u8::from(is_local) << 1 | u8::from(size == 0);
            self.add(start, size, section_end, rank, symbol.st_name(endian));
        }
    }

    /// The address where a symbol's section ends, if that section holds code.
    fn section_end(&self, index: u16) -> Option<u64> {
        match index {
            elf::SHN_UNDEF => None,
            // Its number is in another table; only files with 65 thousand sections have this.
            elf::SHN_XINDEX => Some(u64::MAX),
            index if index >= elf::SHN_LORESERVE => None,
            index => self
                .sections
                .get(usize::from(index))
                .filter(|section| section.is_code())
                .map(|section| section.vaddr.saturating_add(section.size)),
        }
    }

    fn add(&mut self, start: u64, size: u64, section_end: u64, rank: u8, name: u32) {
        let Some(segment) = self.layout.code_at(start) else {
            self.out.left_out += 1;
            return;
        };
        let Some(text) = self.out.names.get(name) else {
            self.out.left_out += 1;
            return;
        };
        if is_no_procedure(text) {
            return;
        }
        let Some(names_left) = self.names_left.checked_sub(text.len() as u64 + 1) else {
            self.out.left_out += 1;
            return;
        };
        let name_len = text.len() as u32;
        self.names_left = names_left;
        let limit = segment.vaddr_end().min(section_end);
        self.out.candidates.push(Candidate {
            span: Span {
                start,
                end: start.saturating_add(size).min(segment.vaddr_end()),
                limit,
                label: Label::Symbol { table: self.table, name },
            },
            rank,
            name_len,
        });
    }
}

/// Assemblers' own symbols: what kind of code or data begins here (`$a`, `$d`, `$t`, `$x`: ELF for
/// the Arm architecture, "Mapping symbols"; also RISC-V), and labels that were to be dropped.
fn is_no_procedure(name: &[u8]) -> bool {
    match name {
        [b'$', b'a' | b'd' | b't' | b'x', rest @ ..] => matches!(rest, [] | [b'.', ..]) || name.starts_with(b"$xrv"),
        [b'.', b'L', ..] => true,
        _ => false,
    }
}

impl Names {
    /// The bytes of a table of names.
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The name at `offset`, without a symbol version ("memcpy@@GLIBC_2.14"); not empty.
    pub(crate) fn get(&self, offset: u32) -> Option<&[u8]> {
        let from = self.0.get(usize::try_from(offset).ok()?..)?;
        let from = from.get(..=NAME_MAX).unwrap_or(from);
        let end = from.iter().position(|&byte| byte == 0)?;
        let name = from.get(..end)?;
        let is_version = |tail: &[u8]| tail.iter().all(|byte| byte.is_ascii_alphanumeric() || b"@._-+".contains(byte));
        let name = match name.iter().position(|&byte| byte == b'@') {
            Some(at) if at > 0 && is_version(name.get(at..)?) => name.get(..at)?,
            _ => name,
        };
        (!name.is_empty()).then_some(name)
    }
}

/// Sorts candidates by address, and those at one address with the one that names it first (see
/// [`crate::Procedures`]). `tables` are the names of the tables by number.
pub(crate) fn sort(candidates: &mut [Candidate], tables: &[Names]) {
    let name = |candidate: &Candidate| {
        let Label::Symbol { table, name } = candidate.span.label else {
            return None;
        };
        let name = tables.get(usize::from(table))?.get(name)?;
        Some(name.get(..COMPARED).unwrap_or(name))
    };
    candidates.sort_by(|a, b| {
        (a.span.start, a.rank, a.name_len).cmp(&(b.span.start, b.rank, b.name_len)).then_with(|| {
            match a.span.label == b.span.label {
                true => Ordering::Equal,
                false => name(a).cmp(&name(b)),
            }
        })
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_their_version_and_nothing_else() {
        let names = Names(b"\0memcpy@@GLIBC_2.14\0@odd\0a@b/c\0open\0".to_vec());
        let get = |offset| names.get(offset).map(|name| str::from_utf8(name).unwrap());
        assert_eq!(get(0), None);
        assert_eq!(get(1), Some("memcpy"));
        assert_eq!(get(4), Some("cpy"));
        assert_eq!(get(20), Some("@odd"));
        assert_eq!(get(25), Some("a@b/c"));
        assert_eq!(get(31), Some("open"));
        assert_eq!(get(100), None);
        // The last one has no end.
        assert_eq!(Names(b"open".to_vec()).get(0), None);
        assert_eq!(Names(vec![b'x'; NAME_MAX + 2]).get(0), None);
    }

    #[test]
    fn assemblers_marks_are_no_procedures() {
        for name in ["$x", "$d", "$a.1", "$xrv64i2p1", ".L12", "$t.foo"] {
            assert!(is_no_procedure(name.as_bytes()), "{name}");
        }
        for name in ["x", "$xyz", "$main", "L1", ".foo", "$"] {
            assert!(!is_no_procedure(name.as_bytes()), "{name}");
        }
    }
}
