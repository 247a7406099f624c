//! What the commands of call stacks have in common: reading them, the event, procedures by name.

use std::collections::BTreeSet;

use calls::{
    Calls, Entry, EventCalls, Subject, SubjectId, Subjects, Timed, Tree, TreeNode, USERTIME,
};
use model::{OFF_CPU, RUNNABLE, Stacks};
use names::named;
use names::procedures::Places;
use profiledb::Epoch;
use query::error::AnalysisError;
use query::load::{Question, Samples};
use query::problem::{self, Problem};
use query::scope::ScopeChoice;
use query::select;
use query::stacks::ByEvent;
use report::{Callee, ImageName, OfStacks, Selection, StackEvent, TreeRow};
use stats::Confidence;

use crate::options::{Chosen, Look};

/// The event whose samples are CPU time in ns, on any machine.
const CLOCK: &str = "cpu-clock";

/// Samples and stacks with their procedures.
pub(super) struct Loaded {
    pub(super) samples: Samples,
    pub(super) calls: Calls,
    pub(super) problems: Vec<Problem>,
}

/// Reads the samples and the stacks of a question. Events may be those of stacks only.
///
/// # Errors
/// Those of [`Question::samples`] and [`Samples::stacks`].
pub(super) fn read(
    question: &Question,
    problems: &mut Vec<Problem>,
) -> Result<(Samples, ByEvent), AnalysisError> {
    let whose = &question.whose;
    let of_scope = Question { whose: whose.without_threads(), ..question.clone() };
    let (mut samples, asked) = sampled(&of_scope, problems)?;
    if !whose.is_by_thread() {
        let stacks = samples.stacks(&asked, problems)?;
        return Ok((samples, stacks));
    }
    // Samples by place are of all threads: what is left is told by stacks alone.
    samples.events.clear();
    samples.images.clear();
    let all = samples.whose.clone();
    samples.whose = ScopeChoice {
        pid: whose.pid,
        command: whose.command.clone(),
        thread: whose.thread.clone(),
        tids: whose.tids.clone(),
        ..all.clone()
    };
    let mut stacks = samples.stacks(&asked, problems)?;
    stacks.retain(|_, stacks| !stacks.is_empty());
    if stacks.is_empty() && any(&samples) {
        let chosen = std::mem::replace(&mut samples.whose, all);
        let stacks = samples.stacks(&asked, problems)?;
        let threads = stacks.values().flat_map(Stacks::values).map(|(_, thread, _)| thread);
        return Err(chosen.no_threads(&threads.collect()));
    }
    Ok((samples, stacks))
}

/// The unit of an event. Events that are not sampled are times.
pub(super) fn unit(samples: &Samples, event: &str) -> String {
    let mut known = samples.epochs.iter().flat_map(|epoch| &epoch.meta().events);
    let event = known.find(|known| known.name == event);
    event.map_or_else(|| "ns".to_owned(), |event| event.unit.clone())
}

/// Whether the event is time in which threads did not run.
pub(super) fn is_wait(event: &str) -> bool {
    event == OFF_CPU || event == RUNNABLE
}

/// Samples of the events asked for that have any, and the names of all events asked for.
///
/// # Errors
/// Those of [`Question::samples`].
pub(super) fn sampled(
    question: &Question,
    problems: &mut Vec<Problem>,
) -> Result<(Samples, Vec<String>), AnalysisError> {
    let events = question.events.join(",");
    let asked = profiledb::split_events(&events).filter(|event| !event.is_empty());
    let asked: Vec<String> = asked.map(str::to_owned).collect();
    let mut samples = with_samples(question, asked.clone())?;
    problems.append(&mut samples.problems);
    Ok((samples, asked))
}

/// Samples of the events asked for that have any.
fn with_samples(question: &Question, mut asked: Vec<String>) -> Result<Samples, AnalysisError> {
    loop {
        let question = Question { events: asked.clone(), ..question.clone() };
        match question.samples() {
            Err(AnalysisError::NoEvent { asked: unknown, known }) if asked.contains(&unknown) => {
                asked.retain(|event| *event != unknown);
                if !asked.is_empty() {
                    continue;
                }
                // Epochs and scope are the same whatever event is read; its samples go.
                let events = known.into_iter().take(1).collect();
                let mut samples = Question { events, ..question }.samples()?;
                samples.events.clear();
                samples.images.clear();
                return Ok(samples);
            }
            found => return found,
        }
    }
}

/// Whether the epochs have stacks: they are not read.
pub(super) fn any(samples: &Samples) -> bool {
    samples.epochs.iter().any(|epoch| !epoch.stacks_keys().is_empty())
}

/// The stacks of these events, or of all, by scope.
///
/// # Errors
/// [`AnalysisError::NoEvent`] for an event that has neither samples nor stacks.
pub(super) fn by_scope(
    samples: &Samples,
    events: &[String],
    problems: &mut Vec<Problem>,
) -> Result<export::stacks::ByEvent, AnalysisError> {
    let mut known: Vec<String> = samples.events.iter().map(|event| event.name.clone()).collect();
    known.extend(samples.epochs.iter().flat_map(Epoch::stacks_keys).map(|key| key.event));
    let mut wanted = BTreeSet::new();
    for asked in events {
        match select::event(asked, &known) {
            Some(event) => wanted.insert(event.clone()),
            None => return Err(AnalysisError::NoEvent { asked: asked.clone(), known }),
        };
    }
    let mut stacks = export::stacks::ByEvent::new();
    for epoch in &samples.epochs {
        let keys = epoch.stacks_keys().into_iter().filter(|key| samples.whose.admits(&key.scope));
        for key in keys.filter(|key| events.is_empty() || wanted.contains(&key.event)) {
            match epoch.stacks(&key) {
                Ok(found) => {
                    stacks.entry((key.event, key.scope)).or_default().merge(&found);
                }
                Err(error) => problem::add_unreadable(problems, error),
            }
        }
    }
    Ok(stacks)
}

impl Loaded {
    /// Reads what was chosen, of all images: a procedure's callers may be in any.
    ///
    /// # Errors
    /// Those of [`read`]; [`AnalysisError::Refused`] where there are no stacks.
    pub(super) fn of(question: &Question, look: &Look) -> Result<Self, AnalysisError> {
        if question.events.iter().any(|event| event == USERTIME) {
            return Self::usertime(question, look);
        }
        Self::if_any(question, look)?.ok_or_else(no_stacks)
    }

    /// The same; None where there are no stacks.
    ///
    /// # Errors
    /// Those of [`read`].
    pub(super) fn if_any(question: &Question, look: &Look) -> Result<Option<Self>, AnalysisError> {
        let mut problems = Vec::new();
        let (samples, stacks) = read(question, &mut problems)?;
        if stacks.values().all(Stacks::is_empty) {
            return Ok(None);
        }
        let everything = samples.whose.is_all();
        let places = Places::with_debug_roots(look.debug_root.clone());
        let with = (look.idle, everything);
        let calls = calls::load(&samples, &stacks, with, &places, &mut problems);
        Ok(Some(Self { samples, calls, problems }))
    }

    /// Wall-clock time as SpeedShop's `usertime` has it.
    fn usertime(question: &Question, look: &Look) -> Result<Self, AnalysisError> {
        if question.events.len() > 1 {
            let message = format!("{USERTIME} is the sum of other events: name it alone");
            return Err(AnalysisError::Usage { message, help: "dcpi prof --help".to_owned() });
        }
        let parts = [CLOCK, OFF_CPU, RUNNABLE].map(str::to_owned).to_vec();
        let mut parts_of = Question { events: parts, ..question.clone() };
        // An epoch without waits, or without the clock, has the rest.
        let mut loaded = loop {
            match Self::if_any(&parts_of, look) {
                Err(AnalysisError::NoEvent { asked, .. }) if parts_of.events.contains(&asked) => {
                    parts_of.events.retain(|event| *event != asked);
                    if parts_of.events.is_empty() {
                        return Err(no_stacks());
                    }
                }
                found => break found?.ok_or_else(no_stacks)?,
            }
        };
        let usertime = loaded.calls.usertime(CLOCK).ok_or_else(no_stacks)?;
        loaded.calls.events = vec![usertime];
        loaded.forget_samples();
        Ok(loaded)
    }

    /// Samples are of all threads of a process, and of one event.
    fn forget_samples(&mut self) {
        self.calls.forget_samples();
        self.samples.events.clear();
        self.samples.images.clear();
    }

    /// The events that were asked for; else the first that has samples.
    ///
    /// # Errors
    /// [`AnalysisError::NoEvent`].
    pub(super) fn events(&self, chosen: &Chosen) -> Result<Vec<EventCalls>, AnalysisError> {
        let events = &self.calls.events;
        if chosen.events.is_empty() {
            let first = events
                .iter()
                .min_by_key(|event| (is_wait(&event.name), event.sampled.unwrap_or(usize::MAX)));
            return Ok(first.into_iter().cloned().collect());
        }
        let known: Vec<String> = events.iter().map(|event| event.name.clone()).collect();
        let mut found: Vec<EventCalls> = Vec::new();
        let asked = chosen.events.join(",");
        for asked in profiledb::split_events(&asked) {
            let event = select::event(asked, &known)
                .and_then(|name| events.iter().find(|event| event.name == *name));
            match event {
                Some(event) if found.iter().any(|known| known.name == event.name) => {}
                Some(event) => found.push(event.clone()),
                None => return Err(AnalysisError::NoEvent { asked: asked.to_owned(), known }),
            }
        }
        Ok(found)
    }

    /// The one event of a report of one event.
    ///
    /// # Errors
    /// [`AnalysisError::NoEvent`]; [`AnalysisError::Usage`] where several were asked for.
    pub(super) fn event(&self, chosen: &Chosen) -> Result<EventCalls, AnalysisError> {
        let mut events = self.events(chosen)?;
        match (events.pop(), events.is_empty()) {
            (Some(event), true) => Ok(event),
            (Some(_), false) => {
                let message = "this report is of one event: name one with --event".to_owned();
                Err(AnalysisError::Usage { message, help: "dcpi help".to_owned() })
            }
            (None, _) => Err(no_stacks()),
        }
    }

    /// The hosts, in words.
    pub(super) fn hosts(&self) -> String {
        let epochs = self.samples.epochs.iter();
        let hosts: BTreeSet<&str> = epochs.map(|epoch| epoch.meta().host.as_str()).collect();
        hosts.into_iter().collect::<Vec<_>>().join(", ")
    }

    /// The unit of an event's times.
    pub(super) fn unit(&self, event: &EventCalls) -> String {
        unit(&self.samples, &event.name)
    }

    /// What a report is of.
    pub(super) fn head(
        &self,
        event: &EventCalls,
        timed: &Timed,
        confidence: Confidence,
    ) -> OfStacks {
        let samples = &self.samples;
        let epochs = samples.epochs.iter().map(|epoch| epoch.meta().clone()).collect();
        let contexts = &event.contexts;
        let (mut whole, mut all, mut stacks) = (0.0, 0.0, 0_u64);
        for entry in contexts.entries() {
            let weight = entry.value.weight as f64;
            let is_cut = self.begins_cut(event, entry);
            whole += if is_cut { 0.0 } else { weight };
            all += weight;
            stacks = stacks.saturating_add(entry.value.stacks);
        }
        OfStacks {
            selection: Selection { db: samples.db.root().display().to_string(), epochs },
            event: StackEvent {
                name: event.name.clone(),
                unit: self.unit(event),
                total: timed.whole().occurrences,
                stacks,
                whole: if all > 0.0 { whole / all } else { 0.0 },
                is_sampled: timed.is_sampled(),
            },
            whose: samples.whose.clone(),
            confidence,
        }
    }

    /// Whether the first frames of a stack are not known.
    fn begins_cut(&self, event: &EventCalls, entry: &Entry) -> bool {
        let first = event.contexts.path(entry.node).last();
        let subject = first.and_then(|(_, subject)| self.calls.subjects.get(subject));
        matches!(subject, Some(Subject::Cut(_)))
    }

    /// The procedure that one or two words name: PROCEDURE, or IMAGE and PROCEDURE.
    ///
    /// # Errors
    /// [`AnalysisError::NoImage`], [`AnalysisError::NoProcedure`],
    /// [`AnalysisError::AmbiguousProcedure`].
    pub(super) fn procedure(&self, words: &[String]) -> Result<SubjectId, AnalysisError> {
        let subjects = &self.calls.subjects;
        let (image, asked) = match words {
            [image, asked] => (Some(image), asked.as_str()),
            words => (None, words.first().map(String::as_str).unwrap_or_default()),
        };
        let records = subjects.images().iter().map(|image| &image.record);
        let wanted = image.map(|image| select::images(std::slice::from_ref(image), records));
        let wanted = wanted.transpose()?;
        let is_wanted = |subject: &Subject| match (&wanted, subjects.image(subject)) {
            (None, _) => true,
            (Some(ids), Some(image)) => ids.contains(&image.record.id),
            (Some(_), None) => false,
        };
        let candidates: Vec<(SubjectId, &Subject, String)> = (0..)
            .zip(subjects.iter())
            .filter(|(_, (subject, _))| is_wanted(subject))
            .map(|(number, (subject, _))| (number, subject, subject.name()))
            .collect();
        let mut found = match named::address(asked) {
            Some(address) => by_address(&candidates, address),
            None => named::best(candidates.iter().map(|(.., name)| name.as_str()), asked),
        };
        // What a text means part of is rather code than words in brackets.
        if found.len() > 1 {
            let is_code = |at: &usize| {
                candidates.get(*at).is_some_and(|(_, subject, _)| subject.address().is_some())
            };
            if found.iter().any(is_code) {
                found.retain(is_code);
            }
        }
        match found.as_slice() {
            [one] => Ok(candidates.get(*one).map_or(0, |(number, ..)| *number)),
            [] => Err(AnalysisError::NoProcedure {
                asked: asked.to_owned(),
                image: image.cloned().unwrap_or_else(|| "any image".to_owned()),
                why: String::new(),
            }),
            several => {
                let known = several.iter().filter_map(|at| candidates.get(*at));
                let known = known.map(|(_, subject, name)| shown(subjects, subject, name));
                Err(AnalysisError::AmbiguousProcedure {
                    asked: asked.to_owned(),
                    known: known.collect(),
                })
            }
        }
    }
}

/// The procedures that begin at the address, in each image.
fn by_address(candidates: &[(SubjectId, &Subject, String)], address: u64) -> Vec<usize> {
    let exact = |(at, (_, subject, _)): (usize, &(SubjectId, &Subject, String))| {
        (subject.address() == Some(address)).then_some(at)
    };
    candidates.iter().enumerate().filter_map(exact).collect()
}

/// `parse [0x1040 of app]`.
fn shown(subjects: &Subjects, subject: &Subject, name: &str) -> String {
    let image = subjects.image(subject);
    let image = image.map(|image| format!(" of {} {}", image.record.name, image.record.id));
    let address = subject.address().map(|at| format!("{at:#x}")).unwrap_or_default();
    format!("{name} [{address}{}]", image.unwrap_or_default())
}

/// A subject as reports have it.
pub(super) fn callee(subjects: &Subjects, number: SubjectId) -> Callee {
    let Some(subject) = subjects.get(number) else {
        return Callee { name: "[unknown]".to_owned(), address: None, image: None };
    };
    let image = subjects.image(subject).map(|image| {
        let record = &image.record;
        let is_unresolved = record.kind == image::ImageKind::Unresolved;
        let path = if is_unresolved { String::new() } else { record.path.clone() };
        let (id, kind, name) = (record.id, record.kind, record.name.clone());
        ImageName { id, kind, name, path, ambiguous: image.ambiguous }
    });
    Callee { name: subject.name(), address: subject.address(), image }
}

/// The rows of a tree whose shares are of `total`.
pub(super) fn tree_rows(tree: &Tree, subjects: &Subjects, total: f64) -> Vec<TreeRow> {
    let row = |node: &TreeNode| TreeRow {
        procedure: callee(subjects, node.subject),
        depth: node.depth,
        parent: node.parent,
        time: node.estimate.time,
        share: node.estimate.share,
        own: node.own / total.max(f64::MIN_POSITIVE),
    };
    tree.nodes.iter().map(row).collect()
}

/// The error of epochs without stacks.
pub(super) fn no_stacks() -> AnalysisError {
    AnalysisError::Refused(
        "these epochs have no call stacks; dcpid takes them unless it runs with --stacks off, and \
         dcpi epochs lists other epochs"
            .to_owned(),
    )
}
