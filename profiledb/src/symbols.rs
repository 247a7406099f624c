//! Symbols that the writer saw, for images whose names cannot be found later.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

use image::ImageId;

/// A named range of an image: `start <= x < end`, in image offsets.
///
/// Stored for images that are gone or different when the profile is read (kernel, modules, BPF
/// programs, generated code), and only for ranges that have samples.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Symbol {
    /// First offset.
    pub start: u64,
    /// One past the last offset; never below `start`.
    pub end: u64,
    /// The name as the writer saw it; never empty.
    pub name: String,
}

/// Joins two lists: one symbol per start, the newer one where both have it. Symbols that may not be
/// stored (no name, end before start) are left out.
pub(crate) fn join(old: Vec<Symbol>, new: &[Symbol]) -> Vec<Symbol> {
    let mut by_start: BTreeMap<u64, Symbol> =
        old.into_iter().map(|symbol| (symbol.start, symbol)).collect();
    for symbol in new {
        if !symbol.name.is_empty() && symbol.end >= symbol.start {
            by_start.insert(symbol.start, symbol.clone());
        }
    }
    by_start.into_values().collect()
}

/// The symbols that the epoch has, as hashes: each merge brings the same names, which are written
/// once.
#[derive(Debug, Default)]
pub(crate) struct Names {
    known: BTreeMap<ImageId, BTreeMap<u64, u64>>,
    hasher: RandomState,
}

impl Names {
    fn hash(&self, symbol: &Symbol) -> u64 {
        self.hasher.hash_one((symbol.end, &symbol.name))
    }

    /// The symbols that are new or changed.
    pub(crate) fn news(&self, image: &ImageId, met: &[Symbol]) -> Vec<Symbol> {
        let known = self.known.get(image);
        let is_known = |symbol: &Symbol| {
            known.and_then(|known| known.get(&symbol.start)) == Some(&self.hash(symbol))
        };
        let news = met.iter().filter(|symbol| !is_known(symbol)).cloned().collect::<Vec<_>>();
        join(Vec::new(), &news)
    }

    pub(crate) fn learn(&mut self, image: &ImageId, symbols: &[Symbol]) {
        let hashes: Vec<(u64, u64)> =
            symbols.iter().map(|symbol| (symbol.start, self.hash(symbol))).collect();
        self.known.entry(*image).or_default().extend(hashes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(start: u64, end: u64, name: &str) -> Symbol {
        Symbol { start, end, name: name.to_owned() }
    }

    #[test]
    fn the_newer_symbol_wins_and_order_is_by_start() {
        let old = vec![symbol(1, 5, "a"), symbol(9, 12, "b")];
        let new = [symbol(9, 20, "c"), symbol(6, 8, "d")];
        assert_eq!(join(old, &new), [symbol(1, 5, "a"), symbol(6, 8, "d"), symbol(9, 20, "c")]);
    }

    #[test]
    fn what_cannot_be_stored_is_left_out() {
        assert_eq!(join(vec![], &[symbol(3, 2, "x"), symbol(4, 5, "")]), []);
        assert_eq!(join(vec![], &[symbol(3, 3, "empty range")]).len(), 1);
    }
}
