//! Which piece of code is at an address.
//!
//! A tree by the bits of the address leads to the *range section* that the address is in
//! (`RangeSectionMap`, src/coreclr/vm/codeman.h). There are three kinds:
//!
//! - a heap of code that was compiled in the process. A map of it has four bits for each 32 bytes:
//!   whether a piece begins in them, and where. Behind the word before a piece is its header, with
//!   the method and its functions (the method's own, and one for each of its exception handlers);
//! - an assembly with code that was compiled ahead, which has a sorted table of functions. A hash
//!   table leads from the entries of methods to the methods;
//! - a range of stubs.

use super::layouts::{CodeOffsets, Layout};
use crate::python::Memory;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Levels of the tree, each of which takes 8 bits of the address, from the 57th bit down.
const LEVELS: [u32; 5] = [49, 41, 33, 25, LEAF_LOG];
/// Log of the bytes of a leaf.
const LEAF_LOG: u32 = 17;
/// Most parts of range sections in one leaf of the tree, which stands for 128 KiB.
const PARTS_MAX: usize = 64;
/// In a part of a range section: the next one, begin and end, the section.
const PART: [u64; 3] = [0, 8, 24];
/// Bytes of a range section: begin, end, flags, what manages it, module, heap.
const SECTION_BYTES: usize = 48;
/// Flags of a section (`RangeSection::RangeSectionFlags`): a heap of code, a range of stubs.
const CODE_HEAP: u32 = 2;
const STUBS: u32 = 4;
/// In a heap (`HeapList`): the last address, the base of the map, the map.
const HEAP_END: u64 = 24;
const HEAP_BASE: u64 = 32;
const HEAP_MAP: u64 = 40;
/// Log of the bytes for which the map has four bits, and of those for which it has a word of eight
/// such numbers, the first of them in the uppermost bits (src/coreclr/inc/nibblemapmacros.h).
const BUCKET_LOG: u32 = 5;
const WORD_LOG: u32 = 8;
/// Most words of the map that are read to find where a piece begins: a piece of 4 MiB. Methods as
/// long are not compiled by any compiler of C#.
const MAP_WORDS_MAX: u64 = 1 << 14;
/// Words of the map that are read at once.
const MAP_WORDS: u64 = 256;
/// Headers up to this number are those of stubs, and say which (`STUB_CODE_BLOCK_LAST`).
const STUB_KINDS: u64 = 0xf;
/// In a header (`RealCodeHeader`): the method; the number of functions, of 32 bits, and behind it
/// the functions, each with begin, end and place of its unwind codes (`RUNTIME_FUNCTION`).
const HEADER_METHOD: u64 = 24;
const HEADER_FUNCTIONS: u64 = 32;
const FUNCTION_BYTES: usize = 12;
/// Most functions of a method. The runtime keeps 8 bytes of each handler, so 1,000 are many.
const FUNCTIONS_MAX: u32 = 4096;
/// Most functions of an assembly. System.Private.CoreLib of .NET 9 has 47,301.
const ASSEMBLY_FUNCTIONS_MAX: u64 = 1 << 24;
/// Functions before a handler that are looked at for the one of a method.
const HANDLERS_MAX: u64 = 256;
/// Bytes of a bucket of the hash table: four entries, then four methods.
const BUCKET_BYTES: u64 = 64;
/// Most buckets that are looked at for an entry, and most of a table.
const PROBES_MAX: u64 = 64;
const BUCKETS_MAX: u64 = 1 << 28;
/// Reads of memory for one question, about 50 ms of work. Frames in code that was not met before
/// have no name and no rule when they are used up.
const READS_MAX: usize = 1 << 16;

/// What a piece of code is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A function of a method.
    Method {
        /// Where the method is described.
        method: u64,
        /// Where the function's unwind codes are.
        unwind: u64,
    },
    /// Code of the runtime's own that jumps on without a frame.
    Stub,
    /// Code of the runtime's own whose frames are not known.
    Other,
}

/// A piece of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    /// The first byte.
    pub start: u64,
    /// The byte behind its last.
    pub end: u64,
    /// What it is.
    pub kind: Kind,
}

/// The range section that an address is in.
#[derive(Clone, Copy)]
struct Section {
    begin: u64,
    end: u64,
    flags: u32,
    module: u64,
    heap: u64,
}

/// A function: begin, end and unwind codes, relative to the range section.
#[derive(Clone, Copy)]
struct Function([u32; 3]);

/// The code of a process, as one question sees it.
pub struct CodeRanges<M> {
    /// The process's memory.
    pub memory: M,
    /// The offsets of its runtime.
    pub layout: Arc<Layout>,
    /// Address of the root of the tree.
    root: u64,
    /// The rest of [`READS_MAX`].
    reads_left: Cell<usize>,
    /// Leaves of the tree that were met, by their numbers.
    leaves: RefCell<HashMap<u64, u64>>,
    /// Pieces that were met, by their begins.
    codes: RefCell<BTreeMap<u64, Code>>,
}

impl<M: Memory> CodeRanges<M> {
    /// The code of a process, the addresses of whose library differ by `bias` from the file's.
    /// None: it cannot be read.
    pub fn new(memory: M, layout: Arc<Layout>, bias: u64) -> Option<Self> {
        // The table of globals begins with the tree (src/coreclr/inc/dacvars.h).
        let root = memory.word(layout.globals.wrapping_add(bias)).filter(|root| *root != 0)?;
        let (reads_left, leaves, codes) =
            (Cell::new(READS_MAX), RefCell::default(), RefCell::default());
        Some(Self { memory, layout, root, reads_left, leaves, codes })
    }

    /// The code at an address.
    pub fn at(&self, address: u64) -> Option<Code> {
        let known = self.codes.borrow().range(..=address).next_back().map(|(_, code)| *code);
        if let Some(code) = known.filter(|code| address < code.end) {
            return Some(code);
        }
        let section = self.section(address)?;
        let code = match section.flags {
            flags if flags & CODE_HEAP != 0 => self.in_heap(&section, address),
            flags if flags & STUBS != 0 => {
                Some(Code { start: section.begin, end: section.end, kind: Kind::Stub })
            }
            _ => self.in_assembly(&section, address),
        };
        let code = code.filter(|code| (code.start..code.end).contains(&address))?;
        self.codes.borrow_mut().insert(code.start, code);
        Some(code)
    }

    fn read<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        self.reads_left.set(self.reads_left.get().checked_sub(1)?);
        let mut bytes = [0; N];
        (self.memory.read(at, &mut bytes) == N).then_some(bytes)
    }

    fn word(&self, at: u64) -> Option<u64> {
        self.read(at).map(u64::from_le_bytes)
    }

    /// The first part of a range section in the leaf that an address is in; 0: there is none.
    fn leaf(&self, address: u64) -> Option<u64> {
        // Frames of native code are looked up, too, and libraries are in few leaves.
        let leaf = address >> LEAF_LOG;
        if let Some(known) = self.leaves.borrow().get(&leaf) {
            return Some(*known);
        }
        let mut table = self.root;
        for shift in LEVELS {
            let place = (address >> shift) & 0xff;
            table = self.word(table.wrapping_add(8 * place))?;
            if table == 0 {
                break;
            }
        }
        self.leaves.borrow_mut().insert(leaf, table);
        Some(table)
    }

    fn section(&self, address: u64) -> Option<Section> {
        let mut part = self.leaf(address)?;
        for _ in 0..PARTS_MAX {
            // The lowest bit says that the section may be unloaded.
            part &= !1;
            if part == 0 {
                return None;
            }
            let [next, begin, section] = PART;
            let [begin, end] = words(&self.read::<16>(part.wrapping_add(begin))?);
            if (begin..end).contains(&address) {
                return self.section_at(self.word(part.wrapping_add(section))?, address);
            }
            part = self.word(part.wrapping_add(next))?;
        }
        None
    }

    fn section_at(&self, at: u64, address: u64) -> Option<Section> {
        let [begin, end, flags, _, module, heap] = words(&self.read::<SECTION_BYTES>(at)?);
        let section = Section { begin, end, flags: flags as u32, module, heap };
        (begin..end).contains(&address).then_some(section)
    }

    /// The piece in a heap that an address is in.
    fn in_heap(&self, section: &Section, address: u64) -> Option<Code> {
        let Section { begin, heap, .. } = *section;
        let end = self.word(heap.wrapping_add(HEAP_END))?;
        let base = self.word(heap.wrapping_add(HEAP_BASE))?;
        let map = self.word(heap.wrapping_add(HEAP_MAP))?;
        if !(base..end).contains(&address) || !(section.begin..section.end).contains(&base) {
            return None;
        }
        let start = self.start(map, base, address)?;
        let header = self.word(start.checked_sub(8)?)?;
        if header <= STUB_KINDS {
            let kind = match header {
                // Jumps to a method or a helper, or its look-up by one comparison
                // (`StubCodeBlockKind`).
                1 | 3 | 6 => Kind::Stub,
                _ => Kind::Other,
            };
            // Where a block of stubs ends is not told.
            let bucket = address >> BUCKET_LOG << BUCKET_LOG;
            let end = bucket.checked_add(1 << BUCKET_LOG)?;
            return Some(Code { start: bucket.max(start), end, kind });
        }
        let method = self.word(header.wrapping_add(HEADER_METHOD))?;
        let functions = header.wrapping_add(HEADER_FUNCTIONS);
        let count = u32::from_le_bytes(self.read(functions)?);
        let first = Function::of(self.read(functions.wrapping_add(4))?);
        // The header of what is still compiled has no function yet.
        if count == 0 || count > FUNCTIONS_MAX || begin.checked_add(first.begin())? != start {
            return None;
        }
        let at = functions.wrapping_add(4);
        let (_, function) = self.function(at, count.into(), address.checked_sub(begin)?)?;
        function.code(begin, method)
    }

    /// Where the piece begins that an address is in.
    fn start(&self, map: u64, base: u64, address: u64) -> Option<u64> {
        let into = address.checked_sub(base)?;
        let (mut last, bucket) = (into >> WORD_LOG, (into >> BUCKET_LOG) & 7);
        // Buckets behind the address are left out of the first word, and what begins behind it.
        let mut mask = u32::MAX << (28 - 4 * bucket);
        let floor = last.saturating_sub(MAP_WORDS_MAX);
        loop {
            let first = (last + 1).saturating_sub(MAP_WORDS).max(floor);
            let bytes = self.read_map(map, first, last)?;
            for number in (first..=last).rev() {
                let at = usize::try_from(4 * (number - first)).ok()?;
                let word = u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?) & mask;
                mask = u32::MAX;
                for bucket in (0..8).rev() {
                    let place = u64::from(word >> (28 - 4 * bucket) & 0xf);
                    let begin = base + (number << WORD_LOG) + (bucket << BUCKET_LOG);
                    let begin = begin + 4 * place.saturating_sub(1);
                    if place != 0 && begin <= address {
                        return Some(begin);
                    }
                }
            }
            if first == floor {
                return None;
            }
            last = first - 1;
        }
    }

    fn read_map(&self, map: u64, first: u64, last: u64) -> Option<Vec<u8>> {
        self.reads_left.set(self.reads_left.get().checked_sub(1)?);
        let mut bytes = vec![0; usize::try_from(4 * (last + 1 - first)).ok()?];
        let read = self.memory.read(map.wrapping_add(4 * first), &mut bytes);
        (read == bytes.len()).then_some(bytes)
    }

    /// The last function of a sorted table that begins at this distance or before, and its number.
    fn function(&self, table: u64, count: u64, into: u64) -> Option<(u64, Function)> {
        let get = |number: u64| {
            self.read(table.wrapping_add(FUNCTION_BYTES as u64 * number)).map(Function::of)
        };
        let (mut low, mut high) = (0, count);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if get(middle)?.begin() <= into { low = middle } else { high = middle }
        }
        let found = get(low)?;
        (found.begin() <= into).then_some((low, found))
    }

    /// The function in an assembly's code that an address is in.
    fn in_assembly(&self, section: &Section, address: u64) -> Option<Code> {
        let CodeOffsets { compiled_ahead, composite, entries, .. } = self.layout.code;
        let CodeOffsets { functions, function_count, split_count, .. } = self.layout.code;
        let info = self.word(section.module.wrapping_add(compiled_ahead))?;
        // It begins with its module.
        self.word(info).filter(|module| *module == section.module)?;
        let table = self.word(info.wrapping_add(functions))?;
        let count = self.word(info.wrapping_add(function_count))? & u64::from(u32::MAX);
        // Parts of functions that are elsewhere are behind other functions' entries.
        let splits = self.word(info.wrapping_add(split_count))? & u64::from(u32::MAX);
        if count == 0 || count > ASSEMBLY_FUNCTIONS_MAX || splits > 0 {
            return None;
        }
        let into = address.checked_sub(section.begin)?;
        let (number, function) = self.function(table, count, into)?;
        let shared = self.word(info.wrapping_add(composite))?;
        let buckets = self.word(shared.wrapping_add(entries))?;
        // Handlers are behind their method's function, and no entries.
        for back in 0..HANDLERS_MAX.min(number + 1) {
            let at = table.wrapping_add(FUNCTION_BYTES as u64 * (number - back));
            let entry = Function::of(self.read(at)?);
            let entry = section.begin.checked_add(entry.begin())?;
            if let Some(method) = self.method_of_entry(buckets, entry) {
                // In a table that was replaced meanwhile an entry may not have been found.
                let is_same = self.word(shared.wrapping_add(entries))? == buckets;
                return function.code(section.begin, method).filter(|_| is_same);
            }
        }
        None
    }

    /// The method that begins at an address of an assembly: `PtrHashMap`, src/coreclr/vm/hash.h.
    fn method_of_entry(&self, buckets: u64, entry: u64) -> Option<u64> {
        // The first bucket has the number of the others.
        let count = self.word(buckets).filter(|count| (2..BUCKETS_MAX).contains(count))?;
        let count32 = u32::try_from(count).ok()?;
        let mut seed = (entry >> 2) as u32;
        let step = 1 + ((entry >> 5) as u32).wrapping_add(1) % (count32 - 1);
        for _ in 0..PROBES_MAX.min(count) {
            let at = buckets.wrapping_add(BUCKET_BYTES * (1 + u64::from(seed % count32)));
            let [keys @ .., m0, m1, m2, m3] =
                words::<8>(&self.read::<{ BUCKET_BYTES as usize }>(at)?);
            let found = keys.iter().zip([m0, m1, m2, m3]).find(|(key, _)| **key == entry);
            if let Some((_, method)) = found {
                // Half of the address; the uppermost bit of the first says that others follow.
                return Some(method << 1);
            }
            if m0 >> 63 == 0 {
                return None;
            }
            seed = seed.wrapping_add(step);
        }
        None
    }
}

impl Function {
    fn of(bytes: [u8; FUNCTION_BYTES]) -> Self {
        let (parts, _) = bytes.as_chunks::<4>();
        let mut of = [0; 3];
        of.iter_mut().zip(parts).for_each(|(to, part)| *to = u32::from_le_bytes(*part));
        Self(of)
    }

    fn begin(self) -> u64 {
        let Self([begin, ..]) = self;
        begin.into()
    }

    fn code(self, base: u64, method: u64) -> Option<Code> {
        let Self([start, end, unwind]) = self;
        let at = |relative: u32| base.checked_add(relative.into());
        let kind = Kind::Method { method, unwind: at(unwind)? };
        Some(Code { start: at(start)?, end: at(end)?, kind })
    }
}

/// The first words of these bytes.
fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    let (parts, _) = bytes.as_chunks::<8>();
    words.iter_mut().zip(parts).for_each(|(to, part)| *to = u64::from_le_bytes(*part));
    words
}
