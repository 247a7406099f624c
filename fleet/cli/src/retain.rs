//! `dcpi-fleet retain`: removes expired data.

use std::collections::{BTreeMap, BTreeSet};

use clap::Args;
use ingest::read_file;
use store::{Key, Manifest, Store, StoreError, Week};
use tables::{Build, Row as _};

use crate::out::say;
use crate::store_option::{InStore, now_s};

/// Age above which an unlisted file is removed. No writer takes this long to list a file in a
/// manifest.
const ORPHAN_S: i64 = 7 * 86_400;
/// Manifests of a week that stay beside the newest: readers may be reading them.
const MANIFESTS: u64 = 3;
/// Weeks that are looked at, from this one back.
const WEEKS: i64 = 260;
/// Tables that are removed with facts; the others are what reviews read.
const OF_FACTS: [&str; 4] = ["facts", "loads", "pairs", "rollups"];

/// `dcpi-fleet retain`.
#[derive(Args, Debug)]
#[command(after_help = "\
Raw epochs are what drill reads, and what a week is named anew from; facts are what sql and \
compare read, and the next week is compared with. What reviews read stays. Raw epochs that were \
never ingested stay as well. Nothing that a running command writes is removed.")]
pub struct Retain {
    #[command(flatten)]
    store: InStore,
    /// Keep raw epochs of so many weeks, with this one
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u8).range(1..))]
    raw_weeks: u8,
    /// Keep facts of so many weeks, with this one
    #[arg(long, value_name = "N", default_value_t = 26,
          value_parser = clap::value_parser!(u8).range(2..))]
    facts_weeks: u8,
    /// Say what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
}

/// The removed objects of one kind.
#[derive(Clone, Debug, Default)]
struct Sum {
    objects: u64,
    bytes: u64,
}

/// # Errors
/// One line, with the next step.
pub async fn run(args: &Retain) -> Result<bool, String> {
    let store = args.store.open()?;
    let work = Work { store: &store, args, now_s: now_s(), removed: BTreeMap::new() };
    let removed = work.run().await.map_err(|error| error.to_string())?;
    let would = if args.dry_run { "would remove" } else { "removed" };
    for (kind, Sum { objects, bytes }) in &removed {
        say!("{would} {objects} {kind}, {bytes} bytes");
    }
    if removed.is_empty() {
        say!("nothing to remove");
    }
    Ok(true)
}

struct Work<'a> {
    store: &'a Store,
    args: &'a Retain,
    now_s: i64,
    removed: BTreeMap<&'static str, Sum>,
}

impl Work<'_> {
    async fn run(mut self) -> Result<BTreeMap<&'static str, Sum>, StoreError> {
        let this_week = Week::of(self.now_s);
        let oldest_raw = this_week.before(i64::from(self.args.raw_weeks) - 1);
        let oldest_facts = this_week.before(i64::from(self.args.facts_weeks) - 1);
        let mut ingested = BTreeSet::new();
        let mut images = BTreeSet::new();
        for before in 0..WEEKS {
            let week = this_week.before(before);
            let mut manifest = match Manifest::newest(self.store, week).await {
                // Nothing of it is removed.
                Err(StoreError::Damaged { .. }) => continue,
                manifest => manifest?,
            };
            if manifest.number == 0 {
                continue;
            }
            if week < oldest_facts && !self.args.dry_run {
                manifest = self.without_facts(week).await?;
            }
            if week >= oldest_raw {
                self.images(&manifest, &mut images).await?;
            } else {
                let refused = manifest.refused.iter().map(|(name, _)| name);
                let names = manifest.epochs.iter().chain(refused);
                ingested.extend(names.map(|name| (name.host.clone(), name.epoch.clone())));
            }
            self.orphans(week, &manifest).await?;
        }
        self.raw(oldest_raw, &ingested).await?;
        self.code(oldest_raw, &images).await?;
        Ok(self.removed)
    }

    /// The week without its facts.
    async fn without_facts(&self, week: Week) -> Result<Manifest, StoreError> {
        let is_of_facts = |table: &str| OF_FACTS.contains(&table);
        Manifest::change::<StoreError>(self.store, week, async |mut newest| {
            let before = newest.files.len();
            newest.files.retain(|file| !is_of_facts(&file.table));
            Ok((newest.files.len() < before).then_some(newest))
        })
        .await?;
        Manifest::newest(self.store, week).await
    }

    /// Adds the images of a week whose epochs stay.
    async fn images(
        &self,
        manifest: &Manifest,
        images: &mut BTreeSet<String>,
    ) -> Result<(), StoreError> {
        for file in manifest.files_of(Build::TABLE.name(), "") {
            let builds = read_file::<Build>(self.store, file).await.map_err(|error| {
                StoreError::Damaged { key: file.key.clone(), why: error.to_string() }
            })?;
            images.extend(builds.into_iter().map(|build| build.text));
        }
        Ok(())
    }

    /// Removes files of a week that its manifest does not list, and old manifests.
    async fn orphans(&mut self, week: Week, manifest: &Manifest) -> Result<(), StoreError> {
        let listed: BTreeSet<&str> = manifest.files.iter().map(|file| file.key.as_str()).collect();
        for found in self.store.list(&format!("weeks/{week}")).await? {
            let is_old = found.put_s < self.now_s - ORPHAN_S;
            let number = found.key.rsplit_once("/manifest-").map(|(_, number)| number);
            let is_gone = match number {
                Some(number) => {
                    number.parse::<u64>().is_ok_and(|number| number + MANIFESTS < manifest.number)
                }
                None => found.key.ends_with(".parquet") && !listed.contains(found.key.as_str()),
            };
            if is_old && is_gone {
                self.remove("files that no manifest needs", &found.key, found.bytes).await?;
            }
        }
        Ok(())
    }

    async fn raw(
        &mut self,
        oldest: Week,
        ingested: &BTreeSet<(String, String)>,
    ) -> Result<(), StoreError> {
        for found in self.store.list("raw/hosts").await? {
            let Some(Key::Epoch(place)) = Key::parse(&found.key) else { continue };
            let mut parts = place.split('/').skip(1);
            let (Some(host), Some(epoch)) = (parts.next(), parts.next()) else { continue };
            let Ok(id) = epoch.parse::<profiledb::EpochId>() else { continue };
            let week = Week::of(i64::try_from(id.unix_s()).unwrap_or_default());
            if week < oldest && ingested.contains(&(host.to_owned(), epoch.to_owned())) {
                self.remove("raw epochs", &found.key, found.bytes).await?;
            }
        }
        Ok(())
    }

    /// Removes the code of images that no epoch has that stays, and that was not put just now.
    async fn code(&mut self, oldest: Week, images: &BTreeSet<String>) -> Result<(), StoreError> {
        for found in self.store.list("raw/code").await? {
            let name = found.key.rsplit('/').next().unwrap_or_default();
            let image = name.split('.').next().unwrap_or_default();
            if found.put_s < oldest.begin_s() && !images.contains(image) {
                self.remove("files of code", &found.key, found.bytes).await?;
            }
        }
        Ok(())
    }

    async fn remove(
        &mut self,
        kind: &'static str,
        key: &str,
        bytes: u64,
    ) -> Result<(), StoreError> {
        if !self.args.dry_run {
            self.store.remove(key).await?;
        }
        let sum = self.removed.entry(kind).or_default();
        sum.objects += 1;
        sum.bytes += bytes;
        Ok(())
    }
}
