//! The real disk, as far as one database goes: what is written lies beneath the database's root and
//! nowhere else, whoever put what there.
//!
//! A database may lie in a folder where others can make directories and symbolic links. Each
//! directory on the way from the root is opened from the one before, is no symbolic link, and
//! belongs to the user of this process; so only root can have put another in its place. Files are
//! always newly created, never opened: a link that another user placed under their name is removed
//! and not followed.

use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps};

use super::directory::{DIRECTORY_MODE, FILE_MODE, FileLock, stream, write_all_synced};
use super::{Directory, Entry, Lock, Opened, Storage, WriteBody};

/// Reads as [`Directory`] does, and writes beneath one directory only.
#[derive(Clone, Debug)]
pub(crate) struct Beneath {
    root: PathBuf,
}

impl Beneath {
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// The directory of that path, on which nobody else has a hand; made with all above it as far
    /// as the root where `make` says so.
    pub(super) fn directory(&self, path: &Path, make: bool) -> io::Result<OwnedFd> {
        let outside = |_| io::Error::new(io::ErrorKind::InvalidInput, "it is no part of it");
        let below = path.strip_prefix(&self.root).map_err(outside)?;
        let mut at = self.root.clone();
        let mut directory = own(open_root(&at)?, &at)?;
        for part in below.components() {
            let Component::Normal(name) = part else {
                return Err(io::ErrorKind::InvalidInput.into());
            };
            at.push(name);
            if make {
                match rustix::fs::mkdirat(&directory, name, Mode::from_raw_mode(DIRECTORY_MODE)) {
                    Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let next = rustix::fs::openat(&directory, name, flags, Mode::empty());
            let next = next.map_err(|error| match error {
                rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR if is_link(&at) => linked(&at),
                error => error.into(),
            })?;
            directory = own(next, &at)?;
        }
        Ok(directory)
    }

    /// The directory that a file is in, and the file's name.
    fn place<'a>(&self, path: &'a Path) -> io::Result<(OwnedFd, &'a std::ffi::OsStr)> {
        let parts = path.parent().zip(path.file_name());
        let (parent, name) = parts.ok_or(io::ErrorKind::InvalidInput)?;
        Ok((self.directory(parent, false)?, name))
    }

    /// A file that was not there. What has its name is of a writer that was killed, or no file of
    /// ours.
    fn new_file(&self, path: &Path) -> io::Result<File> {
        let (directory, name) = self.place(path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let open = || rustix::fs::openat(&directory, name, flags, Mode::from_raw_mode(FILE_MODE));
        let file = match open() {
            Err(rustix::io::Errno::EXIST) => {
                rustix::fs::unlinkat(&directory, name, AtFlags::empty())?;
                open()
            }
            other => other,
        };
        Ok(File::from(file?))
    }
}

/// Opens the root. A symbolic link there is followed if it is this user's or root's.
fn open_root(root: &Path) -> io::Result<OwnedFd> {
    let root = if root.as_os_str().is_empty() { Path::new(".") } else { root };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::open(root, flags | OFlags::NOFOLLOW, Mode::empty()) {
        Err(error @ (rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR)) => {
            let handle = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let link = rustix::fs::open(root, handle, Mode::empty())?;
            let stat = rustix::fs::fstat(&link)?;
            if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_symlink() {
                return Err(error.into());
            }
            if stat.st_uid != 0 && stat.st_uid != rustix::process::geteuid().as_raw() {
                return Err(owned_by(root, stat.st_uid));
            }
            // As that very link says.
            let target = rustix::fs::readlinkat(&link, c"", Vec::new())?;
            let target = Path::new(std::ffi::OsStr::from_bytes(target.as_bytes()));
            let above = root.parent().unwrap_or(Path::new("/"));
            Ok(rustix::fs::open(above.join(target), flags, Mode::empty())?)
        }
        other => Ok(other?),
    }
}

/// The directory, if it is this user's.
fn own(directory: OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let owner = rustix::fs::fstat(&directory)?.st_uid;
    if owner == rustix::process::geteuid().as_raw() {
        return Ok(directory);
    }
    Err(owned_by(path, owner))
}

fn owned_by(path: &Path, owner: u32) -> io::Error {
    let user = rustix::process::geteuid().as_raw();
    let what = format!(
        "{} belongs to user {owner}, who could lead what user {user} writes elsewhere",
        path.display()
    );
    io::Error::new(io::ErrorKind::PermissionDenied, what)
}

fn is_link(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink())
}

fn linked(path: &Path) -> io::Error {
    let what = format!("{} is a symbolic link, and none is followed", path.display());
    io::Error::new(io::ErrorKind::PermissionDenied, what)
}

impl Storage for Beneath {
    fn create_directory(&self, path: &Path) -> io::Result<()> {
        if !is_link(&self.root) {
            Directory.create_directory(&self.root)?;
        }
        self.directory(path, true).map(drop)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<Entry>> {
        Directory.list(path)
    }

    fn open(&self, path: &Path, limit_bytes: u64) -> io::Result<Opened> {
        Directory.open(path, limit_bytes)
    }

    fn size_bytes(&self, path: &Path) -> io::Result<u64> {
        Directory.size_bytes(path)
    }

    fn write_synced(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        write_all_synced(self.new_file(path)?, bytes)
    }

    fn write_streamed(
        &self,
        path: &Path,
        head_bytes: usize,
        body: WriteBody<'_>,
    ) -> io::Result<()> {
        stream(self.new_file(path)?, head_bytes, body)
    }

    fn set_modified(&self, path: &Path, unix_s: u64) -> io::Result<()> {
        let (directory, name) = self.place(path)?;
        let since = Duration::from_secs(unix_s);
        let time = Timespec { tv_sec: since.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: 0 };
        let kept = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
        let times = Timestamps { last_access: kept, last_modification: time };
        Ok(rustix::fs::utimensat(&directory, name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (directory, old) = self.place(from)?;
        let new = to.file_name().filter(|_| from.parent() == to.parent());
        let new = new.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(rustix::fs::renameat(&directory, old, &directory, new)?)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let (directory, name) = self.place(path)?;
        Ok(rustix::fs::unlinkat(&directory, name, AtFlags::empty())?)
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        let (directory, name) = self.place(path)?;
        Ok(rustix::fs::unlinkat(&directory, name, AtFlags::REMOVEDIR)?)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        if !path.starts_with(&self.root) {
            return Directory.sync_directory(path);
        }
        match rustix::fs::fsync(self.directory(path, false)?.as_fd()) {
            // As [`Directory`] has it.
            Err(rustix::io::Errno::INVAL) | Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        let (directory, name) = self.place(path)?;
        let flags = OFlags::RDWR
            | OFlags::CREATE
            | OFlags::NOFOLLOW
            | OFlags::NONBLOCK
            | OFlags::NOCTTY
            | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(FILE_MODE);
        let file = match rustix::fs::openat(&directory, name, flags, mode) {
            Err(rustix::io::Errno::LOOP) => return Err(linked(path)),
            file => File::from(file?),
        };
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no plain file"));
        }
        match file.try_lock() {
            Ok(()) => FileLock::named(file, path).map(|lock| Some(Box::new(lock) as Box<dyn Lock>)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    /// A database folder that another user had made: root wrote over whatever file its links named.
    #[test]
    fn links_under_our_names_are_replaced_or_refused_and_never_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (root, other) = (dir.path().join("db"), dir.path().join("other"));
        fs::create_dir(&other).unwrap();
        let precious = other.join("precious");
        fs::write(&precious, "mine").unwrap();
        let disk = Beneath::new(&root);
        disk.create_directory(&root.join("hosts/h")).unwrap();

        let file = root.join("hosts/h/x.tmp");
        for plant in [
            |from: &Path, to: &Path| symlink(from, to),
            |from: &Path, to: &Path| fs::hard_link(from, to),
        ] {
            plant(&precious, &file).unwrap();
            disk.write_synced(&file, b"ours").unwrap();
            assert_eq!(fs::read(&file).unwrap(), b"ours");
            plant(&precious, &root.join("hosts/h/y.tmp")).unwrap();
            disk.write_streamed(&root.join("hosts/h/y.tmp"), 1, &mut |_| Ok(vec![1])).unwrap();
            disk.remove(&root.join("hosts/h/y.tmp")).unwrap();
            disk.remove(&file).unwrap();
        }
        assert_eq!(fs::metadata(&precious).unwrap().permissions().mode() & 0o777, 0o644);

        symlink(&precious, root.join("hosts/h/lock")).unwrap();
        let error = disk.lock(&root.join("hosts/h/lock")).unwrap_err();
        assert!(error.to_string().contains("is a symbolic link"), "{error}");

        symlink(&other, root.join("hosts/linked")).unwrap();
        let into = root.join("hosts/linked/precious");
        for refused in [
            disk.write_synced(&into, b"ours"),
            disk.remove(&into),
            disk.rename(&into, &root.join("hosts/linked/gone")),
            disk.set_modified(&into, 1),
            disk.create_directory(&root.join("hosts/linked")),
            disk.create_directory(&root.join("hosts/linked/new")),
            disk.write_synced(&other.join("new"), b"ours"),
            disk.write_synced(&root.join("../other/new"), b"ours"),
        ] {
            let _ = refused.unwrap_err();
        }
        assert_eq!(fs::read(&precious).unwrap(), b"mine");
        assert_eq!(fs::read_dir(&other).unwrap().count(), 1);
    }

    #[test]
    fn a_link_of_ones_own_may_lead_to_the_root() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("elsewhere")).unwrap();
        let root = dir.path().join("db");
        symlink("elsewhere", &root).unwrap();
        let disk = Beneath::new(&root);
        disk.create_directory(&root.join("hosts")).unwrap();
        disk.create_directory(&root).unwrap();
        assert!(dir.path().join("elsewhere/hosts").is_dir());
    }

    #[test]
    fn times_and_names_are_those_that_were_given() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Beneath::new(dir.path());
        let file = dir.path().join("f.tmp");
        disk.write_synced(&file, b"x").unwrap();
        disk.set_modified(&file, 1_000_000_000).unwrap();
        disk.rename(&file, &dir.path().join("f")).unwrap();
        disk.sync_directory(dir.path()).unwrap();
        let [entry] = &disk.list(dir.path()).unwrap()[..] else { panic!("one file") };
        assert_eq!((entry.name.as_str(), entry.modified_unix_s), ("f", 1_000_000_000));
        let mode = fs::metadata(dir.path().join("f")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777 & !FILE_MODE, 0);
    }
}
