//! Inlined calls in procedures of Go, which the runtime keeps for its tracebacks, also in stripped
//! programs.
//!
//! Each procedure with inlined calls has a tree of them: a row of entries, each with the name of
//! the function and an instruction of the caller whose line is that of the call. A kind of value in
//! `pctab` says for each instruction which entry it belongs to, -1 being the procedure itself; that
//! of the caller's instruction is the entry around.
//!
//! The trees lie together, at an address that only the runtime's `moduledata` has.
//!
//! # Sources
//!
//! Of Go's source: src/runtime/symtab.go (1.19: `inlinedCall`, `funcdata`; `moduledata`),
//! src/runtime/symtabinl.go (1.22 to 1.27), src/runtime/funcdata.h; entries of 1.18 and 1.19 have
//! 20 bytes, later ones 16 (cmd/link/internal/ld/pcln.go, `genInlTreeSym`).

use object::elf;

use crate::elf::{Elf, Section};
use crate::go_table::Header;

/// Number of the trees among the places of a procedure's data (`FUNCDATA_InlTree`).
pub(crate) const TREE: u64 = 3;
/// Number of the entries among kinds of values (`PCDATA_InlTreeIndex`).
pub(crate) const ENTRIES: u64 = 2;
/// Value of a procedure's place of a tree where the procedure has none.
pub(crate) const NO_TREE: u32 = u32::MAX;
/// Offsets in `moduledata` of the trees' address: of Go 1.18 and 1.19, 1.20 to 1.26, and 1.27.
const MODULE_TREES: [usize; 3] = [304, 320, 344];
/// Sections in which linkers of Go and C put the runtime's `moduledata`.
const MODULE_SECTIONS: [&str; 3] = [".go.module", ".noptrdata", ".data"];
/// Bytes of such a section, or of its relocations, that are searched for `moduledata`, at most: the
/// largest programs have 10 MB.
const MODULE_LIMIT: u64 = 64 << 20;
/// Bytes that are read of the section with the trees, at most. It has the program's constants, too.
const TREES_LIMIT: u64 = 256 << 20;

/// The trees of a program.
pub(crate) struct Trees {
    bytes: Vec<u8>,
    entry_bytes: u64,
    /// Offsets in an entry.
    name_at: u64,
    caller_at: u64,
}

/// An inlined call.
pub(crate) struct InlinedCall {
    /// Place of the function's name among the names of procedures.
    pub(crate) name: u32,
    /// Distance from the procedure's begin of an instruction of the caller.
    pub(crate) caller: u32,
}

impl Trees {
    /// What may be the trees of the program with the table at `address`: which word of `moduledata`
    /// has their address, its names tell.
    pub(crate) fn candidates(
        elf: &Elf<'_>,
        sections: &[Section],
        (address, header): (u64, &Header),
    ) -> impl Iterator<Item = Self> {
        let of_name = |name| sections.iter().find(|section| &*section.name == name);
        let modules = MODULE_SECTIONS.into_iter().filter_map(of_name);
        let names = address.saturating_add(header.names);
        let head = [address, names];
        let found = { modules }.find_map(|section| in_module(elf, section, head));
        let found = found.or_else(|| in_relocations(elf, of_name(".rela.dyn")?, head));
        let found = found.unwrap_or_default().into_iter();
        found.filter_map(move |trees| Self::read(elf, sections, trees, header))
    }

    fn read(elf: &Elf<'_>, sections: &[Section], trees: u64, header: &Header) -> Option<Self> {
        let has_trees = |section: &&Section| {
            let is_mapped = section.has_bytes() && section.vaddr > 0;
            is_mapped && trees.wrapping_sub(section.vaddr) < section.size
        };
        let section = sections.iter().find(has_trees)?;
        let into = trees - section.vaddr;
        let (at, len) = (section.offset.checked_add(into)?, section.size - into);
        let bytes = elf.source.read("inlined calls", at, len, TREES_LIMIT).ok()?.into_owned();
        let (entry_bytes, name_at, caller_at) =
            if header.has_start_line { (16, 4, 8) } else { (20, 12, 16) };
        Some(Self { bytes, entry_bytes, name_at, caller_at })
    }

    /// The entry with a number in the tree at a place.
    pub(crate) fn call(&self, tree: u32, number: u32) -> Option<InlinedCall> {
        let entry = u64::from(number).checked_mul(self.entry_bytes)?.checked_add(tree.into())?;
        let word = |at: u64| {
            let bytes = self.bytes.get(usize::try_from(entry.checked_add(at)?).ok()?..)?;
            Some(u32::from_le_bytes(*bytes.first_chunk()?))
        };
        Some(InlinedCall { name: word(self.name_at)?, caller: word(self.caller_at)? })
    }
}

/// What may be the address of the trees by the `moduledata` in a section, which begins with the
/// addresses of the table and of its names.
fn in_module(elf: &Elf<'_>, section: &Section, head: [u64; 2]) -> Option<[u64; 3]> {
    let bytes = elf.section_bytes("module data", section, MODULE_LIMIT).ok()?;
    let (words, _) = bytes.as_chunks::<8>();
    let is_module = |pair: &[[u8; 8]]| pair.iter().map(|word| u64::from_le_bytes(*word)).eq(head);
    let begin = words.windows(2).position(is_module)?;
    let module = words.get(begin..)?;
    let word = |at: usize| module.get(at / 8).map_or(0, |word| u64::from_le_bytes(*word));
    Some(MODULE_TREES.map(word))
}

/// The same by the relocations of a position-independent program, which a linker of C leaves 0
/// in `moduledata` itself.
fn in_relocations(elf: &Elf<'_>, section: &Section, head: [u64; 2]) -> Option<[u64; 3]> {
    let relative = match elf.machine {
        elf::EM_AARCH64 => elf::R_AARCH64_RELATIVE,
        _ => elf::R_X86_64_RELATIVE,
    };
    let bytes = elf.section_bytes("relocations", section, MODULE_LIMIT).ok()?;
    let (rows, _) = bytes.as_chunks::<8>().0.as_chunks::<3>();
    // Address, kind, value.
    let rows = rows.iter().map(|row| row.map(u64::from_le_bytes));
    let mut words: Vec<_> = rows
        .filter(|[_, kind, _]| *kind == u64::from(relative))
        .map(|[address, _, value]| (address, value))
        .collect();
    words.sort_unstable();
    let word = |at: u64| {
        let found = words.binary_search_by_key(&at, |(address, _)| *address).ok()?;
        words.get(found).map(|(_, value)| *value)
    };
    let is_module = |begin: u64| [begin, begin.wrapping_add(8)].map(word) == head.map(Some);
    let (begin, _) = *words.iter().find(|(begin, value)| *value == head[0] && is_module(*begin))?;
    Some(MODULE_TREES.map(|at| word(begin.wrapping_add(at as u64)).unwrap_or_default()))
}
