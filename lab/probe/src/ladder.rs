//! Chains of pointers through memory, in random order, that grow step by step.

use crate::kernels::{STEPS, chase};
use crate::region::{PAGE_BYTES, Region};

/// Bytes of a cache line, as far apart as chains place their words: also on processors with longer
/// lines, whose prefetchers bring some then.
pub const LINE_BYTES: usize = 64;

/// The byte offset of the word with number n.
pub type Placing = fn(usize) -> usize;

/// Words one line after the other.
#[must_use]
pub fn by_line(number: usize) -> usize {
    number * LINE_BYTES
}

/// Words in one page each, at changing lines of the pages, so that they spread over the sets of a
/// cache.
#[must_use]
pub fn by_page(number: usize) -> usize {
    number * PAGE_BYTES + number * LINE_BYTES % PAGE_BYTES
}

/// Words in one block of 1 KiB each, at changing lines.
#[must_use]
pub fn by_block(number: usize) -> usize {
    number * 1024 + (number / 4 * 7 + number) * LINE_BYTES % 1024
}

/// A closed chain through the first words of a region.
#[derive(Debug)]
pub struct Chain<'a> {
    region: &'a mut Region,
    place: Placing,
    len: usize,
    random: fastrand::Rng,
    at: usize,
}

impl<'a> Chain<'a> {
    /// A chain of one word, which points at itself.
    #[must_use]
    pub fn new(region: &'a mut Region, place: Placing, seed: u64) -> Self {
        let first = region.address(place(0));
        region.write(place(0), first);
        let random = fastrand::Rng::with_seed(seed);
        Self { region, place, len: 1, random, at: place(0) }
    }

    /// A chain through the words at these byte offsets, in this order, which cannot grow.
    #[must_use]
    pub fn through(region: &'a mut Region, places: &[usize]) -> Self {
        let first = places.first().copied().unwrap_or(0);
        for (place, next) in places.iter().zip(places.iter().skip(1).chain([&first])) {
            let next = region.address(*next);
            region.write(*place, next);
        }
        if places.is_empty() {
            let begin = region.address(0);
            region.write(0, begin);
        }
        Self {
            region,
            place: |_| usize::MAX,
            len: places.len(),
            random: fastrand::Rng::with_seed(0),
            at: first,
        }
    }

    /// Words in the chain.
    #[must_use]
    pub fn words(&self) -> usize {
        self.len
    }

    /// Adds words until there are `len`, or the region is full. Each is inserted after a random
    /// one, so that all orders are equally likely.
    pub fn grow(&mut self, len: usize) {
        while self.len < len && (self.place)(self.len) < self.region.bytes() {
            let before = (self.place)(self.random.usize(..self.len));
            let new = (self.place)(self.len);
            let after = self.region.read(before);
            self.region.write(new, after);
            let address = self.region.address(new);
            self.region.write(before, address);
            self.len += 1;
        }
    }

    /// Follows the chain for at least `steps` words, from where the last walk ended. Returns the
    /// number of steps.
    pub fn walk(&mut self, steps: usize) -> usize {
        let rounds = (steps as u64).div_ceil(STEPS);
        // SAFETY: the chain is closed, its words are addresses in the region, and this chain is the
        // only one that may write there.
        let end = unsafe { chase(self.region.address(self.at), rounds) };
        self.at = end.wrapping_sub(self.region.address(0));
        (rounds * STEPS) as usize
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::region::Pages;

    #[test]
    fn a_chain_is_one_cycle_through_all_its_words() {
        let mut region = Region::new(1 << 20, Pages::Small).unwrap();
        for place in [by_line as Placing, by_page, by_block] {
            let mut chain = Chain::new(&mut region, place, 7);
            for len in [1, 2, 17, 200] {
                chain.grow(len);
                let mut seen = BTreeSet::new();
                let mut at = place(0);
                for _ in 0..len {
                    seen.insert(at);
                    at = chain.region.read(at) - chain.region.address(0);
                }
                assert_eq!((seen.len(), at), (len, place(0)), "it closes after all words");
            }
            let steps = chain.walk(3);
            assert_eq!(steps, 8);
        }
        let mut chain = Chain::new(&mut region, by_page, 7);
        chain.grow(100_000);
        assert_eq!(chain.words(), 512, "no more than one large page has room for");
    }
}
