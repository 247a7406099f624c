//! The readers on made-up memory: of a LuaJIT with a trace, and of processes that lie.

use super::calls::Noted;
use super::functions::{Answer, Names, Proto};
use super::places::{Call, Kind, Link, Place, TraceCalls};
use super::program::{Distances, distances, may_be_luajit, version_in};
use super::trace::Trace;
use super::traces::Traces;
use crate::python::tests::Bytes;
use crate::questions::{SampledStack, ToWalk, UnwoundStack};
use abi::LIST_ENTRY;
use unwind::{Base, FrameRule};

/// Addresses of functions, strings, a trace and its parts, and the global state.
const MAIN: u64 = 0x10_0000;
const OUTER: u64 = 0x11_0000;
const INNER: u64 = 0x12_0000;
const STRINGS: u64 = 0x20_0000;
const TRACE: u64 = 0x30_0000;
const SNAPSHOTS: u64 = 0x31_0000;
const ENTRIES: u64 = 0x32_0000;
const INSTRUCTIONS: u64 = 0x33_0000;
const CODE: u64 = 0x7000_0000;
const TABLE: u64 = 0x40_0000;
const STATE: u64 = 0x50_0000;
const GLOBAL: u64 = STATE + 96;
const DISTANCES: Distances = Distances { jumps: 0xf80, jit_base: 0x178, traces: 0x458 };
const STACK: u64 = 0x60_0000;
/// Room for values of the trace.
const ROOM: u16 = 48;

/// The interpreter's way into a trace, as Debian's build has it.
fn entry() -> Vec<u8> {
    let mut code = vec![0x90; 64];
    code.extend([0x49, 0x81, 0xc6, 0x80, 0x0f, 0, 0]);
    code.extend([0x90; 9]);
    code.extend([0x49, 0x8b, 0x8e, 0xd8, 0xf4, 0xff, 0xff]);
    code.extend([0x48, 0x8b, 0x04, 0xc1, 0x48, 0x8b, 0x40, 0x58, 0x48, 0x8b, 0x6c, 0x24, 0x10]);
    code.extend([0x49, 0x89, 0x96, 0xf8, 0xf1, 0xff, 0xff]);
    code.extend([0x49, 0x89, 0xae, 0x60, 0xf1, 0xff, 0xff]);
    code.extend([0x48, 0x83, 0xec, 0x10, 0x4c, 0x89, 0x64, 0x24, 0x10, 0x4c, 0x89, 0x6c, 0x24]);
    code.extend([0x08, 0xff, 0xe0]);
    code
}

fn put_string(memory: &Bytes, at: u64, text: &str) {
    memory.put_words(at, &[(0, 0), (8, 0x0401), (16, 0)]);
    memory.put(at + 24, text.as_bytes());
    memory.put(at + 24 + text.len() as u64, &[0]);
}

/// A function of these instructions, with two constants, and lines that go up by one.
fn put_function(memory: &Bytes, at: u64, code: &[[u8; 4]], constants: [u64; 2], line: u32) {
    memory.put(at, &[0; Proto::BYTES as usize]);
    memory.put(at + 9, &[7]);
    memory.put(at + 12, &(code.len() as u32).to_le_bytes());
    let words = [(32, at + 0x1010), (64, STRINGS), (80, at + 0x2000), (96, at + 0x3000)];
    memory.put_words(at, &words);
    memory.put(at + 48, &2_u32.to_le_bytes());
    memory.put(at + 72, &[line.to_le_bytes(), 100_u32.to_le_bytes()].concat());
    memory.put(at + Proto::BYTES, &code.concat());
    memory.put_words(at + 0x1000, &[(0, constants[1]), (8, constants[0])]);
    let lines: Vec<u8> = (0..code.len() as u8).collect();
    memory.put(at + 0x2000, &lines);
    // A local variable of all of the code, and the end.
    memory.put(at + 0x3000, b"counted\0\x02\x7f\0");
}

fn code_of(function: u64, place: u64) -> u64 {
    function + Proto::BYTES + 4 * place
}

/// A main chunk that puts a function into a local variable and another into a global one, and a
/// trace of the first with the second one's call.
fn process() -> Bytes {
    let memory = Bytes::default();
    put_string(&memory, STRINGS, "@lib/app.lua");
    put_string(&memory, STRINGS + 256, "leaf");
    let nothing = [18, 0, 0, 0];
    // FNEW to slot 0; FNEW to slot 1, from where GSET takes it.
    let main = [[89, 2, 0, 0], [51, 0, 0, 0], nothing, [51, 1, 1, 0], [55, 1, 2, 0], nothing];
    put_function(&memory, MAIN, &main, [OUTER, INNER], 0);
    memory.put(MAIN + 48, &3_u32.to_le_bytes());
    memory.put_words(MAIN + 0x0ff8, &[(0, STRINGS + 256)]);
    put_function(&memory, OUTER, &[nothing; 8], [0, 0], 10);
    put_function(&memory, INNER, &[nothing; 8], [0, 0], 30);
    put_trace(&memory);
    memory.put_words(STATE, &[(0, 0), (8, 0x0601), (16, GLOBAL)]);
    memory.put_words(GLOBAL + 0x458, &[(0, TABLE), (8, 2 << 32)]);
    memory.put_words(TABLE, &[(0, 0), (8, TRACE)]);
    memory
}

fn put_trace(memory: &Bytes) {
    memory.put(TRACE, &[0; 120]);
    memory.put(TRACE + 9, &[9, 2, 0]);
    memory.put(TRACE + 40, &[0xf8, 0x7f, 0, 0, 8, 0, 0, 0]);
    let words = [(32, INSTRUCTIONS), (48, SNAPSHOTS), (56, ENTRIES), (64, OUTER), (88, CODE)];
    memory.put_words(TRACE, &words);
    memory.put(TRACE + 84, &0x100_u32.to_le_bytes());
    memory.put(TRACE + 102, &[ROOM.to_le_bytes(), 1_u16.to_le_bytes()].concat());
    // Two snapshots, the second from byte 0x40 on, with a call whose link is constant 0x7ffa.
    memory.put(SNAPSHOTS, &[0, 0, 0, 0, 0, 0, 0, 0, 3, 3, 1, 0]);
    memory.put(SNAPSHOTS + 12, &[3, 0, 0, 0, 9, 0, 0x40, 0, 9, 9, 3, 0]);
    let place = |next: u64| [(next << 8) as u32, (next >> 24) as u32];
    let [low, high] = place(code_of(OUTER, 3));
    let [low_inner, high_inner] = place(code_of(INNER, 5));
    let entries = [0x0200_0010, low, high, 0x0500_7ffd, 0x0601_7ffa, 0x0700_0011];
    let entries = [&entries[..], &[low_inner, high_inner]].concat();
    memory.put(ENTRIES, &entries.iter().flat_map(|it| it.to_le_bytes()).collect::<Vec<u8>>());
    let constants = INSTRUCTIONS + 8 * 0x7ff8;
    memory.put(constants, &[0; 64]);
    memory.put_words(constants, &[(8 * 3, code_of(OUTER, 4)), (8 * 6, INNER)]);
    // sub $48, %rsp; movl $1, -0xec8(%r14); add $48, %rsp; jmp
    let mut code = vec![0x90; 0x100];
    code[..4].copy_from_slice(&[0x48, 0x83, 0xc4, 0xd0]);
    code[4..15].copy_from_slice(&[0x41, 0xc7, 0x86, 0x38, 0xf1, 0xff, 0xff, 1, 0, 0, 0]);
    code[0xf7..].copy_from_slice(&[0x48, 0x83, 0xc4, 0x30, 0xe9, 0, 0, 0, 0]);
    memory.put(CODE, &code);
}

fn traces(memory: &Bytes) -> Traces {
    let mut traces = Traces::default();
    traces.begin(DISTANCES);
    traces.add_state(memory, STATE);
    traces
}

fn row(bytes: u16) -> FrameRule {
    FrameRule::Row {
        base: Base::StackPointer,
        distance: i64::from(bytes) + 96,
        return_below: 8,
        frame_below: 16,
    }
}

#[test]
fn builds_are_told_by_their_interpreter() {
    assert_eq!(distances(&entry()), Some(DISTANCES));
    for at in [64, 80, 88, 100, 108, 118, 125] {
        let mut other = entry();
        other[at] ^= 1;
        assert_eq!(distances(&other), None, "{at}");
    }
    assert!((0..entry().len() - 2).all(|bytes| distances(&entry()[..bytes]).is_none()));
    assert!(may_be_luajit(b"/usr/lib/libluajit-5.1.so.2.1.0 (deleted)"));
    assert!(may_be_luajit(b"/usr/bin/luajit") && !may_be_luajit(b"/usr/bin/lua5.1"));
    let text = b"-- \0LuaJIT 2.1.0-beta3\0";
    assert_eq!(version_in(text).as_deref(), Some("LuaJIT 2.1.0-beta3"));
    assert_eq!(version_in(b"LuaJIT 2.\x01"), None);
}

#[test]
fn a_frame_of_a_trace_has_its_room_but_at_the_ends() {
    let memory = process();
    let mut traces = traces(&memory);
    let mut rule = |into: u64, is_exact| traces.rule_at(&memory, CODE + into, is_exact);
    assert_eq!(rule(0, true), row(0), "not made yet");
    assert_eq!(rule(15, true), row(ROOM));
    assert_eq!(rule(3, false), row(ROOM), "a call returns there");
    assert_eq!(rule(0xf7, true), row(ROOM));
    assert_eq!(rule(0xfb, true), row(0), "given back");
    assert_eq!(rule(0x100, true), FrameRule::Other, "no trace");
    let rows = [(0, FrameRule::Other), (4, row(ROOM)), (0xfb, FrameRule::Other)];
    assert_eq!(traces.block(&memory, CODE).unwrap(), rows);
    assert_eq!(traces.block(&memory, CODE + 0x100), None);
}

#[test]
fn calls_in_a_trace_are_those_of_the_last_snapshot() {
    let memory = process();
    let mut traces = traces(&memory);
    let first = TraceCalls { calls: Vec::new(), place: Place::at(code_of(OUTER, 4)) };
    assert_eq!(traces.calls_at(&memory, CODE + 0x3f), Some(first));
    let inner = Call { proto: INNER, next: code_of(INNER, 6) };
    let place = Place::at(code_of(OUTER, 4));
    let second = TraceCalls { calls: vec![inner], place };
    assert_eq!(traces.calls_at(&memory, CODE + 0x40), Some(second));
    // Fields that lie otherwise, as before March 2021.
    memory.put(SNAPSHOTS + 6, &[3, 3, 1, 0, 0, 0]);
    assert_eq!(traces.calls_at(&memory, CODE + 0x41), None);
}

#[test]
fn a_function_has_the_name_of_its_definition() {
    let memory = process();
    let mut names = Names::default();
    let mut answer = Answer::new(&mut names, 1);
    let call = |proto, place| Call { proto, next: code_of(proto, place) };
    answer.note(&memory, &[call(OUTER, 4), call(MAIN, 4)]);
    let places = [call(INNER, 6), call(OUTER, 1), call(MAIN, 4)];
    let lines: Vec<_> = places.iter().map(|call| answer.place(&memory, call)).collect();
    assert_eq!(lines, [Some((0, 34)), Some((1, 10)), Some((2, 2))]);
    let unknown = Call { proto: INNER, next: 0 };
    assert_eq!(answer.place(&memory, &unknown), Some((0, 30)));
    let functions = answer.into_functions();
    let told: Vec<_> = functions.iter().map(|it| (&*it.name, &*it.file)).collect();
    let file = "lib/app.lua";
    assert_eq!(told, [("leaf", file), ("counted", file), ("main chunk", file)]);
    // Another function at the address of the one that was named.
    memory.put(INNER + 72, &[31]);
    let mut answer = Answer::new(&mut names, 1);
    assert_eq!(answer.place(&memory, &call(INNER, 6)), Some((0, 35)));
    assert_eq!(answer.into_functions()[0].name, "function <app.lua:31>");
}

/// A stack of a trace above the interpreter, with a call from C between.
fn sampled(entries: &[[u64; 4]]) -> (SampledStack, UnwoundStack) {
    let addresses = vec![CODE + 0x44, 0x1000, 0x9000, 0x2000, 0x9000];
    let frame = |depth, results: i64| (depth, [STATE, STACK, 0, results as u64]);
    let mut noted = vec![frame(0, 1)];
    noted.extend(entries.iter().map(|words| (LIST_ENTRY, *words)));
    noted.extend([frame(2, 1), frame(4, -0x20)]);
    let to_walk = ToWalk::Nothing(0);
    let (begin, at, len) = (0, 0, 0);
    let (registers, python, walked) = (Vec::new(), Vec::new(), addresses.clone());
    let stack = SampledStack { registers, begin, at, len, walked, to_walk, python, noted };
    (stack, UnwoundStack { addresses, ..UnwoundStack::default() })
}

#[test]
fn calls_are_divided_where_c_has_called() {
    let memory = process();
    let mut traces = traces(&memory);
    let (lua, c) = (0x0801, 0x1_0801);
    let entry = |proto, header, link, base| [proto + Proto::BYTES, header, link, STACK + base];
    let list = [
        entry(OUTER, lua, 0x31, 0x90),
        // A function in C, a further frame of the main chunk, and the main chunk.
        entry(0x7000, c, code_of(MAIN, 4), 0x60),
        entry(MAIN, lua, 0x23, 0x40),
        entry(MAIN, lua, 0x15, 0x18),
    ];
    let (stack, walked) = sampled(&list);
    let noted = Noted::of(&stack, &walked, |at| at == 0x9000);
    let mut trace_at = |address| traces.calls_at(&memory, address);
    let runs = noted.runs(&memory, &stack, &mut trace_at).unwrap();
    let call = |proto, place| Call { proto, next: code_of(proto, place) };
    let inner = vec![call(INNER, 6), call(OUTER, 4)];
    assert_eq!(runs, [(0, inner, false), (2, vec![call(MAIN, 4)], false)]);
    let of = |link| Link(link).kind();
    assert_eq!(
        [of(8), of(9), of(10), of(11)],
        [Kind::Lua, Kind::C, Kind::Continues, Kind::Further]
    );
    assert_eq!([of(13), of(14), of(15)], [Kind::C, Kind::Protected, Kind::Protected]);
    let none = Noted::of(&stack, &walked, |at| at == 0x9000);
    assert_eq!(none.runs(&memory, &stack, &mut |_| None), None, "an unknown trace");
    let ended = none.runs(&Bytes::default(), &stack, &mut |_| None);
    assert_eq!(ended, Some(Vec::new()), "the process has ended");
}

/// Whatever the memory has, the readers end and do not panic.
#[test]
fn memory_that_lies_is_harmless() {
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..300 {
        let memory = process();
        let places =
            [MAIN, OUTER, INNER, STRINGS, TRACE, SNAPSHOTS, ENTRIES, TABLE, GLOBAL + 0x458];
        for _ in 0..random.usize(1..8) {
            let at = places[random.usize(..places.len())] + random.u64(..128);
            memory.put(at, &random.u64(..).to_le_bytes()[..random.usize(1..9)]);
        }
        let mut traces = traces(&memory);
        let _ = traces.rule_at(&memory, CODE + 0x44, true);
        let _ = traces.block(&memory, CODE);
        let entry = [OUTER + Proto::BYTES, 0x0801, random.u64(..), random.u64(..)];
        let (stack, walked) = sampled(&[entry, entry]);
        let noted = Noted::of(&stack, &walked, |at| at == 0x9000);
        let mut trace_at = |address| traces.calls_at(&memory, address);
        let runs = noted.runs(&memory, &stack, &mut trace_at).unwrap_or_default();
        let mut names = Names::default();
        let mut answer = Answer::new(&mut names, 1);
        for (_, calls, _) in &runs {
            answer.note(&memory, calls);
            calls.iter().for_each(|call| {
                let _ = answer.place(&memory, call);
            });
        }
    }
}

/// A table of more traces than are known, all of them at one address.
#[test]
fn the_number_of_traces_is_bounded() {
    let memory = process();
    memory.put_words(GLOBAL + 0x458, &[(8, u64::MAX)]);
    let table: Vec<u8> = (0..1 << 12).flat_map(|_| TRACE.to_le_bytes()).collect();
    memory.put(TABLE, &table);
    assert_eq!(traces(&memory).rule_at(&memory, CODE + 20, true), row(ROOM));
    assert!(Trace::read(&memory, TRACE + 8).is_none());
}
