//! The interpreter, on arbitrary code and registers.
#![no_main]

use fuzz::code_bytes;

libfuzzer_sys::fuzz_target!(init: fuzz::begin(code_bytes::walk_seeds), |bytes: &[u8]| {
    code_bytes::walk(bytes);
});
