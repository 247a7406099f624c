//! Indirect calls and jumps: the first targets of each are compared one after the other, further
//! ones are looked up in the thread's table. A link of a call counts the calls to its target.

use super::places::Kind;
use super::{Cache, JUMP_ROOM, exit};
use crate::area::writer::Area;
use crate::context::{self, Context, Field, RAX, RCX};
use crate::emit::{Emitter, length};
use crate::memory::patch;

/// Targets of a jump that are compared: mostly it has one, or very many.
const JUMP_LINKS: u32 = 2;
/// Targets of a call, or of a jump to a procedure, that are counted.
const CALL_LINKS: u32 = 8;

/// The targets of an indirect branch.
pub struct Chain {
    block: u32,
    /// Displacement of the branch's own jump.
    head: u64,
    /// Displacement that leads to code for targets without a link.
    tail: u64,
    links: u32,
    /// Leaves to the engine.
    miss: u64,
    /// Calls and jumps to procedures are counted by target.
    counted: bool,
}

impl Cache {
    /// Begins the chain of a branch, whose displacement is written now.
    pub(super) fn begin_chain(&mut self, code: &mut Emitter, block: u32, counted: bool) {
        let number = exit::CHAIN + self.chains.len() as i32;
        let miss = self.cold_code(Kind::BeforeIndirect(block), |code, cache| {
            code.save(RAX, context::TARGET);
            code.load_pair();
            code.set(context::EXIT, number);
            code.jump(cache.fixed.exit);
        });
        self.chains.push(Chain { block, head: code.at, tail: code.at, links: 0, miss, counted });
        code.relative(miss);
    }

    /// Code for a target that a branch has not had before.
    pub fn add_target(&mut self, index: usize, context: Context, area: &mut Area) -> u64 {
        let target = context.get(context::TARGET);
        let Some(chain) = self.chains.get(index) else { return 0 };
        let (links, counted, block) = (chain.links, chain.counted, chain.block);
        let Some(target_block) = self.block(target, area) else {
            return self.fault(target, context);
        };
        if !counted {
            area.entered_indirectly(target_block);
        }
        if links < if counted { CALL_LINKS } else { JUMP_LINKS } {
            self.add_link(index, target, area)
        } else {
            let counter = counted.then(|| area.call(block, 0));
            let code = self.end_chain(index, counter);
            self.missed(target, context, area);
            context.set_register(RAX, target);
            code
        }
    }

    fn add_link(&mut self, index: usize, target: u64, area: &mut Area) -> u64 {
        let Some(chain) = self.chains.get(index) else { return 0 };
        let (block, tail, miss, counted) = (chain.block, chain.tail, chain.miss, chain.counted);
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
        // Comparing costs more than looking up when targets are many, but counts calls.
        let from = if chain.counted { chain.tail } else { chain.head };
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
