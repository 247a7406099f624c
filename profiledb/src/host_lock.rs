//! The lock of a host's directory, shared by everything in this process that writes there.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{DbError, Operation};
use crate::format_file;
use crate::naming;
use crate::storage::{Disk, Lock};

/// The lock, held as long as one of the clones lives.
#[derive(Clone, Debug)]
pub(crate) struct HostLock {
    path: PathBuf,
    held: Arc<Mutex<Held>>,
}

#[derive(Debug)]
struct Held {
    lock: Box<dyn Lock>,
    /// Times that the lock was taken again: earlier files may be gone.
    generation: u64,
}

impl HostLock {
    pub(crate) fn new(path: PathBuf, lock: Box<dyn Lock>) -> Self {
        Self { path, held: Arc::new(Mutex::new(Held { lock, generation: 0 })) }
    }

    /// The generation of the directory, if it may be written to.
    ///
    /// # Errors
    /// [`DbError::Removed`] when the name belongs to another file than the locked one: the
    /// directory may be another writer's.
    pub(crate) fn check(&self) -> Result<u64, DbError> {
        let held = self.held();
        let path = || self.path.clone();
        match held.lock.has_its_name() {
            Ok(true) => Ok(held.generation),
            Ok(false) => Err(DbError::Removed { path: path() }),
            Err(source) => Err(DbError::Io { op: Operation::Lock, path: path(), source }),
        }
    }

    /// Replaces the lock by another one of that name.
    pub(crate) fn replace(&self, lock: Box<dyn Lock>) {
        let mut held = self.held();
        held.lock = lock;
        held.generation += 1;
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates the directories that every database has, and takes the host's lock.
pub(crate) fn prepare(disk: &Disk, root: &Path, host: &str) -> Result<Box<dyn Lock>, DbError> {
    disk.create_directory(root)?;
    disk.create_directory(&naming::host_path(root, host))?;
    // Forces out the names of directories that were just made. Directories above may belong to
    // others and be unreadable; then the names are as safe as their owner made them.
    for above in root.ancestors().skip(1) {
        let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
        let _ = disk.sync_directory(above);
    }
    let lock = disk.lock(&naming::lock_path(root, host))?;
    format_file::create(disk, root, host)?;
    disk.sync_directory(&naming::hosts_path(root))?;
    disk.sync_directory(root)?;
    Ok(lock)
}
