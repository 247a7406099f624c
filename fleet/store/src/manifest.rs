//! Manifests: what a week of a store consists of.
//!
//! `weeks/WEEK/manifest-NNNNNN` is JSON and put where there is none; the one of the highest number
//! is the week. A writer reads it, makes files that no manifest lists yet, and puts the next one:
//! of two writers one does, and the other begins again. `weeks/WEEK/newest` has a number from which
//! to look for the highest; it may be old, and may be lost. Behind the JSON is a line with its
//! CRC-32C, since a number with another digit is JSON, too.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::objects::{Store, StoreError};
use crate::week::Week;

/// Version of manifests.
const SCHEMA: u32 = 1;
/// Attempts to put the next manifest before a writer gives up.
const ATTEMPTS: u32 = 100;

/// An epoch of a host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EpochName {
    /// The host.
    pub host: String,
    /// The epoch's name.
    pub epoch: String,
}

/// A file of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Name of the table.
    pub table: String,
    /// Name of the event that its samples are of; empty where a table is not of one event.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub event: String,
    /// Its key in the store.
    pub key: String,
    /// Rows.
    pub rows: u64,
    /// Bytes.
    pub bytes: u64,
    /// Sum of the column `samples`, where the table has one.
    #[serde(default)]
    pub samples: u64,
    /// Number of the service, where all rows are of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<i64>,
}

/// The version alone.
#[derive(Deserialize)]
struct Schema {
    schema: u32,
}

/// The parts of a week.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this form.
    pub schema: u32,
    /// Its number: the first is 1.
    pub number: u64,
    /// When it was made, in seconds since 1970 UTC.
    pub made_s: i64,
    /// The epochs whose samples its files have, in order.
    pub epochs: Vec<EpochName>,
    /// Epochs that cannot be read, and why: they are not looked at again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<(EpochName, String)>,
    /// Files.
    pub files: Vec<FileEntry>,
    /// How many epochs the week had when it was closed last; 0: it was not.
    #[serde(default)]
    pub closed_epochs: u64,
}

impl Manifest {
    /// The newest manifest of a week; one of number 0 where there is none.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn newest(store: &Store, week: Week) -> Result<Self, StoreError> {
        let hint = match store.get(&newest_key(week)).await? {
            Some(number) => std::str::from_utf8(&number).ok().and_then(|text| text.parse().ok()),
            None => None,
        };
        let hinted = match hint {
            Some(number) => Self::read(store, week, number).await?,
            None => None,
        };
        let mut newest = match hinted {
            Some(hinted) => hinted,
            // A hint that was lost, or leads to what was removed: the one case of listing.
            None => match Self::listed(store, week).await? {
                Some(number) => Self::read(store, week, number).await?.unwrap_or_default(),
                None => Self::default(),
            },
        };
        while let Some(next) = Self::read(store, week, newest.number + 1).await? {
            newest = next;
        }
        Ok(newest)
    }

    /// The highest number of a manifest.
    async fn listed(store: &Store, week: Week) -> Result<Option<u64>, StoreError> {
        let found = store.list(&directory(week)).await?;
        let numbers = found.iter().filter_map(|found| {
            found.key.rsplit_once("/manifest-").and_then(|(_, number)| number.parse().ok())
        });
        Ok(numbers.max())
    }

    async fn read(store: &Store, week: Week, number: u64) -> Result<Option<Self>, StoreError> {
        let key = key(week, number);
        let Some(bytes) = store.get(&key).await? else { return Ok(None) };
        let damaged = |why: String| StoreError::Damaged { key: key.clone(), why };
        let (json, checksum) = split(&bytes);
        // The version is read before the rest: a later release may have other fields.
        let schema = serde_json::from_slice(json).map(|Schema { schema }| schema);
        if let Ok(schema) = schema
            && schema != SCHEMA
        {
            let why = "it has schema";
            let next = "use the newest dcpi-fleet";
            return Err(damaged(format!(
                "{why} {schema}, and this release reads {SCHEMA}; {next}"
            )));
        }
        let manifest: Result<Self, _> = serde_json::from_slice(json);
        let why = match manifest {
            _ if checksum.is_some_and(|checksum| checksum != sum(json).as_bytes()) => {
                "its checksum does not fit".to_owned()
            }
            Ok(manifest) if manifest.number == number => return Ok(Some(manifest)),
            Ok(manifest) => format!("it says that it is number {}", manifest.number),
            Err(error) => error.to_string(),
        };
        // The one before it lists the week as it was; what came since is in the raw epochs.
        Err(damaged(format!("{why}; remove it, then ingest and close again")))
    }

    /// Puts this as the manifest after the one that it was made from; false where another writer
    /// did so before.
    ///
    /// # Errors
    /// [`StoreError`]: then it may be there or not, and doing all again is right in both cases.
    pub async fn put_next(mut self, store: &Store, week: Week) -> Result<bool, StoreError> {
        self.schema = SCHEMA;
        self.number += 1;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.made_s = i64::try_from(now.as_secs()).unwrap_or_default();
        self.epochs.sort();
        let mut json = serde_json::to_vec(&self).map_err(|error| StoreError::Damaged {
            key: key(week, self.number),
            why: error.to_string(),
        })?;
        json.extend(format!("\n{}\n", sum(&json)).into_bytes());
        let is_put = store.create(&key(week, self.number), Bytes::from(json)).await?;
        if is_put {
            // Losing it costs a few requests.
            let number = Bytes::from(self.number.to_string());
            let _ = store.replace(&newest_key(week), number).await;
        }
        Ok(is_put)
    }

    /// Changes a week: `change` makes the next manifest from the newest, or says that nothing is to
    /// be done, and is asked again when another writer was faster.
    ///
    /// # Errors
    /// Returns the errors of `change` and of the store, and [`StoreError::Damaged`] when others
    /// were faster each time.
    pub async fn change<E: From<StoreError>>(
        store: &Store,
        week: Week,
        mut change: impl AsyncFnMut(Self) -> Result<Option<Self>, E>,
    ) -> Result<(), E> {
        for _ in 0..ATTEMPTS {
            let Some(next) = change(Self::newest(store, week).await?).await? else {
                return Ok(());
            };
            if next.put_next(store, week).await? {
                return Ok(());
            }
        }
        let why = "other writers change it all the time; try again".to_owned();
        Err(StoreError::Damaged { key: newest_key(week), why }.into())
    }

    /// Files of a table; of one event, or of tables without.
    pub fn files_of<'a>(
        &'a self,
        table: &'a str,
        event: &'a str,
    ) -> impl Iterator<Item = &'a FileEntry> {
        let is_of = move |file: &&FileEntry| file.table == table && file.event == event;
        self.files.iter().filter(is_of)
    }

    /// The events that facts are of, in order.
    #[must_use]
    pub fn events(&self) -> Vec<String> {
        let facts = self.files.iter().filter(|file| file.table == "epochs");
        let mut events: Vec<String> = facts.map(|file| file.event.clone()).collect();
        events.sort();
        events.dedup();
        events
    }

    /// Whether the week was closed with all epochs that it has.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        !self.epochs.is_empty() && self.closed_epochs == self.epochs.len() as u64
    }
}

/// The JSON of a manifest, which is one line, and its checksum; None: it was written without.
fn split(manifest: &[u8]) -> (&[u8], Option<&[u8]>) {
    let lines = manifest.strip_suffix(b"\n").unwrap_or(manifest);
    match lines.iter().position(|byte| *byte == b'\n').and_then(|at| lines.split_at_checked(at)) {
        Some((json, checksum)) => (json, checksum.get(1..)),
        None => (lines, None),
    }
}

/// The CRC-32C of bytes, as text.
fn sum(bytes: &[u8]) -> String {
    format!("{:08x}", crc32c::crc32c(bytes))
}

/// The directory of a week.
pub(crate) fn directory(week: Week) -> String {
    format!("weeks/{week}")
}

fn key(week: Week, number: u64) -> String {
    format!("{}/manifest-{number:06}", directory(week))
}

fn newest_key(week: Week) -> String {
    format!("{}/newest", directory(week))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    fn named(epoch: &str) -> EpochName {
        EpochName { host: "a".to_owned(), epoch: epoch.to_owned() }
    }

    #[tokio::test]
    async fn of_two_writers_one_puts_the_next_and_the_other_begins_again() {
        let store = Store::at("memory:///").unwrap();
        let week = Week::of(0);
        let first = Manifest::newest(&store, week).await.unwrap();
        assert_eq!(first.number, 0);
        assert!(first.clone().put_next(&store, week).await.unwrap());
        assert!(!first.put_next(&store, week).await.unwrap());
        let mut asked = 0;
        Manifest::change::<StoreError>(&store, week, async |mut newest| {
            asked += 1;
            if asked == 1 {
                // Another writer.
                let mut others = newest.clone();
                others.epochs.push(named("1"));
                assert!(others.put_next(&store, week).await.unwrap());
            }
            newest.epochs.push(named("2"));
            Ok(Some(newest))
        })
        .await
        .unwrap();
        let newest = Manifest::newest(&store, week).await.unwrap();
        assert_eq!((asked, newest.number), (2, 3));
        assert_eq!(newest.epochs, [named("1"), named("2")]);
    }

    /// A digit that flips leaves valid JSON, with another sum of samples.
    #[tokio::test]
    async fn every_changed_byte_is_seen() {
        let store = Store::at("memory:///").unwrap();
        let week = Week::of(0);
        let mut first = Manifest { epochs: vec![named("1")], ..Manifest::default() };
        first.files.push(FileEntry { samples: 17, ..FileEntry::default() });
        assert!(first.put_next(&store, week).await.unwrap());
        let whole = store.get(&key(week, 1)).await.unwrap().unwrap();
        for at in 0..whole.len() {
            let mut changed = whole.to_vec();
            changed[at] ^= 1;
            store.replace(&key(week, 1), Bytes::from(changed)).await.unwrap();
            let found = Manifest::newest(&store, week).await;
            assert!(matches!(found, Err(StoreError::Damaged { .. })), "byte {at}: {found:?}");
        }
        store.replace(&key(week, 1), whole).await.unwrap();
        assert_eq!(Manifest::newest(&store, week).await.unwrap().files[0].samples, 17);
    }

    #[tokio::test]
    async fn the_hint_may_be_old_lost_or_wrong() {
        let store = Store::at("memory:///").unwrap();
        let week = Week::of(0);
        for _ in 0..3 {
            let newest = Manifest::newest(&store, week).await.unwrap();
            assert!(newest.put_next(&store, week).await.unwrap());
        }
        for hint in ["1", "3", "0", "x", "99", ""] {
            store.replace(&newest_key(week), Bytes::from(hint)).await.unwrap();
            assert_eq!(Manifest::newest(&store, week).await.unwrap().number, 3, "{hint:?}");
        }
        store.remove(&newest_key(week)).await.unwrap();
        assert_eq!(Manifest::newest(&store, week).await.unwrap().number, 3);
        // Old manifests are removed after a while.
        store.remove(&key(week, 1)).await.unwrap();
        store.replace(&newest_key(week), Bytes::from("1")).await.unwrap();
        assert_eq!(Manifest::newest(&store, week).await.unwrap().number, 3);
        store.replace(&key(week, 4), Bytes::from_static(b"{")).await.unwrap();
        assert!(matches!(Manifest::newest(&store, week).await, Err(StoreError::Damaged { .. })));
    }
}
