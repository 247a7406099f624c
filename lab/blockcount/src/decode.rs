//! Instructions of the program, and how a block ends.

use crate::memory;
use alloc::vec::Vec;
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, Register};

/// Longest instruction, bytes.
pub const INSTRUCTION_MAX: u64 = 15;

/// One decoded instruction.
pub struct Decoded {
    pub instruction: Instruction,
    /// Offset of a displacement relative to the instruction pointer within the instruction's
    /// bytes; zero without.
    pub displacement: usize,
}

impl Decoded {
    pub fn address(&self) -> u64 {
        self.instruction.ip()
    }

    pub fn len(&self) -> usize {
        self.instruction.len()
    }

    pub fn bytes(&self) -> &'static [u8] {
        memory::bytes(self.address(), self.len())
    }
}

/// The end of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The block was cut; the next follows.
    Cut,
    Jump(u64),
    Conditional(u64),
    Call(u64),
    IndirectJump,
    IndirectCall,
    /// With the bytes of arguments that it takes off the stack.
    Return(u16),
    SystemCall,
    /// A transaction is not begun: the program goes on at the address for aborted ones.
    Transaction(u64),
    /// An instruction that raises a signal.
    Trap,
    /// Not an instruction, as far as the decoder knows.
    Invalid,
    /// Names of the instructions that the engine does not execute.
    Refused(&'static str),
}

/// Decodes from `at`, where `limit` ends what can be read.
pub fn decoder(at: u64, len: u64, limit: u64) -> Decoder<'static> {
    let len = len.min(limit.saturating_sub(at));
    Decoder::with_ip(64, memory::bytes(at, len as usize), at, DecoderOptions::NONE)
}

/// The next instruction of a decoder.
pub fn next(decoder: &mut Decoder<'_>) -> Decoded {
    let instruction = decoder.decode();
    let displacement = if instruction.is_ip_rel_memory_operand() {
        decoder.get_constant_offsets(&instruction).displacement_offset()
    } else {
        0
    };
    Decoded { instruction, displacement }
}

/// Decodes a block: up to its last instruction, or `max` of them.
pub fn block(at: u64, limit: u64, max: usize, into: &mut Vec<Decoded>) -> End {
    into.clear();
    let mut decoder = decoder(at, INSTRUCTION_MAX * max as u64, limit);
    loop {
        let decoded = next(&mut decoder);
        let end = end_of(&decoded.instruction);
        into.push(decoded);
        match end {
            None if into.len() >= max => return End::Cut,
            None => {}
            Some(end) => return end,
        }
    }
}

/// The end of a block by this instruction; None if the block continues.
pub fn end_of(instruction: &Instruction) -> Option<End> {
    if instruction.code() == Code::INVALID {
        return Some(End::Invalid);
    }
    if let Some(name) = refused(instruction) {
        return Some(End::Refused(name));
    }
    match instruction.flow_control() {
        FlowControl::Next if instruction.code() == Code::Syscall => Some(End::SystemCall),
        FlowControl::Next => None,
        FlowControl::UnconditionalBranch => Some(End::Jump(instruction.near_branch_target())),
        FlowControl::ConditionalBranch => Some(End::Conditional(instruction.near_branch_target())),
        FlowControl::IndirectBranch => Some(End::IndirectJump),
        FlowControl::IndirectCall => Some(End::IndirectCall),
        FlowControl::Return => Some(End::Return(if instruction.op_count() == 1 {
            instruction.immediate16()
        } else {
            0
        })),
        FlowControl::Call if instruction.code() == Code::Syscall => Some(End::SystemCall),
        FlowControl::Call => Some(End::Call(instruction.near_branch_target())),
        FlowControl::XbeginXabortXend if instruction.mnemonic() == Mnemonic::Xbegin => {
            Some(End::Transaction(instruction.near_branch_target()))
        }
        FlowControl::XbeginXabortXend => None,
        FlowControl::Interrupt | FlowControl::Exception => Some(End::Trap),
    }
}

/// Bytes of arguments that a return may take off the stack: the return address must stay within
/// the 128 bytes that a signal leaves alone.
const RETURN_MAX: u16 = 96;

fn refused(instruction: &Instruction) -> Option<&'static str> {
    if instruction.segment_prefix() == Register::GS {
        return Some("memory by %gs");
    }
    match instruction.flow_control() {
        FlowControl::Next => match instruction.mnemonic() {
            Mnemonic::Rdgsbase | Mnemonic::Wrgsbase | Mnemonic::Lgs => Some("its own %gs"),
            Mnemonic::Mov | Mnemonic::Pop if instruction.op0_register() == Register::GS => {
                Some("its own %gs")
            }
            _ => None,
        },
        FlowControl::Interrupt if instruction.code() == Code::Int_imm8 => {
            Some("int with a number (system calls of 32 bits)")
        }
        FlowControl::Return
            if instruction.code() != Code::Retnq && instruction.code() != Code::Retnq_imm16 =>
        {
            Some("a far return, or of 16 bits")
        }
        FlowControl::Return
            if instruction.op_count() == 1 && instruction.immediate16() > RETURN_MAX =>
        {
            Some("a return that takes more than 96 bytes off the stack")
        }
        FlowControl::IndirectBranch if instruction.code() != Code::Jmp_rm64 => {
            Some("a far jump, or of 16 bits")
        }
        FlowControl::IndirectCall if instruction.code() != Code::Call_rm64 => {
            Some("a far call, or of 16 bits")
        }
        FlowControl::Call
            if instruction.code() != Code::Syscall && instruction.code() != Code::Call_rel32_64 =>
        {
            Some("sysenter, or a system call of another kind")
        }
        FlowControl::UnconditionalBranch if !instruction.is_jmp_short_or_near() => {
            Some("a far jump")
        }
        FlowControl::ConditionalBranch
            if instruction.is_loop() || instruction.is_loopcc() || instruction.is_jcx_short() =>
        {
            // With an address-size prefix they count in ecx.
            matches!(
                instruction.code(),
                Code::Loop_rel8_64_ECX
                    | Code::Loope_rel8_64_ECX
                    | Code::Loopne_rel8_64_ECX
                    | Code::Jecxz_rel8_64
            )
            .then_some("loop and jecxz by ecx")
        }
        _ => None,
    }
}
