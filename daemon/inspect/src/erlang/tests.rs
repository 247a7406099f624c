//! The readers on made-up memory: of a BEAM with two modules, and of processes that lie.

use super::Answer;
use super::modules::{Functions, Modules};
use crate::python::tests::Bytes;
use crate::questions::{RuntimeRun, UnwoundStack};
use model::Language;

const DESCRIPTOR: u64 = 0x100;
const GENERATED: (u64, u64) = (0x7000_0000, 0x7010_0000);
/// Addresses of the modules' code.
const GLOBAL: u64 = GENERATED.0;
const ENUM: u64 = GENERATED.0 + 0x1000;
const ENUM_BYTES: u32 = 0x400;

/// What BEAM tells of a module with such ranges.
struct Text(Vec<u8>);

impl Text {
    fn module(start: u64, code_bytes: u32, ranges: u32, name: &str) -> Self {
        let mut text = Self([1_u32.to_le_bytes(), [0xee; 4]].concat());
        text.0.extend(start.to_le_bytes());
        text.numbers(&[ranges, code_bytes]);
        text.name(name);
        text.0.extend([0; 4]);
        text
    }

    fn numbers(&mut self, numbers: &[u32]) {
        self.0.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    }

    fn name(&mut self, name: &str) {
        self.0.extend((name.len() as u16 + 1).to_le_bytes());
        self.0.extend(name.bytes().chain([0, 0xee, 0xee]));
    }

    fn range(&mut self, (begin, end): (u32, u32), name: &str, lines: &[(u32, u32, &str)]) {
        self.numbers(&[begin, end, lines.len() as u32]);
        self.name(name);
        for (at, line, file) in lines {
            self.numbers(&[*at, *line]);
            self.name(file);
        }
    }
}

fn global() -> Vec<u8> {
    let mut text = Text::module(GLOBAL, 0x800, 2, "global");
    text.range((0, 0x60), "global::apply_fun_shared", &[]);
    text.range((0x60, 0x800), "global::process_main", &[]);
    text.0
}

/// Three functions: the second one is of a macro's file in part, the last one is the compiler's.
fn elixir() -> Vec<u8> {
    let mut text = Text::module(ENUM, ENUM_BYTES, 8, "Elixir.Enum");
    let file = "lib/enum.ex";
    text.range((0, 0x100), "Elixir.Enum::codeHeader", &[]);
    text.range((0x100, 0x130), "'Elixir.Enum':map/2-CodeInfoPrologue", &[]);
    text.range(
        (0x130, 0x200),
        "'Elixir.Enum':map/2",
        &[(0xfe, 10, file), (0x150, 12, file), (0x180, 700, "lib/macro.ex"), (0x1ff, 20, file)],
    );
    text.range((0x200, 0x230), "'Elixir.Enum':sort/1-CodeInfoPrologue", &[]);
    text.range((0x230, 0x300), "'Elixir.Enum':sort/1", &[(0x1ff, 20, file)]);
    text.range((0x300, 0x330), "'Elixir.Enum':module_info/0-CodeInfoPrologue", &[]);
    text.range((0x330, 0x3f0), "'Elixir.Enum':module_info/0", &[(0x3e0, 20, file)]);
    text.range((0x3f0, 0x400), "Elixir.Enum::codeFooter", &[]);
    text.0
}

/// A process with these modules, the newest first.
fn process(modules: &[Vec<u8>]) -> Bytes {
    let memory = Bytes::default();
    let entry = |number: u64| 0x1000 + 0x100 * number;
    let first = if modules.is_empty() { 0 } else { entry(0) };
    memory.put_words(DESCRIPTOR, &[(0, 1 << 32 | 1), (8, 0), (16, first)]);
    for (number, text) in (0..).zip(modules) {
        let next = if number + 1 < modules.len() as u64 { entry(number + 1) } else { 0 };
        let at = 0x1_0000 * (number + 1);
        let words = [(0, next), (8, 0), (16, at), (24, text.len() as u64)];
        memory.put_words(entry(number), &words);
        memory.put(at, text);
    }
    memory
}

fn refreshed(memory: &Bytes) -> Modules {
    let mut modules = Modules::default();
    modules.refresh(memory, DESCRIPTOR);
    modules
}

#[test]
fn frames_have_functions_and_lines() {
    let memory = process(&[elixir(), global()]);
    let mut modules = refreshed(&memory);
    let mut stack = UnwoundStack {
        addresses: vec![GLOBAL + 8, 0x400, ENUM + 0x160, ENUM + 0x190, ENUM + 0x240, ENUM + 0x340],
        ..UnwoundStack::default()
    };
    let mut answer = Answer::default();
    answer.name(&memory, &mut modules, &[GENERATED], &mut stack);
    let names: Vec<(&str, &str, u32)> = answer
        .functions
        .iter()
        .map(|function| (&*function.name, &*function.file, function.first_line))
        .collect();
    assert_eq!(
        names,
        [
            ("apply_fun_shared (BEAM)", "", 0),
            ("Enum.map/2", "lib/enum.ex", 10),
            ("Enum.sort/1", "lib/enum.ex", 20),
            ("Enum.module_info/0", "", 0),
        ]
    );
    assert!(answer.functions.iter().all(|function| function.language == Language::Erlang));
    let run = |depth, frame| RuntimeRun { depth, frames: vec![Some(frame)], is_part: false };
    assert_eq!(stack.runs, [run(2, (1, 12)), run(3, (1, 12)), run(4, (2, 20))]);
    // The range of a function's code begins with its prologue, the bytes before its first
    // instruction.
    let codes: Vec<(u64, u32)> = answer.codes.values().map(|it| (it.start, it.size)).collect();
    let of = |begin: u32, end: u32| (ENUM + u64::from(begin), end - begin);
    let others = [of(0x100, 0x200), of(0x200, 0x300), of(0x300, 0x3f0)];
    assert_eq!(codes, [&[(GLOBAL, 0x60)][..], &others].concat());
    assert_eq!(modules.global(&memory, "process_main"), Some(GLOBAL + 0x60..GLOBAL + 0x800));
    assert_eq!(modules.global(&memory, "process"), None);
}

/// A module that is loaded anew is another one, whose code may be where the old one's was.
#[test]
fn the_newest_module_has_an_address() {
    let memory = process(&[elixir()]);
    let mut modules = refreshed(&memory);
    assert_eq!(modules.find(&memory, ENUM + 0x160).map(|found| found.line), Some(12));
    let mut other = Text::module(ENUM + 0x80, 0x100, 1, "other");
    other.range((0, 0x100), "other:run/0", &[(0, 3, "other.erl")]);
    memory.put(0x5_0000, &other.0);
    let entry = [(0, 0x1000), (8, 0), (16, 0x5_0000), (24, other.0.len() as u64)];
    memory.put_words(0x5000, &entry);
    memory.put_words(DESCRIPTOR, &[(16, 0x5000)]);
    modules.refresh(&memory, DESCRIPTOR);
    let found = modules.find(&memory, ENUM + 0x160).unwrap();
    assert_eq!((found.function.name.as_str(), found.line), ("other:run/0", 3));
    assert_eq!(modules.find(&memory, ENUM + 0x240), None);
}

/// Every byte of the memory may be another one, and the list may lead in circles.
#[test]
fn nothing_that_a_beam_tells_leads_its_readers_astray() {
    let look = |memory: &Bytes| {
        let mut modules = refreshed(memory);
        let addresses = (0..0x800).step_by(0x40).map(|at| ENUM + at).chain([GLOBAL, u64::MAX]);
        let mut stack = UnwoundStack { addresses: addresses.collect(), ..UnwoundStack::default() };
        let mut answer = Answer::default();
        answer.name(memory, &mut modules, &[(0, u64::MAX)], &mut stack);
        let frames = stack.runs.iter().flat_map(|run| run.frames.iter().flatten());
        assert!(frames.into_iter().all(|(at, _)| (*at as usize) < answer.functions.len()));
        let _ = modules.global(memory, "process_main");
    };
    let text = elixir();
    for at in 0..text.len() {
        for flip in [0x01, 0xff] {
            let mut text = text.clone();
            text[at] ^= flip;
            look(&process(&[text, global()]));
        }
        let _ = Functions::read(&text[..at], ENUM_BYTES);
        look(&process(&[text[..at].to_vec(), global()]));
    }
    let memory = process(&[elixir(), global()]);
    for (at, word) in [(0x1100, 0x1000), (0x1100, !0xfff), (0x1018, u64::MAX), (0x1010, 8)] {
        let memory = &memory;
        memory.put_words(at, &[(0, word)]);
        look(memory);
    }
}
