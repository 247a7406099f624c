//! Memory of processes that run BEAM.

use crate::runtime_memory::{BASE, Bytes};
use crate::word;
use inspect::erlang::Answer;
use inspect::erlang::modules::{Functions, Modules};
use inspect::questions::UnwoundStack;

/// Frames that are asked about.
const FRAMES: usize = 4;
/// Address of the generated code of the seed, and its bytes.
const CODE: u64 = 0x7000_0000;
const CODE_BYTES: u32 = 0x400;

/// Names frames of Erlang's. The input is frames of their address, and memory, which begins with
/// the head of the list of modules.
pub fn memory(mut bytes: &[u8]) {
    let addresses: Vec<u64> = (0..FRAMES).map(|_| word(&mut bytes)).collect();
    let memory = Bytes(bytes);
    let mut modules = Modules::default();
    // A second question uses the cached data.
    for _ in 0..2 {
        modules.refresh(&memory, BASE);
        let mut stack = UnwoundStack { addresses: addresses.clone(), ..UnwoundStack::default() };
        let mut answer = Answer::default();
        answer.name(&memory, &mut modules, &[(0, u64::MAX)], &mut stack);
        let frames = stack.runs.iter().flat_map(|run| run.frames.iter().flatten());
        let mut numbers = frames.map(|(number, _)| *number as usize);
        assert!(numbers.all(|number| number < answer.functions.len()));
        let _ = modules.global(&memory, "process_main");
    }
    let _ = Functions::read(bytes, CODE_BYTES);
}

/// A list with one module of one function.
#[must_use]
pub fn memory_seeds() -> Vec<Vec<u8>> {
    let mut text = [1_u64.to_le_bytes(), CODE.to_le_bytes()].concat();
    let name = |text: &mut Vec<u8>, name: &[u8]| {
        text.extend((name.len() as u16 + 1).to_le_bytes());
        text.extend_from_slice(name);
        text.extend([0; 3]);
    };
    text.extend([1, CODE_BYTES].map(u32::to_le_bytes).concat());
    name(&mut text, b"lists");
    text.extend([0; 4]);
    text.extend([0, CODE_BYTES, 1].map(u32::to_le_bytes).concat());
    name(&mut text, b"lists:map/2");
    text.extend([0, 1239].map(u32::to_le_bytes).concat());
    name(&mut text, b"lists.erl");
    let mut seed: Vec<u8> = [CODE + 8, CODE + 0x3ff, 0, BASE].map(u64::to_le_bytes).concat();
    let entry = BASE + 32;
    let head = [1 << 32 | 1, 0, entry, 0, 0, 0, entry + 32, text.len() as u64];
    seed.extend(head.map(u64::to_le_bytes).concat());
    seed.extend(text);
    vec![seed]
}
