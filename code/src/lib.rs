//! What a piece of machine code says: its instructions. Pure: bytes in, values out; no file, process or profile is known here.
//!
//! Bytes come from strangers: whatever they are, nothing panics, and the work is linear in their number.

#![forbid(unsafe_code)]

pub mod interpret;
pub mod isa;
