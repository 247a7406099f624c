//! Everything that can go wrong in this crate.

use std::io;
use std::path::PathBuf;

use crate::ImageId;

/// Why an image could not be read, identified or named.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The operating system refused an operation. Not the file's shape: those are the others.
    #[error("cannot {op} {}", shown(.path))]
    Io {
        /// What was asked: "open", "stat", "read".
        op: &'static str,
        /// Of which file, where it is known (an open file has no name).
        path: Option<PathBuf>,
        /// What the system said.
        source: io::Error,
    },
    /// A directory, device, FIFO or socket: never read, since reading may block or have effects.
    #[error("{} is not a regular file", shown(.path))]
    NotRegular {
        /// Which file, where it is known.
        path: Option<PathBuf>,
    },
    /// It does not begin as an ELF file does.
    #[error("not an ELF file")]
    NotElf,
    /// It begins as an ELF file, but its headers contradict it.
    #[error("malformed ELF file: {what} at file offset {offset:#x}")]
    Malformed {
        /// Which part.
        what: &'static str,
        /// Where that part should be, in bytes from the start of the file.
        offset: u64,
    },
    /// More than we agree to read or hold.
    #[error("{what} is too large: {size} (at most {limit})")]
    TooLarge {
        /// Which part, and of what unit the numbers are.
        what: &'static str,
        /// What the data asks for.
        size: u64,
        /// What we allow.
        limit: u64,
    },
    /// The ELF file has no build id and no byte of code: nothing tells it from another.
    #[error("no build id and no code to identify it by")]
    NoText,
    /// The file is another build than the one whose samples are being named.
    #[error("wrong build: the samples are of {expected}, the file is {found}")]
    WrongBuild {
        /// The build asked for.
        expected: ImageId,
        /// The build in the file.
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
    /// A kernel symbol list without what it must have.
    #[error("the kernel's symbol list has no {name}")]
    NoKernelSymbol {
        /// The symbol that is missing.
        name: &'static str,
    },
}

impl ImageError {
    /// The same error, with the file's name where it can carry one and has none.
    pub(crate) fn of(mut self, of: &std::path::Path) -> Self {
        if let Self::Io { path, .. } | Self::NotRegular { path } = &mut self
            && path.is_none()
        {
            *path = Some(of.to_path_buf());
        }
        self
    }
}

/// A file's name for people.
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
