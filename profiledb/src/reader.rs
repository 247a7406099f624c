//! Reading a database, at any time, without locks and without writing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use image::{ImageId, KeptFile};
use model::{Counted, Counts, Measure, Profile, Shape, Stacks, Totals};

use crate::code;
use crate::description::EpochMeta;
use crate::epoch::EpochId;
use crate::error::DbError;
use crate::format_file;
use crate::images::ImageRecord;
use crate::listing;
use crate::naming::{self, ProfileKey};
use crate::scope::Scope;
use crate::segment::Span;
use crate::shapes::Timing;
use crate::slices::{Slice, Stretch};
use crate::snapshot::Snapshot;
use crate::stacks::StacksKey;
use crate::storage::{Beneath, Disk, Storage};
use crate::symbols::Symbol;

/// A database, open for reading.
#[derive(Clone, Debug)]
pub struct Database {
    disk: Disk,
    root: PathBuf,
    /// The time whose counts are read; None: all.
    stretch: Option<Stretch>,
}

impl Database {
    /// Opens the database in this directory.
    ///
    /// # Errors
    /// [`DbError::NotADatabase`] when the directory is missing or something else,
    /// [`DbError::NewerFormat`], [`DbError::Corrupt`] or [`DbError::Io`].
    pub fn open(root: &Path) -> Result<Self, DbError> {
        Self::open_on(Arc::new(Beneath::new(root)), root)
    }

    /// As [`Database::open`], on another storage.
    pub fn open_on(storage: Arc<dyn Storage>, root: &Path) -> Result<Self, DbError> {
        let disk = Disk::new(storage);
        format_file::check(&disk, root)?;
        Ok(Self { disk, root: root.to_owned(), stretch: None })
    }

    /// The same database, of whose epochs only the segments that overlap a stretch of time are read
    /// from here on; an epoch without such a segment does not exist then.
    #[must_use]
    pub const fn during(mut self, stretch: Stretch) -> Self {
        self.stretch = Some(stretch);
        self
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The hosts that have written to this database, in order of name.
    ///
    /// # Errors
    /// [`DbError::Io`].
    pub fn hosts(&self) -> Result<Vec<String>, DbError> {
        let entries = self.disk.list_if_there(&naming::hosts_path(&self.root))?;
        let is_host = |name: &String| naming::check_host(name).is_ok();
        Ok(entries
            .into_iter()
            .filter(|entry| entry.is_directory)
            .map(|entry| entry.name)
            .filter(is_host)
            .collect())
    }

    /// The epochs of a host, oldest first; empty for a host that never wrote.
    ///
    /// # Errors
    /// [`DbError::Io`], or [`DbError::InvalidName`] for what cannot be a host.
    pub fn epochs(&self, host: &str) -> Result<Vec<EpochId>, DbError> {
        // An epoch whose directory was just made has no segment, so it does not exist yet.
        let there = |(epoch, _, is_empty): (EpochId, u64, bool)| (!is_empty).then_some(epoch);
        Ok(self.epoch_directories(host)?.into_iter().filter_map(there).collect())
    }

    /// The directories of epochs of a host that have no segment, each with the time of its last
    /// change in seconds since 1970 UTC. Such an epoch is about to begin, its writer was killed
    /// when it began, or its files were removed.
    ///
    /// # Errors
    /// As [`Database::epochs`].
    pub fn empty_epochs(&self, host: &str) -> Result<Vec<(EpochId, u64)>, DbError> {
        let empty = |(epoch, changed_unix_s, is_empty): (_, u64, bool)| {
            is_empty.then_some((epoch, changed_unix_s))
        };
        Ok(self.epoch_directories(host)?.into_iter().filter_map(empty).collect())
    }

    /// The directories of epochs of a host, each with the time of its last change, and whether it
    /// has no segment.
    fn epoch_directories(&self, host: &str) -> Result<Vec<(EpochId, u64, bool)>, DbError> {
        naming::check_host(host)?;
        let directory = naming::host_path(&self.root, host);
        let mut epochs = Vec::new();
        for entry in self.disk.list_if_there(&directory)? {
            let Some(epoch) = entry.name.parse().ok().filter(|_| entry.is_directory) else {
                continue;
            };
            let is_empty = listing::spans(&self.disk, &directory.join(&entry.name))?.is_empty();
            epochs.push((epoch, entry.modified_unix_s, is_empty));
        }
        Ok(epochs)
    }

    /// The kept part of an image on a host; None when none was kept, or it was removed for others.
    ///
    /// # Errors
    /// [`DbError::Corrupt`], also when what is there is another image; [`DbError::NewerFormat`],
    /// [`DbError::Io`], or [`DbError::InvalidName`] for what cannot be a host.
    pub fn code(&self, host: &str, image: &ImageId) -> Result<Option<KeptFile>, DbError> {
        naming::check_host(host)?;
        for directory in self.code_directories(host) {
            if let Some(kept) = code::read(&self.disk, &directory, image)? {
                return Ok(Some(kept));
            }
        }
        Ok(None)
    }

    /// Where the code of a host's images may be: the host's own, and in the store of a fleet what
    /// all hosts have in common.
    pub(crate) fn code_directories(&self, host: &str) -> [PathBuf; 2] {
        let own = naming::code_path(&naming::host_path(&self.root, host));
        [own, naming::code_path(&self.root)]
    }

    /// The images that were kept on a host, in order of id.
    ///
    /// # Errors
    /// [`DbError::Io`], or [`DbError::InvalidName`] for what cannot be a host.
    pub fn code_images(&self, host: &str) -> Result<Vec<ImageId>, DbError> {
        naming::check_host(host)?;
        Ok(self.code_bytes(host)?.into_keys().collect())
    }

    /// Bytes of the files in which images were kept on a host.
    pub fn code_bytes(&self, host: &str) -> Result<BTreeMap<ImageId, u64>, DbError> {
        naming::check_host(host)?;
        let mut images: BTreeMap<ImageId, u64> = BTreeMap::new();
        for directory in self.code_directories(host) {
            for entry in self.disk.list_if_there(&directory)? {
                if let Some((image, _)) = code::parse_name(&entry.name) {
                    let bytes = images.entry(image).or_default();
                    *bytes = bytes.saturating_add(entry.size_bytes);
                }
            }
        }
        Ok(images)
    }

    /// An epoch in its present state.
    ///
    /// # Errors
    /// [`DbError::NoSuchEpoch`], [`DbError::Corrupt`], [`DbError::NewerFormat`], [`DbError::Io`],
    /// or [`DbError::InvalidName`] for what cannot be a host.
    pub fn epoch(&self, host: &str, epoch: &EpochId) -> Result<Epoch, DbError> {
        let whole = self.whole_epoch(host, epoch)?;
        let Some(stretch) = self.stretch else { return Ok(whole) };
        whole.during(stretch).ok_or_else(|| DbError::NoSuchEpoch {
            root: self.root.clone(),
            host: host.to_owned(),
            epoch: epoch.clone(),
        })
    }

    fn whole_epoch(&self, host: &str, epoch: &EpochId) -> Result<Epoch, DbError> {
        naming::check_host(host)?;
        let directory = naming::epoch_path(&self.root, host, epoch);
        let read = Snapshot::read(&self.disk, &directory, (host, epoch))?;
        let mut snapshot = read.ok_or_else(|| DbError::NoSuchEpoch {
            root: self.root.clone(),
            host: host.to_owned(),
            epoch: epoch.clone(),
        })?;
        let meta = snapshot.meta()?;
        let (disk, began_unix_s) = (self.disk.clone(), meta.started_unix_s);
        Ok(Epoch { disk, snapshot, meta, began_unix_s })
    }

    /// Bytes of all files of an epoch, without reading them; 0 when there is no such epoch.
    ///
    /// # Errors
    /// [`DbError::Io`], or [`DbError::InvalidName`] for what cannot be a host.
    pub fn epoch_bytes(&self, host: &str, epoch: &EpochId) -> Result<u64, DbError> {
        naming::check_host(host)?;
        let entries = self.disk.list_if_there(&naming::epoch_path(&self.root, host, epoch))?;
        let files = entries.iter().filter(|entry| !entry.is_directory);
        Ok(files.fold(0, |sum: u64, entry| sum.saturating_add(entry.size_bytes)))
    }

    /// Opens the database in this directory without looking at its file `format`.
    pub(crate) fn of(disk: Disk, root: &Path) -> Self {
        Self { disk, root: root.to_owned(), stretch: None }
    }

    pub(crate) const fn disk(&self) -> &Disk {
        &self.disk
    }
}

/// An epoch in the state of the moment in which it was opened. Later additions and removals are not
/// in it; [`Epoch::is_current`] tells whether there were any.
#[derive(Clone, Debug)]
pub struct Epoch {
    disk: Disk,
    snapshot: Snapshot,
    meta: EpochMeta,
    /// Begin of the whole epoch, in seconds since 1970 UTC.
    began_unix_s: u64,
}

impl Epoch {
    /// The epoch's description.
    pub const fn meta(&self) -> &EpochMeta {
        &self.meta
    }

    /// The stretches of time that the epoch's counts are kept apart by, in order: ten seconds each
    /// where they are recent, longer ones where they are old. A stretch without counts is left out.
    pub fn slices(&self) -> Vec<Stretch> {
        self.snapshot.slices(self.began_unix_s)
    }

    /// The slices whose counts are read, each with its stretch of time and with what it added to
    /// the ledgers.
    pub(crate) fn counted_slices(&self) -> Vec<(Stretch, Slice)> {
        self.snapshot.counted_slices(self.began_unix_s)
    }

    /// The counts of a profile with their timing in an epoch of one segment. None where there are
    /// none.
    pub(crate) fn timed_counts(
        &self,
        key: &ProfileKey,
    ) -> Result<Option<(Counts, Timing)>, DbError> {
        self.snapshot.timed_counts(key, &self.meta.events)
    }

    /// The description with the begin of the whole epoch.
    fn whole(&self) -> EpochMeta {
        EpochMeta { started_unix_s: self.began_unix_s, ..self.meta.clone() }
    }

    /// The same epoch with another part of its segments.
    fn with(&self, snapshot: Snapshot, meta: EpochMeta) -> Self {
        Self { disk: self.disk.clone(), snapshot, meta, began_unix_s: self.began_unix_s }
    }

    /// The same state of the epoch, with the counts of all slices that overlap a stretch of time,
    /// and with ledgers and times of these; None where there are none.
    pub fn during(&self, stretch: Stretch) -> Option<Self> {
        let (snapshot, meta) = self.snapshot.during(stretch, &self.whole())?;
        Some(self.with(snapshot, meta))
    }

    /// The same state with the merges behind those that a reader had; see [`Snapshot::since`].
    /// None where there are none.
    pub(crate) fn since(
        &self,
        merge: Option<u64>,
        had: Option<&Self>,
        bytes_max: u64,
    ) -> Result<Option<Self>, DbError> {
        let had = had.map(|had| &had.snapshot);
        let part = self.snapshot.since(merge, had, (bytes_max, &self.meta))?;
        Ok(part.map(|(snapshot, meta)| self.with(snapshot, meta)))
    }

    /// The segments of the epoch, each as an epoch of its own with its merges, in order.
    ///
    /// # Errors
    /// [`DbError::Corrupt`].
    pub(crate) fn apart(&self) -> Result<Vec<(Span, Self)>, DbError> {
        let parts = self.snapshot.apart(&self.whole())?.into_iter().map(|(span, part, meta)| {
            let began_unix_s = meta.started_unix_s;
            (span, Self { began_unix_s, ..self.with(part, meta) })
        });
        Ok(parts.collect())
    }

    /// The segments of the epoch.
    pub(crate) const fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Files of the epoch that could not be read when it was opened. All else is there; the ledgers
    /// then do not balance.
    pub fn damage(&self) -> &[DbError] {
        self.snapshot.damage()
    }

    /// Files of which a part does not fit its checksum, the first damage of each, without those in
    /// [`Epoch::damage`]. A report of some profiles names them all, because its numbers do not show
    /// whether its own profiles are whole.
    pub fn damaged_files(&self) -> Vec<DbError> {
        self.snapshot.damaged_files()
    }

    /// The images with samples.
    ///
    /// # Errors
    /// [`DbError::Corrupt`], [`DbError::NewerFormat`] or [`DbError::Io`].
    pub fn images(&self) -> Result<BTreeMap<ImageId, ImageRecord>, DbError> {
        self.snapshot.images()
    }

    /// The profiles of samples, in order: those of events, by place. Sections of unknown kinds are
    /// skipped.
    ///
    /// # Errors
    /// [`DbError::Io`].
    pub fn profiles(&self) -> Result<Vec<ProfileKey>, DbError> {
        let is_sampled =
            |key: &ProfileKey| key.measure.shape == Shape::Places && key.measure.period().is_some();
        Ok(self.keys()?.into_iter().filter(is_sampled).collect())
    }

    /// The profiles of every measure, in the order of image, measure and scope.
    ///
    /// # Errors
    /// [`DbError::Io`].
    pub fn keys(&self) -> Result<Vec<ProfileKey>, DbError> {
        let mut keys = self.snapshot.profiles(&self.meta.events);
        keys.sort();
        Ok(keys)
    }

    /// The scopes that have samples, in order, without the empty one.
    ///
    /// # Errors
    /// [`DbError::Corrupt`], [`DbError::NewerFormat`] or [`DbError::Io`].
    pub fn scopes(&self) -> Result<Vec<Scope>, DbError> {
        Ok(self.snapshot.scopes())
    }

    /// The counts of a profile, in the shape of its measure; empty when the profile has none.
    ///
    /// # Errors
    /// [`DbError::Corrupt`], [`DbError::NewerFormat`] or [`DbError::Io`].
    pub fn counts(&self, key: &ProfileKey) -> Result<Counts, DbError> {
        self.snapshot.counts(key, &self.meta.events)
    }

    /// The counts of a profile as the type of their shape; None when the measure has another shape.
    pub fn read<Shaped: Counted>(&self, key: &ProfileKey) -> Result<Shaped, DbError> {
        Ok(Shaped::of(self.counts(key)?).unwrap_or_default())
    }

    /// Observations of a measure in an image, of all processes that are not kept apart.
    pub fn observed<Shaped: Counted>(
        &self,
        measure: &Measure,
        image: &ImageId,
    ) -> Result<Shaped, DbError> {
        self.read(&ProfileKey::of(*image, measure))
    }

    /// Samples of an event by place; empty when there are none.
    pub fn profile(&self, key: &ProfileKey) -> Result<Profile, DbError> {
        self.read(key)
    }

    /// The sum of a profile's counts, without reading the profile where the epoch's files have the
    /// sum.
    pub fn total(&self, key: &ProfileKey) -> Result<u64, DbError> {
        self.snapshot.total(key, &self.meta.events)
    }

    /// The events and scopes that have call stacks, in order.
    pub fn stacks_keys(&self) -> Vec<StacksKey> {
        self.snapshot.stacks_keys()
    }

    /// The call stacks of an event and scope; empty when there are none.
    ///
    /// # Errors
    /// [`DbError::Corrupt`].
    pub fn stacks(&self, key: &StacksKey) -> Result<Stacks, DbError> {
        self.snapshot.stacks(key)
    }

    /// The symbols the writer saw for an image, in ascending order of start; empty when none.
    ///
    /// # Errors
    /// [`DbError::Corrupt`], [`DbError::NewerFormat`] or [`DbError::Io`].
    pub fn symbols(&self, image: &ImageId) -> Result<Vec<Symbol>, DbError> {
        self.snapshot.symbols(image)
    }

    /// Whether the epoch has sections of a later release that this one cannot add up.
    pub(crate) fn has_unknown(&self) -> bool {
        self.snapshot.keys().into_iter().any(|key| !key.kind.is_known())
    }

    /// Bytes of all files of the epoch.
    ///
    /// # Errors
    /// [`DbError::Io`].
    pub fn size_bytes(&self) -> Result<u64, DbError> {
        Ok(self.snapshot.bytes())
    }

    /// True when no merge has happened since the epoch was opened. False also when the epoch is
    /// gone.
    pub fn is_current(&self) -> Result<bool, DbError> {
        let spans = listing::spans(&self.disk, self.snapshot.directory())?;
        Ok(listing::newest(&spans) == Some(self.meta.merges))
    }

    /// Checks that the profiles have exactly the samples of the ledgers, by reading all profiles.
    ///
    /// # Errors
    /// [`DbError::Unbalanced`] when they have not, and as [`Epoch::profile`].
    pub fn check_ledgers(&self) -> Result<(), DbError> {
        let mut totals = Totals::default();
        for key in self.profiles()? {
            totals.add(&key.measure, Some(&key.image), self.counts(&key)?.total());
        }
        crate::description::check_balance(&self.meta.ledgers, &totals)
    }
}
