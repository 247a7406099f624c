//! Exact counts as an epoch of a database.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use image::{ImageId, ImageKind, ImageOffset, KeptRanges, Procedure, Procedures};
use model::{
    CALLS, Cpuid, EXECUTED, Edges, Frame, IDEAL, IdealMachine, Profile, Stacks, TAKEN, Thread,
    Value,
};
use profiledb::{
    CodeStore, Delta, EpochId, EpochStart, EventMeta, ImageRecord, Machine, ProfileKey, Scope,
    StacksKey, Symbol, Writer,
};

use crate::commands::costs::OnMachine;
use crate::options::{self, Chosen};
use annotate::graphs::{Graph, Surveyed};
use code::skid::Skid;
use exact::{CodeFile, CountedFile, Counts};
use names::procedures::{self, Known, Needed};
use query::error::AnalysisError;
use query::load::{ImageSamples, Samples};
use report::{counted as number, thousands};
use stalls::Machine as Processor;

/// An epoch that counts are written into.
pub(in crate::commands) struct Writing {
    db: PathBuf,
    writer: Writer,
    host: String,
    label: String,
    scope: Scope,
    events: Vec<EventMeta>,
    begun_unix_s: u64,
}

pub(in crate::commands) struct Written {
    pub(in crate::commands) host: String,
    pub(in crate::commands) epoch: String,
    /// What to say of files that were gone after the run.
    pub(in crate::commands) notes: Vec<String>,
}

/// Bytes of the database's code store, as of `dcpid` by default.
const CODE_STORE_BYTES: u64 = 512 << 20;

fn failed(error: impl std::fmt::Display) -> AnalysisError {
    AnalysisError::Refused(error.to_string())
}

/// A file of /proc that every Linux has; empty where it cannot be read.
pub(in crate::commands) fn of_proc(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// The model of this machine's processor; None where the kernel does not say.
pub(in crate::commands) fn cpu_model() -> Option<String> {
    let cpuinfo = of_proc("/proc/cpuinfo");
    let names = ["model name", "CPU part"];
    let name = names.iter().find_map(|key| Cpuid::fact_of_cpuinfo(&cpuinfo, key));
    name.map(str::to_owned)
}

pub(super) fn host() -> String {
    of_proc("/proc/sys/kernel/hostname")
}

pub(in crate::commands) fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Writing {
    /// Takes the database at `db`, which is made if it does not exist, for an epoch with a label.
    /// There is no epoch before there are counts. Each of the events has a name, a unit and a note.
    /// Counts of executions are kept apart under `scope`.
    ///
    /// # Errors
    /// [`AnalysisError::Refused`] where that cannot be written.
    pub(in crate::commands) fn open(
        db: &Path,
        label: &str,
        scope: Scope,
        events: &[(&str, &str, &str)],
    ) -> Result<Self, AnalysisError> {
        let host = host();
        let writer = Writer::open(db, &host).map_err(failed)?;
        let (db, label, events) = (db.to_owned(), label.to_owned(), events.iter().map(event));
        let (events, begun_unix_s) = (events.collect(), now_unix_s());
        Ok(Self { db, writer, host, label, scope, events, begun_unix_s })
    }

    fn begin(&mut self) -> Result<EpochId, AnalysisError> {
        let start = EpochStart {
            label: Some(self.label.clone()),
            machine: Machine {
                arch: std::env::consts::ARCH.to_owned(),
                cpu_model: cpu_model().unwrap_or_else(|| "unknown".to_owned()),
                cpus: std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32),
                kernel_release: of_proc("/proc/sys/kernel/osrelease"),
                kernel_build_id: None,
                boot_id: of_proc("/proc/sys/kernel/random/boot_id"),
            },
            events: self.events.clone(),
            now_unix_s: self.begun_unix_s,
            writer_version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        self.writer.begin(start, true).map_err(failed)
    }

    /// Writes exact counts, and ends the epoch.
    ///
    /// # Errors
    /// [`AnalysisError::Refused`] where they cannot be written.
    #[cfg(target_arch = "x86_64")]
    pub(in crate::commands) fn finish<'a>(
        mut self,
        delta: &Delta,
        files: impl Iterator<Item = (&'a CodeFile, Option<ImageId>)>,
    ) -> Result<Written, AnalysisError> {
        let epoch = self.begin()?.to_string();
        let notes = keep_code(&self.writer, files)?;
        self.writer.merge(delta).map_err(failed)?;
        self.writer.seal(now_unix_s()).map_err(failed)?;
        Ok(Written { host: self.host, epoch, notes })
    }

    /// Writes the counts, and the cycles that they take on the model of a processor, and ends the
    /// epoch. `sampled` are the images with samples of the same command.
    ///
    /// # Errors
    /// [`AnalysisError::Refused`] where they cannot be written, and where no file can be opened any
    /// more.
    pub(super) fn write(
        mut self,
        counts: &Counts,
        on: &OnMachine,
        sampled: &BTreeMap<ImageId, ImageRecord>,
    ) -> Result<Written, AnalysisError> {
        let ids: Vec<Option<ImageId>> =
            counts.files.iter().map(|file| identity(&file.file, sampled)).collect();
        let epoch = self.begin()?.to_string();
        let mut delta = executed(counts, &ids, &self.scope);
        let gone = counts.files.iter().map(|file| &file.file).zip(ids.iter().copied());
        let mut notes = accounts(counts, &ids, &delta);
        notes.extend(keep_code(&self.writer, gone)?);
        if let Some(cpuid) = Cpuid::of_cpuinfo(&of_proc("/proc/cpuinfo")) {
            delta.facts.state(&cpuid);
        }
        self.writer.merge(&delta).map_err(failed)?;
        let words = ["--all", "--host", &self.host, "--epoch", &epoch].map(OsString::from);
        let words = ["--db".into(), self.db.clone().into()].into_iter().chain(words);
        let chosen: Chosen = options::typed(words).map_err(failed)?;
        let samples = chosen.question(&[])?.samples()?;
        let mut ideal = Delta { now_unix_s: now_unix_s(), ..Delta::default() };
        // The ideal is the same on all processors of a kind.
        let (machine, _) = on.generic(&samples, None)?;
        for (image, cycles) in ideal_cycles(&samples, on, &machine) {
            let profile = Profile::from_counts(cycles);
            count(&mut ideal, image, (IDEAL, &self.scope), profile);
        }
        ideal.facts.state(&IdealMachine(machine.name.to_owned()));
        self.writer.merge(&ideal).map_err(failed)?;
        self.writer.seal(now_unix_s()).map_err(failed)?;
        Ok(Written { host: self.host, epoch, notes })
    }
}

/// Keeps the code of files to which no path leads any more, as `dcpid` does. Returns what to say of
/// them.
fn keep_code<'a>(
    writer: &Writer,
    files: impl Iterator<Item = (&'a CodeFile, Option<ImageId>)>,
) -> Result<Vec<String>, AnalysisError> {
    let gone = files.filter(|(file, _)| file.is_gone());
    let gone: BTreeMap<ImageId, &CodeFile> =
        gone.filter_map(|(file, id)| Some((id?, file))).collect();
    let mut notes = Vec::new();
    if gone.is_empty() {
        return Ok(notes);
    }
    let mut store = CodeStore::open(writer, CODE_STORE_BYTES).map_err(failed)?;
    let (mut kept, mut first) = (0, None);
    for (id, file) in gone {
        let mut keep = || -> Result<(), String> {
            if store.has(&id) {
                return store.seen(&id, now_unix_s()).map_err(|error| error.to_string());
            }
            let open = file.open().map_err(|error| error.to_string())?;
            let ranges = KeptRanges::of_file(&open).map_err(|error| error.to_string())?;
            let copy = &mut |out: &mut dyn Write| {
                ranges.ranges().iter().try_for_each(|range| copy_range(&open, range.clone(), out))
            };
            let kept = store.keep(&id, &ranges, now_unix_s(), copy);
            kept.map(|_| ()).map_err(|error| error.to_string())
        };
        let path = file.path.display();
        match keep() {
            Ok(()) => {
                kept += 1;
                first.get_or_insert_with(|| path.to_string());
            }
            Err(why) => notes.push(format!("the code of {path} is gone and not kept: {why}")),
        }
    }
    if let Some(first) = first {
        let other = match kept - 1 {
            0 => String::new(),
            others => format!(" and of {}", number(others, "other file")),
        };
        notes.push(format!(
            "the code of {first}{other} is kept in the database: no path leads to it any more"
        ));
    }
    Ok(notes)
}

fn copy_range(file: &File, range: Range<u64>, out: &mut dyn Write) -> io::Result<()> {
    let mut piece = vec![0; 64 << 10];
    let mut at = range.start;
    while at < range.end {
        let len = (range.end - at).min(piece.len() as u64) as usize;
        let piece = piece.get_mut(..len).unwrap_or_default();
        file.read_exact_at(piece, at)?;
        out.write_all(piece)?;
        at += len as u64;
    }
    Ok(())
}

/// What was counted and is not in the database, file by file. What was counted is what is reported
/// and what is named here.
fn accounts(counts: &Counts, ids: &[Option<ImageId>], delta: &Delta) -> Vec<String> {
    let mut unattributed = counts.unattributed.clone();
    for (file, _) in counts.files.iter().zip(ids).filter(|(_, id)| id.is_none()) {
        let sum = file.executed.values().fold(0, |sum: u64, count| sum.saturating_add(*count));
        unattributed.add(&file.file.path, file.file.why(), sum);
    }
    let reported = delta.ledgers.sum(EXECUTED).merged;
    let named = [reported, counts.elsewhere, unattributed.total()];
    let told = named.iter().fold(0, |sum: u64, part| sum.saturating_add(*part));
    debug_assert_eq!(told, counts.counted, "{named:?}");
    let mut notes = unattributed.lines(|count| number(count, "execution"));
    if told != counts.counted {
        let (told, counted) = (thousands(told), thousands(counts.counted));
        notes.push(format!("an error of dcpi ideal: {counted} were counted and {told} are told"));
    }
    notes
}

/// An event of exact counts: its name, unit and note.
fn event((name, unit, note): &(&str, &str, &str)) -> EventMeta {
    EventMeta {
        name: (*name).to_owned(),
        unit: (*unit).to_owned(),
        period: 1,
        rate_per_s: None,
        note: Some((*note).to_owned()),
    }
}

/// The image of a file: the one among `sampled`, where dcpid met the file.
pub(in crate::commands) fn identity(
    file: &CodeFile,
    sampled: &BTreeMap<ImageId, ImageRecord>,
) -> Option<ImageId> {
    let id = image::identify_file(&file.open().ok()?).ok()?;
    let path = ImageRecord::escape_path(&file.path);
    // dcpid distinguishes the copies of a file by the users who can write them.
    let is_same = |record: &&ImageRecord| record.path == path && record.id.is_build(&id);
    Some(sampled.values().find(is_same).map_or(id, |record| record.id))
}

/// Adds counts of an event of period 1 to a delta, with their ledger.
pub(in crate::commands) fn count(
    delta: &mut Delta,
    image: ImageId,
    (event, scope): (&str, &Scope),
    profile: Profile,
) {
    let total = profile.total();
    let ledger = delta.ledgers.entry(event, 1);
    ledger.taken = ledger.taken.saturating_add(total);
    ledger.merged = ledger.merged.saturating_add(total);
    let key = ProfileKey::samples(image, event, 1, scope.clone());
    delta.profiles.insert(key, profile.into());
}

fn executed(counts: &Counts, ids: &[Option<ImageId>], scope: &Scope) -> Delta {
    let now = now_unix_s();
    let mut delta = Delta { now_unix_s: now, ..Delta::default() };
    let (mut calls, thread) = (Stacks::new(), Thread::default());
    // Two paths may lead to one file.
    let mut of_image: BTreeMap<ImageId, (Profile, Edges)> = BTreeMap::new();
    for (number, (file, id)) in counts.files.iter().zip(ids).enumerate() {
        let Some(id) = *id else { continue };
        let (executed, taken) = of_image.entry(id).or_default();
        executed
            .merge(&Profile::from_counts(file.executed.iter().map(|(at, count)| (*at, *count))));
        taken.merge(&Edges::from_counts(file.taken.iter().map(|(jump, count)| (*jump, *count))));
        delta.images.entry(id).or_insert_with(|| record(&file.file, id, now));
        let known = procedures_of(&file.file, &id);
        let is_executed = |range| file.executed.range(range).next().is_some();
        delta.symbols.entry(id).or_insert_with(|| symbols(&known, is_executed));
        for ((from, to), times) in tail_calls(file, &known) {
            let [call, target] = [from, to].map(|offset| exact::Site { file: number, offset });
            if counts.calls.contains_key(&(call, target)) {
                continue; // an indirect call, which is counted as an edge too
            }
            let frames = [from, to].map(|offset| Frame::Code(id, offset));
            calls.add_stack(frames, &thread, exactly(times));
        }
    }
    for (id, (executed, taken)) in of_image {
        count(&mut delta, id, (EXECUTED, scope), executed);
        delta.profiles.insert(ProfileKey::of(id, &TAKEN), taken.into());
    }
    for ((from, to), times) in &counts.calls {
        let frame = |site: &exact::Site| {
            let id = ids.get(site.file).copied().flatten()?;
            Some(Frame::Code(id, site.offset))
        };
        if let Some((from, to)) = frame(from).zip(frame(to)) {
            calls.add_stack([from, to], &thread, exactly(*times));
        }
    }
    if !calls.is_empty() {
        let key = StacksKey { event: CALLS.to_owned(), scope: scope.clone() };
        delta.stacks.insert(key, calls);
    }
    delta
}

pub(in crate::commands) fn record(file: &CodeFile, id: ImageId, now_unix_s: u64) -> ImageRecord {
    let path = file.path.as_path();
    let name = path.file_name().unwrap_or_default();
    ImageRecord {
        id,
        kind: ImageKind::File,
        name: ImageRecord::escape_path(Path::new(name)),
        path: ImageRecord::escape_path(path),
        size_bytes: fs::metadata(file.place()).ok().map(|file| file.len()),
        first_seen_unix_s: now_unix_s,
        last_seen_unix_s: now_unix_s,
    }
}

/// Calls that were counted: without variance.
fn exactly(times: u64) -> Value {
    Value { stacks: times, weight: times, squares: 0 }
}

/// The procedures of a file; none if the file can no longer be read.
pub(in crate::commands) fn procedures_of(file: &CodeFile, id: &ImageId) -> Procedures {
    let known = image::procedures(&file.place(), Some(id), &image::default_debug_roots());
    known.map(|(known, _)| known).unwrap_or_default()
}

/// The procedures in which something is.
pub(in crate::commands) fn symbols(
    known: &Procedures,
    is_in: impl Fn(std::ops::Range<ImageOffset>) -> bool,
) -> Vec<Symbol> {
    let symbol = |procedure: &Procedure| Symbol {
        start: procedure.start.0,
        end: procedure.end.0,
        name: procedure.raw_name().to_owned(),
    };
    let chosen = known.iter().filter(|procedure| is_in(procedure.start..procedure.end));
    chosen.map(symbol).collect()
}

/// Jumps that were taken from a procedure to the start of another: what they lead to returns to the
/// caller's caller.
fn tail_calls<'a>(
    file: &'a CountedFile,
    known: &'a Procedures,
) -> impl Iterator<Item = ((ImageOffset, ImageOffset), u64)> + 'a {
    let is_call = |((from, to), _): &(&(ImageOffset, ImageOffset), &u64)| {
        let target = known.find(*to);
        target.is_some_and(|target| target.start == *to && !target.contains(*from))
    };
    file.taken.iter().filter(move |jump| is_call(jump)).map(|(jump, times)| (*jump, *times))
}

type ByOffset = BTreeMap<ImageOffset, u64>;

/// The cycles of each image's instructions, all executions together, rounded.
fn ideal_cycles(
    samples: &Samples,
    on: &OnMachine,
    machine: &Processor,
) -> Vec<(ImageId, ByOffset)> {
    let Some(event) = samples.events.iter().position(|event| event.name == EXECUTED) else {
        return Vec::new();
    };
    let places = on.places();
    let mut problems = Vec::new(); // the report that follows has them
    let mut all = Vec::new();
    for image in &samples.images {
        let known = procedures::known(samples, image, &places, Needed::All, &mut problems);
        let Ok(known) = known else { continue };
        let Some(surveyed) = Surveyed::of(samples, image, &known, &mut problems) else { continue };
        if surveyed.isa() != machine.isa {
            continue;
        }
        let mut cycles = BTreeMap::new();
        for (procedure, _) in surveyed.sampled(image, event) {
            let of = (event, Skid::default());
            let found = surveyed.graph(image, &known, procedure, None, of, Some(machine));
            if let Some(graph) = found {
                add_cycles(&graph, (&known, image, event), machine, &mut cycles);
            }
        }
        all.push((image.record.id, cycles));
    }
    all
}

fn add_cycles(
    graph: &Graph,
    (known, image, event): (&Known, &ImageSamples, usize),
    machine: &Processor,
    cycles: &mut ByOffset,
) {
    let Some(executed) = image.equal(event) else { return };
    let best = graph.best_cases(machine).unwrap_or_default();
    for (block, best) in best.iter().enumerate() {
        for (address, best) in graph.graph.instructions(block).zip(best) {
            let Some(offset) = known.offset(address.0) else { continue };
            let times = executed.get(offset);
            if times > 0 {
                cycles.insert(offset, (times as f64 * best.cycles).round() as u64);
            }
        }
    }
}
