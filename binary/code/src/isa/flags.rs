//! Flags, each 0, 1 or unknown, and the conditions on them: what processors have in common.

/// Flags of a result. Those of x86-64: CF, PF, ZF, SF, OF and DF; compilers' code never tests AF.
/// Those of 64-bit Arm: N is the sign, Z is zero, V is the overflow; the carry is what C is not, so
/// that it is the borrow of a difference as on x86-64, and conditions are the same on both.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Flags {
    value: u8,
    unknown: u8,
}

impl Flags {
    pub(super) const CARRY: u8 = 1;
    pub(super) const PARITY: u8 = 2;
    pub(super) const ZERO: u8 = 4;
    pub(super) const SIGN: u8 = 8;
    pub(super) const OVERFLOW: u8 = 16;
    pub(super) const DIRECTION: u8 = 32;
    pub(super) const RESULT: u8 =
        Self::CARRY | Self::PARITY | Self::ZERO | Self::SIGN | Self::OVERFLOW;

    /// All flags known, from a register; `places` has each flag and its bit there.
    pub(super) fn known(register: u64, places: &[(u8, u32)]) -> Self {
        let is_set = |&&(_, bit): &&(u8, u32)| register >> bit & 1 == 1;
        let value = places.iter().filter(is_set).fold(0, |all, (flag, _)| all | flag);
        Self { value, unknown: 0 }
    }

    /// Whether the flags may be these, which are known.
    pub(super) fn may_be_those(self, known: Self) -> bool {
        (self.value ^ known.value) & !self.unknown == 0
    }

    pub(super) fn get(self, flag: u8) -> Option<bool> {
        (self.unknown & flag == 0).then_some(self.value & flag != 0)
    }

    pub(super) fn set(&mut self, flag: u8, value: Option<bool>) {
        self.value &= !flag;
        self.unknown &= !flag;
        match value {
            Some(true) => self.value |= flag,
            Some(false) => {}
            None => self.unknown |= flag,
        }
    }

    /// Makes several flags unknown.
    pub(super) fn forget(&mut self, flags: u8) {
        self.value &= !flags;
        self.unknown |= flags;
    }

    /// The flags on which both agree; all others are unknown.
    pub(super) fn or_else(self, other: Self) -> Self {
        let unknown = self.unknown | other.unknown | (self.value ^ other.value);
        Self { value: self.value & !unknown, unknown }
    }

    pub(super) fn holds(self, condition: Condition) -> Option<bool> {
        let flag = |flag| self.get(flag);
        let less = || Some(flag(Self::SIGN)? != flag(Self::OVERFLOW)?);
        let value = match condition.test {
            Test::Overflow => flag(Self::OVERFLOW),
            Test::Below => flag(Self::CARRY),
            Test::Equal => flag(Self::ZERO),
            Test::BelowOrEqual => either(flag(Self::CARRY), flag(Self::ZERO)),
            Test::Sign => flag(Self::SIGN),
            Test::Parity => flag(Self::PARITY),
            Test::Less => less(),
            Test::LessOrEqual => either(flag(Self::ZERO), less()),
            Test::Always => Some(true),
        };
        value.map(|value| value != condition.negated)
    }
}

/// The logical or: one true operand suffices.
fn either(a: Option<bool>, b: Option<bool>) -> Option<bool> {
    match (a, b) {
        (Some(true), _) | (_, Some(true)) => Some(true),
        (Some(false), Some(false)) => Some(false),
        _ => None,
    }
}

/// A condition on the flags: one of these tests, or its negation.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Condition {
    pub(super) test: Test,
    pub(super) negated: bool,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Test {
    Overflow,
    Below,
    Equal,
    BelowOrEqual,
    Sign,
    Parity,
    Less,
    LessOrEqual,
    Always,
}
