//! Address spaces: which file was mapped at which address of which process, and which scope the
//! process belonged to.
//!
//! The kernel's records say which process mapped which file where. From them, a scan of `/proc` at
//! the start, and the inspectors' answers, this crate knows for any address of any process at any
//! time the file, its image and its scope (label, unit, process, or left out). The crate sees no
//! samples and never opens another user's files itself: it asks `inspect`.
//!
//! Begin with [`mappings`]: its records become address maps by time and generation, its
//! `programs.rs` finds the file of text that is counted once for all processes, and its `labels.rs`
//! keeps what the user labels. [`mapped_files`] finds out which image a file is, with
//! [`file_versions`] where the kernel reported only the inode; [`library`] offers the file's code
//! to the librarian. [`jit`] has code that is not in a file, [`kernel_text`] the kernel's,
//! [`vdso32`] and [`script_files`] special images, and [`unknown_code`] images that stand for a
//! reason. [`scopes`], [`cgroups`] and [`users`] determine the scope and the user of a process.
//! [`loader_notices`] receives the loader hook's notices. Every question to this machine goes
//! through [`system`], which also keeps the answers of a recording.

#![forbid(unsafe_code)]

pub mod cgroups;
pub mod file_versions;
pub mod jit;
pub mod kernel_code_records;
pub mod kernel_text;
pub mod library;
pub mod loader_notices;
pub mod mapped_files;
pub mod mappings;
pub mod scopes;
pub mod script_files;
pub mod system;
pub mod unknown_code;
pub mod users;
pub mod vdso32;
