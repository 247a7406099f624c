//! Code that the kernel has generated since its symbols were read: BPF programs and trampolines,
//! which the kernel's records report at once.

use image::ImageOffset;
use image::kernel::{KernelPlace, Owner};
use kernel::KernelSymbol;
use std::collections::BTreeMap;

/// Pieces of code remembered; those beyond are found when the symbols are read again.
const PIECES_MAX: usize = 16_384;
/// Longest name kept, in bytes (KSYM_NAME_LEN since 6.1).
const NAME_MAX: usize = 512;

#[derive(Debug)]
struct Piece {
    end: u64,
    is_bpf: bool,
    name: Box<str>,
    /// When it went; `u64::MAX`: not yet.
    until_ns: u64,
}

/// Pieces of code by address, never overlapping.
#[derive(Debug, Default)]
pub struct Written {
    by_start: BTreeMap<u64, Piece>,
}

impl Written {
    /// Takes up a record, in order of time.
    pub fn apply(&mut self, symbol: &KernelSymbol, time_ns: u64) {
        let (start, end) = (symbol.address, symbol.address.saturating_add(u64::from(symbol.len)));
        if symbol.is_gone {
            // Samples taken before the removal are still to be resolved. A piece that was only read
            // from the symbols needs no end: the record of its replacement ends it.
            if let Some(piece) = self.by_start.get_mut(&start) {
                piece.until_ns = time_ns;
            }
            return;
        }
        while let Some((&at, _)) =
            self.by_start.range(..end).next_back().filter(|(_, piece)| piece.end > start)
        {
            self.by_start.remove(&at);
        }
        let name = symbol.name.get(..symbol.name.floor_char_boundary(NAME_MAX)).unwrap_or_default();
        if start < end && !name.is_empty() && self.by_start.len() < PIECES_MAX {
            self.by_start.insert(
                start,
                Piece { end, is_bpf: symbol.is_bpf, name: name.into(), until_ns: u64::MAX },
            );
        }
    }

    /// Forgets code that was removed before that time.
    pub fn forget_gone(&mut self, from_ns: u64) {
        self.by_start.retain(|_, piece| piece.until_ns >= from_ns);
    }

    /// Where the next piece after an address begins.
    pub fn next_after(&self, address: u64) -> Option<u64> {
        self.by_start.range(address.checked_add(1)?..).next().map(|(&start, _)| start)
    }

    /// Where an address lies.
    pub fn place(&self, address: u64) -> Option<KernelPlace<'_>> {
        let (&start, piece) = self.by_start.range(..=address).next_back()?;
        (address < piece.end).then(|| KernelPlace {
            owner: if piece.is_bpf { Owner::Bpf(&piece.name) } else { Owner::Other(&piece.name) },
            offset: ImageOffset(address - start),
            symbol_start: ImageOffset(0),
            symbol_end: ImageOffset(piece.end - start),
            symbol: &piece.name,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(address: u64, len: u32, name: &str) -> KernelSymbol {
        KernelSymbol { address, len, is_bpf: false, is_gone: false, name: name.into() }
    }

    fn name(written: &Written, address: u64) -> Option<&str> {
        written.place(address).map(|place| place.symbol)
    }

    #[test]
    fn the_last_at_an_address_is_there() {
        let mut written = Written::default();
        for (address, len, name) in [
            (100, 50, "a"),
            (150, 50, "b"),
            (140, 20, "c"),
            (300, 0, "empty"),
            (u64::MAX, 9, "end"),
        ] {
            written.apply(&symbol(address, len, name), 1);
        }
        let found = [99, 100, 140, 159, 160, 300, u64::MAX].map(|address| name(&written, address));
        assert_eq!(found, [None, None, Some("c"), Some("c"), None, None, None]);
        written.apply(&KernelSymbol { is_gone: true, ..symbol(777, 5, "never seen") }, 2);
        assert_eq!(written.place(141).map(|place| place.owner), Some(Owner::Other("c")));
    }

    #[test]
    fn the_number_of_pieces_is_bounded() {
        let mut written = Written::default();
        for n in 0..PIECES_MAX as u64 + 5 {
            written.apply(&symbol(n * 16, 16, &"x".repeat(1000)), 1);
        }
        assert_eq!(written.by_start.len(), PIECES_MAX);
        assert_eq!(name(&written, 3).map(str::len), Some(NAME_MAX));
    }
}
