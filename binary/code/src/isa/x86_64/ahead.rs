//! What an instruction does to expressions over the registers at a sample
//! ([`crate::interpret::Ahead`]). What is not modelled is unknown.

use image::Vaddr;

use super::decode::{Effects, Instruction, Op, Operand, Place};
use crate::interpret::{Ahead, CodeView, Operation, Value, Way};
use crate::isa::arithmetic::Shift;

const RAX: u8 = 0;
const RCX: u8 = 1;
const RSP: u8 = 4;
const RBP: u8 = 5;
const RSI: u8 = 6;
const RDI: u8 = 7;

pub(super) struct Reader<'m, V> {
    pub(super) instruction: &'m Instruction,
    /// Address of its first byte.
    pub(super) at: u64,
    pub(super) ahead: &'m mut Ahead,
    pub(super) view: &'m mut V,
}

impl<V: CodeView> Reader<'_, V> {
    pub(super) fn execute(&mut self) -> Way {
        let target = Vaddr(self.at.wrapping_add_signed(self.instruction.target));
        match self.instruction.op {
            Op::Stop => Way::Ends,
            Op::Jump => Way::To(target),
            Op::Branch(_) => {
                self.ahead.decide_by_flags();
                Way::Either(target)
            }
            Op::Loop => {
                let count = self.ahead.register(RCX).map(|count| count.plus(-1));
                self.ahead.set_register(RCX, count);
                self.decide(count);
                Way::Either(target)
            }
            Op::BranchIfCounted => {
                let count = self.ahead.register(RCX);
                self.decide(count);
                Way::Either(target)
            }
            Op::JumpTo => self.jump_to(),
            Op::Call => {
                self.push_next();
                Way::To(target)
            }
            Op::CallTo => {
                let way = self.jump_to();
                self.push_next();
                way
            }
            Op::Return => {
                let to = self.pop();
                self.decide(to);
                self.ahead.address(to).map_or(Way::Seen, Way::To)
            }
            _ => {
                self.compute();
                Way::Next
            }
        }
    }

    fn compute(&mut self) {
        match self.instruction.op {
            Op::Nop | Op::Carry(_) | Op::Direction(_) => {}
            Op::Mov => self.copy(1, None),
            Op::MovSigned => {
                let from = match self.operand(1) {
                    Operand::Register { bytes, .. } | Operand::Memory(bytes) => bytes,
                    _ => 1,
                };
                self.copy(1, Some(from));
            }
            Op::Lea => {
                let address = self.address();
                self.write(0, address);
            }
            Op::Add => self.operate(|all, a, b| all.expressions.sum(a, b, 0)),
            Op::Sub => self.binary(Operation::Subtract),
            Op::Cmp | Op::Test => {
                let compared = [self.read(0), self.read(1)];
                self.ahead.set_flags(compared);
            }
            Op::And => self.binary(Operation::And),
            Op::Or => self.binary(Operation::Or),
            Op::Xor => self.binary(Operation::Xor),
            Op::Inc => self.step(1),
            Op::Dec => self.step(-1),
            Op::Neg => {
                let value = self.read(0);
                let zero = Value::constant(0);
                let result = value.and_then(|value| {
                    self.ahead.expressions.binary(Operation::Subtract, zero, value)
                });
                self.set_result(result);
            }
            Op::Not => {
                let value = self.read(0);
                let ones = Value::constant(-1);
                let result = value
                    .and_then(|value| self.ahead.expressions.binary(Operation::Xor, value, ones));
                self.write(0, result);
            }
            Op::Shift(shift) => self.shift(shift),
            Op::Multiply => {
                let (a, b) = if self.operand(2) == Operand::None { (0, 1) } else { (1, 2) };
                let (a, b) = (self.read(a), self.read(b));
                let product = a
                    .zip(b)
                    .and_then(|(a, b)| self.ahead.expressions.binary(Operation::Multiply, a, b));
                self.set_result(product);
            }
            Op::CMov(_) => {
                self.ahead.decide_by_flags();
                // A write of 4 bytes clears the rest, whatever the condition.
                match self.ahead.chance() {
                    Some(moves) => self.copy(usize::from(moves), None),
                    None => self.write(0, None),
                }
            }
            Op::Set(_) => {
                let value = self.ahead.unknown_by_flags();
                self.write(0, value);
            }
            _ => self.move_(),
        }
    }

    /// Instructions that move values without computing.
    fn move_(&mut self) {
        match self.instruction.op {
            Op::Push => {
                let value = self.read(0);
                self.push(value);
            }
            Op::Pop => {
                let value = self.pop();
                self.write(0, value);
            }
            Op::Leave => {
                let frame = self.ahead.register(RBP);
                self.ahead.set_register(RSP, frame);
                let saved = self.pop();
                self.ahead.set_register(RBP, saved);
            }
            Op::ExtendA(bytes) => {
                let value = self.ahead.register(RAX);
                let extended =
                    value.and_then(|value| self.ahead.expressions.extended(value, bytes / 2, true));
                self.set_part(RAX, bytes, extended);
            }
            Op::Xchg => {
                let (first, second) = (self.read(0), self.read(1));
                self.write(0, second);
                self.write(1, first);
            }
            Op::Strings { loads, .. } => {
                for number in [RCX, RDI].into_iter().chain(loads.then_some(RSI)) {
                    self.ahead.set_register(number, None);
                }
            }
            _ => self.forget(),
        }
    }

    /// What the instruction writes is unknown afterwards.
    fn forget(&mut self) {
        let [a, b, c] = [self.read(0), self.read(1), self.read(2)];
        let depends = [a, b, c, self.ahead.register(RAX)];
        let all = &mut self.ahead.expressions;
        let value = match self.instruction.op {
            Op::Other => None,
            Op::MultiplyWide { .. } | Op::Divide { .. } | Op::SignOfA(_) | Op::CmpXchg => {
                all.unknown(&depends)
            }
            Op::Adc | Op::Sbb => {
                let carry = self.ahead.unknown_by_flags();
                self.ahead.expressions.unknown(&[a, b, carry])
            }
            _ => all.unknown(&depends[..3]),
        };
        let registers = self.instruction.effects.registers;
        for number in (0..16).filter(|number| registers & (1 << number) != 0) {
            self.ahead.set_register(number, value);
        }
        let Effects { flags_unknown, flags_clear, flags_set, .. } = self.instruction.effects;
        if flags_unknown | flags_clear | flags_set != 0 || self.instruction.op != Op::Other {
            self.ahead.set_flags([value, None]);
        }
    }

    fn operand(&self, number: usize) -> Operand {
        self.instruction.operands.get(number).copied().unwrap_or(Operand::None)
    }

    fn address(&mut self) -> Option<Value> {
        match self.instruction.place {
            Place::Relative(distance) => self.ahead.relative(self.at.wrapping_add_signed(distance)),
            Place::At { base, index, scale, displacement } => {
                let zero = Some(Value::constant(0));
                let base = base.map_or(zero, |base| self.ahead.register(base))?;
                let index = index.map_or(zero, |index| self.ahead.register(index))?;
                let shift = u8::try_from(scale.checked_ilog2().unwrap_or(0)).ok()?;
                Some(self.ahead.expressions.sum(base, index, shift)?.plus(displacement))
            }
            Place::Unknown | Place::Guard => None,
        }
    }

    fn read(&mut self, number: usize) -> Option<Value> {
        match self.operand(number) {
            Operand::None => None,
            Operand::Register { number, bytes } => {
                let value = self.ahead.register(number)?;
                self.ahead.expressions.extended(value, bytes, false)
            }
            Operand::High(number) => {
                let value = self.ahead.register(number)?;
                let eight = Value::constant(8);
                let high = self.ahead.expressions.binary(Operation::Right, value, eight)?;
                self.ahead.expressions.extended(high, 1, false)
            }
            Operand::Immediate(value) => Some(Value::constant(value)),
            Operand::Memory(bytes) => {
                let address = self.address();
                self.ahead.load(address, bytes, self.view)
            }
        }
    }

    fn write(&mut self, number: usize, value: Option<Value>) {
        match self.operand(number) {
            Operand::Register { number, bytes } => self.set_part(number, bytes, value),
            Operand::High(number) => self.ahead.set_register(number, None),
            Operand::Memory(bytes) => {
                let address = self.address();
                self.ahead.store(address, bytes, value);
            }
            Operand::None | Operand::Immediate(_) => {}
        }
    }

    /// The bits above a written part of 1 or 2 bytes are taken to be zero: code seldom uses them.
    fn set_part(&mut self, number: u8, bytes: u8, value: Option<Value>) {
        let low = value.and_then(|value| self.ahead.expressions.extended(value, bytes, false));
        self.ahead.set_register(number, low);
    }

    fn copy(&mut self, from: usize, signed: Option<u8>) {
        let value = self.read(from);
        let value = match signed {
            Some(bytes) => {
                value.and_then(|value| self.ahead.expressions.extended(value, bytes, true))
            }
            None => value,
        };
        self.write(0, value);
    }

    /// Writes a result, which the flags depend on.
    fn set_result(&mut self, value: Option<Value>) {
        self.ahead.set_flags([value, None]);
        self.write(0, value);
    }

    fn step(&mut self, by: i64) {
        let value = self.read(0).map(|value| value.plus(by));
        self.set_result(value);
    }

    fn operate(&mut self, of: impl Fn(&mut Ahead, Value, Value) -> Option<Value>) {
        let (a, b) = (self.read(0), self.read(1));
        let result = a.zip(b).and_then(|(a, b)| of(self.ahead, a, b));
        self.ahead.set_flags([a, b]);
        self.write(0, result);
    }

    fn binary(&mut self, operation: Operation) {
        let is_same = self.operand(0) == self.operand(1)
            && matches!(operation, Operation::Subtract | Operation::Xor);
        if is_same {
            return self.set_result(Some(Value::constant(0)));
        }
        self.operate(|ahead, a, b| ahead.expressions.binary(operation, a, b));
    }

    fn shift(&mut self, shift: Shift) {
        let bytes = self.instruction.bytes;
        let (value, count) = (self.read(0), self.read(1));
        let count =
            count.and_then(Value::known).map(|count| count & if bytes == 8 { 63 } else { 31 });
        let result = value.zip(count).and_then(|(value, count)| {
            let all = &mut self.ahead.expressions;
            let by = Value::constant(count);
            match shift {
                Shift::Left => all.sum(Value::constant(0), value, u8::try_from(count).ok()?),
                Shift::Right => all.binary(Operation::Right, value, by),
                Shift::RightSigned => {
                    let value = all.extended(value, bytes, true)?;
                    all.binary(Operation::RightSigned, value, by)
                }
                Shift::RotateLeft | Shift::RotateRight => {
                    let bits = 8 * i64::from(bytes);
                    let left = if shift == Shift::RotateLeft { count } else { bits - count };
                    let right = Value::constant((bits - left) & 63);
                    let left = u8::try_from(left & 63).ok()?;
                    let left = all.sum(Value::constant(0), value, left)?;
                    let right = all.binary(Operation::Right, value, right)?;
                    all.binary(Operation::Or, left, right)
                }
            }
        });
        let result = result.or_else(|| self.ahead.expressions.unknown(&[value]));
        self.set_result(result);
    }

    fn decide(&mut self, value: Option<Value>) {
        value.into_iter().for_each(|value| self.ahead.decide(value));
    }

    fn jump_to(&mut self) -> Way {
        let to = self.read(0);
        self.decide(to);
        self.ahead.address(to).map_or(Way::Seen, Way::To)
    }

    fn push(&mut self, value: Option<Value>) {
        let stack = self.ahead.register(RSP).map(|stack| stack.plus(-8));
        self.ahead.set_register(RSP, stack);
        self.ahead.store(stack, 8, value);
    }

    fn push_next(&mut self) {
        let next = self.at.wrapping_add(u64::from(self.instruction.len));
        let next = self.ahead.relative(next);
        self.push(next);
    }

    fn pop(&mut self) -> Option<Value> {
        let stack = self.ahead.register(RSP);
        self.ahead.set_register(RSP, stack.map(|stack| stack.plus(8)));
        self.ahead.load(stack, 8, self.view)
    }
}

#[cfg(test)]
mod tests {
    use crate::interpret::tests::Code;
    use crate::interpret::{AheadOperation, AheadSlot, Operation, Walker};
    use crate::isa::x86_64::X86_64;
    use image::Vaddr;

    fn read_ahead(code: &[u8]) -> Vec<AheadOperation> {
        Walker::<X86_64>::new(64).read_ahead(Vaddr(0x1000), &mut Code(code))
    }

    const RCX: AheadSlot = AheadSlot(1);
    const RDI: AheadSlot = AheadSlot(7);
    const FIRST: AheadSlot = AheadSlot::FIRST;

    #[test]
    fn a_table_is_read_line_by_line() {
        // L: mov eax, [rdi+rcx*4]; cmp eax, esi; jl +2; inc edx; inc rcx; jmp L
        let code = [0x8b, 4, 0x8f, 0x39, 0xf0, 0x7c, 2, 0xff, 0xc2, 0x48, 0xff, 0xc1, 0xeb, 0xf2];
        let program = read_ahead(&code);
        let [sum, lines @ ..] = &program[..] else { panic!("{program:?}") };
        assert_eq!(*sum, AheadOperation::Sum { a: RDI, b: RCX, shift: 2, offset: 0 });
        // 256 instructions are 43 rounds or more: 168 bytes.
        let expected = [0, 64, 128].map(|offset| AheadOperation::Line(FIRST, offset));
        assert_eq!(lines[..3], expected);
        assert!(matches!(lines[3..], [AheadOperation::Line(FIRST, 168..=192)]), "{lines:?}");
    }

    #[test]
    fn a_chain_is_followed_as_far_as_there_is_room() {
        // L: mov rdi, [rdi+8]; test rdi, rdi; jne L; ret
        let program = read_ahead(&[0x48, 0x8b, 0x7f, 8, 0x48, 0x85, 0xff, 0x75, 0xf7, 0xc3]);
        let line = |at| AheadOperation::Line(at, 8);
        let load = |at| AheadOperation::Load { at, offset: 8, bytes: 8 };
        let second = AheadSlot(FIRST.0 + 1);
        assert_eq!(program[..4], [line(RDI), load(RDI), line(second), load(second)]);
        assert!(program.len() > 40, "{program:?}");
    }

    #[test]
    fn what_only_the_data_need_is_not_read() {
        // L: mov rax, [rdi]; add rdx, rax; add rdi, 8; dec ecx; jne L; ret
        let code =
            [0x48, 0x8b, 7, 0x48, 1, 0xc2, 0x48, 0x83, 0xc7, 8, 0xff, 0xc9, 0x75, 0xf2, 0xc3];
        assert_eq!(read_ahead(&code), []);
    }

    #[test]
    fn an_address_is_computed_as_the_code_does() {
        // imul eax, ecx, 40; shr eax, 3; and eax, 0xff; setc dl; cmp byte [rdi+rax], dl; jne 0; ret
        let code = [
            0x6b, 0xc1, 40, 0xc1, 0xe8, 3, 0x25, 0xff, 0, 0, 0, 0x0f, 0x92, 0xc2, 0x38, 0x14, 7,
            0x75, 0, 0xc3,
        ];
        let program = read_ahead(&code);
        let binaries: Vec<Operation> = program
            .iter()
            .filter_map(|operation| match operation {
                AheadOperation::Binary(operation, ..) => Some(*operation),
                _ => None,
            })
            .collect();
        assert_eq!(binaries, [Operation::Multiply, Operation::Right, Operation::And]);
        assert!(matches!(program.last(), Some(AheadOperation::Line(..))), "{program:?}");
    }
}
