//! Counts by place and number, encoded as pairs: of the place, and of the sum of place and number.

use image::ImageOffset;
use model::{Edges, Values};

use super::pairs::{decode_edges, encode_edges};
use crate::codec::DecodeError;

/// Numbers at places as a section of a segment.
pub fn encode_values(values: &Values) -> Vec<u8> {
    let pair = |((at, number), count): ((ImageOffset, i64), u64)| {
        ((at, ImageOffset(at.0.wrapping_add_signed(number))), count)
    };
    encode_edges(&Edges::from_counts(values.iter().map(pair)))
}

/// Decodes the values of a section, which must have this number of entries.
///
/// # Errors
/// [`DecodeError`] when the bytes are not what [`encode_values`] writes.
pub fn decode_values(section: &[u8], entries: u64) -> Result<Values, DecodeError> {
    let number = |((at, behind), count): ((ImageOffset, ImageOffset), u64)| {
        ((at, behind.0.wrapping_sub(at.0).cast_signed()), count)
    };
    Ok(Values::from_counts(decode_edges(section, entries)?.iter().map(number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_at_any_place_reads_back() {
        let ends = [0, 1, -1, 960, i64::MAX, i64::MIN];
        let places = [0, 1, 0x1000, u64::MAX];
        let all = places.iter().flat_map(|at| ends.map(|number| ((ImageOffset(*at), number), 3)));
        let values = Values::from_counts(all);
        assert_eq!(decode_values(&encode_values(&values), 24).unwrap(), values);
    }
}
