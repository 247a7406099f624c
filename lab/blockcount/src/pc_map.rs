//! A map from addresses to numbers, with open addressing.

use alloc::boxed::Box;
use alloc::vec;

/// Addresses that are not zero, each with a number.
pub struct PcMap {
    entries: Box<[(u64, u32)]>,
    /// Occupied entries, removed ones included.
    taken: usize,
    /// Entries in the map.
    len: usize,
}

/// Initial number of entries, a power of two.
const SMALLEST: usize = 1024;
/// Mark of a removed entry, whose place stays occupied.
const REMOVED: u32 = u32::MAX;

impl PcMap {
    pub fn new() -> Self {
        Self { entries: vec![(0, 0); SMALLEST].into_boxed_slice(), taken: 0, len: 0 }
    }

    /// Index of an address's entry, or of the free entry for it.
    fn place(&self, address: u64) -> usize {
        let mask = self.entries.len() - 1;
        let mut place = (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & mask;
        while let Some((other, _)) = self.entries.get(place) {
            if *other == address || *other == 0 {
                break;
            }
            place = (place + 1) & mask;
        }
        place
    }

    pub fn get(&self, address: u64) -> Option<u32> {
        match self.entries.get(self.place(address)) {
            // Empty places have the address zero, to which programs jump by mistake.
            Some((found, number)) if *found == address && address != 0 && *number != REMOVED => {
                Some(*number)
            }
            _ => None,
        }
    }

    pub fn insert(&mut self, address: u64, number: u32) {
        if self.taken * 2 >= self.entries.len() {
            self.grow();
        }
        let place = self.place(address);
        if let Some(entry) = self.entries.get_mut(place) {
            self.taken += usize::from(entry.0 == 0);
            self.len += usize::from(entry.0 == 0 || entry.1 == REMOVED);
            *entry = (address, number);
        }
    }

    pub fn remove(&mut self, address: u64) {
        let place = self.place(address);
        if let Some(entry) = self.entries.get_mut(place).filter(|entry| entry.0 == address) {
            self.len -= usize::from(entry.1 != REMOVED);
            entry.1 = REMOVED;
        }
    }

    pub fn addresses(&self) -> impl Iterator<Item = u64> {
        let there = |entry: &&(u64, u32)| entry.0 != 0 && entry.1 != REMOVED;
        self.entries.iter().filter(there).map(|(address, _)| *address)
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn grow(&mut self) {
        let size = self.entries.len() * 2;
        let before = core::mem::replace(&mut self.entries, vec![(0, 0); size].into_boxed_slice());
        (self.taken, self.len) = (0, 0);
        for (address, number) in before.iter().filter(|(address, _)| *address != 0) {
            if *number != REMOVED {
                self.insert(*address, *number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PcMap;

    #[test]
    fn a_map_finds_what_was_put_in_and_not_what_was_removed() {
        let mut map = PcMap::new();
        for address in 1..100_000_u64 {
            map.insert(address * 16, address as u32);
        }
        for address in (1..100_000_u64).step_by(3) {
            map.remove(address * 16);
        }
        map.insert(16, 7);
        assert_eq!(map.get(16), Some(7));
        for address in 2..100_000_u64 {
            let expected = (address % 3 != 1).then_some(address as u32);
            assert_eq!(map.get(address * 16), expected, "{address}");
        }
        assert_eq!(map.get(8), None);
        assert_eq!(map.get(0), None);
    }
}
