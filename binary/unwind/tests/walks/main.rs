//! Walks of real programs against the truth, and of broken files and stacks.
//!
//! Tracing one's own children needs no privilege.

#[cfg(test)]
mod arm64;
#[cfg(test)]
mod go;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod large;
#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod process;
#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod programs;
#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod shadow;
#[cfg(test)]
mod synthetic;
#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod threads;
