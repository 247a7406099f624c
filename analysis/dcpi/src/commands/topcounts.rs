//! `dcpi topcounts`: the instructions with the most samples of an event, or the largest ratio of
//! two events.

use std::collections::BTreeMap;
use std::io::Write;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use image::ImageOffset;

use super::Outcome;
use super::prof::{columns, image_name};
use crate::options::{Chosen, DisplayArgs, Output, RowLimit};
use names::procedures::{self, Place, Places, Rows};
use query::error::AnalysisError;
use query::load::{EventSamples, ImageSamples, Samples};
use query::problem::Problem;
use query::select;
use report::{FewSamples, InstructionRow, OmittedRows, Selection, Sort, TopcountsReport};
use stats::tally::Tally;
use stats::{Confidence, Share, ratio, share as share_of};

/// Fewest samples of both events together that a ratio needs without `--min-samples`: with 10 the
/// ratio is known to a factor of 4.
const RATIO_SAMPLES: u64 = 10;

/// `dcpi topcounts`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct TopcountsArgs {
    /// Only these images: name, path, or id (may be cut short); shares are of their samples
    #[arg(value_name = "IMAGE", value_parser = NonEmptyStringValueParser::new())]
    pub images: Vec<String>,
    #[command(flatten)]
    pub max: RowLimit,
    /// Sort rows by this event, or by the ratio of two: EVENT/EVENT [default: the first event]
    #[arg(long, value_name = "EVENT", value_parser = NonEmptyStringValueParser::new())]
    pub sort: Option<String>,
    /// Leave out instructions with fewer samples of the event, or the two events, of --sort
    /// [default: 1 of an event, 10 of two events together]
    #[arg(long, value_name = "N")]
    pub min_samples: Option<u64>,
    #[command(flatten)]
    pub look: DisplayArgs,
    #[command(flatten)]
    pub chosen: Chosen,
    #[command(flatten)]
    pub output: Output,
}

const NOTES: &str = "\
A row names an instruction by its procedure and the distance from the procedure's begin; \
addresses are those of objdump. Most processors report a sample at a later instruction than the \
one that took the time or caused the event (skid).

A ratio is of occurrences: samples times the mean distance between samples, scaled where the \
events took turns on a counter. Rows are sorted by the lower end of the ratio's interval, so that \
3 to 1 samples do not come before 900 to 400.

Exit codes: 0 done; 1 done, but part of the database could not be read; 2 could not.";

pub(crate) fn run(args: &TopcountsArgs, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let samples = args.chosen.question(&args.images)?.samples()?;
    super::write(&report(args, samples)?, &args.output, out)
}

/// An instruction with samples, not yet named.
struct Found {
    image: usize,
    offset: ImageOffset,
    counts: Vec<Tally>,
    ratio: Option<Share>,
}

fn report(args: &TopcountsArgs, mut samples: Samples) -> Result<TopcountsReport, AnalysisError> {
    let sort = sort(args, &samples.events)?;
    let restricted = !args.images.is_empty();
    let counts =
        |image: &&ImageSamples| image.wanted && (args.look.idle || restricted || !image.is_idle());
    let mut problems = std::mem::take(&mut samples.problems);
    let images: Vec<&ImageSamples> = samples.images.iter().filter(counts).collect();
    let everything = !restricted && samples.whose.is_all();
    let columns = columns(everything, args.look.confidence, &samples, &images);
    let mut found = instructions(&images);
    let all = found.len();
    let min =
        args.min_samples.unwrap_or(if matches!(sort, Sort::Ratio(..)) { RATIO_SAMPLES } else { 1 });
    let sorted_by = |row: &Found| {
        let of = |event: usize| row.counts.get(event).map_or(0, |count| count.samples);
        match sort {
            Sort::Event(event) => of(event),
            Sort::Ratio(top, bottom) => of(top).saturating_add(of(bottom)),
        }
    };
    found.retain(|row| sorted_by(row) >= min);
    let folded = all - found.len();
    if let Sort::Ratio(top, bottom) = sort {
        for row in &mut found {
            row.ratio = ratio_of(&samples.events, row, top, bottom, args.look.confidence);
        }
    }
    order(&mut found, sort);
    let omitted = found.split_off(args.max.of(found.len())).len();
    let mut rows = named(&samples, &images, found, args, &mut problems);
    for row in &mut rows {
        let share = |(count, column): (&Tally, &report::EventColumn)| {
            share_of(*count, column.counted, args.look.confidence)
        };
        row.shares = row.counts.iter().zip(&columns).map(share).collect();
    }
    let epochs = samples.epochs.iter().map(|epoch| epoch.meta().clone()).collect();
    Ok(TopcountsReport {
        selection: Selection { db: samples.db.root().display().to_string(), epochs },
        events: columns,
        sort,
        confidence: args.look.confidence,
        whose: samples.whose.clone(),
        with_idle: args.look.idle,
        found: rows,
        omitted: OmittedRows { rows: omitted },
        folded: FewSamples { rows: folded, min_samples: min },
        problems,
    })
}

/// The event or the two events of `--sort`. Names of events may have slashes themselves, so the
/// texts on both sides of the slash must be known names.
fn sort(args: &TopcountsArgs, events: &[EventSamples]) -> Result<Sort, AnalysisError> {
    let Some(asked) = &args.sort else {
        return Ok(Sort::Event(0));
    };
    let shown: Vec<String> = events.iter().map(|event| event.name.clone()).collect();
    let find = |asked: &str| {
        let name = select::event(asked, &shown)?;
        shown.iter().position(|shown| shown == name)
    };
    let both = |at: usize| Some((find(asked.get(..at)?)?, find(asked.get(at + 1..)?)?));
    let ratio = || asked.match_indices('/').find_map(|(at, _)| both(at));
    match (find(asked), ratio()) {
        (Some(event), _) => Ok(Sort::Event(event)),
        (None, Some((top, bottom))) => Ok(Sort::Ratio(top, bottom)),
        (None, None) => Err(AnalysisError::SortNotShown { asked: asked.clone(), shown }),
    }
}

fn instructions(images: &[&ImageSamples]) -> Vec<Found> {
    let mut found = Vec::new();
    for (at, image) in images.iter().enumerate().filter(|(_, image)| image.unresolved().is_none()) {
        let mut of_image: BTreeMap<ImageOffset, Vec<Tally>> = BTreeMap::new();
        for (event, profile) in image.profiles.iter().enumerate() {
            for (offset, samples) in profile.iter() {
                let counts = of_image
                    .entry(offset)
                    .or_insert_with(|| vec![Tally::default(); image.profiles.len()]);
                counts.iter_mut().skip(event).take(1).for_each(|count| *count = samples);
            }
        }
        found.extend(of_image.into_iter().map(|(offset, counts)| Found {
            image: at,
            offset,
            counts,
            ratio: None,
        }));
    }
    found
}

/// The ratio of two events' occurrences. None where an event never had a counter.
fn ratio_of(
    events: &[EventSamples],
    row: &Found,
    top: usize,
    bottom: usize,
    confidence: Confidence,
) -> Option<Share> {
    let side = |event: usize| Some((*row.counts.get(event)?, events.get(event)?.mean_weight()?));
    ratio(side(top)?, side(bottom)?, confidence)
}

/// Sorts rows. Equal rows come in the order of image and offset, so that the same database makes
/// the same report.
fn order(found: &mut [Found], sort: Sort) {
    found.sort_by(|a, b| {
        let count = |row: &Found, event: usize| {
            row.counts.get(event).map_or(0.0, |count| count.occurrences)
        };
        let low = |row: &Found| row.ratio.map_or(0.0, |ratio| ratio.low);
        let by_sort = match sort {
            Sort::Event(event) => count(b, event).total_cmp(&count(a, event)),
            Sort::Ratio(top, _) => {
                low(b).total_cmp(&low(a)).then(count(b, top).total_cmp(&count(a, top)))
            }
        };
        by_sort.then((a.image, a.offset.0).cmp(&(b.image, b.offset.0)))
    });
}

/// Gives names to the rows that are shown, image by image.
fn named(
    samples: &Samples,
    images: &[&ImageSamples],
    found: Vec<Found>,
    args: &TopcountsArgs,
    problems: &mut Vec<Problem>,
) -> Vec<InstructionRow> {
    let places = Places::with_debug_roots(args.look.debug_root.clone());
    let mut of_image: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (at, row) in found.iter().enumerate() {
        of_image.entry(row.image).or_default().push(at);
    }
    let mut rows: BTreeMap<usize, InstructionRow> = BTreeMap::new();
    for (number, of_image) in of_image {
        let Some(image) = images.get(number) else {
            continue;
        };
        let shown: Vec<(usize, &Found)> =
            of_image.iter().filter_map(|&at| Some((at, found.get(at)?))).collect();
        let offsets: Vec<ImageOffset> = shown.iter().map(|(_, row)| row.offset).collect();
        let (located, more) =
            procedures::locate(samples, image, (&offsets, Rows::Procedures), &places);
        problems.extend(more);
        for ((at, row), located) in shown.into_iter().zip(located) {
            let procedure = match located.place {
                Place::Procedure { name, .. } => Some(name),
                Place::Inlined(_)
                | Place::Unknown
                | Place::NoProcedures(_)
                | Place::Unresolved(_) => None,
            };
            let named = InstructionRow {
                image: image_name(image, images, false),
                procedure,
                into: located.into,
                address: located.address,
                offset: row.offset.0,
                counts: row.counts.clone(),
                shares: Vec::new(),
                ratio: row.ratio,
            };
            rows.insert(at, named);
        }
    }
    rows.into_values().collect()
}
