//! Adds sections of several segments up to one: for reading an epoch, for folding its segments, and
//! for merging epochs.

use std::collections::BTreeMap;

use image::ImageId;
use model::{Counts, Shape, Stacks};

use crate::codec::{self, DecodeError, Input};
use crate::description::EpochMeta;
use crate::error::{Damage, DbError};
use crate::images::{self, ImageRecord};
use crate::segment::{Section, SectionKey, SectionKind, Segment};
use crate::shapes::{self, put_block, take_block};
use crate::stacks::fitting;
use crate::symbols::{self, Symbol};

/// A section that is ready for a new segment.
#[derive(Debug, Default)]
pub(crate) struct Joined {
    pub(crate) entries: u64,
    pub(crate) total: u64,
    pub(crate) bytes: Vec<u8>,
}

/// The sections of that key in all segments that have one.
pub(crate) fn found<'a>(
    segments: &'a [impl AsRef<Segment>],
    key: &SectionKey,
) -> Vec<(&'a Segment, &'a Section)> {
    let segments = segments.iter().map(AsRef::as_ref);
    segments.filter_map(|segment| Some((segment, segment.section(key)?))).collect()
}

/// The sum of sections of one key, the latest last. A section that comes from one segment only is
/// copied unchanged.
///
/// # Errors
/// [`DbError::Corrupt`].
pub(crate) fn join(key: &SectionKey, parts: &[(&Segment, &Section)]) -> Result<Joined, DbError> {
    let as_it_is = |(segment, section): &(&Segment, &Section)| {
        let bytes = segment.bytes(section)?.to_vec();
        Ok(Joined { entries: section.entries, total: section.total, bytes })
    };
    if let (Some(shape), [_, _, ..]) = (key.kind.shape(), parts) {
        return Ok(counts_section(&counts(shape, parts)?));
    }
    match (key.kind, parts) {
        (_, []) => Ok(Joined::default()),
        // The latest description replaces all earlier ones.
        (SectionKind::META, [.., last]) => as_it_is(last),
        (SectionKind::IMAGES, parts) if parts.len() > 1 => {
            let records = records(parts)?;
            images_section(&records).map_err(|damage| unwritable(parts, damage))
        }
        (SectionKind::SYMBOLS, parts) if parts.len() > 1 => {
            let image = key.image.ok_or_else(|| unwritable(parts, Damage::Name))?;
            Ok(symbols_section(&image, &symbols(&image, parts)?))
        }
        (SectionKind::STACKS, parts) if parts.len() > 1 => Ok(stacks_section(stacks(parts)?)),
        (_, [.., last]) => as_it_is(last),
    }
}

/// The error for a section of a kind that may not be there.
fn unwritable(parts: &[(&Segment, &Section)], damage: Damage) -> DbError {
    match parts.last() {
        Some((segment, section)) => segment.corrupt(section, DecodeError { offset: 0, damage }),
        None => DbError::Corrupt { path: std::path::PathBuf::new(), offset: 0, damage },
    }
}

/// The sum of the counts in sections of one key; counts of another shape are damage.
pub(crate) fn counts(shape: Shape, parts: &[(&Segment, &Section)]) -> Result<Counts, DbError> {
    let mut sum = Counts::none(shape);
    for (segment, section) in parts {
        let one = segment.decode(section, |bytes| {
            let counts = shapes::decode(shape, bytes, section.entries)?;
            fits(counts.total(), section)?;
            Ok(counts)
        })?;
        if sum.is_empty() {
            sum = one;
        } else if !sum.merge(&one) {
            return Err(
                segment.corrupt(section, DecodeError { offset: 0, damage: Damage::Misplaced })
            );
        }
    }
    Ok(sum)
}

/// The sum of the stacks in sections of one key.
pub(crate) fn stacks(parts: &[(&Segment, &Section)]) -> Result<Stacks, DbError> {
    let mut sum = Stacks::new();
    for (segment, section) in parts {
        let one = segment.decode(section, |bytes| {
            let stacks = shapes::decode_stacks(bytes, section.entries)?;
            fits(stacks.total().stacks, section)?;
            Ok(stacks)
        })?;
        if sum.is_empty() {
            sum = one;
        } else {
            sum.merge(&one);
        }
    }
    Ok(sum)
}

/// Checks that the directory has the same sum as the section.
fn fits(total: u64, section: &Section) -> Result<(), DecodeError> {
    if total == section.total {
        return Ok(());
    }
    Err(DecodeError { offset: 0, damage: Damage::Total { found: total, expected: section.total } })
}

/// Images, each with its latest record.
pub(crate) fn records(
    parts: &[(&Segment, &Section)],
) -> Result<BTreeMap<ImageId, ImageRecord>, DbError> {
    let mut all = BTreeMap::new();
    for (segment, section) in parts {
        let some = segment.decode(section, |bytes| {
            let some = images::decode(&json(bytes)?).map_err(json_damage)?;
            counted(some.len(), section)?;
            Ok(some)
        })?;
        images::absorb(&mut all, &some);
    }
    Ok(all)
}

/// Symbols; of two with one start, the later one.
pub(crate) fn symbols(
    image: &ImageId,
    parts: &[(&Segment, &Section)],
) -> Result<Vec<Symbol>, DbError> {
    let mut all = Vec::new();
    for (segment, section) in parts {
        let some = segment.decode(section, |bytes| {
            let some = codec::decode_symbols(image, &json(bytes)?)
                .map_err(|inner| DecodeError { offset: 0, ..inner })?;
            counted(some.len(), section)?;
            Ok(some)
        })?;
        all = symbols::join(all, &some);
    }
    Ok(all)
}

fn counted(entries: usize, section: &Section) -> Result<(), DecodeError> {
    if entries as u64 == section.entries {
        return Ok(());
    }
    Err(DecodeError { offset: 0, damage: Damage::Count { count: section.entries } })
}

/// The description in a segment; None where the segment has none.
pub(crate) fn meta(segment: &Segment) -> Result<Option<EpochMeta>, DbError> {
    let decode = |bytes: &[u8], _: &Section| {
        let meta: EpochMeta = serde_json::from_slice(&json(bytes)?)
            .map_err(|error| json_damage(Damage::Json(error)))?;
        // A merge always belongs to the segment that has its number.
        let is_last = meta.merges == segment.span.last && meta.merges < u64::MAX;
        if meta.host == segment.host && meta.epoch == segment.epoch && is_last {
            return Ok(meta);
        }
        Err(DecodeError { offset: 0, damage: Damage::Misplaced })
    };
    segment.find(&SectionKey::only(SectionKind::META), decode)
}

/// The section of a profile.
pub(crate) fn counts_section(counts: &Counts) -> Joined {
    Joined { entries: counts.len() as u64, total: counts.total(), bytes: shapes::encode(counts) }
}

/// The section of an event's stacks, within the limits of a segment.
pub(crate) fn stacks_section(stacks: Stacks) -> Joined {
    let stacks = fitting(stacks);
    let (bytes, entries) = shapes::encode_stacks(&stacks);
    Joined { entries, total: stacks.total().stacks, bytes }
}

pub(crate) fn images_section(records: &BTreeMap<ImageId, ImageRecord>) -> Result<Joined, Damage> {
    Ok(Joined { entries: records.len() as u64, total: 0, bytes: block(&images::encode(records)?) })
}

/// The section of an image's symbols, which must be in the form that [`symbols::join`] makes.
pub(crate) fn symbols_section(image: &ImageId, symbols: &[Symbol]) -> Joined {
    let bytes = block(&codec::encode_symbols(image, symbols));
    Joined { entries: symbols.len() as u64, total: 0, bytes }
}

/// The section of the description.
pub(crate) fn meta_section(meta: &EpochMeta) -> Result<Joined, Damage> {
    let json = serde_json::to_vec(meta).map_err(Damage::Json)?;
    Ok(Joined { entries: 0, total: 0, bytes: block(&json) })
}

/// One block.
pub(crate) fn block(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_block(&mut out, bytes);
    out
}

/// The content of a section that is one block.
pub(crate) fn json(section: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let mut input = Input::new(section);
    let bytes = take_block(&mut input)?;
    input.end()?;
    Ok(bytes)
}

/// An offset in compressed JSON says nothing, so none is given.
pub(crate) const fn json_damage(damage: Damage) -> DecodeError {
    DecodeError { offset: 0, damage }
}
