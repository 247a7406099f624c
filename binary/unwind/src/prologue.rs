//! The first and last instructions of procedures that keep frame pointers, in which the frame
//! pointer still is, or again is, the caller's. By the frame pointer alone the caller would be
//! missing there.

use crate::registers::Machine;

/// Bytes of code that [`frame_at`] looks at: what V8 puts before a prologue, from any place in it.
pub const CODE_BYTES: usize = 32;
/// How many of them are before the next instruction.
pub const BEFORE_BYTES: usize = 12;

/// Where the innermost frame's record is, the caller's frame pointer and the return address.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Where the frame pointer points.
    FramePointer,
    /// Where the stack pointer points.
    StackPointer,
    /// There is none: the frame pointer is the caller's, the return address where the call put it.
    None,
}

/// The record of a thread that is to execute the code from [`BEFORE_BYTES`] on.
pub fn frame_at(machine: Machine, code: &[u8; CODE_BYTES]) -> Record {
    let (before, next) = code.split_at(BEFORE_BYTES);
    match machine {
        Machine::X86 => x86(before, next),
        Machine::X86_64 => x86_64(before, next),
        Machine::Aarch64 => aarch64(before, next),
    }
}

fn x86(before: &[u8], next: &[u8]) -> Record {
    const ENDBR32: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfb];
    // push %ebp; mov %esp, %ebp in both encodings; ret, ret $n.
    match next {
        [0x55 | 0xc3 | 0xc2, ..] => Record::None,
        [0x89, 0xe5, ..] | [0x8b, 0xec, ..] if before.last() == Some(&0x55) => Record::StackPointer,
        _ if next.starts_with(&ENDBR32) => Record::None,
        _ => Record::FramePointer,
    }
}

fn x86_64(before: &[u8], next: &[u8]) -> Record {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    // push %rbp; mov %rsp, %rbp in both encodings; ret, ret $n.
    match next {
        [0x55, ..] | [0xc3 | 0xc2, ..] => Record::None,
        [0x48, 0x89, 0xe5, ..] | [0x48, 0x8b, 0xec, ..] if before.last() == Some(&0x55) => {
            Record::StackPointer
        }
        _ if next.starts_with(&ENDBR64) || is_before_frame(before, next) => Record::None,
        _ => Record::FramePointer,
    }
}

/// Whether the code is that with which V8's functions begin before they have a frame: compiled
/// ones look whether they are still valid (`BailoutIfDeoptimized`, code-generator-x64.cc, V8 9.4
/// to 12.4), those of Sparkplug call a procedure that makes the frame
/// (`BaselineCompiler::Prologue`, baseline-compiler-x64-inl.h, 9.4 to 13.6).
fn is_before_frame(before: &[u8], next: &[u8]) -> bool {
    const FRAME: [u8; 4] = [0x55, 0x48, 0x89, 0xe5];
    // xor %ebx, %ebx; mov $bytecode, %r12; call
    const SPARKPLUG: [u8; 4] = [0x33, 0xdb, 0x49, 0xbc];
    let is_sparkplugs = next.starts_with(&SPARKPLUG)
        || before.ends_with(&SPARKPLUG[..2]) && next.starts_with(&SPARKPLUG[2..])
        || before.starts_with(&SPARKPLUG) && matches!(next, [0xe8, ..] | [0x41, 0xff, ..]);
    let mut rest = next;
    loop {
        rest = match rest {
            // mov n(%rcx), %rbx; testb $n, n(%rbx); testl; jnz
            [0x48, 0x8b, 0x59, _, rest @ ..]
            | [0xf6, 0x43, _, _, rest @ ..]
            | [0xf7, 0x43, _, _, _, _, _, rest @ ..]
            | [0x0f, 0x85, _, _, _, _, rest @ ..] => rest,
            _ => return is_sparkplugs || rest.starts_with(&FRAME),
        };
    }
}

fn aarch64(before: &[u8], next: &[u8]) -> Record {
    let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |&word| u32::from_le_bytes(word));
    // stp x29, x30, [sp, #-n]!
    let saves = |word: u32| word & 0xffc0_7fff == 0xa980_7bfd;
    match word(next) {
        next if saves(next) => Record::None,
        // paciasp; ret, retaa
        0xd503_233f | 0xd65f_03c0 | 0xd65f_0bff => Record::None,
        // mov x29, sp
        0x9100_03fd if saves(before.last_chunk().map_or(0, |&last| u32::from_le_bytes(last))) => {
            Record::StackPointer
        }
        _ => Record::FramePointer,
    }
}

#[cfg(test)]
mod tests {
    use super::{BEFORE_BYTES, CODE_BYTES, Record, frame_at};
    use crate::registers::Machine;

    #[test]
    fn the_record_is_where_the_code_has_put_it() {
        let code = |before: &[u8], next: &[u8]| {
            let mut code = [0x90; CODE_BYTES];
            code[BEFORE_BYTES - before.len()..BEFORE_BYTES].copy_from_slice(before);
            code[BEFORE_BYTES..BEFORE_BYTES + next.len()].copy_from_slice(next);
            code
        };
        for (before, next, expected) in [
            (&[0x90][..], &[0x55, 0x48, 0x89, 0xe5][..], Record::None),
            (&[0x55], &[0x48, 0x89, 0xe5], Record::StackPointer),
            (&[0x90], &[0x48, 0x89, 0xe5], Record::FramePointer),
            (&[0x55, 0x48, 0x89, 0xe5], &[0x6a, 0x04], Record::FramePointer),
            (&[0x48, 0x89, 0xe5, 0x5d], &[0xc3], Record::None),
            (&[], &[0xf3, 0x0f, 0x1e, 0xfa, 0x55], Record::None),
        ] {
            let code = code(before, next);
            assert_eq!(frame_at(Machine::X86_64, &code), expected, "{code:x?}");
        }
        let code32 = code(&[0x55], &[0x89, 0xe5]);
        assert_eq!(frame_at(Machine::X86, &code32), Record::StackPointer);
        for (before, next, expected) in [
            (0u32, 0xa9be_7bfdu32, Record::None),
            (0xa9be_7bfd, 0x9100_03fd, Record::StackPointer),
            (0x9100_03fd, 0x9400_0001, Record::FramePointer),
            (0, 0xd65f_03c0, Record::None),
        ] {
            let code = code(&before.to_le_bytes(), &next.to_le_bytes());
            assert_eq!(frame_at(Machine::Aarch64, &code), expected, "{code:x?}");
        }
    }

    /// As node 20 and 22 print them (`--print-opt-code`, `--print-code`).
    #[test]
    fn v8_has_no_frame_before_its_prologues() {
        let compiled = [
            0x48, 0x8b, 0x59, 0xf8, 0xf6, 0x43, 0x35, 0x01, 0x0f, 0x85, 0xb2, 0xb3, 0xe2, 0x1f,
            0x55, 0x48, 0x89, 0xe5,
        ];
        let sparkplug = [
            0x33, 0xdb, 0x49, 0xbc, 0x41, 0xac, 0xc8, 0x9d, 0xe4, 0x18, 0, 0, 0xe8, 0xef, 0x97,
            0xe4, 0x1f, 0x48, 0x8b, 0x5d, 0xd8,
        ];
        for (bytes, begins, body) in [(&compiled[..], [0, 4, 8], 18), (&sparkplug, [0, 2, 12], 17)]
        {
            let at = |begin: usize| {
                let mut code = [0x90; CODE_BYTES];
                for (at, byte) in code.iter_mut().enumerate() {
                    *byte = *bytes.get((at + begin).wrapping_sub(BEFORE_BYTES)).unwrap_or(byte);
                }
                frame_at(Machine::X86_64, &code)
            };
            assert_eq!(begins.map(at), [Record::None; 3], "{bytes:x?}");
            assert_eq!(at(body), Record::FramePointer, "{bytes:x?}");
        }
    }
}
