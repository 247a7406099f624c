//! Which of the process's memory is in huge pages, for the model of the TLB.
//!
//! The kernel tells it by PAGEMAP_SCAN (include/uapi/linux/fs.h, Linux 6.7). Before, and where the
//! process may not open files, the model takes all memory for pages of 4 KiB.

use crate::area::record;
use crate::area::writer::Area;
use crate::system::{self, number};

/// PAGEMAP_SCAN: `_IOWR('f', 16, struct pm_scan_arg)`, which has 96 bytes.
const PAGEMAP_SCAN: u64 = 0xc060_6610;
const O_RDONLY: u64 = 0;
/// PAGE_IS_HUGE.
const HUGE: u64 = 1 << 6;
/// End of the addresses of programs, with tables of four levels.
const END: u64 = 0x7fff_ffff_f000;
/// Ranges of one call, on the stack of the engine.
const RANGES: usize = 32;
/// Calls of one scan. Memory behind 4096 ranges is taken for small pages.
const CALLS_MAX: usize = 128;

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    ranges: u64,
    ranges_len: u64,
    pages_max: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    told: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Range {
    start: u64,
    end: u64,
    categories: u64,
}

/// Records the ranges of huge pages that the process has now.
pub fn record(area: &mut Area) {
    area.record(record::HUGE);
    let Ok(file) = system::open(b"/proc/self/pagemap\0", O_RDONLY, 0) else { return };
    let mut ranges = [Range::default(); RANGES];
    let mut start = 0;
    for _ in 0..CALLS_MAX {
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            start,
            end: END,
            ranges: ranges.as_mut_ptr() as u64,
            ranges_len: RANGES as u64,
            all_of: HUGE,
            told: HUGE,
            ..Scan::default()
        };
        // SAFETY: the kernel reads and writes `scan`, and writes at most `ranges_len` ranges.
        let found =
            unsafe { system::call3(number::IOCTL, file, PAGEMAP_SCAN, &raw mut scan as u64) };
        let found = usize::try_from(found).unwrap_or(0);
        for range in ranges.iter().take(found) {
            area.record(record::HUGE | range.start << record::NUMBER);
            area.record(record::HUGE | range.end << record::NUMBER);
        }
        start = scan.walk_end;
        if found < RANGES || start >= END {
            break;
        }
    }
    system::close(file);
}
