//! `dcpi prof --inclusive`: the time of procedures with all that they called.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use calls::{Estimate, EventCalls, Roots, Subject, SubjectId, Timed};
use image::{ImageId, ImageKind};
use model::{CALLS, Ledger};
use names::shorten::Suffixes;
use query::error::AnalysisError;
use query::load::{EventSamples, ImageSamples};
use query::select;
use report::{By, ImageName, ProcedureName, ProfReport, Row};
use stats::tally::Tally;

use super::chains::Chains;
use super::prof::{by_samples, columns, row, shared_out, sort_event};
use super::stacks::{self, Loaded, callee, functions};
use crate::options::{Format, Output, Prof};

/// The report. Stacks are of all images; rows are of those that were asked for.
pub(super) fn report(args: &Prof) -> Result<ProfReport, AnalysisError> {
    let look = (&args.look, functions(args.no_inlined));
    let mut loaded = Loaded::of(&args.threads.narrow(args.chosen.question(&[])?), look)?;
    let confidence = args.look.confidence;
    let mut events = loaded.calls.events.clone();
    // Without an event of that name the report is of what takes CPU time.
    if args.chosen.events.is_empty() && events.iter().any(|event| !stacks::is_wait(&event.name)) {
        events.retain(|event| !stacks::is_wait(&event.name));
    }
    // Numbers of calls divide exact counts among callers; as an event they are asked for by name.
    if !stacks::asked(&args.chosen.question(&[])?).iter().any(|asked| asked == CALLS)
        && loaded.samples.events.iter().any(EventSamples::is_exact)
    {
        events.retain(|event| event.name != CALLS);
    }
    let timed: Vec<Timed> =
        events.iter().map(|event| loaded.calls.timed(event, Roots::Procedures)).collect();
    let stacks_only: Vec<(&EventCalls, &Timed)> =
        events.iter().zip(&timed).filter(|(event, _)| event.sampled.is_none()).collect();
    let sampled = loaded.samples.events.len();
    let of_stacks = stacks_only
        .iter()
        .map(|(event, timed)| as_samples(&event.name, loaded.unit(event), timed.whole()));
    let of_stacks: Vec<EventSamples> = of_stacks.collect();
    loaded.samples.events.extend(of_stacks);
    for (event, timed) in events.iter().zip(&timed) {
        let of_event = event.sampled.and_then(|at| loaded.samples.events.get_mut(at));
        if let Some(of_event) = of_event {
            of_event.notes.extend(report::lent_callers(timed.lent()));
        }
    }
    let samples = &loaded.samples;
    let sort = sort_event(args, &samples.events)?;
    let images: Vec<&ImageSamples> =
        samples.images.iter().filter(|image| args.look.idle || !image.is_idle()).collect();
    let mut columns = columns(samples.whose.is_all(), confidence, samples, &images);
    for (column, (_, timed)) in columns.iter_mut().skip(sampled).zip(&stacks_only) {
        column.counted = timed.whole();
        column.occurrences = Some(stats::weighted_occurrences(column.counted, confidence));
    }
    let inclusive: Vec<Option<Vec<Estimate>>> = (0..columns.len())
        .map(|at| {
            let mut all = events.iter().zip(&timed);
            let is_of = |event: &EventCalls| {
                event.sampled.map_or_else(
                    || samples.events.get(at).is_some_and(|of| of.name == event.name),
                    |sampled| sampled == at,
                )
            };
            let Some((_, timed)) = all.find(|(event, _)| is_of(event)) else {
                let event = samples.events.get(at).filter(|event| event.is_exact());
                return event.and_then(|_| Some(loaded.calls.by_calls(at)?.inclusive()));
            };
            Some(timed.inclusive(loaded.calls.subjects.len(), confidence))
        })
        .collect();
    let own: Vec<Vec<Tally>> = stacks_only.iter().map(|(_, timed)| timed.innermost()).collect();
    let rows = rows(args, &loaded, &own, &inclusive)?;
    let of_sort = events
        .iter()
        .zip(&timed)
        .find(|(event, _)| samples.events.get(sort).is_some_and(|of| of.name == event.name));
    let chains = of_sort.zip(inclusive.get(sort)).filter(|_| is_brief(&args.output));
    let chains = chains.and_then(|((_, timed), all)| Some(Chains::of(timed, all.as_ref()?)));
    let mut rows = match chains {
        Some(chains) => chains.fold(rows),
        None => rows.into_iter().map(|(_, row)| row).collect(),
    };
    let of = |row: &Row| row.inclusive.get(sort).copied().flatten().map_or(0.0, |of| of.value);
    rows.sort_by(|a, b| of(b).total_cmp(&of(a)).then_with(|| by_samples(a, b, sort)));
    let report = shared_out(args, samples, (columns, sort), rows, loaded.problems);
    let by = if args.no_inlined { By::Procedure } else { By::Function };
    Ok(ProfReport { with_calls: true, by, ..report })
}

/// Whether chains of calls are one row: in a text, unless all of it is asked for.
fn is_brief(output: &Output) -> bool {
    output.format == Format::Text && !output.verbose && !output.full_names
}

/// An event that has stacks only, as if each were a sample.
pub(super) fn as_samples(event: &str, unit: String, whole: Tally) -> EventSamples {
    EventSamples {
        name: event.to_owned(),
        unit,
        period: 0,
        periods: Vec::new(),
        weight: whole.weight(),
        taken: whole,
        unknown: BTreeMap::new(),
        notes: Vec::new(),
        ledger: Ledger::default(),
        weights: Vec::new(),
    }
}

/// A row for each procedure with samples or stacks. `own` has the stacks of events that have
/// nothing else, by subject.
fn rows(
    args: &Prof,
    loaded: &Loaded,
    own: &[Vec<Tally>],
    inclusive: &[Option<Vec<Estimate>>],
) -> Result<Vec<(SubjectId, Row)>, AnalysisError> {
    let subjects = &loaded.calls.subjects;
    let records = subjects.images().iter().map(|image| &image.record);
    let wanted: Option<BTreeSet<ImageId>> = match args.images.is_empty() {
        true => None,
        false => Some(select::images(&args.images, records)?),
    };
    let mut same: HashMap<(usize, &str), usize> = HashMap::new();
    for (subject, _) in subjects.iter() {
        if let Subject::Code { image, name, .. } = subject {
            *same.entry((*image, name)).or_default() += 1;
        }
    }
    let images: Vec<String> = (0..subjects.images().len()).map(|at| at.to_string()).collect();
    let named = subjects.iter().filter_map(|(subject, _)| match subject {
        Subject::Code { image, name, .. } => Some((images.get(*image)?.as_str(), name.as_str())),
        _ => None,
    });
    let suffixes = Suffixes::of(named);
    let mut rows = Vec::new();
    for (number, (subject, counts)) in (0..).zip(subjects.iter()) {
        let image = subjects.image(subject);
        let is_wanted = match (&wanted, image) {
            (None, _) => true,
            (Some(wanted), image) => image.is_some_and(|of| wanted.contains(&of.record.id)),
        };
        let estimates: Vec<Option<&Estimate>> =
            inclusive.iter().map(|of| of.as_ref().and_then(|of| of.get(number as usize))).collect();
        let mut counts = counts.to_vec();
        let of_stacks = own.iter().map(|own| own.get(number as usize).copied().unwrap_or_default());
        counts.extend(of_stacks);
        // What stands above procedures without a stack is none; a note tells its share.
        let is_empty = *subject == Subject::NoStack
            || counts.iter().all(|count| count.is_empty())
                && estimates.iter().flatten().all(|of| of.time <= 0.0);
        if is_empty || !is_wanted {
            continue;
        }
        let procedure = ProcedureName {
            name: subject.name(),
            address: subject.address(),
            ambiguous: match subject {
                Subject::Code { image, name, .. } => {
                    same.get(&(*image, name.as_str())).is_some_and(|rows| *rows > 1)
                }
                _ => false,
            },
            needs_suffix: match subject {
                Subject::Code { image, name, .. } => {
                    images.get(*image).is_some_and(|image| suffixes.needed(image, name))
                }
                _ => false,
            },
            inlined: matches!(subject, Subject::Inlined { .. }),
        };
        let image = callee(subjects, number).image.unwrap_or_else(|| nobodys(&procedure.name));
        let inclusive = estimates.into_iter().map(|of| of.map(|of| of.share)).collect();
        let language = loaded.samples.language(&image.id);
        let row = row(Some(procedure), Some(image), Vec::new(), counts);
        rows.push((number, Row { inclusive, language, ..row }));
    }
    Ok(rows)
}

/// The image name for a subject that is not code.
fn nobodys(name: &str) -> ImageName {
    ImageName {
        id: ImageId::unresolved("", name),
        kind: ImageKind::Unresolved,
        name: String::new(),
        path: String::new(),
        ambiguous: false,
    }
}
