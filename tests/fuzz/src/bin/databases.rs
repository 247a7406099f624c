//! Databases, read and checked; code stores.
#![no_main]

use fuzz::databases;

libfuzzer_sys::fuzz_target!(init: fuzz::begin(databases::seeds), |bytes: &[u8]| {
    databases::read(bytes);
});
