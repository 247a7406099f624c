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
