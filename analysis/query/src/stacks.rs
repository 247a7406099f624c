//! Call stacks of the selected epochs: trees of frames by event.

use std::collections::{BTreeMap, BTreeSet};

use image::{ImageId, ImageKind};
use model::{CALLS, Frame, Ledger, Stacks};
use profiledb::{Epoch, ProfileKey, Scope, StacksKey};

use crate::error::AnalysisError;
use crate::load::{self, Question, Samples, add_damage, opening_scope};
use crate::problem::{self, Problem};
use crate::scope::ScopeChoice;
use crate::select;

/// Stacks by the name of their event: `cpu-clock`, `off-cpu`.
pub type ByEvent = BTreeMap<String, Stacks>;
/// Stacks by event and scope.
pub type ByScope = BTreeMap<(String, Scope), Stacks>;

impl Question {
    /// The epochs and their scope, without samples, for reports from call stacks alone.
    pub fn opened(&self) -> Result<Samples, AnalysisError> {
        let (db, chosen) = select::open(&self.db, &self.epochs)?;
        let mut problems = Vec::new();
        let epochs = crate::load::open(&db, &chosen, &mut problems)?;
        let whose = opening_scope(&epochs, &self.asked(), &mut problems);
        check_scope(&epochs, &whose, &mut problems).map_err(|error| {
            match whose.label.clone().filter(|_| whose != self.whose) {
                Some(label) => AnalysisError::NothingRecorded { label },
                None => whose.hinted(error, &db, &chosen),
            }
        })?;
        let (events, images) = (Vec::new(), Vec::new());
        let (interpreted, loops) = (BTreeMap::new(), BTreeSet::new());
        Ok(Samples { db, epochs, events, images, whose, interpreted, loops, problems })
    }
}

/// Refuses a choice of which no epoch has samples. `problems` gets the damage of the epochs.
pub(crate) fn check_scope(
    epochs: &[Epoch],
    whose: &ScopeChoice,
    problems: &mut Vec<Problem>,
) -> Result<(), AnalysisError> {
    let mut scopes = BTreeSet::new();
    for epoch in epochs {
        add_damage(epoch, problems);
        match epoch.scopes() {
            Ok(known) => scopes.extend(known),
            Err(error) => problem::add_unreadable(problems, error),
        }
    }
    whose.without_threads().check(scopes.iter())
}

impl Samples {
    /// The call stacks of the same state of the same epochs, and of the same processes: of these
    /// events, the database's names or perf's, or of all. If the event also has samples, the
    /// weights of all threads in an epoch add up to the samples, even if stacks were dropped.
    ///
    /// # Errors
    /// [`AnalysisError::NoEvent`] for an event that the epochs do not have.
    pub fn stacks(
        &self,
        events: &[String],
        problems: &mut Vec<Problem>,
    ) -> Result<ByEvent, AnalysisError> {
        of_epochs(&self.epochs, events, &self.whose, problems)
    }

    /// The same stacks, apart by scope.
    pub fn stacks_by_scope(
        &self,
        events: &[String],
        problems: &mut Vec<Problem>,
    ) -> Result<ByScope, AnalysisError> {
        by_scope(&self.epochs, events, &self.whose, problems)
    }

    /// The stacks of all events of others of the same epochs.
    ///
    /// # Errors
    /// None, except for those that [`Samples::stacks`] has.
    pub fn stacks_of(
        &self,
        whose: &ScopeChoice,
        problems: &mut Vec<Problem>,
    ) -> Result<ByEvent, AnalysisError> {
        of_epochs(&self.epochs, &[], whose, problems)
    }

    /// What the samples of an event stand for that has no call stacks, such as while dcpid had no
    /// room for stacks in its budget. Whose samples these are is not known: 0, where stacks of some
    /// threads are chosen.
    pub fn without_stacks(&self, event: &str, problems: &mut Vec<Problem>) -> f64 {
        match self.whose.is_by_thread() {
            true => 0.0,
            false => without_stacks(&self.epochs, event, &self.whose, problems),
        }
    }

    /// The unit of an event, with samples or without. Events without are times.
    pub fn unit(&self, event: &str) -> String {
        if event == CALLS {
            return "count".to_owned();
        }
        let mut known = self.epochs.iter().flat_map(|epoch| &epoch.meta().events);
        let event = known.find(|known| known.name == event);
        event.map_or_else(|| "ns".to_owned(), |event| event.unit.clone())
    }
}

pub(crate) fn of_epochs(
    epochs: &[Epoch],
    asked: &[String],
    whose: &ScopeChoice,
    problems: &mut Vec<Problem>,
) -> Result<ByEvent, AnalysisError> {
    let mut sums = ByEvent::new();
    for ((event, _), stacks) in by_scope(epochs, asked, whose, problems)? {
        match sums.get_mut(&event) {
            Some(sum) => sum.merge(&stacks),
            None => drop(sums.insert(event, stacks)),
        }
    }
    Ok(sums)
}

fn by_scope(
    epochs: &[Epoch],
    asked: &[String],
    whose: &ScopeChoice,
    problems: &mut Vec<Problem>,
) -> Result<ByScope, AnalysisError> {
    let keys: Vec<_> = epochs.iter().map(Epoch::stacks_keys).collect();
    let known: Vec<String> = {
        let names = keys.iter().flatten().map(|key| key.event.clone());
        let described = epochs.iter().flat_map(|epoch| &epoch.meta().events);
        let described = described.map(|event| event.name.clone());
        names.chain(described).collect::<BTreeSet<_>>().into_iter().collect()
    };
    let mut wanted = Vec::new();
    let asked = if asked.is_empty() { None } else { Some(asked.join(",")) };
    for asked in asked.iter().flat_map(|asked| profiledb::split_events(asked)) {
        let Some(event) = select::event(asked, &known) else {
            return Err(AnalysisError::NoEvent { asked: asked.to_owned(), known });
        };
        wanted.push(event);
    }
    let mut sums = ByScope::new();
    let of_scope = whose.without_threads();
    let is_wanted = |event| wanted.is_empty() || wanted.contains(&event);
    for (epoch, keys) in epochs.iter().zip(&keys) {
        let admitted = keys.iter().filter(|key| of_scope.admits(&key.scope));
        let events: BTreeSet<&String> = admitted.map(|key| &key.event).collect();
        for event in events.into_iter().filter(|event| is_wanted(event)) {
            let keys = keys.iter().filter(|key| key.event == *event);
            for (scope, stacks) in of_epoch(epoch, event, keys, whose, problems) {
                sums.entry((event.clone(), scope)).or_default().merge(&stacks);
            }
        }
    }
    Ok(sums)
}

/// The stacks of an event in an epoch, by scope. The weights of each slice are scaled so that those
/// of all threads and scopes sum up to the slice's samples: a stack that was dropped has taken its
/// weight with it. Whose the samples of a slice without stacks are is not known.
fn of_epoch<'a>(
    epoch: &Epoch,
    event: &str,
    keys: impl Iterator<Item = &'a StacksKey>,
    whose: &ScopeChoice,
    problems: &mut Vec<Problem>,
) -> BTreeMap<Scope, Stacks> {
    let of_scope = whose.without_threads();
    let keys: Vec<&StacksKey> = keys.filter(|key| of_scope.admits(&key.scope)).collect();
    let of = Sampled { event, whose: &of_scope, idle: idle_images(epoch, problems) };
    let all = of.total(epoch, problems);
    let mut sum = BTreeMap::<Scope, Stacks>::new();
    for (part, sampled) in parts(epoch, all, &of, problems) {
        let (mut found, mut weight) = (Vec::new(), 0.0);
        for key in &keys {
            let mut stacks = match part.stacks(key) {
                Ok(stacks) => stacks,
                Err(error) => {
                    problem::add_unreadable(problems, error);
                    continue;
                }
            };
            weight += busy_weight(&stacks, &of.idle);
            if whose.is_by_thread() {
                stacks.retain_threads(|thread| whose.admits_thread(&key.scope, thread));
                stacks = stacks.canonical(); // without the nodes of other threads
            }
            found.push((key.scope.clone(), stacks));
        }
        if sampled > 0.0 && weight > 0.0 {
            found.iter_mut().for_each(|(_, stacks)| stacks.scale(sampled / weight));
        }
        for (scope, stacks) in found {
            sum.entry(scope).or_default().merge(&stacks);
        }
    }
    sum
}

/// The slices of an epoch, each with its samples; the epoch as a whole, where they do not add up to
/// `all`.
fn parts(
    epoch: &Epoch,
    all: f64,
    of: &Sampled<'_>,
    problems: &mut Vec<Problem>,
) -> Vec<(Epoch, f64)> {
    let whole = || vec![(epoch.clone(), all)];
    let slices = epoch.slices();
    if all <= 0.0 || slices.len() < 2 {
        return whole();
    }
    let slices = slices.into_iter().filter_map(|slice| epoch.during(slice));
    let parts: Vec<(Epoch, f64)> = slices
        .map(|part| {
            let sampled = of.total(&part, problems);
            (part, sampled)
        })
        .collect();
    let sum: f64 = parts.iter().map(|(_, sampled)| sampled).sum();
    if (sum - all).abs() <= 1e-6 * all { parts } else { whole() }
}

/// The weight of an event's samples in the slices that have no stacks of the event.
pub(crate) fn without_stacks(
    epochs: &[Epoch],
    event: &str,
    whose: &ScopeChoice,
    problems: &mut Vec<Problem>,
) -> f64 {
    let of_scope = whose.without_threads();
    let mut sum = 0.0;
    for epoch in epochs {
        let is_of = |key: &StacksKey| key.event == event && of_scope.admits(&key.scope);
        let of = Sampled { event, whose: &of_scope, idle: idle_images(epoch, problems) };
        let all = of.total(epoch, problems);
        for (part, sampled) in parts(epoch, all, &of, problems) {
            sum += if part.stacks_keys().iter().any(is_of) { 0.0 } else { sampled };
        }
    }
    sum
}

/// Samples of an event and of a scope, without those of the idle loops, of which no stacks are
/// taken.
struct Sampled<'a> {
    event: &'a str,
    whose: &'a ScopeChoice,
    idle: BTreeSet<ImageId>,
}

impl Sampled<'_> {
    /// The weight of the samples in an epoch; 0 for an event that is not sampled.
    fn total(&self, epoch: &Epoch, problems: &mut Vec<Problem>) -> f64 {
        let Self { event, whose, idle } = self;
        let keys = epoch.profiles().unwrap_or_else(|error| {
            problem::add_unreadable(problems, error);
            Vec::new()
        });
        let mut total = |wanted: &dyn Fn(&ProfileKey) -> bool| -> f64 {
            let keys = keys.iter().filter(|key| key.name() == *event && wanted(key));
            let of_key = |key: &ProfileKey| {
                let samples = epoch.total(key).unwrap_or_else(|error| {
                    problem::add_unreadable(problems, error);
                    0
                });
                samples as f64 * load::weight(epoch.meta(), event, key.period())
            };
            keys.map(of_key).sum()
        };
        if !whose.is_all() {
            return total(&|key| whose.admits(&key.scope) && !idle.contains(&key.image));
        }
        // Samples of unknown code need not be of an image.
        let of_ledger = |(period, ledger): (u64, &Ledger)| {
            let lost = load::sum(ledger.lost.values().copied());
            ledger.taken.saturating_sub(lost) as f64 * load::weight(epoch.meta(), event, period)
        };
        let all: f64 = epoch.meta().ledgers.of(event).map(of_ledger).sum();
        (all - total(&|key| idle.contains(&key.image))).max(0.0)
    }
}

/// The images that are idle loops.
fn idle_images(epoch: &Epoch, problems: &mut Vec<Problem>) -> BTreeSet<ImageId> {
    let images = epoch.images().unwrap_or_else(|error| {
        problem::add_unreadable(problems, error);
        BTreeMap::new()
    });
    images.into_values().filter(|of| of.kind == ImageKind::Idle).map(|of| of.id).collect()
}

/// The weight of the stacks that do not end in an idle loop.
fn busy_weight(stacks: &Stacks, idle: &BTreeSet<ImageId>) -> f64 {
    if idle.is_empty() {
        return stacks.total().weight as f64;
    }
    let is_idle = |frame| matches!(frame, Frame::Code(id, _) if idle.contains(&id));
    let values = stacks.values();
    let busy = values.filter(|(node, ..)| !stacks.frames(*node).next().is_some_and(is_idle));
    busy.map(|(.., value)| value.weight as f64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::Epochs;
    use image::{ImageKind, ImageOffset};
    use model::{Ledgers, Profile, Thread, Value};
    use profiledb::{Database, Delta, EpochStart, EventMeta, ImageRecord, Writer};

    fn image(number: u8) -> ImageId {
        ImageId::from_build_id(&[number]).unwrap()
    }

    fn record(number: u8, now_unix_s: u64) -> ImageRecord {
        ImageRecord {
            id: image(number),
            kind: ImageKind::File,
            name: format!("i{number}"),
            path: format!("/i{number}"),
            size_bytes: None,
            first_seen_unix_s: now_unix_s,
            last_seen_unix_s: now_unix_s,
        }
    }

    /// A stack of image 2 called by image 1, of this weight.
    fn stacks(weight: u64) -> Stacks {
        let mut stacks = Stacks::new();
        let frames = [1, 2].map(|number| Frame::Code(image(number), ImageOffset(16)));
        stacks.add_stack(frames, &Thread::default(), Value::of_one(weight));
        stacks
    }

    /// Writes an epoch with stacks of a label and of everybody.
    fn write(root: &std::path::Path, now_unix_s: u64) {
        let mut writer = Writer::open(root, "h").unwrap();
        let event = EventMeta { name: "cpu-clock".into(), period: 100, ..EventMeta::default() };
        let start = EpochStart { events: vec![event], now_unix_s, ..EpochStart::default() };
        writer.begin(start, true).unwrap();
        let scope =
            |label: Option<&str>| Scope { label: label.map(Into::into), ..Scope::default() };
        let mut delta = Delta { now_unix_s: now_unix_s + 5, ..Delta::default() };
        for number in [1, 2] {
            delta.images.insert(image(number), record(number, now_unix_s));
        }
        for (event, label, weight) in
            [("cpu-clock", None, 1000), ("cpu-clock", Some("run"), 300), ("off-cpu", None, 7000)]
        {
            let key = StacksKey { event: event.into(), scope: scope(label) };
            delta.stacks.insert(key, stacks(weight));
        }
        for (label, samples) in [(None, 10), (Some("run"), 3)] {
            let key = ProfileKey::samples(image(2), "cpu-clock", 100, scope(label));
            delta.profiles.insert(key, Profile::from_counts([(ImageOffset(16), samples)]).into());
        }
        let mut ledgers = Ledgers::default();
        *ledgers.entry("cpu-clock", 100) = Ledger { taken: 13, merged: 13, ..Ledger::default() };
        writer.merge(&Delta { ledgers, ..delta }).unwrap();
    }

    /// One of two stacks was dropped: the other stands for the samples of both.
    #[test]
    fn stacks_stand_for_the_samples_of_those_that_were_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let db = directory.path().join("db");
        write(&db, 1_763_697_753);
        let epochs = Database::open(&db).unwrap();
        let id = epochs.epochs("h").unwrap().remove(0);
        let epoch = epochs.epoch("h", &id).unwrap();
        let keys = epoch.stacks_keys();
        let weight = |keys: &[StacksKey], whose: &ScopeChoice| {
            let mut problems = Vec::new();
            let of = of_epoch(&epoch, "cpu-clock", keys.iter(), whose, &mut problems);
            assert!(problems.is_empty(), "{problems:?}");
            let totals = of.values().map(Stacks::total);
            totals.fold((0, 0), |sum, of| (sum.0 + of.stacks, sum.1 + of.weight))
        };
        let all = ScopeChoice::default();
        let clocks: Vec<StacksKey> =
            keys.into_iter().filter(|key| key.event == "cpu-clock").collect();
        assert_eq!(weight(&clocks, &all), (2, 1300));
        assert_eq!(weight(&clocks[..1], &all), (1, 1300));
        let run = ScopeChoice { label: Some("run".into()), ..ScopeChoice::default() };
        assert_eq!(weight(&clocks, &run), (1, 300));
        // For one thread: samples left over from other threads are not its own.
        let nobody = ScopeChoice { pid: Some(9), ..ScopeChoice::default() };
        assert_eq!(weight(&clocks, &nobody), (0, 0));
    }

    #[test]
    fn stacks_of_the_chosen_epochs_events_and_scopes_are_added_up() {
        let directory = tempfile::tempdir().unwrap();
        let db = directory.path().join("db");
        [1_763_697_753, 1_763_697_853].into_iter().for_each(|now| write(&db, now));
        let all = Epochs { which: "all".parse().unwrap(), ..Epochs::default() };
        let question = Question { db, epochs: all, ..Question::default() };
        let weights = |question: &Question| {
            let opened = question.opened().unwrap();
            let mut problems = Vec::new();
            let stacks = opened.stacks(&question.events, &mut problems).unwrap();
            assert!(problems.is_empty() && opened.problems.is_empty(), "{problems:?}");
            // Stacks that are read together with samples are the same stacks.
            let samples = question.samples();
            if let Ok(samples) = samples {
                let mut problems = Vec::new();
                let again = samples.stacks(&question.events, &mut problems).unwrap();
                assert!(again == stacks && problems.is_empty());
            }
            let weight = |(event, stacks): (String, Stacks)| (event, stacks.total().weight);
            stacks.into_iter().map(weight).collect::<Vec<_>>()
        };
        let two = |a: u64, b: u64| vec![("cpu-clock".to_owned(), a), ("off-cpu".to_owned(), b)];
        assert_eq!(weights(&question), two(2600, 14_000));
        let latest = Question { epochs: Epochs::default(), ..question.clone() };
        assert_eq!(weights(&latest), two(1300, 7000));
        let off = Question { events: vec!["off-cpu".to_owned()], ..question.clone() };
        assert_eq!(weights(&off), two(0, 14_000)[1..]);
        let whose = |label: &str| ScopeChoice { label: Some(label.into()), ..Default::default() };
        let labelled = Question { whose: whose("run"), ..question.clone() };
        assert_eq!(weights(&labelled), two(600, 0)[..1]);
        let nobody = Question { whose: whose("nobody"), ..question.clone() };
        assert!(matches!(nobody.opened(), Err(AnalysisError::NoScope { .. })));
        let nothing = Question { events: vec!["nothing".to_owned()], ..question };
        let opened = nothing.opened().unwrap();
        let none = opened.stacks(&nothing.events, &mut Vec::new());
        assert!(matches!(none, Err(AnalysisError::NoEvent { .. })));
    }
}
