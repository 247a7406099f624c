//! Returns memory that only the start needed: loading the sampler and reading the kernel's symbols
//! take about 30 MB for a moment, in many small pieces, and code that does not run again.

use super::MappedFileId;
use crate::procfs::executable_mappings;
use nix::sys::mman::{MmapAdvise, madvise};
use std::ptr::NonNull;

/// Makes all threads share one heap: a second heap for the thread that merges would keep half a
/// megabyte for nothing. Must be called before any thread is started.
pub fn share_heap() {
    #[cfg(target_env = "gnu")]
    {
        use std::ffi::c_int;
        unsafe extern "C" {
            fn mallopt(parameter: c_int, value: c_int) -> c_int;
        }
        const M_ARENA_MAX: c_int = -8; // malloc.h
        // SAFETY: the function of that signature in glibc (mallopt(3)); there is one thread yet.
        unsafe { mallopt(M_ARENA_MAX, 1) };
    }
}

/// Returns the free parts of the heap to the kernel: malloc_trim(3), which also returns whole pages
/// in the middle of the heap (glibc 2.8). With another C library the memory stays ours.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        // SAFETY: the function of that signature in glibc; it may be called at any time from any
        // thread.
        unsafe { malloc_trim(0) };
    }
}

/// Returns the memory of all code. Code that runs again is read from the page cache, 64 KiB at a
/// time; code that only the start needed, more than a megabyte with the C library's, is not.
pub fn give_back_code() {
    let files = |file: &MappedFileId| matches!(file, MappedFileId::Inode { inode: 1.., .. });
    let mappings = executable_mappings("self").unwrap_or_default();
    for code in mappings.iter().filter(|mapping| mapping.constant && files(&mapping.file)) {
        let Some(start) = NonNull::new(code.start as *mut _) else { continue };
        // SAFETY: these are private mappings of files to which nothing may write, so no page
        // differs from its file. On failure the mappings stay as they are.
        let _ =
            unsafe { madvise(start, (code.end - code.start) as usize, MmapAdvise::MADV_DONTNEED) };
    }
}
