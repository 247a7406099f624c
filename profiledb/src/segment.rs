//! Segments: files that each hold the additions of some adjacent merges of an epoch. An epoch is
//! the sum of its segments.

use std::ops::Range;
use std::path::{Path, PathBuf};

use image::ImageId;
use model::{EDGES, FIRST_EDGES, Measure, ROUNDS, Shape, Weight};

use crate::codec::{self, DecodeError, Input, put_text, put_varint};
use crate::description::EventMeta;
use crate::envelope::{self, HEADER_BYTES, Kind};
use crate::epoch::EpochId;
use crate::error::{Damage, DbError};
use crate::naming::{self, ProfileKey};
use crate::scope::Scope;
use crate::shapes::{MAX_ENTRIES, PREALLOCATED_ENTRIES, put_block, take_block_of};
use crate::stacks::StacksKey;
use crate::storage::Disk;

/// Suffix of a segment's name.
const SUFFIX: &str = ".segment";
/// Length of the directory, and checksum of both.
const PREFIX_BYTES: usize = 8;
/// Most bytes of a directory, unpacked: about 200000 sections. The limit bounds the memory that a
/// damaged file can cost.
const MAX_DIRECTORY_BYTES: u64 = 4 << 20;

/// The merges of a segment: all from `first` to `last`. Merge 0 is the epoch's begin.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    pub(crate) first: u64,
    pub(crate) last: u64,
}

impl Span {
    pub(crate) const fn one(merge: u64) -> Self {
        Self { first: merge, last: merge }
    }

    /// The name of the segment's file.
    pub(crate) fn name(self) -> String {
        format!("{}-{}{SUFFIX}", self.first, self.last)
    }

    /// The span in a file's name; None when [`Span::name`] does not make the name.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let (first, last) = name.strip_suffix(SUFFIX)?.split_once('-')?;
        let span = Self { first: first.parse().ok()?, last: last.parse().ok()? };
        (span.first <= span.last && span.name() == name).then_some(span)
    }

    /// Whether the span has all merges of `other`.
    pub(crate) const fn covers(self, other: Self) -> bool {
        self.first <= other.first && other.last <= self.last
    }
}

/// The segments to add up, and the merges that no segment has. A wider segment replaces all
/// segments that it covers.
pub(crate) fn cover(mut spans: Vec<Span>) -> (Vec<Span>, Vec<Span>) {
    // Among segments with the same start, the widest comes first.
    spans.sort_by_key(|span| (span.first, std::cmp::Reverse(span.last)));
    let (mut taken, mut missing): (Vec<Span>, Vec<Span>) = (Vec::new(), Vec::new());
    let mut next = 0_u64;
    for span in spans {
        // The segment begins inside one that is taken: it is covered, or no segment of ours.
        if span.first < next || taken.last().is_some_and(|last| last.last >= span.first) {
            continue;
        }
        if span.first > next {
            missing.push(Span { first: next, last: span.first - 1 });
        }
        taken.push(span);
        next = span.last.saturating_add(1);
    }
    (taken, missing)
}

/// Kinds of sections. A section of an unknown number is of a later release and is skipped.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SectionKind(pub(crate) u64);

impl SectionKind {
    /// The epoch's description as of the segment's last merge: JSON.
    pub(crate) const META: Self = Self(1);
    /// Images that were new or changed: JSON.
    pub(crate) const IMAGES: Self = Self(2);
    /// Counts by place in one image: samples of one event, unless no event has that name.
    pub(crate) const SAMPLES: Self = Self(3);
    /// Symbols of one image.
    pub(crate) const SYMBOLS: Self = Self(4);
    /// Counts by two places of one image: edges, unless the section names a measure.
    pub(crate) const PAIRS: Self = Self(5);
    /// First edges. Only measures of release 0.1 have kinds of their own: see [`SectionKey::of`].
    pub(crate) const FIRST_EDGES: Self = Self(6);
    /// Numbers at places of one image: rounds, unless the section names a measure.
    pub(crate) const VALUES: Self = Self(7);
    /// Call stacks of one event.
    pub(crate) const STACKS: Self = Self(8);
    /// The slices of the segment's time, where these are several: JSON.
    pub(crate) const SLICES: Self = Self(9);
    /// The timing of a section of counts or stacks has that section's kind and this.
    const TIMING: u64 = 16;

    /// The kind of the timing of such a section.
    pub(crate) const fn timing(self) -> Self {
        Self(self.0.saturating_add(Self::TIMING))
    }

    /// The kind of the sections whose timing such a section has; None for another kind.
    pub(crate) fn of_timing(self) -> Option<Self> {
        self.0.checked_sub(Self::TIMING).map(Self).filter(|of| of.is_timed())
    }

    /// Whether such a section has a timing in segments of several slices.
    pub(crate) fn is_timed(self) -> bool {
        self.shape().is_some() || self == Self::STACKS
    }

    /// The shape of the counts in such a section; None for a kind without counts.
    pub(crate) const fn shape(self) -> Option<Shape> {
        match self {
            Self::SAMPLES => Some(Shape::Places),
            Self::PAIRS | Self::FIRST_EDGES => Some(Shape::Pairs),
            Self::VALUES => Some(Shape::Values),
            _ => None,
        }
    }

    /// Whether this release can add up two sections of the kind.
    pub(crate) fn is_known(self) -> bool {
        (Self::META..=Self::SLICES).contains(&self) || self.of_timing().is_some()
    }
}

/// Measures that release 0.1 wrote without names, each with the kind of its section.
static NAMELESS: [(SectionKind, &Measure); 3] = [
    (SectionKind::PAIRS, &EDGES),
    (SectionKind::FIRST_EDGES, &FIRST_EDGES),
    (SectionKind::VALUES, &ROUNDS),
];

/// Identity of a section. The order of keys is that of sections in a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SectionKey {
    pub(crate) kind: SectionKind,
    pub(crate) image: Option<ImageId>,
    /// Name of the event or measure; empty: none.
    pub(crate) event: String,
    /// Sampling period. 0: the described period of the event or, where no event has the name,
    /// none.
    pub(crate) period: u64,
    pub(crate) scope: Scope,
}

impl SectionKey {
    /// The key of a section that a segment has once.
    pub(crate) fn only(kind: SectionKind) -> Self {
        Self { kind, image: None, event: String::new(), period: 0, scope: Scope::default() }
    }

    /// The key of the timing of a section.
    pub(crate) fn timing(&self) -> Self {
        Self { kind: self.kind.timing(), ..self.clone() }
    }

    /// The key of a section that a segment has once for an image.
    pub(crate) fn of_image(kind: SectionKind, image: ImageId) -> Self {
        Self { image: Some(image), ..Self::only(kind) }
    }

    /// The section of an event's stacks.
    pub(crate) fn of_stacks(key: &StacksKey) -> Self {
        let (event, scope) = (key.event.clone(), key.scope.clone());
        Self { event, scope, ..Self::only(SectionKind::STACKS) }
    }

    /// Event and scope of a section of call stacks; None for a section of another kind, and for a
    /// section that names no event.
    pub(crate) fn stacks(&self) -> Option<StacksKey> {
        let is_stacks = self.kind == SectionKind::STACKS
            && self.image.is_none()
            && self.period == 0
            && !self.event.is_empty();
        is_stacks.then(|| StacksKey { event: self.event.clone(), scope: self.scope.clone() })
    }

    /// The section of a profile in an epoch of these events.
    pub(crate) fn of(key: &ProfileKey, events: &[EventMeta]) -> Self {
        let (image, scope) = (Some(key.image), key.scope.clone());
        if let Some((kind, _)) = NAMELESS.iter().find(|(_, measure)| **measure == key.measure) {
            return Self { kind: *kind, image, event: String::new(), period: 0, scope };
        }
        let kind = match key.measure.shape {
            Shape::Places => SectionKind::SAMPLES,
            Shape::Pairs => SectionKind::PAIRS,
            Shape::Values => SectionKind::VALUES,
        };
        let described = described_period(events, key.name());
        let period = key.measure.period().filter(|period| described != Some(*period)).unwrap_or(0);
        Self { kind, image, event: key.name().to_owned(), period, scope }
    }

    /// The profile of the section, in an epoch of these events; None for a section that is not a
    /// profile.
    pub(crate) fn profile(&self, events: &[EventMeta]) -> Option<ProfileKey> {
        let (image, shape) = (self.image?, self.kind.shape()?);
        let nameless = || {
            NAMELESS
                .iter()
                .find(|(kind, _)| *kind == self.kind)
                .map(|(_, measure)| (*measure).clone())
        };
        let measure = match (self.event.as_str(), self.period) {
            ("", _) => nameless()?,
            (name, period) => {
                let period = Some(period)
                    .filter(|period| *period > 0)
                    .or_else(|| described_period(events, name));
                Measure {
                    name: name.to_owned().into(),
                    shape,
                    weight: period.map_or(Weight::One, Weight::Period),
                }
            }
        };
        Some(ProfileKey { image, measure, scope: self.scope.clone() })
    }
}

/// The period of an event in the description; None for an event that the description does not have.
pub(crate) fn described_period(events: &[EventMeta], name: &str) -> Option<u64> {
    events.iter().find(|event| event.name == name).map(|event| event.period)
}

/// A section, as described in the directory.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    pub(crate) key: SectionKey,
    /// Distinct observations of a profile, records of images, symbols, or nodes of stacks; 0 for
    /// the description.
    pub(crate) entries: u64,
    /// Sum of a profile's counts, or number of stacks; else 0.
    pub(crate) total: u64,
    /// Bytes of the section in the file.
    pub(crate) range: Range<usize>,
    checksum: u32,
}

/// A segment whose directory fits its checksum. Sections are checked when they are read.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) path: PathBuf,
    pub(crate) span: Span,
    pub(crate) host: String,
    pub(crate) epoch: EpochId,
    pub(crate) sections: Vec<Section>,
    file: Vec<u8>,
}

impl Segment {
    /// The bytes of the file.
    pub(crate) fn file(&self) -> &[u8] {
        &self.file
    }

    /// Reads the segment of that span in an epoch's directory; None when there is no such file, or
    /// not any more.
    pub(crate) fn read(
        disk: &Disk,
        directory: &Path,
        span: Span,
        of: (&str, &EpochId),
    ) -> Result<Option<Self>, DbError> {
        let path = directory.join(span.name());
        let Some(file) = disk.read_if_there(&path)? else { return Ok(None) };
        let segment = Self::parse(path, file)?;
        if segment.span != span || segment.host != of.0 || segment.epoch != *of.1 {
            let offset = (HEADER_BYTES + PREFIX_BYTES) as u64;
            return Err(DbError::Corrupt { path: segment.path, offset, damage: Damage::Misplaced });
        }
        Ok(Some(segment))
    }

    /// The segment in a file of these bytes.
    pub(crate) fn parse(path: PathBuf, file: Vec<u8>) -> Result<Self, DbError> {
        match parse_directory(&file) {
            Ok((span, host, epoch, sections)) => {
                Ok(Self { path, span, host, epoch, sections, file })
            }
            Err(Unreadable::Envelope(error)) => Err(error.of(&path)),
            Err(Unreadable::Directory(error)) => {
                let offset = (HEADER_BYTES + error.offset) as u64;
                Err(DbError::Corrupt { path, offset, damage: error.damage })
            }
        }
    }

    /// Bytes of the file.
    pub(crate) fn len(&self) -> u64 {
        self.file.len() as u64
    }

    /// Checks every byte, for copying.
    pub(crate) fn check_whole(&self) -> Result<(), DbError> {
        envelope::open_as(Kind::Segment, &self.file)
            .map(|_| ())
            .map_err(|error| error.of(&self.path))
    }

    /// The error of the first section whose bytes do not fit their checksum. The file is in memory,
    /// so checking takes a tenth of the time of reading it.
    pub(crate) fn damage(&self) -> Option<DbError> {
        self.sections.iter().find_map(|section| self.bytes(section).err())
    }

    pub(crate) fn section(&self, key: &SectionKey) -> Option<&Section> {
        let at = self.sections.binary_search_by(|section| section.key.cmp(key)).ok()?;
        self.sections.get(at)
    }

    /// The bytes of a section, if they fit their checksum.
    pub(crate) fn bytes(&self, section: &Section) -> Result<&[u8], DbError> {
        let bytes = self.file.get(section.range.clone()).unwrap_or_default();
        if crc32c::crc32c(bytes) == section.checksum {
            return Ok(bytes);
        }
        Err(self.corrupt(section, DecodeError { offset: 0, damage: Damage::Checksum }))
    }

    /// Decodes the content of a section.
    pub(crate) fn decode<T>(
        &self,
        section: &Section,
        decode: impl FnOnce(&[u8]) -> Result<T, DecodeError>,
    ) -> Result<T, DbError> {
        decode(self.bytes(section)?).map_err(|error| self.corrupt(section, error))
    }

    /// Decodes the section of that key, if there is one.
    pub(crate) fn find<T>(
        &self,
        key: &SectionKey,
        decode: impl FnOnce(&[u8], &Section) -> Result<T, DecodeError>,
    ) -> Result<Option<T>, DbError> {
        let Some(section) = self.section(key) else { return Ok(None) };
        self.decode(section, |bytes| decode(bytes, section)).map(Some)
    }

    /// The error for damage in a section.
    pub(crate) fn corrupt(&self, section: &Section, error: DecodeError) -> DbError {
        let offset = (section.range.start + error.offset) as u64;
        DbError::Corrupt { path: self.path.clone(), offset, damage: error.damage }
    }
}

enum Unreadable {
    Envelope(envelope::OpenError),
    Directory(DecodeError),
}

impl From<DecodeError> for Unreadable {
    fn from(error: DecodeError) -> Self {
        Self::Directory(error)
    }
}

type Parts = (Span, String, EpochId, Vec<Section>);

fn parse_directory(file: &[u8]) -> Result<Parts, Unreadable> {
    let payload = envelope::open_unsummed(Kind::Segment, file).map_err(Unreadable::Envelope)?;
    let mut input = Input::new(payload);
    let (length, checksum) =
        (input.fixed().map(u32::from_le_bytes)?, input.fixed().map(u32::from_le_bytes)?);
    let error = |damage| DecodeError { offset: PREFIX_BYTES, damage };
    let directory =
        usize::try_from(length).ok().and_then(|length| input.rest().split_at_checked(length));
    let (directory, body) = directory.ok_or_else(|| error(Damage::Truncated))?;
    if crc32c::crc32c_append(crc32c::crc32c(&length.to_le_bytes()), directory) != checksum {
        return Err(error(Damage::Checksum).into());
    }
    let mut input = Input::new(directory);
    let plain = take_block_of(&mut input, MAX_DIRECTORY_BYTES)
        .and_then(|plain| input.end().map(|()| plain));
    let plain =
        plain.map_err(|inner| DecodeError { offset: PREFIX_BYTES + inner.offset, ..inner })?;
    let begin = file.len() - body.len();
    // An offset in a compressed directory says nothing, so none is given.
    let parts = decode_directory(&plain, begin).map_err(|inner| error(inner.damage))?;
    let end = parts.3.last().map_or(begin, |section| section.range.end);
    match end.cmp(&file.len()) {
        std::cmp::Ordering::Greater => Err(error(Damage::Truncated).into()),
        std::cmp::Ordering::Less => Err(error(Damage::TrailingBytes).into()),
        std::cmp::Ordering::Equal => Ok(parts),
    }
}

/// Reads the directory, whose sections begin at `begin` in the file.
fn decode_directory(plain: &[u8], begin: usize) -> Result<Parts, DecodeError> {
    let mut input = Input::new(plain);
    let span = Span { first: input.varint()?, last: input.varint()? };
    let wrong = |damage| DecodeError { offset: 0, damage };
    let host = input.text()?.to_owned();
    let epoch: EpochId = input.text()?.parse().map_err(|_| wrong(Damage::Name))?;
    let images = ascending(&mut input, |input| {
        input.text()?.parse::<ImageId>().map_err(|_| wrong(Damage::Name))
    })?;
    let events = ascending(&mut input, |input| {
        let event = input.text()?;
        let event = naming::check_event(event)
            .map(|()| event.to_owned())
            .map_err(|_| wrong(Damage::Name))?;
        Ok((event, input.varint()?))
    })?;
    let scopes = ascending(&mut input, |input| {
        let scope = input.scope()?;
        let fine = !scope.is_empty() && scope.check().is_ok();
        if fine { Ok(scope) } else { Err(wrong(Damage::Name)) }
    })?;
    // Each entry has seven varints of at least a byte, and a checksum.
    let count = input.count(11)?;
    let mut sections: Vec<Section> = Vec::with_capacity(count.min(PREALLOCATED_ENTRIES));
    let mut at = begin;
    for _ in 0..count {
        let kind = SectionKind(input.varint()?);
        let image = chosen(&mut input, &images)?;
        let (event, period) = chosen(&mut input, &events)?.unwrap_or_default();
        let scope = chosen(&mut input, &scopes)?.unwrap_or_default();
        let key = SectionKey { kind, image, event, period, scope };
        let (entries, total, length) = (input.varint()?, input.varint()?, input.varint()?);
        let checksum = input.fixed().map(u32::from_le_bytes)?;
        let end = usize::try_from(length).ok().and_then(|length| at.checked_add(length));
        let end = end.ok_or_else(|| wrong(Damage::Count { count: length }))?;
        if sections.last().is_some_and(|last| last.key >= key) {
            return Err(wrong(Damage::Order));
        }
        sections.push(Section { key, entries, total, range: at..end, checksum });
        at = end;
    }
    input.end()?;
    Ok((span, host, epoch, sections))
}

fn ascending<T: Ord>(
    input: &mut Input<'_>,
    mut one: impl FnMut(&mut Input<'_>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let count = input.count(1)?;
    let mut all = Vec::new();
    for _ in 0..count {
        let next = one(input)?;
        if all.last().is_some_and(|last| *last >= next) {
            return Err(DecodeError { offset: input.offset(), damage: Damage::Order });
        }
        all.push(next);
    }
    Ok(all)
}

/// The entry of a table with this number, counted from 1; None for 0.
fn chosen<T: Clone>(input: &mut Input<'_>, table: &[T]) -> Result<Option<T>, DecodeError> {
    let at = input.offset();
    let number = input.varint()?;
    let Some(index) = number.checked_sub(1) else { return Ok(None) };
    let entry = usize::try_from(index).ok().and_then(|index| table.get(index));
    entry
        .cloned()
        .map(Some)
        .ok_or(DecodeError { offset: at, damage: Damage::Count { count: number } })
}

/// A segment under construction.
#[derive(Debug)]
pub(crate) struct SegmentBuilder {
    span: Span,
    host: String,
    epoch: EpochId,
    sections: Vec<Section>,
    body: Vec<u8>,
}

impl SegmentBuilder {
    /// A segment without sections, of these merges.
    pub(crate) const fn new(span: Span, host: String, epoch: EpochId) -> Self {
        Self { span, host, epoch, sections: Vec::new(), body: Vec::new() }
    }

    /// The same segment without sections.
    pub(crate) fn emptied(&self) -> Self {
        Self::new(self.span, self.host.clone(), self.epoch.clone())
    }

    /// Adds a section. Sections must be added in the order of their keys.
    pub(crate) fn push(&mut self, key: SectionKey, entries: u64, total: u64, bytes: &[u8]) {
        let begin = self.body.len();
        self.body.extend_from_slice(bytes);
        let (range, checksum) = (begin..self.body.len(), crc32c::crc32c(bytes));
        self.sections.push(Section { key, entries, total, range, checksum });
    }

    /// The bytes of the file, which is to be in this directory. Sections are moved, so nothing is
    /// in memory twice.
    ///
    /// # Errors
    /// [`DbError::TooMany`] for a segment that no reader would accept.
    pub(crate) fn finish(self, epoch: &Path) -> Result<Vec<u8>, DbError> {
        let too_many = |what, count, limit| DbError::TooMany {
            path: epoch.join(self.span.name()),
            what,
            count,
            limit,
        };
        let most = self.sections.iter().map(|section| section.entries).max().unwrap_or(0);
        if most > MAX_ENTRIES {
            return Err(too_many("entries in one section", most, MAX_ENTRIES));
        }
        let plain = self.directory();
        if plain.len() as u64 > MAX_DIRECTORY_BYTES {
            return Err(too_many(
                "bytes in its directory",
                plain.len() as u64,
                MAX_DIRECTORY_BYTES,
            ));
        }
        let mut directory = Vec::new();
        put_block(&mut directory, &plain);
        let length = u32::try_from(directory.len()).unwrap_or(u32::MAX).to_le_bytes();
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&length), &directory).to_le_bytes();
        let before = [&length[..], &checksum, &directory].concat();
        let mut file = self.body;
        let sum = crc32c::crc32c_append(crc32c::crc32c(&before), &file);
        let mut head = envelope::header(Kind::Segment, (before.len() + file.len()) as u64, sum);
        head.extend_from_slice(&before);
        // If the vector grew by itself, it would reserve twice the memory.
        file.reserve_exact(head.len());
        drop(file.splice(0..0, head));
        Ok(file)
    }

    fn directory(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, self.span.first);
        put_varint(&mut out, self.span.last);
        put_text(&mut out, &self.host);
        put_text(&mut out, self.epoch.as_str());
        let images = table(self.sections.iter().filter_map(|section| section.key.image));
        let events = self.sections.iter().map(|section| (&section.key.event, section.key.period));
        let events = table(events.filter(|(event, _)| !event.is_empty()));
        let scopes = table(
            self.sections
                .iter()
                .map(|section| &section.key.scope)
                .filter(|scope| !scope.is_empty()),
        );
        put_varint(&mut out, images.len() as u64);
        images.iter().for_each(|image| put_text(&mut out, &image.to_string()));
        put_varint(&mut out, events.len() as u64);
        for (event, period) in &events {
            put_text(&mut out, event);
            put_varint(&mut out, *period);
        }
        put_varint(&mut out, scopes.len() as u64);
        scopes.iter().for_each(|scope| codec::put_scope(&mut out, scope));
        put_varint(&mut out, self.sections.len() as u64);
        for section in &self.sections {
            put_varint(&mut out, section.key.kind.0);
            put_varint(&mut out, section.key.image.map_or(0, |image| number(&images, &image)));
            put_varint(&mut out, number(&events, &(&section.key.event, section.key.period)));
            put_varint(&mut out, number(&scopes, &&section.key.scope));
            put_varint(&mut out, section.entries);
            put_varint(&mut out, section.total);
            put_varint(&mut out, section.range.len() as u64);
            out.extend_from_slice(&section.checksum.to_le_bytes());
        }
        out
    }
}

fn table<T: Ord>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut table: Vec<T> = all.collect();
    table.sort();
    table.dedup();
    table
}

/// Number of an entry, counted from 1; 0 when the entry is not in the table.
fn number<T: Ord>(table: &[T], entry: &T) -> u64 {
    table.binary_search(entry).map_or(0, |at| at as u64 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(spans: &[(u64, u64)]) -> Vec<Span> {
        spans.iter().map(|(first, last)| Span { first: *first, last: *last }).collect()
    }

    #[test]
    fn names_read_back_and_others_are_none() {
        for (span, name) in
            [(Span::one(0), "0-0.segment"), (Span { first: 12, last: 340 }, "12-340.segment")]
        {
            assert_eq!(span.name(), name);
            assert_eq!(Span::parse(name), Some(span));
        }
        for name in [
            "",
            "0.segment",
            "01-2.segment",
            "2-1.segment",
            "+1-2.segment",
            "1-2.segment.tmp",
            "1-2",
            "a-b.segment",
        ] {
            assert_eq!(Span::parse(name), None, "{name}");
        }
    }

    #[test]
    fn a_directory_larger_than_any_writer_makes_is_not_unpacked_and_not_written() {
        let epoch: EpochId = "20251121-040233".parse().unwrap();
        let mut directory = Vec::new();
        put_block(&mut directory, &vec![0; 5 << 20]);
        let length = u32::try_from(directory.len()).unwrap().to_le_bytes();
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&length), &directory).to_le_bytes();
        let file = envelope::seal(Kind::Segment, &[&length[..], &checksum, &directory].concat());
        let error = Segment::parse(PathBuf::from("x"), file).unwrap_err();
        assert!(
            matches!(error, DbError::Corrupt { damage: Damage::Count { count: 0x50_0000 }, .. }),
            "{error}"
        );
        let mut builder = SegmentBuilder::new(Span::one(0), "h".to_owned(), epoch.clone());
        for kind in 0..400_000 {
            builder.push(SectionKey::only(SectionKind(kind)), 0, 0, &[]);
        }
        assert!(matches!(builder.finish(Path::new("x")), Err(DbError::TooMany { .. })));
        for (entries, fits) in [(MAX_ENTRIES, true), (MAX_ENTRIES + 1, false)] {
            let mut builder = SegmentBuilder::new(Span::one(0), "h".to_owned(), epoch.clone());
            builder.push(SectionKey::only(SectionKind::SAMPLES), entries, 0, &[]);
            assert_eq!(builder.finish(Path::new("x")).is_ok(), fits);
        }
    }

    #[test]
    fn the_widest_segments_are_taken_and_gaps_told() {
        for (there, taken, missing) in [
            (&[(0, 0)][..], &[(0, 0)][..], &[][..]),
            (&[(1, 1), (0, 0), (2, 2)], &[(0, 0), (1, 1), (2, 2)], &[]),
            (&[(0, 0), (1, 1), (0, 1), (2, 2)], &[(0, 1), (2, 2)], &[]),
            (&[(0, 9), (1, 3), (4, 4), (10, 10)], &[(0, 9), (10, 10)], &[]),
            (&[(0, 0), (2, 3)], &[(0, 0), (2, 3)], &[(1, 1)]),
            (&[(3, 3)], &[(3, 3)], &[(0, 2)]),
            (&[(0, 4), (3, 6), (7, 7)], &[(0, 4), (7, 7)], &[(5, 6)]),
            (&[(0, u64::MAX), (5, 5)], &[(0, u64::MAX)], &[]),
            (&[], &[], &[]),
        ] {
            assert_eq!(cover(spans(there)), (spans(taken), spans(missing)), "{there:?}");
        }
    }
}
