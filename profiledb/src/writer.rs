//! Writing a database: one writer for each host, one merge at a time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::description::{EpochMeta, EpochStart};
use crate::epoch::EpochId;
use crate::error::{DbError, Operation};
use crate::fold::{Covered, Folded, SegmentSet};
use crate::format_file;
use crate::host_lock::{HostLock, prepare};
use crate::merge::{Current, Delta, MergeReport};
use crate::naming::{self};
use crate::recovery;
use crate::storage::{Beneath, Disk, Storage};

/// The writer of a host's part of a database. A host has at most one writer at a time, which holds
/// the host's lock; writers of other hosts may write to the same database meanwhile.
#[derive(Debug)]
pub struct Writer {
    disk: Disk,
    root: PathBuf,
    host: String,
    current: Option<Current>,
    /// Sealed epochs that have segments to fold, or may have.
    unfolded: VecDeque<SegmentSet>,
    /// Sealed epochs whose slices have a segment each for now.
    sliced: Vec<SegmentSet>,
    covered: Covered,
    findings: Vec<DbError>,
    left_open: Option<EpochMeta>,
    lock: HostLock,
}

impl Writer {
    /// Opens the database in this directory for a host, and creates it when there is none. Undoes
    /// changes that a killed writer left half done.
    ///
    /// # Errors
    /// [`DbError::Locked`] when there is another writer of this host, [`DbError::NotWritable`] also
    /// for a directory of another user's and for a symbolic link in the database,
    /// [`DbError::NotADatabase`] when the directory has other things in it,
    /// [`DbError::NewerFormat`], [`DbError::OlderFormat`], [`DbError::InvalidName`] for what cannot
    /// be a host, [`DbError::Corrupt`] (the file `format`) or [`DbError::Io`].
    pub fn open(root: &Path, host: &str) -> Result<Self, DbError> {
        Self::open_on(Arc::new(Beneath::new(root)), root, host)
    }

    /// As [`Writer::open`], on another storage.
    pub fn open_on(storage: Arc<dyn Storage>, root: &Path, host: &str) -> Result<Self, DbError> {
        Self::open_with(Disk::new(storage), root, host)
    }

    pub(crate) fn open_with(disk: Disk, root: &Path, host: &str) -> Result<Self, DbError> {
        naming::check_host(host)?;
        format_file::refuse_foreign(&disk, root)?;
        let lock = prepare(&disk, root, host).map_err(DbError::or_not_writable)?;
        let lock = HostLock::new(naming::lock_path(root, host), lock);
        let mut writer = Self {
            disk,
            root: root.to_owned(),
            host: host.to_owned(),
            current: None,
            unfolded: VecDeque::new(),
            sliced: Vec::new(),
            covered: Covered::default(),
            findings: Vec::new(),
            left_open: None,
            lock,
        };
        writer.look_around()?;
        Ok(writer)
    }

    /// Undoes changes that a killed writer left half done, and finds segments to fold.
    fn look_around(&mut self) -> Result<(), DbError> {
        let directory = naming::host_path(&self.root, &self.host);
        recovery::remove_gone(&self.disk, &directory)?;
        for epoch in epoch_directories(&self.disk, &directory)? {
            let found = recovery::recover(
                &self.disk,
                &directory.join(epoch.as_str()),
                (&self.host, &epoch),
            )?;
            self.findings.extend(found.finding);
            if found.segments.len() > 1 {
                let directory = directory.join(epoch.as_str());
                let of = (self.host.clone(), epoch);
                let stock = SegmentSet::new(self.disk.clone(), directory, of, found.segments);
                self.unfolded.push_back(stock);
            }
        }
        Ok(())
    }

    /// Creates again what was removed under the writer, after [`DbError::Removed`], and takes the
    /// lock again if its file is another one now. The writer has no epoch then: [`Writer::begin`]
    /// continues the last one, if it is still there.
    ///
    /// # Errors
    /// As [`Writer::open`]; [`DbError::Locked`] when another writer was faster. Nothing was written
    /// then, and the call may be repeated.
    pub fn reopen(&mut self) -> Result<(), DbError> {
        format_file::refuse_foreign(&self.disk, &self.root)?;
        (self.current, self.covered) = (None, Covered::default());
        (self.unfolded, self.sliced) = (VecDeque::new(), Vec::new());
        match self.lock.check() {
            Ok(_) => format_file::create(&self.disk, &self.root, &self.host)?,
            Err(DbError::Removed { .. }) => {
                let lock = prepare(&self.disk, &self.root, &self.host)
                    .map_err(DbError::or_not_writable)?;
                self.lock.replace(lock);
            }
            Err(error) => return Err(error),
        }
        self.look_around()
    }

    /// Refuses to write where the lock is not this writer's any more, or another part of the
    /// database is gone. Costs three look-ups of names.
    pub(crate) fn check_in_place(&self) -> Result<(), DbError> {
        self.lock.check()?;
        let segment = self.current.as_ref().and_then(|current| current.stock.newest());
        let needed = [Some(naming::format_path(&self.root)), segment];
        for path in needed.into_iter().flatten() {
            if !self.disk.is_there(&path)? {
                return Err(DbError::Removed { path });
            }
        }
        Ok(())
    }

    /// Begins to write. Continues the newest epoch if `new` is false and the epoch is open, of the
    /// same machine (boot and kernel included) and the same events, and `start` has no label or the
    /// epoch's. Otherwise seals it and begins a new one.
    ///
    /// An epoch left by an earlier writer is sealed as of its last merge, this writer's own as of
    /// `start.now_unix_s`. An epoch that is damaged (see [`Writer::findings`]) is left as it
    /// is.
    ///
    /// # Errors
    /// [`DbError::InvalidName`] and [`DbError::DuplicateEvent`] for what may not be stored, then
    /// nothing has changed; [`DbError::Io`], [`DbError::Unfinished`]: then the writer may have no
    /// epoch, and `begin` can be called again.
    pub fn begin(&mut self, start: EpochStart, new: bool) -> Result<EpochId, DbError> {
        check_start(&start)?;
        self.check_in_place()?;
        let newest = self.newest()?;
        if let Some(mut newest) = newest {
            if self.current.is_none() && newest.meta.ended_unix_s.is_none() {
                self.left_open = Some(newest.meta.clone());
            }
            if !new && newest.meta.continues_with(&start) {
                let epoch = newest.meta.epoch.clone();
                newest.meta.writer_version = start.writer_version;
                self.take(newest);
                return Ok(epoch);
            }
            if newest.meta.ended_unix_s.is_none() {
                let own = self.epoch() == Some(&newest.meta.epoch);
                let ended = if own { start.now_unix_s } else { newest.meta.updated_unix_s };
                self.take(newest);
                self.seal(ended)?;
            }
        }
        self.current = None;
        let epoch = self.next_name(start.now_unix_s)?;
        let meta = EpochMeta::begin(&self.host, epoch, start);
        self.create(meta)
    }

    fn take(&mut self, newest: Current) {
        self.leave(newest.stock.directory());
        self.current = Some(newest);
    }

    /// The description, as of its last merge, of the epoch that another writer had left open when
    /// this one began its first.
    pub fn left_open(&self) -> Option<&EpochMeta> {
        self.left_open.as_ref()
    }

    /// The epoch being written.
    pub fn epoch(&self) -> Option<&EpochId> {
        self.current.as_ref().map(|current| &current.meta.epoch)
    }

    /// The description of the epoch being written, as of the last merge.
    pub fn meta(&self) -> Option<&EpochMeta> {
        self.current.as_ref().map(|current| &current.meta)
    }

    /// The disk and the host's directory.
    pub(crate) fn place(&self) -> (&Disk, PathBuf) {
        (&self.disk, naming::host_path(&self.root, &self.host))
    }

    /// The host's lock.
    pub(crate) fn lock(&self) -> &HostLock {
        &self.lock
    }

    /// Damage that was found and worked around, for the log.
    pub fn findings(&self) -> &[DbError] {
        &self.findings
    }

    /// Adds a delta to the epoch: all of it, or nothing. The cost grows with the delta, not with
    /// the epoch.
    ///
    /// # Errors
    /// [`DbError::Unfinished`]: all of the delta is in the database and must not be merged again.
    /// Any other error: nothing of the delta is there, and it may be merged again:
    /// [`DbError::Removed`], see
    /// [`Writer::reopen`]; [`DbError::NoOpenEpoch`]; [`DbError::Unbalanced`],
    /// [`DbError::UnknownEvent`], [`DbError::UnknownImage`], [`DbError::InvalidName`],
    /// [`DbError::FactsTooLarge`] for a delta that contradicts itself or the epoch;
    /// [`DbError::TooLarge`], [`DbError::TooMany`]; [`DbError::Io`].
    pub fn merge(&mut self, delta: &Delta) -> Result<MergeReport, DbError> {
        self.check_in_place()?;
        let current = self.current.as_mut().ok_or_else(|| no_epoch(&self.root, &self.host))?;
        current.finish()?;
        current.check(delta)?;
        current.merge(delta)
    }

    /// Folds segments of this host's epochs where they are many: about `budget_bytes` of them, at
    /// least one profile. Merges make segments, and calling this at intervals with a small budget
    /// spreads the work over time. The epoch reads the same before and after. Folded segments stay
    /// for ten minutes, for copies of the directory by `cp -a`; `now_unix_s` is in seconds since
    /// 1970 UTC.
    ///
    /// # Errors
    /// [`DbError::Io`], [`DbError::Corrupt`], [`DbError::NewerFormat`]: the epoch is as it was, and
    /// merges go on.
    pub fn fold(&mut self, budget_bytes: u64, now_unix_s: u64) -> Result<Folded, DbError> {
        // The next merge reports that; until then nothing of this writer's can be folded.
        if matches!(self.check_in_place(), Err(DbError::Removed { .. })) {
            return Ok(Folded::default());
        }
        self.covered.remove(&self.disk, now_unix_s);
        if let Some(current) = &mut self.current {
            current.finish()?;
            let folded = current.stock.fold(budget_bytes, false, now_unix_s);
            current.stock.retire(&mut self.covered, now_unix_s);
            let folded = folded?;
            if folded != Folded::default() {
                return Ok(folded);
            }
        }
        while let Some(mut stock) = self.unfolded.pop_front() {
            let folded = stock.fold(budget_bytes, true, now_unix_s);
            stock.retire(&mut self.covered, now_unix_s);
            // An epoch that cannot be folded is not put back. A disk that is full today may have
            // room another day.
            let is_hopeless =
                stock.is_whole() || matches!(&folded, Err(error) if !error.is_transient());
            let is_idle = matches!(&folded, Ok(folded) if *folded == Folded::default());
            match (is_hopeless, is_idle) {
                (true, _) => {}
                // Slices of the epoch become longer as they age.
                (false, true) => self.sliced.push(stock),
                (false, false) => self.unfolded.push_front(stock),
            }
            if !is_idle {
                return folded.map(|folded| Folded { more: !self.unfolded.is_empty(), ..folded });
            }
        }
        let is_ripe = |stock: &mut SegmentSet| stock.is_ripe(now_unix_s);
        if let Some(at) = self.sliced.iter_mut().position(is_ripe) {
            self.unfolded.push_back(self.sliced.swap_remove(at));
        }
        Ok(Folded { more: !self.unfolded.is_empty(), ..Folded::default() })
    }

    /// Ends the epoch, which never changes again, and leaves the writer without one. The segments
    /// of each slice of time become one, if the disk has room for that; else [`Writer::fold`] does
    /// it later.
    ///
    /// # Errors
    /// [`DbError::Unfinished`]: the epoch is ended; [`DbError::NoOpenEpoch`], [`DbError::Io`]: it
    /// is not.
    pub fn seal(&mut self, now_unix_s: u64) -> Result<(), DbError> {
        self.check_in_place()?;
        let current = self.current.as_mut().ok_or_else(|| no_epoch(&self.root, &self.host))?;
        current.finish()?;
        let mut meta = current.meta.clone();
        meta.ended_unix_s = Some(now_unix_s.max(meta.updated_unix_s));
        meta.merges += 1;
        let outcome = current.put(meta, &BTreeMap::new(), Vec::new());
        if matches!(outcome, Ok(_) | Err(DbError::Unfinished { .. }))
            && let Some(Current { mut stock, unsynced, .. }) = self.current.take()
        {
            let fold = |stock: &mut SegmentSet| stock.fold(u64::MAX, true, now_unix_s);
            while !unsynced && fold(&mut stock).is_ok_and(|folded| folded.more) {}
            stock.retire(&mut self.covered, now_unix_s);
            if !stock.is_whole() {
                self.unfolded.push_back(stock);
            }
        }
        outcome.map(|_| ())
    }

    /// Ends the epoch, if there is one, and begins another.
    pub fn next_epoch(&mut self, start: EpochStart) -> Result<EpochId, DbError> {
        self.begin(start, true)
    }

    /// The epoch that was open when the last writer ended, to be sealed; None when all are sealed.
    pub(crate) fn resume(&mut self) -> Result<Option<EpochId>, DbError> {
        let Some(newest) = self.newest()?.filter(|newest| newest.meta.ended_unix_s.is_none())
        else {
            return Ok(None);
        };
        let epoch = newest.meta.epoch.clone();
        self.take(newest);
        Ok(Some(epoch))
    }

    /// Stops folding an epoch, as for a sealed one.
    fn leave(&mut self, directory: &Path) {
        self.unfolded.retain(|stock| stock.directory() != directory);
        self.sliced.retain(|stock| stock.directory() != directory);
    }

    /// Forgets the segments of an epoch that is removed.
    pub(crate) fn forget(&mut self, directory: &Path) {
        self.leave(directory);
        self.covered.forget(directory);
    }

    /// The newest epoch of this host, unless it cannot be read.
    fn newest(&mut self) -> Result<Option<Current>, DbError> {
        if let Some(current) = &mut self.current {
            current.finish()?;
        }
        let host = naming::host_path(&self.root, &self.host);
        let Some(epoch) = epoch_directories(&self.disk, &host)?.pop() else { return Ok(None) };
        match Current::load(&self.disk, host.join(epoch.as_str()), &self.host, &epoch) {
            Err(error) if error.is_unreadable() => {
                self.findings.push(error);
                Ok(None)
            }
            other => other,
        }
    }

    /// The name of an epoch that begins now: after the newest, also when the clock was set back.
    /// The order of names is the order of epochs.
    pub(crate) fn next_name(&self, now_unix_s: u64) -> Result<EpochId, DbError> {
        let newest =
            epoch_directories(&self.disk, &naming::host_path(&self.root, &self.host))?.pop();
        let earliest = newest.as_ref().map_or(0, |newest| newest.unix_s() + 1);
        let epoch = EpochId::from_unix_s(now_unix_s.max(earliest));
        if newest.is_some_and(|newest| newest >= epoch) {
            return Err(DbError::Io {
                op: Operation::CreateDirectory,
                path: naming::epoch_path(&self.root, &self.host, &epoch),
                source: std::io::ErrorKind::AlreadyExists.into(),
            });
        }
        Ok(epoch)
    }

    fn create(&mut self, meta: EpochMeta) -> Result<EpochId, DbError> {
        let (host, epoch) = (naming::host_path(&self.root, &self.host), meta.epoch.clone());
        let directory = naming::epoch_path(&self.root, &self.host, &epoch);
        let mut stock = SegmentSet::new(
            self.disk.clone(),
            directory.clone(),
            (self.host.clone(), epoch.clone()),
            Vec::new(),
        );
        stock.began(meta.started_unix_s);
        let mut current = Current::of(stock, meta.clone());
        let created = self
            .disk
            .create_directory(&directory)
            .and_then(|()| current.put(meta, &BTreeMap::new(), Vec::new()))
            .and_then(|_| self.disk.sync_directory(&host));
        match created {
            Ok(()) => {
                self.current = Some(current);
                Ok(epoch)
            }
            Err(error) => {
                // Fails when the first segment is there: then it is an epoch without samples, which
                // the next begin continues.
                let _ = self.disk.remove_directory(&directory);
                Err(error)
            }
        }
    }
}

/// The epochs in the directory of a host, oldest first, including incomplete ones.
pub(crate) fn epoch_directories(disk: &Disk, host: &Path) -> Result<Vec<EpochId>, DbError> {
    let entries = disk.list_if_there(host)?;
    let mut epochs: Vec<EpochId> = entries
        .iter()
        .filter(|entry| entry.is_directory)
        .filter_map(|entry| entry.name.parse().ok())
        .collect();
    epochs.sort();
    Ok(epochs)
}

fn no_epoch(root: &Path, host: &str) -> DbError {
    DbError::NoOpenEpoch { root: root.to_owned(), host: host.to_owned() }
}

fn check_start(start: &EpochStart) -> Result<(), DbError> {
    if let Some(label) = &start.label {
        naming::check_label(label)?;
    }
    let mut names = BTreeSet::new();
    for event in &start.events {
        naming::check_event(&event.name)?;
        if !names.insert(&event.name) {
            return Err(DbError::DuplicateEvent { event: event.name.clone() });
        }
    }
    Ok(())
}
