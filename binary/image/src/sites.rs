//! Source positions of instructions in the form that compilers read from profiles: the function's
//! linkage name, the line counted from the function's first, and the discriminator that
//! distinguishes blocks of one line (Chen et al., "AutoFDO", CGO 2016, section 3; DWARF 5, 6.2.2
//! for discriminators).
//!
//! [`Lines`](crate::Lines) reads the names that people know from other parts of the same debug
//! information, with the same meter.

use std::cell::{Cell, OnceCell};
use std::fmt;

use gimli::{AttributeValue, DebuggingInformationEntry, Unit, UnitOffset, constants};

use crate::debug_info::DebugInfo;
use crate::elf::malformed;
use crate::lines::{LinesCut, Meter, Metered, begin};
use crate::{ImageError, Vaddr};

/// Most calls inlined into each other that are reported for an address.
const DEPTH_MAX: usize = 64;
/// Most entries from an inlined copy to its declaration: copy, abstract function, declaration, and
/// as many again for entries that link-time optimisation moved.
const ORIGINS_MAX: usize = 8;

/// A function that an instruction belongs to: the procedure itself, or a call that was inlined into
/// the site before.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    /// Linkage name of the function.
    pub function: String,
    /// Lines from the function's declaration to the instruction's line, or to the call of the next
    /// site; 16 bits, as in LLVM.
    pub line: u32,
    /// Number of the block among those of that line; 0 for the first.
    pub discriminator: u32,
    /// Number of source iterations that one execution stands for, in loops that were unrolled or
    /// vectorised. At least 1, and 1 for calls.
    pub copies: u32,
}

/// The sites of an image's instructions.
pub struct Sites<'a> {
    dwarf: gimli::Dwarf<Metered<'a>>,
    units: Vec<Lazy<'a>>,
    /// Addresses (from, to) and indices of units, by address.
    ranges: Vec<(u64, u64, usize)>,
    meter: &'a Meter,
    cut: Cell<Option<LinesCut>>,
}

struct Lazy<'a> {
    unit: Unit<Metered<'a>>,
    content: OnceCell<Content>,
}

/// Content of a unit.
#[derive(Default)]
struct Content {
    /// Rows by address.
    rows: Vec<Row>,
    /// Ranges (from, to) of functions that are not inlined, and indices of `functions`, by address.
    ranges: Vec<(u64, u64, usize)>,
    functions: Vec<Function>,
}

/// Addresses of one line, up to the next row's.
struct Row {
    address: u64,
    /// The line; 0 for none, and after the last row of a sequence.
    line: u64,
    discriminator: u32,
    copies: u32,
}

#[derive(Default)]
struct Function {
    name: String,
    line: u64,
    /// Calls that were inlined, each before those inlined into it.
    calls: Vec<Call>,
}

struct Call {
    depth: isize,
    ranges: Vec<(u64, u64)>,
    name: String,
    line: u64,
    call_line: u64,
    call_discriminator: u32,
}

impl<'a> Sites<'a> {
    pub(crate) fn of(info: &'a DebugInfo) -> Result<Self, ImageError> {
        let (dwarf, meter) = begin(info);
        let malformed = |_| malformed("debug information", 0);
        let (mut units, mut ranges) = (Vec::new(), Vec::new());
        let mut headers = dwarf.units();
        while let Some(header) = headers.next().map_err(malformed)? {
            // A unit that cannot be read has no sites; other units are not affected.
            let Ok(unit) = dwarf.unit(header) else { continue };
            if let Ok(mut of_unit) = dwarf.unit_ranges(&unit) {
                while let Ok(Some(range)) = of_unit.next() {
                    ranges.push((range.begin, range.end, units.len()));
                }
            }
            units.push(Lazy { unit, content: OnceCell::new() });
        }
        ranges.sort_unstable();
        Ok(Self { dwarf, units, ranges, meter, cut: Cell::new(None) })
    }

    /// Sites of the instruction at an address: the procedure first, the innermost inlined call
    /// last. Empty when they are not known, or when the instruction belongs to no line.
    pub fn at(&self, address: Vaddr) -> Vec<Site> {
        if self.cut.get() == Some(LinesCut::TooMuchWork) {
            return Vec::new();
        }
        self.meter.look_up();
        let covering = covering(&self.ranges, address.0).find_map(|unit| {
            let lazy = self.units.get(unit)?;
            let content = lazy.content.get_or_init(|| self.content(&lazy.unit));
            content.sites(address.0)
        });
        covering.unwrap_or_default()
    }

    /// The reason why sites may be missing from the answers so far, if there is one.
    pub fn cut(&self) -> Option<LinesCut> {
        self.cut.get()
    }

    fn content(&self, unit: &Unit<Metered<'a>>) -> Content {
        let mut content = Content::default();
        let read =
            self.rows(unit, &mut content.rows).and_then(|()| self.functions(unit, &mut content));
        if read.is_err() {
            self.cut.set(Some(self.meter.cut().unwrap_or(LinesCut::Malformed)));
        }
        content.rows.sort_by_key(|row| row.address);
        content.ranges.sort_unstable();
        content
    }

    fn rows(&self, unit: &Unit<Metered<'a>>, into: &mut Vec<Row>) -> gimli::Result<()> {
        let Some(program) = unit.line_program.clone() else {
            return Ok(());
        };
        let encoded = self.is_by_llvm(unit);
        let mut rows = program.rows();
        while let Some((_, row)) = rows.next_row()? {
            let line = if row.end_sequence() { 0 } else { row.line().map_or(0, u64::from) };
            let raw = u32::try_from(row.discriminator()).unwrap_or(0);
            let (discriminator, copies) = if encoded { unpacked(raw) } else { (raw, 1) };
            let row = Row { address: row.address(), line, discriminator, copies };
            match into.last_mut() {
                // If an address has several rows, the last one counts (DWARF 5, 6.2.2).
                Some(last) if last.address == row.address && row.line != 0 => *last = row,
                _ => into.push(row),
            }
        }
        Ok(())
    }

    /// Whether the compiler is LLVM, which packs more into discriminators than the block's number.
    fn is_by_llvm(&self, unit: &Unit<Metered<'a>>) -> bool {
        let mut entries = unit.entries();
        let producer = entries
            .next_dfs()
            .ok()
            .flatten()
            .and_then(|root| root.attr_value(constants::DW_AT_producer));
        let producer = producer.and_then(|value| self.text(unit, value)).unwrap_or_default();
        ["clang", "LLVM", "rustc"].iter().any(|word| producer.contains(word))
    }

    fn functions(&self, unit: &Unit<Metered<'a>>, content: &mut Content) -> gimli::Result<()> {
        let encoded = self.is_by_llvm(unit);
        let mut entries = unit.entries();
        // Entry of the function that is being read.
        let mut inside: Option<isize> = None;
        while let Some(entry) = entries.next_dfs()? {
            let depth = entry.depth();
            if inside.is_some_and(|function| depth <= function) {
                inside = None;
            }
            let is_call = entry.tag() == constants::DW_TAG_inlined_subroutine;
            if entry.tag() != constants::DW_TAG_subprogram && !is_call {
                continue;
            }
            let ranges = self.ranges_of(unit, entry)?;
            if ranges.is_empty() {
                continue;
            }
            let (name, line) = self.origin(unit, entry);
            if !is_call {
                content
                    .ranges
                    .extend(ranges.iter().map(|(from, to)| (*from, *to, content.functions.len())));
                content.functions.push(Function { name, line, calls: Vec::new() });
                inside = Some(depth);
                continue;
            }
            let number =
                |name| entry.attr(name).and_then(gimli::Attribute::udata_value).unwrap_or(0);
            let raw = u32::try_from(number(constants::DW_AT_GNU_discriminator)).unwrap_or(0);
            let call_discriminator = if encoded { unpacked(raw).0 } else { raw };
            let call_line = number(constants::DW_AT_call_line);
            if let (Some(_), Some(function)) = (inside, content.functions.last_mut()) {
                function.calls.push(Call {
                    depth,
                    ranges,
                    name,
                    line,
                    call_line,
                    call_discriminator,
                });
            }
        }
        Ok(())
    }

    fn ranges_of(
        &self,
        unit: &Unit<Metered<'a>>,
        entry: &DebuggingInformationEntry<Metered<'a>>,
    ) -> gimli::Result<Vec<(u64, u64)>> {
        let mut found = Vec::new();
        let mut add = |range: gimli::Range| {
            if range.begin < range.end {
                found.push((range.begin, range.end));
            }
        };
        // `gimli::Dwarf::die_ranges` does the same, but its sum of address and size may overflow
        // (0.34.0).
        if let Some(value) = entry.attr_value(constants::DW_AT_ranges)
            && let Some(mut ranges) = self.dwarf.attr_ranges(unit, value)?
        {
            while let Some(range) = ranges.next()? {
                add(range);
            }
            return Ok(found);
        }
        let begin = entry.attr_value(constants::DW_AT_low_pc);
        let begin = begin.map_or(Ok(None), |value| self.dwarf.attr_address(unit, value))?;
        let end = match entry.attr_value(constants::DW_AT_high_pc) {
            Some(AttributeValue::Udata(size)) => begin.and_then(|begin| begin.checked_add(size)),
            Some(value) => self.dwarf.attr_address(unit, value)?,
            None => None,
        };
        if let Some((begin, end)) = begin.zip(end) {
            add(gimli::Range { begin, end });
        }
        Ok(found)
    }

    /// The linkage name (else the source's name) and the line of a function, from its entry or from
    /// one that it is a copy of.
    fn origin(
        &self,
        unit: &Unit<Metered<'a>>,
        entry: &DebuggingInformationEntry<Metered<'a>>,
    ) -> (String, u64) {
        let mut names: (Option<String>, Option<String>) = (None, None);
        let mut line = None;
        let (mut unit, mut entry) = (unit, entry.clone());
        for _ in 0..ORIGINS_MAX {
            let text = |name| self.text(unit, entry.attr_value(name)?);
            let linkage = || {
                text(constants::DW_AT_linkage_name)
                    .or_else(|| text(constants::DW_AT_MIPS_linkage_name))
            };
            names.0 = names.0.or_else(linkage);
            names.1 = names.1.or_else(|| text(constants::DW_AT_name));
            line = line.or_else(|| entry.attr(constants::DW_AT_decl_line)?.udata_value());
            let next = [constants::DW_AT_abstract_origin, constants::DW_AT_specification];
            let Some((of, at)) =
                next.into_iter().find_map(|name| self.follow(unit, entry.attr_value(name)?))
            else {
                break;
            };
            let Ok(origin) = of.entry(at) else { break };
            (unit, entry) = (of, origin);
        }
        (names.0.or(names.1).unwrap_or_default(), line.unwrap_or(0))
    }

    /// The entry that a reference points to.
    fn follow<'s>(
        &'s self,
        unit: &'s Unit<Metered<'a>>,
        reference: AttributeValue<Metered<'a>>,
    ) -> Option<(&'s Unit<Metered<'a>>, UnitOffset)> {
        match reference {
            AttributeValue::UnitRef(at) => Some((unit, at)),
            AttributeValue::DebugInfoRef(at) => {
                let start = |lazy: &Lazy<'a>| {
                    lazy.unit.header.debug_info_offset().map_or(0, |offset| offset.0)
                };
                let after = self.units.partition_point(|lazy| start(lazy) <= at.0);
                let unit = &self.units.get(after.checked_sub(1)?)?.unit;
                Some((unit, at.to_unit_offset(&unit.header)?))
            }
            _ => None,
        }
    }

    fn text(&self, unit: &Unit<Metered<'a>>, value: AttributeValue<Metered<'a>>) -> Option<String> {
        let text = self.dwarf.attr_string(unit, value).ok()?;
        Some(gimli::Reader::to_string_lossy(&text).ok()?.into_owned())
    }
}

impl fmt::Debug for Sites<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sites({} units, cut: {:?})", self.units.len(), self.cut.get())
    }
}

impl Content {
    fn sites(&self, address: u64) -> Option<Vec<Site>> {
        let after = self.rows.partition_point(|row| row.address <= address);
        let row = self.rows.get(after.checked_sub(1)?).filter(|row| row.line != 0)?;
        let function = covering(&self.ranges, address).find_map(|at| self.functions.get(at))?;
        let mut sites = Vec::new();
        let (mut name, mut begin, mut reached) = (&function.name, function.line, isize::MIN);
        for call in &function.calls {
            let holds = call.ranges.iter().any(|(from, to)| (*from..*to).contains(&address));
            // Two calls at the same depth cannot be nested: the first is used.
            if holds && call.depth > reached && sites.len() < DEPTH_MAX {
                sites.push(site(name, begin, call.call_line, (call.call_discriminator, 1)));
                (name, begin, reached) = (&call.name, call.line, call.depth);
            }
        }
        sites.push(site(name, begin, row.line, (row.discriminator, row.copies)));
        sites.iter().all(|site| !site.function.is_empty()).then_some(sites)
    }
}

fn site(function: &str, begin: u64, line: u64, (discriminator, copies): (u32, u32)) -> Site {
    // LLVM's FunctionSamples::getOffset.
    let line = (line.wrapping_sub(begin) & 0xffff) as u32;
    Site { function: function.to_owned(), line, discriminator, copies }
}

/// The values of the ranges that hold an address, the range that begins last first. Ranges are
/// sorted by their start.
fn covering(ranges: &[(u64, u64, usize)], address: u64) -> impl Iterator<Item = usize> {
    /// Ranges before an address that are tried. The ranges of one file do not overlap; where they
    /// do, further ones are tried.
    const TRIED_MAX: usize = 16;
    let after = ranges.partition_point(|(from, _, _)| *from <= address);
    let before = ranges.get(..after).unwrap_or_default().iter().rev().take(TRIED_MAX);
    before.filter(move |(_, to, _)| address < *to).map(|(_, _, value)| *value)
}

/// The block's number and the copies in LLVM's packing (DebugInfoMetadata.h: base discriminator,
/// then duplication factor, each packed as `getUnsignedFromPrefixEncoding` says): a part that is 0
/// is one bit; one of at most five bits takes seven, any other fourteen.
fn unpacked(raw: u32) -> (u32, u32) {
    let part = |packed: u32| {
        let value = packed >> 1;
        match (packed & 1, value & 0x20) {
            (1, _) => (0, packed >> 1),
            (_, 0) => (value & 0x1f, packed >> 7),
            _ => ((value >> 1) & 0xfe0 | value & 0x1f, packed >> 14),
        }
    };
    let (base, rest) = part(raw);
    (base, part(rest).0.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discriminators_are_unpacked() {
        // From the encoder's own description: 0 is the bit 1; up to 31 is five bits; up to 4095 is
        // twelve.
        for (raw, base, copies) in [
            (0, 0, 1),
            (1, 0, 1),
            (2, 1, 1),
            (62, 31, 1),
            (6, 3, 1),
            (3, 0, 1),
            (2 << 7 | 2, 1, 1),
            (8 << 7 | 2, 1, 4),
            (8 << 1 | 1, 0, 4),
        ] {
            assert_eq!(unpacked(raw), (base, copies), "{raw}");
        }
        let twelve_bits = |value: u32| ((value & 0xfe0) << 1 | 0x20 | value & 0x1f) << 1;
        for value in [32, 33, 100, 4095] {
            assert_eq!(unpacked(twelve_bits(value) | 8 << 14), (value, 4));
        }
    }

    #[test]
    fn calls_nest_by_address_and_depth() {
        let call = |depth, from, to, name: &str, call_line| Call {
            depth,
            ranges: vec![(from, to)],
            name: name.into(),
            line: 100,
            call_line,
            call_discriminator: 2,
        };
        let row = |address, line| Row { address, line, discriminator: 1, copies: 1 };
        let content = Content {
            rows: vec![row(0x10, 12), row(0x20, 103), row(0x30, 0)],
            ranges: vec![(0x10, 0x40, 0)],
            functions: vec![Function {
                name: "main".into(),
                line: 10,
                calls: vec![
                    call(2, 0x20, 0x28, "a", 15),
                    call(3, 0x22, 0x24, "b", 104),
                    call(2, 0x20, 0x30, "c", 16),
                ],
            }],
        };
        let shown = |address| {
            let site =
                |site: Site| format!("{}+{}.{}", site.function, site.line, site.discriminator);
            content
                .sites(address)
                .map(|sites| sites.into_iter().map(site).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(shown(0x12).as_deref(), Some("main+2.1"));
        assert_eq!(shown(0x20).as_deref(), Some("main+5.2 a+3.1"));
        assert_eq!(shown(0x23).as_deref(), Some("main+5.2 a+4.2 b+3.1"));
        assert_eq!(shown(0x29).as_deref(), Some("main+6.2 c+3.1"));
        assert_eq!((shown(0x30), shown(0x40), shown(0x9)), (None, None, None));
    }
}
