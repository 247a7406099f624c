//! The readers on made-up memory: of versions that are not on this machine, and of processes that
//! lie.

use super::functions::Functions;
use super::layouts::{CodeLayout, Layout};
use super::objects::{Heap, object, smi};
use super::symbols::Symbols;
use crate::frame_words::FrameWords;
use crate::python::Memory;
use crate::python::tests::{Bytes, read_words};

/// Symbols of V8 11.3 (Node.js 20) with their values.
const SYMBOLS: [(&str, i32); 41] = [
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
    ("class_BytecodeArray__data__uintptr_t", 54),
    ("class_Code__bytecode_or_interpreter_data__HeapObject", 16),
    ("class_ConsString__first__String", 16),
    ("class_ConsString__second__String", 24),
    ("class_FixedArrayBase__length__SMI", 8),
    ("class_FixedArray__data__uintptr_t", 16),
    ("class_JSFunction__shared__SharedFunctionInfo", 24),
    ("class_Map__instance_type__uint16_t", 12),
    ("class_Script__line_ends__Object", 56),
    ("class_Script__name__Object", 16),
    ("class_Script__source__Object", 8),
    ("class_SharedFunctionInfo__function_data__Object", 8),
    ("class_SharedFunctionInfo__name_or_scope_info__Object", 16),
    ("class_SharedFunctionInfo__script_or_debug_info__HeapObject", 32),
    ("class_String__length__int32_t", 12),
    ("off_fp_bytecode_array", -32),
    ("off_fp_bytecode_offset", -40),
    ("off_fp_context", -8),
    ("off_fp_function", -16),
    ("scopeinfo_idx_first_vars", 3),
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
const UNDEFINED: u64 = 0x7f01;
const SHARED: u64 = 0x1_0000;
const SCOPE: u64 = 0x1_1000;
const SCRIPT: u64 = 0x1_2000;
const BYTECODE: u64 = 0x1_3000;
const NAME: u64 = 0x2_0000;
const INFERRED: u64 = 0x2_1000;
const FILE: u64 = 0x2_2000;
const SOURCE: u64 = 0x2_3000;
const TABLE: u64 = 0x2_4000;
/// A type of strings of one byte, of two, and others.
const ONE_BYTE: u16 = 8;
const TWO_BYTES: u16 = 0;

fn symbols_but(changes: &[(&str, i32)], version: (i32, i32, i32)) -> Symbols {
    let all = SYMBOLS.iter().chain(changes).map(|(name, value)| ((*name).to_owned(), *value));
    Symbols::of_values(all, version)
}

fn layout() -> Layout {
    Layout::of(&symbols_but(&[], (11, 3, 244))).unwrap()
}

fn int(value: i32) -> u64 {
    u64::from(value.cast_unsigned()) << 32
}

/// An object of this type, and its words.
fn put(memory: &Bytes, at: u64, kind: u16, words: &[(u64, u64)]) {
    let map = 0x4_0000 + u64::from(kind) * 64;
    memory.put_words(at, &[(0, map + 1)]);
    memory.put_words(map, &[(8, u64::from(kind) << 32)]);
    memory.put_words(at, words);
}

fn put_string(memory: &Bytes, at: u64, kind: u16, text: &[u8]) {
    let units = text.len() as u64 / if kind & 8 == 8 { 1 } else { 2 };
    put(memory, at, kind, &[(8, units << 32)]);
    memory.put(at + 16, text);
}

/// The scope of a function with this name and inferred name, of two variables, from 10 to 90.
fn put_scope(memory: &Bytes, name: Option<u64>, inferred: Option<u64>) {
    let flags = 2 | (i32::from(name.is_some()) * 3) << 12 | i32::from(inferred.is_some()) << 14;
    put(memory, SCOPE, 261, &[(8, int(flags)), (16, int(1)), (24, int(2))]);
    let words = [NAME + 1, NAME + 1, int(0), int(0)].into_iter();
    let words = words.chain(name.into_iter().flat_map(|name| [name, int(0)]));
    let words = words.chain(inferred).chain([int(10), int(90)]);
    (4..).zip(words).for_each(|(slot, word)| memory.put_words(SCOPE, &[(8 * slot, word)]));
}

/// A function `work` of `/x/a.js`, whose line ends are at 4, 9 and 30, with a table that says that
/// its bytecode from 6 on is of position 32.
fn memory() -> Bytes {
    let memory = Bytes::default();
    put(&memory, UNDEFINED - 1, 131, &[]);
    put(&memory, SHARED, 262, &[(8, BYTECODE + 1), (16, SCOPE + 1), (32, SCRIPT + 1)]);
    put_scope(&memory, Some(NAME + 1), None);
    let script = [(8, SOURCE + 1), (16, FILE + 1), (24, int(0)), (56, UNDEFINED)];
    put(&memory, SCRIPT, 167, &script);
    put_string(&memory, NAME, ONE_BYTE, b"work");
    put_string(&memory, INFERRED, ONE_BYTE, b"Thing.work");
    put_string(&memory, FILE, ONE_BYTE, b"file:///x/a.js");
    put_string(&memory, SOURCE, ONE_BYTE, b"let \nabc\r\nfunction work() { x(\n};");
    put(&memory, BYTECODE, 191, &[(8, int(20)), (32, TABLE + 1)]);
    put(&memory, TABLE, 190, &[(8, int(3))]);
    // The distance 7 from -1, and position 32.
    memory.put(TABLE + 16, &[7 << 1, 0x84, 1]);
    memory
}

fn frame(offset: i32) -> FrameWords {
    let words = [SHARED + 1, 0, BYTECODE + 1, int(offset + 53)];
    FrameWords { depth: 3, words, is_late: false }
}

/// File, name, first line and line of a frame.
fn named(functions: &mut Functions, memory: &impl Memory, frame: FrameWords) -> Option<Named> {
    let layout = layout();
    functions.begin();
    let frames = functions.frame(1, (&frame, 0), &Heap::new(memory, &layout), Vec::new)?;
    let (number, line) = (*frames.first()?)?;
    let function = functions.take_answer().into_iter().nth(number as usize)?;
    Some((function.file, function.name, function.first_line, line))
}

type Named = (String, String, u32, u32);

fn some(name: &str, first_line: u32, line: u32) -> Option<Named> {
    Some(("/x/a.js".to_owned(), name.to_owned(), first_line, line))
}

#[test]
fn a_function_has_its_name_its_file_and_its_line() {
    let memory = memory();
    let mut functions = Functions::default();
    let mut read = |frame| named(&mut functions, &memory, frame);
    assert_eq!(read(frame(7)), some("work", 3, 4));
    assert_eq!(read(frame(5)), some("work", 3, 3), "before the table's first entry");
    assert_eq!(read(frame(20)), some("work", 3, 3), "beyond the bytecode");
    // Optimised code has something else in these slots.
    let words = [SHARED + 1, 0, 0x77, 0x8888];
    assert_eq!(read(FrameWords { words, ..frame(0) }), some("work", 3, 3));
    let words = [NAME + 1, 0, BYTECODE + 1, int(53)];
    assert_eq!(read(FrameWords { words, ..frame(0) }), None, "no function");
    let late = FrameWords { is_late: true, ..frame(7) };
    assert_eq!(read(late), some("work", 3, 4));
    let words = [SHARED + 1, 0, SCOPE + 1, int(53)];
    assert_eq!(read(FrameWords { words, ..late }), None, "another function's frame");
}

/// Frames of a compiler's code have variables where interpreted ones have their place, and the
/// handle of a function leads to its code.
#[test]
fn a_frame_with_variables_is_of_the_code_that_the_handle_leads_to() {
    const CODE: u64 = 0x3_0000;
    const TABLE_OF_HANDLES: u64 = 0x50_0000;
    const START: u64 = 0x60_0000;
    let memory = memory();
    put(&memory, CODE, 245, &[(40, START), (48, 0x1_0000_0000 * 0x100)]);
    memory.put_words(TABLE_OF_HANDLES, &[(16 * 2 + 8, (CODE + 1) << 16)]);
    let code = CodeLayout {
        deoptimization: 8,
        positions: 16,
        start: 40,
        is_address: true,
        size: 52,
        flags: 48,
        kind_mask: 15,
        baseline: 11,
        literals: 2,
        calls: 7,
    };
    let layout = Layout { code: Some(code), ..layout() };
    let codes_of = |slot, offset, address| {
        let words = [SHARED + 1, 2 << 8, slot, offset];
        let frame = FrameWords { depth: 3, words, is_late: false };
        let mut functions = Functions::default();
        functions.begin();
        let heap = Heap::new(&memory, &layout);
        let maps = || vec![TABLE_OF_HANDLES];
        let frames = functions.frame(1, (&frame, address), &heap, maps);
        assert_eq!(frames.map(|frames| frames.len()), Some(1));
        functions.take_codes().len()
    };
    assert_eq!(codes_of(NAME + 1, int(7), START + 8), 1, "two variables");
    assert_eq!(codes_of(BYTECODE + 1, TABLE + 1, START + 8), 1, "a variable and a pointer");
    assert_eq!(codes_of(BYTECODE + 1, int(60), START + 8), 0, "interpreted");
    assert_eq!(codes_of(NAME + 1, int(7), START + 0x100), 0, "behind the code");
}

#[test]
fn names_are_those_that_v8_itself_tells() {
    let memory = memory();
    let name = || named(&mut Functions::default(), &memory, frame(0)).map(|(_, name, ..)| name);
    let is = |told: &str| assert_eq!(name().as_deref(), Some(told));
    put_scope(&memory, Some(NAME + 1), Some(INFERRED + 1));
    is("work");
    put_scope(&memory, None, Some(INFERRED + 1));
    is("Thing.work");
    put_scope(&memory, Some(int(0)), Some(UNDEFINED));
    is("<anonymous>");
    put_scope(&memory, None, None);
    is("<anonymous>");
    put_scope(&memory, Some(UNDEFINED), None);
    assert_eq!(name(), None, "a name that is no string");
    memory.put_words(SCOPE, &[(24, int(-1))]);
    assert_eq!(name(), None, "a number of variables that is none");
    // Its bytecode was dropped: the name is where the scope was.
    memory.put_words(SHARED, &[(8, 0x3_0001), (16, NAME + 1)]);
    put(&memory, 0x3_0000, 220, &[(8, INFERRED + 1), (16, 10 | 90 << 32)]);
    is("work");
    memory.put_words(SHARED, &[(16, int(0))]);
    is("Thing.work");
    memory.put_words(SHARED, &[(32, UNDEFINED)]);
    assert_eq!(name(), None, "one of V8's own");
}

#[test]
fn a_function_is_read_once_and_again_when_another_is_there() {
    let memory = memory();
    let mut functions = Functions::default();
    assert_eq!(named(&mut functions, &memory, frame(7)), some("work", 3, 4));
    put_string(&memory, NAME, ONE_BYTE, b"play");
    assert_eq!(named(&mut functions, &memory, frame(7)), some("work", 3, 4), "it is known");
    memory.put_words(SHARED, &[(16, int(0)), (8, 0x3_0001)]);
    put(&memory, 0x3_0000, 220, &[(8, INFERRED + 1), (16, 0)]);
    assert_eq!(named(&mut functions, &memory, frame(7)), some("Thing.work", 1, 4));
    assert_eq!(named(&mut functions, &Bytes::default(), frame(0)), some("Thing.work", 1, 1));
    put(&memory, SHARED, 261, &[]);
    assert_eq!(named(&mut functions, &memory, frame(7)), None, "something else is there");
}

#[test]
fn strings_of_each_kind_are_text_and_others_are_none() {
    let (memory, layout) = (Bytes::default(), layout());
    let text = |at: u64, max| Heap::new(&memory, &layout).text(at + 1, max);
    let is = |at, told: &str| assert_eq!(text(at, 64).as_deref(), Some(told));
    let utf16 = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    put_string(&memory, 0x1000, ONE_BYTE, b"ab\xe4");
    is(0x1000, "abä");
    put_string(&memory, 0x2000, TWO_BYTES, &utf16("α🐍"));
    is(0x2000, "α🐍");
    put(&memory, 0x3000, 1, &[(8, 6 << 32), (16, 0x1001), (24, 0x2001)]);
    is(0x3000, "abäα🐍");
    put(&memory, 0x4000, 5, &[(8, 3 << 32), (16, 0x1001)]);
    is(0x4000, "abä");
    put(&memory, 0x5000, 3 | 8, &[(8, 2 << 32), (16, 0x4001), (24, int(1))]);
    is(0x5000, "bä");
    put(&memory, 0x6000, 2 | 8, &[(8, 3 << 32), (16, 0x99), (24, 0x1010)]);
    is(0x6000, "abä");
    put(&memory, 0x6000, 2 | 8 | 16, &[]);
    assert_eq!(text(0x6000, 64), None, "its characters have no address");
    memory.put_words(0x5000, &[(24, int(2))]);
    assert_eq!(text(0x5000, 64), None, "beyond its string");
    assert_eq!(text(0x2000, 2), None, "too long");
    put_string(&memory, 0x2000, TWO_BYTES, &0xd83d_u16.to_le_bytes());
    assert_eq!(text(0x2000, 64), None, "half a character");
    put(&memory, 0x3000, 1, &[(8, 6 << 32), (16, 0x3001), (24, 0x3001)]);
    assert_eq!(text(0x3000, 64), None, "a string of itself");
    put(&memory, 0x4000, 5, &[(16, 0x4001)]);
    assert_eq!(text(0x4000, 64), None, "a circle");
    put(&memory, 0x1000, 128, &[]);
    assert_eq!(text(0x1000, 64), None, "no string");
    put_string(&memory, 0x1000, ONE_BYTE, b"");
    memory.put_words(0x1000, &[(8, u64::from(u32::MAX) << 32)]);
    assert_eq!(Heap::new(&memory, &layout).text(0x1001, u64::MAX), None, "a length that is none");
}

#[test]
fn words_are_pointers_or_integers() {
    assert_eq!(
        [0x1001, 0x1000, 0x1003, 0x1005, u64::MAX - 6].map(object),
        [Some(0x1000), None, None, None, None]
    );
    assert_eq!([int(-7), int(0), 1, 1 << 31].map(smi), [Some(-7), Some(0), None, None]);
}

#[test]
fn versions_that_are_not_known_are_refused_by_name() {
    let refusal =
        |changes: &[(&str, i32)], version| Layout::of(&symbols_but(changes, version)).unwrap_err();
    assert_eq!(refusal(&[], (8, 4, 371)), "V8 8.4.371 is not known");
    let compressed = [("SmiShiftSize", 0)];
    assert_eq!(refusal(&compressed, (13, 6, 1)), "V8 13.6.1 has compressed pointers");
    let missing = [("off_fp_context", 8)];
    let told = "V8 13.6.1 does not say where its `off_fp_context` is";
    assert_eq!(refusal(&missing, (13, 6, 1)), told);
    assert_eq!(Layout::of(&Symbols::default()).unwrap_err(), "a V8 without version");
}

/// Frames of Node.js 20: the context at -8, the closure at -16, bytecode and offset at -32 and -40;
/// in the closure the shared part at 24, the code at 48.
#[test]
fn the_sampler_is_told_which_words_to_copy() {
    let sampler = layout().sampler;
    assert_eq!((sampler.block_at, sampler.block_bytes), (-40, 40));
    assert_eq!((sampler.object_at, sampler.object_bytes), (23, 32));
    assert_eq!((sampler.object, sampler.tag), (3, 4));
    assert_eq!(sampler.words, [8, 11, 1, 0]);
    let newer = Layout::of(&symbols_but(&[], (12, 4, 254))).unwrap().sampler;
    assert_eq!((newer.object_at, newer.object_bytes), (15, 16));
    assert_eq!(newer.words, [9, 8, 1, 0]);
}

/// Memory that passes for objects at multiples of 256, by chance: words lead to these, or anywhere.
struct Lies(u64);

impl Lies {
    fn word(&self, at: u64) -> u64 {
        let mut random = fastrand::Rng::with_seed(self.0 << 32 ^ at);
        // Objects at multiples of 256 are of these types in turn.
        const KINDS: [u16; 12] = [262, 261, 167, 191, 190, 175, 8, 0, 1, 5, 245, 220];
        if at >= 0x4_0000 {
            return u64::from(KINDS[((at - 0x4_0000) / 64) as usize % KINDS.len()]) << 32;
        }
        let (kind, place) = (at.wrapping_sub(0x1_0000) / 256 % 12, random.u64(..5));
        let of_kind = |number: u64| 0x1_0001 + 256 * (12 * place + number);
        match (kind, at % 256, random.u8(..16)) {
            (_, _, 0) => random.u64(..),
            (_, 0, _) => 0x4_0001 + 64 * kind,
            (0, 8, _) => of_kind([11, 3, 10][place as usize % 3]),
            (6 | 7, 8, _) => random.u64(..64) << 32 | 7,
            (11, 8, _) | (2, 16, _) => of_kind(6),
            (0, 16, _) => of_kind([1, 6][place as usize % 2]),
            (0, 32, _) => of_kind(2),
            (_, _, 1..12) => int(random.i32(-1..40)),
            _ => 0x1_0001 + 256 * random.u64(..64),
        }
    }
}

impl Memory for Lies {
    fn read(&self, at: u64, buffer: &mut [u8]) -> usize {
        read_words(|at| self.word(at), at, buffer)
    }
}

#[test]
fn nothing_that_a_process_has_in_its_memory_makes_a_reader_fail() {
    let mut read = 0;
    for seed in 0..200 {
        let memory = Lies(seed);
        let layouts = [
            layout(),
            Layout::of(&symbols_but(&[("scopeinfo_idx_first_vars", 5)], (13, 6, 233))).unwrap(),
        ];
        for layout in &layouts {
            let mut functions = Functions::default();
            functions.begin();
            let heap = Heap::new(&memory, layout);
            for number in 0..60 {
                let at = 0x1_0001 + 256 * number;
                let words = [at, at, memory.word(at) | 1, int(number as i32 + 53)];
                for is_late in [false, true] {
                    let frame = FrameWords { depth: 0, words, is_late };
                    read += usize::from(
                        functions.frame(1, (&frame, at + 40), &heap, || vec![0x1_0000]).is_some(),
                    );
                }
            }
        }
    }
    assert!(read > 0, "some of what is made up passes for functions");
}

/// A source of the greatest length for each of a thousand functions.
#[test]
fn the_work_for_one_question_is_bounded() {
    struct Large(Bytes);
    impl Memory for Large {
        fn read(&self, at: u64, buffer: &mut [u8]) -> usize {
            match at {
                0x1000_0000.. => buffer.len(),
                at => self.0.read(at, buffer),
            }
        }
    }
    let (small, layout) = (memory(), layout());
    put(&small, SOURCE, 2 | 8, &[(8, (12 << 20) << 32), (24, 0x1000_0000)]);
    let shared = |number: u64| 0x80_0000 + number * 256;
    for number in 1..100 {
        let script = 0x90_0000 + number * 256;
        let words = [(8, BYTECODE + 1), (16, SCOPE + 1), (32, script + 1)];
        put(&small, shared(number), 262, &words);
        let words = [(8, SOURCE + 1), (16, FILE + 1), (24, int(0)), (56, UNDEFINED)];
        put(&small, script, 167, &words);
    }
    let large = Large(small);
    let mut functions = Functions::default();
    functions.begin();
    let heap = Heap::new(&large, &layout);
    let read = (1..100).filter(|number| {
        let words = [shared(*number) + 1, 0, 0, 1];
        functions
            .frame(1, (&FrameWords { depth: 0, words, is_late: false }, 0), &heap, Vec::new)
            .is_some()
    });
    assert_eq!(read.count(), 1, "32 MiB are a source of 12 MiB, which is charged twice");
}
