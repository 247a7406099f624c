//! Recordings of the daemon's input, read and merged.
#![no_main]

use fuzz::recordings;

libfuzzer_sys::fuzz_target!(init: fuzz::begin(recordings::seeds), |bytes: &[u8]| {
    recordings::recording(bytes);
});
