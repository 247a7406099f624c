//! Programs and libraries whose text the sampler counts once for all processes that run them: which
//! file a distance from the start of the text shows.

use super::{AddressMap, Mapping, Window};
use crate::mapped_files::MappedFile;
use inspect::open_mapped::MappedAt;
use kernel::{MappedFileId, Program};
use model::Unresolved;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

/// Numbers remembered: as many as the sampler gives. Further ones are released at once.
const PROGRAMS_MAX: usize = abi::CLAIMS_MAX;

/// Above this count, numbers that no known process uses are forgotten even while a process maps
/// their files. Below it, such numbers are kept for processes whose records were lost.
const PROGRAMS_KEPT: usize = PROGRAMS_MAX / 4 * 3;

/// Reports of numbers remembered until their code is known.
const UNLEARNT_MAX: usize = 4096;

/// A part of a program's text.
#[derive(Clone, Debug)]
struct Part {
    /// First byte, counted from the start of the text.
    start: u64,
    /// First byte after it.
    end: u64,
    /// File offset that `start` shows.
    file_offset: u64,
    /// Held by the processes that map it: when the last of them has been forgotten, nobody runs the
    /// program any more.
    file: Weak<MappedFile>,
}

impl Part {
    /// Whether a process maps it: one is held by [`crate::mapped_files::Files`].
    fn is_mapped(&self) -> bool {
        self.file.strong_count() > 1
    }

    fn overlaps(&self, other: &Part) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Whether the two parts contradict each other: they show another build, or another place of
    /// the file.
    fn contradicts(&self, other: &Part) -> bool {
        let place = |part: &Part| part.file_offset.wrapping_sub(part.start);
        self.overlaps(other) && (place(self) != place(other) || !self.is_of_same_file(other))
    }

    fn is_of_same_file(&self, other: &Part) -> bool {
        let files = || self.file.upgrade().zip(other.file.upgrade());
        Weak::ptr_eq(&self.file, &other.file)
            || files().is_some_and(|(one, other)| {
                one.is_same_build(&other) || is_unseen(&one, &other) || is_unseen(&other, &one)
            })
    }

    /// Whether the other part supplies an identity of the same file that could no longer be
    /// determined for this part.
    fn is_known_better_by(&self, other: &Part) -> bool {
        let files = || self.file.upgrade().zip(other.file.upgrade());
        self.overlaps(other)
            && files()
                .is_some_and(|(one, other)| is_unseen(&one, &other) && !one.is_same_build(&other))
    }
}

/// Whether `file` has the inode of the other one, and was gone before its content could be
/// determined. That contradicts nothing: the sampler has compared size and time of last change.
fn is_unseen(file: &MappedFile, other: &MappedFile) -> bool {
    let inode = |id: &MappedFileId| match *id {
        MappedFileId::Version { major, minor, inode, .. } => Some((major, minor, inode)),
        _ => None,
    };
    matches!(file.id, MappedFileId::Version { content: None, .. })
        && inode(&file.id) == inode(&other.id)
}

/// Code that has a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A program, whose process keeps it mapped.
    Program,
    /// A mapping of a library. Another file may have been mapped there since, so /proc is no
    /// evidence.
    Library,
}

#[derive(Debug)]
struct Known {
    kind: Kind,
    parts: Vec<Part>,
    /// The parts come from a reading of /proc after the exec: the process may have mapped another
    /// file there meanwhile. Records are more reliable.
    from_proc: bool,
    /// The process that reported these parts last, and the address of the text in that process.
    pid: u32,
    text: u64,
    /// Time at which the sampler last reported the number, for any process.
    told_ns: u64,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Programs {
    known: HashMap<u32, Known, foldhash::fast::RandomState>,
    /// Numbers whose code was not known when the sampler reported them, with their processes.
    unlearnt: Vec<(u32, u32)>,
    /// Numbers that were forgotten, or never learnt.
    released: Vec<u32>,
    /// Numbers under which one process mapped what contradicts another.
    disputed: Vec<u32>,
    /// Processes that did.
    contradictions: u64,
}

impl Programs {
    /// Notes a number that the sampler reported; until it is forgotten, no other code has this
    /// number.
    pub fn hear_of(&mut self, program: Program, kind: Kind, pid: u32, time_ns: u64) {
        let told = (program.number, pid);
        if self.is_unlearnt(program.number)
            && self.unlearnt.last() != Some(&told)
            && self.unlearnt.len() < UNLEARNT_MAX
        {
            self.unlearnt.push(told);
        }
        if self.known.len() >= PROGRAMS_MAX && !self.known.contains_key(&program.number) {
            self.released.push(program.number);
            return;
        }
        let known = self.known.entry(program.number).or_insert_with(|| Known {
            kind,
            parts: Vec::new(),
            from_proc: false,
            pid,
            text: program.text,
            told_ns: time_ns,
        });
        known.told_ns = time_ns;
        if known.parts.is_empty() {
            (known.pid, known.text) = (pid, program.text);
        }
    }

    /// Process `pid`, whose memory shows `map`, exec'ed `program` at that time. Gives whether that
    /// contradicts what is known of the number, which stays: then this process must be kept apart.
    #[must_use]
    pub fn learn(&mut self, program: Program, pid: u32, map: &AddressMap, time_ns: u64) -> bool {
        self.hear_of(program, Kind::Program, pid, time_ns);
        self.learn_parts(program, pid, parts(program, map))
    }

    /// The same of process `pid`, which mapped the code of a library at that time. Nothing is
    /// learnt of another mapping.
    pub fn learn_library(
        &mut self,
        library: Program,
        pid: u32,
        mapping: &Mapping,
        time_ns: u64,
    ) -> bool {
        let end = library.text.saturating_add(library.len);
        if (mapping.start, mapping.end) != (library.text, end) {
            return false;
        }
        let mut map = AddressMap::default();
        map.insert(mapping.clone());
        self.hear_of(library, Kind::Library, pid, time_ns);
        self.learn_parts(library, pid, parts(library, &map))
    }

    /// The first code learnt for a number stays while any process maps it, because a process that
    /// could replace it would take the samples of all processes with that number. A process that
    /// contradicts has the same inode, size, times and extent in another build: the file was
    /// changed without changing any of these, or the record of another mapping was lost.
    fn learn_parts(&mut self, program: Program, pid: u32, parts: Vec<Part>) -> bool {
        // If the process has no such mapping, the record was lost; the mapping of another process
        // that runs the program serves as well.
        let Some(known) = self.known.get_mut(&program.number).filter(|_| !parts.is_empty()) else {
            return false;
        };
        // A process with samples in the file is not forgotten yet, and keeps the file known.
        if known.from_proc || !known.parts.iter().any(Part::is_mapped) {
            known.parts.clear();
            known.from_proc = false;
        }
        let contradicts = |part: &Part| known.parts.iter().any(|known| known.contradicts(part));
        if parts.iter().any(contradicts) {
            self.contradictions += 1;
            if self.contradictions.is_power_of_two() {
                tracing::warn!(
                    pid,
                    count = self.contradictions,
                    "a process maps another build of a file that did not change since others mapped it; its samples are counted apart"
                );
            }
            self.disputed.push(program.number);
            return true;
        }
        known.parts.retain(|known| !parts.iter().any(|part| known.is_known_better_by(part)));
        for part in parts {
            if !known.parts.iter().any(|known| known.overlaps(&part)) {
                known.parts.push(part);
            }
        }
        (known.pid, known.text) = (pid, program.text);
        false
    }

    /// The mapping that contains this byte of the program's text, with addresses counted from the
    /// start of the text, and a process that has it mapped.
    pub fn find(&self, number: u32, distance: u64) -> Result<(Mapping, MappedAt), Unresolved> {
        let known = self.known.get(&number).ok_or(Unresolved::UnknownProcess)?;
        let part = known.parts.iter().find(|part| (part.start..part.end).contains(&distance));
        let part = part.ok_or(match known.kind {
            Kind::Library if known.parts.is_empty() => Unresolved::UnknownProcess,
            _ => Unresolved::NoMapping,
        })?;
        let file = part.file.upgrade().ok_or(Unresolved::UnknownProcess)?;
        let (start, end) = (known.text.wrapping_add(part.start), known.text.wrapping_add(part.end));
        let mapping =
            Mapping { start: part.start, end: part.end, file_offset: part.file_offset, file };
        Ok((mapping, MappedAt { pid: known.pid, start, end }))
    }

    /// The process to ask about a program whose mappings have no record: the one that exec'ed it
    /// last.
    pub fn last(&self, number: u32) -> Option<(u32, u64)> {
        self.known.get(&number).map(|known| (known.pid, known.text))
    }

    fn is_unlearnt(&self, number: u32) -> bool {
        self.known.get(&number).is_none_or(|known| known.parts.is_empty())
    }

    /// Processes with a number of which no record has told what code it is, and none will: the
    /// number has been forgotten, or `are_lost`. They must be kept apart, or their samples mean
    /// nothing for as long as they run.
    pub fn take_unlearnt(&mut self, are_lost: bool) -> Vec<u32> {
        let mut unlearnt = std::mem::take(&mut self.unlearnt);
        unlearnt.retain(|(number, _)| self.is_unlearnt(*number));
        let is_over = |(number, _): &mut (u32, u32)| are_lost || !self.known.contains_key(number);
        let over = unlearnt.extract_if(.., is_over).map(|(_, pid)| pid).collect();
        self.unlearnt = unlearnt;
        over
    }

    /// Adds the mappings that /proc shows for the process that exec'ed the program last.
    pub fn repair(&mut self, number: u32, map: &AddressMap) {
        if let Some(known) = self.known.get_mut(&number).filter(|known| known.parts.is_empty()) {
            known.from_proc = true;
            known.parts =
                parts(Program { number, text: known.text, len: u64::from(u32::MAX) }, map)
                    .into_iter()
                    .take_while({
                        // Only the first file is the program; its libraries may lie behind it.
                        let mut first = None;
                        move |part| {
                            Weak::ptr_eq(first.get_or_insert_with(|| part.file.clone()), &part.file)
                        }
                    })
                    .collect();
        }
    }

    /// Forgets programs that no process runs; `numbers` returns the numbers that processes have.
    pub fn forget(&mut self, window: Window, numbers: impl FnOnce() -> HashSet<u32>) {
        let used = (self.known.len() > PROGRAMS_KEPT).then(numbers);
        let released = &mut self.released;
        self.known.retain(|number, known| {
            let is_used = || match &used {
                Some(used) => used.contains(number),
                None => known.parts.iter().any(Part::is_mapped),
            };
            let stays = known.told_ns >= window.from_ns || is_used();
            if !stays {
                released.push(*number);
            }
            stays
        });
    }

    /// Numbers that other code may have from now on.
    pub fn take_released(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.released)
    }

    /// Numbers that no further process may have until they are released.
    pub fn take_disputed(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.disputed)
    }
}

fn parts(program: Program, map: &AddressMap) -> Vec<Part> {
    let end = program.text.saturating_add(program.len);
    map.overlapping(program.text, end)
        .iter()
        .map(|mapping| {
            // The first mapping begins at a page, the text perhaps later.
            let skipped = program.text.saturating_sub(mapping.start);
            Part {
                start: (mapping.start + skipped) - program.text,
                end: mapping.end - program.text,
                file_offset: mapping.file_offset.wrapping_add(skipped),
                file: Arc::downgrade(&mapping.file),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapped_files::Files;
    use kernel::MappedFileId;

    fn program(text: u64) -> Program {
        Program { number: 9, text, len: 0x1800 }
    }

    fn map(files: &mut Files, build: u8, at: u64) -> AddressMap {
        let mut map = AddressMap::default();
        let file = files.intern(MappedFileId::BuildId(vec![build; 20]), b"/bin/program");
        map.insert(Mapping { start: at, end: at + 0x2000, file_offset: 0x4000, file });
        map
    }

    fn found(programs: &Programs, distance: u64) -> Result<u64, Unresolved> {
        programs
            .find(9, distance)
            .map(|(mapping, _)| distance - mapping.start + mapping.file_offset)
    }

    #[test]
    fn a_distance_is_a_file_offset_wherever_the_program_lies() {
        let mut files = Files::default();
        let mut programs = Programs::default();
        let first = map(&mut files, 1, 0x1000);
        let second = map(&mut files, 1, 0x7000_0000);
        assert!(!programs.learn(program(0x1100), 5, &first, 10));
        assert_eq!(found(&programs, 0x10), Ok(0x4110));
        assert!(!programs.learn(program(0x7000_0100), 6, &second, 20));
        assert_eq!(found(&programs, 0x10), Ok(0x4110), "the same file elsewhere is no doubt");
        let (_, at) = programs.find(9, 0x10).unwrap();
        assert_eq!((at.pid, at.start, at.end), (6, 0x7000_0100, 0x7000_2000));
        assert_eq!(found(&programs, 0x1f00), Err(Unresolved::NoMapping));
        // A hard link: cargo runs one file under two names, and its samples were ambiguous for
        // ever.
        let mut linked = AddressMap::default();
        let file = files.intern(MappedFileId::BuildId(vec![1; 20]), b"/bin/link");
        linked.insert(Mapping { start: 0x5000, end: 0x7000, file_offset: 0x4000, file });
        assert!(!programs.learn(program(0x5100), 7, &linked, 30));
        assert_eq!(found(&programs, 0x10), Ok(0x4110), "the same file by another name is no doubt");
        assert!(!programs.learn(program(0x7000_0100), 6, &second, 40));
        assert_eq!(programs.find(8, 0).map(|_| ()), Err(Unresolved::UnknownProcess));
    }

    /// A static program mapped one page of the C library and was the last to tell: the samples of
    /// everybody in that library were of an ambiguous mapping, and later of none.
    #[test]
    fn a_known_number_is_not_replaced_by_what_contradicts_it() {
        let mut files = Files::default();
        let mut programs = Programs::default();
        let (known, other) = (map(&mut files, 1, 0x1000), map(&mut files, 2, 0x1000));
        let file = files.intern(MappedFileId::BuildId(vec![1; 20]), b"/bin/program");
        let mut page = AddressMap::default();
        page.insert(Mapping { start: 0x1000, end: 0x2000, file_offset: 0x6000, file });
        assert!(!programs.learn(program(0x1100), 5, &known, 10));
        for (story, map) in [("another build", &other), ("another page of the file", &page)] {
            assert!(programs.learn(program(0x1100), 6, map, 50), "{story}");
            assert_eq!(found(&programs, 0x10), Ok(0x4110), "{story}");
            let (mapping, at) = programs.find(9, 0x1010).unwrap();
            assert_eq!(mapping.file.id, MappedFileId::BuildId(vec![1; 20]), "{story}");
            assert_eq!(at.pid, 5, "{story}");
            assert_eq!(programs.take_disputed(), [9], "{story}");
        }
        // Part of it, as after the loss of a record: what is known stays, what comes is added.
        let mut first = AddressMap::default();
        let file = files.intern(MappedFileId::BuildId(vec![1; 20]), b"/bin/program");
        first.insert(Mapping { start: 0x1000, end: 0x1200, file_offset: 0x4000, file });
        assert!(!programs.learn(program(0x1100), 7, &first, 60));
        assert_eq!(found(&programs, 0x1010), Ok(0x5110));
        let mut programs = Programs::default();
        assert!(!programs.learn(program(0x1100), 7, &first, 60));
        assert_eq!(found(&programs, 0x1010), Err(Unresolved::NoMapping));
        assert_eq!(found(&programs, 0x10), Ok(0x4110));
        assert!(!programs.learn(program(0x1100), 5, &known, 70));
        assert_eq!(found(&programs, 0x10), Ok(0x4110));
    }

    /// Rebuilt in place without a trace, which a clock that ticks seldom makes possible: the number
    /// is the second build's when nobody runs the first any more.
    #[test]
    fn two_builds_of_one_number_follow_each_other() {
        let mut files = Files::default();
        let mut programs = Programs::default();
        let (first, second) = (map(&mut files, 1, 0x1000), map(&mut files, 2, 0x1000));
        assert!(!programs.learn(program(0x1100), 5, &first, 10));
        assert!(programs.learn(program(0x1100), 6, &second, 50));
        drop(first);
        assert!(!programs.learn(program(0x1100), 7, &second, 60));
        let file = programs.find(9, 0x10).unwrap().0.file;
        assert_eq!(file.id, MappedFileId::BuildId(vec![2; 20]));
    }

    #[test]
    fn a_file_that_was_gone_before_it_was_seen_contradicts_nothing() {
        let version = |content| MappedFileId::Version { major: 8, minor: 1, inode: 7, content };
        let mut files = Files::default();
        let mut map = |content, path: &[u8]| {
            let mut map = AddressMap::default();
            let file = files.intern(version(content), path);
            map.insert(Mapping { start: 0x1000, end: 0x3000, file_offset: 0x4000, file });
            map
        };
        let (unseen, seen) = (map(None, b"/bin/x"), map(Some(5), b"/bin/x"));
        let changed = map(Some(6), b"/bin/x");
        let mut programs = Programs::default();
        let id = |programs: &Programs| programs.find(9, 0).unwrap().0.file.id.clone();
        assert!(!programs.learn(program(0x1000), 5, &unseen, 10));
        assert_eq!(id(&programs), version(None));
        assert!(!programs.learn(program(0x1000), 6, &seen, 20));
        assert_eq!(id(&programs), version(Some(5)), "known better");
        assert!(!programs.learn(program(0x1000), 7, &unseen, 30));
        assert_eq!(id(&programs), version(Some(5)));
        assert!(programs.learn(program(0x1000), 8, &changed, 40));
        assert_eq!(id(&programs), version(Some(5)));
    }

    /// Numbers that an enemy makes, as many as the sampler has, of a file that everybody maps.
    #[test]
    fn numbers_that_no_process_has_make_room() {
        let mut files = Files::default();
        let mut programs = Programs::default();
        let library = map(&mut files, 1, 0x1000);
        let later = Window { from_ns: 100, to_ns: 200 };
        let learn = |programs: &mut Programs, number| {
            let program = Program { number, text: 0x1000, len: 0x2000 };
            assert!(!programs.learn(program, 5, &library, 10));
        };
        (0..PROGRAMS_KEPT as u32).for_each(|number| learn(&mut programs, number));
        programs.forget(later, || panic!("there is room"));
        assert!(programs.take_released().is_empty(), "somebody maps it");
        (0..PROGRAMS_MAX as u32 + 3).for_each(|number| learn(&mut programs, number));
        let refused: Vec<u32> = (0..3).map(|number| PROGRAMS_MAX as u32 + number).collect();
        assert_eq!(programs.take_released(), refused);
        programs.forget(later, || HashSet::from([7, 9]));
        assert_eq!(programs.take_released().len(), PROGRAMS_MAX - 2);
        assert_eq!(found(&programs, 0), Ok(0x4000));
        assert_eq!(programs.find(8, 0).map(|_| ()), Err(Unresolved::UnknownProcess));
    }

    #[test]
    fn a_program_is_forgotten_when_nobody_runs_it() {
        let mut files = Files::default();
        let mut programs = Programs::default();
        let first = map(&mut files, 1, 0x1000);
        assert!(!programs.learn(program(0x1100), 5, &first, 10));
        let later = Window { from_ns: 100, to_ns: 200 };
        programs.forget(later, HashSet::new);
        assert!(found(&programs, 0x10).is_ok(), "a process has it");
        drop(first);
        programs.forget(later, HashSet::new);
        assert_eq!(programs.last(9), None);
    }

    #[test]
    fn a_library_is_its_mapping_and_no_other() {
        let mut files = Files::default();
        let mut programs = Programs::default();
        let map = map(&mut files, 1, 0x1000);
        let mapping = map.iter().next().unwrap();
        for (text, len) in
            [(0x800, 0x1000), (0x1000, 0x2001), (0x1000, 0x1000), (0x2800, 0x1000), (u64::MAX, 1)]
        {
            assert!(!programs.learn_library(Program { number: 9, text, len }, 5, mapping, 10));
            assert_eq!(found(&programs, 0), Err(Unresolved::UnknownProcess), "{text:#x} {len:#x}");
        }
        let whole = Program { number: 9, text: 0x1000, len: 0x2000 };
        assert!(!programs.learn_library(whole, 5, mapping, 10));
        assert_eq!(found(&programs, 0x1fff), Ok(0x5fff));
        let part = Program { number: 9, text: 0x1100, len: 0x10 };
        assert!(!programs.learn_library(part, 6, mapping, 20), "the record of another mapping");
        assert_eq!(found(&programs, 0x1f), Ok(0x401f));
    }

    #[test]
    fn mappings_that_no_record_told_of_come_from_another_process_or_from_proc() {
        let mut files = Files::default();
        let mut programs = Programs::default();
        assert!(!programs.learn(program(0x1100), 5, &AddressMap::default(), 10));
        assert_eq!(found(&programs, 0x10), Err(Unresolved::NoMapping));
        let first = map(&mut files, 1, 0x1000);
        programs.repair(9, &first);
        assert_eq!(found(&programs, 0x10), Ok(0x4110));
        assert!(!programs.learn(program(0x1100), 6, &AddressMap::default(), 20));
        assert_eq!(found(&programs, 0x10), Ok(0x4110));
        // The process that reported last may have mapped another file there since.
        let other = map(&mut files, 2, 0x1000);
        assert!(!programs.learn(program(0x1100), 7, &other, 30));
        let file = programs.find(9, 0x10).unwrap().0.file;
        assert_eq!(file.id, MappedFileId::BuildId(vec![2; 20]), "records are worth more");
    }
}
