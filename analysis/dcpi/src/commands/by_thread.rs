//! `dcpi prof --by command|pid|thread` and `--by-attribute KEY`: the time of commands, processes
//! and threads, and of what programs set for their threads, from call stacks.

use std::collections::{BTreeMap, BTreeSet};

use calls::USERTIME;
use image::{ImageId, ImageKind};
use model::{Stacks, Thread};
use query::error::AnalysisError;
use query::load::{Question, Samples};
use query::problem::Problem;
use query::scope::{Dimension, Part};
use query::stacks::ByEvent;
use report::{By, EventColumn, ProfReport, Row};
use stats::share;
use stats::tally::Tally;

use super::inclusive::as_samples;
use super::prof::{by_samples, row, shared_out, sort_event};
use super::{NO_STACKS, SURE_AS_STACKS, of_no_stacks, of_stacks, stacks};
use crate::options::{self, Prof};

/// The dimensions of a row's subject, where call stacks tell them: first what was asked for, then
/// what it belongs to.
const fn dimensions(by: Option<options::By>) -> &'static [Dimension] {
    match by {
        Some(options::By::Pid) => &[Dimension::Pid, Dimension::Command],
        Some(options::By::Thread) => &[Dimension::Thread, Dimension::Pid, Dimension::Command],
        _ => &[Dimension::Command],
    }
}

/// The report. Without an event asked for it is of the events that are sampled, not of waits.
///
/// # Errors
/// Returns the errors of [`stacks::read_alone`], [`AnalysisError::SortNotShown`], and
/// [`AnalysisError::Refused`] for images, and for epochs without stacks.
pub(super) fn report(args: &Prof) -> Result<ProfReport, AnalysisError> {
    let dimensions = match args.by_attribute {
        Some(_) => &[Dimension::Attribute],
        None => dimensions(args.by),
    };
    if let Some(image) = args.images.first() {
        return Err(no_image(image));
    }
    let confidence = args.look.confidence;
    let mut problems = Vec::new();
    let question = args.threads.narrow(args.chosen.question(&[])?);
    let (mut samples, found) = read(&question, &mut problems)?;
    if found.values().all(Stacks::is_empty) {
        return Err(stacks::no_stacks().beside(query::problem::damage(&problems)));
    }
    let mut columns = Vec::with_capacity(found.len());
    let mut subjects: BTreeMap<Vec<Part>, Vec<Tally>> = BTreeMap::new();
    let idle = if args.look.idle { BTreeSet::new() } else { idle_images(&samples) };
    for (at, (event, stacks)) in found.iter().enumerate() {
        let mut whole = Tally::default();
        for (node, thread, value) in stacks.values() {
            let is_idle = |frame| matches!(frame, model::Frame::Code(id, _) if idle.contains(&id));
            if !idle.is_empty() && stacks.frames(node).next().is_some_and(is_idle) {
                continue;
            }
            let parts = match &args.by_attribute {
                Some(key) => vec![attribute(key, thread)],
                None => dimensions.iter().map(|of| of.of_thread(thread)).collect(),
            };
            let counts =
                subjects.entry(parts).or_insert_with(|| vec![Tally::default(); found.len()]);
            if let Some(count) = counts.get_mut(at) {
                *count += of_stacks(value);
            }
            whole += of_stacks(value);
        }
        let sampled = if event == USERTIME { stacks::CLOCK } else { event };
        let none = of_no_stacks(samples.without_stacks(sampled, &mut problems));
        if none.occurrences > 0.0 {
            let counts = subjects.entry(nobody(dimensions));
            let counts = counts.or_insert_with(|| vec![Tally::default(); found.len()]);
            counts.iter_mut().skip(at).take(1).for_each(|count| *count += none);
            whole += none;
        }
        let unit = samples.unit(event);
        columns.push(EventColumn {
            event: as_samples(event, unit, whole),
            idle: 0,
            counted: whole,
            occurrences: Some(stats::weighted_occurrences(whole, confidence)),
            unresolved: Vec::new(),
        });
    }
    samples.events = columns.iter().map(|column| column.event.clone()).collect();
    let sort = sort_event(args, &samples.events)?;
    let rows =
        subjects.into_iter().filter(|(_, counts)| counts.iter().any(|of| of.occurrences > 0.0));
    let mut rows: Vec<Row> = rows.map(|(parts, counts)| row(None, None, parts, counts)).collect();
    rows.sort_by(|a, b| by_samples(a, b, sort));
    let report = shared_out(args, &samples, (columns, sort), rows, problems);
    let mut report = ProfReport { by: By::Scope(dimensions), of_stacks: true, ..report };
    let nobody = nobody(dimensions);
    for row in report.rows.iter_mut().filter(|row| row.parts == nobody) {
        // No stacks report it, but samples do.
        let of = |(count, column): (&Tally, &EventColumn)| {
            share(Tally { samples: SURE_AS_STACKS, ..*count }, column.counted, confidence)
        };
        row.shares = row.counts.iter().zip(&report.events).map(of).collect();
    }
    Ok(report)
}

/// The error where rows are from call stacks, and an image was named.
pub(super) fn no_image(image: &str) -> AnalysisError {
    AnalysisError::Refused(format!(
        "rows from call stacks take no IMAGE, since a call stack has frames of several; of one \
         program alone: --command {image}"
    ))
}

/// The value of an attribute that a program had set for its thread.
fn attribute(key: &str, thread: &Thread) -> Part {
    let value = thread.attributes.get(key);
    Part::Attributes(value.map(|value| format!("{key}={value}")).into_iter().collect())
}

/// The stacks of the events that were asked for, else of those that are sampled.
fn read(
    question: &Question,
    problems: &mut Vec<Problem>,
) -> Result<(Samples, ByEvent), AnalysisError> {
    if question.events != [USERTIME] {
        let (samples, mut found) = stacks::read_alone(question, problems)?;
        if question.events.is_empty() && found.keys().any(|event| !stacks::is_wait(event)) {
            found.retain(|event, _| !stacks::is_wait(event));
        }
        return Ok((samples, found));
    }
    let all = Question { events: Vec::new(), ..question.clone() };
    let (samples, mut found) = stacks::read_alone(&all, problems)?;
    let mut sum = Stacks::new();
    for part in stacks::usertime_parts(&samples.epochs) {
        found.remove(&part).iter().for_each(|stacks| sum.merge(stacks));
    }
    Ok((samples, ByEvent::from([(USERTIME.to_owned(), sum)])))
}

/// The subject of time that no call stacks report.
fn nobody(dimensions: &[Dimension]) -> Vec<Part> {
    let name = || Some(NO_STACKS.to_owned());
    let part = |(at, dimension): (usize, &Dimension)| match dimension {
        Dimension::Thread => Part::Thread(name()),
        Dimension::Pid => Part::Pid(None),
        Dimension::Attribute => Part::Attributes(name().into_iter().collect()),
        _ => Part::Command(name().filter(|_| at < 2)),
    };
    dimensions.iter().enumerate().map(part).collect()
}

/// The images of idle loops. An image that cannot be read was told as a problem by then.
fn idle_images(samples: &Samples) -> BTreeSet<ImageId> {
    let images = samples.epochs.iter().flat_map(|epoch| epoch.images().unwrap_or_default());
    images.filter(|(_, image)| image.kind == ImageKind::Idle).map(|(id, _)| id).collect()
}
