//! The assembler wrapper: adds an event to each basic block of what a compiler wrote, and hands the
//! result to the assembler. `gcc -B FOLDER` runs it because it finds it under the name `as`.
//! docs/src/blocks.md says how to use it.
//!
//! ```text
//! cc1 ──assembly──> [survey] ──> [rewrite] ──assembly with events──> as ──object──> ld
//! ```
#![forbid(unsafe_code)]

pub mod line;
pub mod rewrite;
pub mod survey;
