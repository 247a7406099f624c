//! Instruction sets. Only this folder names a decoder.

use std::fmt;

use image::Vaddr;

mod x86_64;

/// An instruction set.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Isa {
    /// x86-64 in 64-bit mode.
    X86_64,
}

/// How assembly is written.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Syntax {
    /// As `objdump` and gcc write it: source first.
    #[default]
    Att,
    /// As the manuals of Intel write it: destination first.
    Intel,
}

/// An instruction in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Its first byte.
    pub address: Vaddr,
    /// Bytes it is long, at least 1. A byte that begins no instruction is a line of its own.
    pub len: usize,
    /// Mnemonic and operands.
    pub text: String,
    /// Where it jumps to or calls, if the instruction itself says so.
    pub target: Option<Vaddr>,
}

impl Isa {
    /// The instruction set of an ELF file by its `e_machine` (System V ABI, `EM_X86_64` is 62), if it is one of ours.
    #[must_use]
    pub fn of_elf_machine(machine: u16) -> Option<Self> {
        (machine == 62).then_some(Self::X86_64)
    }

    /// The instructions of `bytes`, of which the first is at `address`, in order and without a gap.
    #[must_use]
    pub fn disassemble(self, bytes: &[u8], address: Vaddr, syntax: Syntax) -> Vec<Line> {
        match self {
            Self::X86_64 => x86_64::disassemble(bytes, address, syntax),
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::X86_64 => "x86-64",
        })
    }
}
