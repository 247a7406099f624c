//! What an instruction does to the order of execution: all that a control-flow graph asks of most
//! of them.

use std::collections::BTreeSet;

use super::{Isa, aarch64, x86_64};
use crate::cfg::ReadOnly;
use crate::cfg::values::{Decision, State};

/// Where execution goes on after an instruction.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// At the next one.
    Next,
    /// There or at the next one.
    Conditional { target: u64 },
    /// There.
    Jump { target: u64 },
    /// Where a register or memory says; `through`: memory at a fixed address.
    Indirect { through: Option<u64> },
    /// In another procedure, and then at the next one.
    Call { target: Option<u64>, through: Option<u64> },
    /// In another procedure, and no more here. Instructions do not say so: the graph does.
    NoReturn { target: Option<u64>, through: Option<u64> },
    /// In the caller.
    Return,
    /// Nowhere.
    Trap,
}

/// An instruction, as far as the order of execution goes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ordered {
    /// Bytes it is long, at least 1.
    pub(crate) len: u8,
    pub(crate) flow: Flow,
    /// Whether compilers fill gaps with it: it does nothing, or stops.
    pub(crate) filler: bool,
}

/// Code that does nothing but jump to where a word at a fixed address says, and takes more than one
/// instruction for that.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stub {
    /// Bytes it is long.
    pub(crate) len: usize,
    /// The word's address.
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

    /// Bytes from one place where an instruction may begin to the next.
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

/// Follows values through instructions.
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

    /// The number of the register that has the stack pointer.
    pub(crate) fn stack(&self) -> usize {
        match &self.0 {
            Followed::X86_64(_) => x86_64::Tracker::STACK,
            Followed::Aarch64(_) => aarch64::Tracker::STACK,
        }
    }

    /// How many registers are followed.
    pub(crate) fn registers(&self) -> usize {
        match &self.0 {
            Followed::X86_64(_) => x86_64::Tracker::REGISTERS,
            Followed::Aarch64(_) => aarch64::Tracker::REGISTERS,
        }
    }

    /// Addresses that the instructions so far name.
    pub(crate) fn named(&self) -> &BTreeSet<u64> {
        match &self.0 {
            Followed::X86_64(tracker) => tracker.named(),
            Followed::Aarch64(tracker) => tracker.named(),
        }
    }

    /// Makes `state` that after the instruction that `bytes` begin with, at the address `at`.
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
