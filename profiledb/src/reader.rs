//! Reading a database, at any time, without locks and without writing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use image::{ImageId, KeptFile};

use crate::code;
use crate::envelope::Kind;
use crate::epoch::EpochId;
use crate::epoch_files::{EpochFiles, Payload};
use crate::error::DbError;
use crate::format;
use crate::images::ImageRecord;
use crate::key::{self, ProfileKey};
use crate::meta::EpochMeta;
use crate::profile::Profile;
use crate::scope::Scope;
use crate::storage::{Directory, Disk, Storage};
use crate::symbols::Symbol;

/// A database to read.
#[derive(Clone, Debug)]
pub struct Database {
    disk: Disk,
    root: PathBuf,
}

impl Database {
    /// The database in this directory.
    ///
    /// # Errors
    /// [`DbError::NotADatabase`] when the directory is missing or something else,
    /// [`DbError::NewerFormat`], [`DbError::Corrupt`] or [`DbError::Io`].
    pub fn open(root: &Path) -> Result<Self, DbError> {
        Self::open_on(Arc::new(Directory), root)
    }

    /// As [`Database::open`], on another storage.
    ///
    /// # Errors
    /// As [`Database::open`].
    pub fn open_on(storage: Arc<dyn Storage>, root: &Path) -> Result<Self, DbError> {
        let disk = Disk::new(storage);
        format::check(&disk, root)?;
        Ok(Self { disk, root: root.to_owned() })
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
        let entries = self.disk.list_if_there(&key::hosts_path(&self.root))?;
        let is_host = |name: &String| key::check_host(name).is_ok();
        Ok(entries.into_iter().filter(|entry| entry.is_directory).map(|entry| entry.name).filter(is_host).collect())
    }

    /// The epochs of a host, oldest first; none for a host that never wrote.
    ///
    /// # Errors
    /// [`DbError::Io`], or [`DbError::InvalidName`] for what cannot be a host.
    pub fn epochs(&self, host: &str) -> Result<Vec<EpochId>, DbError> {
        key::check_host(host)?;
        let directory = key::host_path(&self.root, host);
        let mut epochs = Vec::new();
        for entry in self.disk.list_if_there(&directory)? {
            let Ok(epoch) = entry.name.parse::<EpochId>() else {
                continue;
            };
            // An epoch that is being made has no description yet: it is not there yet.
            let meta = directory.join(&entry.name).join(key::META);
            if entry.is_directory && self.disk.is_there(&meta)? {
                epochs.push(epoch);
            }
        }
        Ok(epochs)
    }

    /// What was kept of an image on a host; none when nothing was, or it had to go for others.
    ///
    /// # Errors
    /// [`DbError::Corrupt`], also when what is there is another image; [`DbError::NewerFormat`], [`DbError::Io`], or
    /// [`DbError::InvalidName`] for what cannot be a host.
    pub fn code(&self, host: &str, image: &ImageId) -> Result<Option<KeptFile>, DbError> {
        key::check_host(host)?;
        let path = key::code_path(&key::host_path(&self.root, host)).join(key::code_name(image));
        match Payload::read(&self.disk, path)? {
            Some(found) => found.decode(Kind::Code, |payload| code::decode(image, payload)).map(Some),
            None => Ok(None),
        }
    }

    /// The images that were kept on a host, in order of id.
    ///
    /// # Errors
    /// [`DbError::Io`], or [`DbError::InvalidName`] for what cannot be a host.
    pub fn code_images(&self, host: &str) -> Result<Vec<ImageId>, DbError> {
        key::check_host(host)?;
        let entries = self.disk.list_if_there(&key::code_path(&key::host_path(&self.root, host)))?;
        let mut images: Vec<ImageId> = entries.iter().filter_map(|entry| key::parse_code_name(&entry.name)).collect();
        images.sort();
        Ok(images)
    }

    /// An epoch, as it is now.
    ///
    /// # Errors
    /// [`DbError::NoSuchEpoch`], [`DbError::Corrupt`], [`DbError::NewerFormat`], [`DbError::Io`],
    /// or [`DbError::InvalidName`] for what cannot be a host.
    pub fn epoch(&self, host: &str, epoch: &EpochId) -> Result<Epoch, DbError> {
        key::check_host(host)?;
        let directory = key::epoch_path(&self.root, host, epoch);
        let files = EpochFiles::open(self.disk.clone(), directory)?;
        match files.meta(host, epoch)? {
            Some(meta) => Ok(Epoch { files, meta }),
            None => Err(DbError::NoSuchEpoch { root: self.root.clone(), host: host.to_owned(), epoch: epoch.clone() }),
        }
    }
}

/// An epoch to read.
///
/// [`Epoch::meta`] is as of its opening; everything else is read when asked for, each file whole
/// and as of one merge. While a writer merges, files of two merges may come together:
/// [`Epoch::is_current`] tells whether that can have happened.
#[derive(Clone, Debug)]
pub struct Epoch {
    files: EpochFiles,
    meta: EpochMeta,
}

impl Epoch {
    /// What the epoch says about itself.
    #[must_use]
    pub const fn meta(&self) -> &EpochMeta {
        &self.meta
    }

    /// The images with samples.
    ///
    /// # Errors
    /// [`DbError::Corrupt`], [`DbError::NewerFormat`] or [`DbError::Io`].
    pub fn images(&self) -> Result<BTreeMap<ImageId, ImageRecord>, DbError> {
        self.files.images()
    }

    /// The profiles there are, in order. Files of unknown kinds are skipped.
    ///
    /// # Errors
    /// [`DbError::Io`].
    pub fn profiles(&self) -> Result<Vec<ProfileKey>, DbError> {
        self.files.profiles()
    }

    /// The scopes that there are samples of, in order, without the empty one.
    ///
    /// # Errors
    /// [`DbError::Corrupt`], [`DbError::NewerFormat`] or [`DbError::Io`].
    pub fn scopes(&self) -> Result<Vec<Scope>, DbError> {
        let mut scopes: Vec<Scope> = self.files.scopes()?.scopes().cloned().collect();
        scopes.sort();
        Ok(scopes)
    }

    /// A profile; empty when there is none, or none any more because the epoch is being removed.
    ///
    /// # Errors
    /// [`DbError::Corrupt`], [`DbError::NewerFormat`] or [`DbError::Io`].
    pub fn profile(&self, key: &ProfileKey) -> Result<Profile, DbError> {
        self.files.profile(key)
    }

    /// The symbols the writer saw for an image, in ascending order of start; empty when none.
    ///
    /// # Errors
    /// [`DbError::Corrupt`], [`DbError::NewerFormat`] or [`DbError::Io`].
    pub fn symbols(&self, image: &ImageId) -> Result<Vec<Symbol>, DbError> {
        self.files.symbols(image)
    }

    /// Bytes of all files of the epoch.
    ///
    /// # Errors
    /// [`DbError::Io`].
    pub fn size_bytes(&self) -> Result<u64, DbError> {
        let entries = self.files.entries()?;
        Ok(entries
            .iter()
            .filter(|entry| !entry.is_directory)
            .fold(0, |sum: u64, entry| sum.saturating_add(entry.size_bytes)))
    }

    /// True when nothing was merged since this was opened, so that all that was read in between is
    /// of one state. False as well when the epoch is gone.
    ///
    /// # Errors
    /// As [`Database::epoch`].
    pub fn is_current(&self) -> Result<bool, DbError> {
        let directory = self.files.directory().to_owned();
        let files = EpochFiles::open(self.files.disk().clone(), directory)?;
        let meta = files.meta(&self.meta.host, &self.meta.epoch)?;
        Ok(meta.is_some_and(|meta| meta.merges == self.meta.merges))
    }

    /// Checks that the profiles have exactly the samples that the ledgers say: reads all profiles.
    ///
    /// # Errors
    /// [`DbError::Unbalanced`] when they have not (or when merges happened since the epoch was
    /// opened, see [`Epoch::is_current`]), and as [`Epoch::profile`].
    pub fn check_ledgers(&self) -> Result<(), DbError> {
        let mut totals: BTreeMap<String, u64> = BTreeMap::new();
        for key in self.profiles()? {
            let total = self.profile(&key)?.total();
            let sum = totals.entry(key.event).or_default();
            *sum = sum.saturating_add(total);
        }
        crate::meta::check_balance(&self.meta.ledgers, &totals)
    }
}
