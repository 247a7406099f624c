//! One state of an epoch: its segments, read without a lock while a writer may add and fold.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use image::ImageId;
use model::{Counts, Ledgers, Stacks};

use crate::decoded::Decoded;
use crate::description::{EpochMeta, EventMeta};
use crate::epoch::EpochId;
use crate::error::{Damage, DbError, Operation};
use crate::images::ImageRecord;
use crate::listing::{Known, newest, read_all, spans};
use crate::naming::ProfileKey;
use crate::scope::Scope;
use crate::section_sum;
use crate::segment::{Section, SectionKey, SectionKind, Segment, Span, cover};
use crate::shapes::Timing;
use crate::sliced;
use crate::slices::{Covered, Place, Slice, Stretch, TimedSlice};
use crate::stacks::StacksKey;
use crate::storage::Disk;
use crate::symbols::Symbol;

/// Times that a reading begins again when segments are folded meanwhile. A fold takes longer than a
/// listing, and segments already read are kept, so each reading has fewer segments left.
const READINGS_MAX: usize = 200;

/// Segments that together are one state, and the errors of segments that belong to it but cannot be
/// read.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    directory: PathBuf,
    segments: Vec<Arc<Segment>>,
    /// The slices whose counts are read: all, or those of a stretch of time. Images and symbols
    /// are those of all segments, since a segment has only new ones.
    counted: Range<Place>,
    /// Segments whose counts are subtracted: those that a reader already had.
    had: Arc<Vec<Arc<Segment>>>,
    damage: Arc<Vec<DbError>>,
    /// The slices of each segment. Parts of an epoch share them: a week has thousands, which would
    /// be read for each of hundreds of parts.
    times: Arc<OnceLock<Vec<TimedSlice>>>,
    /// Sections of the segment that was last read in part.
    decoded: Decoded,
}

/// A segment whose counts are read, with the slices whose counts these are; None: all of it.
type Counted<'a> = (&'a Arc<Segment>, Option<Range<usize>>);

impl Snapshot {
    /// Reads the state of the epoch in this directory; None when there is no segment.
    ///
    /// # Errors
    /// [`DbError::Io`]; [`DbError::Corrupt`] or [`DbError::NewerFormat`] when no segment can be
    /// read.
    pub(crate) fn read(
        disk: &Disk,
        directory: &Path,
        of: (&str, &EpochId),
    ) -> Result<Option<Self>, DbError> {
        let mut known = BTreeMap::new();
        let mut listed = spans(disk, directory)?;
        for _ in 0..READINGS_MAX {
            let (taken, missing) = cover(listed.clone());
            if taken.is_empty() {
                return Ok(None);
            }
            let read = read_all(disk, directory, of, &taken, &mut known)?;
            // A new segment may cover some that the first listing missed. A segment that was gone
            // at the end may have been folded before it was read.
            let again = spans(disk, directory)?;
            if !read
                || (again != listed && (newest(&again) != newest(&listed) || !missing.is_empty()))
            {
                listed = again;
                continue;
            }
            return Self::of(directory, &taken, &missing, known).map(Some);
        }
        Err(DbError::Io {
            op: Operation::Read,
            path: directory.to_owned(),
            source: std::io::Error::other(
                "its files are replaced faster than they can be read; try again",
            ),
        })
    }

    fn of(
        directory: &Path,
        taken: &[Span],
        missing: &[Span],
        mut known: Known,
    ) -> Result<Self, DbError> {
        let (mut segments, mut damage) = (Vec::new(), Vec::new());
        for span in taken {
            match known.remove(span) {
                Some(Ok(segment)) => segments.push(segment),
                Some(Err(error)) => damage.push(error),
                None => {}
            }
        }
        damage.extend(missing.iter().map(|span| DbError::Corrupt {
            path: directory.join(span.name()),
            offset: 0,
            damage: Damage::Missing { first: span.first, last: span.last },
        }));
        match damage.pop() {
            Some(error) if segments.is_empty() => return Err(error),
            last => damage.extend(last),
        }
        let counted = Place::default()..Place { segment: segments.len(), slice: 0 };
        let (directory, damage) = (directory.to_owned(), Arc::new(damage));
        let (had, times, decoded) = (Arc::default(), Arc::default(), Decoded::default());
        Ok(Self { directory, segments, counted, had, damage, times, decoded })
    }

    /// The description as of the newest segment that can be read; errors of other segments are
    /// added to the damage.
    ///
    /// # Errors
    /// [`DbError::Corrupt`] when no segment has a description.
    pub(crate) fn meta(&mut self) -> Result<EpochMeta, DbError> {
        let mut damage = Vec::new();
        let mut meta = None;
        for segment in self.segments.iter().rev() {
            match section_sum::meta(segment) {
                Ok(Some(found)) => {
                    meta = Some(found);
                    break;
                }
                Ok(None) => damage.push(DbError::Corrupt {
                    path: segment.path.clone(),
                    offset: 0,
                    damage: Damage::Misplaced,
                }),
                Err(error) => damage.push(error),
            }
        }
        let missing = || DbError::Corrupt {
            path: self.directory.clone(),
            offset: 0,
            damage: Damage::Truncated,
        };
        let Some(meta) = meta else { return Err(damage.pop().unwrap_or_else(missing)) };
        if !damage.is_empty() {
            damage.extend(Arc::into_inner(std::mem::take(&mut self.damage)).unwrap_or_default());
            self.damage = Arc::new(damage);
        }
        Ok(meta)
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The segments, in the order of their merges.
    pub(crate) fn segments(&self) -> &[Arc<Segment>] {
        &self.segments
    }

    /// Errors of the parts that could not be read.
    pub(crate) fn damage(&self) -> &[DbError] {
        &self.damage
    }

    /// Errors of segments of which a section does not fit its checksum, the first of each, without
    /// those in [`Snapshot::damage`].
    pub(crate) fn damaged_files(&self) -> Vec<DbError> {
        let told = |segment: &Segment| {
            let damaged = &segment.path;
            let same =
                |error: &DbError| matches!(error, DbError::Corrupt { path, .. } if path == damaged);
            self.damage.iter().any(same)
        };
        self.segments
            .iter()
            .filter(|segment| !told(segment))
            .filter_map(|segment| segment.damage())
            .collect()
    }

    /// The first damage; to be called only when there is some.
    pub(crate) fn into_damage(self) -> DbError {
        let none = DbError::Corrupt { path: self.directory, offset: 0, damage: Damage::Truncated };
        Arc::into_inner(self.damage).and_then(|mut damage| damage.pop()).unwrap_or(none)
    }

    /// Number of the last merge.
    pub(crate) fn last(&self) -> Option<u64> {
        self.segments.last().map(|segment| segment.span.last)
    }

    /// Bytes of the files.
    pub(crate) fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.len()).sum()
    }

    /// The segments whose counts are read.
    fn counted(&self) -> impl Iterator<Item = Counted<'_>> {
        let Range { start, end } = self.counted;
        let last = if end.slice == 0 { end.segment } else { end.segment + 1 };
        let segments = self.segments.get(start.segment..last).unwrap_or_default();
        (start.segment..).zip(segments).map(move |(at, segment)| {
            let first = if at == start.segment { start.slice } else { 0 };
            let behind = if at == end.segment { end.slice } else { usize::MAX };
            (segment, (first > 0 || behind < usize::MAX).then_some(first..behind))
        })
    }

    /// The segments of which all counts are read.
    fn wholly_counted(&self) -> Vec<Arc<Segment>> {
        self.counted().filter(|(_, part)| part.is_none()).map(|(one, _)| one.clone()).collect()
    }

    /// The sections of a key in segments of which a part of the slices is read, with these: the
    /// first and the last at most.
    fn partly_counted<'a>(
        &'a self,
        key: &'a SectionKey,
    ) -> impl Iterator<Item = (&'a Segment, &'a Section, Range<usize>)> {
        self.counted()
            .filter_map(|(segment, part)| Some((&**segment, segment.section(key)?, part?)))
    }

    /// The slices of all segments, in an epoch that began at a time, in seconds since 1970 UTC. A
    /// segment whose description cannot be read has no time.
    fn times(&self, began_unix_s: u64) -> &[TimedSlice] {
        self.times.get_or_init(|| {
            let mut since_unix_s = began_unix_s;
            let mut all = Vec::with_capacity(self.segments.len());
            for (at, segment) in self.segments.iter().enumerate() {
                let slices = sliced::slices(segment).unwrap_or_default().into_iter().map(Some);
                let slices: Vec<Option<Slice>> = slices.collect();
                let slices = if slices.is_empty() { vec![None] } else { slices };
                for (number, slice) in slices.into_iter().enumerate() {
                    let end = slice.as_ref().map_or(since_unix_s, |slice| slice.until_unix_s);
                    let stretch = Stretch { since_unix_s, until_unix_s: since_unix_s.max(end) };
                    since_unix_s = stretch.until_unix_s;
                    all.push(TimedSlice {
                        place: Place { segment: at, slice: number },
                        stretch,
                        slice,
                    });
                }
            }
            all
        })
    }

    /// The stretches of time of the slices with counts.
    pub(crate) fn slices(&self, began_unix_s: u64) -> Vec<Stretch> {
        let has_counts = |timed: &&TimedSlice| {
            let counts = timed.slice.as_ref().map(|slice| slice.counts);
            self.counted.contains(&timed.place) && counts.unwrap_or(true)
        };
        let times = self.times(began_unix_s).iter().filter(has_counts);
        times.map(|timed| timed.stretch).collect()
    }

    /// The slices whose counts are read, each with its stretch of time and with what it added to
    /// the ledgers.
    pub(crate) fn counted_slices(&self, began_unix_s: u64) -> Vec<(Stretch, Slice)> {
        let mut ledgers = Ledgers::default();
        let mut counted = Vec::new();
        for TimedSlice { place, stretch, slice } in self.times(began_unix_s) {
            let as_of = slice.as_ref().map_or_else(|| ledgers.clone(), |one| one.ledgers.clone());
            if self.counted.contains(place) {
                let counts = slice.as_ref().is_none_or(|slice| slice.counts);
                let ledgers = as_of.since(&ledgers);
                let until_unix_s = stretch.until_unix_s;
                counted.push((*stretch, Slice { until_unix_s, ledgers, counts }));
            }
            ledgers = as_of;
        }
        counted
    }

    /// The counts of a profile with their timing, where the counts of one segment are read. None
    /// where there are none.
    pub(crate) fn timed_counts(
        &self,
        key: &ProfileKey,
        events: &[EventMeta],
    ) -> Result<Option<(Counts, Timing)>, DbError> {
        let Some((segment, section, part)) = self.first_counted(&SectionKey::of(key, events))
        else {
            return Ok(None);
        };
        let whole = sliced::timed_counts(key.measure.shape, segment, section)?;
        Ok(Some(part.map(|part| sliced::counts_within(&whole, &part)).unwrap_or(whole)))
    }

    /// The same of the call stacks of an event.
    pub(crate) fn timed_stacks(
        &self,
        key: &StacksKey,
    ) -> Result<Option<(Stacks, Timing)>, DbError> {
        let Some((segment, section, part)) = self.first_counted(&SectionKey::of_stacks(key)) else {
            return Ok(None);
        };
        let whole = sliced::timed_stacks(segment, section)?;
        Ok(Some(part.map(|part| sliced::stacks_within(&whole, &part)).unwrap_or(whole)))
    }

    /// The first section of a key, with the slices of its segment that are read.
    fn first_counted(
        &self,
        key: &SectionKey,
    ) -> Option<(&Segment, &Section, Option<Range<usize>>)> {
        self.counted().find_map(|(one, part)| Some((&**one, one.section(key)?, part)))
    }

    /// The same state, with the counts of the slices that overlap a stretch of time and a
    /// description of these; None where there are none. `whole` is the description of all.
    pub(crate) fn during(&self, stretch: Stretch, whole: &EpochMeta) -> Option<(Self, EpochMeta)> {
        let times = self.times(whole.started_unix_s);
        let overlaps = |one: &TimedSlice| one.stretch.overlaps(stretch);
        let (first, last) = (times.iter().position(overlaps)?, times.iter().rposition(overlaps)?);
        let within = times.get(first..=last)?;
        let (begin, end) = (within.first()?, within.last()?);
        // Where a description is damaged the last one before it has all but its ledgers.
        let mut meta = self
            .segments
            .get(..=end.place.segment)
            .and_then(|segments| segments.iter().rev().find_map(description))
            .unwrap_or_else(|| whole.clone());
        let as_of = |timed: &[TimedSlice]| {
            let ledgers = timed.iter().rev().find_map(|timed| timed.slice.as_ref());
            ledgers.map(|slice| slice.ledgers.clone())
        };
        if let Some(ledgers) = as_of(within) {
            meta.ledgers = ledgers;
        }
        meta.ledgers = meta.ledgers.since(&as_of(times.get(..first)?).unwrap_or_default());
        let (since_unix_s, until_unix_s) = (begin.stretch.since_unix_s, end.stretch.until_unix_s);
        let next = times.get(last + 1).map(|timed| timed.place);
        let behind = next.unwrap_or(Place { segment: self.segments.len(), slice: 0 });
        let length = |timed: &TimedSlice| timed.stretch.until_unix_s - timed.stretch.since_unix_s;
        let slice_s = within.iter().map(length).max()?;
        let meta = EpochMeta {
            started_unix_s: since_unix_s,
            updated_unix_s: until_unix_s,
            ended_unix_s: if next.is_none() { whole.ended_unix_s } else { Some(until_unix_s) },
            // Two readings are distinguished by the state of the whole epoch.
            merges: whole.merges,
            covered: Some(Covered { stretch: Stretch { since_unix_s, until_unix_s }, slice_s }),
            ..meta
        };
        Some((Self { counted: begin.place..behind, ..self.clone() }, meta))
    }

    /// The same state, with the counts of the merges behind `merge`, up to some bytes of segments
    /// and one segment at least, and a description of these; None where there are no such merges.
    /// `whole` is the description of all, `had` the state that a reader had at `merge`.
    ///
    /// # Errors
    /// [`DbError::Corrupt`] where a segment has merges of both sides, and `had` has not all of its
    /// merges up to `merge`.
    pub(crate) fn since(
        &self,
        merge: Option<u64>,
        had: Option<&Self>,
        (bytes_max, whole): (u64, &EpochMeta),
    ) -> Result<Option<(Self, EpochMeta)>, DbError> {
        let is_new = |segment: &Arc<Segment>| merge.is_none_or(|merge| segment.span.last > merge);
        let Some(first) = self.segments.iter().position(is_new) else { return Ok(None) };
        let mut bytes = 0_u64;
        let fits = |segment: &&Arc<Segment>| {
            let is_first = bytes == 0;
            bytes = bytes.saturating_add(segment.len());
            is_first || bytes <= bytes_max
        };
        let behind = self.segments.get(first..).unwrap_or_default();
        let end = first + behind.iter().take_while(fits).count();
        let (Some(begin), Some(last)) = (behind.first(), self.segments.get(end.saturating_sub(1)))
        else {
            return Ok(None);
        };
        let mut sent: Vec<Arc<Segment>> = Vec::new();
        let mut before = self.segments.get(..first).unwrap_or_default().last();
        if let Some(merge) = merge.filter(|merge| begin.span.first <= *merge) {
            let of_both = Span { first: begin.span.first, last: merge };
            let copies = had.map(|had| had.segments.as_slice()).unwrap_or_default();
            sent.extend(copies.iter().filter(|copy| of_both.covers(copy.span)).cloned());
            let is_one_after_the_other = sent.windows(2).all(|pair| match pair {
                [a, b] => a.span.last.checked_add(1) == Some(b.span.first),
                _ => true,
            });
            let ends = sent.first().zip(sent.last());
            let has_all = ends
                .is_some_and(|(a, b)| a.span.first == of_both.first && b.span.last == of_both.last);
            if !is_one_after_the_other || !has_all {
                let path = had.map_or(&self.directory, |had| &had.directory).clone();
                let damage = Damage::Missing { first: of_both.first, last: of_both.last };
                return Err(DbError::Corrupt { path, offset: 0, damage });
            }
            before = copies.iter().rfind(|copy| copy.span.last == merge);
        }
        let before = before.map(|segment| section_sum::meta(segment)).transpose()?.flatten();
        let mut meta = section_sum::meta(last)?.unwrap_or_else(|| whole.clone());
        if let Some(before) = &before {
            meta.ledgers = meta.ledgers.since(&before.ledgers);
            meta.started_unix_s = before.updated_unix_s;
        }
        let ended_unix_s = if end == self.segments.len() { whole.ended_unix_s } else { None };
        let meta = EpochMeta { ended_unix_s, ..meta };
        let counted = Place { segment: first, slice: 0 }..Place { segment: end, slice: 0 };
        let part = Self { counted, had: Arc::new(sent), ..self.clone() };
        Ok(Some((part, meta)))
    }

    /// The segments whose counts are read, each by itself, with its merges and the description of
    /// these in an epoch that `whole` describes. Images and symbols of other segments are in the
    /// first one, or the last.
    ///
    /// # Errors
    /// [`DbError::Corrupt`] where a segment has no description.
    pub(crate) fn apart(&self, whole: &EpochMeta) -> Result<Vec<(Span, Self, EpochMeta)>, DbError> {
        let described = |segment: &Arc<Segment>| {
            let missing = || DbError::Corrupt {
                path: segment.path.clone(),
                offset: 0,
                damage: Damage::Misplaced,
            };
            section_sum::meta(segment)?.ok_or_else(missing)
        };
        let times = self.times(whole.started_unix_s);
        let counted = times.iter().filter(|timed| self.counted.contains(&timed.place));
        let counted: Vec<&TimedSlice> = counted.collect();
        let before = times.iter().take_while(|timed| timed.place < self.counted.start);
        let before = before.filter_map(|timed| timed.slice.as_ref()).last();
        let mut ledgers = before.map(|slice| slice.ledgers.clone()).unwrap_or_default();
        let groups: Vec<&[&TimedSlice]> =
            counted.chunk_by(|a, b| a.place.segment == b.place.segment).collect();
        let mut apart = Vec::with_capacity(groups.len());
        for (number, of_segment) in groups.iter().enumerate() {
            let (Some(begin), Some(end)) = (of_segment.first(), of_segment.last()) else {
                continue;
            };
            let at = begin.place.segment;
            let Some(segment) = self.segments.get(at) else { continue };
            let own = described(segment)?;
            let as_of = end.slice.as_ref().map_or(&own.ledgers, |slice| &slice.ledgers);
            let first = if number == 0 { 0 } else { at };
            let is_last = number + 1 == groups.len();
            let behind = if is_last { self.segments.len() } else { at + 1 };
            let place = |place: Place| Place { segment: place.segment - first, ..place };
            let next = Place { slice: end.place.slice + 1, ..end.place };
            let is_whole = next.slice == times.iter().filter(|t| t.place.segment == at).count();
            let next = if is_whole { Place { segment: at + 1, slice: 0 } } else { next };
            let part = Self {
                segments: self.segments.get(first..behind).unwrap_or_default().to_vec(),
                counted: place(begin.place)..place(next),
                times: Arc::default(),
                decoded: Decoded::default(),
                ..self.clone()
            };
            let meta = EpochMeta {
                started_unix_s: begin.stretch.since_unix_s,
                updated_unix_s: end.stretch.until_unix_s,
                events: whole.events.clone(),
                ledgers: as_of.since(&ledgers),
                ..own.clone()
            };
            ledgers = as_of.clone();
            apart.push((segment.span, part, meta));
        }
        Ok(apart)
    }

    /// Whether a segment has merges both up to `merge` and after it.
    pub(crate) fn has_both(&self, merge: u64) -> bool {
        let both = |span: Span| span.first <= merge && merge < span.last;
        self.segments.iter().any(|segment| both(segment.span))
    }

    /// The segments whose counts are read, each with the bytes of its file.
    pub(crate) fn counted_files(&self) -> impl Iterator<Item = (Span, &[u8])> {
        self.counted().map(|(segment, _)| (segment.span, segment.file()))
    }

    /// Whether any segment that is read has counts.
    pub(crate) fn has_counts(&self) -> bool {
        self.keys().into_iter().any(|key| key.kind.is_timed())
    }

    /// Keys of all sections of segments whose counts are read, in order, each once. Of a segment
    /// that is read in part, sections without counts in that part are left out.
    pub(crate) fn keys(&self) -> BTreeSet<&SectionKey> {
        fn of<'a>((segment, part): Counted<'a>) -> Vec<&'a SectionKey> {
            let is_read = |section: &&Section| match &part {
                Some(part) if section.key.kind.is_timed() => {
                    // Damage is told when the section is read.
                    sliced::total_within(segment, section, part).map_or(true, |total| total > 0)
                }
                _ => true,
            };
            segment.sections.iter().filter(is_read).map(|section| &section.key).collect()
        }
        self.counted().flat_map(of).collect()
    }

    /// The profiles of all measures, in an epoch of these events.
    pub(crate) fn profiles(&self, events: &[EventMeta]) -> Vec<ProfileKey> {
        self.keys().into_iter().filter_map(|key| key.profile(events)).collect()
    }

    pub(crate) fn scopes(&self) -> Vec<Scope> {
        let scopes: BTreeSet<&Scope> = self.keys().into_iter().map(|key| &key.scope).collect();
        scopes.into_iter().filter(|scope| !scope.is_empty()).cloned().collect()
    }

    pub(crate) fn images(&self) -> Result<BTreeMap<ImageId, ImageRecord>, DbError> {
        section_sum::records(&section_sum::found(
            &self.segments,
            &SectionKey::only(SectionKind::IMAGES),
        ))
    }

    pub(crate) fn counts(&self, key: &ProfileKey, events: &[EventMeta]) -> Result<Counts, DbError> {
        let (section, shape) = (SectionKey::of(key, events), key.measure.shape);
        let read =
            |segments: &[_]| section_sum::counts(shape, &section_sum::found(segments, &section));
        let mut counts = read(&self.wholly_counted())?;
        for (segment, section, part) in self.partly_counted(&section) {
            // Both have the measure's shape.
            let read = || sliced::timed_counts(shape, segment, section);
            let whole = self.decoded.counts(segment.span, &section.key, read)?;
            _ = counts.merge(&sliced::counts_within(&whole, &part).0);
        }
        if self.had.is_empty() {
            return Ok(counts);
        }
        Ok(counts.without(&read(&self.had)?))
    }

    /// The sum of a profile's counts, from the directories of the segments and, of those that are
    /// read in part, from the sums of their slices.
    ///
    /// # Errors
    /// [`DbError::Corrupt`].
    pub(crate) fn total(&self, key: &ProfileKey, events: &[EventMeta]) -> Result<u64, DbError> {
        let section = SectionKey::of(key, events);
        let sum = |segments: &[Arc<Segment>]| {
            let found = section_sum::found(segments, &section);
            found.iter().fold(0, |sum: u64, (_, section)| sum.saturating_add(section.total))
        };
        let mut total = sum(&self.wholly_counted());
        for (segment, section, part) in self.partly_counted(&section) {
            total = total.saturating_add(sliced::total_within(segment, section, &part)?);
        }
        Ok(total.saturating_sub(sum(&self.had)))
    }

    /// The events and scopes that have stacks, in order.
    pub(crate) fn stacks_keys(&self) -> Vec<StacksKey> {
        self.keys().into_iter().filter_map(SectionKey::stacks).collect()
    }

    pub(crate) fn stacks(&self, key: &StacksKey) -> Result<Stacks, DbError> {
        let section = SectionKey::of_stacks(key);
        let whole = self.wholly_counted();
        let mut stacks = section_sum::stacks(&section_sum::found(&whole, &section))?;
        for (segment, section, part) in self.partly_counted(&section) {
            let read = || sliced::timed_stacks(segment, section);
            let whole = self.decoded.stacks(segment.span, &section.key, read)?;
            stacks.merge(&sliced::stacks_within(&whole, &part).0);
        }
        if self.had.is_empty() {
            return Ok(stacks);
        }
        Ok(stacks.without(&section_sum::stacks(&section_sum::found(&self.had, &section))?))
    }

    pub(crate) fn symbols(&self, image: &ImageId) -> Result<Vec<Symbol>, DbError> {
        let key = SectionKey::of_image(SectionKind::SYMBOLS, *image);
        section_sum::symbols(image, &section_sum::found(&self.segments, &key))
    }

    /// The images that have symbols.
    pub(crate) fn images_with_symbols(&self) -> Vec<ImageId> {
        let sections = self.segments.iter().flat_map(|segment| &segment.sections);
        let keys = sections.map(|section| &section.key);
        let images: BTreeSet<ImageId> = keys
            .filter(|key| key.kind == SectionKind::SYMBOLS)
            .filter_map(|key| key.image)
            .collect();
        images.into_iter().collect()
    }
}

/// The description in a segment, where it can be read.
fn description(segment: &Arc<Segment>) -> Option<EpochMeta> {
    section_sum::meta(segment).ok().flatten()
}
