//! From the raw epochs of a service to one epoch of it, which the commands of `dcpi` read.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::Path;

use image::{ImageId, ImageKind};
use model::{Counts, Frame, Ledgers, MeasuredSkid, Stacks};
use profiledb::{
    Database, Delta, Epoch, EpochMeta, EpochStart, EventMeta, ImageRecord, ProfileKey, Scope,
    StacksKey, Symbol, Writer,
};
use store::{Manifest, Store, Week};
use tables::{EpochRow, Load, Row, id};

use crate::facts::{is_apart, service_name};
use crate::raw::{Raw, RawEpoch};
use crate::{EPOCHS_AT_ONCE, IngestError, TIME, read_file};

/// Most periods of an event in an epoch (`profiledb/FORMAT.md`); samples of further ones are left
/// out, those of the hosts that come last.
const PERIODS_MAX: usize = 64;

/// The requested part of a week.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The week.
    pub week: Week,
    /// The service.
    pub service: String,
    /// The image's name: only hosts that ran it.
    pub image: Option<String>,
    /// The build of that image, the first characters of its id: only hosts that ran it.
    pub build: Option<String>,
    /// The type of machine; None: the one of the most samples.
    pub machine: Option<String>,
    /// The most hosts, those of the most samples.
    pub hosts: usize,
}

/// The merged data.
#[derive(Clone, Debug, Default)]
pub struct Merged {
    /// The database's host: `fleet-` and the service.
    pub host: String,
    /// Epochs.
    pub epochs: usize,
    /// Hosts.
    pub hosts: usize,
    /// The machines.
    pub machine: String,
    /// Samples of all events.
    pub samples: u64,
    /// Samples left out, since their epochs had further periods.
    pub left_out: u64,
    /// The builds of the image that was wanted, with their samples, the most first.
    pub builds: Vec<(String, u64)>,
}

/// Merges the raw epochs of a service in a week into one epoch, in a database that is made in an
/// empty or new directory.
///
/// # Errors
/// [`IngestError::Nothing`] if no requested data is left; also errors of the store and of the
/// database.
pub async fn merged(
    store: &Store,
    wanted: &Wanted,
    directory: &Path,
) -> Result<Merged, IngestError> {
    let manifest = Manifest::newest(store, wanted.week).await?;
    let hosts = hosts(store, &manifest, wanted).await?;
    let mut raw = Raw::list(store).await?;
    let of: Vec<RawEpoch> = raw
        .of(wanted.week)
        .filter(|epoch| hosts.contains_key(&id(&[&epoch.name.host])))
        .cloned()
        .collect();
    if of.is_empty() {
        return Err(IngestError::Nothing(format!(
            "the store has no raw epochs of {} in {} with such an image: they are removed after \
             some weeks (dcpi-fleet retain), and simulated fleets have none",
            wanted.service, wanted.week
        )));
    }
    // Makes the database.
    Writer::open(directory, &host_name(&wanted.service))?;
    let mut sum = Sum { service: wanted.service.clone(), ..Sum::default() };
    for some in of.chunks(EPOCHS_AT_ONCE) {
        let root = raw.database(some).await?;
        let database = Database::open(&root)?;
        for epoch in some {
            let Ok(epoch) = database.epoch(&epoch.name.host, &epoch.id) else { continue };
            sum.add(&epoch)?;
        }
        sum.copy_code(&root, directory)?;
    }
    sum.write(wanted, directory)
}

/// The hosts that are wanted, with their samples.
async fn hosts(
    store: &Store,
    manifest: &Manifest,
    wanted: &Wanted,
) -> Result<HashMap<i64, i64>, IngestError> {
    let service = id(&[&wanted.service]);
    let image = wanted.image.as_deref().map(|image| id(&[image]));
    let builds = builds(store, manifest, wanted).await?;
    let mut samples: HashMap<i64, i64> = HashMap::new();
    for file in manifest.files_of(Load::TABLE.name(), TIME) {
        for load in read_file::<Load>(store, file).await? {
            let is_wanted = load.service == service
                && image.is_none_or(|image| image == load.image)
                && builds.as_ref().is_none_or(|builds| builds.contains(&load.build));
            if is_wanted {
                *samples.entry(load.host).or_default() += load.samples;
            }
        }
    }
    let mut machines: HashMap<i64, String> = HashMap::new();
    for file in manifest.files_of(EpochRow::TABLE.name(), TIME) {
        let epochs = read_file::<EpochRow>(store, file).await?;
        machines.extend(epochs.into_iter().map(|row| (row.host, row.machine)));
    }
    let mut by_machine: BTreeMap<&str, i64> = BTreeMap::new();
    for (host, samples) in &samples {
        *by_machine.entry(machines.get(host).map_or("", String::as_str)).or_default() += samples;
    }
    let most = by_machine.iter().max_by_key(|(_, samples)| **samples);
    let machine = wanted.machine.as_deref().or(most.map(|(machine, _)| *machine)).unwrap_or("");
    let mut hosts: Vec<(i64, i64)> = samples
        .into_iter()
        .filter(|(host, _)| machines.get(host).map_or("", String::as_str) == machine)
        .collect();
    hosts.sort_by_key(|(host, samples)| (-samples, *host));
    hosts.truncate(wanted.hosts);
    Ok(hosts.into_iter().collect())
}

/// The numbers of the builds that are wanted; None: all.
async fn builds(
    store: &Store,
    manifest: &Manifest,
    wanted: &Wanted,
) -> Result<Option<BTreeSet<i64>>, IngestError> {
    let (Some(image), Some(text)) = (&wanted.image, &wanted.build) else { return Ok(None) };
    let mut found = BTreeSet::new();
    for file in manifest.files_of(tables::Build::TABLE.name(), "") {
        let rows = read_file::<tables::Build>(store, file).await?.into_iter();
        found.extend(
            rows.filter(|row| row.image_name == *image && row.text.starts_with(text.as_str()))
                .map(|row| row.build),
        );
    }
    Ok(Some(found))
}

/// Samples of a service, added up.
#[derive(Default)]
struct Sum {
    service: String,
    metas: Vec<EpochMeta>,
    profiles: BTreeMap<ProfileKey, Counts>,
    stacks: BTreeMap<StacksKey, Stacks>,
    images: BTreeMap<ImageId, ImageRecord>,
    symbols: BTreeMap<ImageId, BTreeMap<(u64, u64), Symbol>>,
    ledgers: Ledgers,
    left_out: u64,
}

impl Sum {
    fn add(&mut self, epoch: &Epoch) -> Result<(), profiledb::DbError> {
        let records = epoch.images()?;
        let meta = epoch.meta();
        let kind = |image: &ImageId| records.get(image).map(|record| record.kind);
        for key in epoch.keys()? {
            let kind = kind(&key.image);
            if kind.is_some_and(is_apart) || service_name(&key.scope, kind) != self.service {
                continue;
            }
            let counts = epoch.counts(&key)?;
            let into = ProfileKey { scope: Scope::default(), ..key.clone() };
            if let Some(period) = key.measure.period() {
                let known = self.ledgers.of(key.name()).map(|(period, _)| period);
                let known: Vec<u64> = known.collect();
                if !known.contains(&period) && known.len() >= PERIODS_MAX {
                    self.left_out += counts.total();
                    continue;
                }
                let ledger = self.ledgers.entry(key.name(), period);
                ledger.taken += counts.total();
                ledger.merged += counts.total();
            }
            self.images.extend(records.get_key_value(&key.image).map(|(id, of)| (*id, of.clone())));
            self.add_symbols(epoch, &key.image)?;
            self.profiles
                .entry(into)
                .and_modify(|sum| {
                    let _ = sum.merge(&counts);
                })
                .or_insert(counts);
        }
        for key in epoch.stacks_keys() {
            if service_name(&key.scope, Some(ImageKind::File)) == self.service {
                let stacks = epoch.stacks(&key)?;
                self.add_stacks(epoch, &records, &key.event, &stacks)?;
            }
        }
        self.metas.push(meta.clone());
        Ok(())
    }

    fn add_symbols(&mut self, epoch: &Epoch, image: &ImageId) -> Result<(), profiledb::DbError> {
        let known = self.symbols.entry(*image).or_default();
        for symbol in epoch.symbols(image)? {
            known.insert((symbol.start, symbol.end), symbol);
        }
        Ok(())
    }

    fn add_stacks(
        &mut self,
        epoch: &Epoch,
        records: &BTreeMap<ImageId, ImageRecord>,
        event: &str,
        stacks: &Stacks,
    ) -> Result<(), profiledb::DbError> {
        for frame in stacks.distinct_frames() {
            if let Frame::Code(image, _) = frame
                && let Some(record) = records.get(image)
                && self.images.insert(*image, record.clone()).is_none()
            {
                self.add_symbols(epoch, image)?;
            }
        }
        let key = StacksKey { event: event.to_owned(), scope: Scope::default() };
        self.stacks.entry(key).or_default().merge(stacks);
        Ok(())
    }

    /// Copies the code of the images that were found to where all hosts of a database have it in
    /// common.
    fn copy_code(&self, root: &Path, directory: &Path) -> Result<(), IngestError> {
        let (from, to) = (root.join("code"), directory.join("code"));
        let Ok(entries) = fs::read_dir(&from) else { return Ok(()) };
        for entry in entries {
            let name = entry?.file_name();
            let image = name.to_str().and_then(|name| name.split('.').next());
            let image = image.and_then(|image| image.parse::<ImageId>().ok());
            if image.is_some_and(|image| self.images.contains_key(&image)) {
                fs::create_dir_all(&to)?;
                fs::copy(from.join(&name), to.join(&name))?;
            }
        }
        Ok(())
    }

    fn write(self, wanted: &Wanted, directory: &Path) -> Result<Merged, IngestError> {
        let host = host_name(&self.service);
        let Some(first) = self.metas.iter().min_by_key(|meta| meta.started_unix_s) else {
            return Err(IngestError::Nothing("the epochs cannot be read".to_owned()));
        };
        let mut events: BTreeMap<&str, &EventMeta> = BTreeMap::new();
        for event in self.metas.iter().flat_map(|meta| &meta.events) {
            events.entry(&event.name).or_insert(event);
        }
        let end = self.metas.iter().map(|meta| meta.updated_unix_s).max().unwrap_or_default();
        let start = EpochStart {
            label: None,
            machine: first.machine.clone(),
            events: events.into_values().cloned().collect(),
            now_unix_s: first.started_unix_s,
            writer_version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let mut facts = first.facts.clone();
        facts.retain_agreed(self.metas.iter().map(|meta| &meta.facts));
        // Hosts that measured the same skid did so with samples of their own.
        let mut skids = self.metas.iter().filter_map(|meta| meta.facts.get::<MeasuredSkid>());
        if let Some(skid) = skids.next()
            && skids.all(|of| (&of.event, of.instructions) == (&skid.event, skid.instructions))
        {
            facts.state(&skid);
        }
        let samples = self.ledgers.iter().map(|(_, _, ledger)| ledger.merged).sum();
        let hosts: BTreeSet<&str> = self.metas.iter().map(|meta| meta.host.as_str()).collect();
        let merged = Merged {
            host: host.clone(),
            epochs: self.metas.len(),
            hosts: hosts.len(),
            machine: format!("{} {}", first.machine.arch, first.machine.cpu_model),
            samples,
            left_out: self.left_out,
            builds: self.builds(wanted.image.as_deref()),
        };
        let listed = |(image, of): (ImageId, BTreeMap<(u64, u64), Symbol>)| {
            (image, of.into_values().collect())
        };
        let delta = Delta {
            profiles: self.profiles,
            stacks: self.stacks,
            images: self.images,
            symbols: self.symbols.into_iter().map(listed).collect(),
            ledgers: self.ledgers,
            facts,
            now_unix_s: end,
            ..Delta::default()
        };
        let mut writer = Writer::open(directory, &host)?;
        writer.begin(start, true)?;
        writer.merge(&delta)?;
        writer.seal(end)?;
        Ok(merged)
    }

    /// The builds of an image with their samples of all events, the most first.
    fn builds(&self, image: Option<&str>) -> Vec<(String, u64)> {
        let mut samples: BTreeMap<ImageId, u64> = BTreeMap::new();
        for (key, counts) in &self.profiles {
            let record = self.images.get(&key.image);
            if key.measure.period().is_some()
                && record.is_some_and(|record| Some(record.name.as_str()) == image)
            {
                *samples.entry(key.image).or_default() += counts.total();
            }
        }
        let mut builds: Vec<(String, u64)> =
            samples.into_iter().map(|(image, samples)| (image.to_string(), samples)).collect();
        builds.sort_by(|(a, of_a), (b, of_b)| of_b.cmp(of_a).then(a.cmp(b)));
        builds
    }
}

/// A name of a host for a service: letters, digits, dots and dashes of its name.
fn host_name(service: &str) -> String {
    let plain = |character: char| match character {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '-' => character,
        _ => '-',
    };
    let name: String = service.chars().map(plain).take(200).collect();
    format!("fleet-{name}")
}
