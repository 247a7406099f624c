//! Readers of Perl on made-up memory.

use super::perl::{self, Program, groups, may_be_perl, word_of_threads};
use super::perl_functions::{Kind, Layout};
use crate::python::Memory;
use crate::python::runtime::ThreadWord;
use crate::python::tests::Bytes;
use crate::questions::{Language, RuntimeFound, UnwoundStack};
use abi::{
    CONTEXT_BEGINS, CONTEXT_FIRST, CONTEXT_NAMED, CONTEXT_START_SHIFT, PYTHON_BLOCK_MAX,
    PYTHON_FRAMES_MAX, PythonFrame,
};
use std::cell::Cell;
use unwind::End;

const START: u64 = 0x1000;
const PLACE: u64 = 0x1100;
const NAME: u64 = 0x2000;
const FUNCTION: u64 = 0x3000;
const PACKAGE: u64 = 0x4000;
const LOOP: u64 = 0x50_0000;
const RUN: u64 = 0x60_0000;

fn value(memory: &Bytes, at: u64, kind: u64, body: u64) {
    memory.put_words(at, &[(0, body), (8, 1 | kind << 32)]);
}

fn key(memory: &Bytes, at: u64, text: &[u8]) {
    memory.put_words(at, &[(0, (text.len() as u64) << 32)]);
    memory.put(at + 8, text);
}

fn statement(memory: &Bytes, at: u64, kind: u64, line: u64) {
    memory.put_words(at, &[(32, kind | line << 32), (48, 0x7000)]);
}

/// Of Perl 5.36, with threads: a variable `Pack::age::leaf`, a function that has the name `lexical`
/// itself, and statements of the lines 5 and 7 of `/x/f.pl`.
fn functions() -> Bytes {
    let memory = Bytes::default();
    memory.put(0x7000, b"/x/f.pl\0");
    memory.put(0x7008, &[1; 256]);
    statement(&memory, START, 195, 5);
    statement(&memory, PLACE, 196, 7);
    value(&memory, NAME, 9, 0x2100);
    memory.put_words(0x2100, &[(32, 0x2200), (40, PACKAGE)]);
    key(&memory, 0x2200, b"leaf");
    value(&memory, FUNCTION, 13, 0x3100);
    memory.put_words(0x3100, &[(32, PACKAGE), (56, 0x3200), (88, 1 << (32 + 15))]);
    key(&memory, 0x3200, b"lexical");
    value(&memory, PACKAGE, 12 | 1 << 25, 0x4100);
    // Behind the body, and behind the table of two elements, as before 5.36.
    memory.put_words(PACKAGE, &[(16, 0x4300)]);
    memory.put_words(0x4100, &[(24, 1), (32, 0x4200), (56, 0)]);
    memory.put_words(0x4300, &[(0, 0), (8, 0), (16, 0x4400), (40, 2 << 32)]);
    memory.put_words(0x4400, &[(0, 0x4200)]);
    key(&memory, 0x4200, b"Pack::age");
    memory
}

fn layout(version: u8) -> Layout {
    Layout::of(version, true).unwrap()
}

fn frame(kind: Kind, start: u64, flags: u64) -> PythonFrame {
    let code = start << CONTEXT_START_SHIFT | kind as u64;
    PythonFrame { code, instruction: PLACE, flags }
}

#[test]
fn functions_of_perl_have_names_files_and_lines() {
    let memory = functions();
    for version in [28, 36] {
        let named = |frame: &PythonFrame| {
            let function = layout(version).function(&memory, frame)?;
            assert_eq!(function.language, Language::Perl);
            Some((function.name, function.file, function.first_line))
        };
        let is = |name: &str, file: &str, line| Some((name.to_owned(), file.to_owned(), line));
        let sub = frame(Kind::Sub, START, NAME);
        assert_eq!(named(&sub), is("Pack::age::leaf", "/x/f.pl", 5));
        assert_eq!(layout(version).line(&memory, &sub), Some(7));
        let lexical = frame(Kind::NamedSub, START, FUNCTION);
        assert_eq!(named(&lexical), is("Pack::age::lexical", "/x/f.pl", 5));
        assert_eq!(named(&frame(Kind::Main, 0, 0)), is("main program", "/x/f.pl", 0));
        assert_eq!(named(&frame(Kind::File, FUNCTION, 0)), is("(eval)", "/x/f.pl", 0));
        assert_eq!(named(&frame(Kind::Text, 0, 0)), is("(eval)", "(eval)", 0));
    }
    memory.put(0x7000, b"(eval 7)\0");
    let function = layout(36).function(&memory, &frame(Kind::Sub, START, NAME)).unwrap();
    assert_eq!(function.file, "(eval)", "texts of all numbers are one file");
}

/// Without threads, a statement has the variable of its file.
#[test]
fn a_perl_without_threads_has_names_of_files_in_variables() {
    let memory = functions();
    let file = |memory: &Bytes| {
        let layout = Layout::of(36, false).unwrap();
        layout.function(memory, &frame(Kind::Main, 0, 0)).map(|function| function.file)
    };
    assert_eq!(file(&memory), None, "no variable");
    value(&memory, 0x7000, 9, 0x2100);
    assert_eq!(file(&memory), None, "no file's variable");
    key(&memory, 0x2200, b"_</y/g.pl");
    assert_eq!(file(&memory).as_deref(), Some("/y/g.pl"));
}

#[test]
fn what_is_no_function_of_perl_has_no_name() {
    let (sub, lexical) = (frame(Kind::Sub, START, NAME), frame(Kind::NamedSub, START, FUNCTION));
    for (of, at, word) in [
        (&sub, START + 32, 194 | 5 << 32),
        (&sub, START + 48, 0x9_0000),
        (&sub, NAME + 8, 1 | 10 << 32),
        (&sub, 0x2100 + 32, 0x9_0000),
        (&sub, 0x2200, 1 << 40),
        (&sub, 0x2200, 0),
        (&sub, 0x2208, 0x6601_656c),
        (&lexical, FUNCTION + 8, 1 | 0xff << 32),
        (&lexical, 0x3100 + 88, 0),
    ] {
        let memory = functions();
        memory.put_words(at, &[(0, word)]);
        assert_eq!(layout(36).function(&memory, of), None, "{word:#x} at {at:#x}");
    }
    let endless = functions();
    endless.put(0x7000, &[b'x'; 8192]);
    assert_eq!(layout(36).function(&endless, &sub), None, "a path without an end");
    let odd = frame(Kind::Main, 0, 0);
    assert_eq!(layout(36).function(&functions(), &PythonFrame { code: 9, ..odd }), None);
    let without = functions();
    without.put_words(PACKAGE + 8, &[(0, 1 | 12 << 32)]);
    assert_eq!(layout(36).function(&without, &sub).unwrap().name, "leaf", "no package");
}

const SUB: u64 = 9;
const TRY: u64 = 11 | 0x40;
const TEXT: u64 = 11 | 0x20;
const FROM_C: u64 = CONTEXT_BEGINS;

/// Contexts as the sampler copies them: flags, innermost first; the first operation of each call is
/// its number from 1 on, and the caller's place 100 more.
fn copied(flags: &[u64], is_whole: bool) -> Vec<PythonFrame> {
    let head = PythonFrame { code: 7, instruction: 100, flags: u64::from(is_whole) };
    let context = |(number, flags): (u64, &u64)| PythonFrame {
        code: 1,
        instruction: 100 + number,
        flags: flags | number << CONTEXT_START_SHIFT,
    };
    [head].into_iter().chain((1..).zip(flags).map(context)).collect()
}

/// Of each call of the loop, the numbers of functions and the numbers of places; 0 is the main
/// program, 99 an evaluated text.
fn shape(flags: &[u64], runs_main: bool) -> Vec<Vec<(u64, u64)>> {
    let number = |frame: &PythonFrame| match frame.code {
        code if code == Kind::Main as u64 => 0,
        code if code == Kind::Text as u64 => 99,
        code => code >> CONTEXT_START_SHIFT,
    };
    let places = |(frames, is_whole): &(Vec<PythonFrame>, bool)| {
        assert!(is_whole);
        frames.iter().map(|frame| (number(frame), frame.instruction - 100)).collect()
    };
    groups(&copied(flags, true), runs_main, true).iter().map(places).collect()
}

#[test]
fn calls_belong_to_the_native_frame_that_c_has_called() {
    assert_eq!(shape(&[], true), [[(0, 0)]]);
    assert_eq!(shape(&[SUB, SUB], true), [[(1, 0), (2, 1), (0, 2)]]);
    assert_eq!(shape(&[SUB, SUB | FROM_C, SUB], true), [[(1, 0), (2, 1)], [(3, 2), (0, 3)]]);
    // A thread has no main program.
    assert_eq!(shape(&[SUB, SUB | FROM_C], false), [[(1, 0), (2, 1)]]);
    // `eval` of the main program is no loop of its own, and a text is a frame.
    assert_eq!(shape(&[SUB, TRY, TEXT], true), [[(1, 0), (99, 1), (0, 3)]]);
}

/// The place of a function that was just called was the caller's.
#[test]
fn what_is_just_called_is_at_its_first_statement() {
    let place = |starts: [u64; 2]| {
        let mut copied = copied(&[SUB, SUB], true);
        copied[0].instruction = 101;
        for (context, start) in copied[1..].iter_mut().zip(starts) {
            context.flags = SUB | start << CONTEXT_START_SHIFT;
        }
        groups(&copied, true, true)[0].0[0].instruction
    };
    assert_eq!(place([8, 9]), 8);
    assert_eq!(place([9, 9]), 101, "it calls itself, and may be at the call again");
}

#[test]
fn blocks_in_loops_of_their_own_belong_to_the_function_around_them() {
    // `sort` with a block, which calls a function, and ends with that call.
    let first = CONTEXT_FIRST;
    let sort = [[(1, 0), (3, 1)], [(3, 2), (0, 3)]];
    assert_eq!(shape(&[SUB, first, SUB], true), sort);
    assert_eq!(shape(&[SUB | FROM_C, first, SUB], true), sort);
    // An operator's function has another stack; a function in C calls back by MULTICALL.
    let other = [vec![(1, 0)], vec![(3, 1)], vec![(3, 2), (0, 3)]];
    assert_eq!(shape(&[SUB | FROM_C | first, first, SUB], true), other);
    assert_eq!(shape(&[SUB | FROM_C | 0x10, first, SUB], true), other);
    // Code in a regular expression: the context is a call of the function around it.
    let code = SUB | FROM_C | first | 0xd0;
    let expression = [[(1, 0), (2, 1)], [(3, 2), (0, 3)]];
    assert_eq!(shape(&[SUB | FROM_C, code, SUB], true), expression);
    // `eval` in a call from C; not in one with G_EVAL.
    let caught = [vec![(1, 0), (3, 1)], vec![(3, 2)], vec![(0, 3)]];
    assert_eq!(shape(&[SUB, TRY, SUB | FROM_C], true), caught);
    let guarded = [vec![(1, 0), (3, 1)], vec![(0, 3)]];
    assert_eq!(shape(&[SUB, TRY, SUB | FROM_C, TRY | FROM_C], true), guarded);
    // The second `eval` is in the first one's loop; a text there is one, too.
    let twice = [vec![(3, 0)], vec![(3, 2)], vec![(0, 3)]];
    assert_eq!(shape(&[TRY, TRY, SUB | FROM_C], true), twice);
    assert_eq!(shape(&[TEXT, SUB | FROM_C], true), [vec![(99, 0)], vec![(2, 1)], vec![(0, 2)]]);
}

fn stack(addresses: &[u64]) -> UnwoundStack {
    let end = End::ALL.iter().position(|end| *end == End::Whole).unwrap() as u8;
    UnwoundStack { addresses: addresses.to_vec(), end, ..UnwoundStack::default() }
}

/// Places of native frames, and how many functions each ran.
fn runs(flags: &[u64], addresses: &[u64]) -> Option<Vec<(u32, usize)>> {
    let program = Program::with(36, LOOP..LOOP + 0x100, RUN..RUN + 0x100);
    let runs = program.runs(0x10, &copied(flags, true), &stack(addresses))?;
    Some(runs.into_iter().map(|(depth, frames, _)| (depth, frames.len())).collect())
}

#[test]
fn native_frames_run_as_many_calls() {
    let (code, other, run) = (LOOP + 0x20, 1, RUN + 0x20);
    assert_eq!(runs(&[SUB], &[code, run, other]), Some(vec![(0, 2)]));
    // An operation is one of the function that its loop runs.
    assert_eq!(runs(&[SUB], &[other, code, run, other]), Some(vec![(0, 0), (1, 2)]));
    assert_eq!(runs(&[SUB], &[other, other, code, run, other]), Some(vec![(2, 2)]));
    let called = [SUB | FROM_C, SUB];
    assert_eq!(runs(&called, &[code, other, code, run]), Some(vec![(0, 1), (2, 2)]));
    // The loop of the innermost call does not run yet.
    assert_eq!(runs(&called, &[other, code, run]), Some(vec![(0, 0), (1, 2)]));
    assert_eq!(runs(&called, &[code, run]), None);
    // `END` is called when the main program's loop has ended.
    assert_eq!(runs(&[SUB | FROM_C], &[code, other]), Some(vec![(0, 1)]));
    // A function in C calls a Perl function within a sort block, and the block ends with that call.
    let block = [SUB | FROM_C, CONTEXT_FIRST, SUB];
    let by_c = [code, other, code, other, code, run];
    assert_eq!(runs(&block, &by_c), Some(vec![(0, 1), (2, 1), (4, 2)]));
    let mut cut = stack(&[code, run]);
    cut.end = End::ALL.iter().position(|end| *end != End::Whole).unwrap() as u8;
    let program = Program::with(36, LOOP..LOOP + 0x100, RUN..RUN + 0x100);
    let found = program.runs(0x10, &copied(&[SUB], true), &cut);
    assert_eq!(found, Some(Vec::new()), "what is not whole is not named");
}

#[test]
fn lists_that_are_cut_name_the_innermost_calls() {
    let long = vec![SUB; PYTHON_FRAMES_MAX - 1];
    let cut = groups(&copied(&long, true), true, true);
    assert_eq!((cut.len(), cut[0].0.len(), cut[0].1), (1, PYTHON_FRAMES_MAX - 1, false));
    let torn = groups(&copied(&[SUB, SUB], false), true, true);
    assert_eq!((torn.len(), torn[0].1), (1, false), "a row could not be read");
    assert!(groups(&[], true, true).is_empty());
}

/// A thread at 0x10_0040 whose word 1048 is its interpreter's, in the fourth mapping.
fn threads() -> (Bytes, Vec<u8>) {
    let memory = Bytes::default();
    memory.put(0x10_0000, &[0; 4096]);
    memory.put_words(0x10_0040, &[(0, 0x10_0040), (16, 0x10_0040), (1040, 1), (1048, 0x9000)]);
    let maps = b"00010000-00011000 rw-p 00000000 08:01 77 /x/data\n\
        00020000-90020000 rw-p 00000000 00:00 0 \n\
        000f0000-000f1000 r--p 00000000 00:00 0 \n\
        00100000-00101000 rw-p 00000000 00:00 0 \n\xff\nrubbish\n5-1 rw-p 0 00:00 0\n";
    (memory, maps.to_vec())
}

#[test]
fn the_word_of_perls_threads_is_found_by_what_is_in_it() {
    let (memory, maps) = threads();
    let word = ThreadWord { state_at: 1048, table_at: 0 };
    assert_eq!(word_of_threads(&memory, 0x9000, &maps), Some(word));
    assert_eq!(word_of_threads(&memory, 0x9008, &maps), None, "another interpreter's");
    memory.put_words(0x10_0040, &[(1056, 3), (1064, 0x9000)]);
    assert_eq!(word_of_threads(&memory, 0x9000, &maps), None, "which of both is not known");
    assert_eq!(word_of_threads(&Bytes::default(), 0x9000, &maps), None);
}

#[test]
fn a_perl_is_looked_at_when_it_has_an_interpreter() {
    let (memory, maps) = threads();
    let program = Program::with(36, LOOP..LOOP + 0x100, RUN..RUN + 0x100);
    let look = |memory: &Bytes| program.look(memory, 0x10, || maps.clone());
    assert_eq!(look(&memory), RuntimeFound::NotYet);
    memory.put_words(0x20, &[(0, 0x9000)]);
    memory.put_words(0x9000, &[(208, PLACE), (224, 0x9800)]);
    memory.put_words(0x9800, &[(8, 0xa000), (32, 3 | 72 << 32)]);
    let RuntimeFound::Layout(layout) = look(&memory) else {
        assert_ne!(std::env::consts::ARCH, "x86_64");
        return;
    };
    assert_eq!((layout.python.state_at, layout.python.block_bytes), (1048, 0));
    let contexts = layout.contexts;
    assert_eq!((contexts.info_at, contexts.entry_bytes), (224, 104));
    for numbers in [4 | 2 << 32, 3 | 1 << 62, 1 << 31] {
        memory.put_words(0x9800, &[(32, numbers)]);
        assert_eq!(look(&memory), RuntimeFound::NotYet, "{numbers:#x}");
    }
}

#[test]
fn versions_and_files_are_those_that_are_known() {
    assert!(may_be_perl(b"perl") && may_be_perl(b"perl5.36.0") && may_be_perl(b"libperl.so.5.36"));
    assert!(!may_be_perl(b"List.so") && !may_be_perl(b"libperlite.so"));
    let known = (0..=255).filter(|version| Layout::of(*version, true).is_some());
    assert_eq!(known.collect::<Vec<u8>>(), [28, 30, 32, 34, 36, 38, 40, 42]);
    for version in [28, 32, 40] {
        let contexts = layout(version).contexts();
        let fields = [contexts.caller_at, contexts.return_at, contexts.sub_at, contexts.eval_at];
        assert!(fields.iter().all(|at| at % 8 == 0 && usize::from(*at) < PYTHON_BLOCK_MAX));
    }
}

/// A random process's memory, in which many words look like what readers follow.
struct Chance(Cell<u64>);

impl Memory for Chance {
    fn read(&self, at: u64, buffer: &mut [u8]) -> usize {
        for word in buffer.chunks_mut(8) {
            let next = self.0.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(at | 1);
            self.0.set(next);
            let of = [9, 12 | 1 << 25, 13, 5].map(|kind: u64| kind << 32 | 195);
            let values = [next >> 17 & !7, next, of[0], of[1], of[2], of[3], 0, u64::MAX];
            let value = values[next as usize >> 30 & 7];
            word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
        }
        buffer.len()
    }
}

#[test]
fn nothing_that_a_perl_has_in_its_memory_makes_a_reader_fail() {
    let memory = Chance(Cell::new(1));
    for at in 0..20_000_u64 {
        let at = at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let frame = PythonFrame { code: at, instruction: at >> 3, flags: at >> 1 & !7 };
        for (version, has_threads) in [(28, true), (36, true), (40, false)] {
            let layout = Layout::of(version, has_threads).unwrap();
            for kind in [Kind::Sub, Kind::NamedSub, Kind::Text, Kind::File, Kind::Main] {
                let code = at >> 12 << CONTEXT_START_SHIFT | kind as u64;
                let _ = layout.function(&memory, &PythonFrame { code, ..frame });
            }
            let _ = layout.function(&memory, &frame);
            let _ = layout.line(&memory, &frame);
        }
    }
    let maps = b"0-40000 rw-p 0 00:00 0\nffffffffffff0000-ffffffffffffffff rw-p 0 00:00 0\n";
    let program = Program::with(36, LOOP..LOOP + 0x100, RUN..RUN + 0x100);
    for at in 0..200 {
        let _ = program.look(&memory, at, || maps.to_vec());
        let _ = word_of_threads(&memory, at, maps);
    }
    // Rows that lead in a circle are as long as the sampler lets them be.
    for seed in 0..2000_u64 {
        let word = |at: u64| (seed * 131 + at).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 7;
        let context = |at: u64| PythonFrame {
            code: word(at) % 3,
            instruction: word(at + 1),
            flags: word(at + 2) & (0xffff | CONTEXT_NAMED),
        };
        let copied: Vec<PythonFrame> = (0..word(0) % 129).map(context).collect();
        let walked = stack(&(0..20).map(|at| LOOP + word(at) % 0x200).collect::<Vec<_>>());
        let _ = program.runs(0, &copied, &walked);
        let _ = perl::groups(&copied, false, false);
    }
}
