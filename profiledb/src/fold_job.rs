//! A fold under way: adds up the sections of some segments one after the other, and keeps the
//! slices apart that the new segment has room for.

use std::sync::Arc;

use crate::error::{Damage, DbError};
use crate::section_sum::{self, Joined};
use crate::segment::{SectionKey, SectionKind, Segment, SegmentBuilder, Span};
use crate::shapes::{CELLS_MAX, SLICES_MAX};
use crate::sliced::{self, Timed};
use crate::slices::{Group, Plan, Slice, slices_bytes_max};

/// A fold under way.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) sources: Vec<Arc<Segment>>,
    /// The slices of each.
    pub(crate) slices: Vec<Vec<Slice>>,
    /// Begin of the first slice, in seconds since 1970 UTC.
    pub(crate) since_unix_s: u64,
    pub(crate) group: Group,
    /// Keys in descending order, so that the next one is last.
    pub(crate) keys: Vec<SectionKey>,
    pub(crate) span: Span,
    /// True when everything that can be folded is folded, because the epoch is sealed.
    pub(crate) last: bool,
    pub(crate) made: Made,
}

/// What a fold has made so far.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) plan: Plan,
    /// Keys that are left.
    keys: Vec<SectionKey>,
    builder: SegmentBuilder,
    /// Sections that say when the counts of others were, which come last.
    timings: Vec<(SectionKey, Joined)>,
    timing_bytes: u64,
    /// Bytes of the sources that have been added up.
    read_bytes: u64,
}

impl Made {
    pub(crate) fn new(plan: Plan, keys: Vec<SectionKey>, builder: SegmentBuilder) -> Self {
        Self { plan, keys, builder, timings: Vec::new(), timing_bytes: 0, read_bytes: 0 }
    }

    /// The segment with all sections.
    pub(crate) fn finished(self) -> Result<SegmentBuilder, Damage> {
        let mut builder = self.builder;
        if self.plan.is_apart() {
            let slices = sliced::slices_section(&self.plan.slices)?;
            let key = SectionKey::only(SectionKind::SLICES);
            builder.push(key, slices.entries, slices.total, &slices.bytes);
        }
        for (key, timing) in self.timings {
            builder.push(key, timing.entries, timing.total, &timing.bytes);
        }
        Ok(builder)
    }
}

impl Job {
    /// Adds up one more section, and returns the bytes that were read for it; None when all are
    /// done.
    pub(crate) fn step(&mut self) -> Result<Option<u64>, DbError> {
        let Some(key) = self.made.keys.pop() else { return Ok(None) };
        let parts = section_sum::found(&self.sources, &key);
        let bytes: u64 = parts.iter().map(|(_, section)| section.range.len() as u64).sum();
        self.made.read_bytes = self.made.read_bytes.saturating_add(bytes);
        if !key.kind.is_timed() {
            let joined = section_sum::join(&key, &parts)?;
            self.made.builder.push(key, joined.entries, joined.total, &joined.bytes);
            return Ok(Some(bytes.max(1)));
        }
        let numbered = self.sources.iter().enumerate();
        let parts: Vec<_> = numbered
            .filter_map(|(number, source)| Some((number, &**source, source.section(&key)?)))
            .collect();
        let Some(Timed { section, timing }) = sliced::join(key.kind, &parts, &self.made.plan)?
        else {
            self.begin_anew(u64::MAX);
            return Ok(Some(bytes.max(1)));
        };
        if let Some(timing) = timing {
            // A reader looks at each entry in each slice.
            let cells = section.entries.saturating_mul(self.made.plan.slices.len() as u64);
            self.made.timing_bytes =
                self.made.timing_bytes.saturating_add(timing.bytes.len() as u64);
            self.made.timings.push((key.timing(), timing));
            let most = slices_bytes_max(self.time_s());
            if self.made.timing_bytes > most || cells > CELLS_MAX as u64 {
                self.begin_anew(self.shortest_s(most));
                return Ok(Some(bytes.max(1)));
            }
        }
        self.made.builder.push(key, section.entries, section.total, &section.bytes);
        Ok(Some(bytes.max(1)))
    }

    fn time_s(&self) -> u64 {
        let ends = self.slices.iter().flatten().map(|slice| slice.until_unix_s);
        ends.max().unwrap_or(0).saturating_sub(self.since_unix_s)
    }

    /// A length of slices in seconds below which they take more than `most` bytes, by what has been
    /// made. Half as many slices take at least half as many bytes.
    fn shortest_s(&self, most: u64) -> u64 {
        let all: u64 = self
            .sources
            .iter()
            .flat_map(|source| &source.sections)
            .filter(|section| section.key.kind < SectionKind::SLICES)
            .map(|section| section.range.len() as u64)
            .sum();
        let projected =
            self.made.timing_bytes as f64 * all as f64 / self.made.read_bytes.max(1) as f64;
        let slice_s = self.time_s() / self.made.plan.slices.len().max(1) as u64;
        // The sections that are left may have less to tell: 0.7 of it is sure enough.
        let least = slice_s as f64 * 0.7 * projected / most.max(1) as f64;
        (least as u64).max(slice_s + 1)
    }

    /// Begins again with slices of at least this many seconds.
    pub(crate) fn begin_anew(&mut self, least_s: u64) {
        let mut least_s = least_s;
        let plan = loop {
            let Some(length_s) = self.group.slices_of(least_s) else {
                break Plan::whole(&self.slices);
            };
            let plan = Plan::following(&self.slices, self.since_unix_s, length_s);
            if plan.slices.len() < self.made.plan.slices.len() && plan.slices.len() <= SLICES_MAX {
                break plan;
            }
            least_s = length_s + 1;
        };
        let builder = self.made.builder.emptied();
        self.made = Made::new(plan, self.keys.clone(), builder);
    }
}
