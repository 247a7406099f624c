//! Whether an instruction calls, told from the bytes before the address that it would return to.

use crate::registers::Machine;

/// Largest number of bytes of a call that are looked at: an x86-64 call through a register with
/// index and 32-bit displacement (opcode, ModRM, SIB, displacement); prefixes do not matter.
pub const CALL_BYTES_MAX: usize = 7;

/// The instruction before a return address.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// A call of the procedure at this address.
    Direct(u64),
    /// A call through a register or through memory.
    Indirect,
    /// No call.
    None,
}

/// The call in the bytes before `address`, which `before` ends with.
pub fn call_before(machine: Machine, before: &[u8], address: u64) -> Call {
    match machine {
        Machine::X86 => match x86(before, address) {
            Call::Direct(target) => Call::Direct(target & u64::from(u32::MAX)),
            call => call,
        },
        Machine::X86_64 => x86(before, address),
        Machine::Aarch64 => aarch64(before, address),
    }
}

/// Intel SDM, volume 2, CALL: `E8` with a 32-bit distance, or `FF /2`.
fn x86(before: &[u8], address: u64) -> Call {
    if let Some([0xe8, distance @ ..]) = before.last_chunk::<5>() {
        let distance = i64::from(i32::from_le_bytes(*distance));
        return Call::Direct(address.wrapping_add_signed(distance));
    }
    let is_call = (2..=CALL_BYTES_MAX).any(|len| {
        let Some(start) = before.len().checked_sub(len) else { return false };
        match before.get(start..) {
            Some([0xff, modrm, rest @ ..]) => {
                modrm >> 3 & 7 == 2 && operand_bytes(*modrm, rest.first().copied()) == len - 2
            }
            _ => false,
        }
    });
    if is_call { Call::Indirect } else { Call::None }
}

/// Number of bytes of an operand after its ModRM byte (Intel SDM, volume 2, tables 2-2 and 2-3).
fn operand_bytes(modrm: u8, sib: Option<u8>) -> usize {
    let (mode, register) = (modrm >> 6, modrm & 7);
    let has_sib = mode != 3 && register == 4;
    let displacement = match mode {
        0 if register == 5 || (has_sib && sib.is_some_and(|sib| sib & 7 == 5)) => 4,
        1 => 1,
        2 => 4,
        _ => 0,
    };
    usize::from(has_sib) + displacement
}

/// Arm ARM, section C6.2: BL, BLR, and BLRAA, BLRAAZ, BLRAB, BLRABZ.
fn aarch64(before: &[u8], address: u64) -> Call {
    let Some(&word) = before.last_chunk::<4>() else { return Call::None };
    let word = u32::from_le_bytes(word);
    if word >> 26 == 0b10_0101 {
        // 26 bits of signed distance in instructions.
        let distance = i64::from((word << 6).cast_signed() >> 6) * 4;
        return Call::Direct(address.wrapping_sub(4).wrapping_add_signed(distance));
    }
    let plain = word & 0xffff_fc1f == 0xd63f_0000;
    let with_key = word & 0xfeff_f800 == 0xd63f_0800;
    if plain || with_key { Call::Indirect } else { Call::None }
}

#[cfg(test)]
mod tests {
    use super::{Call, call_before};
    use crate::registers::Machine;

    #[test]
    fn calls_of_x86_64_are_found_in_all_their_encodings() {
        for (bytes, is_call) in [
            (&[0xff, 0xd0][..], true),                     // call *%rax
            (&[0x41, 0xff, 0xd4], true),                   // call *%r12
            (&[0xff, 0x10], true),                         // call *(%rax)
            (&[0xff, 0x50, 0x18], true),                   // call *0x18(%rax)
            (&[0xff, 0x90, 0, 1, 0, 0], true),             // call *0x100(%rax)
            (&[0xff, 0x15, 0, 1, 0, 0], true),             // call *0x100(%rip)
            (&[0xff, 0x14, 0xc8], true),                   // call *(%rax,%rcx,8)
            (&[0xff, 0x14, 0xc5, 0, 0, 0, 0], true),       // call *0(,%rax,8)
            (&[0x41, 0xff, 0x94, 0xc4, 0, 1, 0, 0], true), // call *256(%r12,%rax,8)
            (&[0xff, 0x54, 0x24, 0x08], true),             // call *8(%rsp)
            (&[0x3e, 0xff, 0xd0], true),                   // notrack call *%rax
            (&[0xff, 0xe0], false),                        // jmp *%rax
            (&[0xff, 0x25, 0, 1, 0, 0], false),            // jmp *0x100(%rip)
            (&[0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90], false),
            (&[], false),
        ] {
            let expected = if is_call { Call::Indirect } else { Call::None };
            assert_eq!(call_before(Machine::X86_64, bytes, 0x1000), expected, "{bytes:x?}");
        }
        let direct = [0x90, 0xe8, 0xfb, 0xff, 0xff, 0xff];
        assert_eq!(call_before(Machine::X86_64, &direct, 0x1000), Call::Direct(0xffb));
    }

    #[test]
    fn calls_of_arm64_are_found() {
        for (word, expected) in [
            (0x9400_0001u32, Call::Direct(0x1000)),
            (0x97ff_ffff, Call::Direct(0xff8)),
            (0xd63f_0020, Call::Indirect), // blr x1
            (0xd63f_0bff, Call::Indirect), // blraaz... form with key
            (0xd73f_0a11, Call::Indirect), // blraa x16, x17
            (0xd61f_0020, Call::None),     // br x1
            (0x1400_0001, Call::None),     // b
            (0xd65f_03c0, Call::None),     // ret
        ] {
            let bytes = word.to_le_bytes();
            assert_eq!(call_before(Machine::Aarch64, &bytes, 0x1000), expected, "{word:x}");
        }
    }
}
