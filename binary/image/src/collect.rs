//! Collects the procedures of an ELF file from all tables that name some.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use object::elf;

use crate::cover::{self, Piece, Span};
use crate::debug_file::{self, Wanted};
use crate::elf::{Elf, Section, malformed};
use crate::go_table::{GO_TABLE, GoTable};
use crate::identify::identify_elf;
use crate::layout::Layout;
use crate::near::Near;
use crate::source::{self, Source};
use crate::stubs::{self, Stubs};
use crate::symbols::{self, Candidate, Label, NameBytes, Table, Unnamed, Verdict};
use crate::{Finding, ImageError, ImageId, Procedure, ProcedureSource, Procedures};
use crate::{ImageOffset, Vaddr, eh_frame};

/// Largest `.gnu_debugdata` that is read, in bytes, compressed and decompressed. The section has
/// only symbols; the limit bounds the memory that a hostile file can cost.
const MINI_LIMIT: u64 = 128 << 20;
/// Memory that decompressing it may take, in KiB: the highest level of xz takes 65 MiB.
const MINI_MEMORY_KIB: u32 = 128 << 10;
/// Most symbols that are returned for a name or an address.
const ALIASES_MAX: usize = 100;
/// Times that the symbols near some addresses are searched again because some of them were not
/// procedures; then all symbols are sorted.
const ROUNDS: usize = 4;

/// Procedures of the ELF file at `path`, at file offsets, if it is the build `expect` (`None`: any
/// build).
///
/// Names come from the symbol table. A file without one has a separate debug file of the same
/// build, looked for as `ROOT/.build-id/xx/yyyy.debug` and by the name in `.gnu_debuglink` (beside
/// the file, in `.debug` there, and in `ROOT/` and the file's directory) for each root (see
/// [`default_debug_roots`](crate::default_debug_roots)), or else the symbols compressed in its
/// `.gnu_debugdata`, or else, if it is a program of Go, the table of its runtime. In any case the
/// dynamic symbols are used too. Stubs of the linkage table are named after their targets
/// (`malloc@plt`). Code that no symbol covers is named after its section, if that holds no
/// procedures (`[.init]`), and else, by the ranges of the unwind table, by its address as `objdump`
/// shows it (`0x1040`).
///
/// # Errors
/// [`ImageError::WrongBuild`]; [`ImageError::NotElf`]; [`ImageError::Malformed`] or
/// [`ImageError::TooLarge`] when the file or program headers are, anything else that is malformed
/// being a [`Finding`]; [`ImageError::NotRegular`]; [`ImageError::Io`]. When a build is expected,
/// also [`ImageError::NoText`].
pub fn procedures(
    path: &Path,
    expect: Option<&ImageId>,
    debug_roots: &[PathBuf],
) -> Result<(Procedures, Vec<Finding>), ImageError> {
    let file = source::open(path)?;
    Source::file(&file)
        .and_then(|source| collect(source, expect, Some(path), debug_roots))
        .map_err(|error| error.of(path))
}

/// Procedures of an ELF file in memory that is not in the file system, such as the vdso; as
/// [`procedures`]. Debug files are found by build id only.
pub fn procedures_of(
    data: &[u8],
    expect: Option<&ImageId>,
    debug_roots: &[PathBuf],
) -> Result<(Procedures, Vec<Finding>), ImageError> {
    collect(Source::Bytes(data), expect, None, debug_roots)
}

/// [`procedures`] of any source.
pub(crate) fn collect(
    source: Source<'_>,
    expect: Option<&ImageId>,
    path: Option<&Path>,
    roots: &[PathBuf],
) -> Result<(Procedures, Vec<Finding>), ImageError> {
    collect_at(source, expect, path, roots, None)
}

/// As [`collect`], but only the procedures that hold one of these offsets are complete: the fewer
/// offsets, the faster.
pub(crate) fn collect_at(
    source: Source<'_>,
    expect: Option<&ImageId>,
    path: Option<&Path>,
    roots: &[PathBuf],
    offsets: Option<&[ImageOffset]>,
) -> Result<(Procedures, Vec<Finding>), ImageError> {
    let elf = Elf::parse(source)?;
    if let Some(expected) = expect {
        let found = identify_elf(&elf)?;
        if !expected.is_build(&found) {
            return Err(ImageError::WrongBuild { expected: *expected, found });
        }
    }
    let mut findings = Vec::new();
    let layout = Layout::of_elf(&elf);
    if layout.code().next().is_none() {
        findings.push(Finding::NoCode);
        return Ok((Procedures::default(), findings));
    }
    let sections = or_finding(elf.sections(), "section headers", &mut findings);
    let wanted = Wanted { elf: &elf, sections: &sections, build_id: elf.build_id(), path, roots };
    let tables = Tables::of(&wanted, &layout, &mut findings);
    let addresses = offsets.and_then(|offsets| layout.code_addresses(offsets));
    let decided = addresses.as_deref().and_then(|addresses| tables.near(addresses, &layout));
    let (candidates, left_out) = decided.unwrap_or_else(|| tables.all(&layout));
    if left_out > 0 {
        findings.push(Finding::SymbolsLeftOut { count: left_out });
    }
    let mut pieces = tables.flatten(&candidates);
    cover::fill(&mut pieces, &named_sections(&sections, &layout));
    let unnamed = addresses.as_ref().map(|addresses| {
        let unnamed = addresses.iter().filter(|&&address| !cover::has(&pieces, address));
        unnamed.copied().collect::<Vec<_>>()
    });
    // The unwind table takes long to read, and names no code that has a symbol.
    if unnamed.as_ref().is_none_or(|unnamed| !unnamed.is_empty()) {
        let (ranges, finding) = eh_frame::ranges(&elf, &sections);
        findings.extend(finding);
        cover::fill(&mut pieces, &unwound(ranges, unnamed.as_deref(), &layout));
    }
    // Of all names of a stub's code, that of its target says most. Few samples are in stubs.
    let is_asked_for = |piece: &Piece<Label>| {
        let is_in = |address: &u64| (piece.start..piece.end).contains(address);
        addresses.as_ref().is_none_or(|addresses| addresses.iter().any(is_in))
    };
    let stubs = if stubs::overlap(&sections, &pieces).any(is_asked_for) {
        Stubs::of(&elf, &sections)
    } else {
        Stubs::default()
    };
    let rest = std::mem::replace(&mut pieces, stubs.pieces.clone());
    cover::fill(&mut pieces, &rest);
    Ok((tables.procedures(&pieces, &stubs, &sections, &layout), findings))
}

/// The symbols of code that `wanted` selects, each once, by start and name; at most
/// [`ALIASES_MAX`].
pub(crate) fn symbols(
    source: Source<'_>,
    path: Option<&Path>,
    roots: &[PathBuf],
    is_wanted: impl Fn(ImageOffset, &str) -> bool,
) -> Result<Vec<(ImageOffset, String)>, ImageError> {
    let elf = Elf::parse(source)?;
    let layout = Layout::of_elf(&elf);
    let mut findings = Vec::new();
    let sections = or_finding(elf.sections(), "section headers", &mut findings);
    let wanted = Wanted { elf: &elf, sections: &sections, build_id: elf.build_id(), path, roots };
    let mut found = BTreeSet::new();
    for table in &Tables::of(&wanted, &layout, &mut findings).tables {
        let mut bytes_left = NameBytes::default();
        for symbol in table.symbols(&layout).flatten() {
            let (at, name) = (Vaddr(symbol.span.start), symbol.name);
            let start = layout.code_at(at.0).and_then(|segment| segment.offset_of(at));
            let name = table.names().get(name).and_then(|name| str::from_utf8(name).ok());
            let Some((start, name)) =
                start.zip(name).filter(|(start, name)| is_wanted(*start, name))
            else {
                continue;
            };
            if matches!(symbol.named(table.names(), &mut bytes_left), Verdict::Procedure(_)) {
                found.insert((start, name.to_owned()));
            }
            if found.len() >= ALIASES_MAX {
                return Ok(found.into_iter().collect());
            }
        }
    }
    Ok(found.into_iter().collect())
}

/// The ELF file in `.gnu_debugdata`, which is compressed with xz.
fn mini_debug_info(elf: &Elf<'_>, section: &Section) -> Result<Vec<u8>, ImageError> {
    let what = "compressed symbols (bytes)";
    let packed = elf.section_bytes(what, section, MINI_LIMIT)?;
    let mut bytes = Vec::new();
    let reader = lzma_rust2::XzReader::new_mem_limit(&*packed, false, MINI_MEMORY_KIB);
    reader
        .take(MINI_LIMIT + 1)
        .read_to_end(&mut bytes)
        .map_err(|_| malformed(what, section.offset))?;
    match bytes.len() as u64 {
        size if size > MINI_LIMIT => Err(ImageError::TooLarge { what, size, limit: MINI_LIMIT }),
        _ => Ok(bytes),
    }
}

fn or_finding<T: Default>(
    result: Result<T, ImageError>,
    part: &'static str,
    findings: &mut Vec<Finding>,
) -> T {
    result.unwrap_or_else(|error| {
        findings.push(Finding::Unreadable { part, error });
        T::default()
    })
}

/// The symbol tables that were read; a label has the number of its table.
#[derive(Default)]
struct Tables {
    tables: Vec<Table>,
    sources: Vec<ProcedureSource>,
    /// Number of symbols of code that were left out, of tables that were not kept.
    left_out: usize,
}

impl Tables {
    /// All tables of an image.
    fn of(wanted: &Wanted<'_>, layout: &Layout, findings: &mut Vec<Finding>) -> Self {
        let mut tables = Self::default();
        let own = tables.add(wanted, elf::SHT_SYMTAB, layout, findings);
        if !own
            && !tables.add_debug_file(wanted, layout, findings)
            && !tables.add_mini_debug_info(wanted, layout, findings)
            && !tables.add_go_table(wanted, layout, findings)
        {
            findings.push(Finding::Stripped);
        }
        tables.add(wanted, elf::SHT_DYNSYM, layout, findings);
        tables
    }

    /// Adds a table of the image itself. Returns whether the table names any code.
    fn add(
        &mut self,
        wanted: &Wanted<'_>,
        kind: u32,
        layout: &Layout,
        findings: &mut Vec<Finding>,
    ) -> bool {
        let (part, source) = if kind == elf::SHT_DYNSYM {
            ("dynamic symbols", ProcedureSource::DynamicSymbols)
        } else {
            ("symbol table", ProcedureSource::SymbolTable)
        };
        let read = Table::read(wanted.elf, wanted.sections, kind, self.next());
        or_finding(read, part, findings).is_some_and(|table| self.push(table, source, layout))
    }

    /// Adds the symbol table of the first debug file that has one.
    fn add_debug_file(
        &mut self,
        wanted: &Wanted<'_>,
        layout: &Layout,
        findings: &mut Vec<Finding>,
    ) -> bool {
        debug_file::find(wanted, findings, |path, file, findings| {
            let read = Source::file(file).and_then(Elf::parse).and_then(|elf| {
                let sections = elf.sections()?;
                Table::read(&elf, &sections, elf::SHT_SYMTAB, self.next())
            });
            let path = path.to_path_buf();
            match read {
                Ok(Some(table)) => self.push(table, ProcedureSource::DebugFile(path), layout),
                Ok(None) => false,
                Err(error) => {
                    findings.push(Finding::DebugFileUnreadable { path, error });
                    false
                }
            }
        })
    }

    /// Adds the symbol table that the image has compressed in a section of its own
    /// ("MiniDebugInfo", GDB manual).
    fn add_mini_debug_info(
        &mut self,
        wanted: &Wanted<'_>,
        layout: &Layout,
        findings: &mut Vec<Finding>,
    ) -> bool {
        let Some(section) =
            wanted.sections.iter().find(|section| &*section.name == ".gnu_debugdata")
        else {
            return false;
        };
        let read = mini_debug_info(wanted.elf, section).and_then(|bytes| {
            let elf = Elf::parse(Source::Bytes(&bytes))?;
            Table::read(&elf, &elf.sections()?, elf::SHT_SYMTAB, self.next())
        });
        or_finding(read, "compressed symbols (.gnu_debugdata)", findings)
            .is_some_and(|table| self.push(table, ProcedureSource::MiniDebugInfo, layout))
    }

    /// Adds the procedures that the runtime table of a stripped Go program names (`.gopclntab`).
    fn add_go_table(
        &mut self,
        wanted: &Wanted<'_>,
        layout: &Layout,
        findings: &mut Vec<Finding>,
    ) -> bool {
        let read = GoTable::read(wanted.elf, wanted.sections);
        or_finding(read, GO_TABLE, findings).is_some_and(|table| {
            self.push(Table::of_go(&table, self.next()), ProcedureSource::GoTable, layout)
        })
    }

    fn next(&self) -> u8 {
        // At most three tables are added: one for each source.
        u8::try_from(self.tables.len()).unwrap_or(u8::MAX)
    }

    /// Adds a table, unless it names no code.
    fn push(&mut self, table: Table, source: ProcedureSource, layout: &Layout) -> bool {
        let mut bytes_left = NameBytes::default();
        let is_candidate = |symbol: Unnamed| {
            matches!(symbol.named(table.names(), &mut bytes_left), Verdict::Procedure(_))
        };
        let names_any = table.symbols(layout).flatten().any(is_candidate);
        if names_any {
            self.tables.push(table);
            self.sources.push(source);
        } else {
            self.left_out += candidates(&table, layout).1;
        }
        names_any
    }

    /// All candidates, and the number of symbols of code that were left out.
    fn all(&self, layout: &Layout) -> (Vec<Candidate>, usize) {
        let mut all = Vec::new();
        let mut left_out = self.left_out;
        for table in &self.tables {
            let (more, left_out_of_it) = candidates(table, layout);
            all.extend(more);
            left_out += left_out_of_it;
        }
        (all, left_out)
    }

    /// The candidates that decide which procedure holds each of these addresses, and the number of
    /// symbols of code that were left out. None where finding them takes more work than taking all.
    fn near(&self, addresses: &[u64], layout: &Layout) -> Option<(Vec<Candidate>, usize)> {
        // Names of symbols that are not procedures, by table: such symbols are many, but they have
        // few names.
        let mut refused: BTreeSet<(usize, u32)> = BTreeSet::new();
        for _ in 0..ROUNDS {
            let mut near = Near::new(addresses);
            let mut left_out = self.left_out;
            for (number, table) in self.tables.iter().enumerate() {
                for symbol in table.symbols(layout) {
                    match symbol {
                        Some(symbol) if refused.contains(&(number, symbol.name)) => {}
                        Some(symbol) => near.add(symbol.span.start, symbol.span.end),
                        None => left_out += 1,
                    }
                }
            }
            let deciding = near.deciding()?;
            let before = refused.len();
            let mut candidates = Vec::new();
            for (number, table) in self.tables.iter().enumerate() {
                let mut bytes_left = NameBytes::default();
                for symbol in
                    table.symbols(layout).flatten().filter(|symbol| deciding.has(symbol.span.start))
                {
                    let name = (number, symbol.name);
                    if refused.contains(&name) {
                        continue;
                    }
                    match symbol.named(table.names(), &mut bytes_left) {
                        Verdict::Procedure(candidate) => candidates.push(candidate),
                        Verdict::Other | Verdict::LeftOut => {
                            refused.insert(name);
                        }
                    }
                }
            }
            if refused.len() == before {
                return Some((candidates, left_out));
            }
        }
        None
    }

    fn flatten(&self, candidates: &[Candidate]) -> Vec<Piece<Label>> {
        let sorted = symbols::sort(candidates, &self.tables);
        let spans: Vec<Span<Label>> = sorted.into_iter().map(|candidate| candidate.span).collect();
        cover::flatten(&spans)
    }

    fn procedures(
        &self,
        pieces: &[Piece<Label>],
        stubs: &Stubs,
        sections: &[Section],
        layout: &Layout,
    ) -> Procedures {
        let mut symbols = vec![0; self.sources.len()];
        let (mut linkage, mut named, mut unnamed) = (0, 0, 0);
        let mut list = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let Some(start) = layout
                .code_at(piece.start)
                .and_then(|segment| segment.offset_of(Vaddr(piece.start)))
            else {
                continue;
            };
            let end = ImageOffset(start.0.saturating_add(piece.end - piece.start));
            let (name, count) = match piece.label {
                Label::Symbol { table, name } => {
                    let table = usize::from(table);
                    let name = self.tables.get(table).and_then(|table| table.names().get(name));
                    (
                        String::from_utf8_lossy(name.unwrap_or_default()).into(),
                        symbols.get_mut(table),
                    )
                }
                Label::Stub(number) => (stubs.name(number).into(), Some(&mut linkage)),
                Label::Section(index) => {
                    let section = sections.get(index as usize);
                    let name = section.map_or("", |section| &section.name);
                    (format!("[{name}]").into_boxed_str(), Some(&mut named))
                }
                Label::Address => {
                    let name = Vaddr(piece.start).to_string();
                    (name.into_boxed_str(), Some(&mut unnamed))
                }
            };
            if let Some(count) = count {
                *count += 1;
            }
            list.push(Procedure::new(start, end, name));
        }
        let sources = self.sources.iter().cloned().zip(symbols);
        let other = [
            (ProcedureSource::LinkageTable, linkage),
            (ProcedureSource::Section, named),
            (ProcedureSource::EhFrame, unnamed),
        ];
        let sources = sources.chain(other).filter(|(_, count)| *count > 0);
        Procedures::from_sources(list, sources.collect())
    }
}

/// The candidates of a table, and the number of its symbols of code that were left out.
fn candidates(table: &Table, layout: &Layout) -> (Vec<Candidate>, usize) {
    let (mut candidates, mut left_out, mut bytes_left) = (Vec::new(), 0, NameBytes::default());
    for symbol in table.symbols(layout) {
        match symbol.map(|symbol| symbol.named(table.names(), &mut bytes_left)) {
            Some(Verdict::Procedure(candidate)) => candidates.push(candidate),
            Some(Verdict::Other) => {}
            Some(Verdict::LeftOut) | None => left_out += 1,
        }
    }
    (candidates, left_out)
}

/// Sections of code that hold no procedures of the program's source.
fn named_sections(sections: &[Section], layout: &Layout) -> Vec<Piece<Label>> {
    let has_no_procedures =
        |name: &str| name.starts_with(".plt") || [".iplt", ".init", ".fini"].contains(&name);
    let mut spans: Vec<Span<Label>> = (0..)
        .zip(sections)
        .filter(|(_, section)| section.is_code() && has_no_procedures(&section.name))
        .filter_map(|(index, section)| {
            let end = section.vaddr.saturating_add(section.size);
            mapped(section.vaddr, end, Label::Section(index), layout)
        })
        .collect();
    spans.sort_by_key(|span| span.start);
    cover::flatten(&spans)
}

/// The ranges of the unwind table; with `near`, only the ranges that decide which one holds these
/// addresses.
fn unwound(
    ranges: Vec<(u64, u64)>,
    addresses: Option<&[u64]>,
    layout: &Layout,
) -> Vec<Piece<Label>> {
    let mut spans: Vec<Span<Label>> = ranges
        .into_iter()
        .filter_map(|(start, end)| mapped(start, end, Label::Address, layout))
        .collect();
    let deciding = addresses.and_then(|addresses| {
        let mut near = Near::new(addresses);
        spans.iter().for_each(|span| near.add(span.start, span.end));
        near.deciding()
    });
    spans.retain(|span| deciding.as_ref().is_none_or(|deciding| deciding.has(span.start)));
    spans.sort_by_key(|span| span.start);
    cover::flatten(&spans)
}

/// A range of addresses with a size, cut to the mapped segment that has its start.
fn mapped(start: u64, end: u64, label: Label, layout: &Layout) -> Option<Span<Label>> {
    let limit = layout.code_at(start)?.vaddr_end();
    let end = end.min(limit);
    (start < end).then_some(Span { start, end, limit, label })
}
