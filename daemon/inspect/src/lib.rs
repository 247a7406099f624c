//! Inspection of untrusted objects: other users' processes, and files that any user may have made.
//!
//! Any of these looks may never end: a file system that a program serves need not answer, and a
//! thread that waits for such a file system cannot be killed. So dcpid itself looks at nothing. It
//! asks an inspector, a process of the same program with the rights to look, over a socket and with
//! a deadline. An inspector that does not answer is given up and another is started; the user who
//! made it wait is not asked about again for a while. An inspector holds no samples and writes
//! nothing.
//!
//! This crate is both sides of that socket and everything that runs behind it, so it can be
//! reviewed alone. It keeps no counts and no address maps, and of the database it knows only how a
//! path is escaped. The daemon's side is [`pool`]: the inspectors, and the deadline of each
//! question. The inspector's side begins in [`starter`] and [`inspector`].
//!
//! Begin with [`questions`], the closed list of what dcpid may ask; [`answers`] finds each answer,
//! with [`open_mapped`] (the very file that a process has mapped), [`file_facts`] (one state of a
//! file told from another), [`file_catalogue`] (what was learnt of files; dcpid saves its own, an
//! inspector none), `containers` (what engines say of theirs), [`vdso`], [`jit`] (what compilers
//! say about generated code), `stack_walks` and [`walks`] (registers and stacks), and [`runtimes`]
//! with [`python`], [`lists`], [`v8`], [`hotspot`], [`erlang`], [`luajit`] and [`dotnet`]
//! (functions that interpreters and compilers run), and [`attributes`] (what programs say of their
//! own threads).

#![forbid(unsafe_code)]

mod accesses;
mod ahead;
pub mod answers;
pub mod attributes;
pub mod blame;
mod build_files;
mod code_files;
mod containers;
pub mod dotnet;
pub mod erlang;
pub mod file_catalogue;
pub mod file_facts;
pub mod frame_words;
pub mod frames;
pub mod hotspot;
pub mod inspector;
pub mod jit;
pub mod learnt;
pub mod lists;
pub mod luajit;
pub mod open_mapped;
mod page_sizes;
pub mod pool;
mod programs;
pub mod python;
pub mod questions;
mod remapped_text;
pub mod runtimes;
mod stack_walks;
pub mod starter;
pub mod v8;
pub mod vdso;
pub mod walks;
