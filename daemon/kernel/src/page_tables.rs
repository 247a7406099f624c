//! The sizes of a process's pages, by PAGEMAP_SCAN (include/uapi/linux/fs.h, Linux 6.7).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// PAGE_IS_PRESENT and PAGE_IS_HUGE.
const PRESENT: u64 = 1 << 3;
const HUGE: u64 = 1 << 6;
/// Bytes of the smallest page.
const PAGE: u64 = 4096;

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
pub struct Scan {
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
#[derive(Default)]
struct Found {
    start: u64,
    end: u64,
    categories: u64,
}

nix::ioctl_readwrite!(
    /// PAGEMAP_SCAN.
    pagemap_scan, b'f', 16, Scan
);

/// The page tables of a process.
#[derive(Debug)]
pub struct PageTables(File);

impl PageTables {
    /// The page tables of the process of this number in this process's namespace.
    ///
    /// # Errors
    /// The process has ended, or may not be read.
    pub fn open(process: u32) -> io::Result<Self> {
        File::open(format!("/proc/{process}/pagemap")).map(Self)
    }

    /// Whether an address is in a page of 2 MiB or more; None where it has no page, and before
    /// Linux 6.7. About a microsecond.
    pub fn is_huge(&self, address: u64) -> Option<bool> {
        let mut found = Found::default();
        let start = address & !(PAGE - 1);
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            start,
            end: start.checked_add(PAGE)?,
            ranges: &raw mut found as u64,
            ranges_len: 1,
            any_of: PRESENT,
            told: PRESENT | HUGE,
            ..Scan::default()
        };
        // SAFETY: the kernel reads and writes `scan`, and writes at most one range to `found`.
        let told = unsafe { pagemap_scan(self.0.as_raw_fd(), &raw mut scan) };
        (told == Ok(1)).then_some(found.categories & HUGE != 0)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests panic to fail")]
mod tests {
    use super::*;

    #[test]
    fn own_memory_is_told() {
        let own = PageTables::open(std::process::id()).unwrap();
        let number = 7_u64;
        // Linux before 6.7 tells nothing; a stack in small pages is the rule, not the law.
        let told = own.is_huge(&raw const number as u64);
        assert_eq!(told.is_some(), own.is_huge(own_memory_is_told as *const () as u64).is_some());
        for address in [0, u64::MAX, 1 << 63] {
            assert_eq!(own.is_huge(address), None);
        }
        assert!(PageTables::open(u32::MAX).is_err());
    }
}
