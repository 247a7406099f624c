//! Raw epochs: those in the store, and those being read, as a database on this machine.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use profiledb::{Database, EpochId, FORMAT, outgoing_place};
use store::{EpochName, Key, Store, Week};

use crate::IngestError;

/// An epoch in the store.
#[derive(Clone, Debug)]
pub(crate) struct RawEpoch {
    pub(crate) name: EpochName,
    pub(crate) id: EpochId,
    /// Its key.
    pub(crate) key: String,
    /// When it was put, in seconds since 1970 UTC by the store's clock.
    pub(crate) put_s: i64,
}

/// The raw epochs of a store, and the code of images.
pub(crate) struct Raw {
    store: Store,
    epochs: BTreeMap<Week, Vec<RawEpoch>>,
    /// Keys of the code of images, by the image.
    code: BTreeMap<String, Vec<String>>,
    root: Root,
}

/// Where the epochs are read.
enum Root {
    /// In the store, which is a directory.
    Store(PathBuf),
    /// In a copy, which is removed with this.
    Copy { directory: tempfile::TempDir, code: BTreeSet<String> },
}

impl Raw {
    /// Lists the epochs.
    ///
    /// # Errors
    /// [`IngestError`].
    pub(crate) async fn list(store: &Store) -> Result<Self, IngestError> {
        let mut epochs: BTreeMap<Week, Vec<RawEpoch>> = BTreeMap::new();
        for found in store.list("raw/hosts").await? {
            let Some(Key::Epoch(place)) = Key::parse(&found.key) else { continue };
            let mut parts = place.split('/').skip(1);
            let (Some(host), Some(Ok(id))) =
                (parts.next(), parts.next().map(str::parse::<EpochId>))
            else {
                continue;
            };
            // An epoch has one place: what lies beside it would be the same epoch again.
            if !outgoing_place(host, &id).is_ok_and(|of| of == place) {
                continue;
            }
            let name = EpochName { host: host.to_owned(), epoch: id.to_string() };
            let week = Week::of(i64::try_from(id.unix_s()).unwrap_or_default());
            let epoch = RawEpoch { name, id, key: found.key, put_s: found.put_s };
            epochs.entry(week).or_default().push(epoch);
        }
        let mut code: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for found in store.list("raw/code").await? {
            let name = found.key.rsplit('/').next().unwrap_or_default();
            let Some((image, _)) = code_image(name) else { continue };
            code.entry(image.to_owned()).or_default().push(found.key);
        }
        let root = match store.directory() {
            Some(directory) => Root::Store(directory.join("raw")),
            None => Root::copy()?,
        };
        // Hosts put it first, but requests may arrive in another order.
        if matches!(root, Root::Store(_)) && !epochs.is_empty() {
            store.put(&Key::Format, Bytes::from_static(FORMAT)).await?;
        }
        Ok(Self { store: store.clone(), epochs, code, root })
    }

    pub(crate) fn weeks(&self) -> Vec<Week> {
        self.epochs.keys().copied().collect()
    }

    pub(crate) fn of(&self, week: Week) -> impl Iterator<Item = &RawEpoch> {
        self.epochs.get(&week).into_iter().flatten()
    }

    /// From how much of an image's file its names could come, as of [`tables::Build`]: 0 where the
    /// store has nothing of it.
    pub(crate) fn quality(&self, image: &str) -> i64 {
        let keys = self.code.get(image).into_iter().flatten();
        keys.filter_map(|key| code_image(key)).map(|(_, quality)| quality).max().unwrap_or(0)
    }

    /// A database that has these epochs and the code of their images.
    ///
    /// # Errors
    /// [`IngestError`]. An epoch that cannot be read is left to who reads the database.
    pub(crate) async fn database(&mut self, of: &[RawEpoch]) -> Result<PathBuf, IngestError> {
        let (directory, has) = match &mut self.root {
            Root::Store(directory) => return Ok(directory.clone()),
            Root::Copy { directory, code } => (directory.path().to_owned(), code),
        };
        // Earlier readings are not kept.
        remove_hosts(&directory)?;
        for epoch in of {
            if let Some(bytes) = self.store.get(&epoch.key).await? {
                write(&directory, &epoch.key, &bytes)?;
            }
        }
        let root = directory.join("raw");
        let mut wanted = BTreeSet::new();
        let database = Database::open(&root)?;
        for epoch in of {
            let read = database.epoch(&epoch.name.host, &epoch.id);
            if let Ok(images) = read.and_then(|epoch| epoch.images()) {
                wanted.extend(images.into_keys().map(|image| image.to_string()));
            }
        }
        for image in wanted {
            for key in self.code.get(&image).into_iter().flatten() {
                if has.insert(key.clone())
                    && let Some(bytes) = self.store.get(key).await?
                {
                    write(&directory, key, &bytes)?;
                }
            }
        }
        Ok(root)
    }
}

impl Root {
    fn copy() -> Result<Self, IngestError> {
        let directory = tempfile::tempdir()?;
        write(directory.path(), "raw/format", FORMAT)?;
        fs::create_dir_all(directory.path().join("raw/hosts"))?;
        Ok(Self::Copy { directory, code: BTreeSet::new() })
    }
}

/// The image of a file of code, and how much of its names it has, as of [`tables::Build`]; None for
/// other files.
fn code_image(name: &str) -> Option<(&str, i64)> {
    let whole = name.strip_suffix(".code").map(|image| (image, 3));
    whole.or_else(|| name.strip_suffix(".excerpt").map(|image| (image, 2)))
}

fn remove_hosts(directory: &Path) -> std::io::Result<()> {
    let hosts = directory.join("raw/hosts");
    fs::remove_dir_all(&hosts)?;
    fs::create_dir_all(hosts)
}

/// Writes an object; its key was parsed, so it leads nowhere else.
fn write(directory: &Path, key: &str, bytes: &[u8]) -> std::io::Result<()> {
    let path = directory.join(key);
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::write(path, bytes)
}
