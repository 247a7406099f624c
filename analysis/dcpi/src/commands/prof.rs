//! `dcpi prof`: samples per procedure, or per source line, image, label, unit, process.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use image::{ImageId, ImageKind};
use profiledb::{Epoch, ImageRecord, Scope, Stretch};

use super::{Outcome, by_thread, inclusive, stacks};
use crate::options::{self, Chosen, Format, Prof};
use annotate::listing;
use names::by_line::{self, LineSamples};
use names::interpreted::{self, Sure};
use names::procedures::{self, Counted, Known, Place, Places, Rows};
use names::shorten::Suffixes;
use query::error::AnalysisError;
use query::load::{EventSamples, ImageSamples, Question, Samples};
use query::problem::Problem;
use query::scope::{Dimension, Part, ScopeChoice};
use query::select;
use query::unresolved;
use report::{
    By, EventColumn, ImageName, LineName, Omitted, ProcedureName, ProfReport, Row, Seen, Selection,
};
use stats::tally::{self, Tally, Weighed};
use stats::{Confidence, share};

/// Most rows of a text report without `-n`: what fits a screen or two.
const TEXT_ROWS: usize = 40;
/// Smallest share of samples, of any event, that a row of a text report without `-n` has.
const TEXT_SHARE: f64 = 0.001;

pub(crate) fn run(args: &Prof, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    // Rows by label are of the whole machine: of what a recording is of there would be one row.
    let by_label = args.by == Some(options::By::Label);
    let chosen = Chosen { all: args.chosen.all || by_label, ..args.chosen.clone() };
    if args.inclusive {
        return super::write(&inclusive::report(args)?, &args.output, out);
    }
    let by_thread = matches!(args.by, Some(options::By::Command | options::By::Thread));
    if by_thread || args.by_attribute.is_some() {
        return super::write(&by_thread::report(args)?, &args.output, out);
    }
    let question = args.threads.narrow(chosen.question(&args.images)?);
    if args.by == Some(options::By::Pid) && args.images.is_empty() {
        let opened = Question { whose: ScopeChoice::default(), ..question.clone() }.opened()?;
        // Processes that dcpid kept apart are reported from all of their samples.
        let is_apart = |epoch: &Epoch| {
            epoch.scopes().unwrap_or_default().iter().any(|scope| scope.pid.is_some())
        };
        if !opened.epochs.iter().any(is_apart) && stacks::any(&opened) {
            return super::write(&by_thread::report(args)?, &args.output, out);
        }
    }
    let mut samples = with_interpreted(args, &question)?;
    super::write(&report(args, &mut samples)?, &args.output, out)
}

/// The samples, those of interpreters divided among the functions that they ran. Where images were
/// asked for, interpreters are needed too, whose samples the images of source files are given.
pub(super) fn with_interpreted(args: &Prof, question: &Question) -> Result<Samples, AnalysisError> {
    if args.by.is_some_and(|by| !matches!(by, options::By::Command | options::By::Thread)) {
        return question.samples();
    }
    let sure = match args {
        _ if args.by_image => Sure::Images,
        _ if args.lines => Sure::Lines,
        _ => Sure::Functions,
    };
    let places = Places::with_debug_roots(args.look.debug_root.clone());
    let load =
        |images: &[String]| Question { images: images.to_vec(), ..question.clone() }.samples();
    interpreted::load_divided(load, &question.images, (&places, sure))
}

/// The report of these samples, whose problems become its own.
pub(super) fn report(args: &Prof, samples: &mut Samples) -> Result<ProfReport, AnalysisError> {
    let sort = sort_event(args, &samples.events)?;
    let restricted = !args.images.is_empty();
    // An idle loop that was asked for by name is counted.
    let counts =
        |image: &&ImageSamples| image.wanted && (args.look.idle || restricted || !image.is_idle());
    let mut problems = std::mem::take(&mut samples.problems);
    let samples = &*samples;
    let images: Vec<&ImageSamples> = samples.images.iter().filter(counts).collect();
    let everything = !restricted && samples.whose.is_all();
    let mut columns = columns(everything, args.look.confidence, samples, &images);
    let by = match args.by {
        Some(options::By::Label) => By::Scope(&[Dimension::Label]),
        Some(options::By::Unit) => By::Scope(&[Dimension::Unit]),
        Some(options::By::Container) => By::Scope(&[Dimension::Container]),
        Some(options::By::Pod) => By::Scope(&[Dimension::Pod]),
        Some(options::By::Namespace) => By::Scope(&[Dimension::Namespace]),
        Some(_) => By::Scope(&[Dimension::Pid]),
        None if args.by_image => By::Image,
        None if args.lines => By::Line,
        None if args.inlined => By::Function,
        None => By::Procedure,
    };
    let places = Places::with_debug_roots(args.look.debug_root.clone());
    let mut rows = match by {
        By::Scope(of) => {
            let dimension = of.first().copied().unwrap_or(Dimension::Label);
            scope_rows(&images, &unresolved::nobodys(everything, samples), dimension)
        }
        By::Image => image_rows(samples, &images),
        By::Procedure | By::Function => {
            let of = if by == By::Function { Rows::Functions } else { Rows::Procedures };
            procedure_rows(samples, &images, (of, &places), &mut problems)
        }
        By::Line => line_rows(samples, &images, &places, &mut problems),
    };
    if !matches!(by, By::Scope(_)) {
        for (reason, tallies) in unresolved::nobodys(everything, samples) {
            let (id, name) = (ImageId::unresolved("", &reason), unresolved::name(&reason));
            let (path, kind) = (String::new(), ImageKind::Unresolved);
            let image = |name| ImageName { id, kind, name, path, ambiguous: false };
            rows.push(match by {
                By::Image => row(None, Some(image(name)), Vec::new(), tallies),
                _ => row(
                    Some(procedure_name(&Place::Unresolved(reason), false)),
                    Some(image(String::new())),
                    Vec::new(),
                    tallies,
                ),
            });
        }
    }
    if matches!(by, By::Procedure | By::Function)
        && !rows.is_empty()
        && !rows.iter().any(is_procedure)
    {
        problems.push(Problem::NoNames);
    }
    rows.sort_by(|a, b| by_samples(a, b, sort));
    if let Some(name) = undivided(samples, &rows) {
        let note = format!(
            "the time of the functions that {name} ran is in its row: no call stack has their names"
        );
        columns.iter_mut().for_each(|column| column.event.notes.push(note.clone()));
    }
    let report = shared_out(args, samples, (columns, sort), rows, problems);
    let skid = samples.skid().filter(|_| by == By::Line);
    let skid = skid.and_then(|(event, skid)| Some((samples.events.get(event)?.name.clone(), skid)));
    Ok(ProfReport { by, restricted, skid, ..report })
}

/// The loop of an interpreter with the most samples, where none were divided.
fn undivided(samples: &Samples, rows: &[Row]) -> Option<String> {
    let mut names = rows.iter().filter_map(|row| Some(&row.procedure.as_ref()?.name));
    let first = names.find(|name| verdict::interprets(name)).cloned();
    first.filter(|_| !interpreted::any(&samples.epochs))
}

/// The report of rows that are in order: their shares, and those that are shown. Rows are of
/// procedures, and of the samples of all images.
pub(super) fn shared_out(
    args: &Prof,
    samples: &Samples,
    (columns, sort): (Vec<EventColumn>, usize),
    mut rows: Vec<Row>,
    problems: Vec<Problem>,
) -> ProfReport {
    let confidence = args.look.confidence;
    share_out(&mut rows, &columns, sort, confidence);
    let omitted = cut(&mut rows, &columns, sort, args);
    let epochs = samples.epochs.iter().map(|epoch| epoch.meta().clone()).collect();
    ProfReport {
        selection: Selection { db: samples.db.root().display().to_string(), epochs },
        events: columns,
        sort,
        confidence,
        by: By::Procedure,
        of_stacks: false,
        with_calls: false,
        whose: samples.whose.clone(),
        restricted: false,
        skid: None,
        with_idle: args.look.idle,
        rows,
        seen: seen(samples),
        omitted,
        problems,
    }
}

/// When the files with samples were seen.
pub(super) fn seen(samples: &Samples) -> Seen {
    let mut slices: Vec<Stretch> = samples.epochs.iter().flat_map(Epoch::slices).collect();
    slices.sort_unstable_by_key(|slice| slice.until_unix_s);
    let times =
        |image: &ImageSamples| (image.record.id, query::seen::Seen::of(&image.record, &slices));
    let files = samples.images.iter().filter(|image| image.record.kind == ImageKind::File);
    files.map(times).collect()
}

pub(super) fn sort_event(args: &Prof, events: &[EventSamples]) -> Result<usize, AnalysisError> {
    let Some(asked) = &args.sort else {
        return Ok(0);
    };
    let shown: Vec<String> = events.iter().map(|event| event.name.clone()).collect();
    let found =
        select::event(asked, &shown).and_then(|name| shown.iter().position(|shown| shown == name));
    found.ok_or_else(|| AnalysisError::SortNotShown { asked: asked.clone(), shown })
}

/// The events with the number of samples that shares are of: those of the images counted, and,
/// unless only some images or processes are, those of unknown code.
pub(super) fn columns(
    everything: bool,
    confidence: Confidence,
    samples: &Samples,
    images: &[&ImageSamples],
) -> Vec<EventColumn> {
    let nobodys = unresolved::nobodys(everything, samples);
    let of_images = images.iter().filter_map(|image| image.unresolved());
    let reasons: BTreeSet<String> = of_images
        .map(str::to_owned)
        .chain(nobodys.iter().map(|(reason, _)| reason.clone()))
        .collect();
    let mut columns = Vec::with_capacity(samples.events.len());
    for (at, event) in samples.events.iter().enumerate() {
        let total =
            |image: &ImageSamples| image.profiles.get(at).map_or(Tally::default(), Weighed::total);
        let idle = samples.idle(at);
        let of_images: Tally = images.iter().map(|image| total(image)).sum();
        let counted =
            of_images + nobodys.iter().filter_map(|(_, tallies)| tallies.get(at).copied()).sum();
        let unresolved = reasons.iter().map(|reason| {
            let of_reason = images.iter().filter(|image| image.unresolved() == Some(reason));
            let nobodys = nobodys
                .iter()
                .filter(|(of, _)| of == reason)
                .filter_map(|(_, tallies)| tallies.get(at));
            let samples = of_reason.map(|image| total(image)).chain(nobodys.copied()).sum();
            (reason.clone(), samples, share(samples, counted, confidence))
        });
        let unresolved = unresolved.filter(|(_, samples, _)| !samples.is_empty()).collect();
        let occurrences = event.occurrences(confidence);
        columns.push(EventColumn { event: event.clone(), idle, counted, occurrences, unresolved });
    }
    columns
}

/// A row for each label, unit or process.
fn scope_rows(
    images: &[&ImageSamples],
    nobodys: &[(String, Vec<Tally>)],
    dimension: Dimension,
) -> Vec<Row> {
    let mut parts: BTreeMap<Part, Vec<Tally>> = BTreeMap::new();
    let nobody = Scope::default();
    let nobodys = nobodys.iter().map(|(_, counts)| (&nobody, counts));
    for (scope, counts) in images.iter().flat_map(|image| &image.scopes).chain(nobodys) {
        tally::add_all(
            parts
                .entry(dimension.of(scope))
                .or_insert_with(|| vec![Tally::default(); counts.len()]),
            counts,
        );
    }
    parts.into_iter().map(|(part, counts)| row(None, None, vec![part], counts)).collect()
}

fn image_rows(samples: &Samples, images: &[&ImageSamples]) -> Vec<Row> {
    let of = |image: &&ImageSamples| Row {
        language: samples.language(&image.record.id),
        ..row(None, Some(image_name(image, images, true)), Vec::new(), image.totals())
    };
    images.iter().map(of).collect()
}

/// A row for each procedure, in the order of the images.
pub(super) fn procedure_rows(
    samples: &Samples,
    images: &[&ImageSamples],
    (of, places): (Rows, &Places),
    problems: &mut Vec<Problem>,
) -> Vec<Row> {
    let mut rows = Vec::new();
    let found = procedures::attribute(samples, images, of, places);
    for (image, by_procedure) in images.iter().zip(found) {
        problems.extend(by_procedure.problems);
        let name = image_name(image, images, false);
        let mut same: BTreeMap<Place, usize> = BTreeMap::new();
        for counted in &by_procedure.rows {
            *same.entry(without_address(&counted.place)).or_default() += 1;
        }
        let named = |counted: &Counted| match &counted.place {
            Place::Procedure { name, .. } => Some(name.clone()),
            _ => None,
        };
        let names: Vec<String> = by_procedure.rows.iter().filter_map(named).collect();
        let suffixes = Suffixes::of(names.iter().map(|name| ("", name.as_str())));
        for counted in by_procedure.rows {
            let ambiguous =
                same.get(&without_address(&counted.place)).is_some_and(|&rows| rows > 1);
            let mut procedure = procedure_name(&counted.place, ambiguous);
            procedure.needs_suffix = suffixes.needed("", &procedure.name);
            let language = samples.language(&image.record.id);
            let row = row(Some(procedure), Some(name.clone()), Vec::new(), counted.counts);
            rows.push(Row { language, ..row });
        }
    }
    rows
}

fn line_rows(
    samples: &Samples,
    images: &[&ImageSamples],
    places: &Places,
    problems: &mut Vec<Problem>,
) -> Vec<Row> {
    let mut rows = Vec::new();
    let skid = samples.skid();
    let back = |image: &ImageSamples, known: &Known| {
        skid.map(|skid| listing::moved_back(image, known, skid)).unwrap_or_default()
    };
    let back: Option<by_line::Back<'_>> = skid.map(|(event, _)| (event, &back as _));
    let by_line = by_line::attribute(samples, images, places, back);
    for (image, by_line) in images.iter().zip(by_line) {
        problems.extend(by_line.problems);
        let name = image_name(image, images, false);
        rows.extend(by_line.rows.into_iter().map(|LineSamples { place, counts }| {
            let name_of = place.function.unwrap_or_default();
            let procedure = ProcedureName {
                name: name_of,
                address: None,
                ambiguous: false,
                needs_suffix: false,
                inlined: false,
            };
            let line = place.file.map(|file| LineName { file, line: place.line });
            let language = samples.language(&image.record.id);
            Row { line, language, ..row(Some(procedure), Some(name.clone()), Vec::new(), counts) }
        }));
    }
    rows
}

pub(super) fn row(
    procedure: Option<ProcedureName>,
    image: Option<ImageName>,
    parts: Vec<Part>,
    counts: Vec<Tally>,
) -> Row {
    Row {
        procedure,
        line: None,
        image,
        language: None,
        parts,
        counts,
        shares: Vec::new(),
        inclusive: Vec::new(),
        cumulative: 0.0,
        above: Vec::new(),
    }
}

fn without_address(place: &Place) -> Place {
    match place {
        Place::Procedure { name, .. } => Place::Procedure { name: name.clone(), address: 0 },
        other => other.clone(),
    }
}

fn procedure_name(place: &Place, ambiguous: bool) -> ProcedureName {
    let inlined = matches!(place, Place::Inlined(_));
    let (name, address) = (place.name(), place.address());
    ProcedureName { name, address, ambiguous, needs_suffix: false, inlined }
}

fn is_procedure(row: &Row) -> bool {
    let of = row.procedure.as_ref();
    of.is_some_and(|procedure| procedure.address.is_some() || procedure.inlined)
}

/// The name of an image, marked as ambiguous if another image of the report has the same. With
/// `by_path` the path must be the same too.
pub(super) fn image_name(
    image: &ImageSamples,
    among: &[&ImageSamples],
    by_path: bool,
) -> ImageName {
    let record = &image.record;
    if let Some(reason) = image.unresolved() {
        let program = record.name.clone();
        let name =
            if by_path { format!("{} {program}", unresolved::name(reason)) } else { program };
        return ImageName {
            id: record.id,
            kind: record.kind,
            name,
            path: String::new(),
            ambiguous: false,
        };
    }
    // Quadratic, but without copies of names.
    let same =
        |other: &ImageRecord| other.name == record.name && (!by_path || other.path == record.path);
    let ambiguous = among.iter().any(|other| {
        other.record.id != record.id && other.unresolved().is_none() && same(&other.record)
    });
    let (name, path) = (record.name.clone(), record.path.clone());
    ImageName { id: record.id, kind: record.kind, name, path, ambiguous }
}

/// The order of rows: those with the most samples of an event first; of as many, by image and name,
/// so that the same database makes the same report.
pub(super) fn by_samples(a: &Row, b: &Row, sort: usize) -> Ordering {
    let of = |row: &Row| row.counts.get(sort).map_or(0.0, |count| count.occurrences);
    let samples = |row: &Row| Reverse(tally::samples(&row.counts));
    of(b)
        .total_cmp(&of(a))
        .then_with(|| samples(a).cmp(&samples(b)))
        .then_with(|| subject(a).cmp(&subject(b)))
}

/// Gives the rows, which are in order, their shares.
pub(super) fn share_out(
    rows: &mut [Row],
    columns: &[EventColumn],
    sort: usize,
    confidence: Confidence,
) {
    let mut above = Tally::default();
    for row in rows {
        let share =
            |(count, column): (&Tally, &EventColumn)| share(*count, column.counted, confidence);
        row.shares = row.counts.iter().zip(columns).map(share).collect();
        above += row.counts.get(sort).copied().unwrap_or_default();
        row.cumulative = fraction(above, columns.get(sort));
    }
}

/// The key that sorts rows with the same samples.
fn subject(row: &Row) -> impl Ord {
    let procedure = row.procedure.as_ref().map(|procedure| (&procedure.name, procedure.address));
    let line = row.line.as_ref().map(|line| (&line.file, line.line));
    (
        row.image.as_ref().map(|image| &image.name),
        procedure,
        line,
        row.image.as_ref().map(|image| image.id),
        &row.parts,
    )
}

fn fraction(samples: Tally, column: Option<&EventColumn>) -> f64 {
    match column {
        Some(column) if column.counted.occurrences > 0.0 => {
            samples.occurrences / column.counted.occurrences
        }
        _ => 0.0,
    }
}

/// Removes the rows beyond `-n`, `--keep` or the default, and returns their number and samples.
pub(super) fn cut(
    rows: &mut Vec<Row>,
    columns: &[EventColumn],
    sort: usize,
    args: &Prof,
) -> Omitted {
    let mut keep = rows.len();
    if let Some(share) = args.keep {
        // The row that reaches the share is kept too.
        keep = keep.min(rows.partition_point(|row| row.cumulative < share) + 1);
    }
    match args.rows {
        Some(0) => {}
        Some(n) => keep = keep.min(n),
        None if args.keep.is_none() && args.output.format == Format::Text => {
            keep = keep.min(text_rows(rows))
        }
        None => {}
    }
    let omitted = rows.split_off(keep.min(rows.len()));
    let count = |at: usize| omitted.iter().filter_map(|row| row.counts.get(at).copied()).sum();
    let counts: Vec<Tally> = (0..columns.len()).map(count).collect();
    let share = fraction(counts.get(sort).copied().unwrap_or_default(), columns.get(sort));
    Omitted { rows: omitted.len(), counts, share }
}

/// Rows of a text down to the last with a share that matters of any event. One row is not left out:
/// to say so would take as much room.
fn text_rows(rows: &[Row]) -> usize {
    let inclusive = |row: &Row| row.inclusive.iter().flatten().any(|of| of.value >= TEXT_SHARE);
    let matters = |row: &Row| row.shares.iter().any(|of| of.value >= TEXT_SHARE) || inclusive(row);
    let last = rows.iter().rposition(matters).map_or(0, |last| last + 1);
    let keep = last.clamp(1, TEXT_ROWS);
    if keep + 1 == rows.len() { rows.len() } else { keep }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stats::Share;
    use std::fmt::Write as _;

    #[test]
    fn a_text_shows_what_matters() {
        let rows = |shares: &[f64]| {
            let id = image::ImageId::from_name("a", "");
            let row = |value: &f64| Row {
                procedure: None,
                line: None,
                language: None,
                image: Some(ImageName {
                    id,
                    kind: image::ImageKind::File,
                    name: String::new(),
                    path: String::new(),
                    ambiguous: false,
                }),
                parts: Vec::new(),
                counts: vec![Tally::of(1, 1.0)],
                shares: vec![Share { value: *value, low: 0.0, high: 1.0 }],
                inclusive: Vec::new(),
                cumulative: 0.0,
                above: Vec::new(),
            };
            shares.iter().map(row).collect::<Vec<_>>()
        };
        let mut said = String::new();
        for shares in [
            vec![],
            vec![0.5],
            vec![0.5, 0.000_1],
            vec![0.5, 0.000_1, 0.000_1],
            vec![0.01; 41],
            vec![0.01; 99],
        ] {
            write!(said, "{} ", text_rows(&rows(&shares))).unwrap();
        }
        assert_eq!(said, "1 1 2 1 41 40 ");
    }
}
