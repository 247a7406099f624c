//! Walks of real programs against the truth, and of broken files and stacks.
//!
//! Tracing one's own children needs no privilege.

#[cfg(all(test, target_arch = "x86_64"))]
mod process;
#[cfg(all(test, target_arch = "x86_64"))]
mod programs;
#[cfg(all(test, target_arch = "x86_64"))]
mod shadow;
