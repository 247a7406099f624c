//! `dcpi timeline`: the time of procedures, images, commands or labels over time.

use std::collections::BTreeMap;
use std::io::Write;

use clap::{Args, ValueEnum};

use super::Outcome;
use super::prof::image_name;
use crate::options::{Chosen, DisplayArgs, Format, OfThreads, Output, RowLimit};
use calls::USERTIME;
use image::ImageId;
use model::Thread;
use names::interpreted::{self, Sure};
use names::procedures::{self, Places};
use query::error::AnalysisError;
use query::load::{ImageSamples, Question};
use query::scope::Dimension;
use query::timeline::{Load, Of, Timeline};
use query::unresolved;
use report::{ImageName, Selection, TimelineReport, TimelineRow};
use stats::tally::Tally;
use stats::{Confidence, occurrences, share};

/// Columns by default: they fit a terminal beside the numbers.
const COLUMNS: usize = 48;
/// Most columns. Each column reads its part of the database separately.
const COLUMNS_MAX: usize = 1000;
/// Columns that a character of a text stands for, at most: a peak is that of one of them. With
/// more, a report of a day takes seconds; with fewer, what is short is spread over a character.
const COLUMNS_JOINED: usize = 10;

/// `dcpi timeline`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct TimelineArgs {
    /// Only these images: name, path, or id (may be cut short); not with --by command or thread
    #[arg(value_name = "IMAGE")]
    pub images: Vec<String>,
    /// A row per procedure, command, thread, image, label, or what else is named
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Subject::Procedure)]
    pub by: Subject,
    /// At most N columns of time; with fewer slices in the database there are fewer columns. In
    /// text, peaks are found in columns a tenth as long
    #[arg(long, value_name = "N", default_value_t = COLUMNS, value_parser = parse_columns)]
    pub slices: usize,
    #[command(flatten)]
    pub limit: RowLimit,
    #[command(flatten)]
    pub look: DisplayArgs,
    #[command(flatten)]
    pub chosen: Chosen,
    #[command(flatten)]
    pub threads: OfThreads,
    #[command(flatten)]
    pub output: Output,
}

/// The subject of a row.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub enum Subject {
    /// A row per procedure.
    Procedure,
    /// A row per command, and per process where processes have numbers.
    Command,
    /// A row per thread, by its name and command.
    Thread,
    /// A row per image.
    Image,
    /// A row per label.
    Label,
    /// A row per systemd unit or container.
    Unit,
    /// A row per container.
    Container,
    /// A row per pod of containers.
    Pod,
    /// A row per namespace of pods.
    Namespace,
}

impl Subject {
    /// The dimension of scopes that rows are of.
    const fn dimension(self) -> Option<Dimension> {
        match self {
            Self::Label => Some(Dimension::Label),
            Self::Unit => Some(Dimension::Unit),
            Self::Container => Some(Dimension::Container),
            Self::Pod => Some(Dimension::Pod),
            Self::Namespace => Some(Dimension::Namespace),
            _ => None,
        }
    }
}

const NOTES: &str = "\
Each column of time is one or more slices of the database: ten seconds each of the last day, a \
minute of the last week, ten minutes or a day of what is older; longer ones on busy hosts. The \
tallest sign of a row is its own peak. Beside it stand time and height of the row's highest slice, \
or of the highest few slices where there are many. Times are in UTC. Rows by command are from call \
stacks, and have the number of each process that was long enough there.

Exit codes: 0 done; 1 done, but part of the database could not be read; 2 could not.";

fn parse_columns(text: &str) -> Result<usize, String> {
    let columns = text.parse().ok().filter(|columns| (1..=COLUMNS_MAX).contains(columns));
    columns.ok_or_else(|| format!("must be a number from 1 to {COLUMNS_MAX}"))
}

pub(crate) fn run(args: &TimelineArgs, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let is_command = matches!(args.by, Subject::Command | Subject::Thread);
    if let Some(image) = args.images.first().filter(|_| is_command) {
        return Err(super::by_thread::no_image(image));
    }
    let all = args.chosen.all || args.by.dimension().is_some();
    let chosen = Chosen { all, ..args.chosen.clone() };
    let question = args.threads.narrow(chosen.question(&args.images)?);
    if question.whose.needs_stacks() && !is_command {
        let why = "samples are not kept by command and thread, call stacks are; use --by command \
                   or --by thread";
        return Err(AnalysisError::Refused(why.to_owned()));
    }
    let timeline = read(args, &question, is_command)?;
    super::write(&report(args, timeline)?, &args.output, out)
}

/// Samples, or call stacks where rows are of threads.
fn read(
    args: &TimelineArgs,
    question: &Question,
    is_of_threads: bool,
) -> Result<Timeline, AnalysisError> {
    let columns = match args.output.format {
        Format::Text => args.slices.saturating_mul(COLUMNS_JOINED).min(COLUMNS_MAX),
        _ => args.slices,
    };
    if !is_of_threads {
        let places = Places::with_debug_roots(args.look.debug_root.clone());
        let prepare = |load: &Load<'_>, images: &[String]| match args.by {
            of if of.dimension().is_some() => load(images),
            Subject::Image => interpreted::load_divided(load, images, (&places, Sure::Images)),
            _ => interpreted::load_divided(load, images, (&places, Sure::Functions)),
        };
        return question.timeline(columns, Of::Samples(&prepare));
    }
    if question.events != [USERTIME] {
        return question.timeline(columns, Of::Stacks { name: None, parts: &[] });
    }
    let scope = question.whose.without_threads();
    let opened = Question { whose: scope, ..question.clone() }.opened()?;
    let parts = super::stacks::usertime_parts(&opened.epochs);
    if parts.is_empty() {
        let damage = query::problem::damage(&opened.problems);
        return Err(super::stacks::no_stacks().beside(damage));
    }
    question.timeline(columns, Of::Stacks { name: Some(USERTIME), parts: &parts })
}

fn report(args: &TimelineArgs, mut timeline: Timeline) -> Result<TimelineReport, AnalysisError> {
    let mut problems = std::mem::take(&mut timeline.samples.problems);
    let by_key = match args.by {
        Subject::Command => threads(&timeline, command)?,
        Subject::Thread => threads(&timeline, thread)?,
        Subject::Image => images(args, &timeline),
        Subject::Label | Subject::Unit | Subject::Container | Subject::Pod | Subject::Namespace => {
            scopes(args, &timeline)
        }
        Subject::Procedure => {
            let places = Places::with_debug_roots(args.look.debug_root.clone());
            let images = shown(args, &timeline);
            let found = procedures::attribute(
                &timeline.samples,
                &images,
                procedures::Rows::Procedures,
                &places,
            );
            let mut rows = Rows::new();
            for (image, found) in images.iter().zip(found) {
                problems.extend(found.problems);
                for counted in found.rows {
                    let key = (counted.place.name(), Some(image.record.id), None);
                    add(&mut rows, key, &counted.counts);
                }
            }
            rows
        }
    };
    let known = named(&shown(args, &timeline));
    let mut rows = rows(by_key, &known, args.look.confidence);
    let shown = args.limit.of(rows.len());
    let mut counts = vec![0.0; timeline.columns.len()];
    for row in &rows {
        counts.iter_mut().zip(&row.counts).for_each(|(sum, count)| *sum += count);
    }
    let omitted = rows.split_off(shown).len();
    let Timeline { columns, event, unit, samples, covered_s, .. } = timeline;
    let epochs = samples.epochs.iter().map(|epoch| epoch.meta().clone()).collect();
    Ok(TimelineReport {
        selection: Selection { db: samples.db.root().display().to_string(), epochs },
        event,
        unit,
        by: match args.by {
            Subject::Procedure => "procedure",
            Subject::Command => "command",
            Subject::Thread => "thread",
            Subject::Image => "image",
            of => of.dimension().map_or("label", Dimension::name),
        },
        whose: samples.whose,
        columns,
        covered_s,
        characters: args.slices,
        counts,
        subjects: rows,
        omitted,
        problems,
    })
}

/// Name, image and process number of a row.
type Key = (String, Option<ImageId>, Option<u32>);
type Rows = BTreeMap<Key, Vec<Tally>>;

fn add(rows: &mut Rows, key: Key, counts: &[Tally]) {
    let none = || vec![Tally::default(); counts.len()];
    stats::tally::add_all(rows.entry(key).or_insert_with(none), counts);
}

fn shown<'a>(args: &TimelineArgs, timeline: &'a Timeline) -> Vec<&'a ImageSamples> {
    let is_shown = |image: &&ImageSamples| {
        image.wanted && (args.look.idle || !args.images.is_empty() || !image.is_idle())
    };
    timeline.samples.images.iter().filter(is_shown).collect()
}

/// The names of images; builds of one file are told apart by their ids.
fn named(images: &[&ImageSamples]) -> BTreeMap<ImageId, ImageName> {
    let name = |image: &&ImageSamples| (image.record.id, image_name(image, images, false));
    images.iter().map(name).collect()
}

fn images(args: &TimelineArgs, timeline: &Timeline) -> Rows {
    let mut rows = Rows::new();
    for image in shown(args, timeline) {
        let name = match image.unresolved() {
            Some(reason) => format!("{} {}", unresolved::name(reason), image.record.name),
            None => image.record.name.clone(),
        };
        add(&mut rows, (name, Some(image.record.id), None), &image.totals());
    }
    rows
}

fn scopes(args: &TimelineArgs, timeline: &Timeline) -> Rows {
    let mut rows = Rows::new();
    let dimension = args.by.dimension().unwrap_or(Dimension::Label);
    for (scope, counts) in shown(args, timeline).iter().flat_map(|image| &image.scopes) {
        add(&mut rows, (dimension.of(scope).shown(), None, None), counts);
    }
    rows
}

/// A command, with the number of a process that has one.
fn command(thread: &Thread) -> String {
    let command = if thread.command.is_empty() { "[no command]" } else { &thread.command };
    if thread.pid > 0 { format!("{command} {}", thread.pid) } else { command.to_owned() }
}

/// A thread after its command, each with its number if it has one.
fn thread(thread: &Thread) -> String {
    let name = if thread.name.is_empty() { &thread.command } else { &thread.name };
    let number = if thread.tid > 0 { format!(" {}", thread.tid) } else { String::new() };
    format!("{}/{name}{number}", command(thread))
}

/// Time by command and process, or by thread, from call stacks.
fn threads(timeline: &Timeline, key: fn(&Thread) -> String) -> Result<Rows, AnalysisError> {
    let columns = timeline.columns.len();
    let mut rows = Rows::new();
    for (column, stacks) in timeline.stacks.iter().enumerate() {
        for (_, thread, value) in stacks.values() {
            let pid = (thread.pid > 0).then_some(thread.pid);
            let counts = rows
                .entry((key(thread), None, pid))
                .or_insert_with(|| vec![Tally::default(); columns]);
            if let Some(count) = counts.get_mut(column) {
                *count += super::of_stacks(value);
            }
        }
    }
    if rows.is_empty() {
        return Err(AnalysisError::Refused(format!(
            "no call stacks of {:?} in this time, which tell commands apart; dcpi timeline --by image needs none",
            timeline.event
        )));
    }
    // For example, while dcpid's budget left no room for stacks.
    if timeline.without_stacks.iter().any(|time| *time > 0.0) {
        let counts = timeline.without_stacks.iter().map(|time| super::of_no_stacks(*time));
        rows.insert((super::NO_STACKS.to_owned(), None, None), counts.collect());
    }
    Ok(rows)
}

/// The rows, those with the most counts first.
fn rows(
    by_key: Rows,
    images: &BTreeMap<ImageId, ImageName>,
    confidence: Confidence,
) -> Vec<TimelineRow> {
    let all: Tally = by_key.values().flatten().copied().sum();
    let row = |((key, image, pid), counts): (Key, Vec<Tally>)| {
        let total: Tally = counts.iter().copied().sum();
        let weight = total.weight();
        let equal = if weight > 0.0 { (total.occurrences / weight).round() as u64 } else { 0 };
        let interval = occurrences(&[(equal, weight)], confidence);
        let value = total.occurrences;
        // The interval is of a whole number of samples of equal weight.
        let total_of = stats::Occurrences {
            value,
            low: interval.low.min(value),
            high: interval.high.max(value),
        };
        TimelineRow {
            key,
            image: image.and_then(|image| images.get(&image)).cloned(),
            pid,
            counts: counts.iter().map(|count| count.occurrences).collect(),
            total: total_of,
            share: share(total, all, confidence),
        }
    };
    let mut rows: Vec<TimelineRow> = by_key.into_iter().map(row).collect();
    rows.retain(|row| row.total.value > 0.0);
    rows.sort_by(|a, b| {
        let of = |row: &TimelineRow| row.total.value;
        let image =
            |row: &TimelineRow| row.image.as_ref().map(|image| (image.name.clone(), image.id));
        let name = |row: &TimelineRow| (row.key.clone(), image(row));
        of(b).total_cmp(&of(a)).then_with(|| name(a).cmp(&name(b)))
    });
    rows
}
