//! From sets as typed to a table: samples of each row in each part of each set.

use std::collections::{BTreeMap, BTreeSet};

use image::{ImageId, ImageKind};
use model::OpensOn;
use profiledb::{Database, EpochId, EpochMeta};

use super::renamed::{Renamed, check_renamed, name, other_name};
use super::{Comparison, SetChoice};
use names::procedures::{self, Place, Places};
use query::error::AnalysisError;
use query::load::{self, EventSamples, ImageSamples, Samples};
use query::problem::Problem;
use query::progress;
use query::scope::ScopeChoice;
use query::select;
use query::unresolved;
use stats::significance::{Counted, Measure};
use stats::tally::{self, Tally, Weighed};

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
    /// Its parts: each epoch of each host, without epochs that have no samples of the selection.
    pub parts: Vec<Part>,
}

/// An epoch of a set.
#[derive(Clone, Debug)]
pub struct Part {
    /// The epoch.
    pub epoch: EpochMeta,
    /// The event.
    pub event: EventSamples,
    /// Samples that shares are of.
    pub counted: Tally,
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

    /// The set's samples of a row, `samples` by part, as comparisons want them. Amounts are in
    /// samples of `weight`, by `each`: 1 for the sum, the number of parts for their mean.
    pub fn counted(&self, measure: Measure, samples: &[Tally], weight: f64, each: f64) -> Counted {
        let parts = self.parts.iter().zip(samples);
        let (row, whole) = parts
            .fold((Tally::default(), Tally::default()), |(row, whole), (part, samples)| {
                (row + *samples, whole + part.counted)
            });
        counted(measure, row, whole, weight * each)
    }

    /// The same of each part.
    pub fn counted_parts(&self, measure: Measure, samples: &[Tally], weight: f64) -> Vec<Counted> {
        let part =
            |(part, samples): (&Part, &Tally)| counted(measure, *samples, part.counted, weight);
        self.parts.iter().zip(samples).map(part).collect()
    }
}

/// A row's samples as comparisons want them: as many of one weight as would be as unsure. Amounts
/// are in samples of `unit`.
fn counted(measure: Measure, row: Tally, whole: Tally, unit: f64) -> Counted {
    // The weight of a sample of the row; that of the whole where the row has no sample.
    let one = if row.is_empty() { whole.weight() } else { row.weight() };
    if one <= 0.0 {
        return Counted::default();
    }
    let of = match measure {
        Measure::Share => whole.occurrences / one,
        Measure::Amount => unit / one,
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
    everything: bool,
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
    for choice in choices {
        let questions = choice.questions(&args.source);
        let mut set = Set {
            name: choice.typed.clone(),
            dbs: Vec::new(),
            whose: questions.first().map(|source| source.whose.clone()).unwrap_or_default(),
            parts: Vec::new(),
        };
        let least = if apart { EACH_MIN_SAMPLES } else { 1 };
        let (mut found, mut roots) = (Vec::new(), BTreeSet::new());
        for source in questions {
            let (db, epochs) = select::open(&source.db, &source.epochs)?;
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
                &epochs,
                &mut event,
                &source.whose,
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
            reads.push(Read { set: sets.len().saturating_sub(1), part, samples, everything });
        }
    }
    for read in &reads {
        if let Some(set) = sets.get_mut(read.set) {
            set.parts.push(read.part.clone());
        }
    }
    check_renamed(&reads, args)?;
    let everything = args.source.images.is_empty();
    let mut rows = rows(&reads, args, &mut problems);
    if everything {
        add_unresolved(&reads, &mut rows);
    }
    let rebuilt = rebuilt(&reads, args);
    let other_name = other_name(&reads, args);
    let rows = rows
        .into_iter()
        .map(|(subject, (builds, samples))| Row { subject, builds, samples })
        .collect();
    Ok(Table { sets, rows, rebuilt, other_name, left_out, problems })
}

/// Reads each epoch separately: the epochs with at least this many of the requested samples. The
/// others are `left_out`.
fn read_parts(
    db: &Database,
    epochs: &[(String, EpochId)],
    event: &mut Option<String>,
    whose: &ScopeChoice,
    (args, least): (&Comparison, u64),
    left_out: &mut Vec<LeftOut>,
    problems: &mut Vec<Problem>,
) -> Result<Vec<(Part, Samples)>, AnalysisError> {
    let mut parts = Vec::new();
    let mut nothing = None;
    let stage = progress::stage("reading epochs", epochs.len() as u64);
    for epoch in epochs {
        stage.advance(1);
        let mut leave_out = |counted| {
            left_out.push(LeftOut { host: epoch.0.clone(), epoch: epoch.1.clone(), counted })
        };
        if event.is_none() {
            let (host, id) = epoch;
            let first = db.epoch(host, id)?.meta().events.first().map(|event| event.name.clone());
            event.clone_from(&first);
        }
        let events: Vec<String> = event.iter().cloned().collect();
        let mut samples = match load::load(
            db,
            std::slice::from_ref(epoch),
            &events,
            &args.source.images,
            (whose, args.source.all),
        ) {
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
                leave_out(0);
                continue;
            }
            Err(error) => return Err(error),
        };
        problems.append(&mut samples.problems);
        match part(&samples, args) {
            Some(part) if part.counted.samples >= least => parts.push((part, samples)),
            other => leave_out(other.map_or(0, |part| part.counted.samples)),
        }
    }
    match nothing {
        Some(error) if parts.is_empty() => Err(whose.hinted(error, db, epochs)),
        _ => Ok(parts),
    }
}

/// None when the event never counted in the epoch: nothing is known of it.
fn part(samples: &Samples, args: &Comparison) -> Option<Part> {
    let epoch = samples.epochs.first()?.meta().clone();
    let event = samples.events.first()?.clone();
    if !event.weights.is_empty() && event.weights.iter().all(|(_, weight)| weight.is_none()) {
        return None;
    }
    let of_images: Tally =
        samples.images.iter().filter(|image| counts(image, args)).map(total).sum();
    let everything = args.source.images.is_empty() && samples.whose.is_all();
    let nobodys = unresolved::nobodys(everything, samples)
        .into_iter()
        .filter_map(|(_, tallies)| tallies.first().copied());
    Some(Part { epoch, event, counted: of_images + nobodys.sum() })
}

pub(super) fn counts(image: &ImageSamples, args: &Comparison) -> bool {
    image.wanted && (args.idle || !args.source.images.is_empty() || !image.is_idle())
}

pub(super) fn total(image: &ImageSamples) -> Tally {
    image.profiles.first().map_or(Tally::default(), Weighed::total)
}

type Rows = BTreeMap<Subject, (BTreeSet<ImageId>, Vec<Tally>)>;

fn rows(reads: &[Read], args: &Comparison, problems: &mut Vec<Problem>) -> Rows {
    let places = Places::with_debug_roots(args.debug_roots.clone());
    let programs = Programs::of(reads, args);
    let mut rows = Rows::new();
    for joined in joined(reads, args) {
        let images: Vec<&ImageSamples> = joined.images.iter().collect();
        if args.by_image {
            for image in images {
                add(&mut rows, programs.subject(image, None), image, &image.totals());
            }
            continue;
        }
        let found = procedures::attribute(&joined, &images, procedures::Rows::Procedures, &places);
        for (image, by_procedure) in images.iter().zip(found) {
            problems.extend(by_procedure.problems);
            for counted in by_procedure.rows {
                let name = programs.procedure(image, counted.place);
                add(&mut rows, programs.subject(image, Some(name)), image, &counted.counts);
            }
        }
    }
    rows
}

fn add(rows: &mut Rows, subject: Subject, image: &ImageSamples, counts: &[Tally]) {
    let none = || (BTreeSet::new(), vec![Tally::default(); counts.len()]);
    let (builds, samples) = rows.entry(subject).or_insert_with(none);
    if image.unresolved().is_none() {
        builds.insert(image.record.id);
    }
    tally::add_all(samples, counts);
}

/// The samples of each database together, so that procedures are looked for once: a column of
/// counts for each part of all sets, where otherwise there is one for each event.
fn joined(reads: &[Read], args: &Comparison) -> Vec<Samples> {
    let mut of_databases: Vec<(Samples, BTreeMap<ImageId, ImageSamples>)> = Vec::new();
    for (column, read) in reads.iter().enumerate() {
        let at =
            of_databases.iter().position(|(known, _)| known.db.root() == read.samples.db.root());
        let at = at.unwrap_or_else(|| {
            let (db, none) = (read.samples.db.clone(), BTreeMap::new());
            let empty = Samples {
                db,
                epochs: Vec::new(),
                events: Vec::new(),
                images: Vec::new(),
                whose: ScopeChoice::default(),
                problems: Vec::new(),
            };
            of_databases.push((empty, none));
            of_databases.len() - 1
        });
        let Some((samples, images)) = of_databases.get_mut(at) else {
            continue;
        };
        let first = samples.epochs.len();
        samples.epochs.extend(read.samples.epochs.iter().cloned());
        for image in read.samples.images.iter().filter(|image| counts(image, args)) {
            let known = images.entry(image.record.id).or_insert_with(|| ImageSamples {
                record: image.record.clone(),
                paths: Vec::new(),
                wanted: true,
                profiles: vec![Weighed::default(); reads.len()],
                scopes: BTreeMap::new(),
                by_scope: BTreeMap::new(),
                epochs: Vec::new(),
            });
            known.epochs.extend(image.epochs.iter().map(|epoch| epoch + first));
            let new: Vec<_> =
                image.paths.iter().filter(|path| !known.paths.contains(path)).cloned().collect();
            known.paths.extend(new);
            if let (Some(slot), Some(profile)) =
                (known.profiles.get_mut(column), image.profiles.first())
            {
                slot.merge(profile);
            }
        }
    }
    let finish = |(samples, images): (Samples, BTreeMap<_, _>)| Samples {
        images: images.into_values().collect(),
        ..samples
    };
    of_databases.into_iter().map(finish).collect()
}

/// Names of images that need a path or an address to be told apart.
struct Programs<'a> {
    /// Images that are taken for others.
    renamed: &'a [Renamed],
    /// Names that a set has several files of.
    ambiguous: BTreeSet<String>,
    /// Names of several builds: addresses of one mean nothing in another.
    several: BTreeSet<String>,
}

impl<'a> Programs<'a> {
    fn of(reads: &[Read], args: &'a Comparison) -> Self {
        let mut paths: BTreeMap<(usize, String), BTreeSet<&str>> = BTreeMap::new();
        let mut builds: BTreeMap<String, BTreeSet<ImageId>> = BTreeMap::new();
        for read in reads {
            for image in read.samples.images.iter().filter(|image| counts(image, args)) {
                let name = name(image, &args.renamed);
                // Only for files: other images have their name as path.
                if image.record.kind == ImageKind::File {
                    paths.entry((read.set, name.clone())).or_default().insert(&image.record.path);
                }
                builds.entry(name).or_default().insert(image.record.id);
            }
        }
        let ambiguous = paths
            .into_iter()
            .filter(|(_, paths)| paths.len() > 1)
            .map(|((_, name), _)| name)
            .collect();
        let several =
            builds.into_iter().filter(|(_, ids)| ids.len() > 1).map(|(name, _)| name).collect();
        Self { renamed: &args.renamed, ambiguous, several }
    }

    fn subject(&self, image: &ImageSamples, procedure: Option<String>) -> Subject {
        let name = name(image, self.renamed);
        let path = self.ambiguous.contains(&name).then(|| image.record.path.clone());
        Subject { image: Some(name), path, procedure }
    }

    fn procedure(&self, image: &ImageSamples, place: Place) -> String {
        match place {
            Place::Procedure { name: known, address } => {
                let nameless = known == format!("{address:#x}")
                    && self.several.contains(&name(image, self.renamed));
                if nameless { "[procedures without name]".to_owned() } else { known }
            }
            // The reason may be another for each build.
            Place::NoProcedures(_) => "[no procedures]".to_owned(),
            place => place.name(),
        }
    }
}

/// Names of images that are of one build in one set, and of another in another. Code made at run
/// time is always.
fn rebuilt(reads: &[Read], args: &Comparison) -> BTreeSet<String> {
    let mut builds: BTreeMap<String, BTreeMap<usize, BTreeSet<ImageId>>> = BTreeMap::new();
    for read in reads {
        let lasting =
            |image: &&ImageSamples| image.record.kind != ImageKind::Jit && !image.is_idle();
        for image in read.samples.images.iter().filter(lasting) {
            builds
                .entry(name(image, &args.renamed))
                .or_default()
                .entry(read.set)
                .or_default()
                .insert(image.record.id);
        }
    }
    let differ = |of_sets: &BTreeMap<usize, BTreeSet<ImageId>>| {
        let mut builds = of_sets.values();
        let first = builds.next();
        builds.any(|other| Some(other) != first)
    };
    builds.into_iter().filter(|(_, of_sets)| differ(of_sets)).map(|(name, _)| name).collect()
}

/// Samples of unknown code of no program that is known, where they are counted: a row for each
/// reason.
fn add_unresolved(reads: &[Read], rows: &mut Rows) {
    for (column, read) in reads.iter().enumerate() {
        for (reason, tallies) in unresolved::nobodys(read.everything, &read.samples) {
            let procedure = Some(unresolved::name(&reason));
            let subject = Subject { image: None, path: None, procedure };
            let none = || (BTreeSet::new(), vec![Tally::default(); reads.len()]);
            let (_, counts) = rows.entry(subject).or_insert_with(none);
            counts
                .iter_mut()
                .skip(column)
                .take(1)
                .zip(tallies)
                .for_each(|(count, tally)| *count += tally);
        }
    }
}
