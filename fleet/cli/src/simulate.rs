//! `dcpi-fleet simulate`: a simulated fleet with known changes, in its own store.

use std::collections::HashSet;

use clap::Args;
use ingest::{Files, TIME};
use sim::{Config, Fleet};
use store::{EpochName, Manifest, Store, Week};
use tables::{EpochRow, Fact, Load, Missed};

use crate::out::say;
use crate::store_option::InStore;

/// Hosts whose facts are written as one file, as an ingester does.
const HOSTS_AT_ONCE: usize = 128;

/// `dcpi-fleet simulate`.
#[derive(Args, Debug)]
#[command(after_help = "\
The facts are those that hosts would have pushed: services, images and procedures by Zipf's law, \
machines of three types, roll-outs host by host, days and nights, rates that differ, hosts that \
report half a week or nothing, clocks that are wrong. New builds of week 2026-W41 change some \
procedures, which the command prints. Close and review the weeks as those of any store.")]
pub struct Simulate {
    #[command(flatten)]
    store: InStore,
    /// Hosts
    #[arg(long, value_name = "N", default_value_t = 200,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    hosts: u32,
    /// Weeks, from 2026-W40
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u8).range(1..=26))]
    weeks: u8,
    /// Where chance begins
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// # Errors
/// One line, with the next step.
pub async fn run(args: &Simulate) -> Result<bool, String> {
    let store = args.store.open()?;
    let hosts = usize::try_from(args.hosts).unwrap_or(usize::MAX);
    let fleet = Fleet::new(Config { hosts, seed: args.seed, ..Config::default() });
    for week in 0..i64::from(args.weeks) {
        write(&store, &fleet, week).await?;
    }
    for truth in fleet.truth() {
        let week = Week::of(Fleet::begin_s(truth.week));
        for (_, procedure, share, change) in &truth.procedures {
            say!(
                "{week} {} {} {procedure}: {:+.3} % of the service's time, which had {:.3} %",
                truth.service,
                truth.image,
                change * 100.0,
                share * 100.0
            );
        }
    }
    Ok(true)
}

async fn write(store: &Store, fleet: &Fleet, number: i64) -> Result<(), String> {
    let week = Week::of(Fleet::begin_s(number));
    let newest = Manifest::newest(store, week).await.map_err(|error| error.to_string())?;
    if newest.number > 0 {
        return Err(format!("the store has {week} already; name an empty one"));
    }
    let mut files = Files { store, week, entries: Vec::new() };
    let mut next = newest;
    let mut seen = HashSet::new();
    for first in (0..fleet.hosts()).step_by(HOSTS_AT_ONCE) {
        let last = (first + HOSTS_AT_ONCE).min(fleet.hosts());
        let (mut facts, mut loads): (Vec<Fact>, Vec<Load>) = (Vec::new(), Vec::new());
        let (mut epochs, mut missed): (Vec<EpochRow>, Vec<Missed>) = (Vec::new(), Vec::new());
        for host in first..last {
            let rows = fleet.host_week(number, host);
            let names = rows.epochs.iter().map(|epoch| EpochName {
                host: epoch.name.clone(),
                epoch: epoch.begin_s.to_string(),
            });
            next.epochs.extend(names);
            seen.extend(rows.facts.iter().map(|fact| fact.procedure));
            facts.extend(rows.facts);
            loads.extend(rows.loads);
            epochs.extend(rows.epochs);
            missed.extend(rows.missed);
        }
        facts.sort_by_key(|of| (of.service, of.image, of.build, of.procedure, of.host));
        let put = async {
            files.put(TIME, &facts, facts.iter().map(|of| of.samples).sum()).await?;
            files.put(TIME, &loads, loads.iter().map(|of| of.samples).sum()).await?;
            files.put(TIME, &epochs, 0).await?;
            files.put(TIME, &missed, missed.iter().map(|of| of.samples).sum()).await
        };
        put.await.map_err(|error| error.to_string())?;
    }
    let mut names = fleet.names();
    names.retain(|name| seen.contains(&name.procedure));
    let put = async {
        files.put("", &names, 0).await?;
        files.put("", &fleet.services(), 0).await?;
        files.put("", &fleet.builds(number), 0).await
    };
    put.await.map_err(|error| error.to_string())?;
    next.files = files.entries;
    let is_put = next.put_next(store, week).await.map_err(|error| error.to_string())?;
    if is_put { Ok(()) } else { Err(format!("another program writes {week}; name an empty store")) }
}
