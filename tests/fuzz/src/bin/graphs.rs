//! Disassembly and control-flow graphs of code that nobody compiled.
#![no_main]

use fuzz::code_bytes;

libfuzzer_sys::fuzz_target!(init: fuzz::begin(code_bytes::graph_seeds), |bytes: &[u8]| {
    code_bytes::graph(bytes);
});
