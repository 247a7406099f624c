//! Closing a week.

use std::collections::{BTreeSet, HashMap, HashSet};

use engine::{Engine, EngineError};
use ingest::{Files, IngestError, TIME, file_bytes};
use review::Watched;
use store::{FileEntry, Manifest, Store, StoreError, Week};
use tables::{
    Fact, HostWeek, ImageWeek, Load, Name, Pair, PairSum, Rollup, Skew, Table, TableError,
};

use crate::changes::Comparisons;
use crate::compact::facts as compacted_facts;
use crate::dimensions::{Dimensions, OfEvent, rows};
use crate::fellows::{Fellows, PROCEDURES};
use crate::sums::{Heads, images, largest, skews};
use crate::{builds, statement};

/// How to close.
#[derive(Clone, Debug)]
pub struct Closing {
    /// The engine: `local`, or `df://HOST:PORT`.
    pub engine: String,
    /// Memory of an engine in this process for sorting and grouping, in bytes.
    pub memory_bytes: usize,
    /// Procedures that reviews can show.
    pub heads: usize,
    /// Close a week that is closed already.
    pub again: bool,
    /// Services, images and procedures whose changes are reported even if they may be due to
    /// chance: the subjects of findings.
    pub watched: Vec<Watched>,
}

impl Default for Closing {
    fn default() -> Self {
        Self {
            engine: "local".to_owned(),
            memory_bytes: 1 << 30,
            heads: 20_000,
            again: false,
            watched: Vec::new(),
        }
    }
}

/// A week that is closed.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Closed {
    /// Epochs.
    pub epochs: usize,
    /// Rows of facts.
    pub facts: u64,
    /// Rows that changed, and that not by chance.
    pub changes: usize,
    /// It was closed already.
    pub was_closed: bool,
}

/// Why a week could not be closed.
#[derive(Debug, thiserror::Error)]
pub enum CloseError {
    /// There is nothing of the week.
    #[error("the store has nothing of {0}; dcpi-fleet ingest takes what hosts have pushed")]
    Nothing(Week),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Files could not be written.
    #[error(transparent)]
    Ingest(#[from] IngestError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A table is damaged.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The builds cannot be compared.
    #[error("{0}")]
    Builds(String),
    /// Facts are not those that the manifest lists.
    #[error("facts have {found} samples, and the manifest lists {listed}; please report this")]
    Sums {
        /// Samples by the manifest.
        listed: u64,
        /// Samples in the files.
        found: u64,
    },
    /// The week is not closed, or has epochs that came since.
    #[error("{0} is not closed with all of its epochs; dcpi-fleet close --week {0}")]
    NotClosed(Week),
    /// The settings for prices, owners and findings cannot be read.
    #[error(transparent)]
    Settings(#[from] review::SettingsError),
}

/// Closes a week: makes its facts one file for each service, and sums and changes of them. Epochs
/// that are ingested later open it again.
///
/// # Errors
/// [`CloseError`]; the week is as it was then.
pub async fn close(store: &Store, week: Week, closing: &Closing) -> Result<Closed, CloseError> {
    let mut closed = Closed::default();
    let engine = Engine::at(&closing.engine, store, closing.memory_bytes)?;
    let before = Manifest::newest(store, week.before(1)).await?;
    Manifest::change::<CloseError>(store, week, async |newest| {
        if newest.epochs.is_empty() {
            return Err(CloseError::Nothing(week));
        }
        closed = Closed { epochs: newest.epochs.len(), ..Closed::default() };
        if newest.is_closed() && !closing.again {
            closed.was_closed = true;
            return Ok(None);
        }
        let files = Files { store, week, entries: Vec::new() };
        let mut work = Work { engine: &engine, closing, files, closed };
        check_facts(store, &newest).await?;
        check_facts(store, &before).await?;
        let mut next = work.close(&newest, &before).await?;
        closed = work.closed;
        next.number = newest.number;
        Ok(Some(next))
    })
    .await?;
    Ok(closed)
}

/// Makes the files of a week fewer: the facts of each service one file, each other table one. The
/// sums of a week that was closed go, until it is closed again.
///
/// # Errors
/// Returns the errors of [`close`].
pub async fn compact(store: &Store, week: Week, closing: &Closing) -> Result<Closed, CloseError> {
    let mut closed = Closed::default();
    let engine = Engine::at(&closing.engine, store, closing.memory_bytes)?;
    Manifest::change::<CloseError>(store, week, async |newest| {
        if newest.epochs.is_empty() {
            return Err(CloseError::Nothing(week));
        }
        let files = Files { store, week, entries: Vec::new() };
        let mut work = Work { engine: &engine, closing, files, closed: Closed::default() };
        check_facts(store, &newest).await?;
        let facts = work.all_facts(&newest).await?;
        closed = Closed { epochs: newest.epochs.len(), ..work.closed };
        let mut files = work.files.entries;
        files.extend(facts);
        Ok(Some(Manifest { files, closed_epochs: 0, ..newest }))
    })
    .await?;
    Ok(closed)
}

/// Refuses facts that are not those that were put. An engine would not see a changed byte: pages of
/// Parquet have no checksums here.
async fn check_facts(store: &Store, manifest: &Manifest) -> Result<(), CloseError> {
    for file in manifest.files.iter().filter(|file| file.table == Table::Facts.name()) {
        file_bytes(store, file).await?;
    }
    Ok(())
}

/// An event of a week, compacted.
struct Compacted {
    of: OfEvent,
    hosts: Vec<HostWeek>,
    facts: Vec<FileEntry>,
}

/// A week being closed.
struct Work<'a> {
    engine: &'a Engine,
    closing: &'a Closing,
    files: Files<'a>,
    closed: Closed,
}

/// The loads of each service, in order.
fn by_service(loads: &[Load]) -> impl Iterator<Item = &[Load]> {
    loads.chunk_by(|a, b| a.service == b.service)
}

impl Work<'_> {
    /// The next manifest.
    async fn close(
        &mut self,
        newest: &Manifest,
        before: &Manifest,
    ) -> Result<Manifest, CloseError> {
        let dimensions = self.dimensions(newest).await?;
        let mut facts = Vec::new();
        for event in newest.events() {
            let compacted = self.compact(newest, &event, &dimensions).await?;
            self.sum(&event, &compacted, &dimensions, before).await?;
            facts.extend(compacted.facts);
        }
        let mut files = std::mem::take(&mut self.files.entries);
        files.extend(facts);
        let closed_epochs = newest.epochs.len() as u64;
        Ok(Manifest { files, closed_epochs, ..newest.clone() })
    }

    /// All but facts, and the facts of each service, each in one file.
    async fn all_facts(&mut self, newest: &Manifest) -> Result<Vec<FileEntry>, CloseError> {
        let dimensions = self.dimensions(newest).await?;
        let mut facts = Vec::new();
        for event in newest.events() {
            facts.extend(self.compact(newest, &event, &dimensions).await?.facts);
        }
        Ok(facts)
    }

    /// Names, services and builds, in one file each.
    async fn dimensions(&mut self, newest: &Manifest) -> Result<Dimensions, CloseError> {
        let dimensions = Dimensions::read(self.files.store, newest).await?;
        let (names, services, builds) = dimensions.to_rows();
        self.files.put("", &names, 0).await?;
        self.files.put("", &services, 0).await?;
        self.files.put("", &builds, 0).await?;
        Ok(dimensions)
    }

    /// The facts of an event, in one file for each service, and all else in one.
    async fn compact(
        &mut self,
        newest: &Manifest,
        event: &str,
        dimensions: &Dimensions,
    ) -> Result<Compacted, CloseError> {
        let of = OfEvent::read(self.files.store, newest, event).await?;
        let services: BTreeSet<i64> = of.loads.iter().map(|load| load.service).collect();
        let known = services.into_iter().filter(|of| dimensions.services.contains_key(of));
        let facts = compacted_facts(self.engine, newest, event, known, &mut self.files).await?;
        let samples = of.loads.iter().map(|load| load.samples).sum();
        self.files.put(event, &of.loads, samples).await?;
        self.files.put(event, &of.epochs, 0).await?;
        let samples = of.missed.iter().map(|missed| missed.samples).sum();
        self.files.put(event, &of.missed, samples).await?;
        self.closed.facts += facts.iter().map(|file| file.rows).sum::<u64>();
        Ok(Compacted { hosts: of.hosts(), of, facts })
    }

    /// Sums and changes of an event, service after service.
    async fn sum(
        &mut self,
        event: &str,
        compacted: &Compacted,
        dimensions: &Dimensions,
        before: &Manifest,
    ) -> Result<(), CloseError> {
        let Compacted { of, hosts, facts } = compacted;
        self.files.put(event, hosts, 0).await?;
        let machines: HashMap<i64, &HostWeek> =
            hosts.iter().map(|host| (host.host, host)).collect();
        let names: HashMap<i64, String> =
            hosts.iter().map(|host| (host.host, host.name.clone())).collect();
        let of_host_weeks = self.files.entries.iter();
        let of_host_weeks: Vec<&FileEntry> = of_host_weeks
            .filter(|file| file.table == Table::HostWeeks.name() && file.event == event)
            .collect();
        self.engine.register(Table::HostWeeks, "host_weeks", of_host_weeks)?;
        let is_time = event == TIME;
        let earlier = Earlier::read(self.files.store, before, event).await?;
        let mut heads = Heads::default();
        let mut fellows = Fellows::default();
        let mut compared = Comparisons::default();
        let (mut image_weeks, mut skewed): (Vec<ImageWeek>, Vec<Skew>) = Default::default();
        for loads in by_service(&of.loads) {
            let service = loads.first().map_or(0, |load| load.service);
            let of_service = facts.iter().filter(|file| file.service == Some(service));
            self.engine.register(Table::Facts, "facts", of_service)?;
            image_weeks.extend(images(loads, &machines, dimensions));
            let rollups = self.engine.rows::<Rollup>(&statement("rollups", service)).await?;
            let samples = rollups.iter().map(|row| row.samples).sum();
            self.files.put(event, &rollups, samples).await?;
            let found = builds::of_builds(loads, &dimensions.builds);
            // Where each image has one build, hosts count once in rollups as well.
            let head = match found.last_on.is_empty() {
                true => rollups,
                false => self.engine.rows::<Rollup>(&statement("heads", service)).await?,
            };
            if is_time {
                let most = largest(&head, PROCEDURES);
                let list = most.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                let sql = statement("fellows", service).replace(":procedures", &list);
                let on_hosts = self.engine.rows::<Fact>(&sql).await?;
                fellows.add(loads, &on_hosts, dimensions, &names);
                skewed.extend(skews(loads, &found, dimensions));
                self.compare(event, loads, &found, &earlier, &mut compared).await?;
            }
            heads.add(head, self.closing.heads);
        }
        self.files.put(event, &heads.finish(self.closing.heads, dimensions), 0).await?;
        self.files.put(event, &image_weeks, 0).await?;
        if is_time {
            let (changes, untested) =
                compared.judge(dimensions, &earlier.procedures, &self.closing.watched);
            for skew in &mut skewed {
                let of = (skew.service.clone(), skew.image.clone(), skew.build.clone());
                if let Some(why) = untested.get(&of) {
                    skew.untested = why.word().to_owned();
                }
            }
            self.closed.changes = changes.iter().filter(|change| change.marked > 0).count();
            self.files.put(event, &changes, 0).await?;
            self.files.put(event, &fellows.judge(), 0).await?;
            self.files.put(event, &skewed, 0).await?;
        }
        Ok(())
    }

    /// Compares the builds of a service, and the service with the week before.
    async fn compare(
        &mut self,
        event: &str,
        loads: &[Load],
        found: &builds::OfBuilds,
        earlier: &Earlier,
        compared: &mut Comparisons,
    ) -> Result<(), CloseError> {
        let service = loads.first().map_or(0, |load| load.service);
        let empty = Vec::new();
        let before = earlier.loads.get(&service).unwrap_or(&empty);
        let weeks = builds::of_weeks(before, loads);
        let pairs: Vec<Pair> = weeks.iter().chain(&found.pairs).cloned().collect();
        if pairs.is_empty() {
            return Ok(());
        }
        let at = self.files.entries.len();
        self.files.put(event, &pairs, 0).await?;
        self.engine.register(Table::Pairs, "pairs", self.files.entries.iter().skip(at))?;
        if !found.pairs.is_empty() {
            let sums = self.engine.rows::<PairSum>(&statement("builds", service)).await?;
            compared.add_builds(loads, found, &sums);
        }
        if !weeks.is_empty() {
            let facts = earlier.facts.iter();
            let of_service = facts.filter(|file| file.service.is_none_or(|of| of == service));
            self.engine.register(Table::Facts, "facts_before", of_service)?;
            let sums = self.engine.rows::<PairSum>(&statement("movers", service)).await?;
            compared.add_weeks(loads, &weeks, &sums);
        }
        Ok(())
    }
}

/// The week before.
struct Earlier {
    loads: HashMap<i64, Vec<Load>>,
    /// Procedures that had samples.
    procedures: HashSet<i64>,
    facts: Vec<FileEntry>,
}

impl Earlier {
    async fn read(store: &Store, before: &Manifest, event: &str) -> Result<Self, CloseError> {
        let mut loads: HashMap<i64, Vec<Load>> = HashMap::new();
        rows(store, before, event, |load: Load| {
            loads.entry(load.service).or_default().push(load);
        })
        .await?;
        let mut procedures = HashSet::new();
        rows(store, before, "", |name: Name| {
            procedures.insert(name.procedure);
        })
        .await?;
        let facts = before.files_of(Table::Facts.name(), event).cloned().collect();
        Ok(Self { loads, procedures, facts })
    }
}
