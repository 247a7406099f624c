//! Files that a command is given to read. To open a FIFO waits for a writer, perhaps for ever, and
//! to open some devices does something: only plain files are opened.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use clap::builder::{OsStringValueParser, TypedValueParser};
use rustix::fs::OFlags;

/// Opens a plain file for reading.
///
/// # Errors
/// The errors of open(2), and a one-line error for a file that is not a plain file.
pub fn open(path: &Path) -> io::Result<File> {
    check(path)?;
    // If the name comes to mean something else after the look, to open that has no effect.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(no_plain_file());
    }
    Ok(file)
}

/// A path that is read later: of a plain file, or /dev/null.
pub(crate) fn argument() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().try_map(|name| {
        let path = PathBuf::from(name);
        match path == Path::new("/dev/null") {
            true => Ok(path),
            false => check(&path).map(|()| path),
        }
    })
}

fn check(path: &Path) -> io::Result<()> {
    let metadata = std::fs::metadata(path)?;
    if metadata.is_dir() {
        return Err(io::Error::other("it is a directory; name a file"));
    }
    if metadata.is_file() { Ok(()) } else { Err(no_plain_file()) }
}

fn no_plain_file() -> io::Error {
    io::Error::other("it is no plain file; write what a pipe or device gives to one first")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `dcpi trace FIFO` waited for ever.
    #[test]
    fn what_is_no_plain_file_is_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let (fifo, plain) = (directory.path().join("fifo"), directory.path().join("plain"));
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        std::fs::write(&plain, "x").unwrap();
        for path in [&fifo, Path::new("/dev/zero"), Path::new("/dev/null")] {
            let error = open(path).unwrap_err().to_string();
            assert!(error.contains("no plain file"), "{error}");
        }
        assert!(open(directory.path()).unwrap_err().to_string().contains("directory"));
        assert!(open(&directory.path().join("none")).is_err());
        open(&plain).unwrap();
    }
}
