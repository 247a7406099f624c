//! Replies on a control socket, as clients read them.
#![no_main]

use fuzz::control;

libfuzzer_sys::fuzz_target!(init: fuzz::begin(control::reply_seeds), |bytes: &[u8]| {
    control::reply(bytes);
});
