//! Memory of processes that run HotSpot.

use crate::runtime_memory::{BASE, Bytes};
use crate::{choice, word};
use inspect::frame_words::FrameWords;
use inspect::hotspot::code_cache::CodeCache;
use inspect::hotspot::frames;
use inspect::hotspot::interpreter::Codelets;
use inspect::hotspot::layouts::Layout;
use inspect::hotspot::method_frames::MethodFrames;
use inspect::hotspot::tables::{SYMBOLS, Tables};
use inspect::questions::UnwoundStack;
use std::sync::Arc;

/// Frames that are asked about.
const FRAMES: usize = 4;
/// Fields of JDK 17 with their offsets, and static ones with their addresses.
const FIELDS: [(&str, u64); 38] = [
    ("AbstractInterpreter::_code", 0x1100),
    ("CodeBlob::_code_begin", 32),
    ("CodeBlob::_frame_complete_offset", 20),
    ("CodeBlob::_frame_size", 28),
    ("CodeBlob::_name", 96),
    ("CodeBlob::_size", 12),
    ("CodeCache::_heaps", 0x1108),
    ("CodeHeap::_log2_segment_size", 256),
    ("CodeHeap::_memory", 8),
    ("CodeHeap::_segmap", 120),
    ("CompiledMethod::_method", 112),
    ("CompiledMethod::_scopes_data_begin", 120),
    ("ConstMethod::_code_size", 32),
    ("ConstMethod::_constMethod_size", 24),
    ("ConstMethod::_constants", 8),
    ("ConstMethod::_flags", 28),
    ("ConstMethod::_name_index", 34),
    ("ConstantPool::_length", 60),
    ("ConstantPool::_pool_holder", 24),
    ("ConstantPool::_source_file_name_index", 54),
    ("ConstantPool::_tags", 8),
    ("GrowableArray<int>::_data", 8),
    ("GrowableArrayBase::_len", 0),
    ("HeapBlock::Header::_used", 8),
    ("InstanceKlass::_constants", 232),
    ("InterpreterCodelet::_description", 0),
    ("InterpreterCodelet::_size", 8),
    ("Klass::_name", 24),
    ("Method::_constMethod", 8),
    ("StubQueue::_buffer_limit", 20),
    ("StubQueue::_stub_buffer", 8),
    ("Symbol::_body", 6),
    ("Symbol::_length", 4),
    ("VirtualSpace::_high", 24),
    ("VirtualSpace::_low", 16),
    ("nmethod::_dependencies_offset", 272),
    ("nmethod::_metadata_offset", 260),
    ("nmethod::_scopes_pcs_offset", 268),
];
const SIZES: [(&str, u64); 3] = [("HeapBlock", 16), ("ConstMethod", 48), ("ConstantPool", 72)];

/// Names frames of HotSpot. The input is a byte that selects the version, frames of their address
/// and two words, and memory; where tables of the VM are looked for, too.
pub fn memory(bytes: &[u8]) {
    let Some((choice, mut bytes)) = choice(bytes) else { return };
    let frames: Vec<(u64, FrameWords)> = (0..FRAMES)
        .map(|depth| {
            let address = word(&mut bytes);
            let words = [word(&mut bytes), word(&mut bytes), 0, 0];
            (address, FrameWords { depth: depth as u32, words, is_late: false })
        })
        .collect();
    let symbols: [u64; SYMBOLS.len()] = std::array::from_fn(|number| {
        8 * number as u64 % 64 + if number % 5 == 0 { BASE } else { 0 }
    });
    if let Some(tables) = Tables::read(&Bytes(bytes), symbols) {
        let _ = Layout::of(&tables, 21);
    }
    let major = if choice & 1 == 0 { 17 } else { 21 };
    let layout = Layout::of(&Tables::of(&FIELDS, &SIZES, &[]), major).expect("all fields");
    let cache = CodeCache::new(Bytes(bytes), Arc::new(layout), 0);
    let codelets = Codelets::read(&cache);
    for (address, _) in &frames {
        for is_exact in [false, true] {
            let _ = frames::frame_at(&cache, codelets.as_ref(), *address, is_exact);
        }
        let _ = frames::block(&cache, *address & !255);
    }
    let (addresses, words): (Vec<u64>, Vec<FrameWords>) = frames.into_iter().unzip();
    let mut methods = MethodFrames::default();
    // A second question uses the cached data.
    for _ in 0..2 {
        methods.begin();
        let mut stack = UnwoundStack { addresses: addresses.clone(), ..UnwoundStack::default() };
        methods.name(1, &cache, (&words, None), &mut stack);
        let answer = methods.take_answer();
        let frames = stack.runs.iter().flat_map(|run| run.frames.iter().flatten());
        assert!(frames.into_iter().all(|(number, _)| (*number as usize) < answer.len()));
    }
}

/// A heap with one piece of code, of a method with its class.
#[must_use]
pub fn memory_seeds() -> Vec<Vec<u8>> {
    (0..2).map(seed).collect()
}

fn seed(version: u8) -> Vec<u8> {
    let mut memory = vec![0_u8; 0x6000];
    let mut put = |at: u64, bytes: &[u8]| {
        let at = (at - BASE) as usize;
        memory[at..at + bytes.len()].copy_from_slice(bytes);
    };
    let word = |word: u64| word.to_le_bytes();
    let [heap, list, code, segments, method, constant, pool, class, tags, symbol] =
        [0x1200, 0x1180, 0x4000, 0x1600, 0x1800, 0x1900, 0x1a00, 0x1c00, 0x1e00, 0x1f00];
    put(0x1108, &word(list));
    put(list, &word(1));
    put(list + 8, &word(0x1190));
    put(0x1190, &word(heap));
    for (at, value) in [(24, code), (32, code + 0x1000), (136, segments), (256, 7)] {
        put(heap + at, &word(value));
    }
    put(segments, &[0, 1, 2, 3, 4, 5, 6, 7]);
    let (blob, first) = (code + 16, code + 0x200);
    put(code + 8, &[1]);
    for (at, value) in
        [(12, 0x3e0_u32), (20, 12), (28, 6), (260, 0x380), (268, 0x340), (272, 0x380)]
    {
        put(blob + at, &value.to_le_bytes());
    }
    for (at, value) in [(32, first), (96, 0x1700), (112, method), (120, 0x1f80), (0x380, method)] {
        put(blob + at, &word(value));
    }
    put(0x1700, b"nmethod\0");
    put(first, &[0x89, 0x84, 0x24, 0, 0, 0, 0, 0x55, 0x48, 0x83, 0xec, 0x20]);
    for (number, offset) in (0..).zip([-1, 0x20, 0x30, i32::MAX]) {
        put(blob + 0x340 + 16 * number, &i32::to_le_bytes(offset));
        put(blob + 0x344 + 16 * number, &1_u32.to_le_bytes());
    }
    put(0x1f81, if version == 0 { &[0, 1, 1] } else { &[1, 2, 2] });
    put(method + 8, &word(constant));
    put(constant + 8, &word(pool));
    for (at, value) in [(24, 8_u8), (28, 1), (32, 8), (34, 1)] {
        put(constant + at, &[value]);
    }
    put(constant + 56, &[8 << 3 | 3, 0]);
    for (at, value) in [(8, tags), (24, class), (80, symbol), (88, symbol)] {
        put(pool + at, &word(value));
    }
    put(pool + 54, &[2]);
    put(pool + 60, &[3]);
    put(tags + 4, &[0, 1, 1]);
    put(class + 24, &word(symbol));
    put(class + 232, &word(pool));
    put(symbol + 4, &[4]);
    put(symbol + 6, b"Main");
    let mut seed = vec![version];
    for number in 0..FRAMES as u64 {
        for word in [first + 0x1f + number, method, constant + 48 + number] {
            seed.extend(word.to_le_bytes());
        }
    }
    seed.extend(memory);
    seed
}
