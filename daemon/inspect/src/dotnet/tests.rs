//! The readers on made-up memory: of a runtime as small as can be, and of processes that lie.

use super::code_ranges::{CodeRanges, Kind};
use super::layouts::{Contract, Layout, code_offsets, tests::CONTRACT};
use super::metadata::Metadata;
use super::method_names::{Answer, Methods};
use super::unwind_codes;
use crate::python::tests::Bytes;
use crate::questions::UnwoundStack;
use std::sync::Arc;
use unwind::{Base, End, FrameRule};

/// The table of globals, and the tree with its leaf.
const GLOBALS: u64 = 0x1000;
const TABLES: [u64; 5] = [0x2000, 0x3000, 0x4000, 0x5000, 0x6000];
/// Code of the process, with a method of 0xc0 bytes and its handler, and a stub.
const HEAP_CODE: u64 = 0x10_0000;
const CODE: u64 = HEAP_CODE + 0x140;
const HANDLER: u64 = HEAP_CODE + 0x200;
const STUB: u64 = HEAP_CODE + 0x388;
/// Code of an assembly, with a method, its handler, and a method that was never called.
const AHEAD: u64 = 0x40_0000;
/// A range of stubs.
const STUBS: u64 = 0x60_0000;
const PARTS: [u64; 3] = [0x7000, 0x7100, 0x7200];
const SECTIONS: [u64; 3] = [0x7400, 0x7500, 0x7600];
const HEAP: u64 = 0x7800;
const MAP: u64 = 0x8000;
const HEADER: u64 = 0x9000;
const CHUNK: u64 = 0xa000;
const METHOD: u64 = CHUNK + 24 + 16;
const CLASS: u64 = 0xb000;
const MODULE: u64 = 0xc000;
const INFO: u64 = 0xd000;
const FUNCTIONS: u64 = 0xd800;
const BUCKETS: u64 = 0xe000;
const FILE: u64 = 0xf_0000;
const METADATA: u64 = FILE + 0x300;

fn layout() -> Arc<Layout> {
    let contract = Contract::parse(CONTRACT.as_bytes()).unwrap();
    let layout = Layout::of(&contract, code_offsets("9.0.5").unwrap()).unwrap();
    Arc::new(layout.with_globals(GLOBALS))
}

fn put_ints(memory: &Bytes, at: u64, ints: &[u32]) {
    let bytes: Vec<u8> = ints.iter().flat_map(|int| int.to_le_bytes()).collect();
    memory.put(at, &bytes);
}

fn put_shorts(memory: &Bytes, at: u64, shorts: &[u16]) {
    let bytes: Vec<u8> = shorts.iter().flat_map(|short| short.to_le_bytes()).collect();
    memory.put(at, &bytes);
}

/// An assembly that the loader has mapped as it is, with the types `Work.Main` and, in that,
/// `Nested`.
fn put_assembly(memory: &Bytes) {
    memory.put(FILE, &[0; 0x800]);
    memory.put(FILE, b"MZ");
    put_ints(memory, FILE + 0x3c, &[0x80]);
    memory.put(FILE + 0x80, b"PE\0\0");
    put_shorts(memory, FILE + 0x86, &[1]);
    put_shorts(memory, FILE + 0x80 + 20, &[0xe0, 0, 0x10b]);
    put_ints(memory, FILE + 0x80 + 232, &[0x2008]);
    put_ints(memory, FILE + 0x178 + 8, &[0x1000, 0x2000, 0x1000, 0x200]);
    put_ints(memory, FILE + 0x208 + 8, &[0x2100, 0x400]);
    memory.put(METADATA, b"BSJB");
    put_ints(memory, METADATA + 12, &[12]);
    put_shorts(memory, METADATA + 30, &[3]);
    put_ints(memory, METADATA + 32, &[0x80, 0x100]);
    memory.put(METADATA + 40, b"#~\0\0");
    put_ints(memory, METADATA + 44, &[0x200, 0x80]);
    memory.put(METADATA + 52, b"#Strings\0\0\0\0");
    put_ints(memory, METADATA + 64, &[0x300, 16]);
    memory.put(METADATA + 72, b"#GUID\0\0\0");
    memory.put(METADATA + 0x300, &[7; 16]);
    let texts = b"\0Main.dll\0<Module>\0Work\0Main\0Nested\0Run\0Leaf\0Inner\0";
    memory.put(METADATA + 0x200, texts);
    let text = |name: &[u8]| {
        let found = texts.windows(name.len() + 1).position(|it| it == [name, b"\0"].concat());
        found.unwrap() as u16
    };
    let tables = METADATA + 0x80;
    memory.put(tables + 8, &(1_u64 | 1 << 2 | 1 << 6 | 1 << 41).to_le_bytes());
    put_ints(memory, tables + 24, &[1, 3, 3, 1]);
    put_shorts(memory, tables + 40, &[0, text(b"Main.dll"), 1, 0, 0]);
    let types = [(text(b"<Module>"), 0, 1), (text(b"\0Main") + 1, text(b"Work"), 1)];
    let types = types.into_iter().chain([(text(b"Nested"), 0, 3)]);
    for (number, (name, space, methods)) in (0..).zip(types) {
        put_shorts(memory, tables + 50 + 14 * number, &[0, 0, name, space, 0, 1, methods]);
    }
    for (number, name) in (0..).zip([text(b"Run"), text(b"Leaf"), text(b"Inner")]) {
        put_shorts(memory, tables + 92 + 14 * number, &[0, 0, 0, 0, name, 0, 1]);
    }
    put_shorts(memory, tables + 134, &[3, 2]);
}

fn memory() -> Bytes {
    let memory = Bytes::default();
    memory.put_words(GLOBALS, &[(0, TABLES[0])]);
    TABLES.iter().for_each(|table| memory.put(*table, &[0; 0x800]));
    TABLES.windows(2).for_each(|pair| memory.put_words(pair[0], &[(0, pair[1])]));
    for (((code, flags), part), section) in
        [(HEAP_CODE, 2), (AHEAD, 0), (STUBS, 4)].iter().zip(PARTS).zip(SECTIONS)
    {
        // The lowest bit says that it may be unloaded.
        memory.put_words(TABLES[4], &[(code >> 17 << 3, part | 1)]);
        memory.put_words(part, &[(0, 0), (8, *code), (16, code + 0x1000), (24, section)]);
        let words =
            [(0, *code), (8, code + 0x1000), (16, *flags), (24, 0), (32, MODULE), (40, HEAP)];
        memory.put_words(section, &words);
        memory.put(*code, &[0x90; 0x1000]);
    }
    memory.put_words(HEAP, &[(24, HEAP_CODE + 0x800), (32, HEAP_CODE), (40, MAP)]);
    put_ints(&memory, MAP, &[0, 0x0010_0000, 0, 0x0000_3000, 0, 0, 0, 0]);
    memory.put_words(CODE - 8, &[(0, HEADER)]);
    memory.put_words(STUB - 8, &[(0, 7)]);
    memory.put_words(HEADER, &[(24, METHOD)]);
    put_ints(&memory, HEADER + 32, &[2, 0x140, 0x200, 0x800, 0x200, 0x240, 0x820]);
    // push %rbp; sub $32, %rsp; and of the handler push %rbp.
    for code in [HEAP_CODE, AHEAD] {
        memory.put(code + 0x800, &[0x19, 5, 2, 0, 5, 0x32, 1, 0x50]);
        memory.put(code + 0x820, &[0x19, 1, 1, 0, 1, 0x50]);
    }
    memory.put(CODE, &[0x55, 0x48, 0x83, 0xec, 0x20]);
    // A call whose last byte is that of `pop %rax`; then the end.
    memory.put(CODE + 0xb3, &[0xff, 0x50, 0x58, 0x48, 0x83, 0xc4, 0x20, 0x5d, 0xc3]);
    memory.put(METHOD, &[1, 0xb0, 2, 0, 0, 0, 0, 0]);
    memory.put_words(CHUNK, &[(0, CLASS), (8, 0), (16, 0)]);
    memory.put_words(CLASS, &[(24, MODULE)]);
    memory.put_words(MODULE, &[(288, FILE), (984, INFO)]);
    memory.put_words(
        INFO,
        &[(0, MODULE), (40, INFO), (80, FUNCTIONS), (88, 3), (104, 0), (448, BUCKETS)],
    );
    let functions = [0x100, 0x180, 0x800, 0x180, 0x1c0, 0x820, 0x200, 0x280, 0x800];
    put_ints(&memory, FUNCTIONS, &functions);
    memory.put(BUCKETS, &[0; 64 * 6]);
    memory.put_words(BUCKETS, &[(0, 5)]);
    let place = (AHEAD + 0x100) / 4 % 5;
    memory.put_words(BUCKETS + 64 * (1 + place), &[(8, AHEAD + 0x100), (40, METHOD >> 1)]);
    put_assembly(&memory);
    memory
}

fn map(memory: Bytes) -> CodeRanges<Bytes> {
    CodeRanges::new(memory, layout(), 0).unwrap()
}

/// The names of the frames at these addresses; empty: none.
fn named(memory: Bytes, addresses: &[u64]) -> Vec<String> {
    let (map, mut methods) = (map(memory), Methods::default());
    let mut answer = Answer::new(&mut methods, &map, 1);
    let mut stack = UnwoundStack { addresses: addresses.to_vec(), ..UnwoundStack::default() };
    answer.name(&mut stack);
    let mut names = vec![String::new(); addresses.len()];
    for run in &stack.runs {
        let (number, line) = run.frames[0].unwrap();
        let function = &answer.functions[number as usize];
        assert_eq!((function.file.as_str(), line), ("Main.dll", 0));
        names[run.depth as usize].clone_from(&function.name);
    }
    names
}

#[test]
fn methods_have_names_whoever_compiled_them() {
    let addresses = [CODE, CODE + 0xbf, HANDLER, HANDLER + 0x3f, HANDLER + 0x40, CODE - 1, STUB];
    let run = "Work.Main.Run";
    assert_eq!(named(memory(), &addresses), [run, run, run, run, "", "", ""]);
    let addresses = [AHEAD + 0x100, AHEAD + 0x1bf, AHEAD + 0x1c0, AHEAD + 0x0ff];
    assert_eq!(named(memory(), &addresses), [run, run, "", ""]);
    let metadata = Metadata::of_file(&memory(), FILE).unwrap();
    let names = [1, 2, 3].map(|method| metadata.method(&memory(), method).unwrap());
    assert_eq!(names, [run, "Work.Main.Leaf", "Work.Main.Nested.Inner"]);
    assert_eq!([0, 4].map(|method| metadata.method(&memory(), method)), [None, None]);
    assert_eq!(metadata.version, [7; 16]);
}

#[test]
fn stubs_have_names_and_no_frames() {
    let map = map(memory());
    assert_eq!(map.at(STUBS + 5).map(|code| code.kind), Some(Kind::Stub));
    let (code, end) = (map.at(STUB + 0x40).unwrap(), FrameRule::End(End::Generated));
    assert_eq!((code.kind, code.start), (Kind::Other, HEAP_CODE + 0x3c0));
    assert_eq!(unwind_codes::frame_at(&map, STUB, true).unwrap().rule, end, "it may have pushed");
    let jump = unwind_codes::frame_at(&map, STUBS, true).unwrap().rule;
    assert_eq!(jump, row(8, 0));
    assert_eq!(unwind_codes::frame_at(&map, STUBS, false).unwrap().rule, end, "it calls nobody");
}

fn row(distance: i64, frame_below: u16) -> FrameRule {
    FrameRule::Row { base: Base::StackPointer, distance, return_below: 8, frame_below }
}

#[test]
fn frames_are_left_as_the_unwind_codes_say() {
    let map = map(memory());
    let rule = |at: u64, is_exact| unwind_codes::frame_at(&map, at, is_exact).unwrap().rule;
    let (body, popped) = (row(48, 16), row(8, 0));
    let exact = [(0, popped), (1, row(16, 16)), (5, body), (0xb6, body), (0xba, row(16, 16))];
    for (into, expected) in exact.into_iter().chain([(0xbb, popped)]) {
        assert_eq!(rule(CODE + into, true), expected, "{into:#x}");
    }
    // The last byte of the call, and the end, would pop a register too much.
    assert_eq!(rule(CODE + 0xb5, false), body);
    let rows = unwind_codes::block(&map, HEAP_CODE + 0x100).unwrap();
    let expected = [
        (0, FrameRule::Other),
        (0x40, popped),
        (0x41, row(16, 16)),
        (0x45, body),
        (0xfa, row(16, 16)),
        (0xfb, popped),
        // Bytes behind the end are those of the body again.
        (0xfc, body),
    ];
    assert_eq!(rows, expected);
    assert!(unwind_codes::block(&map, HEAP_CODE + 0x300).is_none(), "it has stubs");
    assert!(unwind_codes::block(&map, HEAP_CODE + 0x700).is_none(), "it has no code");
}

/// Memory that leads in circles, is torn, or says nonsense, names nothing.
#[test]
fn a_process_may_lie() {
    let lie = |change: &dyn Fn(&Bytes)| {
        let memory = memory();
        change(&memory);
        named(memory, &[CODE + 4, AHEAD + 0x104]).concat()
    };
    let run = "Work.Main.Run";
    assert_eq!(lie(&|_| {}), [run, run].concat());
    let circle = |memory: &Bytes| {
        memory.put_words(PARTS[0], &[(0, PARTS[0]), (8, 0), (16, 0)]);
    };
    assert_eq!(lie(&circle), run, "parts in a circle");
    let elsewhere = |memory: &Bytes| memory.put_words(SECTIONS[0], &[(0, 0), (8, 1 << 20)]);
    assert_eq!(lie(&elsewhere), run, "a section that is elsewhere");
    for (at, words) in [(GLOBALS, [8; 64]), (TABLES[2], [0xff; 64]), (MODULE + 288, [1; 64])] {
        assert_eq!(lie(&|memory| memory.put(at, &words)), "", "{at:#x}");
    }
    let begins = |memory: &Bytes| put_ints(memory, HEADER + 36, &[0x148]);
    assert_eq!(lie(&begins), run, "a function that begins elsewhere");
    for count in [0, u32::MAX] {
        assert_eq!(lie(&|memory| put_ints(memory, HEADER + 32, &[count])), run, "{count}");
    }
    let free = |memory: &Bytes| put_ints(memory, MAP, &[0; 8]);
    assert_eq!(lie(&free), run, "no piece begins there");
    let split = |memory: &Bytes| memory.put_words(INFO, &[(104, 1)]);
    assert_eq!(lie(&split), run, "functions with parts elsewhere");
    let other = |memory: &Bytes| memory.put_words(INFO, &[(0, 0x1234)]);
    assert_eq!(lie(&other), run, "code of another module");
    for count in [0, 1, 1 << 40, u64::MAX] {
        assert_eq!(lie(&|memory| memory.put_words(BUCKETS, &[(0, count)])), run, "{count}");
    }
    let never = |memory: &Bytes| memory.put(BUCKETS + 64, &[0xff; 320]);
    assert_eq!(lie(&never), run, "buckets that all lead on");
    let names = |memory: &Bytes| memory.put(METADATA + 0x200, &[b'x'; 0x100]);
    assert_eq!(lie(&names), "", "texts without an end");
    let control = |memory: &Bytes| memory.put(METADATA + 0x201, &[1; 0x40]);
    assert_eq!(lie(&control), "", "texts of no characters");
    let many = |memory: &Bytes| put_ints(memory, METADATA + 0x80 + 24, &[u32::MAX; 4]);
    assert_eq!(lie(&many), "", "more rows than the stream has");
    let in_circle = |memory: &Bytes| put_shorts(memory, METADATA + 0x80 + 134, &[2, 2]);
    assert_eq!(lie(&in_circle), "", "a type within itself");
    let beyond = |memory: &Bytes| put_ints(memory, METADATA + 32, &[0x80, 0xffff_ff00]);
    assert_eq!(lie(&beyond), "", "a stream beyond the metadata");
    assert_eq!(lie(&|memory| memory.put(METHOD, &[4, 0xb0])), "", "no such method");
    assert_eq!(lie(&|memory| memory.put(METHOD + 6, &[4])), "", "a method of arrays");
}

/// A method that the program made has only a name, which its code gets.
#[test]
fn dynamic_methods_have_the_name_that_they_were_made_with() {
    let memory = memory();
    memory.put(METHOD + 6, &[7]);
    memory.put_words(METHOD + 32, &[(0, 0x900)]);
    memory.put(0x900, b"Made\0");
    memory.put(0x905, &[0; 256]);
    let (map, mut methods) = (map(memory), Methods::default());
    let mut answer = Answer::new(&mut methods, &map, 1);
    let mut stack = UnwoundStack { addresses: vec![CODE], ..UnwoundStack::default() };
    answer.name(&mut stack);
    assert!(stack.runs.is_empty());
    let code = answer.codes.values().next().unwrap();
    assert_eq!((code.start, code.size), (CODE, 0xc0));
    assert_eq!(answer.functions[code.function as usize].name, "Made (.NET)");
}

/// Words of memory that are others by chance: nothing fails or runs on.
#[test]
fn words_by_chance_make_no_reader_fail() {
    let mut random = fastrand::Rng::with_seed(46);
    let regions = [
        GLOBALS,
        TABLES[1],
        TABLES[4],
        PARTS[0],
        SECTIONS[0],
        HEAP,
        MAP,
        HEADER,
        CHUNK,
        CLASS,
        INFO,
        FUNCTIONS,
        BUCKETS,
        FILE,
        FILE + 0x80,
        FILE + 0x178,
        METADATA,
        METADATA + 0x80,
        CODE,
        HEAP_CODE + 0x800,
    ];
    let values = [0, 1, 0xff, 0x7fff_ffff, 1 << 31, 1 << 63, u64::MAX, CODE, METADATA, PARTS[0]];
    for _ in 0..800 {
        let memory = memory();
        for _ in 0..random.u32(1..4) {
            let at = regions[random.usize(..regions.len())] + random.u64(..0x80);
            let value = values[random.usize(..values.len())];
            let value = if random.bool() { value } else { random.u64(..) };
            memory.put(at, &value.to_le_bytes()[..random.usize(1..9)]);
        }
        let addresses: Vec<u64> =
            (0..8).map(|_| [CODE, AHEAD, STUB][random.usize(..3)] + random.u64(..0x200)).collect();
        let Some(map) = CodeRanges::new(memory, layout(), 0) else { continue };
        for address in &addresses {
            for is_exact in [false, true] {
                let _ = unwind_codes::frame_at(&map, *address, is_exact);
            }
            let _ = unwind_codes::block(&map, *address & !0xff);
        }
        let mut methods = Methods::default();
        let mut answer = Answer::new(&mut methods, &map, 1);
        let mut stack = UnwoundStack { addresses, ..UnwoundStack::default() };
        answer.name(&mut stack);
        assert!(stack.runs.len() <= 8);
    }
}
