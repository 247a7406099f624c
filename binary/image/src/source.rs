//! The bytes of a file, read piece by piece: a file may be a gigabyte, its headers are not.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt as _, OpenOptionsExt};
use std::path::Path;

use crate::{ImageError, KeptFile};

/// `O_NONBLOCK | O_NOCTTY` (include/uapi/asm-generic/fcntl.h; x86-64, arm64 and riscv use these):
/// if the name comes to mean a FIFO or terminal after the check, opening it has no effect.
const NO_SURPRISE: i32 = 0o4000 | 0o400;

/// The source of an image's bytes.
#[derive(Copy, Clone)]
pub(crate) enum Source<'a> {
    Bytes(&'a [u8]),
    /// A file, read with pread(2): its own position does not move.
    File {
        file: &'a File,
        len: u64,
    },
    /// The kept part of a file: zeros where nothing was kept.
    Kept(&'a KeptFile),
}

/// Opens a file for reading, if it is a regular file.
pub(crate) fn open(path: &Path) -> Result<File, ImageError> {
    let io = |op| move |source| ImageError::Io { op, path: Some(path.to_path_buf()), source };
    // The check comes before opening: opening some devices has effects.
    let metadata = std::fs::metadata(path).map_err(io("stat"))?;
    if !metadata.is_file() {
        return Err(ImageError::NotRegular { path: Some(path.to_path_buf()) });
    }
    OpenOptions::new().read(true).custom_flags(NO_SURPRISE).open(path).map_err(io("open"))
}

impl<'a> Source<'a> {
    /// An open file, if it is a regular file.
    pub(crate) fn file(file: &'a File) -> Result<Self, ImageError> {
        let metadata =
            file.metadata().map_err(|source| ImageError::Io { op: "stat", path: None, source })?;
        if !metadata.is_file() {
            return Err(ImageError::NotRegular { path: None });
        }
        Ok(Self::File { file, len: metadata.len() })
    }

    /// The file's owner; none if there is no such file here.
    pub(crate) fn owner(&self) -> Option<u32> {
        match self {
            Self::File { file, .. } => file.metadata().ok().map(|metadata| metadata.uid()),
            Self::Bytes(_) | Self::Kept(_) => None,
        }
    }

    /// Number of bytes.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File { len, .. } => *len,
            Self::Kept(kept) => kept.ranges().file_len(),
        }
    }

    /// Reads `size` bytes from `offset`; more than `limit` are refused.
    pub(crate) fn read(
        &self,
        what: &'static str,
        offset: u64,
        size: u64,
        limit: u64,
    ) -> Result<Cow<'a, [u8]>, ImageError> {
        if size > limit {
            return Err(ImageError::TooLarge { what, size, limit });
        }
        let malformed = ImageError::Malformed { what, offset };
        match offset.checked_add(size) {
            Some(end) if end <= self.len() => {}
            _ => return Err(malformed),
        }
        let Ok(len) = usize::try_from(size) else {
            return Err(malformed);
        };
        match self {
            Self::Bytes(bytes) => usize::try_from(offset)
                .ok()
                .and_then(|offset| bytes.get(offset..)?.get(..len))
                .map(Cow::Borrowed)
                .ok_or(malformed),
            Self::Kept(kept) => Ok(kept.read(offset, len)),
            Self::File { file, .. } => {
                let mut bytes = vec![0; len];
                match file.read_exact_at(&mut bytes, offset) {
                    Ok(()) => Ok(Cow::Owned(bytes)),
                    // The file was truncated while it was read.
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(malformed),
                    Err(source) => Err(ImageError::Io { op: "read", path: None, source }),
                }
            }
        }
    }

    /// Passes the bytes from `offset`, as many as there are and at most `size`, to `each`, in
    /// pieces of at most 64 KiB. Returns their number.
    pub(crate) fn stream(
        &self,
        what: &'static str,
        offset: u64,
        size: u64,
        mut each: impl FnMut(&[u8]),
    ) -> Result<u64, ImageError> {
        const PIECE: u64 = 64 << 10;
        let end = offset.saturating_add(size).min(self.len());
        let mut at = offset;
        while at < end {
            let len = PIECE.min(end - at);
            each(&self.read(what, at, len, PIECE)?);
            at += len;
        }
        Ok(at - offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_regular_file_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status();
        assert!(made.unwrap().success());
        for path in [fifo.as_path(), Path::new("/dev/zero"), dir.path()] {
            let error = open(path).unwrap_err();
            assert!(matches!(error, ImageError::NotRegular { .. }), "{error}");
            assert!(error.to_string().contains(path.to_str().unwrap()));
        }
        let error = open(&dir.path().join("none")).unwrap_err();
        assert!(matches!(error, ImageError::Io { op: "stat", .. }));
    }

    #[test]
    fn a_read_outside_is_malformed_and_a_large_one_too_large() {
        let source = Source::Bytes(b"0123456789");
        assert_eq!(&*source.read("x", 3, 4, 10).unwrap(), b"3456");
        for (offset, size) in [(0, 11), (11, 0), (u64::MAX, 2), (10, 1)] {
            let error = source.read("x", offset, size, 100).unwrap_err();
            assert!(matches!(error, ImageError::Malformed { what: "x", .. }));
        }
        assert!(matches!(
            source.read("x", 0, 5, 4),
            Err(ImageError::TooLarge { size: 5, limit: 4, .. })
        ));
    }

    #[test]
    fn a_file_reads_as_its_bytes_do() {
        let bytes: Vec<u8> = (0..200_000_u32).map(|n| n as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        io::Write::write_all(&mut file, &bytes).unwrap();
        for source in [Source::Bytes(&bytes), Source::file(&file).unwrap()] {
            let mut seen = Vec::new();
            let len = source.stream("x", 5, u64::MAX, |piece| seen.extend_from_slice(piece));
            assert_eq!(len.unwrap(), 199_995);
            assert_eq!(seen, bytes[5..]);
        }
    }
}
