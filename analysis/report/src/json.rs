//! Reports for programs. The keys and their order are an interface: add to them, change nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use profiledb::{Covered, EpochId, Machine, Stretch};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::{
    By, CodeStoreRow, EpochRow, EpochsReport, EventColumn, ImageName, ProfReport, Row, Selection,
    duration_s,
};
use query::load::sum;
use query::problem::Problem;
use query::scope::{Part, ScopeChoice};
use stats::Confidence;
use stats::tally::{self, Tally};

/// A share to eight decimals: finer than any sample, and the same on every machine.
pub(super) fn rounded(share: f64) -> f64 {
    (share * 1e8).round() / 1e8
}

#[derive(Serialize)]
struct Prof<'a> {
    db: &'a str,
    epochs: Vec<&'a EpochId>,
    hosts: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<Time>,
    events: Vec<Event<'a>>,
    sorted_by: &'a str,
    confidence: f64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    only: BTreeMap<&'static str, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'static str>,
    rows: Vec<ProfRow<'a>>,
    omitted: Omitted<'a>,
    unresolved: BTreeMap<&'a str, u64>,
    lost: BTreeMap<&'a str, u64>,
    problems: Vec<ProblemEntry<'a>>,
}

/// The stretch of time that was read, where a part was asked for.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Time {
    since_unix_s: u64,
    until_unix_s: u64,
    /// Length of the longest slice.
    slice_s: u64,
}

pub(super) fn time(selection: &Selection) -> Option<Time> {
    let Covered { stretch, slice_s } = selection.covered()?;
    let Stretch { since_unix_s, until_unix_s } = stretch;
    Some(Time { since_unix_s, until_unix_s, slice_s })
}

/// What was read: the first keys of a report.
#[derive(Serialize)]
pub(super) struct Head<'a> {
    db: &'a str,
    epochs: Vec<&'a EpochId>,
    hosts: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<Time>,
}

impl<'a> Head<'a> {
    pub(super) fn of(selection: &'a Selection) -> Self {
        Self {
            db: &selection.db,
            epochs: selection.epoch_ids(),
            hosts: selection.hosts(),
            time: time(selection),
        }
    }
}

/// The first keys of a report of one procedure.
#[derive(Serialize)]
pub(super) struct OfProcedure<'a> {
    #[serde(flatten)]
    head: Head<'a>,
    events: Vec<Event<'a>>,
    confidence: f64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    only: BTreeMap<&'static str, Value>,
    image: &'a str,
    image_id: String,
    path: &'a str,
    procedure: &'a str,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    aliases: &'a [String],
}

impl<'a> OfProcedure<'a> {
    pub(super) fn of(
        selection: &'a Selection,
        (events, confidence, whose): (&'a [EventColumn], Confidence, &'a ScopeChoice),
        (image, procedure, aliases): (&'a ImageName, &'a str, &'a [String]),
    ) -> Self {
        Self {
            head: Head::of(selection),
            events: events.iter().map(event).collect(),
            confidence: confidence.percent(),
            only: whose.parts().iter().map(part).collect(),
            image: &image.name,
            image_id: image.id.to_string(),
            path: &image.path,
            procedure,
            aliases,
        }
    }
}

#[derive(Serialize)]
pub(super) struct Event<'a> {
    name: &'a str,
    period: u64,
    unit: &'a str,
    /// Samples taken and not lost: of the label, unit or process that was asked for.
    total: u64,
    /// The same of the whole machine.
    machine_total: u64,
    /// Of these, the samples that shares are of.
    counted: u64,
    /// Of these, the idle loop's.
    idle: u64,
    unresolved: BTreeMap<&'a str, u64>,
    lost: &'a BTreeMap<String, u64>,
    /// That the event's count and period imply, of the whole machine; 0 when that is not known.
    implied_samples: u64,
    notes: Vec<String>,
    /// Time in which the event should have counted, and did, ns; 0 when that is not known.
    enabled_ns: u64,
    running_ns: u64,
    /// The one by the other, 1 when that is not known, null when it never counted.
    scale: Option<f64>,
    /// Occurrences in all, scaled; null when it never counted.
    count: Option<Count>,
}

#[derive(Serialize)]
pub(super) struct Count {
    value: u64,
    low: u64,
    high: u64,
}

#[derive(Serialize)]
struct ProfRow<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    procedure: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    image_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    /// The label, unit or process; null where samples were not kept apart by it.
    #[serde(flatten)]
    part: BTreeMap<&'static str, Value>,
    counts: InOrder<&'a str, u64>,
    share: InOrder<&'a str, Share>,
    /// Of the events that have stacks.
    #[serde(skip_serializing_if = "Option::is_none")]
    inclusive: Option<InOrder<&'a str, Share>>,
    cumulative: f64,
}

#[derive(Serialize)]
pub(super) struct Share {
    value: f64,
    low: f64,
    high: f64,
}

impl Share {
    pub(super) fn of(share: &stats::Share) -> Self {
        Self { value: rounded(share.value), low: rounded(share.low), high: rounded(share.high) }
    }
}

#[derive(Serialize)]
struct Omitted<'a> {
    rows: usize,
    counts: InOrder<&'a str, u64>,
}

#[derive(Serialize)]
pub(super) struct ProblemEntry<'a> {
    kind: &'static str,
    serious: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    image_id: Option<String>,
    message: String,
}

/// A map that keeps the order of its entries: events come in the order of the columns.
pub(super) struct InOrder<K, V>(pub(super) Vec<(K, V)>);

impl<K: Display, V: Serialize> Serialize for InOrder<K, V> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(&key.to_string(), value)?;
        }
        map.end()
    }
}

pub(super) fn prof(report: &ProfReport) -> impl Serialize + '_ {
    let by_event = |counts: &[Tally]| {
        let names = report.events.iter().map(|column| column.event.name.as_str());
        InOrder(names.zip(tally::samples(counts)).collect())
    };
    Prof {
        db: &report.selection.db,
        epochs: report.selection.epoch_ids(),
        hosts: report.selection.hosts(),
        time: time(&report.selection),
        events: report.events.iter().map(event).collect(),
        sorted_by: report.events.get(report.sort).map_or("", |column| &column.event.name),
        confidence: report.confidence.percent(),
        only: report.whose.parts().iter().map(part).collect(),
        by: match report.by {
            By::Scope(dimensions) => dimensions.first().map(|of| of.name()),
            By::Line => Some("line"),
            By::Procedure | By::Image => None,
        },
        rows: report.rows.iter().map(|row| prof_row(report, row, by_event(&row.counts))).collect(),
        omitted: Omitted { rows: report.omitted.rows, counts: by_event(&report.omitted.counts) },
        unresolved: joined(report.events.iter().map(|column| column.event.unresolved_samples())),
        lost: joined(report.events.iter().map(|column| by_name(&column.event.ledger.lost))),
        problems: problems(&report.problems),
    }
}

pub(super) fn event(column: &EventColumn) -> Event<'_> {
    let event = &column.event;
    Event {
        name: &event.name,
        period: event.period,
        unit: &event.unit,
        total: event.total(),
        machine_total: event.machine_total(),
        counted: column.counted.samples,
        idle: column.idle,
        unresolved: event.unresolved_samples(),
        lost: &event.ledger.lost,
        implied_samples: event.ledger.implied,
        notes: super::coverage::missed(&event.ledger)
            .into_iter()
            .chain(event.notes.iter().cloned())
            .collect(),
        enabled_ns: event.ledger.enabled_ns,
        running_ns: event.ledger.running_ns,
        scale: event.scale().map(rounded),
        count: column.occurrences.map(|count| Count {
            value: count.value.round() as u64,
            low: count.low.floor() as u64,
            high: count.high.ceil() as u64,
        }),
    }
}

fn prof_row<'a>(
    report: &'a ProfReport,
    row: &'a Row,
    counts: InOrder<&'a str, u64>,
) -> ProfRow<'a> {
    let names = report.events.iter().map(|column| column.event.name.as_str());
    ProfRow {
        procedure: row.procedure.as_ref().map(|procedure| procedure.name.as_str()),
        file: row.line.as_ref().map(|line| line.file.as_str()),
        line: row.line.as_ref().and_then(|line| line.line),
        image: row.image.as_ref().map(|image| image.name.as_str()),
        image_id: row.image.as_ref().map(|image| image.id.to_string()),
        address: row
            .procedure
            .as_ref()
            .and_then(|procedure| Some(format!("{:#x}", procedure.address?))),
        path: row
            .image
            .as_ref()
            .filter(|_| report.by == By::Image)
            .map(|image| image.path.as_str()),
        kind: row.image.as_ref().map(|image| image.kind.as_str()),
        part: row.parts.iter().map(part).collect(),
        counts,
        share: InOrder(names.clone().zip(row.shares.iter().map(Share::of)).collect()),
        inclusive: report.with_calls.then(|| {
            let of = |(name, share): (&'a str, &Option<stats::Share>)| {
                Some((name, Share::of(share.as_ref()?)))
            };
            InOrder(names.zip(&row.inclusive).filter_map(of).collect())
        }),
        cumulative: rounded(row.cumulative),
    }
}

/// Its name and its value.
pub(super) fn part(part: &Part) -> (&'static str, Value) {
    let value = match part {
        Part::Pid(pid) => pid.map(Value::from),
        named => named.value().map(Value::from),
    };
    (part.dimension().name(), value.unwrap_or(Value::Null))
}

/// The reasons of all events, summed.
/// Samples by reason, to be joined.
pub(super) fn by_name(reasons: &BTreeMap<String, u64>) -> BTreeMap<&str, u64> {
    reasons.iter().map(|(reason, samples)| (reason.as_str(), *samples)).collect()
}

pub(super) fn joined<'a>(
    maps: impl Iterator<Item = BTreeMap<&'a str, u64>>,
) -> BTreeMap<&'a str, u64> {
    let mut joined: BTreeMap<&str, u64> = BTreeMap::new();
    for (reason, samples) in maps.flatten() {
        let sum = joined.entry(reason).or_default();
        *sum = sum.saturating_add(samples);
    }
    joined
}

pub(super) fn problems(problems: &[Problem]) -> Vec<ProblemEntry<'_>> {
    let entry = |problem| {
        let problem: &Problem = problem;
        let image = problem.image();
        ProblemEntry {
            kind: problem.kind(),
            serious: problem.is_serious(),
            image: image.map(|(name, _)| name),
            image_id: image.map(|(_, id)| id.to_string()),
            message: problem.to_string(),
        }
    };
    let mut told = BTreeSet::new();
    // The parts of a report may meet the same damage.
    let mut is_new = |entry: &ProblemEntry<'_>| {
        told.insert((entry.kind, entry.image_id.clone(), entry.message.clone()))
    };
    problems.iter().map(entry).filter(|entry| is_new(entry)).collect()
}

#[derive(Serialize)]
struct Epochs<'a> {
    db: &'a str,
    epochs: Vec<&'a EpochId>,
    hosts: Vec<&'a str>,
    events: Vec<EpochsEvent<'a>>,
    rows: Vec<EpochEntry<'a>>,
    code_stores: &'a [CodeStoreRow],
    problems: Vec<ProblemEntry<'a>>,
}

#[derive(Serialize)]
struct EpochsEvent<'a> {
    name: &'a str,
    period: u64,
    unit: &'a str,
    total: u64,
}

#[derive(Serialize)]
struct EpochEntry<'a> {
    host: &'a str,
    epoch: &'a EpochId,
    label: Option<&'a str>,
    run_labels: &'a [String],
    back: usize,
    open: bool,
    started_unix_s: u64,
    ended_unix_s: Option<u64>,
    updated_unix_s: u64,
    duration_s: u64,
    events: Vec<EpochEvent<'a>>,
    images: Option<usize>,
    size_bytes: Option<u64>,
    machine: &'a Machine,
    writer_version: &'a str,
}

#[derive(Serialize)]
struct EpochEvent<'a> {
    name: &'a str,
    period: u64,
    unit: &'a str,
    rate_per_s: Option<u64>,
    note: Option<&'a str>,
    taken: u64,
    merged: u64,
    unresolved: BTreeMap<String, u64>,
    lost: BTreeMap<String, u64>,
}

pub(super) fn epochs(report: &EpochsReport) -> impl Serialize + '_ {
    let mut events: Vec<EpochsEvent<'_>> = Vec::new();
    for row in &report.rows {
        for event in &row.meta.events {
            let ledger = row.meta.ledgers.sum(&event.name);
            let samples = ledger.taken.saturating_sub(sum(ledger.lost.values().copied()));
            match events.iter_mut().find(|known| known.name == event.name) {
                Some(known) => known.total = known.total.saturating_add(samples),
                None => events.push(EpochsEvent {
                    name: &event.name,
                    period: event.period,
                    unit: &event.unit,
                    total: samples,
                }),
            }
        }
    }
    Epochs {
        db: &report.selection.db,
        epochs: report.selection.epoch_ids(),
        hosts: report.selection.hosts(),
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
            unresolved: ledger.unresolved,
            lost: ledger.lost,
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
