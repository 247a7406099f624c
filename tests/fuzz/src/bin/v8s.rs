//! Memory of processes that run V8: functions, scopes, scripts, positions.
#![no_main]

use fuzz::v8;

libfuzzer_sys::fuzz_target!(init: fuzz::begin(v8::memory_seeds), |bytes: &[u8]| {
    v8::memory(bytes);
});
