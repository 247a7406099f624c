//! From addresses to source lines and inlined calls, by the DWARF that compilers write, or by Go's
//! table. Only units that have one of the addresses are read.
//!
//! Debug information comes from strangers, and the library that reads it recurses and loops as the
//! information says. So all bytes are read through [`Metered`], which ends a look-up that reads too
//! much or whose stack grows too deep.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;

use addr2line::{Context, LookupContinuation as _, LookupResult};
use gimli::{EndianSlice, Reader, ReaderOffsetId, RunTimeEndian};

use crate::debug_info::{DebugInfo, Sections};
use crate::elf::malformed;
use crate::go_table::GoTable;
use crate::split::Split;
use crate::{ImageError, Vaddr, demangle};

/// Most reads of one image's debug information, besides one read for each of its bytes. More let a
/// hostile file take minutes, fewer cut the lines of large programs.
const READS_MAX: u64 = 32 << 20;
/// Bytes of stack that a look-up may take: the smallest stack of our threads is 2 MiB. They suffice
/// for some hundred calls inlined into each other.
const STACK_MAX: usize = 512 << 10;
/// Longest name or path, in bytes.
const NAME_MAX: usize = 32 << 10;
/// Most calls inlined into each other that are reported for an address; the outer ones are left
/// out.
pub(crate) const FRAMES_MAX: usize = 64;

/// Most stretches of code of one line that are reported; more are of a line that is inlined
/// everywhere.
pub const STRETCHES_MAX: usize = 256;

/// Source position of an instruction: of one of the calls that were inlined there, or of the
/// procedure itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Frame {
    /// The function, demangled.
    pub function: Option<String>,
    /// The source file, as the compiler was reported, joined with the directory it ran in.
    pub file: Option<String>,
    /// Line, from 1; None for code that belongs to no line in particular.
    pub line: Option<u32>,
    /// Column, from 1; None when the whole line is meant.
    pub column: Option<u32>,
}

/// The reason why lines may be missing.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum LinesCut {
    /// Part of the debug information is malformed.
    Malformed,
    /// Reading it takes more work than the limit.
    TooMuchWork,
    /// Calls are inlined into each other more deeply than the limit.
    TooDeep,
}

impl fmt::Display for LinesCut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "part of the debug information is malformed",
            Self::TooMuchWork => "the debug information takes too much work to read",
            Self::TooDeep => "the debug information nests too deeply",
        })
    }
}

/// Source lines of an image.
pub struct Lines<'a> {
    context: Context<Metered<'a>>,
    /// In place of debug information.
    go_table: Option<&'a GoTable>,
    split: &'a Split,
    meter: &'a Meter,
    cut: Cell<Option<LinesCut>>,
}

impl<'a> Lines<'a> {
    pub(crate) fn of(info: &'a DebugInfo) -> Result<Self, ImageError> {
        let (dwarf, meter) = begin(info);
        let context = Context::from_dwarf(dwarf).map_err(|_| malformed("debug information", 0))?;
        let (go_table, split) = (info.go_table.as_ref(), &info.split);
        Ok(Self { context, go_table, split, meter, cut: Cell::new(None) })
    }

    /// Source positions of the instruction at an address: the innermost inlined call first, the
    /// procedure itself last, at most 64. Empty when they are not known.
    pub fn frames(&self, address: Vaddr) -> Vec<Frame> {
        let mut frames = Vec::new();
        // The library also looks up the next address, which must not overflow.
        if address.0 == u64::MAX || self.cut.get() == Some(LinesCut::TooMuchWork) {
            return frames;
        }
        self.meter.look_up();
        if let Some(table) = self.go_table {
            frames = table.frames(address, self.meter);
            self.cut.set(self.meter.cut.get());
            return frames;
        }
        if self.add_frames(address, &mut frames).is_err() {
            self.cut.set(Some(self.meter.cut.get().unwrap_or(LinesCut::Malformed)));
        }
        frames
    }

    fn add_frames(&self, address: Vaddr, frames: &mut Vec<Frame>) -> gimli::Result<()> {
        let mut looked_up = self.context.find_frames(address.0);
        let mut found = loop {
            match looked_up {
                LookupResult::Output(found) => break found?,
                LookupResult::Load { load, continuation } => {
                    looked_up = continuation.resume(self.split.unit(&load, self.meter));
                }
            }
        };
        while frames.len() < FRAMES_MAX
            && let Some(frame) = found.next()?
        {
            let name = frame.function.as_ref().map(|function| function.raw_name()).transpose()?;
            let (file, line, column) = frame
                .location
                .map_or((None, None, None), |place| (place.file, place.line, place.column));
            let file = file.filter(|file| !file.is_empty()).map(str::to_owned);
            let function = name.map(|name| demangle(&name).into_owned());
            frames.push(Frame {
                function,
                file,
                line,
                column: column.filter(|column| *column > 0),
            });
        }
        Ok(())
    }

    /// First addresses of the stretches of code that belong to a source line, in the order of the
    /// line tables, at most [`STRETCHES_MAX`]. A line has several where it is inlined or unrolled.
    pub fn addresses(&self, is_wanted: impl Fn(&str) -> bool, line: u32) -> Vec<Vaddr> {
        let mut addresses = Vec::new();
        self.meter.look_up();
        if let Some(table) = self.go_table {
            addresses = table.addresses(is_wanted, line, self.meter);
            self.cut.set(self.meter.cut.get());
            return addresses;
        }
        if self.add_addresses(is_wanted, line, &mut addresses).is_err() {
            self.cut.set(Some(self.meter.cut.get().unwrap_or(LinesCut::Malformed)));
        }
        addresses
    }

    fn add_addresses(
        &self,
        is_wanted: impl Fn(&str) -> bool,
        line: u32,
        addresses: &mut Vec<Vaddr>,
    ) -> gimli::Result<()> {
        // The end of the stretch before: stretches of one line that touch are one.
        let mut end = None;
        for (begin, length, place) in self.context.find_location_range(0, u64::MAX)? {
            let is_of_line = place.line == Some(line) && place.file.is_some_and(&is_wanted);
            if is_of_line && end != Some(begin) {
                if addresses.len() >= STRETCHES_MAX {
                    break;
                }
                addresses.push(Vaddr(begin));
            }
            if is_of_line {
                end = begin.checked_add(length);
            }
        }
        Ok(())
    }

    /// The reason why lines may be missing from the answers so far, if there is one.
    pub fn cut(&self) -> Option<LinesCut> {
        self.cut.get()
    }
}

impl fmt::Debug for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lines(cut: {:?})", self.cut.get())
    }
}

/// The debug information, and the meter of its reads, which begins again.
pub(crate) fn begin(info: &DebugInfo) -> (gimli::Dwarf<Metered<'_>>, &Meter) {
    let meter = &info.meter;
    let bytes =
        info.sections.len().saturating_add(info.supplement.as_ref().map_or(0, Sections::len));
    meter.begin(READS_MAX.saturating_add(bytes));
    let mut dwarf = dwarf(&info.sections, meter);
    if let Some(supplement) = &info.supplement {
        dwarf.set_sup(self::dwarf(supplement, meter));
    }
    dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
    (dwarf, meter)
}

pub(crate) fn dwarf<'a>(sections: &'a Sections, meter: &'a Meter) -> gimli::Dwarf<Metered<'a>> {
    let section = |bytes| Metered { bytes: EndianSlice::new(bytes, sections.endian), meter };
    let load = |id: gimli::SectionId| {
        let bytes = sections.get(id);
        let bytes = if id == gimli::SectionId::DebugInfo {
            whole_units(bytes, sections.endian)
        } else {
            bytes
        };
        Ok::<_, std::convert::Infallible>(section(bytes))
    };
    match gimli::Dwarf::load(load) {
        Ok(dwarf) => dwarf,
        Err(never) => match never {},
    }
}

/// The units that are complete: a unit that was cut off must not take those before it with it.
fn whole_units(bytes: &[u8], endian: RunTimeEndian) -> &[u8] {
    let mut rest = EndianSlice::new(bytes, endian);
    let mut whole = 0;
    while let Ok((length, _)) = rest.read_initial_length()
        && rest.skip(length).is_ok()
    {
        whole = bytes.len() - rest.len();
    }
    bytes.get(..whole).unwrap_or(bytes)
}

/// Counts the reads of an image's debug information, with a limit on them.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    left: Cell<u64>,
    /// Address of the stack when the look-up began.
    stack: Cell<usize>,
    cut: Cell<Option<LinesCut>>,
}

impl Meter {
    fn begin(&self, reads: u64) {
        self.left.set(reads);
        self.look_up();
    }

    /// Allows so many reads more.
    pub(crate) fn allow(&self, reads: u64) {
        self.left.set(self.left.get().saturating_add(reads));
    }

    pub(crate) fn look_up(&self) {
        self.stack.set(stack());
        self.cut.set(None);
    }

    /// The reason why the last look-up ended early, if it did.
    pub(crate) fn cut(&self) -> Option<LinesCut> {
        self.cut.get()
    }

    /// Adds to the reads; an error beyond the limit.
    #[inline]
    pub(crate) fn pay(&self, reads: usize) -> gimli::Result<()> {
        let Some(left) = self.left.get().checked_sub(reads as u64) else {
            return self.end(LinesCut::TooMuchWork);
        };
        self.left.set(left);
        // Stacks grow downwards on every machine that Linux runs on.
        if self.stack.get().saturating_sub(stack()) > STACK_MAX {
            return self.end(LinesCut::TooDeep);
        }
        Ok(())
    }

    #[cold]
    fn end<T>(&self, cut: LinesCut) -> gimli::Result<T> {
        self.cut.set(Some(cut));
        Err(gimli::Error::Io)
    }
}

/// The approximate address of the stack's end.
#[inline(always)]
fn stack() -> usize {
    let here = 0_u8;
    (&raw const here).addr()
}

/// Bytes whose reads are counted.
#[derive(Clone, Copy)]
pub(crate) struct Metered<'a> {
    bytes: EndianSlice<'a, RunTimeEndian>,
    meter: &'a Meter,
}

impl fmt::Debug for Metered<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Metered({} bytes)", self.bytes.len())
    }
}

impl<'a> Metered<'a> {
    pub(crate) fn of(bytes: EndianSlice<'a, RunTimeEndian>, meter: &'a Meter) -> Self {
        Self { bytes, meter }
    }
}

impl Metered<'_> {
    /// A name or path, counted by its length: many entries may have the same long one.
    fn text(&self) -> gimli::Result<&[u8]> {
        let text = self.bytes.slice();
        if text.len() > NAME_MAX {
            return self.meter.end(LinesCut::Malformed);
        }
        self.meter.pay(text.len())?;
        Ok(text)
    }
}

impl Reader for Metered<'_> {
    type Endian = RunTimeEndian;
    type Offset = usize;

    fn endian(&self) -> RunTimeEndian {
        self.bytes.endian()
    }

    #[inline]
    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn empty(&mut self) {
        self.bytes.empty();
    }

    fn truncate(&mut self, len: usize) -> gimli::Result<()> {
        self.bytes.truncate(len)
    }

    fn offset_from(&self, base: &Self) -> usize {
        // The library's own method would panic where one slice is not part of the other.
        let (this, base) = (self.bytes.slice().as_ptr().addr(), base.bytes.slice().as_ptr().addr());
        this.saturating_sub(base)
    }

    fn offset_id(&self) -> ReaderOffsetId {
        self.bytes.offset_id()
    }

    fn lookup_offset_id(&self, id: ReaderOffsetId) -> Option<usize> {
        self.bytes.lookup_offset_id(id)
    }

    fn find(&self, byte: u8) -> gimli::Result<usize> {
        let found = Reader::find(&self.bytes, byte)?;
        // Searching sixteen bytes takes as long as a read.
        self.meter.pay(1 + found / 16)?;
        Ok(found)
    }

    #[inline]
    fn skip(&mut self, len: usize) -> gimli::Result<()> {
        self.meter.pay(1)?;
        self.bytes.skip(len)
    }

    #[inline]
    fn split(&mut self, len: usize) -> gimli::Result<Self> {
        self.meter.pay(1)?;
        Ok(Self { bytes: self.bytes.split(len)?, meter: self.meter })
    }

    fn to_slice(&self) -> gimli::Result<Cow<'_, [u8]>> {
        self.text().map(Cow::Borrowed)
    }

    fn to_string(&self) -> gimli::Result<Cow<'_, str>> {
        str::from_utf8(self.text()?).map(Cow::Borrowed).map_err(|_| gimli::Error::BadUtf8)
    }

    fn to_string_lossy(&self) -> gimli::Result<Cow<'_, str>> {
        self.text().map(String::from_utf8_lossy)
    }

    #[inline]
    fn read_slice(&mut self, into: &mut [u8]) -> gimli::Result<()> {
        self.meter.pay(1)?;
        Reader::read_slice(&mut self.bytes, into)
    }

    #[inline]
    fn read_u8(&mut self) -> gimli::Result<u8> {
        self.meter.pay(1)?;
        self.bytes.read_u8()
    }
}
