//! Demands of an instruction on a processor: registers and memory that it reads and writes, and
//! units that it may have to wait for.

use super::{Isa, aarch64, x86_64};

/// The form of an instruction, as far as tables of processors tell forms apart: its operation, the
/// sizes and kinds of its operands, and whether one of them is memory.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Form(pub(crate) u16);

impl Form {
    /// Number of the form among those of its instruction set, from 0.
    pub fn number(self) -> usize {
        usize::from(self.0)
    }
}

/// A set of registers, a bit each; flags are registers too.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Registers(pub u64);

impl Registers {
    /// The union of both sets.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether both sets have a register in common.
    pub fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The numbers of the registers, 0 to 63.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let bit = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
            rest &= rest - 1;
            Some(bit)
        })
    }
}

/// The kind of address of an instruction's memory operand.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// On the stack, at a fixed distance from its pointer.
    Stack,
    /// At an address that the instruction itself has.
    Fixed,
    /// At an address that is computed from registers.
    Computed,
}

/// Demands of an instruction on a processor.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Length in bytes.
    pub len: u8,
    /// Its form.
    pub form: Form,
    /// Registers that it reads. The stack pointer is left out where the instruction only pushes or
    /// pops, because processors track those changes in a separate unit.
    pub reads: Registers,
    /// The registers among `reads` that make addresses.
    pub addresses: Registers,
    /// Registers that it writes.
    pub writes: Registers,
    /// The address that it loads from.
    pub loads: Option<Place>,
    /// The address that it stores to.
    pub stores: Option<Place>,
    /// The register to which the instruction only adds a constant, and the constant.
    pub adds: Option<(Registers, i64)>,
    /// It copies a register or makes a zero, which out-of-order processors do when they rename
    /// registers.
    pub renamed: bool,
    /// It divides, or takes a root.
    pub divides: bool,
    /// It locks memory while it reads and writes.
    pub locks: bool,
    /// It waits for all instructions before it, or all instructions behind it wait for it.
    pub serialises: bool,
    /// It is microcoded: a string instruction, say.
    pub microcoded: bool,
    /// Its address is a register times 2, 4 or 8.
    pub scaled: bool,
    /// It is a call.
    pub calls: bool,
    /// It enters the kernel.
    pub enters_kernel: bool,
    /// It sets flags that a conditional jump just after it may read in the same step: the processor
    /// fuses both into one operation.
    pub fuses: bool,
    /// It is a conditional jump.
    pub conditional: bool,
}

impl Work {
    /// Whether code elsewhere is executed before the next instruction.
    pub fn leaves(&self) -> bool {
        self.calls || self.enters_kernel
    }
}

impl Isa {
    /// The demands of the instruction that `bytes` begin with; None if they begin with no
    /// instruction.
    pub fn work(self, bytes: &[u8]) -> Option<Work> {
        match self {
            Self::X86_64 => x86_64::work(bytes),
            Self::Aarch64 => aarch64::work(bytes),
        }
    }

    /// Name of a form in the tables of machines.
    pub fn form_name(self, form: Form) -> String {
        match self {
            Self::X86_64 => x86_64::form_name(form),
            Self::Aarch64 => aarch64::form_name(form),
        }
    }

    /// All forms of the instruction set.
    pub fn forms(self) -> impl Iterator<Item = Form> {
        let (x86_64, aarch64) = match self {
            Self::X86_64 => (Some(x86_64::forms()), None),
            Self::Aarch64 => (None, Some(aarch64::forms())),
        };
        x86_64.into_iter().flatten().chain(aarch64.into_iter().flatten())
    }
}
