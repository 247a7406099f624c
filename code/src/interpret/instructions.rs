//! What the interpreter needs of an instruction set.

use std::fmt;

use super::{CodeView, Comparison, Memory, Step};

/// What the interpreter needs of an instruction set.
pub trait InstructionSet {
    /// Registers and flags, as far as they are known.
    type State: fmt::Debug;
    /// An instruction, decoded, wherever it is: it is kept and used again at other addresses.
    type Instruction: Copy + fmt::Debug;
    /// What decoding needs and keeps.
    type Decoder: Default + fmt::Debug;
    /// Bytes of the longest instruction, at most 16.
    const LEN_MAX: usize;

    /// The instruction that `bytes` begin with, if they do.
    fn decode(decoder: &mut Self::Decoder, bytes: &[u8]) -> Option<Self::Instruction>;

    /// Bytes it is long, 1 to [`Self::LEN_MAX`].
    fn len(instruction: &Self::Instruction) -> usize;

    /// Executes the instruction at the address `at`: afterwards state and memory are those after
    /// it, and what is not sure is unknown.
    fn execute(
        instruction: &Self::Instruction,
        at: u64,
        state: &mut Self::State,
        memory: &mut Memory<'_>,
        view: &mut impl CodeView,
    ) -> Step;

    /// What the conditional branch that was just executed asked for, where that is a comparison of
    /// two known numbers.
    fn decided(instruction: &Self::Instruction, state: &Self::State) -> Option<Comparison>;
}
