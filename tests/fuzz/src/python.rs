//! Memory of processes that run CPython.

use crate::runtime_memory::{BASE, Bytes};
use crate::{choice, word};
use abi::PythonFrame;
use inspect::python::code_objects::{Codes, Functions, Reader};
use inspect::python::layouts::Layout;
use inspect::python::merge::{Native, merge};
use inspect::python::program::Types;
use inspect::python::runtime;

/// Addresses of the types of code objects, strings and byte strings.
const TYPES: Types = Types { code: 0x100, string: 0x200, bytes: 0x300 };
/// Frames that are asked about.
const FRAMES: usize = 8;

/// Looks up frames of CPython. The input is a byte that selects the version, frames of three words,
/// and memory.
pub fn memory(bytes: &[u8]) {
    let Some((choice, mut bytes)) = choice(bytes) else { return };
    let minor = 8 + choice % 6;
    let frames: Vec<PythonFrame> = (0..FRAMES)
        .map(|_| {
            let [code, instruction, flags] = [(); 3].map(|()| word(&mut bytes));
            PythonFrame { code, instruction, flags }
        })
        .collect();
    let memory = Bytes(bytes);
    let Some(layout) = Layout::of(minor, &memory, BASE) else { return };
    let _ = runtime::word_of_threads(&layout, &memory, BASE);
    let loops = (0..8).filter(|place| choice >> place & 1 == 1);
    let native = Native { loops, in_prologue: choice & 0x40 != 0, is_whole: choice & 0x80 != 0 };
    let runs = merge(native, layout.groups(&frames)).unwrap_or_default();
    assert!(runs.iter().map(|run| run.frames.len()).sum::<usize>() <= FRAMES);
    let (mut codes, mut functions) = (Codes::default(), Functions::default());
    let reader = Reader { memory: &memory, layout: &layout, types: TYPES };
    // A second question uses the cached data.
    for _ in 0..2 {
        codes.begin();
        for frame in &frames {
            let Some(code) = codes.get(1, frame.code, &reader) else { continue };
            let _ = code.line(&layout, frame);
            assert!((functions.number(frame.code, code).unwrap() as usize) < FRAMES);
        }
    }
}

/// A code object of each version with its strings, and a chain of threads.
#[must_use]
pub fn memory_seeds() -> Vec<Vec<u8>> {
    (0..5).map(|version| seed(version, &Bytes(&[]))).collect()
}

fn seed(version: u8, nothing: &Bytes<'_>) -> Vec<u8> {
    let Some(layout) = Layout::of(8 + version, nothing, BASE) else { return Vec::new() };
    let mut memory = vec![0; 0x4000];
    let mut put = |at: u64, bytes: &[u8]| {
        let at = (at - BASE) as usize;
        memory[at..at + bytes.len()].copy_from_slice(bytes);
    };
    // The object, its file, its name and its table of lines.
    let [code, file, name, table] = [0x2000, 0x2400, 0x2800, 0x2c00];
    let of = layout.code;
    put(code + 8, &TYPES.code.to_le_bytes());
    put(code + 16, &16_u64.to_le_bytes());
    put(code + of.first_line, &7_u32.to_le_bytes());
    for (offset, to) in [(of.file, file), (of.name, name), (of.lines, table)] {
        put(code + offset, &to.to_le_bytes());
    }
    for (at, text) in [(file, &b"/x/a.py"[..]), (name, b"f")] {
        put(at + 8, &TYPES.string.to_le_bytes());
        put(at + 16, &(text.len() as u64).to_le_bytes());
        put(at + 32, &(1_u32 << 2 | 0x20 | 0x40).to_le_bytes());
        put(at + layout.string_heads[0], text);
    }
    let lines = [0x80 | 13 << 3 | 3, 2, 0xf0, 1, 2, 3];
    put(table + 8, &TYPES.bytes.to_le_bytes());
    put(table + 16, &(lines.len() as u64).to_le_bytes());
    put(table + 32, &lines);
    // An interpreter with one thread.
    let [interpreter, state, thread] = [0x3000_u64, 0x3800, 0x4000];
    for (at, to) in [
        (BASE + layout.interpreters, interpreter),
        (interpreter + layout.threads, state),
        (state + layout.interpreter, interpreter),
        (state + u64::from(layout.sampler.id_at), thread),
        (thread + 0x310, 1),
        (thread + 0x318, state),
    ] {
        put(at, &to.to_le_bytes());
    }
    let mut seed = vec![version];
    for number in 0..FRAMES as u64 {
        for word in [code, code + of.instructions + 2 * number, number & 1] {
            seed.extend(word.to_le_bytes());
        }
    }
    seed.extend(memory);
    seed
}
