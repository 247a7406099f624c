//! Translation: a block, and those that follow it in line.

use super::chains::Targets;
use super::places::Kind;
use super::{Block, Branch, Cache, JUMP_ROOM, Piece, ROOM, SystemCall, exit};
use crate::area::{self, NONE, kind, writer::Area};
use crate::context::EXIT;
use crate::decode::{self, Decoded, End};
use crate::emit::{Emitter, length};
use crate::memory;
use alloc::vec::Vec;
use iced_x86::{Mnemonic, OpKind, Register};

/// Instructions of a block; a longer one is cut.
const BLOCK_MAX: usize = 64;
/// Blocks that are translated in line.
const LINE_MAX: usize = 20;

impl Cache {
    /// Translates the block of an address, and what follows it in line.
    pub(super) fn translate(&mut self, at: u64, indirect: bool, area: &mut Area) -> Option<u32> {
        self.require_room();
        self.regions.find(at, area)?;
        let changing = self.changes(at, area);
        let first = self.blocks.len() as u32;
        // Code is not written into a cache line that is executed.
        let mut code = Emitter { at: (self.hot + 63) & !63 };
        let mut begin = code.at;
        let mut prefix = 0;
        if indirect {
            prefix = code.at;
            code.load_pair();
        }
        let mut next = Some(at);
        // Code that may change is translated block by block: its entry is aligned.
        let most = if changing { 1 } else { LINE_MAX };
        let mut blocks = 0;
        while let Some(address) = next {
            let other = blocks >= most || self.changes(address, area) != changing;
            if blocks > 0 && (other || self.map.get(address).is_some()) {
                self.jump_to_block(&mut code, address);
                break;
            }
            let mut decoded = core::mem::take(&mut self.decoded);
            let end = self.decode(address, &mut decoded, area);
            next = match end {
                None => {
                    self.jump_to_block(&mut code, address);
                    None
                }
                Some(end) => {
                    self.emit_block(&mut code, &decoded, (end, false), (begin, prefix), area)
                }
            };
            self.decoded = decoded;
            (begin, prefix) = (code.at, 0);
            blocks += 1;
        }
        self.hot = code.at;
        if indirect {
            area.entered_indirectly(first);
        }
        Some(first)
    }

    pub(super) fn require_room(&self) {
        if self.hot + ROOM > self.base + super::COLD || self.literals + ROOM > self.range().end {
            crate::system::refuse(&[b"the code cache is full"]);
        }
    }

    /// Decodes a block; `None` where there is no code.
    pub(super) fn decode(
        &mut self,
        at: u64,
        into: &mut Vec<Decoded>,
        area: &mut Area,
    ) -> Option<End> {
        let limit = self.regions.limit(at, area)?;
        let alone = self.self_written.get(at & !0xfff | 1).is_some();
        let max = if alone { 1 } else { BLOCK_MAX };
        let end = decode::block(at, limit, max, into);
        if self.changes(at, area) {
            let end = into.last().map_or(at + 1, |last| last.instruction.next_ip());
            self.protect(at, end);
            // The decoded bytes may have been overwritten before the page was protected.
            return Some(decode::block(at, limit, max, into));
        }
        Some(end)
    }

    /// Emits a block; the address that follows it in line.
    pub(super) fn emit_block(
        &mut self,
        code: &mut Emitter,
        decoded: &[Decoded],
        (end, steps): (End, bool),
        (begin, prefix): (u64, u64),
        area: &mut Area,
    ) -> Option<u64> {
        let (first, last) = (decoded.first()?, decoded.last()?);
        let (address, end_address) = (first.address(), last.instruction.next_ip());
        let Self { liveness, regions, .. } = self;
        let counter =
            liveness.counter(decoded, end, end_address, &mut |at: u64| regions.limit(at, area));
        let number = area.counter();
        let index = self.blocks.len() as u32;
        let (entry, replaceable) = self.begin_block(code, address, area);
        let copied = match end {
            End::Cut | End::Trap => decoded.len(),
            _ => decoded.len() - 1,
        };
        let first_piece = self.pieces.len();
        for (place, decoded) in decoded.iter().enumerate() {
            if place == counter.before {
                code.count(number, counter.method);
            }
            let start = code.at;
            let mut far = false;
            if place < copied {
                let liveness = &mut self.liveness;
                far = code.copy(decoded, || liveness.unused(&decoded.instruction));
            }
            let code_len = (code.at - start) as u8;
            self.pieces.push(Piece { len: decoded.len() as u8, code_len, far });
        }
        self.blocks.push(Block {
            address,
            end_address,
            begin,
            entry,
            replaceable,
            prefix,
            pieces: first_piece,
            instructions: decoded.len(),
            end,
            counter,
            dropped: false,
            steps,
            next_in_page: [u32::MAX; 2],
        });
        if !steps {
            self.map.insert(address, index);
        }
        self.add_to_pages(index, address, end_address);
        let taken = match end {
            End::Conditional(_) if area.counts_edges() => area.counter(),
            _ => NONE,
        };
        self.write_down(decoded, end, (number, taken), area);
        if steps {
            code.set(EXIT, exit::STEP);
            code.jump(self.fixed.exit);
            return None;
        }
        self.emit_end(code, index, decoded, end, taken, area)
    }

    /// Whether the program may write the page of an address, as far as is known.
    pub(super) fn changes(&mut self, at: u64, area: &mut Area) -> bool {
        self.protected.get(at & !0xfff | 1).is_some()
            || self.regions.find(at, area).is_some_and(|region| region.writable)
    }

    /// The entry of a block, and the bytes there that a jump may replace.
    fn begin_block(&mut self, code: &mut Emitter, at: u64, area: &mut Area) -> (u64, u64) {
        if !self.changes(at, area) {
            return (code.at, 0);
        }
        code.replaceable();
        (code.at - length::REPLACEABLE, length::REPLACEABLE)
    }

    fn add_to_pages(&mut self, index: u32, address: u64, end_address: u64) {
        let (first, last) = (address & !0xfff, (end_address - 1) & !0xfff);
        let next_of_first = self.add_to_page(first, index);
        let next_of_last = if last == first { u32::MAX } else { self.add_to_page(last, index) };
        if let Some(block) = self.blocks.get_mut(index as usize) {
            block.next_in_page = [next_of_first, next_of_last];
        }
    }

    /// Makes a block the first of a page; the one that was.
    fn add_to_page(&mut self, page: u64, index: u32) -> u32 {
        let before = self.pages.get(page | 1).unwrap_or(u32::MAX);
        self.pages.insert(page | 1, index);
        before
    }

    /// Adds a block to the area.
    fn write_down(
        &mut self,
        decoded: &[Decoded],
        end: End,
        (counter, taken): (u32, u32),
        area: &mut Area,
    ) {
        let Some(first) = decoded.first() else { return };
        let mut lengths = [0_u8; BLOCK_MAX];
        let mut len = 0;
        for (place, decoded) in lengths.iter_mut().zip(decoded) {
            *place = decoded.len() as u8;
            len += decoded.len() as u16;
        }
        let (kind, target) = match end {
            End::Cut => (kind::CUT, 0),
            End::Jump(target) | End::Transaction(target) => (kind::JUMP, target),
            End::Conditional(target) => (kind::CONDITIONAL, target),
            End::Call(target) => (kind::CALL, target),
            End::IndirectCall => (kind::INDIRECT_CALL, 0),
            End::IndirectJump => (kind::INDIRECT_JUMP, 0),
            End::Return(_) => (kind::RETURN, 0),
            End::SystemCall => (kind::SYSTEM_CALL, 0),
            End::Trap | End::Invalid | End::Refused(_) => (kind::TRAP, 0),
        };
        let address = first.address();
        let mapping = self.regions.find(address, area).map_or(NONE, |region| region.mapping);
        let block = area::Block {
            address,
            target,
            mapping,
            counter,
            taken,
            lengths: 0,
            len,
            instructions: decoded.len() as u8,
            kind,
            flags: 0,
        };
        area.block(block, lengths.get(..decoded.len()).unwrap_or_default());
    }

    /// Emits how a block ends; the address that follows in line.
    fn emit_end(
        &mut self,
        code: &mut Emitter,
        index: u32,
        decoded: &[Decoded],
        end: End,
        taken: u32,
        area: &mut Area,
    ) -> Option<u64> {
        let last = decoded.last()?;
        let next = last.instruction.next_ip();
        match end {
            End::Cut => Some(next),
            End::Jump(target) => Some(target),
            End::Conditional(target) => {
                self.emit_conditional(code, index, last, (target, taken), area);
                Some(next)
            }
            End::Call(target) => {
                self.push_literal(code, next);
                Some(target)
            }
            End::IndirectJump | End::IndirectCall => {
                let leaves = leaves_procedure(decoded);
                self.emit_indirect(code, index, last, (end, leaves), area);
                None
            }
            End::Return(arguments) => {
                code.save_pair();
                // pop rax; lea rsp, [rsp+arguments]
                code.put(&[0x58]);
                if arguments != 0 {
                    code.put(&[0x48, 0x8d, 0xa4, 0x24]);
                    code.put(&i32::from(arguments).to_le_bytes());
                }
                code.look_up(self.fixed.miss);
                None
            }
            End::SystemCall => {
                let number = exit::SYSTEM_CALL + self.system_calls.len() as i32;
                let at = last.address();
                let looked_at = self.exit_code(Kind::Before(index), number);
                let direct = code.system_call(looked_at, next);
                self.system_calls.push(SystemCall { block: index, at, next, direct });
                Some(next)
            }
            End::Transaction(target) => {
                // mov eax, 0: aborted for no reason that is reported.
                code.put(&[0xb8, 0, 0, 0, 0]);
                Some(target)
            }
            End::Trap => {
                self.jump_to_block(code, next);
                None
            }
            End::Invalid => {
                code.put(&[0x0f, 0x0b]);
                None
            }
            End::Refused(_) => {
                code.set(EXIT, exit::REFUSED + index as i32);
                code.jump(self.fixed.exit);
                None
            }
        }
    }

    fn emit_conditional(
        &mut self,
        code: &mut Emitter,
        index: u32,
        last: &Decoded,
        (target, taken): (u64, u32),
        area: &mut Area,
    ) {
        let counted = (taken != NONE).then(|| self.taken_edge(index, target, taken, area));
        if last.instruction.is_jcc_short_or_near() {
            let condition = last.instruction.condition_code() as u8 - 1;
            code.align_displacement(2);
            code.put(&[0x0f, 0x80 | condition]);
        } else {
            // Loops have short displacements only: one over a jump to what follows.
            let bytes = last.bytes();
            code.put(bytes.get(..bytes.len() - 1).unwrap_or_default());
            let mut behind = Emitter { at: code.at + 3 };
            behind.align_displacement(1);
            let skipped = (behind.at - code.at - 3) as u8;
            // loop +2; jmp over; (no operation); jmp target
            code.put(&[2, 0xeb, 5 + skipped]);
            code.at += u64::from(skipped);
            code.put(&[0xe9]);
        }
        match counted {
            Some(edge) => code.relative(edge),
            None => self.link(code, target),
        }
    }

    /// Cold code that counts a taken branch.
    fn taken_edge(&mut self, block: u32, target: u64, taken: u32, area: &mut Area) -> u64 {
        let Self { liveness, regions, .. } = self;
        let method = liveness.edge(target, &mut |at: u64| regions.limit(at, area));
        let at = self.cold_code(Kind::Edge { block, target, method }, |code, _| {
            code.count(taken, method);
            // Room for the jump, which may need code of its own first.
            code.at += JUMP_ROOM;
        });
        let mut code = Emitter { at: at + method.len() };
        self.jump_to_block(&mut code, target);
        at
    }

    fn emit_indirect(
        &mut self,
        code: &mut Emitter,
        index: u32,
        last: &Decoded,
        (end, leaves): (End, bool),
        area: &Area,
    ) {
        code.save_pair();
        let start = code.at;
        if !code.target_to_rax(last) {
            let at = crate::system::hexadecimal(last.address());
            crate::system::refuse(&[b"refused: an indirect branch of an unknown form at 0x", &at]);
        }
        if let Some(piece) = self.pieces.last_mut() {
            piece.code_len = (code.at - start) as u8;
        }
        if end == End::IndirectCall {
            self.push_literal(code, last.instruction.next_ip());
        }
        code.align_displacement(1);
        code.put(&[0xe9]);
        let targets = match end {
            End::IndirectCall if area.counts_edges() => Targets::Calls,
            End::IndirectJump if area.counts_jumps() => Targets::Jumps,
            End::IndirectJump if leaves && area.counts_edges() => Targets::Calls,
            _ => Targets::Uncounted,
        };
        self.begin_chain(code, index, targets);
    }

    /// Pushes a return address, from memory: no register is needed, and no flags change.
    fn push_literal(&mut self, code: &mut Emitter, value: u64) {
        let literal = self.literals;
        self.literals += 8;
        memory::store(literal, value);
        code.put(&[0xff, 0x35]);
        code.relative(literal);
    }

    /// Cold code that leaves to the engine, which links the displacement at `at` with the block of
    /// `target`.
    pub(super) fn branch_exit(&mut self, at: u64, target: u64) -> u64 {
        let number = exit::BRANCH + self.branches.len() as i32;
        self.branches.push(Branch { at, target });
        self.exit_code(Kind::Clean(target), number)
    }

    /// A displacement that leads to the block of `target`, now or when it is first taken.
    fn link(&mut self, code: &mut Emitter, target: u64) {
        let to = match self.map.get(target) {
            Some(block) => self.entry(block),
            None => self.branch_exit(code.at, target),
        };
        code.relative(to);
    }

    /// A jump to the block of an address.
    pub(super) fn jump_to_block(&mut self, code: &mut Emitter, target: u64) {
        code.align_displacement(1);
        code.put(&[0xe9]);
        self.link(code, target);
    }
}

/// Whether the indirect jump at the end of a block is one of those that lead to another procedure:
/// through a pointer in memory that is not in a table (linkage tables, tail calls of virtual
/// functions), or behind instructions that give back the stack (other tail calls, the dynamic
/// linker's).
pub(super) fn leaves_procedure(block: &[Decoded]) -> bool {
    let Some((jump, before)) = block.split_last() else { return false };
    let jump = &jump.instruction;
    let gives_back = |decoded: &Decoded| {
        let of = &decoded.instruction;
        let moves = matches!(of.mnemonic(), Mnemonic::Add | Mnemonic::Lea | Mnemonic::Mov);
        of.stack_pointer_increment() > 0 || moves && of.op0_register() == Register::RSP
    };
    match jump.op0_kind() {
        OpKind::Memory => jump.memory_index() == Register::None,
        _ => before.iter().any(gives_back),
    }
}
