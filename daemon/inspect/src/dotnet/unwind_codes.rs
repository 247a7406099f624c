//! How frames of methods are left: by the unwind codes that the compiler has made for each of its
//! functions. They are those of Windows on x86-64, on all systems (src/coreclr/inc/win64unwind.h,
//! src/coreclr/jit/unwindamd64.cpp). They tell what the first instructions do; what the last ones
//! undo is told from the code.

use super::code_ranges::{Code, CodeRanges, Kind};
use crate::python::Memory;
use code::isa::Isa;
use image::Vaddr;
use unwind::{BLOCK_BYTES, Base, End, FrameRule, GeneratedFrame};

/// The number of the frame pointer's register in unwind codes and in instructions.
const RBP: u8 = 5;
/// Bytes of code from an instruction on that are looked at for the end of a function.
const END_BYTES: usize = 48;
/// Longest function whose instructions are told apart for rules of blocks, in bytes.
const FUNCTION_BYTES_MAX: u64 = 1 << 16;
/// Distances beyond are no rule's.
const DISTANCE_MAX: u32 = 1 << 20;
/// Furthest place of the caller's frame pointer from the begin of the frame, likewise.
const FRAME_BELOW_MAX: u32 = 8000;

/// A step of a function's first instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Push(u8),
    Allocate(u32),
    /// The frame pointer is set to so many bytes above the stack pointer.
    FramePointer(u32),
    /// Nothing that a rule needs.
    None,
}

/// The steps of a function, in their order, each with the place behind its instruction.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Unwinding(Vec<(u32, Step)>);

impl Unwinding {
    /// The unwind codes at an address. None: they cannot be read, or have what no compiler for
    /// Linux makes.
    pub fn read(memory: &impl Memory, at: u64) -> Option<Self> {
        let mut head = [0; 4];
        (memory.read(at, &mut head) == head.len()).then_some(())?;
        let [version_and_flags, _, count, frame] = head;
        // Version 1; flag 4: they go on elsewhere.
        if version_and_flags & 7 != 1 || version_and_flags >> 3 & 4 != 0 {
            return None;
        }
        let mut bytes = vec![0; 2 * usize::from(count)];
        (memory.read(at.wrapping_add(4), &mut bytes) == bytes.len()).then_some(())?;
        Self::parse(&bytes, frame)
    }

    fn parse(bytes: &[u8], frame: u8) -> Option<Self> {
        let (slots, _) = bytes.as_chunks::<2>();
        let mut slots = slots.iter();
        let mut steps = Vec::new();
        while let Some([place, code]) = slots.next() {
            let (code, info) = (code & 15, code >> 4);
            let mut slot = || slots.next().map(|slot| u32::from(u16::from_le_bytes(*slot)));
            let step = match (code, info) {
                (0, register) => Step::Push(register),
                (1, 0) => Step::Allocate(slot()?.checked_mul(8)?),
                (1, 1) => Step::Allocate(slot()? | slot()? << 16),
                (2, info) => Step::Allocate(8 * u32::from(info) + 8),
                (3, _) if frame & 15 == RBP => Step::FramePointer(16 * u32::from(frame >> 4)),
                // The distance follows, in units of 16 bytes.
                (11, _) if frame & 15 == RBP => {
                    Step::FramePointer((slot()? | slot()? << 16).checked_mul(16)?)
                }
                // Another register is stored, or one of vectors.
                (4, register) if register != RBP => slot().map(|_| Step::None)?,
                (8, _) => slot().map(|_| Step::None)?,
                (5, register) if register != RBP => slot().zip(slot()).map(|_| Step::None)?,
                (9, _) => slot().zip(slot()).map(|_| Step::None)?,
                _ => return None,
            };
            steps.push((u32::from(*place), step));
        }
        // The last one is first.
        steps.reverse();
        Some(Self(steps))
    }

    /// The rule behind the steps up to this distance from the function's begin.
    pub fn rule(&self, into: u64) -> Option<FrameRule> {
        // Bytes from the stack pointer to the begin of the frame, as far as it is made.
        let (mut depth, mut frame_below, mut through) = (8_u32, 0, None);
        for (_, step) in self.0.iter().filter(|(place, _)| u64::from(*place) <= into) {
            match step {
                Step::Push(register) => {
                    depth = depth.checked_add(8)?;
                    if *register == RBP && frame_below == 0 {
                        frame_below = depth;
                    }
                }
                Step::Allocate(bytes) => depth = depth.checked_add(*bytes)?,
                Step::FramePointer(above) => through = Some(depth.checked_sub(*above)?),
                Step::None => {}
            }
        }
        match through {
            Some(distance) => row(Base::FramePointer, distance, frame_below),
            None => row(Base::StackPointer, depth, frame_below),
        }
    }
}

fn row(base: Base, distance: u32, frame_below: u32) -> Option<FrameRule> {
    let is_near =
        distance.is_multiple_of(8) && distance < DISTANCE_MAX && frame_below < FRAME_BELOW_MAX;
    let frame_below = u16::try_from(frame_below).ok()?;
    is_near.then_some(FrameRule::Row {
        base,
        distance: distance.into(),
        return_below: 8,
        frame_below,
    })
}

/// The rule in the last instructions of a function, which restore registers and return, or jump
/// into another function. None: the code is none of those. `is_behind_pop` says that the
/// instruction before restores a register.
fn ends(code: &[u8], is_behind_pop: bool) -> Option<FrameRule> {
    let (mut depth, mut frame_at, mut rest, mut pops) = (0_u32, None, code, is_behind_pop);
    loop {
        rest = match rest {
            [pop @ 0x58..=0x5f, rest @ ..] => {
                if pop & 7 == RBP {
                    frame_at = Some(depth);
                }
                (depth, pops) = (depth.checked_add(8)?, true);
                rest
            }
            [0x41, 0x58..=0x5f, rest @ ..] => {
                (depth, pops) = (depth.checked_add(8)?, true);
                rest
            }
            // add number, %rsp; vzeroupper
            [0x48, 0x83, 0xc4, number @ ..=0x7f, rest @ ..] => {
                depth = depth.checked_add((*number).into())?;
                rest
            }
            [0x48, 0x81, 0xc4, a, b, c, d, rest @ ..] => {
                depth = depth.checked_add(u32::from_le_bytes([*a, *b, *c, *d]))?;
                rest
            }
            [0xc5, 0xf8, 0x77, rest @ ..] => rest,
            [0xc3 | 0xc2, ..] => break,
            // jmp to a place, through memory, by a register
            [0xe9 | 0xeb, ..] | [0xff, 0x20..=0x27 | 0xe0..=0xe7, ..] if pops => break,
            [0x40..=0x4f, 0xff, 0x20..=0x27 | 0xe0..=0xe7, ..] if pops => break,
            _ => return None,
        };
    }
    let distance = depth.checked_add(8)?;
    row(Base::StackPointer, distance, frame_at.map_or(0, |at| distance - at))
}

/// Whether an instruction restores a register.
fn is_pop(code: &[u8]) -> bool {
    matches!(code, [0x58..=0x5f] | [0x41, 0x58..=0x5f])
}

/// How the frame at an address is kept. None: no code that is known is there.
pub fn frame_at<M: Memory>(
    map: &CodeRanges<M>,
    address: u64,
    is_exact: bool,
) -> Option<GeneratedFrame> {
    let code = map.at(address)?;
    let rule = match code.kind {
        Kind::Method { unwind, .. } => method_rule(map, &code, unwind, address, is_exact),
        Kind::Stub if is_exact => row(Base::StackPointer, 8, 0),
        Kind::Stub | Kind::Other => None,
    };
    let rule = rule.unwrap_or(FrameRule::End(End::Generated));
    Some(GeneratedFrame { rule, follows_call: true })
}

fn method_rule<M: Memory>(
    map: &CodeRanges<M>,
    code: &Code,
    unwind: u64,
    address: u64,
    is_exact: bool,
) -> Option<FrameRule> {
    let into = address.checked_sub(code.start)?;
    let rule = Unwinding::read(&map.memory, unwind)?.rule(into);
    if !is_exact {
        return rule;
    }
    let mut bytes = [0; 1 + END_BYTES];
    let read = map.memory.read(address.checked_sub(1)?, &mut bytes);
    let (before, next) = bytes.get(..read)?.split_first()?;
    let left = usize::try_from(code.end.checked_sub(address)?).unwrap_or(END_BYTES);
    let next = next.get(..left.min(next.len()))?;
    let ended = ends(next, false);
    // A jump to another function is told from one within by the instruction before.
    if ended.is_some() || !is_pop(&[*before]) || ends(next, true).is_none() {
        return ended.or(rule);
    }
    if into > FUNCTION_BYTES_MAX {
        return None;
    }
    let mut text = vec![0; usize::try_from(into).ok()?];
    (map.memory.read(code.start, &mut text) == text.len()).then_some(())?;
    let last = Isa::X86_64.disassemble(&text, Vaddr(0), None).pop()?;
    let last = text.get(usize::try_from(last.address.0).ok()?..)?;
    ends(next, is_pop(last)).or(rule)
}

/// The rules of a block, if all of it is methods' code.
pub fn block<M: Memory>(map: &CodeRanges<M>, begin: u64) -> Option<Vec<(u16, FrameRule)>> {
    let end = begin.checked_add(BLOCK_BYTES)?;
    let mut rows: Vec<(u16, FrameRule)> = Vec::new();
    let mut at = begin;
    while at < end {
        // Between functions are bytes that fill.
        let Some(code) = map.at(at).filter(|code| code.end > at) else {
            push(&mut rows, at - begin, FrameRule::Other);
            at = (at | 15) + 1;
            continue;
        };
        let Kind::Method { unwind, .. } = code.kind else { return None };
        function_rows(map, &code, unwind, begin..end, &mut rows)?;
        at = code.end;
    }
    let is_known = rows.iter().any(|(_, rule)| *rule != FrameRule::Other);
    is_known.then_some(rows)
}

/// Adds the rules of a function, as far as it is in these addresses.
fn function_rows<M: Memory>(
    map: &CodeRanges<M>,
    code: &Code,
    unwind: u64,
    within: std::ops::Range<u64>,
    rows: &mut Vec<(u16, FrameRule)>,
) -> Option<()> {
    let unwinding = Unwinding::read(&map.memory, unwind)?;
    let bytes = code.end.min(within.end + END_BYTES as u64).checked_sub(code.start)?;
    if bytes > FUNCTION_BYTES_MAX {
        return None;
    }
    let mut text = vec![0; usize::try_from(bytes).ok()?];
    (map.memory.read(code.start, &mut text) == text.len()).then_some(())?;
    let mut is_behind_pop = false;
    for line in Isa::X86_64.disassemble(&text, Vaddr(0), None) {
        let Vaddr(into) = line.address;
        let rest = text.get(usize::try_from(into).ok()?..)?;
        let ended = ends(rest.get(..END_BYTES).unwrap_or(rest), is_behind_pop);
        is_behind_pop = is_pop(rest.get(..line.len)?);
        let at = code.start + into;
        if at >= within.end {
            break;
        }
        if at + line.len as u64 > within.start {
            let rule = ended.or_else(|| unwinding.rule(into)).unwrap_or(FrameRule::Other);
            push(rows, at.saturating_sub(within.start), rule);
        }
    }
    Some(())
}

/// Adds a rule that holds from a place on, unless it holds already.
fn push(rows: &mut Vec<(u16, FrameRule)>, at: u64, rule: FrameRule) {
    let at = u16::try_from(at).unwrap_or(u16::MAX);
    if rows.last().is_none_or(|(_, last)| *last != rule) {
        rows.push((at, rule));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(distance: u32, frame_below: u32) -> Option<FrameRule> {
        row(Base::StackPointer, distance, frame_below)
    }

    /// Codes that .NET 9.0.5 made.
    #[test]
    fn unwind_codes_tell_how_far_the_frame_is_made() {
        // push %rbp; sub $224, %rsp
        let large = Unwinding::parse(&[8, 1, 0x1c, 0, 1, 0x50], 0).unwrap();
        assert_eq!([0, 1, 7].map(|at| large.rule(at)), [stack(8, 0), stack(16, 16), stack(16, 16)]);
        assert_eq!([8, 900].map(|at| large.rule(at)), [stack(240, 16); 2]);
        // push %rbp, %r15, %r14, %r12, %rbx; sub $8, %rsp
        let pushes = [0x0b, 2, 0x0a, 0x30, 9, 0xc0, 7, 0xd0, 5, 0xe0, 3, 0xf0, 1, 0x50];
        let pushes = Unwinding::parse(&pushes, 0).unwrap();
        assert_eq!((pushes.rule(4), pushes.rule(50)), (stack(24, 16), stack(64, 16)));
        // What goes on in the frame of less optimized code begins with it.
        let replaced = Unwinding::parse(&[5, 2, 0, 0xa2, 0, 0x50], 0).unwrap();
        assert_eq!((replaced.rule(0), replaced.rule(5)), (stack(104, 16), stack(112, 16)));
        // push %rbp; sub $16, %rsp; lea 16(%rsp), %rbp: the stack pointer may move from then on.
        let moving = Unwinding::parse(&[10, 3, 5, 0x12, 1, 0x50], 0x15).unwrap();
        assert_eq!(
            (moving.rule(9), moving.rule(10)),
            (stack(32, 16), row(Base::FramePointer, 16, 16))
        );
        assert_eq!(Unwinding::parse(&[1, 10], 0), None, "a frame of an interrupt");
        assert_eq!(Unwinding::parse(&[1, 1], 0), None, "cut off");
        assert_eq!(Unwinding::parse(&[1, 3], 0x13), None, "another register");
        let huge = Unwinding::parse(&[9, 0x11, 0xff, 0xff, 0xff, 0xff], 0).unwrap();
        assert_eq!(huge.rule(9), None);
    }

    #[test]
    fn the_end_of_a_function_is_told_from_its_code() {
        let end = [0x48, 0x83, 0xc4, 0x20, 0x5b, 0x41, 0x5e, 0x5d, 0xc3];
        assert_eq!(ends(&end, false), stack(64, 16));
        assert_eq!(ends(&end[4..], false), stack(32, 16));
        assert_eq!(ends(&end[7..], true), stack(16, 16));
        assert_eq!(ends(&end[8..], true), stack(8, 0));
        let tail = [0x5d, 0x48, 0xff, 0xe0];
        assert_eq!(ends(&tail, false), stack(16, 16));
        assert_eq!(ends(&tail[1..], true), stack(8, 0));
        assert_eq!(ends(&tail[1..], false), None, "the jump of a switch");
        assert_eq!(ends(&[0xe9, 1, 0, 0, 0], false), None);
        assert_eq!(ends(&[0x5d, 0x90], false), None);
        assert_eq!(ends(&[0x5d; 48], false), None);
        assert_eq!(ends(&[], false), None);
    }
}
