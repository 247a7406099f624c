//! Code that is in no file: made by a just-in-time compiler, or told of by `dcpictl register`.
//!
//! A sample in executable memory of no file, or of a file that is no program, is looked up here by
//! its address: first in the regions that were registered, then in what the process itself wrote
//! for profilers, `/tmp/perf-PID.map` as it sees it and the jitdump that it has mapped. What is
//! written is read when a sample asks for it, and read on as it grows.

mod places;
mod regions;

pub use regions::REGIONS_MAX;

use crate::mapped_files::Image;
use crate::mappings::{Mapping, Mappings};
use crate::system::System;
use image::ImageOffset;
use image::jit::CodeMap;
use inspect::jit::code_events::{CodeLook, apply};
use inspect::jit::files::{DumpReader, MapReader};
use inspect::jit::process::{self, Who};
use inspect::open_mapped::MappedAt;
use inspect::questions::{Generated, GeneratedCode};
use kernel::{MappedFileId, RecordKind, TimedRecord};
use model::Unresolved;
use places::{Places, Title};
use regions::{Region, Regions, Shows};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use wire::Registration;

/// Processes with generated code that are remembered; samples of others keep the reason why they
/// have no image.
pub const PROCESSES_MAX: usize = 4096;
/// Regions of all processes.
pub const REGIONS_ALL_MAX: usize = 65_536;
/// Memory for the maps of all processes; beyond it those that had no sample for longest are
/// forgotten, and read again when they have.
pub const MAPS_BYTES_MAX: usize = 128 << 20;
/// What a process wrote is looked at at most this often.
const LOOK_INTERVAL_NS: u64 = 1_000_000_000;
/// Bytes that are read of one process's files at one look.
const LOOK_BYTES: u64 = 8 << 20;
/// Bytes that may be read of one process's files, and of all: at once, and so many more each
/// second.
const PROCESS_ALLOWANCE: Allowance =
    Allowance { left: 64 << 20, max: 64 << 20, per_second: 256 << 10, told_ns: 0 };
const ALL_ALLOWANCE: Allowance =
    Allowance { left: 256 << 20, max: 256 << 20, per_second: 4 << 20, told_ns: 0 };
/// Images that regions of one process are registered under.
const IMAGES_MAX: usize = 64;

/// Where generated code is.
#[derive(Clone, Debug)]
pub struct JitPlace {
    /// Its image.
    pub image: Arc<Image>,
    /// The sample's offset there.
    pub offset: ImageOffset,
    /// Offsets of the procedure.
    pub range: Range<u64>,
    /// Its name.
    pub name: String,
}

/// A sample in memory of which the mapping alone does not tell what is there.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Process.
    pub pid: u32,
    /// Generation of its address space; 0: not known.
    pub generation: u16,
    /// Address.
    pub address: u64,
    /// When, ns.
    pub now_ns: u64,
}

/// How much is known, and what was refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Processes with generated code.
    pub processes: usize,
    /// Pieces of code in their maps.
    pub pieces: usize,
    /// Bytes of memory for these.
    pub bytes: usize,
    /// Registered regions.
    pub regions: usize,
    /// Processes and pieces refused because of a limit.
    pub refused: u64,
}

/// Bytes that may be read.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    left: u64,
    max: u64,
    per_second: u64,
    told_ns: u64,
}

impl Allowance {
    fn at(&mut self, now_ns: u64) -> u64 {
        let seconds = now_ns.saturating_sub(self.told_ns) as f64 / 1e9;
        let more = if self.told_ns == 0 { 0.0 } else { seconds * self.per_second as f64 };
        self.told_ns = now_ns;
        self.left = self.left.saturating_add(more as u64).min(self.max);
        self.left
    }
}

#[derive(Debug)]
struct Process {
    /// None for one that was gone when it was asked for.
    who: Option<Who>,
    born_ns: u64,
    /// What a mapping of it made known: it is a compiler.
    is_runtime: bool,
    regions: Regions,
    /// Images by the name that regions were registered under; None: the process's own.
    images: HashMap<Option<String>, Places>,
    code: CodeMap,
    map: MapReader,
    dumps: Vec<DumpReader>,
    refused: Option<String>,
    allowance: Allowance,
    looked_ns: u64,
    used_ns: u64,
    /// Of the address space whose samples were resolved first.
    generation: u16,
    /// It has ended, and the last look is still to come.
    last_look: bool,
    /// Another program runs under this number since the last drain.
    left: bool,
}

impl Process {
    fn new(who: Option<Who>, now_ns: u64) -> Self {
        Self {
            is_runtime: who.as_ref().is_some_and(Who::is_runtime),
            who,
            born_ns: now_ns,
            regions: Regions::default(),
            images: HashMap::new(),
            code: CodeMap::default(),
            map: MapReader::default(),
            dumps: Vec::new(),
            refused: None,
            allowance: PROCESS_ALLOWANCE,
            looked_ns: 0,
            used_ns: now_ns,
            generation: 0,
            last_look: false,
            left: false,
        }
    }

    fn places(&mut self, pid: u32, run: u64, name: Option<String>) -> Option<&mut Places> {
        if self.images.len() >= IMAGES_MAX && !self.images.contains_key(&name) {
            return None;
        }
        let program = self.who.as_ref().map_or("?", |who| who.name.as_str());
        let title = Title {
            name: name.clone().unwrap_or_else(|| format!("[jit] {program} {pid}")),
            path: self.who.as_ref().map(|who| who.path.clone()).unwrap_or_default(),
            salt: format!("{run} {pid} {}", self.born_ns),
        };
        Some(self.images.entry(name).or_insert_with(|| Places::new(title)))
    }
}

/// Generated code of all processes.
#[derive(Debug)]
pub struct Jit {
    processes: HashMap<u32, Process>,
    allowance: Allowance,
    /// Tells this daemon's images from those of the one before: it does not know which offsets
    /// stood for what.
    run: u64,
    /// Whom questions about processes go to.
    system: System,
    refused: u64,
    doubtful: bool,
}

impl Default for Jit {
    fn default() -> Self {
        Self::new(fastrand::u64(..), System::default())
    }
}

impl Jit {
    /// None yet; `run` tells this run of the daemon from all others.
    #[must_use]
    pub fn new(run: u64, system: System) -> Self {
        Self {
            processes: HashMap::new(),
            allowance: ALL_ALLOWANCE,
            run,
            system,
            refused: 0,
            doubtful: false,
        }
    }

    /// Looks at records as they come, before their drain: a process that makes code may be gone by
    /// then, and who owned its files is known only while it lives.
    pub fn notice(&mut self, records: &[TimedRecord], now_ns: u64) {
        for record in records {
            if let RecordKind::Mmap(mmap) = &record.kind
                && inode_of(&mmap.file) == 0
                && mmap.path == b"//anon"
                && !self.processes.contains_key(&mmap.pid)
                && self.processes.len() < PROCESSES_MAX
                && let Some(who) = self.system.who(mmap.pid)
            {
                self.process(mmap.pid, now_ns, Some(who));
            }
        }
    }

    /// Applies a record, in order of time.
    pub fn apply(&mut self, record: &TimedRecord) {
        match &record.kind {
            RecordKind::Mmap(mmap) => {
                if let Some(process) = self.processes.get_mut(&mmap.pid) {
                    process.regions.mapped(
                        mmap.start..mmap.start.saturating_add(mmap.len),
                        inode_of(&mmap.file),
                    );
                }
            }
            // One that was first seen after that is the new program already.
            RecordKind::Exec { pid } | RecordKind::Fork { pid, .. } => {
                if let Some(process) =
                    self.processes.get_mut(pid).filter(|process| process.born_ns < record.time_ns)
                {
                    process.left = true;
                }
            }
            RecordKind::Exit { pid } => {
                if let Some(process) = self.processes.get_mut(pid) {
                    process.last_look = true;
                }
            }
            RecordKind::Lost { .. } => self.doubtful = true,
            _ => {}
        }
    }

    /// The registered region that holds the address, whatever is mapped there.
    pub fn registered(&mut self, asked: Asked) -> Option<JitPlace> {
        let run = self.run;
        let process =
            self.processes.get_mut(&asked.pid).filter(|process| !process.regions.is_empty())?;
        if process.left && process.generation != asked.generation {
            return None;
        }
        let region = process.regions.find(asked.address)?.clone();
        region_place(process, run, &region, asked)
    }

    /// Whether a process has registered regions.
    #[must_use]
    pub fn has_regions(&self, pid: u32) -> bool {
        self.processes.get(&pid).is_some_and(|process| !process.regions.is_empty())
    }

    /// The code at an address in `mapping`, which has no image because of `reason`.
    ///
    /// # Errors
    /// The reason that says more: that there is a map and this is not in it, that it was refused,
    /// that this is a compiler without one.
    pub fn place(
        &mut self,
        asked: Asked,
        reason: Unresolved,
        mapping: &Mapping,
        mappings: &Mappings,
    ) -> Result<JitPlace, Unresolved> {
        if !may_be_code(reason, &mapping.file.path) {
            return Err(reason);
        }
        if !self.processes.contains_key(&asked.pid) {
            let who = self.system.who(asked.pid);
            self.process(asked.pid, asked.now_ns, who);
        }
        let run = self.run;
        let all = self.allowance.at(asked.now_ns);
        let Some(process) = self.processes.get_mut(&asked.pid) else { return Err(reason) };
        if process.generation == 0 {
            process.generation = asked.generation;
        }
        if process.left && process.generation != asked.generation {
            return Err(reason); // of the new program, which the next drain knows
        }
        process.used_ns = asked.now_ns;
        let spent = look(process, asked, mappings, all);
        self.allowance.left = all.saturating_sub(spent);
        let Some(piece) = process.code.find(asked.address) else {
            return Err(why_not(process, reason, &mapping.file.path));
        };
        let (range, name) = (piece.start..piece.end, piece.name.to_owned());
        let Some(places) = process.places(asked.pid, run, None) else { return Err(reason) };
        let (image, base) = places.place(range.clone(), &name);
        Ok(place(image, base, range, name, asked.address))
    }

    /// Takes up a region. Returns how many the process has.
    ///
    /// # Errors
    /// One line with the next step.
    pub fn register(&mut self, told: &Registration, now_ns: u64) -> Result<usize, String> {
        let (who, region) = regions::check(told, &self.system)?;
        let known = self.processes.get(&told.pid).and_then(|process| process.who.as_ref());
        if known.is_some_and(|known| known.start_ticks != who.start_ticks) {
            self.processes.remove(&told.pid); // its number was used again
        }
        let regions: usize = self.processes.values().map(|process| process.regions.len()).sum();
        if regions >= REGIONS_ALL_MAX {
            return Err(format!(
                "{REGIONS_ALL_MAX} regions are registered, and no more can be; unregister some"
            ));
        }
        let run = self.run;
        let Some(process) = self.process(told.pid, now_ns, Some(who)) else {
            return Err(format!(
                "{PROCESSES_MAX} processes make code, and no more are remembered; try again later"
            ));
        };
        if let Shows::Generated(name) = &region.shows
            && process.places(told.pid, run, name.clone()).is_none()
        {
            return Err(format!(
                "process {} has {IMAGES_MAX} images; use one of their names as --image",
                told.pid
            ));
        }
        process.regions.insert(region)?;
        Ok(process.regions.len())
    }

    /// Forgets the region of a process that begins at `start`. Returns how many it has left.
    ///
    /// # Errors
    /// One line with the next step.
    pub fn unregister(&mut self, pid: u32, start: u64) -> Result<usize, String> {
        let process = self.processes.get_mut(&pid);
        let left = process
            .and_then(|process| process.regions.remove(start).then(|| process.regions.len()));
        left.ok_or_else(|| {
            format!("no region of process {pid} begins at {start:#x}; give the START that it was registered with")
        })
    }

    /// Forgets processes that are forgotten by all, programs that another has replaced, and maps
    /// that take too much memory. To be called after a drain that ended at `now_ns` and whose
    /// records are all applied.
    pub fn forget(&mut self, mappings: &Mappings, from_ns: u64) {
        let doubtful = std::mem::take(&mut self.doubtful);
        let system = &self.system;
        self.processes.retain(|pid, process| {
            // A record of it may be waiting for the next drain.
            let known = mappings.knows(*pid) || process.born_ns >= from_ns;
            let still = |who: &Who| system.is_still(*pid, who.start_ticks);
            known && !process.left && (!doubtful || process.who.as_ref().is_some_and(still))
        });
        let mut bytes: usize =
            self.processes.values().map(|process| process.code.memory_bytes()).sum();
        while bytes > MAPS_BYTES_MAX {
            let oldest = self.processes.values_mut().filter(|process| !process.code.is_empty());
            let Some(oldest) = oldest.min_by_key(|process| process.used_ns) else { return };
            bytes -= oldest.code.memory_bytes();
            (oldest.code, oldest.map, oldest.dumps) = Default::default();
        }
    }

    /// How much is known.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let mut totals =
            Totals { processes: self.processes.len(), refused: self.refused, ..Totals::default() };
        for process in self.processes.values() {
            totals.pieces += process.code.len();
            totals.bytes += process.code.memory_bytes();
            totals.regions += process.regions.len();
            totals.refused += process.code.refused();
        }
        totals
    }

    fn process(&mut self, pid: u32, now_ns: u64, who: Option<Who>) -> Option<&mut Process> {
        if self.processes.len() >= PROCESSES_MAX && !self.processes.contains_key(&pid) {
            self.refused += 1;
            return None;
        }
        Some(self.processes.entry(pid).or_insert_with(|| Process::new(who, now_ns)))
    }
}

/// The inode of what is mapped: 0 for no file, the greatest number for one known by its build id.
fn inode_of(file: &MappedFileId) -> u64 {
    match file {
        MappedFileId::Inode { inode, .. } | MappedFileId::Version { inode, .. } => *inode,
        MappedFileId::BuildId(_) | MappedFileId::OwnedBuildId { .. } => u64::MAX,
    }
}

/// Whether code without a file may be there.
fn may_be_code(reason: Unresolved, path: &[u8]) -> bool {
    let in_memory =
        [&b"/memfd:"[..], b"/dev/zero", b"/SYSV"].iter().any(|prefix| path.starts_with(prefix));
    match reason {
        Unresolved::Anonymous | Unresolved::NotElf | Unresolved::ExecutableStack => true,
        Unresolved::FileGone | Unresolved::Unidentified => in_memory,
        _ => false,
    }
}

fn why_not(process: &Process, reason: Unresolved, path: &[u8]) -> Unresolved {
    if process.refused.is_some() {
        Unresolved::JitMapRefused
    } else if !process.code.is_empty() {
        Unresolved::JitNotInMap
    } else if process.is_runtime || process::is_of_runtime(path) {
        Unresolved::JitWithoutMap
    } else {
        reason
    }
}

fn place(image: Arc<Image>, base: u64, range: Range<u64>, name: String, address: u64) -> JitPlace {
    let offset = ImageOffset(base + (address - range.start));
    JitPlace { image, offset, range: base..base + (range.end - range.start), name }
}

fn region_place(
    process: &mut Process,
    run: u64,
    region: &Region,
    asked: Asked,
) -> Option<JitPlace> {
    let (range, name) = (region.start..region.end, region.name.clone());
    let (image, base) = match &region.shows {
        Shows::File(image, offset) => (image.clone(), *offset),
        Shows::Generated(image) => {
            process.places(asked.pid, run, image.clone())?.place(range.clone(), &name)
        }
    };
    Some(place(image, base, range, name, asked.address))
}

/// Takes in what the process has written since it was looked at, at most `all` bytes. Returns how
/// many were read.
fn look(process: &mut Process, asked: Asked, mappings: &Mappings, all: u64) -> u64 {
    let due = process.looked_ns == 0
        || asked.now_ns.saturating_sub(process.looked_ns) >= LOOK_INTERVAL_NS;
    let has_ended = std::mem::take(&mut process.last_look);
    if !due && !has_ended {
        return 0;
    }
    process.looked_ns = asked.now_ns;
    let Some(who) = process.who.clone() else { return 0 };
    for mapping in mappings.mapped(asked.pid) {
        process.is_runtime |= process::is_of_runtime(&mapping.file.path);
    }
    let mine = process.allowance.at(asked.now_ns);
    let given = mine.min(all).min(LOOK_BYTES);
    let system = &mappings.system;
    let seen = system.code_look(asked.pid, || {
        read_files(process, &who, asked.pid, mappings, given).unwrap_or_else(|| CodeLook {
            refused: Some("its file system does not answer".to_owned()),
            ..CodeLook::default()
        })
    });
    seen.events.iter().for_each(|event| apply(event, &mut process.code));
    let mut refused = seen.refused;
    if seen.is_cut && mine <= LOOK_BYTES.min(all) {
        refused = Some("it is larger than what is read of it".to_owned());
    }
    // What a process that has ended leaves may be removed already, and was refused all the same.
    if has_ended && refused.is_none() && seen.bytes == 0 {
        refused = process.refused.take();
    }
    if let Some(why) = refused.as_ref().filter(|why| process.refused.as_ref() != Some(why)) {
        tracing::warn!(
            pid = asked.pid,
            program = who.name,
            "the map of generated code is not read: {why}"
        );
    }
    process.refused = refused;
    let spent = seen.bytes.min(given);
    process.allowance.left = mine - spent;
    spent
}

/// What the process's perf map and jitdumps tell beyond what was read of them, by at most `given`
/// more bytes. `None`: no inspector could tell.
fn read_files(
    process: &mut Process,
    who: &Who,
    pid: u32,
    mappings: &Mappings,
    given: u64,
) -> Option<CodeLook> {
    let dumps = mappings.mapped(pid).filter(|mapping| is_dump(&mapping.file.path));
    let dump = |mapping: &Mapping| {
        mapping.file.at(MappedAt { pid, start: mapping.start, end: mapping.end })
    };
    let question = GeneratedCode {
        pid,
        who: who.clone(),
        map: process.map.clone(),
        dumps: dumps.map(dump).collect(),
        read: process.dumps.clone(),
        bytes_max: given,
    };
    let Generated { look, map, read } = mappings.system.inspectors().ask(question)?;
    (process.map, process.dumps) = (map, read);
    Some(look)
}

/// `.../jit-PID.dump`, of which its writer maps a page so that profilers hear of it.
fn is_dump(path: &[u8]) -> bool {
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let number = name.strip_prefix(b"jit-").and_then(|name| name.strip_suffix(b".dump"));
    number.is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
}

#[cfg(test)]
mod tests;
