//! `dcpi epochs` for programs.

use std::collections::BTreeMap;

use profiledb::{EpochId, Machine};
use serde::{Serialize, Serializer};

use super::fields::{Cells, Shape, Shaped, Shown as _};
use super::json::{Head, ProblemEntry, problems};
use query::load::sum;

use super::{CodeStoreRow, EpochRow, EpochsReport, duration_s};

crate::fields! {
    /// CSV has a row per epoch and event.
    #[derive(Debug)]
    pub struct Epochs<'a> {
        head (flat): Head<'a>;
        events: Vec<EventTotal<'a>>;
        rows (rows): Vec<EpochEntry<'a>>;
        code_stores: &'a [CodeStoreRow];
        problems: Vec<ProblemEntry<'a>>;
    }

    /// An event of the epochs.
    #[derive(Debug)]
    pub struct EventTotal<'a> {
        /// the event, as perf calls it
        pub name: &'a str;
        /// mean distance of two samples; of several periods the mean over the samples
        pub period: u64, "event's unit";
        /// what the period counts
        pub unit: &'a str;
        /// samples taken and not lost; with `--label`, `--unit` or `--pid`: of the selected
        /// processes
        pub total: u64, "samples";
    }

    /// An epoch.
    #[derive(Debug)]
    pub struct EpochEntry<'a> {
        host: &'a str => "host";
        /// name: the time when the epoch began (UTC)
        epoch: &'a EpochId => "epoch";
        /// label given with `dcpictl epoch --label`; `null`: none
        label: Option<&'a str> => "label";
        /// labels of runs that have samples of their own
        run_labels: &'a [String];
        /// number of later epochs of the host; 0: the latest
        back: usize;
        /// true: samples may still be added
        open: bool;
        started_unix_s: u64, "s" => "started_unix_s";
        /// `null`: the epoch is open
        ended_unix_s: Option<u64>, "s" => "ended_unix_s";
        /// last merge
        updated_unix_s: u64, "s" => "updated_unix_s";
        /// time to its end, or to its last merge
        duration_s: u64, "s";
        events (rows): Vec<EpochEvent<'a>>;
        /// number of images with samples; `null`: the epoch cannot be read
        images: Option<usize> => "images";
        /// bytes of the epoch's files; `null`: the epoch cannot be read
        size_bytes: Option<u64>, "bytes" => "size_bytes";
        /// the machine: `arch`, `cpu_model`, `cpus`, kernel and boot
        machine: &'a Machine;
        /// version of dcpid
        writer_version: &'a str;
    }

    /// An event of an epoch.
    #[derive(Debug)]
    pub struct EpochEvent<'a> {
        name: &'a str => "event";
        /// mean distance of two samples
        period: u64, "event's unit" => "period";
        /// what the period counts
        unit: &'a str => "unit";
        /// rate that was asked for, on each CPU; `null`: a period was asked for
        rate_per_s: Option<u64>, "samples/s";
        /// what a reader should know; `null`: nothing
        note: Option<&'a str>;
        taken: u64, "samples" => "taken";
        /// samples in profiles
        merged: u64, "samples" => "merged";
        /// samples of unknown code; in CSV of all reasons
        unresolved: ByReason, "samples" => "unresolved";
        /// samples in no profile; in CSV of all reasons
        lost: ByReason, "samples" => "lost";
    }
}

/// Samples by reason; in CSV their sum.
#[derive(Debug)]
pub struct ByReason(BTreeMap<String, u64>);

impl Shaped for ByReason {
    fn shape() -> Shape {
        BTreeMap::<String, u64>::shape()
    }

    fn json<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.json(to)
    }

    fn cells(&self, titles: &[&'static str], key: Option<&str>, row: &mut Cells) {
        row.push(titles, key, sum(self.0.values().copied()));
    }
}

impl Shaped for Machine {
    fn shape() -> Shape {
        Shape::Map("FACT", Box::new(Shape::Any))
    }

    fn json<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.serialize(to)
    }

    fn cells(&self, _: &[&'static str], _: Option<&str>, _: &mut Cells) {}
}

pub(super) fn epochs(report: &EpochsReport) -> Epochs<'_> {
    let mut events: Vec<EventTotal<'_>> = Vec::new();
    for row in &report.rows {
        for event in &row.meta.events {
            let ledger = row.meta.ledgers.sum(&event.name);
            let samples = ledger.taken.saturating_sub(sum(ledger.lost.values().copied()));
            match events.iter_mut().find(|known| known.name == event.name) {
                Some(known) => known.total = known.total.saturating_add(samples),
                None => events.push(EventTotal {
                    name: &event.name,
                    period: event.period,
                    unit: &event.unit,
                    total: samples,
                }),
            }
        }
    }
    Epochs {
        head: Head::shown(&report.selection),
        events,
        rows: report.rows.iter().map(epoch).collect(),
        code_stores: &report.code_stores,
        problems: problems(&report.problems),
    }
}

fn epoch(row: &EpochRow) -> EpochEntry<'_> {
    let meta = &row.meta;
    let events = meta.events.iter().map(|event| {
        let ledger = meta.ledgers.sum(&event.name);
        EpochEvent {
            name: &event.name,
            period: event.period,
            unit: &event.unit,
            rate_per_s: event.rate_per_s,
            note: event.note.as_deref(),
            taken: ledger.taken,
            merged: ledger.merged,
            unresolved: ByReason(ledger.unresolved),
            lost: ByReason(ledger.lost),
        }
    });
    EpochEntry {
        host: &meta.host,
        epoch: &meta.epoch,
        label: meta.label.as_deref(),
        run_labels: &row.run_labels,
        back: row.back,
        open: meta.ended_unix_s.is_none(),
        started_unix_s: meta.started_unix_s,
        ended_unix_s: meta.ended_unix_s,
        updated_unix_s: meta.updated_unix_s,
        duration_s: duration_s(meta),
        events: events.collect(),
        images: row.images,
        size_bytes: row.size_bytes,
        machine: &meta.machine,
        writer_version: &meta.writer_version,
    }
}
