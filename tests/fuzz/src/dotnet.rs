//! Memory of processes that run .NET.

use crate::runtime_memory::{BASE, Bytes};
use crate::word;
use inspect::dotnet::code_ranges::CodeRanges;
use inspect::dotnet::layouts::{Contract, Layout, code_offsets};
use inspect::dotnet::method_names::{Answer, Methods};
use inspect::dotnet::unwind_codes;
use inspect::questions::UnwoundStack;
use std::sync::Arc;

/// Frames that are asked about.
const FRAMES: usize = 4;
/// The parts of the description of .NET 9 that are read.
const CONTRACT: &str = r#"{"types":{
    "Module":{"Base":288},"MethodTable":{"Module":24},
    "MethodDesc":{"ChunkIndex":2,"Flags":6,"Flags3AndTokenRemainder":0},
    "MethodDescChunk":{"!":24,"MethodTable":0,"FlagsAndTokenRange":18},
    "DynamicMethodDesc":{"MethodName":32}},
    "globals":{"MethodDescTokenRemainderBitCount":["0xc","uint8"],
    "MethodDescAlignment":["0x8","uint64"]}}"#;

/// Names frames of .NET. The input is frames of their address, and memory, which begins with the
/// table of globals; also a description of structures.
pub fn memory(mut bytes: &[u8]) {
    let addresses: Vec<u64> = (0..FRAMES).map(|_| word(&mut bytes)).collect();
    let offsets = code_offsets("9").expect("a version that is known");
    let _ = Contract::parse(bytes).map(|contract| Layout::of(&contract, offsets));
    let contract = Contract::parse(CONTRACT.as_bytes()).expect("JSON");
    let layout = Layout::of(&contract, offsets).expect("all fields").with_globals(BASE);
    let Some(ranges) = CodeRanges::new(Bytes(bytes), Arc::new(layout), 0) else { return };
    for address in &addresses {
        for is_exact in [false, true] {
            let _ = unwind_codes::frame_at(&ranges, *address, is_exact);
        }
        let _ = unwind_codes::block(&ranges, *address & !255);
    }
    let mut methods = Methods::default();
    // A second question uses the cached names.
    for _ in 0..2 {
        let mut answer = Answer::new(&mut methods, &ranges, 1);
        let mut stack = UnwoundStack { addresses: addresses.clone(), ..UnwoundStack::default() };
        answer.name(&mut stack);
        let frames = stack.runs.iter().flat_map(|run| run.frames.iter().flatten());
        let mut numbers = frames.map(|(number, _)| *number as usize);
        assert!(numbers.all(|number| number < answer.functions.len()));
    }
}

/// A heap and an assembly, each with one method of a type in another one.
#[must_use]
pub fn memory_seeds() -> Vec<Vec<u8>> {
    let mut memory = vec![0_u8; 0x8000];
    let mut put = |at: u64, bytes: &[u8]| {
        let at = (at - BASE) as usize;
        memory[at..at + bytes.len()].copy_from_slice(bytes);
    };
    let words = |words: &[u64]| words.iter().flat_map(|it| it.to_le_bytes()).collect::<Vec<u8>>();
    let ints = |ints: &[u32]| ints.iter().flat_map(|it| it.to_le_bytes()).collect::<Vec<u8>>();
    let shorts = |list: &[u16]| list.iter().flat_map(|it| it.to_le_bytes()).collect::<Vec<u8>>();
    // The tree's levels, whose first entries lead on to the parts of the first 128 KiB.
    for (at, next) in
        [0x1000, 0x1100, 0x1108, 0x1110, 0x1118, 0x1120].windows(2).map(|it| (it[0], it[1]))
    {
        put(at, &words(&[next]));
    }
    let [heap, ahead, module, info, method, file] =
        [0x3000, 0x4000, 0x1400, 0x1a00, 0x2128, 0x6000];
    put(0x1120, &words(&[0x1200]));
    for (part, next, code, flags) in [(0x1200, 0x1240, heap, 2), (0x1240, 0, ahead, 0)] {
        put(part, &words(&[next, code, code + 0x800, part + 0x80]));
        put(part + 0x80, &words(&[code, code + 0x800, flags, 0, module, 0x1340]));
        put(code + 0x400, &[0x19, 5, 2, 0, 5, 0x32, 1, 0x50]);
        put(
            code + 0x100,
            &[0x55, 0x48, 0x83, 0xec, 0x20, 0x90, 0x48, 0x83, 0xc4, 0x20, 0x5d, 0xc3],
        );
    }
    put(0x1340 + 24, &words(&[heap + 0x800, heap, 0x1380]));
    put(0x1380, &ints(&[0, 0x1000_0000]));
    put(heap + 0xf8, &words(&[0x2000]));
    put(0x2000 + 24, &words(&[method]));
    put(0x2000 + 32, &ints(&[1, 0x100, 0x180, 0x400]));
    put(0x2100, &words(&[0x2200]));
    put(method, &[1, 0, 2]);
    put(0x2200 + 24, &words(&[module]));
    put(module + 288, &words(&[file]));
    put(module + 984, &words(&[info]));
    put(info, &words(&[module]));
    put(info + 40, &words(&[info]));
    put(info + 80, &words(&[0x2300, 1]));
    put(info + 448, &words(&[0x2400]));
    put(0x2300, &ints(&[0x100, 0x180, 0x400]));
    put(0x2400, &words(&[2]));
    put(
        0x2400 + 64 * (1 + (ahead + 0x100) / 4 % 2),
        &words(&[ahead + 0x100, 0, 0, 0, method >> 1]),
    );
    put(file, b"MZ");
    put(file + 0x3c, &ints(&[0x80]));
    put(file + 0x80, b"PE\0\0");
    put(file + 0x80 + 20, &shorts(&[0xe0, 0, 0x10b]));
    put(file + 0x80 + 232, &ints(&[0x200]));
    put(file + 0x208, &ints(&[0x300, 0x400]));
    put(file + 0x300, b"BSJB");
    put(file + 0x30c, &ints(&[4]));
    put(file + 0x316, &shorts(&[3]));
    put(file + 0x318, &ints(&[0x60, 0x100]));
    put(file + 0x320, b"#~");
    put(file + 0x324, &ints(&[0x200, 0x80]));
    put(file + 0x32c, b"#Strings");
    put(file + 0x338, &ints(&[0x300, 16]));
    put(file + 0x340, b"#GUID");
    put(file + 0x500, b"\0Main.dll\0Outer\0Inner\0Run\0Work\0");
    let tables = file + 0x360;
    put(tables + 8, &words(&[1 | 1 << 2 | 1 << 6 | 1 << 41]));
    put(tables + 24, &ints(&[1, 2, 1, 1]));
    put(tables + 40, &shorts(&[0, 1, 1, 0, 0]));
    put(tables + 50, &shorts(&[0, 0, 10, 26, 0, 1, 1]));
    put(tables + 64, &shorts(&[0, 0, 16, 0, 0, 1, 1]));
    put(tables + 78, &shorts(&[0, 0, 0, 0, 22, 0, 1]));
    put(tables + 92, &shorts(&[2, 1]));
    let addresses = [heap + 0x104, heap + 0x10b, ahead + 0x104, heap + 0x200];
    vec![[words(&addresses), memory].concat(), CONTRACT.as_bytes().to_vec()]
}
