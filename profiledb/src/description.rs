//! The description of an epoch: machine, events, and ledgers.

use std::collections::BTreeMap;

use model::{Facts, Ledgers, Totals};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::epoch::EpochId;
use crate::error::DbError;
use crate::merge::Delta;
use crate::slices::Covered;

/// Most changes of one event's period that an epoch records; the oldest are dropped. More make the
/// description, which each merge writes, larger.
const PERIOD_CHANGES_MAX: usize = 64;
/// Most periods of one event in an epoch. A daemon's budget chooses among 16; the rest is for
/// restarts with other settings and for epochs merged from several hosts. The limit bounds the
/// profiles that a reader adds up for each place.
pub(crate) const PERIODS_MAX: usize = 64;

/// An event, with how it was sampled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventMeta {
    /// Name, as in perf: `cycles`, `cpu-clock`.
    pub name: String,
    /// Unit of `period`: `ns`, `cycles` or `count`.
    pub unit: String,
    /// Mean distance of two samples on one CPU, in `unit`, when the epoch began. Samples of later
    /// periods are kept apart: see [`EpochMeta::ledgers`].
    pub period: u64,
    /// Samples per second and CPU, when a rate was asked for.
    #[serde(default)]
    pub rate_per_s: Option<u64>,
    /// A note for readers of the numbers, such as "no hardware counters: cpu-clock instead of
    /// cycles".
    #[serde(default)]
    pub note: Option<String>,
}

/// A change of an event's period.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeriodChange {
    /// Time of the change, in seconds since 1970 UTC.
    pub at_unix_s: u64,
    /// The new period, in the event's unit.
    pub period: u64,
    /// Samples per second and CPU, when a rate was asked for.
    #[serde(default)]
    pub rate_per_s: Option<u64>,
}

impl EventMeta {
    /// True when samples of both may be in one epoch: they count the same event, at any period.
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

/// The description of an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochMeta {
    /// The host that was sampled.
    pub host: String,
    /// The epoch's name.
    pub epoch: EpochId,
    /// Label that the user gave the epoch.
    #[serde(default)]
    pub label: Option<String>,
    /// Time when the epoch began, in seconds since 1970 UTC.
    pub started_unix_s: u64,
    /// Time when the epoch ended, in seconds since 1970 UTC; None while it is open. A sealed epoch
    /// never changes.
    #[serde(default)]
    pub ended_unix_s: Option<u64>,
    /// Time of the last merge, in seconds since 1970 UTC.
    pub updated_unix_s: u64,
    /// Number of merges so far: two readings with the same number are of the same state.
    #[serde(default)]
    pub merges: u64,
    /// The machine that was sampled.
    pub machine: Machine,
    /// The events sampled.
    pub events: Vec<EventMeta>,
    /// Ledgers by event and period. The period and, where events took turns, the share of the time
    /// in which the event counted give the weight of a sample.
    #[serde(default)]
    pub ledgers: Ledgers,
    /// Changes of each event's period while the epoch was open, in order of time; the newest 64.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub period_changes: BTreeMap<String, Vec<PeriodChange>>,
    /// Cost of sampling, as JSON of the writer's form; the latest replaces earlier ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Value>,
    /// Further facts about the machine or the events, by name: `skid`, say. A later value replaces
    /// an earlier one.
    #[serde(default, skip_serializing_if = "Facts::is_empty")]
    pub facts: Facts,
    /// Version of the last writing program.
    pub writer_version: String,
    /// The part of the epoch's time that was asked for and is here, with ledgers and times of that
    /// part; None: all of it. Never stored.
    #[serde(skip)]
    pub covered: Option<Covered>,
}

/// The parameters with which a writer begins an epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EpochStart {
    /// Label that the user gives the epoch.
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
    /// The first description of an epoch, before any merge.
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
            covered: None,
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

    /// True when samples taken after `start` may be added to this epoch: it is open, of the same
    /// boot of the same machine, of the same events, and of the same label. The period may differ:
    /// an epoch keeps samples of each period apart, as long as periods are few.
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

/// Refuses ledgers that do not balance with the samples of the profiles.
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

    #[test]
    fn ledgers_are_by_event_and_period() {
        let mut ledgers = Ledgers::default();
        ledgers.entry("cycles", 7).taken = 5;
        let json = serde_json::to_string(&ledgers).unwrap();
        assert!(json.starts_with(r#"{"cycles":{"7":{"taken":5,"#), "{json}");
        assert_eq!(serde_json::from_str::<Ledgers>(&json).unwrap(), ledgers);
        for other in [r#"{"cycles":{"x":{"taken":5,"merged":5}}}"#, r#"{"cycles":{"taken":5}}"#] {
            assert!(serde_json::from_str::<Ledgers>(other).is_err(), "{other}");
        }
    }

    #[test]
    fn old_readers_read_newer_descriptions() {
        let meta = EpochMeta::begin("h", EpochId::from_unix_s(1), EpochStart::default());
        let json = serde_json::to_string(&meta).unwrap();
        let extended = json.replacen('{', "{\"weather\":{\"rain\":true},", 1);
        assert_eq!(serde_json::from_str::<EpochMeta>(&extended).unwrap(), meta);
    }
}
