//! Memory of processes that run LuaJIT: traces, calls, functions.
#![no_main]

use fuzz::luajit;

libfuzzer_sys::fuzz_target!(init: fuzz::begin(luajit::memory_seeds), |bytes: &[u8]| {
    luajit::memory(bytes);
});
