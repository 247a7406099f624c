//! Files of programs, among those that a process has mapped.

use super::questions::{FileAt, Unwind};
use std::collections::HashMap;

/// Files that are known. Beyond, all are forgotten and read again.
const FILES_MAX: usize = 64;

/// What was read of files that may be a runtime's program: one entry for each file.
pub struct Programs<P>(HashMap<kernel::MappedFileId, P>);

impl<P> Default for Programs<P> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<P> Programs<P> {
    /// What was read of a file.
    pub fn get(&self, file: &kernel::MappedFileId) -> Option<&P> {
        self.0.get(file)
    }

    /// The first mapped file that is a program of the runtime, and the difference between the
    /// process's addresses and the file's. `may_be` judges a path; `read` reads a file, and fails
    /// where it cannot be opened through this process; `bias` has what was read, an address, and
    /// the offset in the file that is mapped there.
    pub fn find(
        &mut self,
        asked: &Unwind,
        may_be: fn(&[u8]) -> bool,
        read: impl Fn(&FileAt) -> Option<P>,
        bias: impl Fn(&P, u64, u64) -> Option<u64>,
    ) -> Option<(kernel::MappedFileId, u64)> {
        if self.0.len() > FILES_MAX {
            self.0.clear();
        }
        let mapped = asked.map.iter().filter_map(|mapped| Some((mapped, mapped.code.file()?)));
        for (mapped, file) in mapped.filter(|(_, file)| may_be(&file.path.0)) {
            if !self.0.contains_key(&file.id) {
                // Through another process it may be opened later.
                let Some(program) = read(file) else { continue };
                self.0.insert(file.id.clone(), program);
            }
            let program = self.0.get(&file.id);
            if let Some(bias) =
                program.and_then(|program| bias(program, mapped.range.0, mapped.file_offset))
            {
                return Some((file.id.clone(), bias));
            }
        }
        None
    }
}
