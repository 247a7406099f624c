//! Walks of arm64 stacks laid out by hand, which any machine can walk.

use unwind::{End, Frame, Machine, Proof, Registers, Unwinder, Window};

use crate::synthetic::{OneFile, Procedure, address, file};

const STACK: u64 = 0x7fff_0000_0000;

/// `_start` (0x00), `middle` (0x40), `leaf` (0x80), `handler` (0xc0), a trampoline (0x104) that no
/// table covers.
fn machine_code() -> Vec<u8> {
    let mut code = vec![0; 0x140];
    let mut put = |at: usize, word: u32| code[at..at + 4].copy_from_slice(&word.to_le_bytes());
    put(0x08, 0x9400_000e); // bl middle
    put(0x50, 0xd63f_0020); // blr x1
    put(0x60, 0x9400_0008); // bl leaf
    put(0x8c, 0x97ff_ffed); // bl middle
    put(0x104, 0xd280_1168); // mov x8, #139
    put(0x108, 0xd400_0001); // svc #0
    code
}

fn procedures() -> Vec<Procedure> {
    let procedure = |begin, instructions: &[u8]| Procedure {
        begin,
        len: 0x40,
        is_signal: false,
        instructions: instructions.to_vec(),
    };
    vec![
        procedure(0, &[0x07, 30]), // x30 is undefined
        // paciasp; stp x29, x30, [sp, #-32]!: negate_ra_state, CFA = sp + 32, x29 at CFA - 32,
        // x30 at CFA - 24, x19 at CFA - 16.
        procedure(0x40, &[0x41, 0x2d, 0x41, 0x0e, 32, 0x9d, 4, 0x9e, 3, 0x93, 2]),
        procedure(0x80, &[]),
        procedure(0xc0, &[0x41, 0x0e, 16, 0x9d, 2, 0x9e, 1]),
    ]
}

fn walk(registers: &Registers, words: &[u64]) -> (End, Vec<Frame>) {
    let bytes = file(Machine::Aarch64, &machine_code(), &procedures());
    let mut unwinder = Unwinder::new();
    let len = bytes.len() as u64;
    let space = OneFile { image: unwinder.add(Box::new(bytes)), len };
    let stack: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let windows = [Window { address: STACK, bytes: &stack }];
    let mut frames = Vec::new();
    let end = unwinder.walk(registers, &windows, &space, &mut frames);
    (end, frames)
}

fn registers(pc: u64, link: u64, stack: u64) -> Registers {
    let mut values = [7; 32];
    (values[30], values[31]) = (link, stack);
    Registers::aarch64(pc, &values)
}

fn found(frames: &[Frame]) -> Vec<(u64, Proof)> {
    frames.iter().map(|frame| (frame.address, frame.proof)).collect()
}

/// A return address as the processor signs it.
fn signed(address: u64) -> u64 {
    address | 0x005a << 48
}

#[test]
fn a_leaf_returns_by_its_link_register_and_others_by_signed_words() {
    let words = [STACK + 64, signed(address(0x0c)), 19, 0];
    let inner = registers(address(0x84), signed(address(0x64)), STACK);
    let (end, frames) = walk(&inner, &words);
    assert_eq!(end, End::Whole);
    let expected = [
        (address(0x84), Proof::Registers),
        (address(0x64), Proof::Called),
        (address(0x0c), Proof::Called),
    ];
    assert_eq!(found(&frames), expected);
    assert_eq!(frames[2].stack_pointer, Some(STACK + 32));
}

#[test]
fn a_link_register_is_good_for_the_innermost_frame_only() {
    // `middle` before its first instruction; its caller has not saved its own return address.
    let (end, frames) = walk(&registers(address(0x40), address(0x90), STACK), &[0; 8]);
    assert_eq!((end, frames.len()), (End::Unreadable, 2));
    // No call before the return address; none at all.
    for link in [address(0x94), 0] {
        let (end, frames) = walk(&registers(address(0x84), link, STACK), &[0; 8]);
        assert_eq!((end, frames.len()), (End::Refused, 1));
    }
}

/// A failed copy leaves zeros, which must not pass for the end of a stack.
#[test]
fn zeros_are_no_end() {
    let (end, frames) = walk(&registers(address(0x48), address(0x0c), STACK), &[0; 8]);
    assert_eq!((end, frames.len()), (End::Refused, 1));
}

#[test]
fn signals_are_found_by_the_code_that_handlers_return_to() {
    // The handler's frame, then the kernel's: regs at 312, of which x30, sp and pc are the last.
    let mut words = vec![0; 2 + 39 + 33 + 16];
    (words[0], words[1]) = (STACK + 16, address(0x104));
    let context = 2 + 39;
    let interrupted = STACK + 8 * (context as u64 + 33);
    words[context + 30] = signed(address(0x64));
    words[context + 31] = interrupted;
    words[context + 32] = address(0x80);
    // `middle`'s frame.
    words[context + 34] = signed(address(0x0c));
    let (end, frames) = walk(&registers(address(0xc8), 0, STACK), &words);
    let expected = [
        (address(0xc8), Proof::Registers),
        (address(0x104), Proof::Signal),
        (address(0x80), Proof::Signal),
        (address(0x64), Proof::Called),
        (address(0x0c), Proof::Called),
    ];
    assert_eq!(found(&frames), expected);
    assert_eq!(end, End::Whole);
    assert_eq!(frames[2].lookup, address(0x80));
}

#[test]
fn a_stack_that_was_not_copied_ends_the_walk() {
    let (end, frames) = walk(&registers(address(0x84), signed(address(0x64)), STACK), &[1]);
    assert_eq!((end, frames.len()), (End::Window, 2));
}
