//! DWARF expressions (DWARF 5, section 2.5) over the registers of a frame and the copied stack.
//!
//! PLTs and signal frames have them, and procedures that align their stack. gimli evaluates.

use gimli::{EndianSlice, EvaluationResult, Expression, Format, LittleEndian, Location, Value};

use crate::registers::Registers;
use crate::stack::{Missing, Stack};

/// Largest number of operations; expressions can jump back.
const OPERATIONS_MAX: u32 = 512;
/// Stack words and registers that one expression may read; the PLT entry of the ABI reads two. A
/// larger number lets a hostile file make a walk slow.
const ASKED_MAX: u32 = 64;

/// Why an expression has no value.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum NoValue {
    /// The expression reads memory that was not copied, or is not stack.
    Missing(Missing),
    /// The expression reads a register that is not known, or is broken.
    Unknown,
}

/// The value of the expression `code`. `first` lies on its stack at the start: for a register's
/// rule, the CFA. `bias` is what loading added to the file's addresses.
pub fn evaluate(
    code: &[u8],
    first: Option<u64>,
    registers: &Registers,
    stack: &Stack<'_>,
    bias: u64,
) -> Result<u64, NoValue> {
    let expression = Expression(EndianSlice::new(code, LittleEndian));
    let address_size = registers.machine().word_bytes();
    let encoding = gimli::Encoding { address_size, format: Format::Dwarf32, version: 5 };
    let mut evaluation = expression.evaluation(encoding);
    evaluation.set_max_iterations(OPERATIONS_MAX);
    if let Some(first) = first {
        evaluation.set_initial_value(first);
    }
    let broken = |_| NoValue::Unknown;
    let mut state = evaluation.evaluate().map_err(broken)?;
    for _ in 0..ASKED_MAX {
        state = match state {
            EvaluationResult::Complete => return value(&evaluation.result()),
            EvaluationResult::RequiresRegister { register, .. } => {
                let number = u8::try_from(register.0).map_err(|_| NoValue::Unknown)?;
                let value = registers.get(number).ok_or(NoValue::Unknown)?;
                evaluation.resume_with_register(Value::Generic(value)).map_err(broken)?
            }
            EvaluationResult::RequiresMemory { address, size, .. } => {
                let value = stack.read(address, size).map_err(NoValue::Missing)?;
                evaluation.resume_with_memory(Value::Generic(value)).map_err(broken)?
            }
            EvaluationResult::RequiresRelocatedAddress(address) => {
                let address = address.wrapping_add(bias);
                evaluation.resume_with_relocated_address(address).map_err(broken)?
            }
            _ => return Err(NoValue::Unknown),
        };
    }
    Err(NoValue::Unknown)
}

fn value(pieces: &[gimli::Piece<EndianSlice<'_, LittleEndian>>]) -> Result<u64, NoValue> {
    match pieces {
        [piece] => match piece.location {
            Location::Address { address } => Ok(address),
            _ => Err(NoValue::Unknown),
        },
        _ => Err(NoValue::Unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::{NoValue, evaluate};
    use crate::registers::{Machine, Registers};
    use crate::stack::{Missing, Stack, Window};

    /// What GNU ld writes for x86-64's PLT: rsp + 8 + ((rip & 15) >= 11) * 8.
    const PLT: [u8; 11] = [0x77, 0x08, 0x80, 0x00, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];

    #[test]
    fn the_plts_expression_depends_on_the_place_in_the_stub() {
        let stack = Stack::new(Machine::X86_64, &[]);
        for (pc, expected) in [(0x1000, 0x7008), (0x100a, 0x7008), (0x100b, 0x7010)] {
            let mut registers = Registers::new(Machine::X86_64, pc);
            registers.set(7, Some(0x7000));
            registers.set(16, Some(pc));
            assert_eq!(evaluate(&PLT, None, &registers, &stack, 0), Ok(expected));
        }
        let registers = Registers::new(Machine::X86_64, 0x1000);
        assert_eq!(evaluate(&PLT, None, &registers, &stack, 0), Err(NoValue::Unknown));
    }

    #[test]
    fn words_come_from_the_stack_only() {
        let bytes = 0x1234u64.to_le_bytes();
        let windows = [Window { address: 0x7000, bytes: &bytes }];
        let stack = Stack::new(Machine::X86_64, &windows);
        let mut registers = Registers::new(Machine::X86_64, 0);
        registers.set(6, Some(0x7008));
        // DW_OP_breg6 -8; DW_OP_deref
        let code = [0x76, 0x78, 0x06];
        assert_eq!(evaluate(&code, None, &registers, &stack, 0), Ok(0x1234));
        registers.set(6, Some(0x8000));
        let missing = NoValue::Missing(Missing::NotCopied);
        assert_eq!(evaluate(&code, None, &registers, &stack, 0), Err(missing));
    }

    #[test]
    fn endless_expressions_end() {
        let registers = Registers::new(Machine::X86_64, 0);
        // DW_OP_skip -3, and DW_OP_dup; DW_OP_skip -4
        for code in [&[0x2f, 0xfd, 0xff][..], &[0x12, 0x2f, 0xfc, 0xff]] {
            let result = evaluate(code, Some(1), &registers, &Stack::new(Machine::X86_64, &[]), 0);
            assert_eq!(result, Err(NoValue::Unknown));
        }
    }
}
