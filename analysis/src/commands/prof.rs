//! `dcpi prof`: samples per procedure, or per source line, image, label, unit, process.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::Write;

use profiledb::ImageRecord;

use super::Outcome;
use crate::args::{Format, Prof};
use crate::by_line::{self, LineSamples};
use crate::error::AnalysisError;
use crate::load::{self, EventSamples, ImageSamples, Samples, sum};
use crate::problem::Problem;
use crate::procedures::{self, Place, Places};
use crate::report::{By, EventColumn, ImageName, LineName, Omitted, ProcedureName, ProfReport, Row, Selection};
use crate::scope::{Dimension, Part};
use crate::select;
use crate::stats::{Confidence, wilson};

/// Rows of a text, when no number is asked for: what fits a screen or two.
const TEXT_ROWS: usize = 40;
/// The smallest share of any event that a row of a text has, when no number is asked for.
const TEXT_SHARE: f64 = 0.001;

pub(super) fn run(args: &Prof, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let mut samples = load::chosen(&args.chosen, &args.images)?;
    super::write(&report(args, &mut samples)?, args.output.format, out)
}

/// The report of these samples, whose problems become its own.
pub(super) fn report(args: &Prof, samples: &mut Samples) -> Result<ProfReport, AnalysisError> {
    let sort = sort_event(args, &samples.events)?;
    let restricted = !args.images.is_empty();
    // An idle loop that was asked for by name is counted.
    let counts = |image: &&ImageSamples| image.wanted && (args.look.idle || restricted || !image.is_idle());
    let mut problems = std::mem::take(&mut samples.problems);
    let samples = &*samples;
    let images: Vec<&ImageSamples> = samples.images.iter().filter(counts).collect();
    let everything = !restricted && args.chosen.source.scope.is_all();
    let columns = columns(everything, args.look.confidence, samples, &images);
    let by = match args.by {
        Some(dimension) => By::Scope(dimension),
        None if args.by_image => By::Image,
        None if args.lines => By::Line,
        None => By::Procedure,
    };
    let mut rows = match by {
        By::Scope(dimension) => scope_rows(&images, dimension),
        By::Image => image_rows(&images),
        By::Procedure => procedure_rows(samples, &images, args, &mut problems),
        By::Line => line_rows(samples, &images, args, &mut problems),
    };
    if by == By::Procedure && !rows.is_empty() && !rows.iter().any(is_procedure) {
        problems.push(Problem::NoNames);
    }
    finish(&mut rows, &columns, sort, args.look.confidence);
    let omitted = cut(&mut rows, &columns, sort, args);
    let epochs = samples.epochs.iter().map(|epoch| epoch.meta().clone()).collect();
    Ok(ProfReport {
        selection: Selection { db: samples.db.root().display().to_string(), epochs },
        events: columns,
        sort,
        confidence: args.look.confidence,
        by,
        whose: args.chosen.source.scope.clone(),
        restricted,
        with_idle: args.look.idle,
        wide: args.look.wide,
        rows,
        omitted,
        problems,
    })
}

fn sort_event(args: &Prof, events: &[EventSamples]) -> Result<usize, AnalysisError> {
    let Some(asked) = &args.sort else {
        return Ok(0);
    };
    let shown: Vec<String> = events.iter().map(|event| event.name.clone()).collect();
    let found = select::event(asked, &shown).and_then(|name| shown.iter().position(|shown| shown == name));
    found.ok_or_else(|| AnalysisError::SortNotShown { asked: asked.clone(), shown })
}

/// The events with the number of samples that shares are of: those of the images counted, and, unless
/// only some images or processes are, those of unknown code.
pub(super) fn columns(
    everything: bool,
    confidence: Confidence,
    samples: &Samples,
    images: &[&ImageSamples],
) -> Vec<EventColumn> {
    let mut reasons: Vec<&String> = Vec::new();
    for (reason, samples) in samples.events.iter().flat_map(|event| &event.ledger.unresolved) {
        if everything && *samples > 0 && !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }
    let mut columns = Vec::with_capacity(samples.events.len());
    for (at, event) in samples.events.iter().enumerate() {
        let total = |image: &ImageSamples| image.profiles.get(at).map_or(0, profiledb::Profile::total);
        let idle = samples.idle(at);
        let resolved = sum(images.iter().map(|image| total(image)));
        let unresolved = if everything { event.unresolved() } else { 0 };
        let counted = resolved.saturating_add(unresolved);
        let unresolved = reasons.iter().map(|reason| {
            let samples = event.ledger.unresolved.get(*reason).copied().unwrap_or(0);
            ((*reason).clone(), samples, wilson(samples, counted, confidence))
        });
        let unresolved = unresolved.collect();
        let occurrences = event.occurrences(confidence);
        columns.push(EventColumn { event: event.clone(), idle, counted, occurrences, unresolved });
    }
    columns
}

/// Rows of what samples were kept apart by.
fn scope_rows(images: &[&ImageSamples], dimension: Dimension) -> Vec<Row> {
    let mut parts: BTreeMap<Part, Vec<u64>> = BTreeMap::new();
    for (scope, counts) in images.iter().flat_map(|image| &image.scopes) {
        let sums = parts.entry(dimension.of(scope)).or_insert_with(|| vec![0; counts.len()]);
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum = sum.saturating_add(*count));
    }
    parts.into_iter().map(|(part, counts)| row(None, None, Some(part), counts)).collect()
}

fn image_rows(images: &[&ImageSamples]) -> Vec<Row> {
    images.iter().map(|image| row(None, Some(image_name(image, images, true)), None, image.totals())).collect()
}

fn procedure_rows(samples: &Samples, images: &[&ImageSamples], args: &Prof, problems: &mut Vec<Problem>) -> Vec<Row> {
    let places = Places::with_debug_roots(args.look.debug_root.clone());
    let mut rows = Vec::new();
    for (image, by_procedure) in images.iter().zip(procedures::attribute(samples, images, &places)) {
        problems.extend(by_procedure.problems);
        let name = image_name(image, images, false);
        let mut same: BTreeMap<Place, usize> = BTreeMap::new();
        for counted in &by_procedure.rows {
            *same.entry(without_address(&counted.place)).or_default() += 1;
        }
        for counted in by_procedure.rows {
            let ambiguous = same.get(&without_address(&counted.place)).is_some_and(|&rows| rows > 1);
            let procedure = procedure_name(counted.place, ambiguous);
            rows.push(row(Some(procedure), Some(name.clone()), None, counted.counts));
        }
    }
    rows
}

fn line_rows(samples: &Samples, images: &[&ImageSamples], args: &Prof, problems: &mut Vec<Problem>) -> Vec<Row> {
    let places = Places::with_debug_roots(args.look.debug_root.clone());
    let mut rows = Vec::new();
    for (image, by_line) in images.iter().zip(by_line::attribute(samples, images, &places)) {
        problems.extend(by_line.problems);
        let name = image_name(image, images, false);
        rows.extend(by_line.rows.into_iter().map(|LineSamples { place, counts }| {
            let name_of = place.function.unwrap_or_default();
            let procedure = ProcedureName { name: name_of, address: None, ambiguous: false };
            let line = place.file.map(|file| LineName { file, line: place.line });
            Row { line, ..row(Some(procedure), Some(name.clone()), None, counts) }
        }));
    }
    rows
}

fn row(procedure: Option<ProcedureName>, image: Option<ImageName>, part: Option<Part>, counts: Vec<u64>) -> Row {
    Row { procedure, line: None, image, part, counts, shares: Vec::new(), cumulative: 0.0 }
}

fn without_address(place: &Place) -> Place {
    match place {
        Place::Procedure { name, .. } => Place::Procedure { name: name.clone(), address: 0 },
        other => other.clone(),
    }
}

fn procedure_name(place: Place, ambiguous: bool) -> ProcedureName {
    let (name, address) = match place {
        Place::Procedure { name, address } => (name, Some(address)),
        Place::Unknown => ("[unknown]".to_owned(), None),
        Place::NoProcedures(why) => (format!("[no procedures: {why}]"), None),
    };
    ProcedureName { name, address, ambiguous }
}

fn is_procedure(row: &Row) -> bool {
    row.procedure.as_ref().is_some_and(|procedure| procedure.address.is_some())
}

/// How an image is called among others. By image, paths are shown, which are more often different.
pub(super) fn image_name(image: &ImageSamples, among: &[&ImageSamples], by_path: bool) -> ImageName {
    let record = &image.record;
    // Each is held against each: nothing is copied for it.
    let same = |other: &ImageRecord| other.name == record.name && (!by_path || other.path == record.path);
    let ambiguous = among.iter().any(|other| other.record.id != record.id && same(&other.record));
    let (name, path) = (record.name.clone(), record.path.clone());
    ImageName { id: record.id, kind: record.kind, name, path, ambiguous }
}

/// Sorts the rows and gives them their shares. Rows with the same samples come in order of image and
/// name, so that the same database makes the same report.
fn finish(rows: &mut [Row], columns: &[EventColumn], sort: usize, confidence: Confidence) {
    rows.sort_by(|a, b| {
        let samples = |row: &Row| Reverse(row.counts.get(sort).copied().unwrap_or(0));
        samples(a).cmp(&samples(b)).then_with(|| b.counts.cmp(&a.counts)).then_with(|| subject(a).cmp(&subject(b)))
    });
    let mut above: u64 = 0;
    for row in rows {
        let share = |(count, column): (&u64, &EventColumn)| wilson(*count, column.counted, confidence);
        row.shares = row.counts.iter().zip(columns).map(share).collect();
        above = above.saturating_add(row.counts.get(sort).copied().unwrap_or(0));
        row.cumulative = fraction(above, columns.get(sort));
    }
}

/// What a row is of, to be sorted by.
fn subject(row: &Row) -> impl Ord {
    let procedure = row.procedure.as_ref().map(|procedure| (&procedure.name, procedure.address));
    let line = row.line.as_ref().map(|line| (&line.file, line.line));
    (row.image.as_ref().map(|image| &image.name), procedure, line, row.image.as_ref().map(|image| image.id), &row.part)
}

fn fraction(samples: u64, column: Option<&EventColumn>) -> f64 {
    match column {
        Some(column) if column.counted > 0 => samples as f64 / column.counted as f64,
        _ => 0.0,
    }
}

/// Leaves out the rows that are not asked for.
fn cut(rows: &mut Vec<Row>, columns: &[EventColumn], sort: usize, args: &Prof) -> Omitted {
    let mut keep = rows.len();
    if let Some(share) = args.keep {
        // The row that reaches the share is kept too.
        keep = keep.min(rows.partition_point(|row| row.cumulative < share) + 1);
    }
    match args.rows {
        Some(0) => {}
        Some(n) => keep = keep.min(n),
        None if args.keep.is_none() && args.output.format == Format::Text => keep = keep.min(text_rows(rows)),
        None => {}
    }
    let omitted = rows.split_off(keep.min(rows.len()));
    let count = |at: usize| sum(omitted.iter().filter_map(|row| row.counts.get(at).copied()));
    let counts: Vec<u64> = (0..columns.len()).map(count).collect();
    let share = fraction(counts.get(sort).copied().unwrap_or(0), columns.get(sort));
    Omitted { rows: omitted.len(), counts, share }
}

/// Rows of a text down to the last with a share that matters of any event. One row is not left out:
/// to say so would take as much room.
fn text_rows(rows: &[Row]) -> usize {
    let matters = |row: &Row| row.shares.iter().any(|share| share.value >= TEXT_SHARE);
    let last = rows.iter().rposition(matters).map_or(0, |last| last + 1);
    let keep = last.clamp(1, TEXT_ROWS);
    if keep + 1 == rows.len() { rows.len() } else { keep }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Share;
    use std::fmt::Write as _;

    #[test]
    fn a_text_shows_what_matters() {
        let rows = |shares: &[f64]| {
            let id = image::ImageId::from_name("a", "");
            let row = |value: &f64| Row {
                procedure: None,
                line: None,
                image: Some(ImageName {
                    id,
                    kind: image::ImageKind::File,
                    name: String::new(),
                    path: String::new(),
                    ambiguous: false,
                }),
                part: None,
                counts: vec![1],
                shares: vec![Share { value: *value, low: 0.0, high: 1.0 }],
                cumulative: 0.0,
            };
            shares.iter().map(row).collect::<Vec<_>>()
        };
        let mut said = String::new();
        for shares in
            [vec![], vec![0.5], vec![0.5, 0.000_1], vec![0.5, 0.000_1, 0.000_1], vec![0.01; 41], vec![0.01; 99]]
        {
            write!(said, "{} ", text_rows(&rows(&shares))).unwrap();
        }
        assert_eq!(said, "1 1 2 1 41 40 ");
    }
}
