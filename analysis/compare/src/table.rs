//! From sets as typed to a table: samples of each row in each part of each set.

use std::collections::{BTreeMap, BTreeSet};

use image::ImageId;
use model::{Ledger, OpensOn};
use names::interpreted::{self, Sure};
use names::procedures::Places;
use profiledb::{Database, Epoch, EpochId, EpochMeta, Stretch};

use super::renamed::{Renamed, check_renamed, other_name};
use super::rows::{add_unresolved, rebuilt, rows};
use super::{Comparison, SetChoice, times};
use query::error::AnalysisError;
use query::load::{self, EventSamples, ImageSamples, Question, Samples};
use query::problem::Problem;
use query::progress;
use query::scope::ScopeChoice;
use query::select;
use query::unresolved;
use stats::significance::{Counted, Measure};
use stats::tally::{Tally, Weighed};

/// Samples of several sets, row by row.
#[derive(Debug)]
pub struct Table {
    /// The sets, in the order asked for.
    pub sets: Vec<Set>,
    /// The rows, in order of subject.
    pub rows: Vec<Row>,
    /// Names of images that have different builds in the sets.
    pub rebuilt: BTreeSet<String>,
    /// Of two sets, the program that has most of the samples of each, where these have different
    /// names: it may be one program.
    pub other_name: Option<Renamed>,
    /// Epochs of the sets that have too few samples to be compared.
    pub left_out: Vec<LeftOut>,
    /// Whether a set is of a stretch of time. All sets then have parts of like length, and amounts
    /// are by the second.
    pub is_timed: bool,
    /// Missing or doubtful data: the notes of the report.
    pub problems: Vec<Problem>,
}

/// An epoch that a set names and that is not compared.
#[derive(Clone, Debug)]
pub struct LeftOut {
    /// Its host.
    pub host: String,
    /// Its name.
    pub epoch: EpochId,
    /// Samples that shares would be of.
    pub counted: u64,
}

/// Fewest samples of an epoch that is a set of its own with `--each`. With 100, the standard
/// error of a share is 5 points of percent at most; with fewer, an epoch that was begun and ended
/// at once varies from the others in every row.
pub const EACH_MIN_SAMPLES: u64 = 100;

/// A set.
#[derive(Clone, Debug)]
pub struct Set {
    /// As typed.
    pub name: String,
    /// The databases, as they were named.
    pub dbs: Vec<String>,
    /// The scope of the samples.
    pub whose: ScopeChoice,
    /// Its parts: each epoch of each host, without epochs that have no samples of the selection; of
    /// a stretch of time, parts of it of like length.
    pub parts: Vec<Part>,
}

/// An epoch of a set, or a part of its time.
#[derive(Clone, Debug)]
pub struct Part {
    /// The epoch.
    pub epoch: EpochMeta,
    /// The event.
    pub event: EventSamples,
    /// Samples that shares are of.
    pub counted: Tally,
}

impl Part {
    /// The time of the part, in seconds.
    pub fn seconds(&self) -> f64 {
        let (begin, end) = (self.epoch.started_unix_s, self.epoch.updated_unix_s);
        end.saturating_sub(begin).max(1) as f64
    }
}

/// A row, with its samples in each part of all sets, one set after the other.
#[derive(Clone, Debug)]
pub struct Row {
    /// The procedure or image.
    pub subject: Subject,
    /// The builds of its image.
    pub builds: BTreeSet<ImageId>,
    /// The samples.
    pub samples: Vec<Tally>,
}

/// The procedure or image of a row: the same in all sets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    /// The image's name; none for samples of unknown code.
    pub image: Option<String>,
    /// Its path, where a set has several images of that name.
    pub path: Option<String>,
    /// The procedure; none in a table of images.
    pub procedure: Option<String>,
}

impl Table {
    /// Whether the event is counted exactly in all sets.
    pub fn is_exact(&self) -> bool {
        is_exact(&self.sets)
    }

    /// Whether each set has the samples of a label only: of runs of a command, which are taken to
    /// do the same work. Whole machines are not.
    pub fn is_of_labels(&self) -> bool {
        self.sets.iter().all(|set| set.whose.label.is_some())
    }
}

/// Whether there are sets, and their event is counted exactly in all of them.
pub fn is_exact(sets: &[Set]) -> bool {
    let mut parts = sets.iter().flat_map(|set| &set.parts).peekable();
    parts.peek().is_some() && parts.all(|part| part.event.is_exact())
}

impl Row {
    /// Samples in all sets.
    pub fn total(&self) -> u64 {
        samples(&self.samples)
    }
}

impl Set {
    /// Whether each part is one recording of a command, as `dcpi record` makes it. An epoch of
    /// dcpid may have any number of runs of a label.
    pub fn is_of_recordings(&self) -> bool {
        let is_recording = |part: &Part| {
            let opens_on = part.epoch.facts.get().map(|OpensOn(label)| label);
            opens_on.is_some() && opens_on == self.whose.label
        };
        self.parts.iter().all(is_recording)
    }

    /// Whether all its samples weigh the same, and as much as this.
    pub fn weighs(&self, weight: f64) -> bool {
        self.parts.iter().all(|part| {
            let periods = part.event.weights.iter().filter(|(samples, _)| *samples > 0);
            periods.filter_map(|(_, weight)| *weight).all(|own| (own / weight - 1.0).abs() < 1e-5)
        })
    }

    /// The time from the first part to the last, where these are of stretches of time.
    pub fn time(&self) -> Option<Stretch> {
        let mut all = self.parts.iter().map(|part| Some(part.epoch.covered?.stretch));
        let first = all.next()??;
        all.try_fold(first, |all, part| {
            let part = part?;
            Some(Stretch {
                since_unix_s: all.since_unix_s.min(part.since_unix_s),
                until_unix_s: all.until_unix_s.max(part.until_unix_s),
            })
        })
    }

    /// The time of all parts, in seconds.
    pub fn seconds(&self) -> f64 {
        self.parts.iter().map(Part::seconds).sum()
    }

    /// The set's samples of a row, `samples` by part, as comparisons want them. Amounts are in
    /// samples of `weight`, by `each`: 1 for the sum, the number of parts for their mean. Rates are
    /// those amounts by the second.
    pub fn counted(&self, measure: Measure, samples: &[Tally], weight: f64, each: f64) -> Counted {
        let each = if measure == Measure::Rate { self.seconds() } else { each };
        let parts = self.parts.iter().zip(samples);
        let (row, whole) = parts
            .fold((Tally::default(), Tally::default()), |(row, whole), (part, samples)| {
                (row + *samples, whole + part.counted)
            });
        counted(measure, row, whole, weight * each)
    }

    /// The same of each part.
    pub fn counted_parts(&self, measure: Measure, samples: &[Tally], weight: f64) -> Vec<Counted> {
        let part = |(part, samples): (&Part, &Tally)| {
            let each = if measure == Measure::Rate { part.seconds() } else { 1.0 };
            counted(measure, *samples, part.counted, weight * each)
        };
        self.parts.iter().zip(samples).map(part).collect()
    }
}

/// A row's samples as comparisons want them: as many of one weight as would be as unsure. Amounts
/// are in samples of `unit`, and rates too: a unit is as many as there are seconds.
fn counted(measure: Measure, row: Tally, whole: Tally, unit: f64) -> Counted {
    // The weight of a sample of the row; that of the whole where the row has no sample. A part of
    // an interpreter's samples is as unsure as fewer, heavier samples.
    let one = match row.is_empty() || row.occurrences <= 0.0 {
        true => whole.weight(),
        false => row.weight() + row.doubtful() / row.occurrences,
    };
    if one <= 0.0 {
        return Counted::default();
    }
    let of = match measure {
        Measure::Share => whole.occurrences / one,
        Measure::Amount | Measure::Rate => unit / one,
    };
    Counted { samples: row.occurrences / one, of }
}

/// The number of samples of these together.
pub fn samples(tallies: &[Tally]) -> u64 {
    tallies.iter().copied().sum::<Tally>().samples
}

impl Table {
    /// The samples of a row, by set.
    pub fn by_set<'a>(&self, row: &'a Row) -> Vec<&'a [Tally]> {
        let mut rest = row.samples.as_slice();
        let mut of_sets = Vec::with_capacity(self.sets.len());
        for set in &self.sets {
            let (of_set, others) = rest.split_at_checked(set.parts.len()).unwrap_or((rest, &[]));
            of_sets.push(of_set);
            rest = others;
        }
        of_sets
    }

    /// The weight of a sample in the first part, which is the unit of amounts; 1 if there is none.
    pub fn weight(&self) -> f64 {
        let mut weights = self.sets.iter().flat_map(|set| &set.parts).map(|part| part.event.weight);
        weights.find(|weight| *weight > 0.0).unwrap_or(1.0)
    }
}

/// The samples read for one part, with the set's number.
pub(super) struct Read {
    pub(super) set: usize,
    pub(super) part: Part,
    pub(super) samples: Samples,
    /// All processes are meant.
    pub(super) everything: bool,
    /// All images are meant.
    pub(super) is_whole: bool,
}

impl Read {
    /// The images whose samples count.
    pub(super) fn images<'a>(
        &'a self,
        args: &'a Comparison,
    ) -> impl Iterator<Item = &'a ImageSamples> {
        self.samples.images.iter().filter(|image| counts(image, args, self.is_whole))
    }
}

/// Reads the sets. With `apart`, each epoch of a set becomes a set of its own.
///
/// # Errors
/// Returns the errors of [`Database::open`], [`select::epochs`] and [`load::load`], of a set that
/// has nothing of what is asked for; [`AnalysisError::EmptySet`].
pub fn read(choices: &[SetChoice], apart: bool, args: &Comparison) -> Result<Table, AnalysisError> {
    let mut sets = Vec::new();
    let mut reads = Vec::new();
    let (mut left_out, mut problems) = (Vec::new(), Vec::new());
    let mut event = args.event.clone();
    let (opened, names) = opened(choices, args)?;
    let is_timed = opened.iter().flatten().any(|(source, ..)| source.epochs.stretch.is_some());
    let mut parts = match is_timed && !apart {
        true => time_parts(&opened, &mut problems)?.into_iter(),
        false => Vec::new().into_iter(),
    };
    for (name, questions) in names.into_iter().zip(opened) {
        let mut set = Set {
            name,
            dbs: Vec::new(),
            whose: questions.first().map(|(source, ..)| source.whose.clone()).unwrap_or_default(),
            parts: Vec::new(),
        };
        let least = if apart { EACH_MIN_SAMPLES } else { 1 };
        let (mut found, mut roots) = (Vec::new(), BTreeSet::new());
        let is_whole = questions.iter().all(|(source, ..)| source.images.is_empty());
        for (source, db, epochs) in questions {
            let root = db.root().display().to_string();
            if !roots.insert(db.root().canonicalize().unwrap_or_else(|_| source.db.clone())) {
                return Err(AnalysisError::Refused(format!(
                    "the set {} names the database {root} twice; name each once",
                    set.name
                )));
            }
            let others = left_out.len();
            let of_db = read_parts(
                &db,
                (&epochs, parts.next()),
                &mut event,
                &source,
                (args, least),
                &mut left_out,
                &mut problems,
            )?;
            if of_db.is_empty() {
                let (epochs, event) = (left_out.len() - others, event.unwrap_or_default());
                return Err(AnalysisError::EmptySet { set: set.name, root, epochs, least, event });
            }
            set.dbs.push(root);
            found.extend(of_db);
        }
        // Where its epochs recorded one command the set is that command's.
        if let Some((_, first)) = found.first()
            && found.iter().all(|(_, samples)| samples.whose == first.whose)
        {
            set.whose = first.whose.clone();
        }
        if !apart {
            sets.push(set.clone());
        }
        for (part, samples) in found {
            if apart {
                let name = part.epoch.label.clone().unwrap_or_else(|| part.epoch.epoch.to_string());
                sets.push(Set { name, ..set.clone() });
            }
            let everything = samples.whose.is_all();
            let set = sets.len().saturating_sub(1);
            reads.push(Read { set, part, samples, everything, is_whole });
        }
    }
    for read in &reads {
        if let Some(set) = sets.get_mut(read.set) {
            set.parts.push(read.part.clone());
        }
    }
    check_renamed(&reads, args)?;
    let mut rows = rows(&reads, args, &mut problems);
    if reads.iter().all(|read| read.is_whole) {
        add_unresolved(&reads, &mut rows);
    }
    let rebuilt = rebuilt(&reads, args);
    let other_name = other_name(&reads, args);
    let rows = rows
        .into_iter()
        .map(|(subject, (builds, samples))| Row { subject, builds, samples })
        .collect();
    Ok(Table { sets, rows, rebuilt, other_name, left_out, is_timed, problems })
}

/// A question of a set, its database and its epochs.
pub(super) type Opened = (Question, Database, Vec<(String, EpochId)>);

/// The questions of each set, and the sets' names: as typed, with the times that they are given.
fn opened(
    choices: &[SetChoice],
    args: &Comparison,
) -> Result<(Vec<Vec<Opened>>, Vec<String>), AnalysisError> {
    let open = |source: Question| {
        let (db, epochs) = select::open(&source.db, &source.epochs)?;
        Ok((source, db, epochs))
    };
    let of_set =
        |choice: &SetChoice| choice.questions(&args.source).into_iter().map(open).collect();
    let mut opened = choices.iter().map(of_set).collect::<Result<Vec<_>, AnalysisError>>()?;
    let own_times = match args.own_times {
        true => times::give_own(&mut opened)?,
        false => None,
    };
    let mut own_times = own_times.into_iter().flatten();
    let named = |set: &SetChoice| format!("{}{}", set.typed, own_times.next().unwrap_or_default());
    Ok((opened, choices.iter().map(named).collect()))
}

/// The parts of the time of each question, of like length.
fn time_parts(
    opened: &[Vec<Opened>],
    problems: &mut Vec<Problem>,
) -> Result<Vec<Vec<Epoch>>, AnalysisError> {
    let mut timed = Vec::new();
    for (source, db, epochs) in opened.iter().flatten() {
        timed.push(times::timed(db, epochs, source.epochs.stretch, problems)?);
    }
    let part_s = times::part_s(&timed.iter().map(Vec::as_slice).collect::<Vec<_>>());
    Ok(timed.iter().map(|timed| times::parts(timed, part_s)).collect())
}

/// Reads each epoch, or each of these parts, separately: those with at least this many of the
/// requested samples. The other epochs are `left_out`; of the parts of a stretch of time, one
/// without samples is one of none.
fn read_parts(
    db: &Database,
    (epochs, parts): (&[(String, EpochId)], Option<Vec<Epoch>>),
    event: &mut Option<String>,
    source: &Question,
    (args, least): (&Comparison, u64),
    left_out: &mut Vec<LeftOut>,
    problems: &mut Vec<Problem>,
) -> Result<Vec<(Part, Samples)>, AnalysisError> {
    let is_parted = parts.is_some();
    let all: Vec<(String, EpochId, Option<Epoch>)> = match parts {
        Some(parts) => parts
            .into_iter()
            .map(|part| (part.meta().host.clone(), part.meta().epoch.clone(), Some(part)))
            .collect(),
        None => epochs.iter().map(|(host, id)| (host.clone(), id.clone(), None)).collect(),
    };
    let (mut parts, mut without) = (Vec::new(), Vec::new());
    let mut nothing = None;
    let places = Places::with_debug_roots(args.debug_roots.clone());
    let stage = progress::stage("reading epochs", all.len() as u64);
    for (host, id, time) in all {
        stage.advance(1);
        let epoch = (host, id);
        let mut leave_out = |counted| {
            left_out.push(LeftOut { host: epoch.0.clone(), epoch: epoch.1.clone(), counted })
        };
        if event.is_none() {
            let (host, id) = &epoch;
            let first = db.epoch(host, id)?.meta().events.first().map(|event| event.name.clone());
            event.clone_from(&first);
        }
        let events: Vec<String> = event.iter().cloned().collect();
        let whose = (&source.whose, source.all);
        let load = |images: &[String]| match &time {
            Some(part) => load::load_parts(db, vec![part.clone()], &events, images, whose),
            None => load::load(db, std::slice::from_ref(&epoch), &events, images, whose),
        };
        let sure = if args.by_image { Sure::Images } else { Sure::Functions };
        let read = interpreted::load_divided(load, &source.images, (&places, sure));
        let mut samples = match read {
            Ok(samples) => samples,
            Err(
                error @ (AnalysisError::NoScope { .. }
                | AnalysisError::NothingRecorded { .. }
                | AnalysisError::NoImage { .. }
                | AnalysisError::FramesOnly { .. }
                | AnalysisError::NoEvent { .. }
                | AnalysisError::StacksOnly { .. }
                | AnalysisError::BesideDamage { .. }),
            ) => {
                nothing = Some(error);
                match time {
                    Some(part) => without.push(part),
                    None => leave_out(0),
                }
                continue;
            }
            Err(error) => return Err(error),
        };
        // Parts of one epoch tell the same.
        samples.problems.retain(|problem| {
            let is_known = |known: &Problem| known.to_string() == problem.to_string();
            !is_parted || !problems.iter().any(is_known)
        });
        problems.append(&mut samples.problems);
        let is_whole = source.images.is_empty();
        match part(&samples, args, is_whole) {
            Some(part) if is_parted || part.counted.samples >= least => parts.push((part, samples)),
            other => leave_out(other.map_or(0, |part| part.counted.samples)),
        }
    }
    let first = parts.first().map(|(part, samples)| (part.event.clone(), samples.whose.clone()));
    if let Some((event, whose)) = first {
        parts.extend(without.into_iter().map(|part| nothing_in(db, part, &event, &whose)));
    }
    match nothing {
        Some(error) if parts.is_empty() => Err(source.whose.hinted(error, db, epochs)),
        _ => Ok(parts),
    }
}

/// A part without samples, of a set that has some elsewhere.
fn nothing_in(
    db: &Database,
    epoch: Epoch,
    event: &EventSamples,
    whose: &ScopeChoice,
) -> (Part, Samples) {
    let event = EventSamples {
        taken: Tally::default(),
        unknown: BTreeMap::new(),
        ledger: Ledger::default(),
        weights: Vec::new(),
        ..event.clone()
    };
    let counted = Tally::default();
    let part = Part { epoch: epoch.meta().clone(), event: event.clone(), counted };
    let samples = Samples {
        db: db.clone(),
        epochs: vec![epoch],
        events: vec![event],
        images: Vec::new(),
        whose: whose.clone(),
        interpreted: BTreeMap::new(),
        loops: BTreeSet::new(),
        problems: Vec::new(),
    };
    (part, samples)
}

/// None when the event never counted in the epoch: nothing is known of it.
fn part(samples: &Samples, args: &Comparison, is_whole: bool) -> Option<Part> {
    let epoch = samples.epochs.first()?.meta().clone();
    let event = samples.events.first()?.clone();
    if !event.weights.is_empty() && event.weights.iter().all(|(_, weight)| weight.is_none()) {
        return None;
    }
    let of_images: Tally =
        samples.images.iter().filter(|image| counts(image, args, is_whole)).map(total).sum();
    let everything = is_whole && samples.whose.is_all();
    let nobodys = unresolved::nobodys(everything, samples)
        .into_iter()
        .filter_map(|(_, tallies)| tallies.first().copied());
    Some(Part { epoch, event, counted: of_images + nobodys.sum() })
}

/// Whether an image's samples count; `is_whole`: no images were asked for.
fn counts(image: &ImageSamples, args: &Comparison, is_whole: bool) -> bool {
    image.wanted && (args.idle || !is_whole || !image.is_idle())
}

pub(super) fn total(image: &ImageSamples) -> Tally {
    image.profiles.first().map_or(Tally::default(), Weighed::total)
}
