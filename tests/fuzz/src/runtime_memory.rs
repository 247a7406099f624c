//! The memory of a process with a runtime, from the bytes of a fuzzer.

use inspect::python::Memory;

/// Address of the first byte; those before cannot be read.
pub const BASE: u64 = 0x1000;

/// Bytes from [`BASE`] on.
pub struct Bytes<'a>(pub &'a [u8]);

impl Memory for Bytes<'_> {
    fn read(&self, at: u64, buffer: &mut [u8]) -> usize {
        let begin = at.checked_sub(BASE).and_then(|begin| usize::try_from(begin).ok());
        let rest = begin.and_then(|begin| self.0.get(begin..)).unwrap_or_default();
        let len = rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&rest[..len]);
        len
    }
}
