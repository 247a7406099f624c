//! Measures the machine: rounds of all measurements until the time is over, so that each quantity
//! is measured at several moments.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use measure::humps::median;

use crate::clock::{Clock, Moment, clock};
use crate::events::{Events, Instructions, events, instructions};
use crate::ladder::LINE_BYTES;
use crate::levels::{Level, beyond_caches, levels};
use crate::memory::{self, LINE_DISTANCES, MemoryChain};
use crate::mountain::{self, STRIDES};
use crate::pieces::{Stable, ns_per_cycle};
use crate::region::{Pages, Region, has_large_pages};
use crate::stated;
use crate::switches::stay;

/// A level of the cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Cache {
    /// The level, from 1.
    pub level: u32,
    /// The largest working set that is surely within the level and the smallest that is surely
    /// beyond it, bytes. None where no larger one was tried.
    pub bytes: Option<(u64, u64)>,
    /// Cycles from the address of a load to its value.
    pub latency_cycles: Stable,
}

/// A level of the data TLB.
#[derive(Clone, Debug, PartialEq)]
pub struct Tlb {
    /// The level, from 1.
    pub level: u32,
    /// The most pages of 4 KiB that surely have entries and the fewest that surely have not all.
    pub entries: Option<(u64, u64)>,
    /// Cycles that a load takes beyond one whose page has an entry in the first level.
    pub cycles: Stable,
}

/// The measurements.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Duration of the measurement, s.
    pub seconds: f64,
    /// Number of rounds.
    pub rounds: usize,
    /// Cycles per ns of the core.
    pub core_ghz: Stable,
    /// Ticks per ns of the counter.
    pub counter_ghz: f64,
    /// The counter's step, ns; less than a read takes where it moves by every tick.
    pub step_ns: f64,
    /// Time of a read of the counter, ns.
    pub read_ns: Stable,
    /// Time of a read between fences, ns.
    pub fenced_read_ns: Stable,
    /// The other events, ns, by name.
    pub events: Vec<(&'static str, Stable)>,
    /// Caches, the first level first.
    pub caches: Vec<Cache>,
    /// Bytes of a cache line.
    pub line_bytes: Option<u64>,
    /// Data TLBs, the first level first.
    pub tlbs: Vec<Tlb>,
    /// Cycles of a load from memory, large pages: the 5th percentile, the median and the 99th
    /// percentile of pieces of 512 loads.
    pub memory_cycles: Stable,
    /// Cycles of a load from memory while the other CPUs read memory at full speed. None with one
    /// CPU.
    pub loaded_memory_cycles: Option<Stable>,
    /// Bytes of the working sets in memory, of large and of small pages.
    pub memory_bytes: (u64, u64),
    /// Cycles of a page walk: of the smallest working set beyond the TLBs, the median of random
    /// loads from [`Machine::memory_bytes`] of small pages, and the most of these, also loaded.
    pub page_walk_cycles: Option<Stable>,
    /// Cycles of a page walk whose page tables are in no cache.
    pub cold_page_walk_cycles: Option<f64>,
    /// Cycles of a mispredicted branch.
    pub mispredict_cycles: Stable,
    /// Cycles from a store to a load of the same word.
    pub forward_cycles: Stable,
    /// Cycles from two stores to a load of a word with both.
    pub forward_failing_cycles: Stable,
    /// Whether large pages were available; without them latencies include page walks.
    pub large_pages: bool,
    /// Cycles of a load by working set in bytes. None where other threads had the CPU in each
    /// piece.
    pub latencies: Vec<(usize, Option<f64>)>,
    /// Cycles of a load by number of pages, likewise.
    pub page_latencies: Vec<(usize, Option<f64>)>,
    /// Bytes per ns that are read, by working set in bytes, for each of [`STRIDES`], likewise.
    pub mountain: Vec<(usize, Vec<Option<f64>>)>,
}

/// Limits of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// No round begins that would end after this time, but the first. The loaded part takes half a
    /// second more.
    pub time: Duration,
    /// Most rounds.
    pub rounds: usize,
    /// Most memory, bytes.
    pub memory_bytes: u64,
}

/// Pieces of memory's latency, of each kind of page, at each of three moments of a round.
const MEMORY_PIECES: usize = 12;
/// Tries of a page walk without caches.
const COLD_TRIES: usize = 12;
/// Time of the part in which other CPUs read memory.
const LOADED: Duration = Duration::from_millis(400);
/// Most CPUs that read memory during the measurement: more than enough to saturate a memory
/// controller.
const LOADERS_MAX: usize = 16;
/// Bytes that each of them reads.
const LOADER_BYTES: usize = 64 << 20;
/// Bytes of the working sets in memory, at least: larger than most third-level caches, and small
/// enough to be made in a second.
const MEMORY_BYTES_MIN: u64 = 256 << 20;
/// Bytes of the largest working set of the curve of latencies.
const LADDER_BYTES: usize = 64 << 20;
/// Most memory of a measurement, bytes.
const BYTES_MAX: u64 = 4 << 30;
/// Batches of pieces in memory while other CPUs read it.
type Batches = (Vec<Vec<f64>>, Vec<Vec<f64>>);

/// Memory for the measurement.
struct Memory {
    ladder: Region,
    pages: Region,
    large: Region,
    small: Region,
}

impl Memory {
    /// None without room. `caches_bytes` is the size of all caches together.
    fn new(limit: u64, caches_bytes: u64) -> Option<Self> {
        // Half of it is for the loads of other CPUs.
        let limit = limit.min(BYTES_MAX);
        let bytes = MEMORY_BYTES_MIN.max(4 * caches_bytes).min(limit / 4);
        let bytes = usize::try_from(bytes).ok()?;
        Some(Self {
            ladder: Region::new(LADDER_BYTES.min(usize::try_from(limit / 8).ok()?), Pages::Large)?,
            pages: Region::new(memory::PAGES_BYTES, Pages::Small)?,
            large: Region::new(bytes, Pages::Large)?,
            small: Region::new(bytes, Pages::Small)?,
        })
    }
}

/// The results of one round.
struct Round {
    ns_per_cycle: f64,
    clock: Clock,
    events: Events,
    instructions: Instructions,
    latencies: Vec<f64>,
    page_latencies: Vec<f64>,
    lines: Vec<f64>,
    mountain: Vec<Vec<f64>>,
    /// ns of loads from memory, of large and of small pages, batch by batch.
    memory: Batches,
}

/// Sizes of the working sets, the same in all rounds.
struct Sizes {
    working_sets: Vec<usize>,
    pages: Vec<usize>,
    mountain: Vec<usize>,
}

/// Largest working set, and number of pages, that are measured several times a round: they take
/// little time, and a program beside this one empties the cache or the TLB now and then.
const NEAR_BYTES: usize = 4 << 20;
const NEAR_PAGES: usize = 6000;

impl Sizes {
    fn near(&self) -> &[usize] {
        let count = self.working_sets.partition_point(|bytes| *bytes <= NEAR_BYTES);
        self.working_sets.get(..count).unwrap_or_default()
    }

    fn near_pages(&self) -> &[usize] {
        let count = self.pages.partition_point(|pages| *pages <= NEAR_PAGES);
        self.pages.get(..count).unwrap_or_default()
    }
}

/// For each size, the shorter time; `known` has at least as many sizes, or none yet.
fn lower(known: &mut Vec<f64>, again: Vec<f64>) {
    if known.is_empty() {
        *known = again;
        return;
    }
    known.iter_mut().zip(again).for_each(|(known, again)| *known = known.min(again));
}

impl Round {
    fn measure(
        sizes: &Sizes,
        (ladder, pages): (&mut Region, &mut Region),
        chains: (&mut MemoryChain<'_>, &mut MemoryChain<'_>),
        seed: u64,
    ) -> Self {
        let mut memory = (Vec::new(), Vec::new());
        let (mut latencies, mut page_latencies) = (Vec::new(), Vec::new());
        let (near, near_pages) = (sizes.near(), sizes.near_pages());
        let mut pieces = || {
            memory.0.push(chains.0.pieces(MEMORY_PIECES));
            memory.1.push(chains.1.pieces(MEMORY_PIECES));
        };
        pieces();
        let before = ns_per_cycle(20);
        let clock = clock();
        let events = events();
        let instructions = instructions(ladder);
        let mut climb = |ladder: &mut Region, sets: &[usize], counts: &[usize]| {
            lower(&mut latencies, memory::latencies(ladder, sets, seed));
            lower(&mut page_latencies, memory::page_latencies(pages, counts, seed));
        };
        climb(ladder, &sizes.working_sets, &sizes.pages);
        let lines = memory::line_latencies(ladder, seed);
        pieces();
        climb(ladder, near, near_pages);
        pieces();
        let mountain = mountain::throughputs(ladder, &sizes.mountain);
        climb(ladder, near, near_pages);
        let ns_per_cycle = before.min(ns_per_cycle(20));
        Self {
            ns_per_cycle,
            clock,
            events,
            instructions,
            latencies,
            page_latencies,
            lines,
            mountain,
            memory,
        }
    }
}

/// Measures this machine. `told` is called after each round with the part of the time that is over.
/// None where there is not enough memory.
#[must_use]
pub fn measure(limits: Limits, told: &(dyn Fn(f64) + Sync)) -> Option<Machine> {
    let begun = Instant::now();
    let caches = stated::caches(Path::new("/sys"));
    let caches_bytes = caches.iter().map(|cache| cache.bytes).sum::<u64>();
    let mut memory = Memory::new(limits.memory_bytes, caches_bytes)?;
    let large_pages = has_large_pages(memory.large.bytes());
    let sizes = Sizes {
        working_sets: memory::working_sets(memory.ladder.bytes()),
        pages: memory::page_counts(memory.pages.bytes()),
        mountain: mountain::working_sets(&memory.ladder),
    };
    let first = Moment::now();
    // A thread of its own, since threads inherit the CPU that another one is bound to.
    let rounds = std::thread::scope(|scope| {
        let measured = scope.spawn(|| {
            stay();
            let mut chains =
                (MemoryChain::new(&mut memory.large, 1), MemoryChain::new(&mut memory.small, 2));
            let (mut rounds, mut last): (Vec<Round>, _) = (Vec::new(), Duration::ZERO);
            while rounds.is_empty()
                || begun.elapsed() + last < limits.time && rounds.len() < limits.rounds
            {
                let round_begun = Instant::now();
                let seed = rounds.len() as u64;
                let regions = (&mut memory.ladder, &mut memory.pages);
                let chains = (&mut chains.0, &mut chains.1);
                rounds.push(Round::measure(&sizes, regions, chains, seed));
                last = round_begun.elapsed();
                let by_time = begun.elapsed().as_secs_f64() / limits.time.as_secs_f64();
                told(by_time.max(rounds.len() as f64 / limits.rounds as f64).min(1.0));
            }
            rounds
        });
        measured.join().ok()
    })?;
    let loaded = loaded(&mut memory.large, &mut memory.small);
    let cold = memory::cold_walk(&mut memory.small, &memory.ladder, COLD_TRIES);
    let counter_ghz = Moment::now().ticks_per_ns_since(&first);
    let bytes = (memory.large.bytes() as u64, memory.small.bytes() as u64);
    let results = Results { rounds, sizes, loaded, cold, counter_ghz, bytes, large_pages };
    results.machine(begun.elapsed())
}

/// ns of loads from memory of large and of small pages while the other CPUs read memory. None with
/// one CPU, or without memory for the others.
fn loaded(large: &mut Region, small: &mut Region) -> Option<Batches> {
    let others = std::thread::available_parallelism().map_or(1, usize::from).checked_sub(1)?;
    let over = AtomicBool::new(false);
    let over = &over;
    std::thread::scope(|scope| {
        let load = || {
            let Some(region) = Region::new(LOADER_BYTES, Pages::Large) else { return };
            while !over.load(Ordering::Relaxed) {
                crate::kernels::read(&region, LINE_BYTES, u64::MAX);
            }
        };
        for _ in 0..others.min(LOADERS_MAX) {
            scope.spawn(load);
        }
        let measured = scope.spawn(|| {
            stay();
            let mut pieces = (Vec::new(), Vec::new());
            let mut chains = (MemoryChain::new(large, 3), MemoryChain::new(small, 4));
            let begun = Instant::now();
            while begun.elapsed() < LOADED {
                pieces.0.push(chains.0.pieces(MEMORY_PIECES));
                pieces.1.push(chains.1.pieces(MEMORY_PIECES));
            }
            pieces
        });
        let measured = measured.join().ok();
        over.store(true, Ordering::Relaxed);
        measured.filter(|pieces| others > 0 && !pieces.0.is_empty())
    })
}

/// The results of all rounds, before levels are found in them.
struct Results {
    rounds: Vec<Round>,
    sizes: Sizes,
    loaded: Option<Batches>,
    cold: Option<f64>,
    counter_ghz: f64,
    bytes: (u64, u64),
    large_pages: bool,
}

/// Most levels of TLBs: no supported processor has a third.
const TLB_LEVELS_MAX: usize = 2;
/// Least factor between loads of two lines and of one. A smaller one takes noise for a line.
const LINE_JUMP_MIN: f64 = 1.15;
/// Most levels of caches.
const CACHE_LEVELS_MAX: usize = 4;

impl Results {
    /// A quantity of each round, without infinite values.
    fn stable(&self, of: impl Fn(&Round) -> f64) -> Option<Stable> {
        Stable::of(&self.rounds.iter().map(of).collect::<Vec<_>>())
    }

    /// A time of each round in cycles.
    fn in_cycles(&self, ns: impl Fn(&Round) -> f64) -> Option<Stable> {
        self.stable(|round| ns(round) / round.ns_per_cycle)
    }

    /// Cycles by size: the fewest of all rounds.
    fn curve(&self, sizes: &[usize], of: impl Fn(&Round) -> &Vec<f64>) -> Vec<(usize, f64)> {
        let least = |at: usize| {
            let cycles = |round: &Round| Some(of(round).get(at)? / round.ns_per_cycle);
            self.rounds.iter().filter_map(cycles).fold(f64::INFINITY, f64::min)
        };
        sizes.iter().enumerate().map(|(at, size)| (*size, least(at))).collect()
    }

    fn machine(&self, took: Duration) -> Option<Machine> {
        let Self { rounds, sizes, counter_ghz, .. } = self;
        let core_ghz = self.stable(|round| 1.0 / round.ns_per_cycle)?;
        let (memory, walks) =
            in_memory(rounds.iter().map(|round| (&round.memory, round.ns_per_cycle)));
        let memory_cycles = Stable::of_pieces(&memory)?;
        let loaded = self.loaded.iter().map(|loaded| (loaded, 1.0 / core_ghz.value));
        let (loaded, loaded_walks) = in_memory(loaded);
        let latencies = self.curve(&sizes.working_sets, |round| &round.latencies);
        let page_latencies = self.curve(&sizes.pages, |round| &round.page_latencies);
        let (tlbs, first_walk) = self.tlbs(&page_latencies, &latencies);
        let line = self.line_bytes();
        let walks = median(&walks).map(|value| {
            let low = first_walk.unwrap_or(value).min(value);
            let loaded = median(&loaded_walks).unwrap_or(value);
            Stable { low, value, high: value.max(loaded) }
        });
        let names = Events::default().named().map(|(name, _)| name);
        let event = |(number, name): (usize, &'static str)| {
            let ns =
                |round: &Round| round.events.named().get(number).map_or(f64::NAN, |(_, ns)| *ns);
            Some((name, self.stable(ns)?))
        };
        let mountain = |(at, size): (usize, &usize)| {
            let best = |stride: usize| {
                let of =
                    |round: &Round| round.mountain.get(at).and_then(|row| row.get(stride)).copied();
                rounds.iter().filter_map(of).filter(|rate| *rate > 0.0).reduce(f64::max)
            };
            (*size, (0..STRIDES.len()).map(best).collect())
        };
        Some(Machine {
            seconds: took.as_secs_f64(),
            rounds: rounds.len(),
            core_ghz,
            counter_ghz: *counter_ghz,
            step_ns: median(
                &rounds.iter().map(|round| round.clock.step_ticks).collect::<Vec<_>>(),
            )? / counter_ghz,
            read_ns: self.stable(|round| round.clock.read_ns)?,
            fenced_read_ns: self.stable(|round| round.clock.fenced_read_ns)?,
            events: names.into_iter().enumerate().filter_map(event).collect(),
            caches: self.caches(&latencies, memory_cycles),
            line_bytes: line,
            tlbs,
            memory_cycles,
            loaded_memory_cycles: Stable::of_pieces(&loaded),
            memory_bytes: self.bytes,
            page_walk_cycles: walks,
            cold_page_walk_cycles: self
                .cold
                .map(|ns| (ns * core_ghz.value - memory_cycles.value).max(0.0)),
            mispredict_cycles: self.in_cycles(|round| round.instructions.mispredict_ns)?,
            forward_cycles: self.in_cycles(|round| round.instructions.forward_ns)?,
            forward_failing_cycles: self
                .in_cycles(|round| round.instructions.forward_failing_ns)?,
            large_pages: self.large_pages,
            latencies: measured(&latencies),
            page_latencies: measured(&page_latencies),
            mountain: sizes.mountain.iter().enumerate().map(mountain).collect(),
        })
    }

    /// Number of the finely spaced sizes.
    fn fine(sizes: &[usize], most: usize) -> usize {
        sizes.partition_point(|size| *size <= most)
    }

    fn caches(&self, latencies: &[(usize, f64)], memory: Stable) -> Vec<Cache> {
        let sizes = &self.sizes.working_sets;
        let known = measured(latencies);
        let cycles: Vec<f64> = filled(latencies).into_iter().map(|(_, cycles)| cycles).collect();
        let fine = Self::fine(sizes, memory::FINE_BYTES_MAX);
        let found = levels(&cycles, fine, Some(memory.low), CACHE_LEVELS_MAX);
        let cache = |(number, level): (usize, &Level)| {
            let of_round = |round: &Round| {
                median(round.latencies.get(level.sizes.clone()).unwrap_or_default())
                    .unwrap_or(f64::NAN)
            };
            let size = |at: usize| sizes.get(at).map_or(0, |bytes| *bytes as u64);
            Some(Cache {
                level: u32::try_from(number).ok()? + 1,
                bytes: seen_end(&known, level.end).map(|(low, high)| (size(low), size(high))),
                latency_cycles: self.in_cycles(of_round)?,
            })
        };
        found.iter().enumerate().filter_map(cache).collect()
    }

    /// The TLBs, and cycles of a walk of the smallest working set beyond them.
    fn tlbs(&self, pages: &[(usize, f64)], latencies: &[(usize, f64)]) -> (Vec<Tlb>, Option<f64>) {
        let known = measured(pages);
        let (pages, latencies) = (&filled(pages), &filled(latencies));
        let Some((_, hit)) = latencies.first().copied() else { return (Vec::new(), None) };
        let beyond = |pages: &[(usize, f64)], latencies: &[(usize, f64)]| {
            beyond_caches(pages, latencies, LINE_BYTES)
        };
        let cycles: Vec<f64> = beyond(pages, latencies).iter().map(|cycles| cycles + hit).collect();
        let fine = Self::fine(&self.sizes.pages, memory::FINE_PAGES_MAX);
        // One level more than the number of TLBs: the level of page walks.
        let found = levels(&cycles, fine, None, TLB_LEVELS_MAX + 1);
        let of_rounds: Vec<Vec<f64>> = self
            .rounds
            .iter()
            .map(|round| {
                let in_cycles = |sizes: &[usize], ns: &[f64]| -> Vec<(usize, f64)> {
                    let cycles = ns.iter().map(|ns| ns / round.ns_per_cycle);
                    sizes.iter().copied().zip(cycles).collect()
                };
                beyond(
                    &in_cycles(&self.sizes.pages, &round.page_latencies),
                    &in_cycles(&self.sizes.working_sets, &round.latencies),
                )
            })
            .collect();
        let extra = |level: &Level| {
            let of = |round: &Vec<f64>| {
                median(round.get(level.sizes.clone()).unwrap_or_default()).unwrap_or(f64::NAN)
            };
            Stable::of(&of_rounds.iter().map(of).collect::<Vec<_>>())
        };
        let tlb = |(number, level): (usize, &Level)| {
            let entries = |at: usize| self.sizes.pages.get(at).map_or(0, |pages| *pages as u64);
            Some(Tlb {
                level: u32::try_from(number).ok()? + 1,
                entries: seen_end(&known, level.end)
                    .map(|(low, high)| (entries(low), entries(high))),
                cycles: extra(level)?,
            })
        };
        let ended: Vec<&Level> = found.iter().filter(|level| level.end.is_some()).collect();
        let tlbs = ended.iter().take(TLB_LEVELS_MAX).copied().enumerate().filter_map(tlb).collect();
        let last = ended.len().min(TLB_LEVELS_MAX).checked_sub(1).and_then(|last| found.get(last));
        (tlbs, last.and_then(|last| Some(last.next? - hit)))
    }

    /// Bytes of a line: the least distance at which a second load takes most of the time that one
    /// of another line takes.
    fn line_bytes(&self) -> Option<u64> {
        let least = |at: usize| {
            let of = |round: &Round| Some(round.lines.get(at)? / round.ns_per_cycle);
            self.rounds.iter().filter_map(of).fold(f64::INFINITY, f64::min)
        };
        let cycles: Vec<f64> = (0..LINE_DISTANCES.len()).map(least).collect();
        if cycles.iter().any(|cycles| !cycles.is_finite()) {
            return None;
        }
        let low = cycles.iter().copied().fold(f64::INFINITY, f64::min);
        let high = cycles.iter().copied().fold(0.0, f64::max);
        // Two loads of one line take little more than one; of two lines, up to twice as much. No
        // jump: lines are longer than the largest distance.
        let middle = (low * high).sqrt().max(low * LINE_JUMP_MIN);
        let beyond = cycles.iter().rev().take_while(|cycles| **cycles >= middle).count();
        let at = cycles.len().checked_sub(beyond.max(1)).filter(|_| beyond > 0)?;
        LINE_DISTANCES.get(at).map(|distance| *distance as u64)
    }
}

/// A curve without the values of sizes at which other threads had the CPU in each piece.
fn measured(curve: &[(usize, f64)]) -> Vec<(usize, Option<f64>)> {
    curve.iter().map(|(size, cycles)| (*size, Some(*cycles).filter(|of| of.is_finite()))).collect()
}

/// A curve that has between measured sizes the lower one's value, so that levels can be looked for.
/// Empty where nothing was measured.
fn filled(curve: &[(usize, f64)]) -> Vec<(usize, f64)> {
    let finite = |(_, cycles): &&(usize, f64)| cycles.is_finite();
    let Some((_, mut last)) = curve.iter().find(finite).copied() else { return Vec::new() };
    let fill = |(size, cycles): &(usize, f64)| {
        last = if cycles.is_finite() { *cycles } else { last };
        (*size, last)
    };
    curve.iter().map(fill).collect()
}

/// The end of a level, moved outwards to sizes that were measured. None where there is none.
fn seen_end(curve: &[(usize, Option<f64>)], end: Option<(usize, usize)>) -> Option<(usize, usize)> {
    let (low, high) = end?;
    let is_seen = |at: &usize| curve.get(*at).is_some_and(|(_, cycles)| cycles.is_some());
    Some(((0..=low).rev().find(is_seen)?, (high..curve.len()).find(is_seen)?))
}

/// Cycles of all loads from memory with large pages, and of page walks: batch by batch, what small
/// pages took beyond large ones. Other load on memory changes from second to second, so only
/// batches that follow each other are compared.
fn in_memory<'a>(batches: impl Iterator<Item = (&'a Batches, f64)>) -> (Vec<f64>, Vec<f64>) {
    let (mut large, mut walks) = (Vec::new(), Vec::new());
    for (batches, ns_per_cycle) in batches {
        for (of_large, of_small) in batches.0.iter().zip(&batches.1) {
            large.extend(of_large.iter().map(|ns| ns / ns_per_cycle));
            let both = median(of_small).zip(median(of_large));
            walks.extend(both.map(|(small, large)| ((small - large) / ns_per_cycle).max(0.0)));
        }
    }
    (large, walks)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes that were not measured, because other programs had the CPU, had the value 0 or
    /// infinity, at which a level seemed to end.
    #[test]
    fn what_was_not_measured_is_no_value_and_no_end() {
        let unseen = f64::INFINITY;
        let curve = [(1, unseen), (2, 4.0), (3, unseen), (4, 5.0), (5, unseen)];
        let known = measured(&curve);
        assert_eq!(known.iter().filter_map(|(_, of)| *of).collect::<Vec<_>>(), [4.0, 5.0]);
        let all: Vec<f64> = filled(&curve).into_iter().map(|(_, cycles)| cycles).collect();
        assert_eq!(all, [4.0, 4.0, 4.0, 5.0, 5.0]);
        assert_eq!(filled(&[(1, unseen)]), []);
        assert_eq!(seen_end(&known, Some((2, 3))), Some((1, 3)));
        assert_eq!(seen_end(&known, Some((2, 4))), None);
        assert_eq!(seen_end(&known, Some((0, 3))), None);
        assert_eq!(seen_end(&known, None), None);
    }
}
