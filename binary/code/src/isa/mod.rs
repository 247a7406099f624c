//! Instruction sets. Only this folder names a decoder.

use std::fmt;

use image::Vaddr;

pub mod aarch64;
mod arithmetic;
mod compared;
mod flags;
pub(crate) mod flow;
pub(crate) mod leads;
pub mod work;
pub mod x86_64;

/// The instruction set of the processor that this program runs on, for the interpreter.
#[cfg(target_arch = "aarch64")]
pub type Native = aarch64::Aarch64;
/// The instruction set of the processor that this program runs on, for the interpreter.
#[cfg(not(target_arch = "aarch64"))]
pub type Native = x86_64::X86_64;

/// An instruction set whose code is decoded.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Isa {
    /// x86-64 in 64-bit mode.
    X86_64,
    /// A64: Arm in 64-bit state, little- or big-endian data.
    Aarch64,
}

/// Syntax of x86-64 assembly. Other instruction sets have only one.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Syntax {
    /// As `objdump` and gcc write it: source first.
    #[default]
    Att,
    /// As the manuals of Intel write it: destination first.
    Intel,
}

/// An instruction as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Address of its first byte.
    pub address: Vaddr,
    /// Length in bytes, at least 1. A byte that begins no instruction is a line of its own.
    pub len: usize,
    /// Mnemonic and operands; empty where no text was asked for.
    pub text: String,
    /// Target of a direct jump or call.
    pub target: Option<Vaddr>,
    /// True when a sample that lands behind the instruction does not belong to it: a jump, a call,
    /// a return or a trap, after which execution came from elsewhere; or a no-op, which takes no
    /// time and mostly fills the gap between a jump and the target of another.
    pub bars: bool,
}

impl Isa {
    /// All instruction sets.
    pub const ALL: [Self; 2] = [Self::X86_64, Self::Aarch64];

    /// The instruction set of an ELF file by its `e_machine` (System V ABI: `EM_X86_64` is 62,
    /// `EM_AARCH64` is 183); None for others.
    pub fn of_elf_machine(machine: u16) -> Option<Self> {
        match machine {
            62 => Some(Self::X86_64),
            183 => Some(Self::Aarch64),
            _ => None,
        }
    }

    /// Disassembles `bytes`, the first of which is at `address`, in order and without a gap.
    /// Without a syntax the lines have no text, which takes a fraction of the time.
    pub fn disassemble(
        self,
        bytes: &[u8],
        address: Vaddr,
        syntax: impl Into<Option<Syntax>>,
    ) -> Vec<Line> {
        let syntax = syntax.into();
        match self {
            Self::X86_64 => x86_64::disassemble(bytes, address, syntax),
            Self::Aarch64 => aarch64::disassemble(bytes, address, syntax.is_some()),
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::X86_64 => "x86-64",
            Self::Aarch64 => "AArch64",
        })
    }
}
