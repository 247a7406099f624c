//! Databases, shown by eight commands of dcpi.
#![no_main]

use fuzz::databases;

libfuzzer_sys::fuzz_target!(init: fuzz::begin(databases::shown_seeds), |bytes: &[u8]| {
    databases::shown(bytes);
});
