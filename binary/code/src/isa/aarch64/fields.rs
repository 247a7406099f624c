//! Fields of an instruction word.

/// An instruction word.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Word(pub(super) u32);

/// The number of the zero register in most instructions, and of the stack pointer in the others.
pub(super) const ZERO: u8 = 31;

impl Word {
    /// The word that `bytes` begin with, lowest byte first, whatever the order of data (DDI 0487,
    /// B2.6.2).
    pub(super) fn of(bytes: &[u8]) -> Option<Self> {
        bytes.first_chunk().map(|bytes| Self(u32::from_le_bytes(*bytes)))
    }

    pub(super) fn bits(self, low: u32, count: u32) -> u32 {
        self.0.wrapping_shr(low) & ((1 << (count & 31)) - 1)
    }

    pub(super) fn bit(self, number: u32) -> bool {
        self.bits(number, 1) == 1
    }

    /// The bits of a field as a signed number.
    pub(super) fn signed(self, low: u32, count: u32) -> i64 {
        let unused = 64 - count;
        (i64::from(self.bits(low, count)) << unused) >> unused
    }

    /// Whether the bits under `mask` equal those of `pattern`.
    pub(super) fn is(self, mask: u32, pattern: u32) -> bool {
        self.0 & mask == pattern
    }

    /// The number of a register, 0 to 31, from bit `low` on.
    pub(super) fn register(self, low: u32) -> u8 {
        self.bits(low, 5) as u8
    }

    /// Bytes that an instruction on general registers works on, by its highest bit.
    pub(super) fn width(self) -> u8 {
        if self.bit(31) { 8 } else { 4 }
    }

    /// Bytes that a load or store of one register moves.
    pub(super) fn size_of_one(self) -> u8 {
        if self.bit(26) && self.bit(23) { 16 } else { 1 << self.bits(30, 2) }
    }

    /// The result of `adr` and `adrp` at the address `at` (C6.2.10, C6.2.11).
    pub(super) fn page_relative(self, at: u64) -> Option<u64> {
        let distance = self.signed(5, 19) << 2 | i64::from(self.bits(29, 2));
        match (self.is(0x1f00_0000, 0x1000_0000), self.bit(31)) {
            (true, false) => Some(at.wrapping_add_signed(distance)),
            (true, true) => Some((at & !0xfff).wrapping_add_signed(distance << 12)),
            _ => None,
        }
    }

    /// The constant of a logical instruction (DDI 0487, shared pseudocode, `DecodeBitMasks`): a run
    /// of ones, rotated right and repeated.
    pub(super) fn mask(self) -> Option<u64> {
        let (n, turned, ones) = (self.bits(22, 1), self.bits(16, 6), self.bits(10, 6));
        let size_bits = 1_u32 << (n << 6 | (!ones & 0x3f)).checked_ilog2()?;
        if size_bits < 2 || n == 1 && !self.bit(31) {
            return None;
        }
        let (turned, ones) = (turned & (size_bits - 1), (ones & (size_bits - 1)) + 1);
        if ones == size_bits {
            return None;
        }
        let unit = (1_u64 << ones) - 1;
        let all = if size_bits == 64 { u64::MAX } else { (1 << size_bits) - 1 };
        let turned =
            if turned == 0 { unit } else { (unit >> turned | unit << (size_bits - turned)) & all };
        let mask = (0..64 / size_bits).fold(0, |mask, copy| mask | turned << (copy * size_bits));
        Some(if self.bit(31) { mask } else { mask & u64::from(u32::MAX) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_of_logical_instructions() {
        // and x0, x1, #0xff; and w0, w1, #7; orr x0, xzr, #0x5555555555555555; and w0, w0,
        // #0x80000001; and x2, x0, #-8
        let masks = [0x9240_1c20_u32, 0x1200_0820, 0xb200_f3e0, 0x1201_0400, 0x927d_f002]
            .map(|word| Word(word).mask());
        let wanted = [0xff, 7, 0x5555_5555_5555_5555, 0x8000_0001, (-8_i64).cast_unsigned()];
        assert_eq!(masks, wanted.map(Some));
        // All ones, and one bit in each: reserved.
        assert_eq!(
            [0x9240_fc20, 0x1200_fc00, 0x1240_0000].map(|word| Word(word).mask()),
            [None; 3]
        );
    }

    #[test]
    fn addresses_relative_to_the_instruction() {
        // adr x1, .+8; adr x1, .-4; adrp x0, page of .+0x3000; adrp x16, page of .-0x1000; add
        let of = |word| Word(word).page_relative(0x41_0124);
        assert_eq!(of(0x1000_0041), Some(0x41_012c));
        assert_eq!(of(0x10ff_ffe1), Some(0x41_0120));
        assert_eq!(of(0xf000_0000), Some(0x41_3000));
        assert_eq!(of(0xf0ff_fff0), Some(0x40_f000));
        assert_eq!(of(0x9100_0020), None);
    }
}
