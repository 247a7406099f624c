//! From the database to sums over the selected epochs: samples per image and event.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use code::skid::Skid;
use image::{ImageId, ImageKind, ImageOffset, KeptFile};
use model::{Cpuid, IDEAL, IdealMachine, MeasuredSkid, Profile};
use profiledb::{Database, DbError, Epoch, EpochId, EpochMeta, ImageRecord, Scope, Symbol};

use crate::error::AnalysisError;
use crate::problem::{self, Problem};
use crate::progress;
use crate::scope::ScopeChoice;
use crate::select;
use stats::tally::{self, Tally, Weighed};

mod described;
mod events;
mod executions;
mod interpreted;
mod missing;
mod opening;

pub use events::EventSamples;
use events::join_event;
pub(crate) use events::weight;
pub use executions::Executions;
pub use interpreted::Interpreted;
pub use missing::USERTIME;
pub(crate) use missing::{add_damage, no_samples};
use missing::{damage, frames_only};
pub use opening::open;
pub(crate) use opening::opening_scope;

/// The samples of a selection.
#[derive(Debug)]
pub struct Samples {
    /// The database.
    pub db: Database,
    /// The epochs, by host and time.
    pub epochs: Vec<Epoch>,
    /// The events asked for, in the order asked for; by default all, in the order of the epochs.
    pub events: Vec<EventSamples>,
    /// The images asked for (by default all) that have samples, and the idle loop's, by id.
    pub images: Vec<ImageSamples>,
    /// The scope of the samples: the one asked for, or that of the recorded command.
    pub whose: ScopeChoice,
    /// The images of source files that have been given samples of the interpreter that ran their
    /// functions.
    pub interpreted: BTreeMap<ImageId, Interpreted>,
    /// The places of the interpreters whose samples these were.
    pub loops: BTreeSet<(ImageId, ImageOffset)>,
    /// Files that could not be read, and other notes.
    pub problems: Vec<Problem>,
}

/// The samples of an image.
#[derive(Debug)]
pub struct ImageSamples {
    /// The image, as last met.
    pub record: ImageRecord,
    /// Paths it was met at, latest first, on whatever host.
    pub paths: Vec<PathBuf>,
    /// Whether the image is one of those asked for, or all images were asked for.
    pub wanted: bool,
    /// Samples by event, in the order of [`Samples::events`].
    pub profiles: Vec<Weighed>,
    /// Samples by scope and event.
    pub scopes: BTreeMap<Scope, Vec<Tally>>,
    /// The profiles of each scope by event, which add up to `profiles`; only with
    /// [`Question::by_scope`], else none.
    pub by_scope: BTreeMap<Scope, Vec<Weighed>>,
    /// The epochs that have samples of it, as indices of [`Samples::epochs`].
    pub epochs: Vec<usize>,
}

impl ImageSamples {
    /// Samples by event.
    pub fn totals(&self) -> Vec<Tally> {
        self.profiles.iter().map(Weighed::total).collect()
    }

    /// Numbers of samples by event.
    pub fn sample_totals(&self) -> Vec<u64> {
        tally::samples(&self.totals())
    }

    /// Samples of an event, each of which stands for [`EventSamples::weight`].
    pub fn equal(&self, event: usize) -> Option<&Profile> {
        self.profiles.get(event).map(Weighed::equal)
    }

    /// The places that have samples of any event, in order.
    pub fn offsets(&self) -> Vec<ImageOffset> {
        let mut offsets: Vec<ImageOffset> =
            self.profiles.iter().flat_map(Weighed::iter).map(|(offset, _)| offset).collect();
        offsets.sort_unstable();
        offsets.dedup();
        offsets
    }

    /// The reason why the image of these samples is not known, where it is not.
    pub fn unresolved(&self) -> Option<&str> {
        (self.record.kind == ImageKind::Unresolved).then_some(self.record.path.as_str())
    }

    /// Whether the image is the idle loop.
    pub fn is_idle(&self) -> bool {
        self.record.kind == ImageKind::Idle
    }
}

impl Samples {
    /// The symbols that the daemon saw for an image, in any of the epochs; of two with one start
    /// the later epoch's.
    ///
    /// # Errors
    /// The first file that could not be read.
    pub fn symbols(&self, image: &ImageSamples) -> Result<Vec<Symbol>, DbError> {
        let mut by_start = BTreeMap::new();
        for epoch in image.epochs.iter().filter_map(|&at| self.epochs.get(at)) {
            by_start.extend(
                epoch.symbols(&image.record.id)?.into_iter().map(|symbol| (symbol.start, symbol)),
            );
        }
        Ok(by_start.into_values().collect())
    }

    /// Samples of an event, by its place in [`Samples::events`], of the idle loop.
    pub fn idle(&self, event: usize) -> u64 {
        self.total(event, ImageSamples::is_idle).samples
    }

    /// Samples of an event in these images.
    pub fn total(&self, event: usize, of: impl Fn(&ImageSamples) -> bool) -> Tally {
        let images = self.images.iter().filter(|image| of(image));
        images.filter_map(|image| image.profiles.get(event)).map(Weighed::total).sum()
    }

    /// The index in [`Samples::events`] of the event that counts time, and its skid: as measured,
    /// else 0.
    ///
    /// # Errors
    /// [`AnalysisError::Refused`] when no event does.
    pub fn time(&self) -> Result<(usize, Skid), AnalysisError> {
        let counts_time = |event: &EventSamples| {
            let name = event.name.split(':').next().unwrap_or_default();
            matches!(name, "cpu-clock" | "task-clock" | "cycles" | "cpu-cycles")
        };
        // Exact cycles at best are the time where there is no other.
        let is_ideal = |event: &EventSamples| event.name == IDEAL;
        let event = || {
            let mut events = self.events.iter();
            events.position(counts_time).or_else(|| self.events.iter().position(is_ideal))
        };
        let named = || Some((event()?, Skid::default()));
        self.skid().or_else(named).ok_or_else(|| {
            let why =
                "no event of these samples counts time (cycles, cpu-clock); choose epochs with such an event: dcpi epochs";
            AnalysisError::Refused(why.to_owned())
        })
    }

    /// The index in [`Samples::events`] of exact executions of instructions. None where they were
    /// not counted.
    pub fn executed(&self) -> Option<usize> {
        self.events.iter().position(|event| event.name == model::EXECUTED)
    }

    /// The index in [`Samples::events`] of the event whose skid dcpid measured, and the skid. None
    /// where no skid was measured, or the epochs differ.
    pub fn skid(&self) -> Option<(usize, Skid)> {
        let of = |epoch: &Epoch| {
            let MeasuredSkid { event, instructions, .. } = epoch.meta().facts.get()?;
            Some((event, Skid::new(instructions)?))
        };
        let mut skids = self.epochs.iter().map(of);
        let first = skids.next()??;
        if !skids.all(|skid| skid.as_ref() == Some(&first)) {
            return None;
        }
        let event = self.events.iter().position(|event| event.name == first.0)?;
        Some((event, first.1))
    }

    /// The model of the processor whose cycles were counted, where all epochs agree.
    pub fn ideal_machine(&self) -> Option<String> {
        let mut all = self.epochs.iter().map(|epoch| epoch.meta().facts.get());
        let IdealMachine(first) = all.next()??;
        all.all(|of| of.is_some_and(|IdealMachine(of)| of == first)).then_some(first)
    }

    /// The processor that was sampled, where all epochs agree.
    pub fn cpuid(&self) -> Option<Cpuid> {
        let mut all = self.epochs.iter().map(|epoch| epoch.meta().facts.get());
        let first = all.next()??;
        all.all(|cpuid| cpuid.as_ref() == Some(&first)).then_some(first)
    }

    /// The code that dcpid kept of an image's file, on any of the hosts with samples of it.
    /// `problems` gets the code stores that cannot be read.
    pub fn code(&self, image: &ImageSamples, problems: &mut Vec<Problem>) -> Option<KeptFile> {
        let of_epochs = image.epochs.iter().filter_map(|&at| self.epochs.get(at));
        let hosts: BTreeSet<&str> = of_epochs.map(|epoch| epoch.meta().host.as_str()).collect();
        hosts.into_iter().find_map(|host| {
            self.db.code(host, &image.record.id).unwrap_or_else(|error| {
                problems.push(Problem::CodeUnreadable { error });
                None
            })
        })
    }
}

/// Sum of samples.
pub fn sum(samples: impl IntoIterator<Item = u64>) -> u64 {
    samples.into_iter().fold(0, u64::saturating_add)
}

/// The selection of samples to read from a database.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// The directory of the database.
    pub db: PathBuf,
    /// Which epochs; by default the latest of each host.
    pub epochs: select::Epochs,
    /// Names of events, the database's or perf's; none: all.
    pub events: Vec<String>,
    /// Names, paths or beginnings of ids of images; none: all.
    pub images: Vec<String>,
    /// Scope of the samples; by default all, or that of the recorded command.
    pub whose: ScopeChoice,
    /// Read the samples of the whole machine, also if one command was recorded.
    pub all: bool,
    /// Fill [`ImageSamples::by_scope`] as well, which takes as much memory again.
    pub by_scope: bool,
}

impl Question {
    /// Reads the samples. Each epoch is read in its state at the time of opening, even if a daemon
    /// changes it meanwhile; a file that cannot be read is left out and reported in
    /// [`Samples::problems`].
    pub fn samples(&self) -> Result<Samples, AnalysisError> {
        let (db, epochs) = select::open(&self.db, &self.epochs)?;
        read(&db, &epochs, &self.asked()).map_err(|error| self.whose.hinted(error, &db, &epochs))
    }

    pub(crate) fn asked(&self) -> Asked<'_> {
        let Self { events, images, whose, all, by_scope, .. } = self;
        Asked { events, images, whose, all: *all, by_scope: *by_scope }
    }
}

impl Samples {
    /// The samples that another query selects from the same state of the same epochs.
    pub fn again(
        &self,
        question: &Question,
        problems: &mut Vec<Problem>,
    ) -> Result<Self, AnalysisError> {
        sums_of(&self.db, self.epochs.clone(), &question.asked(), problems)
    }

    /// The samples of one epoch, or of a part of one, of all events, images and processes, by
    /// scope.
    pub fn of_epoch(db: &Database, epoch: Epoch) -> Result<Self, AnalysisError> {
        let question = Question { all: true, by_scope: true, ..Question::default() };
        let mut problems = Vec::new();
        let samples = sums_of(db, vec![epoch], &question.asked(), &mut problems)?;
        Ok(Self { problems, ..samples })
    }
}

/// The part of a [`Question`] that selects within epochs, as typed.
pub(crate) struct Asked<'a> {
    pub(crate) events: &'a [String],
    pub(crate) images: &'a [String],
    pub(crate) whose: &'a ScopeChoice,
    /// Whether samples of the whole machine are read, also if one command was recorded.
    pub(crate) all: bool,
    pub(crate) by_scope: bool,
}

/// Reads the selected samples. `events` and `images` are as typed; none means all. `whose` chooses
/// among samples that were kept apart. Without it, the samples of the recorded command are read,
/// unless `all` is set.
///
/// A file that cannot be read is left out and reported in [`Samples::problems`].
///
/// # Errors
/// [`AnalysisError::NoEvent`], [`AnalysisError::NoScope`], [`AnalysisError::NoImage`];
/// [`AnalysisError::Database`] when no epoch can be read at all.
pub fn load(
    db: &Database,
    chosen: &[(String, EpochId)],
    events: &[String],
    images: &[String],
    (whose, all): (&ScopeChoice, bool),
) -> Result<Samples, AnalysisError> {
    read(db, chosen, &Asked { events, images, whose, all, by_scope: false })
}

/// As [`load`], of epochs that were opened, or of parts of their time.
///
/// # Errors
/// As [`load`].
pub fn load_parts(
    db: &Database,
    epochs: Vec<Epoch>,
    events: &[String],
    images: &[String],
    (whose, all): (&ScopeChoice, bool),
) -> Result<Samples, AnalysisError> {
    let mut problems = Vec::new();
    let asked = Asked { events, images, whose, all, by_scope: false };
    let samples = sums_of(db, epochs, &asked, &mut problems);
    let samples = samples.map_err(|error| error.beside(problem::damage(&problems)))?;
    Ok(Samples { problems, ..samples })
}

/// Reads the requested samples. Each epoch is read in its state at the time of opening, even if the
/// daemon changes it meanwhile.
fn read(
    db: &Database,
    chosen: &[(String, EpochId)],
    asked: &Asked<'_>,
) -> Result<Samples, AnalysisError> {
    let mut problems = Vec::new();
    let samples = sums(db, (chosen, asked), &mut problems);
    // The requested data may be missing because of the damage.
    let samples = samples.map_err(|error| error.beside(problem::damage(&problems)))?;
    Ok(Samples { problems, ..samples })
}

/// The samples without their problems, which go to `problems`.
fn sums(
    db: &Database,
    (chosen, asked): (&[(String, EpochId)], &Asked<'_>),
    problems: &mut Vec<Problem>,
) -> Result<Samples, AnalysisError> {
    let epochs = open(db, chosen, problems)?;
    sums_of(db, epochs, asked, problems)
}

/// The samples of these epochs, likewise.
pub(crate) fn sums_of(
    db: &Database,
    epochs: Vec<Epoch>,
    asked: &Asked<'_>,
    problems: &mut Vec<Problem>,
) -> Result<Samples, AnalysisError> {
    let whose = &opening_scope(&epochs, asked, problems);
    let opens_on = (whose != asked.whose).then(|| whose.clone());
    let names = event_names(&epochs, asked.events)?;
    let mut events: Vec<EventSamples> =
        names.iter().map(|name| join_event(name, &epochs, problems)).collect();
    let mut contents: Vec<Contents> =
        epochs.iter().map(|epoch| contents(epoch, &names, problems)).collect();
    let known = contents.iter().flat_map(|contents| &contents.profiles).map(|(key, _)| &key.scope);
    whose.check(known).map_err(|error| match opens_on.and_then(|whose| whose.label) {
        Some(label) => AnalysisError::NothingRecorded { label },
        None => error,
    })?;
    contents.iter_mut().for_each(|contents| contents.choose(whose));
    if !whose.is_all() {
        let each = || epochs.iter().zip(&contents);
        events.iter_mut().enumerate().for_each(|(at, event)| event.narrow(at, each(), problems));
    }
    let wanted = if asked.images.is_empty() {
        None
    } else {
        let wanted = select::images(asked.images, contents.iter().flat_map(Contents::met));
        Some(wanted.map_err(|error| frames_only(error, &epochs, &contents))?)
    };
    let mut images = BTreeMap::new();
    let stage = progress::stage("reading epochs", epochs.len() as u64);
    for (at, (epoch, contents)) in epochs.iter().zip(&contents).enumerate() {
        let which = (wanted.as_ref(), asked.by_scope);
        let totals = add_epoch(&mut images, (at, epoch, contents), &names, which, problems);
        if let Some(totals) = totals {
            check_balance(epoch.meta(), &names, &totals, problems);
        }
        stage.advance(1);
    }
    let mut images: Vec<ImageSamples> = images.into_values().collect();
    images.retain(|image| image.profiles.iter().any(|profile| !profile.is_empty()));
    for image in &mut images {
        for profiles in std::iter::once(&mut image.profiles).chain(image.by_scope.values_mut()) {
            profiles
                .iter_mut()
                .zip(&events)
                .for_each(|(profile, event)| profile.equalize(event.weight));
        }
    }
    let whose = whose.clone();
    let (interpreted, loops, problems) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
    let db = db.clone();
    Ok(Samples { db, epochs, events, images, whose, interpreted, loops, problems })
}

/// The names of the events asked for, each once, or of all.
fn event_names(epochs: &[Epoch], asked: &[String]) -> Result<Vec<String>, AnalysisError> {
    let mut known: Vec<String> = Vec::new();
    for event in epochs.iter().flat_map(|epoch| &epoch.meta().events) {
        if !known.contains(&event.name) {
            known.push(event.name.clone());
        }
    }
    if asked.is_empty() {
        return Ok(known);
    }
    let mut names: Vec<String> = Vec::new();
    for asked in profiledb::split_events(&asked.join(",")) {
        match select::event(asked, &known) {
            Some(name) if names.contains(name) => {}
            Some(name) => names.push(name.clone()),
            None => return Err(no_samples(asked, epochs, known)),
        }
    }
    Ok(names)
}

/// Which profiles of the events an epoch has, and of what images.
struct Contents {
    records: BTreeMap<ImageId, ImageRecord>,
    /// Image and event, the latter as index of the names.
    profiles: Vec<(profiledb::ProfileKey, usize)>,
    /// False when something could not be listed, or was not asked for.
    complete: bool,
}

impl Contents {
    /// Leaves out samples of other processes.
    fn choose(&mut self, whose: &ScopeChoice) {
        if !whose.is_all() {
            self.profiles.retain(|(key, _)| whose.admits(&key.scope));
            self.complete = false;
        }
    }

    /// The images with profiles.
    fn met(&self) -> impl Iterator<Item = &ImageRecord> + Clone {
        let with_samples: BTreeSet<ImageId> =
            self.profiles.iter().map(|(key, _)| key.image).collect();
        // What stands for unknown code of a program has the program's name, and is none of its
        // images.
        let known = |record: &&ImageRecord| record.kind != ImageKind::Unresolved;
        self.records.values().filter(known).filter(move |record| with_samples.contains(&record.id))
    }
}

fn contents(epoch: &Epoch, events: &[String], problems: &mut Vec<Problem>) -> Contents {
    let mut complete = true;
    let mut failed = |error| {
        complete = false;
        problem::add_unreadable(problems, error);
    };
    let mut records = epoch.images().unwrap_or_else(|error| {
        failed(error);
        BTreeMap::new()
    });
    damage(epoch).into_iter().for_each(&mut failed);
    // Where this list is damaged the profiles tell for themselves, but it is damage all the same.
    if let Err(error) = epoch.scopes() {
        failed(error);
    }
    let keys = epoch.profiles().unwrap_or_else(|error| {
        failed(error);
        Vec::new()
    });
    let profiles: Vec<_> = keys
        .into_iter()
        .filter_map(|key| {
            let event = events.iter().position(|event| event == key.name())?;
            Some((key, event))
        })
        .collect();
    for (key, _) in &profiles {
        records.entry(key.image).or_insert_with(|| nameless(key.image, epoch.meta()));
    }
    Contents { records, profiles, complete }
}

/// A record for an image whose record could not be read: its samples are there all the same.
fn nameless(id: ImageId, meta: &EpochMeta) -> ImageRecord {
    let (name, path, at) = ("[unknown image]".to_owned(), String::new(), meta.started_unix_s);
    let kind = ImageKind::File;
    ImageRecord {
        id,
        kind,
        name,
        path,
        size_bytes: None,
        first_seen_unix_s: at,
        last_seen_unix_s: at,
    }
}

/// Adds an epoch's profiles to the images. Returns their samples by event, if all could be read.
fn add_epoch(
    images: &mut BTreeMap<ImageId, ImageSamples>,
    (at, epoch, contents): (usize, &Epoch, &Contents),
    events: &[String],
    (wanted, by_scope): (Option<&BTreeSet<ImageId>>, bool),
    problems: &mut Vec<Problem>,
) -> Option<Vec<u64>> {
    let mut totals = vec![0_u64; events.len()];
    let mut complete = contents.complete && wanted.is_none();
    for (key, event) in &contents.profiles {
        let Some(record) = contents.records.get(&key.image) else {
            continue;
        };
        let asked_for = wanted.is_none_or(|wanted| wanted.contains(&key.image));
        if !asked_for && record.kind != ImageKind::Idle {
            continue;
        }
        let profile = match epoch.profile(key) {
            Ok(profile) => profile,
            Err(error) => {
                complete = false;
                problem::add_unreadable(problems, error);
                continue;
            }
        };
        let (samples, weight) = (profile.total(), weight(epoch.meta(), key.name(), key.period()));
        if let Some(total) = totals.get_mut(*event).filter(|_| !key.image.is_unresolved()) {
            *total = total.saturating_add(samples);
        }
        let image = images.entry(key.image).or_insert_with(|| ImageSamples {
            wanted: asked_for,
            ..ImageSamples::none(record, events.len())
        });
        image.meet(record, at);
        let none = || vec![Tally::default(); events.len()];
        let of_scope = image.scopes.entry(key.scope.clone()).or_insert_with(none);
        if let Some(total) = of_scope.get_mut(*event) {
            *total += Tally::of(samples, weight);
        }
        if by_scope {
            let none = || vec![Weighed::default(); events.len()];
            let of_scope = image.by_scope.entry(key.scope.clone()).or_insert_with(none);
            if let Some(sum) = of_scope.get_mut(*event) {
                sum.add(weight, profile.clone());
            }
        }
        if let Some(sum) = image.profiles.get_mut(*event) {
            sum.add(weight, profile);
        }
    }
    complete.then_some(totals)
}

impl ImageSamples {
    /// An image without samples of this many events, of no epoch yet.
    pub(crate) fn none(record: &ImageRecord, events: usize) -> Self {
        Self {
            record: record.clone(),
            paths: Vec::new(),
            wanted: true,
            profiles: vec![Weighed::default(); events],
            scopes: BTreeMap::new(),
            by_scope: BTreeMap::new(),
            epochs: Vec::new(),
        }
    }

    /// Takes up what another epoch says about the image.
    pub(crate) fn meet(&mut self, record: &ImageRecord, epoch: usize) {
        if self.epochs.last() != Some(&epoch) {
            self.epochs.push(epoch);
        }
        let path = record.real_path();
        let newer = record.last_seen_unix_s > self.record.last_seen_unix_s;
        let first_seen_unix_s = record.first_seen_unix_s.min(self.record.first_seen_unix_s);
        if newer {
            self.record = record.clone();
        }
        self.record.first_seen_unix_s = first_seen_unix_s;
        if !record.path.is_empty() && !self.paths.contains(&path) {
            self.paths.insert(if newer { 0 } else { self.paths.len() }, path);
        }
    }
}

fn check_balance(meta: &EpochMeta, events: &[String], totals: &[u64], problems: &mut Vec<Problem>) {
    for (event, &profiles) in events.iter().zip(totals) {
        let ledger = meta.ledgers.sum(event).merged;
        if ledger != profiles {
            problems.push(Problem::Unbalanced {
                host: meta.host.clone(),
                epoch: meta.epoch.to_string(),
                event: event.clone(),
                ledger,
                profiles,
            });
        }
    }
}
