//! Walks against the truth: real programs are stopped at random moments, walked through from what a
//! sample has, and then executed instruction by instruction. Every branch must go where the walk
//! said, and every bit that was known must be what it is.
//!
//! Tracing one's own children needs no privilege. `cargo xtask bench walks` does it with a million
//! states.

#[cfg(test)]
mod ahead;
#[cfg(test)]
mod arm;
#[cfg(test)]
mod compare;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod instructions;
#[cfg(test)]
mod process;
#[cfg(test)]
mod programs;
#[cfg(test)]
mod rounds;
#[cfg(test)]
mod truth;
#[cfg(test)]
mod view;
