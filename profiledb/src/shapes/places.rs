//! Counts by place: shift, offsets, counts.

use image::ImageOffset;
use model::Profile;

use super::columns::{
    PREALLOCATED_ENTRIES, capacity, column, column_bytes, ended, put_block, take_block_of,
};
use crate::codec::{DecodeError, Input, put_varint};
use crate::error::Damage;

/// A profile as a section of a segment: shift, offsets, counts.
pub fn encode_samples(profile: &Profile) -> Vec<u8> {
    let (mut offsets, mut counts) =
        (Vec::with_capacity(profile.len() * 2), Vec::with_capacity(profile.len()));
    // Instructions of most machines lie at multiples of 2 or 4.
    let all = profile.iter().fold(0, |all, (offset, _)| all | offset.0);
    let shift = if all == 0 { 0 } else { all.trailing_zeros() };
    let mut next = 0;
    for (offset, count) in profile.iter() {
        let offset = offset.0 >> shift;
        put_varint(&mut offsets, offset - next);
        put_varint(&mut counts, count - 1);
        // No offset follows the largest one.
        next = offset.saturating_add(1);
    }
    let mut out = Vec::with_capacity(offsets.len() + counts.len() + 16);
    put_varint(&mut out, shift.into());
    put_block(&mut out, &offsets);
    put_block(&mut out, &counts);
    out
}

/// Decodes the profile of a section, which must have this number of entries.
///
/// # Errors
/// [`DecodeError`] when the bytes are not what [`encode_samples`] writes.
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
    // There are millions of entries: a closure for each takes twice the time.
    for _ in 0..entries {
        let distance = column(&mut offsets, at)?;
        let Some(place) = next.and_then(|next| next.checked_add(distance)) else {
            return Err(error(Damage::Order));
        };
        let Some(count) = column(&mut counts, at)?.checked_add(1) else {
            return Err(error(Damage::Varint));
        };
        let Some((shift, most)) = room else { return Err(error(Damage::Order)) };
        if place > most {
            return Err(error(Damage::Order));
        }
        let offset = place << shift;
        all |= offset;
        pairs.push((ImageOffset(offset), count));
        next = place.checked_add(1);
    }
    ended(&[offsets, counts], at)?;
    let shortest = if all == 0 { 0 } else { u64::from(all.trailing_zeros()) };
    if shift != shortest {
        return Err(DecodeError { offset: 0, damage: Damage::Varint });
    }
    Profile::from_sorted(pairs).ok_or_else(|| error(Damage::Order))
}

/// The shift as a number of bits, and the largest offset that can be shifted without loss. None for
/// a shift of all bits.
fn room(shift: u64) -> Option<(u32, u64)> {
    let shift = u32::try_from(shift).ok().filter(|shift| *shift < 64)?;
    Some((shift, u64::MAX >> shift))
}
