//! Counts by pair of places: distances of `from`, signed distances from `from` to `to`, counts.

use image::ImageOffset;
use model::Edges;

use super::columns::{
    PREALLOCATED_ENTRIES, capacity, column, column_bytes, ended, put_block, take_block_of,
};
use crate::codec::{DecodeError, Input, put_varint};
use crate::error::Damage;

/// Edges as a section of a segment: distances of `from`, signed distances from `from` to `to`,
/// counts.
pub fn encode_edges(edges: &Edges) -> Vec<u8> {
    let mut columns = [
        Vec::with_capacity(edges.len()),
        Vec::with_capacity(edges.len()),
        Vec::with_capacity(edges.len()),
    ];
    let [froms, tos, counts] = &mut columns;
    let mut last = 0;
    for ((from, to), count) in edges.iter() {
        put_varint(froms, from.0 - last);
        put_varint(tos, zigzag(to.0.wrapping_sub(from.0)));
        put_varint(counts, count - 1);
        last = from.0;
    }
    let mut out = Vec::new();
    columns.iter().for_each(|column| put_block(&mut out, column));
    out
}

/// Decodes the edges of a section, which must have this number of entries.
///
/// # Errors
/// [`DecodeError`] when the bytes are not what [`encode_edges`] writes.
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
    let mut pairs = Vec::with_capacity(entries.min(PREALLOCATED_ENTRIES));
    let mut last = 0_u64;
    for _ in 0..entries {
        let from = last.checked_add(column(&mut froms, 0)?).ok_or_else(|| error(Damage::Order))?;
        let to = from.wrapping_add(unzigzag(column(&mut tos, 0)?));
        let count = column(&mut counts, 0)?.checked_add(1).ok_or_else(|| error(Damage::Varint))?;
        pairs.push(((ImageOffset(from), ImageOffset(to)), count));
        last = from;
    }
    ended(&[froms, tos, counts], 0)?;
    Edges::from_sorted(pairs).ok_or_else(|| error(Damage::Order))
}

/// A signed distance as an unsigned number that is small when the distance is.
pub(super) const fn zigzag(distance: u64) -> u64 {
    (distance << 1) ^ (distance.cast_signed() >> 63).cast_unsigned()
}

pub(super) const fn unzigzag(value: u64) -> u64 {
    (value >> 1) ^ (value & 1).wrapping_neg()
}
