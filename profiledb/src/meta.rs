//! What an epoch says about itself: machine, events, and where every sample went.

use std::collections::BTreeMap;

use image::ImageId;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::epoch::EpochId;
use crate::error::DbError;
use crate::writer::Delta;

/// The fact that names the label whose samples a reader of the epoch begins with, where one command was recorded.
pub const OPENS_ON: &str = "opens_on";
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

/// Event to period to where the samples of that period went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Ledgers(BTreeMap<String, BTreeMap<u64, Ledger>>);

impl Ledgers {
    /// The ledger of an event at a period, empty at first.
    pub fn entry(&mut self, event: &str, period: u64) -> &mut Ledger {
        self.0.entry(event.to_owned()).or_default().entry(period).or_default()
    }

    /// The ledger of an event at a period, if it was sampled at that.
    #[must_use]
    pub fn at(&self, event: &str, period: u64) -> Option<&Ledger> {
        self.0.get(event)?.get(&period)
    }

    /// The ledgers of an event, by period.
    pub fn of(&self, event: &str) -> impl Iterator<Item = (u64, &Ledger)> {
        self.0.get(event).into_iter().flatten().map(|(period, ledger)| (*period, ledger))
    }

    /// The ledger of an event over all its periods: samples that need not stand for the same.
    #[must_use]
    pub fn sum(&self, event: &str) -> Ledger {
        let mut sum = Ledger::default();
        self.of(event).for_each(|(_, ledger)| sum.add(ledger));
        sum
    }

    /// All of them: event, period and ledger.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64, &Ledger)> {
        self.0.iter().flat_map(|(event, of)| of.iter().map(move |(period, ledger)| (event.as_str(), *period, ledger)))
    }

    /// Adds the numbers of `other`.
    pub fn add(&mut self, other: &Self) {
        other.iter().for_each(|(event, period, ledger)| self.entry(event, period).add(ledger));
    }

    /// The most periods that an event has.
    pub(crate) fn periods(&self) -> usize {
        self.0.values().map(BTreeMap::len).max().unwrap_or(0)
    }

    /// Gives ledgers that name no period (0) that of their event.
    fn at_described_periods(&mut self, events: &[EventMeta]) {
        for event in events {
            let Some(of) = self.0.get_mut(&event.name) else { continue };
            if let Some(ledger) = of.remove(&0) {
                of.entry(event.period).or_default().add(&ledger);
            }
        }
    }
}

impl<'de> Deserialize<'de> for Ledgers {
    /// Reads ledgers by event and period, and those by event alone that were written before an
    /// epoch could have several periods: these are at period 0.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum OfEvent {
            One(Ledger),
            ByPeriod(BTreeMap<String, Ledger>),
        }
        let mut ledgers = Self::default();
        for (event, of) in BTreeMap::<String, OfEvent>::deserialize(from)? {
            match of {
                OfEvent::One(ledger) => *ledgers.entry(&event, 0) = ledger,
                OfEvent::ByPeriod(by_period) => {
                    for (period, ledger) in by_period {
                        let period = period.parse().map_err(serde::de::Error::custom)?;
                        *ledgers.entry(&event, period) = ledger;
                    }
                }
            }
        }
        Ok(ledgers)
    }
}

/// Samples of the profiles by event and period: of known code, and of unknown.
#[derive(Debug, Default)]
pub(crate) struct Totals(BTreeMap<(String, u64), (u64, u64)>);

impl Totals {
    /// Counts the samples of a profile.
    pub(crate) fn add(&mut self, event: &str, period: u64, image: Option<&ImageId>, samples: u64) {
        let (known, unknown) = self.0.entry((event.to_owned(), period)).or_default();
        let sum = if image.is_some_and(ImageId::is_unresolved) { unknown } else { known };
        *sum = sum.saturating_add(samples);
    }

    /// The names of the events that have samples, each at least once.
    pub(crate) fn events(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(|(event, _)| event.as_str())
    }

    /// What does not fit the ledgers: event, samples of its ledger and of its profiles. Known code
    /// has exactly the merged samples, and unknown code at most the unresolved ones: some of these
    /// belong to no process.
    pub(crate) fn unbalanced<'a>(&'a self, ledgers: &'a Ledgers) -> impl Iterator<Item = (String, u64, u64)> + 'a {
        let mut keys: Vec<(String, u64)> = self.0.keys().cloned().collect();
        keys.extend(ledgers.iter().map(|(event, period, _)| (event.to_owned(), period)));
        keys.sort();
        keys.dedup();
        keys.into_iter().filter_map(|key| {
            let (known, unknown) = self.0.get(&key).copied().unwrap_or_default();
            let none = Ledger::default();
            let ledger = ledgers.at(&key.0, key.1).unwrap_or(&none);
            let unresolved = sum(&ledger.unresolved);
            if ledger.merged != known {
                return Some((key.0, ledger.merged, known));
            }
            (unresolved < unknown).then_some((key.0, unresolved, unknown))
        })
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
            ledgers: Ledgers::default(),
            period_changes: BTreeMap::new(),
            cost: None,
            facts: BTreeMap::new(),
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
        meta.facts.extend(delta.facts.iter().map(|(name, fact)| (name.clone(), fact.clone())));
        meta.updated_unix_s = meta.updated_unix_s.max(delta.now_unix_s);
        meta.merges += 1;
        meta
    }

    /// The same with ledgers that an earlier release wrote without their periods at these.
    pub(crate) fn at_described_periods(mut self) -> Self {
        self.ledgers.at_described_periods(&self.events);
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
    first.map_or(Ok(()), |(event, ledger, profiles)| Err(DbError::Unbalanced { event, ledger, profiles }))
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
        let mut ledgers = Ledgers::default();
        *ledgers.entry("cycles", 7) =
            Ledger { merged: 3, unresolved: reasons(&[("no mapping", 2)]), ..Ledger::default() };
        let (known, unknown) = (ImageId::from_name("a", ""), ImageId::unresolved("a", "no mapping"));
        let balance = |profiles: &[(&str, u64, &ImageId, u64)]| {
            let mut totals = Totals::default();
            profiles.iter().for_each(|(event, period, image, n)| totals.add(event, *period, Some(image), *n));
            check_balance(&ledgers, &totals).is_ok()
        };
        let merged = ("cycles", 7, &known, 3);
        assert!(balance(&[merged]) && balance(&[merged, ("cycles", 7, &unknown, 2)]));
        assert!(!balance(&[merged, ("cycles", 7, &unknown, 3)]), "more than are unresolved");
        for profiles in
            [&[][..], &[("cycles", 7, &known, 2)], &[("cycles", 8, &known, 3)], &[merged, ("e", 7, &known, 1)]]
        {
            assert!(!balance(profiles), "{profiles:?}");
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
        (0..PERIODS_MAX as u64 / 2).for_each(|period| many.ledgers.entry("imiss", period).taken = 1);
        assert!(!many.continues_with(&start), "no room for the periods that may come");
    }

    #[test]
    fn ledgers_of_before_times_were_kept_are_read() {
        let old = r#"{"taken":5,"merged":5}"#;
        let ledger: Ledger = serde_json::from_str(old).unwrap();
        assert_eq!(ledger, Ledger { taken: 5, merged: 5, ..Ledger::default() });
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
        assert!(serde_json::from_str::<Ledgers>(r#"{"cycles":{"x":{"taken":5,"merged":5}}}"#).is_err());
    }

    #[test]
    fn old_readers_read_newer_descriptions() {
        let meta = EpochMeta::begin("h", EpochId::from_unix_s(1), EpochStart::default());
        let json = serde_json::to_string(&meta).unwrap();
        let extended = json.replacen('{', "{\"weather\":{\"rain\":true},", 1);
        assert_eq!(serde_json::from_str::<EpochMeta>(&extended).unwrap(), meta);
    }
}
