//! What is known of a thread's memory: a window of its stack, what the walk has stored since, and
//! data that never change.

use image::Vaddr;

use super::{Bits, CodeView};

/// Stores that are remembered. Beyond this number all that was known of memory is forgotten, which
/// ends walks early. One of eight instructions stores; each load looks through all stores.
const STORES_MAX: usize = 128;
/// Bytes of a thread's stack that the sampler copies, at most.
pub const WINDOW_BYTES: usize = 256;
/// Bytes of a line of memory: what a line of the cache has.
pub const LINE_BYTES: usize = 64;
/// Most lines that the sampler copies.
pub const LINES_MAX: usize = 16;

/// A line of memory as it was at the sample.
#[derive(Copy, Clone, Debug)]
pub struct Line {
    /// Address of the first byte: a multiple of [`LINE_BYTES`].
    pub address: Vaddr,
    /// The bytes.
    pub bytes: [u8; LINE_BYTES],
}

/// Bytes of a thread's memory as they were at the sample: of its stack, and some lines. In ten
/// programs, 70.0 % of samples decide a branch with 512 bytes from the stack pointer, 69.5 % with
/// 256, 68.6 % with 128, 53 % with none; the red zone below adds nothing (`cargo xtask bench
/// walks`).
#[derive(Copy, Clone, Debug, Default)]
pub struct Window<'a> {
    /// Address of the first byte: the stack pointer, or less where the red zone below it is
    /// included.
    pub begin: Vaddr,
    /// The bytes of the stack.
    pub bytes: &'a [u8],
    /// Lines of other memory.
    pub lines: &'a [Line],
}

impl<'a> Window<'a> {
    /// The bytes from an address on, as far as they are in one piece.
    fn at(&self, address: u64) -> &'a [u8] {
        let into = address.wrapping_sub(self.begin.0);
        let stack = usize::try_from(into).ok().and_then(|into| self.bytes.get(into..));
        if let Some(stack) = stack.filter(|stack| !stack.is_empty()) {
            return stack;
        }
        let into = address % LINE_BYTES as u64;
        let line = self.lines.iter().find(|line| line.address.0 == address - into);
        line.and_then(|line| line.bytes.get(into as usize..)).unwrap_or_default()
    }
}

/// A store since the sample. Stores are kept in the order in which they were made.
#[derive(Copy, Clone, Debug)]
enum Store {
    /// `len` bytes, 1 to 8, at `address`.
    At { address: u64, len: u8, value: Bits },
    /// Unknown bytes, `len` of them, at `address`.
    Clobbered { address: u64, len: u64 },
    /// Unknown bytes at an unknown address.
    Anywhere,
}

/// The kind of a load.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Slot {
    /// A load that may read any memory.
    Data,
    /// A load of a return address or of a saved register, by an instruction that restores one.
    /// Compilers let no pointer lead to such a slot, so a store through an unknown pointer leaves
    /// it known.
    Saved,
}

/// The known part of a thread's memory.
#[derive(Debug, Default)]
pub struct Memory<'a> {
    window: Window<'a>,
    stores: Vec<Store>,
}

impl<'a> Memory<'a> {
    /// Memory without stores; `stores` is an allocation that is used again.
    pub(crate) fn new(window: Window<'a>, stores: Stores) -> Self {
        let mut stores = stores.0;
        stores.clear();
        Self { window, stores }
    }

    pub(crate) fn into_stores(self) -> Stores {
        Stores(self.stores)
    }

    /// Stores `value`, of `len` bytes, 1 to 8, at `address`. None: the address is unknown.
    pub fn store(&mut self, address: Option<u64>, len: u8, value: Bits) {
        self.push(match address {
            Some(address) => Store::At { address, len, value },
            None => Store::Anywhere,
        });
    }

    /// Stores unknown bytes, `len` of them, at `address`. None: the address is unknown.
    pub fn clobber(&mut self, address: Option<u64>, len: u64) {
        self.push(match address {
            Some(address) => Store::Clobbered { address, len },
            None => Store::Anywhere,
        });
    }

    fn push(&mut self, store: Store) {
        if self.stores.len() >= STORES_MAX {
            // A value forgotten here must not be found again in the window.
            self.window = Window::default();
            self.stores.clear();
        }
        self.stores.push(store);
    }

    /// Loads `len` bytes, 1 to 8, at `address`.
    pub fn load(
        &self,
        address: Option<u64>,
        len: u8,
        slot: Slot,
        view: &mut impl CodeView,
    ) -> Bits {
        let Some(address) = address else { return Bits::UNKNOWN.low(len) };
        let mut found = Bits::UNKNOWN.low(len);
        // One bit for each byte that none of the stores searched so far has written, latest first.
        let all = super::mask_of_bytes(len);
        let mut missing = all;
        for store in self.stores.iter().rev() {
            match *store {
                Store::Anywhere if slot == Slot::Saved => {}
                Store::Anywhere => return found,
                Store::At { address: at, len: stored, .. }
                    if apart((address, len), (at, u64::from(stored))) => {}
                Store::At { address: at, len: stored, value } => {
                    let into = address.wrapping_sub(at);
                    if missing == all
                        && into < u64::from(stored)
                        && into + u64::from(len) <= u64::from(stored)
                    {
                        // The common case: one store wrote all bytes.
                        return value.right(into as u32 * 8).low(len);
                    }
                    for byte in 0..len {
                        let into = address.wrapping_add(u64::from(byte)).wrapping_sub(at);
                        if into < u64::from(stored) && missing & (1 << byte) != 0 {
                            missing &= !(1 << byte);
                            let shifted =
                                value.right(into as u32 * 8).low(1).left(u32::from(byte) * 8);
                            found = found.replaced(0xff << (byte * 8), shifted);
                        }
                    }
                }
                Store::Clobbered { address: at, len: stored } => {
                    for byte in 0..len {
                        if address.wrapping_add(u64::from(byte)).wrapping_sub(at) < stored {
                            missing &= !(1 << byte);
                        }
                    }
                }
            }
            if missing == 0 {
                return found;
            }
        }
        let untouched = missing == all;
        if untouched && let Some(bytes) = self.sampled(address, len) {
            let value = bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
            return Bits::known(value);
        }
        let mut outside = false;
        for byte in (0..len).filter(|byte| missing & (1 << byte) != 0) {
            match self.window.at(address.wrapping_add(u64::from(byte))).first() {
                Some(&value) => {
                    let value = Bits::known(u64::from(value) << (byte * 8));
                    found = found.replaced(0xff << (byte * 8), value);
                }
                None => outside = true,
            }
        }
        if untouched && outside {
            return view
                .constant(Vaddr(address), len)
                .map_or(found, |value| Bits::known(value).low(len));
        }
        found
    }

    /// The bytes at the time of the sample, if all of them are in the window.
    fn sampled(&self, address: u64, len: u8) -> Option<&'a [u8]> {
        self.window.at(address).get(..usize::from(len))
    }
}

/// Whether a load and a store, each by address and length, have no byte in common. Addresses wrap
/// around at 2^64.
fn apart((load, load_len): (u64, u8), (store, store_len): (u64, u64)) -> bool {
    load.wrapping_sub(store) >= store_len && store.wrapping_sub(load) >= u64::from(load_len)
}

/// An allocation for stores that walks use one after the other.
#[derive(Debug, Default)]
pub(crate) struct Stores(Vec<Store>);

#[cfg(test)]
mod tests {
    use super::super::Place;
    use super::*;

    /// 8 bytes of data that never change, at 0x9000.
    struct Constants;

    impl CodeView for Constants {
        fn place(&mut self, _: Vaddr) -> Option<Place> {
            None
        }
        fn bytes(&mut self, _: u32, _: image::ImageOffset, _: &mut [u8]) -> usize {
            0
        }
        fn constant(&mut self, address: Vaddr, _: u8) -> Option<u64> {
            (address.0 == 0x9000).then_some(0x0807_0605_0403_0201)
        }
    }

    fn memory(bytes: &[u8]) -> Memory<'_> {
        Memory::new(Window { begin: Vaddr(0x1000), bytes, lines: &[] }, Stores::default())
    }

    fn load(memory: &Memory<'_>, address: u64, len: u8) -> Option<u64> {
        memory.load(Some(address), len, Slot::Data, &mut Constants).get()
    }

    #[test]
    fn the_newest_store_wins_byte_by_byte() {
        let bytes: Vec<u8> = (0..32).collect();
        let mut memory = memory(&bytes);
        assert_eq!(load(&memory, 0x1000, 4), Some(0x0302_0100));
        memory.store(Some(0x1002), 4, Bits::known(0xddcc_bbaa));
        memory.store(Some(0x1003), 1, Bits::known(0x11));
        assert_eq!(load(&memory, 0x1000, 8), Some(0x0706_ddcc_11aa_0100));
        assert_eq!(load(&memory, 0x1003, 2), Some(0xcc11));
        memory.store(Some(0x1000), 1, Bits::UNKNOWN);
        assert_eq!(load(&memory, 0x1000, 2), None);
        let part = memory.load(Some(0x1000), 2, Slot::Data, &mut Constants);
        assert_eq!((part.least(), part.unknown()), (0x0100, 0xff));
        memory.clobber(Some(0x1010), 3);
        assert_eq!(load(&memory, 0x1013, 1), Some(0x13));
        assert_eq!(load(&memory, 0x1012, 1), None);
        // Around the end of the address space.
        memory.store(Some(u64::MAX), 8, Bits::known(0x0102_0304_0506_0708));
        assert_eq!(load(&memory, 0, 4), Some(0x0405_0607));
    }

    #[test]
    fn outside_of_window_and_stores_only_constants_are_known() {
        let bytes = [7; 16];
        let mut memory = memory(&bytes);
        assert_eq!(load(&memory, 0x1010, 1), None);
        assert_eq!(load(&memory, 0x100c, 8), None, "half of it is outside");
        assert_eq!(load(&memory, 0xfff, 1), None);
        assert_eq!(load(&memory, 0x9000, 8), Some(0x0807_0605_0403_0201));
        assert_eq!(load(&memory, 0x9000, 2), Some(0x0201));
        assert_eq!(memory.load(None, 8, Slot::Data, &mut Constants), Bits::UNKNOWN);
        memory.store(Some(0x9004), 1, Bits::known(1));
        assert_eq!(load(&memory, 0x9000, 8), None, "written in part: it is no constant");
    }

    #[test]
    fn a_store_through_an_unknown_pointer_leaves_only_saved_slots() {
        let bytes = [7; 16];
        let mut memory = memory(&bytes);
        memory.store(Some(0x2000), 8, Bits::known(1));
        memory.store(None, 8, Bits::known(2));
        assert_eq!(load(&memory, 0x2000, 8), None);
        assert_eq!(load(&memory, 0x1000, 8), None);
        for (address, value) in [(0x2000, 1), (0x1000, 0x0707_0707_0707_0707)] {
            assert_eq!(
                memory.load(Some(address), 8, Slot::Saved, &mut Constants).get(),
                Some(value)
            );
        }
        memory.store(Some(0x2000), 8, Bits::known(3));
        assert_eq!(load(&memory, 0x2000, 8), Some(3));
    }

    #[test]
    fn what_does_not_fit_is_forgotten_and_never_half_remembered() {
        let bytes = [7; 16];
        let mut memory = memory(&bytes);
        memory.store(Some(0x1000), 8, Bits::known(1));
        for _ in 0..STORES_MAX {
            memory.store(Some(0x3000), 8, Bits::known(2));
        }
        assert_eq!(load(&memory, 0x1000, 8), None);
        assert_eq!(memory.load(Some(0x1000), 8, Slot::Saved, &mut Constants).get(), None);
        assert_eq!(load(&memory, 0x3000, 8), Some(2));
    }
}
