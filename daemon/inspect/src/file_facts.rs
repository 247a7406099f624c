//! The system's facts about a file, which distinguish one state of the file from another.

use kernel::MappedFileId;
use serde::{Deserialize, Serialize};
use std::fs::Metadata;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, SystemTime};

/// A file changed so recently may change again within one tick of the file system's clock (10 ms at
/// CONFIG_HZ=100; 2 s on FAT), and both states have the same times.
const SETTLED: Duration = Duration::from_secs(2);

/// What changes in an inode when its content does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Lower half of the size in bytes.
    pub size_low: u32,
    /// Time of the last change of content or attributes, ns since 1970. The owner of a file cannot
    /// set it back.
    pub changed_ns: u64,
}

impl State {
    /// A hash of the state of this inode.
    pub fn content(self, inode: u64) -> u64 {
        let mut hasher = DefaultHasher::new();
        (inode, self.size_low, self.changed_ns).hash(&mut hasher);
        hasher.finish()
    }
}

/// The fields of statx(2) that are used, of one file at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFacts {
    /// Device number, as st_dev has it.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Size in bytes.
    pub size: u64,
    /// Time of the last write: seconds since 1970, and nanoseconds.
    pub mtime: (i64, i64),
    /// Time of the last change of content or attributes. The owner of a file cannot set it back.
    pub ctime: (i64, i64),
    /// Group.
    pub gid: u32,
    /// Names that the file has; 0: it is deleted.
    pub nlink: u64,
    /// Owner.
    pub uid: u32,
    /// Type and permissions, as st_mode has them.
    pub mode: u32,
}

impl FileFacts {
    /// The facts from the standard library's metadata.
    pub fn of(metadata: &Metadata) -> Self {
        Self {
            dev: metadata.dev(),
            ino: metadata.ino(),
            size: metadata.size(),
            mtime: (metadata.mtime(), metadata.mtime_nsec()),
            ctime: (metadata.ctime(), metadata.ctime_nsec()),
            gid: metadata.gid(),
            nlink: metadata.nlink(),
            uid: metadata.uid(),
            mode: metadata.mode(),
        }
    }

    /// Whether the last change was more than 2 s ago, so that another change would have another
    /// time.
    pub fn is_settled(&self) -> bool {
        let time = |(seconds, nanoseconds): (i64, i64)| {
            let nanoseconds = u32::try_from(nanoseconds).unwrap_or(0).min(999_999_999);
            let since = Duration::new(u64::try_from(seconds).ok()?, nanoseconds);
            SystemTime::UNIX_EPOCH.checked_add(since)
        };
        time(self.mtime).zip(time(self.ctime)).is_some_and(|(modified, changed)| {
            let since = SystemTime::now().duration_since(modified.max(changed));
            since.is_ok_and(|since| since >= SETTLED)
        })
    }

    /// Another number for each state of a file, as [`State::content`].
    pub fn content(&self) -> u64 {
        let (seconds, nanoseconds) = self.ctime;
        let changed_ns = seconds.wrapping_mul(1_000_000_000).wrapping_add(nanoseconds) as u64;
        State { size_low: self.size as u32, changed_ns }.content(self.ino)
    }

    /// Whether inode number and device are those in the kernel's record. A recording that has
    /// a build id instead has no inode, so any file passes.
    pub fn is_inode(&self, id: &MappedFileId) -> bool {
        self.is_inode_on(id, |told, found| told == found)
    }

    /// As [`Self::is_inode`], but any device number without a device (major number 0) passes:
    /// layered file systems (overlayfs, btrfs) report one for the file and another for its mapping.
    pub fn is_inode_of_layers(&self, id: &MappedFileId) -> bool {
        self.is_inode_on(id, |told, found| found.0 == 0 || told == found)
    }

    fn is_inode_on(
        &self,
        id: &MappedFileId,
        same: impl Fn((u64, u64), (u64, u64)) -> bool,
    ) -> bool {
        let (MappedFileId::Inode { major, minor, inode }
        | MappedFileId::Version { major, minor, inode, .. }) = *id
        else {
            return true;
        };
        let found = (nix::sys::stat::major(self.dev), nix::sys::stat::minor(self.dev));
        self.ino == inode && same((u64::from(major), u64::from(minor)), found)
    }
}
