//! Real ELF files, and hostile ones: programs compiled on the spot with `cc` and changed with
//! binutils, this test's own binary, this machine's vdso, and headers written by hand.

#[cfg(test)]
mod compile;
#[cfg(test)]
mod constants;
#[cfg(test)]
mod debug_files;
#[cfg(test)]
mod exports;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod go;
#[cfg(test)]
mod handmade;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod identity;
#[cfg(test)]
mod imports;
#[cfg(test)]
mod kept;
#[cfg(test)]
mod lines;
#[cfg(test)]
mod names;
#[cfg(test)]
mod running;
