//! The first and last instructions of procedures that keep frame pointers, in which the frame
//! pointer still is, or again is, the caller's. By the frame pointer alone the caller would be
//! missing there.

use crate::registers::Machine;

/// Bytes of code that [`frame_at`] looks at: one instruction, and the one before.
pub const CODE_BYTES: usize = 9;
/// How many of them are before the next instruction.
pub const BEFORE_BYTES: usize = 4;

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
        _ if next.starts_with(&ENDBR64) => Record::None,
        _ => Record::FramePointer,
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
        0x9100_03fd if saves(word(before)) => Record::StackPointer,
        _ => Record::FramePointer,
    }
}

#[cfg(test)]
mod tests {
    use super::{Record, frame_at};
    use crate::registers::Machine;

    #[test]
    fn the_record_is_where_the_code_has_put_it() {
        for (before, next, expected) in [
            ([0x90, 0x90, 0x90, 0x90], [0x55, 0x48, 0x89, 0xe5, 0x90], Record::None),
            ([0x90, 0x90, 0x90, 0x55], [0x48, 0x89, 0xe5, 0x90, 0x90], Record::StackPointer),
            ([0x90, 0x90, 0x90, 0x90], [0x48, 0x89, 0xe5, 0x90, 0x90], Record::FramePointer),
            ([0x55, 0x48, 0x89, 0xe5], [0x6a, 0x04, 0x90, 0x90, 0x90], Record::FramePointer),
            ([0x48, 0x89, 0xe5, 0x5d], [0xc3, 0x90, 0x90, 0x90, 0x90], Record::None),
            ([0x90, 0x90, 0x90, 0x90], [0xf3, 0x0f, 0x1e, 0xfa, 0x55], Record::None),
        ] {
            let code = [&before[..], &next[..]].concat().try_into().unwrap();
            assert_eq!(frame_at(Machine::X86_64, &code), expected, "{code:x?}");
        }
        let code = [0x90, 0x90, 0x90, 0x55, 0x89, 0xe5, 0x90, 0x90, 0x90];
        assert_eq!(frame_at(Machine::X86, &code), Record::StackPointer);
        for (before, next, expected) in [
            (0u32, 0xa9be_7bfdu32, Record::None),
            (0xa9be_7bfd, 0x9100_03fd, Record::StackPointer),
            (0x9100_03fd, 0x9400_0001, Record::FramePointer),
            (0, 0xd65f_03c0, Record::None),
        ] {
            let code = [&before.to_le_bytes()[..], &next.to_le_bytes(), &[0]].concat();
            let code = code.try_into().unwrap();
            assert_eq!(frame_at(Machine::Aarch64, &code), expected, "{code:x?}");
        }
    }
}
