//! Executes an instruction on a partly known state.

use image::Vaddr;

use super::compared;
use super::decode::{BitOp, Count, Effects, Instruction, Op, Operand, Place, Written};
use super::{Flags, State};
use crate::interpret::{Bits, BranchKind, CodeView, Memory, Slot, Step, Stop, mask};
use crate::isa::arithmetic;
use crate::isa::compared::Compared;

const RAX: u8 = 0;
const RCX: u8 = 1;
const RDX: u8 = 2;
const RSP: u8 = 4;
const RBP: u8 = 5;
const RSI: u8 = 6;
const RDI: u8 = 7;

pub(super) struct Machine<'m, 'w, V> {
    pub(super) instruction: &'m Instruction,
    /// Address of its first byte.
    pub(super) at: u64,
    pub(super) state: &'m mut State,
    pub(super) memory: &'m mut Memory<'w>,
    pub(super) view: &'m mut V,
}

impl<V: CodeView> Machine<'_, '_, V> {
    pub(super) fn execute(&mut self) -> Step {
        if !compared::keeps_flags(self.instruction) {
            self.state.compared = None;
        }
        match self.instruction.op {
            Op::Nop => {}
            Op::Stop => return Step::Stop(Stop::NotFollowed),
            Op::Jump => return self.branch(BranchKind::Jump, self.target()),
            Op::JumpTo => return self.jump_to(BranchKind::IndirectJump),
            Op::Call => {
                self.push(Bits::known(self.next()));
                return self.branch(BranchKind::Call, self.target());
            }
            Op::CallTo => return self.jump_to(BranchKind::IndirectCall),
            Op::Return => return self.return_(),
            Op::Branch(condition) => return self.either(self.state.flags.holds(condition)),
            Op::BranchIfCounted => return self.either(self.register(RCX).is_zero(8)),
            Op::Loop => {
                let count = self.register(RCX).minus(Bits::known(1));
                self.set_register(RCX, count);
                return self.either(count.is_zero(8).map(|zero| !zero));
            }
            Op::Divide { signed } => return self.divide(signed),
            Op::Other => self.other(),
            Op::Strings { repeated, loads } => self.strings(repeated, loads),
            _ => self.compute(),
        }
        Step::Next
    }

    fn compute(&mut self) {
        let bytes = self.instruction.bytes;
        match self.instruction.op {
            Op::Add | Op::Adc | Op::Sub | Op::Sbb | Op::Cmp | Op::Inc | Op::Dec | Op::Neg => {
                self.sum()
            }
            Op::And | Op::Andn | Op::Test | Op::Or | Op::Xor => self.logic(),
            Op::Not => {
                let value = !self.read(0);
                self.write(0, value);
            }
            Op::Shift(shift) => {
                let (value, count) = (self.read(0), self.read(1));
                let result = self.state.flags.shift(shift, value, count, bytes);
                self.write(0, result);
            }
            Op::ShiftWithoutFlags(shift) => {
                let count = self.read(2) & Bits::known(u64::from(bytes) * 8 - 1);
                let result = count
                    .get()
                    .map(|count| arithmetic::shifted(shift, self.read(1), count as u32, bytes));
                self.write(0, result.unwrap_or(Bits::UNKNOWN));
            }
            Op::Multiply => self.multiply(),
            Op::MultiplyWide { signed } => self.multiply_wide(signed),
            Op::Push => {
                let value = self.read(0);
                self.push(value);
            }
            Op::Pop => self.pop(),
            Op::Leave => {
                let frame = self.register(RBP);
                let saved = self.memory.load(frame.get(), 8, Slot::Saved, self.view);
                self.set_register(RSP, frame.plus(Bits::known(8)));
                self.set_register(RBP, saved);
            }
            Op::Bit(op) => self.bit(op),
            Op::Count(count) => self.count(count),
            Op::Carry(value) => {
                let value =
                    value.or_else(|| self.state.flags.get(Flags::CARRY).map(|carry| !carry));
                self.state.flags.set(Flags::CARRY, value);
            }
            Op::Direction(down) => self.state.flags.set(Flags::DIRECTION, Some(down)),
            _ => self.move_(),
        }
    }

    /// Instructions that move values without computing.
    fn move_(&mut self) {
        let bytes = self.instruction.bytes;
        match self.instruction.op {
            Op::Mov => {
                let value = self.read(1);
                self.write(0, value);
            }
            Op::MovSigned => {
                let from = match self.instruction.operands[1] {
                    Operand::Register { bytes, .. } | Operand::Memory(bytes) => bytes,
                    _ => 1,
                };
                let value = self.read(1).sign_extended(from);
                self.write(0, value);
            }
            Op::Lea => self.write(0, self.address_bits()),
            Op::Set(condition) => {
                let holds = self.state.flags.holds(condition);
                self.write(0, Bits::of_flag(holds));
            }
            Op::CMov(condition) => {
                let (old, new) = (self.read(0), self.read(1));
                let value = match self.state.flags.holds(condition) {
                    Some(true) => new,
                    Some(false) => old,
                    None => old.or_else(new),
                };
                self.write(0, value);
            }
            Op::Xchg | Op::XAdd | Op::CmpXchg => self.exchange(),
            Op::ByteSwap => {
                let value = self.read(0).get().filter(|_| bytes >= 4);
                let swapped = value
                    .map(|value| Bits::known(value.swap_bytes() >> (64 - u32::from(bytes) * 8)));
                self.write(0, swapped.unwrap_or(Bits::UNKNOWN));
            }
            Op::ExtendA(bytes) => {
                let value = self.register(RAX).sign_extended(bytes / 2);
                self.set_part(RAX, bytes, value);
            }
            Op::SignOfA(bytes) => {
                let sign = self.register(RAX).sign_extended(bytes).right_signed(63);
                self.set_part(RDX, bytes, sign);
            }
            _ => self.other(),
        }
    }

    // Registers, operands, the stack.

    fn register(&self, number: u8) -> Bits {
        self.state.registers.get(usize::from(number)).copied().unwrap_or(Bits::UNKNOWN)
    }

    fn set_register(&mut self, number: u8, value: Bits) {
        if let Some(register) = self.state.registers.get_mut(usize::from(number)) {
            *register = value;
        }
    }

    /// Writes the lowest `bytes` bytes of a register. A write of 4 bytes clears the rest, a write
    /// of 1 or 2 preserves it (Intel SDM volume 1, 3.4.1.1).
    fn set_part(&mut self, number: u8, bytes: u8, value: Bits) {
        let value = if bytes >= 4 {
            value.low(bytes)
        } else {
            self.register(number).replaced(mask(bytes), value)
        };
        self.set_register(number, value);
    }

    /// The address of the memory operand.
    fn address_bits(&self) -> Bits {
        super::address(self.instruction, self.at, self.state)
    }

    fn address(&self) -> Option<u64> {
        self.address_bits().get()
    }

    fn operand(&self, number: usize) -> Operand {
        self.instruction.operands.get(number).copied().unwrap_or(Operand::None)
    }

    fn read(&mut self, number: usize) -> Bits {
        match self.operand(number) {
            Operand::None => Bits::UNKNOWN,
            Operand::Register { number, bytes } => self.register(number).low(bytes),
            Operand::High(number) => self.register(number).right(8).low(1),
            Operand::Immediate(value) => Bits::known(value as u64),
            Operand::Memory(bytes) if self.instruction.shared => Bits::UNKNOWN.low(bytes),
            Operand::Memory(bytes) => {
                self.memory.load(self.address(), bytes, Slot::Data, self.view)
            }
        }
    }

    fn write(&mut self, number: usize, value: Bits) {
        match self.operand(number) {
            Operand::Register { number, bytes } => self.set_part(number, bytes, value),
            Operand::High(number) => {
                let value = self.register(number).replaced(0xff00, value.left(8));
                self.set_register(number, value);
            }
            Operand::Memory(bytes) => self.memory.store(self.address(), bytes, value.low(bytes)),
            Operand::None | Operand::Immediate(_) => {}
        }
    }

    fn push(&mut self, value: Bits) {
        let stack = self.register(RSP).minus(Bits::known(8));
        self.set_register(RSP, stack);
        self.memory.store(stack.get(), 8, value);
    }

    fn pop(&mut self) {
        let stack = self.register(RSP);
        // A value that is popped into memory is no saved register.
        let slot = if matches!(self.operand(0), Operand::Register { .. }) {
            Slot::Saved
        } else {
            Slot::Data
        };
        let value = self.memory.load(stack.get(), 8, slot, self.view);
        self.set_register(RSP, stack.plus(Bits::known(8)));
        self.write(0, value);
    }

    // Control flow.

    fn next(&self) -> u64 {
        self.at.wrapping_add(u64::from(self.instruction.len))
    }

    fn target(&self) -> u64 {
        self.at.wrapping_add_signed(self.instruction.target)
    }

    fn branch(&self, kind: BranchKind, to: u64) -> Step {
        Step::Branch { kind, to: Vaddr(to) }
    }

    fn either(&self, taken: Option<bool>) -> Step {
        match taken {
            Some(true) => self.branch(BranchKind::Taken, self.target()),
            Some(false) => self.branch(BranchKind::NotTaken, self.next()),
            None => Step::Stop(Stop::UnknownCondition),
        }
    }

    fn jump_to(&mut self, kind: BranchKind) -> Step {
        let Some(to) = self.read(0).get() else { return Step::Stop(Stop::UnknownTarget) };
        if kind == BranchKind::IndirectCall {
            self.push(Bits::known(self.next()));
        }
        self.branch(kind, to)
    }

    fn return_(&mut self) -> Step {
        let stack = self.register(RSP);
        let Some(to) = self.memory.load(stack.get(), 8, Slot::Saved, self.view).get() else {
            return Step::Stop(Stop::UnknownTarget);
        };
        let more =
            if let Operand::Immediate(more) = self.operand(0) { more as u64 & 0xffff } else { 0 };
        self.set_register(RSP, stack.plus(Bits::known(8 + more)));
        self.branch(BranchKind::Return, to)
    }

    // Arithmetic.

    /// Whether the instruction compares the stack's guard word with its copy. They are taken to be
    /// equal, because otherwise the program is about to be ended.
    fn compares_guard(&self) -> bool {
        self.instruction.place == Place::Guard && self.instruction.bytes == 8
    }

    fn sum(&mut self) {
        let bytes = self.instruction.bytes;
        let op = self.instruction.op;
        let (a, b) = (self.read(0), self.read(1));
        let same = self.operand(0) == self.operand(1) || self.compares_guard();
        let flags = &mut self.state.flags;
        let carry = flags.get(Flags::CARRY);
        let result = match op {
            Op::Add => flags.add(a, b, Some(false), bytes),
            Op::Adc => flags.add(a, b, carry, bytes),
            Op::Sub | Op::Cmp if same => flags.subtract(Bits::ZERO, Bits::ZERO, Some(false), bytes),
            Op::Sub | Op::Cmp => flags.subtract(a, b, Some(false), bytes),
            Op::Sbb if same => flags.subtract(Bits::ZERO, Bits::ZERO, carry, bytes),
            Op::Sbb => flags.subtract(a, b, carry, bytes),
            Op::Inc => flags.add(a, Bits::known(1), Some(false), bytes),
            Op::Dec => flags.subtract(a, Bits::known(1), Some(false), bytes),
            _ => flags.subtract(Bits::ZERO, a, Some(false), bytes),
        };
        if matches!(op, Op::Inc | Op::Dec) {
            flags.set(Flags::CARRY, carry);
        }
        if !same {
            // The second operand of `inc` and `dec` is 1.
            let b = if matches!(op, Op::Inc | Op::Dec) { Bits::known(1) } else { b };
            self.state.compared = Compared::of(compared::kind(op), (a, b), result, bytes);
        }
        if op != Op::Cmp {
            self.write(0, result);
        }
    }

    fn logic(&mut self) {
        let bytes = self.instruction.bytes;
        let (a, b) = (self.read(0), self.read(1));
        let result = match self.instruction.op {
            Op::Or => a | b,
            Op::Xor if self.operand(0) == self.operand(1) || self.compares_guard() => Bits::ZERO,
            Op::Xor => a ^ b,
            Op::Andn => !b & self.read(2),
            _ => a & b,
        };
        let result = result.low(bytes);
        self.state.flags.of_logic(result, bytes);
        if self.instruction.op == Op::Andn {
            // PF is undefined (Intel SDM volume 2, ANDN): Zen 3 sets it by the result, Sapphire
            // Rapids clears it.
            self.state.flags.forget(Flags::PARITY);
        }
        let kind = compared::kind(self.instruction.op);
        self.state.compared = Compared::of(kind, (a, b), result, bytes);
        if self.instruction.op != Op::Test {
            self.write(0, result);
        }
    }

    fn multiply(&mut self) {
        let bytes = self.instruction.bytes;
        let (a, b) = if self.operand(2) == Operand::None { (0, 1) } else { (1, 2) };
        let (a, b) =
            (self.read(a).sign_extended(bytes).get(), self.read(b).sign_extended(bytes).get());
        let product = a.zip(b).map(|(a, b)| i128::from(a as i64) * i128::from(b as i64));
        self.state.flags.forget(Flags::RESULT);
        self.of_product(product.map(|product| {
            product != i128::from(Bits::known(product as u64).sign_extended(bytes).least() as i64)
        }));
        self.write(0, product.map_or(Bits::UNKNOWN, |product| Bits::known(product as u64)));
    }

    /// CF and OF: whether the product needs more than its lower half.
    fn of_product(&mut self, larger: Option<bool>) {
        self.state.flags.set(Flags::CARRY, larger);
        self.state.flags.set(Flags::OVERFLOW, larger);
    }

    fn multiply_wide(&mut self, signed: bool) {
        let bytes = self.instruction.bytes;
        let size = u32::from(bytes) * 8;
        let (a, b) = (self.register(RAX).low(bytes), self.read(0));
        let product = a.get().zip(b.get()).map(|(a, b)| {
            if signed {
                let extended =
                    |value| i128::from(Bits::known(value).sign_extended(bytes).least() as i64);
                (extended(a) * extended(b)) as u128
            } else {
                u128::from(a) * u128::from(b)
            }
        });
        let part = |shift: u32| {
            product.map_or(Bits::UNKNOWN, |product| Bits::known((product >> shift) as u64))
        };
        self.state.flags.forget(Flags::RESULT);
        let (low, high) = (part(0).low(bytes), part(size).low(bytes));
        let expected =
            if signed { low.sign_extended(bytes).right_signed(63).low(bytes) } else { Bits::ZERO };
        self.of_product(high.get().zip(expected.get()).map(|(high, expected)| high != expected));
        if bytes == 1 {
            self.set_part(RAX, 2, part(0));
        } else {
            self.set_part(RAX, bytes, low);
            self.set_part(RDX, bytes, high);
        }
    }

    fn divide(&mut self, signed: bool) -> Step {
        let bytes = self.instruction.bytes;
        let size = u32::from(bytes) * 8;
        let dividend = if bytes == 1 {
            self.register(RAX).low(2).get().map(u128::from)
        } else {
            let halves =
                self.register(RDX).low(bytes).get().zip(self.register(RAX).low(bytes).get());
            halves.map(|(high, low)| u128::from(high) << size | u128::from(low))
        };
        let divisor = self.read(0).get();
        self.state.flags.forget(Flags::RESULT);
        let (quotient, remainder) = match dividend.zip(divisor) {
            None => (Bits::UNKNOWN, Bits::UNKNOWN),
            Some((dividend, divisor)) => match divided(dividend, divisor, bytes, signed) {
                Some((quotient, remainder)) => (Bits::known(quotient), Bits::known(remainder)),
                // The division traps.
                None => return Step::Stop(Stop::NotFollowed),
            },
        };
        if bytes == 1 {
            self.set_part(RAX, 2, quotient.low(1).replaced(0xff00, remainder.left(8)));
        } else {
            self.set_part(RAX, bytes, quotient);
            self.set_part(RDX, bytes, remainder);
        }
        Step::Next
    }

    fn bit(&mut self, op: BitOp) {
        let size = u64::from(self.instruction.bytes) * 8;
        let anywhere = matches!(self.operand(0), Operand::Memory(_))
            && matches!(self.operand(1), Operand::Register { .. });
        self.state.flags.forget(Flags::OVERFLOW | Flags::SIGN | Flags::PARITY);
        let number = (self.read(1) & Bits::known(size - 1)).get().filter(|_| !anywhere);
        let Some(number) = number else {
            // A bit number in a register may select a bit far from the operand.
            self.state.flags.set(Flags::CARRY, None);
            match op {
                BitOp::Test => {}
                _ if anywhere => self.memory.clobber(None, 1),
                _ => self.write(0, Bits::UNKNOWN),
            }
            return;
        };
        let value = self.read(0);
        let bit = Bits::known(1).left(number as u32);
        self.state.flags.set(Flags::CARRY, value.bit(number as u32));
        match op {
            BitOp::Test => {}
            BitOp::Set => self.write(0, value | bit),
            BitOp::Reset => self.write(0, value & !bit),
            BitOp::Complement => self.write(0, value ^ bit),
        }
    }

    fn count(&mut self, count: Count) {
        let bytes = self.instruction.bytes;
        let size = u32::from(bytes) * 8;
        let value = self.read(1).low(bytes);
        let zero = value.is_zero(bytes);
        let scanned = value.get().filter(|&value| value != 0);
        let result = match count {
            Count::Ones => value.get().map(|value| value.count_ones()),
            Count::TrailingZeros => value.get().map(|value| value.trailing_zeros().min(size)),
            Count::LeadingZeros => {
                value.get().map(|value| value.leading_zeros().saturating_sub(64 - size))
            }
            Count::ScanForward => scanned.map(|value| value.trailing_zeros()),
            Count::ScanReverse => scanned.map(|value| 63_u32.saturating_sub(value.leading_zeros())),
        };
        let result = result.map(|result| Bits::known(u64::from(result)));
        let flags = &mut self.state.flags;
        flags.forget(Flags::RESULT);
        match count {
            Count::Ones => {
                flags.of_logic(Bits::known(1), 8);
                flags.set(Flags::PARITY, Some(false));
                flags.set(Flags::ZERO, zero);
            }
            Count::TrailingZeros | Count::LeadingZeros => {
                flags.set(Flags::CARRY, zero);
                flags.set(Flags::ZERO, result.and_then(|result| result.is_zero(8)));
            }
            Count::ScanForward | Count::ScanReverse => flags.set(Flags::ZERO, zero),
        }
        match (result, self.operand(0)) {
            (Some(result), _) => self.write(0, result),
            // A scan of 0 leaves the register unchanged, with or without its upper half.
            (None, Operand::Register { number, .. }) => self.set_register(number, Bits::UNKNOWN),
            (None, _) => self.write(0, Bits::UNKNOWN),
        }
    }

    fn exchange(&mut self) {
        let bytes = self.instruction.bytes;
        let (first, second) = (self.read(0), self.read(1));
        match self.instruction.op {
            Op::Xchg | Op::XAdd => {
                let new = if self.instruction.op == Op::Xchg {
                    second
                } else {
                    self.state.flags.add(first, second, Some(false), bytes)
                };
                if matches!(self.operand(0), Operand::Memory(_)) {
                    // The other register may be part of the address, so memory is written first.
                    self.write(0, new);
                    self.write(1, first);
                } else {
                    // Where both operands are one register, the sum remains.
                    self.write(1, first);
                    self.write(0, new);
                }
            }
            _ => {
                let before = self.register(RAX);
                self.state.flags.subtract(before, first, Some(false), bytes);
                let equal = self.state.flags.get(Flags::ZERO);
                self.write(
                    0,
                    match equal {
                        Some(true) => second,
                        Some(false) => first,
                        None => first.or_else(second),
                    },
                );
                if let Operand::Register { number, bytes: 4 } = self.operand(0)
                    && equal != Some(true)
                {
                    // Processors differ in whether they write the same value again and so clear the
                    // upper half.
                    let unsure = self.register(number).replaced(!mask(4), Bits::UNKNOWN);
                    self.set_register(number, unsure);
                }
                if equal != Some(true)
                    && self.operand(0) != (Operand::Register { number: RAX, bytes })
                {
                    self.set_part(RAX, bytes, first);
                    if equal.is_none() {
                        self.set_register(RAX, self.register(RAX).or_else(before));
                    }
                }
            }
        }
    }

    /// `movs` and `stos`: the data are not modelled, only the registers.
    fn strings(&mut self, repeated: bool, loads: bool) {
        let bytes = self.instruction.bytes;
        let count = if repeated { self.register(RCX).get() } else { Some(1) };
        let up = self.state.flags.get(Flags::DIRECTION) == Some(false);
        let len = count.and_then(|count| count.checked_mul(u64::from(bytes))).filter(|_| up);
        let to = self.register(RDI);
        match len {
            Some(0) => {}
            Some(len) if !repeated && !loads => {
                self.memory.store(to.get(), len as u8, self.register(RAX).low(bytes))
            }
            Some(len) => self.memory.clobber(to.get(), len),
            None => self.memory.clobber(None, 1),
        }
        let far = len.map_or(Bits::UNKNOWN, Bits::known);
        self.set_register(RDI, to.plus(far));
        if loads {
            self.set_register(RSI, self.register(RSI).plus(far));
        }
        if repeated {
            self.set_register(RCX, Bits::ZERO);
        }
    }

    fn other(&mut self) {
        let Effects { registers, flags_unknown, flags_clear, flags_set, memory } =
            self.instruction.effects;
        // The memory is forgotten before the registers, which have its address.
        match memory {
            Written::Nothing => {}
            Written::Operand(bytes) => self.memory.clobber(self.address(), u64::from(bytes)),
            Written::Anything => self.memory.clobber(None, 1),
        }
        for number in (0..16).filter(|number| registers & (1 << number) != 0) {
            self.set_register(number, Bits::UNKNOWN);
        }
        self.state.flags.set(flags_clear, Some(false));
        self.state.flags.set(flags_set, Some(true));
        self.state.flags.forget(flags_unknown);
    }
}

/// Quotient and remainder; None if the quotient does not fit into `bytes` bytes, where the
/// processor traps.
fn divided(dividend: u128, divisor: u64, bytes: u8, signed: bool) -> Option<(u64, u64)> {
    let size = u32::from(bytes) * 8;
    if !signed {
        let quotient = dividend.checked_div(u128::from(divisor))?;
        let remainder = dividend.checked_rem(u128::from(divisor))?;
        return (quotient <= u128::from(mask(bytes)))
            .then_some((quotient as u64, remainder as u64));
    }
    let unused = 128 - 2 * size;
    let dividend = ((dividend << unused) as i128) >> unused;
    let divisor = i128::from(Bits::known(divisor).sign_extended(bytes).least() as i64);
    let (quotient, remainder) = (dividend.checked_div(divisor)?, dividend.checked_rem(divisor)?);
    let fits = quotient >= -(1 << (size - 1)) && quotient < 1 << (size - 1);
    fits.then_some((quotient as u64, remainder as u64))
}
