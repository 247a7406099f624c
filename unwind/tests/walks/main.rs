//! Walks of real programs against the truth, and of broken files and stacks.
//!
//! Tracing one's own children needs no privilege.
#![cfg(target_arch = "x86_64")]

#[cfg(test)]
mod process;
#[cfg(test)]
mod programs;
#[cfg(test)]
mod shadow;
