//! Which instructions set flags by a comparison.

use super::decode::{Instruction, Op};
use crate::isa::compared::Kind;

/// The kind of comparison that an operation is.
pub(super) fn kind(op: Op) -> Kind {
    match op {
        Op::Sub | Op::Cmp => Kind::Difference,
        Op::Dec => Kind::DifferenceWithoutCarry,
        Op::And | Op::Andn | Op::Test | Op::Or | Op::Xor => Kind::Logic,
        _ => Kind::Other,
    }
}

/// Whether the instruction leaves the arithmetic flags unchanged. A wrong no only loses a count of
/// rounds.
pub(super) fn keeps_flags(instruction: &Instruction) -> bool {
    match instruction.op {
        Op::Nop | Op::Jump | Op::JumpTo | Op::Call | Op::CallTo | Op::Return => true,
        Op::Branch(_) | Op::BranchIfCounted | Op::Loop => true,
        Op::Mov
        | Op::MovSigned
        | Op::Lea
        | Op::Set(_)
        | Op::CMov(_)
        | Op::Push
        | Op::Pop
        | Op::Leave => true,
        Op::Not
        | Op::ShiftWithoutFlags(_)
        | Op::ByteSwap
        | Op::ExtendA(_)
        | Op::SignOfA(_)
        | Op::Xchg => true,
        Op::Other => {
            let effects = &instruction.effects;
            effects.flags_unknown | effects.flags_clear | effects.flags_set == 0
        }
        _ => false,
    }
}
