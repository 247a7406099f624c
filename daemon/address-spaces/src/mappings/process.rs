//! The address spaces of one process, and the assignment of samples to them.

use super::address_map::{AddressMap, Mapping};
use crate::scopes::Tags;
use model::Unresolved;
use std::sync::Arc;

/// Replaced mappings of one address space that are remembered within one drain.
const REPLACED_MAX: usize = 1024;

/// Address spaces of one process that are remembered within one drain; an exec storm over itself
/// loses the oldest.
const VERSIONS_MAX: usize = 64;

/// The mapping and the tags of a sample.
#[derive(Clone, Debug)]
pub struct Found {
    /// The mapping.
    pub mapping: Mapping,
    /// The tags of that process.
    pub tags: Tags,
}

/// Consecutive generations, from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Generations {
    pub(super) first: u16,
    pub(super) last: u16,
}

impl Generations {
    /// The sampler counts them up in 10 bits (note_change).
    pub(super) const MASK: u16 = (1 << (32 - abi::PID_BITS)) - 1;

    pub(super) fn one(generation: u16) -> Self {
        Self { first: generation, last: generation }
    }

    pub(super) fn contain(self, generation: u16) -> bool {
        self.distance(generation) <= self.distance(self.last)
    }

    fn distance(self, to: u16) -> u16 {
        to.wrapping_sub(self.first) & Self::MASK
    }

    /// Up to `last`. The numbers wrap around: the oldest are forgotten before they could be
    /// mistaken for new ones.
    pub(super) fn extend(&mut self, last: u16) {
        self.last = last;
        if self.distance(last) > Self::MASK / 2 {
            self.first = last.wrapping_sub(Self::MASK / 2) & Self::MASK;
        }
    }
}

/// One address space that a process had.
#[derive(Debug)]
pub(super) struct Version {
    /// Shared with the parent until one of the two maps something.
    pub(super) map: Arc<AddressMap>,
    /// The generations whose samples belong to it; None until a record or a sample shows them.
    pub(super) generations: Option<Generations>,
    /// The generation that the next mapping begins, and the time of the sampler's report.
    pub(super) next: Option<(u16, u64)>,
    /// When the process left it; `u64::MAX`: not yet.
    pub(super) until_ns: u64,
    /// Replaced mappings, and the time until which they were valid.
    pub(super) replaced: Vec<(Mapping, u64)>,
    /// The tags of its samples.
    pub(super) tags: Tags,
    /// The tags before the last label, and when that came, ns.
    pub(super) tags_before: Option<(Tags, u64)>,
    /// Numbers of code shared with other processes, as far as records have reported them; 0: none.
    pub(super) numbers: Numbers,
}

/// A program, its interpreter and its C library (`struct slot`, ebpf/src/abi.h).
pub(super) type Numbers = [u32; 3];

impl Version {
    pub(super) fn new(map: Arc<AddressMap>, tags: Tags, numbers: Numbers) -> Self {
        let (generations, next, until_ns, replaced) = (None, None, u64::MAX, Vec::new());
        let tags_before = None;
        Self { map, generations, next, until_ns, replaced, tags, tags_before, numbers }
    }

    pub(super) fn has_number(&mut self, number: u32) {
        if !self.numbers.contains(&number)
            && let Some(free) = self.numbers.iter_mut().find(|number| **number == 0)
        {
            *free = number;
        }
    }

    /// The tags at a time, in ns.
    fn tags_at(&self, time_ns: u64) -> Tags {
        let before = self.tags_before.as_ref().filter(|(_, until_ns)| time_ns < *until_ns);
        before.map_or_else(|| self.tags.clone(), |(tags, _)| tags.clone())
    }

    pub(super) fn has(&self, generation: u16) -> bool {
        self.generations.is_some_and(|known| known.contain(generation))
            || self.next.is_some_and(|(next, _)| next == generation)
    }

    /// The mapping at `pc` when the samples of this window were taken; Some(Err) when there were
    /// two.
    pub(super) fn find(&self, pc: u64, window: Window) -> Option<Result<Found, Unresolved>> {
        let then = |(old, until): &&(Mapping, u64)| {
            *until >= window.from_ns && (old.start..old.end).contains(&pc)
        };
        let now = self.map.find(pc)?;
        let two = self.replaced.iter().any(|replaced| then(&replaced));
        Some(if two {
            Err(Unresolved::AmbiguousMapping)
        } else {
            Ok(Found { mapping: now.clone(), tags: self.tags.clone() })
        })
    }
}

/// Longest time between the sampler's report of a mapping and the kernel's record. A later record
/// belongs to another mapping: splitting a mapping, as `munmap` of a part does, is reported by the
/// sampler but has no record (`ma_write`, Linux 6.1).
pub(super) const RECORD_NS: u64 = 10_000_000;

#[derive(Debug)]
pub(super) struct Process {
    /// Oldest first, never empty; the last one is where the process is now.
    pub(super) versions: Vec<Version>,
    /// Records older than this are in the last version already: it was read from /proc then.
    pub(super) read_ns: u64,
    /// When its first thread ended.
    pub(super) ended_ns: Option<u64>,
    /// It has, or may have, more than one.
    pub(super) threads: bool,
    /// It had more address spaces within a drain than are kept.
    pub(super) has_lost_versions: bool,
}

impl Default for Process {
    fn default() -> Self {
        let versions = vec![Version::new(Arc::default(), Tags::default(), Numbers::default())];
        Self { versions, read_ns: 0, ended_ns: None, threads: true, has_lost_versions: false }
    }
}

impl Process {
    /// Adds a mapping of a file. If it begins a generation and replaces another mapping, the
    /// previous map is kept separately; otherwise one map serves the samples of both generations.
    pub(super) fn map(&mut self, mapping: Mapping, time_ns: u64) -> Result<(), ()> {
        let Some(now) = self.versions.last_mut() else { return Ok(()) };
        if let Some((next, told_ns)) = now.next.take() {
            let own = time_ns.saturating_sub(told_ns) < RECORD_NS;
            if own && now.map.differs_from(&mapping) {
                let (map, tags, numbers) = (now.map.clone(), now.tags.clone(), now.numbers);
                self.enter(map, tags, numbers, time_ns);
                if let Some(now) = self.versions.last_mut() {
                    now.generations = Some(Generations::one(next));
                    return Arc::make_mut(&mut now.map).insert(mapping).map(drop).ok_or(());
                }
            } else if let Some(generations) = &mut now.generations {
                generations.extend(next);
            }
        }
        let Some(now) = self.versions.last_mut() else { return Ok(()) };
        let replaced = Arc::make_mut(&mut now.map).insert(mapping).ok_or(())?;
        now.replaced.truncate(REPLACED_MAX);
        now.replaced.extend(replaced.into_iter().map(|old| (old, time_ns)));
        Ok(())
    }

    /// Samples are of this generation from now on, no longer of the one before, and what is mapped
    /// next may be over something else.
    pub(super) fn expect(&mut self, before: u16, generation: u16, time_ns: u64) {
        let Some(now) = self.versions.last_mut() else { return };
        now.generations.get_or_insert(Generations::one(before));
        let counted_up = before.wrapping_add(1) & Generations::MASK == generation;
        if now.has(before) && counted_up {
            now.generations.get_or_insert(Generations::one(before)).extend(before);
            now.next = Some((generation, time_ns));
            return;
        }
        // The sampler lost track of the process and started again.
        let (map, tags, numbers) = (now.map.clone(), now.tags.clone(), now.numbers);
        self.enter(map, tags, numbers, time_ns);
        if let Some(now) = self.versions.last_mut() {
            now.generations = Some(Generations::one(generation));
        }
    }

    /// Forgets versions that no sample since `from_ns` can belong to, and shrinks the vectors: most
    /// processes never change again.
    pub(super) fn forget_before(&mut self, from_ns: u64) {
        self.versions.retain(|version| version.until_ns >= from_ns);
        self.versions.shrink_to_fit();
        for version in self.versions.iter_mut().filter(|version| version.replaced.capacity() > 0) {
            version.replaced.retain(|(_, until)| *until >= from_ns);
            version.replaced.shrink_to_fit();
        }
    }

    /// From `time_ns` on the process is in another address space.
    pub(super) fn enter(
        &mut self,
        map: Arc<AddressMap>,
        tags: Tags,
        numbers: Numbers,
        time_ns: u64,
    ) {
        if let Some(now) = self.versions.last_mut() {
            now.until_ns = time_ns;
        }
        if self.versions.len() >= VERSIONS_MAX {
            self.versions.remove(0);
            self.has_lost_versions = true;
        }
        self.versions.push(Version::new(map, tags, numbers));
    }

    /// The map of the address space of that generation; if no record or sample has shown the
    /// generation yet, or it is not told (0), the map of the newest space that could have it; and
    /// the tags at a time, in ns.
    pub(super) fn space(
        &self,
        generation: u16,
        window: Window,
        time_ns: u64,
    ) -> Option<(Arc<AddressMap>, Tags)> {
        let then = |version: &&Version| version.until_ns >= window.from_ns;
        let known = self.versions.iter().rev().filter(then);
        let could_be = |version: &&Version| {
            (version.generations.is_none() || generation == 0) && !version.map.is_empty()
        };
        let version = known
            .clone()
            .find(|version| version.has(generation))
            .or_else(|| known.clone().find(could_be))?;
        Some((version.map.clone(), version.tags_at(time_ns)))
    }

    /// The tags of the newest address space at a time, in ns.
    pub(super) fn newest_tags(&self, time_ns: u64) -> Option<Tags> {
        self.versions.last().map(|version| version.tags_at(time_ns))
    }

    /// The mapping at `pc` in the address space of that generation; where the generation is not
    /// known yet, in the newest space that could be it and has something there, which is
    /// remembered.
    pub(super) fn find(
        &mut self,
        generation: u16,
        pc: u64,
        window: Window,
    ) -> Option<Result<Found, Unresolved>> {
        let then = |version: &&mut Version| version.until_ns >= window.from_ns;
        let mut known = self.versions.iter_mut().rev().filter(then);
        if let Some(version) = known.find(|version| version.has(generation)) {
            return version.find(pc, window);
        }
        for version in self
            .versions
            .iter_mut()
            .rev()
            .filter(then)
            .filter(|version| version.generations.is_none())
        {
            if let Some(mapping) = version.find(pc, window) {
                // A sampler without access to tasks reports generation 0 for all of them.
                version.generations = (generation != 0).then_some(Generations::one(generation));
                return Some(mapping);
            }
        }
        None
    }
}

/// The drained samples were taken between these times (CLOCK_MONOTONIC, ns).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Begin of the drain before.
    pub from_ns: u64,
    /// End of this drain.
    pub to_ns: u64,
}
