//! The segments of a copy of an epoch, and of an epoch that several are merged into. They keep the
//! slices of time of what they are made of, so that a stretch of time has the same counts.

use model::Ledgers;

use crate::description::EpochMeta;
use crate::error::DbError;
use crate::fold::SEGMENTS_MAX;
use crate::reader::Epoch;
use crate::segment::Span;
use crate::shapes::SLICES_MAX;
use crate::slices::{Plan, Slice};

/// A segment to write.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) span: Span,
    /// The description of the epoch as of the last merge of the span.
    pub(super) meta: EpochMeta,
    /// The merges whose counts the segment has. None if it only ends a period without samples.
    pub(super) parts: Vec<Epoch>,
    /// The slices of the segment, each with the ledgers of the epoch as of its end, and which of
    /// them each slice of a part becomes.
    pub(super) plan: Plan,
}

impl Piece {
    pub(super) fn new(span: Span, meta: EpochMeta, parts: Vec<Epoch>) -> Self {
        Self { span, meta, parts, plan: Plan::default() }
    }

    /// The same segment with all its time in one slice.
    pub(super) fn as_one(&self) -> Self {
        Self::new(self.span, self.meta.clone(), self.parts.clone())
    }
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
            None => pieces.push(Piece::new(span, meta, vec![part])),
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

/// The segments of an epoch that has the counts of several. Overlapping segments become one, and so
/// do overlapping slices, because the time of a count within its slice is unknown. `whole` is the
/// description of all, whose number of merges is the number of segments.
///
/// # Errors
/// [`DbError::Corrupt`].
pub(super) fn of_merge(sources: &[Epoch], whole: &mut EpochMeta) -> Result<Vec<Piece>, DbError> {
    let mut parts: Vec<Epoch> = Vec::new();
    for source in sources {
        parts.extend(source.apart()?.into_iter().map(|(_, part)| part));
    }
    parts.sort_by_key(|part| (part.meta().started_unix_s, part.meta().updated_unix_s));
    let mut groups = groups(parts, whole.started_unix_s);
    while groups.len() > SEGMENTS_MAX {
        groups = halved(groups);
    }
    whole.merges = groups.len() as u64;
    let piece = |(merge, group): (u64, Group)| {
        // Merge 0, the start of the epoch, is in the first segment.
        let span = Span { first: if merge == 1 { 0 } else { merge }, last: merge };
        let meta = EpochMeta { updated_unix_s: group.until_unix_s, ..whole.clone() };
        Piece::new(span, meta, group.parts)
    };
    let mut pieces: Vec<Piece> = (1..).zip(groups).map(piece).collect();
    describe(&mut pieces, whole);
    Ok(pieces)
}

/// What was counted from the end of the group before to a time, in seconds since 1970 UTC.
struct Group {
    until_unix_s: u64,
    parts: Vec<Epoch>,
}

/// The groups of parts that are in order of time. An epoch begins where its first group does.
fn groups(parts: Vec<Epoch>, began_unix_s: u64) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for part in parts {
        let (since, until) = (part.meta().started_unix_s, part.meta().updated_unix_s);
        let end = groups.last().map_or(began_unix_s, |last| last.until_unix_s);
        // A part without a time of its own is the rest of the merge before it.
        let is_of = |last: &&mut Group| since < last.until_unix_s || until == last.until_unix_s;
        if let Some(last) = groups.last_mut().filter(is_of) {
            last.until_unix_s = last.until_unix_s.max(until);
            last.parts.push(part);
            continue;
        }
        if end < since {
            groups.push(Group { until_unix_s: since, parts: Vec::new() });
        }
        groups.push(Group { until_unix_s: until, parts: vec![part] });
    }
    groups
}

/// Half as many groups, each of two that follow one another.
fn halved(groups: Vec<Group>) -> Vec<Group> {
    let mut half: Vec<Group> = Vec::with_capacity(groups.len().div_ceil(2));
    for (at, group) in groups.into_iter().enumerate() {
        match half.last_mut().filter(|_| at % 2 == 1) {
            Some(last) => {
                last.until_unix_s = group.until_unix_s;
                last.parts.extend(group.parts);
            }
            None => half.push(group),
        }
    }
    half
}

/// A slice of one of several parts.
struct Own {
    since_unix_s: u64,
    /// The slice, with what it added to the ledgers.
    slice: Slice,
    part: usize,
    number: usize,
}

/// The slices of a segment with these parts, each with what it adds to the ledgers. Slices that
/// overlap become one.
fn plan(parts: &[Epoch]) -> Plan {
    let mut all: Vec<Own> = Vec::new();
    let mut plan = Plan { slices: Vec::new(), of: Vec::with_capacity(parts.len()) };
    for (part, epoch) in parts.iter().enumerate() {
        let own = epoch.counted_slices();
        plan.of.push(vec![0; own.len()]);
        let own = own.into_iter().enumerate();
        all.extend(own.map(|(number, (stretch, slice))| Own {
            since_unix_s: stretch.since_unix_s,
            slice,
            part,
            number,
        }));
    }
    all.sort_by_key(|own| (own.since_unix_s, own.slice.until_unix_s));
    for Own { since_unix_s, slice, part, number } in all {
        match plan.slices.last_mut() {
            Some(last)
                if since_unix_s < last.until_unix_s || slice.until_unix_s == last.until_unix_s =>
            {
                last.until_unix_s = last.until_unix_s.max(slice.until_unix_s);
                last.ledgers.add(&slice.ledgers);
                last.counts |= slice.counts;
            }
            _ => plan.slices.push(slice),
        }
        if let Some(of) = plan.of.get_mut(part).and_then(|of| of.get_mut(number)) {
            *of = plan.slices.len() - 1;
        }
    }
    while plan.slices.len() > SLICES_MAX {
        plan.halve();
    }
    plan
}

/// Gives each segment the description as of its end: of an epoch that ended there, so that an epoch
/// of which only the first segments are there is whole, too.
fn describe(pieces: &mut [Piece], whole: &EpochMeta) {
    let mut ledgers = Ledgers::default();
    let count = pieces.len();
    for (at, piece) in pieces.iter_mut().enumerate() {
        piece.plan = plan(&piece.parts);
        let mut as_of = ledgers.clone();
        for slice in &mut piece.plan.slices {
            as_of.add(&slice.ledgers);
            slice.ledgers.clone_from(&as_of);
        }
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
