//! Effects of x86-64 instructions on the values that decide indirect jumps (see `cfg`).

use std::collections::BTreeSet;

use iced_x86::InstructionInfoFactory;

use super::decode::{Instruction, Op, Operand, Place, Written};
use crate::isa::arithmetic::Shift;
use crate::isa::flags::{Condition, Test};
use crate::values::ReadOnly;
use crate::values::{Decision, Order, Spot, State, Value, mixed};

const RSP: u8 = 4;
const RBP: u8 = 5;
/// Smallest number that is taken for an address: no table begins on the first page of a file. A
/// smaller limit would take counts for addresses.
const LEAST_ADDRESS: u64 = 4096;
/// Registers that a procedure may change (System V ABI for x86-64, figure 3.4): rax, rcx, rdx, rsi,
/// rdi, r8 to r11.
const CHANGED_BY_CALLS: [u8; 9] = [0, 1, 2, 6, 7, 8, 9, 10, 11];

/// Follows the values of registers through instructions.
#[derive(Debug)]
pub(in crate::isa) struct Tracker {
    factory: InstructionInfoFactory,
    /// Addresses that instructions have as operands.
    named: BTreeSet<u64>,
}

struct Step<'s, M> {
    instruction: &'s Instruction,
    at: u64,
    state: &'s mut State,
    memory: &'s mut M,
}

impl Default for Tracker {
    fn default() -> Self {
        Self { factory: InstructionInfoFactory::new(), named: BTreeSet::new() }
    }
}

impl Tracker {
    /// Index of the register with the stack pointer.
    pub(in crate::isa) const STACK: usize = RSP as usize;
    pub(in crate::isa) const REGISTERS: usize = super::REGISTERS;

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
        let Some(instruction) = Instruction::decode(bytes, &mut self.factory) else {
            return Decision::None;
        };
        self.named.extend(named(&instruction, at));
        Step { instruction: &instruction, at, state, memory }.execute()
    }
}

impl<M: ReadOnly> Step<'_, M> {
    fn execute(&mut self) -> Decision {
        match self.instruction.op {
            Op::JumpTo => return self.read(0).map_or(Decision::None, Decision::To),
            Op::Branch(condition) => return order(condition),
            Op::Call | Op::CallTo => self.call(),
            Op::Cmp => self.compare(),
            Op::Push => {
                let value = self.read(0);
                self.move_stack(-8);
                let spot = self.spot_at(self.get(RSP), 0);
                self.state.store(spot, 8, value, self.at);
            }
            Op::Pop | Op::Leave => self.pop(),
            Op::Sub => {
                // A subtraction also compares its operands.
                let (before, less) = (self.read(0), self.read(1));
                let known = self.result();
                self.other(known);
                if let (Some(before), Some(Value::Const(less))) = (before, less) {
                    self.state.compare(before, self.instruction.bytes, less);
                }
            }
            _ => {
                let known = self.result();
                self.other(known);
            }
        }
        Decision::None
    }

    fn get(&self, register: u8) -> Value {
        self.state.get(usize::from(register))
    }

    /// The new value of the first operand, for instructions that are followed.
    fn result(&mut self) -> Option<Made> {
        let bytes = self.instruction.bytes;
        let same = self.instruction.operands[0] == self.instruction.operands[1];
        let value = match self.instruction.op {
            Op::Mov => self.read(1)?,
            Op::MovSigned => match self.instruction.operands[1] {
                Operand::Register { bytes, .. } => self.read(1)?.extended(bytes, true),
                Operand::Memory(width) => self.load(width, true),
                _ => return None,
            },
            // The register is written as the first operand, and has the lowest number.
            Op::ExtendA(8) => {
                return Some(Made { register: 0, value: self.get(0).extended(4, true), bytes: 8 });
            }
            // A symbol plus a constant becomes a new symbol, which later comparisons use.
            Op::Lea => match (self.spot().address?, self.instruction.place) {
                (
                    Value::Number { .. },
                    Place::At { base: Some(_), index: None, displacement, .. },
                ) if displacement != 0 => {
                    return None;
                }
                (address, _) => address,
            },
            Op::Add if bytes == 8 => self.sum()?,
            Op::Sub if bytes == 8 && !same => match (self.read(0)?, self.read(1)?) {
                (value @ (Value::Stack(_) | Value::Const(_)), Value::Const(less)) => {
                    value.sum(Value::Const(less.wrapping_neg()))?
                }
                _ => return None,
            },
            Op::Xor | Op::Sub if same => Value::Const(0),
            Op::Shift(Shift::Left) if bytes == 8 => match self.instruction.operands[1] {
                Operand::Immediate(count @ 1..=4) => self.read(0)?.times(1 << count)?,
                _ => return None,
            },
            Op::And | Op::Shift(Shift::Right) => return self.bounded(),
            _ => return None,
        };
        let Operand::Register { number, bytes } = self.instruction.operands[0] else {
            return matches!(self.instruction.op, Op::Mov).then_some(Made {
                register: u8::MAX,
                value,
                bytes,
            });
        };
        Some(Made { register: number, value, bytes })
    }

    /// Results that are small whatever the operands are.
    fn bounded(&mut self) -> Option<Made> {
        let (Operand::Register { number, bytes }, Operand::Immediate(by)) =
            (self.instruction.operands[0], self.instruction.operands[1])
        else {
            return None;
        };
        let all = if bytes >= 8 { u64::MAX } else { (1 << (8 * bytes)) - 1 };
        let last = match self.instruction.op {
            Op::And if by >= 0 => by as u64 & all,
            Op::And if bytes == 8 && number == RSP => return None,
            Op::Shift(Shift::Right) => all.checked_shr(u32::try_from(by).ok()?)?,
            _ => return None,
        };
        if bytes < 4 || last > u64::from(u16::MAX) {
            return None;
        }
        let register = usize::from(number);
        self.state.set_bounded(register, self.at, last);
        Some(Made { register: number, value: self.state.get(register), bytes })
    }

    /// The sum of two registers, or of an address and a constant.
    fn sum(&mut self) -> Option<Value> {
        let (a, b) = (self.read(0)?, self.read(1)?);
        let immediate = matches!(self.instruction.operands[1], Operand::Immediate(_));
        match a {
            Value::Number { scale: 1, .. } if immediate => None,
            _ => a.sum(b),
        }
    }

    /// Writes the known result, and forgets everything else that the instruction writes.
    fn other(&mut self, known: Option<Made>) {
        let effects = self.instruction.effects;
        if effects.flags_unknown | effects.flags_clear | effects.flags_set != 0 {
            self.state.forget_comparison();
        }
        match effects.memory {
            Written::Nothing => {}
            Written::Operand(_) => {
                let value = known
                    .as_ref()
                    .filter(|known| known.register == u8::MAX)
                    .map(|known| known.value);
                let width = match self.instruction.operands[0] {
                    Operand::Memory(width) => width,
                    _ => 64,
                };
                let spot = self.spot();
                self.state.store(spot, width, value, self.at);
            }
            Written::Anything => self.state.clobber(self.at),
        }
        for register in (0..16_u8).filter(|register| effects.registers & (1 << register) != 0) {
            let into = usize::from(register);
            match &known {
                Some(known) if known.register == register && known.bytes >= 4 => {
                    let value =
                        if known.bytes == 4 { known.value.extended(4, false) } else { known.value };
                    self.state.set(into, value);
                }
                _ => {
                    let whole = matches!(
                        self.instruction.operands[0],
                        Operand::Register { number, bytes: 4 } if number == register
                    );
                    self.state.set_fresh(into, self.at, if whole { 4 } else { 8 });
                }
            }
        }
    }

    fn call(&mut self) {
        self.state.clobber(self.at);
        self.state.forget_comparison();
        for register in CHANGED_BY_CALLS {
            self.state.set_fresh(usize::from(register), self.at, 8);
        }
    }

    fn compare(&mut self) {
        let bytes = self.instruction.bytes;
        let (a, b) = (self.read(0), self.read(1));
        match (a, b) {
            (Some(value), Some(Value::Const(with))) => self.state.compare(value, bytes, with),
            _ => self.state.forget_comparison(),
        }
    }

    fn move_stack(&mut self, by: i64) {
        match self.get(RSP) {
            Value::Stack(at) => self.state.set(usize::from(RSP), Value::Stack(at.wrapping_add(by))),
            _ => self.state.set_fresh(usize::from(RSP), self.at, 8),
        }
    }

    fn pop(&mut self) {
        let leave = self.instruction.op == Op::Leave;
        if leave {
            let frame = self.get(RBP);
            self.state.set(usize::from(RSP), frame);
        }
        let spot = self.spot_at(self.get(RSP), 0);
        let value = self.state.load(spot, 8, false, self.memory);
        self.move_stack(8);
        match self.instruction.operands[0] {
            _ if leave => self.state.set(usize::from(RBP), value),
            Operand::Register { number, bytes: 8 } => self.state.set(usize::from(number), value),
            _ => {
                let spot = self.spot();
                self.state.store(spot, 8, None, self.at);
            }
        }
    }

    fn read(&mut self, number: usize) -> Option<Value> {
        Some(match self.instruction.operands.get(number)? {
            Operand::Register { number, bytes } => self.get(*number).extended(*bytes, false),
            Operand::Immediate(value) => Value::Const(*value as u64),
            Operand::Memory(width) => self.load(*width, false),
            Operand::None | Operand::High(_) => return None,
        })
    }

    fn load(&mut self, width: u8, signed: bool) -> Value {
        let spot = self.spot();
        self.state.load(spot, width, signed, self.memory)
    }

    fn spot_at(&self, base: Value, displacement: i64) -> Spot {
        let address = base.sum(Value::Const(displacement as u64));
        Spot { address, table: false, id: address.map_or(self.at, Value::id) }
    }

    /// The place of the memory operand.
    fn spot(&self) -> Spot {
        match self.instruction.place {
            Place::Relative(displacement) => self.spot_at(Value::Const(self.at), displacement),
            Place::At { base, index, scale, displacement } => {
                let base = base.map(|base| self.get(base));
                let scaled = index.map(|index| self.get(index).times(scale));
                let mut id = displacement as u64;
                for value in [base, index.map(|index| self.get(index))].into_iter().flatten() {
                    id = mixed(mixed(id, u64::from(scale)), value.id());
                }
                let zero = Value::Const(displacement as u64);
                let with_base = base.map_or(Some(zero), |base| base.sum(zero));
                let address = match scaled {
                    None => with_base,
                    Some(scaled) => {
                        scaled.and_then(|scaled| with_base.and_then(|base| base.sum(scaled)))
                    }
                };
                let named = |value: Option<Value>| matches!(value, Some(Value::Const(_)));
                let times = matches!(address, Some(Value::Number { scale, .. }) if scale > 1);
                let both = index.is_some() && base.is_some();
                let table = times || both && (named(base) || named(scaled.flatten()));
                Spot { address, table, id }
            }
            Place::Unknown | Place::Guard => Spot { address: None, table: false, id: self.at },
        }
    }
}

/// A value for a register, or for memory.
struct Made {
    register: u8,
    value: Value,
    bytes: u8,
}

/// The address of data that an instruction has as operand, if it has one.
fn named(instruction: &Instruction, at: u64) -> Option<u64> {
    match (instruction.place, instruction.op, instruction.operands[1]) {
        (Place::Relative(displacement), ..) => Some(at.wrapping_add_signed(displacement)),
        (Place::At { base: None, displacement, .. }, ..) => u64::try_from(displacement).ok(),
        (_, Op::Mov, Operand::Immediate(value)) => u64::try_from(value).ok(),
        _ => None,
    }
    .filter(|&address| address >= LEAST_ADDRESS)
}

/// The comparisons that hold when the jump is taken, and when it is not.
fn order(condition: Condition) -> Decision {
    let (holds, fails) = match condition.test {
        Test::Below => (Order::Below, Order::AboveOrEqual),
        Test::BelowOrEqual => (Order::BelowOrEqual, Order::Above),
        Test::Equal => (Order::Equal, Order::NotEqual),
        _ => return Decision::None,
    };
    if condition.negated { Decision::By(fails, holds) } else { Decision::By(holds, fails) }
}
