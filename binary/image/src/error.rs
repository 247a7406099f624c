//! Errors of this crate.

use std::io;
use std::path::PathBuf;

use crate::ImageId;

/// The reason why an image could not be read, identified or named.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The operating system refused an operation. Not the file's shape: those are the others.
    #[error("cannot {op} {}", shown(.path))]
    Io {
        /// The operation: "open", "stat", "read".
        op: &'static str,
        /// Path of the file, where it is known (an open file has no name).
        path: Option<PathBuf>,
        /// The system's error.
        source: io::Error,
    },
    /// A directory, device, FIFO or socket, which is never read, since reading may block or have
    /// effects.
    #[error("{} is not a regular file", shown(.path))]
    NotRegular {
        /// Path of the file, where it is known.
        path: Option<PathBuf>,
    },
    /// The file does not begin as an ELF file does.
    #[error("not an ELF file")]
    NotElf,
    /// The file begins as an ELF file, but its headers contradict that.
    #[error("malformed ELF file: {what} at file offset {offset:#x}")]
    Malformed {
        /// The part that is malformed.
        what: &'static str,
        /// Where that part should be, in bytes from the start of the file.
        offset: u64,
    },
    /// A part is larger than the limit on reading or holding it.
    #[error("{what} is too large: {size} (at most {limit})")]
    TooLarge {
        /// The part, with the unit of the numbers.
        what: &'static str,
        /// The size in the data.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// The ELF file has no build id and no byte of code: nothing tells it from another.
    #[error("no build id and no code to identify it by")]
    NoText,
    /// The file is of another build than the samples that are being named.
    #[error("wrong build: the samples are of {expected}, the file is {found}")]
    WrongBuild {
        /// The build that was asked for.
        expected: ImageId,
        /// The build of the file.
        found: ImageId,
    },
    /// Text that is not the text form of an [`ImageId`].
    #[error("not an image id: {text:?}")]
    BadId {
        /// The text (its first 64 characters).
        text: String,
    },
    /// Text that is not the text form of an [`ImageKind`](crate::ImageKind).
    #[error("not an image kind: {text:?}")]
    BadKind {
        /// The text (its first 64 characters).
        text: String,
    },
    /// The kernel shows its symbols without addresses (`kernel.kptr_restrict`).
    #[error(
        "the kernel hides its symbols' addresses; read them as root, or with kernel.kptr_restrict=0"
    )]
    AddressesHidden,
    /// A list of kernel symbols lacks a symbol that every kernel has.
    #[error("the kernel's symbol list has no {name}")]
    NoKernelSymbol {
        /// The symbol that is missing.
        name: &'static str,
    },
}

impl ImageError {
    /// Adds the file's name to an error that can have one and has none.
    pub(crate) fn of(mut self, of: &std::path::Path) -> Self {
        if let Self::Io { path, .. } | Self::NotRegular { path } = &mut self
            && path.is_none()
        {
            *path = Some(of.to_path_buf());
        }
        self
    }
}

/// A file's name, for people.
fn shown(path: &Option<PathBuf>) -> String {
    path.as_ref().map_or_else(|| "the file".to_owned(), |path| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn an_error_names_its_file_once_it_is_known() {
        let error = ImageError::NotRegular { path: None };
        assert_eq!(error.to_string(), "the file is not a regular file");
        let error = error.of(Path::new("/dev/null")).of(Path::new("/other"));
        assert_eq!(error.to_string(), "/dev/null is not a regular file");
    }
}
