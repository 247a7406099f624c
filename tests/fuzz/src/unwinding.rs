//! Unwind tables of programs in Go.

use crate::{choice, word};
use unwind::{Code, FRAMES_MAX, Image, Machine, ReadAt, Registers, Space, Unwinder, Window};

/// Addresses of the file's first byte and of the stack.
const BASE: u64 = 0x40_0000;
const STACK: u64 = 0x7fff_0000_0000;
/// Bytes of the input that are the stack.
const STACK_BYTES: usize = 512;
/// Most memory that a walker may hold after one file, in bytes.
const MEMORY_MAX: usize = 4 << 20;

/// The space of one file, mapped as a whole.
struct OneFile {
    image: Image,
    len: u64,
}

impl Space for OneFile {
    fn code_at(&self, address: u64) -> Code {
        match address.checked_sub(BASE).filter(|offset| *offset < self.len) {
            Some(offset) => Code::File { image: self.image, offset, frame_pointers: false },
            None => Code::None,
        }
    }
}

/// Walks a stack by a program's table. The input is a byte that selects the machine, a word with
/// the program counter's offset in the file, a stack, and the file.
pub fn go_table(bytes: &[u8]) {
    let Some((choice, mut bytes)) = choice(bytes) else { return };
    let machine = if choice & 1 == 0 { Machine::X86_64 } else { Machine::Aarch64 };
    let mut registers = Registers::new(machine, BASE.wrapping_add(word(&mut bytes)));
    registers.set(machine.stack_pointer(), Some(STACK));
    let (stack, file) = bytes.split_at(bytes.len().min(STACK_BYTES));
    let mut unwinder = Unwinder::new();
    if choice & 2 != 0 {
        unwinder = unwinder.without_call_checks();
    }
    let len = file.len() as u64;
    let source: Box<dyn ReadAt + Send> = Box::new(file.to_vec());
    let space = OneFile { image: unwinder.add(source), len };
    let windows = [Window { address: STACK, bytes: stack }];
    let mut frames = Vec::new();
    // The second walk uses the cached rules of the first.
    for _ in 0..2 {
        frames.clear();
        let _ = unwinder.walk(&registers, &windows, &space, &mut frames);
        assert!(frames.len() <= FRAMES_MAX && !frames.is_empty());
    }
    let figures = unwinder.figures();
    assert!(figures.page_bytes + figures.rule_bytes + figures.table_bytes < MEMORY_MAX);
}

/// A program of each machine and of each version of the table, whose stack is whole.
#[must_use]
pub fn go_table_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for machine in [0, 1] {
        for has_start_line in [false, true] {
            let file = program(machine == 1, has_start_line);
            // In the second procedure, which the first has called.
            let mut seed = vec![machine | 2];
            seed.extend(0x150_u64.to_le_bytes());
            let mut stack = vec![0; STACK_BYTES];
            for (at, into) in [(16, 0x120_u64), (24, 0x120), (32, 0x110), (48, 0x108)] {
                stack[at..at + 8].copy_from_slice(&(BASE + into).to_le_bytes());
            }
            seed.extend(stack);
            seed.extend(file);
            seeds.push(seed);
        }
    }
    seeds
}

/// Programs that have Go's table and no symbols, for readers of names and lines.
pub(crate) fn go_programs() -> impl Iterator<Item = Vec<u8>> {
    [(false, false), (false, true), (true, true)].into_iter().map(|(arm, line)| program(arm, line))
}

/// An ELF file with code from 0x100 on, a table from 0x200 on with trees of inlined calls at its
/// end, what the runtime knows of it, and section headers.
fn program(is_arm: bool, has_start_line: bool) -> Vec<u8> {
    const TABLE: u64 = 0x200;
    const MODULE_WORDS: usize = 42;
    let mut table = table(is_arm, has_start_line);
    table.resize(table.len().next_multiple_of(8), 0);
    let trees_at = TABLE + table.len() as u64;
    // Calls of the first procedure and, within it, of the third.
    for (name, caller) in [(1_u32, 4_u32), (24, 26)] {
        let later = [0, name, caller, 7];
        let entry = if has_start_line { &later[..] } else { &[0, 0, 7, name, caller] };
        table.extend(entry.iter().flat_map(|word| word.to_le_bytes()));
    }
    table.resize(table.len().next_multiple_of(8), 0);
    let mut module = [0; MODULE_WORDS];
    module[..2].copy_from_slice(&[BASE + TABLE, BASE + TABLE + HEADER as u64]);
    module[if has_start_line { 40 } else { 38 }] = BASE + trees_at;
    let names = b"\0.gopclntab\0.text\0.go.buildinfo\0.shstrtab\0.noptrdata\0";
    let module_at = TABLE + table.len() as u64;
    let names_at = module_at + 8 * MODULE_WORDS as u64;
    let sections_at = (names_at + names.len() as u64).next_multiple_of(8);
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    file.extend(2_u16.to_le_bytes());
    file.extend(if is_arm { 183_u16 } else { 62 }.to_le_bytes());
    file.extend(1_u32.to_le_bytes());
    for word in [BASE + 0x100, 64, sections_at] {
        file.extend(word.to_le_bytes());
    }
    file.extend(0_u32.to_le_bytes());
    for half in [64_u16, 56, 1, 64, 6, 4] {
        file.extend(half.to_le_bytes());
    }
    // PT_LOAD of the whole file, readable and executable.
    file.extend(1_u32.to_le_bytes());
    file.extend(5_u32.to_le_bytes());
    for word in [0, BASE, BASE, sections_at, sections_at, 0x1000] {
        file.extend(word.to_le_bytes());
    }
    file.resize(0x100, 0);
    file.resize(TABLE as usize, 0x90);
    file.extend(&table);
    file.extend(module.iter().flat_map(|word| word.to_le_bytes()));
    file.extend(names);
    file.resize(sections_at as usize, 0);
    // Place of the name, type, flags, and place and length.
    let len = table.len() as u64;
    for (name, kind, flags, at, len) in [
        (0, 0, 0, 0, 0),
        (1, 1, 2, TABLE, len),
        (12, 1, 6, 0x100, 0x100),
        (18, 1, 2, 0x100, 8),
        (32, 3, 0, names_at, names.len() as u64),
        (42, 1, 3, module_at, 8 * MODULE_WORDS as u64),
    ] {
        file.extend(u32::to_le_bytes(name));
        file.extend(u32::to_le_bytes(kind));
        for word in [flags, if flags == 0 { 0 } else { BASE + at }, at, len] {
            file.extend(u64::to_le_bytes(word));
        }
        file.extend(0_u64.to_le_bytes());
        file.extend(1_u64.to_le_bytes());
        file.extend(0_u64.to_le_bytes());
    }
    file
}

/// Bytes of the table's header.
const HEADER: usize = 72;

/// The table of four procedures of 0x40 bytes.
fn table(is_arm: bool, has_start_line: bool) -> Vec<u8> {
    let quantum: u8 = if is_arm { 4 } else { 1 };
    let (begins, len) = ([0_u32, 0x40, 0x80, 0xc0], 0x40_u8);
    let names = b"\0runtime.main\0main.main\0runtime.systemstack\0runtime.sigreturn\0";
    let name_of = [1_u32, 14, 24, 44];
    // Distance 0 for 4 bytes, 16 until the last 4 bytes, 0 again.
    let pcsp = [0, 2, 4 / quantum, 32, (len - 8) / quantum, 31, 4 / quantum, 0];
    // Entries of trees: -1 for 8 bytes, 1 for 16, 0 for 16, -1 for the rest.
    let entries = [0, 8 / quantum, 4, 16 / quantum, 1, 16 / quantum, 1, (len - 40) / quantum, 0];
    let numbers = [&pcsp[..], &entries].concat();
    let functab_at = (HEADER + names.len() + numbers.len()).next_multiple_of(8);
    let rows = begins.len() * 8 + 4;
    let func_bytes = if has_start_line { 44 } else { 40 };
    let mut table =
        if has_start_line { 0xffff_fff1_u32 } else { 0xffff_fff0 }.to_le_bytes().to_vec();
    table.extend([0, 0, quantum, 8]);
    let (names_at, pcsp_at) = (HEADER as u64, (HEADER + names.len()) as u64);
    for word in [4, 0, BASE + 0x100, names_at, pcsp_at, names_at, pcsp_at, functab_at as u64] {
        table.extend(word.to_le_bytes());
    }
    table.extend(names);
    table.extend(numbers);
    table.resize(functab_at, 0);
    // Kinds of values, and data, of the second.
    let behind = |number: usize| if number == 1 { (3_u32, 4_u8) } else { (0, 0) };
    let mut place = rows;
    for (number, begin) in begins.iter().enumerate() {
        table.extend(begin.to_le_bytes());
        table.extend((place as u32).to_le_bytes());
        let (kinds, data) = behind(number);
        place += func_bytes + 4 * (kinds as usize + usize::from(data));
    }
    table.extend((begins[3] + u32::from(len)).to_le_bytes());
    for (number, begin) in begins.iter().enumerate() {
        // Without startLine there is one word less before the flags.
        let (kinds, data) = behind(number);
        let words = [*begin, name_of[number], 0, 0, 1, 1, 1, kinds, 0, 7];
        for word in words.iter().take(func_bytes / 4 - 1) {
            table.extend(word.to_le_bytes());
        }
        let flags = [1, 0, 2, 0][number];
        table.extend([0, flags, 0, data]);
        if data > 0 {
            let places = [0, 0, pcsp.len() as u32, u32::MAX, u32::MAX, u32::MAX, 0];
            table.extend(places.iter().flat_map(|word| word.to_le_bytes()));
        }
    }
    table
}
