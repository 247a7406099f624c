//! How frames of code in the code cache are left.
//!
//! Compiled code has frames of one size: the caller's frame pointer and the return address are in
//! the uppermost words. In its first and last instructions the frame is not there yet, or no more.
//! The interpreter's frames, and those of procedures that it shares with the compilers, are kept by
//! the frame pointer.

use super::code_cache::{Blob, CodeCache, Kind};
use super::interpreter::Codelets;
use super::layouts::SENDER_AT;
use crate::python::Memory;
use unwind::{BLOCK_BYTES, Base, End, FrameRule, GeneratedFrame};

/// Bytes of code before the next instruction that are looked at.
const BEFORE: u64 = 16;
/// Bytes of code from there on.
const CODE_BYTES: usize = 32;
/// Bytes before the end of a prologue that are looked at.
const PROLOGUE_BYTES: u64 = 64;

/// `ret`, also with a number of bytes to leave out.
const RETURNS: [u8; 2] = [0xc3, 0xc2];
/// `push %rbp`, `pop %rbp`.
const PUSH: u8 = 0x55;
const POP: u8 = 0x5d;

/// The rule of a frame with `bytes` between the stack pointer and the CFA. The caller's frame
/// pointer is below the return address, or in its register still.
fn row(bytes: u32, has_frame_pointer: bool) -> FrameRule {
    FrameRule::Row {
        base: Base::StackPointer,
        distance: bytes.into(),
        return_below: 8,
        frame_below: if has_frame_pointer { 16 } else { 0 },
    }
}

/// How the frame at an address is kept. None: no code that is known is there.
pub fn frame_at<M: Memory>(
    cache: &CodeCache<M>,
    codelets: Option<&Codelets>,
    address: u64,
    is_exact: bool,
) -> Option<GeneratedFrame> {
    let blob = cache.at(address)?;
    let mut follows_call = true;
    let rule = match blob.kind {
        Kind::Interpreter => {
            follows_call = false;
            let body = FrameRule::KeptStackPointer(SENDER_AT);
            if is_exact { interpreted(cache, codelets, address) } else { body }
        }
        Kind::Method | Kind::Stub if is_exact => compiled(cache, &blob, address),
        Kind::Method | Kind::Stub => row(blob.frame_bytes, true),
        Kind::Procedures => FrameRule::FramePointer,
        Kind::Jump => row(8, false),
        Kind::Adapter => FrameRule::End(End::Generated),
    };
    Some(GeneratedFrame { rule, follows_call })
}

/// The code around an instruction.
fn code_at<M: Memory>(cache: &CodeCache<M>, address: u64) -> Option<[u8; CODE_BYTES]> {
    let mut code = [0; CODE_BYTES];
    let read = cache.memory.read(address.checked_sub(BEFORE)?, &mut code);
    (read == code.len()).then_some(code)
}

/// mov %r10, distance(%r15)
fn is_answer(code: &[u8]) -> bool {
    code.starts_with(&[0x4d, 0x89, 0x97])
}

/// The rules of a block of compiled code: that of its body, except where the frame is made or
/// removed. What ends a frame there is `pop %rbp` behind `add number, %rsp`, or `leave`.
pub fn block<M: Memory>(cache: &CodeCache<M>, begin: u64) -> Option<Vec<(u16, FrameRule)>> {
    let blob = cache.at(begin).filter(|blob| blob.kind == Kind::Method)?;
    let (complete, end) = (blob.complete?, begin.checked_add(BLOCK_BYTES)?);
    if begin < complete || end > blob.end {
        return None;
    }
    let mut code = [0; BLOCK_BYTES as usize + CODE_BYTES];
    let first = begin.checked_sub(BEFORE)?;
    let read = cache.memory.read(first, &mut code);
    if read != code.len() {
        return None;
    }
    let body = row(blob.frame_bytes, true);
    let mut rows = vec![(0, body)];
    let mut others = 0;
    for at in 0..BLOCK_BYTES as usize {
        let (before, next) = code.get(at..at + CODE_BYTES)?.split_at(BEFORE as usize);
        if ends_frame(before, next) {
            if at > others || others == 0 {
                rows.push((at as u16, FrameRule::Other));
            }
            others = at + EPILOGUE_BYTES;
        }
        if at == others && others > 0 {
            rows.push((at as u16, body));
        }
    }
    rows.dedup_by_key(|(at, _)| *at);
    // An end before the block may reach into it.
    let reaches = (1..EPILOGUE_BYTES.min(BEFORE as usize - 8)).any(|back| {
        code.get(BEFORE as usize - back..).is_some_and(|code| code.first() == Some(&POP))
    });
    (!reaches).then_some(rows)
}

/// Bytes from where a frame ends on in which the code may have none, at most: pop, a question of 13
/// bytes, ret.
const EPILOGUE_BYTES: usize = 32;

/// Whether the frame ends with the next instruction.
fn ends_frame(before: &[u8], next: &[u8]) -> bool {
    let behind = |len: usize| before.len().checked_sub(len).and_then(|at| before.get(at..));
    match *next {
        [POP, ..] => {
            matches!(behind(4), Some([0x48, 0x83, 0xc4, _]))
                || matches!(behind(7), Some([0x48, 0x81, 0xc4, ..]))
        }
        [0xc9, 0xc3, ..] => true,
        [0x4d, 0x89, 0x97, _, _, _, _, 0xe9, ..] => true,
        _ => false,
    }
}

fn compiled<M: Memory>(cache: &CodeCache<M>, blob: &Blob, address: u64) -> FrameRule {
    let Some(code) = code_at(cache, address) else { return FrameRule::End(End::Generated) };
    let (before, next) = code.split_at(BEFORE as usize);
    if let Some(rule) = epilogue(before, next) {
        return rule;
    }
    match blob.complete {
        Some(complete) if address >= complete => row(blob.frame_bytes, true),
        Some(complete) => prologue(cache, blob, complete, address),
        // The runtime's stubs have none: C1's keep frame pointers.
        None if blob.kind == Kind::Stub => FrameRule::FramePointer,
        None => FrameRule::End(End::Generated),
    }
}

/// The rule in the last instructions: from `pop %rbp` on, with the question of the VM to stop
/// before `ret` (macroAssembler_x86.cpp, x86_64.ad, c1_LIRAssembler_x86.cpp).
fn epilogue(before: &[u8], next: &[u8]) -> Option<FrameRule> {
    let returns = |at: usize| next.get(at).is_some_and(|byte| RETURNS.contains(byte));
    let popped =
        |back: usize| before.len().checked_sub(back).and_then(|at| before.get(at)) == Some(&POP);
    let without_frame = match *next {
        [0xc3 | 0xc2, ..] => true,
        [POP, ..] => return Some(row(16, true)),
        // cmp 8 or 32 bits of distance(%r15), %rsp; ja
        [0x49, 0x3b, 0x67, _, 0x0f, 0x87, ..] => popped(1) && returns(10),
        [0x49, 0x3b, 0xa7, _, _, _, _, 0x0f, 0x87, ..] => popped(1) && returns(13),
        [0x0f, 0x87, ..] => returns(6) && (popped(5) || popped(8)),
        // mov distance(%r15), %r10; test %eax, (%r10): JDK 10 to 15
        [0x4d, 0x8b, 0x57, _, 0x41, 0x85, 0x02, ..] => popped(1) && returns(7),
        [0x4d, 0x8b, 0x97, _, _, _, _, 0x41, 0x85, 0x02, ..] => popped(1) && returns(10),
        [0x41, 0x85, 0x02, ..] => returns(3) && (popped(5) || popped(8)),
        // test %eax, distance(%rip): JDK 8
        [0x85, 0x05, ..] => popped(1) && returns(6),
        // Where the question is answered, at the end of the code: mov place, %r10;
        // mov %r10, distance(%r15); jmp
        [0x49, 0xba, _, _, _, _, _, _, _, _, 0x4d, 0x89, 0x97, ..] => true,
        [0x4c, 0x8d, 0x15, _, _, _, _, 0x4d, 0x89, 0x97, ..] => true,
        [0x4d, 0x89, 0x97, _, _, _, _, 0xe9, ..] => true,
        [0xe9, ..] => before.get(before.len().wrapping_sub(7)..).is_some_and(is_answer),
        _ => false,
    };
    without_frame.then(|| row(8, false))
}

/// The rule in the first instructions of code whose frame is there from `complete` on.
fn prologue<M: Memory>(
    cache: &CodeCache<M>,
    blob: &Blob,
    complete: u64,
    address: u64,
) -> FrameRule {
    let begin = complete.saturating_sub(PROLOGUE_BYTES).max(blob.code);
    let mut code = vec![0; (complete - begin) as usize];
    if cache.memory.read(begin, &mut code) != code.len() {
        return FrameRule::End(End::Generated);
    }
    let Some(prologue) = Prologue::find(&code, blob.frame_bytes) else {
        return FrameRule::End(End::Generated);
    };
    let Prologue { push, grow, is_pushed } = prologue;
    let into = |at: usize| begin + at as u64;
    match (is_pushed, grow) {
        _ if address <= into(push) && is_pushed => row(8, false),
        (true, Some((_, after))) if address >= into(after) => row(blob.frame_bytes, true),
        (true, _) => row(16, true),
        (false, Some((at, _))) if address <= into(at) => row(8, false),
        // The caller's frame pointer is still in its register until it is stored.
        (false, _) if address <= into(push) => row(blob.frame_bytes, false),
        (false, _) => row(blob.frame_bytes, true),
    }
}

/// The instructions that make a frame.
struct Prologue {
    /// Where `push %rbp` is; or where it is stored in the frame.
    push: usize,
    /// Where the stack pointer is moved down: that instruction, and the next.
    grow: Option<(usize, usize)>,
    is_pushed: bool,
}

impl Prologue {
    fn find(code: &[u8], frame_bytes: u32) -> Option<Self> {
        for at in (0..code.len()).rev() {
            let Some((grown, len)) = grows(code.get(at..)?) else { continue };
            if grown.checked_add(16) == Some(frame_bytes) {
                let before = code.get(..at)?;
                // mov %rsp, %rbp may be between.
                let moves = [[0x48, 0x8b, 0xec], [0x48, 0x89, 0xe5]];
                let moved = moves.iter().any(|bytes| before.ends_with(bytes));
                let push = at.checked_sub(if moved { 4 } else { 1 })?;
                if code.get(push) == Some(&PUSH) {
                    return Some(Self { push, grow: Some((at, at + len)), is_pushed: true });
                }
            }
            // mov %rbp, distance(%rsp)
            let store = code.get(at + len..).unwrap_or_default();
            if grown.checked_add(8) == Some(frame_bytes) && store.starts_with(&[0x48, 0x89]) {
                let (push, grow) = (at + len, Some((at, at + len)));
                return Some(Self { push, grow, is_pushed: false });
            }
        }
        // A frame of two words is there after the push, behind mov %eax, -distance(%rsp).
        let touch = [0x89, 0x84, 0x24];
        let pushes = |at: &usize| {
            let touched = at.checked_sub(7).and_then(|at| code.get(at..)?.get(..3));
            code.get(*at) == Some(&PUSH) && touched == Some(&touch)
        };
        let push = (0..code.len()).rev().find(pushes).filter(|_| frame_bytes == 16)?;
        Some(Self { push, grow: None, is_pushed: true })
    }
}

/// The bytes of `sub number, %rsp`, and the instruction's length.
fn grows(code: &[u8]) -> Option<(u32, usize)> {
    match *code {
        [0x48, 0x83, 0xec, number, ..] => Some((number.into(), 4)),
        [0x48, 0x81, 0xec, a, b, c, d, ..] => Some((u32::from_le_bytes([a, b, c, d]), 7)),
        _ => None,
    }
}

fn interpreted<M: Memory>(
    cache: &CodeCache<M>,
    codelets: Option<&Codelets>,
    address: u64,
) -> FrameRule {
    let end = FrameRule::End(End::Generated);
    let Some(code) = code_at(cache, address) else { return end };
    let (before, next) = code.split_at(BEFORE as usize);
    let left = before.last() == Some(&0xc9);
    match *next {
        // leave; pop %r13 (pop %rsi before JDK 9); mov %rbx, %rsp; jmp
        [0x41, 0x5d, ..] | [0x5e, ..] if left => return row(8, false),
        [0x48, 0x8b, 0xe3, 0x41, 0xff, 0xe5, ..] | [0x41, 0xff, 0xe5, ..] => return end,
        [0xc3, ..] => return row(8, false),
        _ => {}
    }
    match codelets.and_then(|codelets| codelets.frame_made(address)) {
        Some(made) if address < made => end,
        _ => FrameRule::KeptStackPointer(SENDER_AT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_instructions_of_code_have_no_frame() {
        let body = [0x90; 8];
        let ended = [0x48, 0x83, 0xc4, 0x10, POP].as_slice();
        let poll = [0x49, 0x3b, 0xa7, 0x40, 3, 0, 0, 0x0f, 0x87, 1, 0, 0, 0, 0xc3];
        assert_eq!(epilogue(ended, &poll), Some(row(8, false)));
        assert_eq!(epilogue(&body, &poll), None, "a question within the body");
        let (cmp, ja) = poll.split_at(7);
        assert_eq!(epilogue(&[ended, cmp].concat(), ja), Some(row(8, false)));
        assert_eq!(epilogue(&body, &[POP, 0xc3]), Some(row(16, true)));
        assert_eq!(epilogue(&body, &[0xc3]), Some(row(8, false)));
        let older = [0x4d, 0x8b, 0x97, 8, 1, 0, 0, 0x41, 0x85, 0x02, 0xc3];
        assert_eq!(epilogue(ended, &older), Some(row(8, false)));
        let (mov, test) = older.split_at(7);
        assert_eq!(epilogue(&[ended, mov].concat(), test), Some(row(8, false)));
        assert_eq!(epilogue(&body, &[0x85, 0x05, 1, 0, 0, 0, 0xc3]), None);
    }

    #[test]
    fn the_first_instructions_of_code_are_known_by_the_size_of_the_frame() {
        let touch = [0x89, 0x84, 0x24, 0, 0xc0, 0xfe, 0xff];
        let pushes = [&touch[..], &[PUSH, 0x48, 0x83, 0xec, 0x20]].concat();
        let found = Prologue::find(&pushes, 0x30).unwrap();
        assert_eq!((found.push, found.grow, found.is_pushed), (7, Some((8, 12)), true));
        assert!(Prologue::find(&pushes, 0x40).is_none(), "another size");
        let stores = [0x48, 0x81, 0xec, 0x28, 0, 0, 0, 0x48, 0x89, 0x6c, 0x24, 0x20];
        let found = Prologue::find(&stores, 0x30).unwrap();
        assert_eq!((found.push, found.grow, found.is_pushed), (7, Some((0, 7)), false));
        let small = [&touch[..], &[PUSH]].concat();
        let found = Prologue::find(&small, 16).unwrap();
        assert_eq!((found.push, found.grow, found.is_pushed), (7, None, true));
        assert!(Prologue::find(&[], 16).is_none());
    }
}
