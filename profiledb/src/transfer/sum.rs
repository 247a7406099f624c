//! A segment of a copy, or of an epoch that several are merged into: the sum of its parts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use image::ImageId;
use model::{Ledgers, Stacks, Totals};

use super::Leaving;
use super::pieces::Piece;
use crate::description::check_balance;
use crate::error::{Damage, DbError};
use crate::images;
use crate::naming::ProfileKey;
use crate::outgoing::Outgoing;
use crate::reader::Epoch;
use crate::scope::ScopeTable;
use crate::section_sum::{self, Joined};
use crate::segment::{SectionKey, SectionKind, SegmentBuilder};
use crate::sliced::{self, Timed};
use crate::slices::Plan;
use crate::stacks::StacksKey;
use crate::symbols;

/// What leaves of a segment as a file, one profile at a time. `scopes` are those of the segments
/// before it.
pub(super) fn sum(
    piece: &Piece,
    scopes: &mut ScopeTable,
    directory: &Path,
    leaving: &Leaving<'_>,
) -> Result<Vec<u8>, DbError> {
    let Piece { span, meta, parts: sources, plan } = piece;
    let (span, path) = (*span, directory.join(span.name()));
    let unwritable = |damage: Damage| DbError::Corrupt { path: path.clone(), offset: 0, damage };
    let builder = SegmentBuilder::new(span, meta.host.clone(), meta.epoch.clone());
    let mut file = File { builder, plan, timings: Vec::new(), totals: Totals::default() };
    file.push(
        SectionKey::only(SectionKind::META),
        section_sum::meta_section(meta).map_err(unwritable)?,
    );
    let mut records = BTreeMap::new();
    for source in sources {
        images::absorb(&mut records, &leaving.parts.images(source.images()?));
    }
    if !records.is_empty() {
        let images = section_sum::images_section(&records).map_err(unwritable)?;
        file.push(SectionKey::only(SectionKind::IMAGES), images);
    }
    // Sections are in order: the described period of an event comes first.
    let (placed, placed_stacks) = placed(sources, scopes, leaving.parts)?;
    let placed =
        placed.into_iter().map(|(key, of)| (SectionKey::of(&key, &meta.events), (key, of)));
    let mut placed: BTreeMap<_, _> = placed.collect();
    let behind_symbols = placed.split_off(&SectionKey::only(SectionKind::SYMBOLS));
    let mut is_timed = file.put_counts(placed)?;
    // A segment with new symbols of an image need not have its record.
    let mut images: BTreeSet<ImageId> = records.keys().copied().collect();
    for snapshot in sources.iter().map(Epoch::snapshot) {
        images.extend(snapshot.images_with_symbols());
    }
    for image in images.into_iter().filter(|image| leaving.parts.has_symbols(records.get(image))) {
        let mut all = Vec::new();
        for source in sources {
            all = symbols::join(all, &source.symbols(&image)?);
        }
        all = symbols::join(all, leaving.names.get(&image).map_or(&[], Vec::as_slice));
        if !all.is_empty() {
            file.push(
                SectionKey::of_image(SectionKind::SYMBOLS, image),
                section_sum::symbols_section(&image, &all),
            );
        }
    }
    is_timed = is_timed && file.put_counts(behind_symbols)?;
    if !(is_timed && file.put_stacks(placed_stacks, leaving.parts)?) {
        return sum(&piece.as_one(), scopes, directory, leaving);
    }
    let mut ledgers = Ledgers::default();
    sources.iter().for_each(|source| ledgers.add(&source.meta().ledgers));
    check_balance(&ledgers, &file.totals)?;
    file.finished().map_err(unwritable)?.finish(directory)
}

/// A file under construction.
struct File<'a> {
    builder: SegmentBuilder,
    plan: &'a Plan,
    /// Timings of the sections so far, which come last.
    timings: Vec<(SectionKey, Joined)>,
    totals: Totals,
}

impl File<'_> {
    fn push(&mut self, key: SectionKey, joined: Joined) {
        self.builder.push(key, joined.entries, joined.total, &joined.bytes);
    }

    fn push_timed(&mut self, key: SectionKey, timed: Timed) {
        if timed.section.entries > 0 {
            self.timings.extend(timed.timing.map(|timing| (key.timing(), timing)));
            self.push(key, timed.section);
        }
    }

    /// Puts counts; false where all has to be one slice.
    fn put_counts(
        &mut self,
        placed: BTreeMap<SectionKey, (ProfileKey, Sources<'_>)>,
    ) -> Result<bool, DbError> {
        for (section, (key, kept_as)) in placed {
            let mut parts = Vec::with_capacity(kept_as.len());
            for (source, epoch, key) in kept_as {
                let timed = match self.plan.is_apart() {
                    true => {
                        epoch.timed_counts(&key)?.map(|(counts, timing)| (counts, Some(timing)))
                    }
                    false => Some((epoch.counts(&key)?, None)),
                };
                parts.extend(timed.map(|(counts, timing)| sliced::Part { source, counts, timing }));
            }
            let Some(timed) = sliced::sum_of_counts(key.measure.shape, parts, self.plan) else {
                return Ok(false);
            };
            self.totals.add(&key.measure, Some(&key.image), timed.section.total);
            self.push_timed(section, timed);
        }
        Ok(true)
    }

    /// Puts call stacks, likewise.
    fn put_stacks(
        &mut self,
        placed: PlacedStacks<'_>,
        leaving: &Outgoing,
    ) -> Result<bool, DbError> {
        for (key, kept_as) in placed {
            let mut parts = Vec::with_capacity(kept_as.len());
            for (source, epoch, key) in kept_as {
                let timed = match self.plan.is_apart() {
                    true => epoch
                        .snapshot()
                        .timed_stacks(&key)?
                        .map(|(counts, timing)| (counts, Some(timing))),
                    false => {
                        let mut all = Stacks::new();
                        leaving.add_stacks(&mut all, &epoch.stacks(&key)?);
                        Some((all, None))
                    }
                };
                parts.extend(timed.map(|(counts, timing)| sliced::Part { source, counts, timing }));
            }
            let Some(timed) = sliced::sum_of_stacks(parts, self.plan) else { return Ok(false) };
            self.push_timed(SectionKey::of_stacks(&key), timed);
        }
        Ok(true)
    }

    /// The file with its slices and timings.
    fn finished(mut self) -> Result<SegmentBuilder, Damage> {
        if self.plan.is_apart() {
            let slices = sliced::slices_section(&self.plan.slices)?;
            self.push(SectionKey::only(SectionKind::SLICES), slices);
        }
        let mut timings = std::mem::take(&mut self.timings);
        timings.sort_by(|(a, _), (b, _)| a.cmp(b));
        timings.into_iter().for_each(|(key, timing)| self.push(key, timing));
        Ok(self.builder)
    }
}

/// Epochs that have samples of a profile, each with its number and the key that it has them under.
type Sources<'a> = Vec<(usize, &'a Epoch, ProfileKey)>;

/// Sources of each profile's counts. Scopes for which one epoch has no room are widened.
type Placed<'a> = BTreeMap<ProfileKey, Sources<'a>>;

/// Sources of the stacks of each event and scope, likewise.
type PlacedStacks<'a> = BTreeMap<StacksKey, Vec<(usize, &'a Epoch, StacksKey)>>;

fn placed<'a>(
    sources: &'a [Epoch],
    scopes: &mut ScopeTable,
    leaving: &Outgoing,
) -> Result<(Placed<'a>, PlacedStacks<'a>), DbError> {
    let (mut placed, mut stacks) = (Placed::new(), PlacedStacks::new());
    for (number, source) in sources.iter().enumerate() {
        for key in source.keys()? {
            let scope = scopes.admit(&leaving.scope(&key.scope));
            placed
                .entry(ProfileKey { scope, ..key.clone() })
                .or_default()
                .push((number, source, key));
        }
        for key in source.stacks_keys().into_iter().filter(|_| leaving.stacks) {
            let scope = scopes.admit(&leaving.scope(&key.scope));
            let placed = StacksKey { scope, event: key.event.clone() };
            stacks.entry(placed).or_default().push((number, source, key));
        }
    }
    Ok((placed, stacks))
}
