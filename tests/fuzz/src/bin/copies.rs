//! Databases, also out of archives, copied, merged and sealed.
#![no_main]

use fuzz::databases;

libfuzzer_sys::fuzz_target!(init: fuzz::begin(databases::seeds), |bytes: &[u8]| {
    databases::copied(bytes);
});
