//! Runs an unmodified program and counts every execution of every basic block, in the program and
//! in all its libraries, through threads, signals, forks and execs.
//!
//! ```text
//! program's code ──decode──> block ──liveness──> place of its counter ──emit──> code cache
//!   ^                                                                              │ runs
//!   └── system calls, signals, threads, execs: looked at by the engine <───exits───┘
//!                                                                  counts ──> area (a file)
//! ```
//!
//! `cargo xtask blockcount` links this library freestanding into one static program,
//! `dcpi-blockcount`: it shares the address space of the program that it runs, so it has no C
//! library, no thread-local storage, and touches nothing of the program's state. With the feature
//! `reader`, [`area::reader`] reads what was counted.
#![allow(unsafe_code, reason = "a translator: other programs' memory and registers")]
#![cfg_attr(not(any(test, feature = "reader")), no_std)]

extern crate alloc;

pub mod area;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod bursts;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod cache;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod code_writes;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod context;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod decode;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod emit;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod engine;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod execs;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod huge_pages;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod identity;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod liveness;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod load;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod memory;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod pc_map;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod programs;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod regions;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod signals;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod start;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod switch;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod syscalls;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod system;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod threads;
