//! The readers on made-up memory: of a VM as small as can be, and of processes that lie.

use super::code_cache::{CodeCache, Kind};
use super::frames;
use super::interpreter::Codelets;
use super::layouts::Layout;
use super::method_frames::MethodFrames;
use super::tables::{SYMBOLS, Tables};
use crate::frame_words::FrameWords;
use crate::python::tests::Bytes;
use crate::questions::{RuntimeRun, UnwoundStack};
use std::sync::Arc;
use unwind::{Base, FrameRule};

/// Fields of JDK 17 with their offsets, and static ones with their addresses.
const FIELDS: [(&str, u64); 42] = [
    ("AbstractInterpreter::_code", 0x900),
    ("CodeBlob::_code_begin", 32),
    ("CodeBlob::_frame_complete_offset", 20),
    ("CodeBlob::_frame_size", 28),
    ("CodeBlob::_name", 96),
    ("CodeBlob::_size", 12),
    ("CodeCache::_heaps", 0x100),
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
    ("CodeCache::_low_bound", 0x108),
    ("CodeCache::_high_bound", 0x110),
    ("Method::_code", 72),
    ("nmethod::_compile_id", 304),
];
const SIZES: [(&str, u64); 3] = [("HeapBlock", 16), ("ConstMethod", 48), ("ConstantPool", 72)];

const HEAP: u64 = 0x1000;
const CODE: u64 = 0x10_0000;
const SEGMENTS: u64 = 0x20_0000;
const BLOB: u64 = CODE + 0x100 + 16;
/// The first instruction of the blob.
const FIRST: u64 = BLOB + 0x200;
const POOL: u64 = 0x3000;
const CLASS: u64 = 0x4000;
const SYMBOLS_AT: u64 = 0x6000;
const OUTER: u64 = 0x5000;
const INNER: u64 = 0x5800;

fn layout() -> Arc<Layout> {
    Arc::new(Layout::of(&Tables::of(&FIELDS, &SIZES, &[]), 17).unwrap())
}

/// A symbol with the number of its constant.
fn put_text(memory: &Bytes, number: u64, text: &str) {
    let at = SYMBOLS_AT + 64 * number;
    memory.put(at, &[0; 64]);
    memory.put(at + 4, &(text.len() as u16).to_le_bytes());
    memory.put(at + 6, text.as_bytes());
    memory.put_words(POOL, &[(72 + 8 * number, at)]);
    memory.put(0x3804 + number, &[1]);
}

/// A method with 16 bytes of bytecode, in which lines begin at 0 and 8.
fn put_method(memory: &Bytes, at: u64, name: u16, line: u8) {
    let constant = at + 0x100;
    memory.put(at, &[0; 0x200]);
    memory.put_words(at, &[(8, constant)]);
    memory.put_words(constant, &[(8, POOL)]);
    memory.put(constant + 24, &10_u32.to_le_bytes());
    memory.put(constant + 28, &1_u16.to_le_bytes());
    memory.put(constant + 32, &16_u16.to_le_bytes());
    memory.put(constant + 34, &name.to_le_bytes());
    // 0xff: place 0, the line doubled; then 8 bytes and 1 line.
    memory.put(constant + 48 + 16, &[0xff, 0, 2 * line, 8 << 3 | 1, 0]);
}

/// Memory of a process with one piece of code, of `outer`, in which `inner` is inlined at a call
/// that returns to offset 0x20.
fn memory() -> Bytes {
    let memory = Bytes::default();
    memory.put_words(0x100, &[(0, 0x200)]);
    memory.put(0x200, &1_u64.to_le_bytes());
    memory.put_words(0x200, &[(8, 0x300)]);
    memory.put_words(0x300, &[(0, HEAP)]);
    memory.put(HEAP, &[0; 0x200]);
    memory.put_words(HEAP, &[(24, CODE), (32, CODE + 0x1000), (136, SEGMENTS)]);
    memory.put(HEAP + 256, &7_u32.to_le_bytes());
    memory.put(SEGMENTS, &[0xff; 32]);
    memory.put(SEGMENTS + 2, &[0, 1, 2, 3, 4, 5, 6, 7]);
    memory.put(CODE, &[0x90; 0x1000]);
    memory.put(BLOB - 16, &[0; 0x200]);
    memory.put(BLOB - 8, &[1]);
    memory.put(BLOB + 12, &0x380_u32.to_le_bytes());
    memory.put(BLOB + 20, &12_u32.to_le_bytes());
    memory.put(BLOB + 28, &6_u32.to_le_bytes());
    memory.put_words(BLOB, &[(32, FIRST), (96, 0x800), (112, OUTER), (120, 0x7000)]);
    memory.put(0x800, b"nmethod\0");
    memory.put(0x808, &[0; 64]);
    // push %rbp; sub $32, %rsp
    memory.put(FIRST, &[0x89, 0x84, 0x24, 0, 0, 0, 0, 0x55, 0x48, 0x83, 0xec, 0x20]);
    // add $32, %rsp; pop %rbp; ret
    memory.put(FIRST + 0x40, &[0x48, 0x83, 0xc4, 0x20, 0x5d, 0xc3]);
    // Four places: before all, the call, a later one, behind all.
    memory.put(BLOB + 268, &0x300_u32.to_le_bytes());
    memory.put(BLOB + 272, &0x340_u32.to_le_bytes());
    memory.put(BLOB + 260, &0x340_u32.to_le_bytes());
    memory.put_words(BLOB + 0x340, &[(0, OUTER), (8, INNER)]);
    for (number, (offset, description)) in (0..).zip([(-1, 0), (0x20, 4), (0x30, 1), (i32::MAX, 0)])
    {
        memory.put(BLOB + 0x300 + 16 * number, &i32::to_le_bytes(offset));
        memory.put(BLOB + 0x304 + 16 * number, &i32::to_le_bytes(description));
    }
    // At 1: outer at 8; at 4: inner at 0, called by that at 1.
    memory.put(0x7000, &[0, 0, 1, 9, 1, 2, 1]);
    memory.put(0x7007, &[0; 32]);
    memory.put(POOL, &[0; 0x100]);
    memory.put_words(POOL, &[(8, 0x3800), (24, CLASS)]);
    memory.put(POOL + 60, &8_u32.to_le_bytes());
    memory.put(POOL + 54, &3_u16.to_le_bytes());
    memory.put(0x3800, &[0; 64]);
    memory.put(CLASS, &[0; 0x200]);
    put_text(&memory, 1, "outer");
    put_text(&memory, 2, "inner");
    put_text(&memory, 3, "Main.java");
    put_text(&memory, 4, "a/b/Main");
    memory.put_words(CLASS, &[(24, SYMBOLS_AT + 64 * 4), (232, POOL)]);
    put_method(&memory, OUTER, 1, 10);
    put_method(&memory, INNER, 2, 20);
    memory
}

/// The names and lines of a stack's frames.
fn named(memory: Bytes, addresses: &[u64], words: &[FrameWords]) -> Vec<Vec<(String, u32)>> {
    let cache = CodeCache::new(memory, layout(), 0);
    let mut functions = MethodFrames::default();
    functions.begin();
    let mut stack = UnwoundStack { addresses: addresses.to_vec(), ..UnwoundStack::default() };
    functions.name(1, &cache, (words, None), &mut stack);
    let answer = functions.take_answer();
    let name = |frame: &Option<(u32, u32)>| {
        frame.map(|(number, line)| (answer[number as usize].name.clone(), line))
    };
    let all = |run: &RuntimeRun| run.frames.iter().filter_map(name).collect();
    stack.runs.iter().map(all).collect()
}

fn nothing() -> [Vec<(String, u32)>; 0] {
    []
}

fn pair(name: &str, line: u32) -> (String, u32) {
    (name.to_owned(), line)
}

#[test]
fn methods_of_compiled_code_have_names_and_lines() {
    let call = FIRST + 0x1f;
    let frames = named(memory(), &[0x42, call], &[]);
    assert_eq!(frames, [[pair("a.b.Main.inner", 20), pair("a.b.Main.outer", 11)]]);
    // An address between two places of the table is in `outer`, and maybe in `inner`: only `outer`
    // is told. A place that is no call has no inlined callee.
    let frames = named(memory(), &[FIRST + 0x28, FIRST + 0x25], &[]);
    assert_eq!(frames, [[pair("a.b.Main.outer", 11)], [pair("a.b.Main.outer", 10)]]);
    let memory = memory();
    memory.put_words(CLASS, &[(24, SYMBOLS_AT)]);
    assert_eq!(named(memory, &[0, call], &[]), nothing(), "a class without a name");
}

#[test]
fn methods_of_interpreted_frames_have_names_and_lines() {
    let memory = memory();
    memory.put(0x800, b"Interpreter\0");
    let words = |depth, method, place| FrameWords {
        depth,
        words: [method, INNER + 0x100 + 48 + place, 0, 0],
        is_late: false,
    };
    let words = [words(0, INNER, 3), words(1, INNER, 9), words(2, 0x4001, 0)];
    let frames = named(memory, &[FIRST, FIRST + 1, FIRST + 2], &words);
    assert_eq!(frames, [[pair("a.b.Main.inner", 20)], [pair("a.b.Main.inner", 21)]]);
}

#[test]
fn code_is_left_as_its_tables_say() {
    let cache = CodeCache::new(memory(), layout(), 0);
    assert_eq!(cache.at(FIRST).map(|blob| blob.kind), Some(Kind::Method));
    assert_eq!(cache.at(CODE), None, "free");
    assert_eq!(cache.at(BLOB + 0x380), None, "behind it");
    let rule = |at: u64, is_exact| {
        frames::frame_at(&cache, None, FIRST + at, is_exact).map(|frame| match frame.rule {
            FrameRule::Row { base: Base::StackPointer, distance, return_below: 8, frame_below } => {
                (distance, frame_below)
            }
            other => panic!("{other:?}"),
        })
    };
    for (at, expected) in
        [(7, (8, 0)), (8, (16, 16)), (12, (48, 16)), (0x44, (16, 16)), (0x45, (8, 0))]
    {
        assert_eq!(rule(at, true), Some(expected), "{at:#x}");
    }
    assert_eq!(rule(7, false), Some((48, 16)), "what returns there has called");
    let block = (FIRST + 0xff) & !0xff;
    assert!(frames::block(&cache, block).is_none(), "it is not all in the code");
}

/// Memory that leads in circles, or says nonsense, names nothing.
#[test]
fn a_process_may_lie() {
    let call = FIRST + 0x1f;
    let lie = |change: &dyn Fn(&Bytes)| {
        let memory = memory();
        change(&memory);
        named(memory, &[0, call], &[])
    };
    let outer = [[pair("a.b.Main.outer", 11)]];
    let inner = [[pair("a.b.Main.inner", 20)]];
    // Descriptions that are their own callers end.
    assert!(lie(&|memory| memory.put(0x7004, &[4, 2, 1])).iter().all(|run| run.len() <= 64));
    assert_eq!(lie(&|memory| memory.put(0x7004, &[1, 9, 1])), outer, "no such inlined method");
    assert_eq!(lie(&|memory| memory.put_words(CLASS, &[(232, 0x999)])), nothing());
    assert_eq!(lie(&|memory| memory.put(0x3805, &[7])), inner, "the name is no text");
    assert_eq!(lie(&|memory| memory.put(OUTER + 0x122, &[200, 0])), inner, "no such constant");
    assert_eq!(lie(&|memory| put_text(memory, 1, "a\nb")), inner, "no name");
    let long = SYMBOLS_AT + 64 + 4;
    assert_eq!(lie(&|memory| memory.put(long, &[0xff, 0xff])), inner, "too long");
    assert_eq!(lie(&|memory| memory.put(SEGMENTS + 2, &[9; 8])), nothing(), "segments before all");
    assert_eq!(lie(&|memory| memory.put(BLOB - 8, &[0])), nothing(), "not in use");
    assert_eq!(lie(&|memory| memory.put(BLOB + 28, &[0; 4])), nothing(), "no frame");
    assert_eq!(lie(&|memory| memory.put(HEAP + 256, &[63])), nothing(), "segments without end");
}

/// Words of memory that are others by chance: nothing fails, and no stack has more frames than it
/// may have.
#[test]
fn words_by_chance_make_no_reader_fail() {
    let mut random = fastrand::Rng::with_seed(46);
    let regions = [0x100, 0x200, HEAP, SEGMENTS, BLOB, BLOB + 0x300, FIRST, 0x7000, POOL, CLASS];
    let values = [0, 1, 0xff, 0x7fff_ffff, 1 << 31, 1 << 63, u64::MAX, BLOB, POOL, FIRST];
    for _ in 0..800 {
        let memory = memory();
        for _ in 0..random.u32(1..4) {
            let at = regions[random.usize(..regions.len())] + random.u64(..0x140);
            let value = values[random.usize(..values.len())];
            let value = if random.bool() { value } else { random.u64(..) };
            memory.put(at, &value.to_le_bytes()[..random.usize(1..9)]);
        }
        let addresses: Vec<u64> = (0..8).map(|_| FIRST + random.u64(..0x180)).collect();
        let cache = CodeCache::new(memory, layout(), 0);
        let codelets = Codelets::read(&cache);
        for address in &addresses {
            for is_exact in [false, true] {
                let _ = frames::frame_at(&cache, codelets.as_ref(), *address, is_exact);
            }
            let _ = frames::block(&cache, *address & !0xff);
        }
        let runs = named(cache.memory, &addresses, &[]);
        assert!(runs.iter().all(|run| run.len() <= 65));
    }
}

#[test]
fn tables_are_read_from_memory() {
    let memory = Bytes::default();
    memory.put(0x1000, b"Type\0_field\0_static\0Other\0flag\0");
    memory.put(0x101f, &[0; 128]);
    memory.put(0x2000, &[0; 144]);
    memory.put_words(0x2000, &[(0, 0x1000), (8, 0x1005), (32, 24)]);
    memory.put_words(0x2030, &[(0, 0x1000), (8, 0x100c), (40, 0x7777)]);
    memory.put(0x3000, &[0; 96]);
    memory.put_words(0x3000, &[(0, 0x1014), (24, 72)]);
    memory.put(0x4000, &[0; 32]);
    memory.put_words(0x4000, &[(0, 0x101a), (8, 5)]);
    let symbols = [0x2000, 0, 8, 32, 40, 48, 0x3000, 0, 24, 32, 0x4000, 8, 16];
    let tables = Tables::read(&memory, symbols).unwrap();
    assert_eq!(tables.field(&["Type::_none", "Type::_field"]), Some(24));
    assert_eq!(tables.field(&["Type::_static"]), Some(0x7777));
    assert_eq!((tables.size("Other"), tables.constant(&["flag"])), (Some(72), Some(5)));
    assert!(Tables::read(&memory, [0; SYMBOLS.len()]).is_none(), "not linked yet");
    let endless = [0x2000, 0, 8, 32, 40, 0, 0x3000, 0, 24, 0, 0x4000, 8, 0];
    assert!(Tables::read(&memory, endless).is_none(), "entries without bytes");
    assert_eq!(Layout::of(&tables, 17).err().as_deref(), Some("CodeHeap::_memory"));
}
