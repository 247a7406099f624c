//! Memory of processes that run CPython: threads, code objects, lines.
#![no_main]

use fuzz::python;

libfuzzer_sys::fuzz_target!(init: fuzz::begin(python::memory_seeds), |bytes: &[u8]| {
    python::memory(bytes);
});
