//! Opening the very file that a process has mapped, and nothing else. Only an inspector does so: a
//! file system need not answer.

use crate::file_facts::FileFacts;
use crate::remapped_text;
use kernel::MappedFileId;
use kernel::procfs::{self, MapsLine};
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt};
use std::path::Path;
use std::sync::OnceLock;

/// A process and range that map a file, through which the file can be opened.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub struct MappedAt {
    /// Process.
    pub pid: u32,
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
}

/// Opens the very file that a process has mapped: through the mapping itself (any mount namespace,
/// deleted or not), or by its path as the process or we see it. A path is used only if it leads to
/// the same inode, and either file only if `is_it` accepts it: a recording that has
/// a build id instead has no inode. Never blocks on what is not a file, nor disturbs it.
pub fn open_mapped(
    id: &MappedFileId,
    path: &[u8],
    at: MappedAt,
    is_it: impl Fn(&File) -> bool,
) -> Option<File> {
    open_through_mapping(at).filter(&is_it).or_else(|| open_by_path(id, path, at).find(&is_it))
}

/// Opens the file mapped there, through the mapping itself, if it is a regular file.
pub fn open_through_mapping(at: MappedAt) -> Option<File> {
    open_regular(&mapped(at)?)
}

/// The mapped file, or, where a copy of its text is mapped, that file, as a descriptor without read
/// access (O_PATH). `None`: the mapping is gone. Needs CAP_CHECKPOINT_RESTORE (Linux 5.9).
pub fn mapped(at: MappedAt) -> Option<File> {
    linked(at).or_else(|| {
        let open = |line: &MapsLine| open_line(at.pid, line);
        let of = remapped_text::original(at.pid, at.start..at.end, open)?;
        linked(MappedAt { start: of.start, end: of.end, ..at })
    })
}

/// The mapped file. The link leads to the file itself: nobody is asked for a name on the way.
fn linked(at: MappedAt) -> Option<File> {
    let open = |id: u32| {
        let link = format!("/proc/{id}/map_files/{:x}-{:x}", at.start, at.end);
        OpenOptions::new().read(true).custom_flags(OFlag::O_PATH.bits()).open(link).ok()
    };
    open(at.pid).or_else(|| open(procfs::living_thread(at.pid)?))
}

/// Opens the file of a line of /proc/PID/maps.
pub fn open_line(pid: u32, line: &MapsLine) -> Option<File> {
    let at = MappedAt { pid, start: line.start, end: line.end };
    let by_path = || open_by_path(&line.file, &line.path, at).next();
    linked(at).and_then(|file| open_regular(&file)).or_else(by_path)
}

/// The files at the path, in the process's root and in the daemon's, that have the same inode.
pub fn open_by_path(id: &MappedFileId, path: &[u8], at: MappedAt) -> impl Iterator<Item = File> {
    by_path(id, path, at).filter_map(|(handle, _)| open_regular(&handle))
}

/// Facts of what the path leads to, where that is the same inode.
pub fn facts_by_path(id: &MappedFileId, path: &[u8], at: MappedAt) -> Option<FileFacts> {
    by_path(id, path, at).next().map(|(_, facts)| facts)
}

fn by_path(
    id: &MappedFileId,
    path: &[u8],
    at: MappedAt,
) -> impl Iterator<Item = (File, FileFacts)> {
    fn found(pid: &str, path: &[u8]) -> Option<(File, FileFacts)> {
        let handle = below_root(pid, Path::new(OsStr::from_bytes(path)))?;
        let facts = FileFacts::of(&handle.metadata().ok()?);
        Some((handle, facts))
    }
    // A process may have put a file system of its own over any path, whose files have the inode
    // numbers that it wants. Devices are the kernel's.
    let as_it_sees = found(&at.pid.to_string(), path).filter(|(_, facts)| facts.is_inode(id));
    let as_we_see = move || found("self", path).filter(|(_, facts)| facts.is_inode_of_layers(id));
    as_it_sees.into_iter().chain(std::iter::once_with(as_we_see).flatten())
}

/// The file at a path in the root of process `pid` (`self`: the daemon), as a descriptor without
/// read access. The path is the kernel's, without symbolic links.
fn below_root(pid: &str, path: &Path) -> Option<File> {
    let flags = (OFlag::O_PATH | OFlag::O_DIRECTORY).bits();
    let open = |id: &str| {
        OpenOptions::new().read(true).custom_flags(flags).open(format!("/proc/{id}/root")).ok()
    };
    let root = open(pid).or_else(|| open(&procfs::living_thread(pid)?.to_string()))?;
    let resolve = ResolveFlag::RESOLVE_IN_ROOT
        | ResolveFlag::RESOLVE_NO_MAGICLINKS
        | ResolveFlag::RESOLVE_NO_SYMLINKS;
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(resolve);
    let relative = path.strip_prefix("/").ok()?;
    if relative.as_os_str().is_empty() {
        return Some(root);
    }
    openat2(root, relative, how).ok().map(File::from)
}

/// Whether every user may read the file, by its permissions and by those of the directories on its
/// path that still exist.
pub fn is_public(path: &[u8], at: MappedAt, facts: &FileFacts) -> bool {
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    let pid = at.pid.to_string();
    let is_open = |directory: &Path| {
        let handle = below_root(&pid, directory).or_else(|| below_root("self", directory));
        let facts = handle.and_then(|handle| handle.metadata().ok());
        facts.is_none_or(|facts| FileFacts::of(&facts).mode & 0o001 != 0)
    };
    facts.mode & 0o004 != 0 && Path::new(OsStr::from_bytes(path)).ancestors().skip(1).all(is_open)
}

/// The user who can write a file that process `pid` has mapped; None: root alone can. Anybody can
/// write a file with the build id of another, so a build id is only as good as who can write the
/// file. Where the kernel would not believe a set-user-ID bit (`mnt_may_suid`, fs/namespace.c),
/// whoever mounted the file system has chosen the users in its inodes, and the process's user
/// counts as the owner.
pub fn owner(file: &File, facts: &FileFacts, pid: u32) -> Option<u32> {
    let flags = rustix::fs::fstatvfs(file).map(|found| found.f_flag);
    let is_believed =
        flags.is_ok_and(|flags| !flags.contains(rustix::fs::StatVfsMountFlags::NOSUID));
    let is_written_by_others =
        facts.mode & 0o002 != 0 || (facts.mode & 0o020 != 0 && facts.gid != 0);
    match (is_believed, facts.uid) {
        (true, 0) if !is_written_by_others => None,
        (true, owner @ 1..) => Some(owner),
        _ => Some(procfs::user_of(pid).unwrap_or(facts.uid)),
    }
}

/// Whether an open file keeps a file system busy that somebody may want to unmount: any but the
/// one that has `/`. Nothing that stays open between two questions may do so.
pub fn keeps_busy(file: &File) -> bool {
    static ROOT: OnceLock<Option<u64>> = OnceLock::new();
    let device = |found: io::Result<Metadata>| found.ok().map(|found| found.dev());
    let root = *ROOT.get_or_init(|| device(std::fs::metadata("/")));
    device(file.metadata()).is_none_or(|device| root != Some(device))
}

/// Opens for reading what a handle names, if it is a regular file: to open a device may do
/// something. It cannot be exchanged any more.
fn open_regular(named: &File) -> Option<File> {
    if !named.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return None;
    }
    let flags = OFlag::O_NONBLOCK.bits() | OFlag::O_NOCTTY.bits();
    OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(format!("/proc/self/fd/{}", named.as_raw_fd()))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    const NOBODY: MappedAt = MappedAt { pid: u32::MAX, start: 0, end: 0 };

    #[test]
    fn a_path_without_links_leads_to_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap().join("file");
        std::fs::write(&path, "x").unwrap();
        let id = FileFacts::of(&path.metadata().unwrap());
        let (major, minor) = (nix::sys::stat::major(id.dev), nix::sys::stat::minor(id.dev));
        let (major, minor) = (u32::try_from(major).unwrap(), u32::try_from(minor).unwrap());
        let id = MappedFileId::Inode { major, minor, inode: id.ino };
        let bytes = |path: &Path| path.as_os_str().as_encoded_bytes().to_vec();
        assert_eq!(open_by_path(&id, &bytes(&path), NOBODY).count(), 1);
        let link = path.with_file_name("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(open_by_path(&id, &bytes(&link), NOBODY).count(), 0, "the kernel's have none");
        let other = path.with_file_name("other");
        std::fs::write(&other, "y").unwrap();
        assert_eq!(open_by_path(&id, &bytes(&other), NOBODY).count(), 0, "another inode");
        for path in [&b"relative"[..], b"/does/not/exist", b"/"] {
            assert_eq!(open_by_path(&id, path, NOBODY).count(), 0);
        }
    }

    #[test]
    fn what_not_everybody_may_read_is_not_public() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap().join("program");
        std::fs::write(&path, "x").unwrap();
        let is_public = |directory_mode, mode| {
            let set = |path: &Path, mode| {
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
            };
            set(directory.path(), directory_mode);
            set(&path, mode);
            let facts = FileFacts::of(&path.metadata().unwrap());
            is_public(path.as_os_str().as_encoded_bytes(), NOBODY, &facts)
        };
        assert!(is_public(0o755, 0o755) && is_public(0o711, 0o444));
        assert!(!is_public(0o755, 0o711) && !is_public(0o755, 0o700) && !is_public(0o700, 0o755));
    }
}
