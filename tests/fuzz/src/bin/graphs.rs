//! Disassembly and control-flow graphs of arbitrary bytes.
#![no_main]

use fuzz::code_bytes;

libfuzzer_sys::fuzz_target!(init: fuzz::begin(code_bytes::graph_seeds), |bytes: &[u8]| {
    code_bytes::graph(bytes);
});
