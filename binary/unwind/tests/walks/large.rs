//! A program as large as the largest: 2.8 million procedures cost a walk no more than few do.

use std::time::Instant;

use unwind::{End, Machine, Registers, Unwinder, Window};

use crate::synthetic::{OneFile, Procedure, address, file};

const STACK: u64 = 0x7fff_0000_0000;
/// Frames of the stack, in procedures far apart.
const FRAMES: u64 = 24;

/// Walks one stack in a file with `count` procedures. Returns the bytes that were read.
fn first_walk(count: u32) -> u64 {
    let procedure = |number| Procedure {
        begin: number * 16,
        len: 16,
        is_signal: false,
        // The CFA is rsp + 32; the outermost has no caller.
        instructions: if number == 0 { vec![0x07, 16] } else { vec![0x0e, 32] },
    };
    let procedures: Vec<Procedure> = (0..count).map(procedure).collect();
    let code = [0xff, 0xd0].repeat(count as usize * 8);
    let bytes = file(Machine::X86_64, &code, &procedures);
    let len = bytes.len() as u64;
    let mut stack = vec![0; 24];
    for frame in (0..FRAMES - 1).rev() {
        let number = frame * u64::from(count) / FRAMES;
        stack.extend(address(number * 16 + 8).to_le_bytes());
        stack.resize(stack.len() + 24, 0);
    }
    let mut registers = Registers::new(Machine::X86_64, address(u64::from(count) * 16 - 8));
    registers.set(7, Some(STACK));
    let mut unwinder = Unwinder::new();
    let space = OneFile { image: unwinder.add(Box::new(bytes)), len };
    let windows = [Window { address: STACK, bytes: &stack }];
    let mut frames = Vec::new();
    let begin = Instant::now();
    let end = unwinder.walk(&registers, &windows, &space, &mut frames);
    let taken = begin.elapsed();
    assert_eq!((end, frames.len() as u64), (End::Whole, FRAMES));
    let read = unwinder.figures().bytes_read;
    println!("{count} procedures, a file of {len} bytes: {read} bytes read in {taken:?}");
    read
}

#[test]
fn the_first_walk_reads_little_however_large_the_file() {
    let small = first_walk(1000);
    let large = first_walk(200_000);
    assert!(large < 320 << 10, "{large}");
    assert!(large < 10 * small, "{large} against {small}");
}

/// As many rows as the largest known program has; half a minute of making the file.
#[test]
#[ignore = "half a gigabyte of memory"]
fn the_largest_program() {
    assert!(first_walk(2_800_000) < 512 << 10);
}
