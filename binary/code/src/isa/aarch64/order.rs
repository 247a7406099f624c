//! Branches of A64 (DDI 0487, C4.1.93: branches, exception generating and system instructions).

use super::LEN;
use super::fields::Word;
use crate::isa::flow::{Flow, Ordered, Stub};

/// The effect on the order of execution of the instruction that `bytes` begin with.
pub(in crate::isa) fn order(bytes: &[u8], address: u64) -> Option<Ordered> {
    let word = Word::of(bytes).filter(|_| address.is_multiple_of(u64::from(LEN)))?;
    let flow = match word.bits(25, 4) {
        // Reserved, except for `udf` and SME's matrix instructions.
        0b0000 if word.0 >> 16 == 0 => Flow::Trap,
        0b0000 if !word.bit(31) => return None,
        0b0001 | 0b0011 => return None,
        0b1010 | 0b1011 => branch(word, address),
        _ => Flow::Next,
    };
    Some(Ordered { len: LEN, flow, filler: is_filler(word) })
}

fn branch(word: Word, address: u64) -> Flow {
    let to = |words: i64| address.wrapping_add_signed(words << 2);
    let next = address.wrapping_add(u64::from(LEN));
    match word.0 >> 24 {
        0x14..=0x17 => Flow::Jump { target: to(word.signed(0, 26)) },
        // A call of the next instruction only reads the program counter.
        0x94..=0x97 if to(word.signed(0, 26)) == next => Flow::Next,
        0x94..=0x97 => Flow::Call { target: Some(to(word.signed(0, 26))), through: None },
        // `b.cond` and `bc.cond`: the last two conditions always hold.
        0x54 if word.bits(1, 3) == 7 => Flow::Jump { target: to(word.signed(5, 19)) },
        0x54 => Flow::Conditional { target: to(word.signed(5, 19)) },
        // `retaasppc`, `retabsppc`.
        0x55 if word.is(0xffc0_001f, 0x5500_001f) => Flow::Return,
        // `cbz`, `cbnz`; `tbz`, `tbnz`; `cb` with a condition (FEAT_CMPBR).
        0x34 | 0x35 | 0xb4 | 0xb5 => Flow::Conditional { target: to(word.signed(5, 19)) },
        0x36 | 0x37 | 0xb6 | 0xb7 => Flow::Conditional { target: to(word.signed(5, 14)) },
        0x74 | 0x75 | 0xf4 | 0xf5 => Flow::Conditional { target: to(word.signed(5, 9)) },
        0xd4 => match (word.bits(21, 3), word.bits(0, 5)) {
            // `brk`, `hlt`, `dcps`. Calls of a supervisor return.
            (1 | 2 | 5, _) => Flow::Trap,
            _ => Flow::Next,
        },
        0xd6 | 0xd7 => through_register(word),
        _ => Flow::Next,
    }
}

/// Branches through a register, with or without authentication of the pointer.
fn through_register(word: Word) -> Flow {
    match word.bits(21, 4) {
        0 | 8 => Flow::Indirect { through: None },
        1 | 9 => Flow::Call { target: None, through: None },
        // `ret`, `eret`, `drps`.
        2 | 4 | 5 => Flow::Return,
        _ => Flow::Trap,
    }
}

/// Whether compilers, assemblers and linkers fill gaps with the word: `nop`; zeros, which are
/// `udf #0`; and `brk #1` between sections, as LLVM's linker writes.
fn is_filler(word: Word) -> bool {
    matches!(word.0, 0xd503_201f | 0 | 0xd420_0020)
}

/// A stub that calls another image: `adrp` of a word's page, `ldr` of the word, mostly `add` of its
/// address, `br` (System V ABI for AArch64, "Procedure Linkage Table"; without such a table
/// compilers write the same code in line).
pub(in crate::isa) fn stub(bytes: &[u8], address: u64) -> Option<Stub> {
    let first = Word::of(bytes).filter(|first| first.is(0x9f00_0000, 0x9000_0000))?;
    let page = first.page_relative(address)?;
    let mut words = bytes.chunks_exact(usize::from(LEN)).skip(1).filter_map(Word::of);
    let load = words.next().filter(|load| {
        load.is(0xffc0_0000, 0xf940_0000) && load.register(5) == first.register(0)
    })?;
    let (mut jump, mut count) = (words.next()?, 3);
    let adds = jump.is(0xffc0_0000, 0x9100_0000) && jump.register(5) == first.register(0);
    if adds && jump.register(0) != load.register(0) {
        (jump, count) = (words.next()?, count + 1);
    }
    // `autia1716` or `autib1716`: the pointer is authenticated before the jump.
    if jump.is(0xffff_ffbf, 0xd503_219f) {
        (jump, count) = (words.next()?, count + 1);
    }
    let jumps = jump.is(0xfeff_f000, 0xd61f_0000) && jump.register(5) == load.register(0);
    let through = page.wrapping_add(u64::from(load.bits(10, 12)) << 3);
    jumps.then_some(Stub { len: count * usize::from(LEN), through })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(word: u32) -> Flow {
        order(&word.to_le_bytes(), 0x1000).unwrap().flow
    }

    #[test]
    fn branches_go_where_objdump_says() {
        let conditional = |target| Flow::Conditional { target };
        assert_eq!(flow(0x1400_0003), Flow::Jump { target: 0x100c });
        assert_eq!(flow(0x17ff_ffff), Flow::Jump { target: 0xffc });
        assert_eq!(flow(0x97ff_fc00), Flow::Call { target: Some(0), through: None });
        assert_eq!(flow(0x9400_0001), Flow::Next, "where am I");
        // b.ne .-8; bc.ne .-8; b.al .+8; cbz w0, .+8; cbnz x1, .+8; tbz w0, #3, .-4; tbnz x0, #35,
        // .+8
        assert_eq!(flow(0x54ff_ffc1), conditional(0xff8));
        assert_eq!(flow(0x54ff_ffd1), conditional(0xff8));
        assert_eq!(flow(0x5400_004e), Flow::Jump { target: 0x1008 });
        assert_eq!([0x3400_0040, 0xb500_0041].map(flow), [conditional(0x1008); 2]);
        assert_eq!([0x361f_ffe0, 0xb718_0040].map(flow), [conditional(0xffc), conditional(0x1008)]);
        // cbgt x0, x1, .+16; cbhi w1, #5, .-8; cbbeq w1, w2, .+8; retaasppc .-8
        assert_eq!(flow(0xf401_0080), conditional(0x1010));
        assert_eq!([0x7522_bfc1, 0x74c2_8041].map(flow), [conditional(0xff8), conditional(0x1008)]);
        assert_eq!(flow(0x5500_005f), Flow::Return);
        // br x16; braa x1, x2; braaz x3: blr x1; blraa x1, sp; blraaz x1: ret; ret x1; retaa; eret
        assert_eq!(
            [0xd61f_0200, 0xd71f_0822, 0xd61f_087f].map(flow),
            [Flow::Indirect { through: None }; 3]
        );
        assert_eq!(
            [0xd63f_0020, 0xd73f_083f, 0xd63f_083f].map(flow),
            [Flow::Call { target: None, through: None }; 3]
        );
        assert_eq!(
            [0xd65f_03c0, 0xd65f_0020, 0xd65f_0bff, 0xd69f_03e0].map(flow),
            [Flow::Return; 4]
        );
        // brk #0x3e8; hlt #0; udf #0; udf #7: svc #0; mrs; nop; paciasp; sve: ptrue p0.b; sme: zero
        // {za}
        assert_eq!([0xd420_7d00, 0xd440_0000, 0, 7].map(flow), [Flow::Trap; 4]);
        let next = [0xd400_0001, 0xd53b_d040, 0xd503_201f, 0xd503_233f, 0x2518_e3e0, 0xc008_00ff];
        assert_eq!(next.map(flow), [Flow::Next; 6]);
    }

    #[test]
    fn what_is_no_instruction() {
        assert_eq!(order(&[0; 3], 0), None);
        assert_eq!(order(&[0; 4], 2), None, "not aligned");
        assert_eq!(order(&0x0001_0000_u32.to_le_bytes(), 0), None);
        assert_eq!(order(&0x0200_0000_u32.to_le_bytes(), 0), None);
        let filler = |word: u32| order(&word.to_le_bytes(), 0).unwrap().filler;
        assert_eq!(
            [0, 0xd503_201f, 0xd420_0020, 0xd503_203f, 1, 0xaa00_03e0].map(filler),
            [true, true, true, false, false, false]
        );
    }

    #[test]
    fn stubs_are_jumps_through_a_word() {
        let of = |words: &[u32]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            stub(&bytes, 0x2_7050).map(|stub| (stub.len, stub.through))
        };
        // adrp x16, 0x1b4000; ldr x17, [x16, #8]; add x16, x16, #8; br x17
        assert_eq!(
            of(&[0xf000_0c70, 0xf940_0611, 0x9100_2210, 0xd61f_0220]),
            Some((16, 0x1b_6008))
        );
        // The same in line, as `-fno-plt` has it: adrp x1; ldr x1, [x1, #8]; br x1
        assert_eq!(of(&[0xf000_0c61, 0xf940_0421, 0xd61f_0020]), Some((12, 0x1b_6008)));
        // Another register; a call; cut off.
        assert_eq!(of(&[0xf000_0c70, 0xf940_0611, 0x9100_2210, 0xd61f_0200]), None);
        assert_eq!(of(&[0xf000_0c70, 0xf940_0611, 0x9100_2210, 0xd63f_0220]), None);
        assert_eq!(of(&[0xf000_0c70, 0xf940_0611, 0x9100_2210]), None);
        assert_eq!(of(&[]), None);
    }
}
