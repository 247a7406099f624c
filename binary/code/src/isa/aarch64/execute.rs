//! Executes an instruction on a partly known state.

use image::Vaddr;

use super::LEN;
use super::operations::{
    Effects, Field, Fill, Instruction, LINK, Logic, Op, Operand, Place, STACK, Single, ZERO,
};
use super::{Flags, State};
use crate::interpret::{Bits, BranchKind, CodeView, Memory, Slot, Step, Stop, mask};
use crate::isa::arithmetic::shifted;
use crate::isa::compared::{Compared, Kind};

/// Bytes of the longest vectors' structure.
const STRUCTURE_BYTES_MAX: u64 = 64;
/// Bytes of the largest block that `dc zva` zeros (DDI 0487, DCZID_EL0).
const ZERO_BLOCK_MAX: u64 = 2048;
/// The lowest bit of a code address that is a copy of bit 55: addresses of processes have 48 bits
/// unless a process asks for more, which code is never given (Linux,
/// Documentation/arch/arm64/memory.rst), and a signature is in the bits from there on.
const ADDRESS_BYTES: u8 = 6;
/// The bit that tells addresses of processes from those of the kernel, also of signed pointers.
const HALF: u64 = 1 << 55;

/// Bytes of an address that the processor looks at: programs keep tags in the byte above (Linux,
/// Documentation/arch/arm64/tagged-pointers.rst). The bits there count as copies of the last one.
pub(super) const ADDRESS_WITHOUT_TAG: u8 = 7;

pub(super) struct Machine<'m, 'w, V> {
    pub(super) instruction: &'m Instruction,
    pub(super) at: u64,
    pub(super) state: &'m mut State,
    pub(super) memory: &'m mut Memory<'w>,
    pub(super) view: &'m mut V,
}

impl<V: CodeView> Machine<'_, '_, V> {
    pub(super) fn execute(&mut self) -> Step {
        let next = self.at.wrapping_add(LEN.into());
        let to = |kind, to| Step::Branch { kind, to: Vaddr(to) };
        match self.instruction.op {
            Op::Stop => return Step::Stop(Stop::NotFollowed),
            Op::Jump(distance) => {
                return to(BranchKind::Jump, self.at.wrapping_add_signed(distance));
            }
            Op::Call(distance) => {
                self.state.set(LINK, Bits::known(next));
                return to(BranchKind::Call, self.at.wrapping_add_signed(distance));
            }
            Op::Branch(condition, distance) => {
                return self.either(self.state.flags.holds(condition), distance);
            }
            Op::BranchIfZero { register, negated, distance } => {
                let is_zero = self.read(register).is_zero(self.instruction.bytes);
                return self.either(is_zero.map(|is_zero| is_zero != negated), distance);
            }
            Op::BranchIfBit { register, bit, set, distance } => {
                let is_set = self.read(register).bit(bit);
                return self.either(is_set.map(|is_set| is_set == set), distance);
            }
            Op::JumpTo(register) => return self.jump_to(BranchKind::IndirectJump, register),
            Op::CallTo(register) => {
                let step = self.jump_to(BranchKind::IndirectCall, register);
                self.state.set(LINK, Bits::known(next));
                return step;
            }
            Op::Return(register) => return self.jump_to(BranchKind::Return, register),
            _ => self.compute(),
        }
        Step::Next
    }

    fn either(&self, taken: Option<bool>, distance: i64) -> Step {
        let (kind, to) = match taken {
            Some(true) => (BranchKind::Taken, self.at.wrapping_add_signed(distance)),
            Some(false) => (BranchKind::NotTaken, self.at.wrapping_add(LEN.into())),
            None => return Step::Stop(Stop::UnknownCondition),
        };
        Step::Branch { kind, to: Vaddr(to) }
    }

    fn jump_to(&self, kind: BranchKind, register: u8) -> Step {
        match stripped(self.read(register)).get() {
            // The processor traps.
            Some(to) if !to.is_multiple_of(LEN.into()) => Step::Stop(Stop::NotFollowed),
            Some(to) => Step::Branch { kind, to: Vaddr(to) },
            None => Step::Stop(Stop::UnknownTarget),
        }
    }

    fn compute(&mut self) {
        let bytes = self.instruction.bytes;
        match self.instruction.op {
            Op::Address { to, word } => {
                let address = word.page_relative(self.at);
                self.state.set(to, address.map_or(Bits::UNKNOWN, Bits::known));
            }
            Op::Constant { to, value, mask } => {
                let before = self.read(to);
                self.write(to, before.replaced(mask, Bits::known(value)));
            }
            Op::Sum { .. } => self.sum(),
            Op::Logic { .. } => self.logic(),
            Op::Field { to, from, field, fill } => {
                let value = self.field(field, fill, self.read(from), self.read(to));
                self.write(to, value);
            }
            Op::Extract { to, a, b, by } => {
                let (a, b) = (self.read(a).low(bytes), self.read(b).low(bytes));
                let above = u32::from(bytes) * 8 - by;
                self.write(to, if by == 0 { b } else { b.right(by) | a.left(above) });
            }
            Op::Select { to, a, b, condition, inverts, increments } => {
                let (a, b) = (self.read(a), self.read(b));
                let b = if inverts { !b } else { b };
                let b = if increments { b.plus(Bits::known(1)) } else { b };
                let value = match self.state.flags.holds(condition) {
                    Some(true) => a,
                    Some(false) => b,
                    None => a.or_else(b),
                };
                self.write(to, value);
            }
            Op::Compare { .. } => self.compare(),
            Op::Pointer { register, strips } => {
                let value = self.read(register);
                let signed = value.replaced(!(mask(ADDRESS_BYTES) | HALF), Bits::UNKNOWN);
                self.state.set(register, if strips { stripped(value) } else { signed });
            }
            Op::Load { to, second, signed } => self.load(to, second, signed),
            Op::Store { from, second } => self.store(from, second),
            Op::StoreVector => {
                let bytes = self.instruction.memory_bytes.into();
                let address = self.address();
                self.memory.clobber(address, bytes);
                self.move_base();
            }
            Op::ZeroBlock(register) => {
                let address = self.read(register).sign_extended(ADDRESS_WITHOUT_TAG);
                let address = address.get().map(|at| at & !(ZERO_BLOCK_MAX - 1));
                self.memory.clobber(address, ZERO_BLOCK_MAX);
            }
            Op::Other(effects) => self.other(effects),
            _ => self.multiply(),
        }
    }

    // Registers and operands.

    fn read(&self, number: u8) -> Bits {
        self.state.get(number)
    }

    /// Writes the operands' bytes of a register; the others become 0 (DDI 0487, C6.1.1).
    fn write(&mut self, number: u8, value: Bits) {
        self.state.set(number, value.low(self.instruction.bytes));
    }

    fn operand(&self, operand: Operand) -> Bits {
        let width = self.instruction.bytes;
        match operand {
            Operand::Constant(value) => Bits::known(value),
            Operand::Shifted { register, by: 0, .. } => self.read(register),
            Operand::Shifted { register, shift, by } => {
                shifted(shift, self.read(register), by, width)
            }
            Operand::Extended { register, bytes, signed, by } => {
                extended(self.read(register), bytes, signed).left(by)
            }
        }
    }

    fn address(&self) -> Option<u64> {
        super::address(self.instruction, self.at, self.state).get()
    }

    // Arithmetic.

    fn sum(&mut self) {
        let Op::Sum { to, a, b, subtracts, sets_flags, carries } = self.instruction.op else {
            return;
        };
        let bytes = self.instruction.bytes;
        let (a, b) = (self.read(a).low(bytes), self.operand(b).low(bytes));
        let borrow = if carries { self.state.flags.get(Flags::CARRY) } else { Some(false) };
        let (result, flags) = self.added(a, b, subtracts, borrow, carries);
        if sets_flags {
            let kind = if subtracts && !carries { Kind::Difference } else { Kind::Other };
            self.state.compared = Compared::of(kind, (a, b), result, bytes);
            self.state.flags = flags;
        }
        self.write(to, result);
    }

    /// A sum or difference, and its flags.
    fn added(
        &self,
        a: Bits,
        b: Bits,
        subtracts: bool,
        borrow: Option<bool>,
        carries: bool,
    ) -> (Bits, Flags) {
        let (bytes, mut flags) = (self.instruction.bytes, self.state.flags);
        if subtracts {
            return (flags.subtract(a, b, borrow, bytes), flags);
        }
        let carry = if carries { borrow.map(|borrow| !borrow) } else { Some(false) };
        let result = flags.add(a, b, carry, bytes);
        flags.set(Flags::CARRY, flags.get(Flags::CARRY).map(|carry| !carry));
        (result, flags)
    }

    fn logic(&mut self) {
        let Op::Logic { to, a, b, logic, negates, sets_flags } = self.instruction.op else {
            return;
        };
        let bytes = self.instruction.bytes;
        let (a, b) = (self.read(a), self.operand(b));
        let b = if negates { !b } else { b };
        let result = match logic {
            Logic::And => a & b,
            Logic::Or => a | b,
            Logic::Xor => a ^ b,
        };
        let result = result.low(bytes);
        if sets_flags {
            self.state.flags.of_logic(result, bytes);
            // C is 0, which is a borrow.
            self.state.flags.set(Flags::CARRY, Some(true));
            self.state.compared = Compared::of(Kind::Logic, (a, b), result, bytes);
        }
        self.write(to, result);
    }

    fn compare(&mut self) {
        let Op::Compare { a, b, condition, subtracts, flags } = self.instruction.op else {
            return;
        };
        let bytes = self.instruction.bytes;
        let (a, b) = (self.read(a).low(bytes), self.operand(b).low(bytes));
        let constant = Flags::of_nzcv(u64::from(flags) << 28);
        let (result, compared) = self.added(a, b, subtracts, Some(false), false);
        let holds = self.state.flags.holds(condition);
        let kind = if subtracts { Kind::Difference } else { Kind::Other };
        let asked = Compared::of(kind, (a, b), result, bytes);
        self.state.compared = asked.filter(|_| holds == Some(true));
        self.state.flags = match holds {
            Some(true) => compared,
            Some(false) => constant,
            None => compared.or_else(constant),
        };
    }

    fn field(&self, field: Field, fill: Fill, from: Bits, before: Bits) -> Bits {
        let Field { low, width, to } = field;
        let unused = 64 - width;
        // The field at the top of 64 bits.
        let top = from.right(low).left(unused);
        match fill {
            Fill::Zeros => top.right(unused).left(to),
            Fill::Sign => top.right_signed(unused).left(to),
            Fill::Before => before.replaced(u64::MAX >> unused << to, top.right(unused).left(to)),
        }
    }

    /// Products, quotients, shifts by registers, and operations on one register: nothing is known
    /// of the result unless all of the operands is.
    fn multiply(&mut self) {
        let bytes = self.instruction.bytes;
        let low = |number: u8| self.read(number).low(bytes).get();
        let whole =
            |number: u8, bytes: u8, signed: bool| extended(self.read(number), bytes, signed).get();
        let (to, value) = match self.instruction.op {
            Op::Multiply { to, a, b, c, subtracts, bytes, signed } => {
                let factors = whole(a, bytes, signed).zip(whole(b, bytes, signed));
                let product =
                    factors.map_or(Bits::UNKNOWN, |(a, b)| Bits::known(a.wrapping_mul(b)));
                let c = self.read(c);
                self.write(to, if subtracts { c.minus(product) } else { c.plus(product) });
                return;
            }
            Op::MultiplyHigh { to, a, b, signed } => {
                let wide = |value: u64| {
                    if signed { i128::from(value.cast_signed()) } else { i128::from(value) }
                };
                let product = |(a, b)| ((wide(a).wrapping_mul(wide(b))) >> 64) as u64;
                (to, low(a).zip(low(b)).map(product))
            }
            Op::Divide { to, a, b, signed: false } => {
                (to, low(a).zip(low(b)).map(|(a, b)| a.checked_div(b).unwrap_or(0)))
            }
            Op::Divide { to, a, b, signed: true } => {
                let operands = whole(a, bytes, true).zip(whole(b, bytes, true));
                let quotient = |(a, b): (u64, u64)| match b {
                    0 => 0,
                    b => a.cast_signed().wrapping_div(b.cast_signed()).cast_unsigned(),
                };
                (to, operands.map(quotient))
            }
            Op::Shift { to, a, by, shift } => {
                let count = self.read(by).low(1) & Bits::known(u64::from(bytes) * 8 - 1);
                let value = self.read(a);
                let result = count.get().map(|count| shifted(shift, value, count as u32, bytes));
                self.write(to, result.unwrap_or(Bits::UNKNOWN));
                return;
            }
            Op::Single { to, from, single } => (to, low(from).map(|value| single.of(value, bytes))),
            _ => return,
        };
        self.write(to, value.map_or(Bits::UNKNOWN, Bits::known));
    }

    // Memory.

    /// After an access: what it adds to its base register.
    fn move_base(&mut self) {
        if let Place::At { base, moved, .. } = self.instruction.place
            && moved != 0
        {
            let value = self.read(base).plus(Bits::known(moved.cast_unsigned()));
            self.state.set(base, value);
        }
    }

    /// Bytes of a register's part of the memory operand.
    fn size(&self, second: Option<u8>) -> u8 {
        self.instruction.memory_bytes / if second.is_some() { 2 } else { 1 }
    }

    fn load(&mut self, to: u8, second: Option<u8>, signed: u8) {
        let (address, size) = (self.address(), self.size(second));
        let slot = self.slot(to, second);
        self.move_base();
        for (register, from) in [to].into_iter().chain(second).zip([0, u64::from(size)]) {
            if register == ZERO {
                continue;
            }
            let address = address.map(|address| address.wrapping_add(from));
            let value = self.memory.load(address, size, slot, self.view);
            let value = if signed > 0 { value.sign_extended(size).low(signed) } else { value };
            self.state.set(register, value);
        }
        if second == Some(to) {
            self.state.set(to, Bits::UNKNOWN);
        }
        if let Some(base) = self.unpredictable(to, second) {
            self.state.set(base, Bits::UNKNOWN);
        }
    }

    /// The base register, where an access changes it that also names it as data: processors may do
    /// with it what they like (DDI 0487, K1.2).
    fn unpredictable(&self, first: u8, second: Option<u8>) -> Option<u8> {
        let Place::At { base, moved, .. } = self.instruction.place else { return None };
        let is_named = base != STACK && (base == first || Some(base) == second);
        (moved != 0 && is_named).then_some(base)
    }

    /// The frame record, and what is loaded while the stack pointer is moved back, were put aside.
    fn slot(&self, to: u8, second: Option<u8>) -> Slot {
        let Place::At { base: STACK, distance, moved } = self.instruction.place else {
            return Slot::Data;
        };
        let is_popped = distance == 0 && moved > 0;
        let is_record = (to, second) == (LINK - 1, Some(LINK));
        if is_popped || is_record { Slot::Saved } else { Slot::Data }
    }

    fn store(&mut self, from: u8, second: Option<u8>) {
        let (address, size) = (self.address(), self.size(second));
        let unpredictable = self.unpredictable(from, second);
        for (register, to) in [from].into_iter().chain(second).zip([0, u64::from(size)]) {
            let address = address.map(|address| address.wrapping_add(to));
            let value = self.read(register).low(size);
            let value = if Some(register) == unpredictable { Bits::UNKNOWN } else { value };
            self.memory.store(address, size, value.low(size));
        }
        self.move_base();
    }

    fn other(&mut self, effects: Effects) {
        // The memory is forgotten before the registers, which have its address.
        if effects.stores {
            let bytes = match self.instruction.memory_bytes {
                0 => STRUCTURE_BYTES_MAX,
                bytes => bytes.into(),
            };
            let address = self.address();
            self.memory.clobber(address, bytes);
        }
        self.move_base();
        for number in (0..=STACK).filter(|number| effects.registers & (1 << number) != 0) {
            self.state.set(number, Bits::UNKNOWN);
        }
        if effects.flags {
            self.state.flags.forget(Flags::RESULT);
            self.state.compared = None;
        }
    }
}

/// The lowest bytes, with copies of their sign above or zeros.
pub(super) fn extended(value: Bits, bytes: u8, signed: bool) -> Bits {
    if signed { value.sign_extended(bytes) } else { value.low(bytes) }
}

/// A pointer to code without its signature, if it has one that is right.
fn stripped(value: Bits) -> Bits {
    let sign = value.right(55).left(63).right_signed(63);
    sign.replaced(mask(ADDRESS_BYTES), value)
}

impl Single {
    /// The result for a value of `bytes` bytes, 4 or 8, with zeros above.
    fn of(self, value: u64, bytes: u8) -> u64 {
        let unused = 64 - u32::from(bytes) * 8;
        match self {
            Self::ReverseBits => value.reverse_bits() >> unused,
            Self::LeadingZeros => u64::from(value.leading_zeros().saturating_sub(unused)),
            Self::LeadingSigns => {
                let top = (value << unused).cast_signed();
                let differs = (top ^ (top >> 1)).cast_unsigned();
                u64::from(differs.leading_zeros().min(64 - unused).saturating_sub(1))
            }
            Self::ReverseBytes(2) => {
                (value & 0x00ff_00ff_00ff_00ff) << 8 | value >> 8 & 0x00ff_00ff_00ff_00ff
            }
            Self::ReverseBytes(4) => value.swap_bytes().rotate_left(32),
            Self::ReverseBytes(_) => value.swap_bytes(),
        }
    }
}
