//! Texts of /proc about a process: mappings, control group, status, stat.
#![no_main]

use fuzz::processes;

libfuzzer_sys::fuzz_target!(init: fuzz::begin(processes::seeds), |bytes: &[u8]| {
    processes::text(bytes);
});
