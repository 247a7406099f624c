//! What an epoch says about itself: machine, events, and where every sample went.

use std::collections::BTreeMap;

use model::{Facts, Ledgers, Totals};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::epoch::EpochId;
use crate::error::DbError;
use crate::merge::Delta;

/// Changes of one event's period that an epoch records; older ones are dropped.
const PERIOD_CHANGES_MAX: usize = 64;
/// Periods that one event may have in an epoch. A daemon's budget chooses among 16; the rest is for
/// restarts with other settings and for epochs merged of several hosts. The limit bounds what a
/// reader adds up for each place.
pub(crate) const PERIODS_MAX: usize = 64;

/// An event that was sampled, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventMeta {
    /// Its name, as in perf: `cycles`, `cpu-clock`.
    pub name: String,
    /// What `period` counts: `ns`, `cycles` or `count`.
    pub unit: String,
    /// Mean distance of two samples on one CPU, in `unit`, when the epoch began. Samples of other
    /// periods are apart: see [`EpochMeta::ledgers`].
    pub period: u64,
    /// Samples per second and CPU that were asked for, when a rate was asked for.
    #[serde(default)]
    pub rate_per_s: Option<u64>,
    /// What a reader of the numbers should know, such as "no hardware counters: cpu-clock instead
    /// of cycles".
    #[serde(default)]
    pub note: Option<String>,
}

/// A new period of an event, from some time on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeriodChange {
    /// From when on, in seconds since 1970 UTC.
    pub at_unix_s: u64,
    /// The new period, in the event's unit.
    pub period: u64,
    /// Samples per second and CPU that were asked for, when a rate was asked for.
    #[serde(default)]
    pub rate_per_s: Option<u64>,
}

impl EventMeta {
    /// True when samples of both may be in one epoch: they count the same, at whatever period.
    pub(crate) fn same_event(&self, other: &Self) -> bool {
        self.name == other.name && self.unit == other.unit
    }
}

/// The machine, as one boot of one kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Machine hardware name, as `uname -m`: `x86_64`, `aarch64`.
    pub arch: String,
    /// Name of the CPU model, as in `/proc/cpuinfo`; empty when unknown.
    pub cpu_model: String,
    /// Number of CPUs that were sampled.
    pub cpus: u32,
    /// Kernel release, as `uname -r`.
    pub kernel_release: String,
    /// The kernel's GNU build id in lower-case hex, from `/sys/kernel/notes`, where it has one.
    #[serde(default)]
    pub kernel_build_id: Option<String>,
    /// `/proc/sys/kernel/random/boot_id` (proc(5)).
    pub boot_id: String,
}

/// Everything an epoch says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochMeta {
    /// The host whose samples these are.
    pub host: String,
    /// The epoch's name.
    pub epoch: EpochId,
    /// What the user called it.
    #[serde(default)]
    pub label: Option<String>,
    /// Begin, in seconds since 1970 UTC.
    pub started_unix_s: u64,
    /// End, in seconds since 1970 UTC; none while the epoch is open. A sealed epoch never changes.
    #[serde(default)]
    pub ended_unix_s: Option<u64>,
    /// Last merge, in seconds since 1970 UTC.
    pub updated_unix_s: u64,
    /// Number of merges so far: two readings with the same number are of the same state.
    #[serde(default)]
    pub merges: u64,
    /// The machine the samples are from.
    pub machine: Machine,
    /// The events sampled.
    pub events: Vec<EventMeta>,
    /// Event to period to where its samples went. A period and, where events took turns, the share
    /// of the time in which the event counted say what a sample stands for.
    #[serde(default)]
    pub ledgers: Ledgers,
    /// Event to changes of its period while the epoch was open, in order of time; the newest 64.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub period_changes: BTreeMap<String, Vec<PeriodChange>>,
    /// What sampling cost, in whatever form the writer gives it; the latest bill stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Value>,
    /// What else a writer found out about the machine or the events, by name: `skid`, say. A later
    /// value replaces an earlier one.
    #[serde(default, skip_serializing_if = "Facts::is_empty")]
    pub facts: Facts,
    /// Version of the program that wrote last.
    pub writer_version: String,
}

/// What a writer knows when it begins an epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EpochStart {
    /// What the user calls it.
    pub label: Option<String>,
    /// The machine.
    pub machine: Machine,
    /// The events that will be sampled; each name once.
    pub events: Vec<EventMeta>,
    /// Now, in seconds since 1970 UTC.
    pub now_unix_s: u64,
    /// Version of the writing program.
    pub writer_version: String,
}

impl EpochMeta {
    /// The first description of an epoch: nothing merged yet.
    pub(crate) fn begin(host: &str, epoch: EpochId, start: EpochStart) -> Self {
        Self {
            host: host.to_owned(),
            epoch,
            label: start.label,
            started_unix_s: start.now_unix_s,
            ended_unix_s: None,
            updated_unix_s: start.now_unix_s,
            merges: 0,
            machine: start.machine,
            events: start.events,
            ledgers: Ledgers::default(),
            period_changes: BTreeMap::new(),
            cost: None,
            facts: Facts::default(),
            writer_version: start.writer_version,
        }
    }

    /// The description after a merge.
    pub(crate) fn after(&self, delta: &Delta) -> Self {
        let mut meta = self.clone();
        meta.ledgers.add(&delta.ledgers);
        for (event, changes) in &delta.period_changes {
            let kept = meta.period_changes.entry(event.clone()).or_default();
            kept.extend(changes.iter().cloned());
            kept.drain(..kept.len().saturating_sub(PERIOD_CHANGES_MAX));
        }
        if delta.cost.is_some() {
            meta.cost.clone_from(&delta.cost);
        }
        meta.facts.extend(&delta.facts);
        meta.updated_unix_s = meta.updated_unix_s.max(delta.now_unix_s);
        meta.merges += 1;
        meta
    }

    /// The same with ledgers that an earlier release wrote without their periods at these.
    pub(crate) fn at_described_periods(mut self) -> Self {
        for event in &self.events {
            self.ledgers.describe(&event.name, event.period);
        }
        self
    }

    /// True when samples taken after `start` may be added to this epoch: it is open, of the same
    /// boot of the same machine, of the same events, and not of another label. A period may be
    /// another: an epoch keeps samples of each apart, as long as they are few.
    pub(crate) fn continues_with(&self, start: &EpochStart) -> bool {
        let sorted = |events: &[EventMeta]| {
            let mut events = events.to_vec();
            events.sort_by(|a, b| a.name.cmp(&b.name));
            events
        };
        let (mine, theirs) = (sorted(&self.events), sorted(&start.events));
        self.ended_unix_s.is_none()
            && self.machine == start.machine
            && mine.len() == theirs.len()
            && mine.iter().zip(&theirs).all(|(a, b)| a.same_event(b))
            && self.ledgers.periods() < PERIODS_MAX / 2
            && (start.label.is_none() || start.label == self.label)
    }
}

/// Refuses ledgers that do not fit the samples of the profiles.
pub(crate) fn check_balance(ledgers: &Ledgers, profiles: &Totals) -> Result<(), DbError> {
    let first = profiles.unbalanced(ledgers).next();
    first.map_or(Ok(()), |(event, ledger, profiles)| {
        Err(DbError::Unbalanced { event, ledger, profiles })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_continues_only_with_samples_that_can_be_added() {
        let event = |name: &str, period| EventMeta {
            name: name.to_owned(),
            period,
            ..EventMeta::default()
        };
        let start = EpochStart {
            label: Some("base".to_owned()),
            events: vec![event("cycles", 60_000), event("imiss", 100)],
            ..EpochStart::default()
        };
        let meta = EpochMeta::begin("h", EpochId::from_unix_s(1), start.clone());
        assert!(meta.continues_with(&start));

        let with = |change: fn(&mut EpochStart)| {
            let mut other = start.clone();
            change(&mut other);
            meta.continues_with(&other)
        };
        assert!(with(|s| s.label = None));
        assert!(with(|s| s.events.reverse()));
        assert!(with(|s| s.events[0].note = Some("x".to_owned())));
        assert!(with(|s| s.writer_version.push('2')));
        assert!(!with(|s| s.label = Some("other".to_owned())));
        assert!(with(|s| s.events[0].period += 1), "a change of rate ended epochs");
        assert!(with(|s| s.events[0].rate_per_s = Some(1)));
        assert!(!with(|s| s.events[0].unit.push('x')));
        assert!(!with(|s| s.events.truncate(1)));
        assert!(!with(|s| s.machine.boot_id.push('x')));
        assert!(!with(|s| s.machine.kernel_release.push('x')));

        let mut sealed = meta.clone();
        sealed.ended_unix_s = Some(5);
        assert!(!sealed.continues_with(&start));
        let mut many = meta.clone();
        (0..PERIODS_MAX as u64 / 2)
            .for_each(|period| many.ledgers.entry("imiss", period).taken = 1);
        assert!(!many.continues_with(&start), "no room for the periods that may come");
    }

    /// Epochs had one period for each event until segments of version 3.
    #[test]
    fn ledgers_without_periods_are_of_the_described_one() {
        let event = EventMeta { name: "cycles".to_owned(), period: 7, ..EventMeta::default() };
        let start = EpochStart { events: vec![event], ..EpochStart::default() };
        let mut meta = EpochMeta::begin("h", EpochId::from_unix_s(1), start);
        meta.ledgers = serde_json::from_str(r#"{"cycles":{"taken":5,"merged":5}}"#).unwrap();
        let meta = meta.at_described_periods();
        assert_eq!(meta.ledgers.at("cycles", 7).map(|ledger| ledger.taken), Some(5));
        let json = serde_json::to_string(&meta.ledgers).unwrap();
        assert!(json.starts_with(r#"{"cycles":{"7":{"taken":5,"#), "{json}");
        assert_eq!(serde_json::from_str::<Ledgers>(&json).unwrap(), meta.ledgers);
        assert!(
            serde_json::from_str::<Ledgers>(r#"{"cycles":{"x":{"taken":5,"merged":5}}}"#).is_err()
        );
    }

    #[test]
    fn old_readers_read_newer_descriptions() {
        let meta = EpochMeta::begin("h", EpochId::from_unix_s(1), EpochStart::default());
        let json = serde_json::to_string(&meta).unwrap();
        let extended = json.replacen('{', "{\"weather\":{\"rain\":true},", 1);
        assert_eq!(serde_json::from_str::<EpochMeta>(&extended).unwrap(), meta);
    }
}
