//! Where the bytes of a file come from.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The bytes of one file with code: a file on disk, the vDSO's bytes, code kept of a file that is
/// gone. The walker reads a few pages of each, never the whole.
pub trait ReadAt {
    /// Copies bytes from `offset` on into `buffer` and returns their number, which is smaller than
    /// the buffer's only at the end of the file, or 0 beyond it.
    ///
    /// # Errors
    /// The file cannot be read.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
}

impl ReadAt for File {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match FileExt::read_at(self, rest, offset.saturating_add(done as u64)) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}

impl ReadAt for [u8] {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let begin = usize::try_from(offset).unwrap_or(usize::MAX).min(self.len());
        let rest = self.get(begin..).unwrap_or_default();
        let len = rest.len().min(buffer.len());
        if let (Some(into), Some(from)) = (buffer.get_mut(..len), rest.get(..len)) {
            into.copy_from_slice(from);
        }
        Ok(len)
    }
}

impl ReadAt for Vec<u8> {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.as_slice().read_at(offset, buffer)
    }
}
