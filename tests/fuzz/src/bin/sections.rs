//! Sections of segments: counts of each shape, symbols.
#![no_main]

use fuzz::databases;

libfuzzer_sys::fuzz_target!(init: fuzz::begin(databases::section_seeds), |bytes: &[u8]| {
    databases::section(bytes);
});
