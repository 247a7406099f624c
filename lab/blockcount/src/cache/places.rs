//! The purpose of translated code, and the program's own state at each of its instructions. Nothing
//! is recorded while code runs: when a signal arrives, its place in the code determines what to
//! undo.

use super::{Block, Cache};
use crate::area::event;
use crate::context::{
    AFTER, AFTER_REGISTERS, AFTER_RESUME, Context, EXEC_REGISTERS, RAX, RCX, RDI, RDX, RESUME, RSI,
    RSP, SCRATCH, SCRATCH_2, TARGET,
};
use crate::decode::End;
use crate::emit::{alignment, length};
use crate::liveness::Method;
use crate::memory::{load, store};

/// Cold code, up to the next place.
pub struct Place {
    pub at: u64,
    pub kind: Kind,
}

/// The purpose of cold code.
#[derive(Clone, Copy)]
pub enum Kind {
    /// No signal arrives here: they are blocked, or the engine runs.
    Engine,
    /// The program is at this address, with all of its state.
    Clean(u64),
    /// Before the last instruction of a block.
    Before(u32),
    /// Before the last instruction of a block, an indirect branch that has begun.
    BeforeIndirect(u32),
    /// An indirect branch has been taken; rax has its target up to `saved`, then the context.
    Miss {
        saved: u64,
    },
    Unblock,
    /// At the address in the context.
    Target,
    /// At a system call, an exec.
    Exec,
    /// At the start of a block, with two registers saved.
    Prefix(u32),
    /// Counting of a taken branch, then a jump.
    Edge {
        block: u32,
        target: u64,
        method: Method,
    },
    /// A link of an indirect branch's chain. From `committed` on the branch is taken.
    Link {
        block: u32,
        target: u64,
        committed: u64,
    },
    /// As a link, for any target: in rax.
    Other {
        block: u32,
        committed: u64,
    },
}

/// The registers of an interrupted thread, in the kernel's `ucontext_t` (asm/sigcontext.h).
#[derive(Clone, Copy)]
pub struct Frame(pub u64);

/// Offsets of the registers by number.
const OFFSETS: [u64; 16] = [144, 152, 136, 128, 160, 120, 112, 104, 40, 48, 56, 64, 72, 80, 88, 96];
const PC: u64 = 168;
const ERROR: u64 = 192;
const MASK: u64 = 296;

impl Frame {
    pub fn pc(self) -> u64 {
        load(self.0 + PC)
    }

    pub fn set_pc(self, pc: u64) {
        store(self.0 + PC, pc);
    }

    /// Blocked signals.
    pub fn mask(self) -> u64 {
        load(self.0 + MASK)
    }

    pub fn set_mask(self, mask: u64) {
        store(self.0 + MASK, mask);
    }

    /// Whether the frame of a fault is that of a write (bit 1 of the error code).
    pub fn writes(self) -> bool {
        load::<u64>(self.0 + ERROR) & 2 != 0
    }

    fn at(self, register: u8) -> u64 {
        self.0 + OFFSETS.get(usize::from(register)).copied().unwrap_or(PC)
    }

    fn register(self, register: u8) -> u64 {
        load(self.at(register))
    }

    fn set(self, register: u8, value: u64) {
        store(self.at(register), value);
    }

    fn pair_back(self, context: Context) {
        self.set(RAX, context.get(SCRATCH));
        self.set(RCX, context.get(SCRATCH_2));
    }

    fn move_stack(self, by: i64) {
        self.set(RSP, self.register(RSP).wrapping_add_signed(by));
    }
}

/// The place at which the program was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    /// Within a block, before the instruction at `pc`; the block is counted already, or not yet.
    Within { block: u32, pc: u64, counted: bool },
    /// On the way to `pc` by an edge that is counted.
    Towards(u64),
    /// On the way to `pc` by an indirect branch.
    Indirectly(u64),
}

impl Cache {
    pub(super) fn set_last_place(&mut self, kind: Kind) {
        if let Some(place) = self.places.last_mut() {
            place.kind = kind;
        }
    }

    /// Gives the program's own state to the frame of a signal that came in translated code.
    pub fn recover(&self, frame: Frame, context: Context) -> Spot {
        let mut at = frame.pc();
        if at == crate::switch::jump_address() {
            at = context.get(RESUME);
        }
        self.recover_at(at, frame, context)
    }

    fn recover_at(&self, at: u64, frame: Frame, context: Context) -> Spot {
        if !self.range().contains(&at) {
            // The program jumped to where no code is.
            return Spot::Indirectly(at);
        }
        if at < self.base + super::COLD {
            let index = self.blocks.partition_point(|block| block.begin <= at);
            return match index.checked_sub(1).and_then(|index| self.blocks.get(index)) {
                Some(block) => self.recover_within(index as u32 - 1, block, at, frame, context),
                None => Spot::Indirectly(at),
            };
        }
        let index = self.places.partition_point(|place| place.at <= at);
        match index.checked_sub(1).and_then(|index| self.places.get(index)) {
            Some(place) => self.recover_cold(place, at, frame, context),
            None => Spot::Indirectly(at),
        }
    }

    fn recover_cold(&self, place: &Place, at: u64, frame: Frame, context: Context) -> Spot {
        match place.kind {
            Kind::Engine => Spot::Indirectly(at),
            Kind::Clean(pc) => Spot::Towards(pc),
            Kind::Before(block) => self.before_last(block),
            Kind::BeforeIndirect(block) => self.undo_indirect(block, frame, context),
            Kind::Miss { saved } => {
                let target = if at <= saved { frame.register(RAX) } else { context.get(TARGET) };
                frame.pair_back(context);
                Spot::Indirectly(target)
            }
            Kind::Unblock => {
                for (field, register) in (AFTER..).step_by(8).zip(AFTER_REGISTERS) {
                    frame.set(register, context.get(field));
                }
                self.recover_at(context.get(AFTER_RESUME), frame, context)
            }
            Kind::Target => Spot::Indirectly(context.get(TARGET)),
            Kind::Exec => {
                for (field, register) in (EXEC_REGISTERS..).step_by(8).zip([RDI, RSI, RDX, RAX]) {
                    frame.set(register, context.get(field));
                }
                // The number of the system call was kept as the target.
                match self.system_calls.get(context.get(TARGET) as usize) {
                    Some(call) => Spot::Within { block: call.block, pc: call.at, counted: true },
                    None => Spot::Indirectly(at),
                }
            }
            Kind::Prefix(block) => {
                frame.pair_back(context);
                Spot::Indirectly(self.blocks.get(block as usize).map_or(0, |block| block.address))
            }
            Kind::Edge { block, target, method } => {
                let offset = at - place.at;
                if undo_count(method, offset, frame, context) {
                    return Spot::Towards(target);
                }
                self.undo_loop(block, frame);
                self.before_last(block)
            }
            Kind::Link { block, committed, .. } | Kind::Other { block, committed }
                if at < committed =>
            {
                self.undo_indirect(block, frame, context)
            }
            Kind::Link { target, .. } => {
                frame.pair_back(context);
                Spot::Towards(target)
            }
            Kind::Other { .. } => {
                let target = frame.register(RAX);
                frame.pair_back(context);
                Spot::Indirectly(target)
            }
        }
    }

    /// Before the last instruction of a counted block.
    fn before_last(&self, index: u32) -> Spot {
        let pc = self.blocks.get(index as usize).map_or(0, |block| self.last_address(block));
        Spot::Within { block: index, pc, counted: true }
    }

    fn last_address(&self, block: &Block) -> u64 {
        let last = self.pieces.get(block.pieces + block.instructions - 1);
        block.end_address - last.map_or(0, |piece| u64::from(piece.len))
    }

    fn undo_indirect(&self, index: u32, frame: Frame, context: Context) -> Spot {
        frame.pair_back(context);
        let end = self.blocks.get(index as usize).map(|block| block.end);
        if end == Some(End::IndirectCall) {
            frame.move_stack(8);
        }
        self.before_last(index)
    }

    /// A loop instruction has counted down already.
    fn undo_loop(&self, index: u32, frame: Frame) {
        let Some(block) = self.blocks.get(index as usize) else { return };
        // loopne, loope, loop; jrcxz (0xe3) and conditional branches count nothing.
        let code = crate::memory::bytes(self.last_address(block), 1);
        if matches!(code, [0xe0..=0xe2]) {
            frame.set(RCX, frame.register(RCX).wrapping_add(1));
        }
    }

    fn recover_within(
        &self,
        index: u32,
        block: &Block,
        at: u64,
        frame: Frame,
        context: Context,
    ) -> Spot {
        if at < block.entry {
            frame.pair_back(context);
            return Spot::Indirectly(block.address);
        }
        let (mut code, mut pc) = (block.entry + block.replaceable, block.address);
        let mut counted = false;
        if at < code {
            return Spot::Within { block: index, pc, counted };
        }
        for place in 0..block.instructions {
            let Some(piece) = self.pieces.get(block.pieces + place) else { break };
            if place == block.counter.before {
                let len = block.counter.method.len();
                if at < code + len {
                    let counted = undo_count(block.counter.method, at - code, frame, context);
                    return Spot::Within { block: index, pc, counted };
                }
                code += len;
                counted = true;
            }
            let ends =
                place + 1 == block.instructions && !matches!(block.end, End::Cut | End::Trap);
            if ends && block.steps {
                return Spot::Within { block: index, pc, counted: true };
            }
            if ends {
                return self.recover_end(index, block, pc, (at - code, code), frame, context);
            }
            let next = pc + u64::from(piece.len);
            if at < code + u64::from(piece.code_len) {
                let done = piece.far && undo_far(at - code, piece.code_len, code, frame, context);
                let pc = if done { next } else { pc };
                return Spot::Within { block: index, pc, counted };
            }
            code += u64::from(piece.code_len);
            pc = next;
        }
        Spot::Towards(block.end_address)
    }

    /// Within the code of a block's last instruction at `pc`.
    fn recover_end(
        &self,
        index: u32,
        block: &Block,
        pc: u64,
        (offset, code): (u64, u64),
        frame: Frame,
        context: Context,
    ) -> Spot {
        let before = Spot::Within { block: index, pc, counted: true };
        let len = self
            .pieces
            .get(block.pieces + block.instructions - 1)
            .map_or(0, |piece| u64::from(piece.code_len));
        match block.end {
            End::Cut | End::Trap | End::Invalid | End::Refused(_) => before,
            End::Jump(target) => Spot::Towards(target),
            End::Call(_) if offset == 0 => before,
            End::Call(target) => Spot::Towards(target),
            End::Transaction(_) if offset == 0 => before,
            End::Transaction(target) => Spot::Towards(target),
            End::Conditional(_) => self.recover_conditional(before, block, (offset, code), frame),
            End::Return(arguments) => {
                let saved = 2 * length::MOVE;
                if offset > saved {
                    frame.pair_back(context);
                    let all = offset > saved + length::POP && arguments != 0;
                    frame.move_stack(-8 - if all { i64::from(arguments) } else { 0 });
                }
                before
            }
            End::IndirectJump | End::IndirectCall => {
                let loaded = 2 * length::MOVE + len;
                if offset >= loaded {
                    frame.pair_back(context);
                    if block.end == End::IndirectCall && offset >= loaded + length::PUSH {
                        frame.move_stack(8);
                    }
                } else if offset >= 2 * length::MOVE {
                    frame.pair_back(context);
                }
                before
            }
            End::SystemCall if offset < length::WITH_CALL => before,
            End::SystemCall => {
                frame.set(RCX, block.end_address);
                Spot::Towards(block.end_address)
            }
        }
    }

    fn recover_conditional(
        &self,
        before: Spot,
        block: &Block,
        (offset, code): (u64, u64),
        frame: Frame,
    ) -> Spot {
        let [first, ..] = crate::memory::bytes(self.last_address(block), 1) else { return before };
        if !matches!(first, 0xe0..=0xe3 | 0x67) {
            let whole = alignment(code, 2) + length::CONDITIONAL;
            return if offset < whole { before } else { Spot::Towards(block.end_address) };
        }
        // loop +2; jmp over; (no operation); jmp target
        match offset {
            0 => before,
            2 => Spot::Towards(block.end_address),
            _ if crate::memory::bytes(code, 1) == [0xe3] => before,
            _ => {
                frame.set(RCX, frame.register(RCX).wrapping_add(1));
                before
            }
        }
    }
}

/// Undoes the start of counting; whether it has counted.
fn undo_count(method: Method, offset: u64, frame: Frame, context: Context) -> bool {
    match method {
        Method::Flags => offset > 0,
        Method::Register(_) => offset >= length::COUNT_REGISTER,
        Method::Kept(register) => {
            if offset > 0 && offset < length::COUNT_KEPT {
                frame.set(register, context.get(SCRATCH));
            }
            offset >= length::MOVE + length::COUNT_REGISTER
        }
    }
}

/// Undoes the use of a register for data out of reach; whether the instruction is done.
fn undo_far(offset: u64, code_len: u8, code: u64, frame: Frame, context: Context) -> bool {
    if offset == 0 {
        return false;
    }
    // mov gs:[SCRATCH], register
    let [_, _, _, modrm] = crate::memory::bytes(code, 4) else { return false };
    frame.set(modrm >> 3 & 7, context.get(SCRATCH));
    offset >= u64::from(code_len) - length::MOVE
}

impl Spot {
    /// The program's address.
    pub fn pc(self) -> u64 {
        match self {
            Self::Within { pc, .. } | Self::Towards(pc) | Self::Indirectly(pc) => pc,
        }
    }

    /// The event that corrects the counts when the program does not continue from here.
    pub fn event(self, cache: &Cache) -> Option<(u32, u32, u64)> {
        match self {
            Self::Within { block, pc, counted: true } => Some((event::LEFT, block, pc)),
            Self::Within { block, pc, counted: false } => Some((event::LEFT_UNCOUNTED, block, pc)),
            Self::Towards(pc) => cache.known(pc).map(|block| (event::LEFT_UNCOUNTED, block, pc)),
            Self::Indirectly(_) => None,
        }
    }
}
