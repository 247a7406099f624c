//! Candidates for procedures from an ELF symbol table.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ffi::CStr;

use object::endian::{Endianness, U16, U32, U64};
use object::read::elf::Sym;
use object::{elf, pod};

use crate::cover::Span;
use crate::elf::{Elf, Section, malformed};
use crate::go_table::GoTable;
use crate::layout::Layout;
use crate::{ImageError, Vaddr};

/// Largest symbol table read, in bytes: eight million symbols.
const SYMBOLS_LIMIT: u64 = 192 << 20;
/// Largest table of names that is read, in bytes, and most bytes of names that are examined in it:
/// names may share their tails, so a table can hold more names than bytes.
const NAMES_LIMIT: u64 = 512 << 20;
/// Longest name kept, in bytes; a symbol with a longer one is left out.
const NAME_MAX: usize = 32 << 10;
/// Bytes of two equally long names that are compared.
const COMPARED: usize = 64;

/// The source of a name for a range of code.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Label {
    /// The name at a byte of a symbol table's names.
    Symbol { table: u8, name: u32 },
    /// The name of a stub, by its number.
    Stub(u32),
    /// The name of a section, by its number.
    Section(u32),
    /// The address of the code.
    Address,
}

/// A symbol of code.
#[derive(Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) span: Span<Label>,
    rank: u8,
    name_len: u32,
}

/// The names of a symbol table.
pub(crate) struct Names(Vec<u8>);

/// A symbol table of a file, which is read only as far as needed.
pub(crate) struct Table {
    bytes: Vec<u8>,
    names: Names,
    /// Number of the table among those of an image.
    number: u8,
    is_64: bool,
    endian: Endianness,
    /// True where bit 0 of a procedure's address marks Thumb code.
    thumb: bool,
    /// End address of each section that holds code.
    section_ends: Vec<Option<u64>>,
}

/// A symbol whose type is code, before its place and name are checked.
struct Symbol {
    start: u64,
    size: u64,
    section_end: u64,
    rank: u8,
    name: u32,
}

impl Table {
    /// Reads the table of type `kind` (`SHT_SYMTAB`, `SHT_DYNSYM`), if there is one with bytes.
    pub(crate) fn read(
        elf: &Elf<'_>,
        sections: &[Section],
        kind: u32,
        number: u8,
    ) -> Result<Option<Self>, ImageError> {
        let Some(section) = sections.iter().find(|section| section.kind == kind) else {
            return Ok(None);
        };
        let bytes = elf.section_bytes("symbol table", section, SYMBOLS_LIMIT)?;
        let names = usize::try_from(section.link)
            .ok()
            .and_then(|link| sections.get(link))
            .ok_or_else(|| malformed("symbol names", section.offset))?;
        let names = elf.section_bytes("symbol names", names, NAMES_LIMIT)?;
        let end = |section: &Section| {
            section.is_code().then(|| section.vaddr.saturating_add(section.size))
        };
        Ok(Some(Self {
            bytes: bytes.into_owned(),
            names: Names(names.into_owned()),
            number,
            is_64: elf.is_64,
            endian: elf.endian,
            thumb: elf.machine == elf::EM_ARM,
            section_ends: sections.iter().map(end).collect(),
        }))
    }

    /// The procedures of a program of Go, as symbols.
    pub(crate) fn of_go(table: &GoTable, number: u8) -> Self {
        let endian = Endianness::Little;
        let names = Names(table.names().to_vec());
        let mut bytes = Vec::new();
        let symbols_max = SYMBOLS_LIMIT as usize / size_of::<elf::Sym64<Endianness>>();
        for procedure in table.procedures().take(symbols_max) {
            let Some(name) = procedure.name() else { continue };
            bytes.extend(pod::bytes_of(&elf::Sym64 {
                st_name: U32::new(endian, name),
                st_info: elf::STB_GLOBAL << 4 | elf::STT_FUNC,
                st_other: 0,
                // Of a section that is not known here.
                st_shndx: U16::new(endian, elf::SHN_XINDEX),
                st_value: U64::new(endian, procedure.begin),
                st_size: U64::new(endian, procedure.end - procedure.begin),
            }));
        }
        Self { bytes, names, number, is_64: true, endian, thumb: false, section_ends: Vec::new() }
    }

    /// The names of the table's symbols.
    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    /// The table's symbols of code by their places, before their names are read; None for a symbol
    /// whose code is not mapped. `layout` is that of the mapped file, which for a debug file is
    /// another file.
    pub(crate) fn symbols(&self, layout: &Layout) -> impl Iterator<Item = Option<Unnamed>> {
        self.all().flatten().map(|Symbol { start, size, section_end, rank, name }| {
            let segment_end = layout.code_at(start)?.vaddr_end();
            let end = start.saturating_add(size).min(segment_end);
            let label = Label::Symbol { table: self.number, name };
            Some(Unnamed {
                span: Span { start, end, limit: segment_end.min(section_end), label },
                rank,
                name,
            })
        })
    }

    /// File offset and size of the entries of the symbols whose code begins at one of these offsets
    /// of the file, and of their names. `section` is the table's own, `names_at` the offset of its
    /// names.
    pub(crate) fn places(
        &self,
        layout: &Layout,
        (section, names_at): (&Section, u64),
        starts: &BTreeSet<u64>,
    ) -> Vec<(u64, u64)> {
        let entry_bytes = if self.is_64 {
            size_of::<elf::Sym64<Endianness>>()
        } else {
            size_of::<elf::Sym32<Endianness>>()
        } as u64;
        let mut places = Vec::new();
        for (number, symbol) in (0..).zip(self.all()) {
            let Some(Symbol { start, name, .. }) = symbol else { continue };
            let offset = layout.vaddr_to_file_offset(Vaddr(start));
            if offset.is_some_and(|offset| starts.contains(&offset.0)) {
                places.push((section.offset + number * entry_bytes, entry_bytes));
                let text = self.names.0.get(name as usize..).unwrap_or_default();
                let len = text.iter().position(|byte| *byte == 0).unwrap_or(text.len()) + 1;
                places.push((names_at + u64::from(name), len as u64));
            }
        }
        places
    }

    /// All entries of the table, in its order; None for what is no code.
    fn all(&self) -> impl Iterator<Item = Option<Symbol>> {
        let (wide, narrow): (&[elf::Sym64<Endianness>], &[elf::Sym32<Endianness>]) =
            if self.is_64 { (whole(&self.bytes), &[]) } else { (&[], whole(&self.bytes)) };
        let wide = wide.iter().map(|symbol| self.symbol(symbol));
        wide.chain(narrow.iter().map(|symbol| self.symbol(symbol)))
    }

    /// The symbol, if its type is code.
    fn symbol<S: Sym<Endian = Endianness>>(&self, symbol: &S) -> Option<Symbol> {
        let kind = symbol.st_type();
        let rank_of_kind = match kind {
            elf::STT_FUNC => 0,
            elf::STT_GNU_IFUNC => 1,
            elf::STT_NOTYPE => 2,
            _ => return None,
        };
        let section_end = self.section_end(symbol.st_shndx(self.endian))?;
        let mut start: u64 = symbol.st_value(self.endian).into();
        if self.thumb && kind != elf::STT_NOTYPE {
            start &= !1;
        }
        let size: u64 = symbol.st_size(self.endian).into();
        let is_local = symbol.st_bind() == elf::STB_LOCAL;
        let rank = rank_of_kind << 2 | u8::from(is_local) << 1 | u8::from(size == 0);
        // Markers at a section's end cover no code and are ignored.
        let counts = size > 0 || start < section_end;
        counts.then(|| Symbol { start, size, section_end, rank, name: symbol.st_name(self.endian) })
    }

    /// The address where a symbol's section ends, if that section holds code.
    fn section_end(&self, index: u16) -> Option<u64> {
        match index {
            elf::SHN_UNDEF => None,
            // The section's number is in another table; only files with 65 thousand sections have
            // this.
            elf::SHN_XINDEX => Some(u64::MAX),
            index if index >= elf::SHN_LORESERVE => None,
            index => self.section_ends.get(usize::from(index)).copied().flatten(),
        }
    }
}

/// A symbol of mapped code, before its name is looked at.
pub(crate) struct Unnamed {
    pub(crate) span: Span<Label>,
    rank: u8,
    /// Begin of its name in the table's names.
    pub(crate) name: u32,
}

/// The result of reading a symbol's name.
pub(crate) enum Verdict {
    /// The symbol may be a procedure.
    Procedure(Candidate),
    /// The symbol is not a procedure.
    Other,
    /// The name is unreadable, or beyond the limit.
    LeftOut,
}

impl Unnamed {
    /// Reads the symbol's name, if the limit on bytes of names allows.
    pub(crate) fn named(self, names: &Names, bytes_left: &mut NameBytes) -> Verdict {
        let Some(name) = names.get(self.name) else {
            return Verdict::LeftOut;
        };
        if is_no_procedure(name) {
            return Verdict::Other;
        }
        let Some(left) = bytes_left.0.checked_sub(name.len() as u64 + 1) else {
            return Verdict::LeftOut;
        };
        bytes_left.0 = left;
        Verdict::Procedure(Candidate {
            span: self.span,
            rank: self.rank,
            name_len: name.len() as u32,
        })
    }
}

/// Bytes of one table's names that may still be read.
pub(crate) struct NameBytes(u64);

impl Default for NameBytes {
    fn default() -> Self {
        Self(NAMES_LIMIT)
    }
}

/// As many whole records as the bytes have.
fn whole<T: pod::Pod>(bytes: &[u8]) -> &[T] {
    let len = bytes.len() - bytes.len() % size_of::<T>();
    let bytes = bytes.get(..len).unwrap_or_default();
    pod::slice_from_all_bytes(bytes).unwrap_or_default()
}

/// Whether the name is one of the assembler's own: a mark of the code or data that begins here
/// (`$a`, `$d`, `$t`, `$x`: ELF for the Arm architecture, "Mapping symbols"; also RISC-V), or a
/// label that was to be dropped.
fn is_no_procedure(name: &[u8]) -> bool {
    match name {
        [b'$', b'a' | b'd' | b't' | b'x', rest @ ..] => {
            matches!(rest, [] | [b'.', ..]) || name.starts_with(b"$xrv")
        }
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
        let name = CStr::from_bytes_until_nul(from).ok()?.to_bytes();
        let is_version = |tail: &[u8]| {
            tail.iter().all(|byte| byte.is_ascii_alphanumeric() || b"@._-+".contains(byte))
        };
        let name = match name.iter().position(|&byte| byte == b'@') {
            Some(at) if at > 0 && is_version(name.get(at..)?) => name.get(..at)?,
            _ => name,
        };
        (!name.is_empty()).then_some(name)
    }
}

/// Sorts candidates by address, and those at one address such that the one that names it comes
/// first (see [`crate::Procedures`]). `tables` are the symbol tables by number.
pub(crate) fn sort(candidates: &[Candidate], tables: &[Table]) -> Vec<Candidate> {
    let name = |candidate: &Candidate| {
        let Label::Symbol { table, name } = candidate.span.label else {
            return None;
        };
        let name = tables.get(usize::from(table))?.names.get(name)?;
        Some(name.get(..COMPARED).unwrap_or(name))
    };
    // Few candidates share an address, so sorting pairs of numbers takes a third of the time of
    // sorting candidates.
    let mut places: Vec<(u64, usize)> = candidates
        .iter()
        .enumerate()
        .map(|(place, candidate)| (candidate.span.start, place))
        .collect();
    places.sort_unstable();
    let mut sorted: Vec<Candidate> =
        places.into_iter().filter_map(|(_, place)| candidates.get(place)).copied().collect();
    for alike in sorted.chunk_by_mut(|a, b| a.span.start == b.span.start) {
        alike.sort_by(|a, b| {
            (a.rank, a.name_len).cmp(&(b.rank, b.name_len)).then_with(|| {
                match a.span.label == b.span.label {
                    true => Ordering::Equal,
                    false => name(a).cmp(&name(b)),
                }
            })
        });
    }
    sorted
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
