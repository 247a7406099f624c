//! Lists of the kernel's symbols and modules; notes.
#![no_main]

use fuzz::kernel;

libfuzzer_sys::fuzz_target!(init: fuzz::begin(kernel::symbol_seeds), |bytes: &[u8]| {
    kernel::symbols(bytes);
});
