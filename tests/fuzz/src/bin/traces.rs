//! Traces, of `dcpi trace` and of other tools.
#![no_main]

use fuzz::traces;

libfuzzer_sys::fuzz_target!(init: fuzz::begin(traces::seeds), |bytes: &[u8]| {
    traces::read(bytes);
});
