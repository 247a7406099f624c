//! Programs and libraries whose text the sampler counts once for all processes that run them: which
//! file a distance from the begin of the text shows.

use super::{AddressMap, Mapping, Window};
use crate::kernel::Program;
use crate::spaces::mapped_files::MappedFile;
use crate::spaces::open_mapped::MappedAt;
use model::Unresolved;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// Programs remembered. More cannot run at once than processes; those that nobody runs go first.
const PROGRAMS_MAX: usize = super::PROCESSES_MAX;

/// A part of a program's text.
#[derive(Clone, Debug)]
struct Part {
    /// First byte, counted from the begin of the text.
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
    /// Whether a process maps it: one is held by [`crate::spaces::mapped_files::Files`].
    fn is_mapped(&self) -> bool {
        self.file.strong_count() > 1
    }

    fn shows_the_same_as(&self, other: &Part) -> bool {
        let place = |part: &Part| (part.start, part.end, part.file_offset);
        let same_build = || {
            self.file
                .upgrade()
                .zip(other.file.upgrade())
                .is_some_and(|(old, new)| old.is_same_build(&new))
        };
        place(self) == place(other) && (Weak::ptr_eq(&self.file, &other.file) || same_build())
    }
}

#[derive(Debug)]
struct Known {
    parts: Vec<Part>,
    /// Another file had the same number until then.
    replaced_ns: Option<u64>,
    /// Who exec'ed it last, and where its text lies there.
    pid: u32,
    text: u64,
    execed_ns: u64,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Programs {
    known: HashMap<u32, Known, foldhash::fast::RandomState>,
}

impl Programs {
    /// Process `pid`, whose memory shows `map`, exec'ed `program` at that time.
    pub fn learn(&mut self, program: Program, pid: u32, map: &AddressMap, time_ns: u64) {
        self.learn_parts(program, pid, parts(program, map), time_ns);
    }

    /// Process `pid` mapped the code of a library at that time. Nothing is learnt of another
    /// mapping.
    pub fn learn_library(&mut self, library: Program, pid: u32, mapping: &Mapping, time_ns: u64) {
        if mapping.start <= library.text && library.text.saturating_add(library.len) <= mapping.end
        {
            let mut map = AddressMap::default();
            map.insert(mapping.clone());
            self.learn_parts(library, pid, parts(library, &map), time_ns);
        }
    }

    fn learn_parts(&mut self, program: Program, pid: u32, parts: Vec<Part>, time_ns: u64) {
        if self.known.len() >= PROGRAMS_MAX && !self.known.contains_key(&program.number) {
            // Files are remembered for a while after nobody maps them: who was exec'ed longest ago
            // goes.
            let oldest = self
                .known
                .iter()
                .min_by_key(|(_, known)| known.execed_ns)
                .map(|(number, _)| *number);
            oldest.and_then(|oldest| self.known.remove(&oldest));
        }
        let known = self.known.entry(program.number).or_insert_with(|| Known {
            parts: Vec::new(),
            replaced_ns: None,
            pid,
            text: program.text,
            execed_ns: time_ns,
        });
        (known.pid, known.text, known.execed_ns) = (pid, program.text, time_ns);
        let same = known.parts.len() == parts.len()
            && known.parts.iter().zip(&parts).all(|(old, new)| old.shows_the_same_as(new));
        // Without a mapping, its record was lost: what another process of the program mapped is as
        // good.
        if parts.is_empty() {
            return;
        }
        // Who has sampled the other file is not forgotten yet, and holds it.
        if !same && known.parts.iter().any(Part::is_mapped) {
            known.replaced_ns = Some(time_ns);
        }
        known.parts = parts;
    }

    /// What showed that byte of the program's text when the samples of this window were taken: a
    /// mapping whose addresses are counted from the begin of the text, and where a process has it.
    ///
    /// # Errors
    /// Why there is none.
    pub fn find(
        &self,
        number: u32,
        distance: u64,
        window: Window,
    ) -> Result<(Mapping, MappedAt), Unresolved> {
        let known = self.known.get(&number).ok_or(Unresolved::UnknownProcess)?;
        if known.replaced_ns.is_some_and(|replaced| replaced >= window.from_ns) {
            return Err(Unresolved::AmbiguousMapping);
        }
        let part = known.parts.iter().find(|part| (part.start..part.end).contains(&distance));
        let part = part.ok_or(Unresolved::NoMapping)?;
        let file = part.file.upgrade().ok_or(Unresolved::UnknownProcess)?;
        let (start, end) = (known.text.wrapping_add(part.start), known.text.wrapping_add(part.end));
        let mapping =
            Mapping { start: part.start, end: part.end, file_offset: part.file_offset, file };
        Ok((mapping, MappedAt { pid: known.pid, start, end }))
    }

    /// Where to look for a program whose mappings no record told of: the process that exec'ed it
    /// last.
    pub fn last(&self, number: u32) -> Option<(u32, u64)> {
        self.known.get(&number).map(|known| (known.pid, known.text))
    }

    /// Takes up what /proc says of the process that exec'ed the program last.
    pub fn repair(&mut self, number: u32, map: &AddressMap) {
        if let Some(known) = self.known.get_mut(&number).filter(|known| known.parts.is_empty()) {
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

    /// Forgets the programs that nobody runs.
    pub fn forget(&mut self, window: Window) {
        self.known.retain(|_, known| {
            known.execed_ns >= window.from_ns || known.parts.iter().any(Part::is_mapped)
        });
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
    use crate::kernel::MappedFileId;
    use crate::spaces::mapped_files::Files;

    const NOW: Window = Window { from_ns: 0, to_ns: 100 };

    fn program(text: u64) -> Program {
        Program { number: 9, text, len: 0x1800 }
    }

    fn map(files: &mut Files, build: u8, at: u64) -> AddressMap {
        let mut map = AddressMap::default();
        let file = files.intern(MappedFileId::BuildId(vec![build; 20]), b"/bin/program");
        map.insert(Mapping { start: at, end: at + 0x2000, file_offset: 0x4000, file });
        map
    }

    fn found(programs: &Programs, distance: u64, window: Window) -> Result<u64, Unresolved> {
        programs
            .find(9, distance, window)
            .map(|(mapping, _)| distance - mapping.start + mapping.file_offset)
    }

    #[test]
    fn a_distance_is_a_file_offset_wherever_the_program_lies() {
        let mut files = Files::default();
        let mut programs = Programs::default();
        let first = map(&mut files, 1, 0x1000);
        let second = map(&mut files, 1, 0x7000_0000);
        programs.learn(program(0x1100), 5, &first, 10);
        assert_eq!(found(&programs, 0x10, NOW), Ok(0x4110));
        programs.learn(program(0x7000_0100), 6, &second, 20);
        assert_eq!(found(&programs, 0x10, NOW), Ok(0x4110), "the same file elsewhere is no doubt");
        let (_, at) = programs.find(9, 0x10, NOW).unwrap();
        assert_eq!((at.pid, at.start, at.end), (6, 0x7000_0100, 0x7000_2000));
        assert_eq!(found(&programs, 0x1f00, NOW), Err(Unresolved::NoMapping));
        // A hard link: cargo runs one file under two names, and its samples were ambiguous for
        // ever.
        let mut linked = AddressMap::default();
        let file = files.intern(MappedFileId::BuildId(vec![1; 20]), b"/bin/link");
        linked.insert(Mapping { start: 0x5000, end: 0x7000, file_offset: 0x4000, file });
        programs.learn(program(0x5100), 7, &linked, 30);
        assert_eq!(
            found(&programs, 0x10, NOW),
            Ok(0x4110),
            "the same file by another name is no doubt"
        );
        programs.learn(program(0x7000_0100), 6, &second, 40);
        assert_eq!(programs.find(8, 0, NOW).map(|_| ()), Err(Unresolved::UnknownProcess));
    }

    /// Rebuilt in place with the same size: the sampler's number is the same, and in that window
    /// nobody can tell.
    #[test]
    fn two_builds_of_one_number_are_not_guessed() {
        let mut files = Files::default();
        let mut programs = Programs::default();
        let (first, second) = (map(&mut files, 1, 0x1000), map(&mut files, 2, 0x1000));
        programs.learn(program(0x1100), 5, &first, 10);
        programs.learn(program(0x1100), 6, &second, 50);
        assert_eq!(found(&programs, 0x10, NOW), Err(Unresolved::AmbiguousMapping));
        let later = Window { from_ns: 100, to_ns: 200 };
        assert!(found(&programs, 0x10, later).is_ok());
        let file = programs.find(9, 0x10, later).unwrap().0.file;
        assert_eq!(file.id, MappedFileId::BuildId(vec![2; 20]));
    }

    #[test]
    fn a_program_is_forgotten_when_nobody_runs_it() {
        let mut files = Files::default();
        let mut programs = Programs::default();
        let first = map(&mut files, 1, 0x1000);
        programs.learn(program(0x1100), 5, &first, 10);
        let later = Window { from_ns: 100, to_ns: 200 };
        programs.forget(later);
        assert!(found(&programs, 0x10, later).is_ok(), "a process has it");
        drop(first);
        programs.forget(later);
        assert_eq!(programs.last(9), None);
    }

    #[test]
    fn a_library_is_its_mapping_and_no_other() {
        let mut files = Files::default();
        let mut programs = Programs::default();
        let map = map(&mut files, 1, 0x1000);
        let mapping = map.iter().next().unwrap();
        for (text, len) in [(0x800, 0x1000), (0x1000, 0x2001), (0x2800, 0x1000), (u64::MAX, 1)] {
            programs.learn_library(Program { number: 9, text, len }, 5, mapping, 10);
            assert_eq!(
                found(&programs, 0, NOW),
                Err(Unresolved::UnknownProcess),
                "{text:#x} {len:#x}"
            );
        }
        programs.learn_library(Program { number: 9, text: 0x1000, len: 0x2000 }, 5, mapping, 10);
        assert_eq!(found(&programs, 0x1fff, NOW), Ok(0x5fff));
        programs.learn_library(Program { number: 9, text: 0x1100, len: 0x10 }, 6, mapping, 20);
        assert_eq!(
            found(&programs, 0x1f, NOW),
            Err(Unresolved::AmbiguousMapping),
            "another place of the file"
        );
    }

    #[test]
    fn mappings_that_no_record_told_of_come_from_another_process_or_from_proc() {
        let mut files = Files::default();
        let mut programs = Programs::default();
        programs.learn(program(0x1100), 5, &AddressMap::default(), 10);
        assert_eq!(found(&programs, 0x10, NOW), Err(Unresolved::NoMapping));
        let first = map(&mut files, 1, 0x1000);
        programs.repair(9, &first);
        assert_eq!(found(&programs, 0x10, NOW), Ok(0x4110));
        programs.learn(program(0x1100), 6, &AddressMap::default(), 20);
        assert_eq!(found(&programs, 0x10, NOW), Ok(0x4110));
    }
}
