//! Memory of processes that run BEAM: the list of modules, functions.
#![no_main]

use fuzz::erlang;

libfuzzer_sys::fuzz_target!(init: fuzz::begin(erlang::memory_seeds), |bytes: &[u8]| {
    erlang::memory(bytes);
});
