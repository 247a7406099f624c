//! Unwind tables of programs in Go, in walks of made-up stacks.
#![no_main]

use fuzz::unwinding;

libfuzzer_sys::fuzz_target!(init: fuzz::begin(unwinding::go_table_seeds), |bytes: &[u8]| {
    unwinding::go_table(bytes);
});
