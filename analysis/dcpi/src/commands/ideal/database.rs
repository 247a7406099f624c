//! Exact counts as an epoch of a database.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use image::{ImageId, ImageKind, ImageOffset};
use model::{CALLS, Cpuid, EXECUTED, Edges, Frame, IDEAL, Profile, Stacks, TAKEN, Thread, Value};
use profiledb::{
    Delta, EpochStart, EventMeta, ImageRecord, Machine, ProfileKey, Scope, StacksKey, Symbol,
    Writer,
};

use crate::commands::costs::OnMachine;
use crate::options::{self, Chosen};
use code::skid::Skid;
use counted::Counts;
use explain::graphs::{Graph, Surveyed};
use names::procedures::{self, Known, Needed};
use query::error::AnalysisError;
use query::load::{ImageSamples, Samples};
use stalls::Machine as Processor;

/// An epoch that counts are written into.
pub(in crate::commands) struct Writing {
    db: PathBuf,
    writer: Writer,
    host: String,
}

/// The epoch that was written.
pub(in crate::commands) struct Written {
    pub(in crate::commands) host: String,
    pub(in crate::commands) epoch: String,
}

fn failed(error: impl std::fmt::Display) -> AnalysisError {
    AnalysisError::Refused(error.to_string())
}

/// A file of /proc that every Linux has; empty where it cannot be read.
fn of_proc(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

pub(in crate::commands) fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Writing {
    /// Begins an epoch with a label in the database at `db`, which is made if it does not exist.
    /// Each of the events has a name, a unit and a note.
    ///
    /// # Errors
    /// [`AnalysisError::Refused`] where that cannot be written.
    pub(in crate::commands) fn begin(
        db: &Path,
        label: &str,
        events: &[(&str, &str, &str)],
    ) -> Result<Self, AnalysisError> {
        let host = of_proc("/proc/sys/kernel/hostname");
        let mut writer = Writer::open(db, &host).map_err(failed)?;
        let cpuinfo = of_proc("/proc/cpuinfo");
        let model = ["model name", "CPU part"];
        let mut model = model.iter().filter_map(|key| Cpuid::fact_of_cpuinfo(&cpuinfo, key));
        let start = EpochStart {
            label: Some(label.to_owned()),
            machine: Machine {
                arch: std::env::consts::ARCH.to_owned(),
                cpu_model: model.next().unwrap_or("unknown").to_owned(),
                cpus: std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32),
                kernel_release: of_proc("/proc/sys/kernel/osrelease"),
                kernel_build_id: None,
                boot_id: of_proc("/proc/sys/kernel/random/boot_id"),
            },
            events: events.iter().map(event).collect(),
            now_unix_s: now_unix_s(),
            writer_version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        writer.begin(start, true).map_err(failed)?;
        Ok(Self { db: db.to_owned(), writer, host })
    }

    /// Writes exact counts, and ends the epoch.
    ///
    /// # Errors
    /// [`AnalysisError::Refused`] where they cannot be written.
    #[cfg(target_arch = "x86_64")]
    pub(in crate::commands) fn finish(mut self, delta: &Delta) -> Result<Written, AnalysisError> {
        self.writer.merge(delta).map_err(failed)?;
        let epoch = self.writer.epoch().map(ToString::to_string).unwrap_or_default();
        self.writer.seal(now_unix_s()).map_err(failed)?;
        Ok(Written { host: self.host, epoch })
    }

    /// Writes the counts, and the cycles that they take on the model of a processor, and ends the
    /// epoch.
    ///
    /// # Errors
    /// [`AnalysisError::Refused`] where they cannot be written, and where no file can be opened any
    /// more.
    pub(super) fn write(
        mut self,
        counts: &Counts,
        on: &OnMachine,
    ) -> Result<Written, AnalysisError> {
        let ids: Vec<Option<ImageId>> =
            counts.files.iter().map(|file| identity(&file.path)).collect();
        let mut delta = executed(counts, &ids);
        if let Some(cpuid) = Cpuid::of_cpuinfo(&of_proc("/proc/cpuinfo")) {
            delta.facts.state(&cpuid);
        }
        self.writer.merge(&delta).map_err(failed)?;
        let epoch = self.writer.epoch().map(ToString::to_string).unwrap_or_default();
        let words = ["--all", "--host", &self.host, "--epoch", &epoch].map(OsString::from);
        let words = ["--db".into(), self.db.clone().into()].into_iter().chain(words);
        let chosen: Chosen = options::typed(words).map_err(failed)?;
        let samples = chosen.question(&[])?.samples()?;
        let mut ideal = Delta { now_unix_s: now_unix_s(), ..Delta::default() };
        for (image, cycles) in ideal_cycles(&samples, on)? {
            let profile = Profile::from_counts(cycles);
            count(&mut ideal, image, IDEAL, profile);
        }
        self.writer.merge(&ideal).map_err(failed)?;
        self.writer.seal(now_unix_s()).map_err(failed)?;
        Ok(Written { host: self.host, epoch })
    }
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

/// The image of a file, as it is now.
pub(in crate::commands) fn identity(path: &Path) -> Option<ImageId> {
    image::identify_file(&File::open(path).ok()?).ok()
}

/// Adds counts of an event of period 1 to a delta, with their ledger.
pub(in crate::commands) fn count(delta: &mut Delta, image: ImageId, event: &str, profile: Profile) {
    let total = profile.total();
    let ledger = delta.ledgers.entry(event, 1);
    ledger.taken = ledger.taken.saturating_add(total);
    ledger.merged = ledger.merged.saturating_add(total);
    let key = ProfileKey::samples(image, event, 1, Scope::default());
    delta.profiles.insert(key, profile.into());
}

fn executed(counts: &Counts, ids: &[Option<ImageId>]) -> Delta {
    let now = now_unix_s();
    let mut delta = Delta { now_unix_s: now, ..Delta::default() };
    // Two paths may lead to one file.
    let mut of_image: BTreeMap<ImageId, (Profile, Edges)> = BTreeMap::new();
    for (file, id) in counts.files.iter().zip(ids) {
        let Some(id) = *id else { continue };
        let (executed, taken) = of_image.entry(id).or_default();
        executed
            .merge(&Profile::from_counts(file.executed.iter().map(|(at, count)| (*at, *count))));
        taken.merge(&Edges::from_counts(file.taken.iter().map(|(jump, count)| (*jump, *count))));
        delta.images.entry(id).or_insert_with(|| record(&file.path, id, now));
        let is_executed = |range| file.executed.range(range).next().is_some();
        delta.symbols.entry(id).or_insert_with(|| symbols(&file.path, &id, is_executed));
    }
    for (id, (executed, taken)) in of_image {
        count(&mut delta, id, EXECUTED, executed);
        delta.profiles.insert(ProfileKey::of(id, &TAKEN), taken.into());
    }
    let mut calls = Stacks::new();
    let thread = Thread::default();
    for ((from, to), times) in &counts.calls {
        let frame = |site: &counted::Site| {
            let id = ids.get(site.file).copied().flatten()?;
            Some(Frame::Code(id, site.offset))
        };
        if let Some((from, to)) = frame(from).zip(frame(to)) {
            // Exact: without variance.
            let value = Value { stacks: *times, weight: *times, squares: 0 };
            calls.add_stack([from, to], &thread, value);
        }
    }
    if !calls.is_empty() {
        let key = StacksKey { event: CALLS.to_owned(), scope: Scope::default() };
        delta.stacks.insert(key, calls);
    }
    delta
}

pub(in crate::commands) fn record(path: &Path, id: ImageId, now_unix_s: u64) -> ImageRecord {
    let name = path.file_name().unwrap_or_default();
    ImageRecord {
        id,
        kind: ImageKind::File,
        name: ImageRecord::escape_path(Path::new(name)),
        path: ImageRecord::escape_path(path),
        size_bytes: fs::metadata(path).ok().map(|file| file.len()),
        first_seen_unix_s: now_unix_s,
        last_seen_unix_s: now_unix_s,
    }
}

/// The procedures of a file in which something is.
pub(in crate::commands) fn symbols(
    path: &Path,
    id: &ImageId,
    is_in: impl Fn(std::ops::Range<ImageOffset>) -> bool,
) -> Vec<Symbol> {
    let Ok((all, _)) = image::procedures(path, Some(id), &image::default_debug_roots()) else {
        return Vec::new();
    };
    let symbol = |procedure: &image::Procedure| Symbol {
        start: procedure.start.0,
        end: procedure.end.0,
        name: procedure.raw_name().to_owned(),
    };
    let chosen = all.iter().filter(|procedure| is_in(procedure.start..procedure.end));
    chosen.map(symbol).collect()
}

/// Numbers of instructions, by offset.
type ByOffset = BTreeMap<ImageOffset, u64>;

/// The cycles of each image's instructions, all executions together, rounded.
fn ideal_cycles(
    samples: &Samples,
    on: &OnMachine,
) -> Result<Vec<(ImageId, ByOffset)>, AnalysisError> {
    let Some(event) = samples.events.iter().position(|event| event.name == EXECUTED) else {
        return Ok(Vec::new());
    };
    let (machine, _) = on.model(samples, None)?;
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
            let found = surveyed.graph(image, &known, procedure, None, of, Some(&machine));
            if let Some(graph) = found {
                add_cycles(&graph, (&known, image, event), &machine, &mut cycles);
            }
        }
        all.push((image.record.id, cycles));
    }
    Ok(all)
}

/// Adds the cycles of a procedure's instructions.
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
