//! Memory of processes that run HotSpot: code, its tables, methods.
#![no_main]

use fuzz::hotspot;

libfuzzer_sys::fuzz_target!(init: fuzz::begin(hotspot::memory_seeds), |bytes: &[u8]| {
    hotspot::memory(bytes);
});
