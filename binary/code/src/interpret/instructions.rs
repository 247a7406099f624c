//! The interface between the interpreter and an instruction set.

use std::fmt;

use super::{Ahead, CodeView, Comparison, Memory, Step, Way};

/// A memory operand that is read or written.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct MemoryAccess {
    /// Address of the first byte.
    pub address: u64,
    /// Number of bytes, at least 1.
    pub bytes: u16,
    /// Whether it is read.
    pub reads: bool,
    /// Whether it is written.
    pub writes: bool,
}

/// An instruction set, as far as the interpreter needs it.
pub trait InstructionSet {
    /// Registers and flags, as far as they are known.
    type State: Clone + fmt::Debug;
    /// A decoded instruction, without its address: it is kept and used again at other addresses.
    type Instruction: Copy + fmt::Debug;
    /// Working memory of the decoder.
    type Decoder: Default + fmt::Debug;
    /// Bytes of the longest instruction, at most 16.
    const LEN_MAX: usize;
    /// General registers, at most 32, the stack pointer among them.
    const REGISTERS: usize;
    /// The number of the stack pointer.
    const STACK_POINTER: u8;

    /// The state at a sample: the general registers, in the order of their numbers, and the
    /// register that has the flags. Registers that are missing are unknown.
    fn sampled(registers: &[u64], flags: u64) -> Self::State;

    /// Decodes the instruction that `bytes` begin with; None when they begin with none.
    fn decode(decoder: &mut Self::Decoder, bytes: &[u8]) -> Option<Self::Instruction>;

    /// Length in bytes, 1 to [`Self::LEN_MAX`].
    fn len(instruction: &Self::Instruction) -> usize;

    /// Executes the instruction at the address `at`. Afterwards state and memory are those after
    /// the instruction, and everything that is not certain is unknown.
    fn execute(
        instruction: &Self::Instruction,
        at: u64,
        state: &mut Self::State,
        memory: &mut Memory<'_>,
        view: &mut impl CodeView,
    ) -> Step;

    /// The memory operand that the instruction at `at` reads or writes in a state; None where it
    /// has none, or its address is not known. What pushes, calls, string instructions and those of
    /// vectors of a size that is not known use is not told.
    fn access(
        instruction: &Self::Instruction,
        at: u64,
        state: &Self::State,
    ) -> Option<MemoryAccess>;

    /// The comparison that decided the conditional branch which was just executed. None when an
    /// operand is unknown or the branch is no comparison.
    fn decided(instruction: &Self::Instruction, state: &Self::State) -> Option<Comparison>;

    /// Executes the instruction at the address `at` on expressions.
    fn look_ahead(
        instruction: &Self::Instruction,
        at: u64,
        ahead: &mut Ahead,
        view: &mut impl CodeView,
    ) -> Way;
}
