//! An adaptive binary range coder, as in LZMA (I. Pavlov's specification; G. N. N. Martin, "Range
//! encoding", 1979), and numbers in it. `FORMAT.md` describes the same bytes.
//!
//! Counts by slice are mostly chance: what they take is their entropy, and columns with DEFLATE
//! take twice that, since a code of whole bits is too coarse for what is nearly certain.

/// Bits of a probability.
const BITS: u32 = 12;
/// A probability of a half.
const HALF: u16 = 1 << (BITS - 1);
/// A probability moves by this part towards what came: 1 of 32.
const SHIFT: u32 = 5;
/// Below this range another byte is shifted out.
const RENORM: u32 = 1 << 24;
/// Lengths of numbers, in bits.
const LENGTHS: usize = 65;
/// Bits behind the first one of a number that have probabilities of their own, as a tree.
const TREE_BITS: u32 = 2;

/// The probability that a bit is 0, learnt from those before it.
#[derive(Copy, Clone, Debug)]
struct Chance(u16);

impl Chance {
    /// The part of a range in which the bit is 0.
    const fn bound(self, range: u32) -> u32 {
        (range >> BITS) * self.0 as u32
    }

    fn learn(&mut self, bit: bool) {
        if bit {
            self.0 -= self.0 >> SHIFT;
        } else {
            self.0 += ((1 << BITS) - self.0) >> SHIFT;
        }
    }
}

/// What is known of the numbers of one context: of their lengths in bits, and of the bits behind
/// the first.
#[derive(Clone, Debug)]
pub(super) struct Numbers {
    lengths: [Chance; LENGTHS],
    trees: [[Chance; 1 << TREE_BITS]; LENGTHS],
}

impl Default for Numbers {
    fn default() -> Self {
        let half = Chance(HALF);
        Self { lengths: [half; LENGTHS], trees: [[half; 1 << TREE_BITS]; LENGTHS] }
    }
}

impl Numbers {
    /// Numbers that are 0 with this chance, in parts of 4096, as far as is known.
    pub(super) fn zero_with(parts: u16) -> Self {
        let mut numbers = Self::default();
        if let Some(zero) = numbers.lengths.first_mut() {
            zero.0 = parts.clamp(1 << SHIFT, (1 << BITS) - (1 << SHIFT));
        }
        numbers
    }
}

/// Where bits go to, or come from. Writing returns the bit that is written.
trait Bits {
    fn bit(&mut self, chance: &mut Chance, bit: bool) -> bool;

    /// A bit that is as likely 0 as 1.
    fn even(&mut self, bit: bool) -> bool;

    /// A number: its length in bits, then the bits behind the first, the highest first.
    fn number(&mut self, known: &mut Numbers, number: u64) -> u64 {
        let own = u64::BITS - number.leading_zeros();
        let mut length = 0;
        while let Some(chance) = known.lengths.get_mut(length as usize) {
            // A number has 64 bits at most, whatever the bytes say.
            if length == u64::BITS || !self.bit(chance, length < own) {
                break;
            }
            length += 1;
        }
        let Some(tree) = known.trees.get_mut(length as usize) else { return 0 };
        let (mut read, mut node) = (u64::from(length > 0), 1_usize);
        for at in (0..length.saturating_sub(1)).rev() {
            let bit = number >> at & 1 == 1;
            let bit = match tree.get_mut(node) {
                Some(chance) => self.bit(chance, bit),
                None => self.even(bit),
            };
            read = read << 1 | u64::from(bit);
            node = (node << 1 | usize::from(bit)).min(1 << TREE_BITS);
        }
        read
    }
}

/// Bits under writing.
#[derive(Debug)]
pub(super) struct Encoder {
    low: u64,
    range: u32,
    cached: u8,
    /// Bytes that wait for a carry: the cached one, and so many of 0xff.
    waiting: u64,
    out: Vec<u8>,
}

impl Encoder {
    pub(super) const fn new() -> Self {
        Self { low: 0, range: u32::MAX, cached: 0, waiting: 1, out: Vec::new() }
    }

    pub(super) fn put(&mut self, known: &mut Numbers, number: u64) {
        self.number(known, number);
    }

    fn shift(&mut self) {
        let carry = (self.low >> 32) as u8;
        if self.low < 0xff00_0000 || carry > 0 {
            self.out.push(self.cached.wrapping_add(carry));
            let filler = 0xff_u8.wrapping_add(carry);
            (1..self.waiting).for_each(|_| self.out.push(filler));
            self.waiting = 0;
            self.cached = (self.low >> 24) as u8;
        }
        self.waiting += 1;
        self.low = (self.low & 0x00ff_ffff) << 8;
    }

    /// The bytes of all numbers. The first is always 0 and left out, and so are zeros at the end: a
    /// decoder reads as many as it needs.
    pub(super) fn finish(mut self) -> Vec<u8> {
        (0..5).for_each(|_| self.shift());
        let end = self.out.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        self.out.truncate(end);
        self.out.drain(..end.min(1));
        self.out
    }
}

impl Bits for Encoder {
    fn bit(&mut self, chance: &mut Chance, bit: bool) -> bool {
        let bound = chance.bound(self.range);
        if bit {
            self.low += u64::from(bound);
            self.range -= bound;
        } else {
            self.range = bound;
        }
        chance.learn(bit);
        while self.range < RENORM {
            self.range <<= 8;
            self.shift();
        }
        bit
    }

    fn even(&mut self, bit: bool) -> bool {
        self.range >>= 1;
        if bit {
            self.low += u64::from(self.range);
        }
        while self.range < RENORM {
            self.range <<= 8;
            self.shift();
        }
        bit
    }
}

/// Bits under reading.
#[derive(Debug)]
pub(super) struct Decoder<'a> {
    code: u32,
    range: u32,
    rest: &'a [u8],
    /// Whether there are bytes that no encoder writes.
    ends_in_zero: bool,
}

impl<'a> Decoder<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        let ends_in_zero = bytes.last() == Some(&0);
        let mut decoder = Self { code: 0, range: u32::MAX, rest: bytes, ends_in_zero };
        (0..4).for_each(|_| decoder.shift());
        decoder
    }

    pub(super) fn take(&mut self, known: &mut Numbers) -> u64 {
        self.number(known, 0)
    }

    fn shift(&mut self) {
        let (byte, rest) = self.rest.split_first().unwrap_or((&0, &[]));
        self.rest = rest;
        self.code = self.code << 8 | u32::from(*byte);
    }

    /// Whether all bytes were read, and they end as those of an encoder do.
    pub(super) const fn is_at_end(&self) -> bool {
        self.rest.is_empty() && !self.ends_in_zero
    }

    fn renorm(&mut self) {
        while self.range < RENORM {
            self.range <<= 8;
            self.shift();
        }
    }
}

impl Bits for Decoder<'_> {
    fn bit(&mut self, chance: &mut Chance, _: bool) -> bool {
        let bound = chance.bound(self.range);
        let bit = self.code >= bound;
        if bit {
            self.code -= bound;
            self.range -= bound;
        } else {
            self.range = bound;
        }
        chance.learn(bit);
        self.renorm();
        bit
    }

    fn even(&mut self, _: bool) -> bool {
        self.range >>= 1;
        let bit = self.code >= self.range;
        if bit {
            self.code -= self.range;
        }
        self.renorm();
        bit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn coded(numbers: &[(u8, u64)]) -> Vec<u8> {
        let (mut encoder, mut known) = (Encoder::new(), vec![Numbers::default(); 3]);
        for (context, number) in numbers {
            encoder.put(&mut known[usize::from(*context)], *number);
        }
        encoder.finish()
    }

    proptest! {
        #[test]
        fn numbers_read_back(
            numbers in proptest::collection::vec(
                (0_u8..3, prop_oneof![4 => 0_u64..4, 2 => 0_u64..5000, 1 => any::<u64>()]),
                0..400,
            ),
            garbage in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            let bytes = coded(&numbers);
            let (mut decoder, mut known) = (Decoder::new(&bytes), vec![Numbers::default(); 3]);
            for (context, number) in &numbers {
                prop_assert_eq!(decoder.take(&mut known[usize::from(*context)]), *number);
            }
            prop_assert!(decoder.is_at_end());
            // Whatever the bytes are, reading ends.
            let (mut decoder, mut known) = (Decoder::new(&garbage), Numbers::default());
            (0..1000).for_each(|_| _ = decoder.take(&mut known));
        }
    }

    #[test]
    fn what_is_nearly_certain_takes_nearly_nothing() {
        let rare: Vec<(u8, u64)> = (0..10_000).map(|n| (0, u64::from(n % 100 == 0))).collect();
        // The entropy is 0.08 bits each.
        let bytes = coded(&rare).len();
        assert!((90..130).contains(&bytes), "{bytes}");
    }

    #[test]
    fn numbers_have_the_documented_bytes() {
        assert_eq!(coded(&[(0, 0), (0, 1), (0, 5), (1, 300)]), [0x5e, 0x2e, 0x48, 0x4c, 0x94]);
    }
}
