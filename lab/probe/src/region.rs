//! Memory whose page size is known.

use std::ptr::NonNull;

/// Bytes of a large page, of x86-64 and of arm64 with pages of 4 KiB.
pub const LARGE_PAGE_BYTES: usize = 2 << 20;
/// Bytes of a small page here. Of arm64's other page sizes only the names of results differ.
pub const PAGE_BYTES: usize = 4096;

/// The pages that a region asks the kernel for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Pages of 4 KiB (`MADV_NOHUGEPAGE`).
    Small,
    /// Pages of 2 MiB (`MADV_HUGEPAGE`); small ones where the kernel has none to give.
    Large,
}

/// Anonymous memory, zero at first, of this process alone. It is given back when dropped.
#[derive(Debug)]
pub struct Region {
    begin: NonNull<u8>,
    mapped_bytes: usize,
    /// Distance from the start of the mapping to the first large page boundary.
    skipped_bytes: usize,
    bytes: usize,
}

// SAFETY: a region is the only owner of its memory.
unsafe impl Send for Region {}

impl Region {
    /// Maps `bytes` of memory, rounded up to whole large pages, and touches every page. None where
    /// the kernel has no room.
    #[must_use]
    pub fn new(bytes: usize, pages: Pages) -> Option<Self> {
        let bytes = bytes.max(1).checked_next_multiple_of(LARGE_PAGE_BYTES)?;
        let mapped_bytes = bytes.checked_add(LARGE_PAGE_BYTES)?;
        // SAFETY: a new private mapping at an address of the kernel's choice touches nothing else.
        let begin = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if begin == libc::MAP_FAILED {
            return None;
        }
        let begin = NonNull::new(begin.cast::<u8>())?;
        let advice = match pages {
            Pages::Small => libc::MADV_NOHUGEPAGE,
            Pages::Large => libc::MADV_HUGEPAGE,
        };
        // SAFETY: the range is the mapping above. Where the kernel knows no large pages it refuses,
        // and nothing changes.
        unsafe { libc::madvise(begin.as_ptr().cast(), mapped_bytes, advice) };
        let skipped_bytes = begin.as_ptr().align_offset(LARGE_PAGE_BYTES);
        let mut this = Self { begin, mapped_bytes, skipped_bytes, bytes };
        for page in (0..bytes).step_by(PAGE_BYTES) {
            this.write(page, 1);
            this.write(page, 0);
        }
        Some(this)
    }

    /// Bytes of the region.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of the byte at `offset`, which is reduced to one within the region.
    #[must_use]
    pub fn address(&self, offset: usize) -> usize {
        self.begin.as_ptr() as usize + self.skipped_bytes + offset.min(self.bytes - 8)
    }

    /// Writes a word at a byte offset, which is reduced to one within the region.
    pub fn write(&mut self, offset: usize, word: usize) {
        // SAFETY: `address` keeps 8 bytes within the mapping, and nothing holds a reference to it.
        unsafe { std::ptr::write_volatile(self.address(offset) as *mut usize, word) }
    }

    /// Reads the word at a byte offset, which is reduced to one within the region.
    #[must_use]
    pub fn read(&self, offset: usize) -> usize {
        // SAFETY: `address` keeps 8 bytes within the mapping.
        unsafe { std::ptr::read_volatile(self.address(offset) as *const usize) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is this region's, and no address of it is used any more.
        unsafe { libc::munmap(self.begin.as_ptr().cast(), self.mapped_bytes) };
    }
}

/// Whether this process has at least `bytes` of large pages now. The kernel need not provide them.
#[must_use]
pub fn has_large_pages(bytes: usize) -> bool {
    let sums = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = sums.lines().find_map(|line| line.strip_prefix("AnonHugePages:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    kib.is_some_and(|kib| kib >> 10 >= bytes >> 20)
}
