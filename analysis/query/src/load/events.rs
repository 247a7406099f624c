//! An event over the selected epochs: its samples and their weights.

use std::collections::BTreeMap;

use model::{EXCEPTIONS, EXECUTED, IDEAL, Ledger, OFF_CPU, RUNNABLE, Unresolved};
use profiledb::{Epoch, EpochMeta, EventMeta};

use super::{Contents, sum};
use crate::problem::{self, Problem};
use stats::tally::Tally;
use stats::{Confidence, Occurrences, occurrences};

/// Reasons of samples in code that is no file's.
const GENERATED: [Unresolved; 3] =
    [Unresolved::Anonymous, Unresolved::JitWithoutMap, Unresolved::JitNotInMap];

/// An event over the selected epochs.
#[derive(Clone, Debug)]
pub struct EventSamples {
    /// Its name.
    pub name: String,
    /// Unit of the period, from the first epoch that has the event.
    pub unit: String,
    /// Mean distance of samples in `unit`; of several periods the mean over the samples, so that
    /// samples times period is what was covered.
    pub period: u64,
    /// The periods that its samples have, the shortest first.
    pub periods: Vec<u64>,
    /// The weight of each sample that [`stats::tally::Weighed::equal`] returns: the common weight
    /// of all samples, if there is one; otherwise the weight at which that number of samples would
    /// have the same relative uncertainty.
    pub weight: f64,
    /// Samples that were taken and not lost, with what they stand for; where a label, unit or
    /// process was chosen, its samples.
    pub taken: Tally,
    /// Samples of unknown code among these, by reason.
    pub unknown: BTreeMap<String, Tally>,
    /// Notes on the event, each once.
    pub notes: Vec<String>,
    /// The ledger: samples taken, merged, unresolved and lost.
    pub ledger: Ledger,
    /// For each period in each epoch: samples taken and not lost, and how many occurrences each
    /// stands for: the period, scaled to the time in which the event did not count. None: it never
    /// counted there.
    pub weights: Vec<(u64, Option<f64>)>,
}

impl EventSamples {
    /// Whether the event was counted, each occurrence, instead of sampled.
    pub fn is_exact(&self) -> bool {
        model::is_exact(&self.name)
    }

    /// The noun of an occurrence of an exact event, and of what is known of waits; a sample's of
    /// others.
    pub fn noun(&self) -> &'static str {
        match self.name.as_str() {
            EXECUTED => "execution",
            IDEAL => "cycle",
            name if EXCEPTIONS.contains(&name) => "exception",
            OFF_CPU | RUNNABLE => "stack",
            _ => "sample",
        }
    }

    /// [`EventSamples::noun`] of several.
    pub fn nouns(&self) -> String {
        format!("{}s", self.noun())
    }

    /// Time in which the event should have counted by that in which it did, at least 1; 1 when that
    /// is not known, None when it never did.
    pub fn scale(&self) -> Option<f64> {
        scale(&self.ledger)
    }

    /// The number of occurrences in all; None when the event never counted in an epoch.
    pub fn occurrences(&self, confidence: Confidence) -> Option<Occurrences> {
        let weighted: Option<Vec<_>> =
            self.weights.iter().map(|(samples, weight)| Some((*samples, (*weight)?))).collect();
        Some(occurrences(&weighted?, confidence))
    }

    /// How many occurrences a sample stands for, on average; None when the event never counted in
    /// an epoch.
    pub fn mean_weight(&self) -> Option<f64> {
        let mut sums = (0.0, 0.0, 0.0);
        for (samples, weight) in &self.weights {
            let (samples, weight) = (*samples as f64, (*weight)?);
            sums = (sums.0 + samples, sums.1 + samples * weight, weight);
        }
        let (samples, occurrences, last) = sums;
        match self.weights.len() {
            0 => Some(self.period as f64),
            _ if samples > 0.0 => Some(occurrences / samples),
            _ => Some(last),
        }
    }

    /// As many samples as stand for what these do, each for [`EventSamples::weight`].
    pub fn equal(&self, tally: Tally) -> u64 {
        if self.weight > 0.0 {
            (tally.occurrences / self.weight).round() as u64
        } else {
            tally.samples
        }
    }

    /// Samples that were taken and not lost: those in profiles and those of unknown code.
    pub fn total(&self) -> u64 {
        self.taken.samples
    }

    /// The same of all processes, whatever label, unit or process was chosen.
    pub fn machine_total(&self) -> u64 {
        sum(self.weights.iter().map(|(samples, _)| *samples))
    }

    /// Samples of unknown code, by reason.
    pub fn unresolved_samples(&self) -> BTreeMap<&str, u64> {
        self.unknown.iter().map(|(reason, tally)| (reason.as_str(), tally.samples)).collect()
    }

    /// Share of samples whose place in code is unknown, though the code is a file's.
    pub(super) fn nameless_share(&self) -> f64 {
        let is_generated = |reason: &str| GENERATED.iter().any(|of| of.name() == reason);
        let of_files = self.unknown.iter().filter(|(reason, _)| !is_generated(reason));
        let nameless = sum(of_files.map(|(_, tally)| tally.samples));
        nameless as f64 / self.total().max(1) as f64
    }

    /// Samples that are in no profile.
    pub fn lost(&self) -> u64 {
        sum(self.ledger.lost.values().copied())
    }
}

fn scale(ledger: &Ledger) -> Option<f64> {
    match (ledger.enabled_ns, ledger.running_ns) {
        (0, _) => Some(1.0),
        (_, 0) => None,
        (enabled, running) => Some((enabled as f64 / running as f64).max(1.0)),
    }
}

/// The combined descriptions of an event in all epochs.
pub(super) fn join_event(
    name: &str,
    epochs: &[Epoch],
    problems: &mut Vec<Problem>,
) -> EventSamples {
    let mut joined = EventSamples {
        name: name.to_owned(),
        unit: String::new(),
        period: 0,
        periods: Vec::new(),
        weight: 0.0,
        taken: Tally::default(),
        unknown: BTreeMap::new(),
        notes: Vec::new(),
        ledger: Ledger::default(),
        weights: Vec::new(),
    };
    let mut units: Vec<String> = Vec::new();
    let (mut covered, mut samples): (u128, u128) = (0, 0);
    for meta in epochs.iter().map(Epoch::meta) {
        let Some(event) = meta.events.iter().find(|event| event.name == name) else {
            continue;
        };
        if joined.unit.is_empty() {
            joined.unit.clone_from(&event.unit);
            joined.period = event.period;
        }
        if !units.contains(&event.unit) {
            units.push(event.unit.clone());
        }
        add_note(&mut joined.notes, event);
        for (period, ledger) in meta.ledgers.of(name) {
            joined.ledger.add(ledger);
            let taken = ledger.taken.saturating_sub(sum(ledger.lost.values().copied()));
            joined.weights.push((taken, scale(ledger).map(|scale| scale * period as f64)));
            if taken > 0 && !joined.periods.contains(&period) {
                joined.periods.push(period);
            }
            let weight = weight(meta, name, period);
            joined.taken += Tally::of(taken, weight);
            for (reason, samples) in &ledger.unresolved {
                *joined.unknown.entry(reason.clone()).or_default() += Tally::of(*samples, weight);
            }
            let taken = u128::from(taken);
            covered = covered.saturating_add(taken.saturating_mul(u128::from(period)));
            samples += taken;
        }
    }
    joined.periods.sort_unstable();
    if let Some(mean) = covered.checked_div(samples) {
        joined.period = u64::try_from(mean).unwrap_or(u64::MAX);
    }
    if let [first, .., last] = joined.periods.as_slice()
        && first < last
    {
        let periods = joined.periods.len();
        joined.notes.push(format!(
            "samples have {periods} periods, from {first} to {last} {}: shares and times weigh each sample by its period",
            joined.unit
        ));
    }
    joined.weight =
        if joined.taken.is_empty() { joined.period as f64 } else { joined.taken.weight() };
    if units.len() > 1 {
        problems.push(Problem::UnitsDiffer { event: name.to_owned(), units });
    }
    joined
}

impl EventSamples {
    /// Has the samples of these profiles only, of all images: the event's, by its place among all.
    pub(super) fn narrow<'a>(
        &mut self,
        at: usize,
        epochs: impl Iterator<Item = (&'a Epoch, &'a Contents)>,
        problems: &mut Vec<Problem>,
    ) {
        (self.taken, self.unknown) = (Tally::default(), BTreeMap::new());
        for (epoch, contents) in epochs {
            for (key, _) in contents.profiles.iter().filter(|(_, event)| *event == at) {
                let samples = epoch.total(key).unwrap_or_else(|error| {
                    problem::add_unreadable(problems, error);
                    0
                });
                let tally = Tally::of(samples, weight(epoch.meta(), key.name(), key.period()));
                self.taken += tally;
                if let Some(record) =
                    contents.records.get(&key.image).filter(|_| key.image.is_unresolved())
                {
                    *self.unknown.entry(record.path.clone()).or_default() += tally;
                }
            }
        }
        self.weight = if self.taken.is_empty() { self.period as f64 } else { self.taken.weight() };
    }
}

/// What a sample of an event stands for that an epoch has at this period: the period, scaled to the
/// time in which the event did not count.
pub(crate) fn weight(meta: &EpochMeta, event: &str, period: u64) -> f64 {
    let scale = meta.ledgers.at(event, period).and_then(scale).unwrap_or(1.0);
    // A period of 0 occurs only in damaged data; its samples then count as one. Scales differ from
    // drain to drain in the last digits: epochs of one rate are of one weight.
    (period as f64).max(1.0) * ((scale * 1e5).round() / 1e5).max(1.0)
}

fn add_note(notes: &mut Vec<String>, event: &EventMeta) {
    if let Some(note) = &event.note
        && !notes.contains(note)
    {
        notes.push(note.clone());
    }
}
