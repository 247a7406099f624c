//! Columns of numbers: similar numbers stand together, so that DEFLATE compresses them well.
//!
//! Measured on profiles of a machine that compiles (1.5 million entries): plain numbers take 2.1
//! bytes an entry, columns 1.32. Rice codes in blocks of 64 need 1.36, blocks of equal width 1.6,
//! and flate2's level 6 takes seven times as long for 1.34.

use std::io::{Read as _, Write as _};

use flate2::{Compression, bufread::DeflateDecoder, write::DeflateEncoder};

use crate::codec::{DecodeError, Input, put_varint};
use crate::error::Damage;
use crate::storage::MAX_FILE_BYTES;

/// Limit on the bytes that one byte of DEFLATE can expand to (RFC 1951: 258 bytes from 2 bits). A
/// block that claims more is damaged.
const MAX_EXPANSION: u64 = 1032;
/// Most entries of a section: one for every 4 bytes of an image of 64 MiB.
pub(crate) const MAX_ENTRIES: u64 = 16 << 20;
/// Entries for which memory is reserved before they are read; beyond, memory grows with the
/// entries. A damaged file can claim many: zeros unpack to a thousand times their bytes.
pub(crate) const PREALLOCATED_ENTRIES: usize = 64 << 10;
/// Most bytes of an entry in one column: the longest varint.
const ENTRY_BYTES: u64 = 10;
/// Bytes below which a block is not compressed: DEFLATE saves nothing there.
const WORTH_BYTES: usize = 24;

/// Appends a block: varint length, varint stored length, the bytes as DEFLATE stream where that is
/// shorter, else as they are.
pub(crate) fn put_block(out: &mut Vec<u8>, bytes: &[u8]) {
    let packed = if bytes.len() < WORTH_BYTES { None } else { deflate(bytes) };
    let stored = packed.as_deref().filter(|packed| packed.len() < bytes.len()).unwrap_or(bytes);
    put_varint(out, bytes.len() as u64);
    put_varint(out, stored.len() as u64);
    out.extend_from_slice(stored);
}

fn deflate(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = DeflateEncoder::new(Vec::with_capacity(bytes.len() / 2), Compression::fast());
    // Writing to a vector cannot fail; after an error the bytes would be kept uncompressed.
    encoder.write_all(bytes).ok()?;
    encoder.finish().ok()
}

/// Reads a block.
pub(crate) fn take_block(input: &mut Input<'_>) -> Result<Vec<u8>, DecodeError> {
    take_block_of(input, MAX_FILE_BYTES)
}

/// Reads a block of at most `most` bytes.
pub(crate) fn take_block_of(
    input: &mut Input<'_>,
    limit_bytes: u64,
) -> Result<Vec<u8>, DecodeError> {
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
    // The claimed length is limited by `most`, which is in proportion to the stored bytes.
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    // One byte more than claimed shows a longer stream.
    (&mut decoder)
        .take(length.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|_| error(Damage::Compression))?;
    match (bytes.len() as u64).cmp(&length) {
        std::cmp::Ordering::Less => Err(error(Damage::Truncated)),
        std::cmp::Ordering::Equal if decoder.into_inner().is_empty() => Ok(bytes),
        _ => Err(error(Damage::TrailingBytes)),
    }
}

/// Most bytes of a column of this many entries.
pub(super) fn column_bytes(entries: u64) -> Result<u64, Damage> {
    if entries > MAX_ENTRIES {
        Err(Damage::Count { count: entries })
    } else {
        Ok(entries * ENTRY_BYTES)
    }
}

/// The number of entries, if columns of this many bytes can hold them: each entry has at least one
/// byte in each column.
pub(super) fn capacity(entries: u64, columns: &[&Vec<u8>]) -> Result<usize, Damage> {
    let fits = |entries: &usize| columns.iter().all(|column| *entries <= column.len());
    usize::try_from(entries).ok().filter(fits).ok_or(Damage::Count { count: entries })
}

/// Reads the next number of a column. An offset in a compressed column says nothing, so errors have
/// `at`, the offset of the columns.
#[inline]
pub(super) fn column(input: &mut Input<'_>, at: usize) -> Result<u64, DecodeError> {
    match input.varint() {
        Ok(value) => Ok(value),
        Err(error) => Err(DecodeError { offset: at, ..error }),
    }
}

pub(super) fn ended(columns: &[Input<'_>], at: usize) -> Result<(), DecodeError> {
    columns.iter().try_for_each(Input::end).map_err(|error| DecodeError { offset: at, ..error })
}
