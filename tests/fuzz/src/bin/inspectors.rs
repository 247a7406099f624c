//! Fuzzer of answers of inspectors, which a process that they inspect may have taken over.
#![no_main]

use fuzz::inspectors;

libfuzzer_sys::fuzz_target!(init: fuzz::begin(inspectors::seeds), |bytes: &[u8]| {
    inspectors::answer(bytes);
});
