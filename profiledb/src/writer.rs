//! Writing a database: one writer at a time, one merge at a time.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use image::ImageId;

use crate::codec::{self, Commit};
use crate::envelope::Kind;
use crate::epoch::EpochId;
use crate::epoch_files::EpochFiles;
use crate::error::{Damage, DbError, Operation};
use crate::format;
use crate::images::{self, ImageRecord};
use crate::key::{self, ProfileKey, SamplesFile};
use crate::meta::{self, EpochMeta, EpochStart, Ledger};
use crate::profile::Profile;
use crate::publish::{self, Failed, Staging};
use crate::scope::{self, ScopeTable};
use crate::storage::{Directory, Disk, Lock, Storage};
use crate::symbols::{self, Symbol};

/// What one merge adds to an epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// Samples. Each image must be in `images` or have been in those of an earlier merge of the
    /// epoch, each event one of the epoch's. A scope for which the epoch has no room left is widened.
    pub profiles: BTreeMap<ProfileKey, Profile>,
    /// Images met since the last merge, by their ids.
    pub images: BTreeMap<ImageId, ImageRecord>,
    /// Symbols met since the last merge.
    pub symbols: BTreeMap<ImageId, Vec<Symbol>>,
    /// Event to where its samples went. `merged` must be the sum of `profiles` of that event.
    pub ledgers: BTreeMap<String, Ledger>,
    /// Now, in seconds since 1970 UTC.
    pub now_unix_s: u64,
}

/// What a merge wrote.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct MergeReport {
    /// Number of files replaced or made.
    pub files_written: u64,
    /// Their bytes.
    pub bytes_written: u64,
    /// Samples that were counted in a wider scope than theirs, because the epoch had no room for another one.
    pub samples_widened: u64,
}

/// The writer of a database. There is at most one at a time: it holds the database's lock.
#[derive(Debug)]
pub struct Writer {
    disk: Disk,
    root: PathBuf,
    host: String,
    current: Option<Current>,
    findings: Vec<DbError>,
    _lock: Box<dyn Lock>,
}

/// The epoch being written. `meta`, `images` and `scopes` are always as on disk.
#[derive(Debug)]
struct Current {
    files: EpochFiles,
    meta: EpochMeta,
    images: BTreeMap<ImageId, ImageRecord>,
    scopes: ScopeTable,
    /// A change that is decided but whose last step failed.
    unfinished: Option<Commit>,
}

impl Writer {
    /// Opens the database in this directory for a host, and makes it when there is none. Finishes
    /// or undoes what a killed writer left.
    ///
    /// # Errors
    /// [`DbError::Locked`] when there is another writer, [`DbError::NotWritable`],
    /// [`DbError::NotADatabase`] when the directory has other things in it,
    /// [`DbError::NewerFormat`], [`DbError::InvalidName`] for what cannot be a host,
    /// [`DbError::Corrupt`] (the file `format`) or [`DbError::Io`].
    pub fn open(root: &Path, host: &str) -> Result<Self, DbError> {
        Self::open_on(Arc::new(Directory), root, host)
    }

    /// As [`Writer::open`], on another storage.
    ///
    /// # Errors
    /// As [`Writer::open`].
    pub fn open_on(storage: Arc<dyn Storage>, root: &Path, host: &str) -> Result<Self, DbError> {
        key::check_host(host)?;
        let disk = Disk::new(storage);
        format::refuse_foreign(&disk, root)?;
        let lock = prepare(&disk, root, host).map_err(DbError::or_not_writable)?;
        let mut findings = Vec::new();
        let directory = key::host_path(root, host);
        for epoch in epoch_directories(&disk, &directory)? {
            findings.extend(publish::recover(&disk, &directory.join(epoch.as_str()))?);
        }
        Ok(Self { disk, root: root.to_owned(), host: host.to_owned(), current: None, findings, _lock: lock })
    }

    /// Begins to write: continues the newest epoch when that may be (see below), unless `new`; else
    /// seals it and begins a new one. Continued is an open epoch of the same machine (boot and
    /// kernel included) and the same events, when `start` has no label or the same.
    ///
    /// An epoch left by an earlier writer is sealed as of its last merge, this writer's own as of
    /// `start.now_unix_s`. An epoch whose description is damaged is left as it is (see
    /// [`Writer::findings`]).
    ///
    /// # Errors
    /// [`DbError::InvalidName`] and [`DbError::DuplicateEvent`] for what may not be stored, then
    /// nothing has changed; [`DbError::Io`], [`DbError::Unfinished`]: then the writer may have no
    /// epoch, and `begin` can be called again.
    pub fn begin(&mut self, start: EpochStart, new: bool) -> Result<EpochId, DbError> {
        check_start(&start)?;
        let newest = self.newest()?;
        if let Some(mut newest) = newest {
            if !new && newest.meta.continues_with(&start) {
                let epoch = newest.meta.epoch.clone();
                newest.meta.writer_version = start.writer_version;
                self.current = Some(newest);
                return Ok(epoch);
            }
            if newest.meta.ended_unix_s.is_none() {
                let own = self.epoch() == Some(&newest.meta.epoch);
                let ended = if own { start.now_unix_s } else { newest.meta.updated_unix_s };
                self.current = Some(newest);
                self.seal(ended)?;
            }
        }
        self.current = None;
        self.create(start)
    }

    /// The epoch being written.
    #[must_use]
    pub fn epoch(&self) -> Option<&EpochId> {
        self.current.as_ref().map(|current| &current.meta.epoch)
    }

    /// What the epoch being written says about itself, as of the last merge.
    #[must_use]
    pub fn meta(&self) -> Option<&EpochMeta> {
        self.current.as_ref().map(|current| &current.meta)
    }

    /// Where this writer writes: the disk and its host's directory.
    pub(crate) fn place(&self) -> (&Disk, PathBuf) {
        (&self.disk, key::host_path(&self.root, &self.host))
    }

    /// Damage that was found and worked around, for the log.
    #[must_use]
    pub fn findings(&self) -> &[DbError] {
        &self.findings
    }

    /// Adds a delta to the epoch: all of it, or nothing.
    ///
    /// # Errors
    /// [`DbError::Unfinished`]: all of the delta is in the database and must not be merged again.
    /// Any other error: nothing of it is, and it may be merged again:
    /// [`DbError::NoOpenEpoch`]; [`DbError::Unbalanced`], [`DbError::UnknownEvent`],
    /// [`DbError::UnknownImage`], [`DbError::InvalidName`] for a delta that contradicts itself or the epoch;
    /// [`DbError::TooLarge`] and [`DbError::Corrupt`], after which only a new epoch helps;
    /// [`DbError::Io`].
    pub fn merge(&mut self, delta: &Delta) -> Result<MergeReport, DbError> {
        let current = self
            .current
            .as_mut()
            .ok_or_else(|| DbError::NoOpenEpoch { root: self.root.clone(), host: self.host.clone() })?;
        current.finish()?;
        current.check(delta)?;
        current.merge(delta)
    }

    /// Ends the epoch: it never changes again, and the writer has none.
    ///
    /// # Errors
    /// [`DbError::Unfinished`]: it is ended; [`DbError::NoOpenEpoch`], [`DbError::Io`]: it is not.
    pub fn seal(&mut self, now_unix_s: u64) -> Result<(), DbError> {
        let current = self
            .current
            .as_mut()
            .ok_or_else(|| DbError::NoOpenEpoch { root: self.root.clone(), host: self.host.clone() })?;
        current.finish()?;
        let outcome = current.seal(now_unix_s);
        if matches!(outcome, Ok(()) | Err(DbError::Unfinished { .. })) {
            self.current = None;
        }
        outcome
    }

    /// Ends the epoch, if there is one, and begins another.
    ///
    /// # Errors
    /// As [`Writer::begin`].
    pub fn next_epoch(&mut self, start: EpochStart) -> Result<EpochId, DbError> {
        self.begin(start, true)
    }

    /// The newest epoch of this host that can be read.
    fn newest(&mut self) -> Result<Option<Current>, DbError> {
        if let Some(current) = &mut self.current {
            current.finish()?;
        }
        let directory = key::host_path(&self.root, &self.host);
        let Some(epoch) = epoch_directories(&self.disk, &directory)?.pop() else {
            return Ok(None);
        };
        let files = EpochFiles::quiet(self.disk.clone(), directory.join(epoch.as_str()));
        match load(files, &self.host, &epoch) {
            Err(error @ (DbError::Corrupt { .. } | DbError::NewerFormat { .. })) => {
                self.findings.push(error);
                Ok(None)
            }
            other => other,
        }
    }

    fn create(&mut self, start: EpochStart) -> Result<EpochId, DbError> {
        let host = key::host_path(&self.root, &self.host);
        let newest = epoch_directories(&self.disk, &host)?.pop();
        // After the newest, also when the clock was set back: the order of names is that of epochs.
        let earliest = newest.as_ref().map_or(0, |newest| newest.unix_s() + 1);
        let epoch = EpochId::from_unix_s(start.now_unix_s.max(earliest));
        let directory = key::epoch_path(&self.root, &self.host, &epoch);
        if newest.is_some_and(|newest| newest >= epoch) {
            return Err(DbError::Io {
                op: Operation::CreateDirectory,
                path: directory,
                source: std::io::ErrorKind::AlreadyExists.into(),
            });
        }
        let mut current = Current {
            meta: EpochMeta::begin(&self.host, epoch.clone(), start),
            files: EpochFiles::quiet(self.disk.clone(), directory.clone()),
            images: BTreeMap::new(),
            scopes: ScopeTable::default(),
            unfinished: None,
        };
        let created = self
            .disk
            .create_directory(&directory)
            .and_then(|()| current.describe(current.meta.clone()))
            .and_then(|()| self.disk.sync_directory(&host));
        match created {
            Ok(()) => {
                self.current = Some(current);
                Ok(epoch)
            }
            Err(error) => {
                // Fails when the description is there: then it is an epoch without samples, and the
                // next begin continues it.
                let _ = self.disk.remove_directory(&directory);
                Err(error)
            }
        }
    }
}

impl Current {
    /// Does what is left of a decided change.
    fn finish(&mut self) -> Result<(), DbError> {
        if let Some(commit) = &self.unfinished {
            publish::finish(self.files.disk(), self.files.directory(), commit)?;
            self.unfinished = None;
        }
        Ok(())
    }

    /// Refuses a delta that contradicts itself or the epoch.
    fn check(&self, delta: &Delta) -> Result<(), DbError> {
        let mut totals: BTreeMap<String, u64> = BTreeMap::new();
        for (key, profile) in &delta.profiles {
            let sum = totals.entry(key.event.clone()).or_default();
            *sum = sum.saturating_add(profile.total());
        }
        let known = |event: &String| self.meta.events.iter().any(|known| known.name == *event);
        if let Some(event) = totals.keys().chain(delta.ledgers.keys()).find(|event| !known(event)) {
            return Err(DbError::UnknownEvent { event: event.clone() });
        }
        let described = |image: &&ImageId| delta.images.contains_key(*image) || self.images.contains_key(*image);
        let named = delta.profiles.keys().map(|key| &key.image);
        let nameless = named.chain(delta.symbols.keys()).find(|id| !described(id));
        let mistaken = delta.images.iter().find(|(id, record)| **id != record.id);
        if let Some(image) = nameless.or(mistaken.map(|(id, _)| id)) {
            return Err(DbError::UnknownImage { image: *image });
        }
        delta.profiles.keys().try_for_each(|key| key.scope.check())?;
        meta::check_balance(&delta.ledgers, &totals)
    }

    fn merge(&mut self, delta: &Delta) -> Result<MergeReport, DbError> {
        let mut images = self.images.clone();
        for (id, met) in &delta.images {
            images.entry(*id).and_modify(|known| known.absorb(met)).or_insert_with(|| met.clone());
        }
        let mut meta = self.meta.clone();
        for (event, ledger) in &delta.ledgers {
            meta.ledgers.entry(event.clone()).or_default().add(ledger);
        }
        meta.updated_unix_s = meta.updated_unix_s.max(delta.now_unix_s);
        meta.merges += 1;

        let mut scopes = self.scopes.clone();
        let (profiles, samples_widened) = place(delta, &mut scopes);

        let files = self.files.clone();
        let mut staging = Staging::new(files.disk(), files.directory(), meta.merges);
        let changed_scopes = (scopes.len() != self.scopes.len()).then_some(&scopes);
        let changed_images = (images != self.images).then_some(&images);
        let staged = stage_profiles(&files, &mut staging, &profiles, changed_scopes)
            .and_then(|()| stage(&files, &mut staging, delta, changed_images, &meta));
        if let Err(error) = staged {
            staging.abandon();
            return Err(error);
        }
        let published = staging.publish();
        if !matches!(published, Err(Failed::Undecided(_))) {
            self.images = images;
            self.scopes = scopes;
            self.meta = meta;
        }
        self.settle(published).map(|report| MergeReport { samples_widened, ..report })
    }

    fn seal(&mut self, now_unix_s: u64) -> Result<(), DbError> {
        let mut meta = self.meta.clone();
        meta.ended_unix_s = Some(now_unix_s.max(meta.started_unix_s).max(meta.updated_unix_s));
        // A change like any other to those who compare.
        meta.merges += 1;
        self.describe(meta)
    }

    /// Replaces the description alone.
    fn describe(&mut self, meta: EpochMeta) -> Result<(), DbError> {
        let files = self.files.clone();
        let mut staging = Staging::new(files.disk(), files.directory(), meta.merges);
        if let Err(error) = stage_meta(&files, &mut staging, &meta) {
            staging.abandon();
            return Err(error);
        }
        let published = staging.publish();
        if !matches!(published, Err(Failed::Undecided(_))) {
            self.meta = meta;
        }
        self.settle(published).map(|_| ())
    }

    fn settle(&mut self, published: Result<(u64, u64), Failed>) -> Result<MergeReport, DbError> {
        match published {
            Ok((files_written, bytes_written)) => {
                Ok(MergeReport { files_written, bytes_written, ..MergeReport::default() })
            }
            Err(Failed::Undecided(error)) => Err(error),
            Err(Failed::Decided(commit, source)) => {
                self.unfinished = Some(commit);
                Err(DbError::Unfinished { epoch: self.meta.epoch.clone(), source: Box::new(source) })
            }
        }
    }
}

/// Makes the directories that every database has and takes the lock.
fn prepare(disk: &Disk, root: &Path, host: &str) -> Result<Box<dyn Lock>, DbError> {
    disk.create_directory(root)?;
    let lock = disk.lock(&key::lock_path(root))?;
    format::create(disk, root)?;
    disk.create_directory(&key::host_path(root, host))?;
    disk.sync_directory(&key::hosts_path(root))?;
    disk.sync_directory(root)?;
    Ok(lock)
}

/// The epochs in the directory of a host, oldest first, also those that are not whole.
fn epoch_directories(disk: &Disk, host: &Path) -> Result<Vec<EpochId>, DbError> {
    let entries = disk.list_if_there(host)?;
    let mut epochs: Vec<EpochId> =
        entries.iter().filter(|entry| entry.is_directory).filter_map(|entry| entry.name.parse().ok()).collect();
    epochs.sort();
    Ok(epochs)
}

fn load(files: EpochFiles, host: &str, epoch: &EpochId) -> Result<Option<Current>, DbError> {
    let Some(meta) = files.meta(host, epoch)? else {
        return Ok(None);
    };
    let (images, scopes) = (files.images()?, files.scopes()?);
    Ok(Some(Current { files, meta, images, scopes, unfinished: None }))
}

fn check_start(start: &EpochStart) -> Result<(), DbError> {
    if let Some(label) = &start.label {
        key::check_label(label)?;
    }
    for (at, event) in start.events.iter().enumerate() {
        key::check_event(&event.name)?;
        if start.events.iter().take(at).any(|e| e.name == event.name) {
            return Err(DbError::DuplicateEvent { event: event.name.clone() });
        }
    }
    Ok(())
}

/// What is added to each profile, with the number of its scope.
type Placed<'a> = BTreeMap<(Cow<'a, ProfileKey>, Option<u32>), Cow<'a, Profile>>;

/// Finds each profile of a delta its file. Also gives the samples whose scope had to be widened.
fn place<'a>(delta: &'a Delta, scopes: &mut ScopeTable) -> (Placed<'a>, u64) {
    let mut placed = Placed::new();
    let mut widened = 0_u64;
    for (key, added) in delta.profiles.iter().filter(|(_, added)| !added.is_empty()) {
        let (scope, number) = scopes.admit(&key.scope);
        let key = if scope == key.scope {
            Cow::Borrowed(key)
        } else {
            widened = widened.saturating_add(added.total());
            Cow::Owned(ProfileKey { scope, ..key.clone() })
        };
        match placed.entry((key, number)) {
            Entry::Vacant(vacant) => drop(vacant.insert(Cow::Borrowed(added))),
            Entry::Occupied(mut occupied) => occupied.get_mut().to_mut().merge(added),
        }
    }
    (placed, widened)
}

/// Writes the profiles that change, before them the scopes: whoever finds a profile finds its scope.
fn stage_profiles(
    files: &EpochFiles,
    staging: &mut Staging<'_>,
    profiles: &Placed<'_>,
    scopes: Option<&ScopeTable>,
) -> Result<(), DbError> {
    if let Some(scopes) = scopes {
        let payload = scope::encode(scopes).map_err(unwritable(files, key::SCOPES))?;
        staging.put(key::SCOPES, Kind::Scopes, &payload)?;
    }
    for ((key, number), added) in profiles {
        let mut profile = files.profile_in(key, *number)?;
        profile.merge(added);
        let kind = if number.is_some() { Kind::ScopedSamples } else { Kind::Samples };
        staging.put(&SamplesFile::of(key, *number).name(), kind, &codec::encode_samples(key, &profile))?;
    }
    Ok(())
}

/// Writes every other file that changes: images, symbols, and last the description.
fn stage(
    files: &EpochFiles,
    staging: &mut Staging<'_>,
    delta: &Delta,
    images: Option<&BTreeMap<ImageId, ImageRecord>>,
    meta: &EpochMeta,
) -> Result<(), DbError> {
    if let Some(images) = images {
        let payload = images::encode(images).map_err(unwritable(files, key::IMAGES))?;
        staging.put(key::IMAGES, Kind::Images, &payload)?;
    }
    for (image, met) in &delta.symbols {
        let old = files.symbols(image)?;
        let joined = symbols::join(old.clone(), met);
        if joined != old {
            let payload = codec::encode_symbols(image, &joined);
            staging.put(&key::symbols_name(image), Kind::Symbols, &payload)?;
        }
    }
    stage_meta(files, staging, meta)
}

fn stage_meta(files: &EpochFiles, staging: &mut Staging<'_>, meta: &EpochMeta) -> Result<(), DbError> {
    let payload = serde_json::to_vec(meta).map_err(Damage::Json).map_err(unwritable(files, key::META))?;
    staging.put(key::META, Kind::Meta, &payload)
}

/// The error for a value that cannot be written as JSON; none of ours is such a value.
fn unwritable(files: &EpochFiles, name: &str) -> impl FnOnce(Damage) -> DbError {
    let path = files.directory().join(name);
    move |damage| DbError::Corrupt { path, offset: 0, damage }
}
