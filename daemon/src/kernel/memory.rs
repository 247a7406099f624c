//! Memory that was needed once: loading the sampler and reading the kernel's symbols take some 30 MB for a moment, in many small pieces.

/// Has all threads share one heap: a second one for the thread that merges would keep half a megabyte for nothing. To be called before any
/// thread is started.
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

/// Gives what is free in the heap back to the kernel: malloc_trim(3), which also gives back whole pages in the middle of the heap
/// (glibc 2.8). With another C library the memory stays ours.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        // SAFETY: the function of that signature in glibc; it may be called at any time from any thread.
        unsafe { malloc_trim(0) };
    }
}

/// Lets go of the pages of programs' code that this process has mapped: those that are used again come back from the page cache, 64 KiB at a
/// time (mm/memory.c, `do_fault_around`); those that were used once, to start, do not. With the kernel's types, arguments and configuration to be
/// read, they are three of four.
pub fn forget_code() {
    use nix::sys::mman::{MmapAdvise, madvise};
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    for line in maps.lines() {
        let mut fields = line.split_ascii_whitespace();
        let (Some(range), Some("r-xp"), Some(path)) = (fields.next(), fields.next(), fields.nth(3)) else { continue };
        let Some((begin, end)) = range.split_once('-') else { continue };
        let (Ok(begin), Ok(end)) = (usize::from_str_radix(begin, 16), usize::from_str_radix(end, 16)) else { continue };
        let address = std::ptr::NonNull::new(std::ptr::with_exposed_provenance_mut(begin));
        if let (Some(address), Some(len), true) = (address, end.checked_sub(begin), path.starts_with('/')) {
            // SAFETY: a private mapping of a file that nobody may write to, so nobody has: what comes back is what went (madvise(2)).
            let _ = unsafe { madvise(address, len, MmapAdvise::MADV_DONTNEED) }; // else they stay
        }
    }
}
