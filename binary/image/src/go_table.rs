//! The table of procedures, files and lines that Go's linker writes into every program, also into
//! stripped ones, because the runtime prints and walks stacks with it (`.gopclntab`).
//!
//! - a header, whose magic number identifies the version;
//! - names of procedures, names of files, and for each unit the files that it has, by number;
//! - `pctab`: for each procedure and kind of value, pairs of variable-length numbers: a change of
//!   the value, and the number of code bytes that the new value is true for;
//! - `functab`: sorted (first address, place of the procedure's `_func`), 4 bytes each;
//! - `_func`: name, places in `pctab`, unit, flags.
//!
//! This module reads tables of Go 1.18 and later for 64-bit machines, with inlined calls
//! (`go_inlined.rs`): the line of an address is that of the innermost one.
//!
//! # Sources
//!
//! "Go 1.2 Runtime Symbol Table" (golang.org/s/go12symtab). Of Go's source (1.19 unless said):
//!
//! - src/cmd/link/internal/ld/pcln.go: the header and `functab`;
//! - src/runtime/symtab.go: `pcHeader`, `pcvalue`, `funcline1`;
//! - src/runtime/runtime2.go: `_func`, which has `startLine` since 1.20;
//! - src/debug/gosym/pclntab.go: magic numbers;
//! - src/cmd/link/internal/ld/data.go: the alignment.

use std::ffi::CStr;

use object::elf;
use object::endian::Endianness;

use crate::elf::{Elf, Section};
use crate::go_inlined::{self, InlinedCall, Trees};
use crate::lines::{FRAMES_MAX, Meter, STRETCHES_MAX};
use crate::{Frame, ImageError, Vaddr};

/// The table, as messages call it.
pub(crate) const GO_TABLE: &str = "table of Go's procedures";
/// Magic number of Go 1.18 and 1.19.
const MAGIC_1_18: u32 = 0xffff_fff0;
/// Magic number of Go 1.20 and later.
const MAGIC_1_20: u32 = 0xffff_fff1;
/// Bytes of a row of `functab`.
const ROW_BYTES: u64 = 8;
/// Largest table that is read, in bytes; the largest programs have some 100 MB.
const TABLE_LIMIT: u64 = 256 << 20;
/// Alignment of the table.
pub const ALIGNMENT: usize = 32;
/// Longest name or path that is read, in bytes.
const NAME_MAX: usize = 32 << 10;
/// Number of inlined calls whose names must make sense before an address is taken for that of the
/// trees. Fewer could make sense by chance; more take longer.
const CHECKED_MIN: usize = 32;
/// Values of `pctab` that are read to find so many calls, at most.
const CHECK_READS_MAX: u64 = 1 << 20;
/// Offsets in `moduledata` of Go 1.26: the address of the table, and of the first code byte.
const MODULE_TABLE: u64 = 0;
const MODULE_TEXT: u64 = 176;

/// What the header says. Places are counted from the begin of the table.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Unit of the distances in `pctab`, in bytes: 1 on x86-64, 4 on arm64.
    pub quantum: u8,
    /// Whether `_func` has `startLine`.
    pub has_start_line: bool,
    /// Number of procedures.
    pub count: u64,
    /// Address that first addresses are relative to; 0: it is found elsewhere (Go 1.26).
    pub text: u64,
    /// Place of the names of procedures.
    pub names: u64,
    /// Place of the files of all units.
    pub units: u64,
    /// Place of the names of files.
    pub files: u64,
    /// Place of `pctab`.
    pub numbers: u64,
    /// Place of `functab`, to which places of `_func`s belong.
    pub rows: u64,
}

impl Header {
    /// Two words of 4 bytes and eight of 8.
    pub const BYTES: usize = 72;

    /// The header of a table for code whose instructions are aligned to `quantum` bytes; None where
    /// it is none of a known version.
    pub fn read(bytes: &[u8; Self::BYTES], quantum: u8) -> Option<Self> {
        let (head, words) = bytes.split_first_chunk::<8>()?;
        let has_start_line = has_start_line(head, quantum)?;
        let mut words = words.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let [count, _, text, names, units, files, numbers, rows] =
            std::array::from_fn(|_| words.next().unwrap_or_default());
        Some(Self { quantum, has_start_line, count, text, names, units, files, numbers, rows })
    }

    /// Bytes of a `_func`.
    pub fn func_bytes(&self) -> usize {
        if self.has_start_line { 44 } else { 40 }
    }
}

/// Whether `_func`s of the table that begins so have `startLine`; None where no table begins so.
pub fn has_start_line(head: &[u8; 8], quantum: u8) -> Option<bool> {
    let [a, b, c, d, 0, 0, unit, 8] = *head else { return None };
    let has_start_line = match u32::from_le_bytes([a, b, c, d]) {
        MAGIC_1_18 => false,
        MAGIC_1_20 => true,
        _ => return None,
    };
    (unit == quantum).then_some(has_start_line)
}

/// A program's table.
pub(crate) struct GoTable {
    bytes: Vec<u8>,
    /// Its address.
    address: u64,
    header: Header,
    /// Address that first addresses are relative to.
    text: u64,
    /// Inlined calls, if they were asked for and are known.
    trees: Option<Trees>,
}

/// A procedure of the table: its addresses and the numbers of its `_func`.
pub(crate) struct Procedure<'a> {
    pub(crate) begin: u64,
    pub(crate) end: u64,
    func: &'a [u8],
    /// Place of its `_func`.
    place: u64,
}

impl GoTable {
    /// The table of a program; None if it has none of a known version.
    pub(crate) fn read(elf: &Elf<'_>, sections: &[Section]) -> Result<Option<Self>, ImageError> {
        let quantum = match elf.machine {
            elf::EM_X86_64 => 1,
            elf::EM_AARCH64 => 4,
            _ => return Ok(None),
        };
        if !elf.is_64 || elf.endian != Endianness::Little {
            return Ok(None);
        }
        let Some((address, bytes)) = find(elf, sections, quantum)? else { return Ok(None) };
        let Some(header) = bytes.first_chunk().and_then(|bytes| Header::read(bytes, quantum))
        else {
            return Ok(None);
        };
        let mut table = Self { bytes, address, header, text: header.text, trees: None };
        if table.text == 0 {
            let Some(text) = table.text_begin(elf, sections) else { return Ok(None) };
            table.text = text;
        }
        Ok(Some(table))
    }

    /// The table, with inlined calls.
    pub(crate) fn with_inlined(mut self, elf: &Elf<'_>, sections: &[Section]) -> Self {
        let (address, header) = (self.address, self.header);
        for trees in Trees::candidates(elf, sections, (address, &header)) {
            self.trees = Some(trees);
            if self.has_inlined() {
                return self;
            }
        }
        self.trees = None;
        self
    }

    /// Whether the first trees that there are have names of procedures.
    fn has_inlined(&self) -> bool {
        let meter = Meter::default();
        meter.allow(CHECK_READS_MAX);
        meter.look_up();
        let mut checked = 0;
        for procedure in self.procedures() {
            let Some((entries, _)) = self.tree(&procedure) else { continue };
            let mut begin = 0;
            for (end, entry) in self.values(entries, &meter) {
                if entry >= 0 {
                    checked += 1;
                    if self.inlined(&procedure, begin, &meter).is_none() {
                        return false;
                    }
                }
                begin = end;
            }
            if checked >= CHECKED_MIN {
                return true;
            }
        }
        checked > 0
    }

    /// The address that first addresses are relative to, from the runtime's `moduledata`, for
    /// tables whose header has a 0 instead (Go 1.26). None if `moduledata` is of another table.
    fn text_begin(&self, elf: &Elf<'_>, sections: &[Section]) -> Option<u64> {
        let module = sections.iter().find(|section| &*section.name == ".go.module")?;
        let word = |at: u64| {
            let at = module.offset.checked_add(at)?;
            let bytes = elf.source.read("module data", at, 8, 8).ok()?;
            Some(u64::from_le_bytes(*bytes.first_chunk()?))
        };
        if word(MODULE_TABLE) == Some(self.address) { word(MODULE_TEXT) } else { None }
    }

    /// The names of procedures, from the first on.
    pub(crate) fn names(&self) -> &[u8] {
        let begin = usize::try_from(self.header.names).unwrap_or(usize::MAX);
        let end = usize::try_from(self.header.units).unwrap_or(usize::MAX);
        let names = self.bytes.get(begin..).unwrap_or_default();
        names.get(..end.saturating_sub(begin)).unwrap_or(names)
    }

    /// All procedures, by address.
    pub(crate) fn procedures(&self) -> impl Iterator<Item = Procedure<'_>> {
        let rows = (self.bytes.len() as u64).saturating_sub(self.header.rows) / ROW_BYTES;
        (0..self.header.count.min(rows)).filter_map(|number| self.procedure(number))
    }

    fn procedure(&self, number: u64) -> Option<Procedure<'_>> {
        let row = self.header.rows.checked_add(number.checked_mul(ROW_BYTES)?)?;
        let (begin, place) = (self.number(row)?, self.number(row.checked_add(4)?)?);
        // The last row is followed by the end of the last procedure.
        let end = self.number(row.checked_add(ROW_BYTES)?)?;
        let place = self.header.rows.checked_add(u64::from(place))?;
        let func = self.bytes.get(usize::try_from(place).ok()?..)?;
        let func = func.get(..self.header.func_bytes())?;
        let procedure = Procedure {
            begin: self.text.checked_add(u64::from(begin))?,
            end: self.text.checked_add(u64::from(end))?,
            func,
            place,
        };
        (procedure.number(0)? == begin && begin < end).then_some(procedure)
    }

    /// The procedure at an address.
    fn procedure_at(&self, address: u64) -> Option<Procedure<'_>> {
        let relative = address.checked_sub(self.text)?;
        let (mut low, mut high) = (0, self.header.count);
        while low < high {
            let middle = low + (high - low) / 2;
            let row = self.header.rows.checked_add(middle.checked_mul(ROW_BYTES)?)?;
            // A row beyond the end of a truncated table counts as above every address.
            match self.number(row) {
                Some(begin) if u64::from(begin) <= relative => low = middle + 1,
                _ => high = middle,
            }
        }
        let procedure = self.procedure(low.checked_sub(1)?)?;
        (address < procedure.end).then_some(procedure)
    }

    /// The source positions of an instruction: the innermost inlined call first, the procedure
    /// itself last.
    pub(crate) fn frames(&self, address: Vaddr, meter: &Meter) -> Vec<Frame> {
        let mut frames = Vec::new();
        let Some(procedure) = self.procedure_at(address.0) else { return frames };
        let mut distance = address.0 - procedure.begin;
        // Entries follow those around them.
        let mut before = u32::MAX;
        while frames.len() + 1 < FRAMES_MAX
            && let Some((number, call)) = self.inlined(&procedure, distance, meter)
            && number < before
        {
            frames.push(self.position(&procedure, Some(call.name), distance, meter));
            (before, distance) = (number, call.caller.into());
        }
        frames.push(self.position(&procedure, procedure.name(), distance, meter));
        frames
    }

    /// The position of an instruction, in the function whose name is at a place.
    fn position(
        &self,
        procedure: &Procedure<'_>,
        name: Option<u32>,
        distance: u64,
        meter: &Meter,
    ) -> Frame {
        let lines = procedure.number(Procedure::LINES);
        let line = lines.and_then(|lines| self.value(lines, distance, meter));
        let name = name.and_then(|name| self.header.names.checked_add(name.into()));
        Frame {
            function: name.and_then(|name| self.text_at(name)).map(str::to_owned),
            file: self.file(procedure, distance, meter).map(str::to_owned),
            line: line.and_then(|line| u32::try_from(line).ok()).filter(|line| *line > 0),
            column: None,
        }
    }

    /// The innermost call that is inlined at a distance from a procedure's begin, and its number.
    fn inlined(
        &self,
        procedure: &Procedure<'_>,
        distance: u64,
        meter: &Meter,
    ) -> Option<(u32, InlinedCall)> {
        let (entries, tree) = self.tree(procedure)?;
        let entry = u32::try_from(self.value(entries, distance, meter)?).ok()?;
        let call = self.trees.as_ref()?.call(tree, entry)?;
        let is_inside = u64::from(call.caller) < procedure.end - procedure.begin;
        (is_inside && self.begins_name(call.name)).then_some((entry, call))
    }

    /// The places of a procedure's entries in `pctab`, and of its tree among the trees.
    fn tree(&self, procedure: &Procedure<'_>) -> Option<(u32, u32)> {
        let kinds = u64::from(procedure.number(Procedure::KINDS)?);
        let data = u64::from(*procedure.func.last()?);
        if kinds <= go_inlined::ENTRIES || data <= go_inlined::TREE {
            return None;
        }
        // Behind `_func`: places of values by kind, then those of data.
        let behind = procedure.place.checked_add(self.header.func_bytes() as u64)?;
        let number = |index: u64| self.number(behind.checked_add(index.checked_mul(4)?)?);
        let tree = number(kinds.checked_add(go_inlined::TREE)?)?;
        (tree != go_inlined::NO_TREE).then_some((number(go_inlined::ENTRIES)?, tree))
    }

    /// Whether a name of a procedure begins at a place.
    fn begins_name(&self, place: u32) -> bool {
        let (before, from) = self.names().split_at_checked(place as usize).unwrap_or_default();
        before.last().is_none_or(|byte| *byte == 0) && from.first().is_some_and(|byte| *byte != 0)
    }

    /// First addresses of the stretches of code that belong to a source line.
    pub(crate) fn addresses(
        &self,
        is_wanted: impl Fn(&str) -> bool,
        line: u32,
        meter: &Meter,
    ) -> Vec<Vaddr> {
        let mut addresses = Vec::new();
        for procedure in self.procedures() {
            let Some(lines) = procedure.number(Procedure::LINES) else { continue };
            let (mut begin, mut end_of_last) = (0, None);
            for (end, value) in self.values(lines, meter) {
                let address = procedure.begin.saturating_add(begin);
                if u32::try_from(value) == Ok(line)
                    && address < procedure.end
                    && self.file(&procedure, begin, meter).is_some_and(&is_wanted)
                {
                    // Stretches of one line that touch are one.
                    if end_of_last != Some(begin) {
                        addresses.push(Vaddr(address));
                    }
                    end_of_last = Some(end);
                }
                begin = end;
            }
            if meter.cut().is_some() || addresses.len() >= STRETCHES_MAX {
                break;
            }
        }
        addresses.truncate(STRETCHES_MAX);
        addresses
    }

    fn file(&self, procedure: &Procedure<'_>, distance: u64, meter: &Meter) -> Option<&str> {
        let number = self.value(procedure.number(Procedure::FILES)?, distance, meter)?;
        let unit = u64::from(procedure.number(Procedure::UNIT)?);
        let entry = unit.checked_add(u64::try_from(number).ok()?)?.checked_mul(4)?;
        let place = self.number(self.header.units.checked_add(entry)?)?;
        self.text_at(self.header.files.checked_add(u64::from(place))?)
    }

    /// The value at a distance from a procedure's begin.
    fn value(&self, place: u32, distance: u64, meter: &Meter) -> Option<i32> {
        self.values(place, meter).find(|(end, _)| distance < *end).map(|(_, value)| value)
    }

    /// The values at a place of `pctab`, each with the distance from the procedure's begin where
    /// its code ends.
    fn values<'a>(&'a self, place: u32, meter: &'a Meter) -> Values<'a> {
        let at = usize::try_from(self.header.numbers.saturating_add(u64::from(place)));
        let bytes = at.ok().and_then(|at| self.bytes.get(at..)).filter(|_| place != 0);
        Values { bytes: bytes.unwrap_or_default(), value: -1, end: 0, table: self, meter }
    }

    fn number(&self, at: u64) -> Option<u32> {
        let bytes = self.bytes.get(usize::try_from(at).ok()?..)?;
        Some(u32::from_le_bytes(*bytes.first_chunk()?))
    }

    fn text_at(&self, at: u64) -> Option<&str> {
        let bytes = self.bytes.get(usize::try_from(at).ok()?..)?;
        let bytes = bytes.get(..=NAME_MAX).unwrap_or(bytes);
        let text = CStr::from_bytes_until_nul(bytes).ok()?.to_str().ok()?;
        (!text.is_empty()).then_some(text)
    }
}

impl Procedure<'_> {
    /// Numbers of 4 bytes in a `_func`.
    const NAME: usize = 1;
    const FILES: usize = 5;
    const LINES: usize = 6;
    /// Number of kinds of further values.
    const KINDS: usize = 7;
    const UNIT: usize = 8;

    /// Place of its name among the names.
    pub(crate) fn name(&self) -> Option<u32> {
        self.number(Self::NAME)
    }

    fn number(&self, index: usize) -> Option<u32> {
        Some(u32::from_le_bytes(*self.func.get(index * 4..)?.first_chunk()?))
    }
}

/// Values of `pctab`.
struct Values<'a> {
    bytes: &'a [u8],
    value: i32,
    end: u64,
    table: &'a GoTable,
    meter: &'a Meter,
}

impl Values<'_> {
    /// A variable-length number (LEB128).
    fn next_number(&mut self) -> Option<u32> {
        let mut value = 0;
        for shift in (0..32).step_by(7) {
            let (byte, rest) = self.bytes.split_first()?;
            self.bytes = rest;
            value |= u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

impl Iterator for Values<'_> {
    type Item = (u64, i32);

    fn next(&mut self) -> Option<Self::Item> {
        self.meter.pay(1).ok()?;
        let change = self.next_number()?;
        if change == 0 && self.end != 0 {
            return None;
        }
        let change = (change >> 1).cast_signed() ^ -((change & 1).cast_signed());
        self.value = self.value.wrapping_add(change);
        let bytes = u64::from(self.next_number()?) * u64::from(self.table.header.quantum);
        self.end = self.end.saturating_add(bytes);
        Some((self.end, self.value))
    }
}

/// The table's address, and its bytes and perhaps further ones.
fn find(
    elf: &Elf<'_>,
    sections: &[Section],
    quantum: u8,
) -> Result<Option<(u64, Vec<u8>)>, ImageError> {
    let named = |name: &str| sections.iter().find(|section| &*section.name == name);
    if let Some(section) = named(".gopclntab").or_else(|| named(".data.rel.ro.gopclntab")) {
        let bytes = elf.section_bytes(GO_TABLE, section, TABLE_LIMIT)?;
        return Ok(Some((section.vaddr, bytes.into_owned())));
    }
    // Linkers of C put it there in position-independent programs with cgo.
    let Some(section) = named(".go.buildinfo").and_then(|_| named(".data.rel.ro")) else {
        return Ok(None);
    };
    let mut bytes = elf.section_bytes(GO_TABLE, section, TABLE_LIMIT)?.into_owned();
    let is_table = |bytes: &[u8]| {
        bytes.first_chunk().is_some_and(|head| has_start_line(head, quantum).is_some())
    };
    let Some(number) = bytes.chunks(ALIGNMENT).position(is_table) else { return Ok(None) };
    bytes.drain(..number * ALIGNMENT);
    Ok(Some((section.vaddr.saturating_add((number * ALIGNMENT) as u64), bytes)))
}
