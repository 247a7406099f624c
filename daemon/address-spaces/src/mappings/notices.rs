//! The state that the loader hook's notices are compared with.

use super::Mappings;
use kernel::procfs::MapsLine;
use kernel::{MappedFileId, Record, RecordKind, TimedRecord};

impl Mappings {
    /// Whether the current mapping of `pid` at `address` is already known.
    pub fn shows(&self, pid: u32, address: u64) -> bool {
        let now = self.processes.get(&pid).and_then(|process| process.versions.last());
        now.is_some_and(|now| now.map.find(address).is_some())
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
    fn what_is_known_is_known_by_its_address() {
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
        mappings.take_up(PID, &line(0x1000), line(0).file, 5);
        for (address, expected) in
            [(0x0fff, false), (0x1000, true), (0x1fff, true), (0x2000, false)]
        {
            assert_eq!(mappings.shows(PID, address), expected, "{address:#x}");
        }
        assert!(!mappings.shows(PID + 1, 0x1000));
        assert!(!mappings.has_left_since(PID, 0));
        mappings.apply(TimedRecord { time_ns: 10, kind: RecordKind::Exec { pid: PID } });
        assert!(mappings.has_left_since(PID, 10) && !mappings.has_left_since(PID, 11));
        assert!(!mappings.shows(PID, 0x1000), "the program that had it is gone");
    }
}
