//! Looking into strangers: other users' processes, and files that anybody may have made.
//!
//! Any of these looks may never end: a file system that a program serves need not answer, and who
//! waits for it cannot be killed. So dcpid itself looks at nothing. It asks an inspector, a process
//! of the same program with the rights to look, over a socket and with a deadline. An inspector
//! that does not answer is given up and another is started; who made it wait is not asked about
//! again for a while. An inspector holds no samples and writes nothing.

pub mod answers;
pub mod blame;
mod build_files;
mod code_files;
pub mod frames;
pub mod inspector;
pub mod pool;
pub mod python;
pub mod questions;
mod stack_walks;
pub mod starter;
pub mod walks;
