//! Effects of A64 instructions on the values that decide indirect jumps (see `cfg`). Sections are
//! those of DDI 0487, C4.1: the encodings by group.

use std::collections::BTreeSet;

use super::fields::{Word, ZERO};
use crate::values::ReadOnly;
use crate::values::{Decision, Order, Spot, State, Value};

/// Index of the stack pointer in the state. Only the stack pointer and the zero register have this
/// number, and the zero register's value need not be stored.
const STACK: u8 = 31;
/// The link register.
const LINK: u8 = 30;
/// Smallest number that is taken for an address: no table begins on the first page of a file. A
/// smaller limit would take counts for addresses.
const LEAST_ADDRESS: u64 = 4096;
/// Registers that a procedure may change: x0 to x17, and x18, which some platforms preserve
/// (AAPCS64 6.1.1).
const CHANGED_BY_CALLS: std::ops::RangeInclusive<u8> = 0..=18;

/// Follows the values of registers through instructions.
#[derive(Debug, Default)]
pub(in crate::isa) struct Tracker {
    /// Addresses that instructions have as operands.
    named: BTreeSet<u64>,
}

impl Tracker {
    /// Index of the register with the stack pointer.
    pub(in crate::isa) const STACK: usize = STACK as usize;
    pub(in crate::isa) const REGISTERS: usize = 32;

    pub(in crate::isa) fn named(&self) -> &BTreeSet<u64> {
        &self.named
    }

    /// The state after the instruction that `bytes` begin with, at the address `at`.
    pub(in crate::isa) fn step(
        &mut self,
        bytes: &[u8],
        at: u64,
        state: &mut State,
        memory: &mut impl ReadOnly,
    ) -> Decision {
        let Some(word) = Word::of(bytes) else { return Decision::None };
        Step { word, at, state, memory, named: &mut self.named }.execute()
    }
}

/// The execution of one instruction.
pub(super) struct Step<'s, M> {
    pub(super) word: Word,
    pub(super) at: u64,
    pub(super) state: &'s mut State,
    pub(super) memory: &'s mut M,
    named: &'s mut BTreeSet<u64>,
}

impl<M: ReadOnly> Step<'_, M> {
    fn execute(&mut self) -> Decision {
        match self.word.bits(25, 4) {
            0b1000 | 0b1001 => self.with_immediate(),
            0b1010 | 0b1011 => return self.branch_or_system(),
            0b0101 | 0b1101 => self.on_registers(),
            0b0111 | 0b1111 => self.vector(),
            0b0100 | 0b0110 | 0b1100 | 0b1110 => self.memory_access(),
            // SVE and SME: those that write a general register name it in this field; some set
            // flags, some store.
            _ => {
                // `addvl` and `addpl` may write the stack pointer.
                match self.word.register(0) {
                    to if self.word.is(0xffa0_f800, 0x0420_5000) => {
                        self.write_or_stack(to, 8, None)
                    }
                    to => self.forget(to, 8),
                }
                self.state.forget_comparison();
                self.store(nowhere(self.at), 64, None);
            }
        }
        Decision::None
    }

    /// The value of a register, or of its lower half; 31 is zero.
    pub(super) fn read(&self, register: u8, bytes: u8) -> Value {
        if register == ZERO {
            Value::Const(0)
        } else {
            self.state.get(usize::from(register)).extended(bytes, false)
        }
    }

    /// The value of a register, or of its lower half; 31 is the stack pointer.
    pub(super) fn read_or_stack(&self, register: u8, bytes: u8) -> Value {
        self.state.get(usize::from(register)).extended(bytes, false)
    }

    /// Writes a value to a register, or None for an unknown one; writes to 31 are lost.
    pub(super) fn write(&mut self, register: u8, bytes: u8, value: Option<Value>) {
        if register != ZERO {
            self.write_or_stack(register, bytes, value);
        }
    }

    pub(super) fn write_or_stack(&mut self, register: u8, bytes: u8, value: Option<Value>) {
        match value {
            Some(value) => self.state.set(usize::from(register), value.extended(bytes, false)),
            None => self.state.set_fresh(usize::from(register), self.at, bytes),
        }
    }

    pub(super) fn forget(&mut self, register: u8, bytes: u8) {
        self.write(register, bytes, None);
    }

    /// Notes that an instruction has an address of data as operand.
    pub(super) fn name(&mut self, value: Option<Value>) {
        if let Some(Value::Const(address)) = value
            && address >= LEAST_ADDRESS
        {
            self.named.insert(address);
        }
    }

    /// Data processing with an immediate.
    fn with_immediate(&mut self) {
        let (word, bytes) = (self.word, self.word.width());
        let (to, from) = (word.register(0), word.register(5));
        match word.bits(23, 3) {
            // `adrp` has only the address of a page.
            0b000 | 0b001 => {
                let value = word.page_relative(self.at).map(Value::Const);
                if !word.bit(31) {
                    self.name(value);
                }
                self.write(to, 8, value);
            }
            0b010 => self.add_immediate(),
            0b100 => self.logical_immediate(),
            0b101 => {
                let (value, shift) = (u64::from(word.bits(5, 16)), 16 * word.bits(21, 2));
                let value = match word.bits(29, 2) {
                    0 => Some(Value::Const(!(value << shift))),
                    2 => Some(Value::Const(value << shift)),
                    _ => match self.read(to, bytes) {
                        Value::Const(before) => {
                            Some(Value::Const(before & !(0xffff << shift) | value << shift))
                        }
                        _ => None,
                    },
                };
                if value.is_some() && to != ZERO {
                    self.name(value);
                }
                self.write(to, bytes, value);
            }
            0b110 => self.bit_field(),
            // `extr`, `addg`, minimum and maximum: results are not followed.
            _ => {
                let value = (word.bits(23, 3) == 0b111 && from == to && word.bits(10, 6) == 0)
                    .then(|| self.read(from, bytes));
                self.write(to, bytes, value);
            }
        }
    }

    fn add_immediate(&mut self) {
        let (word, bytes) = (self.word, self.word.width());
        let (to, from) = (word.register(0), word.register(5));
        let (subtracts, sets_flags) = (word.bit(30), word.bit(29));
        let constant = u64::from(word.bits(10, 12)) << if word.bit(22) { 12 } else { 0 };
        let addend = if subtracts { constant.wrapping_neg() } else { constant };
        let before = self.read_or_stack(from, bytes);
        let value = match before {
            value if constant == 0 => Some(value),
            // A symbol plus a constant becomes a new symbol, which later comparisons use.
            Value::Number { scale: 1, .. } => None,
            Value::Entry(_) if subtracts => None,
            value if bytes == 8 => value.sum(Value::Const(addend)),
            Value::Const(value) => Some(Value::Const(value.wrapping_add(addend))),
            _ => None,
        };
        if constant != 0 {
            self.name(value);
        }
        if sets_flags {
            // The carry of a sum compares the number with the negated constant; only a sum with 0
            // has the other carry.
            if subtracts || constant != 0 {
                let with = if subtracts { constant } else { addend };
                self.state.compare(before, bytes, with);
            } else {
                self.state.forget_comparison();
            }
            self.write(to, bytes, value);
        } else {
            self.write_or_stack(to, bytes, value);
        }
    }

    fn logical_immediate(&mut self) {
        let (word, bytes) = (self.word, self.word.width());
        let (to, from) = (word.register(0), word.register(5));
        let operation = word.bits(29, 2);
        if operation == 3 {
            self.state.forget_comparison();
        }
        match word.mask() {
            Some(mask) if operation == 0 => self.masked(to, from, mask),
            Some(mask) if operation == 3 && to != ZERO => self.masked(to, from, mask),
            Some(mask) if operation == 1 && from == ZERO => {
                self.name(Some(Value::Const(mask)));
                self.write_or_stack(to, bytes, Some(Value::Const(mask)));
            }
            _ if operation == 3 => self.forget(to, bytes),
            _ => self.write_or_stack(to, bytes, None),
        }
    }

    /// Keeps some bits of a register.
    fn masked(&mut self, to: u8, from: u8, mask: u64) {
        let bytes = self.word.width();
        match mask {
            _ if to == STACK => self.write_or_stack(to, bytes, None),
            0xff => self.write(to, bytes, Some(self.read(from, 1))),
            0xffff => self.write(to, bytes, Some(self.read(from, 2))),
            0xffff_ffff => self.write(to, bytes, Some(self.read(from, 4))),
            last if last <= u64::from(u16::MAX) => {
                self.state.set_bounded(usize::from(to), self.at, last)
            }
            _ => self.write_or_stack(to, bytes, None),
        }
    }

    /// `ubfm` and `sbfm`, which all shifts by constants and extensions are; `bfm`.
    fn bit_field(&mut self) {
        let (word, bytes) = (self.word, self.word.width());
        let (to, from) = (word.register(0), word.register(5));
        let (turned, last) = (word.bits(16, 6), word.bits(10, 6));
        let all = 8 * u32::from(bytes);
        let signed = match word.bits(29, 2) {
            0 => true,
            2 => false,
            _ => return self.forget(to, bytes),
        };
        let part = |bits: u32| match bits {
            8 | 16 | 32 | 64 => Some(self.read(from, bytes).extended((bits / 8) as u8, signed)),
            _ => None,
        };
        let value = if last < turned {
            // The lowest bits, shifted up: `lsl`, `ubfiz`, `sbfiz`.
            let (up, bits) = (all.saturating_sub(turned), last + 1);
            let whole = if up + bits == all && !signed { part(64) } else { part(bits) };
            if bytes == 8 && up <= 4 { whole.and_then(|value| value.times(1 << up)) } else { None }
        } else if turned == 0 {
            part(last + 1)
        } else {
            None
        };
        let bits = (last + 1).saturating_sub(turned);
        match value {
            None if last >= turned && !signed && bits <= 16 && to != ZERO => {
                self.state.set_bounded(usize::from(to), self.at, (1 << bits) - 1);
            }
            value => self.write(to, bytes, value),
        }
    }

    /// Data processing on registers.
    fn on_registers(&mut self) {
        let (word, bytes) = (self.word, self.word.width());
        let to = word.register(0);
        if word.bit(28) {
            // Instructions without a result: conditional comparisons, and those that set flags from
            // bits.
            let compares = word.bits(21, 4) == 0b0010;
            let sets_only = word.bits(21, 4) == 0 && word.bits(10, 6) != 0;
            if word.bit(29) {
                self.state.forget_comparison();
            }
            if !compares && !sets_only {
                self.forget(to, bytes);
            }
        } else if word.bit(24) {
            self.add_registers();
        } else {
            self.logical_registers();
        }
    }

    fn logical_registers(&mut self) {
        let (word, bytes) = (self.word, self.word.width());
        let (to, a, b) = (word.register(0), word.register(5), word.register(16));
        let (shift, amount, negated) = (word.bits(22, 2), word.bits(10, 6), word.bit(21));
        let operation = word.bits(29, 2);
        if operation == 3 {
            self.state.forget_comparison();
        }
        let value = match (operation, negated) {
            (1, false) if a == ZERO && shift == 0 && amount == 0 => Some(self.read(b, bytes)),
            (1, false) if a == ZERO && shift == 0 && amount <= 4 && bytes == 8 => {
                self.read(b, 8).times(1 << amount)
            }
            (2, false) if a == b && shift == 0 && amount == 0 => Some(Value::Const(0)),
            (0 | 3, false) if shift == 0 && amount == 0 && to != ZERO => {
                match (self.read(a, bytes), self.read(b, bytes)) {
                    (Value::Const(a), Value::Const(b)) => Some(Value::Const(a & b)),
                    (_, Value::Const(mask)) => return self.masked(to, a, mask),
                    (Value::Const(mask), _) => return self.masked(to, b, mask),
                    _ => None,
                }
            }
            _ => None,
        };
        self.write(to, bytes, value);
    }

    /// Sums and differences with a shifted or an extended register.
    fn add_registers(&mut self) {
        let (word, bytes) = (self.word, self.word.width());
        let (to, from, by) = (word.register(0), word.register(5), word.register(16));
        let (subtracts, sets_flags, extends) = (word.bit(30), word.bit(29), word.bit(21));
        let (amount, other) = if extends {
            let (width, signed) = (1_u8 << word.bits(13, 2), word.bit(15));
            (word.bits(10, 3), Some(self.read(by, bytes).extended(width, signed)))
        } else {
            (word.bits(10, 6), (word.bits(22, 2) == 0).then(|| self.read(by, bytes)))
        };
        let before = if extends { self.read_or_stack(from, bytes) } else { self.read(from, bytes) };
        let scaled = |value: Value, as_distance: bool| match 1_u8.checked_shl(amount) {
            Some(factor) if amount <= 4 && as_distance => value.as_distance(factor),
            Some(factor) if amount <= 4 => value.times(factor),
            _ => None,
        };
        let value = other.and_then(|other| match (before, other) {
            (Value::Const(a), Value::Const(b)) if amount < 64 => {
                let b = b << amount;
                Some(Value::Const(if subtracts { a.wrapping_sub(b) } else { a.wrapping_add(b) }))
            }
            _ if bytes == 4 => None,
            (value @ Value::Stack(_), Value::Const(less)) if subtracts => {
                value.sum(Value::Const((less << (amount & 63)).wrapping_neg()))
            }
            _ if subtracts => None,
            (Value::Const(_) | Value::Number { .. } | Value::Stack(_), _) => {
                before.sum(scaled(other, true)?)
            }
            // The entry is the first operand, the address that it is a distance from is the second.
            (Value::Entry(_), _) => before.sum(scaled(other, false)?),
        });
        if sets_flags {
            match other {
                Some(Value::Const(with)) if subtracts && amount == 0 => {
                    self.state.compare(before, bytes, with)
                }
                _ => self.state.forget_comparison(),
            }
        }
        if extends && !sets_flags {
            self.write_or_stack(to, bytes, value)
        } else {
            self.write(to, bytes, value)
        }
    }

    /// Vectors and floating point: few of them write a general register.
    fn vector(&mut self) {
        let word = self.word;
        let to = word.register(0);
        // Conversions to integers and `fmov`, scalar; of fixed point; `umov`, `smov`.
        let converts = word.is(0x5f20_fc00, 0x1e20_0000) || word.is(0x5f20_0000, 0x1e00_0000);
        if converts || word.is(0xbfe0_d400, 0x0e00_1400) {
            self.forget(to, 8);
        }
        // `fcmp`, `fccmp`.
        if word.is(0xff20_fc00, 0x1e20_2000) || word.is(0xff20_0c00, 0x1e20_0400) {
            self.state.forget_comparison();
        }
    }

    fn branch_or_system(&mut self) -> Decision {
        let word = self.word;
        match word.0 >> 24 {
            0x94..=0x97 => self.call(),
            0x54 => return ordered(word.bits(0, 4)),
            0xd4 => {
                // A system call.
                self.forget(0, 8);
                self.state.clobber(self.at);
            }
            0xd6 | 0xd7 => match word.bits(21, 4) {
                0 | 8 => return Decision::To(self.read(word.register(5), 8)),
                1 | 9 => self.call(),
                _ => {}
            },
            0xd5 => self.system(),
            _ => {}
        }
        Decision::None
    }

    fn system(&mut self) {
        let word = self.word;
        if word.is(0xffff_f01f, 0xd503_201f) {
            // Hints; some authenticate x16, x17 and the link register.
            if word.bits(5, 7) != 0 && word.bits(8, 4) != 4 {
                [16, 17, LINK].into_iter().for_each(|register| self.forget(register, 8));
            }
        } else if word.bit(21) {
            // `mrs`, `sysl`.
            self.forget(word.register(0), 8);
        } else {
            // The instruction may write the flags.
            self.state.forget_comparison();
        }
    }

    fn call(&mut self) {
        self.state.clobber(self.at);
        self.state.forget_comparison();
        for register in CHANGED_BY_CALLS.chain([LINK]) {
            self.forget(register, 8);
        }
    }
}

/// The comparisons that hold when a branch with this condition is taken, and when it is not.
fn ordered(condition: u32) -> Decision {
    match condition {
        0 => Decision::By(Order::Equal, Order::NotEqual),
        1 => Decision::By(Order::NotEqual, Order::Equal),
        2 => Decision::By(Order::AboveOrEqual, Order::Below),
        3 => Decision::By(Order::Below, Order::AboveOrEqual),
        8 => Decision::By(Order::Above, Order::BelowOrEqual),
        9 => Decision::By(Order::BelowOrEqual, Order::Above),
        _ => Decision::None,
    }
}

/// An unknown place.
pub(super) fn nowhere(at: u64) -> Spot {
    Spot { address: None, table: false, id: at }
}
