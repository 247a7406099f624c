//! A64 instructions as text, as the manual and `objdump` write them.

use std::fmt::Write as _;

use image::Vaddr;
use yaxpeax_arch::{Decoder, U8Reader};
use yaxpeax_arm::armv8::a64::{InstDecoder, Opcode, Operand};

use super::fields::{Word, ZERO};
use super::{LEN, order};
use crate::isa::Line;
use crate::isa::flow::Flow;

pub(in crate::isa) fn disassemble(bytes: &[u8], address: Vaddr, worded: bool) -> Vec<Line> {
    let words = bytes.chunks(usize::from(LEN));
    let mut at = address.0;
    let line = |bytes: &[u8]| {
        let address = Vaddr(at);
        at = at.wrapping_add(bytes.len() as u64);
        let Some(word) = Word::of(bytes) else {
            return Line {
                address,
                len: bytes.len(),
                text: "(bad)".to_owned(),
                target: None,
                bars: true,
            };
        };
        let flow = order(bytes, address.0).map_or(Flow::Trap, |ordered| ordered.flow);
        let target = match flow {
            Flow::Conditional { target } | Flow::Jump { target } => Some(Vaddr(target)),
            Flow::Call { target, .. } => target.map(Vaddr),
            _ => None,
        };
        // The supervisor's time is not the instruction's, and a no-op takes none.
        let bars = flow != Flow::Next || word.0 >> 24 == 0xd4 || is_no_op(word);
        let text = if worded { text(word, address.0) } else { String::new() };
        Line { address, len: bytes.len(), text, target, bars }
    };
    words.map(line).collect()
}

/// Whether the word is `nop`, or `bti`, which does nothing unless an indirect jump comes to it.
fn is_no_op(word: Word) -> bool {
    word.0 == 0xd503_201f || word.is(0xffff_ff3f, 0xd503_241f)
}

/// The text of the instruction at an address. An instruction that the decoder does not know is
/// written as a number, as `objdump` does: SVE and SME.
fn text(word: Word, at: u64) -> String {
    special(word).or_else(|| decoded(word, at)).unwrap_or_else(|| format!(".inst {:#010x}", word.0))
}

fn decoded(word: Word, at: u64) -> Option<String> {
    let instruction =
        InstDecoder::default().decode(&mut U8Reader::new(&word.0.to_le_bytes())).ok()?;
    if instruction.opcode == Opcode::Invalid {
        return None;
    }
    let mut text = instruction.to_string();
    // The decoder writes addresses as distances, `$+0x10`, at the end or before a comma.
    let distance = instruction.operands.iter().find_map(|operand| match operand {
        Operand::PCOffset(distance) => Some(*distance),
        _ => None,
    });
    if let (Some(distance), Some(begin)) = (distance, text.find('$')) {
        let from = if instruction.opcode == Opcode::ADRP { at & !0xfff } else { at };
        let end = text.get(begin..)?.find(',').map_or(text.len(), |comma| begin + comma);
        text.replace_range(begin..end, &format!("{:#x}", from.wrapping_add_signed(distance)));
    }
    // The decoder writes a shift by 0 where the index is not shifted.
    let indexed = word.is(0x3b20_0c00, 0x3820_0800) && !word.bit(12);
    if let Some(shift) = text.strip_suffix(" #0]").filter(|_| indexed) {
        text = format!("{shift}]");
    }
    // The broadcast of a lane to a whole vector is no `mov`.
    if let Some(operands) = text.strip_prefix("mov ").filter(|_| word.is(0xbfe0_fc00, 0x0e00_0400))
    {
        text = format!("dup {operands}");
    }
    Some(text)
}

/// Texts that differ from the decoder's.
fn special(word: Word) -> Option<String> {
    Some(match word.0 {
        0xd503_241f => "bti".to_owned(),
        0xd503_245f => "bti c".to_owned(),
        0xd503_249f => "bti j".to_owned(),
        0xd503_24df => "bti jc".to_owned(),
        udf if udf >> 16 == 0 => format!("udf #{udf}"),
        _ => return extended_sum(word),
    })
}

/// `add` and `sub` of an extended register (DDI 0487, C6.2.4): the decoder writes `lsl` for some
/// extensions.
fn extended_sum(word: Word) -> Option<String> {
    if !word.is(0x1fe0_0000, 0x0b20_0000) || word.bits(10, 3) > 4 {
        return None;
    }
    let (to, from, by) = (word.register(0), word.register(5), word.register(16));
    let (option, amount, wide) = (word.bits(13, 3), word.bits(10, 3), word.bit(31));
    let name = |register: u8, wide: bool, of_31: &str| {
        let letter = if wide { "x" } else { "w" };
        match register {
            ZERO if of_31 == "sp" => if wide { "sp" } else { "wsp" }.to_owned(),
            ZERO => format!("{letter}zr"),
            number => format!("{letter}{number}"),
        }
    };
    let (subtracts, sets_flags) = (word.bit(30), word.bit(29));
    let compares = sets_flags && to == ZERO;
    let mut text = match (subtracts, sets_flags) {
        (false, _) if compares => "cmn",
        (true, _) if compares => "cmp",
        (false, false) => "add",
        (false, true) => "adds",
        (true, false) => "sub",
        (true, true) => "subs",
    }
    .to_owned();
    if !compares {
        let _ = write!(text, " {},", name(to, wide, if sets_flags { "zr" } else { "sp" }));
    }
    let of_whole_register = wide && option & 3 == 3;
    let _ = write!(text, " {}, {}", name(from, wide, "sp"), name(by, of_whole_register, "zr"));
    // With the stack pointer, what extends a whole register is written as the shift that it is.
    let with_stack = from == ZERO || !sets_flags && to == ZERO;
    let extension = match option {
        _ if with_stack && option == if wide { 3 } else { 2 } => {
            if amount == 0 {
                return Some(text);
            } else {
                "lsl"
            }
        }
        0 => "uxtb",
        1 => "uxth",
        2 => "uxtw",
        3 => "uxtx",
        4 => "sxtb",
        5 => "sxth",
        6 => "sxtw",
        _ => "sxtx",
    };
    let _ = write!(text, ", {extension}");
    if amount > 0 {
        let _ = write!(text, " #{amount}");
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_those_of_objdump() {
        let of = |word: u32| text(Word(word), 0x2_7050);
        let all = [
            (0xa9bf_7bfd, "stp x29, x30, [sp, #-0x10]!"),
            (0x9100_03fd, "mov x29, sp"),
            (0x5400_0048, "b.hi 0x27058"),
            (0x3400_0040, "cbz w0, 0x27058"),
            (0x361f_ffe0, "tbz w0, #0x3, 0x2704c"),
            (0x97ff_ffff, "bl 0x2704c"),
            (0xf000_0c70, "adrp x16, 0x1b6000"),
            (0x1000_0041, "adr x1, 0x27058"),
            (0x5800_0080, "ldr x0, 0x27060"),
            (0x3860_4820, "ldrb w0, [x1, w0, uxtw]"),
            (0x3862_c820, "ldrb w0, [x1, w2, sxtw]"),
            (0xf862_7820, "ldr x0, [x1, x2, lsl #3]"),
            (0x8b20_8800, "add x0, x0, w0, sxtb #2"),
            (0x8b3b_4ebb, "add x27, x21, w27, uxtw #3"),
            (0x8b22_63ff, "add sp, sp, x2"),
            (0xcb30_63ff, "sub sp, sp, x16"),
            (0xeb22_42bf, "cmp x21, w2, uxtw"),
            (0x4e08_0400, "dup v0.2d, v0.d[0]"),
            (0xd503_245f, "bti c"),
            (0xd503_233f, "paciasp"),
            (0xd65f_0bff, "retaa"),
            (0xd400_0001, "svc #0x0"),
            (0x0000_0000, "udf #0"),
            (0xe400_e000, ".inst 0xe400e000"),
        ];
        for (word, wanted) in all {
            assert_eq!(of(word), wanted, "{word:08x}");
        }
    }

    #[test]
    fn lines_have_targets_and_bars() {
        // cbz w0, .+8; nop; add x0, x0, #1; bl .-12; svc #0; two bytes
        let words = [0x3400_0040_u32, 0xd503_201f, 0x9100_0400, 0x97ff_fffd, 0xd400_0001];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend([1, 2]);
        let lines = disassemble(&bytes, Vaddr(0x1000), true);
        assert_eq!(lines.iter().map(|line| line.len).collect::<Vec<_>>(), [4, 4, 4, 4, 4, 2]);
        assert_eq!(
            lines.iter().map(|line| line.bars).collect::<Vec<_>>(),
            [true, true, false, true, true, true]
        );
        let targets: Vec<_> = lines.iter().map(|line| line.target).collect();
        assert_eq!(targets, [Some(Vaddr(0x1008)), None, None, Some(Vaddr(0x1000)), None, None]);
        // At the end of the address space nothing overflows.
        assert_eq!(disassemble(&[0; 12], Vaddr(u64::MAX - 7), true).len(), 3);
    }
}
