//! Coverage-guided fuzzers of every decoder of untrusted bytes, for `cargo xtask fuzz`.
//!
//! Each target (`src/bin/NAME.rs`) is a libFuzzer program around one function of this library,
//! which decodes its bytes and uses the result as the decoder's real caller does. A panic, an
//! overflow, more memory than [`ADDRESS_SPACE_MAX`] or too long a time is a finding. Each module
//! also makes the seeds of its targets, from files of this repository and of this machine.

#![forbid(unsafe_code)]

pub mod areas;
pub mod attributes;
pub mod code_bytes;
pub mod control;
pub mod databases;
pub mod dotnet;
pub mod erlang;
pub mod generated;
pub mod hotspot;
pub mod images;
pub mod inspectors;
pub mod kernel;
pub mod luajit;
pub mod processes;
pub mod python;
pub mod recordings;
mod runtime_memory;
mod segments;
#[path = "../../../profiledb/tests/database/simulated.rs"]
pub mod simulated;
pub mod traces;
pub mod unwinding;
pub mod v8;

use std::fs::{self, File};
use std::io::{Seek as _, Write as _};
use std::path::{Path, PathBuf};

/// Address space of a fuzzer, in bytes: a larger allocation fails and ends the fuzzer, which is a
/// finding. With less, the 64 MiB that some limits of decoders allow would not fit in twice.
const ADDRESS_SPACE_MAX: u64 = 1 << 30;
/// Environment variable with a directory: the fuzzer only writes its seeds there.
const SEEDS: &str = "DCPI_FUZZ_SEEDS";
/// Bytes of the largest seed. libFuzzer makes no input longer than its longest seed, and long
/// inputs are slow and seldom changed where it matters.
const SEED_BYTES_MAX: usize = 64 << 10;

/// Begins a fuzzer: sets its limit of memory, or writes its seeds.
pub fn begin(seeds: impl FnOnce() -> Vec<Vec<u8>>) {
    if let Some(directory) = std::env::var_os(SEEDS) {
        for (number, seed) in seeds().iter().filter(|seed| seed.len() <= SEED_BYTES_MAX).enumerate()
        {
            fs::write(Path::new(&directory).join(format!("seed-{number:03}")), seed).unwrap();
        }
        std::process::exit(0);
    }
    let limit = Some(ADDRESS_SPACE_MAX);
    let limits = rustix::process::Rlimit { current: limit, maximum: limit };
    rustix::process::setrlimit(rustix::process::Resource::As, limits).unwrap();
}

/// A path in the repository.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// The files below a directory, with their paths in it.
fn files_below(root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let (mut found, mut waiting) = (Vec::new(), vec![root.to_owned()]);
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
            } else {
                let below = path.strip_prefix(root).unwrap().to_owned();
                found.push((below, fs::read(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// A file in memory with these bytes.
fn memory_file(bytes: &[u8]) -> File {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::memfd_create("fuzzed", flags).unwrap());
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    file
}

/// A temporary directory in memory.
fn memory_directory() -> tempfile::TempDir {
    let shared = Path::new("/dev/shm");
    if shared.is_dir() { tempfile::tempdir_in(shared) } else { tempfile::tempdir() }.unwrap()
}

/// The first byte, which selects the operation on the others.
fn choice(bytes: &[u8]) -> Option<(u8, &[u8])> {
    bytes.split_first().map(|(first, rest)| (*first, rest))
}

/// The bytes in two parts, at the first byte of that value.
fn halves(bytes: &[u8], at: u8) -> (&[u8], &[u8]) {
    let end = bytes.iter().position(|byte| *byte == at);
    end.map_or((bytes, &[]), |end| (&bytes[..end], &bytes[end + 1..]))
}

/// The next word of a stream of bytes; 0 after its end.
fn word(bytes: &mut &[u8]) -> u64 {
    let mut word = [0; 8];
    let len = bytes.len().min(8);
    let (taken, rest) = bytes.split_at(len);
    word[..len].copy_from_slice(taken);
    *bytes = rest;
    u64::from_le_bytes(word)
}
