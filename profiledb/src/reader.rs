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
use crate::format1::EpochFiles;
use crate::images::ImageRecord;
use crate::naming::{self, ProfileKey};
use crate::scope::Scope;
use crate::segment::Span;
use crate::slices::{Covered, Stretch};
use crate::snapshot::{self, Snapshot};
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
    ///
    /// # Errors
    /// As [`Database::open`].
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
    #[must_use]
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
        naming::check_host(host)?;
        let directory = naming::host_path(&self.root, host);
        let mut epochs = Vec::new();
        for entry in self.disk.list_if_there(&directory)? {
            let Ok(epoch) = entry.name.parse::<EpochId>() else {
                continue;
            };
            // An epoch whose directory was just made has no segment, so it does not exist yet.
            if entry.is_directory && is_epoch(&self.disk, &directory.join(&entry.name))? {
                epochs.push(epoch);
            }
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
    ///
    /// # Errors
    /// As [`Database::code_images`].
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
        if let Some(mut snapshot) = Snapshot::read(&self.disk, &directory, (host, epoch))? {
            let meta = snapshot.meta()?;
            let (disk, began_unix_s) = (self.disk.clone(), meta.started_unix_s);
            return Ok(Epoch { disk, files: Files::Segments(snapshot), meta, began_unix_s });
        }
        let files = EpochFiles::open(self.disk.clone(), directory)?;
        match files.meta(host, epoch)? {
            Some(meta) => {
                let (disk, began_unix_s) = (self.disk.clone(), meta.started_unix_s);
                Ok(Epoch { disk, files: Files::Format1(files), meta, began_unix_s })
            }
            None => Err(DbError::NoSuchEpoch {
                root: self.root.clone(),
                host: host.to_owned(),
                epoch: epoch.clone(),
            }),
        }
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

/// Whether the directory is an epoch, of either format.
pub(crate) fn is_epoch(disk: &Disk, directory: &Path) -> Result<bool, DbError> {
    Ok(!snapshot::spans(disk, directory)?.is_empty()
        || disk.is_there(&directory.join(naming::META))?)
}

/// An epoch in the state of the moment in which it was opened. Later additions and removals are not
/// in it; [`Epoch::is_current`] tells whether there were any.
///
/// The files of an epoch of format 1, which is never written any more, are read when they are asked
/// for.
#[derive(Clone, Debug)]
pub struct Epoch {
    disk: Disk,
    files: Files,
    meta: EpochMeta,
    /// Begin of the whole epoch, in seconds since 1970 UTC.
    began_unix_s: u64,
}

#[derive(Clone, Debug)]
enum Files {
    Segments(Snapshot),
    Format1(EpochFiles),
}

impl Epoch {
    /// The epoch's description.
    #[must_use]
    pub const fn meta(&self) -> &EpochMeta {
        &self.meta
    }

    /// The stretches of time that the epoch's counts are kept apart by, in order: ten minutes each
    /// where they are recent, longer ones where they are old. A stretch without counts is left out.
    #[must_use]
    pub fn slices(&self) -> Vec<Stretch> {
        match &self.files {
            Files::Segments(snapshot) => snapshot.slices(self.began_unix_s),
            Files::Format1(_) => vec![self.time()],
        }
    }

    /// The same state of the epoch, with the counts of all slices that overlap a stretch of time,
    /// and with ledgers and times of these; None where there are none. An epoch of format 1 has one
    /// slice.
    #[must_use]
    pub fn during(&self, stretch: Stretch) -> Option<Self> {
        let whole = EpochMeta { started_unix_s: self.began_unix_s, ..self.meta.clone() };
        let (files, meta) = match &self.files {
            Files::Segments(snapshot) => {
                let (snapshot, meta) = snapshot.during(stretch, &whole)?;
                (Files::Segments(snapshot), meta)
            }
            Files::Format1(files) => {
                let stretch = Some(self.time()).filter(|time| time.overlaps(stretch))?;
                let slice_s = stretch.until_unix_s.saturating_sub(stretch.since_unix_s);
                let covered = Some(Covered { stretch, slice_s });
                (Files::Format1(files.clone()), EpochMeta { covered, ..whole })
            }
        };
        Some(Self { disk: self.disk.clone(), files, meta, began_unix_s: self.began_unix_s })
    }

    /// The same state with the merges behind those that a reader had; see [`Snapshot::since`].
    /// None where there are none, and for an epoch of format 1, which has no merges to tell apart.
    pub(crate) fn since(
        &self,
        merge: Option<u64>,
        had: Option<&Self>,
        bytes_max: u64,
    ) -> Result<Option<Self>, DbError> {
        let Files::Segments(snapshot) = &self.files else { return Ok(None) };
        let had = match had.map(|had| &had.files) {
            Some(Files::Segments(had)) => Some(had),
            _ => None,
        };
        let part = snapshot.since(merge, had, (bytes_max, &self.meta))?;
        let (disk, began_unix_s) = (self.disk.clone(), self.began_unix_s);
        Ok(part.map(|(snapshot, meta)| Self {
            disk,
            files: Files::Segments(snapshot),
            meta,
            began_unix_s,
        }))
    }

    /// The segments of the epoch, each as an epoch of its own with its merges, in order. An epoch
    /// of format 1 is one.
    ///
    /// # Errors
    /// [`DbError::Corrupt`].
    pub(crate) fn apart(&self) -> Result<Vec<(Span, Self)>, DbError> {
        let Files::Segments(snapshot) = &self.files else {
            return Ok(vec![(Span { first: 0, last: self.meta.merges }, self.clone())]);
        };
        let whole = EpochMeta { started_unix_s: self.began_unix_s, ..self.meta.clone() };
        let parts = snapshot.apart(&whole)?.into_iter().map(|(span, part, meta)| {
            let (disk, began_unix_s) = (self.disk.clone(), meta.started_unix_s);
            (span, Self { disk, files: Files::Segments(part), meta, began_unix_s })
        });
        Ok(parts.collect())
    }

    /// The segments of the epoch; None of format 1.
    pub(crate) const fn snapshot(&self) -> Option<&Snapshot> {
        match &self.files {
            Files::Segments(snapshot) => Some(snapshot),
            Files::Format1(_) => None,
        }
    }

    /// The time from begin to last merge.
    fn time(&self) -> Stretch {
        let (since_unix_s, end) = (self.meta.started_unix_s, self.meta.updated_unix_s);
        Stretch { since_unix_s, until_unix_s: end.max(since_unix_s) }
    }

    /// Files of the epoch that could not be read when it was opened. All else is there; the ledgers
    /// then do not balance.
    #[must_use]
    pub fn damage(&self) -> &[DbError] {
        match &self.files {
            Files::Segments(snapshot) => snapshot.damage(),
            Files::Format1(_) => &[],
        }
    }

    /// Files of which a part does not fit its checksum, the first damage of each, without those in
    /// [`Epoch::damage`]. A report of some profiles names them all, because its numbers do not show
    /// whether its own profiles are whole.
    #[must_use]
    pub fn damaged_files(&self) -> Vec<DbError> {
        match &self.files {
            Files::Segments(snapshot) => snapshot.damaged_files(),
            Files::Format1(_) => Vec::new(),
        }
    }

    /// The images with samples.
    ///
    /// # Errors
    /// [`DbError::Corrupt`], [`DbError::NewerFormat`] or [`DbError::Io`].
    pub fn images(&self) -> Result<BTreeMap<ImageId, ImageRecord>, DbError> {
        match &self.files {
            Files::Segments(snapshot) => snapshot.images(),
            Files::Format1(files) => files.images(),
        }
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
        let mut keys = match &self.files {
            Files::Segments(snapshot) => snapshot.profiles(&self.meta.events),
            Files::Format1(files) => files.profiles(&self.meta.events)?,
        };
        keys.sort();
        Ok(keys)
    }

    /// The scopes that have samples, in order, without the empty one.
    ///
    /// # Errors
    /// [`DbError::Corrupt`], [`DbError::NewerFormat`] or [`DbError::Io`].
    pub fn scopes(&self) -> Result<Vec<Scope>, DbError> {
        match &self.files {
            Files::Segments(snapshot) => Ok(snapshot.scopes()),
            Files::Format1(files) => {
                let mut scopes: Vec<Scope> = files.scopes()?.scopes().cloned().collect();
                scopes.sort();
                Ok(scopes)
            }
        }
    }

    /// The counts of a profile, in the shape of its measure; empty when the profile has none.
    ///
    /// # Errors
    /// [`DbError::Corrupt`], [`DbError::NewerFormat`] or [`DbError::Io`].
    pub fn counts(&self, key: &ProfileKey) -> Result<Counts, DbError> {
        match &self.files {
            Files::Segments(snapshot) => snapshot.counts(key, &self.meta.events),
            Files::Format1(files) if key.measure.shape == Shape::Places => {
                Ok(files.profile(key)?.into())
            }
            Files::Format1(_) => Ok(Counts::none(key.measure.shape)),
        }
    }

    /// The counts of a profile as the type of their shape; None when the measure has another shape.
    ///
    /// # Errors
    /// As [`Epoch::counts`].
    pub fn read<Shaped: Counted>(&self, key: &ProfileKey) -> Result<Shaped, DbError> {
        Ok(Shaped::of(self.counts(key)?).unwrap_or_default())
    }

    /// Observations of a measure in an image, of all processes that are not kept apart.
    ///
    /// # Errors
    /// As [`Epoch::counts`].
    pub fn observed<Shaped: Counted>(
        &self,
        measure: &Measure,
        image: &ImageId,
    ) -> Result<Shaped, DbError> {
        self.read(&ProfileKey::of(*image, measure))
    }

    /// Samples of an event by place; empty when there are none.
    ///
    /// # Errors
    /// As [`Epoch::counts`].
    pub fn profile(&self, key: &ProfileKey) -> Result<Profile, DbError> {
        self.read(key)
    }

    /// The sum of a profile's counts, without reading the profile where the epoch's files have the
    /// sum.
    ///
    /// # Errors
    /// As [`Epoch::counts`].
    pub fn total(&self, key: &ProfileKey) -> Result<u64, DbError> {
        match &self.files {
            Files::Segments(snapshot) => Ok(snapshot.total(key, &self.meta.events)),
            Files::Format1(_) => Ok(self.counts(key)?.total()),
        }
    }

    /// The events and scopes that have call stacks, in order.
    #[must_use]
    pub fn stacks_keys(&self) -> Vec<StacksKey> {
        match &self.files {
            Files::Segments(snapshot) => snapshot.stacks_keys(),
            Files::Format1(_) => Vec::new(),
        }
    }

    /// The call stacks of an event and scope; empty when there are none.
    ///
    /// # Errors
    /// [`DbError::Corrupt`].
    pub fn stacks(&self, key: &StacksKey) -> Result<Stacks, DbError> {
        match &self.files {
            Files::Segments(snapshot) => snapshot.stacks(key),
            Files::Format1(_) => Ok(Stacks::new()),
        }
    }

    /// The symbols the writer saw for an image, in ascending order of start; empty when none.
    ///
    /// # Errors
    /// [`DbError::Corrupt`], [`DbError::NewerFormat`] or [`DbError::Io`].
    pub fn symbols(&self, image: &ImageId) -> Result<Vec<Symbol>, DbError> {
        match &self.files {
            Files::Segments(snapshot) => snapshot.symbols(image),
            Files::Format1(files) => files.symbols(image),
        }
    }

    /// Whether the epoch has sections of a later release that this one cannot add up.
    pub(crate) fn has_unknown(&self) -> bool {
        match &self.files {
            Files::Segments(snapshot) => {
                snapshot.keys().into_iter().any(|key| !key.kind.is_known())
            }
            Files::Format1(_) => false,
        }
    }

    /// Bytes of all files of the epoch.
    ///
    /// # Errors
    /// [`DbError::Io`].
    pub fn size_bytes(&self) -> Result<u64, DbError> {
        match &self.files {
            Files::Segments(snapshot) => Ok(snapshot.bytes()),
            Files::Format1(files) => {
                let entries = files.entries()?;
                let files = entries.iter().filter(|entry| !entry.is_directory);
                Ok(files.fold(0, |sum: u64, entry| sum.saturating_add(entry.size_bytes)))
            }
        }
    }

    /// True when no merge has happened since the epoch was opened. False also when the epoch is
    /// gone.
    ///
    /// # Errors
    /// As [`Database::epoch`].
    pub fn is_current(&self) -> Result<bool, DbError> {
        match &self.files {
            Files::Segments(snapshot) => {
                let spans = snapshot::spans(&self.disk, snapshot.directory())?;
                Ok(snapshot::newest(&spans) == Some(self.meta.merges))
            }
            Files::Format1(files) => {
                let directory = files.directory().to_owned();
                let files = EpochFiles::open(self.disk.clone(), directory)?;
                let meta = files.meta(&self.meta.host, &self.meta.epoch)?;
                Ok(meta.is_some_and(|meta| meta.merges == self.meta.merges))
            }
        }
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
