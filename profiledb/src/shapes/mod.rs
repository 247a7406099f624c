//! The codecs of counts, one for each shape. `FORMAT.md` describes the same bytes.

mod columns;
mod pairs;
mod places;
mod range_coder;
mod stacks;
mod timing;
mod values;

use model::{Counts, Shape};

use crate::codec::DecodeError;

pub(crate) use columns::{MAX_ENTRIES, PREALLOCATED_ENTRIES, put_block, take_block, take_block_of};
pub use pairs::{decode_edges, encode_edges};
pub use places::{decode_samples, encode_samples};
pub(crate) use stacks::DEPTH_MAX;
pub use stacks::{decode_stacks, encode_stacks};
pub(crate) use timing::{CELLS_MAX, Entries, SLICES_MAX, Timing};
pub use values::{decode_values, encode_values};

/// Counts as a section of a segment.
pub fn encode(counts: &Counts) -> Vec<u8> {
    match counts {
        Counts::Places(profile) => encode_samples(profile),
        Counts::Pairs(edges) => encode_edges(edges),
        Counts::Values(values) => encode_values(values),
    }
}

/// Decodes the counts of a section of that shape, which must have this number of entries.
///
/// # Errors
/// [`DecodeError`] when the bytes are not what [`encode`] writes for such counts.
pub fn decode(shape: Shape, section: &[u8], entries: u64) -> Result<Counts, DecodeError> {
    match shape {
        Shape::Places => decode_samples(section, entries).map(Counts::Places),
        Shape::Pairs => decode_edges(section, entries).map(Counts::Pairs),
        Shape::Values => decode_values(section, entries).map(Counts::Values),
    }
}

#[cfg(test)]
mod tests {
    use super::pairs::{unzigzag, zigzag};
    use super::*;
    use crate::codec::{Input, put_varint};
    use crate::error::Damage;
    use crate::storage::MAX_FILE_BYTES;
    use image::ImageOffset;
    use model::{Edges, Profile};

    fn profile(counts: &[(u64, u64)]) -> Profile {
        Profile::from_counts(counts.iter().map(|(offset, count)| (ImageOffset(*offset), *count)))
    }

    #[test]
    fn samples_have_the_documented_bytes() {
        let three = profile(&[(0x10, 3), (0x14, 1), (0x1000, 300)]);
        let bytes = encode_samples(&three);
        assert_eq!(bytes, b"\x02\x04\x04\x04\x00\xfa\x07\x04\x04\x02\x00\xab\x02");
        assert_eq!(decode_samples(&bytes, 3).unwrap(), three);
    }

    #[test]
    fn edges_have_the_documented_bytes() {
        let at = ImageOffset;
        let edges = Edges::from_counts([
            ((at(0x10), at(0x8)), 1),
            ((at(0x10), at(0x20)), 5),
            ((at(0x12), at(0x12)), 200),
        ]);
        let bytes = encode_edges(&edges);
        assert_eq!(bytes, b"\x03\x03\x10\x00\x02\x03\x03\x0f\x20\x00\x04\x04\x00\x04\xc7\x01");
        assert_eq!(decode_edges(&bytes, 3).unwrap(), edges);
    }

    #[test]
    fn the_ends_of_the_numbers_pass() {
        for counts in [
            &[][..],
            &[(0, 1)],
            &[(u64::MAX, u64::MAX)],
            &[(0, 1), (1, 1), (u64::MAX, u64::MAX)],
            &[(1 << 63, 7)],
            &[(u64::MAX - 1, 1), (u64::MAX, 1)],
        ] {
            let profile = profile(counts);
            let bytes = encode_samples(&profile);
            assert_eq!(decode_samples(&bytes, counts.len() as u64).unwrap(), profile, "{counts:?}");
        }
        for distance in [0, 1, u64::MAX, 1 << 63, (1 << 63) - 1] {
            assert_eq!(unzigzag(zigzag(distance)), distance);
        }
    }

    #[test]
    fn what_no_encoder_writes_is_refused() {
        for (section, entries, what) in [
            // 0x10 has a shift of 4.
            (&b"\x00\x01\x01\x10\x01\x01\x00"[..], 1, "bad variable-length number"),
            (b"\x04\x01\x01\x01\x01\x01\x00", 2, "2 entries do not fit in the remaining bytes"),
            (b"\x04\x01\x01\x01\x01\x01\x00", 0, "1 entries do not fit in the remaining bytes"),
            (b"\x04\x01\x01\x01\x01\x01\x00\x00", 1, "bytes follow its end"),
            (b"\x3f\x01\x01\x03\x01\x01\x00", 1, "entries are out of order"),
            (b"\x40\x01\x01\x01\x01\x01\x00", 1, "entries are out of order"),
            (b"\x04\x01\x02\x01\x01\x01\x01", 1, "1 entries do not fit in the remaining bytes"),
            (b"\x04\x09\x01\x01\x01\x01\x01", 1, "bad compressed bytes"),
        ] {
            let error = decode_samples(section, entries).unwrap_err();
            assert_eq!(error.damage.to_string(), what, "{section:x?}");
        }
    }

    /// Some KB of zeros that would be millions of entries of offset after offset, one sample each.
    #[test]
    fn more_entries_than_a_profile_may_have_are_refused_before_they_are_unpacked() {
        let mut section = vec![0];
        for _ in 0..3 {
            put_block(&mut section, &vec![0; 17 << 20]);
        }
        assert!(section.len() < 1 << 20);
        for entries in [17 << 20, u64::MAX] {
            let is_claim =
                |damage: Damage| matches!(damage, Damage::Count { count } if count == entries);
            let claimed = |error: DecodeError| is_claim(error.damage);
            assert!(claimed(decode_samples(&section, entries).unwrap_err()));
            assert!(claimed(decode_edges(&section[1..], entries).unwrap_err()));
        }
        let few = decode_samples(&section, 1000).unwrap_err();
        assert!(matches!(few.damage, Damage::Count { count: 0x110_0000 }), "{few:?}");
    }

    #[test]
    fn a_bomb_is_not_unpacked() {
        let mut block = Vec::new();
        put_block(&mut block, &[0; 1 << 20]);
        assert!(block.len() < 10_000);
        assert_eq!(take_block(&mut Input::new(&block)).unwrap().len(), 1 << 20);
        let stored = block.split_off(3 + 2);
        for (claimed, damage) in
            [((1_u64 << 20) - 1, "bytes follow its end"), ((1 << 20) + 1, "it ends too early")]
        {
            let mut lying = Vec::new();
            put_varint(&mut lying, claimed);
            put_varint(&mut lying, stored.len() as u64);
            lying.extend_from_slice(&stored);
            assert_eq!(take_block(&mut Input::new(&lying)).unwrap_err().damage.to_string(), damage);
        }
        for claimed in [MAX_FILE_BYTES + 1, u64::MAX] {
            let mut lying = Vec::new();
            put_varint(&mut lying, claimed);
            put_varint(&mut lying, stored.len() as u64);
            lying.extend_from_slice(&stored);
            assert!(matches!(
                take_block(&mut Input::new(&lying)).unwrap_err().damage,
                Damage::Count { .. }
            ));
        }
    }
}
