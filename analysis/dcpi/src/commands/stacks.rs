//! What the commands of call stacks have in common: reading them, the event, procedures by name.

use std::collections::{BTreeMap, BTreeSet};

use calls::{
    ByCalls, Calls, Entry, EventCalls, Roots, Subject, SubjectId, Subjects, Timed, USERTIME,
};
use model::{CALLS, OFF_CPU, RUNNABLE, Stacks};
use names::interpreted::{self, Sure};
use names::named;
use names::procedures::{Places, Rows};
use profiledb::Epoch;
use query::error::AnalysisError;
use query::load::{EventSamples, Question, Samples};
use query::problem::{self, INLINED, Problem};
use query::scope::ScopeChoice;
use query::select;
use query::stacks::ByEvent;
use report::{Callee, ImageName, OfStacks, Selection, StackEvent};
use stats::Confidence;

use super::builds;
use crate::options::{Chosen, DisplayArgs};

/// The event of CPU time in ns, on any machine.
pub(super) const CLOCK: &str = "cpu-clock";

/// How procedures are named, and whether functions that are inlined into them are rows.
pub(super) type Look<'a> = (&'a DisplayArgs, Rows);

/// The rows of a report of call stacks; with `no_inlined` only procedures.
pub(super) const fn functions(no_inlined: bool) -> Rows {
    if no_inlined { Rows::Procedures } else { Rows::Functions }
}

/// Samples and stacks with their procedures.
pub(super) struct Loaded {
    pub(super) samples: Samples,
    pub(super) calls: Calls,
    pub(super) problems: Vec<Problem>,
}

/// Reads the samples and the stacks of a question. Events may be those of stacks only. For some
/// threads there are only stacks.
pub(super) fn read(
    question: &Question,
    problems: &mut Vec<Problem>,
) -> Result<(Samples, ByEvent), AnalysisError> {
    if question.whose.is_by_thread() {
        return read_alone(question, problems);
    }
    let (samples, mut asked) = sampled(question, problems)?;
    let is_exact = !asked.is_empty() && samples.events.iter().any(EventSamples::is_exact);
    let mut keys = samples.epochs.iter().flat_map(Epoch::stacks_keys);
    // Numbers of calls divide exact counts.
    if is_exact && keys.any(|key| key.event == CALLS) {
        asked.push(CALLS.to_owned());
    }
    let stacks = samples.stacks(&asked, problems)?;
    Ok((samples, stacks))
}

/// Reads the stacks alone, of the threads that the question chooses.
///
/// # Errors
/// Returns the errors of [`Question::opened`] and [`Samples::stacks`]; [`AnalysisError::NoScope`]
/// for threads without stacks.
pub(super) fn read_alone(
    question: &Question,
    problems: &mut Vec<Problem>,
) -> Result<(Samples, ByEvent), AnalysisError> {
    let samples = opened(question, problems)?;
    let mut stacks = samples.stacks(&asked(question), problems)?;
    stacks.retain(|_, stacks| !stacks.is_empty());
    if stacks.is_empty() && samples.whose.is_by_thread() && any(&samples) {
        return Err(no_threads(&samples, problems)?);
    }
    Ok((samples, stacks))
}

/// The epochs, and the scope with the threads that the question chooses.
pub(super) fn opened(
    question: &Question,
    problems: &mut Vec<Problem>,
) -> Result<Samples, AnalysisError> {
    let whose = question.whose.clone();
    let of_scope = Question { whose: whose.without_threads(), ..question.clone() };
    let mut samples = of_scope.opened()?;
    problems.append(&mut samples.problems);
    let ScopeChoice { pid, command, thread, tids, attributes, .. } = whose;
    samples.whose = ScopeChoice { pid, command, thread, tids, attributes, ..samples.whose };
    Ok(samples)
}

/// The error of threads without stacks: it names those that have some.
pub(super) fn no_threads(
    samples: &Samples,
    problems: &mut Vec<Problem>,
) -> Result<AnalysisError, AnalysisError> {
    let all = samples.stacks_of(&samples.whose.without_threads(), problems)?;
    let threads = all.values().flat_map(Stacks::values).map(|(_, thread, _)| thread);
    Ok(samples.whose.no_threads(&threads.collect()))
}

/// The events of `usertime` that the epochs have stacks of; none where they have no stacks.
pub(super) fn usertime_parts(epochs: &[Epoch]) -> Vec<String> {
    let keys = epochs.iter().flat_map(Epoch::stacks_keys).map(|key| key.event);
    let known: BTreeSet<String> = keys.collect();
    [CLOCK, OFF_CPU, RUNNABLE].into_iter().filter_map(|of| known.get(of).cloned()).collect()
}

/// The requested events, split up.
pub(super) fn asked(question: &Question) -> Vec<String> {
    let events = question.events.join(",");
    let asked = profiledb::split_events(&events).filter(|event| !event.is_empty());
    asked.map(str::to_owned).collect()
}

/// Whether the event is time in which threads did not run.
pub(super) fn is_wait(event: &str) -> bool {
    event == OFF_CPU || event == RUNNABLE
}

/// Samples of the events asked for that have any, and the names of all events asked for.
pub(super) fn sampled(
    question: &Question,
    problems: &mut Vec<Problem>,
) -> Result<(Samples, Vec<String>), AnalysisError> {
    let asked = asked(question);
    let mut samples = with_samples(question, asked.clone())?;
    problems.append(&mut samples.problems);
    Ok((samples, asked))
}

/// Samples of the events asked for that have any.
fn with_samples(question: &Question, mut asked: Vec<String>) -> Result<Samples, AnalysisError> {
    loop {
        let question = Question { events: asked.clone(), ..question.clone() };
        match question.samples() {
            Err(
                AnalysisError::NoEvent { asked: unknown, .. }
                | AnalysisError::StacksOnly { event: unknown },
            ) if asked.contains(&unknown) => {
                asked.retain(|event| *event != unknown);
                if !asked.is_empty() {
                    continue;
                }
                return question.opened();
            }
            found => return found,
        }
    }
}

/// Whether the epochs have stacks: they are not read.
pub(super) fn any(samples: &Samples) -> bool {
    samples.epochs.iter().any(|epoch| !epoch.stacks_keys().is_empty())
}

impl Loaded {
    /// Reads the chosen samples of all images, because a procedure's callers may be in any image.
    ///
    /// # Errors
    /// Returns the errors of [`read`]; [`AnalysisError::Refused`] where there are no stacks.
    pub(super) fn of(question: &Question, look: Look<'_>) -> Result<Self, AnalysisError> {
        if question.events.iter().any(|event| event == USERTIME) {
            return Self::usertime(question, look);
        }
        let (found, damage) = Self::or_damage(question, look)?;
        found.ok_or_else(|| {
            let waits = question.events.iter().all(|event| is_wait(event));
            let none = if !question.events.is_empty() && waits { no_waits() } else { no_stacks() };
            none.beside(damage)
        })
    }

    /// The same, None where there are no stacks; and what could not be read.
    fn or_damage(
        question: &Question,
        look: Look<'_>,
    ) -> Result<(Option<Self>, Option<String>), AnalysisError> {
        let mut problems = Vec::new();
        let (samples, stacks) = read(question, &mut problems)?;
        let damage = problem::damage(&problems);
        Ok((Self::named(samples, &stacks, look, problems), damage))
    }

    /// Names the procedures; None where there are no stacks.
    fn named(
        mut samples: Samples,
        stacks: &ByEvent,
        (look, rows): Look<'_>,
        mut problems: Vec<Problem>,
    ) -> Option<Self> {
        if stacks.values().all(Stacks::is_empty) {
            return None;
        }
        let everything = samples.whose.is_all();
        let places = Places::with_debug_roots(look.debug_root.clone());
        let with = (look.idle, everything);
        interpreted::divide(&mut samples, &places, Sure::Functions);
        let divided = interpreted::without_loops(&samples, stacks, &mut problems);
        let stacks = divided.as_ref().unwrap_or(stacks);
        let calls = calls::load(&samples, stacks, with, (rows, &places), &mut problems);
        Some(Self { samples, calls, problems })
    }

    /// Wall-clock time as SpeedShop's `usertime` has it.
    fn usertime(question: &Question, look: Look<'_>) -> Result<Self, AnalysisError> {
        if question.events.len() > 1 {
            let message = format!("{USERTIME} is the sum of other events: name it alone");
            return Err(AnalysisError::Usage { message, help: "dcpi prof --help".to_owned() });
        }
        let parts = [CLOCK, OFF_CPU, RUNNABLE].map(str::to_owned).to_vec();
        let mut parts_of = Question { events: parts, ..question.clone() };
        // An epoch without waits, or without the clock, has the rest.
        let mut loaded = loop {
            match Self::or_damage(&parts_of, look) {
                Err(AnalysisError::NoEvent { asked, .. }) if parts_of.events.contains(&asked) => {
                    parts_of.events.retain(|event| *event != asked);
                    if parts_of.events.is_empty() {
                        return Err(no_stacks());
                    }
                }
                found => {
                    let (found, damage) = found?;
                    break found.ok_or_else(|| no_stacks().beside(damage))?;
                }
            }
        };
        let usertime = loaded.calls.usertime(CLOCK).ok_or_else(no_stacks)?;
        loaded.calls.events = vec![usertime];
        loaded.forget_samples();
        Ok(loaded)
    }

    /// Samples are of all threads of a process, and of one event.
    pub(super) fn forget_samples(&mut self) {
        self.calls.forget_samples();
        self.samples.events.clear();
        self.samples.images.clear();
    }

    /// The events that were asked for; else the first that has samples.
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
            (None, _) => Err(no_stacks().beside(problem::damage(&self.problems))),
        }
    }

    pub(super) fn hosts(&self) -> String {
        let epochs = self.samples.epochs.iter();
        let hosts: BTreeSet<&str> = epochs.map(|epoch| epoch.meta().host.as_str()).collect();
        hosts.into_iter().collect::<Vec<_>>().join(", ")
    }

    pub(super) fn unit(&self, event: &EventCalls) -> String {
        self.samples.unit(&event.name)
    }

    /// The event that was counted exactly, as were the calls, with its index among those of the
    /// samples: the one that was asked for, else the first where no event has stacks. None where
    /// stacks or other events are meant.
    pub(super) fn counted(&self, chosen: &Chosen) -> Option<(usize, ByCalls)> {
        let asked = chosen.events.join(",");
        let is_meant = |event: &EventSamples| match chosen.events.is_empty() {
            true => self.calls.events.iter().all(|event| event.name == CALLS),
            false => event.name == asked,
        };
        let events = &self.samples.events;
        let at = events.iter().position(|event| event.is_exact() && is_meant(event))?;
        Some((at, self.calls.by_calls(at)?))
    }

    /// The subject of a report on exact counts.
    pub(super) fn counted_head(
        &self,
        (at, by_calls): (usize, &ByCalls),
        confidence: Confidence,
    ) -> OfStacks {
        let event = self.samples.events.get(at);
        let event = StackEvent {
            name: event.map(|event| event.name.clone()).unwrap_or_default(),
            unit: event.map(|event| event.unit.clone()).unwrap_or_default(),
            total: event.map_or(0.0, |event| event.taken.occurrences),
            stacks: by_calls.calls(),
            whole: 1.0,
            lent: 0.0,
            sampled: false,
            counted: true,
        };
        self.of_event(event, confidence)
    }

    fn of_event(&self, event: StackEvent, confidence: Confidence) -> OfStacks {
        let samples = &self.samples;
        let epochs = samples.epochs.iter().map(|epoch| epoch.meta().clone()).collect();
        OfStacks {
            selection: Selection { db: samples.db.root().display().to_string(), epochs },
            event,
            whose: samples.whose.clone(),
            confidence,
        }
    }

    pub(super) fn head(
        &self,
        event: &EventCalls,
        timed: &Timed,
        confidence: Confidence,
    ) -> OfStacks {
        let contexts = &event.contexts;
        let (mut whole, mut all, mut stacks) = (0.0, 0.0, 0_u64);
        // Samples without a stack are in the contexts of samples.
        for entry in contexts.entries().iter().filter(|entry| entry.value.stacks > 0) {
            let weight = entry.value.weight as f64;
            let known = if self.begins_cut(event, entry) { 0.0 } else { weight };
            (whole, all) = (whole + known, all + weight);
            stacks = stacks.saturating_add(entry.value.stacks);
        }
        let event = StackEvent {
            name: event.name.clone(),
            unit: self.unit(event),
            total: timed.whole().occurrences,
            stacks,
            whole: if all > 0.0 { whole / all } else { 0.0 },
            lent: timed.lent(),
            sampled: timed.is_sampled(),
            counted: false,
        };
        self.of_event(event, confidence)
    }

    /// Whether the first frames of a stack are not known.
    fn begins_cut(&self, event: &EventCalls, entry: &Entry) -> bool {
        let first = event.contexts.path(entry.node).last();
        let subject = first.and_then(|(_, subject)| self.calls.subjects.get(subject));
        matches!(subject, Some(Subject::Cut(_)))
    }

    /// The procedure that one or two words name: PROCEDURE, or IMAGE and PROCEDURE. Of several the
    /// one that the event has, and of those of one command the one in the image of its name; a
    /// procedure rather than the function of the same name that is inlined into others.
    pub(super) fn procedure(
        &mut self,
        words: &[String],
        event: &EventCalls,
    ) -> Result<SubjectId, AnalysisError> {
        let subjects = &self.calls.subjects;
        let (image, asked) = match words {
            [image, asked] => (Some(image), asked.as_str()),
            words => (None, words.first().map(String::as_str).unwrap_or_default()),
        };
        let (asked, only_inlined) = match asked.strip_suffix(INLINED) {
            Some(asked) => (asked, true),
            None => (asked, false),
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
            .filter(|(_, (subject, _))| !only_inlined || is_inlined(subject))
            .map(|(number, (subject, _))| (number, subject, subject.name()))
            .collect();
        let (mut found, is_partial) = match named::address(asked) {
            Some(address) => (by_address(&candidates, address), false),
            None => named::best(candidates.iter().map(|(.., name)| name.as_str()), asked),
        };
        let also_inlined = self.prefer(&mut found, &candidates, event);
        match found.as_slice() {
            [one] => {
                let (number, _, name) = candidates.get(*one).ok_or_else(no_stacks)?;
                let (number, name) = (*number, name.clone());
                if is_partial {
                    let (asked, name) = (asked.to_owned(), name.clone());
                    self.problems.push(Problem::PartOfName { asked, name });
                }
                if also_inlined {
                    self.problems.push(Problem::AlsoInlined { name });
                }
                Ok(number)
            }
            [] => Err(AnalysisError::NoProcedure {
                asked: asked.to_owned(),
                image: image.cloned().unwrap_or_else(|| "any image".to_owned()),
                why: String::new(),
            }),
            several => {
                let known = || several.iter().filter_map(|at| candidates.get(*at));
                let images: Vec<_> =
                    known().filter_map(|(_, subject, _)| subjects.image(subject)).collect();
                if images.len() == several.len()
                    && let Some(why) =
                        builds::apart(asked, images.into_iter().map(|one| &one.record))
                {
                    return Err(AnalysisError::Refused(why));
                }
                let known = known().map(|(_, subject, name)| shown(subjects, subject, name));
                Err(AnalysisError::AmbiguousProcedure {
                    asked: asked.to_owned(),
                    known: known.collect(),
                    next: "put the image before it, or the id of one build, or name it by its address",
                })
            }
        }
    }
}

const fn is_inlined(subject: &Subject) -> bool {
    matches!(subject, Subject::Inlined { .. })
}

impl Loaded {
    /// Leaves of several candidates those that are rather meant: code, which the event has, in the
    /// image of the command; of one name the procedure. True if that is also inlined into others.
    fn prefer(
        &self,
        found: &mut Vec<usize>,
        candidates: &[(SubjectId, &Subject, String)],
        event: &EventCalls,
    ) -> bool {
        let called: BTreeSet<SubjectId> =
            event.contexts.nodes().map(|(_, subject)| subject).collect();
        let command = self.samples.whose.command.as_deref();
        let is_of_command = |subject: &Subject| {
            let image = self.calls.subjects.image(subject);
            image.is_some_and(|image| Some(&*image.record.name) == command)
        };
        for step in 0..3 {
            let is_preferred = |at: &usize| {
                let Some((number, subject, _)) = candidates.get(*at) else { return false };
                match step {
                    // A partial name is more likely to mean code than a name in brackets.
                    0 => subject.address().is_some() || is_inlined(subject),
                    1 => called.contains(number),
                    _ => is_of_command(subject),
                }
            };
            if found.len() > 1 && found.iter().any(is_preferred) {
                found.retain(is_preferred);
            }
        }
        let known = |at: &usize| candidates.get(*at);
        let mut names: Vec<&str> =
            found.iter().filter_map(known).map(|(.., name)| &**name).collect();
        names.dedup();
        let all = found.len();
        let is_procedure =
            |at: &usize| known(at).is_some_and(|(_, subject, _)| !is_inlined(subject));
        if names.len() == 1 && found.iter().any(is_procedure) {
            found.retain(is_procedure);
        }
        found.len() < all
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
    let address = match subject {
        Subject::Inlined { .. } => INLINED.trim().to_owned(),
        _ => subject.address().map(|at| format!("{at:#x}")).unwrap_or_default(),
    };
    format!("{name} [{address}{}]", image.unwrap_or_default())
}

pub(super) fn callee(subjects: &Subjects, number: SubjectId) -> Callee {
    let Some(subject) = subjects.get(number) else {
        return Callee::nobody("[unknown]");
    };
    let image = subjects.image(subject).map(|image| {
        let record = &image.record;
        let is_unresolved = record.kind == image::ImageKind::Unresolved;
        let path = if is_unresolved { String::new() } else { record.path.clone() };
        let (id, kind, name) = (record.id, record.kind, record.name.clone());
        ImageName { id, kind, name, path, ambiguous: image.ambiguous }
    });
    Callee {
        name: subject.name(),
        address: subject.address(),
        image,
        inlined: is_inlined(subject),
        line: subject.line().cloned(),
    }
}

/// The error of a procedure that no stack of the threads that were asked for has: it names the
/// commands whose stacks have it.
pub(super) fn nobody_has(
    words: &[String],
    question: &Question,
    (chosen, look): (&Chosen, Look<'_>),
) -> AnalysisError {
    let whose = &question.whose;
    let of_all = Question { whose: whose.without_threads(), ..question.clone() };
    let found = Loaded::of(&of_all, look).and_then(|mut loaded| {
        let event = loaded.event(chosen)?;
        let subject = loaded.procedure(words, &event)?;
        let commands = commands(&loaded.calls.timed(&event, Roots::Procedures).through(subject));
        Ok((loaded.calls.subjects.get(subject).map(Subject::name), event.name, commands))
    });
    let (name, event, commands) = match found {
        Ok((name, event, commands)) => (name.unwrap_or_default(), event, commands),
        Err(error) => return error,
    };
    let of = if whose.is_by_thread() { format!(" {}", whose.shown()) } else { String::new() };
    let next = match commands.is_empty() {
        true => "; other events may have some: --event".to_owned(),
        false => format!("; those of {} do", commands.join(", ")),
    };
    AnalysisError::Refused(format!("no call stacks of {event}{of} have {name}{next}"))
}

const COMMANDS_MAX: usize = 5;

/// The commands of the stacks, those with the most time first.
fn commands(timed: &Timed) -> Vec<String> {
    let mut times: BTreeMap<&str, f64> = BTreeMap::new();
    let threads = timed.contexts().threads();
    for (entry, time) in timed.entries() {
        if let Some(thread) = threads.get(entry.thread as usize) {
            *times.entry(&thread.command).or_default() += time;
        }
    }
    let mut commands: Vec<(&str, f64)> = times.into_iter().collect();
    commands.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    commands.into_iter().take(COMMANDS_MAX).map(|(command, _)| format!("{command:?}")).collect()
}

/// The error of a selection without waits, which may have other stacks.
fn no_waits() -> AnalysisError {
    AnalysisError::Refused(
        "no wait of these was recorded; dcpi prof --inclusive shows the time on a CPU, and dcpi \
         epochs lists other epochs"
            .to_owned(),
    )
}

pub(super) fn no_stacks() -> AnalysisError {
    AnalysisError::Refused(
        "these epochs have no call stacks; dcpid takes them unless it runs with --stacks off, and \
         dcpi epochs lists other epochs"
            .to_owned(),
    )
}
