//! The segments of a copy of an epoch, and of an epoch that several are merged into. They keep the
//! slices of time of what they are made of, so that a stretch of time has the same counts.

use model::Ledgers;

use crate::description::EpochMeta;
use crate::error::DbError;
use crate::fold::SEGMENTS_MAX;
use crate::reader::Epoch;
use crate::segment::Span;

/// A segment to write.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) span: Span,
    /// The description of the epoch as of the last merge of the span.
    pub(super) meta: EpochMeta,
    /// The merges whose counts the segment has. None if it only ends a period without samples.
    pub(super) parts: Vec<Epoch>,
}

/// The segments of a copy of an epoch, whose description in the target is `whole`; `there` are the
/// segments that the target has of it. A segment keeps its merges, unless one in the target has
/// merges of it and of the next: these two become one, which covers that of the target.
///
/// # Errors
/// [`DbError::Corrupt`].
pub(super) fn of_copy(
    source: &Epoch,
    whole: &EpochMeta,
    there: &[Span],
) -> Result<Vec<Piece>, DbError> {
    let mut pieces: Vec<Piece> = Vec::new();
    for (span, part) in source.apart()? {
        let meta = part.meta().clone();
        let is_across = |end: u64| there.iter().any(|of| of.first <= end && end < of.last);
        match pieces.last_mut().filter(|last| is_across(last.span.last)) {
            Some(last) => {
                (last.span.last, last.meta) = (span.last, meta);
                last.parts.push(part);
            }
            None => pieces.push(Piece { span, meta, parts: vec![part] }),
        }
    }
    // A part of an epoch is copied as if it were all.
    if let Some(first) = pieces.first_mut() {
        first.span.first = 0;
    }
    if let Some(last) = pieces.last_mut() {
        last.span.last = whole.merges;
    }
    describe(&mut pieces, whole);
    Ok(pieces)
}

/// The segments of an epoch that has the counts of several. Overlapping slices become one, because
/// the time of a count within its slice is unknown. `whole` is the description of all, whose number
/// of merges is the number of segments.
///
/// # Errors
/// [`DbError::Corrupt`].
pub(super) fn of_merge(sources: &[Epoch], whole: &mut EpochMeta) -> Result<Vec<Piece>, DbError> {
    let mut parts: Vec<Epoch> = Vec::new();
    for source in sources {
        parts.extend(source.apart()?.into_iter().map(|(_, part)| part));
    }
    parts.sort_by_key(|part| (part.meta().started_unix_s, part.meta().updated_unix_s));
    let mut slices = slices(parts, whole.started_unix_s);
    while slices.len() > SEGMENTS_MAX {
        slices = halved(slices);
    }
    whole.merges = slices.len() as u64;
    let piece = |(merge, slice): (u64, Slice)| Piece {
        // Merge 0, the start of the epoch, is in the first segment.
        span: Span { first: if merge == 1 { 0 } else { merge }, last: merge },
        meta: EpochMeta { updated_unix_s: slice.until_unix_s, ..whole.clone() },
        parts: slice.parts,
    };
    let mut pieces: Vec<Piece> = (1..).zip(slices).map(piece).collect();
    describe(&mut pieces, whole);
    Ok(pieces)
}

/// What was counted from the end of the slice before to a time, in seconds since 1970 UTC.
struct Slice {
    until_unix_s: u64,
    parts: Vec<Epoch>,
}

/// The slices of parts that are in order of time. An epoch begins where its first slice does.
fn slices(parts: Vec<Epoch>, began_unix_s: u64) -> Vec<Slice> {
    let mut slices: Vec<Slice> = Vec::new();
    for part in parts {
        let (since, until) = (part.meta().started_unix_s, part.meta().updated_unix_s);
        let end = slices.last().map_or(began_unix_s, |last| last.until_unix_s);
        // A part without a time of its own is the rest of the merge before it.
        let is_of = |last: &&mut Slice| since < last.until_unix_s || until == last.until_unix_s;
        if let Some(last) = slices.last_mut().filter(is_of) {
            last.until_unix_s = last.until_unix_s.max(until);
            last.parts.push(part);
            continue;
        }
        if end < since {
            slices.push(Slice { until_unix_s: since, parts: Vec::new() });
        }
        slices.push(Slice { until_unix_s: until, parts: vec![part] });
    }
    slices
}

/// Half as many slices, each of two that follow one another.
fn halved(slices: Vec<Slice>) -> Vec<Slice> {
    let mut half: Vec<Slice> = Vec::with_capacity(slices.len().div_ceil(2));
    for (at, slice) in slices.into_iter().enumerate() {
        match half.last_mut().filter(|_| at % 2 == 1) {
            Some(last) => {
                last.until_unix_s = slice.until_unix_s;
                last.parts.extend(slice.parts);
            }
            None => half.push(slice),
        }
    }
    half
}

/// Gives each segment the description as of its end: of an epoch that ended there, so that an epoch
/// of which only the first segments are there is whole, too.
fn describe(pieces: &mut [Piece], whole: &EpochMeta) {
    let mut ledgers = Ledgers::default();
    let count = pieces.len();
    for (at, piece) in pieces.iter_mut().enumerate() {
        piece.parts.iter().for_each(|part| ledgers.add(&part.meta().ledgers));
        if at + 1 == count {
            piece.meta = whole.clone();
            continue;
        }
        piece.meta = EpochMeta {
            host: whole.host.clone(),
            epoch: whole.epoch.clone(),
            label: whole.label.clone(),
            started_unix_s: whole.started_unix_s,
            ended_unix_s: Some(piece.meta.updated_unix_s),
            merges: piece.span.last,
            events: whole.events.clone(),
            ledgers: ledgers.clone(),
            covered: None,
            ..piece.meta.clone()
        };
    }
}
