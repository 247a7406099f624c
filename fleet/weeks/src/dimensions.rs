//! The dimensions of facts: the names of their numbers, hosts with their machines, and loads.

use std::collections::{BTreeMap, HashMap};

use ingest::read_file;
use store::{Manifest, Store};
use tables::{Build, EpochRow, HostWeek, Load, Missed, Name, Row, Service};

use crate::close::CloseError;

/// All of a week but facts.
#[derive(Debug, Default)]
pub(crate) struct Dimensions {
    pub(crate) names: HashMap<i64, Name>,
    pub(crate) services: BTreeMap<i64, String>,
    pub(crate) builds: HashMap<i64, Build>,
}

/// The part of an event that is kept by day and host.
#[derive(Debug, Default)]
pub(crate) struct OfEvent {
    pub(crate) loads: Vec<Load>,
    pub(crate) epochs: Vec<EpochRow>,
    pub(crate) missed: Vec<Missed>,
}

/// The rows of a table in a week.
pub(crate) async fn rows<R: Row>(
    store: &Store,
    manifest: &Manifest,
    event: &str,
    mut each: impl FnMut(R),
) -> Result<(), CloseError> {
    for file in manifest.files_of(R::TABLE.name(), event) {
        read_file::<R>(store, file).await?.into_iter().for_each(&mut each);
    }
    Ok(())
}

impl Dimensions {
    pub(crate) async fn read(store: &Store, manifest: &Manifest) -> Result<Self, CloseError> {
        let mut of = Self::default();
        of.add(store, manifest).await?;
        Ok(of)
    }

    /// Adds those of another week.
    pub(crate) async fn add(
        &mut self,
        store: &Store,
        manifest: &Manifest,
    ) -> Result<(), CloseError> {
        rows(store, manifest, "", |name: Name| {
            self.names.insert(name.procedure, name);
        })
        .await?;
        rows(store, manifest, "", |service: Service| {
            self.services.insert(service.service, service.name);
        })
        .await?;
        rows(store, manifest, "", |build: Build| self.add_build(build)).await
    }

    fn add_build(&mut self, build: Build) {
        let of = self.builds.entry(build.build).or_insert_with(|| build.clone());
        of.absorb(build.first_s, build.last_s, build.quality, build.path);
    }

    /// The rows of each table, once each, sorted.
    pub(crate) fn to_rows(&self) -> (Vec<Name>, Vec<Service>, Vec<Build>) {
        let mut names: Vec<Name> = self.names.values().cloned().collect();
        names.sort_by_key(|name| name.procedure);
        let mut builds: Vec<Build> = self.builds.values().cloned().collect();
        builds.sort_by_key(|build| build.build);
        let services = self.services.iter();
        let services =
            services.map(|(&service, name)| Service { service, name: name.clone() }).collect();
        (names, services, builds)
    }

    pub(crate) fn service(&self, service: i64) -> String {
        self.services.get(&service).cloned().unwrap_or_else(|| service.to_string())
    }

    pub(crate) fn procedure(&self, procedure: i64) -> String {
        self.names.get(&procedure).map(|name| name.name.clone()).unwrap_or_default()
    }

    /// The text of a build's id.
    pub(crate) fn build(&self, build: i64) -> String {
        self.builds.get(&build).map(|build| build.text.clone()).unwrap_or_default()
    }

    /// The names of images.
    pub(crate) fn images(&self) -> HashMap<i64, String> {
        let builds = self.builds.values();
        builds.map(|build| (build.image, build.image_name.clone())).collect()
    }
}

impl OfEvent {
    pub(crate) async fn read(
        store: &Store,
        manifest: &Manifest,
        event: &str,
    ) -> Result<Self, CloseError> {
        let mut of = Self::default();
        let mut loads: HashMap<[i64; 5], (i64, f64)> = HashMap::new();
        rows(store, manifest, event, |load: Load| {
            let Load { service, image, build, host, day, samples, weight } = load;
            let sum = loads.entry([service, image, build, host, day]).or_default();
            sum.0 = sum.0.saturating_add(samples);
            sum.1 += samples as f64 * weight;
        })
        .await?;
        let load = |([service, image, build, host, day], (samples, events)): ([i64; 5], _)| {
            let weight = if samples > 0 { events / samples as f64 } else { 0.0 };
            Load { service, image, build, host, day, samples, weight }
        };
        of.loads = loads.into_iter().map(load).collect();
        of.loads.sort_by_key(|load| (load.service, load.image, load.build, load.host, load.day));
        rows(store, manifest, event, |epoch| of.epochs.push(epoch)).await?;
        of.epochs.sort_by(EpochRow::order);
        let mut missed: BTreeMap<(i64, String, String), i64> = BTreeMap::new();
        rows(store, manifest, event, |of: Missed| {
            let sum = missed.entry((of.host, of.fate, of.reason)).or_default();
            *sum = i64::saturating_add(*sum, of.samples);
        })
        .await?;
        let row = |((host, fate, reason), samples)| Missed { host, fate, reason, samples };
        of.missed = missed.into_iter().map(row).collect();
        Ok(of)
    }

    /// The hosts of the week.
    pub(crate) fn hosts(&self) -> Vec<HostWeek> {
        let mut core_s: HashMap<i64, f64> = HashMap::new();
        for load in &self.loads {
            *core_s.entry(load.host).or_default() += load.samples as f64 * load.weight / 1e9;
        }
        let mut hosts: Vec<HostWeek> = Vec::new();
        // In order of host and begin.
        for epoch in &self.epochs {
            if hosts.last().is_none_or(|last| last.host != epoch.host) {
                hosts.push(HostWeek {
                    host: epoch.host,
                    name: epoch.name.clone(),
                    begin_s: epoch.begin_s,
                    end_s: epoch.begin_s,
                    core_s: core_s.get(&epoch.host).copied().unwrap_or_default(),
                    ..HostWeek::default()
                });
            }
            let Some(host) = hosts.last_mut() else { continue };
            host.machine.clone_from(&epoch.machine);
            host.cpus = host.cpus.max(epoch.cpus);
            host.epochs += 1;
            let covered_s = epoch.end_s.saturating_sub(epoch.begin_s.max(host.end_s)).max(0);
            host.covered_s = host.covered_s.saturating_add(covered_s);
            host.end_s = host.end_s.max(epoch.end_s);
            host.ahead_s = host.ahead_s.max(epoch.ahead_s);
            host.taken = host.taken.saturating_add(epoch.taken);
            host.facts = host.facts.saturating_add(epoch.facts);
            host.idle = host.idle.saturating_add(epoch.idle);
            host.unresolved = host.unresolved.saturating_add(epoch.unresolved);
            host.lost = host.lost.saturating_add(epoch.lost);
        }
        hosts
    }
}
