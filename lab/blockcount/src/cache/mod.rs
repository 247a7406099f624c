//! The code cache: blocks of the program, translated when they are first executed. The block after
//! a conditional branch is placed after it; direct jumps are linked; overlapping blocks are
//! translated again, not split.

mod chains;
pub mod places;
pub mod steps;
mod translate;

use crate::area::writer::Area;
use crate::context;
use crate::decode::{Decoded, End};
use crate::emit::Emitter;
use crate::liveness::{Counter, Liveness};
use crate::pc_map::PcMap;
use crate::regions::Regions;
use crate::system;
use alloc::vec::Vec;
use places::{Kind, Place};

/// Address space of the cache, bytes: within reach of relative jumps.
const SIZE: u64 = 1 << 29;
/// Offset of cold code: exits, links of indirect branches.
const COLD: u64 = SIZE / 2;
/// Offset of the return addresses that calls push from memory.
const LITERALS: u64 = SIZE / 8 * 7;
/// Initial capacity of the tables of blocks, because growing copies them.
const EXPECTED: usize = 1 << 21;
/// Room of a jump with instructions before it that align it, bytes.
const JUMP_ROOM: u64 = 16;
/// Room that one translation may need, bytes.
const ROOM: u64 = 1 << 17;

/// Values of `EXIT` in the context, beside [`crate::switch::SIGNAL`].
pub mod exit {
    /// Handles an indirect branch whose target is not in the thread's table.
    pub const MISS: i32 = 3;
    /// An exec that failed.
    pub const EXEC_FAILED: i32 = 4;
    /// The end of a block of a burst.
    pub const STEP: i32 = 5;
    /// Numbers from here are those of direct branches that are not linked yet, ...
    pub const BRANCH: i32 = 0x1000_0000;
    /// ... of system calls, ...
    pub const SYSTEM_CALL: i32 = 0x2000_0000;
    /// ... of indirect branches with a target they have not had, ...
    pub const CHAIN: i32 = 0x3000_0000;
    /// ... of blocks whose last instruction is refused.
    pub const REFUSED: i32 = 0x4000_0000;
}

/// A translated block.
pub struct Block {
    pub address: u64,
    /// Address after the last instruction.
    pub end_address: u64,
    /// First byte of its code: that of its prefix, or its entry.
    pub begin: u64,
    pub entry: u64,
    /// Bytes at the entry that a jump may replace while other threads execute the block: of code
    /// that the program may write.
    pub replaceable: u64,
    /// Address where indirect branches enter, which restores two registers; zero without.
    pub prefix: u64,
    /// Its pieces in [`Cache::pieces`].
    pub pieces: usize,
    pub instructions: usize,
    pub end: End,
    pub counter: Counter,
    dropped: bool,
    /// It leaves to the engine before the branch at its end, or behind it where it has none.
    steps: bool,
    /// The next block of the first and of the last page.
    next_in_page: [u32; 2],
}

/// An instruction of a block and its code.
#[derive(Clone, Copy)]
pub struct Piece {
    pub len: u8,
    pub code_len: u8,
    /// Its data is out of reach of a relative address, so that its code uses a saved register.
    pub far: bool,
}

/// A direct branch that is not linked: addresses of its displacement and of its target.
struct Branch {
    at: u64,
    target: u64,
}

/// A system call of the program.
#[derive(Clone, Copy)]
pub struct SystemCall {
    pub block: u32,
    /// Address of the instruction.
    pub at: u64,
    pub next: u64,
    /// Code that makes the call without a look at its number.
    pub direct: u64,
}

/// Code that is the same for all blocks.
pub struct Fixed {
    /// Jumps to the engine.
    exit: u64,
    /// An indirect branch without an entry in the thread's table.
    miss: u64,
    /// Sets a mask of signals and goes on.
    pub unblock: u64,
    /// Returns from a signal.
    pub sigreturn: u64,
    /// Jumps to an address of the program that has no code, to fault there.
    pub jump: u64,
    /// Executes another program.
    pub exec: u64,
}

/// The cache.
pub struct Cache {
    base: u64,
    hot: u64,
    cold: u64,
    literals: u64,
    pub blocks: Vec<Block>,
    map: PcMap,
    /// First block of each page.
    pages: PcMap,
    /// Pages that the program may write: whether they are write-protected (1) because code of
    /// theirs is translated, or were (0).
    protected: PcMap,
    /// Pages with code that has written to its own page: each instruction is a block of its own,
    /// so that none is executed that was decoded before it was written.
    self_written: PcMap,
    pub pieces: Vec<Piece>,
    branches: Vec<Branch>,
    pub system_calls: Vec<SystemCall>,
    chains: Vec<chains::Chain>,
    /// The purpose of the cold code at an address.
    places: Vec<Place>,
    liveness: Liveness,
    pub regions: Regions,
    pub fixed: Fixed,
    decoded: Vec<Decoded>,
    /// Blocks of bursts by address: indices of [`Self::steps`].
    step_at: PcMap,
    steps: Vec<steps::Step>,
}

impl Cache {
    pub fn new(hidden: &[core::ops::Range<u64>]) -> Self {
        let prot = system::PROT_READ | system::PROT_WRITE | system::PROT_EXEC;
        let Some(base) = system::map_private(SIZE, prot) else {
            system::refuse(&[b"no memory that can be written and executed"]);
        };
        let mut hidden = hidden.to_vec();
        hidden.push(base..base + SIZE);
        let none = Fixed { exit: 0, miss: 0, unblock: 0, sigreturn: 0, jump: 0, exec: 0 };
        let mut cache = Self {
            base,
            hot: base,
            cold: base + COLD,
            literals: base + LITERALS,
            blocks: Vec::with_capacity(EXPECTED),
            map: PcMap::new(),
            pages: PcMap::new(),
            protected: PcMap::new(),
            self_written: PcMap::new(),
            pieces: Vec::with_capacity(8 * EXPECTED),
            branches: Vec::with_capacity(EXPECTED),
            system_calls: Vec::new(),
            chains: Vec::new(),
            places: Vec::with_capacity(2 * EXPECTED),
            liveness: Liveness::new(),
            regions: Regions::new(&hidden),
            fixed: none,
            decoded: Vec::new(),
            step_at: PcMap::new(),
            steps: Vec::new(),
        };
        cache.emit_fixed();
        cache
    }

    /// Address range of translated code.
    pub fn range(&self) -> core::ops::Range<u64> {
        self.base..self.base + SIZE
    }

    fn emit_fixed(&mut self) {
        self.fixed.exit = self.cold_code(Kind::Engine, |code, _| code.jump_by(context::EXIT_CODE));
        let mut saved = 0;
        self.fixed.miss = self.cold_code(Kind::Engine, |code, cache| {
            code.look_up_again();
            saved = code.at;
            code.save(context::RAX, context::TARGET);
            code.load_pair();
            code.set(context::EXIT, exit::MISS);
            code.jump(cache.fixed.exit);
        });
        self.set_last_place(Kind::Miss { saved });
        self.fixed.unblock = self.cold_code(Kind::Unblock, |code, _| {
            // mov eax, 14; mov edi, 2
            code.put(&[0xb8, 14, 0, 0, 0, 0xbf, 2, 0, 0, 0]);
            code.load(context::RSI, context::SELF);
            // lea rsi, [rsi+AFTER_MASK]
            code.put(&[0x48, 0x8d, 0xb6]);
            code.put(&context::AFTER_MASK.to_le_bytes());
            // mov edx, 0; mov r10d, 8; syscall
            code.put(&[0xba, 0, 0, 0, 0, 0x41, 0xba, 8, 0, 0, 0, 0x0f, 0x05]);
            for (field, register) in (context::AFTER..).step_by(8).zip(context::AFTER_REGISTERS) {
                code.load(register, field);
            }
            code.jump_by(context::AFTER_RESUME);
        });
        self.fixed.sigreturn = self.cold_code(Kind::Engine, |code, _| {
            // mov eax, 15; syscall
            code.put(&[0xb8, 15, 0, 0, 0, 0x0f, 0x05, 0x0f, 0x0b]);
        });
        self.fixed.jump = self.cold_code(Kind::Target, |code, _| code.jump_by(context::TARGET));
        self.fixed.exec = self.cold_code(Kind::Exec, |code, cache| {
            code.put(&[0x0f, 0x05]);
            code.set(context::EXIT, exit::EXEC_FAILED);
            code.jump(cache.fixed.exit);
        });
    }

    /// Emits cold code of a kind; its address.
    fn cold_code(&mut self, kind: Kind, emit: impl FnOnce(&mut Emitter, &mut Self)) -> u64 {
        let at = self.cold;
        if at + ROOM > self.base + LITERALS {
            system::refuse(&[b"the code cache is full"]);
        }
        self.places.push(Place { at, kind });
        let mut code = Emitter { at };
        emit(&mut code, self);
        self.cold = self.cold.max(code.at);
        at
    }

    /// Code that leaves to the engine with a value of `EXIT`.
    fn exit_code(&mut self, kind: Kind, value: i32) -> u64 {
        self.cold_code(kind, |code, cache| {
            code.set(context::EXIT, value);
            code.jump(cache.fixed.exit);
        })
    }

    /// The translated block of an address; `None` where there is no executable memory.
    pub fn block(&mut self, at: u64, area: &mut Area) -> Option<u32> {
        if let Some(block) = self.map.get(at) {
            return Some(block);
        }
        self.translate(at, false, area)
    }

    /// The translated block of an address, if there is one.
    pub fn known(&self, at: u64) -> Option<u32> {
        self.map.get(at)
    }

    /// The refused instruction at the end of a block, and its address.
    pub fn refused(&self, block: usize) -> (&'static str, u64) {
        match self.blocks.get(block) {
            Some(Block { end: End::Refused(name), end_address, pieces, instructions, .. }) => {
                let last = self.pieces.get(pieces + instructions - 1);
                (name, end_address - last.map_or(0, |piece| u64::from(piece.len)))
            }
            _ => ("an unknown instruction", 0),
        }
    }

    /// The entry of a block.
    pub fn entry(&self, block: u32) -> u64 {
        self.blocks.get(block as usize).map_or(0, |block| block.entry)
    }

    /// The code that continues at an address of the program; it faults where the program has no
    /// code.
    pub fn resume(&mut self, at: u64, context: context::Context, area: &mut Area) -> u64 {
        match self.block(at, area) {
            Some(block) => self.entry(block),
            None => self.fault(at, context),
        }
    }

    /// Code that faults at an address as the program would.
    pub fn fault(&self, at: u64, context: context::Context) -> u64 {
        if at & !0xfff == crate::regions::VSYSCALL {
            system::refuse(&[b"refused: a call of the vsyscall page"]);
        }
        context.set(context::TARGET, at);
        self.fixed.jump
    }

    /// The code with which an indirect branch to `target` continues; the thread caches it.
    pub fn missed(&mut self, target: u64, context: context::Context, area: &mut Area) -> u64 {
        let block = match self.map.get(target) {
            Some(block) => Some(block),
            None => self.translate(target, true, area),
        };
        let Some(block) = block else { return self.fault(target, context) };
        let prefix = self.prefix(block, area);
        context.remember_target(target, prefix);
        self.entry(block)
    }

    /// Address at which indirect branches enter a block.
    fn prefix(&mut self, block: u32, area: &mut Area) -> u64 {
        let Some(found) = self.blocks.get(block as usize) else { return 0 };
        if found.prefix != 0 {
            return found.prefix;
        }
        let entry = found.entry;
        let prefix = self.cold_code(Kind::Prefix(block), |code, _| {
            code.load_pair();
            code.jump(entry);
        });
        if let Some(found) = self.blocks.get_mut(block as usize) {
            found.prefix = prefix;
        }
        area.entered_indirectly(block);
        prefix
    }

    /// Links a direct branch that is taken for the first time; the code of its target.
    pub fn take(&mut self, index: usize, context: context::Context, area: &mut Area) -> u64 {
        let Some(Branch { at, target }) = self.branches.get(index) else { return 0 };
        let (at, target) = (*at, *target);
        let Some(block) = self.block(target, area) else { return self.fault(target, context) };
        let entry = self.entry(block);
        crate::memory::patch(at, entry.wrapping_sub(at + 4) as i32);
        entry
    }

    /// Drops the blocks of a range whose code has changed or gone, so that it is translated again.
    pub fn drop_range(&mut self, start: u64, end: u64) {
        let mut any = false;
        let mut page = start & !0xfff;
        if end.saturating_sub(start) >> 12 > self.blocks.len() as u64 {
            for block in 0..self.blocks.len() as u32 {
                any |= self.drop_if_within(block, start, end);
            }
        } else {
            while page < end {
                let mut block = self.pages.get(page | 1);
                while let Some(index) = block {
                    any |= self.drop_if_within(index, start, end);
                    block = self.next_in_page(index, page);
                }
                page += 0x1000;
            }
        }
        if any {
            self.liveness.forget();
        }
    }

    fn next_in_page(&self, block: u32, page: u64) -> Option<u32> {
        let found = self.blocks.get(block as usize)?;
        let [first, last] = found.next_in_page;
        let next = if found.address & !0xfff == page { first } else { last };
        (next != u32::MAX).then_some(next)
    }

    fn drop_if_within(&mut self, index: u32, start: u64, end: u64) -> bool {
        let Some(block) = self.blocks.get_mut(index as usize) else { return false };
        if block.dropped || block.end_address <= start || end <= block.address {
            return false;
        }
        block.dropped = true;
        let (address, entry) = (block.address, block.entry);
        if self.map.get(address) == Some(index) {
            self.map.remove(address);
        }
        // A thread that reaches the entry continues with the code that is translated at that time.
        let to = self.branch_exit(entry + 1, address);
        let displacement = to.wrapping_sub(entry + 5) as u32;
        crate::memory::replace(entry, 0xe9 | u64::from(displacement) << 8);
        true
    }

    /// Makes the pages of a block raise a fault when they are written to.
    fn protect(&mut self, start: u64, end: u64) {
        let mut page = start & !0xfff;
        while page < end {
            if self.protected.get(page | 1) != Some(1) {
                let prot = system::PROT_READ | system::PROT_EXEC;
                // SAFETY: a page of the program's code; the engine only reads it.
                unsafe { system::call3(system::number::MPROTECT, page, 0x1000, prot) };
                self.protected.insert(page | 1, 1);
            }
            page += 0x1000;
        }
    }

    /// The block of an address of hot code, when it is longer than one instruction and lies on a
    /// page that its instruction has written to: the rest of it may have changed.
    pub fn writes_itself(&mut self, code: u64, written: u64) -> bool {
        let index = self.blocks.partition_point(|block| block.begin <= code);
        let block = index.checked_sub(1).and_then(|index| self.blocks.get(index));
        let page = written & !0xfff;
        let on_page = |block: &&Block| block.address < page + 0x1000 && page < block.end_address;
        let whole = block.filter(on_page).is_some_and(|block| block.instructions > 1);
        if whole {
            self.self_written.insert(page | 1, 0);
        }
        whole
    }

    /// Whether a fault by a write to `at` comes from protection; the page is then writable again,
    /// and its blocks are dropped.
    pub fn written(&mut self, at: u64) -> bool {
        let page = at & !0xfff;
        match self.protected.get(page | 1) {
            None => return false,
            // Another thread has written there in the meantime.
            Some(0) => return true,
            Some(_) => self.protected.insert(page | 1, 0),
        }
        self.drop_range(page, page + 0x1000);
        let prot = system::PROT_READ | system::PROT_WRITE | system::PROT_EXEC;
        // SAFETY: a page of the program's code gets back the rights that the program gave it.
        unsafe { system::call3(system::number::MPROTECT, page, 0x1000, prot) };
        true
    }

    /// Gives the pages of a range, which are about to be written to, the rights that the program
    /// gave them.
    pub fn unprotect(&mut self, start: u64, end: u64) {
        let within = |page: &u64| (start & !0xfff..end).contains(&(page & !0xfff));
        let pages: alloc::vec::Vec<u64> = self.protected.addresses().filter(within).collect();
        for page in pages {
            self.written(page);
        }
    }

    /// Forgets the protection of a range that the program has mapped or protected again.
    pub fn unprotected(&mut self, start: u64, end: u64) {
        let mut page = start & !0xfff;
        while page < end && !self.protected.is_empty() {
            self.protected.remove(page | 1);
            page += 0x1000;
        }
    }
}
