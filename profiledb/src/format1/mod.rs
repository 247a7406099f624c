//! Epochs of format 1, which are read but no longer written: they have a file for each profile, and
//! a record of a merge that renames many.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use image::ImageId;

use crate::codec::{self, Commit, DecodeError};
use crate::description::{EpochMeta, EventMeta};
use crate::envelope::{self, HEADER_BYTES, Kind};
use crate::epoch::EpochId;
use crate::error::{Damage, DbError};
use crate::images::{self, ImageRecord};
use crate::naming::{self, ProfileKey, SamplesFile};
use crate::scope::{self, Scope, ScopeTable};
use crate::segment::described_period;
use crate::storage::{Disk, Entry};
use crate::symbols::Symbol;
use model::Profile;

/// The directory of an epoch.
#[derive(Clone, Debug)]
pub(crate) struct EpochFiles {
    disk: Disk,
    directory: PathBuf,
    /// The merge that was decided and perhaps not finished when this was opened: its files count
    /// even under their temporary names.
    decided: Option<Commit>,
    /// The scopes read so far. A number never gets another scope, so known numbers stay valid.
    scopes: Arc<Mutex<ScopeTable>>,
}

/// A file's payload and where it was found.
pub(crate) struct Payload {
    path: PathBuf,
    file: Vec<u8>,
}

impl EpochFiles {
    /// Opens a directory in which a merge may be under way or may have been cut short.
    pub(crate) fn open(disk: Disk, directory: PathBuf) -> Result<Self, DbError> {
        let decided = read_commit(&disk, &directory)?;
        Ok(Self { disk, directory, decided, scopes: Arc::default() })
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The epoch's description; None when there is none, and so no epoch.
    pub(crate) fn meta(&self, host: &str, epoch: &EpochId) -> Result<Option<EpochMeta>, DbError> {
        let Some(found) = self.read(naming::META)? else {
            return Ok(None);
        };
        let meta: EpochMeta = found
            .decode(Kind::Meta, |payload| serde_json::from_slice(payload).map_err(json_error))?;
        if meta.host != host || meta.epoch != *epoch {
            return Err(DbError::Corrupt {
                path: found.path,
                offset: HEADER_BYTES as u64,
                damage: Damage::Misplaced,
            });
        }
        Ok(Some(meta.at_described_periods()))
    }

    /// The images; empty before the first merge.
    pub(crate) fn images(&self) -> Result<BTreeMap<ImageId, ImageRecord>, DbError> {
        match self.read(naming::IMAGES)? {
            Some(found) => found.decode(Kind::Images, |payload| {
                images::decode(payload).map_err(|damage| match damage {
                    Damage::Json(error) => json_error(error),
                    damage => DecodeError { offset: 0, damage },
                })
            }),
            None => Ok(BTreeMap::new()),
        }
    }

    /// The scopes; empty where no scope was asked for.
    pub(crate) fn scopes(&self) -> Result<ScopeTable, DbError> {
        match self.read(naming::SCOPES)? {
            Some(found) => found.decode(Kind::Scopes, |payload| {
                scope::decode(payload).map_err(|damage| match damage {
                    Damage::Json(error) => json_error(error),
                    damage => DecodeError { offset: 0, damage },
                })
            }),
            None => Ok(ScopeTable::default()),
        }
    }

    /// A profile; empty when it has no file.
    pub(crate) fn profile(&self, key: &ProfileKey) -> Result<Profile, DbError> {
        if key.scope.is_empty() {
            return self.profile_in(key, None);
        }
        let known = self.known_scopes().number(&key.scope);
        let number = match known {
            Some(number) => Some(number),
            None => self.scopes()?.number(&key.scope),
        };
        number.map_or_else(|| Ok(Profile::new()), |number| self.profile_in(key, Some(number)))
    }

    /// A profile whose scope has that number; empty when it has no file.
    fn profile_in(&self, key: &ProfileKey, number: Option<u32>) -> Result<Profile, DbError> {
        let kind = if number.is_some() { Kind::ScopedSamples } else { Kind::Samples };
        match self.read(&SamplesFile::of(key, number).name())? {
            Some(found) => found.decode(kind, |payload| codec::decode_samples(key, payload)),
            None => Ok(Profile::new()),
        }
    }

    /// The symbols of an image; empty when they have no file.
    pub(crate) fn symbols(&self, image: &ImageId) -> Result<Vec<Symbol>, DbError> {
        match self.read(&naming::symbols_name(image))? {
            Some(found) => {
                found.decode(Kind::Symbols, |payload| codec::decode_symbols(image, payload))
            }
            None => Ok(Vec::new()),
        }
    }

    /// The profiles that have a file, in order, in an epoch of these events. Where the list of
    /// scopes cannot be read, the files themselves name their scopes.
    pub(crate) fn profiles(&self, events: &[EventMeta]) -> Result<Vec<ProfileKey>, DbError> {
        let listed = self.entries()?.into_iter().map(|entry| entry.name);
        let decided = self.decided.iter().flat_map(|commit| commit.names.clone());
        let files: Vec<SamplesFile> =
            listed.chain(decided).filter_map(|name| SamplesFile::parse(&name)).collect();
        // The scopes are read after the files: the list is published before any file of a new
        // scope.
        if files.iter().any(|file| file.scope.is_some())
            && let Ok(scopes) = self.scopes()
        {
            *self.known_scopes() = scopes;
        }
        let mut keys = Vec::with_capacity(files.len());
        for file in files {
            let scope = match file.scope {
                None => Scope::default(),
                Some(number) => match self.scope(number, &file) {
                    Ok(Some(scope)) => scope,
                    // Neither the list nor the file names the scope. The ledger then misses these
                    // samples, and a reader of the list gets its error.
                    Ok(None) | Err(DbError::Corrupt { .. }) => continue,
                    Err(error) => return Err(error),
                },
            };
            let period = described_period(events, &file.event).unwrap_or(0);
            keys.push(ProfileKey::samples(file.image, &file.event, period, scope));
        }
        keys.sort();
        keys.dedup();
        Ok(keys)
    }

    /// The scope with that number, to which this file belongs; None when the file is gone.
    fn scope(&self, number: u32, file: &SamplesFile) -> Result<Option<Scope>, DbError> {
        if let Some(scope) = self.known_scopes().get(number) {
            return Ok(Some(scope.clone()));
        }
        let Some(found) = self.read(&file.name())? else { return Ok(None) };
        let decode = |payload: &[u8]| codec::decode_scope(&file.image, &file.event, payload);
        let scope = found.decode(Kind::ScopedSamples, decode)?;
        self.known_scopes().learn(number, scope.clone());
        Ok(Some(scope))
    }

    fn known_scopes(&self) -> std::sync::MutexGuard<'_, ScopeTable> {
        // No code panics while it holds the lock.
        self.scopes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All entries of the directory; empty when the directory is gone.
    pub(crate) fn entries(&self) -> Result<Vec<Entry>, DbError> {
        self.disk.list_if_there(&self.directory)
    }

    fn read(&self, name: &str) -> Result<Option<Payload>, DbError> {
        if let Some(commit) = &self.decided
            && commit.names.iter().any(|decided| decided == name)
        {
            let path =
                self.directory.join(naming::temporary_name(&format!("{name}.{}", commit.sequence)));
            // A temporary file that is gone has its final name by now.
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

/// The decided merge in a directory; None when there is none.
fn read_commit(disk: &Disk, directory: &Path) -> Result<Option<Commit>, DbError> {
    let Some(found) = Payload::read(disk, directory.join(naming::COMMIT))? else {
        return Ok(None);
    };
    found.decode(Kind::Commit, codec::decode_commit).map(Some)
}

/// Position of an error in a payload of JSON. Writers write one line, so the column is the
/// position.
fn json_error(error: serde_json::Error) -> DecodeError {
    let offset = match error.line() {
        1 => error.column().saturating_sub(1),
        _ => 0,
    };
    DecodeError { offset, damage: Damage::Json(error) }
}
