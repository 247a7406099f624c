//! Latency of memory by working set, with large and small pages; the line; page walks.

use measure::humps::median;

use crate::kernels::STEPS;
use crate::ladder::{Chain, LINE_BYTES, by_block, by_line, by_page};
use crate::pieces::{fastest, time};
use crate::region::{PAGE_BYTES, Region};

/// Working sets per doubling up to [`FINE_BYTES_MAX`]: fine enough to tell a TLB of 64 entries from
/// one of 72.
const PER_DOUBLING: usize = 8;
/// Largest working set of the fine part; beyond it, one size a doubling: a pass takes longer there,
/// and the load of other programs determines where the last level ends.
pub(crate) const FINE_BYTES_MAX: usize = 8 << 20;
/// Smallest working set, bytes, and smallest number of pages.
const BYTES_MIN: usize = 4 << 10;
const PAGES_MIN: usize = 8;
/// Most pages of the fine part.
pub(crate) const FINE_PAGES_MAX: usize = 12_000;
/// Steps of a piece: at least twice around the smallest sets, and less than a millisecond.
const PIECE_STEPS: (usize, usize) = (2048, 16 << 10);
/// Pieces at each working set in each round; the fastest one counts.
const PIECES: usize = 3;

/// `first` and its successors at `per_doubling` a doubling, up to `fine`, and then doubled up to
/// `most`.
fn sizes(first: usize, fine: usize, most: usize) -> Vec<usize> {
    let step = |number: usize| {
        (first as f64 * (number as f64 / PER_DOUBLING as f64).exp2()).round() as usize
    };
    let mut sizes: Vec<usize> =
        (0..).map(step).take_while(|size| *size <= fine.min(most)).collect();
    let mut size = fine.saturating_mul(2);
    while size <= most {
        sizes.push(size);
        size = size.saturating_mul(2);
    }
    sizes
}

/// Working sets in bytes of [`latencies`], up to `most`.
#[must_use]
pub fn working_sets(most: usize) -> Vec<usize> {
    sizes(BYTES_MIN, FINE_BYTES_MAX, most)
}

/// Numbers of pages of [`page_latencies`], up to those of `bytes`.
#[must_use]
pub fn page_counts(bytes: usize) -> Vec<usize> {
    sizes(PAGES_MIN, FINE_PAGES_MAX, bytes / PAGE_BYTES)
}

/// ns per load of a chain that grows to each of `lens` words.
fn climb(chain: &mut Chain<'_>, lens: impl Iterator<Item = usize>) -> Vec<f64> {
    let at = |len: usize| {
        chain.grow(len);
        chain.walk(chain.words());
        let steps = len.clamp(PIECE_STEPS.0, PIECE_STEPS.1).next_multiple_of(STEPS as usize);
        fastest(PIECES, || {
            chain.walk(steps);
        }) / steps as f64
    };
    lens.map(at).collect()
}

/// ns per load for each of the working sets, one line after the other in random order.
pub fn latencies(region: &mut Region, working_sets: &[usize], seed: u64) -> Vec<f64> {
    let mut chain = Chain::new(region, by_line, seed);
    climb(&mut chain, working_sets.iter().map(|bytes| bytes / LINE_BYTES))
}

/// ns per load for each number of pages, one line in each page in random order.
pub fn page_latencies(region: &mut Region, pages: &[usize], seed: u64) -> Vec<f64> {
    let mut chain = Chain::new(region, by_page, seed);
    climb(&mut chain, pages.iter().copied())
}

/// Distances of [`line_latencies`], bytes.
pub const LINE_DISTANCES: [usize; 6] = [8, 16, 32, 64, 128, 256];
/// Blocks of [`line_latencies`]: more lines than a second-level cache has, so that a load of
/// another line takes many times as long as one of the same line.
const LINE_BLOCKS: usize = 1 << 16;
/// Steps of a piece.
const LINE_STEPS: usize = 4096;

/// ns per load of chains that visit two words of each block, of 512 bytes, with these distances.
/// Where the second is in the line of the first, its load takes the latency of the first level. The
/// first is at changing places, above or below the second, so that prefetchers cannot learn the
/// distance.
pub fn line_latencies(region: &mut Region, seed: u64) -> Vec<f64> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut order: Vec<usize> = (0..LINE_BLOCKS.min(region.bytes() / 512)).collect();
    let mut of = |distance: usize| {
        random.shuffle(&mut order);
        let places: Vec<usize> = order
            .iter()
            .flat_map(|block| {
                let first = block * 512 + random.usize(..64) * 8;
                [first, first ^ distance]
            })
            .collect();
        let mut chain = Chain::through(region, &places);
        chain.walk(LINE_STEPS);
        fastest(PIECES, || {
            chain.walk(LINE_STEPS);
        }) / LINE_STEPS as f64
    };
    LINE_DISTANCES.iter().map(|distance| of(*distance)).collect()
}

/// Loads of a piece of [`MemoryChain::pieces`]: about 0.1 ms.
const MEMORY_STEPS: usize = 512;
/// Loads before the pieces: several for each line of the page tables of 256 MiB in small pages.
const WARM_STEPS: usize = 64 << 10;
/// Most words of a chain through memory. No run visits so many, so nothing is visited twice.
const MEMORY_WORDS_MAX: usize = 1 << 19;

/// A chain through more memory than any cache holds.
#[derive(Debug)]
pub struct MemoryChain<'a>(Chain<'a>);

impl<'a> MemoryChain<'a> {
    /// A chain through all of the region, with a word in each KiB or page.
    #[must_use]
    pub fn new(region: &'a mut Region, seed: u64) -> Self {
        let pages = region.bytes() / PAGE_BYTES;
        let place = if pages * 4 <= MEMORY_WORDS_MAX { by_block } else { by_page };
        let mut chain = Chain::new(region, place, seed);
        chain.grow(MEMORY_WORDS_MAX);
        Self(chain)
    }

    /// ns per load of each of `count` pieces, but those in which another thread had the CPU. Before
    /// them comes a walk that brings page tables into caches, as long-running loads find them.
    pub fn pieces(&mut self, count: usize) -> Vec<f64> {
        self.0.walk(WARM_STEPS);
        let mut piece = |_| {
            let took = time(|| {
                self.0.walk(MEMORY_STEPS);
            })?;
            Some(took / MEMORY_STEPS as f64)
        };
        (0..count).filter_map(&mut piece).collect()
    }
}

/// Pages of small size that a region of this many bytes has more of than any TLB's entries.
pub const PAGES_BYTES: usize = 16384 * PAGE_BYTES;

/// ns per load where neither the word nor its page's entry in the page table is in a cache: pages
/// as far apart as one table of the kernel's maps, after `evict` has filled the caches otherwise.
/// The median of some tries.
pub fn cold_walk(region: &mut Region, evict: &Region, tries: usize) -> Option<f64> {
    /// Bytes that the last level of page tables maps with one table of 512 entries.
    const TABLE_BYTES: usize = 512 * PAGE_BYTES;
    let tables = region.bytes() / TABLE_BYTES;
    let mut attempt = |number: usize| {
        // Each access uses another entry of each table: eight entries share one line.
        let page = |table: usize| {
            table * TABLE_BYTES + number * 8 % 512 * PAGE_BYTES + table * LINE_BYTES % PAGE_BYTES
        };
        let mut order: Vec<usize> = (0..tables).map(page).collect();
        fastrand::Rng::with_seed(number as u64).shuffle(&mut order);
        let mut chain = Chain::through(region, &order);
        crate::kernels::read(evict, LINE_BYTES, u64::MAX);
        Some(
            time(|| {
                chain.walk(tables);
            })? / tables.next_multiple_of(STEPS as usize) as f64,
        )
    };
    median(&(0..tries).filter_map(&mut attempt).collect::<Vec<_>>())
}
