//! Datagrams of the loader hook, which any user may send.
#![no_main]

use fuzz::control;

libfuzzer_sys::fuzz_target!(init: fuzz::begin(control::notice_seeds), |bytes: &[u8]| {
    control::notice(bytes);
});
