//! Ledgers, which account for every sample of an event.

use std::collections::BTreeMap;

use image::ImageId;
use serde::{Deserialize, Serialize};

use crate::measure::Measure;

/// Account of the samples of one event. All numbers but the times are samples; all saturate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// Samples that the sampler took.
    pub taken: u64,
    /// Samples that the event's count and period imply. The number is larger than `taken` where the
    /// kernel throttled the event or an interrupt came late. 0: not known (a writer before 0.1, or
    /// a source that cannot tell).
    #[serde(default)]
    pub implied: u64,
    /// Time in which the event should have counted, all CPUs together, ns. 0: not known (a writer
    /// before this was kept).
    #[serde(default)]
    pub enabled_ns: u64,
    /// Time in which it had a counter, ns: less than `enabled_ns` where events were more than
    /// counters, or took turns.
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

    /// The difference between this ledger and `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let reasons = |now: &BTreeMap<String, u64>, then: &BTreeMap<String, u64>| {
            let added = now.iter().map(|(reason, count)| {
                let before = then.get(reason).copied().unwrap_or(0);
                (reason.clone(), count.saturating_sub(before))
            });
            added.filter(|(_, count)| *count > 0).collect()
        };
        Self {
            taken: self.taken.saturating_sub(earlier.taken),
            implied: self.implied.saturating_sub(earlier.implied),
            enabled_ns: self.enabled_ns.saturating_sub(earlier.enabled_ns),
            running_ns: self.running_ns.saturating_sub(earlier.running_ns),
            merged: self.merged.saturating_sub(earlier.merged),
            unresolved: reasons(&self.unresolved, &earlier.unresolved),
            lost: reasons(&self.lost, &earlier.lost),
        }
    }

    /// True when every sample is accounted for: taken = merged + unresolved + lost.
    pub fn closes(&self) -> bool {
        self.taken == self.accounted()
    }

    /// Samples whose destination is known: merged, unresolved or lost.
    pub fn accounted(&self) -> u64 {
        self.merged.saturating_add(sum(&self.unresolved)).saturating_add(sum(&self.lost))
    }
}

/// The ledgers of an epoch, by event and period.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ledgers(BTreeMap<String, BTreeMap<u64, Ledger>>);

impl Ledgers {
    /// The ledger of an event at a period, empty at first.
    pub fn entry(&mut self, event: &str, period: u64) -> &mut Ledger {
        self.0.entry(event.to_owned()).or_default().entry(period).or_default()
    }

    /// The ledger of an event at a period; None when the event was not sampled at that period.
    pub fn at(&self, event: &str, period: u64) -> Option<&Ledger> {
        self.0.get(event)?.get(&period)
    }

    /// The ledgers of an event, by period.
    pub fn of(&self, event: &str) -> impl Iterator<Item = (u64, &Ledger)> {
        self.0.get(event).into_iter().flatten().map(|(period, ledger)| (*period, ledger))
    }

    /// The ledger of an event, summed over its periods. Its samples need not have one weight.
    pub fn sum(&self, event: &str) -> Ledger {
        let mut sum = Ledger::default();
        self.of(event).for_each(|(_, ledger)| sum.add(ledger));
        sum
    }

    /// All ledgers, each with event and period.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64, &Ledger)> {
        self.0.iter().flat_map(|(event, of)| {
            of.iter().map(move |(period, ledger)| (event.as_str(), *period, ledger))
        })
    }

    /// Adds the numbers of `other`.
    pub fn add(&mut self, other: &Self) {
        other.iter().for_each(|(event, period, ledger)| self.entry(event, period).add(ledger));
    }

    /// What was added since these ledgers were `earlier`; ledgers that stayed as they were are left
    /// out.
    pub fn since(&self, earlier: &Self) -> Self {
        let mut added = Self::default();
        for (event, period, ledger) in self.iter() {
            let since = match earlier.at(event, period) {
                Some(before) => ledger.since(before),
                None => ledger.clone(),
            };
            if since != Ledger::default() {
                *added.entry(event, period) = since;
            }
        }
        added
    }

    /// The largest number of periods of any event.
    pub fn periods(&self) -> usize {
        self.0.values().map(BTreeMap::len).max().unwrap_or(0)
    }
}

/// Sums over profiles, by event and period: samples of known code, and samples of unknown code.
#[derive(Debug, Default)]
pub struct Totals(BTreeMap<(String, u64), (u64, u64)>);

impl Totals {
    /// Adds the samples of a profile. Observations that are not samples have no ledger, and are
    /// left out.
    pub fn add(&mut self, measure: &Measure, image: Option<&ImageId>, samples: u64) {
        let Some(period) = measure.period() else { return };
        let (known, unknown) = self.0.entry((measure.name.to_string(), period)).or_default();
        let sum = if image.is_some_and(ImageId::is_unresolved) { unknown } else { known };
        *sum = sum.saturating_add(samples);
    }

    /// The names of the events that have samples. A name may come more than once.
    pub fn events(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(|(event, _)| event.as_str())
    }

    /// Events whose profiles do not fit their ledgers: event, samples of its ledger and of its
    /// profiles. Profiles of known code hold exactly the merged samples. Profiles of unknown code
    /// hold at most the unresolved samples: some of these belong to no process and have no profile.
    pub fn unbalanced<'a>(
        &'a self,
        ledgers: &'a Ledgers,
    ) -> impl Iterator<Item = (String, u64, u64)> + 'a {
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
        let (known, unknown) =
            (ImageId::from_name("a", ""), ImageId::unresolved("a", "no mapping"));
        let balance = |profiles: &[(&str, u64, &ImageId, u64)]| {
            let mut totals = Totals::default();
            profiles.iter().for_each(|(event, period, image, n)| {
                totals.add(&Measure::samples(event, *period), Some(image), *n)
            });
            totals.unbalanced(&ledgers).next().is_none()
        };
        let merged = ("cycles", 7, &known, 3);
        assert!(balance(&[merged]) && balance(&[merged, ("cycles", 7, &unknown, 2)]));
        assert!(!balance(&[merged, ("cycles", 7, &unknown, 3)]), "more than are unresolved");
        for profiles in [
            &[][..],
            &[("cycles", 7, &known, 2)],
            &[("cycles", 8, &known, 3)],
            &[merged, ("e", 7, &known, 1)],
        ] {
            assert!(!balance(profiles), "{profiles:?}");
        }
    }

    #[test]
    fn ledgers_of_before_times_were_kept_are_read() {
        let old = r#"{"taken":5,"merged":5}"#;
        let ledger: Ledger = serde_json::from_str(old).unwrap();
        assert_eq!(ledger, Ledger { taken: 5, merged: 5, ..Ledger::default() });
    }
}
