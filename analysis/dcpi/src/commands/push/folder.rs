//! A store in a directory that other users can write to. Each directory below the store is opened
//! relative to its parent, and neither a symbolic link nor a mount point is followed. Only regular
//! files are read. So a link to a directory of root's, or a FIFO in the place of a segment, is an
//! error, and `dcpi push` neither writes elsewhere nor waits for ever.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::store::{OBJECT_BYTES_MAX, Put};

/// Prefix of files that are being written.
const PARTIAL: &str = ".partial-";
/// Age at which an incomplete file is abandoned.
const PARTIAL_AGE: Duration = Duration::from_secs(24 * 3600);

/// An error of the object at `key` below `root`, with what may be the matter.
fn of(root: &Path, key: &str, error: io::Error) -> io::Error {
    let path = root.join(key);
    let why = match Errno::from_io_error(&error) {
        Some(Errno::LOOP | Errno::NOTDIR) => "a symbolic link, or no directory, is in its path; \
             remove what somebody put there"
            .to_owned(),
        Some(Errno::XDEV) => "another file system is mounted in its path; unmount it".to_owned(),
        _ => error.to_string(),
    };
    io::Error::new(error.kind(), format!("{}: {why}", path.display()))
}

/// Opens what is below a directory.
fn open_below(at: impl AsFd, name: &str, flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let mut flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    if !flags.contains(OFlags::PATH) {
        flags |= OFlags::NONBLOCK | OFlags::NOCTTY;
    }
    rustix::fs::openat2(at, name, flags, mode, resolve)
}

fn open_root(root: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(root, flags, Mode::empty())
}

/// The object of a key: a regular file; None where nothing has the name.
fn find(root: &Path, key: &str) -> io::Result<Option<File>> {
    let file = open_root(root).and_then(|root| {
        // What is no regular file may do something when it is opened.
        let handle = open_below(&root, key, OFlags::PATH, Mode::empty())?;
        let found = rustix::fs::fstat(&handle)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Ok(None);
        }
        let file = open_below(&root, key, OFlags::RDONLY, Mode::empty())?;
        let is_same = rustix::fs::fstat(&file)?;
        let same = (found.st_dev, found.st_ino) == (is_same.st_dev, is_same.st_ino);
        Ok(same.then(|| File::from(file)))
    });
    match file {
        Ok(Some(file)) => Ok(Some(file)),
        Ok(None) => {
            Err(of(root, key, io::Error::other("it is no file; remove what somebody put there")))
        }
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(of(root, key, error.into())),
    }
}

/// Whether there is an object of a key.
pub(super) fn has(root: &Path, key: &str) -> io::Result<bool> {
    Ok(find(root, key)?.is_some())
}

/// The object of a key; None if there is none.
pub(super) fn get(root: &Path, key: &str) -> io::Result<Option<Vec<u8>>> {
    let Some(file) = find(root, key)? else { return Ok(None) };
    let mut bytes = Vec::new();
    let read = file.take(OBJECT_BYTES_MAX).read_to_end(&mut bytes);
    read.map_err(|error| of(root, key, error))?;
    Ok(Some(bytes))
}

/// Writes a file that is there whole or not at all, and replaces none. The link decides: it fails
/// where the name exists, also over NFS, which renames do not.
pub(super) fn put(root: &Path, key: &str, object: &mut dyn Read) -> io::Result<Put> {
    if has(root, key)? {
        return Ok(Put::WasThere);
    }
    write(root, key, object).map_err(|error| of(root, key, error))
}

fn write(root: &Path, key: &str, object: &mut dyn Read) -> io::Result<Put> {
    let (parents, name) = key.rsplit_once('/').unwrap_or(("", key));
    let mut directories = vec![open_root(root)?];
    for part in parents.split('/').filter(|part| !part.is_empty()) {
        let Some(above) = directories.last() else { break };
        match rustix::fs::mkdirat(above, part, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        directories.push(open_below(above, part, flags, Mode::empty())?);
    }
    let Some(directory) = directories.last() else { return Ok(Put::WasThere) };
    remove_partial(directory);
    let mut number = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut number)?;
    let partial = format!("{PARTIAL}{:016x}", u64::from_ne_bytes(number));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let file = open_below(directory, &partial, flags, Mode::from_raw_mode(0o640))?;
    let mut file = File::from(file);
    let written = io::copy(object, &mut file).and_then(|_| file.sync_all());
    let linked = written.and_then(|()| {
        Ok(rustix::fs::linkat(directory, &*partial, directory, name, AtFlags::empty())?)
    });
    let removed = rustix::fs::unlinkat(directory, &*partial, AtFlags::empty());
    match linked {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(Put::WasThere),
        Err(error) => return Err(error),
    }
    removed?;
    // The name must be on disk, and so must those of new directories above.
    for directory in directories.iter().rev() {
        rustix::fs::fsync(directory)?;
    }
    Ok(Put::Stored)
}

/// Removes what writers left that were killed.
fn remove_partial(directory: &OwnedFd) {
    let Ok(entries) = Dir::read_from(directory) else { return };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    for entry in entries.flatten() {
        if !entry.file_name().to_bytes().starts_with(PARTIAL.as_bytes()) {
            continue;
        }
        let found = rustix::fs::statat(directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
        let modified = found.map_or(now, |found| u64::try_from(found.st_mtime).unwrap_or(0));
        if now.saturating_sub(modified) > PARTIAL_AGE.as_secs() {
            // Another host may remove it as well.
            let _ = rustix::fs::unlinkat(directory, entry.file_name(), AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn an_object_is_put_once_and_whole() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        assert_eq!(get(root, "a/b").unwrap(), None);
        assert_eq!(put(root, "a/b", &mut &b"one"[..]).unwrap(), Put::Stored);
        assert_eq!(put(root, "a/b", &mut &b"two"[..]).unwrap(), Put::WasThere);
        assert_eq!(get(root, "a/b").unwrap(), Some(b"one".to_vec()));
        assert!(has(root, "a/b").unwrap() && !has(root, "a/c").unwrap());
        let names: Vec<_> = std::fs::read_dir(root.join("a")).unwrap().collect();
        assert_eq!(names.len(), 1, "nothing else stays there");
    }

    /// Root's push wrote into a directory that another user's link led to.
    #[test]
    fn links_are_not_followed_and_what_is_no_file_holds_nobody_up() {
        let root = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let (root, elsewhere) = (root.path(), elsewhere.path());
        std::fs::create_dir(root.join("raw")).unwrap();
        symlink(elsewhere, root.join("raw/code")).unwrap();
        symlink("/etc/passwd", root.join("raw/passwd")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, root.join("raw/fifo"), Mode::RUSR).unwrap();
        for (key, why) in [
            ("raw/code/x", "a symbolic link"),
            ("raw/passwd", "raw/passwd: it is no file"),
            ("raw/fifo", "raw/fifo: it is no file"),
        ] {
            let refused = put(root, key, &mut &b"one"[..]).unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
            assert!(get(root, key).is_err() && has(root, key).is_err());
        }
        assert!(get(root, "../x").is_err(), "nothing above it");
        assert_eq!(std::fs::read_dir(elsewhere).unwrap().count(), 0);
    }
}
