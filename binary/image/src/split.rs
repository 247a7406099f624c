//! Split DWARF: what the compiler left in a file of each unit (`.dwo`, by `-gsplit-dwarf`), or a
//! package that has them all (`.dwp`, beside the program). The program itself has a skeleton of
//! each unit, with its lines; names of functions and inlined calls are in these files.
//!
//! A file is opened when an address in its unit is looked up, on behalf of the owner of the
//! program, as the program names it. It must have the number that the skeleton says.

use std::cell::{Cell, OnceCell};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use addr2line::SplitDwarfLoad;
use gimli::{EndianSlice, Reader as _, SectionId};

use crate::OnBehalf;
use crate::debug_info::{Sections, read_sections};
use crate::elf::Elf;
use crate::lines::{Meter, Metered, dwarf};
use crate::source::{self, Source};

/// Sections of a `.dwo` that are read.
const OF_UNIT: [SectionId; 7] = [
    SectionId::DebugInfo,
    SectionId::DebugAbbrev,
    SectionId::DebugLine,
    SectionId::DebugRngLists,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
    SectionId::DebugTypes,
];
/// Sections of a package besides: which unit is where, and what no look-up needs, since a unit
/// whose part of a section is missing cannot be read.
const OF_PACKAGE: [SectionId; 6] = [
    SectionId::DebugCuIndex,
    SectionId::DebugTuIndex,
    SectionId::DebugLoc,
    SectionId::DebugLocLists,
    SectionId::DebugMacinfo,
    SectionId::DebugMacro,
];
/// Most files that are open for one image's look-ups; units beyond have no names. A unit is some
/// hundred KiB, so their memory ends before.
const FILES_MAX: usize = 4096;

/// The files beside an image, as far as they were needed.
pub(crate) struct Split {
    /// The file with the skeletons.
    path: Option<PathBuf>,
    names_for: OnBehalf,
    package: OnceCell<Option<Sections>>,
    units: Units,
    /// Bytes that may still be read.
    left: Cell<u64>,
}

/// The files of units that were read. A list, because readers keep references to its elements while
/// it grows.
#[derive(Default)]
struct Units(OnceCell<Box<(Sections, Units)>>);

impl Units {
    fn add(&self, sections: Sections) -> Option<&Sections> {
        let mut end = self;
        for _ in 0..FILES_MAX {
            match end.0.get() {
                Some(unit) => end = &unit.1,
                None => {
                    let unit = end.0.get_or_init(|| Box::new((sections, Self::default())));
                    return Some(&unit.0);
                }
            }
        }
        None
    }
}

impl Drop for Units {
    /// Not by recursion, which the number of files would make deep.
    fn drop(&mut self) {
        let mut next = self.0.take();
        while let Some(mut unit) = next {
            next = unit.1.0.take();
        }
    }
}

impl Split {
    pub(crate) fn beside(path: Option<&Path>, names_for: OnBehalf, left: u64) -> Self {
        Self {
            path: path.map(Path::to_path_buf),
            names_for,
            package: OnceCell::new(),
            units: Units::default(),
            left: Cell::new(left),
        }
    }

    /// The unit that a skeleton stands for; None where there is no such file.
    #[expect(clippy::arc_with_non_send_sync, reason = "the library asks for an Arc")]
    pub(crate) fn unit<'a>(
        &'a self,
        wanted: &SplitDwarfLoad<Metered<'a>>,
        meter: &'a Meter,
    ) -> Option<Arc<gimli::Dwarf<Metered<'a>>>> {
        if let Some(sections) = self.package.get_or_init(|| self.read_package(meter)) {
            let section = |bytes| Metered::of(EndianSlice::new(bytes, sections.endian), meter);
            let load = |id| Ok::<_, gimli::Error>(section(sections.get(id)));
            let package = gimli::DwarfPackage::load(load, section(&[])).ok()?;
            if let Ok(Some(unit)) = package.find_cu(wanted.dwo_id, &wanted.parent) {
                return Some(Arc::new(unit));
            }
        }
        let paths = self.paths(wanted);
        let read = paths.iter().find_map(|path| self.read(path, &OF_UNIT, meter))?;
        let mut unit = dwarf(self.units.add(read)?, meter);
        let header = unit.units().next().ok()??;
        if unit.unit(header).ok()?.dwo_id != Some(wanted.dwo_id) {
            return None;
        }
        unit.make_dwo(&wanted.parent);
        Some(Arc::new(unit))
    }

    /// Where the file of a unit may be: where the compiler wrote it, and beside the program.
    fn paths(&self, wanted: &SplitDwarfLoad<Metered<'_>>) -> Vec<PathBuf> {
        let text = |part: &Option<Metered<'_>>| {
            let bytes = part.as_ref()?.to_slice().ok()?;
            Some(PathBuf::from(OsStr::from_bytes(&bytes)))
        };
        let Some(name) = text(&wanted.path) else { return Vec::new() };
        let written = text(&wanted.comp_dir).unwrap_or_default().join(&name);
        let beside = self.path.as_deref().and_then(Path::parent).zip(name.file_name());
        let beside = beside.map(|(folder, name)| folder.join(name));
        // A relative path would be one of this process's directory.
        let all = [Some(written), beside].into_iter().flatten();
        all.filter(|path| path.is_absolute()).collect()
    }

    /// The package beside the program, whose name has `.dwp` behind.
    fn read_package(&self, meter: &Meter) -> Option<Sections> {
        let mut name = self.path.as_deref()?.canonicalize().ok()?.into_os_string();
        name.push(".dwp");
        let sections: Vec<SectionId> = OF_UNIT.iter().chain(&OF_PACKAGE).copied().collect();
        self.read(Path::new(&name), &sections, meter)
    }

    fn read(&self, path: &Path, sections: &[SectionId], meter: &Meter) -> Option<Sections> {
        let file = source::open(path).ok()?;
        if !self.names_for.may_read(&file).ok()? {
            return None;
        }
        let elf = Elf::parse(Source::file(&file).ok()?).ok()?;
        let of_units = |id: SectionId| id.dwo_name();
        let read =
            read_sections(&elf, &elf.sections().ok()?, (sections, &of_units), self.left.get());
        let read = read.ok()?;
        self.left.set(self.left.get().saturating_sub(read.len()));
        meter.allow(read.len());
        Some(read)
    }
}
