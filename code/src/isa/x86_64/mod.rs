//! x86-64 in 64-bit mode, decoded by iced-x86. What instructions do is from the Intel SDM volume 2 and the AMD64 APM volume 3.

mod arithmetic;
mod decode;
mod execute;
mod flags;
mod text;

use iced_x86::InstructionInfoFactory;

pub use decode::Instruction;
pub use flags::Flags;
pub(in crate::isa) use text::disassemble;

use super::InstructionSet;
use crate::interpret::{Bits, CodeView, Memory, Step};

/// General registers.
pub const REGISTERS: usize = 16;

/// x86-64 in 64-bit mode.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct X86_64;

/// Registers and flags of a thread, as far as they are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// In the order of instructions: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15.
    pub registers: [Bits; REGISTERS],
    /// The flags.
    pub flags: Flags,
}

impl State {
    /// All known: the general registers (rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15) and RFLAGS of a thread.
    #[must_use]
    pub fn sampled(registers: [u64; REGISTERS], rflags: u64) -> Self {
        Self { registers: registers.map(Bits::known), flags: Flags::sampled(rflags) }
    }

    /// Whether the processor may be in that state: nothing that is known differs.
    #[must_use]
    pub fn may_be(&self, registers: [u64; REGISTERS], rflags: u64) -> bool {
        self.registers.iter().zip(registers).all(|(known, value)| known.may_be(value)) && self.flags.may_be(rflags)
    }
}

/// What decoding needs and keeps.
#[derive(Debug)]
pub struct Decoder(InstructionInfoFactory);

impl Default for Decoder {
    fn default() -> Self {
        Self(InstructionInfoFactory::new())
    }
}

impl InstructionSet for X86_64 {
    type State = State;
    type Instruction = Instruction;
    type Decoder = Decoder;
    const LEN_MAX: usize = decode::LEN_MAX;

    fn decode(decoder: &mut Decoder, bytes: &[u8]) -> Option<Instruction> {
        Instruction::decode(bytes, &mut decoder.0)
    }

    fn len(instruction: &Instruction) -> usize {
        usize::from(instruction.len)
    }

    fn execute(
        instruction: &Instruction,
        at: u64,
        state: &mut State,
        memory: &mut Memory<'_>,
        view: &mut impl CodeView,
    ) -> Step {
        execute::Machine { instruction, at, state, memory, view }.execute()
    }
}
