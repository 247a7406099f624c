//! Files, registers and stacks that a stranger made: no walk panics, none lasts, none asks for
//! much memory.

use std::env;
use std::process::Command;

use proptest::prelude::*;
use unwind::{End, FRAMES_MAX, Machine, Registers, Unwinder, Window};

use crate::synthetic::{BASE, BIAS, OneFile, Procedure, address, file};

pub const STACK: u64 = 0x7fff_0000_0000;
/// What a walker may hold after one file, in bytes: its pages, its rules, a scanned index.
const MEMORY_MAX: usize = 4 << 20;

pub fn walk(bytes: Vec<u8>, registers: &Registers, stack: &[u8]) -> (End, usize) {
    let mut unwinder = Unwinder::new();
    let len = bytes.len() as u64;
    let space = OneFile { image: unwinder.add(Box::new(bytes)), len };
    let windows = [Window { address: STACK, bytes: stack }];
    let mut frames = Vec::new();
    let end = unwinder.walk(registers, &windows, &space, &mut frames);
    let figures = unwinder.figures();
    assert!(figures.page_bytes + figures.rule_bytes + figures.table_bytes < MEMORY_MAX);
    assert!(frames.len() <= FRAMES_MAX && !frames.is_empty());
    (end, frames.len())
}

/// Words that lead somewhere: into the code, into the stack, or anywhere.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => (0..0x400u64).prop_map(address),
        3 => (0..0x800u64).prop_map(|into| STACK + into * 8),
        1 => any::<u64>(),
        1 => (0..16u64).prop_map(|value| value),
    ]
}

fn registers() -> impl Strategy<Value = Registers> {
    let machine = prop_oneof![Just(Machine::X86), Just(Machine::X86_64), Just(Machine::Aarch64)];
    (machine, prop::collection::vec(word(), 32), (0..0x400u64).prop_map(address)).prop_map(
        |(machine, values, pc)| {
            let mut registers = Registers::new(machine, pc);
            (0..).zip(values).for_each(|(number, value)| registers.set(number, Some(value)));
            registers.set(machine.stack_pointer(), Some(STACK));
            registers
        },
    )
}

fn stack() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(word(), 0..600)
        .prop_map(|words| words.iter().flat_map(|word| word.to_le_bytes()).collect())
}

/// Call frame instructions: any bytes, or such as often mean something.
fn instructions() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        any::<u8>(),
        0u8..0x17,
        prop::sample::select(vec![0x41, 0x0c, 0x0e, 0x0f, 0x10, 0x16, 0x0a, 0x0b, 7, 8, 6, 16]),
    ];
    prop::collection::vec(byte, 0..200)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn instructions_of_any_kind(
        registers in registers(),
        stack in stack(),
        parts in prop::collection::vec((instructions(), any::<bool>()), 1..8),
    ) {
        let procedures: Vec<Procedure> = (0..)
            .zip(parts)
            .map(|(number, (instructions, is_signal))| Procedure {
                begin: number * 0x80,
                len: 0x80,
                is_signal,
                instructions,
            })
            .collect();
        // Calls everywhere, so that walks go on.
        let code = match registers.machine() {
            Machine::X86 | Machine::X86_64 => [0xff, 0xd0].repeat(0x200),
            Machine::Aarch64 => 0xd63f_0020u32.to_le_bytes().repeat(0x100),
        };
        walk(file(registers.machine(), &code, &procedures), &registers, &stack);
    }

    #[test]
    fn files_cut_and_changed(
        registers in registers(),
        stack in stack(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..40),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let procedures: Vec<Procedure> = (0..8)
            .map(|number| Procedure {
                begin: number * 0x80,
                len: 0x80,
                is_signal: number == 7,
                instructions: vec![0x41, 0x0e, 16, 0x86, 2, 0x42, 0x0d, 6, 0x0f, 3, 0x77, 8, 6],
            })
            .collect();
        let mut bytes = file(registers.machine(), &[0xff, 0xd0].repeat(0x200), &procedures);
        let code = 0x1000..0x1400;
        for (place, value) in flips {
            // Headers, table and index; code changes nothing but calls.
            let place = place.index(bytes.len() - 0x1400 + 256);
            let place = if place < 256 { place } else { place - 256 + code.end };
            bytes[place] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        walk(bytes, &registers, &stack);
    }
}

/// `UNWIND_FUZZ_CASES` for a longer look.
pub fn cases() -> u32 {
    env::var("UNWIND_FUZZ_CASES").map_or(2000, |text| text.parse().unwrap())
}

/// The same with what a compiler and a linker made, with all kinds of sections: also the scan of a
/// file without index.
#[test]
fn real_files_changed() {
    let directory = tempfile::tempdir().unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/walks/programs/calls.c");
    let path = directory.path().join("calls");
    for options in [&["-O2"][..], &["-O0", "-Wl,--no-eh-frame-hdr"]] {
        let mut command = Command::new("cc");
        assert!(command.args(options).arg(source).arg("-o").arg(&path).status().unwrap().success());
        let good = std::fs::read(&path).unwrap();
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..cases() {
            let mut bytes = good.clone();
            for _ in 0..random.usize(..200) {
                let place = random.usize(..bytes.len());
                bytes[place] = random.u8(..);
            }
            if random.u8(..4) == 0 {
                bytes.truncate(random.usize(..bytes.len()));
            }
            let code = BIAS + BASE + random.u64(0x1000..0x2000);
            let mut registers = Registers::new(Machine::X86_64, code);
            for number in 0..16 {
                registers.set(number, Some(STACK + random.u64(..0x1000)));
            }
            registers.set(7, Some(STACK));
            let stack: Vec<u8> = (0..0x200)
                .map(|_| match random.u8(..2) {
                    0 => BIAS + BASE + random.u64(0x1000..0x2000),
                    _ => STACK + random.u64(..0x1000),
                })
                .flat_map(u64::to_le_bytes)
                .collect();
            walk(bytes, &registers, &stack);
        }
    }
}

/// Each frame of this stack asks for another large entry: the walk ends when it has cost enough.
#[test]
fn a_walk_through_huge_entries_ends_by_its_cost() {
    let procedures: Vec<Procedure> = (0..400)
        .map(|number| Procedure {
            begin: number * 16,
            len: 16,
            is_signal: false,
            // CFA = rsp + 16 again and again.
            instructions: [0x0e, 16].repeat(100_000),
        })
        .collect();
    let bytes = file(Machine::X86_64, &[0xff, 0xd0].repeat(400 * 8), &procedures);
    let mut stack = Vec::new();
    for number in 0..400u64 {
        stack.extend(0u64.to_le_bytes());
        stack.extend(address(number * 16 + 8).to_le_bytes());
    }
    let mut registers = Registers::new(Machine::X86_64, address(0));
    registers.set(7, Some(STACK));
    let mut unwinder = Unwinder::new();
    let len = bytes.len() as u64;
    let space = OneFile { image: unwinder.add(Box::new(bytes)), len };
    let windows = [Window { address: STACK, bytes: &stack }];
    let mut frames = Vec::new();
    assert_eq!(unwinder.walk(&registers, &windows, &space, &mut frames), End::Costly);
    let first = frames.len();
    assert!(first > 10, "{first}");
    // Results are cached, so later walks get further.
    assert_eq!(unwinder.walk(&registers, &windows, &space, &mut frames), End::Costly);
    assert!(frames.len() > first, "{} after {first}", frames.len());
}

/// A stack that leads to itself, and one deeper than walks go.
#[test]
fn endless_stacks_end() {
    let procedure = |instructions: &[u8]| Procedure {
        begin: 0,
        len: 64,
        is_signal: false,
        instructions: instructions.to_vec(),
    };
    let code = [0xff, 0xd0].repeat(32);
    let mut registers = Registers::new(Machine::X86_64, address(2));
    registers.set(7, Some(STACK));
    registers.set(6, Some(STACK + 64));
    let words: Vec<u8> = (0..3000).flat_map(|_| address(4).to_le_bytes()).collect();
    // CFA = rsp + 8.
    let deep = file(Machine::X86_64, &code, &[procedure(&[])]);
    assert_eq!(walk(deep, &registers, &words), (End::TooDeep, FRAMES_MAX));
    // CFA = rbp + 0, which stays.
    let same = file(Machine::X86_64, &code, &[procedure(&[0x0c, 6, 0])]);
    assert_eq!(walk(same, &registers, &words), (End::Loop, 2));
    // A signal's frame may go anywhere, but not for ever.
    let mut signal = procedure(&[0x0c, 6, 0]);
    signal.is_signal = true;
    let signal = file(Machine::X86_64, &code, &[signal]);
    assert_eq!(walk(signal, &registers, &words), (End::TooDeep, FRAMES_MAX));
}
