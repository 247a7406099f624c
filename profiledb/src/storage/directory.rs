//! The real disk.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Entry, Lock, Opened, Storage, WriteBody};

/// Mode of directories: the daemon's group may read.
pub(super) const DIRECTORY_MODE: u32 = 0o750;
/// Mode of files: the daemon's group may read.
pub(super) const FILE_MODE: u32 = 0o640;
/// Flag of open(2) with which opening a FIFO does not wait for a writer. The number is the same on
/// x86-64 and arm64 (asm-generic/fcntl.h).
const O_NONBLOCK: i32 = 0o4000;

/// Directories and files of the operating system.
#[derive(Copy, Clone, Debug, Default)]
pub struct Directory;

/// A lock that the open file keeps: flock(2) locks belong to the open file description, and the
/// kernel releases them when the process ends, however it ends.
#[derive(Debug)]
pub(super) struct FileLock {
    file: File,
    path: PathBuf,
}

impl FileLock {
    /// The lock on a file, which still has that name.
    pub(super) fn named(file: File, path: &Path) -> io::Result<Self> {
        let lock = Self { file, path: path.to_owned() };
        // Removed between the two calls, it keeps nobody out.
        if lock.has_its_name()? {
            return Ok(lock);
        }
        Err(io::Error::new(
            io::ErrorKind::NotFound,
            "it was removed while it was locked; try again",
        ))
    }
}

impl Lock for FileLock {
    fn has_its_name(&self) -> io::Result<bool> {
        let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        match fs::symlink_metadata(&self.path) {
            Ok(named) => Ok(identity(named) == identity(self.file.metadata()?)),
            // In the last case a file is in the place of a directory.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

impl Storage for Directory {
    fn create_directory(&self, path: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            // A file that is removed after it was listed counts as absent.
            let metadata = match entry.metadata() {
                Ok(metadata) => metadata,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let modified =
                metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            entries.push(Entry {
                name,
                is_directory: metadata.is_dir(),
                size_bytes: metadata.len(),
                modified_unix_s: modified.map_or(0, |since| since.as_secs()),
            });
        }
        entries.sort();
        Ok(entries)
    }

    fn open(&self, path: &Path, limit_bytes: u64) -> io::Result<Opened> {
        // A FIFO or a device with the name of a file must not block a reader.
        let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no plain file"));
        }
        let size_bytes = metadata.len();
        if size_bytes > limit_bytes {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok((Box::new(file), size_bytes))
    }

    fn size_bytes(&self, path: &Path) -> io::Result<u64> {
        fs::metadata(path).map(|metadata| metadata.len())
    }

    fn write_synced(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        write_all_synced(replaced(path)?, bytes)
    }

    fn write_streamed(
        &self,
        path: &Path,
        head_bytes: usize,
        body: WriteBody<'_>,
    ) -> io::Result<()> {
        stream(replaced(path)?, head_bytes, body)
    }

    fn set_modified(&self, path: &Path, unix_s: u64) -> io::Result<()> {
        let time =
            UNIX_EPOCH.checked_add(Duration::from_secs(unix_s)).unwrap_or_else(SystemTime::now);
        OpenOptions::new().write(true).open(path)?.set_modified(time)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        match File::open(path)?.sync_all() {
            // fsync(2): EINVAL where the file system cannot sync a directory, as some network file
            // systems; no stronger guarantee exists there.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            other => other,
        }
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(FILE_MODE)
            .open(path)?;
        // On Linux this is flock(2) with LOCK_EX | LOCK_NB.
        match file.try_lock() {
            Ok(()) => FileLock::named(file, path).map(|lock| Some(Box::new(lock) as Box<dyn Lock>)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

fn replaced(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(FILE_MODE).open(path)
}

/// [`Storage::write_synced`], to an open file.
pub(super) fn write_all_synced(mut file: File, bytes: &[u8]) -> io::Result<()> {
    file.write_all(bytes)?;
    // The size is part of what must survive, so not only the data.
    file.sync_all()
}

/// [`Storage::write_streamed`], to an open file.
pub(super) fn stream(file: File, head_bytes: usize, body: WriteBody<'_>) -> io::Result<()> {
    let mut buffered = BufWriter::with_capacity(64 << 10, file);
    buffered.write_all(&vec![0; head_bytes])?;
    let head = body(&mut buffered)?;
    let mut file = buffered.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(head.get(..head_bytes).unwrap_or(&head))?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_larger_file_is_refused_before_it_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        Directory.write_synced(&path, b"12345").unwrap();
        assert_eq!(Directory.open(&path, 5).unwrap().1, 5);
        let error = Directory.open(&path, 4).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn what_is_no_plain_file_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("0-0.segment");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        for path in [fifo.as_path(), Path::new("/dev/zero"), dir.path()] {
            assert_eq!(
                Directory.open(path, 100).unwrap_err().kind(),
                io::ErrorKind::InvalidInput,
                "{}",
                path.display()
            );
        }
    }

    #[test]
    fn others_may_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let sub = dir.path().join("a/b");
        Directory.create_directory(&sub).unwrap();
        let file = sub.join("f");
        Directory.write_synced(&file, b"x").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o007;
        assert_eq!((mode(&sub), mode(&file)), (0, 0));
    }

    #[test]
    fn a_write_replaces_all_of_a_longer_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        Directory.write_synced(&path, b"longer").unwrap();
        Directory.write_synced(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(Directory.list(dir.path()).unwrap()[0].size_bytes, 3);
    }

    #[test]
    fn a_lock_is_exclusive_until_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = Directory.lock(&path).unwrap();
        assert!(held.is_some());
        assert!(Directory.lock(&path).unwrap().is_none());
        drop(held);
        assert!(Directory.lock(&path).unwrap().is_some());
    }
}
