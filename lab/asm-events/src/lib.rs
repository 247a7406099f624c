//! The assembler wrapper: adds an event to each basic block of a compiler's output, and passes the
//! result to the assembler. `gcc -B FOLDER` runs the wrapper because its name there is `as`.
//! docs/src/blocks.md says how to use it.
//!
//! ```text
//! cc1 ──assembly──> [survey] ──> [rewrite] ──assembly with events──> as ──object──> ld
//! ```
#![forbid(unsafe_code)]

pub mod line;
pub mod rewrite;
pub mod survey;
