//! Memory of processes that run .NET: code, its methods, metadata of assemblies.
#![no_main]

use fuzz::dotnet;

libfuzzer_sys::fuzz_target!(init: fuzz::begin(dotnet::memory_seeds), |bytes: &[u8]| {
    dotnet::memory(bytes);
});
