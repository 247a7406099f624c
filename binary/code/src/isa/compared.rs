//! The comparison that set the flags, from which the number of rounds of a loop follows.

use super::flags::Test;
use crate::interpret::{Bits, Comparison, Relation};

/// Operations that set flags.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Difference,
    /// A difference that leaves the carry as it was.
    DifferenceWithoutCarry,
    Logic,
    Other,
}

/// Operands of the instruction that set the flags, if all are known.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Compared {
    kind: Kind,
    left: u64,
    right: u64,
    result: u64,
    bytes: u8,
}

impl Compared {
    pub(super) fn of(
        kind: Kind,
        (left, right): (Bits, Bits),
        result: Bits,
        bytes: u8,
    ) -> Option<Self> {
        let known = |value: Bits| value.low(bytes).get();
        Some(Self { kind, left: known(left)?, right: known(right)?, result: known(result)?, bytes })
    }

    /// The relation that a conditional branch tests.
    pub(super) fn asked(self, test: Test) -> Option<Comparison> {
        let subtracted = matches!(self.kind, Kind::Difference | Kind::DifferenceWithoutCarry);
        let has_borrow = self.kind == Kind::Difference;
        let logic = self.kind == Kind::Logic;
        // The logical combination of two different numbers does not change by the same amount in
        // each round.
        if logic && self.left != self.right {
            return None;
        }
        let relation = match test {
            Test::Equal => Relation::Equal,
            Test::Below if has_borrow => Relation::Below,
            Test::BelowOrEqual if has_borrow => Relation::BelowOrEqual,
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
