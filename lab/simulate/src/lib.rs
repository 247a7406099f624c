//! Models of a processor's caches, TLB and branch predictors, fed with what a program does: how
//! often each instruction misses, walks and is mispredicted.
//!
//! ```text
//! bursts of (code, addresses, ways of branches) -> Model -> Tally of each instruction
//! ```
//!
//! The state is kept from burst to burst. What happened between two bursts is not known, so lines
//! that the program has thrown out in the meantime may still be in the model; a burst counts only
//! behind its first part, and lines that are seen for the first time are counted apart.
#![forbid(unsafe_code)]

mod cache;
mod predictor;
mod stream;

use std::ops::Range;

use cache::{Cache, Mixed};
use predictor::{Conditional, Indirect, Returns};
use stream::Streams;

/// Bytes of a line.
const LINE_BITS: u32 = 6;
/// Bytes of a page, and of a huge one.
const PAGE_BITS: u32 = 12;
const HUGE_PAGE_BITS: u32 = 21;
/// Ways of the caches and the TLB: of Intel's cores since Ice Lake (L1 12, L2 10 to 16, last TLB
/// 8 to 16). A working set near a size misses a little more with fewer.
const WAYS: [usize; 3] = [12, 16, 16];
const TLB_WAYS: usize = 8;
const CODE_WAYS: usize = 8;
/// Bits of the table of lines that were seen, 8 MiB: of 4 million lines 6 % more are taken for seen
/// ones.
const SEEN_BITS: u32 = 26;

/// Sizes that the models need.
#[derive(Clone, Debug, PartialEq)]
pub struct Sizes {
    /// Bytes of the data caches, the first level first; at most three.
    pub data: Vec<f64>,
    /// Bytes of the first-level instruction cache.
    pub code: f64,
    /// Pages that the last TLB holds.
    pub pages: f64,
}

/// What an instruction did while it was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Executions.
    pub executions: u64,
    /// Accesses that no prefetcher foresees and that miss the first, second and third level.
    pub misses: [u64; 3],
    /// Those that the prefetchers of a core foresee: they need bandwidth, not latency.
    pub streamed: [u64; 3],
    /// Accesses of the first kind to lines that were seen for the first time.
    pub new_lines: u64,
    /// Accesses to pages that the TLB does not hold.
    pub walks: u64,
    /// Executions of a branch whose way was not foretold.
    pub mispredicted: u64,
    /// Lines of code that the first level did not hold when the instruction was fetched, and that
    /// do not follow the line before.
    pub code_misses: u64,
}

impl Tally {
    /// Adds another.
    pub fn add(&mut self, other: &Self) {
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut self.executions, other.executions);
        self.misses.iter_mut().zip(other.misses).for_each(|(sum, more)| add(sum, more));
        self.streamed.iter_mut().zip(other.streamed).for_each(|(sum, more)| add(sum, more));
        add(&mut self.new_lines, other.new_lines);
        add(&mut self.walks, other.walks);
        add(&mut self.mispredicted, other.mispredicted);
        add(&mut self.code_misses, other.code_misses);
    }
}

/// A processor's model.
#[derive(Debug)]
pub struct Model {
    data: Vec<Cache>,
    code: Cache,
    pages: Cache,
    /// Ranges of addresses in huge pages, in their order.
    huge: Vec<Range<u64>>,
    streams: Streams,
    seen: Vec<u64>,
    last_code_line: u64,
    conditional: Conditional,
    indirect: Indirect,
    returns: Returns,
    /// Whether what happens is counted.
    pub counts: bool,
}

impl Model {
    /// A model with empty caches.
    pub fn new(sizes: &Sizes) -> Self {
        let lines = |bytes: f64| bytes / f64::from(1_u32 << LINE_BITS);
        let mixed = [Mixed::Nothing, Mixed::Pages, Mixed::All];
        let level =
            |((bytes, ways), mixed): ((&f64, usize), Mixed)| Cache::new(lines(*bytes), ways, mixed);
        Self {
            data: sizes.data.iter().zip(WAYS).zip(mixed).map(level).collect(),
            code: Cache::new(lines(sizes.code), CODE_WAYS, Mixed::Nothing),
            pages: Cache::new(sizes.pages, TLB_WAYS, Mixed::Nothing),
            huge: Vec::new(),
            streams: Streams::default(),
            seen: vec![0; 1 << (SEEN_BITS - 6)],
            last_code_line: 0,
            conditional: Conditional::default(),
            indirect: Indirect::default(),
            returns: Returns::default(),
            counts: true,
        }
    }

    /// A burst begins: what the return stack holds is not known.
    pub fn begin(&mut self) {
        self.returns = Returns::default();
        self.streams = Streams::default();
    }

    /// No memory is known to be in huge pages.
    pub fn forget_huge_pages(&mut self) {
        self.huge.clear();
    }

    /// Memory at these addresses, above those told before, is in huge pages.
    pub fn huge_pages(&mut self, range: Range<u64>) {
        self.huge.push(range);
    }

    /// The TLB's entry for an address: the last levels of today's cores hold both sizes of pages
    /// (Intel since Haswell, AMD since Zen).
    fn entry(&self, address: u64) -> u64 {
        let behind = self.huge.partition_point(|range| range.end <= address);
        match self.huge.get(behind).is_some_and(|range| range.contains(&address)) {
            // No small page has the highest bit.
            true => address >> HUGE_PAGE_BITS | 1 << 63,
            false => address >> PAGE_BITS,
        }
    }

    /// Instructions at `at` are fetched, `bytes` long.
    pub fn fetch(&mut self, at: u64, bytes: u64, tally: &mut Tally) {
        let end = at.saturating_add(bytes.saturating_sub(1)) >> LINE_BITS;
        for line in (at >> LINE_BITS..=end).take(64) {
            let follows = line == self.last_code_line || line == self.last_code_line + 1;
            if self.last_code_line == line {
                continue;
            }
            self.last_code_line = line;
            if !self.code.access(line) {
                tally.code_misses += u64::from(self.counts && !follows);
                // The levels behind have code and data.
                self.data.iter_mut().skip(1).any(|level| level.access(line));
            }
        }
    }

    /// An instruction at `at` accesses memory.
    pub fn access(&mut self, at: u64, address: u64, bytes: u64, tally: &mut Tally) {
        let end = address.saturating_add(bytes.saturating_sub(1)) >> LINE_BITS;
        let streamed = self.streams.foresees(at, address);
        for line in (address >> LINE_BITS..=end).take(2) {
            let page = self.entry(line << LINE_BITS);
            if !self.pages.access(page) && self.counts && !streamed {
                tally.walks += 1;
            }
            let is_new = self.is_new(line);
            let counts = self.counts;
            let of = if streamed { &mut tally.streamed } else { &mut tally.misses };
            let mut levels = self.data.iter_mut().zip(of);
            let hit = levels.any(|(level, misses)| {
                let hit = level.access(line);
                *misses += u64::from(counts && !hit);
                hit
            });
            if !hit && !streamed {
                tally.new_lines += u64::from(counts && is_new);
            }
        }
    }

    /// Whether a line is seen for the first time.
    fn is_new(&mut self, line: u64) -> bool {
        let place = cache::mix(line) >> (64 - SEEN_BITS);
        let Some(word) = self.seen.get_mut((place >> 6) as usize) else { return false };
        let bit = 1 << (place & 63);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    /// A conditional branch at `at`.
    pub fn branch(&mut self, at: u64, taken: bool, tally: &mut Tally) {
        let right = self.conditional.foretells(at, taken);
        self.indirect.history(u64::from(taken), 1);
        tally.mispredicted += u64::from(self.counts && !right);
    }

    /// An indirect jump or call at `at`.
    pub fn indirect(&mut self, at: u64, target: u64, tally: &mut Tally) {
        let right = self.indirect.foretells(at, target);
        // Bits of the target are history of all branches.
        self.conditional.history(cache::mix(target) >> 62, 2);
        tally.mispredicted += u64::from(self.counts && !right);
    }

    /// A call that will return to an address.
    pub fn call(&mut self, returns_to: u64) {
        self.returns.call(returns_to);
    }

    /// A return.
    pub fn returns(&mut self, target: u64, tally: &mut Tally) {
        let right = self.returns.foretells(target);
        tally.mispredicted += u64::from(self.counts && !right);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests panic to fail")]
mod tests {
    use super::*;

    fn sizes() -> Sizes {
        let kib = 1024.0;
        Sizes { data: vec![48.0 * kib, 512.0 * kib, 4096.0 * kib], code: 32.0 * kib, pages: 1536.0 }
    }

    /// Numbers below `below`, in an order that is like chance.
    fn numbers(below: u64) -> impl Iterator<Item = u64> {
        (1_u64..).map(move |number| cache::mix(number) % below)
    }

    /// Misses and walks of each of a number of loads, behind as many that are not counted.
    fn rates(bytes: u64, apart: u64) -> ([f64; 3], f64) {
        let mut model = Model::new(&sizes());
        let mut tally = Tally::default();
        let count = 4 * (bytes / apart).max(1 << 16);
        for (turn, number) in numbers(bytes / apart).take(2 * count as usize).enumerate() {
            model.counts = turn as u64 >= count;
            model.access(0x40, number * apart, 8, &mut tally);
        }
        let share = |events: u64| events as f64 / count as f64;
        (tally.misses.map(share), share(tally.walks))
    }

    #[test]
    fn a_known_working_set_misses_what_it_must() {
        // Fits the first level, the second, the third; a line of each of 16384 pages; memory.
        let (misses, walks) = rates(32 << 10, 64);
        assert!(misses[0] < 0.01 && walks < 0.01, "{misses:?}");
        let (misses, _) = rates(256 << 10, 64);
        assert!(misses[0] > 0.78 && misses[1] < 0.05, "{misses:?}");
        let (misses, _) = rates(2 << 20, 64);
        assert!(misses[1] > 0.7 && misses[2] < 0.1, "{misses:?}");
        let (misses, walks) = rates(32 << 20, 4096);
        assert!(walks > 0.8 && misses[2] < 0.05, "{misses:?} {walks}");
        let (misses, walks) = rates(64 << 20, 64);
        assert!(misses[2] > 0.8 && walks > 0.9, "{misses:?} {walks}");
    }

    #[test]
    fn huge_pages_spare_walks() {
        let mut model = Model::new(&sizes());
        model.huge_pages(0..64 << 20);
        let mut tally = Tally::default();
        for number in numbers(128 << 8).take(100_000) {
            model.access(0x40, number * 4096, 8, &mut tally);
        }
        // Half of the accesses are to the huge half, which has 32 pages.
        let share = tally.walks as f64 / 100_000.0;
        assert!((0.44..0.5).contains(&share), "{share}");
    }

    #[test]
    fn a_stream_is_foreseen() {
        let mut model = Model::new(&sizes());
        let mut tally = Tally::default();
        for number in 0..100_000 {
            model.access(0x40, number * 8, 8, &mut tally);
        }
        assert!(tally.misses[2] < 500 && tally.walks < 50, "{tally:?}");
        assert!((12_000..12_600).contains(&tally.streamed[2]), "{tally:?}");
    }

    #[test]
    fn code_that_fits_is_fetched_once() {
        for (lines, rate) in [(256, 0.0..0.01), (4096, 0.9..1.01)] {
            let mut model = Model::new(&sizes());
            let mut tally = Tally::default();
            for (turn, number) in numbers(lines).take(40_000).enumerate() {
                model.counts = turn >= 20_000;
                model.fetch(number * 128, 20, &mut tally);
            }
            let share = tally.code_misses as f64 / 20_000.0;
            assert!(rate.contains(&share), "{lines} {share}");
        }
    }

    /// Share of a branch's executions that is mispredicted, with these ways.
    fn mispredicted(ways: impl Iterator<Item = bool>) -> f64 {
        let mut model = Model::new(&sizes());
        let mut tally = Tally::default();
        for (turn, taken) in ways.take(40_000).enumerate() {
            model.counts = turn >= 20_000;
            model.branch(0x1000, taken, &mut tally);
            model.branch(0x1010, turn % 8 != 7, &mut Tally::default());
        }
        tally.mispredicted as f64 / 20_000.0
    }

    #[test]
    fn what_repeats_is_learnt_and_chance_is_not() {
        let pattern = [true, false, false, true, true];
        assert!(mispredicted(pattern.into_iter().cycle()) < 0.01);
        assert!(mispredicted((0..).map(|turn| turn % 40 == 0)) < 0.02);
        let random = mispredicted(numbers(2).map(|number| number == 1));
        assert!((0.45..0.55).contains(&random), "{random}");
        let seldom = mispredicted(numbers(10).map(|number| number == 1));
        assert!((0.09..0.14).contains(&seldom), "{seldom}");
    }

    #[test]
    fn indirect_branches_and_returns_are_foretold_by_what_was_before() {
        let rate = |targets: &mut dyn Iterator<Item = u64>| {
            let mut model = Model::new(&sizes());
            let mut tally = Tally::default();
            for (turn, target) in targets.take(40_000).enumerate() {
                model.counts = turn >= 20_000;
                model.indirect(0x1000, target * 64, &mut tally);
            }
            tally.mispredicted as f64 / 20_000.0
        };
        assert!(rate(&mut [1, 2, 3, 1, 4, 2].into_iter().cycle()) < 0.01);
        let random = rate(&mut numbers(8));
        assert!((0.8..0.95).contains(&random), "{random}");
        let returned = |depth: u64| {
            let mut model = Model::new(&sizes());
            let mut tally = Tally::default();
            for turn in 0..100 {
                (0..depth).for_each(|call| model.call(call + depth * turn));
                (0..depth).rev().for_each(|call| model.returns(call + depth * turn, &mut tally));
            }
            tally.mispredicted as f64 / (100 * depth) as f64
        };
        assert!(returned(8) < 0.001 && returned(64) > 0.5);
    }

    #[test]
    fn no_address_and_no_size_is_too_strange() {
        for pages in [0.0, f64::NAN, 1e30, -1.0] {
            let data = vec![pages; 5];
            let mut model = Model::new(&Sizes { data, code: pages, pages });
            let mut tally = Tally::default();
            for at in [0, 1, u64::MAX, u64::MAX - 63] {
                model.fetch(at, at, &mut tally);
                model.access(at, at, at, &mut tally);
                model.branch(at, true, &mut tally);
                model.indirect(at, at, &mut tally);
                model.call(at);
                model.returns(at, &mut tally);
            }
        }
    }
}
