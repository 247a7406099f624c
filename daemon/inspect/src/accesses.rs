//! What walks show of how code uses memory: strides, distances, and lines that threads share.
//!
//! Addresses of a few accesses are kept from one question to the next, in the inspector's memory
//! alone. Only distances and sizes are told.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use crate::page_sizes::PageSizes;
use code::interpret::MemoryAccess;
use model::{Access, Crossed};

/// Addresses of each instruction that are kept for comparison with later ones.
const KEPT: usize = 6;
/// Instructions with such addresses; beyond, all are forgotten.
const INSTRUCTIONS_MAX: usize = 4096;
/// Lines whose last user is kept; beyond, all are forgotten.
const LINES_MAX: usize = 4096;
/// A load is compared with the stores among the accesses before it, this many at most: a store
/// further back has left the store buffer, which has some 60 entries.
const STORES_BACK: usize = 48;
/// Threads of a line that are kept.
const THREADS_MAX: usize = 4;
/// Walks after which a thread's use of a line is over: some tenths of a second.
const WALKS_BACK: u64 = 256;
/// Bytes from below the stack pointer on that are taken for the thread's stack.
const STACK_BELOW: u64 = 1 << 12;
const STACK_BYTES: u64 = 1 << 20;
/// Bytes of a line, and of a page.
const LINE: u64 = 64;
const PAGE: u64 = 4096;

/// Who takes part in an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Who {
    /// The kernel's number of the process.
    pub process: u32,
    /// The kernel's number of the thread.
    pub thread: u32,
}

/// Addresses of earlier walks.
#[derive(Default)]
pub struct Accesses {
    /// By process and instruction.
    addresses: HashMap<(u32, u64), VecDeque<u64>, foldhash::fast::RandomState>,
    /// By process and line: the last access of each of some threads.
    lines: HashMap<(u32, u64), Vec<Use>, foldhash::fast::RandomState>,
    page_sizes: PageSizes,
    /// Walks so far.
    walks: u64,
}

/// A thread's use of a line.
struct Use {
    thread: u32,
    bytes: Range<u64>,
    wrote: bool,
    walk: u64,
}

impl Accesses {
    /// Tells each thing that is seen of the accesses of a walk, which are of instructions at these
    /// image offsets. `number` tells images apart, and `stack` is the stack pointer.
    pub fn tell(
        &mut self,
        who: Who,
        (number, stack): (u32, u64),
        accesses: &[(u64, MemoryAccess)],
        mut tell: impl FnMut(u64, Access),
    ) {
        self.walks += 1;
        self.page_sizes.begin_walk();
        let mut last: HashMap<u64, u64, foldhash::fast::FixedState> = HashMap::default();
        for (place, (at, access)) in accesses.iter().enumerate() {
            let MemoryAccess { address, bytes, reads, writes } = *access;
            let end = address.wrapping_add(u64::from(bytes).max(1) - 1);
            tell(
                *at,
                Access::Crosses(
                    match (address / LINE == end / LINE, address / PAGE == end / PAGE) {
                        (true, _) => Crossed::Nothing,
                        (false, true) => Crossed::Line,
                        (false, false) => Crossed::Page,
                    },
                ),
            );
            match last.insert(*at, address) {
                Some(before) => tell(*at, Access::stride(before, address)),
                None => {
                    self.compare((who.process, u64::from(number) << 40 ^ at), address, |apart| {
                        tell(*at, apart);
                    });
                    if let Some(is_huge) = self.page_sizes.is_huge(who.process, address) {
                        tell(*at, Access::HugePage(is_huge));
                    }
                }
            }
            if reads {
                let begin = place.saturating_sub(STORES_BACK);
                let before = accesses.get(begin..place).unwrap_or_default();
                if let Some(met) = of_stores(before, access) {
                    tell(*at, met);
                }
            }
            let line = (who.process, address / LINE);
            // A thread's stack is its own; later threads may have it at the same place.
            if address.wrapping_sub(stack).wrapping_add(STACK_BELOW) < STACK_BYTES {
                continue;
            }
            if self.lines.len() >= LINES_MAX {
                self.lines.clear();
            }
            let bytes = address..end.saturating_add(1);
            let mine = Use { thread: who.thread, bytes, wrote: writes, walk: self.walks };
            let uses = self.lines.entry(line).or_default();
            uses.retain(|other| self.walks - other.walk < WALKS_BACK);
            let others = uses.iter().filter(|other| other.thread != who.thread);
            let met = others.filter(|other| other.wrote || writes).map(|other| {
                other.bytes.start < mine.bytes.end && mine.bytes.start < other.bytes.end
            });
            if let Some(same) = met.reduce(|a, b| a || b) {
                tell(*at, Access::Shared(same));
            }
            let before = uses.iter().position(|other| other.thread == who.thread);
            if let Some(before) = before.and_then(|before| uses.get_mut(before)) {
                // What it wrote before on the same walk it has written.
                let wrote = before.wrote && before.walk == self.walks && before.bytes == mine.bytes;
                *before = Use { wrote: wrote || mine.wrote, ..mine };
            } else if uses.len() < THREADS_MAX {
                uses.push(mine);
            }
        }
    }

    fn compare(&mut self, place: (u32, u64), address: u64, mut tell: impl FnMut(Access)) {
        if self.addresses.len() >= INSTRUCTIONS_MAX {
            self.addresses.clear();
        }
        let kept = self.addresses.entry(place).or_default();
        kept.iter().for_each(|other| tell(Access::apart(address, *other)));
        if kept.len() >= KEPT {
            kept.pop_front();
        }
        kept.push_back(address);
    }
}

/// What the stores before a load mean for it.
fn of_stores(before: &[(u64, MemoryAccess)], load: &MemoryAccess) -> Option<Access> {
    let (begin, len) = (load.address, u64::from(load.bytes));
    let mut aliases = false;
    for (_, store) in before.iter().rev().filter(|(_, access)| access.writes) {
        let (into, stored) = (begin.wrapping_sub(store.address), u64::from(store.bytes));
        let overlaps = into < stored || store.address.wrapping_sub(begin) < len;
        if overlaps {
            return Some(Access::Forwards(into < stored && into + len <= stored));
        }
        let (low, low_store) = (begin % PAGE, store.address % PAGE);
        aliases |= low < low_store + stored && low_store < low + len;
    }
    aliases.then_some(Access::Aliases)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(
        accesses: &mut Accesses,
        thread: u32,
        all: &[(u64, MemoryAccess)],
    ) -> Vec<(u64, Access)> {
        let mut told = Vec::new();
        let who = Who { process: 1, thread };
        accesses.tell(who, (0, 1 << 40), all, |at, access| told.push((at, access)));
        told.retain(|(_, access)| *access != Access::Crosses(Crossed::Nothing));
        told
    }

    fn load(address: u64, bytes: u16) -> MemoryAccess {
        MemoryAccess { address, bytes, reads: true, writes: false }
    }

    fn store(address: u64, bytes: u16) -> MemoryAccess {
        MemoryAccess { address, bytes, reads: false, writes: true }
    }

    #[test]
    fn strides_and_crossed_lines_are_told() {
        let all = [
            (1, load(0x1000, 8)),
            (1, load(0x1008, 8)),
            (2, load(0x103c, 8)),
            (3, load(0x1ffc, 8)),
        ];
        let expected = [
            (1, Access::Stride(8)),
            (2, Access::Crosses(Crossed::Line)),
            (3, Access::Crosses(Crossed::Page)),
        ];
        assert_eq!(told(&mut Accesses::default(), 1, &all), expected);
    }

    #[test]
    fn stores_forward_or_do_not() {
        for (stored, loaded, expected) in [
            (store(0x1000, 8), load(0x1004, 4), Some(Access::Forwards(true))),
            (store(0x1000, 4), load(0x1000, 8), Some(Access::Forwards(false))),
            (store(0x1004, 4), load(0x1000, 8), Some(Access::Forwards(false))),
            (store(0x1000, 8), load(0x5004, 4), Some(Access::Aliases)),
            (store(0x1000, 8), load(0x5008, 4), None),
        ] {
            let all = [(1, stored), (2, loaded)];
            let told = told(&mut Accesses::default(), 1, &all);
            assert_eq!(told.first().map(|(_, access)| *access), expected);
        }
    }

    #[test]
    fn lines_that_threads_share_are_told() {
        let mut accesses = Accesses::default();
        assert_eq!(told(&mut accesses, 1, &[(1, store(0x1000, 8))]), []);
        let other = told(&mut accesses, 2, &[(1, store(0x1008, 8))]);
        assert_eq!(other, [(1, Access::Apart(model::Apart::Line)), (1, Access::Shared(false))]);
        let same = told(&mut accesses, 1, &[(2, load(0x1008, 4))]);
        assert_eq!(same, [(2, Access::Shared(true))]);
        // Both only read.
        assert_eq!(told(&mut accesses, 2, &[(3, load(0x1008, 4))]), []);
    }
}
