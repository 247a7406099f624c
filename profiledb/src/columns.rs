//! Counts as columns of bytes: what is alike stands together, so that DEFLATE finds it. `FORMAT.md` has the same as a document.
//!
//! Measured on profiles of a machine that compiles (1.5 million entries): 2.1 bytes an entry as plain numbers, 1.32 so; Rice codes in blocks of 64
//! need 1.36, blocks of equal width 1.6, and flate2's level 6 takes seven times as long for 1.34.

use std::io::{Read as _, Write as _};

use flate2::{Compression, bufread::DeflateDecoder, write::DeflateEncoder};

use crate::codec::{DecodeError, Input, put_varint};
use crate::error::Damage;
use crate::profile::{Edges, Profile};
use crate::storage::MAX_FILE_BYTES;

/// Longest run that one byte of DEFLATE can stand for is below this (RFC 1951: 258 bytes from 2 bits): a block cannot become larger, so a claim
/// of more is no claim to believe.
const MAX_EXPANSION: u64 = 1032;
/// Entries of a section at most: of an image of 64 MiB each place where an instruction may begin, on a machine where all have 4 bytes.
pub(crate) const MAX_ENTRIES: u64 = 16 << 20;
/// So many entries are made room for before they are read; for more as they come. Zeros unpack to a thousand times their bytes.
pub(crate) const PREALLOCATED_ENTRIES: usize = 64 << 10;
/// Bytes of an entry in one column at most: the longest varint.
const ENTRY_BYTES: u64 = 10;
/// Shorter blocks are not worth trying.
const WORTH_BYTES: usize = 24;

/// Appends a block: varint length, varint stored length, the bytes as DEFLATE stream where that is shorter, else as they are.
pub(crate) fn put_block(out: &mut Vec<u8>, bytes: &[u8]) {
    let packed = if bytes.len() < WORTH_BYTES { None } else { deflate(bytes) };
    let stored = packed.as_deref().filter(|packed| packed.len() < bytes.len()).unwrap_or(bytes);
    put_varint(out, bytes.len() as u64);
    put_varint(out, stored.len() as u64);
    out.extend_from_slice(stored);
}

fn deflate(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = DeflateEncoder::new(Vec::with_capacity(bytes.len() / 2), Compression::fast());
    // Writing to a vector cannot fail; if it did the bytes would be kept as they are.
    encoder.write_all(bytes).ok()?;
    encoder.finish().ok()
}

/// Takes a block.
pub(crate) fn take_block(input: &mut Input<'_>) -> Result<Vec<u8>, DecodeError> {
    take_block_of(input, MAX_FILE_BYTES)
}

/// Takes a block that may not have more than so many bytes.
pub(crate) fn take_block_of(input: &mut Input<'_>, limit_bytes: u64) -> Result<Vec<u8>, DecodeError> {
    let at = input.offset();
    let error = |damage| DecodeError { offset: at, damage };
    let length = input.varint()?;
    let stored = input.bytes()?;
    if length > limit_bytes {
        return Err(error(Damage::Count { count: length }));
    }
    if length == stored.len() as u64 {
        return Ok(stored.to_vec());
    }
    let most = (stored.len() as u64).saturating_mul(MAX_EXPANSION).min(MAX_FILE_BYTES);
    if length < stored.len() as u64 || length > most {
        return Err(error(Damage::Count { count: length }));
    }
    let mut decoder = DeflateDecoder::new(stored);
    // Believed as far as `most`, which the stored bytes pay for.
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    // One byte more than claimed tells a longer stream.
    (&mut decoder).take(length.saturating_add(1)).read_to_end(&mut bytes).map_err(|_| error(Damage::Compression))?;
    match (bytes.len() as u64).cmp(&length) {
        std::cmp::Ordering::Less => Err(error(Damage::Truncated)),
        std::cmp::Ordering::Equal if decoder.into_inner().is_empty() => Ok(bytes),
        _ => Err(error(Damage::TrailingBytes)),
    }
}

/// A profile as a section of a segment: shift, offsets, counts.
#[must_use]
pub fn encode_samples(profile: &Profile) -> Vec<u8> {
    let (mut offsets, mut counts) = (Vec::with_capacity(profile.len() * 2), Vec::with_capacity(profile.len()));
    // Instructions of most machines lie at multiples of 2 or 4.
    let all = profile.iter().fold(0, |all, (offset, _)| all | offset.0);
    let shift = if all == 0 { 0 } else { all.trailing_zeros() };
    let mut next = 0;
    for (offset, count) in profile.iter() {
        let offset = offset.0 >> shift;
        put_varint(&mut offsets, offset - next);
        put_varint(&mut counts, count - 1);
        // The last offset of all has none behind it.
        next = offset.saturating_add(1);
    }
    let mut out = Vec::with_capacity(offsets.len() + counts.len() + 16);
    put_varint(&mut out, shift.into());
    put_block(&mut out, &offsets);
    put_block(&mut out, &counts);
    out
}

/// The profile of a section that must have this number of entries.
///
/// # Errors
/// [`DecodeError`] when it is not what [`encode_samples`] makes of such a profile.
pub fn decode_samples(section: &[u8], entries: u64) -> Result<Profile, DecodeError> {
    let mut input = Input::new(section);
    let shift = input.varint()?;
    let at = input.offset();
    let error = |damage| DecodeError { offset: at, damage };
    let most = column_bytes(entries).map_err(error)?;
    let (offsets, counts) = (take_block_of(&mut input, most)?, take_block_of(&mut input, most)?);
    input.end()?;
    let entries = capacity(entries, &[&offsets, &counts]).map_err(error)?;
    let (mut offsets, mut counts) = (Input::new(&offsets), Input::new(&counts));
    let (mut pairs, mut all) = (Vec::with_capacity(entries.min(PREALLOCATED_ENTRIES)), 0);
    let room = room(shift);
    let mut next = Some(0_u64);
    // There are millions: what has a closure for each costs twice as much.
    for _ in 0..entries {
        let distance = column(&mut offsets, at)?;
        let Some(place) = next.and_then(|next| next.checked_add(distance)) else { return Err(error(Damage::Order)) };
        let Some(count) = column(&mut counts, at)?.checked_add(1) else { return Err(error(Damage::Varint)) };
        let Some((shift, most)) = room else { return Err(error(Damage::Order)) };
        if place > most {
            return Err(error(Damage::Order));
        }
        let offset = place << shift;
        all |= offset;
        pairs.push((offset, count));
        next = place.checked_add(1);
    }
    ended(&[offsets, counts], at)?;
    let shortest = if all == 0 { 0 } else { u64::from(all.trailing_zeros()) };
    if shift != shortest {
        return Err(DecodeError { offset: 0, damage: Damage::Varint });
    }
    Ok(Profile::from_sorted(pairs))
}

/// The shift as a number of bits, and the largest place that loses none by it. None for a shift that leaves nothing.
fn room(shift: u64) -> Option<(u32, u64)> {
    let shift = u32::try_from(shift).ok().filter(|shift| *shift < 64)?;
    Some((shift, u64::MAX >> shift))
}

/// Edges as a section of a segment: distances of `from`, signed distances from `from` to `to`, counts.
#[must_use]
pub fn encode_edges(edges: &Edges) -> Vec<u8> {
    let mut columns =
        [Vec::with_capacity(edges.len()), Vec::with_capacity(edges.len()), Vec::with_capacity(edges.len())];
    let [froms, tos, counts] = &mut columns;
    let mut last = 0;
    for (from, to, count) in edges.iter() {
        put_varint(froms, from.0 - last);
        put_varint(tos, zigzag(to.0.wrapping_sub(from.0)));
        put_varint(counts, count - 1);
        last = from.0;
    }
    let mut out = Vec::new();
    columns.iter().for_each(|column| put_block(&mut out, column));
    out
}

/// The edges of a section that must have this number of entries.
///
/// # Errors
/// [`DecodeError`] when it is not what [`encode_edges`] makes of such edges.
pub fn decode_edges(section: &[u8], entries: u64) -> Result<Edges, DecodeError> {
    let mut input = Input::new(section);
    let error = |damage| DecodeError { offset: 0, damage };
    let most = column_bytes(entries).map_err(error)?;
    let mut column_of = || take_block_of(&mut input, most);
    let blocks = [column_of()?, column_of()?, column_of()?];
    input.end()?;
    let [froms, tos, counts] = &blocks;
    let entries = capacity(entries, &[froms, tos, counts]).map_err(error)?;
    let (mut froms, mut tos, mut counts) = (Input::new(froms), Input::new(tos), Input::new(counts));
    let mut pairs: Vec<((u64, u64), u64)> = Vec::with_capacity(entries.min(PREALLOCATED_ENTRIES));
    let mut last = 0_u64;
    for _ in 0..entries {
        let from = last.checked_add(column(&mut froms, 0)?).ok_or_else(|| error(Damage::Order))?;
        let to = from.wrapping_add(unzigzag(column(&mut tos, 0)?));
        let count = column(&mut counts, 0)?.checked_add(1).ok_or_else(|| error(Damage::Varint))?;
        if pairs.last().is_some_and(|(before, _)| *before >= (from, to)) {
            return Err(error(Damage::Order));
        }
        pairs.push(((from, to), count));
        last = from;
    }
    ended(&[froms, tos, counts], 0)?;
    Ok(Edges::from_sorted(pairs))
}

/// A signed distance as a number that is small when the distance is.
const fn zigzag(distance: u64) -> u64 {
    (distance << 1) ^ (distance.cast_signed() >> 63).cast_unsigned()
}

const fn unzigzag(value: u64) -> u64 {
    (value >> 1) ^ (value & 1).wrapping_neg()
}

/// Bytes that a column of so many entries can have.
fn column_bytes(entries: u64) -> Result<u64, Damage> {
    if entries > MAX_ENTRIES { Err(Damage::Count { count: entries }) } else { Ok(entries * ENTRY_BYTES) }
}

/// The number of entries, when columns of these bytes can have so many: each entry is a byte at least in each.
fn capacity(entries: u64, columns: &[&Vec<u8>]) -> Result<usize, Damage> {
    let fits = |entries: &usize| columns.iter().all(|column| *entries <= column.len());
    usize::try_from(entries).ok().filter(fits).ok_or(Damage::Count { count: entries })
}

/// The next number of a column. Where in a packed column something is wrong says nothing: `at` is the place of the columns.
#[inline]
fn column(input: &mut Input<'_>, at: usize) -> Result<u64, DecodeError> {
    match input.varint() {
        Ok(value) => Ok(value),
        Err(error) => Err(DecodeError { offset: at, ..error }),
    }
}

fn ended(columns: &[Input<'_>], at: usize) -> Result<(), DecodeError> {
    columns.iter().try_for_each(Input::end).map_err(|error| DecodeError { offset: at, ..error })
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::ImageOffset;

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
        let edges =
            Edges::from_counts([((at(0x10), at(0x8)), 1), ((at(0x10), at(0x20)), 5), ((at(0x12), at(0x12)), 200)]);
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
            (&b"\x00\x01\x01\x10\x01\x01\x00"[..], 1, "bad variable-length number"), // 0x10 has a shift of 4
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
            let claimed = |error: DecodeError| matches!(error.damage, Damage::Count { count } if count == entries);
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
        for (claimed, damage) in [((1_u64 << 20) - 1, "bytes follow its end"), ((1 << 20) + 1, "it ends too early")] {
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
            assert!(matches!(take_block(&mut Input::new(&lying)).unwrap_err().damage, Damage::Count { .. }));
        }
    }
}
