//! Perf maps of just-in-time compilers.
#![no_main]

use fuzz::generated;

libfuzzer_sys::fuzz_target!(init: fuzz::begin(generated::perf_map_seeds), |bytes: &[u8]| {
    generated::perf_map(bytes);
});
