//! Whether accesses are to huge pages, by the page tables of their process.

use kernel::PageTables;
use std::collections::HashMap;

/// Processes whose page tables are open; beyond, all are closed.
const PROCESSES_MAX: usize = 32;
/// One of so many walks is asked of, and of it so many accesses at most: what is told of an
/// instruction is a share, for which some tens of its accesses are enough.
const WALKS_APART: u64 = 4;
const OF_WALK_MAX: usize = 8;
/// Walks asked of after which page tables are opened anew: another process may have the number.
const OPEN_FOR: u64 = 256;

/// Page tables of processes.
#[derive(Default)]
pub struct PageSizes {
    /// By the kernel's number of the process; None: it has ended, or may not be read.
    open: HashMap<u32, Option<PageTables>, foldhash::fast::RandomState>,
    walks: u64,
    /// Accesses of this walk that may still be asked of.
    left: usize,
}

impl PageSizes {
    /// The next walk begins.
    pub fn begin_walk(&mut self) {
        self.walks += 1;
        let is_asked_of = self.walks.is_multiple_of(WALKS_APART);
        self.left = if is_asked_of { OF_WALK_MAX } else { 0 };
        if self.walks.is_multiple_of(WALKS_APART * OPEN_FOR) || self.open.len() >= PROCESSES_MAX {
            self.open.clear();
        }
    }

    /// Whether an address is in a huge page of the process; None: not known, or not asked.
    pub fn is_huge(&mut self, process: u32, address: u64) -> Option<bool> {
        self.left = self.left.checked_sub(1)?;
        let open = || PageTables::open(process).ok();
        self.open.entry(process).or_insert_with(open).as_ref()?.is_huge(address)
    }
}
