//! Requests on the control socket, as dcpid reads them.
#![no_main]

use fuzz::control;

libfuzzer_sys::fuzz_target!(init: fuzz::begin(control::request_seeds), |bytes: &[u8]| {
    control::request(bytes);
});
