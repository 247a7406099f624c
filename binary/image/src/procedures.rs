//! The procedures of an image: sorted, never overlapping, found by offset.

use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::demangle::{demangle, may_be_mangled};
use crate::{ImageError, ImageId, ImageOffset};

/// A named range of an image's code.
///
/// The name is kept mangled and demangled when it is first asked for: an image has a hundred
/// thousand procedures, a report shows some tens of them.
#[derive(Clone)]
pub struct Procedure {
    /// First byte.
    pub start: ImageOffset,
    /// The byte after the last: `end > start`.
    pub end: ImageOffset,
    raw: Box<str>,
    demangled: OnceLock<Box<str>>,
}

impl Procedure {
    /// A procedure of bytes `start..end`; `raw` may be mangled or not.
    pub fn new(start: ImageOffset, end: ImageOffset, raw: impl Into<Box<str>>) -> Self {
        Self { start, end, raw: raw.into(), demangled: OnceLock::new() }
    }

    /// The name for people: demangled (see [`crate::demangle`]).
    pub fn name(&self) -> &str {
        if may_be_mangled(&self.raw) {
            self.demangled.get_or_init(|| demangle(&self.raw).into_owned().into())
        } else {
            &self.raw
        }
    }

    /// The name as the image has it, mangled.
    pub fn raw_name(&self) -> &str {
        &self.raw
    }

    /// Bytes from `start` to `end`.
    pub fn size_bytes(&self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }

    /// Whether `offset` is in the procedure.
    pub fn contains(&self, offset: ImageOffset) -> bool {
        (self.start..self.end).contains(&offset)
    }
}

impl PartialEq for Procedure {
    fn eq(&self, other: &Self) -> bool {
        (self.start, self.end, &self.raw) == (other.start, other.end, &other.raw)
    }
}

impl Eq for Procedure {}

impl fmt::Debug for Procedure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{} {}", self.start, self.end, self.raw)
    }
}

/// The source of procedures.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum ProcedureSource {
    /// The file's own symbol table (`.symtab`).
    SymbolTable,
    /// The symbol table of a separate debug file.
    DebugFile(PathBuf),
    /// The symbol table compressed in the file (`.gnu_debugdata`).
    MiniDebugInfo,
    /// The table of procedures that Go's runtime uses (`.gopclntab`).
    GoTable,
    /// The symbols the dynamic loader uses (`.dynsym`): exported procedures only.
    DynamicSymbols,
    /// The relocations of the words that stubs of the linkage table jump through.
    LinkageTable,
    /// Sections that hold no procedure but do hold code (`.plt`, `.init`): named after the section.
    Section,
    /// The ranges of the stack unwinding table (`.eh_frame`): named by their address.
    EhFrame,
    /// A list of symbols that is not an ELF file's: of the kernel, or from a database.
    List,
}

impl fmt::Display for ProcedureSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SymbolTable => f.write_str("symbol table"),
            Self::DebugFile(path) => write!(f, "debug file {}", path.display()),
            Self::MiniDebugInfo => f.write_str("compressed symbols"),
            Self::GoTable => f.write_str("Go's table"),
            Self::DynamicSymbols => f.write_str("dynamic symbols"),
            Self::LinkageTable => f.write_str("linkage table"),
            Self::Section => f.write_str("section names"),
            Self::EhFrame => f.write_str("unwind table (no names)"),
            Self::List => f.write_str("symbol list"),
        }
    }
}

/// All procedures of an image that could be found: sorted by start, never empty ranges, never
/// overlapping.
///
/// Where symbols overlap, the one that begins later is the more specific and takes its range; what
/// is left of the earlier one behind it is a second [`Procedure`] of the same name. Of several
/// symbols at one address, one gives the name, the first by: not the linker's own marker (a symbol
/// without type) over one, the code's own symbol over an indirect function's, global over local,
/// sized over unsized, shorter over longer, alphabet. A symbol without size reaches to the next
/// symbol or its section's end.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Procedures {
    list: Vec<Procedure>,
    sources: Vec<(ProcedureSource, usize)>,
}

impl Procedures {
    /// Procedures from a list in any order. Empty ranges are dropped; of two ranges that overlap,
    /// the one that starts first is kept whole, and the other loses the common part.
    pub fn from_list(list: impl IntoIterator<Item = Procedure>) -> Self {
        let mut procedures = Self { list: list.into_iter().collect(), sources: Vec::new() };
        procedures.settle();
        procedures.sources = vec![(ProcedureSource::List, procedures.len())];
        procedures
    }

    /// As [`Procedures::from_list`], with a count for each source.
    pub(crate) fn from_sources(
        list: Vec<Procedure>,
        sources: Vec<(ProcedureSource, usize)>,
    ) -> Self {
        let mut procedures = Self { list, sources };
        procedures.settle();
        procedures
    }

    /// Sorts the procedures and makes them disjoint.
    fn settle(&mut self) {
        self.list.sort_by(|a, b| (a.start, a.end, &a.raw).cmp(&(b.start, b.end, &b.raw)));
        let mut reached = ImageOffset(0);
        self.list.retain_mut(|procedure| {
            procedure.start = procedure.start.max(reached);
            let kept = procedure.start < procedure.end;
            if kept {
                reached = procedure.end;
            }
            kept
        });
        self.list.shrink_to_fit();
    }

    /// The procedure that holds `offset`. Takes time logarithmic in the number of procedures.
    pub fn find(&self, offset: ImageOffset) -> Option<&Procedure> {
        let after = self.list.partition_point(|procedure| procedure.start <= offset);
        let procedure = self.list.get(after.checked_sub(1)?)?;
        procedure.contains(offset).then_some(procedure)
    }

    /// All procedures, by start.
    pub fn iter(&self) -> std::slice::Iter<'_, Procedure> {
        self.list.iter()
    }

    /// The number of procedures.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are no procedures.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The sources, each with its number of procedures (best first; none with zero).
    pub fn sources(&self) -> &[(ProcedureSource, usize)] {
        &self.sources
    }
}

impl<'a> IntoIterator for &'a Procedures {
    type Item = &'a Procedure;
    type IntoIter = std::slice::Iter<'a, Procedure>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// A peculiarity of a file whose procedures were asked for. None is an error: the procedures are as
/// complete as the file allows.
#[derive(Debug)]
#[non_exhaustive]
pub enum Finding {
    /// No symbol table was found, in the file or beside it: only exported procedures have names.
    Stripped,
    /// No program header maps code: nothing can be sampled in this file (an object file, a
    /// debug file).
    NoCode,
    /// A part of the file could not be read; it was left out.
    Unreadable {
        /// The part.
        part: &'static str,
        /// The error.
        error: ImageError,
    },
    /// A separate debug file was there, but could not be read.
    DebugFileUnreadable {
        /// The debug file.
        path: PathBuf,
        /// The error.
        error: ImageError,
    },
    /// A separate debug file was there, but belongs to another build.
    DebugFileOfOtherBuild {
        /// The debug file.
        path: PathBuf,
        /// The build it belongs to; `None` if only its checksum is wrong.
        found: Option<ImageId>,
    },
    /// Symbols of code were left out: outside of the mapped code, or with an unreadable name.
    SymbolsLeftOut {
        /// Number of symbols.
        count: usize,
    },
    /// The unwind table has bytes that are no unwind entries; the entries before them were used.
    UnwindTableCut {
        /// Place of those bytes, from the start of the table.
        offset: u64,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stripped => f.write_str(
                "no symbol table, here or in a debug file: most procedures are shown by address",
            ),
            Self::NoCode => f.write_str("the file maps no code"),
            Self::Unreadable { part, error } => write!(f, "cannot read the {part}: {error}"),
            Self::DebugFileUnreadable { path, error } => {
                write!(f, "cannot use debug file {}: {error}", path.display())
            }
            Self::DebugFileOfOtherBuild { path, found: Some(found) } => {
                write!(f, "debug file {} is of build {found}", path.display())
            }
            Self::DebugFileOfOtherBuild { path, found: None } => {
                write!(f, "debug file {} has another checksum", path.display())
            }
            Self::SymbolsLeftOut { count } => {
                write!(f, "{count} symbols left out: unreadable, or not in the code")
            }
            Self::UnwindTableCut { offset } => {
                write!(f, "the unwind table is malformed from byte {offset:#x}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn procedure(start: u64, end: u64, name: &str) -> Procedure {
        Procedure::new(ImageOffset(start), ImageOffset(end), name)
    }

    #[test]
    fn find_sees_starts_ends_and_gaps() {
        let all = Procedures::from_list([procedure(20, 30, "b"), procedure(0, 10, "a")]);
        let name = |offset| all.find(ImageOffset(offset)).map(Procedure::name);
        assert_eq!(name(0), Some("a"));
        assert_eq!(name(9), Some("a"));
        assert_eq!(name(10), None);
        assert_eq!(name(20), Some("b"));
        assert_eq!(name(30), None);
        assert_eq!(name(u64::MAX), None);
        assert_eq!(all.sources(), [(ProcedureSource::List, 2)]);
        assert_eq!(Procedures::default().find(ImageOffset(0)), None);
    }

    #[test]
    fn a_list_with_overlaps_is_made_disjoint() {
        let all = Procedures::from_list([
            procedure(5, 15, "b"),
            procedure(0, 10, "a"),
            procedure(2, 4, "inside"),
            procedure(7, 7, "empty"),
            procedure(9, 3, "backwards"),
        ]);
        let ranges: Vec<_> = all.iter().map(|p| (p.start.0, p.end.0)).collect();
        assert_eq!(ranges, [(0, 10), (10, 15)]);
    }

    #[test]
    fn a_name_is_demangled_when_asked_for() {
        let all = procedure(0, 1, "_ZN3foo3barEv");
        assert_eq!(all.raw_name(), "_ZN3foo3barEv");
        assert_eq!(all.name(), "foo::bar()");
        assert_eq!(all, procedure(0, 1, "_ZN3foo3barEv"));
    }
}
