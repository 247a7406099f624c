//! Objects: put where there are none, read, listed, removed.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Place;
use object_store::prefix::PrefixStore;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use profiledb::is_same_epoch;

use crate::durable;
use crate::keys::Key;
use crate::listed::Listed;

/// The address of a store in memory, for tests.
const MEMORY: &str = "memory:///";

/// The outcome for an object.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Put {
    /// It is in the store now.
    Stored,
    /// It was there before.
    WasThere,
    /// An epoch of that name was there, of another machine.
    Another,
}

/// The reason why the store refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The object is not what its key says.
    #[error("the object is not what its name says: {0}")]
    Unfit(String),
    /// The object store failed.
    #[error("the store failed: {0}")]
    Failed(#[from] object_store::Error),
    /// The directory failed.
    #[error("the store failed: {0}")]
    Io(#[from] std::io::Error),
    /// The address is none of a store.
    #[error("{0}")]
    Address(String),
    /// An object of this program's own is damaged, or of a later release; `why` has the next step.
    #[error("{key} cannot be read: {why}")]
    Damaged {
        /// The object's key.
        key: String,
        /// The error.
        why: String,
    },
}

/// An object that was listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its key.
    pub key: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// When it was put, in seconds since 1970 UTC by the store's clock.
    pub put_s: i64,
}

/// A store.
#[derive(Clone, Debug)]
pub struct Store {
    objects: Arc<dyn ObjectStore>,
    /// Where the store is a directory, the directory.
    directory: Option<PathBuf>,
    /// Its address, for people.
    shown: String,
    /// Its address, for SQL engines, and the objects of which the store's are a part.
    url: url::Url,
    all_objects: Arc<dyn ObjectStore>,
}

impl Store {
    /// Opens the store in an existing directory.
    ///
    /// # Errors
    /// [`StoreError::Failed`] where there is no such directory.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        let directory = fs::canonicalize(directory)?;
        let objects = Arc::new(LocalFileSystem::new_with_prefix(&directory)?);
        let shown = directory.display().to_string();
        let url = url::Url::from_directory_path(&directory)
            .map_err(|()| StoreError::Address(format!("{shown} is no address")))?;
        let all_objects = Arc::new(LocalFileSystem::new());
        Ok(Self { objects, directory: Some(directory), shown, url, all_objects })
    }

    /// Opens the store of an address: a directory, or `s3://BUCKET/PREFIX`, `gs://...`, `az://...`,
    /// whose credentials and endpoint the environment tells as the tools of these clouds have it
    /// (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT`, ...).
    ///
    /// # Errors
    /// [`StoreError::Address`], or as [`Store::open`].
    pub fn at(address: &str) -> Result<Self, StoreError> {
        let Some((scheme, _)) = address.split_once("://") else {
            return Self::open(Path::new(address));
        };
        let refused = |why: String| StoreError::Address(format!("no store at {address}: {why}"));
        if !matches!(scheme, "s3" | "gs" | "az" | "memory") {
            let schemes = "a store is a directory, or at s3://, gs:// or az://";
            return Err(refused(schemes.to_owned()));
        }
        // A directory, so that keys are joined to it.
        let slashed = format!("{}/", address.trim_end_matches('/'));
        let parsed = url::Url::parse(if scheme == "memory" { MEMORY } else { &slashed });
        let url = parsed.map_err(|error| refused(error.to_string()))?;
        let options = std::env::vars().map(|(name, value)| (name.to_lowercase(), value));
        let parsed = object_store::parse_url_opts(&url, options);
        let (objects, prefix) = parsed.map_err(|error| refused(error.to_string()))?;
        let all_objects: Arc<dyn ObjectStore> = Arc::from(objects);
        let objects = Arc::new(PrefixStore::new(Arc::clone(&all_objects), prefix));
        Ok(Self { objects, directory: None, shown: address.to_owned(), url, all_objects })
    }

    /// The store in these objects, for tests of what objects may do.
    ///
    /// # Errors
    /// [`StoreError::Address`]: never.
    pub fn over(objects: Arc<dyn ObjectStore>) -> Result<Self, StoreError> {
        let memory = Self::at(MEMORY)?;
        Ok(Self { objects: Arc::clone(&objects), all_objects: objects, ..memory })
    }

    /// Where SQL engines find the object of a key, with the objects of that address.
    ///
    /// # Errors
    /// [`StoreError::Address`].
    pub fn url(&self, key: &str) -> Result<(url::Url, Arc<dyn ObjectStore>), StoreError> {
        let url = self.url.join(key);
        let url = url.map_err(|error| StoreError::Address(format!("{key}: {error}")))?;
        Ok((url, Arc::new(Listed(Arc::clone(&self.all_objects)))))
    }

    /// The directory, where the store is one.
    #[must_use]
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// The address, for people.
    #[must_use]
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Puts an object that was checked where there is none of its key.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    pub async fn put(&self, key: &Key, object: Bytes) -> Result<Put, StoreError> {
        let place = key.to_string();
        if self.create(&place, object.clone()).await? {
            return Ok(Put::Stored);
        }
        let Key::Epoch(_) = key else { return Ok(Put::WasThere) };
        let there = self.get(&place).await?;
        let is_same = there.is_none_or(|there| is_same_epoch(&there, &object));
        Ok(if is_same { Put::WasThere } else { Put::Another })
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

    /// Puts an object where there is none of this key; false where there is one.
    ///
    /// # Errors
    /// [`StoreError::Failed`], [`StoreError::Io`]: it may be there or not.
    pub async fn create(&self, key: &str, object: Bytes) -> Result<bool, StoreError> {
        if let Some(directory) = self.directory.clone() {
            let key = key.to_owned();
            return on_disk(move || durable::create(&directory, &key, &object)).await;
        }
        let options = PutOptions::from(PutMode::Create);
        match self.objects.put_opts(&place(key)?, PutPayload::from_bytes(object), options).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Puts an object, replacing an existing one: for objects that other writers may overwrite.
    ///
    /// # Errors
    /// Returns the errors of [`Store::create`].
    pub async fn replace(&self, key: &str, object: Bytes) -> Result<(), StoreError> {
        if let Some(directory) = self.directory.clone() {
            let key = key.to_owned();
            return on_disk(move || durable::replace(&directory, &key, &object)).await;
        }
        self.objects.put(&place(key)?, PutPayload::from_bytes(object)).await?;
        Ok(())
    }

    /// An object; None where there is none.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    pub async fn get(&self, key: &str) -> Result<Option<Bytes>, StoreError> {
        if let Some(directory) = &self.directory
            && let Ok(found) = fs::metadata(directory.join(key))
            && !found.is_file()
        {
            // A pipe would be waited for without end.
            let why = "it is no file".to_owned();
            return Err(StoreError::Damaged { key: key.to_owned(), why });
        }
        match self.objects.get(&place(key)?).await {
            Ok(found) => Ok(Some(found.bytes().await?)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes an object, if it is there.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    pub async fn remove(&self, key: &str) -> Result<(), StoreError> {
        match self.objects.delete(&place(key)?).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The objects whose keys begin with this directory, in order of key.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    pub async fn list(&self, directory: &str) -> Result<Vec<Found>, StoreError> {
        if let Some(root) = self.directory.clone() {
            let directory = directory.to_owned();
            return on_disk(move || durable::list(&root, &directory)).await;
        }
        let place = place(directory)?;
        let found = self.objects.list(Some(&place)).map_ok(|meta| Found {
            key: meta.location.to_string(),
            bytes: meta.size,
            put_s: meta.last_modified.timestamp(),
        });
        let mut found: Vec<Found> = found.try_collect().await?;
        found.retain(|found| !found.key.split('/').any(|part| part.starts_with(".partial-")));
        found.sort_by(|a, b| a.key.cmp(&b.key));
        // A page that is asked for again may have some of the one before.
        found.dedup_by(|a, b| a.key == b.key);
        Ok(found)
    }
}

/// The same text: other programs find objects by it.
fn place(key: &str) -> Result<Place, StoreError> {
    Place::parse(key).map_err(|error| StoreError::Failed(error.into()))
}

async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, StoreError> {
    let ended = tokio::task::spawn_blocking(work).await;
    Ok(ended.unwrap_or_else(|ended| Err(std::io::Error::other(ended)))?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use profiledb::FORMAT;

    #[tokio::test]
    async fn an_object_is_put_once() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        assert!(!store.has(&Key::Format).await.unwrap());
        let put = || store.put(&Key::Format, Bytes::from_static(FORMAT));
        assert_eq!(put().await.unwrap(), Put::Stored);
        assert_eq!(put().await.unwrap(), Put::WasThere);
        assert!(store.has(&Key::Format).await.unwrap());
        assert_eq!(fs::read(directory.path().join("raw/format")).unwrap(), FORMAT);
        // Names with other letters are not changed on their way: `dcpi push` writes them as well.
        let key = Key::parse("raw/hosts/ü x/1/2").unwrap();
        store.put(&key, Bytes::from_static(b"1")).await.unwrap();
        assert!(directory.path().join("raw/hosts/ü x/1/2").exists());
        let listed = store.list("raw/hosts").await.unwrap();
        assert_eq!(
            listed.iter().map(|found| found.key.as_str()).collect::<Vec<_>>(),
            ["raw/hosts/ü x/1/2"]
        );
        assert!(Store::open(&directory.path().join("gone")).is_err());
    }

    #[tokio::test]
    async fn what_is_no_store_is_refused_with_what_is_one() {
        for address in ["http://host/x", "s3:", "/nowhere/at/all", "ftp://x"] {
            let error = Store::at(address).unwrap_err().to_string();
            assert!(!error.is_empty() && !error.contains('\n'), "{error}");
        }
        let store = Store::at("memory:///").unwrap();
        assert!(store.create("a/b", Bytes::from_static(b"1")).await.unwrap());
        assert!(!store.create("a/b", Bytes::from_static(b"2")).await.unwrap());
        assert_eq!(store.get("a/b").await.unwrap().unwrap(), "1");
        store.replace("a/b", Bytes::from_static(b"3")).await.unwrap();
        store.remove("a/b").await.unwrap();
        store.remove("a/b").await.unwrap();
        assert_eq!(store.get("a/b").await.unwrap(), None);
    }
}
