//! Arbitrary machine code and registers.

use crate::{choice, word};
use code::cfg::{Cfg, Knowledge, Part, ReadOnly, Survey};
use code::interpret::{CodeView, InstructionSet, Line, Place, STEPS_MAX, Walker, Window};
use code::isa::aarch64::Aarch64;
use code::isa::x86_64::X86_64;
use code::isa::{Isa, Syntax};
use image::{ImageOffset, Vaddr};

/// Address of the code.
const BEGIN: u64 = 0x40_0000;
/// Bytes of the stack in a sample.
const STACK_BYTES: usize = 64;
/// Instructions in the decoder's cache.
const INSTRUCTIONS: usize = 256;

struct View<'a>(&'a [u8]);

impl CodeView for View<'_> {
    fn place(&mut self, address: Vaddr) -> Option<Place> {
        let (begin, end) = (Vaddr(BEGIN), Vaddr(BEGIN + self.0.len() as u64));
        let place = Place { image: 1, begin, end, offset: ImageOffset(0) };
        (begin <= address && address < end).then_some(place)
    }

    fn bytes(&mut self, _: u32, offset: ImageOffset, into: &mut [u8]) -> usize {
        let from = self.0.get(offset.0 as usize..).unwrap_or_default();
        let len = from.len().min(into.len());
        into[..len].copy_from_slice(&from[..len]);
        len
    }

    fn constant(&mut self, address: Vaddr, len: u8) -> Option<u64> {
        ReadOnly::constant(self, address, len)
    }
}

impl ReadOnly for View<'_> {
    /// The code is its own constant data: jump tables lead anywhere.
    fn constant(&mut self, address: Vaddr, len: u8) -> Option<u64> {
        let from = usize::try_from(address.0.checked_sub(BEGIN)?).ok()?;
        let bytes = self.0.get(from..from.checked_add(usize::from(len))?)?;
        Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }
}

/// Walks through code from a sample: the input is flags, whose highest bit chooses 64-bit Arm, the
/// registers, a piece of stack, and the code.
pub fn walk(bytes: &[u8]) {
    let mut rest = bytes;
    let flags = word(&mut rest);
    // Most registers point near the code, so that the walk reaches it.
    let mut register = || match word(&mut rest) {
        near if near >> 56 == 0 => near,
        near => BEGIN.wrapping_add(near & 0xffff),
    };
    let is_arm = flags >> 63 == 1;
    let count = if is_arm { Aarch64::REGISTERS } else { X86_64::REGISTERS };
    let registers: Vec<u64> = (0..count).map(|_| register()).collect();
    let (stack, code) = rest.split_at(rest.len().min(STACK_BYTES));
    match is_arm {
        true => walk_of::<Aarch64>(&registers, flags, stack, code),
        false => walk_of::<X86_64>(&registers, flags, stack, code),
    }
}

/// Memory at the first register is a line of the bytes of the stack.
fn walk_of<I: InstructionSet>(registers: &[u64], flags: u64, stack: &[u8], code: &[u8]) {
    let mut line = Line { address: Vaddr(registers[0] & !63), bytes: [0; _] };
    line.bytes[..stack.len()].copy_from_slice(stack);
    let begin = Vaddr(registers[usize::from(I::STACK_POINTER)]);
    let window = Window { begin, bytes: stack, lines: std::slice::from_ref(&line) };
    let mut walker = Walker::<I>::new(INSTRUCTIONS);
    let (edges, _) =
        walker.walk(Vaddr(BEGIN), I::sampled(registers, flags), window, &mut View(code));
    assert!(edges.len() <= STEPS_MAX);
    assert!(walker.rounds().count() <= STEPS_MAX);
}

/// Registers of each kind, flags among them, before loops, calls and jump tables.
#[must_use]
pub fn walk_seeds() -> Vec<Vec<u8>> {
    let head: Vec<u8> = (0..17_u64).flat_map(|number| (number * 3).to_le_bytes()).collect();
    let arm: Vec<u8> = (0..33_u64).flat_map(|n| (n | (1 << 63) >> n).to_le_bytes()).collect();
    let head_of = |head: &[u8], code: &[u8]| [head, &[0x40; STACK_BYTES], code].concat();
    codes().iter().flat_map(|code| [head_of(&head, code), head_of(&arm, code)]).collect()
}

/// Builds graphs of code. The first byte selects the instruction set, the next ones are the lengths
/// of procedures.
pub fn graph(bytes: &[u8]) {
    let Some((choice, rest)) = choice(bytes) else { return };
    let (lengths, code) = rest.split_at(rest.len().min(4));
    let isa = if choice & 1 == 0 { Isa::X86_64 } else { Isa::Aarch64 };
    let syntax = if choice & 2 == 0 { None } else { Some(Syntax::Att) };
    let lines = isa.disassemble(code, Vaddr(BEGIN), syntax);
    assert!(lines.len() <= code.len());
    let (mut procedures, mut at) = (Vec::new(), 0);
    for length in lengths.iter().map(|length| usize::from(*length) * 4).chain([code.len()]) {
        let end = (at + length).min(code.len());
        if end > at {
            procedures.push(at..end);
        }
        at = end;
    }
    let part = |range: &std::ops::Range<usize>| Part {
        begin: Vaddr(BEGIN + range.start as u64),
        bytes: &code[range.clone()],
    };
    let addresses: Vec<_> = procedures
        .iter()
        .map(|range| BEGIN + range.start as u64..BEGIN + range.end as u64)
        .collect();
    drop(Survey::of(isa, &[part(&(0..code.len()))], &addresses, []));
    for procedure in &procedures {
        let graph = Cfg::build(isa, &[part(procedure)], &mut View(code), &Knowledge::default());
        for number in 0..graph.blocks().len() {
            assert!(graph.instructions(number).count() <= procedure.len());
            assert!(graph.successors(number).count() <= graph.edges().len());
        }
    }
}

/// Code of both instruction sets.
#[must_use]
pub fn graph_seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> =
        codes().into_iter().map(|code| [&[2, 4, 2, 0, 0][..], &code].concat()).collect();
    // cbz x0, +8; b.ne -4; bl +8; br x1; ret
    let words = [0xb400_0040_u32, 0x54ff_ffe1, 0x9400_0002, 0xd61f_0020, 0xd65f_03c0];
    let arm: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    seeds.push([&[3, 3, 0, 0, 0][..], &arm].concat());
    seeds
}

/// x86-64: a loop that counts down, a call and return, a switch through a table, the code of a
/// library's procedure.
fn codes() -> Vec<Vec<u8>> {
    let own = std::fs::read("/proc/self/exe").unwrap_or_default();
    let layout = image::Layout::of(&own).ok();
    let code = layout.and_then(|layout| {
        let segment = *layout.segments().iter().find(|segment| segment.executable)?;
        let from = usize::try_from(segment.offset.0).ok()? + 0x2000;
        own.get(from..from + 512).map(<[u8]>::to_vec)
    });
    let small = [
        &b"\xb9\x05\x00\x00\x00\xff\xc9\x75\xfc\xc3"[..],
        b"\xe8\x01\x00\x00\x00\xc3\x48\x85\xc0\x74\x02\x31\xc0\xc3",
        b"\x48\x8d\x05\x20\x00\x00\x00\x83\xff\x03\x77\x09\x48\x63\x14\xb8\x48\x01\xc2\xff\xe2\xc3",
        // Of 64-bit Arm: `subs x0, x0, #1`, `b.ne` back to it, `ret`.
        b"\x00\x04\x00\xf1\xe1\xff\xff\x54\xc0\x03\x5f\xd6",
        b"\x48\x39\xd8\x72\xfb\x48\x83\xc3\x10\x48\x39\xc3\x75\xf2\xf3\xa4\xc3",
    ];
    small.iter().map(|code| code.to_vec()).chain(code).collect()
}
