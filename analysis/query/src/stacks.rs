//! Call stacks of the selected epochs: trees of frames by event.

use std::collections::{BTreeMap, BTreeSet};

use image::ImageId;
use model::{Frame, Stacks};
use profiledb::Epoch;

use crate::error::AnalysisError;
use crate::load::{ImageSamples, Question, Samples, opening_scope};
use crate::problem::{self, Problem};
use crate::scope::ScopeChoice;
use crate::select;

/// Stacks by the name of their event: `cpu-clock`, `off-cpu`.
pub type ByEvent = BTreeMap<String, Stacks>;

impl Question {
    /// Reads the call stacks and nothing else. An image that is asked for selects nothing here: a
    /// stack has frames of several.
    ///
    /// # Errors
    /// Those of [`select::open`]; [`AnalysisError::NoScope`], and
    /// [`AnalysisError::NoEvent`] for an event that the epochs do not have.
    pub fn stacks(&self) -> Result<(ByEvent, Vec<Problem>), AnalysisError> {
        let (db, chosen) = select::open(&self.db, &self.epochs)?;
        let mut problems = Vec::new();
        let epochs = crate::load::open(&db, &chosen, &mut problems)?;
        let whose = opening_scope(&epochs, &self.asked(), &mut problems);
        let scopes = epochs.iter().flat_map(Epoch::stacks_keys).map(|key| key.scope);
        let scopes: BTreeSet<_> = scopes.collect();
        if !scopes.is_empty() {
            let of_scope = whose.without_threads();
            of_scope.check(scopes.iter()).map_err(|error| whose.hinted(error, &db, &chosen))?;
        }
        let stacks = of_epochs(&epochs, &self.events, &whose, &mut problems)?;
        Ok((stacks, problems))
    }
}

impl Samples {
    /// The call stacks of the same state of the same epochs, and of the same processes: of these
    /// events, the database's names or perf's, or of all.
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

    /// The images that these stacks have frames of and [`Samples::images`] does not have, for their
    /// names. They have no samples of their own here.
    pub fn callers(&self, stacks: &ByEvent, problems: &mut Vec<Problem>) -> Vec<ImageSamples> {
        let frames = stacks.values().flat_map(Stacks::distinct_frames);
        let mut missing: BTreeSet<ImageId> = frames
            .filter_map(|frame| match frame {
                Frame::Code(image, _) => Some(*image),
                Frame::Cut(_) | Frame::Wait(_) => None,
            })
            .collect();
        missing.retain(|id| self.images.iter().all(|image| image.record.id != *id));
        let mut callers: BTreeMap<ImageId, ImageSamples> = BTreeMap::new();
        for (at, epoch) in self.epochs.iter().enumerate() {
            let records = epoch.images().unwrap_or_else(|error| {
                problem::add_unreadable(problems, error);
                BTreeMap::new()
            });
            for record in records.values().filter(|record| missing.contains(&record.id)) {
                let image = callers
                    .entry(record.id)
                    .or_insert_with(|| ImageSamples::none(record, self.events.len()));
                image.meet(record, at);
            }
        }
        callers.into_values().collect()
    }
}

pub(crate) fn of_epochs(
    epochs: &[Epoch],
    asked: &[String],
    whose: &ScopeChoice,
    problems: &mut Vec<Problem>,
) -> Result<ByEvent, AnalysisError> {
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
    let mut sums = ByEvent::new();
    for (epoch, keys) in epochs.iter().zip(&keys) {
        let is_wanted = |event| wanted.is_empty() || wanted.contains(&event);
        let of_scope = whose.without_threads();
        for key in keys.iter().filter(|key| is_wanted(&key.event) && of_scope.admits(&key.scope)) {
            let narrowed = epoch.stacks(key).map(|mut stacks| {
                if whose.is_by_thread() {
                    stacks.retain_threads(|thread| whose.admits_thread(&key.scope, thread));
                    stacks = stacks.canonical(); // without the nodes of other threads
                }
                stacks
            });
            match narrowed {
                Ok(stacks) => sums.entry(key.event.clone()).or_default().merge(&stacks),
                Err(error) => problem::add_unreadable(problems, error),
            }
        }
    }
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::Epochs;
    use image::{ImageKind, ImageOffset};
    use model::{Ledger, Ledgers, Profile, Thread, Value};
    use profiledb::{
        Delta, EpochStart, EventMeta, ImageRecord, ProfileKey, Scope, StacksKey, Writer,
    };

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
        let event = EventMeta { name: "cpu-clock".into(), period: 9, ..EventMeta::default() };
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
        for label in [None, Some("run")] {
            let key = ProfileKey::samples(image(2), "cpu-clock", 9, scope(label));
            delta.profiles.insert(key, Profile::from_counts([(ImageOffset(16), 4)]).into());
        }
        let mut ledgers = Ledgers::default();
        *ledgers.entry("cpu-clock", 9) = Ledger { taken: 8, merged: 8, ..Ledger::default() };
        writer.merge(&Delta { ledgers, ..delta }).unwrap();
    }

    #[test]
    fn stacks_of_the_chosen_epochs_events_and_scopes_are_added_up() {
        let directory = tempfile::tempdir().unwrap();
        let db = directory.path().join("db");
        [1_763_697_753, 1_763_697_853].into_iter().for_each(|now| write(&db, now));
        let all = Epochs { which: "all".parse().unwrap(), ..Epochs::default() };
        let question = Question { db, epochs: all, ..Question::default() };
        let weights = |question: &Question| {
            let (stacks, problems) = question.stacks().unwrap();
            assert!(problems.is_empty(), "{problems:?}");
            // Stacks that are read together with samples are the same stacks.
            let samples = question.samples();
            if let Ok(samples) = samples {
                let mut problems = Vec::new();
                let again = samples.stacks(&question.events, &mut problems).unwrap();
                assert!(again == stacks && problems.is_empty());
                let callers = samples.callers(&stacks, &mut problems);
                let callers: Vec<_> =
                    callers.iter().map(|image| image.record.name.as_str()).collect();
                assert_eq!(callers, ["i1"]);
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
        assert!(matches!(nobody.stacks(), Err(AnalysisError::NoScope { .. })));
        let nothing = Question { events: vec!["nothing".to_owned()], ..question };
        assert!(matches!(nothing.stacks(), Err(AnalysisError::NoEvent { .. })));
    }
}
