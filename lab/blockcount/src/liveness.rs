//! Finds dead flags and registers, which a counter may use. No calling convention is assumed: dead
//! means written again before any read.

use crate::context::{RAX, RSP};
use crate::decode::{self, Decoded, End};
use crate::emit::length;
use alloc::boxed::Box;
use alloc::vec;
use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};

/// Flags that `inc` writes: overflow, sign, zero, auxiliary carry, parity (`RflagsBits`).
const COUNTING: u32 = 0x2f;
/// These and the carry.
const ALL: u32 = 0x3f;

/// Position and method of a block's counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Index of the instruction before which it stands.
    pub before: usize,
    pub method: Method,
}

/// A way to count that leaves the program's state unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The flags are dead: one `inc`.
    Flags,
    /// This register is dead.
    Register(u8),
    /// No flag and no register is dead: this register is saved and restored around the count.
    Kept(u8),
}

impl Method {
    /// Length of its code, bytes.
    pub fn len(self) -> u64 {
        match self {
            Self::Flags => length::COUNT_FLAGS,
            Self::Register(_) => length::COUNT_REGISTER,
            Self::Kept(_) => length::COUNT_KEPT,
        }
    }
}

/// Instructions after a block that are examined. With more, a few more dead flags are found.
const LOOK_AHEAD: u32 = 14;

/// Entries of the cache of live flags, a power of two.
const KNOWN: usize = 8192;

/// Looks ahead of blocks, and keeps what it found.
pub struct Liveness {
    /// (address, flags that are live there), by the address's low bits.
    known: Box<[(u64, u8)]>,
    information: InstructionInfoFactory,
}

impl Liveness {
    pub fn new() -> Self {
        Self {
            known: vec![(0, 0); KNOWN].into_boxed_slice(),
            information: InstructionInfoFactory::new(),
        }
    }

    /// Empties the cache, because code has changed.
    pub fn forget(&mut self) {
        self.known.fill((0, 0));
    }

    /// Flags that are live at `at`. `limit_of` says where readable code ends.
    fn live_at(&mut self, at: u64, limit_of: &mut dyn FnMut(u64) -> Option<u64>) -> u32 {
        let index = at as usize % KNOWN;
        if let Some((_, live)) = self.known.get(index).filter(|(known, _)| *known == at) {
            return u32::from(*live);
        }
        let live = look_ahead(at, LOOK_AHEAD, limit_of);
        if let Some(entry) = self.known.get_mut(index) {
            *entry = (at, live as u8);
        }
        live
    }

    /// Flags that are live where a block ends.
    fn live_behind(
        &mut self,
        end: End,
        next: u64,
        limit_of: &mut dyn FnMut(u64) -> Option<u64>,
    ) -> u32 {
        match end {
            End::Cut => self.live_at(next, limit_of),
            End::Jump(target) | End::Call(target) => self.live_at(target, limit_of),
            End::Conditional(target) => {
                self.live_at(target, limit_of) | self.live_at(next, limit_of)
            }
            _ => ALL,
        }
    }

    /// Chooses the position and method of a block's counter.
    pub fn counter(
        &mut self,
        block: &[Decoded],
        end: End,
        next: u64,
        limit_of: &mut dyn FnMut(u64) -> Option<u64>,
    ) -> Counter {
        let mut live = self.live_behind(end, next, limit_of);
        let mut found = None;
        for (index, decoded) in block.iter().enumerate().rev() {
            live = before(&decoded.instruction, live);
            if live & COUNTING == 0 {
                found = Some(index);
            }
        }
        if let Some(before) = found {
            return Counter { before, method: Method::Flags };
        }
        self.by_register(block).unwrap_or(Counter { before: 0, method: Method::Kept(RAX) })
    }

    /// Chooses the method of counting a taken branch.
    pub fn edge(&mut self, target: u64, limit_of: &mut dyn FnMut(u64) -> Option<u64>) -> Method {
        if self.live_at(target, limit_of) & COUNTING == 0 {
            Method::Flags
        } else {
            Method::Kept(RAX)
        }
    }

    fn by_register(&mut self, block: &[Decoded]) -> Option<Counter> {
        let mut dead = 0_u16;
        let mut found = None;
        for (index, decoded) in block.iter().enumerate().rev() {
            let used = self.information.info(&decoded.instruction).used_registers();
            // They leave the register alone when they find nothing.
            let searches = matches!(decoded.instruction.mnemonic(), Mnemonic::Bsf | Mnemonic::Bsr);
            let general = || used.iter().filter(|used| used.register().is_gpr());
            for used in general() {
                let whole =
                    !searches && used.access() == OpAccess::Write && used.register().size() >= 4;
                if whole {
                    dead |= bit(used.register());
                }
            }
            for used in general() {
                let whole =
                    !searches && used.access() == OpAccess::Write && used.register().size() >= 4;
                if !whole && used.access() != OpAccess::NoMemAccess {
                    dead &= !bit(used.register());
                }
            }
            let free = dead & !(1 << RSP | 1 << 12);
            if free != 0 {
                let method = Method::Register(free.trailing_zeros() as u8);
                found = Some(Counter { before: index, method });
            }
        }
        found
    }

    /// A register that an instruction leaves alone, and that needs no prefix as a base.
    pub fn unused(&mut self, instruction: &Instruction) -> u8 {
        let mut used = 1_u16 << RSP | 1 << 5;
        for register in self.information.info(instruction).used_registers() {
            if register.register().is_gpr() {
                used |= bit(register.register());
            }
        }
        (!used & 0xff).trailing_zeros() as u8
    }
}

fn bit(register: Register) -> u16 {
    1 << (register.full_register().number() & 15)
}

/// The flags that are live before an instruction, computed from those live after it.
fn before(instruction: &Instruction, live: u32) -> u32 {
    live & !killed(instruction) | instruction.rflags_read() & ALL
}

/// Flags whose values an instruction replaces in any case. Shifts by `cl` or by zero and repeated
/// comparisons of nothing leave flags as they are, and so may what manuals call undefined; but
/// processors clear the auxiliary carry in logical operations.
fn killed(instruction: &Instruction) -> u32 {
    if instruction.has_rep_prefix() || instruction.has_repne_prefix() {
        return 0;
    }
    let shifts = matches!(
        instruction.mnemonic(),
        Mnemonic::Shl
            | Mnemonic::Sal
            | Mnemonic::Shr
            | Mnemonic::Sar
            | Mnemonic::Rol
            | Mnemonic::Ror
            | Mnemonic::Rcl
            | Mnemonic::Rcr
            | Mnemonic::Shld
            | Mnemonic::Shrd
    );
    if shifts {
        let last = instruction.op_count().saturating_sub(1);
        let by_one_or_more =
            instruction.op_kind(last) == OpKind::Immediate8 && instruction.immediate8() & 0x1f != 0;
        if !by_one_or_more {
            return 0;
        }
    }
    let logical = matches!(
        instruction.mnemonic(),
        Mnemonic::And | Mnemonic::Or | Mnemonic::Xor | Mnemonic::Test
    );
    let undefined = if logical { 0 } else { instruction.rflags_undefined() };
    instruction.rflags_modified() & !undefined & ALL
}

fn look_ahead(mut at: u64, mut budget: u32, limit_of: &mut dyn FnMut(u64) -> Option<u64>) -> u32 {
    // Flags that nothing has written yet, and flags that something has read.
    let (mut open, mut live) = (ALL, 0);
    loop {
        let Some(limit) = limit_of(at) else { return live | open };
        let len = u64::from(budget) * decode::INSTRUCTION_MAX;
        let mut decoder = decode::decoder(at, len, limit);
        loop {
            if budget == 0 {
                return live | open;
            }
            budget -= 1;
            let instruction = decoder.decode();
            live |= instruction.rflags_read() & open;
            let end = decode::end_of(&instruction);
            if matches!(end, Some(End::Invalid | End::Refused(_))) {
                return live | open;
            }
            open &= !killed(&instruction);
            if open & COUNTING == 0 {
                return live | open;
            }
            match end {
                None => continue,
                Some(End::Jump(target) | End::Call(target)) => at = target,
                Some(End::Conditional(target)) => {
                    let half = budget / 2;
                    let next = instruction.next_ip();
                    let taken = look_ahead(target, half, limit_of);
                    return live | open & (taken | look_ahead(next, half, limit_of));
                }
                Some(_) => return live | open,
            }
            break;
        }
    }
}
