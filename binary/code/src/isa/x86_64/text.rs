//! x86-64 instructions as text.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Formatter, GasFormatter, Instruction, IntelFormatter,
    Mnemonic,
};
use image::Vaddr;

use crate::isa::{Line, Syntax};

pub(in crate::isa) fn disassemble(
    bytes: &[u8],
    address: Vaddr,
    syntax: Option<Syntax>,
) -> Vec<Line> {
    let mut formatter = syntax.map(formatter);
    let mut decoder = Decoder::with_ip(64, bytes, address.0, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    // Most instructions have more than 3 bytes.
    let mut lines = Vec::with_capacity(bytes.len() / 3 + 1);
    while decoder.can_decode() {
        let begin = decoder.position();
        decoder.decode_out(&mut instruction);
        let address = Vaddr(instruction.ip());
        let line = if instruction.is_invalid() {
            // Go on with the next byte, as objdump does: data in code are mostly short.
            if decoder.set_position(begin + 1).is_err() {
                break;
            }
            decoder.set_ip(address.0.wrapping_add(1));
            Line { address, len: 1, text: "(bad)".to_owned(), target: None, bars: true }
        } else {
            let mut text = String::new();
            formatter.iter_mut().for_each(|formatter| formatter.format(&instruction, &mut text));
            let bars = instruction.flow_control() != FlowControl::Next
                || instruction.mnemonic() == Mnemonic::Nop;
            Line { address, len: instruction.len(), text, target: target(&instruction), bars }
        };
        lines.push(line);
    }
    lines
}

fn formatter(syntax: Syntax) -> Box<dyn Formatter> {
    let mut formatter: Box<dyn Formatter> = match syntax {
        Syntax::Att => Box::new(GasFormatter::new()),
        Syntax::Intel => Box::new(IntelFormatter::new()),
    };
    let options = formatter.options_mut();
    options.set_uppercase_hex(false);
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_branch_leading_zeros(false);
    options.set_space_after_operand_separator(syntax == Syntax::Intel);
    options.set_rip_relative_addresses(true);
    formatter
}

fn target(instruction: &Instruction) -> Option<Vaddr> {
    let direct = matches!(
        instruction.flow_control(),
        FlowControl::UnconditionalBranch
            | FlowControl::ConditionalBranch
            | FlowControl::Call
            | FlowControl::XbeginXabortXend
    );
    (direct && instruction.near_branch_target() != 0)
        .then(|| Vaddr(instruction.near_branch_target()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(bytes: &[u8], syntax: Syntax) -> Vec<(u64, usize, String)> {
        disassemble(bytes, Vaddr(0x1000), Some(syntax))
            .into_iter()
            .map(|line| (line.address.0, line.len, line.text))
            .collect()
    }

    #[test]
    fn both_syntaxes_are_those_of_objdump() {
        // push %rbp; mov 0x8(%rdi,%rcx,4),%eax; jne .-4; lea 0x10(%rip),%rdi; ret
        let bytes =
            [0x55, 0x8b, 0x44, 0x8f, 0x08, 0x75, 0xf9, 0x48, 0x8d, 0x3d, 0x10, 0, 0, 0, 0xc3];
        let line = |address: u64, len, text: &str| (address, len, text.to_owned());
        assert_eq!(
            texts(&bytes, Syntax::Att),
            [
                line(0x1000, 1, "push %rbp"),
                line(0x1001, 4, "mov 8(%rdi,%rcx,4),%eax"),
                line(0x1005, 2, "jne 0x1000"),
                line(0x1007, 7, "lea 0x10(%rip),%rdi"),
                line(0x100e, 1, "ret"),
            ]
        );
        assert_eq!(texts(&bytes, Syntax::Intel)[1].2, "mov eax, [rdi+rcx*4+8]");
        let lines = disassemble(&bytes, Vaddr(0x1000), Some(Syntax::Att));
        assert_eq!(
            lines.iter().map(|line| line.target).collect::<Vec<_>>(),
            [None, None, Some(Vaddr(0x1000)), None, None]
        );
        assert_eq!(
            lines.iter().map(|line| line.bars).collect::<Vec<_>>(),
            [false, false, true, false, true]
        );
    }

    #[test]
    fn padding_takes_no_samples() {
        // jmp; nop; xchg %ax,%ax; nopw 0(%rax,%rax); mov %eax,%eax
        let bytes = [0xeb, 0, 0x90, 0x66, 0x90, 0x66, 0x0f, 0x1f, 0x44, 0, 0, 0x89, 0xc0];
        let lines = disassemble(&bytes, Vaddr(0), Some(Syntax::Att));
        assert_eq!(
            lines.iter().map(|line| line.bars).collect::<Vec<_>>(),
            [true, true, true, true, false]
        );
        // The same without text.
        let wordless = disassemble(&bytes, Vaddr(0), None);
        let same =
            |(one, other): (&Line, &Line)| *one == Line { text: String::new(), ..other.clone() };
        assert!(
            wordless.len() == lines.len() && wordless.iter().zip(&lines).all(same),
            "{wordless:?}"
        );
    }

    #[test]
    fn bytes_that_are_no_code_are_lines_too() {
        assert_eq!(
            texts(&[0x06, 0x90, 0x0f], Syntax::Att)
                .iter()
                .map(|line| (line.0, line.1))
                .collect::<Vec<_>>(),
            [(0x1000, 1), (0x1001, 1), (0x1002, 1)]
        );
        // At the end of the address space nothing overflows.
        assert_eq!(disassemble(&[0x90; 4], Vaddr(u64::MAX - 1), Some(Syntax::Att)).len(), 4);
    }

    #[test]
    fn any_bytes_are_covered_without_gap() {
        for seed in 0..200_u64 {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let bytes: Vec<u8> = (0..300)
                .map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state as u8
                })
                .collect();
            let mut at = 0x1000;
            for (address, len, _) in texts(&bytes, Syntax::Intel) {
                assert_eq!(address, at);
                at += len as u64;
            }
            assert_eq!(at, 0x1000 + 300);
        }
    }
}
