//! Replacing several files of an epoch as one step.
//!
//! 1. Each file is written under a temporary name and forced to the disk.
//! 2. A commit record naming them is written the same way and renamed to `commit`. This rename is
//!    the step that decides: before it nothing has changed, after it all has.
//! 3. The files are renamed to their final names, the directory is forced to the disk, and the
//!    record is removed.
//!
//! Whoever finds a record (a reader in the middle of 3, a writer after a crash) takes the named
//! files under their temporary names, where they still have them.

use std::path::{Path, PathBuf};

use crate::codec::{self, Commit};
use crate::envelope::{self, Kind};
use crate::epoch_files::read_commit;
use crate::error::DbError;
use crate::key::{self, COMMIT, TEMPORARY_SUFFIX};
use crate::storage::{Disk, MAX_FILE_BYTES};

/// Files that have been written but not published.
#[derive(Debug)]
pub(crate) struct Staging<'a> {
    disk: &'a Disk,
    directory: &'a Path,
    commit: Commit,
    bytes: u64,
}

/// A publication that failed.
#[derive(Debug)]
pub(crate) enum Failed {
    /// Nothing has changed.
    Undecided(DbError),
    /// All has changed; the commit must be finished before the next change.
    Decided(Commit, DbError),
}

impl<'a> Staging<'a> {
    /// `sequence` must be another one than that of any earlier publication in this directory: a
    /// record that a power failure brings back must not find the files of a later one.
    pub(crate) const fn new(disk: &'a Disk, directory: &'a Path, sequence: u64) -> Self {
        Self { disk, directory, commit: Commit { sequence, names: Vec::new() }, bytes: 0 }
    }

    /// Writes the next version of a file. After an error call [`Staging::abandon`].
    pub(crate) fn put(&mut self, name: &str, kind: Kind, payload: &[u8]) -> Result<(), DbError> {
        let file = envelope::seal(kind, payload);
        let bytes = file.len() as u64;
        if bytes > MAX_FILE_BYTES {
            return Err(DbError::TooLarge { path: self.directory.join(name), bytes, limit: MAX_FILE_BYTES });
        }
        // First, so that abandoning removes what a failed write leaves.
        self.commit.names.push(name.to_owned());
        self.disk.write_synced(&self.temporary(name), &file)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Removes what was written. What cannot be removed is removed when the writer opens next.
    pub(crate) fn abandon(&self) {
        for name in &self.commit.names {
            let _ = self.disk.remove_if_there(&self.temporary(name));
        }
    }

    /// Publishes all files, in the order they were put: their number and their bytes.
    pub(crate) fn publish(self) -> Result<(u64, u64), Failed> {
        if let Err(error) = self.decide() {
            self.abandon();
            return Err(Failed::Undecided(error));
        }
        match finish(self.disk, self.directory, &self.commit) {
            Ok(()) => Ok((self.commit.names.len() as u64, self.bytes)),
            Err(error) => Err(Failed::Decided(self.commit, error)),
        }
    }

    /// The one rename after which the change is made.
    fn decide(&self) -> Result<(), DbError> {
        // The rename of a single file needs no record: it decides by itself.
        if let [name] = self.commit.names.as_slice() {
            return self.disk.rename(&self.temporary(name), &self.directory.join(name));
        }
        let record = self.directory.join(COMMIT);
        let temporary = self.temporary(COMMIT);
        let file = envelope::seal(Kind::Commit, &codec::encode_commit(&self.commit));
        let decided = self.disk.write_synced(&temporary, &file).and_then(|()| self.disk.rename(&temporary, &record));
        if decided.is_err() {
            // The record before its files: it must never name files that are gone. A rename over a
            // network can have happened although it failed.
            let _ = self.disk.remove_if_there(&record);
            let _ = self.disk.remove_if_there(&temporary);
        }
        decided
    }

    fn temporary(&self, name: &str) -> PathBuf {
        self.directory.join(key::temporary_name(name, self.commit.sequence))
    }
}

/// Does what is left to do of a decided publication; doing it again is fine.
pub(crate) fn finish(disk: &Disk, directory: &Path, commit: &Commit) -> Result<(), DbError> {
    // The record must be safe before the first file changes: a power failure in between must find it.
    disk.sync_directory(directory)?;
    for name in &commit.names {
        let temporary = directory.join(key::temporary_name(name, commit.sequence));
        disk.rename_if_there(&temporary, &directory.join(name))?;
    }
    disk.sync_directory(directory)?;
    // Should this not reach the disk: the record then names temporary files that nobody has.
    disk.remove_if_there(&directory.join(COMMIT))
}

/// Brings the directory of an epoch to rest after a crash: finishes a decided publication, removes
/// the files of an undecided one, and the directory itself when it never became an epoch. Gives
/// what was damaged: a damaged record is removed, and the epoch stays as it was before that merge.
pub(crate) fn recover(disk: &Disk, directory: &Path) -> Result<Option<DbError>, DbError> {
    let mut finding = None;
    match read_commit(disk, directory) {
        Ok(None) => {}
        Ok(Some(commit)) => finish(disk, directory, &commit)?,
        Err(error @ DbError::Corrupt { .. }) => {
            disk.remove_if_there(&directory.join(COMMIT))?;
            finding = Some(error);
        }
        // A newer release's business, which must not be disturbed.
        Err(error @ DbError::NewerFormat { .. }) => return Ok(Some(error)),
        Err(error) => return Err(error),
    }
    let mut left = 0;
    for entry in disk.list_if_there(directory)? {
        if !entry.is_directory && entry.name.ends_with(TEMPORARY_SUFFIX) {
            disk.remove_if_there(&directory.join(&entry.name))?;
        } else {
            left += 1;
        }
    }
    if left == 0 {
        disk.remove_directory(directory)?;
    }
    Ok(finding)
}
