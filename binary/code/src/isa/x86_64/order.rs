//! Branches of x86-64.

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};

use crate::isa::flow::{Flow, Ordered};

/// The effect on the order of execution of the instruction that `bytes` begin with.
pub(in crate::isa) fn order(bytes: &[u8], address: u64) -> Option<Ordered> {
    let mut decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
    let mut decoded = Instruction::default();
    decoder.decode_out(&mut decoded);
    if decoded.is_invalid() {
        return None;
    }
    let target = decoded.near_branch_target();
    let near = decoded.op_count() > 0 && decoded.op_kind(0) == OpKind::NearBranch64;
    let flow = match decoded.flow_control() {
        FlowControl::Next | FlowControl::Interrupt if decoded.code() == Code::Int3 => Flow::Trap,
        // System calls return, and so do interrupts that the kernel or a debugger handles.
        FlowControl::Next | FlowControl::Interrupt => Flow::Next,
        FlowControl::ConditionalBranch if near => Flow::Conditional { target },
        // A transaction that fails goes on at the target.
        FlowControl::XbeginXabortXend if decoded.mnemonic() == Mnemonic::Xbegin => {
            Flow::Conditional { target }
        }
        FlowControl::XbeginXabortXend => Flow::Next,
        FlowControl::UnconditionalBranch if near => Flow::Jump { target },
        FlowControl::UnconditionalBranch
        | FlowControl::IndirectBranch
        | FlowControl::ConditionalBranch => Flow::Indirect { through: fixed_word(&decoded) },
        // A call of the next instruction only reads the program counter.
        FlowControl::Call if near && target == decoded.next_ip() => Flow::Next,
        FlowControl::Call | FlowControl::IndirectCall => match decoded.mnemonic() {
            Mnemonic::Call => {
                Flow::Call { target: near.then_some(target), through: fixed_word(&decoded) }
            }
            // `syscall`, `sysenter`, calls of a hypervisor.
            _ => Flow::Next,
        },
        FlowControl::Return => Flow::Return,
        FlowControl::Exception => Flow::Trap,
    };
    let flow = if decoded.mnemonic() == Mnemonic::Hlt { Flow::Trap } else { flow };
    Some(Ordered { len: u8::try_from(decoded.len()).ok()?, flow, filler: is_filler(&decoded) })
}

/// The address of the memory operand, if the instruction itself has it.
fn fixed_word(decoded: &Instruction) -> Option<u64> {
    let is_memory = decoded.op_count() > 0 && decoded.op_kind(0) == OpKind::Memory;
    let segment = matches!(decoded.memory_segment(), Register::FS | Register::GS);
    let fixed = is_memory
        && !segment
        && matches!(decoded.memory_base(), Register::RIP | Register::None)
        && decoded.memory_index() == Register::None;
    fixed.then(|| decoded.memory_displacement64())
}

/// Whether compilers, assemblers and linkers fill gaps with the instruction (AMD64 software
/// optimization guides, "NOP"; gas; older `lea` and `xchg` forms).
fn is_filler(decoded: &Instruction) -> bool {
    let same_registers = || {
        decoded.op_kind(1) == OpKind::Register && decoded.op0_register() == decoded.op1_register()
    };
    match decoded.mnemonic() {
        Mnemonic::Nop | Mnemonic::Int3 => true,
        Mnemonic::Xchg => decoded.op_kind(0) == OpKind::Register && same_registers(),
        Mnemonic::Mov => {
            decoded.op_kind(0) == OpKind::Register
                && same_registers()
                && decoded.op0_register().is_gpr64()
        }
        Mnemonic::Lea => {
            decoded.op0_register() == decoded.memory_base()
                && decoded.memory_index() == Register::None
                && decoded.memory_displacement64() == 0
        }
        // Two bytes of zero, which linkers leave between sections.
        Mnemonic::Add => {
            decoded.len() == 2
                && decoded.code() == Code::Add_rm8_r8
                && decoded.op1_register() == Register::AL
        }
        _ => false,
    }
}
