//! From the database to sums over the selected epochs: samples per image and event.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use code::skid::Skid;
use image::{ImageId, ImageKind, ImageOffset, KeptFile};
use profiledb::{Database, DbError, Epoch, EpochId, EpochMeta, EventMeta, ImageRecord, Ledger, Profile, Scope, Symbol};
use stalls::Cpuid;

use crate::args::Chosen;
use crate::error::AnalysisError;
use crate::graphs::Retired;
use crate::problem::{self, Problem};
use crate::scope::ScopeChoice;
use crate::select;
use crate::stats::{Confidence, Occurrences, occurrences};

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
    /// What could not be read.
    pub problems: Vec<Problem>,
}

/// An event over the selected epochs.
#[derive(Clone, Debug)]
pub struct EventSamples {
    /// Its name.
    pub name: String,
    /// What the period counts; of the first epoch that has the event.
    pub unit: String,
    /// Mean distance of samples in `unit`; over several epochs weighted with their samples, so that
    /// samples times period is what was covered.
    pub period: u64,
    /// What a reader should know, each once.
    pub notes: Vec<String>,
    /// Where its samples went.
    pub ledger: Ledger,
    /// Of each epoch: samples taken and not lost, and how many occurrences each stands for: its period, scaled to the time in which the
    /// event did not count. None: it never counted there.
    pub weights: Vec<(u64, Option<f64>)>,
}

impl EventSamples {
    /// Time in which the event should have counted by that in which it did, at least 1; 1 when that is not known, None when it never did.
    #[must_use]
    pub fn scale(&self) -> Option<f64> {
        scale(&self.ledger)
    }

    /// The number of occurrences in all; None when the event never counted in an epoch.
    #[must_use]
    pub fn occurrences(&self, confidence: Confidence) -> Option<Occurrences> {
        let weighted: Option<Vec<_>> =
            self.weights.iter().map(|(samples, weight)| Some((*samples, (*weight)?))).collect();
        Some(occurrences(&weighted?, confidence))
    }

    /// How many occurrences a sample stands for, on average; None when the event never counted in an epoch.
    #[must_use]
    pub fn mean_weight(&self) -> Option<f64> {
        let mut sums = (0.0, 0.0, 0.0);
        for (samples, weight) in &self.weights {
            let (samples, weight) = (*samples as f64, (*weight)?);
            sums = (sums.0 + samples, sums.1 + samples * weight, weight);
        }
        let (samples, occurrences, last) = sums;
        match self.weights.len() {
            0 => Some(self.period as f64),
            _ if samples > 0.0 => Some(occurrences / samples),
            _ => Some(last),
        }
    }

    /// Samples that were taken and not lost: those in profiles and those of unknown code.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.ledger.merged.saturating_add(self.unresolved())
    }

    /// Samples of unknown code.
    #[must_use]
    pub fn unresolved(&self) -> u64 {
        sum(self.ledger.unresolved.values().copied())
    }

    /// Samples that are in no profile.
    #[must_use]
    pub fn lost(&self) -> u64 {
        sum(self.ledger.lost.values().copied())
    }
}

/// The samples of an image.
#[derive(Debug)]
pub struct ImageSamples {
    /// The image, as last met.
    pub record: ImageRecord,
    /// Paths it was met at, latest first, on whatever host.
    pub paths: Vec<PathBuf>,
    /// Whether it was asked for: by name, or because all were.
    pub wanted: bool,
    /// Samples by event, in the order of [`Samples::events`].
    pub profiles: Vec<Profile>,
    /// How many of them each event has of whom.
    pub scopes: BTreeMap<Scope, Vec<u64>>,
    /// The profiles of each scope by event, which add up to `profiles`; only from [`chosen_by_scope`], else none.
    pub by_scope: BTreeMap<Scope, Vec<Profile>>,
    /// The epochs that have samples of it, as indices of [`Samples::epochs`].
    pub epochs: Vec<usize>,
}

impl ImageSamples {
    /// Samples by event.
    #[must_use]
    pub fn totals(&self) -> Vec<u64> {
        self.profiles.iter().map(Profile::total).collect()
    }

    /// The places that have samples of any event, in order.
    #[must_use]
    pub fn offsets(&self) -> Vec<ImageOffset> {
        let mut offsets: Vec<ImageOffset> =
            self.profiles.iter().flat_map(Profile::iter).map(|(offset, _)| offset).collect();
        offsets.sort_unstable();
        offsets.dedup();
        offsets
    }

    /// True for the idle loop, which is time that nobody wanted.
    #[must_use]
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
            by_start.extend(epoch.symbols(&image.record.id)?.into_iter().map(|symbol| (symbol.start, symbol)));
        }
        Ok(by_start.into_values().collect())
    }

    /// Samples of an event, by its place in [`Samples::events`], of the idle loop.
    #[must_use]
    pub fn idle(&self, event: usize) -> u64 {
        let images = self.images.iter().filter(|image| image.is_idle());
        sum(images.filter_map(|image| image.profiles.get(event)).map(Profile::total))
    }

    /// The event that counts time, by its place in [`Samples::events`], and how far behind what took it its samples land: as measured, else 0.
    ///
    /// # Errors
    /// [`AnalysisError::Refused`] when no event does.
    pub fn time(&self) -> Result<(usize, Skid), AnalysisError> {
        let counts_time = |event: &EventSamples| {
            let name = event.name.split(':').next().unwrap_or_default();
            matches!(name, "cpu-clock" | "task-clock" | "cycles" | "cpu-cycles")
        };
        let named = || Some((self.events.iter().position(counts_time)?, Skid::default()));
        self.skid().or_else(named).ok_or_else(|| {
            let why =
                "no event of these samples counts time (cycles, cpu-clock); choose epochs that have one: dcpi epochs";
            AnalysisError::Refused(why.to_owned())
        })
    }

    /// How far behind the instruction that took the time samples of an event land, by its place in [`Samples::events`]; where the daemon has
    /// measured that, and all epochs agree.
    #[must_use]
    pub fn skid(&self) -> Option<(usize, Skid)> {
        let of = |epoch: &Epoch| {
            let fact = epoch.meta().facts.get("skid")?;
            let event = fact.get("event")?.as_str()?.to_owned();
            Some((event, Skid::new(u8::try_from(fact.get("instructions")?.as_u64()?).ok()?)?))
        };
        let mut skids = self.epochs.iter().map(of);
        let first = skids.next()??;
        if !skids.all(|skid| skid.as_ref() == Some(&first)) {
            return None;
        }
        let event = self.events.iter().position(|event| event.name == first.0)?;
        Some((event, first.1))
    }

    /// The processor that was sampled, where all epochs agree.
    #[must_use]
    pub fn cpuid(&self) -> Option<Cpuid> {
        let of = |epoch: &Epoch| {
            let fact = epoch.meta().facts.get("cpuid")?;
            let number = |key| fact.get(key).and_then(serde_json::Value::as_u64);
            let vendor = fact.get("vendor")?.as_str()?.to_owned();
            Some(Cpuid { vendor, family: number("family")?, model: number("model")? })
        };
        let mut all = self.epochs.iter().map(of);
        let first = all.next()??;
        all.all(|cpuid| cpuid.as_ref() == Some(&first)).then_some(first)
    }

    /// Samples of executed instructions, beside those of time by the event with this place, if that counts cycles.
    #[must_use]
    pub fn retired(&self, time: usize) -> Option<Retired> {
        let time = self.events.get(time).filter(|event| event.unit == "cycles")?;
        let event = self.events.iter().position(|event| event.name == "instructions")?;
        let instructions = self.events.get(event)?.period as f64;
        Some(Retired { event, instructions, cycles: time.period as f64 })
    }

    /// What the daemon kept of an image's file, on any of the hosts that have samples of it. Code stores that cannot be read are told in
    /// `problems`.
    #[must_use]
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

fn scale(ledger: &Ledger) -> Option<f64> {
    match (ledger.enabled_ns, ledger.running_ns) {
        (0, _) => Some(1.0),
        (_, 0) => None,
        (enabled, running) => Some((enabled as f64 / running as f64).max(1.0)),
    }
}

/// Sum of samples.
#[must_use]
pub fn sum(samples: impl IntoIterator<Item = u64>) -> u64 {
    samples.into_iter().fold(0, u64::saturating_add)
}

/// Reads what the options choose, of these images; none means all.
///
/// # Errors
/// Those of [`Database::open`], [`select::epochs`] and [`load`].
pub fn chosen(chosen: &Chosen, images: &[String]) -> Result<Samples, AnalysisError> {
    let db = Database::open(chosen.source.db())?;
    let epochs = select::epochs(&db, &chosen.source, &chosen.epoch)?;
    load(&db, &epochs, &chosen.events, images, &chosen.source.scope)
}

/// The same with [`ImageSamples::by_scope`], which takes as much memory again.
///
/// # Errors
/// Those of [`chosen`].
pub fn chosen_by_scope(chosen: &Chosen, images: &[String]) -> Result<Samples, AnalysisError> {
    let db = Database::open(chosen.source.db())?;
    let epochs = select::epochs(&db, &chosen.source, &chosen.epoch)?;
    let asked = Asked { events: &chosen.events, images, whose: &chosen.source.scope, by_scope: true };
    read(&db, &epochs, &asked)
}

/// What to read of epochs, as typed.
struct Asked<'a> {
    events: &'a [String],
    images: &'a [String],
    whose: &'a ScopeChoice,
    by_scope: bool,
}

/// Reads what is selected. `events` and `images` are as typed; none means all. `whose` chooses among samples that were kept apart.
///
/// A file that cannot be read is left out and told in [`Samples::problems`].
///
/// # Errors
/// [`AnalysisError::NoEvent`], [`AnalysisError::NoScope`], [`AnalysisError::NoImage`]; [`AnalysisError::Database`] when no epoch
/// can be read at all.
pub fn load(
    db: &Database,
    chosen: &[(String, EpochId)],
    events: &[String],
    images: &[String],
    whose: &ScopeChoice,
) -> Result<Samples, AnalysisError> {
    read(db, chosen, &Asked { events, images, whose, by_scope: false })
}

/// Reads what is asked for. Each epoch is read as of the moment it was opened, whatever the daemon does meanwhile.
fn read(db: &Database, chosen: &[(String, EpochId)], asked: &Asked<'_>) -> Result<Samples, AnalysisError> {
    let mut problems = Vec::new();
    let samples = sums(db, (chosen, asked), &mut problems);
    // What is asked for may be missing because of the damage.
    let samples = samples.map_err(|error| error.beside(problem::damage(&problems)))?;
    Ok(Samples { problems, ..samples })
}

/// The samples without their problems, which go to `problems`.
fn sums(
    db: &Database,
    (chosen, asked): (&[(String, EpochId)], &Asked<'_>),
    problems: &mut Vec<Problem>,
) -> Result<Samples, AnalysisError> {
    let whose = asked.whose;
    let epochs = open(db, chosen, problems)?;
    let names = event_names(&epochs, asked.events)?;
    let events = names.iter().map(|name| join_event(name, &epochs, problems)).collect();
    let mut contents: Vec<Contents> = epochs.iter().map(|epoch| contents(epoch, &names, problems)).collect();
    whose.check(contents.iter().flat_map(|contents| &contents.profiles).map(|(key, _)| &key.scope))?;
    contents.iter_mut().for_each(|contents| contents.choose(whose));
    let wanted = if asked.images.is_empty() {
        None
    } else {
        Some(select::images(asked.images, contents.iter().flat_map(Contents::met))?)
    };
    let mut images = BTreeMap::new();
    for (at, (epoch, contents)) in epochs.iter().zip(&contents).enumerate() {
        let which = (wanted.as_ref(), asked.by_scope);
        let totals = add_epoch(&mut images, (at, epoch, contents), &names, which, problems);
        if let Some(totals) = totals {
            check_balance(epoch.meta(), &names, &totals, problems);
        }
    }
    let mut images: Vec<ImageSamples> = images.into_values().collect();
    images.retain(|image| image.profiles.iter().any(|profile| !profile.is_empty()));
    Ok(Samples { db: db.clone(), epochs, events, images, problems: Vec::new() })
}

/// Opens the epochs. Those that cannot be are left out, unless that is all of them.
fn open(db: &Database, chosen: &[(String, EpochId)], problems: &mut Vec<Problem>) -> Result<Vec<Epoch>, AnalysisError> {
    let mut epochs = Vec::with_capacity(chosen.len());
    let mut failed = Vec::new();
    for (host, epoch) in chosen {
        match db.epoch(host, epoch) {
            Ok(epoch) => epochs.push(epoch),
            Err(error) => failed.push(error),
        }
    }
    if epochs.is_empty()
        && let Some(error) = failed.pop()
    {
        return Err(error.into());
    }
    problems.extend(failed.into_iter().map(|error| match error {
        DbError::NoSuchEpoch { host, epoch, .. } => Problem::Vanished { host, epoch: epoch.to_string() },
        error => Problem::Unreadable { error },
    }));
    Ok(epochs)
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
    for asked in &select::joined_events(asked) {
        match select::event(asked, &known) {
            Some(name) if names.contains(name) => {}
            Some(name) => names.push(name.clone()),
            None => return Err(AnalysisError::NoEvent { asked: asked.clone(), known }),
        }
    }
    Ok(names)
}

/// What the epochs say about an event, together.
fn join_event(name: &str, epochs: &[Epoch], problems: &mut Vec<Problem>) -> EventSamples {
    let mut joined = EventSamples {
        name: name.to_owned(),
        unit: String::new(),
        period: 0,
        notes: Vec::new(),
        ledger: Ledger::default(),
        weights: Vec::new(),
    };
    let mut periods: Vec<(String, u64)> = Vec::new();
    let (mut weighted, mut weight): (u128, u128) = (0, 0);
    for meta in epochs.iter().map(Epoch::meta) {
        let Some(event) = meta.events.iter().find(|event| event.name == name) else {
            continue;
        };
        if joined.unit.is_empty() {
            joined.unit.clone_from(&event.unit);
            joined.period = event.period;
        }
        let period = (event.unit.clone(), event.period);
        if !periods.contains(&period) {
            periods.push(period);
        }
        add_note(&mut joined.notes, event);
        if let Some(ledger) = meta.ledgers.get(name) {
            joined.ledger.add(ledger);
            let samples = ledger.taken.saturating_sub(sum(ledger.lost.values().copied()));
            joined.weights.push((samples, scale(ledger).map(|scale| scale * event.period as f64)));
            let samples = u128::from(samples);
            weighted = weighted.saturating_add(samples.saturating_mul(u128::from(event.period)));
            weight += samples;
        }
    }
    if periods.len() > 1 {
        if let Some(mean) = weighted.checked_div(weight) {
            joined.period = u64::try_from(mean).unwrap_or(u64::MAX);
        }
        let periods = periods.iter().map(|(unit, period)| format!("{period} {unit}")).collect();
        problems.push(Problem::PeriodsDiffer { event: name.to_owned(), periods });
    }
    joined
}

fn add_note(notes: &mut Vec<String>, event: &EventMeta) {
    if let Some(note) = &event.note
        && !notes.contains(note)
    {
        notes.push(note.clone());
    }
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
    /// Leaves out what is not of those processes.
    fn choose(&mut self, whose: &ScopeChoice) {
        if !whose.is_all() {
            self.profiles.retain(|(key, _)| whose.admits(&key.scope));
            self.complete = false;
        }
    }

    /// The images with profiles.
    fn met(&self) -> impl Iterator<Item = &ImageRecord> + Clone {
        let with_samples: BTreeSet<ImageId> = self.profiles.iter().map(|(key, _)| key.image).collect();
        self.records.values().filter(move |record| with_samples.contains(&record.id))
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
    for damage in epoch.damage() {
        let meta = epoch.meta();
        failed(DbError::Damaged { host: meta.host.clone(), epoch: meta.epoch.clone(), why: damage.to_string() });
    }
    epoch.damaged_files().into_iter().for_each(&mut failed);
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
            let event = events.iter().position(|event| *event == key.event)?;
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
    ImageRecord { id, kind, name, path, size_bytes: None, first_seen_unix_s: at, last_seen_unix_s: at }
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
        let samples = profile.total();
        if let Some(total) = totals.get_mut(*event) {
            *total = total.saturating_add(samples);
        }
        let image = images.entry(key.image).or_insert_with(|| ImageSamples {
            record: record.clone(),
            paths: Vec::new(),
            wanted: asked_for,
            profiles: vec![Profile::new(); events.len()],
            scopes: BTreeMap::new(),
            by_scope: BTreeMap::new(),
            epochs: Vec::new(),
        });
        image.meet(record, at);
        let of_scope = image.scopes.entry(key.scope.clone()).or_insert_with(|| vec![0; events.len()]);
        if let Some(total) = of_scope.get_mut(*event) {
            *total = total.saturating_add(samples);
        }
        if by_scope {
            let of_scope =
                image.by_scope.entry(key.scope.clone()).or_insert_with(|| vec![Profile::new(); events.len()]);
            if let Some(sum) = of_scope.get_mut(*event) {
                sum.merge(&profile);
            }
        }
        if let Some(sum) = image.profiles.get_mut(*event) {
            // Most are the only ones of their image, with millions of entries: not copied.
            if sum.is_empty() { *sum = profile } else { sum.merge(&profile) }
        }
    }
    complete.then_some(totals)
}

impl ImageSamples {
    /// Takes up what another epoch says about the image.
    fn meet(&mut self, record: &ImageRecord, epoch: usize) {
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
        let ledger = meta.ledgers.get(event).map_or(0, |ledger| ledger.merged);
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
