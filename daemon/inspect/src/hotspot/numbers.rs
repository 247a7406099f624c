//! Numbers as HotSpot compresses them in its tables (UNSIGNED5: src/hotspot/share/code/
//! compressedStream.hpp, since JDK 19 src/hotspot/share/utilities/unsigned5.hpp).

/// Numbers of less than this take one byte, of bytes that may be zero.
const LOW: u32 = 192;
/// Most bytes of a number.
const BYTES_MAX: u32 = 5;
/// Bits of each further byte.
const BITS: u32 = 6;

/// Reads numbers one after the other.
pub struct Numbers<'a> {
    bytes: std::slice::Iter<'a, u8>,
    /// Each byte is one more than what it stands for, so that none is zero.
    excluded: u32,
}

impl<'a> Numbers<'a> {
    /// The numbers in these bytes.
    pub fn new(bytes: &'a [u8], is_nonzero: bool) -> Self {
        Self { bytes: bytes.iter(), excluded: is_nonzero.into() }
    }

    /// The next byte, as it is.
    pub fn byte(&mut self) -> Option<u8> {
        self.bytes.next().copied()
    }

    /// The next number.
    pub fn unsigned(&mut self) -> Option<u32> {
        let mut sum = 0_u32;
        for place in 0..BYTES_MAX {
            let byte = u32::from(self.byte()?);
            let digit = byte.checked_sub(self.excluded)?;
            sum = sum.wrapping_add(digit << (BITS * place));
            if byte < LOW {
                break;
            }
        }
        Some(sum)
    }

    /// The next number with a sign, which is in its lowest bit.
    pub fn signed(&mut self) -> Option<i32> {
        let number = self.unsigned()?;
        Some((number >> 1).cast_signed() ^ -((number & 1).cast_signed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_take_one_to_five_bytes() {
        let all = |bytes: &[u8], is_nonzero| {
            let mut numbers = Numbers::new(bytes, is_nonzero);
            std::iter::from_fn(|| numbers.unsigned()).collect::<Vec<_>>()
        };
        assert_eq!(all(&[0, 191, 192, 0, 193, 1], false), [0, 191, 192, 257]);
        assert_eq!(all(&[1, 191, 192, 1, 193, 2], true), [0, 190, 191, 256]);
        assert_eq!(all(&[255; 5], false), [0xff_u32.wrapping_mul(0x0104_1041)]);
        assert_eq!(all(&[255, 255], false), [0; 0], "cut off");
        assert_eq!(all(&[0], true), [0; 0], "a byte that is excluded");
        let mut signed = Numbers::new(&[0, 1, 2, 3], false);
        let signed: Vec<i32> = std::iter::from_fn(|| signed.signed()).collect();
        assert_eq!(signed, [0, -1, 1, -2]);
    }
}
