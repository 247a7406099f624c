//! The bookmark of a reader that forwards a database: each merge is sent once, even if segments are
//! folded meanwhile.
//!
//! A merge has a number in its epoch, and segments say which merges they have. So the last merge
//! that was sent is a bookmark. A fold may put merges of both sides of the bookmark into one
//! segment; then the counts that were sent are taken away from those of the segment. For that, a
//! copy of each segment that was sent stays, in a database of its own, which is the bookmark, too:
//! nothing else can be lost or contradict. A copy is written after the receiver has confirmed, so
//! what a crash in between leaves is sent again.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::epoch::EpochId;
use crate::error::DbError;
use crate::fold;
use crate::format_file;
use crate::listing;
use crate::naming;
use crate::reader::{Database, Epoch};
use crate::storage::{Beneath, Disk, Lock};

/// Name of the file that the one process that sends holds a lock on.
const LOCK: &str = "sent.lock";

/// Copies of the segments that were sent.
#[derive(Debug)]
pub struct Sent {
    disk: Disk,
    root: PathBuf,
    _lock: Box<dyn Lock>,
}

impl Sent {
    /// Opens the copies in this directory, which is made if there is none.
    ///
    /// # Errors
    /// [`DbError::Locked`] while another process has it open; those of [`crate::Writer::open`].
    pub fn open(root: &Path) -> Result<Self, DbError> {
        let disk = Disk::new(Arc::new(Beneath::new(root)));
        disk.create_directory(root)?;
        let lock = disk.lock(&root.join(LOCK))?;
        format_file::create(&disk, root, "sent")?;
        Ok(Self { disk, root: root.to_owned(), _lock: lock })
    }

    /// The merges of an epoch that were not sent yet: at least one segment, and further ones up to
    /// a number of bytes. None when all were sent, or the epoch no longer exists.
    ///
    /// # Errors
    /// Returns the errors of [`Database::epoch`]; [`DbError::Corrupt`] when a fold mixed sent and
    /// unsent merges and copies are missing.
    pub fn unsent(
        &self,
        db: &Database,
        host: &str,
        epoch: &EpochId,
        bytes_max: u64,
    ) -> Result<Option<Epoch>, DbError> {
        let whole = match db.epoch(host, epoch) {
            Err(DbError::NoSuchEpoch { .. }) => return Ok(None),
            whole => whole?,
        };
        let merge = self.merge(host, epoch)?;
        let has_both = |merge: u64| whole.snapshot().has_both(merge);
        let had = match merge.filter(|merge| has_both(*merge)) {
            Some(_) => Some(Database::of(self.disk.clone(), &self.root).epoch(host, epoch)?),
            None => None,
        };
        whole.since(merge, had.as_ref(), bytes_max)
    }

    /// Whether there is anything in a part that [`Sent::unsent`] gave.
    pub fn has_counts(part: &Epoch) -> bool {
        part.snapshot().has_counts()
    }

    /// Notes that a part was sent.
    ///
    /// # Errors
    /// [`DbError::Io`]: the part will be sent again.
    pub fn mark(&self, part: &Epoch) -> Result<(), DbError> {
        let (host, epoch) = (&part.meta().host, &part.meta().epoch);
        let snapshot = part.snapshot();
        let host_path = naming::host_path(&self.root, host);
        let directory = naming::epoch_path(&self.root, host, epoch);
        for path in [&naming::hosts_path(&self.root), &host_path, &directory] {
            self.disk.create_directory(path)?;
        }
        // The last copy is the bookmark: those before it come first.
        let mut newest = None;
        for (span, file) in snapshot.counted_files() {
            fold::write(&self.disk, &directory, span, file)?;
            newest = Some(span);
        }
        self.disk.sync_directory(&directory)?;
        let is_over = part.meta().ended_unix_s.is_some();
        for span in listing::spans(&self.disk, &directory)? {
            let is_covered =
                snapshot.counted_files().any(|(wide, _)| wide != span && wide.covers(span));
            // A finished epoch gets no more merges, so the bookmark is enough.
            if is_covered || (is_over && newest != Some(span)) {
                self.disk.remove_if_there(&directory.join(span.name()))?;
            }
        }
        Ok(())
    }

    /// Forgets the epochs of a host that are no longer in the database.
    pub fn forget_gone(&self, db: &Database, host: &str) -> Result<(), DbError> {
        let there = db.epochs(host)?;
        let sent = Database::of(self.disk.clone(), &self.root);
        for epoch in sent.epochs(host)?.into_iter().filter(|epoch| !there.contains(epoch)) {
            let directory = naming::epoch_path(&self.root, host, &epoch);
            for entry in self.disk.list_if_there(&directory)? {
                self.disk.remove_if_there(&directory.join(&entry.name))?;
            }
            self.disk.remove_directory(&directory)?;
        }
        Ok(())
    }

    /// The last merge that was sent.
    fn merge(&self, host: &str, epoch: &EpochId) -> Result<Option<u64>, DbError> {
        naming::check_host(host)?;
        let directory = naming::epoch_path(&self.root, host, epoch);
        Ok(listing::newest(&listing::spans(&self.disk, &directory)?))
    }
}
