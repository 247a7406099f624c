//! Memory of processes that run LuaJIT.

use crate::runtime_memory::{BASE, Bytes};
use crate::word;
use abi::LIST_ENTRY;
use inspect::luajit::calls::Noted;
use inspect::luajit::functions::{Answer, Names};
use inspect::luajit::program::{Distances, distances, version_in};
use inspect::luajit::traces::Traces;
use inspect::questions::{SampledStack, ToWalk, UnwoundStack};

/// Entries of a list of calls.
const ENTRIES: usize = 4;
/// Places of the seed in memory: a state with the global state behind it, the table of traces, a
/// trace, its snapshots, a function, a string.
const STATE: u64 = BASE;
const GLOBAL: u64 = STATE + 96;
const TABLE: u64 = BASE + 0x300;
const TRACE: u64 = BASE + 0x320;
const SNAPSHOTS: u64 = BASE + 0x3a0;
const FUNCTION: u64 = BASE + 0x400;
const TEXT: u64 = BASE + 0x500;
const CODE: u64 = BASE + 0x600;
const DISTANCES: Distances = Distances { jumps: 0x100, jit_base: 8, traces: 16 };

/// Names calls of LuaJIT's. The input is an address in a trace, entries of a list, and memory,
/// which begins with a state.
pub fn memory(mut bytes: &[u8]) {
    let _ = (distances(bytes), version_in(bytes));
    let address = word(&mut bytes);
    let noted: Vec<[u64; 4]> =
        (0..ENTRIES).map(|_| [0; 4].map(|_: u64| word(&mut bytes))).collect();
    let memory = Bytes(bytes);
    let addresses = vec![address, 0, 1];
    let mut list = vec![(0, [STATE, word(&mut bytes), 0, 1])];
    list.extend(noted.iter().map(|words| (LIST_ENTRY, *words)));
    list.push((2, [STATE, 0, 0, u64::MAX]));
    let stack = SampledStack {
        registers: vec![0; 17],
        begin: 0,
        at: 0,
        len: 0,
        walked: addresses.clone(),
        to_walk: ToWalk::Nothing(0),
        python: Vec::new(),
        noted: list,
    };
    let walked = UnwoundStack { addresses, ..UnwoundStack::default() };
    let (mut traces, mut names) = (Traces::default(), Names::default());
    // A second question uses the cached data.
    for _ in 0..2 {
        traces.begin(DISTANCES);
        traces.add_state(&memory, STATE);
        let _ = traces.rule_at(&memory, address, true);
        let _ = traces.block(&memory, address & !255);
        let mut trace_at = |at| traces.calls_at(&memory, at);
        let runs = Noted::of(&stack, &walked, |at| at == 0);
        let runs = runs.runs(&memory, &stack, &mut trace_at).unwrap_or_default();
        let mut answer = Answer::new(&mut names, 1);
        runs.iter().for_each(|(_, calls, _)| answer.note(&memory, calls));
        let calls = runs.iter().flat_map(|(_, calls, _)| calls);
        let numbers: Vec<_> = calls.filter_map(|call| answer.place(&memory, call)).collect();
        let functions = answer.into_functions();
        assert!(numbers.iter().all(|(number, _)| (*number as usize) < functions.len()));
    }
}

/// A trace of one function, which one call leads to.
#[must_use]
pub fn memory_seeds() -> Vec<Vec<u8>> {
    let mut memory = vec![0_u8; 0x700];
    let mut put = |at: u64, bytes: &[u8]| {
        let at = (at - BASE) as usize;
        memory[at..at + bytes.len()].copy_from_slice(bytes);
    };
    let mut words = |at: u64, words: &[(u64, u64)]| {
        words.iter().for_each(|(offset, word)| put(at + offset, &word.to_le_bytes()));
    };
    let code = FUNCTION + 104;
    words(STATE, &[(8, 0x0601), (16, GLOBAL)]);
    words(GLOBAL, &[(16, TABLE), (24, 2 << 32)]);
    words(TABLE, &[(8, TRACE)]);
    words(TRACE, &[(8, 1 << 16 | 0x0901), (32, TEXT), (40, 3 << 32 | 0x8000)]);
    words(TRACE, &[(48, SNAPSHOTS), (56, SNAPSHOTS + 16), (64, FUNCTION), (80, 64 << 32)]);
    words(TRACE, &[(88, CODE), (96, 32 << 48), (104, 1)]);
    words(SNAPSHOTS, &[(8, 1 << 16), (16, 0x0200_0010 | (code + 8) << 40), (24, code >> 24)]);
    words(FUNCTION, &[(8, 8 << 32 | 0x0701), (32, FUNCTION), (64, TEXT), (72, 9 << 32 | 5)]);
    words(TEXT, &[(8, 0x0401), (24, u64::from_le_bytes(*b"@app.lua"))]);
    let mut seed = (CODE + 20).to_le_bytes().to_vec();
    for link in [0x13_u64, 0x15, code + 12, 0x1d] {
        seed.extend([code, 0x0801, link, BASE + 64].map(u64::to_le_bytes).concat());
    }
    seed.extend(memory);
    vec![seed]
}
