//! What a thread is going to execute next, from its registers: an interpreter that knows part of
//! the state and claims nothing about the rest.
//!
//! At a sample the processor's registers and flags are known, and some bytes of the stack and of
//! other memory ([`Walker::read_ahead`] says which). From there [`Walker`] follows the code for at
//! most [`STEPS_MAX`] instructions, as long as known values decide where execution goes, and
//! reports which way each branch goes. It needs no counter of branches, so it works wherever
//! registers can be read.
//!
//! **Nothing is guessed**: what may have changed, or is not modelled, is unknown, and where
//! something unknown decides, the walk ends. Five assumptions are made, which only broken programs
//! violate:
//! - return addresses and registers put aside are not changed through pointers ([`Slot::Saved`]);
//! - the guard word of a stack frame is what it was ([the comparison](crate::isa) of it is true);
//! - no other thread, signal handler or debugger changes this thread's stack, or the code,
//!   meanwhile;
//! - on 64-bit Arm, signatures of pointers to code are right, and code is below 2^48;
//! - what the image says is constant is (see [`CodeView::constant`]).

mod ahead;
mod bits;
mod cache;
mod counters;
mod expression;
mod instructions;
mod memory;
mod rounds;
mod seen;
mod walk;

use image::{ImageOffset, Vaddr};

pub use ahead::{Ahead, AheadOperation, OPERATIONS_MAX, Slot as AheadSlot, Way};
pub use bits::{Bits, mask};
pub use counters::{CounterSample, Execution};
pub use expression::{Expressions, Operation, Value};
pub use instructions::{InstructionSet, MemoryAccess};
pub use memory::{LINE_BYTES, LINES_MAX, Line, Memory, Slot, WINDOW_BYTES, Window};
pub use rounds::{Comparison, Relation, Rounds};
pub use walk::{Edge, STEPS_MAX, Walk, Walker};

/// The known memory of a process: its code, and data that never change. The caller implements it,
/// because only the caller knows what is mapped where.
pub trait CodeView {
    /// The piece of code that has the byte at `address`. None where nothing executable of a known
    /// image is mapped, or where the bytes may differ from the image's.
    fn place(&mut self, address: Vaddr) -> Option<Place>;

    /// Copies the bytes of `image` from `offset`, as many as there are and fit into `into`, and
    /// returns their number; 0 if the image cannot be read.
    fn bytes(&mut self, image: u32, offset: ImageOffset, into: &mut [u8]) -> usize;

    /// The `len` bytes, 1 to 8, at `address`, lowest first, if they have had that value since
    /// before the thread's first instruction of its own program and nobody may write to them:
    /// read-only data, and words that the loader relocates and then protects.
    fn constant(&mut self, address: Vaddr, len: u8) -> Option<u64>;
}

/// A piece of code in memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// A number that the caller gives to an image, and to no other as long as the [`Walker`] lives.
    pub image: u32,
    /// Address of its first byte.
    pub begin: Vaddr,
    /// Address after its last byte.
    pub end: Vaddr,
    /// Offset of its first byte in the image.
    pub offset: ImageOffset,
}

impl Place {
    /// The image, and the offset in it of the byte at an address in the piece.
    fn number_of(&self, at: Vaddr) -> Option<(u32, ImageOffset)> {
        let into = at.0.checked_sub(self.begin.0)?;
        Some((self.image, ImageOffset(self.offset.0.checked_add(into)?)))
    }
}

/// The result of executing one instruction.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Execution goes on at the instruction after it.
    Next,
    /// Execution goes through a jump, call or return, or through a conditional one that was not
    /// taken.
    Branch {
        /// The kind of branch.
        kind: BranchKind,
        /// Address of the instruction that is executed next.
        to: Vaddr,
    },
    /// The walk ends here.
    Stop(Stop),
}

/// Why a walk ended.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stop {
    /// The walk has [`STEPS_MAX`] instructions.
    Steps,
    /// A conditional branch depends on something unknown.
    UnknownCondition,
    /// The target of an indirect jump or call, or of a return, is unknown.
    UnknownTarget,
    /// A system call, a trap, a transaction, or a change of the processor's mode.
    NotFollowed,
    /// No code is known at the address.
    NoCode,
    /// The bytes are no instruction.
    NoInstruction,
}

/// Kinds of branches.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BranchKind {
    /// Conditional, and taken.
    Taken,
    /// Conditional, and not taken.
    NotTaken,
    /// To a fixed target.
    Jump,
    /// Through a register or memory.
    IndirectJump,
    /// To a fixed target.
    Call,
    /// Through a register or memory.
    IndirectCall,
    /// To the instruction after the call.
    Return,
}

impl BranchKind {
    /// Whether the target depends on state, so that the code alone does not tell it.
    pub fn depends(self) -> bool {
        !matches!(self, Self::Jump | Self::Call)
    }
}

/// A mask with one bit for each of `len` bytes, at most 8.
const fn mask_of_bytes(len: u8) -> u8 {
    if len >= 8 { u8::MAX } else { (1 << len) - 1 }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{CodeView, Place};
    use image::{ImageOffset, Vaddr};

    /// Code at 0x1000.
    pub(crate) struct Code<'a>(pub(crate) &'a [u8]);

    impl CodeView for Code<'_> {
        fn place(&mut self, _: Vaddr) -> Option<Place> {
            let end = Vaddr(0x1000 + self.0.len() as u64);
            Some(Place { image: 0, begin: Vaddr(0x1000), end, offset: ImageOffset(0) })
        }
        fn bytes(&mut self, _: u32, offset: ImageOffset, into: &mut [u8]) -> usize {
            let rest = &self.0[offset.0 as usize..];
            let len = rest.len().min(into.len());
            into[..len].copy_from_slice(&rest[..len]);
            len
        }
        fn constant(&mut self, _: Vaddr, _: u8) -> Option<u64> {
            None
        }
    }
}
