//! The readers on made-up memory: of versions whose interpreter is not on this machine, and of
//! processes that lie.

use super::code_objects::{Codes, Reader};
use super::layouts::Layout;
use super::program::Types;
use super::{Memory, runtime};
use abi::PythonFrame;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Bytes by address; all else cannot be read.
#[derive(Default)]
pub(crate) struct Bytes(RefCell<BTreeMap<u64, u8>>);

impl Memory for Bytes {
    fn read(&self, at: u64, buffer: &mut [u8]) -> usize {
        let bytes = self.0.borrow();
        let read = (at..=u64::MAX).zip(&mut *buffer).map_while(|(at, to)| {
            *to = *bytes.get(&at)?;
            Some(())
        });
        read.count()
    }
}

impl Bytes {
    pub(crate) fn put(&self, at: u64, bytes: &[u8]) {
        self.0.borrow_mut().extend((at..).zip(bytes.iter().copied()));
    }

    pub(crate) fn put_words(&self, at: u64, words: &[(u64, u64)]) {
        for (offset, word) in words {
            self.put(at + offset, &word.to_le_bytes());
        }
    }

    /// A string object of such characters.
    fn put_string(&self, at: u64, (char_bytes, is_ascii): (u32, bool), text: &[u8]) {
        let chars = text.len() as u64 / u64::from(char_bytes);
        self.put_words(at, &[(0, 1), (8, TYPES.string), (16, chars), (24, 0)]);
        let state = char_bytes << 2 | 0x20 | u32::from(is_ascii) << 6;
        self.put(at + 32, &state.to_le_bytes());
        self.put(at + if is_ascii { 48 } else { 72 }, text);
    }
}

const TYPES: Types = Types { code: 0x100, string: 0x200, bytes: 0x300 };
const CODE: u64 = 0x1000;

fn layout(minor: u8) -> Layout {
    Layout::of(minor, &Bytes::default(), 0).unwrap()
}

/// A code object of 3.11 with one line of 8 bytes, `name` at 0x2000, its file at 0x3000.
fn memory_with_code(first_line: u64) -> Bytes {
    let memory = Bytes::default();
    memory.put(CODE, &[0; 200]);
    let head = [(8, TYPES.code), (16, 4), (112, 0x3000), (128, 0x2000), (136, 0x4000)];
    memory.put_words(CODE, &head);
    memory.put_words(CODE, &[(72, first_line)]);
    memory.put_string(0x3000, (1, true), b"/x/a.py");
    memory.put_string(0x2000, (1, true), b"f");
    memory.put_words(0x4000, &[(8, TYPES.bytes), (16, 3)]);
    memory.put(0x4020, &[0x80 | 13 << 3 | 3, 2, 0]);
    memory
}

fn frame(byte: u64) -> PythonFrame {
    PythonFrame { code: CODE, instruction: CODE + 184 + byte, flags: 0 }
}

#[test]
fn a_function_is_read_once_and_again_when_its_code_object_is_another() {
    let (memory, layout) = (memory_with_code(7), layout(11));
    let mut codes = Codes::default();
    codes.begin();
    let reader = Reader { memory: &memory, layout: &layout, types: TYPES };
    let read = |codes: &mut Codes, reader: &Reader<'_, Bytes>, byte| {
        let (code, line) = codes.frame(1, &frame(byte), reader)?;
        let function = code.function();
        Some((function.file, function.name, function.first_line, line))
    };
    let told = |name: &str, first, line| Some(("/x/a.py".into(), name.to_owned(), first, line));
    assert_eq!(read(&mut codes, &reader, 6), told("f", 7, 8));
    assert_eq!(read(&mut codes, &reader, 8), None, "beyond the function");
    // Within a question nothing is looked at twice.
    memory.put_string(0x5000, (1, true), b"g");
    memory.put_words(CODE, &[(128, 0x5000), (72, 9)]);
    assert_eq!(read(&mut codes, &reader, 6), told("f", 7, 8));
    codes.begin();
    assert_eq!(read(&mut codes, &reader, 6), told("g", 9, 10));
    // The address no longer holds a code object.
    memory.put_words(CODE, &[(8, TYPES.string)]);
    codes.begin();
    assert_eq!(read(&mut codes, &reader, 6), None);
    memory.put_words(CODE, &[(8, TYPES.code)]);
    codes.begin();
    assert_eq!(read(&mut codes, &reader, 6), told("g", 9, 10));
    // The process is gone.
    let gone = Bytes::default();
    let reader = Reader { memory: &gone, layout: &layout, types: TYPES };
    codes.begin();
    assert_eq!(read(&mut codes, &reader, 6), told("g", 9, 10));
    assert!(codes.get(2, CODE, &reader).is_none(), "another process");
}

/// Frames of a process's own making, each at another instruction of a function with the longest
/// table: the inspector worked for five seconds at one question.
#[test]
fn the_work_for_one_question_is_bounded() {
    let (memory, layout) = (memory_with_code(7), layout(11));
    let instructions = 256 << 10;
    memory.put_words(CODE, &[(16, instructions)]);
    memory.put_words(0x4000, &[(16, instructions)]);
    memory.put(0x4020, &vec![0x80 | 15 << 3; 256 << 10]);
    memory.put(0x4020, &[0x80 | 13 << 3 | 3, 2, 0]);
    let mut codes = Codes::default();
    let reader = Reader { memory: &memory, layout: &layout, types: TYPES };
    let mut named = |bytes: std::ops::Range<u64>| {
        codes.begin();
        bytes.filter(|byte| codes.frame(1, &frame(byte % 100_000), &reader).is_some()).count()
    };
    assert_eq!(named(0..100_000), 62, "16 MiB, less the name, the table and its first decoding");
    assert_eq!(named(0..20) + named(100_000..100_020), 40, "another question");
    codes.begin();
    let again = (0..100_000).filter(|_| codes.frame(1, &frame(6), &reader).is_some()).count();
    assert_eq!(again, 100_000, "one instruction is decoded once");
}

#[test]
fn strings_of_each_width_are_text_and_others_are_none() {
    let (memory, layout) = (memory_with_code(1), layout(11));
    let name = |of: (u32, bool), text: &[u8]| {
        memory.put_string(0x2000, of, text);
        let mut codes = Codes::default();
        codes.begin();
        let reader = Reader { memory: &memory, layout: &layout, types: TYPES };
        codes.get(1, CODE, &reader).map(|code| code.function().name)
    };
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(name((1, true), b"abc"), some("abc"));
    assert_eq!(name((1, false), b"\xe4"), some("ä"));
    assert_eq!(name((2, false), &0x3b1_u16.to_le_bytes()), some("α"));
    assert_eq!(name((4, false), &0x1f40d_u32.to_le_bytes()), some("🐍"));
    assert_eq!(name((1, true), b"a\xff"), None, "no ASCII");
    assert_eq!(name((2, false), &0xd800_u16.to_le_bytes()), None, "half a character");
    assert_eq!(name((3, false), b"abc"), None, "no width");
    assert_eq!(name((1, true), &[b'x'; 512]).map(|name| name.len()), Some(512));
    assert_eq!(name((1, true), &[b'x'; 513]), None, "too long");
    memory.put_words(0x2000, &[(16, u64::MAX)]);
    let mut codes = Codes::default();
    codes.begin();
    let reader = Reader { memory: &memory, layout: &layout, types: TYPES };
    assert!(codes.get(1, CODE, &reader).is_none(), "a length that is none");
}

#[test]
fn frames_are_divided_by_calls_of_the_loop() {
    let frames = |flags: &[u64]| -> Vec<PythonFrame> {
        flags.iter().map(|flags| PythonFrame { flags: *flags, ..PythonFrame::default() }).collect()
    };
    let sizes = |minor, flags: &[u64]| -> Vec<(usize, bool)> {
        let (layout, frames) = (layout(minor), frames(flags));
        let groups = layout.groups(&frames);
        groups.iter().map(|group| (group.frames.len(), group.is_whole)).collect()
    };
    assert_eq!(sizes(9, &[7, 7]), [(1, true), (1, true)]);
    let entry = 1 << 32;
    assert_eq!(sizes(11, &[0, entry, entry, 0]), [(2, true), (1, true), (1, false)]);
    let shim = 3 << 48;
    let generator = 1 << 48;
    assert_eq!(sizes(12, &[generator, 0, shim, 0, shim]), [(2, true), (1, true)]);
    assert_eq!(sizes(12, &[shim, 0]), [(0, true), (1, false)]);
}

/// Memory of a runtime at 0x1000 with threads whose words are at these offsets.
fn runtime_with(words: &[u64]) -> Bytes {
    let memory = Bytes::default();
    let (interpreter, state) = (0x2000_u64, |number: u64| 0x10_000 * (number + 1));
    memory.put_words(0x1000, &[(40, interpreter)]);
    memory.put_words(interpreter, &[(16, state(0))]);
    for (number, at) in (0..).zip(words) {
        let thread = state(number) + 0x1000;
        let is_last = number + 1 == words.len() as u64;
        let next = if is_last { 0 } else { state(number + 1) };
        memory.put_words(state(number), &[(8, next), (16, interpreter), (152, thread)]);
        memory.put(thread, &[0; 2048]);
        // `struct pthread` of glibc has the state in a slot of pthread_setspecific, behind the
        // slot's sequence number 1. A second word with the state's address, as the argument of the
        // thread's first procedure may be, must not be taken for that slot.
        memory.put_words(thread, &[(*at - 8, 1), (*at, state(number)), (0x80, state(number))]);
    }
    memory
}

#[test]
fn the_word_of_threads_is_found_by_what_is_in_it() {
    let find = |memory: &Bytes| {
        let word = runtime::word_of_threads(&layout(11), memory, 0x1000)?;
        assert_eq!(word.table_at, 0);
        Some(word.state_at)
    };
    assert_eq!(find(&runtime_with(&[0x318])), Some(0x318));
    assert_eq!(find(&runtime_with(&[0x328, 0x328, 0x328])), Some(0x328));
    assert_eq!(find(&runtime_with(&[0x328, 0x338])), None, "threads have no word in common");
    assert_eq!(find(&runtime_with(&[])), None, "no thread");
    assert_eq!(find(&Bytes::default()), None);
    let two = runtime_with(&[0x318]);
    two.put_words(0x11_000, &[(0x410, 3), (0x418, 0x10_000)]);
    assert_eq!(find(&two), None, "which of two words it is is not known");
    let circle = runtime_with(&[0x318]);
    circle.put_words(0x10_000, &[(8, 0x10_000)]);
    assert_eq!(find(&circle), Some(0x318), "a list without end");
    let other = runtime_with(&[0x318]);
    other.put_words(0x10_000, &[(16, 0x3000)]);
    assert_eq!(find(&other), None, "a thread of another interpreter");
}

#[test]
fn threads_of_musl_have_the_word_in_a_table() {
    let memory = Bytes::default();
    let (interpreter, state, thread) = (0x2000, 0x10_000, 0x11_000);
    memory.put_words(0x1000, &[(40, interpreter)]);
    memory.put_words(interpreter, &[(16, state)]);
    memory.put_words(state, &[(8, 0), (16, interpreter), (152, thread)]);
    memory.put(thread, &[0; 512]);
    memory.put(0x13_000, &[0; 1024]);
    // The thread itself, both neighbours in the list of threads, and the table.
    let words = [(0, thread), (16, thread), (24, thread), (0x80, 0x13_000)];
    memory.put_words(thread, &words);
    memory.put_words(0x13_000, &[(16, state)]);
    let find = || runtime::word_of_threads(&layout(11), &memory, 0x1000);
    let word = runtime::ThreadWord { state_at: 16, table_at: 0x80 };
    assert_eq!(find(), Some(word));
    // An address before the table, from which the word is farther.
    memory.put(0x12_f80, &[0; 128]);
    memory.put_words(thread, &[(8, 0x12_f80)]);
    assert_eq!(find(), Some(word));
    memory.put_words(0x13_000, &[(16, 0)]);
    assert_eq!(find(), None, "a thread without the word");
}

#[test]
fn offsets_that_a_runtime_tells_are_believed_within_limits() {
    let memory = Bytes::default();
    memory.put(0x1000, &[0; 8 * 73]);
    let told = [
        (0, u64::from_le_bytes(*b"xdebugpy")),
        (8, 0x030d_00f0),
        (40, 632),
        (72, 7344),
        (168, 8),
        (176, 16),
        (184, 72),
        (192, 152),
        (232, 8),
        (248, 56),
        (264, 70),
        (280, 112),
        (296, 128),
        (304, 136),
        (312, 68),
        (344, 200),
    ];
    memory.put_words(0x1000, &told);
    let layout = Layout::of(13, &memory, 0x1000).unwrap();
    assert_eq!((layout.interpreters, layout.threads), (632, 7344));
    let sampler = layout.sampler;
    assert_eq!((sampler.block_bytes, sampler.flags_at, sampler.frame_at), (72, 64, 72));
    for (at, wrong) in [
        (0, 1),
        (8, 0x030e_00f0),
        (16, 1),
        (40, u64::MAX),
        (184, 1 << 17),
        (248, 57),
        (248, 96),
        (264, u64::MAX),
    ] {
        memory.put_words(0x1000, &[(at, wrong)]);
        assert_eq!(Layout::of(13, &memory, 0x1000), None, "{wrong} at {at}");
        let right = told.iter().find(|(offset, _)| *offset == at).map_or(0, |(_, word)| *word);
        memory.put_words(0x1000, &[(at, right)]);
    }
    assert_eq!(Layout::of(14, &memory, 0x1000), None);
    assert_eq!(Layout::of(16, &memory, 0x1000), None);
}

/// The offsets that Debian's CPython 3.15.2 tells. Its threads have their states in variables.
#[test]
fn newer_versions_have_their_own_table_of_offsets() {
    let memory = Bytes::default();
    memory.put(0x1000, &[0; 8 * 73]);
    let told = [
        (0, u64::from_le_bytes(*b"xdebugpy")),
        (8, 0x030f_02f0),
        (40, 936),
        (72, 7336),
        (192, 8),
        (200, 16),
        (208, 72),
        (240, 176),
        (320, 8),
        (336, 56),
        (352, 74),
        (384, 112),
        (400, 128),
        (408, 136),
        (416, 68),
        (448, 208),
    ];
    memory.put_words(0x1000, &told);
    let layout = Layout::of(15, &memory, 0x1000).unwrap();
    let (code, sampler) = (layout.code, layout.sampler);
    assert_eq!((layout.next, layout.interpreter, sampler.id_at), (8, 16, 176));
    assert_eq!((sampler.code_at, sampler.instruction_at, sampler.flags_at), (0, 56, 72));
    assert_eq!((code.file, code.name, code.lines, code.instructions), (112, 128, 136, 208));
    // A thread's last frame is none that the loop ran.
    let own = |code, owner: u64| PythonFrame { code, instruction: 0, flags: owner << 16 };
    let frames = [own(1, 0), own(2, 0), own(0, 3), own(0, 3)];
    let groups = layout.groups(&frames);
    assert_eq!(groups.iter().map(|group| group.frames.len()).collect::<Vec<_>>(), [2]);
    assert!(groups.iter().all(|group| group.is_whole));
    // `_Py_tss_interp`, `_Py_tss_tstate` and `_Py_tss_gilstate` below the thread.
    let (interpreter, state, thread) = (0x2000, 0x10_000, 0x20_000);
    memory.put(thread - 2048, &[0; 4096]);
    memory.put_words(0x1000 + 936, &[(0, interpreter)]);
    memory.put_words(interpreter, &[(7336, state)]);
    memory.put_words(state, &[(8, 0), (16, interpreter), (176, thread)]);
    memory.put_words(thread - 40, &[(0, state), (8, state), (16, interpreter)]);
    let word = |at| Some(runtime::ThreadWord { state_at: at, table_at: 0 });
    assert_eq!(runtime::word_of_threads(&layout, &memory, 0x1000), word(-40));
    // While it waits without the lock, the others are empty.
    memory.put_words(thread - 32, &[(0, 0), (8, 0)]);
    assert_eq!(runtime::word_of_threads(&layout, &memory, 0x1000), word(-40));
    memory.put_words(thread - 40, &[(0, 0)]);
    assert_eq!(runtime::word_of_threads(&layout, &memory, 0x1000), None);
}

/// Memory that passes for objects at multiples of 256, by chance: code objects in its first page,
/// strings in the second, byte strings in the third. Words lead to these, or anywhere.
struct Lies(u64);

impl Lies {
    fn word(&self, at: u64) -> u64 {
        let mut random = fastrand::Rng::with_seed(self.0 << 32 ^ at);
        let kind = [TYPES.code, TYPES.string, TYPES.bytes].get((at >> 12) as usize).copied();
        match at % 256 {
            _ if random.u8(..16) == 0 => random.u64(..),
            8 => kind.unwrap_or_default(),
            16 => random.u64(..600),
            32 => [0x24, 0x64, 0x28, 0x30][random.usize(..4)],
            112 | 120 | 128 => 0x1000 + 256 * random.u64(..16),
            136 => 0x2000 + 256 * random.u64(..16),
            _ => random.u64(..1 << 31),
        }
    }
}

/// Reads memory whose words are those of a function of their addresses.
pub(crate) fn read_words(word: impl Fn(u64) -> u64, at: u64, buffer: &mut [u8]) -> usize {
    for (number, byte) in (0..).zip(&mut *buffer) {
        let at = at.wrapping_add(number);
        *byte = word(at & !7).to_le_bytes()[(at % 8) as usize];
    }
    buffer.len()
}

impl Memory for Lies {
    fn read(&self, at: u64, buffer: &mut [u8]) -> usize {
        read_words(|at| self.word(at), at, buffer)
    }
}

#[test]
fn nothing_that_a_process_has_in_its_memory_makes_a_reader_fail() {
    let mut read = 0;
    for seed in 0..100 {
        let memory = Lies(seed);
        for minor in 8..=13 {
            let _ = Layout::of(minor, &memory, seed);
            let Some(layout) = Layout::of(minor, &Bytes::default(), 0) else { continue };
            let _ = runtime::word_of_threads(&layout, &memory, seed * 8);
            let reader = Reader { memory: &memory, layout: &layout, types: TYPES };
            let mut codes = Codes::default();
            codes.begin();
            for at in (0..4096).step_by(256) {
                let Some(code) = codes.get(1, at, &reader) else { continue };
                read += 1;
                for instruction in [0, 1, at + 200, u64::MAX, u64::from(u32::MAX)] {
                    let frame = PythonFrame { code: at, instruction, flags: 0 };
                    let _ = code.line(&layout, &frame);
                }
            }
        }
    }
    assert!(read > 0, "some of what is made up passes for code objects");
}
