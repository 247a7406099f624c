//! The flags that branches test, each 0, 1 or unknown.

/// CF, PF, ZF, SF, OF and DF. Compilers' code never tests AF.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Flags {
    value: u8,
    unknown: u8,
}

/// Each flag and its bit in RFLAGS (Intel SDM volume 1, 3.4.3).
const IN_RFLAGS: [(u8, u32); 6] = [
    (Flags::CARRY, 0),
    (Flags::PARITY, 2),
    (Flags::ZERO, 6),
    (Flags::SIGN, 7),
    (Flags::DIRECTION, 10),
    (Flags::OVERFLOW, 11),
];

impl Flags {
    pub(super) const CARRY: u8 = 1;
    pub(super) const PARITY: u8 = 2;
    pub(super) const ZERO: u8 = 4;
    pub(super) const SIGN: u8 = 8;
    pub(super) const OVERFLOW: u8 = 16;
    pub(super) const DIRECTION: u8 = 32;
    pub(super) const RESULT: u8 =
        Self::CARRY | Self::PARITY | Self::ZERO | Self::SIGN | Self::OVERFLOW;

    /// All flags known, from RFLAGS.
    pub fn sampled(rflags: u64) -> Self {
        let value = IN_RFLAGS
            .iter()
            .filter(|(_, bit)| rflags >> bit & 1 == 1)
            .fold(0, |all, (flag, _)| all | flag);
        Self { value, unknown: 0 }
    }

    /// Whether RFLAGS may have this value.
    pub fn may_be(self, rflags: u64) -> bool {
        (self.value ^ Self::sampled(rflags).value) & !self.unknown == 0
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

/// A condition on the flags: one of eight tests, or its negation.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_known_as_soon_as_its_flags_decide() {
        let mut flags = Flags::sampled(1 << 6);
        let holds = |flags: Flags, test, negated| flags.holds(Condition { test, negated });
        flags.forget(Flags::CARRY | Flags::SIGN);
        assert_eq!(holds(flags, Test::BelowOrEqual, false), Some(true));
        assert_eq!(holds(flags, Test::LessOrEqual, true), Some(false));
        assert_eq!(holds(flags, Test::Less, false), None);
        flags.set(Flags::ZERO, Some(false));
        assert_eq!(holds(flags, Test::BelowOrEqual, false), None);
        flags.set(Flags::CARRY, Some(false));
        assert_eq!(holds(flags, Test::BelowOrEqual, true), Some(true));
        flags.set(Flags::SIGN, Some(true));
        assert_eq!(holds(flags, Test::Less, false), Some(true));
        flags.set(Flags::ZERO, None);
        assert_eq!(
            (flags.get(Flags::ZERO), holds(flags, Test::LessOrEqual, false)),
            (None, Some(true))
        );
    }

    #[test]
    fn flags_are_where_the_processor_has_them() {
        // CF PF ZF SF DF OF, and others around them.
        let all = 0xcd5 | 0x2;
        assert_eq!(Flags::sampled(all).value, 63);
        assert!(Flags::sampled(all).may_be(all) && !Flags::sampled(all).may_be(all & !1));
        assert_eq!(Flags::sampled(0x302).value, 0);
    }
}
