//! Stubs of procedure linkage tables: a procedure's calls of other files jump through them. GNU ld
//! describes stubs by an unwind table; lld and mold do not.
//!
//! System V ABI, AMD64 supplement, section 5.2 and "Intel CET" (stubs with `endbr64`); "System V
//! ABI for the Arm 64-bit Architecture", section 9 (PLT sequences).

use crate::registers::Machine;
use crate::rule::{Cfa, Row, Rule, Saved, StackPointer};

/// Bytes of code before the next instruction that [`row`] looks at: four instructions of arm64.
pub const BEFORE_BYTES: usize = 16;
/// Bytes of code that [`row`] looks at: those before, and the start of the next instruction.
pub const CODE_BYTES: usize = BEFORE_BYTES + 4;

/// The rule for the instruction at `address` in a section of stubs. `code` begins [`BEFORE_BYTES`]
/// before that instruction. None if no stub has such an instruction.
pub fn row(machine: Machine, address: u64, code: &[u8; CODE_BYTES]) -> Option<Row> {
    let (before, next) = code.split_at(BEFORE_BYTES);
    let (distance, return_address) = match machine {
        // The call has put the return address on the stack, below what the stub has pushed.
        Machine::X86 | Machine::X86_64 => {
            let word = i64::from(machine.word_bytes());
            ((pushed_x86(before, next)? + 1) * word, Some(Saved::At(-word)))
        }
        // Stubs leave the return address in its register.
        Machine::Aarch64 => (pushed_aarch64(before, next)?, None),
    };
    let rule = Rule {
        cfa: Cfa::Register(machine.stack_pointer(), distance),
        return_address,
        saved: Box::default(),
        is_signal: false,
        stack_pointer: StackPointer::Followed,
    };
    Some(Row { entry: address, begin: address, end: address.checked_add(1)?, rule })
}

/// Words that the stub has pushed: the index of the procedure, and then, in the stub that all
/// share, what names the file. In 32-bit code that may be loaded anywhere, ebx is the base.
fn pushed_x86(before: &[u8], next: &[u8]) -> Option<i64> {
    match next {
        // endbr64, endbr32; push $index; mov $index, %r11d; push %r11 (mold)
        [0xf3, 0x0f, 0x1e, 0xfa | 0xfb, ..] | [0x68, ..] | [0x41, 0xbb | 0x53, ..] => Some(0),
        // push GOT+8(%rip) or GOT+4(%ebx), after the index
        [0xff, 0x35 | 0xb3, ..] => Some(1),
        // jmp *(%rip) or *(%ebx), after that push or first; bnd
        [0xff, 0x25 | 0xa3, ..] | [0xf2, 0xff, 0x25, ..] => match before {
            [.., 0xff, 0x35 | 0xb3, _, _, _, _] => Some(2),
            _ => Some(0),
        },
        // jmp to the shared stub, after push $index; bnd
        [0xe9, ..] | [0xf2, 0xe9, ..] => match before {
            [.., 0x68, _, _, _, _] => Some(1),
            _ => None,
        },
        _ => None,
    }
}

fn pushed_aarch64(before: &[u8], next: &[u8]) -> Option<i64> {
    const PUSH: u32 = 0xa9bf_7bf0; // stp x16, x30, [sp, #-16]!
    const LEAVE: u32 = 0xd61f_0220; // br x17
    let word = |bytes: &[u8]| bytes.first_chunk().map(|&word| u32::from_le_bytes(word));
    let is_of_stub = |word: u32| {
        let is_adrp = word & 0x9f00_001f == 0x9000_0010; // adrp x16
        let is_load = word & 0xffc0_03ff == 0xf940_0211; // ldr x17, [x16, #n]
        let is_add = word & 0xffc0_03ff == 0x9100_0210; // add x16, x16, #n
        is_adrp || is_load || is_add || matches!(word, PUSH | LEAVE | 0xd503_245f) // bti c
    };
    let instructions = before.chunks_exact(4).rev().filter_map(word);
    let pushes = instructions.take_while(|&word| word != LEAVE).any(|word| word == PUSH);
    is_of_stub(word(next)?).then_some(if pushes { 16 } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::{BEFORE_BYTES, CODE_BYTES, row};
    use crate::registers::Machine;
    use crate::rule::{Cfa, Saved};

    /// The CFA's distance from the stack pointer at the instruction `at` bytes into `code`.
    fn distance(machine: Machine, code: &[u8], at: usize) -> Option<i64> {
        let mut bytes = vec![0; BEFORE_BYTES];
        bytes.extend(code);
        bytes.extend([0; CODE_BYTES]);
        let code = bytes[at..at + CODE_BYTES].try_into().unwrap();
        let row = row(machine, 0x1000, &code)?;
        let word = i64::from(machine.word_bytes());
        let on_stack = row.rule.return_address == Some(Saved::At(-word));
        assert_eq!(on_stack, machine.pushes_return_address());
        match row.rule.cfa {
            Cfa::Register(number, distance) if number == machine.stack_pointer() => Some(distance),
            _ => None,
        }
    }

    #[test]
    fn the_return_address_is_below_what_stubs_push() {
        let shared = [0xff, 0x35, 1, 2, 3, 4, 0xff, 0x25, 1, 2, 3, 4, 0x90, 0x90, 0x90, 0x90];
        let lazy = [0xff, 0x25, 1, 2, 3, 4, 0x68, 7, 0, 0, 0, 0xe9, 1, 2, 3, 4];
        let ibt = [0xf3, 0x0f, 0x1e, 0xfa, 0x68, 7, 0, 0, 0, 0xf2, 0xe9, 1, 2, 3, 4, 0x90];
        let mold = [0xf3, 0x0f, 0x1e, 0xfa, 0x41, 0xbb, 7, 0, 0, 0, 0xff, 0x25, 1, 2, 3, 4];
        let mold_shared = [0xf3, 0x0f, 0x1e, 0xfa, 0x41, 0x53, 0xff, 0x35, 1, 2, 3, 4, 0xff, 0x25];
        for (code, expected) in [
            (&shared[..], &[(0, 16), (6, 24)][..]),
            (&lazy, &[(0, 8), (6, 8), (11, 16)]),
            (&ibt, &[(0, 8), (4, 8), (9, 16)]),
            (&mold, &[(0, 8), (4, 8), (10, 8)]),
            (&mold_shared, &[(0, 8), (4, 8), (6, 16), (12, 24)]),
        ] {
            for &(at, bytes) in expected {
                assert_eq!(distance(Machine::X86_64, code, at), Some(bytes), "{code:x?} {at}");
            }
            assert_eq!(distance(Machine::X86_64, code, 1), None, "{code:x?}");
        }
        let relative = [0xff, 0xa3, 12, 0, 0, 0, 0x68, 7, 0, 0, 0, 0xe9, 1, 2, 3, 4];
        let relative_shared = [0xff, 0xb3, 4, 0, 0, 0, 0xff, 0xa3, 8, 0, 0, 0, 0x90, 0x90];
        for (code, expected) in [
            (&relative[..], &[(0, 4), (6, 4), (11, 8)][..]),
            (&relative_shared, &[(0, 8), (6, 12)]),
        ] {
            for &(at, bytes) in expected {
                assert_eq!(distance(Machine::X86, code, at), Some(bytes), "{code:x?} {at}");
            }
        }
    }

    #[test]
    fn arm64s_stubs_keep_the_return_address_in_its_register() {
        let words: [u32; 10] = [
            0xa9bf_7bf0,
            0xb000_0090,
            0xf947_fe11,
            0x913f_e210,
            0xd61f_0220, // stp and the rest
            0xd503_245f,
            0xb000_0090,
            0xf940_0211,
            0x9100_0210,
            0xd61f_0220, // bti c and the rest
        ];
        let code = words.map(u32::to_le_bytes).concat();
        let found: Vec<_> =
            (0..10).map(|number| distance(Machine::Aarch64, &code, number * 4)).collect();
        let expected = [0, 16, 16, 16, 16, 0, 0, 0, 0, 0].map(Some);
        assert_eq!(found, expected);
        assert_eq!(distance(Machine::Aarch64, &[0x1f, 0x20, 3, 0xd5], 0), None);
    }
}
