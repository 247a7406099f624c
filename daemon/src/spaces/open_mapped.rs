//! Opening the very file that a process has mapped, and nothing else.

use crate::kernel::MappedFileId;
use crate::spaces::remote_mounts;
use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Where a file is mapped, to find it through the process.
#[derive(Clone, Copy, Debug)]
pub struct MappedAt {
    /// Process.
    pub pid: u32,
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
}

/// Opens the very file that a process has mapped: through the mapping itself (any mount namespace,
/// deleted or not), or by its path as the process or we see it. Believes a path only if it leads to
/// the same inode, and each of them only if `is_it` says so: where the kernel told a build id, it
/// told no inode. Never blocks on what is no file, nor disturbs it.
pub fn open_mapped(
    id: &MappedFileId,
    path: &[u8],
    at: MappedAt,
    is_it: impl Fn(&File) -> bool,
) -> Option<File> {
    open_through_mapping(at).filter(&is_it).or_else(|| open_by_path(id, path, at).find(&is_it))
}

/// Opens what is mapped there, through the mapping itself, if it is a regular file.
pub fn open_through_mapping(at: MappedAt) -> Option<File> {
    open_regular(&remote_mounts::mapped(at.pid, at.start, at.end)?)
}

/// What the path leads to, as the process sees it and as we do, where that is the same inode.
pub fn open_by_path(id: &MappedFileId, path: &[u8], at: MappedAt) -> impl Iterator<Item = File> {
    let path = Path::new(OsStr::from_bytes(path));
    let opened = [at.pid.to_string(), "self".to_owned()].into_iter();
    let opened = opened.filter_map(|pid| open_regular(&remote_mounts::at(&pid, path)?));
    opened.filter(move |file| file.metadata().is_ok_and(|metadata| is_inode(id, &metadata)))
}

/// Whether a file is the one that the kernel told of; where it told a build id, it told no inode.
#[must_use]
pub fn is_inode(id: &MappedFileId, metadata: &Metadata) -> bool {
    let (MappedFileId::Inode { major, minor, inode }
    | MappedFileId::Version { major, minor, inode, .. }) = *id
    else {
        return true;
    };
    let device = (nix::sys::stat::major(metadata.dev()), nix::sys::stat::minor(metadata.dev()));
    // Layered file systems (overlayfs, btrfs) report another device for the file than for the
    // mapping; the inode must match in any case.
    metadata.ino() == inode && (device.0 == 0 || device == (u64::from(major), u64::from(minor)))
}

/// Opens for reading what a handle names, if it is a regular file: to open a device may do
/// something. It cannot be exchanged any more.
fn open_regular(named: &File) -> Option<File> {
    use nix::fcntl::OFlag;
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
