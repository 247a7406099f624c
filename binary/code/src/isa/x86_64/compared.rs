//! The comparison that set the flags, from which the number of rounds of a loop follows.

use super::decode::{Instruction, Op};
use super::flags::{Condition, Test};
use crate::interpret::{Bits, Comparison, Relation, mask};

/// Operands of the instruction that set the flags, if all are known.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Compared {
    op: Op,
    left: u64,
    right: u64,
    result: u64,
    bytes: u8,
}

impl Compared {
    pub(super) fn of(op: Op, (left, right): (Bits, Bits), result: Bits, bytes: u8) -> Option<Self> {
        let known = |value: Bits| value.low(bytes).get();
        // The second operand of `inc` and `dec` is 1.
        let right = if matches!(op, Op::Inc | Op::Dec) { 1 } else { known(right)? };
        Some(Self {
            op,
            left: known(left)?,
            right: right & mask(bytes),
            result: known(result)?,
            bytes,
        })
    }

    /// The relation that a conditional branch tests.
    pub(super) fn asked(self, branch: &Instruction) -> Option<Comparison> {
        let Op::Branch(Condition { test, .. }) = branch.op else { return None };
        let subtracted = matches!(self.op, Op::Sub | Op::Cmp | Op::Dec);
        let logic = matches!(self.op, Op::And | Op::Andn | Op::Test | Op::Or | Op::Xor);
        // The logical combination of two different numbers does not change by the same amount in
        // each round.
        if logic && self.left != self.right {
            return None;
        }
        let relation = match test {
            Test::Equal => Relation::Equal,
            // `dec` does not change the carry.
            Test::Below if subtracted && self.op != Op::Dec => Relation::Below,
            Test::BelowOrEqual if subtracted && self.op != Op::Dec => Relation::BelowOrEqual,
            Test::Less if subtracted || logic => Relation::Less,
            Test::LessOrEqual if subtracted || logic => Relation::LessOrEqual,
            Test::Sign => Relation::Less,
            _ => return None,
        };
        // The sign flag is that of the result, even after an overflow.
        let (left, right) = if subtracted && test != Test::Sign {
            (self.left, self.right)
        } else {
            (self.result, 0)
        };
        Some(Comparison { left, right, bytes: self.bytes, relation })
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
