//! Results and flags of arithmetic on values of which some bits may be unknown: what processors
//! have in common.

use super::flags::Flags;
use crate::interpret::{Bits, mask};

/// Ways to shift.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Shift {
    Left,
    Right,
    RightSigned,
    RotateLeft,
    RotateRight,
}

impl Flags {
    /// Sets ZF, SF and PF by a result of `bytes` bytes.
    pub(super) fn of_result(&mut self, result: Bits, bytes: u8) {
        self.set(Self::ZERO, result.is_zero(bytes));
        self.set(Self::SIGN, result.bit(u32::from(bytes) * 8 - 1));
        let low = result.low(1);
        self.set(Self::PARITY, low.get().map(|low| low.count_ones() % 2 == 0));
    }

    /// Sets the flags of `and`, `or`, `xor` and `test`.
    pub(super) fn of_logic(&mut self, result: Bits, bytes: u8) {
        self.of_result(result, bytes);
        self.set(Self::CARRY, Some(false));
        self.set(Self::OVERFLOW, Some(false));
    }

    /// Sets OF, and SF where the range tells more than the bits: the true result is from `least` to
    /// `most`.
    fn of_range(&mut self, (least, most): (i128, i128), bytes: u8) {
        let (lowest, highest) = (-(1_i128 << (bytes * 8 - 1)), (1_i128 << (bytes * 8 - 1)) - 1);
        let overflow = if least >= lowest && most <= highest {
            if most < 0 {
                self.set(Self::SIGN, Some(true));
            } else if least >= 0 {
                self.set(Self::SIGN, Some(false));
            }
            Some(false)
        } else if least > highest || most < lowest {
            Some(true)
        } else {
            None
        };
        self.set(Self::OVERFLOW, overflow);
    }

    /// `a + b + carry` of `bytes` bytes, 1 to 8, and its flags.
    pub(super) fn add(&mut self, a: Bits, b: Bits, carry: Option<bool>, bytes: u8) -> Bits {
        let (a, b, carry) = (a.low(bytes), b.low(bytes), Bits::of_flag(carry));
        let result = a.plus(b).plus(carry).low(bytes);
        self.of_result(result, bytes);
        let most = u128::from(a.most()) + u128::from(b.most()) + u128::from(carry.most());
        let least = u128::from(a.least()) + u128::from(b.least()) + u128::from(carry.least());
        let end = u128::from(mask(bytes));
        self.set(Self::CARRY, decide(most <= end, least > end));
        let ((a_least, a_most), (b_least, b_most)) = (a.signed_range(bytes), b.signed_range(bytes));
        let least = i128::from(a_least) + i128::from(b_least) + i128::from(carry.least());
        let most = i128::from(a_most) + i128::from(b_most) + i128::from(carry.most());
        self.of_range((least, most), bytes);
        result
    }

    /// `a - b - borrow` of `bytes` bytes, 1 to 8, and its flags.
    pub(super) fn subtract(&mut self, a: Bits, b: Bits, borrow: Option<bool>, bytes: u8) -> Bits {
        let (a, b, borrow) = (a.low(bytes), b.low(bytes), Bits::of_flag(borrow));
        let result = a.minus(b).minus(borrow).low(bytes);
        self.of_result(result, bytes);
        let most = u128::from(b.most()) + u128::from(borrow.most());
        let least = u128::from(b.least()) + u128::from(borrow.least());
        let borrowed = decide(u128::from(a.least()) >= most, u128::from(a.most()) < least);
        self.set(Self::CARRY, borrowed);
        if borrowed == Some(true) && borrow.most() == 0 {
            // One operand is smaller, so they are not equal, whatever their bits are.
            self.set(Self::ZERO, Some(false));
        }
        let ((a_least, a_most), (b_least, b_most)) = (a.signed_range(bytes), b.signed_range(bytes));
        let least = i128::from(a_least) - i128::from(b_most) - i128::from(borrow.most());
        let most = i128::from(a_most) - i128::from(b_least) - i128::from(borrow.least());
        self.of_range((least, most), bytes);
        result
    }
}

/// `value` of `bytes` bytes shifted by `count`, 0 to 63; the other bytes of the result are 0.
pub(super) fn shifted(shift: Shift, value: Bits, count: u32, bytes: u8) -> Bits {
    let value = value.low(bytes);
    let size = u32::from(bytes) * 8;
    let rotated = |left: u32| {
        let left = left % size;
        if left == 0 { value } else { value.left(left) | value.right(size - left) }
    };
    match shift {
        Shift::Left => value.left(count).low(bytes),
        Shift::Right => value.right(count),
        Shift::RightSigned => value.sign_extended(bytes).right_signed(count).low(bytes),
        Shift::RotateLeft => rotated(count).low(bytes),
        Shift::RotateRight => rotated(size - count % size).low(bytes),
    }
}

fn decide(no: bool, yes: bool) -> Option<bool> {
    if no {
        Some(false)
    } else if yes {
        Some(true)
    } else {
        None
    }
}
