//! Which process has what mapped where: fed by the kernel's records in order of time, by a scan at start-up, and by /proc where a
//! sample finds nothing.
//!
//! A process is forgotten only after every sample that belongs to it has been drained: one drain that began after its end.

mod address_map;
mod notices;
mod procfs;

pub use address_map::{AddressMap, MAPPINGS_MAX, Mapping};
pub use notices::look;
pub use procfs::MapsLine;

use crate::images::Files;
use crate::kernel::{RecordKind, TimedRecord};
use crate::unresolved::Reason;
use std::collections::HashMap;
use std::sync::Arc;

/// Processes remembered, dead ones included: PID_MAX_LIMIT / 32. Samples of those beyond stay unresolved.
pub const PROCESSES_MAX: usize = 1 << 17;

/// A process is looked up in /proc at most this often when its samples find nothing.
const REPAIR_INTERVAL_NS: u64 = 1_000_000_000;

/// Everybody is looked up in /proc at most this often, when records were lost.
const DOUBT_INTERVAL_NS: u64 = 10_000_000_000;

/// Replaced mappings of one address space that are remembered within one drain.
const REPLACED_MAX: usize = 1024;

/// Address spaces of one process that are remembered within one drain; an exec storm over itself loses the oldest.
const VERSIONS_MAX: usize = 64;

/// One address space that a process had.
#[derive(Debug)]
struct Version {
    /// Shared with the parent until one of the two maps something.
    map: Arc<AddressMap>,
    /// Which samples belong to it; None until a record or a sample tells.
    generation: Option<u16>,
    /// When the process left it; `u64::MAX`: not yet.
    until_ns: u64,
    /// What was mapped where something else is now, until when.
    replaced: Vec<(Mapping, u64)>,
}

impl Version {
    fn new(map: Arc<AddressMap>) -> Self {
        Self { map, generation: None, until_ns: u64::MAX, replaced: Vec::new() }
    }

    /// The mapping at `pc` when the samples of this window were taken; Some(Err) when there were two.
    fn find(&self, pc: u64, window: Window) -> Option<Result<Mapping, Reason>> {
        let then = |(old, until): &&(Mapping, u64)| *until >= window.from_ns && (old.start..old.end).contains(&pc);
        let now = self.map.find(pc)?;
        let two = self.replaced.iter().any(|replaced| then(&replaced));
        Some(if two { Err(Reason::AmbiguousMapping) } else { Ok(now.clone()) })
    }
}

#[derive(Debug)]
struct Process {
    /// Oldest first, never empty; the last one is where the process is now.
    versions: Vec<Version>,
    /// Records older than this are in the last version already: it was read from /proc then.
    read_ns: u64,
    ended_ns: Option<u64>,
}

impl Default for Process {
    fn default() -> Self {
        Self { versions: vec![Version::new(Arc::default())], read_ns: 0, ended_ns: None }
    }
}

impl Process {
    /// From `time_ns` on the process is in another address space.
    fn enter(&mut self, map: Arc<AddressMap>, time_ns: u64) {
        if let Some(now) = self.versions.last_mut() {
            now.until_ns = time_ns;
        }
        if self.versions.len() >= VERSIONS_MAX {
            self.versions.remove(0);
        }
        self.versions.push(Version::new(map));
    }

    /// The mapping at `pc` in the address space of that generation; where the generation is not known yet, in the newest space that could
    /// be it and has something there, which is remembered.
    fn find(&mut self, generation: u16, pc: u64, window: Window) -> Option<Result<Mapping, Reason>> {
        let then = |version: &&mut Version| version.until_ns >= window.from_ns;
        let mut known = self.versions.iter_mut().rev().filter(then);
        if let Some(version) = known.find(|version| version.generation == Some(generation)) {
            return version.find(pc, window);
        }
        for version in self.versions.iter_mut().rev().filter(then).filter(|version| version.generation.is_none()) {
            if let Some(mapping) = version.find(pc, window) {
                // Generation 0 is also what a sampler that cannot look into tasks says of all of them.
                version.generation = (generation != 0).then_some(generation);
                return Some(mapping);
            }
        }
        None
    }
}

/// The drained samples were taken between these times (CLOCK_MONOTONIC, ns).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// End of the drain before.
    pub from_ns: u64,
    /// End of this drain.
    pub to_ns: u64,
}

/// All processes.
#[derive(Debug, Default)]
pub struct Mappings {
    processes: HashMap<u32, Process>,
    /// All mapped files.
    pub files: Files,
    /// Records that the kernel dropped.
    pub lost_records: u64,
    /// Processes and mappings refused because of a limit.
    pub refused: u64,
    /// Records were lost since /proc was asked about everybody.
    doubtful: bool,
    asked_ns: u64,
}

impl Mappings {
    /// Takes up every running process. Call it after the records have begun to flow.
    pub fn scan(&mut self, now_ns: u64) {
        for pid in procfs::processes() {
            self.read_process(pid, now_ns);
        }
    }

    /// Applies one record; records must come in the order of their times.
    pub fn apply(&mut self, record: TimedRecord) {
        let time = record.time_ns;
        match record.kind {
            RecordKind::Mmap(mmap) => {
                let file = self.files.intern(mmap.file, &mmap.path);
                let Some(process) = self.process(mmap.pid).filter(|process| process.read_ns <= time) else { return };
                let Some(now) = process.versions.last_mut() else { return };
                let end = mmap.start.saturating_add(mmap.len);
                let mapping = Mapping { start: mmap.start, end, file_offset: mmap.file_offset, file };
                match Arc::make_mut(&mut now.map).insert(mapping) {
                    Some(replaced) => {
                        now.replaced.truncate(REPLACED_MAX);
                        now.replaced.extend(replaced.into_iter().map(|old| (old, time)));
                    }
                    None => self.refused += 1,
                }
            }
            RecordKind::Exec { pid } => {
                let Some(process) = self.process(pid).filter(|process| process.read_ns <= time) else { return };
                process.enter(Arc::default(), time);
            }
            RecordKind::Generation { pid, generation } => {
                let Some(process) = self.process(pid).filter(|process| process.read_ns <= time) else { return };
                if let Some(now) = process.versions.last_mut() {
                    now.generation = Some(generation);
                }
            }
            RecordKind::Fork { pid, parent } => {
                let now = |process: &Process| process.versions.last().map(|now| now.map.clone());
                let map = self.processes.get(&parent).and_then(now).unwrap_or_default();
                let Some(process) = self.process(pid).filter(|process| process.read_ns <= time) else { return };
                process.enter(map, time);
                (process.read_ns, process.ended_ns) = (0, None);
            }
            RecordKind::Exit { pid } => {
                if let Some(process) = self.processes.get_mut(&pid) {
                    process.ended_ns = Some(time);
                }
            }
            RecordKind::Lost { records } => {
                self.lost_records += records;
                self.doubtful = true;
            }
            RecordKind::KernelText | RecordKind::Throttled { .. } => {}
        }
    }

    /// The mapping that showed `pc` to that generation of `pid` when the samples of this window were taken.
    ///
    /// # Errors
    /// Why there is none.
    pub fn find(&mut self, pid: u32, generation: u16, pc: u64, window: Window) -> Result<Mapping, Reason> {
        let known = self.find_known(pid, generation, pc, window);
        if !matches!(known, Err(Reason::UnknownProcess | Reason::NoMapping)) {
            return known;
        }
        // No record told: the process was there before us and changed while being scanned, or records were dropped.
        let last_read = self.processes.get(&pid).map_or(0, |process| process.read_ns);
        if window.to_ns.saturating_sub(last_read) >= REPAIR_INTERVAL_NS && self.read_process(pid, window.to_ns) {
            return self.find_known(pid, generation, pc, window);
        }
        known
    }

    fn find_known(&mut self, pid: u32, generation: u16, pc: u64, window: Window) -> Result<Mapping, Reason> {
        let process = self.processes.get_mut(&pid).ok_or(Reason::UnknownProcess)?;
        process.find(generation, pc, window).unwrap_or(Err(Reason::NoMapping))
    }

    /// Forgets processes that ended before this window began: all their samples have been drained.
    pub fn forget_ended(&mut self, window: Window) {
        self.processes.retain(|pid, process| {
            process
                .versions
                .iter_mut()
                .for_each(|version| version.replaced.retain(|(_, until)| *until >= window.from_ns));
            process.versions.retain(|version| version.until_ns >= window.from_ns);
            // Other threads may outlive the first one; then the process is still in /proc.
            process.ended_ns.is_none_or(|ended| ended >= window.from_ns || procfs::exists(*pid))
        });
    }

    /// After records were lost: forgets processes whose end nobody told of, and reads the others anew. The end of a lost record's process
    /// would otherwise never be known, and its mappings would be believed.
    pub fn repair(&mut self, now_ns: u64) {
        if !self.doubtful || now_ns.saturating_sub(self.asked_ns) < DOUBT_INTERVAL_NS {
            return;
        }
        self.doubtful = false;
        self.asked_ns = now_ns;
        self.processes.retain(|pid, _| procfs::exists(*pid));
        let pids: Vec<u32> = self.processes.keys().copied().collect();
        for pid in pids {
            self.read_process(pid, now_ns);
        }
        tracing::warn!(
            lost = self.lost_records,
            "the kernel dropped records of mappings; all processes were read from /proc"
        );
    }

    /// Processes known now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.processes.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    fn process(&mut self, pid: u32) -> Option<&mut Process> {
        if self.processes.len() >= PROCESSES_MAX && !self.processes.contains_key(&pid) {
            self.refused += 1;
            return None;
        }
        Some(self.processes.entry(pid).or_default())
    }

    /// Replaces what is known of a process by what /proc says; false when it is gone.
    fn read_process(&mut self, pid: u32, now_ns: u64) -> bool {
        let Some(lines) = procfs::executable_mappings(pid).filter(|lines| !lines.is_empty()) else { return false };
        let mut map = AddressMap::default();
        for line in lines {
            let file = self.files.intern(line.file, &line.path);
            let inserted =
                map.insert(Mapping { start: line.start, end: line.end, file_offset: line.file_offset, file });
            self.refused += u64::from(inserted.is_none());
        }
        let Some(process) = self.process(pid) else { return false };
        if let Some(now) = process.versions.last_mut() {
            *now = Version::new(Arc::new(map));
        }
        process.read_ns = now_ns;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{MappedFileId, Record};

    const PID: u32 = (1 << abi::PID_BITS) - 9; // no such process can exist, so nothing is repaired from /proc

    fn mmap(time_ns: u64, pid: u32, start: u64, path: &str) -> TimedRecord {
        let file = MappedFileId::BuildId(path.bytes().take(20).collect());
        let record = Record { pid, start, len: 0x100, file_offset: 0, path: path.into(), file };
        TimedRecord { time_ns, kind: RecordKind::Mmap(record) }
    }

    fn at(time_ns: u64, kind: RecordKind) -> TimedRecord {
        TimedRecord { time_ns, kind }
    }

    fn found(mappings: &mut Mappings, pid: u32, pc: u64, window: (u64, u64)) -> Result<String, Reason> {
        let window = Window { from_ns: window.0, to_ns: window.1 };
        mappings.find(pid, 0, pc, window).map(|mapping| String::from_utf8(mapping.file.path.clone()).unwrap())
    }

    #[test]
    fn a_child_has_its_parents_memory_until_it_execs() {
        let mut mappings = Mappings::default();
        mappings.apply(mmap(1, PID, 0x1000, "shell"));
        mappings.apply(at(10, RecordKind::Fork { pid: PID + 1, parent: PID }));
        assert_eq!(found(&mut mappings, PID + 1, 0x1010, (0, 20)), Ok("shell".into()));
        mappings.apply(at(30, RecordKind::Exec { pid: PID + 1 }));
        mappings.apply(mmap(31, PID + 1, 0x2000, "tool"));
        assert_eq!(found(&mut mappings, PID + 1, 0x2010, (20, 40)), Ok("tool".into()));
        assert_eq!(
            found(&mut mappings, PID + 1, 0x1010, (20, 40)),
            Ok("shell".into()),
            "sampled before the exec, in this window"
        );
        assert_eq!(found(&mut mappings, PID + 1, 0x1010, (40, 60)), Err(Reason::NoMapping), "a window after the exec");
        assert_eq!(found(&mut mappings, PID, 0x1010, (40, 60)), Ok("shell".into()), "the parent keeps its own");
    }

    /// dlclose and dlopen at one address within one drain: half of the samples went to a library that was never called.
    #[test]
    fn where_two_files_were_mapped_in_turn_nobody_guesses() {
        let mut mappings = Mappings::default();
        for (time, name) in [(1, "first"), (15, "second")] {
            mappings.apply(mmap(time, PID, 0x1000, name));
        }
        mappings.apply(mmap(16, PID, 0x5000, "apart"));
        mappings.apply(mmap(17, PID, 0x5000, "apart"));
        assert_eq!(found(&mut mappings, PID, 0x1010, (10, 20)), Err(Reason::AmbiguousMapping));
        assert_eq!(found(&mut mappings, PID, 0x5010, (10, 20)), Ok("apart".into()), "the same file again is no doubt");
        mappings.forget_ended(Window { from_ns: 20, to_ns: 30 });
        assert_eq!(found(&mut mappings, PID, 0x1010, (20, 30)), Ok("second".into()));
    }

    /// Under a storm of mappings the records of ends were dropped, and the dead were believed alive for ever.
    #[test]
    fn after_lost_records_the_dead_are_forgotten() {
        let mut mappings = Mappings::default();
        mappings.apply(mmap(1, PID, 0x1000, "dead"));
        mappings.apply(mmap(1, std::process::id(), 0x1000, "believed"));
        mappings.repair(DOUBT_INTERVAL_NS);
        assert_eq!(mappings.len(), 2, "no record lost, no doubt");
        mappings.apply(at(2, RecordKind::Lost { records: 5 }));
        mappings.repair(DOUBT_INTERVAL_NS);
        assert_eq!(mappings.len(), 1);
        let window = (DOUBT_INTERVAL_NS, DOUBT_INTERVAL_NS + 1);
        assert_eq!(found(&mut mappings, std::process::id(), 0x1000, window), Err(Reason::NoMapping), "read anew");
    }

    /// Two programs at one address in one process, one after the other, in one drain: only the generation tells their samples apart.
    #[test]
    fn an_exec_over_itself_at_the_same_address_is_told_apart() {
        let mut mappings = Mappings::default();
        mappings.apply(mmap(1, PID, 0x1000, "first"));
        let window = Window { from_ns: 0, to_ns: 100 };
        let image = |mappings: &mut Mappings, generation| {
            mappings
                .find(PID, generation, 0x1000, window)
                .map(|mapping| String::from_utf8(mapping.file.path.clone()).unwrap())
        };
        assert_eq!(image(&mut mappings, 7), Ok("first".into()), "the first sample tells which generation was there");
        for (time, generation, name) in [(10, 8, "second"), (20, 9, "third")] {
            mappings.apply(at(time, RecordKind::Exec { pid: PID }));
            mappings.apply(mmap(time + 1, PID, 0x1000, name));
            mappings.apply(at(time + 2, RecordKind::Generation { pid: PID, generation }));
        }
        for (generation, name) in [(8, "second"), (9, "third"), (7, "first")] {
            assert_eq!(image(&mut mappings, generation), Ok(name.into()));
        }
        assert_eq!(image(&mut mappings, 99), Err(Reason::NoMapping), "a generation that nobody told of is not guessed");
        // A number reused: the next process of that number forks from another parent.
        mappings.apply(mmap(1, PID + 1, 0x1000, "parent"));
        mappings.apply(at(30, RecordKind::Exit { pid: PID }));
        mappings.apply(at(31, RecordKind::Fork { pid: PID, parent: PID + 1 }));
        assert_eq!(image(&mut mappings, 500), Ok("parent".into()));
        assert_eq!(image(&mut mappings, 9), Ok("third".into()));
    }

    #[test]
    fn what_the_child_maps_is_not_the_parents() {
        let mut mappings = Mappings::default();
        mappings.apply(mmap(1, PID, 0x1000, "shell"));
        mappings.apply(at(2, RecordKind::Fork { pid: PID + 1, parent: PID }));
        mappings.apply(mmap(3, PID + 1, 0x5000, "plugin"));
        assert_eq!(found(&mut mappings, PID, 0x5000, (0, 9)), Err(Reason::NoMapping));
        assert_eq!(found(&mut mappings, PID + 1, 0x5000, (0, 9)), Ok("plugin".into()));
    }

    #[test]
    fn a_process_is_forgotten_after_the_drain_that_follows_its_end() {
        let mut mappings = Mappings::default();
        mappings.apply(mmap(1, PID, 0x1000, "a"));
        mappings.apply(at(15, RecordKind::Exit { pid: PID }));
        mappings.forget_ended(Window { from_ns: 10, to_ns: 20 });
        assert_eq!(found(&mut mappings, PID, 0x1000, (10, 20)), Ok("a".into()), "its samples may be in the next drain");
        mappings.forget_ended(Window { from_ns: 20, to_ns: 30 });
        assert_eq!(found(&mut mappings, PID, 0x1000, (20, 30)), Err(Reason::UnknownProcess));
        assert!(mappings.is_empty());
    }

    #[test]
    fn a_reused_process_number_starts_afresh() {
        let mut mappings = Mappings::default();
        mappings.apply(mmap(1, PID, 0x1000, "first"));
        mappings.apply(mmap(1, PID + 1, 0x3000, "parent"));
        mappings.apply(at(15, RecordKind::Exit { pid: PID }));
        mappings.apply(at(16, RecordKind::Fork { pid: PID, parent: PID + 1 }));
        assert_eq!(found(&mut mappings, PID, 0x3000, (10, 20)), Ok("parent".into()));
        assert_eq!(found(&mut mappings, PID, 0x1000, (10, 20)), Ok("first".into()), "both lived in this window");
        mappings.forget_ended(Window { from_ns: 20, to_ns: 30 });
        assert_eq!(found(&mut mappings, PID, 0x1000, (20, 30)), Err(Reason::NoMapping));
    }

    #[test]
    fn a_live_process_that_no_record_told_of_is_read_from_proc() {
        let mut mappings = Mappings::default();
        let here = a_live_process_that_no_record_told_of_is_read_from_proc as fn() as usize as u64;
        let window = (0, 5 * REPAIR_INTERVAL_NS);
        let own = found(&mut mappings, std::process::id(), here, window).unwrap();
        assert_eq!(own.as_bytes(), std::env::current_exe().unwrap().as_os_str().as_encoded_bytes());
        // Records from before that reading are in it already and must not undo it.
        mappings.apply(at(window.1 - 1, RecordKind::Exec { pid: std::process::id() }));
        assert!(found(&mut mappings, std::process::id(), here, window).is_ok());
    }

    #[test]
    fn the_number_of_processes_is_bounded() {
        let mut mappings = Mappings::default();
        for pid in 0..PROCESSES_MAX as u32 + 10 {
            mappings.apply(mmap(1, pid, 0x1000, "a"));
        }
        assert_eq!((mappings.len(), mappings.refused), (PROCESSES_MAX, 10));
    }
}
