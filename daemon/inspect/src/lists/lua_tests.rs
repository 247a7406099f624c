//! Readers of Lua on made-up memory.

use super::lua::{self, Program};
use super::lua_functions::{self, Layout};
use crate::python::Memory;
use crate::python::tests::Bytes;
use crate::questions::{RuntimeFound, SampledStack, ToWalk, UnwoundStack};
use abi::{LIST_ENTRY, PythonFrame};
use image::Layout as FileLayout;
use std::cell::Cell;
use unwind::End;

const PROTO: u64 = 0x1000;
const OTHER: u64 = 0x1800;
const CODE: u64 = 0x2000;
const OTHER_CODE: u64 = 0x2800;
const LUA: u64 = 0x46;
const FRESH: u64 = 4 << 48;
const C: u64 = 2 << 48;
const LOOP: u64 = 0x50_0000;

fn string(memory: &Bytes, at: u64, text: &[u8]) {
    memory.put_words(at, &[(0, 0), (8, 4 | (text.len() as u64) << 24)]);
    memory.put(at + 24, text);
}

fn instructions(memory: &Bytes, at: u64, all: &[u32]) {
    let bytes: Vec<u8> = all.iter().flat_map(|it| it.to_le_bytes()).collect();
    memory.put(at, &bytes);
}

fn function(memory: &Bytes, at: u64, (code, count): (u64, u64), first_line: u64) {
    memory.put_words(
        at,
        &[(8, 10), (24, count | count << 32), (32, 1 << 32), (40, first_line << 32)],
    );
    memory.put_words(at, &[(48, 0), (56, 0x3000), (64, code), (80, 0x3100), (88, 0x3200)]);
    memory.put_words(at, &[(96, 0x3300), (104, 0x3400), (112, 0x4000)]);
}

/// Of Lua 5.4: a function of the file `/x/f.lua` with ten instructions, the second to fifth of
/// which call `field`, `upvalue`, `local` and `method`, and another one that it calls.
fn functions() -> Bytes {
    let memory = Bytes::default();
    function(&memory, PROTO, (CODE, 10), 7);
    function(&memory, OTHER, (OTHER_CODE, 4), 20);
    for (at, text) in [(0x4000, &b"@/x/f.lua"[..]), (0x4100, b"field"), (0x4200, b"upvalue")] {
        string(&memory, at, text);
    }
    string(&memory, 0x4300, b"local");
    memory.put_words(0x3000, &[(0, 0x4000), (8, 4), (16, 0x4100), (24, 4)]);
    memory.put_words(0x3100, &[(0, 0x4000), (8, 0), (16, 0x4200), (24, 0)]);
    memory.put_words(0x3400, &[(0, 0x4300), (8, 10 << 32)]);
    // A line more at each of the first five instructions.
    memory.put(0x3200, &[1, 1, 1, 1, 1, 0, 0, 0, 0, 0]);
    let (move_, get_upvalue, get_field, self_, call) = (0, 9, 14, 20, 68);
    let register = |at: u32| at << 7;
    instructions(
        &memory,
        CODE,
        &[
            get_field | register(3) | 1 << 24,
            call | register(3),
            get_upvalue | register(4) | 1 << 16,
            call | register(4),
            move_ | register(5),
            call | register(5),
            self_ | register(6) | 1 << 15 | 1 << 24,
            call | register(6),
            call | register(7),
            0x7f,
        ],
    );
    instructions(&memory, OTHER_CODE, &[0x7f; 4]);
    memory
}

fn called(memory: &impl Memory, instructions: u64) -> Option<String> {
    lua_functions::called(&Layout::of(4), memory, PROTO, CODE + 4 * instructions)
}

#[test]
fn functions_have_the_names_that_they_are_called_by() {
    let memory = functions();
    let name = |instructions: u64| called(&memory, instructions);
    assert_eq!(name(2).as_deref(), Some("field"));
    assert_eq!(name(4).as_deref(), Some("upvalue"));
    assert_eq!(name(6).as_deref(), Some("local"));
    assert_eq!(name(8).as_deref(), Some("field"), "a method");
    assert_eq!(name(9), None, "nothing loads it");
    assert_eq!(name(10), None, "no call");
    assert_eq!(name(11), None, "behind the end");
    assert_eq!(lua_functions::called(&Layout::of(4), &memory, PROTO, CODE - 4), None);
}

#[test]
fn functions_have_files_and_lines() {
    let (memory, layout) = (functions(), Layout::of(4));
    let function = layout.function(&memory, PROTO, None).expect("a function");
    assert_eq!(function.file, "/x/f.lua");
    assert_eq!((function.name.as_str(), function.first_line), ("function <f.lua:7>", 7));
    let named = layout.function(&memory, PROTO, Some("f")).expect("a function");
    assert_eq!(named.name, "f");
    let line = |instructions: u64| layout.line(&memory, PROTO, CODE + 4 * instructions);
    assert_eq!((line(0), line(1), line(2)), (Some(8), Some(8), Some(9)));
    assert_eq!((line(10), line(11)), (Some(12), None));
    memory.put_words(PROTO, &[(40, 1 | 7 << 32)]);
    memory.put_words(0x3300, &[(0, 3 | 100 << 32)]);
    assert_eq!((line(3), line(4), line(5)), (Some(10), Some(100), Some(101)), "from an entry on");
    memory.put(0x3200, &[0x80; 10]);
    assert_eq!(line(2), None, "a difference that is elsewhere");
    for (at, word) in [(PROTO + 8, 11), (0x4008, 5), (0x4008, 4), (PROTO + 112, 0x9000)] {
        let memory = functions();
        memory.put_words(at, &[(0, word)]);
        let found = layout.function(&memory, PROTO, None);
        assert!(found.is_none_or(|found| found.file == "[string]"), "{word:#x} at {at:#x}");
    }
}

/// A stack whose frames 0 and 2, and so on, are of the loop, with notes.
fn stack(frames: usize, noted: Vec<(u32, [u64; 4])>) -> (SampledStack, UnwoundStack) {
    let address = |at: usize| if at.is_multiple_of(2) { LOOP + 8 } else { 0x9000 };
    let addresses: Vec<u64> = (0..frames).map(address).collect();
    let end = End::ALL.iter().position(|end| *end == End::Whole).expect("an end") as u8;
    let sampled = SampledStack {
        registers: vec![0; 17],
        begin: 0,
        at: 0,
        len: 0,
        walked: addresses.clone(),
        to_walk: ToWalk::Nothing(end),
        python: Vec::new(),
        noted,
    };
    (sampled, UnwoundStack { addresses, end, ..UnwoundStack::default() })
}

/// A state of a frame, and its entries.
fn state(frame: u32, state: u64, entries: &[[u64; 4]]) -> Vec<(u32, [u64; 4])> {
    let entries = entries.iter().map(|entry| (LIST_ENTRY, *entry));
    std::iter::once((frame, [state, 0, 0, 0])).chain(entries).collect()
}

/// The places of native frames, and the functions in their place.
fn runs(
    memory: &impl Memory,
    frames: usize,
    noted: Vec<(u32, [u64; 4])>,
) -> Option<Vec<(u32, Vec<u64>)>> {
    let program = Program::with(4, LOOP..LOOP + 0x100, FileLayout::default());
    let (sampled, walked) = stack(frames, noted);
    let calls = program.calls((memory, 0), &sampled, &walked)?;
    let functions =
        |frames: &Vec<PythonFrame>| frames.iter().map(|frame| frame.code).collect::<Vec<_>>();
    Some(calls.runs.iter().map(|(depth, frames, _)| (*depth, functions(frames))).collect())
}

#[test]
fn calls_belong_to_the_native_frame_that_runs_them() {
    let memory = functions();
    let (inner, outer) = ([OTHER, LUA, OTHER_CODE, 0], [PROTO, LUA, CODE + 8, FRESH]);
    let (fresh, of_c) = ([OTHER, LUA, OTHER_CODE, FRESH], [0x77, 0x16, 0, C]);
    let one = state(0, 0x7000, &[inner, outer, of_c]);
    assert_eq!(runs(&memory, 2, one.clone()), Some(vec![(0, vec![OTHER, PROTO])]));
    let mut two = state(0, 0x7000, &[fresh, of_c, inner, outer]);
    two.extend(state(2, 0x7000, &[]));
    let both = Some(vec![(0, vec![OTHER]), (2, vec![OTHER, PROTO])]);
    assert_eq!(runs(&memory, 4, two.clone()), both);
    assert_eq!(runs(&memory, 6, two), both, "the walk ended");
    let resumed = state(0, 0x7000, &[fresh, of_c, outer]);
    let whole = Some(vec![(0, vec![OTHER, PROTO])]);
    assert_eq!(runs(&memory, 2, resumed), whole, "without native frames since it was resumed");
    let cut = state(0, 0x7000, &[of_c, outer]);
    assert_eq!(runs(&memory, 2, cut), None, "the loop runs no function in C");
    let gone = state(0, 0x7000, &[[0x8_0000, LUA, 0, FRESH]]);
    assert_eq!(runs(&memory, 2, gone), Some(vec![]), "the process has ended");
    assert_eq!(runs(&memory, 2, Vec::new()), Some(vec![]));
}

/// A coroutine's frame has the state of its resumer in registers, too, and in any order.
#[test]
fn a_coroutine_runs_inside_of_its_resumer() {
    let memory = functions();
    let (of_coroutine, of_main) = ([OTHER, LUA, OTHER_CODE, FRESH], [PROTO, LUA, CODE + 8, FRESH]);
    let of_c = [0x77, 0x16, 0, C];
    let mut noted = state(0, 0x7000, &[of_c, of_main]);
    noted.extend(state(0, 0x8000, &[of_coroutine]));
    noted.extend(state(2, 0x7000, &[]));
    let expected = Some(vec![(0, vec![OTHER]), (2, vec![PROTO])]);
    assert_eq!(runs(&memory, 4, noted), expected);
    let mut swapped = state(0, 0x8000, &[of_coroutine]);
    swapped.extend(state(0, 0x7000, &[of_c, of_main]));
    swapped.extend(state(2, 0x7000, &[]));
    assert_eq!(runs(&memory, 4, swapped), expected);
}

#[test]
fn versions_are_told_by_the_library() {
    let version = |text: &str| lua::version_in(text.as_bytes());
    assert_eq!(version("$LuaVersion: Lua 5.4.4  Copyright"), Some((4, 4)));
    assert_eq!(version("$Lua: Lua 5.1.5 Copyright"), Some((1, 5)));
    assert_eq!(
        (version("Lua 5."), version("Lua 5.x.1"), version("LuaJIT 2.1")),
        (None, None, None)
    );
    for name in ["lua5.4", "liblua5.3.so.0.0.0"] {
        assert!(lua::may_be_lua(name.as_bytes()));
    }
    let program = Program::with(1, LOOP..LOOP + 0x100, FileLayout::default());
    let RuntimeFound::Layout(layout) = program.look(0x10) else { return };
    assert_eq!((layout.list.loop_at, layout.list.loop_bytes), (LOOP + 0x10, 0x100));
    assert!(usize::from(layout.list.entry_bytes) <= abi::LIST_ENTRY_BYTES);
}

/// A random process's memory, in which many words look like what readers follow.
struct Chance(Cell<u64>);

impl Memory for Chance {
    fn read(&self, at: u64, buffer: &mut [u8]) -> usize {
        for word in buffer.chunks_mut(8) {
            let next = self.0.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(at | 1);
            self.0.set(next);
            let values = [next >> 60, next >> 17 & !7, next, 10, 9, 4 | 5 << 24, 0, u64::MAX];
            let value = values[next as usize >> 30 & 7];
            word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
        }
        buffer.len()
    }
}

#[test]
fn nothing_that_a_lua_has_in_its_memory_makes_a_reader_fail() {
    let memory = Chance(Cell::new(1));
    for at in 0..20_000_u64 {
        let at = at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for minor in 1..=5 {
            let layout = Layout::of(minor);
            let _ = layout.function(&memory, at, None);
            let _ = layout.line(&memory, at, at >> 3);
            let _ = lua_functions::called(&layout, &memory, at, at & !3);
        }
    }
    // Lists that lead in a circle are as long as the sampler lets them be; states have any place.
    let program = |minor| Program::with(minor, LOOP..LOOP + 0x100, FileLayout::default());
    for seed in 0..500_u64 {
        let word = |at: u64| (seed * 131 + at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let note = |at: u64| {
            let number = if word(at).is_multiple_of(3) { word(at) as u32 % 8 } else { LIST_ENTRY };
            (number, [word(at) % 4, LUA, word(at + 2), word(at + 3)])
        };
        let (sampled, walked) = stack(8, (0..128).map(note).collect());
        for minor in 1..=5 {
            let _ = program(minor).calls((&memory, 0), &sampled, &walked);
        }
    }
}
