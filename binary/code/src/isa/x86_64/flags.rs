//! Flags in RFLAGS.

pub use crate::isa::flags::Flags;

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
    /// All flags known, from RFLAGS.
    pub fn sampled(rflags: u64) -> Self {
        Self::known(rflags, &IN_RFLAGS)
    }

    /// Whether RFLAGS may have this value.
    pub fn may_be(self, rflags: u64) -> bool {
        self.may_be_those(Self::sampled(rflags))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::flags::{Condition, Test};

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
        let lowest = [0, 1, 2, 3, 4, 5].map(|bit| (1 << bit, bit));
        assert_eq!(Flags::sampled(all), Flags::known(63, &lowest));
        assert!(Flags::sampled(all).may_be(all) && !Flags::sampled(all).may_be(all & !1));
        assert_eq!(Flags::sampled(0x302), Flags::known(0, &[]));
    }
}
