//! The version of a file that a process mapped, for files that the kernel identifies by inode only.
//! A program without a build id may be rebuilt in the same inode, or in a new inode with the same
//! number, and run again before the next drain.
//!
//! The sampler tells the state of each file that is mapped ([`kernel::RecordKind::File`]). Where it
//! cannot, or where the message had no room, the file is inspected when the record of its mapping
//! is read, a fraction of a second after it was mapped.

use inspect::open_mapped::MappedAt;
use inspect::pool::Inspectors;
use inspect::questions::{FactsByPath, FactsOfMapping, FileAt};
use kernel::MappedFileId;
use kernel::clock;
use kernel::latin1::Bytes;
use std::collections::HashMap;

/// The result of inspecting a path.
#[derive(Clone, Copy, Debug)]
struct Looked {
    content: u64,
    /// CLOCK_MONOTONIC; 0: before the machine started.
    changed_ns: u64,
}

/// Files inspected since records were last read. Each is inspected once, even if several processes
/// map it.
#[derive(Debug, Default)]
pub struct Versions {
    looked: HashMap<(MappedFileId, Vec<u8>), Option<Looked>, foldhash::fast::RandomState>,
}

impl Versions {
    /// Forgets all results, so that files are looked at again.
    pub fn look_anew(&mut self) {
        self.looked.clear();
    }

    /// Identifies the content of a file that was mapped at `time_ns` (CLOCK_MONOTONIC), by a number
    /// that differs after each change. None: the file was changed or removed before it could be
    /// looked at.
    pub fn content(
        &mut self,
        inspectors: &Inspectors,
        id: &MappedFileId,
        path: &[u8],
        at: MappedAt,
        time_ns: u64,
    ) -> Option<u64> {
        let file = || FileAt { id: id.clone(), path: Bytes(path.to_vec()), at };
        let looked = self.looked.entry((id.clone(), path.to_vec()));
        let looked = *looked.or_insert_with(|| {
            let facts = inspectors.ask(FactsByPath(file()))??;
            let (seconds, nanoseconds) = facts.ctime;
            let changed_ns = clock::monotonic_of_real(seconds, nanoseconds);
            Some(Looked { content: facts.content(), changed_ns })
        });
        if let Some(looked) = looked.filter(|looked| looked.changed_ns <= time_ns) {
            return Some(looked.content);
        }
        // The file may have been renamed since; the mapping still leads to it.
        Some(inspectors.ask(FactsOfMapping(file()))??.content())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inspect::file_facts::FileFacts;
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;
    use std::path::{Path, PathBuf};

    const NOBODY: MappedAt = MappedAt { pid: u32::MAX, start: 0, end: 0 };

    fn written(directory: &Path, text: &str) -> (PathBuf, MappedFileId) {
        let path = directory.join("program");
        fs::write(&path, text).unwrap();
        let metadata = path.metadata().unwrap();
        let device = metadata.dev();
        let (major, minor) =
            (nix::sys::stat::major(device) as u32, nix::sys::stat::minor(device) as u32);
        (path, MappedFileId::Inode { major, minor, inode: metadata.ino() })
    }

    /// Built again in place between two runs: the second build is another file, and which one the
    /// first run had cannot be known any more.
    #[test]
    fn what_was_changed_after_it_was_mapped_is_not_what_was_mapped() {
        let directory = tempfile::tempdir().unwrap();
        let (path, id) = written(directory.path(), "first");
        let bytes = path.as_os_str().as_encoded_bytes();
        let mut versions = Versions::default();
        let first =
            versions.content(&Inspectors::default(), &id, bytes, NOBODY, clock::monotonic_ns());
        assert!(first.is_some());
        let first_run = clock::monotonic_ns();
        // Times of files are those of the last timer tick, so a change is seen once that is later
        // than the run.
        let second = loop {
            let (_, same) = written(directory.path(), "second");
            assert_eq!(same, id, "written in place");
            versions.look_anew();
            if versions.content(&Inspectors::default(), &id, bytes, NOBODY, first_run).is_none() {
                break versions.content(
                    &Inspectors::default(),
                    &id,
                    bytes,
                    NOBODY,
                    clock::monotonic_ns(),
                );
            }
        };
        assert!(second.is_some() && second != first, "{first:?} {second:?}");
        fs::remove_file(&path).unwrap();
        assert_eq!(
            versions.content(&Inspectors::default(), &id, bytes, NOBODY, clock::monotonic_ns()),
            second,
            "looked at once"
        );
        versions.look_anew();
        assert_eq!(
            versions.content(&Inspectors::default(), &id, bytes, NOBODY, clock::monotonic_ns()),
            None
        );
        let other = MappedFileId::Inode { major: 0, minor: 0, inode: 1 };
        let (path, _) = written(directory.path(), "third");
        assert_eq!(
            versions.content(
                &Inspectors::default(),
                &other,
                path.as_os_str().as_encoded_bytes(),
                NOBODY,
                u64::MAX
            ),
            None
        );
    }

    #[test]
    fn what_a_process_has_mapped_is_what_it_mapped_whatever_became_of_its_name() {
        let exe = fs::metadata("/proc/self/exe").unwrap();
        let device = exe.dev();
        let (major, minor) =
            (nix::sys::stat::major(device) as u32, nix::sys::stat::minor(device) as u32);
        let id = MappedFileId::Inode { major, minor, inode: exe.ino() };
        let maps = kernel::procfs::executable_mappings(std::process::id()).unwrap();
        let own = std::env::current_exe().unwrap();
        let line =
            maps.iter().find(|line| line.path == own.as_os_str().as_encoded_bytes()).unwrap();
        let at = MappedAt { pid: std::process::id(), start: line.start, end: line.end };
        let through_mapping =
            Versions::default().content(&Inspectors::default(), &id, b"/gone", at, 0);
        // A process without the capability to look through mappings sees nothing, which is not an
        // error.
        assert!(
            through_mapping.is_none_or(|content| content == FileFacts::of(&exe).content()),
            "{through_mapping:?}"
        );
    }
}
