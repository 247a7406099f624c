//! Control-flow graphs of real programs: of everything that is installed, and against what compilers meant and processors do.

#[cfg(test)]
mod program;
#[cfg(test)]
mod sweep;
