//! What an executable file is: its build (image id), the places of its bytes (file offset and
//! virtual address), and its procedures.
//!
//! Samples are kept as counts per *(image, offset)*, never per process address (DCPI paper,
//! section 4.3), so this crate answers these questions, from bytes alone:
//!
//! - [`identify`], [`identify_file`]: which build is it? → [`ImageId`]
//! - [`Layout`]: which virtual address does a byte of the file have, and back?
//! - [`procedures`]: which procedure holds an [`ImageOffset`]? → [`Procedures`]
//! - [`Constants`]: which of its bytes are the same in every process at any time?
//! - [`Imports`]: through which of its words does it call other files?
//! - [`DebugInfo`], [`Lines`]: which source line is at a [`Vaddr`]? → [`Frame`]s
//!
//! [`KeptFile`] answers the same for a file that is gone, from the part of it that was kept;
//! [`kernel`] for the running kernel, from its symbol list; and [`jit`] for code made at run time,
//! from the files that its compilers write.
//!
//! It knows no process, no profile and no instruction. Files come from strangers: no bytes make it
//! panic, and every allocation that a file asks for is bounded (see [`ImageError::TooLarge`]). Odd
//! input gives the result that can be had and a list of [`Finding`]s.

#![forbid(unsafe_code)]

mod binary;
mod collect;
mod constants;
mod cover;
mod debug_file;
mod debug_info;
mod demangle;
mod eh_frame;
mod elf;
mod error;
mod exports;
mod go_inlined;
mod go_program;
pub mod go_table;
mod id;
mod identify;
mod imports;
mod kept;
mod kept_parts;
mod kind;
mod layout;
mod lines;
mod near;
mod procedures;
mod rights;
mod sites;
mod source;
mod split;
mod stubs;
mod symbols;
mod thread_variables;

pub mod jit;
pub mod kernel;

pub use binary::{Binary, CODE_BYTES_MAX};
pub use collect::{procedures, procedures_of};
pub use constants::{Constant, Constants};
pub use debug_file::default_debug_roots;
pub use debug_info::DebugInfo;
pub use demangle::{demangle, without_suffix};
pub use error::ImageError;
pub use exports::{
    Export, exports_of_file, large_procedures_of_file, parts_of_procedure, prefixed_exports_of_file,
};
pub use go_program::{GoProgram, go_program_of_file};
pub use id::ImageId;
pub use identify::{build_id_of_file, identify, identify_file};
pub use imports::Imports;
pub use kept::{KEPT_BYTES_MAX, KeptFile, KeptRanges};
pub use kept_parts::{Chosen, LINE_BYTES, choose};
pub use kind::{ImageKind, ImageOffset, Vaddr};
pub use layout::{Layout, Segment};
pub use lines::{Frame, Lines, LinesCut, STRETCHES_MAX};
pub use procedures::{Finding, Procedure, ProcedureSource, Procedures};
pub use rights::OnBehalf;
pub use sites::{Site, Sites};
pub use thread_variables::{ThreadVariable, thread_variable_of_file};
