//! What an epoch says about itself: machine, events, and where every sample went.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::epoch::EpochId;
use crate::error::DbError;
use crate::writer::Delta;

/// An event that was sampled, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventMeta {
    /// Its name, as in perf: `cycles`, `cpu-clock`.
    pub name: String,
    /// What `period` counts: `ns`, `cycles` or `count`.
    pub unit: String,
    /// Mean distance of two samples on one CPU, in `unit`.
    pub period: u64,
    /// Samples per second and CPU that were asked for, when a rate was asked for.
    #[serde(default)]
    pub rate_per_s: Option<u64>,
    /// What a reader of the numbers should know, such as "no hardware counters: cpu-clock instead of
    /// cycles".
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
    /// True when samples of both can be added: all but the note are equal.
    pub(crate) fn same_sampling(&self, other: &Self) -> bool {
        self.name == other.name
            && self.unit == other.unit
            && self.period == other.period
            && self.rate_per_s == other.rate_per_s
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

/// Where the samples of one event went. All numbers are samples but for the times, and saturate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// Samples the kernel side took.
    pub taken: u64,
    /// Samples that the event's count and period imply; more than `taken` where the kernel throttled or an interrupt came late. 0: not
    /// known (a writer before 0.1, or a source that cannot tell).
    #[serde(default)]
    pub implied: u64,
    /// Time in which the event should have counted, all CPUs together, ns. 0: not known (a writer before this was kept).
    #[serde(default)]
    pub enabled_ns: u64,
    /// Time in which it had a counter, ns: less than `enabled_ns` where events were more than counters, or took turns.
    #[serde(default)]
    pub running_ns: u64,
    /// Samples in the profiles.
    pub merged: u64,
    /// Samples of unknown code, by reason.
    #[serde(default)]
    pub unresolved: BTreeMap<String, u64>,
    /// Samples that were dropped, by reason.
    #[serde(default)]
    pub lost: BTreeMap<String, u64>,
}

impl Ledger {
    /// Adds the numbers of `other`.
    pub fn add(&mut self, other: &Self) {
        self.taken = self.taken.saturating_add(other.taken);
        self.implied = self.implied.saturating_add(other.implied);
        self.enabled_ns = self.enabled_ns.saturating_add(other.enabled_ns);
        self.running_ns = self.running_ns.saturating_add(other.running_ns);
        self.merged = self.merged.saturating_add(other.merged);
        add_reasons(&mut self.unresolved, &other.unresolved);
        add_reasons(&mut self.lost, &other.lost);
    }

    /// True when every sample is accounted for: taken = merged + unresolved + lost.
    #[must_use]
    pub fn closes(&self) -> bool {
        self.taken == self.accounted()
    }

    /// Samples of which it is known where they went.
    pub(crate) fn accounted(&self) -> u64 {
        self.merged.saturating_add(sum(&self.unresolved)).saturating_add(sum(&self.lost))
    }
}

fn add_reasons(to: &mut BTreeMap<String, u64>, from: &BTreeMap<String, u64>) {
    for (reason, samples) in from {
        match to.get_mut(reason) {
            Some(sum) => *sum = sum.saturating_add(*samples),
            None => {
                to.insert(reason.clone(), *samples);
            }
        }
    }
}

fn sum(reasons: &BTreeMap<String, u64>) -> u64 {
    reasons.values().fold(0, |sum: u64, samples| sum.saturating_add(*samples))
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
    /// Event to where its samples went.
    #[serde(default)]
    pub ledgers: BTreeMap<String, Ledger>,
    /// Event to changes of its period while the epoch was open, in order of time. Samples before the first are of the event's period.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub period_changes: BTreeMap<String, Vec<PeriodChange>>,
    /// What sampling cost, in whatever form the writer gives it; the latest bill stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Value>,
    /// What else a writer found out about the machine or the events, by name: `skid`, say. A later value replaces an earlier one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub facts: BTreeMap<String, Value>,
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
            ledgers: BTreeMap::new(),
            period_changes: BTreeMap::new(),
            cost: None,
            facts: BTreeMap::new(),
            writer_version: start.writer_version,
        }
    }

    /// The description after a merge.
    pub(crate) fn after(&self, delta: &Delta) -> Self {
        let mut meta = self.clone();
        for (event, ledger) in &delta.ledgers {
            meta.ledgers.entry(event.clone()).or_default().add(ledger);
        }
        for (event, changes) in &delta.period_changes {
            meta.period_changes.entry(event.clone()).or_default().extend(changes.iter().cloned());
        }
        if delta.cost.is_some() {
            meta.cost.clone_from(&delta.cost);
        }
        meta.facts.extend(delta.facts.iter().map(|(name, fact)| (name.clone(), fact.clone())));
        meta.updated_unix_s = meta.updated_unix_s.max(delta.now_unix_s);
        meta.merges += 1;
        meta
    }

    /// True when samples taken after `start` may be added to this epoch: it is open, of the same
    /// boot of the same machine, of the same events, and not of another label.
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
            && mine.iter().zip(&theirs).all(|(a, b)| a.same_sampling(b))
            && (start.label.is_none() || start.label == self.label)
    }
}

/// Refuses ledgers whose merged samples are not those of the profiles: `profiles` has the sum over
/// the profiles of each event.
pub(crate) fn check_balance(
    ledgers: &BTreeMap<String, Ledger>,
    profiles: &BTreeMap<String, u64>,
) -> Result<(), DbError> {
    for event in ledgers.keys().chain(profiles.keys()) {
        let ledger = ledgers.get(event).map_or(0, |ledger| ledger.merged);
        let profiles = profiles.get(event).copied().unwrap_or(0);
        if ledger != profiles {
            return Err(DbError::Unbalanced { event: event.clone(), ledger, profiles });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons(pairs: &[(&str, u64)]) -> BTreeMap<String, u64> {
        pairs.iter().map(|(r, n)| ((*r).to_owned(), *n)).collect()
    }

    #[test]
    fn ledgers_add_by_reason() {
        let mut ledger = Ledger {
            taken: 10,
            implied: 11,
            enabled_ns: 900,
            running_ns: 300,
            merged: 7,
            unresolved: reasons(&[("no mapping", 2)]),
            lost: reasons(&[("table full", 1)]),
        };
        assert!(ledger.closes());
        ledger.add(&Ledger {
            taken: 5,
            implied: 5,
            enabled_ns: 100,
            running_ns: 50,
            merged: 1,
            unresolved: reasons(&[("no mapping", 1), ("anonymous", 3)]),
            lost: reasons(&[]),
        });
        assert_eq!(ledger.unresolved, reasons(&[("no mapping", 3), ("anonymous", 3)]));
        assert_eq!((ledger.taken, ledger.implied, ledger.merged), (15, 16, 8));
        assert_eq!((ledger.enabled_ns, ledger.running_ns), (1000, 350));
        assert!(ledger.closes());
        ledger.taken += 1;
        assert!(!ledger.closes());
    }

    #[test]
    fn balance_is_checked_both_ways() {
        let ledger = |merged| Ledger { merged, ..Ledger::default() };
        let ledgers = BTreeMap::from([("cycles".to_owned(), ledger(3))]);
        assert!(check_balance(&ledgers, &reasons(&[("cycles", 3)])).is_ok());
        for profiles in [&[][..], &[("cycles", 2)], &[("cycles", 3), ("other", 1)]] {
            assert!(check_balance(&ledgers, &reasons(profiles)).is_err());
        }
    }

    #[test]
    fn an_epoch_continues_only_with_samples_that_can_be_added() {
        let event = |name: &str, period| EventMeta { name: name.to_owned(), period, ..EventMeta::default() };
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
        assert!(!with(|s| s.events[0].period += 1));
        assert!(!with(|s| s.events[0].rate_per_s = Some(1)));
        assert!(!with(|s| s.events.truncate(1)));
        assert!(!with(|s| s.machine.boot_id.push('x')));
        assert!(!with(|s| s.machine.kernel_release.push('x')));

        let mut sealed = meta.clone();
        sealed.ended_unix_s = Some(5);
        assert!(!sealed.continues_with(&start));
    }

    #[test]
    fn ledgers_of_before_times_were_kept_are_read() {
        let old = r#"{"taken":5,"merged":5}"#;
        let ledger: Ledger = serde_json::from_str(old).unwrap();
        assert_eq!(ledger, Ledger { taken: 5, merged: 5, ..Ledger::default() });
    }

    #[test]
    fn old_readers_read_newer_descriptions() {
        let meta = EpochMeta::begin("h", EpochId::from_unix_s(1), EpochStart::default());
        let json = serde_json::to_string(&meta).unwrap();
        let extended = json.replacen('{', "{\"weather\":{\"rain\":true},", 1);
        assert_eq!(serde_json::from_str::<EpochMeta>(&extended).unwrap(), meta);
    }
}
