//! Reading what a stranger's file names: with the rights of that file's owner.
//!
//! Debug information names files: sources, and supplementary debug files. Whoever runs a report as
//! root must not be led to print a file that the author of the debug information may not read.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The user on whose behalf a file named in another file is read.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum OnBehalf {
    /// This process's own user.
    #[default]
    Own,
    /// Another user: the owner of the file that contains the name.
    User(u32),
    /// An unknown user: only world-readable files are read.
    Anybody,
}

impl OnBehalf {
    /// The owner of a file, where this process has rights that the owner may not have: those of
    /// root. Anybody else's process reads what its user may read.
    pub fn of_owner(owner: Option<u32>) -> Self {
        // The directory belongs to the effective user (proc(5)). Where that cannot be determined,
        // it may be root.
        let user = std::fs::metadata("/proc/self").map_or(0, |metadata| metadata.uid());
        match owner {
            _ if user != 0 => Self::Own,
            Some(0) => Self::Own,
            Some(owner) => Self::User(owner),
            None => Self::Anybody,
        }
    }

    /// Whether that user may read an open file by the path that it has now: its permissions say so,
    /// and those of every directory on the way. Groups are ignored, because their members are
    /// unknown.
    ///
    /// # Errors
    /// Returns the errors of reading the metadata of the file and the directories.
    pub fn may_read(self, file: &File) -> io::Result<bool> {
        let user = match self {
            Self::Own => return Ok(true),
            Self::User(user) => Some(user),
            Self::Anybody => None,
        };
        let may = |metadata: &std::fs::Metadata, bit: u32| {
            let shift = if user == Some(metadata.uid()) { 6 } else { 0 };
            metadata.mode() >> shift & bit != 0
        };
        if !may(&file.metadata()?, 4) {
            return Ok(false);
        }
        // As the kernel has it, without symbolic links: whoever changes the path that was opened
        // does not change this one.
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        for directory in path.ancestors().skip(1).filter(|path| *path != Path::new("")) {
            if !may(&directory.symlink_metadata()?, 1) {
                return Ok(false);
            }
        }
        Ok(path.is_absolute())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_file_is_read_where_all_directories_above_it_let_its_user_through() {
        let dir = tempfile::tempdir().unwrap();
        let open = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
        let (folder, path) = (dir.path().join("folder"), dir.path().join("folder/file"));
        fs::create_dir(&folder).unwrap();
        fs::write(&path, "text").unwrap();
        let file = File::open(&path).unwrap();
        let me = OnBehalf::User(file.metadata().unwrap().uid());
        for (of_dir, of_folder, of_file, others, owner) in [
            (0o711, 0o711, 0o644, true, true),
            (0o711, 0o711, 0o600, false, true),
            (0o711, 0o700, 0o640, false, true),
            (0o700, 0o711, 0o644, false, true),
            (0o711, 0o711, 0o244, true, false),
        ] {
            open(dir.path(), of_dir).unwrap();
            open(&folder, of_folder).unwrap();
            open(&path, of_file).unwrap();
            let found = (OnBehalf::Anybody.may_read(&file).unwrap(), me.may_read(&file).unwrap());
            assert_eq!(found, (others, owner), "{of_dir:o} {of_folder:o} {of_file:o}");
            assert!(OnBehalf::Own.may_read(&file).unwrap());
            let other = OnBehalf::User(u32::MAX - 1);
            assert_eq!(other.may_read(&file).unwrap(), others);
        }
        open(dir.path(), 0o700).unwrap();
        open(&folder, 0o700).unwrap();
    }
}
