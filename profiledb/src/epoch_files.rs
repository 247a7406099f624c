//! The files of one epoch, read and checked.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use image::ImageId;

use crate::codec::{self, Commit, DecodeError};
use crate::envelope::{self, HEADER_BYTES, Kind};
use crate::epoch::EpochId;
use crate::error::{Damage, DbError};
use crate::images::{self, ImageRecord};
use crate::key::{self, ProfileKey};
use crate::meta::EpochMeta;
use crate::profile::Profile;
use crate::storage::{Disk, Entry};
use crate::symbols::Symbol;

/// The directory of an epoch.
#[derive(Clone, Debug)]
pub(crate) struct EpochFiles {
    disk: Disk,
    directory: PathBuf,
    /// The merge that was decided and perhaps not finished when this was opened: its files count
    /// even under their temporary names.
    decided: Option<Commit>,
}

/// A file's payload and where it was found.
pub(crate) struct Payload {
    path: PathBuf,
    file: Vec<u8>,
}

impl EpochFiles {
    /// The files of a directory in which no merge is underway: the writer's view.
    pub(crate) const fn quiet(disk: Disk, directory: PathBuf) -> Self {
        Self { disk, directory, decided: None }
    }

    /// The files of a directory in which a merge may be underway or may have been cut short.
    pub(crate) fn open(disk: Disk, directory: PathBuf) -> Result<Self, DbError> {
        let decided = read_commit(&disk, &directory)?;
        Ok(Self { disk, directory, decided })
    }

    pub(crate) const fn disk(&self) -> &Disk {
        &self.disk
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The epoch's description; none when there is none, and so no epoch.
    pub(crate) fn meta(&self, host: &str, epoch: &EpochId) -> Result<Option<EpochMeta>, DbError> {
        let Some(found) = self.read(key::META)? else {
            return Ok(None);
        };
        let meta: EpochMeta =
            found.decode(Kind::Meta, |payload| serde_json::from_slice(payload).map_err(json_error))?;
        if meta.host != host || meta.epoch != *epoch {
            return Err(DbError::Corrupt { path: found.path, offset: HEADER_BYTES as u64, damage: Damage::Misplaced });
        }
        Ok(Some(meta))
    }

    /// The images, which may be none yet.
    pub(crate) fn images(&self) -> Result<BTreeMap<ImageId, ImageRecord>, DbError> {
        match self.read(key::IMAGES)? {
            Some(found) => found.decode(Kind::Images, |payload| {
                images::decode(payload).map_err(|damage| match damage {
                    Damage::Json(error) => json_error(error),
                    damage => DecodeError { offset: 0, damage },
                })
            }),
            None => Ok(BTreeMap::new()),
        }
    }

    /// A profile; empty when there is no file of it.
    pub(crate) fn profile(&self, key: &ProfileKey) -> Result<Profile, DbError> {
        match self.read(&key::samples_name(key))? {
            Some(found) => found.decode(Kind::Samples, |payload| codec::decode_samples(key, payload)),
            None => Ok(Profile::new()),
        }
    }

    /// The symbols of an image; empty when there is no file of them.
    pub(crate) fn symbols(&self, image: &ImageId) -> Result<Vec<Symbol>, DbError> {
        match self.read(&key::symbols_name(image))? {
            Some(found) => found.decode(Kind::Symbols, |payload| codec::decode_symbols(image, payload)),
            None => Ok(Vec::new()),
        }
    }

    /// The profiles that have a file, in order.
    pub(crate) fn profiles(&self) -> Result<Vec<ProfileKey>, DbError> {
        let listed = self.entries()?.into_iter().map(|entry| entry.name);
        let decided = self.decided.iter().flat_map(|commit| commit.names.clone());
        let mut keys: Vec<ProfileKey> =
            listed.chain(decided).filter_map(|name| key::parse_samples_name(&name)).collect();
        keys.sort();
        keys.dedup();
        Ok(keys)
    }

    /// Everything in the directory; nothing when it is gone.
    pub(crate) fn entries(&self) -> Result<Vec<Entry>, DbError> {
        self.disk.list_if_there(&self.directory)
    }

    fn read(&self, name: &str) -> Result<Option<Payload>, DbError> {
        if let Some(commit) = &self.decided
            && commit.names.iter().any(|decided| decided == name)
        {
            let path = self.directory.join(key::temporary_name(name, commit.sequence));
            // When it is gone it has its final name by now.
            if let Some(file) = self.disk.read_if_there(&path)? {
                return Ok(Some(Payload { path, file }));
            }
        }
        Payload::read(&self.disk, self.directory.join(name))
    }
}

impl Payload {
    /// A whole file, if there is one.
    pub(crate) fn read(disk: &Disk, path: PathBuf) -> Result<Option<Self>, DbError> {
        Ok(disk.read_if_there(&path)?.map(|file| Self { path, file }))
    }

    pub(crate) fn decode<T>(
        &self,
        kind: Kind,
        decode: impl FnOnce(&[u8]) -> Result<T, DecodeError>,
    ) -> Result<T, DbError> {
        let payload = envelope::open_as(kind, &self.file).map_err(|error| error.of(&self.path))?;
        decode(payload).map_err(|error| DbError::Corrupt {
            path: self.path.clone(),
            offset: (HEADER_BYTES + error.offset) as u64,
            damage: error.damage,
        })
    }
}

/// The merge that is decided in a directory; none when there is none.
pub(crate) fn read_commit(disk: &Disk, directory: &Path) -> Result<Option<Commit>, DbError> {
    let Some(found) = Payload::read(disk, directory.join(key::COMMIT))? else {
        return Ok(None);
    };
    found.decode(Kind::Commit, codec::decode_commit).map(Some)
}

/// Where in a payload of JSON something is wrong. We write one line, so the column tells.
fn json_error(error: serde_json::Error) -> DecodeError {
    let offset = match error.line() {
        1 => error.column().saturating_sub(1),
        _ => 0,
    };
    DecodeError { offset, damage: Damage::Json(error) }
}
