//! What a piece of machine code says. Pure: bytes and numbers in, values out; no file, process or
//! profile is known here.
//!
//! - [`isa::Isa::disassemble`]: its instructions, in words.
//! - [`interpret::Walker`]: where a thread goes next, from its registers at a sample. Below the
//!   daemon as well as below the analysis, because registers never reach the disk: they are
//!   followed while draining, and only the branches that were met are counted.
//! - [`cfg::Cfg`]: what may be executed after what in a procedure; its loops, and what is executed
//!   equally often.
//! - [`skid::Skid`]: to which instruction a sample belongs.
//!
//! What holds:
//! 1. Bytes and registers come from strangers: whatever they are, nothing panics, a disassembly
//!    takes time linear in the bytes, and a walk ends after [`interpret::STEPS_MAX`] instructions.
//! 2. A walk says nothing that is not so. A bit that is known has that value; what is not modelled,
//!    and memory that others may have changed, is unknown; where something unknown decides, the
//!    walk ends. The tests hold this against the processor, instruction by instruction. What is
//!    taken for granted is listed in [`interpret`].
//! 3. Only `isa` names a decoder, and only a folder of its own for each instruction set knows
//!    registers and flags: another one is an [`interpret::InstructionSet`] more.
//! 4. Memory is bounded: a [`interpret::Walker`] has a table of decoded instructions of a fixed
//!    size, and room for one walk.

#![forbid(unsafe_code)]

pub mod cfg;
pub mod interpret;
pub mod isa;
pub mod skid;
