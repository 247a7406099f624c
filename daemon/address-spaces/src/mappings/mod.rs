//! The mappings of all processes. They come from the kernel's records in order of time, from a scan
//! at startup, and from /proc when a sample finds no mapping.
//!
//! A process is forgotten only after every sample that belongs to it has been drained: one drain
//! that began after its end.

mod address_map;
mod labels;
mod notices;
mod process;
mod programs;

pub use address_map::{AddressMap, MAPPINGS_MAX, Mapping};
pub use labels::LabelError;
pub use process::{Found, Window};

use crate::mapped_files::Files;
use crate::scopes::{Tagger, Tags};
use crate::system::System;
use crate::users::{Payer, Users};
use inspect::open_mapped::MappedAt;
use kernel::{Program, Record, RecordKind, TimedRecord};
use model::Unresolved;
use process::{Generations, Numbers, Process, Version};
use programs::{Kind, Programs};
use std::collections::HashMap;
use std::sync::Arc;

/// Processes remembered, dead ones included: PID_MAX_LIMIT / 32. Samples of further processes stay
/// unresolved.
pub const PROCESSES_MAX: usize = 1 << 17;

/// A process is looked up in /proc at most this often when its samples find nothing.
const REPAIR_INTERVAL_NS: u64 = 1_000_000_000;

/// Shortest time between two scans of all processes in /proc, which repair lost records.
const DOUBT_INTERVAL_NS: u64 = 10_000_000_000;

/// Libraries whose mappings are expected at once: no more than processes map at one moment.
const EXPECTED_MAX: usize = 4096;

/// All processes.
#[derive(Debug, Default)]
pub struct Mappings {
    processes: HashMap<u32, Process, foldhash::fast::RandomState>,
    programs: Programs,
    /// Processes that are kept apart, whose mark another process's line has taken in the sampler's
    /// table.
    unmarked: Vec<u32>,
    /// Libraries that the sampler has numbered, whose mappings' records come next in their
    /// processes.
    expected: HashMap<u32, Program, foldhash::fast::RandomState>,
    /// Control groups of processes whose exec is not applied yet.
    foreseen: HashMap<u32, Vec<u8>>,
    /// All mapped files.
    pub files: Files,
    /// Records that the kernel dropped.
    pub lost_records: u64,
    /// Processes and mappings refused because of a limit.
    pub refused: u64,
    /// The processes and images that are kept apart or left out.
    pub tagger: Tagger,
    /// Answers questions about processes.
    pub system: System,
    /// The users of processes.
    users: Users,
    /// Mappings that were learnt from notices since the last drain.
    pub learnt: Vec<TimedRecord>,
    /// Records were lost since /proc was asked about everybody.
    doubtful: bool,
    asked_ns: u64,
}

impl Mappings {
    /// Adds every running process. Call it after the records have begun to flow.
    pub fn scan(&mut self, now_ns: u64) {
        for pid in self.system.processes() {
            self.users.learn(pid, &self.system);
            self.read_process(pid, now_ns, None);
        }
    }

    /// Applies one record; records must come in the order of their times.
    pub fn apply(&mut self, record: TimedRecord) {
        let time = record.time_ns;
        match record.kind {
            RecordKind::Mmap(mmap) => self.map(mmap, time),
            RecordKind::Exec { pid } => self.exec(pid, time),
            RecordKind::Execed { pid, generation, program, .. } => {
                self.execed(pid, generation, program, time);
            }
            RecordKind::Library { pid, library } => self.expect_library(pid, library, time),
            RecordKind::Remapped { pid, before, generation } => {
                let Some(process) = self.process(pid).filter(|process| process.read_ns <= time)
                else {
                    return;
                };
                process.expect(before, generation, time);
            }
            RecordKind::Fork { pid, parent } => {
                let now = |process: &Process| {
                    let now = process.versions.last()?;
                    Some((now.map.clone(), now.tags.clone(), now.numbers))
                };
                let parents = self.processes.get(&parent).and_then(now);
                let (map, tags, numbers) = parents
                    .unwrap_or_else(|| (Arc::default(), self.tagger.unknown(), Numbers::default()));
                let Some(process) =
                    self.process_or_new(pid).filter(|process| process.read_ns <= time)
                else {
                    return;
                };
                process.enter(map, tags, numbers, time);
                (process.read_ns, process.ended_ns, process.threads) = (0, None, false);
            }
            RecordKind::Thread { pid } => {
                if let Some(process) = self.processes.get_mut(&pid) {
                    process.threads = true;
                }
            }
            RecordKind::Exit { pid } => {
                if let Some(process) = self.processes.get_mut(&pid) {
                    process.ended_ns = Some(time);
                }
            }
            RecordKind::Lost { records } => {
                self.lost_records += records;
                self.expected.clear();
                self.doubtful = true;
            }
            // What was to be done about it was foreseen.
            RecordKind::File { .. } => {}
            RecordKind::KernelText(_) | RecordKind::Throttled { .. } => {}
        }
    }

    /// The process runs another program from now on, with nothing mapped yet.
    fn exec(&mut self, pid: u32, time: u64) {
        let unread = self.tagger.rules().want_cgroups();
        let cgroup = self.foreseen.remove(&pid);
        let Some(process) = self.process(pid).filter(|process| process.read_ns <= time) else {
            return;
        };
        let tags =
            process.versions.last().map_or_else(Tags::default, |now| now.tags.with_unread(unread));
        process.enter(Arc::default(), tags, Numbers::default(), time);
        if let Some(cgroup) = cgroup
            && let Some(process) = self.processes.get_mut(&pid)
        {
            process.has_cgroup(&cgroup, &mut self.tagger, &self.system);
        }
    }

    /// The sampler has told which generation and program an exec began.
    fn execed(&mut self, pid: u32, generation: u16, program: Option<Program>, time: u64) {
        if let Some(program) = program {
            self.programs.hear_of(program, Kind::Program, pid, time);
        }
        let Some(process) = self.process(pid) else { return };
        let stale = process.read_ns > time;
        let Some(now) = process.versions.last_mut() else { return };
        if !stale {
            now.generations = Some(Generations::one(generation));
        }
        if let Some(program) = program {
            now.has_number(program.number);
        }
        let (map, apart) = (now.map.clone(), now.tags.scope().is_some());
        if let Some(program) = program {
            if apart {
                self.unmarked.push(pid);
            }
            // A later reading of /proc may show the map of the next program.
            if !stale && self.programs.learn(program, pid, &map, time) {
                self.unmarked.push(pid);
            }
        }
    }

    fn map(&mut self, mmap: Record, time_ns: u64) {
        let file = self.files.intern(mmap.file, &mmap.path);
        let end = mmap.start.saturating_add(mmap.len);
        let mapping = Mapping { start: mmap.start, end, file_offset: mmap.file_offset, file };
        if let Some(library) = self.expected.remove(&mmap.pid)
            && self.programs.learn_library(library, mmap.pid, &mapping, time_ns)
        {
            self.unmarked.push(mmap.pid);
        }
        let Some(process) = self.process(mmap.pid).filter(|process| process.read_ns <= time_ns)
        else {
            return;
        };
        self.refused += u64::from(process.map(mapping, time_ns).is_err());
    }

    /// The sampler counts the next mapping of `pid` together with the same library in other
    /// processes.
    fn expect_library(&mut self, pid: u32, library: Program, time_ns: u64) {
        self.programs.hear_of(library, Kind::Library, pid, time_ns);
        let now = self.processes.get_mut(&pid).and_then(|process| process.versions.last_mut());
        if let Some(now) = now {
            now.has_number(library.number);
            if now.tags.scope().is_some() {
                self.unmarked.push(pid);
            }
        }
        if self.expected.len() < EXPECTED_MAX {
            self.expected.insert(pid, library);
        }
    }

    /// The mapping that contained `pc` in that generation of `pid` when the samples of this window
    /// were taken, and the tags of the process.
    pub fn find(
        &mut self,
        pid: u32,
        generation: u16,
        pc: u64,
        window: Window,
    ) -> Result<Found, Unresolved> {
        let known = self.find_known(pid, generation, pc, window);
        if !matches!(known, Err(Unresolved::UnknownProcess | Unresolved::NoMapping)) {
            return known;
        }
        // No record reported it: the process is older than the daemon and changed while it was
        // scanned, or records were dropped.
        let last_read = self.processes.get(&pid).map_or(0, |process| process.read_ns);
        if window.to_ns.saturating_sub(last_read) >= REPAIR_INTERVAL_NS
            && self.read_process(pid, window.to_ns, Some(generation))
        {
            return self.find_known(pid, generation, pc, window);
        }
        // Where it had too many address spaces, that of the sample is forgotten.
        let is_unseen =
            |process: &Process| process.ended_ns.is_some() && !process.has_lost_versions;
        let ended = self.processes.get(&pid).is_some_and(is_unseen);
        match known {
            Err(_) if ended => Err(Unresolved::ExitedUnseen),
            Err(_) if self.system.withholds(pid) => Err(Unresolved::NotAnswered),
            known => known,
        }
    }

    /// The mapping that contained this byte of a program's text when the samples of this window
    /// were taken, with addresses counted from the start of the text, and a process that has it
    /// mapped.
    pub fn find_in_program(
        &mut self,
        program: u32,
        distance: u64,
        window: Window,
    ) -> Result<(Mapping, MappedAt), Unresolved> {
        let known = self.programs.find(program, distance);
        if !matches!(known, Err(Unresolved::NoMapping)) {
            return known;
        }
        // The records of its mappings were dropped.
        let Some((pid, text)) = self.programs.last(program) else { return known };
        if self.find(pid, 0, text, window).is_ok()
            && let Some(now) = self.processes.get(&pid).and_then(|process| process.versions.last())
        {
            self.programs.repair(program, &now.map);
        }
        self.programs.find(program, distance)
    }

    /// Whether what is mapped here at an address is the code that is counted at this distance under
    /// the number: the same byte of the same file.
    pub fn is_code_of(&self, (number, distance): (u32, u64), here: &Mapping, address: u64) -> bool {
        let Ok((known, _)) = self.programs.find(number, distance) else { return false };
        let is_same_file =
            Arc::ptr_eq(&here.file, &known.file) || here.file.is_same_build(&known.file);
        let offset = |mapping: &Mapping, at: u64| {
            mapping.file_offset.wrapping_add(at.wrapping_sub(mapping.start))
        };
        is_same_file && offset(here, address) == offset(&known, distance)
    }

    /// Like [`Self::find`], but uses only known mappings and does not read /proc for an unknown
    /// process. Snapshots are also looked at between drains; /proc would then show a later state
    /// than the samples that still wait for their drain.
    pub fn find_known(
        &mut self,
        pid: u32,
        generation: u16,
        pc: u64,
        window: Window,
    ) -> Result<Found, Unresolved> {
        let process = self.processes.get_mut(&pid).ok_or(Unresolved::UnknownProcess)?;
        process.read_cgroup(pid, &mut self.tagger, &self.system);
        process.find(generation, pc, window).unwrap_or(Err(Unresolved::NoMapping))
    }

    /// [`Self::find_in_program`], from what is known.
    pub fn find_known_in_program(
        &mut self,
        program: u32,
        distance: u64,
    ) -> Result<(Mapping, MappedAt), Unresolved> {
        self.programs.find(program, distance)
    }

    /// The mappings of that generation of `pid` when the samples of this window were taken, and its
    /// tags at `time_ns`: a wait that began before the process was labelled has no label. None if
    /// nothing is known about the generation.
    pub fn space_known(
        &mut self,
        (pid, generation): (u32, u16),
        window: Window,
        time_ns: u64,
    ) -> Option<(Arc<AddressMap>, Tags)> {
        let process = self.processes.get_mut(&pid)?;
        process.read_cgroup(pid, &mut self.tagger, &self.system);
        process.space(generation, window, time_ns)
    }

    /// The tags of a process at `time_ns`, if the address space of a sample is not known; no tags
    /// if the process is not known either.
    pub fn tags_of_process(&self, pid: u32, time_ns: u64) -> Tags {
        self.processes
            .get(&pid)
            .and_then(|process| process.newest_tags(time_ns))
            .unwrap_or_default()
    }

    /// Forgets processes that ended before this window began: all their samples have been drained.
    pub fn forget_ended(&mut self, window: Window) {
        self.users.forget_ended();
        let processes = &self.processes;
        self.programs.forget(window, || {
            let versions = processes.values().flat_map(|process| &process.versions);
            versions.flat_map(|version| version.numbers).collect()
        });
        self.unmarked.extend(self.programs.take_unlearnt(false));
        let system = &self.system;
        self.processes.retain(|pid, process| {
            process.forget_before(window.from_ns);
            // Other threads may outlive the first one; then the process is still in /proc.
            process.ended_ns.is_none_or(|ended| {
                ended >= window.from_ns || (process.threads && system.exists(*pid))
            })
        });
    }

    /// Repairs the state after records were lost: forgets processes that have ended unnoticed, and
    /// reads the others again. Otherwise, if the record of a process's end was lost, its old
    /// mappings would be used for ever.
    pub fn repair(&mut self, now_ns: u64) {
        if !self.doubtful || now_ns.saturating_sub(self.asked_ns) < DOUBT_INTERVAL_NS {
            return;
        }
        self.doubtful = false;
        self.asked_ns = now_ns;
        let system = &self.system;
        self.processes.retain(|pid, _| system.exists(*pid));
        let pids: Vec<u32> = self.processes.keys().copied().collect();
        for pid in pids {
            self.read_process(pid, now_ns, None);
        }
        self.unmarked.extend(self.programs.take_unlearnt(true));
        tracing::warn!(
            lost = self.lost_records,
            "records of mappings are missing; all processes were read from /proc"
        );
    }

    /// The current mappings of a process, by address.
    pub fn mapped(&self, pid: u32) -> impl Iterator<Item = &Mapping> {
        let now = self.processes.get(&pid).and_then(|process| process.versions.last());
        now.into_iter().flat_map(|version| version.map.iter())
    }

    /// Whether a process is known.
    pub fn knows(&self, pid: u32) -> bool {
        self.processes.contains_key(&pid)
    }

    /// The user whose allowance pays for an image in which process `pid` has the first samples.
    pub fn payer(&mut self, pid: u32) -> Payer {
        self.users.payer(pid, &self.system)
    }

    /// Processes that must be marked again in the sampler's table.
    pub fn take_unmarked(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.unmarked)
    }

    /// Numbers of programs and libraries that may be given to other code from now on.
    pub fn take_released(&mut self) -> Vec<u32> {
        self.programs.take_released()
    }

    /// Numbers that stand for two builds and must not be given to further processes.
    pub fn take_disputed(&mut self) -> Vec<u32> {
        self.programs.take_disputed()
    }

    /// Processes known now.
    pub fn len(&self) -> usize {
        self.processes.len()
    }

    /// Returns whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// The process, with the tags of its parent if its fork had no record.
    fn process(&mut self, pid: u32) -> Option<&mut Process> {
        let unseen = self.tagger.gives_tags() && !self.processes.contains_key(&pid);
        let tags =
            unseen.then(|| labels::of_parent(&self.processes, &self.tagger, &self.system, pid));
        let process = self.process_or_new(pid)?;
        if let (Some(tags), Some(now)) = (tags, process.versions.last_mut()) {
            now.tags = tags;
        }
        Some(process)
    }

    fn process_or_new(&mut self, pid: u32) -> Option<&mut Process> {
        if self.processes.len() >= PROCESSES_MAX && !self.processes.contains_key(&pid) {
            self.refused += 1;
            return None;
        }
        Some(self.processes.entry(pid).or_default())
    }

    /// Replaces the known mappings of a process by those in /proc. Returns false when it is gone.
    fn read_process(&mut self, pid: u32, now_ns: u64, asker: Option<u16>) -> bool {
        let Some(lines) = self.system.maps(pid).filter(|lines| !lines.is_empty()) else {
            return false;
        };
        let mut map = AddressMap::default();
        for line in lines {
            let file = self.files.intern(line.file, &line.path);
            let inserted = map.insert(Mapping {
                start: line.start,
                end: line.end,
                file_offset: line.file_offset,
                file,
            });
            self.refused += u64::from(inserted.is_none());
        }
        let Some(process) = self.process(pid) else { return false };
        if let Some(now) = process.versions.last_mut() {
            // The sample belongs to this version, and so do samples of its other generations.
            let known = asker
                .filter(|generation| now.has(*generation))
                .map(|_| (now.generations, now.next));
            *now = Version::new(Arc::new(map), now.tags.clone(), now.numbers);
            (now.generations, now.next) = known.unwrap_or_default();
        }
        process.read_ns = now_ns;
        true
    }
}

#[cfg(test)]
mod tests;
