//! Jitdumps of just-in-time compilers.
#![no_main]

use fuzz::generated;

libfuzzer_sys::fuzz_target!(init: fuzz::begin(generated::jitdump_seeds), |bytes: &[u8]| {
    generated::jitdump(bytes);
});
