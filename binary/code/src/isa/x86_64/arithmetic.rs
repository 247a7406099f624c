//! Flags of shifts.

use super::Flags;
use crate::interpret::Bits;
use crate::isa::arithmetic::{Shift, shifted};

impl Flags {
    /// `value` of `bytes` bytes shifted by `count`, which the processor takes modulo 32, for 8
    /// bytes modulo 64.
    pub(super) fn shift(&mut self, shift: Shift, value: Bits, count: Bits, bytes: u8) -> Bits {
        let value = value.low(bytes);
        let Some(count) = (count & Bits::known(if bytes == 8 { 63 } else { 31 })).get() else {
            // The count may be 0, which leaves the flags unchanged.
            self.forget(Self::RESULT);
            return Bits::UNKNOWN.low(bytes);
        };
        let count = count as u32;
        if count == 0 {
            return value;
        }
        let result = shifted(shift, value, count, bytes);
        let size = u32::from(bytes) * 8;
        let top = |value: Bits| value.bit(size - 1);
        let differ = |a: Option<bool>, b: Option<bool>| Some(a? != b?);
        let (carry, overflow) = match shift {
            Shift::Left => {
                let carry = (count < size).then(|| value.bit(size - count)).flatten();
                (carry, differ(carry, top(result)))
            }
            Shift::Right => ((count < size).then(|| value.bit(count - 1)).flatten(), top(value)),
            Shift::RightSigned => {
                (value.sign_extended(bytes).bit((count - 1).min(63)), Some(false))
            }
            Shift::RotateLeft => (result.bit(0), differ(result.bit(0), top(result))),
            Shift::RotateRight => (top(result), differ(top(result), result.bit(size - 2))),
        };
        if !matches!(shift, Shift::RotateLeft | Shift::RotateRight) {
            self.of_result(result, bytes);
        }
        self.set(Self::CARRY, carry);
        self.set(Self::OVERFLOW, if count == 1 { overflow } else { None });
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::flags::{Condition, Test};

    /// All values of 8 bits that `bits` may be.
    fn values(bits: Bits) -> impl Iterator<Item = u8> {
        (0..=255).filter(move |&value| bits.may_be(u64::from(value)))
    }

    /// RFLAGS with these of a result of one byte.
    fn rflags(result: u8, carry: bool, overflow: bool) -> u64 {
        u64::from(carry)
            | u64::from(result.count_ones().is_multiple_of(2)) << 2
            | u64::from(result == 0) << 6
            | u64::from(result >> 7) << 7
            | u64::from(overflow) << 11
    }

    #[test]
    fn known_flags_are_right_whatever_the_unknown_bits_are() {
        let interesting = [0, 1, 3, 0x80, 0x81, 0xff, 0x7f, 0x10, 0x78];
        let mut decided = 0;
        for &unknown in &[0_u64, 1, 0x0f, 0x80, 0xff, 0x41] {
            for &a in &interesting {
                for &b in &interesting {
                    for (carry, carries) in
                        [(Some(false), 0..=0), (Some(true), 1..=1), (None, 0..=1)]
                    {
                        let (x, y) = (Bits::partly(a, unknown), Bits::partly(b, unknown >> 1));
                        let (mut plus, mut minus) = (Flags::sampled(0), Flags::sampled(0));
                        let sum = plus.add(x, y, carry, 1);
                        let difference = minus.subtract(x, y, carry, 1);
                        decided += u32::from(minus.get(Flags::CARRY).is_some());
                        for (p, q, c) in values(x)
                            .flat_map(|p| values(y).map(move |q| (p, q)))
                            .flat_map(|(p, q)| carries.clone().map(move |c| (p, q, c)))
                        {
                            let (signed_p, signed_q, signed_c) =
                                (i16::from(p as i8), i16::from(q as i8), c as i16);
                            let r = p.wrapping_add(q).wrapping_add(c as u8);
                            let overflow = !(-128..128).contains(&(signed_p + signed_q + signed_c));
                            assert!(sum.may_be(r.into()));
                            assert!(plus.may_be(rflags(
                                r,
                                u16::from(p) + u16::from(q) + c > 255,
                                overflow
                            )));
                            let r = p.wrapping_sub(q).wrapping_sub(c as u8);
                            let overflow = !(-128..128).contains(&(signed_p - signed_q - signed_c));
                            assert!(difference.may_be(r.into()));
                            assert!(minus.may_be(rflags(
                                r,
                                u16::from(p) < u16::from(q) + c,
                                overflow
                            )));
                        }
                    }
                }
            }
        }
        assert!(decided > 700, "{decided}: so sound that nothing is known");
    }

    #[test]
    fn a_byte_is_less_than_256_whatever_it_is() {
        // movzx eax, byte [rdi]; cmp eax, 256; jl
        let mut flags = Flags::sampled(0);
        flags.subtract(Bits::UNKNOWN.low(1), Bits::known(256), Some(false), 4);
        let holds = |test| flags.holds(Condition { test, negated: false });
        assert_eq!(
            [Test::Less, Test::Below, Test::Equal, Test::LessOrEqual].map(holds),
            [Some(true), Some(true), Some(false), Some(true)]
        );
    }

    #[test]
    fn shifts_are_those_of_the_processor() {
        let mut flags = Flags::sampled(0);
        let mut shift = |shift, value, count, bytes| {
            let result = flags.shift(shift, Bits::known(value), Bits::known(count), bytes);
            (result.get().unwrap(), flags.get(Flags::CARRY), flags.get(Flags::OVERFLOW))
        };
        assert_eq!(shift(Shift::Left, 0x81, 1, 1), (2, Some(true), Some(true)));
        assert_eq!(shift(Shift::Left, 0x81, 9, 1), (0, None, None));
        assert_eq!(shift(Shift::Right, 0x8000_0001, 33, 4), (0x4000_0000, Some(true), Some(true)));
        assert_eq!(shift(Shift::RightSigned, 0x8000, 20, 2), (0xffff, Some(true), None));
        assert_eq!(shift(Shift::RotateLeft, 0x81, 12, 1), (0x18, Some(false), None));
        assert_eq!(shift(Shift::RotateRight, 1, 1, 8), (1 << 63, Some(true), Some(true)));
        assert_eq!(shift(Shift::RotateRight, 0x12, 8, 1), (0x12, Some(false), None));
        // By 0 all flags stay.
        assert_eq!(shift(Shift::Left, 0xff, 64, 8), (0xff, Some(false), None));
        flags.set(Flags::ZERO, Some(true));
        assert_eq!(
            flags.shift(Shift::Left, Bits::known(1), Bits::UNKNOWN, 4),
            Bits::UNKNOWN.low(4)
        );
        assert_eq!(flags.get(Flags::ZERO), None);
    }
}
