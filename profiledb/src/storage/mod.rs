//! Access to the disk. No other module calls the file system.
//!
//! [`Storage`] has the few operations that the database needs, each of which can fail or be the
//! last one before a crash: [`Directory`] is the real disk; tests have one that fails on command.

mod beneath;
mod directory;

use std::fmt;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) use beneath::Beneath;
pub use directory::Directory;

use crate::error::{Damage, DbError, Operation};

/// Largest file that is written or read, in bytes. A profile of this size would have tens of
/// millions of distinct offsets. The limit bounds the memory that a damaged file can cost.
pub const MAX_FILE_BYTES: u64 = 256 << 20;

/// Opens a directory of a database to write in it: it belongs to this user, as does each above it
/// as far as the database's root, and none is reached by a symbolic link.
///
/// # Errors
/// Returns the errors of opening it, and refuses a directory that does not meet these conditions.
pub fn open_own_directory(root: &Path, path: &Path) -> io::Result<std::os::fd::OwnedFd> {
    Beneath::new(root).directory(path, false)
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Name. Names that are not UTF-8 are not listed, because no file of a database has one.
    pub name: String,
    /// True for directories.
    pub is_directory: bool,
    /// Size in bytes; of no meaning for directories.
    pub size_bytes: u64,
    /// Time of the last change, real or set by [`Storage::set_modified`], in seconds since 1970
    /// UTC; 0 where unknown.
    pub modified_unix_s: u64,
}

/// An open file, of which a part is read at a time.
pub trait OpenFile: io::Read + io::Seek + fmt::Debug + Send {}

impl<T: io::Read + io::Seek + fmt::Debug + Send> OpenFile for T {}

/// An open file and its size in bytes.
pub type Opened = (Box<dyn OpenFile>, u64);

/// Writes the rest of a file and returns its head.
pub type WriteBody<'a> = &'a mut dyn FnMut(&mut dyn io::Write) -> io::Result<Vec<u8>>;

/// A lock that is held until this is dropped.
pub trait Lock: fmt::Debug + Send + Sync {
    /// Whether the name still belongs to the locked file. When it does not, another writer may lock
    /// a new file of that name.
    fn has_its_name(&self) -> io::Result<bool>;
}

/// The operations that the database needs of a disk. Errors are the operating system's.
pub trait Storage: fmt::Debug + Send + Sync {
    /// Makes a directory and its parents; one that exists is fine.
    fn create_directory(&self, path: &Path) -> io::Result<()>;
    /// The entries of a directory, in order of name.
    fn list(&self, path: &Path) -> io::Result<Vec<Entry>>;
    /// Opens a file of at most `limit_bytes`; `FileTooLarge` when it is larger.
    fn open(&self, path: &Path, limit_bytes: u64) -> io::Result<Opened>;
    /// The size of a file in bytes.
    fn size_bytes(&self, path: &Path) -> io::Result<u64>;
    /// Creates or replaces a file and forces its bytes to the disk. When interrupted, it may leave
    /// any part of the file.
    fn write_synced(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    /// As [`Storage::write_synced`], for a file too large for memory whose first `head_bytes` bytes
    /// are known last: `body` writes the rest and returns the head.
    fn write_streamed(&self, path: &Path, head_bytes: usize, body: WriteBody<'_>)
    -> io::Result<()>;
    /// Sets the time of a file's last change.
    fn set_modified(&self, path: &Path, unix_s: u64) -> io::Result<()>;
    /// Renames a file within its directory in one step; a file that has the new name is replaced.
    /// A directory can be renamed too, but only to a name that no file or directory has.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty directory.
    fn remove_directory(&self, path: &Path) -> io::Result<()>;
    /// Forces the names in a directory to the disk.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;
    /// Takes an exclusive lock on a file, which is created when missing; None when it is held
    /// elsewhere, in this process or another.
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>>;
}

/// A storage whose errors name the operation and the path.
#[derive(Clone, Debug)]
pub(crate) struct Disk(Arc<dyn Storage>);

impl Disk {
    pub(crate) fn new(storage: Arc<dyn Storage>) -> Self {
        Self(storage)
    }

    pub(crate) fn create_directory(&self, path: &Path) -> Result<(), DbError> {
        self.0.create_directory(path).map_err(failed(Operation::CreateDirectory, path))
    }

    pub(crate) fn list(&self, path: &Path) -> Result<Vec<Entry>, DbError> {
        self.0.list(path).map_err(failed(Operation::List, path))
    }

    /// The entries of a directory; empty when there is no such directory.
    pub(crate) fn list_if_there(&self, path: &Path) -> Result<Vec<Entry>, DbError> {
        match self.list(path) {
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            other => other,
        }
    }

    /// A file and its size in bytes; None when there is no such file.
    pub(crate) fn open_if_there(&self, path: &Path) -> Result<Option<Opened>, DbError> {
        if_there(path, self.0.open(path, MAX_FILE_BYTES))
    }

    /// The content of a file; None when there is no such file.
    pub(crate) fn read_if_there(&self, path: &Path) -> Result<Option<Vec<u8>>, DbError> {
        let Some((file, size_bytes)) = self.open_if_there(path)? else { return Ok(None) };
        let mut bytes = Vec::with_capacity(usize::try_from(size_bytes).unwrap_or(0));
        // One byte more than allowed distinguishes a file that grew from one that fits.
        let read = file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes);
        let read = read.and_then(|_| match bytes.len() as u64 > MAX_FILE_BYTES {
            true => Err(io::ErrorKind::FileTooLarge.into()),
            false => Ok(bytes),
        });
        if_there(path, read)
    }

    pub(crate) fn is_there(&self, path: &Path) -> Result<bool, DbError> {
        match self.0.size_bytes(path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed(Operation::Read, path)(error)),
        }
    }

    pub(crate) fn write_synced(&self, path: &Path, bytes: &[u8]) -> Result<(), DbError> {
        self.0.write_synced(path, bytes).map_err(failed(Operation::Write, path))
    }

    pub(crate) fn write_streamed(
        &self,
        path: &Path,
        head_bytes: usize,
        body: WriteBody<'_>,
    ) -> Result<(), DbError> {
        self.0.write_streamed(path, head_bytes, body).map_err(failed(Operation::Write, path))
    }

    pub(crate) fn set_modified(&self, path: &Path, unix_s: u64) -> Result<(), DbError> {
        self.0.set_modified(path, unix_s).map_err(failed(Operation::Write, path))
    }

    pub(crate) fn rename(&self, from: &Path, to: &Path) -> Result<(), DbError> {
        self.0.rename(from, to).map_err(failed(Operation::Rename, to))
    }

    pub(crate) fn remove_if_there(&self, path: &Path) -> Result<(), DbError> {
        match self.0.remove(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed(Operation::Remove, path)(error))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn remove_directory(&self, path: &Path) -> Result<(), DbError> {
        self.0.remove_directory(path).map_err(failed(Operation::Remove, path))
    }

    pub(crate) fn sync_directory(&self, path: &Path) -> Result<(), DbError> {
        self.0.sync_directory(path).map_err(failed(Operation::SyncDirectory, path))
    }

    pub(crate) fn lock(&self, path: &Path) -> Result<Box<dyn Lock>, DbError> {
        match self.0.lock(path).map_err(failed(Operation::Lock, path))? {
            Some(lock) => Ok(lock),
            None => Err(DbError::Locked { path: path.to_owned() }),
        }
    }
}

/// The result of opening or reading a file; None when there is no such file.
fn if_there<T>(path: &Path, read: io::Result<T>) -> Result<Option<T>, DbError> {
    use io::ErrorKind::{FileTooLarge, NotFound, StaleNetworkFileHandle};
    match read {
        Ok(read) => Ok(Some(read)),
        // Over NFS a file that is removed while it is read becomes stale (nfs(5)).
        Err(error) if matches!(error.kind(), NotFound | StaleNetworkFileHandle) => Ok(None),
        Err(error) if error.kind() == FileTooLarge => Err(DbError::Corrupt {
            path: path.to_owned(),
            offset: MAX_FILE_BYTES,
            damage: Damage::TooLong { limit: MAX_FILE_BYTES },
        }),
        Err(error) => Err(failed(Operation::Read, path)(error)),
    }
}

/// Adds operation and path to an error.
fn failed(op: Operation, path: &Path) -> impl FnOnce(io::Error) -> DbError {
    let path: PathBuf = path.to_owned();
    move |source| DbError::Io { op, path, source }
}
