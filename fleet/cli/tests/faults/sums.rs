//! What a store's manifests say, so that two stores can be compared.

use std::collections::{BTreeMap, BTreeSet};

use ingest::read_file;
use store::{EpochName, Manifest, Store, Week};
use tables::{
    Build, Change, Column, EpochRow, Fact, Head, HostShare, HostWeek, ImageWeek, Load, Missed,
    Name, Pair, Rollup, Row, Service, Skew,
};

use crate::epochs::{Objects, account, weeks};

/// A row: its texts and integers, and its doubles, which engines add up in any order.
pub type Cells = (String, Vec<f64>);

/// A week of a store.
#[derive(Clone, Debug, Default)]
pub struct Sums {
    pub epochs: Vec<EpochName>,
    pub refused: BTreeSet<EpochName>,
    /// Taken, facts, idle, unresolved, lost, by event.
    pub account: BTreeMap<String, [u64; 5]>,
    /// Rows of what was ingested, each key once, by table and event.
    pub ingested: BTreeMap<String, Vec<Cells>>,
    /// Rows of what closing makes, by table and event.
    pub closed: BTreeMap<String, Vec<Cells>>,
    /// Keys of all files.
    pub files: BTreeSet<String>,
    pub is_closed: bool,
    pub number: u64,
}

/// The rows of a table in files of a manifest.
pub async fn rows<R: Row>(store: &Store, manifest: &Manifest, event: &str) -> Vec<R> {
    let mut all = Vec::new();
    for file in manifest.files_of(R::TABLE.name(), event) {
        let rows = read_file::<R>(store, file).await.unwrap();
        assert_eq!(rows.len() as u64, file.rows, "{}", file.key);
        all.extend(rows);
    }
    all
}

fn cells<R: Row>(rows: &[R]) -> Vec<Cells> {
    let mut all: Vec<Cells> = rows
        .iter()
        .map(|row| {
            let mut columns: Vec<Column> = R::columns().into_iter().map(|(_, of)| of).collect();
            row.add_to(&mut columns);
            let mut cells = (String::new(), Vec::new());
            for column in columns {
                match column {
                    Column::Doubles(values) => cells.1.extend(values),
                    other => cells.0 += &format!("{other:?}"),
                }
            }
            cells
        })
        .collect();
    all.sort_by(|(a, x), (b, y)| a.cmp(b).then_with(|| x.partial_cmp(y).unwrap()));
    all
}

/// Rows of facts, or of loads, each key once.
fn summed(rows: impl Iterator<Item = ([i64; 5], i64, f64)>) -> Vec<Cells> {
    let mut sums: BTreeMap<[i64; 5], (i64, f64)> = BTreeMap::new();
    for (key, samples, weight) in rows {
        let sum = sums.entry(key).or_default();
        sum.0 += samples;
        sum.1 += samples as f64 * weight;
    }
    let cells = sums.into_iter();
    cells.map(|(key, (samples, events))| (format!("{key:?} {samples}"), vec![events])).collect()
}

impl Sums {
    /// The rows of a week.
    pub async fn of(store: &Store, week: Week) -> Self {
        let manifest = Manifest::newest(store, week).await.unwrap();
        let mut sums = Self {
            epochs: manifest.epochs.clone(),
            refused: manifest.refused.iter().map(|(name, _)| name.clone()).collect(),
            is_closed: manifest.is_closed(),
            number: manifest.number,
            ..Self::default()
        };
        let mut events = manifest.events();
        for event in &events {
            let facts = rows::<Fact>(store, &manifest, event).await;
            let loads = rows::<Load>(store, &manifest, event).await;
            let epochs = rows::<EpochRow>(store, &manifest, event).await;
            let missed = rows::<Missed>(store, &manifest, event).await;
            let mut account = [0; 5];
            for of in &epochs {
                let of = [of.taken, of.facts, of.idle, of.unresolved, of.lost];
                account.iter_mut().zip(of).for_each(|(sum, of)| *sum += of as u64);
            }
            let [taken, of_facts, idle, unresolved, lost] = account;
            assert_eq!(taken, of_facts + idle + unresolved + lost, "{event}");
            let all: i64 = facts.iter().map(|fact| fact.samples).sum();
            assert_eq!(all as u64, of_facts, "{event}: facts");
            let all: i64 = loads.iter().map(|load| load.samples).sum();
            assert_eq!(all as u64, of_facts, "{event}: loads");
            for (fate, all) in [("unresolved", unresolved), ("lost", lost)] {
                let of = missed.iter().filter(|missed| missed.fate == fate);
                assert_eq!(of.map(|missed| missed.samples as u64).sum::<u64>(), all, "{event}");
            }
            sums.account.insert(event.clone(), account);
            let fact = |of: Fact| {
                ([of.service, of.image, of.build, of.procedure, of.host], of.samples, of.weight)
            };
            let load = |of: Load| {
                ([of.service, of.image, of.build, of.day, of.host], of.samples, of.weight)
            };
            let missed =
                missed.iter().map(|of| ([of.host, 0, 0, 0, of.fate.len() as i64], of.samples, 0.0));
            let ingested = &mut sums.ingested;
            ingested.insert(format!("missed {event}"), summed(missed));
            ingested.insert(format!("facts {event}"), summed(facts.into_iter().map(fact)));
            ingested.insert(format!("loads {event}"), summed(loads.into_iter().map(load)));
            ingested.insert(format!("epochs {event}"), cells(&epochs));
        }
        sums.files = manifest.files.iter().map(|file| file.key.clone()).collect();
        events.push(String::new());
        for event in &events {
            let mut closed = |table: &str, rows: Vec<Cells>| {
                sums.closed.insert(format!("{table} {event}"), rows);
            };
            closed("heads", cells(&rows::<Head>(store, &manifest, event).await));
            closed("changes", cells(&rows::<Change>(store, &manifest, event).await));
            closed("pairs", cells(&rows::<Pair>(store, &manifest, event).await));
            closed("rollups", cells(&rows::<Rollup>(store, &manifest, event).await));
            closed("host_weeks", cells(&rows::<HostWeek>(store, &manifest, event).await));
            closed("image_weeks", cells(&rows::<ImageWeek>(store, &manifest, event).await));
            closed("skews", cells(&rows::<Skew>(store, &manifest, event).await));
            closed("host_shares", cells(&rows::<HostShare>(store, &manifest, event).await));
            let mut once = |table: &str, mut rows: Vec<Cells>| {
                rows.dedup();
                sums.ingested.insert(format!("{table} {event}"), rows);
            };
            once("names", cells(&rows::<Name>(store, &manifest, event).await));
            once("services", cells(&rows::<Service>(store, &manifest, event).await));
            let builds = rows::<Build>(store, &manifest, event).await;
            // First and last are of some epochs, until a week is closed.
            let of = |build: &Build| Build { first_s: 0, last_s: 0, ..build.clone() };
            once("builds", cells(&builds.iter().map(of).collect::<Vec<_>>()));
        }
        sums
    }

    /// The rows of all weeks.
    pub async fn of_weeks(store: &Store) -> Vec<Self> {
        let mut all = Vec::new();
        for week in weeks() {
            all.push(Self::of(store, week).await);
        }
        all
    }

    /// Each epoch is listed once.
    pub fn assert_once(&self) {
        let once: BTreeSet<&EpochName> = self.epochs.iter().chain(&self.refused).collect();
        assert_eq!(once.len(), self.epochs.len() + self.refused.len());
    }

    /// What was ingested is the same, in whatever files.
    pub fn assert_ingested_as(&self, other: &Self) {
        self.assert_once();
        assert_eq!(self.epochs, other.epochs);
        assert_eq!(self.refused, other.refused);
        assert_eq!(self.account, other.account);
        assert_same(&self.ingested, &other.ingested);
    }

    /// What closing made is the same.
    pub fn assert_closed_as(&self, other: &Self) {
        self.assert_ingested_as(other);
        assert!(self.is_closed && other.is_closed);
        assert_same(&self.closed, &other.closed);
    }
}

/// Doubles may differ by what the order of additions makes.
fn assert_same(a: &BTreeMap<String, Vec<Cells>>, b: &BTreeMap<String, Vec<Cells>>) {
    assert!(a.keys().eq(b.keys()), "{:?} {:?}", a.keys(), b.keys());
    for ((table, a), b) in a.iter().zip(b.values()) {
        assert_eq!(a.len(), b.len(), "{table}: rows");
        for ((text, doubles), (other, others)) in a.iter().zip(b) {
            assert_eq!(text, other, "{table}");
            for (a, b) in doubles.iter().zip(others) {
                let close = (a - b).abs() <= 1e-9 * a.abs().max(b.abs()) + 1e-12;
                assert!(close || a == b, "{table} {text}: {a} {b}");
            }
        }
    }
}

/// The account of each week is that of the raw epochs.
pub fn assert_account(sums: &[Sums], objects: &Objects) {
    for (sums, week) in sums.iter().zip(weeks()) {
        assert_eq!(sums.account, account(objects, week), "{week}");
    }
}
