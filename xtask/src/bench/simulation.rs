//! The sampler's table, simulated: SOSP 1997, section 5.4, for `ebpf/src/count.c`.

use super::recording::Sample;
use std::collections::HashSet;

named! {
    /// The replacement policy for the entries of a bucket.
    pub enum Policy {
        /// A hit moves nothing; a miss evicts each way in turn (the paper's driver).
        RoundRobin = "round-robin",
        /// A hit swaps with the first; a miss goes in front and the last leaves (the paper's plan,
        /// and our sampler).
        SwapToFront = "swap-to-front",
        /// A hit goes in front and those before it move back; a miss the same, and the last leaves
        /// (least recently used).
        ShiftToFront = "shift (LRU)",
    }
}

/// A table and how it is drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Entries of a bucket.
    pub ways: usize,
    /// Buckets of a half.
    pub buckets: usize,
    /// Replacement policy.
    pub policy: Policy,
    /// Seconds between drains.
    pub interval_s: u64,
    /// Kernel addresses are counted once for all processes.
    pub kernel_shared: bool,
    /// A drain takes the counts and leaves the places, so that they are found again; otherwise it
    /// empties the table.
    pub retained: bool,
}

/// Entries of a half's spill buffer, and how many of them let a drain come early
/// (`daemon/pipeline/src/drain.rs`, SPILL_USED_MAX).
pub const SPILL_ENTRIES: u64 = 16384;
const SPILL_EARLY: u64 = SPILL_ENTRIES * 7 / 10;
/// Buckets of both halves that fit in a CPU's page beside its own line.
pub const IN_PAGE: usize = 31;

/// dcpid's default. Recordings do not show which processes run the same program, so the saving of
/// counting a program's text once for all of them is not simulated.
pub const DEFAULT: Shape = Shape {
    ways: 4,
    buckets: IN_PAGE,
    policy: Policy::SwapToFront,
    interval_s: 5,
    kernel_shared: true,
    retained: true,
};

/// The result of a table for a stream of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// Samples.
    pub samples: u64,
    /// Samples whose place had no entry.
    pub misses: u64,
    /// Entries evicted, to the spill buffer.
    pub spilled: u64,
    /// Entries that drains found in the buckets.
    pub drained: u64,
    /// Different places that the drains found: of the buckets and spill buffers of all CPUs
    /// together.
    pub places: u64,
    /// Ways that were looked at.
    pub looks: u64,
    /// Cache lines of buckets that were touched.
    pub lines: u64,
    /// Drains of one CPU.
    pub drains: u64,
    /// Most entries spilled between two drains of a CPU.
    pub spill_peak: u64,
}

impl Counts {
    /// Adds the counts of another stream; the peak becomes the higher of the two.
    pub fn add(&mut self, other: &Counts) {
        macro_rules! add {
            ($($field:ident)+) => { $(self.$field += other.$field;)+ };
        }
        add!(samples misses spilled drained places looks lines drains);
        self.spill_peak = self.spill_peak.max(other.spill_peak);
    }

    /// A count per sample.
    pub fn per_sample(&self, part: u64) -> f64 {
        part as f64 / self.samples.max(1) as f64
    }
}

impl Shape {
    /// Bytes of a bucket. Six entries are packed into one cache line, as the paper proposes; others
    /// have 16 bytes each.
    pub fn bucket_bytes(&self) -> usize {
        if self.is_hypothetical() { 64 } else { 16 * self.ways }
    }

    /// Whether no such table can be built: a sixth of a cache line is 85 bits, and our key alone
    /// has 96 (7 of event, 57 of program counter, 32 of address space). It is simulated to see what
    /// packing would give.
    pub fn is_hypothetical(&self) -> bool {
        self.ways == 6
    }

    fn lines_of(&self, ways: usize) -> u64 {
        (ways * self.bucket_bytes() / self.ways).div_ceil(64) as u64
    }

    fn space(&self, sample: &Sample) -> u32 {
        if sample.is_kernel() && self.kernel_shared { 0 } else { sample.pid }
    }

    /// Feeds the samples, in order of time, to one table per CPU, whose halves take turns.
    pub fn simulate(&self, samples: &[Sample]) -> Counts {
        let mut counts = Counts { samples: samples.len() as u64, ..Counts::default() };
        let cpus = samples.iter().map(|sample| usize::from(sample.cpu) + 1).max().unwrap_or(0);
        let mut halves = [0, 1].map(|_| (0..cpus).map(|_| Table::new(self)).collect::<Vec<_>>());
        let interval_us = self.interval_s * 1_000_000;
        let mut next_drain_us = samples.first().map_or(0, |sample| sample.time_us + interval_us);
        for sample in samples {
            if sample.time_us >= next_drain_us
                || halves[0].iter().any(|table| table.spilled.len() as u64 > SPILL_EARLY)
            {
                drain(&mut halves[0], self, &mut counts);
                halves.swap(0, 1);
                next_drain_us = sample.time_us + interval_us;
            }
            if let Some(table) = halves[0].get_mut(usize::from(sample.cpu)) {
                table.count((sample.pc, self.space(sample)), self, &mut counts);
            }
        }
        drain(&mut halves[0], self, &mut counts);
        counts
    }

    /// Misses of a table without limits: each place once per drain and CPU, or, where places are
    /// left in, once per CPU and half. No table of that interval has fewer.
    pub fn least_misses(&self, samples: &[Sample]) -> u64 {
        let interval_us = self.interval_s * 1_000_000;
        let mut next_drain_us = samples.first().map_or(0, |sample| sample.time_us + interval_us);
        let (mut seen, mut other, mut misses) = (HashSet::new(), HashSet::new(), 0);
        for sample in samples {
            while sample.time_us >= next_drain_us {
                if self.retained {
                    std::mem::swap(&mut seen, &mut other);
                } else {
                    seen.clear();
                }
                next_drain_us += interval_us;
            }
            misses += u64::from(seen.insert((sample.cpu, sample.pc, self.space(sample))));
        }
        misses
    }
}

/// The bucket of a place, by Fibonacci hashing. In a table that fits in a page it is the sampler's
/// hash, which takes kernel addresses by their offset in a page.
fn bucket_of(place: (u64, u32), buckets: usize) -> usize {
    let hash = if buckets <= IN_PAGE {
        let address = if place.1 == 0 { place.0 & 4095 } else { place.0 };
        u64::from((address as u32 ^ place.1.wrapping_mul(0x85eb_ca6b)).wrapping_mul(0x9e37_79b1))
    } else {
        let key = (place.0 & ((1 << 57) - 1)) ^ (u64::from(place.1) << 32);
        key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
    };
    ((hash * buckets as u64) >> 32) as usize
}

/// Drains the tables of all CPUs.
fn drain(tables: &mut [Table], shape: &Shape, counts: &mut Counts) {
    let mut places = HashSet::new();
    tables.iter_mut().for_each(|table| table.drain(shape, counts, &mut places));
    counts.places += places.len() as u64;
}

/// One of the two halves of a CPU's table.
struct Table {
    ways: usize,
    /// Buckets, one after the other: place and samples since the last drain.
    entries: Vec<((u64, u32), u64)>,
    /// The entry to be evicted next.
    turn: usize,
    /// Entries evicted since the last drain.
    spilled: Vec<(u64, u32)>,
}

/// An entry without samples.
const NOWHERE: ((u64, u32), u64) = ((0, 0), 0);

impl Table {
    fn new(shape: &Shape) -> Self {
        let entries = vec![NOWHERE; shape.ways * shape.buckets];
        Self { ways: shape.ways, entries, turn: 0, spilled: Vec::new() }
    }

    fn count(&mut self, place: (u64, u32), shape: &Shape, counts: &mut Counts) {
        let from = bucket_of(place, shape.buckets) * self.ways;
        let Some(bucket) = self.entries.get_mut(from..from + self.ways) else { return };
        let found = bucket.iter().position(|(there, _)| *there == place);
        counts.looks += found.map_or(self.ways, |way| way + 1) as u64;
        counts.lines += shape.lines_of(found.map_or(self.ways, |way| way + 1));
        if let Some((way, entry)) = found.and_then(|way| Some((way, bucket.get_mut(way)?))) {
            entry.1 += 1;
            match shape.policy {
                Policy::RoundRobin => {}
                Policy::SwapToFront => bucket.swap(0, way),
                Policy::ShiftToFront => bucket.get_mut(..=way).unwrap_or_default().rotate_right(1),
            }
            return;
        }
        counts.misses += 1;
        let way = match shape.policy {
            Policy::RoundRobin => {
                self.turn += 1;
                self.turn % self.ways
            }
            _ => {
                bucket.rotate_right(1);
                0
            }
        };
        if let Some(entry) = bucket.get_mut(way) {
            let evicted = std::mem::replace(entry, (place, 1));
            if evicted.1 > 0 {
                counts.spilled += 1;
                self.spilled.push(evicted.0);
            }
        }
    }

    fn drain(&mut self, shape: &Shape, counts: &mut Counts, places: &mut HashSet<(u64, u32)>) {
        counts.drains += 1;
        counts.spill_peak = counts.spill_peak.max(self.spilled.len() as u64);
        places.extend(self.spilled.drain(..));
        for entry in self.entries.iter_mut().filter(|(_, samples)| *samples > 0) {
            counts.drained += 1;
            places.insert(entry.0);
            entry.1 = 0;
            if !shape.retained {
                *entry = NOWHERE;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(pcs: &[u64]) -> Vec<Sample> {
        let at = |(n, pc): (usize, &u64)| Sample { cpu: 0, pid: 7, time_us: n as u64, pc: *pc };
        pcs.iter().enumerate().map(at).collect()
    }

    /// One bucket of four ways.
    fn tiny(policy: Policy) -> Shape {
        Shape { buckets: 1, policy, ..DEFAULT }
    }

    fn places(count: u64) -> Vec<u64> {
        (1..=count).collect()
    }

    #[test]
    fn every_policy_keeps_four_and_hands_over_every_entry_once() {
        let five = places(5);
        for policy in Policy::ALL {
            let stream: Vec<u64> = five.iter().chain(five.iter()).copied().collect();
            let counts = tiny(policy).simulate(&samples(&stream));
            assert_eq!(counts.samples, 10);
            assert_eq!(
                counts.spilled + counts.drained,
                counts.misses,
                "{policy:?}: entries made are entries handed over"
            );
            assert_eq!((counts.drained, counts.places), (4, 5), "{policy:?}");
            let four: Vec<u64> = five.iter().take(4).cycle().take(40).copied().collect();
            let counts = tiny(policy).simulate(&samples(&four));
            assert_eq!((counts.misses, counts.spilled), (4, 0), "{policy:?}: four fit");
        }
    }

    #[test]
    fn what_is_used_again_stays_where_the_policy_says() {
        let p = places(5);
        // Fill with p0..p3, use p0 again, then p4 comes: round-robin evicts p0, the others evict
        // what was not used.
        let stream = [p[0], p[1], p[2], p[3], p[0], p[4], p[0]];
        assert_eq!(tiny(Policy::RoundRobin).simulate(&samples(&stream)).misses, 6);
        assert_eq!(tiny(Policy::SwapToFront).simulate(&samples(&stream)).misses, 5);
        assert_eq!(tiny(Policy::ShiftToFront).simulate(&samples(&stream)).misses, 5);
    }

    #[test]
    fn drains_empty_the_table_or_leave_the_places_and_the_kernel_may_be_shared() {
        let at = |time_us, pid, pc| Sample { cpu: 0, pid, time_us, pc };
        let kernel = 0xffff_ffff_8100_0000;
        // The halves take turns: the third drain finds what the first left.
        let stream = [
            at(0, 1, kernel),
            at(1, 2, kernel),
            at(2, 1, 5),
            at(1_000_002, 1, 5),
            at(2_000_003, 1, 5),
        ];
        let default = Shape { interval_s: 1, ..DEFAULT };
        let emptied = Shape { retained: false, ..default };
        let shared = emptied.simulate(&stream);
        assert_eq!((shared.misses, shared.drained, shared.drains), (4, 4, 3));
        assert_eq!(Shape { kernel_shared: false, ..emptied }.simulate(&stream).misses, 5);
        assert_eq!(Shape { interval_s: 5, ..emptied }.simulate(&stream).misses, 2);
        assert_eq!(emptied.least_misses(&stream), 4);
        let retained = default.simulate(&stream);
        assert_eq!((retained.misses, retained.drained, retained.drains), (3, 4, 3));
        assert_eq!(default.least_misses(&stream), 3);
    }

    #[test]
    fn six_packed_ways_are_one_line_and_eight_are_two() {
        let shape = |ways| Shape { ways, ..DEFAULT };
        assert_eq!([4, 6, 8].map(|ways| shape(ways).bucket_bytes()), [64, 64, 128]);
        assert_eq!([4, 6, 8].map(|ways| shape(ways).lines_of(ways)), [1, 1, 2]);
        assert_eq!(shape(8).lines_of(4), 1);
    }
}
