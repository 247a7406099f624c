//! What an instruction does to expressions over the registers at a sample
//! ([`crate::interpret::Ahead`]). What is not modelled is unknown.

use image::Vaddr;

use super::LEN;
use super::operations::{Field, Fill, Instruction, LINK, Logic, Op, Operand, Place, STACK, ZERO};
use crate::interpret::{Ahead, CodeView, Operation, Value, Way};
use crate::isa::arithmetic::Shift;

pub(super) struct Reader<'m, V> {
    pub(super) instruction: &'m Instruction,
    pub(super) at: u64,
    pub(super) ahead: &'m mut Ahead,
    pub(super) view: &'m mut V,
}

impl<V: CodeView> Reader<'_, V> {
    pub(super) fn execute(&mut self) -> Way {
        let target = |distance| Vaddr(self.at.wrapping_add_signed(distance));
        match self.instruction.op {
            Op::Stop => Way::Ends,
            Op::Jump(distance) => Way::To(target(distance)),
            Op::Branch(_, distance) => {
                let target = target(distance);
                self.ahead.decide_by_flags();
                Way::Either(target)
            }
            Op::BranchIfZero { register, distance, .. }
            | Op::BranchIfBit { register, distance, .. } => {
                let target = target(distance);
                let value = self.read(register);
                self.decide(value);
                Way::Either(target)
            }
            Op::JumpTo(register) | Op::Return(register) => self.jump_to(register),
            Op::Call(distance) => {
                let target = target(distance);
                self.link();
                Way::To(target)
            }
            Op::CallTo(register) => {
                let way = self.jump_to(register);
                self.link();
                way
            }
            _ => {
                self.compute();
                Way::Next
            }
        }
    }

    fn jump_to(&mut self, register: u8) -> Way {
        let to = self.read(register);
        self.decide(to);
        self.ahead.address(to).map_or(Way::Seen, Way::To)
    }

    fn link(&mut self) {
        let next = self.ahead.relative(self.at.wrapping_add(LEN.into()));
        self.ahead.set_register(LINK, next);
    }

    fn decide(&mut self, value: Option<Value>) {
        value.into_iter().for_each(|value| self.ahead.decide(value));
    }

    fn compute(&mut self) {
        match self.instruction.op {
            // The signature of a pointer is not seen here.
            Op::Nop | Op::Pointer { .. } | Op::ZeroBlock(_) => {}
            Op::Address { to, word } => {
                let value = word.page_relative(self.at);
                let value = value.and_then(|value| self.ahead.relative(value));
                self.set(to, value);
            }
            Op::Constant { to, value, mask } => {
                let before = self.read(to).and_then(Value::known).unwrap_or(0).cast_unsigned();
                let value = before & !mask | value & mask;
                self.write(to, Some(Value::constant(value.cast_signed())));
            }
            Op::Sum { to, a, b, subtracts, sets_flags, carries } => {
                let (a, b) = (self.read_low(a), self.operand(b));
                let result = match (carries, subtracts) {
                    (true, _) => {
                        let carry = self.ahead.unknown_by_flags();
                        self.ahead.expressions.unknown(&[a, b, carry])
                    }
                    (false, true) => self.binary(Operation::Subtract, a, b),
                    (false, false) => self.sum(a, b, 0),
                };
                self.write_result(to, result, [a, b], sets_flags);
            }
            Op::Logic { to, a, b, logic, negates, sets_flags } => {
                let (a, b) = (self.read_low(a), self.operand(b));
                let operation = match logic {
                    Logic::And => Operation::And,
                    Logic::Or => Operation::Or,
                    Logic::Xor => Operation::Xor,
                };
                let ones = Some(Value::constant(-1));
                let b = if negates { self.binary(Operation::Xor, b, ones) } else { b };
                // `mov` of a register.
                let is_copy = logic == Logic::Or && a.and_then(Value::known) == Some(0) && !negates;
                let result = if is_copy { b } else { self.binary(operation, a, b) };
                self.write_result(to, result, [a, b], sets_flags);
            }
            Op::Field { to, from, field, fill } => {
                let value = self.field(from, field, fill, to);
                self.write(to, value);
            }
            Op::Select { to, a, b, inverts, increments, .. } => {
                self.select(to, a, b, inverts, increments);
            }
            Op::Compare { a, b, .. } => {
                let (a, b) = (self.read_low(a), self.operand(b));
                let before = self.ahead.unknown_by_flags();
                let compared = self.ahead.expressions.unknown(&[a, b]);
                self.ahead.set_flags([compared, before]);
            }
            _ => self.product_or_memory(),
        }
    }

    fn product_or_memory(&mut self) {
        match self.instruction.op {
            Op::Multiply { to, a, b, c, subtracts, bytes, signed } => {
                let [a, b] = [a, b].map(|factor| {
                    let value = self.read(factor)?;
                    self.ahead.expressions.extended(value, bytes, signed)
                });
                let c = self.read(c);
                let product = self.binary(Operation::Multiply, a, b);
                let value = if subtracts {
                    self.binary(Operation::Subtract, c, product)
                } else {
                    self.sum(c, product, 0)
                };
                self.write(to, value);
            }
            Op::Shift { to, a, by, shift } => {
                let count = self.read(by).and_then(Value::known);
                let mask = 8 * u32::from(self.instruction.bytes) - 1;
                let by = count.map(|count| count as u32 & mask);
                let shifted = by.and_then(|by| self.shifted(a, shift, by));
                let a = self.read(a);
                let value = shifted.or_else(|| self.ahead.expressions.unknown(&[a]));
                self.write(to, value);
            }
            Op::MultiplyHigh { to, a, b, .. }
            | Op::Divide { to, a, b, .. }
            | Op::Extract { to, a, b, .. } => self.depends(to, a, b),
            Op::Single { to, from, .. } => self.depends(to, from, ZERO),
            Op::Load { to, second, signed } => self.load(to, second, signed),
            Op::Store { from, second } => self.store(from, second),
            Op::StoreVector => self.move_base(),
            Op::Other(effects) => {
                self.move_base();
                for number in 0..=STACK {
                    if effects.registers & (1 << number) != 0 {
                        self.set(number, None);
                    }
                }
                if effects.flags {
                    self.ahead.set_flags([None; 2]);
                }
            }
            _ => {}
        }
    }

    fn select(&mut self, to: u8, a: u8, b: u8, inverts: bool, increments: bool) {
        let (first, second) = (self.read(a), self.read(b));
        // A flag as a number.
        if a == ZERO && b == ZERO {
            let value = self.ahead.unknown_by_flags();
            return self.write(to, value);
        }
        self.ahead.decide_by_flags();
        let ones = Some(Value::constant(-1));
        let second = if inverts { self.binary(Operation::Xor, second, ones) } else { second };
        let second = second.map(|second| second.plus(increments.into()));
        let chosen = self.ahead.chance().and_then(|is_first| if is_first { first } else { second });
        self.write(to, chosen);
    }

    // Registers and operands.

    fn read(&mut self, number: u8) -> Option<Value> {
        if number == ZERO { Some(Value::constant(0)) } else { self.ahead.register(number) }
    }

    /// The operands' bytes of a register.
    fn read_low(&mut self, number: u8) -> Option<Value> {
        let value = self.read(number)?;
        self.ahead.expressions.extended(value, self.instruction.bytes, false)
    }

    fn set(&mut self, number: u8, value: Option<Value>) {
        if number != ZERO {
            self.ahead.set_register(number, value);
        }
    }

    fn write(&mut self, number: u8, value: Option<Value>) {
        let bytes = self.instruction.bytes;
        let low = value.and_then(|value| self.ahead.expressions.extended(value, bytes, false));
        self.set(number, low);
    }

    fn write_result(
        &mut self,
        to: u8,
        result: Option<Value>,
        operands: [Option<Value>; 2],
        sets_flags: bool,
    ) {
        if sets_flags {
            self.ahead.set_flags(operands);
        }
        self.write(to, result);
    }

    /// A value that is not computed.
    fn depends(&mut self, to: u8, a: u8, b: u8) {
        let on = [self.read(a), self.read(b)];
        let value = self.ahead.expressions.unknown(&on);
        self.set(to, value);
    }

    fn binary(
        &mut self,
        operation: Operation,
        a: Option<Value>,
        b: Option<Value>,
    ) -> Option<Value> {
        self.ahead.expressions.binary(operation, a?, b?)
    }

    fn sum(&mut self, a: Option<Value>, b: Option<Value>, shift: u8) -> Option<Value> {
        self.ahead.expressions.sum(a?, b?, shift)
    }

    /// A value shifted left.
    fn left(&mut self, value: Option<Value>, by: u32) -> Option<Value> {
        let zero = Some(Value::constant(0));
        if by == 0 { value } else { self.sum(zero, value, u8::try_from(by).ok()?) }
    }

    fn right(&mut self, value: Option<Value>, by: u32, signed: bool) -> Option<Value> {
        let operation = if signed { Operation::RightSigned } else { Operation::Right };
        let by = i64::from(by);
        if by == 0 { value } else { self.binary(operation, value, Some(Value::constant(by))) }
    }

    fn shifted(&mut self, register: u8, shift: Shift, by: u32) -> Option<Value> {
        let value = self.read_low(register);
        match shift {
            Shift::Left => self.left(value, by),
            Shift::Right => self.right(value, by, false),
            Shift::RightSigned => {
                let bytes = self.instruction.bytes;
                let value = self.ahead.expressions.extended(value?, bytes, true);
                self.right(value, by, true)
            }
            Shift::RotateLeft | Shift::RotateRight if by == 0 => value,
            Shift::RotateLeft | Shift::RotateRight => self.ahead.expressions.unknown(&[value]),
        }
    }

    fn operand(&mut self, operand: Operand) -> Option<Value> {
        match operand {
            Operand::Constant(value) => Some(Value::constant(value.cast_signed())),
            Operand::Shifted { register, shift, by } => self.shifted(register, shift, by),
            Operand::Extended { register, bytes, signed, by } => {
                let value = self.read(register)?;
                let value = self.ahead.expressions.extended(value, bytes, signed);
                self.left(value, by)
            }
        }
    }

    fn field(&mut self, from: u8, field: Field, fill: Fill, to: u8) -> Option<Value> {
        let Field { low, width, to: up } = field;
        let (value, all) = (self.read_low(from), 8 * u32::from(self.instruction.bytes));
        let signed = fill == Fill::Sign;
        if fill == Fill::Before {
            let before = self.read(to);
            return self.ahead.expressions.unknown(&[value, before]);
        }
        let part = match width {
            8 | 16 | 32 if low == 0 => {
                self.ahead.expressions.extended(value?, (width / 8) as u8, signed)
            }
            // What is above is moved out.
            _ if up + width == all && !signed => value,
            _ if signed => {
                let top = self.left(value, 64 - low - width);
                self.right(top, 64 - width, true)
            }
            _ => {
                let part = self.right(value, low, false);
                let mask = Value::constant((u64::MAX >> (64 - width)).cast_signed());
                if low + width == all {
                    part
                } else {
                    self.binary(Operation::And, part, Some(mask))
                }
            }
        };
        self.left(part, up)
    }

    // Memory.

    fn address(&mut self) -> Option<Value> {
        match self.instruction.place {
            Place::None => None,
            Place::Relative(distance) => self.ahead.relative(self.at.wrapping_add_signed(distance)),
            Place::At { base, distance, .. } => Some(self.ahead.register(base)?.plus(distance)),
            Place::Indexed { base, index, bytes, signed, by } => {
                let (base, index) = (self.ahead.register(base), self.read(index)?);
                let index = self.ahead.expressions.extended(index, bytes, signed);
                self.sum(base, index, u8::try_from(by).ok()?)
            }
        }
    }

    fn move_base(&mut self) {
        if let Place::At { base, moved, .. } = self.instruction.place {
            let value = self.ahead.register(base).map(|value| value.plus(moved));
            self.ahead.set_register(base, value);
        }
    }

    /// The addresses of the parts of the memory operand, and their size.
    fn parts(&mut self, pair: bool) -> ([Option<Value>; 2], u8) {
        let address = self.address();
        let size = self.instruction.memory_bytes / if pair { 2 } else { 1 };
        ([address, address.map(|address| address.plus(size.into()))], size)
    }

    fn load(&mut self, to: u8, second: Option<u8>, signed: u8) {
        let (addresses, size) = self.parts(second.is_some());
        self.move_base();
        for (register, address) in [to].into_iter().chain(second).zip(addresses) {
            if register == ZERO {
                continue;
            }
            let mut value = self.ahead.load(address, size, self.view);
            if signed > 0 {
                let all = &mut self.ahead.expressions;
                value = value.and_then(|value| all.extended(value, size, true));
                value = value.and_then(|value| all.extended(value, signed, false));
            }
            self.set(register, value);
        }
    }

    fn store(&mut self, from: u8, second: Option<u8>) {
        let (addresses, size) = self.parts(second.is_some());
        for (register, address) in [from].into_iter().chain(second).zip(addresses) {
            let value = self.read(register);
            let value = value.and_then(|value| self.ahead.expressions.extended(value, size, false));
            self.ahead.store(address, size, value);
        }
        self.move_base();
    }
}
