//! The files of just-in-time compilers.

use crate::{choice, memory_file};
use image::jit::CodeMap;
use inspect::file_facts::FileFacts;
use inspect::jit::code_events::{CodeEvent, apply};
use inspect::jit::files::{DumpReader, MapReader};
use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};

/// Bytes that one look may read.
const ALLOWANCE: u64 = 1 << 20;

/// Reads a growing file as an inspector and the daemon do: first with a part of its bytes, then
/// with all, into events and from these into a map of code.
fn read_twice(
    bytes: &[u8],
    mut read: impl FnMut(&File, &mut u64, &mut Vec<CodeEvent>) -> bool,
) -> CodeMap {
    let (first, all) = choice(bytes).unwrap_or((0, bytes));
    let begin = all.len() * usize::from(first) / 255;
    let mut file = memory_file(&all[..begin]);
    let mut code = CodeMap::default();
    for _ in 0..2 {
        let (mut events, mut left) = (Vec::new(), ALLOWANCE);
        read(&file, &mut left, &mut events);
        assert!(left <= ALLOWANCE);
        events.iter().for_each(|event| apply(event, &mut code));
        file.seek(SeekFrom::Start(begin as u64)).unwrap();
        file.write_all(&all[begin..]).unwrap();
    }
    code
}

fn use_code(code: &CodeMap, bytes: &[u8]) {
    for address in bytes.windows(8).step_by(8).filter_map(|word| word.try_into().ok()) {
        let address = u64::from_le_bytes(address);
        if let Some(piece) = code.find(address) {
            assert!(!piece.name.is_empty());
        }
    }
    assert!(code.memory_bytes() < 64 << 20);
}

/// A perf map.
pub fn perf_map(bytes: &[u8]) {
    let mut reader = MapReader::default();
    let code = read_twice(bytes, |file, left, events| reader.read(file, left, events));
    use_code(&code, bytes);
}

/// A jitdump.
pub fn jitdump(bytes: &[u8]) {
    let mut reader = DumpReader::new(&FileFacts::of(&memory_file(&[]).metadata().unwrap()));
    let code = read_twice(bytes, |file, left, events| reader.read((file, 0), left, events));
    use_code(&code, bytes);
}

/// Perf maps.
#[must_use]
pub fn perf_map_seeds() -> Vec<Vec<u8>> {
    let text = "7f0000001000 40 LazyCompile:~f /a.js:1\n7f0000001020 10 g\n0x10 0x20 h\n";
    [0, 100, 255].iter().map(|cut| [&[*cut][..], text.as_bytes()].concat()).collect()
}

/// Jitdumps in both byte orders, with loaded and moved code.
#[must_use]
pub fn jitdump_seeds() -> Vec<Vec<u8>> {
    let dump = |swapped: bool, cut: u8| {
        let mut bytes = vec![cut];
        let mut number = |value: u64, len: usize| {
            let mut word = value.to_le_bytes()[..len].to_vec();
            if swapped {
                word.reverse();
            }
            bytes.extend(word);
        };
        // Header: magic, version, size, machine, padding, process, time, flags.
        for (value, len) in
            [(0x4a69_5444, 4), (1, 4), (40, 4), (62, 4), (0, 4), (7, 4), (1, 8), (0, 8)]
        {
            number(value, len);
        }
        // Code loaded: kind, size, time, process, thread, addresses, code's size, number; then the
        // name "f" and four bytes of code.
        for (value, len) in [
            (0, 4),
            (62, 4),
            (2, 8),
            (7, 4),
            (7, 4),
            (0x7000, 8),
            (0x7000, 8),
            (4, 8),
            (1, 8),
            (0x66, 1),
            (0, 1),
            (0x9090_9090, 4),
        ] {
            number(value, len);
        }
        // Code moved: from 0x7000 to 0x8000.
        for (value, len) in [
            (1, 4),
            (64, 4),
            (3, 8),
            (7, 4),
            (7, 4),
            (0x8000, 8),
            (0x7000, 8),
            (0x8000, 8),
            (4, 8),
            (1, 8),
        ] {
            number(value, len);
        }
        // Another record, and the end.
        for (value, len) in [(2, 4), (24, 4), (4, 8), (0, 8), (3, 4), (16, 4), (5, 8)] {
            number(value, len);
        }
        bytes
    };
    vec![dump(false, 255), dump(true, 255), dump(false, 100)]
}
