//! A 64-bit value of which some bits may be unknown.
//!
//! The arithmetic is that of "tristate numbers" (Vishwanathan et al., "Sound, Precise, and Fast
//! Abstract Interpretation with Tristate Numbers", CGO 2022; Linux, kernel/bpf/tnum.c): whatever
//! the unknown bits are, the true result has the bits that are said to be known.

use std::ops::{BitAnd, BitOr, BitXor, Not};

/// A 64-bit value each of whose bits is known or unknown.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Bits {
    /// The known bits; unknown ones are 0 here.
    value: u64,
    /// A bit is 1 where the value's bit is unknown.
    unknown: u64,
}

/// A mask of the lowest `bytes` bytes, 1 to 8.
pub const fn mask(bytes: u8) -> u64 {
    if bytes >= 8 { u64::MAX } else { (1 << (bytes * 8)) - 1 }
}

impl Bits {
    /// Nothing is known.
    pub const UNKNOWN: Self = Self { value: 0, unknown: u64::MAX };
    /// All bits are 0.
    pub const ZERO: Self = Self::known(0);

    /// All bits are known.
    pub const fn known(value: u64) -> Self {
        Self { value, unknown: 0 }
    }

    /// The bits of `value` where `unknown` has 0.
    pub const fn partly(value: u64, unknown: u64) -> Self {
        Self { value: value & !unknown, unknown }
    }

    /// A flag as the lowest bit; the other bits are 0.
    pub const fn of_flag(flag: Option<bool>) -> Self {
        match flag {
            Some(flag) => Self::known(flag as u64),
            None => Self::partly(0, 1),
        }
    }

    /// The value, if all bits are known.
    pub const fn get(self) -> Option<u64> {
        if self.unknown == 0 { Some(self.value) } else { None }
    }

    /// The smallest value that the bits allow: unknown ones are 0.
    pub const fn least(self) -> u64 {
        self.value
    }

    /// The largest value that the bits allow: unknown ones are 1.
    pub const fn most(self) -> u64 {
        self.value | self.unknown
    }

    /// A mask of the unknown bits.
    pub const fn unknown(self) -> u64 {
        self.unknown
    }

    /// Whether the bits allow `value`.
    pub const fn may_be(self, value: u64) -> bool {
        (self.value ^ value) & !self.unknown == 0
    }

    /// Bit `number`, 0 to 63.
    pub const fn bit(self, number: u32) -> Option<bool> {
        if (self.unknown >> (number & 63)) & 1 == 1 {
            None
        } else {
            Some((self.value >> (number & 63)) & 1 == 1)
        }
    }

    /// The lowest `bytes` bytes; the others become 0.
    #[must_use]
    pub const fn low(self, bytes: u8) -> Self {
        Self { value: self.value & mask(bytes), unknown: self.unknown & mask(bytes) }
    }

    /// The lowest `bytes` bytes; the others become copies of their highest bit.
    #[must_use]
    pub const fn sign_extended(self, bytes: u8) -> Self {
        if bytes >= 8 {
            return self;
        }
        let shift = 64 - bytes as u32 * 8;
        // The arithmetic shift copies "unknown" as well as the value.
        Self {
            value: (((self.value << shift) as i64) >> shift) as u64,
            unknown: (((self.unknown << shift) as i64) >> shift) as u64,
        }
    }

    /// `self` with its bits under `mask` replaced by those of `other`.
    #[must_use]
    pub const fn replaced(self, mask: u64, other: Self) -> Self {
        Self {
            value: (self.value & !mask) | (other.value & mask),
            unknown: (self.unknown & !mask) | (other.unknown & mask),
        }
    }

    /// The bits on which both values agree; all others are unknown.
    #[must_use]
    pub const fn or_else(self, other: Self) -> Self {
        Self::partly(self.value, self.unknown | other.unknown | (self.value ^ other.value))
    }

    /// The sum, modulo 2^64.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        let unknowns = self.unknown.wrapping_add(other.unknown);
        let values = self.value.wrapping_add(other.value);
        let carried = unknowns.wrapping_add(values) ^ values;
        Self::partly(values, carried | self.unknown | other.unknown)
    }

    /// The difference, modulo 2^64.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        let values = self.value.wrapping_sub(other.value);
        let borrowed = values.wrapping_add(self.unknown) ^ values.wrapping_sub(other.unknown);
        Self::partly(values, borrowed | self.unknown | other.unknown)
    }

    /// Shifted left by 0 to 63 bits.
    #[must_use]
    pub const fn left(self, count: u32) -> Self {
        Self { value: self.value << (count & 63), unknown: self.unknown << (count & 63) }
    }

    /// Shifted right by 0 to 63 bits, with zeros from the left.
    #[must_use]
    pub const fn right(self, count: u32) -> Self {
        Self { value: self.value >> (count & 63), unknown: self.unknown >> (count & 63) }
    }

    /// Shifted right by 0 to 63 bits, with copies of the highest bit from the left.
    #[must_use]
    pub const fn right_signed(self, count: u32) -> Self {
        Self {
            value: ((self.value as i64) >> (count & 63)) as u64,
            unknown: ((self.unknown as i64) >> (count & 63)) as u64,
        }
    }

    /// Whether the lowest `bytes` bytes are 0; None when the unknown bits decide.
    pub const fn is_zero(self, bytes: u8) -> Option<bool> {
        let low = self.low(bytes);
        if low.value != 0 {
            Some(false)
        } else if low.unknown == 0 {
            Some(true)
        } else {
            None
        }
    }

    /// The smallest and the largest signed number of `bytes` bytes that the bits allow.
    pub const fn signed_range(self, bytes: u8) -> (i64, i64) {
        let low = self.sign_extended(bytes);
        let sign = low.unknown & (1 << 63);
        // With an unknown sign the smallest is negative and has zeros elsewhere; extended, all
        // copies of the sign are one bit.
        let copies = if sign == 0 { 0 } else { !(mask(bytes) >> 1) };
        let least = low.value | copies;
        let most = low.value | (low.unknown & !copies);
        (least as i64, most as i64)
    }
}

impl BitAnd for Bits {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        let may = (self.value | self.unknown) & (other.value | other.unknown);
        let must = self.value & other.value;
        Self { value: must, unknown: may & !must }
    }
}

impl BitOr for Bits {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        let must = self.value | other.value;
        Self { value: must, unknown: (self.unknown | other.unknown) & !must }
    }
}

impl BitXor for Bits {
    type Output = Self;
    fn bitxor(self, other: Self) -> Self {
        Self::partly(self.value ^ other.value, self.unknown | other.unknown)
    }
}

impl Not for Bits {
    type Output = Self;
    fn not(self) -> Self {
        Self::partly(!self.value, self.unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every value of `width` bits and every choice of unknown ones.
    fn all(width: u32) -> impl Iterator<Item = Bits> {
        (0..1_u64 << width).flat_map(move |unknown| {
            (0..1_u64 << width)
                .filter(move |value| value & unknown == 0)
                .map(move |value| Bits::partly(value, unknown))
        })
    }

    fn values(bits: Bits, width: u32) -> impl Iterator<Item = u64> {
        (0..1_u64 << width).filter(move |&value| bits.may_be(value))
    }

    #[test]
    fn whatever_the_unknown_bits_are_the_result_has_the_known_ones() {
        for a in all(4) {
            for b in all(4) {
                for x in values(a, 4) {
                    for y in values(b, 4) {
                        assert!(a.plus(b).may_be(x.wrapping_add(y)));
                        assert!(a.minus(b).may_be(x.wrapping_sub(y)));
                        assert!(
                            (a & b).may_be(x & y) && (a | b).may_be(x | y) && (a ^ b).may_be(x ^ y)
                        );
                        assert!(
                            (!a).may_be(!x) && a.or_else(b).may_be(x) && a.or_else(b).may_be(y)
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn bounds_hold_and_are_reached() {
        for a in all(8) {
            let signed: Vec<i64> = values(a, 8).map(|value| i64::from(value as u8 as i8)).collect();
            let range = (*signed.iter().min().unwrap(), *signed.iter().max().unwrap());
            assert_eq!(a.signed_range(1), range, "{a:?}");
            assert_eq!(a.least(), values(a, 8).min().unwrap());
            assert_eq!(a.most(), values(a, 8).max().unwrap());
            assert!(values(a, 8).all(|value| a.sign_extended(1).may_be(value as u8 as i8 as u64)));
            assert_eq!(
                a.is_zero(1),
                match (a.may_be(0), a.get()) {
                    (false, _) => Some(false),
                    (true, Some(_)) => Some(true),
                    (true, None) => None,
                }
            );
        }
        assert_eq!(Bits::UNKNOWN.signed_range(8), (i64::MIN, i64::MAX));
        assert_eq!(Bits::UNKNOWN.signed_range(4), (i64::from(i32::MIN), i64::from(i32::MAX)));
    }

    #[test]
    fn parts_are_replaced_and_cut() {
        let value = Bits::known(0x1122_3344_5566_7788);
        assert_eq!(value.low(4), Bits::known(0x5566_7788));
        assert_eq!(value.low(1).sign_extended(1), Bits::known(0xffff_ffff_ffff_ff88));
        let changed = value.replaced(0xff00, Bits::UNKNOWN);
        assert_eq!(
            (changed.least(), changed.unknown(), changed.get()),
            (0x1122_3344_5566_0088, 0xff00, None)
        );
        assert_eq!(changed.right(16).get(), Some(0x1122_3344_5566));
        assert_eq!(changed.bit(8), None);
        assert_eq!(changed.bit(7), Some(true));
        assert_eq!(Bits::of_flag(None).get(), None);
        assert_eq!(Bits::of_flag(Some(true)).get(), Some(1));
    }
}
