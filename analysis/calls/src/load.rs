//! From a database to calls: stacks with the subjects of their frames.

use std::collections::BTreeMap;

use image::ImageKind;
use model::{Attributes, CALLS, Cut, Frame, Stacks, Thread};
use names::procedures::{Places, Rows};
use query::load::{EventSamples, ImageSamples, Samples};
use query::problem::Problem;
use query::unresolved;

use crate::by_calls::ByCalls;
use crate::contexts::{Contexts, SubjectId};
use crate::inlined::Spot;
use crate::lent::Group;
use crate::subjects::{Subject, Subjects};
use crate::timed::Timed;

/// The calls of a selection.
#[derive(Debug)]
pub struct Calls {
    /// The procedures and what stands in the place of some.
    pub subjects: Subjects,
    /// The events that have stacks.
    pub events: Vec<EventCalls>,
    /// The root of procedures without stacks.
    no_stack: SubjectId,
}

/// The stacks of an event.
#[derive(Clone, Debug)]
pub struct EventCalls {
    /// The event's name.
    pub name: String,
    /// Its index in [`Samples::events`], where it has samples beside its stacks.
    pub sampled: Option<usize>,
    /// Its stacks.
    pub contexts: Contexts,
}

/// Names the procedures of samples and stacks. With `idle` the idle loop is counted. Samples of
/// unknown code belong to the selection if `everything` was asked for. Inlined functions are
/// procedures of their own if `rows` says so; exact counts and calls are of procedures only.
pub fn load(
    samples: &Samples,
    stacks: &BTreeMap<String, Stacks>,
    (idle, everything): (bool, bool),
    (rows, places): (Rows, &Places),
    problems: &mut Vec<Problem>,
) -> Calls {
    let is_counted = samples.events.iter().any(EventSamples::is_exact);
    let rows = if is_counted { Rows::Procedures } else { rows };
    let counts = |image: &ImageSamples| image.wanted && (idle || !image.is_idle());
    let mut subjects = Subjects::of(samples, stacks.values(), counts, (rows, places), problems);
    subjects.add_unresolved(unresolved::nobodys(everything, samples));
    let no_stack = subjects.number(Subject::NoStack);
    let of_event = |(name, stacks): (&String, &Stacks)| {
        let sampled = samples.events.iter().position(|event| event.name == *name);
        let path = |frame: &Frame| match subjects.of_frame(frame) {
            [] => std::slice::from_ref(&no_stack),
            path => path,
        };
        let mut contexts = Contexts::of(stacks, subjects.are_inlined(), path);
        let is_cut = |of| matches!(subjects.get(of), Some(Subject::Cut(_) | Subject::NoStack));
        if let [truncated] = subjects.of_frame(&Frame::Cut(Cut::Truncated)) {
            contexts.rejoin(*truncated, is_cut);
        }
        let is_idle = |subject: SubjectId| {
            let of = subjects.get(subject).and_then(|subject| subjects.image(subject));
            of.is_some_and(|image| image.record.kind == ImageKind::Idle)
        };
        let contexts = if idle { contexts } else { contexts.without(is_idle) };
        EventCalls { name: name.clone(), sampled, contexts }
    };
    let events = stacks.iter().filter(|(_, stacks)| !stacks.is_empty()).map(of_event).collect();
    Calls { subjects, events, no_stack }
}

/// The roots below which stacks stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Roots<'a> {
    /// The threads' first procedures.
    Procedures,
    /// The threads.
    Threads,
    /// The values of this attribute of threads.
    Attribute(&'a str),
}

impl Calls {
    /// Whether a subject is code of the kernel.
    pub fn is_kernel(&self, subject: SubjectId) -> bool {
        let image = self.subjects.get(subject).and_then(|subject| self.subjects.image(subject));
        image.is_some_and(|image| {
            use ImageKind::{Bpf, Idle, Kernel, Module};
            matches!(image.record.kind, Kernel | Module | Bpf | Idle)
        })
    }

    /// Forgets the samples: the weights of stacks are the time of every event from here on.
    pub fn forget_samples(&mut self) {
        self.subjects.forget_samples();
        self.events.iter_mut().for_each(|event| event.sampled = None);
    }

    /// Times of an event whose occurrences were counted exactly, as were the calls, with all that
    /// was called. `at` is its index in [`Samples::events`]. None without calls.
    pub fn by_calls(&self, at: usize) -> Option<ByCalls> {
        let calls = self.events.iter().find(|event| event.name == CALLS)?;
        let own = self.subjects.iter().map(|(_, counts)| counts.get(at).copied());
        let own: Vec<f64> = own.map(|own| own.unwrap_or_default().occurrences).collect();
        Some(ByCalls::of(&calls.contexts, &own))
    }

    /// The stacks of an event with their times, below these roots.
    pub fn timed(&mut self, event: &EventCalls, roots: Roots<'_>) -> Timed {
        let subjects = &mut self.subjects;
        let contexts = match roots {
            Roots::Procedures => event.contexts.clone(),
            Roots::Threads => event.contexts.by_thread(|thread| {
                let attributes = Attributes::default();
                subjects.number(Subject::Thread(Thread { attributes, ..thread.clone() }))
            }),
            Roots::Attribute(key) => event.contexts.by_thread(|thread| {
                let value = thread.attributes.get(key).map(|value| format!("{key}={value}"));
                subjects.number(Subject::Attribute(value.unwrap_or_else(|| format!("[no {key}]"))))
            }),
        };
        match event.sampled {
            // Stacks of exact counts are as many as these.
            Some(at) if !model::is_exact(&event.name) => {
                let spots: Vec<Spot<'_>> = self.subjects.times(at).collect();
                let group = |subject| match self.subjects.get(subject) {
                    Some(Subject::Code { image, .. }) => {
                        let row = self.subjects.images().get(*image);
                        let kind = row.map(|row| row.record.kind);
                        let is_kernel = matches!(kind, Some(ImageKind::Kernel | ImageKind::Bpf));
                        Group { number: *image as u32 + 1, is_kernel }
                    }
                    _ => Group::default(),
                };
                Timed::sampled(contexts, self.subjects.len(), &spots, self.no_stack, group)
            }
            _ => {
                let unexpected = Frame::Cut(Cut::Unexpected);
                let unexpected = self.subjects.of_frame(&unexpected).first().copied();
                Timed::weighted(contexts, self.subjects.len(), unexpected)
            }
        }
    }
}
