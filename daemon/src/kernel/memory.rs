//! Memory that was needed once: loading the sampler and reading the kernel's symbols take some 30 MB for a moment, in many small pieces.

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
