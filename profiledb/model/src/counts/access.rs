//! How code uses memory, as numbers at the instruction: distances and sizes, never addresses.

use image::ImageOffset;

/// One thing that was seen of an instruction's accesses to memory.
///
/// Counted in [`crate::Values`] at the instruction: the number has the kind in its lowest three
/// bits and the rest above.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// An access, and what it crosses.
    Crosses(Crossed),
    /// Bytes from the address of one execution to that of the next on the same walk; beyond
    /// [`Access::STRIDE_MAX`] on either side only their sign and size as a power of two.
    Stride(i64),
    /// How far two addresses are from each other, of two moments apart.
    Apart(Apart),
    /// A load after a store to some of its bytes: whether the store has all of them, so that they
    /// can be forwarded.
    Forwards(bool),
    /// A load after a store to other bytes whose addresses have the same lowest 12 bits.
    Aliases,
    /// An access to a line that another thread uses, where one of both writes: whether to the same
    /// bytes.
    Shared(bool),
    /// An access to memory whose page is known: whether it is a huge one, of 2 MiB or more.
    HugePage(bool),
}

/// What an access crosses.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Crossed {
    /// It is within a line.
    Nothing,
    /// It lies in two lines of 64 bytes.
    Line,
    /// It lies in two pages of 4 KiB.
    Page,
}

/// A distance of two addresses.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Apart {
    /// The same line of 64 bytes.
    Line,
    /// The same page of 4 KiB.
    Page,
    /// So many bits of the distance, at least 7.
    Bits(u8),
    /// So many bits, at least 13, and the same line of both pages.
    Pages(u8),
}

/// Bits of a number that have the kind.
const KIND_BITS: u32 = 3;

impl Access {
    /// Strides up to this are told in bytes.
    pub const STRIDE_MAX: i64 = 1 << 14;

    /// What a number at an instruction means; None where it means nothing.
    pub fn of((at, number): (ImageOffset, i64)) -> Option<(ImageOffset, Self)> {
        let rest = number >> KIND_BITS;
        let access = match (number & ((1 << KIND_BITS) - 1), rest) {
            (0, 0) => Self::Crosses(Crossed::Nothing),
            (0, 1) => Self::Crosses(Crossed::Line),
            (0, 2) => Self::Crosses(Crossed::Page),
            (1, stride) if stride.unsigned_abs() <= 1 << 58 => Self::Stride(stride),
            (2, 0) => Self::Apart(Apart::Line),
            (2, 1) => Self::Apart(Apart::Page),
            (2, bits @ 7..=64) => Self::Apart(Apart::Bits(u8::try_from(bits).ok()?)),
            (2, bits @ 77..=128) => Self::Apart(Apart::Pages(u8::try_from(bits - 64).ok()?)),
            (3, 0 | 1) => Self::Forwards(rest == 1),
            (4, 0) => Self::Aliases,
            (5, 0 | 1) => Self::Shared(rest == 1),
            (6, 0 | 1) => Self::HugePage(rest == 1),
            _ => return None,
        };
        Some((at, access))
    }

    /// The number that means this.
    pub fn number(self) -> i64 {
        let (kind, rest) = match self {
            Self::Crosses(Crossed::Nothing) => (0, 0),
            Self::Crosses(Crossed::Line) => (0, 1),
            Self::Crosses(Crossed::Page) => (0, 2),
            Self::Stride(stride) => (1, stride),
            Self::Apart(Apart::Line) => (2, 0),
            Self::Apart(Apart::Page) => (2, 1),
            Self::Apart(Apart::Bits(bits)) => (2, i64::from(bits)),
            Self::Apart(Apart::Pages(bits)) => (2, i64::from(bits) + 64),
            Self::Forwards(all) => (3, i64::from(all)),
            Self::Aliases => (4, 0),
            Self::Shared(same_bytes) => (5, i64::from(same_bytes)),
            Self::HugePage(is_huge) => (6, i64::from(is_huge)),
        };
        rest << KIND_BITS | kind
    }

    /// The stride from one address to the next.
    pub fn stride(from: u64, to: u64) -> Self {
        let stride = to.wrapping_sub(from).cast_signed();
        if stride.unsigned_abs() <= Self::STRIDE_MAX.unsigned_abs() {
            return Self::Stride(stride);
        }
        let size = 1_i64 << stride.unsigned_abs().ilog2().min(58);
        Self::Stride(if stride < 0 { -size } else { size })
    }

    /// The distance of two addresses.
    pub fn apart(a: u64, b: u64) -> Self {
        Self::Apart(match a ^ b {
            0..64 => Apart::Line,
            64..4096 => Apart::Page,
            other => {
                let bits = (64 - a.abs_diff(b).leading_zeros()).max(7) as u8;
                let is_same_line = other % 4096 < 64 && bits >= 13;
                if is_same_line { Apart::Pages(bits) } else { Apart::Bits(bits) }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_mean_what_was_seen() {
        let at = ImageOffset(0x10);
        for access in [
            Access::Crosses(Crossed::Page),
            Access::stride(0x1000, 0x1008),
            Access::stride(0x1008, 0x1000),
            Access::stride(0, u64::MAX / 2),
            Access::apart(0x1000, 0x103f),
            Access::apart(0x1000, 0x1ff8),
            Access::apart(0x1ff8, 0x2000),
            Access::apart(0, u64::MAX),
            Access::apart(0x1010, 0x5028),
            Access::Forwards(false),
            Access::Forwards(true),
            Access::Aliases,
            Access::HugePage(false),
            Access::HugePage(true),
            Access::Shared(true),
        ] {
            assert_eq!(Access::of((at, access.number())), Some((at, access)));
        }
        assert_eq!(Access::stride(0x1008, 0x1000), Access::Stride(-8));
        assert_eq!(Access::stride(0, 0x30_0000), Access::Stride(0x20_0000));
        assert_eq!(Access::apart(0x1000, 0x1ff8), Access::Apart(Apart::Page));
        assert_eq!(Access::apart(0x1ff8, 0x2000), Access::Apart(Apart::Bits(7)));
        assert_eq!(Access::apart(0x1010, 0x5028), Access::Apart(Apart::Pages(15)));
        for number in [i64::MIN, 7, 15, 3 << 3, 2 << 3 | 3, 70 << 3 | 2] {
            assert_eq!(Access::of((at, number)), None, "{number}");
        }
    }
}
