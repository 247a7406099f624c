//! What a piece of machine code does. Pure: bytes and numbers in, values out; no file, process or
//! profile is known here.
//!
//! - [`isa::Isa::disassemble`]: the instructions of the code, as text.
//! - [`interpret::Walker`]: where a thread goes next, from its registers at a sample. The daemon
//!   needs it as well as the analysis: registers never reach the disk, so the daemon follows them
//!   at the drain and counts the branches that it meets.
//! - [`cfg::Cfg`]: the control-flow graph of a procedure, its loops, and its blocks that are
//!   executed equally often.
//! - [`skid::Skid`]: to which instruction a sample belongs.
//!
//! Invariants:
//! 1. Bytes and registers come from strangers: whatever they are, nothing panics, a disassembly
//!    takes time linear in the bytes, and a walk ends after [`interpret::STEPS_MAX`] instructions.
//! 2. A walk says nothing that is not so. A bit that is known has that value. What is not modelled,
//!    and memory that others may have changed, is unknown. Where something unknown decides, the
//!    walk ends. The tests compare walks with the processor, instruction by instruction.
//!    [`interpret`] lists the assumptions.
//! 3. Only `isa` names a decoder. Registers and flags are known only in the folder of their
//!    instruction set: a new instruction set is one more [`interpret::InstructionSet`].
//! 4. Memory is bounded: a [`interpret::Walker`] has a table of decoded instructions of a fixed
//!    size, and room for one walk.

#![forbid(unsafe_code)]

pub mod cfg;
pub mod interpret;
pub mod isa;
pub mod skid;
mod values;
