//! Executable files: identity, layout, procedures, constants, kept parts.
#![no_main]

use fuzz::images;

libfuzzer_sys::fuzz_target!(init: fuzz::begin(images::elf_seeds), |bytes: &[u8]| {
    images::elf(bytes);
});
