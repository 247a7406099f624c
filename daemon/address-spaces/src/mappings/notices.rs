//! The state that the loader hook's notices are compared with.

use super::Mappings;
use image::ImageId;
use kernel::procfs::MapsLine;
use kernel::{MappedFileId, Record, RecordKind, TimedRecord};

impl Mappings {
    /// Whether the current mapping of `pid` at `address` is already known, with the same build if
    /// both sources name one.
    pub fn shows(&self, pid: u32, address: u64, build: Option<ImageId>) -> bool {
        let now = self.processes.get(&pid).and_then(|process| process.versions.last());
        let mapping = now.and_then(|now| now.map.find(address));
        mapping.is_some_and(|mapping| match (mapping.file.id.build(), build) {
            (Some(known), Some(build)) => known.build() == build,
            _ => true,
        })
    }

    /// Whether `pid` has left, since `time_ns`, the address space that it had then.
    pub fn has_left_since(&self, pid: u32, time_ns: u64) -> bool {
        let Some(process) = self.processes.get(&pid) else { return false };
        process
            .versions
            .iter()
            .any(|version| version.until_ns != u64::MAX && version.until_ns >= time_ns)
    }

    /// Adds a mapping that /proc shows, as if the kernel's record had just arrived.
    pub fn take_up(&mut self, pid: u32, line: &MapsLine, file: MappedFileId, now_ns: u64) {
        let (start, len) = (line.start, line.end.saturating_sub(line.start));
        let record = Record {
            pid,
            start,
            len,
            file_offset: line.file_offset,
            path: line.path.clone(),
            file,
        };
        let record = TimedRecord { time_ns: now_ns, kind: RecordKind::Mmap(record) };
        self.learnt.push(record.clone());
        self.apply(record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PID: u32 = (1 << abi::PID_BITS) - 9;

    #[test]
    fn what_is_known_is_known_by_its_build() {
        let id = |byte| MappedFileId::BuildId(vec![byte; 20]);
        let line = |start| {
            let file = MappedFileId::Inode { major: 0, minor: 1, inode: 2 };
            MapsLine {
                start,
                end: start + 0x1000,
                constant: true,
                file_offset: 0,
                file,
                path: b"/bin/x".to_vec(),
            }
        };
        let mut mappings = Mappings::default();
        mappings.take_up(PID, &line(0x1000), id(7), 5);
        mappings.take_up(PID, &line(0x5000), line(0).file, 5);
        for (address, build, expected) in [
            (0x1000, Some([7; 20]), true),
            (0x1fff, None, true),
            (0x1000, Some([8; 20]), false),
            (0x2000, Some([7; 20]), false),
            (0x5000, Some([8; 20]), true),
        ] {
            let build = build.and_then(|bytes: [u8; 20]| ImageId::from_build_id(&bytes));
            assert_eq!(mappings.shows(PID, address, build), expected, "{address:#x} {build:?}");
        }
        assert!(!mappings.shows(PID + 1, 0x1000, None));
        assert!(!mappings.has_left_since(PID, 0));
        mappings.apply(TimedRecord { time_ns: 10, kind: RecordKind::Exec { pid: PID } });
        assert!(mappings.has_left_since(PID, 10) && !mappings.has_left_since(PID, 11));
        assert!(!mappings.shows(PID, 0x1000, None), "the program that had it is gone");
    }
}
