//! What programs say of their own threads: labels, records, and how records are read.
#![no_main]

use fuzz::attributes;

libfuzzer_sys::fuzz_target!(init: fuzz::begin(attributes::seeds), |bytes: &[u8]| {
    attributes::read(bytes);
});
