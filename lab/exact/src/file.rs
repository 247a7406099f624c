//! A file that code was mapped from, after the run: its path may lead to another file by then, or
//! nowhere.

use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// A file with executed code.
#[derive(Debug)]
pub struct CodeFile {
    /// The path by which the file was mapped, or that it has now.
    pub path: PathBuf,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The path leads to the file.
    There,
    /// No path leads to the file, which is open.
    Held(File),
    Unfound(Unfound),
}

impl CodeFile {
    /// A file that its path leads to.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        Self { path: path.to_owned(), state: State::There }
    }

    /// Whether no path leads to the file any more.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self.state, State::Held(_))
    }

    /// Why there is nothing to open, as [`crate::Unattributed::add`] takes it.
    #[must_use]
    pub fn why(&self) -> &'static str {
        match self.state {
            State::Unfound(why) => why.words(),
            _ => "a file that is no program or cannot be read",
        }
    }

    /// A path that leads to the file as long as this value lives.
    #[must_use]
    pub fn place(&self) -> PathBuf {
        match &self.state {
            State::Held(file) => format!("/proc/self/fd/{}", file.as_raw_fd()).into(),
            _ => self.path.clone(),
        }
    }

    /// Opens the file.
    ///
    /// # Errors
    /// Returns the errors of the file system.
    pub fn open(&self) -> io::Result<File> {
        match &self.state {
            State::There => File::open(&self.path),
            State::Held(file) => file.try_clone(),
            State::Unfound(why) => Err(io::Error::other(why.words())),
        }
    }
}

/// A file when code was mapped from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Identity {
    /// Major number in the high half, minor in the low one.
    pub device: u64,
    pub inode: u64,
    /// Size in bytes and time of the last modification in ns since 1970; None where nobody saw the
    /// file when it was mapped.
    pub content: Option<(u64, u64)>,
}

/// Why a file could not be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Unfound {
    Gone,
    Changed,
}

impl Unfound {
    /// As [`crate::Unattributed::add`] takes it.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Gone => "a file that was gone before it was identified",
            Self::Changed => "a file that was changed after it was mapped",
        }
    }
}

impl Identity {
    /// Whether an open file, or one at a path, is this one and has the same content.
    fn check(&self, found: &Metadata) -> Result<(), Unfound> {
        let [major, minor] = device_of(found);
        // /proc/PID/maps names another device than stat(2) does on file systems that have none of
        // their own (btrfs, overlayfs).
        let unseen = self.content.is_none() && major == 0;
        let is_device = self.device == major << 32 | minor || unseen;
        if !found.is_file() || found.ino() != self.inode || !is_device {
            return Err(Unfound::Gone);
        }
        match self.content {
            Some(content) if content != content_of(found) => Err(Unfound::Changed),
            _ => Ok(()),
        }
    }

    /// Finds the file by the path of a line of /proc/PID/maps, or by a descriptor that was opened
    /// while it was mapped.
    pub(crate) fn find(&self, mapped: &[u8], held: Option<&File>) -> Result<CodeFile, Unfound> {
        let now = held.and_then(|file| {
            std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
        });
        let paths = spellings(mapped).into_iter().chain(now);
        let mut why = Unfound::Gone;
        for path in paths {
            match std::fs::metadata(&path).map(|found| self.check(&found)) {
                Ok(Ok(())) => return Ok(CodeFile::at(&path)),
                Ok(Err(Unfound::Changed)) => why = Unfound::Changed,
                _ => {}
            }
        }
        let file = held.ok_or(why)?;
        self.check(&file.metadata().map_err(|_| why)?)?;
        let state = State::Held(file.try_clone().map_err(|_| why)?);
        Ok(CodeFile { path: shown(mapped), state })
    }

    /// Opens the file, of which a process has mapped a range of addresses. Returns it with the
    /// identity of its content.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn open(&self, process: i32, range: &str, mapped: &[u8]) -> Option<(Self, File)> {
        // The mapping itself, which root may open, or else a path that leads to it.
        let mut paths = vec![PathBuf::from(format!("/proc/{process}/map_files/{range}"))];
        let root = PathBuf::from(format!("/proc/{process}/root"));
        let beneath = |path: PathBuf| path.strip_prefix("/").ok().map(|path| root.join(path));
        paths.extend(spellings(mapped).into_iter().filter_map(beneath));
        paths.push(format!("/proc/{process}/exe").into());
        paths.iter().enumerate().find_map(|(number, path)| {
            let found = std::fs::metadata(path).ok().filter(Metadata::is_file)?;
            // Devices and inodes of the mapping itself need not be those of /proc/PID/maps.
            self.check(&found).or(if number == 0 { Ok(()) } else { Err(Unfound::Gone) }).ok()?;
            let file = File::open(path).ok()?;
            let found = file.metadata().ok()?;
            let (device, inode) = key(&found);
            Some((Self { device, inode, content: Some(content_of(&found)) }, file))
        })
    }
}

fn device_of(found: &Metadata) -> [u64; 2] {
    let device = found.dev();
    // makedev(3)
    [device >> 8 & 0xfff | device >> 32 & !0xfff, device & 0xff | device >> 12 & 0xffff_ff00]
}

impl CodeFile {
    /// A file that was not found.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn unfound(mapped: &[u8], why: Unfound) -> Self {
        Self { path: shown(mapped), state: State::Unfound(why) }
    }
}

/// Device and inode of a file, as in [`Identity`].
pub(crate) fn key(found: &Metadata) -> (u64, u64) {
    let [major, minor] = device_of(found);
    (major << 32 | minor, found.ino())
}

fn content_of(found: &Metadata) -> (u64, u64) {
    let modified = found.mtime().wrapping_mul(1_000_000_000).wrapping_add(found.mtime_nsec());
    (found.size(), modified.cast_unsigned())
}

/// The paths that a line of /proc/PID/maps may mean: only newlines are escaped there (`\012`), so
/// that a path which has these four characters itself looks the same.
fn spellings(mapped: &[u8]) -> Vec<PathBuf> {
    let path = |bytes: Vec<u8>| PathBuf::from(OsString::from_vec(bytes));
    let mut paths = vec![path(mapped.to_vec())];
    let mut decoded = Vec::new();
    let mut rest = mapped;
    while let [first, after @ ..] = rest {
        let newline = rest.strip_prefix(b"\\012");
        decoded.push(if newline.is_some() { b'\n' } else { *first });
        rest = newline.unwrap_or(after);
    }
    if decoded != mapped {
        paths.push(path(decoded));
    }
    paths
}

/// The path of a line of /proc/PID/maps for people, without the mark of a deleted file.
pub(crate) fn shown(mapped: &[u8]) -> PathBuf {
    let path = spellings(mapped).pop().unwrap_or_default();
    let bytes = path.as_os_str().as_bytes();
    PathBuf::from(OsString::from_vec(bytes.strip_suffix(b" (deleted)").unwrap_or(bytes).to_vec()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests panic to fail")]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_found_where_it_is_and_held_where_it_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mapped = |name: &str| at(name).into_os_string().into_vec();
        std::fs::write(at("a"), "one").unwrap();
        let held = File::open(at("a")).unwrap();
        let found = held.metadata().unwrap();
        let (device, inode) = key(&found);
        let identity = Identity { device, inode, content: Some(content_of(&found)) };
        assert!(!identity.find(&mapped("a"), None).unwrap().is_gone());
        std::fs::rename(at("a"), at("b")).unwrap();
        std::fs::write(at("a"), "another").unwrap();
        assert_eq!(identity.find(&mapped("a"), None).unwrap_err(), Unfound::Gone);
        assert_eq!(identity.find(&mapped("a"), Some(&held)).unwrap().path, at("b"));
        std::fs::remove_file(at("b")).unwrap();
        let gone = identity.find(&mapped("a"), Some(&held)).unwrap();
        assert!(gone.is_gone() && gone.path == at("a"));
        assert_eq!(std::fs::read(gone.place()).unwrap(), b"one");
        let other = Identity { content: Some((4, 0)), ..identity };
        assert_eq!(other.find(&mapped("a"), Some(&held)).unwrap_err(), Unfound::Changed);
    }

    #[test]
    fn newlines_and_marks_of_deleted_files_are_read() {
        assert_eq!(spellings(b"/a b"), [PathBuf::from("/a b")]);
        assert_eq!(spellings(b"/a\\012b"), ["/a\\012b", "/a\nb"].map(PathBuf::from));
        assert_eq!(shown(b"/a\\012b (deleted)"), Path::new("/a\nb"));
    }
}
