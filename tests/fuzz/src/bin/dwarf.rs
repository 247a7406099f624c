//! Debug information: source lines and inlined calls.
#![no_main]

use fuzz::images;

libfuzzer_sys::fuzz_target!(init: fuzz::begin(images::debug_info_seeds), |bytes: &[u8]| {
    images::debug_info(bytes);
});
