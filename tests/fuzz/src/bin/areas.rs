//! Fuzzer of files of block counts.
#![no_main]

use fuzz::areas;

libfuzzer_sys::fuzz_target!(init: fuzz::begin(areas::seeds), |bytes: &[u8]| {
    areas::area(bytes);
});
