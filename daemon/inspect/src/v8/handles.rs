//! Code of functions in V8 since 13.x, where a closure has a handle in its place: the number of an
//! entry in a table of the process (src/sandbox/js-dispatch-table.h: the address of the first
//! instruction; 16 bits of a number of parameters below the pointer to the code).
//!
//! No symbol tells where the table is. It begins where memory is mapped, and is found by what is in
//! it: the entry of a closure's handle leads to code that has the very address that the closure's
//! frame executes.

use super::codes::{self, Code};
use super::objects::{Heap, object};
use crate::python::Memory;
use std::collections::HashMap;

/// By how many bits a handle is shifted: `kJSDispatchHandleShift` (include/v8-internal.h), by the
/// size of the reserved memory.
const SHIFTS: [u32; 2] = [8, 9];
/// Bytes of an entry (`kJSDispatchTableEntrySize`).
const ENTRY_BYTES: u64 = 16;
/// The table begins at multiples of this.
const ALIGNMENT: u64 = 64 << 10;
/// Mappings of a process that are looked at.
const CANDIDATES_MAX: usize = 512;
/// Frames of a process for which the table is looked for, as long as it is not found: each takes
/// about 0.2 ms.
const LOOKS_MAX: u32 = 64;
/// Frames of one question for which it is looked for.
const LOOKS_EACH: u32 = 4;
/// Processes that are known; beyond, all are forgotten.
const PROCESSES_MAX: usize = 256;

/// The tables of processes.
#[derive(Default)]
pub struct Handles {
    known: HashMap<u32, Known>,
    /// The rest of [`LOOKS_EACH`].
    looks_left: u32,
    /// Mappings of the question's process that may begin with the table.
    candidates: Option<Vec<u64>>,
}

#[derive(Default)]
struct Known {
    /// Address, and the shift of handles.
    table: Option<(u64, u32)>,
    looks: u32,
}

impl Handles {
    /// A new question begins.
    pub fn begin(&mut self) {
        self.looks_left = LOOKS_EACH;
        self.candidates = None;
        if self.known.len() > PROCESSES_MAX {
            self.known.clear();
        }
    }

    /// The code that a handle leads to, if it has an address.
    pub fn code(
        &mut self,
        space: u32,
        (handle, address): (u32, u64),
        heap: &Heap<'_, impl Memory>,
        maps: impl FnOnce() -> Vec<u64>,
    ) -> Option<Code> {
        let known = self.known.entry(space).or_default();
        if let Some(table) = known.table {
            return entry(table, handle, address, heap);
        }
        if handle == 0 || known.looks >= LOOKS_MAX || self.looks_left == 0 {
            return None;
        }
        (known.looks, self.looks_left) = (known.looks + 1, self.looks_left - 1);
        let candidates = self.candidates.get_or_insert_with(maps);
        let tables = candidates.iter().flat_map(|base| SHIFTS.map(|shift| (*base, shift)));
        for table in tables {
            if let Some(code) = entry(table, handle, address, heap) {
                known.table = Some(table);
                return Some(code);
            }
        }
        None
    }
}

/// The code of a handle by this table.
fn entry(
    (base, shift): (u64, u32),
    handle: u32,
    address: u64,
    heap: &Heap<'_, impl Memory>,
) -> Option<Code> {
    let at = u64::from(handle >> shift).checked_mul(ENTRY_BYTES)?.checked_add(8)?;
    // The lowest bit of the pointer is the garbage collector's.
    let word = heap.word(base, at)? >> 16 | 1;
    codes::at(object(word)?, address, heap.layout.code.as_ref()?, heap)
}

/// First addresses of a process's mappings that may begin with the table.
pub fn candidates(maps: &[u8]) -> Vec<u64> {
    let begin = |line: &[u8]| {
        let line = std::str::from_utf8(line).ok()?;
        let mut words = line.split_ascii_whitespace();
        let (start, _) = words.next()?.split_once('-')?;
        let rights = words.next()?;
        let is_data = rights.starts_with('r') && !rights.contains('x');
        let inode = words.nth(2)?;
        let start = u64::from_str_radix(start, 16).ok()?;
        let may_begin = is_data && inode == "0" && start.is_multiple_of(ALIGNMENT);
        may_begin.then_some(start)
    };
    maps.split(|byte| *byte == b'\n').filter_map(begin).take(CANDIDATES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_without_a_file_may_begin_with_the_table() {
        let maps = b"7f0000000000-7f0000010000 rw-p 00000000 00:00 0 \n\
            7f0000011000-7f0000020000 rw-p 00000000 00:00 0 \n\
            7f0000020000-7f0000030000 r--p 00000000 00:00 0 \n\
            7f0000030000-7f0000040000 rwxp 00000000 00:00 0 \n\
            7f0000040000-7f0000050000 ---p 00000000 00:00 0 \n\
            7f0000050000-7f0000060000 rw-p 00000000 08:01 77 /x/data\n\
            \xff\n\nrubbish";
        assert_eq!(candidates(maps), [0x7f00_0000_0000, 0x7f00_0002_0000]);
    }
}
