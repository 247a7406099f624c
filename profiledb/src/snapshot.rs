//! One state of an epoch: its segments, read without a lock while a writer may add and fold.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use image::ImageId;
use model::{Counts, Stacks};

use crate::description::{EpochMeta, EventMeta};
use crate::epoch::EpochId;
use crate::error::{Damage, DbError, Operation};
use crate::images::ImageRecord;
use crate::naming::ProfileKey;
use crate::scope::Scope;
use crate::section_sum;
use crate::segment::{SectionKey, SectionKind, Segment, Span, cover};
use crate::slices::{Covered, Stretch};
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
    /// The segments whose counts are read: all, or those of a stretch of time. Images and symbols
    /// are those of all, since a segment has only new ones.
    counted: Range<usize>,
    /// Segments whose counts are subtracted: those that a reader already had.
    had: Arc<Vec<Arc<Segment>>>,
    damage: Arc<Vec<DbError>>,
    /// The stretch of time of each segment. Parts of an epoch share it: a week has hundreds of
    /// segments, whose descriptions would be read for each of hundreds of parts.
    times: Arc<OnceLock<Vec<Stretch>>>,
}

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
        let counted = 0..segments.len();
        let (directory, damage) = (directory.to_owned(), Arc::new(damage));
        let (had, times) = (Arc::default(), Arc::default());
        Ok(Self { directory, segments, counted, had, damage, times })
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
    fn counted(&self) -> &[Arc<Segment>] {
        self.segments.get(self.counted.clone()).unwrap_or_default()
    }

    /// The stretch of time of each segment, in an epoch that began at a time, in seconds since 1970
    /// UTC. A segment whose description cannot be read has no time.
    fn times(&self, began_unix_s: u64) -> &[Stretch] {
        self.times.get_or_init(|| {
            let mut since_unix_s = began_unix_s;
            let of = |segment: &Arc<Segment>| {
                let end = description(segment).map_or(since_unix_s, |meta| meta.updated_unix_s);
                let until_unix_s = since_unix_s.max(end);
                let stretch = Stretch { since_unix_s, until_unix_s };
                since_unix_s = until_unix_s;
                stretch
            };
            self.segments.iter().map(of).collect()
        })
    }

    /// The stretches of time of the segments with counts.
    pub(crate) fn slices(&self, began_unix_s: u64) -> Vec<Stretch> {
        let has_counts = |segment: &Arc<Segment>| {
            let is_counts =
                |kind: SectionKind| kind.shape().is_some() || kind == SectionKind::STACKS;
            segment.sections.iter().any(|section| is_counts(section.key.kind))
        };
        let times = self.times(began_unix_s).iter().zip(&self.segments).enumerate();
        times
            .filter(|(at, (_, segment))| self.counted.contains(at) && has_counts(segment))
            .map(|(_, (stretch, _))| *stretch)
            .collect()
    }

    /// The same state, with the counts of the segments that overlap a stretch of time and a
    /// description of these; None where there are none. `whole` is the description of all.
    pub(crate) fn during(&self, stretch: Stretch, whole: &EpochMeta) -> Option<(Self, EpochMeta)> {
        let times = self.times(whole.started_unix_s);
        let overlaps = |one: &Stretch| one.overlaps(stretch);
        let (first, last) = (times.iter().position(overlaps)?, times.iter().rposition(overlaps)?);
        let within = times.get(first..=last)?;
        let since_unix_s = within.first()?.since_unix_s;
        let until_unix_s = within.last()?.until_unix_s;
        // Where a description is damaged the last one before it has all but its ledgers.
        let latest = |segments: &[Arc<Segment>]| segments.iter().rev().find_map(description);
        let mut meta = latest(self.segments.get(..=last)?).unwrap_or_else(|| whole.clone());
        if let Some(before) = latest(self.segments.get(..first)?) {
            meta.ledgers = meta.ledgers.since(&before.ledgers);
        }
        let is_end = last + 1 == times.len();
        let slice_s = within.iter().map(|one| one.until_unix_s - one.since_unix_s).max()?;
        let meta = EpochMeta {
            started_unix_s: since_unix_s,
            updated_unix_s: until_unix_s,
            ended_unix_s: if is_end { whole.ended_unix_s } else { Some(until_unix_s) },
            // Two readings are distinguished by the state of the whole epoch.
            merges: whole.merges,
            covered: Some(Covered { stretch: Stretch { since_unix_s, until_unix_s }, slice_s }),
            ..meta
        };
        Some((Self { counted: first..last + 1, ..self.clone() }, meta))
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
        let part = Self { counted: first..end, had: Arc::new(sent), ..self.clone() };
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
        let Range { start, end } = self.counted;
        let before = self.segments.get(..start).and_then(<[_]>::last).map(described).transpose()?;
        let mut ledgers = before.map(|before| before.ledgers).unwrap_or_default();
        let times = self.times(whole.started_unix_s).iter().zip(&self.segments).enumerate();
        let mut apart = Vec::with_capacity(end - start);
        for (at, (time, segment)) in times.skip(start).take(end - start) {
            let own = described(segment)?;
            let first = if at == start { 0 } else { at };
            let behind = if at + 1 == end { self.segments.len() } else { at + 1 };
            let part = Self {
                segments: self.segments.get(first..behind).unwrap_or_default().to_vec(),
                counted: at - first..at - first + 1,
                times: Arc::default(),
                ..self.clone()
            };
            let meta = EpochMeta {
                started_unix_s: time.since_unix_s,
                updated_unix_s: time.until_unix_s,
                events: whole.events.clone(),
                ledgers: own.ledgers.since(&ledgers),
                ..own.clone()
            };
            ledgers = own.ledgers;
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
        self.counted().iter().map(|segment| (segment.span, segment.file()))
    }

    /// Whether any segment that is read has counts.
    pub(crate) fn has_counts(&self) -> bool {
        let is_counts = |kind: SectionKind| kind.shape().is_some() || kind == SectionKind::STACKS;
        self.keys().into_iter().any(|key| is_counts(key.kind))
    }

    /// Keys of all sections of segments whose counts are read, in order, each once.
    pub(crate) fn keys(&self) -> BTreeSet<&SectionKey> {
        self.counted()
            .iter()
            .flat_map(|segment| &segment.sections)
            .map(|section| &section.key)
            .collect()
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
        let section = SectionKey::of(key, events);
        let read = |segments| {
            section_sum::counts(key.measure.shape, &section_sum::found(segments, &section))
        };
        let counts = read(self.counted())?;
        if self.had.is_empty() {
            return Ok(counts);
        }
        Ok(counts.without(&read(&self.had)?))
    }

    /// The sum of a profile's counts, from the directories of the segments.
    pub(crate) fn total(&self, key: &ProfileKey, events: &[EventMeta]) -> u64 {
        let section = SectionKey::of(key, events);
        let sum = |segments: &[Arc<Segment>]| {
            let found = section_sum::found(segments, &section);
            found.iter().fold(0, |sum: u64, (_, section)| sum.saturating_add(section.total))
        };
        sum(self.counted()).saturating_sub(sum(&self.had))
    }

    /// The events and scopes that have stacks, in order.
    pub(crate) fn stacks_keys(&self) -> Vec<StacksKey> {
        self.keys().into_iter().filter_map(SectionKey::stacks).collect()
    }

    pub(crate) fn stacks(&self, key: &StacksKey) -> Result<Stacks, DbError> {
        let section = SectionKey::of_stacks(key);
        let stacks = section_sum::stacks(&section_sum::found(self.counted(), &section))?;
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

/// Segments that were read, with the errors of those that could not be.
type Known = BTreeMap<Span, Result<Arc<Segment>, DbError>>;

/// Reads the segments that are not known yet; false when one has gone.
fn read_all(
    disk: &Disk,
    directory: &Path,
    of: (&str, &EpochId),
    taken: &[Span],
    known: &mut Known,
) -> Result<bool, DbError> {
    for span in taken {
        if known.contains_key(span) {
            continue;
        }
        match Segment::read(disk, directory, *span, of) {
            Ok(None) => return Ok(false),
            Ok(Some(segment)) => drop(known.insert(*span, Ok(Arc::new(segment)))),
            Err(error) if error.is_unreadable() => drop(known.insert(*span, Err(error))),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// The segments in a directory; empty when the directory is gone.
pub(crate) fn spans(disk: &Disk, directory: &Path) -> Result<Vec<Span>, DbError> {
    let entries = disk.list_if_there(directory)?;
    Ok(entries
        .iter()
        .filter(|entry| !entry.is_directory)
        .filter_map(|entry| Span::parse(&entry.name))
        .collect())
}

/// Number of the last merge of all these segments.
pub(crate) fn newest(spans: &[Span]) -> Option<u64> {
    spans.iter().map(|span| span.last).max()
}
