//! What an instruction asks of a processor: what it reads and writes, and what it may have to wait
//! for.

use super::{Isa, aarch64, x86_64};

/// The form of an instruction: what a processor's tables tell apart. Its operation, the sizes and
/// kinds of its operands, and whether one of them is memory.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Form(pub(crate) u16);

impl Form {
    /// Its number among the forms of its instruction set, from 0.
    #[must_use]
    pub fn number(self) -> usize {
        usize::from(self.0)
    }
}

/// Registers, a bit each; flags are registers too.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Registers(pub u64);

impl Registers {
    /// Those in either.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether some register is in both.
    #[must_use]
    pub fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Their numbers, 0 to 63.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let bit = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
            rest &= rest - 1;
            Some(bit)
        })
    }
}

/// Where memory is that an instruction reads or writes.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// On the stack, at a fixed distance from its pointer.
    Stack,
    /// At an address that the instruction itself says.
    Fixed,
    /// Where registers say.
    Computed,
}

/// What an instruction asks of a processor.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes it is long.
    pub len: u8,
    /// Its form.
    pub form: Form,
    /// What it reads. The stack pointer is left out where the instruction only pushes or pops:
    /// processors keep count of that apart.
    pub reads: Registers,
    /// Those of them that make addresses.
    pub addresses: Registers,
    /// What it writes.
    pub writes: Registers,
    /// Where it loads from.
    pub loads: Option<Place>,
    /// Where it stores to.
    pub stores: Option<Place>,
    /// The one register to which it only adds a constant, and that.
    pub adds: Option<(Registers, i64)>,
    /// It copies a register or makes a zero, which out-of-order processors do when they rename
    /// registers.
    pub renamed: bool,
    /// It divides, or takes a root.
    pub divides: bool,
    /// It has memory to itself while it reads and writes.
    pub locks: bool,
    /// It waits for all before it, or all behind it wait for it.
    pub serialises: bool,
    /// It is a program of the processor: a string instruction, say.
    pub microcoded: bool,
    /// Its address is a register times 2, 4 or 8.
    pub scaled: bool,
    /// It calls.
    pub calls: bool,
    /// It enters the kernel.
    pub enters_kernel: bool,
    /// It sets flags that a conditional jump just after it may read in the same step: the processor
    /// makes one of both.
    pub fuses: bool,
    /// A conditional jump.
    pub conditional: bool,
}

impl Work {
    /// Whether other code is executed before the next instruction.
    #[must_use]
    pub fn leaves(&self) -> bool {
        self.calls || self.enters_kernel
    }
}

impl Isa {
    /// What the instruction that `bytes` begin with asks of a processor; none if they begin with no
    /// instruction.
    #[must_use]
    pub fn work(self, bytes: &[u8]) -> Option<Work> {
        match self {
            Self::X86_64 => x86_64::work(bytes),
            Self::Aarch64 => aarch64::work(bytes),
        }
    }

    /// What a form is called in tables of machines.
    #[must_use]
    pub fn form_name(self, form: Form) -> String {
        match self {
            Self::X86_64 => x86_64::form_name(form),
            Self::Aarch64 => aarch64::form_name(form),
        }
    }

    /// All forms.
    pub fn forms(self) -> impl Iterator<Item = Form> {
        let (x86_64, aarch64) = match self {
            Self::X86_64 => (Some(x86_64::forms()), None),
            Self::Aarch64 => (None, Some(aarch64::forms())),
        };
        x86_64.into_iter().flatten().chain(aarch64.into_iter().flatten())
    }
}
