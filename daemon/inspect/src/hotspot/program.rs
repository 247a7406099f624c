//! Identifies HotSpot among a process's files.

use super::layouts::Layout;
use super::tables::{SYMBOLS, Tables};
use crate::python::Memory;
use image::{ImageOffset, Layout as FileLayout, Vaddr, exports_of_file};
use std::fs::File;

/// Whether a file of this path may be HotSpot.
pub fn may_be_hotspot(path: &[u8]) -> bool {
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    path.rsplit(|byte| *byte == b'/').next() == Some(b"libjvm.so")
}

/// A file with a HotSpot. Addresses are the file's.
#[derive(Debug)]
pub struct Program {
    symbols: [u64; SYMBOLS.len()],
    file: FileLayout,
}

impl Program {
    /// The HotSpot of a file. None: it does not export the tables.
    pub fn of_file(file: &File) -> Option<Self> {
        let exports = exports_of_file(file, &SYMBOLS).ok()?;
        let mut symbols = [0; SYMBOLS.len()];
        for (to, export) in symbols.iter_mut().zip(exports) {
            let Vaddr(vaddr) = export?.vaddr;
            *to = vaddr;
        }
        Some(Self { symbols, file: FileLayout::of_file(file).ok()? })
    }

    /// Difference between a process's addresses and the file's, where it has the byte at this
    /// offset mapped at `address`.
    pub fn bias(&self, address: u64, file_offset: u64) -> Option<u64> {
        self.file.bias(address, ImageOffset(file_offset))
    }

    /// The offsets that the VM of a process tells. None: it does not run yet.
    ///
    /// # Errors
    /// What it does not tell.
    pub fn layout(&self, memory: &impl Memory, bias: u64) -> Option<Result<Layout, String>> {
        let mut values = [0; SYMBOLS.len()];
        for (to, vaddr) in values.iter_mut().zip(self.symbols) {
            *to = memory.word(vaddr.wrapping_add(bias)).filter(|value| *value < 1 << 47)?;
        }
        let tables = Tables::read(memory, values)?;
        let version = tables.field(&["Abstract_VM_Version::_vm_major_version"]);
        let major = version.and_then(|at| memory.word(at)).map_or(0, |word| word as u32);
        let layout = Layout::of(&tables, major).map(|layout| layout.moved(bias));
        Some(layout.map_err(|what| format!("HotSpot {major} does not tell {what}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_machine_is_known_by_the_name_of_its_library() {
        assert!(may_be_hotspot(b"/usr/lib/jvm/java-17-openjdk-amd64/lib/server/libjvm.so"));
        assert!(may_be_hotspot(b"/opt/jre/lib/server/libjvm.so (deleted)"));
        assert!(!may_be_hotspot(b"/usr/lib/libjvm.so.1") && !may_be_hotspot(b"libjvm.so/java"));
    }
}
