//! Indirect calls and jumps: code compares the target with the first targets of the branch in turn,
//! and looks others up in the thread's table. Each comparison (a link) of a counted branch counts
//! its target.

use super::places::Kind;
use super::{Cache, JUMP_ROOM, exit};
use crate::area::writer::Area;
use crate::context::{self, Context, Field, RAX, RCX};
use crate::emit::{Emitter, length};
use crate::memory::patch;

/// Most targets of a call, or of a jump to a procedure, that have a counter.
const CALL_LINKS: u32 = 256;

/// The counters for the targets of an indirect branch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Targets {
    /// None.
    Uncounted,
    /// The calls to each.
    Calls,
    /// The jumps to each.
    Jumps,
}

impl Targets {
    /// Most targets that are compared. An uncounted jump mostly has one target, or very many; of
    /// counted jumps all cases of a switch are compared.
    fn links(self) -> u32 {
        match self {
            Self::Uncounted => 2,
            Self::Calls => CALL_LINKS,
            Self::Jumps => 1024,
        }
    }

    fn are_counted(self) -> bool {
        self != Self::Uncounted
    }
}

/// The targets of an indirect branch.
pub struct Chain {
    block: u32,
    /// Displacement of the branch's own jump.
    head: u64,
    /// Displacement that leads to code for targets without a link.
    tail: u64,
    links: u32,
    /// Address of code that leaves to the engine.
    miss: u64,
    targets: Targets,
}

impl Cache {
    /// Emits the jump of a branch, and begins its chain.
    pub(super) fn begin_chain(&mut self, code: &mut Emitter, block: u32, targets: Targets) {
        let number = exit::CHAIN + self.chains.len() as i32;
        let miss = self.cold_code(Kind::BeforeIndirect(block), |code, cache| {
            code.save(RAX, context::TARGET);
            code.load_pair();
            code.set(context::EXIT, number);
            code.jump(cache.fixed.exit);
        });
        self.chains.push(Chain { block, head: code.at, tail: code.at, links: 0, miss, targets });
        code.relative(miss);
    }

    /// Adds a link for a target that the branch has not had before. Returns its code.
    pub fn add_target(&mut self, index: usize, context: Context, area: &mut Area) -> u64 {
        let target = context.get(context::TARGET);
        let Some(chain) = self.chains.get(index) else { return 0 };
        let (links, targets, block) = (chain.links, chain.targets, chain.block);
        let Some(target_block) = self.block(target, area) else {
            return self.fault(target, context);
        };
        if !targets.are_counted() {
            area.entered_indirectly(target_block);
        }
        if links < targets.links() {
            self.add_link(index, target, area)
        } else {
            let counter = targets.are_counted().then(|| area.call(block, 0));
            let code = self.end_chain(index, counter);
            self.missed(target, context, area);
            context.set_register(RAX, target);
            code
        }
    }

    fn add_link(&mut self, index: usize, target: u64, area: &mut Area) -> u64 {
        let Some(chain) = self.chains.get(index) else { return 0 };
        let (block, tail, miss) = (chain.block, chain.tail, chain.miss);
        let counted = chain.targets.are_counted();
        let counter = counted.then(|| area.call(block, target));
        let (mut hit, mut next) = (0, 0);
        let start = self.cold_code(Kind::Engine, |code, _| {
            code.wide(RCX, target.wrapping_neg());
            // lea rcx, [rcx+rax]; jrcxz +5
            code.put(&[0x48, 0x8d, 0x0c, 0x01]);
            code.align_displacement(3);
            code.put(&[0xe3, 5, 0xe9]);
            next = code.at;
            code.relative(miss);
            hit = code.at;
            if let Some(counter) = counter {
                count_in_rcx(code, counter);
            }
            code.load_pair();
            // Room for the jump, which may need code of its own first.
            code.at += JUMP_ROOM;
        });
        let counting = if counter.is_some() { length::COUNT_REGISTER } else { 0 };
        let committed = hit + counting;
        self.set_last_place(Kind::Link { block, target, committed });
        let mut code = Emitter { at: committed + 2 * length::MOVE };
        self.jump_to_block(&mut code, target);
        patch(tail, start.wrapping_sub(tail + 4) as i32);
        if let Some(chain) = self.chains.get_mut(index) {
            chain.tail = next;
            chain.links += 1;
        }
        hit
    }

    /// Ends a chain with a look into the thread's table, where all further targets are found.
    fn end_chain(&mut self, index: usize, counter: Option<u32>) -> u64 {
        let Some(chain) = self.chains.get(index) else { return 0 };
        // Comparing costs more than looking up when targets are many, but counts.
        let from = if chain.targets.are_counted() { chain.tail } else { chain.head };
        let block = chain.block;
        let mut committed = 0;
        let start = self.cold_code(Kind::Engine, |code, cache| {
            if let Some(counter) = counter {
                count_in_rcx(code, counter);
            }
            committed = code.at;
            code.look_up(cache.fixed.miss);
        });
        self.set_last_place(Kind::Other { block, committed });
        patch(from, start.wrapping_sub(from + 4) as i32);
        start
    }
}

/// Counts with rcx, which is saved and free.
fn count_in_rcx(code: &mut Emitter, counter: u32) {
    let field: Field = context::COUNTERS.wrapping_add_unsigned(counter * 8);
    code.load(RCX, field);
    // lea rcx, [rcx+1]
    code.put(&[0x48, 0x8d, 0x49, 1]);
    code.save(RCX, field);
}
