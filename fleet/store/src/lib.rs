//! The store of a fleet: which objects there are, and putting one where there is none.
//!
//! A store is a prefix of an object store (`object_store`), today a directory. What hosts put there
//! (`dcpi push`) is checked before it is taken: an object is what its key says, whole, or it is
//! refused. Objects never change, so every put may be repeated.
#![forbid(unsafe_code)]

use std::fmt;
use std::path::Path;

use bytes::Bytes;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Place;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use profiledb::{FORMAT, check_code_object, check_epoch_object, is_same_epoch};

/// Directory of the epochs, which is a database.
const RAW: &str = "raw";
/// Directory of the code of images below, which all hosts have in common.
const CODE: &str = "code/";
/// Largest object, in bytes (`profiledb/FORMAT.md`: largest file).
pub const OBJECT_BYTES_MAX: u64 = 256 << 20;
/// Longest key, in bytes: the directory, a host (253), an epoch and the name of a segment.
const KEY_BYTES_MAX: usize = 320;

/// The key of an object that hosts put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// What makes the epochs a database.
    Format,
    /// An epoch of a host: its place in the database.
    Epoch(String),
    /// The kept part of an image's file: its name.
    Code(String),
}

impl Key {
    /// The key of a path without leading slash; None for a path that is none. Whether a host, an
    /// epoch or an image has such a name, [`Key::check`] tells.
    #[must_use]
    pub fn parse(path: &str) -> Option<Self> {
        let is_part = |part: &str| {
            // Object stores take a percent sign for the begin of a code.
            let is_plain = |character: char| !character.is_control() && character != '%';
            !part.is_empty() && !part.starts_with('.') && part.chars().all(is_plain)
        };
        if path.len() > KEY_BYTES_MAX
            || !path.split('/').all(is_part)
            || Place::parse(path).is_err()
        {
            return None;
        }
        match path.split_once('/')? {
            (RAW, "format") => Some(Self::Format),
            (RAW, place) if place.starts_with("hosts/") => Some(Self::Epoch(place.to_owned())),
            (RAW, place) => {
                let name = place.strip_prefix(CODE).filter(|name| !name.contains('/'))?;
                Some(Self::Code(name.to_owned()))
            }
            _ => None,
        }
    }

    /// Refuses an object that is not what its key says, or is damaged.
    ///
    /// # Errors
    /// [`StoreError::Unfit`].
    pub fn check(&self, object: &[u8]) -> Result<(), StoreError> {
        let checked = match self {
            Self::Format if object == FORMAT => return Ok(()),
            Self::Format => return Err(StoreError::Unfit("another format".to_owned())),
            Self::Epoch(place) => check_epoch_object(place, object),
            Self::Code(name) => check_code_object(name, object),
        };
        checked.map_err(|error| StoreError::Unfit(error.to_string()))
    }

    /// The same text: other programs find objects by it.
    fn place(&self) -> Result<Place, StoreError> {
        Place::parse(self.to_string()).map_err(|error| StoreError::Failed(error.into()))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Format => write!(f, "{RAW}/format"),
            Self::Epoch(place) => write!(f, "{RAW}/{place}"),
            Self::Code(name) => write!(f, "{RAW}/{CODE}{name}"),
        }
    }
}

/// What became of an object.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Put {
    /// It is in the store now.
    Stored,
    /// It was there before.
    WasThere,
    /// An epoch of that name was there, of another machine.
    Another,
}

/// Why the store did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The object is not what its key says.
    #[error("the object is not what its name says: {0}")]
    Unfit(String),
    /// The object store failed.
    #[error("the store failed: {0}")]
    Failed(#[from] object_store::Error),
}

/// A store.
#[derive(Debug)]
pub struct Store {
    objects: LocalFileSystem,
}

impl Store {
    /// Opens the store in an existing directory.
    ///
    /// # Errors
    /// [`StoreError::Failed`] where there is no such directory.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        // What a host was told is stored is on the disk.
        Ok(Self { objects: LocalFileSystem::new_with_prefix(directory)?.with_fsync(true) })
    }

    /// Puts an object that was checked where there is none of its key.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    pub async fn put(&self, key: &Key, object: Bytes) -> Result<Put, StoreError> {
        let place = key.place()?;
        let options = PutOptions::from(PutMode::Create);
        let payload = PutPayload::from_bytes(object.clone());
        match self.objects.put_opts(&place, payload, options).await {
            Ok(_) => Ok(Put::Stored),
            Err(object_store::Error::AlreadyExists { .. }) => {
                let Key::Epoch(_) = key else { return Ok(Put::WasThere) };
                let there = self.objects.get(&place).await?.bytes().await?;
                Ok(if is_same_epoch(&there, &object) { Put::WasThere } else { Put::Another })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Whether there is an object of a key.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    pub async fn has(&self, key: &Key) -> Result<bool, StoreError> {
        match self.objects.head(&key.place()?).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn keys_are_those_of_objects_and_lead_nowhere_else() {
        let epoch = "raw/hosts/node-1/20261105-101500/0-1.segment";
        for path in ["raw/format", epoch, "raw/code/4ef6.code", "raw/hosts/ü x/1/2"] {
            assert_eq!(Key::parse(path).unwrap().to_string(), path);
        }
        let long = format!("raw/code/{}", "x".repeat(KEY_BYTES_MAX));
        for path in [
            "",
            "raw",
            "raw/",
            "raw/hosts/../../etc/passwd",
            "raw/code/..",
            "raw/code/a/b",
            "/raw/format",
            "raw/x",
            "raw/code/.partial-1",
            "raw/hosts//1",
            "raw/code/a\nb",
            "raw/code/a%b",
            "other/x",
            long.as_str(),
        ] {
            assert_eq!(Key::parse(path), None, "{path:?}");
        }
    }

    #[test]
    fn objects_that_are_not_what_their_key_says_are_refused() {
        let epoch = "raw/hosts/node-1/20261105-101500/0-1.segment";
        for path in ["raw/format", epoch, "raw/code/4ef6.code", "raw/hosts/node-1", "raw/code/x"] {
            let refused = Key::parse(path).unwrap().check(b"anything");
            assert!(matches!(refused, Err(StoreError::Unfit(_))), "{path}");
        }
        Key::Format.check(FORMAT).unwrap();
    }

    #[tokio::test]
    async fn an_object_is_put_once() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        assert!(!store.has(&Key::Format).await.unwrap());
        let put = || store.put(&Key::Format, Bytes::from_static(FORMAT));
        assert_eq!(put().await.unwrap(), Put::Stored);
        assert_eq!(put().await.unwrap(), Put::WasThere);
        assert!(store.has(&Key::Format).await.unwrap());
        assert_eq!(std::fs::read(directory.path().join("raw/format")).unwrap(), FORMAT);
        // Names with other letters are not changed on their way: `dcpi push` writes them as well.
        let key = Key::parse("raw/hosts/ü x/1/2").unwrap();
        store.put(&key, Bytes::from_static(b"1")).await.unwrap();
        assert!(directory.path().join("raw/hosts/ü x/1/2").exists());
        assert!(Store::open(&directory.path().join("gone")).is_err());
    }
}
