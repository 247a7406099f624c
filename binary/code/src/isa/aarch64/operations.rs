//! Instructions in the form that the interpreter executes and caches.

use super::fields::Word;
use crate::isa::arithmetic::Shift;
use crate::isa::flags::Condition;

/// Number of the stack pointer.
pub(super) const STACK: u8 = 31;
/// Number of the zero register here: in words it has the number of the stack pointer.
pub(super) const ZERO: u8 = 32;
/// The link register.
pub(super) const LINK: u8 = 30;

/// The operation of an instruction.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Nop,
    /// `adr`, `adrp`, which the word tells.
    Address {
        to: u8,
        word: Word,
    },
    /// A constant under the bits of `mask`, which replaces these.
    Constant {
        to: u8,
        value: u64,
        mask: u64,
    },
    Sum {
        to: u8,
        a: u8,
        b: Operand,
        subtracts: bool,
        sets_flags: bool,
        carries: bool,
    },
    Logic {
        to: u8,
        a: u8,
        b: Operand,
        logic: Logic,
        negates: bool,
        sets_flags: bool,
    },
    Field {
        to: u8,
        from: u8,
        field: Field,
        fill: Fill,
    },
    /// The bytes of `a` above those of `b`, shifted right.
    Extract {
        to: u8,
        a: u8,
        b: u8,
        by: u32,
    },
    /// `a`, or if the condition does not hold, `b`, perhaps inverted and then incremented.
    Select {
        to: u8,
        a: u8,
        b: u8,
        condition: Condition,
        inverts: bool,
        increments: bool,
    },
    /// Sets the flags by a comparison if the condition holds, else to constants in the order NZCV.
    Compare {
        a: u8,
        b: Operand,
        condition: Condition,
        subtracts: bool,
        flags: u8,
    },
    /// `c` plus the product, or less it; of the lowest `bytes` bytes.
    Multiply {
        to: u8,
        a: u8,
        b: u8,
        c: u8,
        subtracts: bool,
        bytes: u8,
        signed: bool,
    },
    MultiplyHigh {
        to: u8,
        a: u8,
        b: u8,
        signed: bool,
    },
    Divide {
        to: u8,
        a: u8,
        b: u8,
        signed: bool,
    },
    Shift {
        to: u8,
        a: u8,
        by: u8,
        shift: Shift,
    },
    Single {
        to: u8,
        from: u8,
        single: Single,
    },
    /// Signs the pointer in a register, or takes its signature away.
    Pointer {
        register: u8,
        strips: bool,
    },
    /// Vectors are loaded to the zero register, whose writes are lost.
    Load {
        to: u8,
        second: Option<u8>,
        /// Bytes of the register that copies of the sign fill; 0: zeros do.
        signed: u8,
    },
    Store {
        from: u8,
        second: Option<u8>,
    },
    StoreVector,
    /// `dc zva`: zeros a block whose size the processor says, at most 2048 bytes (DCZID_EL0).
    ZeroBlock(u8),
    /// Any other operation: everything that it writes is unknown afterwards.
    Other(Effects),
    Jump(i64),
    Call(i64),
    Branch(Condition, i64),
    BranchIfZero {
        register: u8,
        negated: bool,
        distance: i64,
    },
    BranchIfBit {
        register: u8,
        bit: u32,
        set: bool,
        distance: i64,
    },
    JumpTo(u8),
    CallTo(u8),
    Return(u8),
    /// The walk ends here.
    Stop,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Logic {
    And,
    Or,
    Xor,
}

/// Operations on one register.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Single {
    ReverseBits,
    /// Reverses the bytes of each part of this many bytes.
    ReverseBytes(u8),
    LeadingZeros,
    LeadingSigns,
}

/// `width` bits of a register, from bit `low` on, which are moved to bit `to`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) low: u32,
    pub(super) width: u32,
    pub(super) to: u32,
}

/// The bits of the result around a field.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    Zeros,
    /// Copies of its highest bit above.
    Sign,
    /// What the register had.
    Before,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Operand {
    Constant(u64),
    Shifted { register: u8, shift: Shift, by: u32 },
    Extended { register: u8, bytes: u8, signed: bool, by: u32 },
}

/// The place of a memory operand.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    None,
    /// Relative to the instruction.
    Relative(i64),
    /// At a distance from a register, to which `moved` is added afterwards.
    At {
        base: u8,
        distance: i64,
        moved: i64,
    },
    /// At a register plus the lowest bytes of another one, shifted left.
    Indexed {
        base: u8,
        index: u8,
        bytes: u8,
        signed: bool,
        by: u32,
    },
}

/// What becomes unknown after an operation that is not modelled.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Effects {
    /// Registers, one bit each.
    pub(super) registers: u32,
    pub(super) flags: bool,
    pub(super) loads: bool,
    pub(super) stores: bool,
}

/// An instruction.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    pub(super) op: Op,
    /// Bytes of its operands: 4 or 8.
    pub(super) bytes: u8,
    pub(super) place: Place,
    /// Bytes of its memory operand; 0: it has none, or up to 64.
    pub(super) memory_bytes: u8,
}
