//! From the epochs that hosts pushed to facts: samples of procedures by service, build and host.
//!
//! [`ingest`] takes the epochs that no manifest has, some at a time, makes files of all tables from
//! them, and puts the manifest that lists both. Files are named by their content, so they are a
//! pure function of the epochs and the code in the store; an ingester that is killed leaves files
//! that nobody reads. Two may run at once: each epoch is in one manifest's list, once.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use profiledb::DbError;
use store::{EpochName, FileEntry, Manifest, Store, StoreError, Week};
use tables::{Build, Digest, Row, TableError, from_parquet, to_parquet};

mod clock;
mod facts;
mod merged;
mod procedures;
mod raw;

use facts::{EventTables, Gathered, Tables};
pub use facts::{OTHER, TIME};
pub use merged::{Merged, Wanted, merged};
use raw::{Raw, RawEpoch};

/// Epochs whose facts are gathered in memory at a time: about 100 MB for hosts of 7,000 procedures.
const EPOCHS_AT_ONCE: usize = 256;

/// Why epochs could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum IngestError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A table could not be written.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The store has no data for the request.
    #[error("{0}")]
    Nothing(String),
    /// A file of a manifest cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A database could not be read or written.
    #[error(transparent)]
    Database(#[from] DbError),
    /// A file on this machine could not be written.
    #[error("cannot keep epochs here while they are read: {0}; see $TMPDIR")]
    Staging(#[from] std::io::Error),
}

/// The ingested epochs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ingested {
    /// Epochs by week.
    pub epochs: BTreeMap<Week, u64>,
    /// Samples of the event `time` in facts.
    pub samples: u64,
    /// Epochs that are damaged, and why.
    pub refused: Vec<(EpochName, String)>,
    /// Epochs that cannot be read now, and why.
    pub left: Vec<(EpochName, String)>,
    /// Weeks whose names were resolved again, with the builds for which the store has received more
    /// code.
    pub renamed: BTreeMap<Week, usize>,
}

/// Takes all epochs that are new in the store.
///
/// # Errors
/// [`IngestError`]; epochs ingested before the error stay, and the next call continues. A week with
/// a damaged manifest or damaged files does not block the others: its error is returned when the
/// others are done.
pub async fn ingest(store: &Store) -> Result<Ingested, IngestError> {
    let mut raw = Raw::list(store).await?;
    let mut ingested = Ingested::default();
    let mut damaged = None;
    for week in raw.weeks() {
        let done = async {
            take_week(store, &mut raw, week, &mut ingested).await?;
            rename(store, &mut raw, week).await
        };
        match done.await {
            Ok(0) => {}
            Ok(builds) => _ = ingested.renamed.insert(week, builds),
            Err(
                error @ (IngestError::Store(StoreError::Damaged { .. }) | IngestError::File(_)),
            ) => _ = damaged.get_or_insert(error),
            Err(error) => return Err(error),
        }
    }
    damaged.map_or(Ok(ingested), Err)
}

/// Takes the epochs of a week that are new.
async fn take_week(
    store: &Store,
    raw: &mut Raw,
    week: Week,
    ingested: &mut Ingested,
) -> Result<(), IngestError> {
    let mut left: BTreeSet<EpochName> = BTreeSet::new();
    loop {
        let newest = Manifest::newest(store, week).await?;
        let known: BTreeSet<&EpochName> = newest.epochs.iter().collect();
        let refused: BTreeSet<&EpochName> = newest.refused.iter().map(|(name, _)| name).collect();
        // A damaged epoch that was put again since is looked at again.
        let is_refused =
            |epoch: &RawEpoch| refused.contains(&epoch.name) && epoch.put_s <= newest.made_s;
        let new: Vec<RawEpoch> = raw
            .of(week)
            .filter(|epoch| !known.contains(&epoch.name) && !left.contains(&epoch.name))
            .filter(|epoch| !is_refused(epoch))
            .take(EPOCHS_AT_ONCE)
            .cloned()
            .collect();
        if new.is_empty() {
            return Ok(());
        }
        let mut taken = gather(raw, new).await?;
        left.extend(taken.left.iter().map(|(name, _)| name.clone()));
        ingested.left.append(&mut taken.left);
        let (epochs, refused) = (taken.epochs.len() as u64, std::mem::take(&mut taken.refused));
        if epochs == 0 && refused.is_empty() {
            continue;
        }
        left.extend(refused.iter().map(|(name, _)| name.clone()));
        let mut next = newest;
        let told: BTreeSet<&EpochName> =
            taken.epochs.iter().chain(refused.iter().map(|(name, _)| name)).collect();
        next.refused.retain(|(name, _)| !told.contains(name));
        let samples = add(store, week, taken, &mut next).await?;
        next.refused.extend(refused.iter().cloned());
        if next.put_next(store, week).await? {
            *ingested.epochs.entry(week).or_default() += epochs;
            ingested.samples += samples;
            ingested.refused.extend(refused);
        }
    }
}

/// Names a week again if the store has got more of the files of its builds since, and still has all
/// of its epochs. Gives the number of such builds.
async fn rename(store: &Store, raw: &mut Raw, week: Week) -> Result<usize, IngestError> {
    let mut builds = 0;
    let of_week: Vec<RawEpoch> = raw.of(week).cloned().collect();
    Manifest::change::<IngestError>(store, week, async |newest| {
        let mut better = BTreeSet::new();
        for file in newest.files_of(Build::TABLE.name(), "") {
            let rows = read_file::<Build>(store, file).await?.into_iter();
            better.extend(
                rows.filter(|row| raw.quality(&row.text) > row.quality.max(1)).map(|row| row.text),
            );
        }
        let is_of = |epoch: &RawEpoch| newest.epochs.binary_search(&epoch.name).is_ok();
        let epochs: Vec<RawEpoch> = of_week.iter().filter(|epoch| is_of(epoch)).cloned().collect();
        if better.is_empty() || epochs.len() != newest.epochs.len() {
            return Ok(None);
        }
        builds = better.len();
        let mut next = Manifest { number: newest.number, ..Manifest::default() };
        next.refused = newest.refused;
        for some in epochs.chunks(EPOCHS_AT_ONCE) {
            let taken = gather(raw, some.to_vec()).await?;
            if taken.epochs.len() != some.len() {
                builds = 0;
                return Ok(None);
            }
            add(store, week, taken, &mut next).await?;
        }
        Ok(Some(next))
    })
    .await?;
    Ok(builds)
}

/// Gathers the rows of epochs, on all CPUs.
async fn gather(raw: &mut Raw, epochs: Vec<RawEpoch>) -> Result<Taken, IngestError> {
    let root = raw.database(&epochs).await?;
    let work = move || {
        let database = profiledb::Database::open(&root)?;
        let named = procedures::Named::default();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let share = epochs.len().div_ceil(threads).max(1);
        let taken = std::thread::scope(|scope| {
            let (database, named) = (&database, &named);
            let of = |epochs| scope.spawn(move || Taken::of(database, named, epochs));
            let started: Vec<_> = epochs.chunks(share).map(of).collect();
            let mut all = Taken::default();
            for thread in started {
                // A thread that panicked has taken nothing, and its epochs are left.
                all.merge(thread.join().unwrap_or_default());
            }
            all
        });
        Ok::<_, DbError>((taken, epochs))
    };
    let ended = tokio::task::spawn_blocking(work).await;
    let (mut taken, epochs) = ended.map_err(std::io::Error::other)??;
    let is_told = |name: &EpochName| {
        let named = taken.refused.iter().chain(&taken.left).map(|(name, _)| name);
        taken.epochs.iter().chain(named).any(|told| told == name)
    };
    let untold: Vec<_> = epochs.into_iter().filter(|epoch| !is_told(&epoch.name)).collect();
    let why = |epoch: RawEpoch| (epoch.name, "reading it failed".to_owned());
    taken.left.extend(untold.into_iter().map(why));
    Ok(taken)
}

/// Epochs that were read, and the sums of their rows.
#[derive(Default)]
struct Taken {
    gathered: Gathered,
    epochs: Vec<EpochName>,
    /// Epochs that are permanently damaged.
    refused: Vec<(EpochName, String)>,
    /// Epochs that may be readable later, or by another release.
    left: Vec<(EpochName, String)>,
}

impl Taken {
    fn of(database: &profiledb::Database, named: &procedures::Named, epochs: &[RawEpoch]) -> Self {
        let mut taken = Self::default();
        for epoch in epochs {
            match taken.gathered.add(database, named, epoch) {
                Ok(()) => taken.epochs.push(epoch.name.clone()),
                Err(
                    error @ (DbError::Io { .. }
                    | DbError::NewerFormat { .. }
                    | DbError::NoSuchEpoch { .. }),
                ) => {
                    taken.left.push((epoch.name.clone(), error.to_string()));
                }
                Err(error) => taken.refused.push((epoch.name.clone(), error.to_string())),
            }
        }
        taken
    }

    fn merge(&mut self, other: Self) {
        self.gathered.merge(other.gathered);
        self.epochs.extend(other.epochs);
        self.refused.extend(other.refused);
        self.left.extend(other.left);
    }
}

/// Puts the tables of epochs, and adds them to the manifest.
async fn add(
    store: &Store,
    week: Week,
    taken: Taken,
    next: &mut Manifest,
) -> Result<u64, IngestError> {
    let Tables { events, names, services, builds } = taken.gathered.into_tables();
    let mut files = Files { store, week, entries: Vec::new() };
    let mut samples = 0;
    for EventTables { event, facts, loads, epochs, missed } in &events {
        let sum = |of: &mut dyn Iterator<Item = i64>| of.fold(0_i64, i64::saturating_add);
        let of_facts = sum(&mut facts.iter().map(|fact| fact.samples));
        files.put(event, facts, of_facts).await?;
        files.put(event, loads, sum(&mut loads.iter().map(|load| load.samples))).await?;
        files.put(event, epochs, 0).await?;
        files.put(event, missed, sum(&mut missed.iter().map(|missed| missed.samples))).await?;
        if event == TIME {
            samples = u64::try_from(of_facts).unwrap_or_default();
        }
    }
    files.put("", &names, 0).await?;
    files.put("", &services, 0).await?;
    files.put("", &builds, 0).await?;
    next.files.extend(files.entries);
    next.epochs.extend(taken.epochs);
    Ok(samples)
}

/// A file that a manifest lists cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{key} {why}")]
pub struct FileError {
    /// Its key.
    key: String,
    /// The error, and the next step.
    why: String,
}

impl FileError {
    /// A file differs from the one that was written: its week must be rebuilt.
    fn lost(key: &str, what: &str) -> Self {
        let week = key.split('/').nth(1).unwrap_or_default();
        let why = format!(
            "{what}; remove weeks/{week}, then ingest and close again (its raw epochs must be there)"
        );
        Self { key: key.to_owned(), why }
    }
}

/// The bytes of a file that a manifest lists.
///
/// # Errors
/// [`IngestError::File`] where they are not those that the file's name says, or of the store.
pub async fn file_bytes(store: &Store, file: &FileEntry) -> Result<Bytes, IngestError> {
    let bytes = store.get(&file.key).await?;
    let bytes = bytes.ok_or_else(|| FileError::lost(&file.key, "is gone"))?;
    if !file.key.ends_with(&format!("-{}.parquet", digest(&bytes))) {
        return Err(FileError::lost(&file.key, "is damaged").into());
    }
    Ok(bytes)
}

/// The rows of a file that a manifest lists.
///
/// # Errors
/// Returns the errors of [`file_bytes`], and [`IngestError::File`] for a file of another release.
pub async fn read_file<R: Row>(store: &Store, file: &FileEntry) -> Result<Vec<R>, IngestError> {
    let rows = from_parquet(file_bytes(store, file).await?);
    // Its bytes are those that were put.
    let why = |error| format!("cannot be read: {error}; use the newest dcpi-fleet");
    Ok(rows.map_err(|error| FileError { key: file.key.clone(), why: why(error) })?)
}

fn digest(file: &[u8]) -> String {
    let mut digest = Digest::default();
    digest.add(file);
    digest.hex()
}

/// Files of a week, named by their content.
pub struct Files<'a> {
    /// The store.
    pub store: &'a Store,
    /// The week.
    pub week: Week,
    /// The files that were put.
    pub entries: Vec<FileEntry>,
}

impl Files<'_> {
    /// Puts the rows of a table as a file; none where there are no rows. `samples` is the sum of
    /// the column of that name.
    ///
    /// # Errors
    /// [`IngestError`].
    pub async fn put<R: Row>(
        &mut self,
        event: &str,
        rows: &[R],
        samples: i64,
    ) -> Result<(), IngestError> {
        if rows.is_empty() {
            return Ok(());
        }
        let file = to_parquet(rows)?;
        let entry = FileEntry {
            table: R::TABLE.name().to_owned(),
            event: event.to_owned(),
            rows: rows.len() as u64,
            samples: u64::try_from(samples).unwrap_or_default(),
            ..FileEntry::default()
        };
        self.put_file(entry, file).await
    }

    /// Puts a file, and adds its entry with key and length, which the given entry does not have.
    ///
    /// # Errors
    /// [`IngestError`].
    pub async fn put_file(&mut self, entry: FileEntry, file: Bytes) -> Result<(), IngestError> {
        let FileEntry { table, event, .. } = &entry;
        let dash = if event.is_empty() { "" } else { "-" };
        let key = format!("weeks/{}/{table}{dash}{event}-{}.parquet", self.week, digest(&file));
        let bytes = file.len() as u64;
        // A file of that name has this content.
        self.store.create(&key, file).await?;
        self.entries.push(FileEntry { key, bytes, ..entry });
        Ok(())
    }
}
