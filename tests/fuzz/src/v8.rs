//! Memory of processes that run V8.

use crate::runtime_memory::{BASE, Bytes};
use crate::{choice, word};
use inspect::frame_words::FrameWords;
use inspect::v8::functions::Functions;
use inspect::v8::layouts::Layout;
use inspect::v8::objects::Heap;
use inspect::v8::symbols::Symbols;

/// Frames that are asked about.
const FRAMES: usize = 4;
/// Symbols with the values of V8 11.3 (Node.js 20).
const SYMBOLS: [(&str, i32); 33] = [
    ("ConsStringTag", 1),
    ("ExternalStringTag", 2),
    ("FirstNonstringType", 128),
    ("HeapObjectTagMask", 3),
    ("OneByteStringTag", 8),
    ("SeqStringTag", 0),
    ("SlicedStringTag", 3),
    ("SmiShiftSize", 31),
    ("StringEncodingMask", 8),
    ("StringRepresentationMask", 7),
    ("ThinStringTag", 5),
    ("class_Code__deoptimization_data__FixedArray", 16),
    ("class_Code__source_position_table__ByteArray", 24),
    ("class_FixedArrayBase__length__SMI", 8),
    ("class_FixedArray__data__uintptr_t", 16),
    ("class_JSFunction__shared__SharedFunctionInfo", 24),
    ("class_Map__instance_type__uint16_t", 12),
    ("class_Script__name__Object", 16),
    ("class_SharedFunctionInfo__name_or_scope_info__Object", 16),
    ("class_SharedFunctionInfo__script_or_debug_info__HeapObject", 32),
    ("class_String__length__int32_t", 12),
    ("off_fp_context", -8),
    ("off_fp_function", -16),
    ("scopeinfo_idx_ncontextlocals", 2),
    ("type_ByteArray__BYTE_ARRAY_TYPE", 190),
    ("type_BytecodeArray__BYTECODE_ARRAY_TYPE", 191),
    ("type_Code__CODE_TYPE", 245),
    ("type_FixedArray__FIXED_ARRAY_TYPE", 175),
    ("type_InterpreterData__INTERPRETER_DATA_TYPE", 159),
    ("type_ScopeInfo__SCOPE_INFO_TYPE", 261),
    ("type_Script__SCRIPT_TYPE", 167),
    ("type_SharedFunctionInfo__SHARED_FUNCTION_INFO_TYPE", 262),
    ("type_UncompiledDataWithPreparseData__UNCOMPILED_DATA_WITH_PREPARSE_DATA_TYPE", 220),
];

/// Names frames of V8. The input is a byte that selects the version, frames of their address and
/// four words, and memory.
pub fn memory(bytes: &[u8]) {
    let Some((choice, mut bytes)) = choice(bytes) else { return };
    let version = [(9, 4, 146), (10, 2, 154), (11, 3, 244), (12, 4, 254), (13, 6, 233)];
    let version = version[usize::from(choice) % version.len()];
    let symbols = SYMBOLS.iter().map(|(name, value)| ((*name).to_owned(), *value));
    let variable = ("scopeinfo_idx_first_vars".to_owned(), if version.0 > 12 { 5 } else { 3 });
    let layout = Layout::of(&Symbols::of_values(symbols.chain([variable]), version));
    let layout = layout.expect("all symbols that are needed");
    let frames: Vec<(u64, FrameWords)> = (0..FRAMES)
        .map(|depth| {
            let address = word(&mut bytes);
            let words = [(); 4].map(|()| word(&mut bytes));
            let (depth, is_late) = (depth as u32, choice & 0x80 != 0);
            (address, FrameWords { depth, words, is_late })
        })
        .collect();
    let memory = Bytes(bytes);
    let mut functions = Functions::default();
    // A second question uses the cached data.
    for _ in 0..2 {
        functions.begin();
        let heap = Heap::new(&memory, &layout);
        let mut most = 0;
        for (address, frame) in &frames {
            let Some(named) = functions.frame(1, (frame, *address), &heap, || vec![BASE]) else {
                continue;
            };
            most = named.iter().flatten().map(|(number, _)| number + 1).fold(most, u32::max);
        }
        assert!(functions.take_answer().len() >= most as usize);
    }
}

/// A function with its scope, its script and its bytecode.
#[must_use]
pub fn memory_seeds() -> Vec<Vec<u8>> {
    (0..5).map(seed).collect()
}

fn seed(version: u8) -> Vec<u8> {
    let mut memory = vec![0; 0x4000];
    let mut put = |at: u64, word: u64| {
        let at = (at - BASE) as usize;
        memory[at..at + 8].copy_from_slice(&word.to_le_bytes());
    };
    let int = |value: u64| value << 32;
    let map = |kind: u64| 0x4000 + 64 * (kind % 16);
    let [shared, scope, script, name, file, source] =
        [0x2000, 0x2100, 0x2200, 0x2300, 0x2400, 0x2500];
    let [bytecode, table] = [0x2600, 0x2700];
    let objects = [(shared, 262), (scope, 261), (script, 167), (bytecode, 191), (table, 190)];
    for (at, kind) in objects.into_iter().chain([name, file, source].map(|at| (at, 8))) {
        put(at, map(kind) + 1);
        put(map(kind) + 8, kind << 32);
    }
    let fields = [(8, bytecode), (16, scope), (24, script), (32, script), (40, script)];
    fields.into_iter().for_each(|(at, to)| put(shared + at, to + 1));
    let flags = if version == 4 { 3 << 12 } else { int(3 << 12) };
    let words = match version {
        4 => [flags | 4, int(0), int(0), int(3), int(9), name + 1, int(0)],
        _ => [flags | int(2), int(0), int(0), name + 1, int(0), int(3), int(9)],
    };
    (1..).zip(words).for_each(|(slot, word)| put(scope + 8 * slot, word));
    for (at, word) in [(8, source + 1), (16, file + 1), (24, 0)] {
        put(script + at, word);
    }
    for (at, text) in [(name, *b"work\0\0\0\0"), (file, *b"/x/a.js\0"), (source, *b"a\nb\nc()\n")] {
        put(at + 8, int(text.iter().filter(|byte| **byte != 0).count() as u64));
        put(at + 16, u64::from_le_bytes(text));
    }
    for (at, word) in [(8, int(9)), (24, table + 1), (32, table + 1)] {
        put(bytecode + at, word);
    }
    put(table + 8, int(2));
    put(table + 16, 0x1402);
    let mut seed = vec![version];
    for number in 0..FRAMES as u64 {
        for word in [0x2800, shared + 1, 0, bytecode + 1, int(53 + number)] {
            seed.extend(word.to_le_bytes());
        }
    }
    seed.extend(memory);
    seed
}
