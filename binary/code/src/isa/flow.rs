//! The effect of an instruction on the order of execution, which is nearly all that a control-flow
//! graph needs of an instruction.

use std::collections::BTreeSet;

use super::{Isa, aarch64, x86_64};
use crate::values::ReadOnly;
use crate::values::{Decision, State};

/// The place where execution goes on after an instruction.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// At the next instruction.
    Next,
    /// At the target or at the next instruction.
    Conditional {
        target: u64,
    },
    Jump {
        target: u64,
    },
    /// At an address in a register or in memory; `through` is the memory's address where it is
    /// fixed.
    Indirect {
        through: Option<u64>,
    },
    /// In another procedure, and then at the next instruction.
    Call {
        target: Option<u64>,
        through: Option<u64>,
    },
    /// In another procedure that does not return. Instructions do not say so: the graph finds out.
    NoReturn {
        target: Option<u64>,
        through: Option<u64>,
    },
    /// In the caller.
    Return,
    /// Nowhere.
    Trap,
}

/// An instruction's effect on the order of execution.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ordered {
    /// Length in bytes, at least 1.
    pub(crate) len: u8,
    pub(crate) flow: Flow,
    /// Whether compilers fill gaps with the instruction: a no-op or a trap.
    pub(crate) filler: bool,
}

/// A stub of several instructions that only jumps to the address in a word at a fixed address, such
/// as an entry of the procedure linkage table.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stub {
    /// Length in bytes.
    pub(crate) len: usize,
    /// Address of the word.
    pub(crate) through: u64,
}

/// Instructions of the longest [`Stub`].
pub(crate) const STUB_MAX: usize = 5;

impl Isa {
    /// The instruction that `bytes` begin with, at `address`.
    pub(crate) fn order(self, bytes: &[u8], address: u64) -> Option<Ordered> {
        match self {
            Self::X86_64 => x86_64::order(bytes, address),
            Self::Aarch64 => aarch64::order(bytes, address),
        }
    }

    /// Alignment of instructions, in bytes.
    pub(crate) fn step(self) -> usize {
        match self {
            Self::X86_64 => 1,
            Self::Aarch64 => usize::from(aarch64::LEN),
        }
    }

    /// The stub that `bytes` begin with, at `address`.
    pub(crate) fn stub(self, bytes: &[u8], address: u64) -> Option<Stub> {
        match self {
            Self::X86_64 => None,
            Self::Aarch64 => aarch64::stub(bytes, address),
        }
    }
}

/// Follows the values of registers through instructions.
#[derive(Debug)]
pub(crate) struct Tracker(Followed);

#[derive(Debug)]
enum Followed {
    X86_64(x86_64::Tracker),
    Aarch64(aarch64::Tracker),
}

impl Tracker {
    pub(crate) fn new(isa: Isa) -> Self {
        match isa {
            Isa::X86_64 => Self(Followed::X86_64(x86_64::Tracker::default())),
            Isa::Aarch64 => Self(Followed::Aarch64(aarch64::Tracker::default())),
        }
    }

    /// The number of the stack pointer's register.
    pub(crate) fn stack(&self) -> usize {
        match &self.0 {
            Followed::X86_64(_) => x86_64::Tracker::STACK,
            Followed::Aarch64(_) => aarch64::Tracker::STACK,
        }
    }

    /// The number of registers that are followed.
    pub(crate) fn registers(&self) -> usize {
        match &self.0 {
            Followed::X86_64(_) => x86_64::Tracker::REGISTERS,
            Followed::Aarch64(_) => aarch64::Tracker::REGISTERS,
        }
    }

    /// Addresses that the instructions so far have as operands.
    pub(crate) fn named(&self) -> &BTreeSet<u64> {
        match &self.0 {
            Followed::X86_64(tracker) => tracker.named(),
            Followed::Aarch64(tracker) => tracker.named(),
        }
    }

    /// Changes `state` to that after the instruction that `bytes` begin with, at the address `at`.
    pub(crate) fn step(
        &mut self,
        bytes: &[u8],
        at: u64,
        state: &mut State,
        memory: &mut impl ReadOnly,
    ) -> Decision {
        match &mut self.0 {
            Followed::X86_64(tracker) => tracker.step(bytes, at, state, memory),
            Followed::Aarch64(tracker) => tracker.step(bytes, at, state, memory),
        }
    }
}
