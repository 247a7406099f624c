//! Control-flow graphs of real programs: of everything that is installed, and against what
//! compilers meant and processors do.

#[cfg(test)]
mod around;
#[cfg(test)]
mod callgrind;
#[cfg(test)]
mod compilers;
#[cfg(test)]
mod program;
#[cfg(test)]
#[path = "../walks/programs.rs"]
mod programs;
#[cfg(test)]
mod qemu;
#[cfg(test)]
mod sweep;
