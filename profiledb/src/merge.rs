//! One merge: the delta that it adds, and the epoch that takes it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;

use image::ImageId;
use model::{Counts, Facts, Frame, Ledgers, Stacks, Totals};
use serde_json::Value;

use crate::description::{self, EpochMeta, PERIODS_MAX, PeriodChange};
use crate::epoch::EpochId;
use crate::error::DbError;
use crate::fold::{self, SegmentSet, Stored};
use crate::images::ImageRecord;
use crate::naming::{self, ProfileKey};
use crate::scope::ScopeTable;
use crate::section_sum;
use crate::segment::{SectionKey, SectionKind, SegmentBuilder, Span};
use crate::snapshot::Snapshot;
use crate::stacks::StacksKey;
use crate::storage::Disk;
use crate::symbols::{Names, Symbol};

/// Most bytes of JSON for the facts and the cost of an epoch together: they are written with each
/// merge.
const FACTS_MAX_BYTES: u64 = 64 << 10;

/// Images of an epoch, at most. The writer has all in memory, about 350 bytes each, as has each
/// reader; a build server meets some thousands with samples a day. A merge of more is refused by
/// name ([`DbError::TooMany`]), and belongs into the next epoch.
pub const IMAGES_MAX: usize = 65_536;

/// The additions of one merge to an epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// Counts of every measure, each in its measure's shape. Each image must be in `images` or in
    /// those of an earlier merge of the epoch. Each event with samples must be one of the epoch's;
    /// an event may have samples of 64 periods. A scope for which the epoch has no room left is
    /// widened.
    pub profiles: BTreeMap<ProfileKey, Counts>,
    /// Call stacks by event and scope. Each image of a frame must be described as those of
    /// `profiles`. The events need not be the epoch's: `off-cpu` is none that is sampled.
    pub stacks: BTreeMap<StacksKey, Stacks>,
    /// Records of images that were seen since the last merge, by id.
    pub images: BTreeMap<ImageId, ImageRecord>,
    /// Symbols that were seen since the last merge, including known ones.
    pub symbols: BTreeMap<ImageId, Vec<Symbol>>,
    /// Ledgers by event and period. `merged` must be the sum of `profiles` of that event and period
    /// without those of unknown code, which have at most its `unresolved`.
    pub ledgers: Ledgers,
    /// Changes of each event's period since the last merge.
    pub period_changes: BTreeMap<String, Vec<PeriodChange>>,
    /// Cost of sampling so far, as JSON of any form; None: unchanged.
    pub cost: Option<Value>,
    /// Facts that were learnt since the last merge.
    pub facts: Facts,
    /// Now, in seconds since 1970 UTC.
    pub now_unix_s: u64,
}

/// The result of a merge.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct MergeReport {
    /// Number of files written.
    pub files_written: u64,
    /// Bytes of these files.
    pub bytes_written: u64,
    /// Samples that were counted in a wider scope than theirs, because the epoch had no room for
    /// another scope.
    pub samples_widened: u64,
}

/// The epoch being written, always in the state that is on disk.
#[derive(Debug)]
pub(crate) struct Current {
    pub(crate) stock: SegmentSet,
    pub(crate) meta: EpochMeta,
    images: BTreeMap<ImageId, ImageRecord>,
    scopes: ScopeTable,
    names: Names,
    /// True while a segment has its name, which may not be safe on the disk yet.
    pub(crate) unsynced: bool,
    /// Forcing the directory to the disk has failed since: the segment has to be written again.
    doubted: bool,
}

impl Current {
    pub(crate) fn of(stock: SegmentSet, meta: EpochMeta) -> Self {
        let (images, scopes, names) = (BTreeMap::new(), ScopeTable::default(), Names::default());
        Self { stock, meta, images, scopes, names, unsynced: false, doubted: false }
    }

    /// Finishes a decided change.
    pub(crate) fn finish(&mut self) -> Result<(), DbError> {
        if self.unsynced {
            let (disk, directory) = (self.stock.disk(), self.stock.directory());
            if self.doubted {
                fold::write_anew(disk, directory, Span::one(self.meta.merges))?;
            }
            let synced = disk.sync_directory(directory);
            self.doubted = synced.is_err();
            synced?;
            self.unsynced = false;
        }
        Ok(())
    }

    /// Refuses a delta that contradicts itself or the epoch.
    pub(crate) fn check(&self, delta: &Delta) -> Result<(), DbError> {
        let mut totals = Totals::default();
        let known = |event: &str| self.meta.events.iter().any(|known| known.name == event);
        for (key, counts) in &delta.profiles {
            key.check(counts, known)?;
            totals.add(&key.measure, Some(&key.image), counts.total());
        }
        let of_ledgers = delta.ledgers.iter().map(|(event, _, _)| event);
        let named = totals
            .events()
            .chain(of_ledgers)
            .chain(delta.period_changes.keys().map(String::as_str));
        if let Some(event) = named.into_iter().find(|event| !known(event)) {
            return Err(DbError::UnknownEvent { event: event.to_owned() });
        }
        let described = |image: &&ImageId| {
            delta.images.contains_key(*image) || self.images.contains_key(*image)
        };
        let named = delta.profiles.keys().map(|key| &key.image);
        let frames = delta.stacks.values().flat_map(Stacks::distinct_frames);
        let in_stacks = frames.filter_map(|frame| match frame {
            Frame::Code(image, _) => Some(image),
            Frame::Cut(_) | Frame::Wait(_) => None,
        });
        let nameless = named.chain(delta.symbols.keys()).chain(in_stacks).find(|id| !described(id));
        let mistaken = delta.images.iter().find(|(id, record)| **id != record.id);
        if let Some(image) = nameless.or(mistaken.map(|(id, _)| id)) {
            return Err(DbError::UnknownImage { image: *image });
        }
        delta.profiles.keys().try_for_each(|key| key.scope.check())?;
        delta.stacks.keys().try_for_each(|key| {
            naming::check_event(&key.event)?;
            key.scope.check()
        })?;
        description::check_balance(&delta.ledgers, &totals)
    }

    /// Adds a delta as one segment.
    pub(crate) fn merge(&mut self, delta: &Delta) -> Result<MergeReport, DbError> {
        let meta = self.meta.after(delta);
        let facts = serde_json::to_vec(&(&meta.facts, &meta.cost))
            .map_or(u64::MAX, |json| json.len() as u64);
        let periods = meta.ledgers.periods();
        if periods > PERIODS_MAX {
            let (path, what) = (self.stock.directory().to_owned(), "periods of one event");
            return Err(DbError::TooMany {
                path,
                what,
                count: periods as u64,
                limit: PERIODS_MAX as u64,
            });
        }
        let new = delta.images.keys().filter(|id| !self.images.contains_key(id)).count();
        if new > 0 && self.images.len() + new > IMAGES_MAX {
            return Err(DbError::TooMany {
                path: self.stock.directory().to_owned(),
                what: "images",
                count: (self.images.len() + new) as u64,
                limit: IMAGES_MAX as u64,
            });
        }
        if facts > FACTS_MAX_BYTES {
            return Err(DbError::FactsTooLarge { bytes: facts, limit: FACTS_MAX_BYTES });
        }
        let mut images = BTreeMap::new();
        for (id, met) in &delta.images {
            let known = self.images.get(id);
            let mut record = known.unwrap_or(met).clone();
            record.absorb(met);
            if known != Some(&record) {
                images.insert(*id, record);
            }
        }
        let mut scopes = self.scopes.clone();
        let (profiles, samples_widened) = place(delta, &mut scopes);
        let mut sections = Vec::new();
        for (key, counts) in &profiles {
            sections.push((SectionKey::of(key, &meta.events), section_sum::counts_section(counts)));
        }
        for (key, stacks) in place_stacks(delta, &mut scopes) {
            let section = section_sum::stacks_section(stacks.into_owned());
            sections.push((SectionKey::of_stacks(&key), section));
        }
        let news = delta.symbols.iter().map(|(image, met)| (image, self.names.news(image, met)));
        let news: Vec<_> = news.filter(|(_, news)| !news.is_empty()).collect();
        for (image, symbols) in &news {
            let section = section_sum::symbols_section(image, symbols);
            sections.push((SectionKey::of_image(SectionKind::SYMBOLS, **image), section));
        }
        // A segment has its sections in the order of their keys.
        sections.sort_by(|(a, _), (b, _)| a.cmp(b));
        let outcome = self.put(meta, &images, sections);
        if matches!(outcome, Ok(_) | Err(DbError::Unfinished { .. })) {
            self.images.extend(images);
            self.scopes = scopes;
            news.iter().for_each(|(image, symbols)| self.names.learn(image, symbols));
        }
        outcome.map(|bytes_written| MergeReport {
            files_written: 1,
            bytes_written,
            samples_widened,
        })
    }

    /// Writes a segment with these sections and this description, which is then the epoch's: its
    /// bytes.
    pub(crate) fn put(
        &mut self,
        meta: EpochMeta,
        images: &BTreeMap<ImageId, ImageRecord>,
        sections: Vec<(SectionKey, section_sum::Joined)>,
    ) -> Result<u64, DbError> {
        let span = Span::one(meta.merges);
        let unwritable = |damage| DbError::Corrupt {
            path: self.stock.directory().join(span.name()),
            offset: 0,
            damage,
        };
        let mut builder = SegmentBuilder::new(span, meta.host.clone(), meta.epoch.clone());
        let described = section_sum::meta_section(&meta).map_err(unwritable)?;
        builder.push(
            SectionKey::only(SectionKind::META),
            described.entries,
            described.total,
            &described.bytes,
        );
        if !images.is_empty() {
            let records = section_sum::images_section(images).map_err(unwritable)?;
            builder.push(
                SectionKey::only(SectionKind::IMAGES),
                records.entries,
                records.total,
                &records.bytes,
            );
        }
        for (key, section) in sections {
            builder.push(key, section.entries, section.total, &section.bytes);
        }
        let file = builder.finish(self.stock.directory())?;
        let bytes = file.len() as u64;
        fold::write(self.stock.disk(), self.stock.directory(), span, &file)?;
        // Readers see the segment from here on. A power failure may still undo the rename.
        self.stock.add(Stored { span, bytes, end: Some(meta.updated_unix_s) });
        self.meta = meta;
        self.unsynced = true;
        self.finish().map(|()| bytes).map_err(|source| DbError::Unfinished {
            epoch: self.meta.epoch.clone(),
            source: Box::new(source),
        })
    }

    /// The epoch in a directory, from its segments. None when there is none.
    pub(crate) fn load(
        disk: &Disk,
        directory: PathBuf,
        host: &str,
        epoch: &EpochId,
    ) -> Result<Option<Self>, DbError> {
        let Some(mut snapshot) = Snapshot::read(disk, &directory, (host, epoch))? else {
            return Ok(None);
        };
        let meta = snapshot.meta()?;
        if snapshot.damage().iter().next().is_some() {
            // A damaged epoch gets no more merges; a new epoch takes them.
            return Err(snapshot.into_damage());
        }
        let mut stored = Vec::with_capacity(snapshot.segments().len());
        for segment in snapshot.segments() {
            let end = section_sum::meta(segment)?.map(|meta| meta.updated_unix_s);
            stored.push(Stored { span: segment.span, bytes: segment.len(), end });
        }
        let of = (host.to_owned(), epoch.clone());
        let mut stock = SegmentSet::new(disk.clone(), directory, of, stored);
        stock.began(meta.started_unix_s);
        let mut current = Self::of(stock, meta);
        current.images = snapshot.images()?;
        for scope in snapshot.scopes() {
            current.scopes.admit(&scope);
        }
        for image in snapshot.images_with_symbols() {
            current.names.learn(&image, &snapshot.symbols(&image)?);
        }
        Ok(Some(current))
    }
}

/// The counts that are added to each profile.
type Placed<'a> = BTreeMap<Cow<'a, ProfileKey>, Cow<'a, Counts>>;

/// Assigns each profile of a delta its scope, and sums the samples whose scope had to be widened.
fn place<'a>(delta: &'a Delta, scopes: &mut ScopeTable) -> (Placed<'a>, u64) {
    let mut placed = Placed::new();
    let mut widened = 0_u64;
    for (key, added) in delta.profiles.iter().filter(|(_, added)| !added.is_empty()) {
        let scope = scopes.admit(&key.scope);
        let key = if scope == key.scope {
            Cow::Borrowed(key)
        } else {
            widened = widened.saturating_add(added.total());
            Cow::Owned(ProfileKey { scope, ..key.clone() })
        };
        match placed.entry(key) {
            Entry::Vacant(vacant) => drop(vacant.insert(Cow::Borrowed(added))),
            // Both have one measure, so one shape.
            Entry::Occupied(mut occupied) => _ = occupied.get_mut().to_mut().merge(added),
        }
    }
    (placed, widened)
}

/// The stacks of a delta by the scope that each gets.
fn place_stacks<'a>(
    delta: &'a Delta,
    scopes: &mut ScopeTable,
) -> BTreeMap<StacksKey, Cow<'a, Stacks>> {
    let mut placed: BTreeMap<StacksKey, Cow<Stacks>> = BTreeMap::new();
    for (key, stacks) in delta.stacks.iter().filter(|(_, stacks)| !stacks.is_empty()) {
        let scope = scopes.admit(&key.scope);
        match placed.entry(StacksKey { scope, event: key.event.clone() }) {
            Entry::Vacant(vacant) => drop(vacant.insert(Cow::Borrowed(stacks))),
            Entry::Occupied(mut occupied) => occupied.get_mut().to_mut().merge(stacks),
        }
    }
    placed
}
