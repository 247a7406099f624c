//! The folder of counts of one run, and folders that killed runs left behind.
//!
//! A run holds a lock (flock(2)) on its folder. The kernel gives the lock back when the run ends,
//! however it ends, so a folder that can be locked has no owner. A number of a process would not
//! tell: numbers are used again, and differ between containers that share `/dev/shm`.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// Prefix of the folders' names.
const PREFIX: &str = "dcpi-counts-";
/// Most folders that are examined; a directory for temporary files may hold any number.
const LOOKED_AT_MAX: usize = 1000;
/// Most attempts to make a folder, which another run may remove before it is locked.
const ATTEMPTS: usize = 8;

/// The folder of counts of a run: it goes with the value, and at the latest with the next run.
#[derive(Debug)]
pub(super) struct Folder {
    folder: TempDir,
    /// Holds the lock. Programs that are started do not inherit it (`O_CLOEXEC`).
    lock: File,
}

impl Folder {
    /// Makes a folder beneath a directory, and locks it.
    ///
    /// # Errors
    /// Returns the errors of the file system.
    pub(super) fn make(beneath: &Path) -> io::Result<Self> {
        for _ in 0..ATTEMPTS {
            let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(beneath)?;
            // Until the folder is locked, another run may mistake it for a leftover.
            let lock = match File::open(folder.path()) {
                Ok(lock) => lock,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            if lock.try_lock().is_ok() && folder.path().exists() {
                return Ok(Self { folder, lock });
            }
        }
        Err(io::Error::other("other runs remove it"))
    }

    /// The folder.
    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Removes the folders of counts beside this one that belong to the same user and that no run
    /// has locked. Returns a note for the user with their number; None where there were none.
    pub(super) fn remove_left_behind(&self) -> Option<String> {
        let beneath = self.path().parent()?;
        let user = self.lock.metadata().ok()?.uid();
        let entries = fs::read_dir(beneath).ok()?.flatten();
        let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
        // Not through a symbolic link: that would be a file, or of another user. The folders of
        // other users, of which there may be any number, do not count towards the limit.
        let is_own =
            |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|found| is_own(&found, user));
        let removed = named
            .map(|entry| entry.path())
            .filter(is_own)
            .take(LOOKED_AT_MAX)
            .filter(|path| path != self.path() && remove_unowned(path, user))
            .count();
        let (folders, runs) =
            if removed == 1 { ("folder", "a run that was") } else { ("folders", "runs that were") };
        let beneath = beneath.display();
        (removed > 0).then(|| {
            format!("removed {removed} {folders} of counts in {beneath}, left by {runs} killed")
        })
    }
}

/// Whether this is a folder of `user`.
fn is_own(found: &fs::Metadata, user: u32) -> bool {
    found.is_dir() && found.uid() == user
}

/// Removes a folder of `user` that no process has locked. Returns whether it is gone.
fn remove_unowned(path: &PathBuf, user: u32) -> bool {
    let Ok(lock) = File::open(path) else { return false };
    lock.metadata().is_ok_and(|found| is_own(&found, user))
        && lock.try_lock().is_ok()
        && fs::remove_dir_all(path).is_ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests panic to fail")]
mod tests {
    use super::*;

    /// The launcher of a long run was killed with SIGKILL, and its counts stayed in memory until
    /// the machine was started again.
    #[test]
    fn folders_without_an_owner_go_and_all_others_stay() {
        let beneath = tempfile::tempdir().unwrap();
        let at = |name: &str| beneath.path().join(name);
        let living = Folder::make(beneath.path()).unwrap();
        for dead in ["dcpi-counts-dead", "dcpi-counts-gone", "other"] {
            fs::create_dir(at(dead)).unwrap();
            fs::write(at(dead).join("7.0"), "counts").unwrap();
        }
        fs::write(at("dcpi-counts-file"), "").unwrap();
        std::os::unix::fs::symlink(at("other"), at("dcpi-counts-link")).unwrap();
        let own = Folder::make(beneath.path()).unwrap();
        let said = own.remove_left_behind().unwrap();
        assert!(said.starts_with("removed 2 folders of counts in "), "{said}");
        assert!(living.path().exists() && own.path().exists());
        assert!(!at("dcpi-counts-dead").exists() && !at("dcpi-counts-gone").exists());
        assert!(at("other/7.0").exists() && at("dcpi-counts-file").exists());
        assert!(at("dcpi-counts-link").is_symlink());
        assert_eq!(own.remove_left_behind(), None);
    }

    #[test]
    fn folders_of_other_users_stay() {
        let beneath = tempfile::tempdir().unwrap();
        let dead = beneath.path().join("dcpi-counts-dead");
        fs::create_dir(&dead).unwrap();
        let user = fs::metadata(&dead).unwrap().uid();
        assert!(!remove_unowned(&dead, user + 1) && dead.exists());
        assert!(remove_unowned(&dead, user) && !dead.exists());
    }
}
