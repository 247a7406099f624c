//! Counting by the translator `blockcount`: on x86-64, all threads at once, some two times slower
//! than the command alone.

use crate::file::{Identity, Unfound, shown};
use crate::{Counts, Engine, EngineError, Run, Site, Streams, files_of};
use blockcount::area::reader::{Counted, Edge, FileCounts, Location};
use image::ImageOffset;
use simulate::{Sizes, Tally};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

mod bursts;
mod descriptors;
mod folder;

use descriptors::{Held, Receiver};
use folder::Folder;

/// Name of the program that translates and counts.
pub const PROGRAM: &str = "dcpi-blockcount";
/// Most notes of one kind of refusal that are reported: each process may have its own.
const NOTES_MAX: usize = 8;
/// Name of the file, beside the counts, that the engine writes when it refuses the command.
const REFUSAL: &str = "refusal";

/// The translator as an [`Engine`].
#[derive(Clone, Debug)]
pub struct Own {
    /// Path of the program [`PROGRAM`].
    pub program: PathBuf,
    /// Indirect jumps are counted by their targets, too: a program takes up to a third longer.
    pub jumps: bool,
    /// Bursts of instructions are recorded, and go through models of a processor of these sizes.
    pub modelled: Option<Sizes>,
}

/// Records of all processes of a run that go through the models, in words: a gigabyte takes them
/// some ten seconds.
const RECORDS_ALL_MAX: u64 = 1 << 25;

impl Engine for Own {
    fn name(&self) -> &'static str {
        "own"
    }

    fn run(&self, command: &[OsString], streams: Streams) -> Result<Run, EngineError> {
        let not_started = |why: String| EngineError::NotStarted { program: PROGRAM, why };
        // In memory, where files of counts cost least.
        let folder = Folder::make(Path::new("/dev/shm"))
            .or_else(|_| Folder::make(&std::env::temp_dir()))
            .map_err(|error| not_started(format!("no directory for its counts: {error}")))?;
        let removed = folder.remove_left_behind();
        let refusal = folder.path().join(REFUSAL);
        let mut counting = Command::new(&self.program);
        counting.arg("--area").arg(folder.path()).arg("--refusal").arg(&refusal).arg("--edges");
        counting.args(self.jumps.then_some("--jumps"));
        counting.args(self.modelled.is_some().then_some("--bursts"));
        let (program, arguments) =
            command.split_first().ok_or_else(|| not_started("no command was named".to_owned()))?;
        counting.arg("--argv0").arg(program).arg("--").arg(in_search_path(program)).args(arguments);
        streams.give(&mut counting);
        let receiver = Receiver::listen(folder.path());
        let status = counting.status();
        let (held, unheld) = match receiver {
            Ok(receiver) => (receiver.end(), None),
            Err(error) => (Held::new(), Some(format!("files are known by path only: {error}"))),
        };
        let status =
            status.map_err(|error| not_started(format!("{}: {error}", self.program.display())))?;
        let mut counts = Counts::default();
        let mut found = Found { held, files: BTreeMap::new() };
        let is_refused = fs::symlink_metadata(&refusal).is_ok_and(|file| file.is_file());
        if let Some(said) = is_refused.then(|| fs::read(&refusal).ok()).flatten() {
            return Err(refused(program, &String::from_utf8_lossy(&said)));
        }
        let mut records = RECORDS_ALL_MAX;
        for path in files_of(folder.path())? {
            let unreadable = |why: String| EngineError::Unreadable { path: path.clone(), why };
            let counted = Counted::open(&path).map_err(|error| unreadable(error.to_string()))?;
            counts.processes += 1;
            let mut tallies = BTreeMap::new();
            if let Some(sizes) = &self.modelled
                && counted.header.records <= records
            {
                records -= counted.header.records;
                tallies = bursts::modelled(&path, &counted, sizes)
                    .map_err(|error| unreadable(error.to_string()))?;
            }
            add(&mut counts, &counted, tallies, &mut found);
        }
        if counts.processes == 0 {
            let why = format!("it ended with {status}; count with --engine valgrind");
            return Err(EngineError::NoCounts { program: PROGRAM, why });
        }
        counts.notes.extend(removed.into_iter().chain(unheld));
        Ok(Run { status, counts })
    }
}

/// The error of a command that the engine refuses before its first instruction; `said` is the line
/// of the engine.
fn refused(command: &OsStr, said: &str) -> EngineError {
    let said = said.trim_end();
    let why = said.strip_prefix(PROGRAM).and_then(|said| said.strip_prefix(": "));
    let why = why.unwrap_or(said).to_owned();
    let next = if why.contains("set-user-ID") {
        "a copy of the file without these rights can be counted"
    } else if why.contains("may not be read") {
        "count as a user who may read the file"
    } else if why.contains("RLIMIT_FSIZE") {
        "run without that limit: ulimit -f unlimited"
    } else {
        "try --engine valgrind"
    };
    EngineError::Refused { command: command.to_string_lossy().into_owned(), why, next }
}

/// The file of a command in the search path; the name itself where there is none.
fn in_search_path(program: &OsStr) -> PathBuf {
    if program.as_bytes().contains(&b'/') {
        return program.into();
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    let mut found = std::env::split_paths(&path).map(|directory| directory.join(program));
    found.find(|path| path.is_file()).unwrap_or_else(|| program.into())
}

/// Files that were looked for after the run.
struct Found {
    held: Held,
    /// The number of a file in the counts, or why it was not found. A file that is held has no path
    /// here: it may be deleted while it is mapped, and then has another one.
    files: BTreeMap<(Identity, Vec<u8>), Result<usize, Unfound>>,
}

impl Found {
    /// The file that code was mapped from.
    fn find(&mut self, file: &FileCounts, counts: &mut Counts) -> Result<usize, Unfound> {
        let content = (file.modified_ns > 0).then_some((file.size, file.modified_ns));
        let identity = Identity { device: file.device, inode: file.inode, content };
        let held = self.held.get(&(file.device, file.inode)).filter(|_| content.is_some());
        let path = if held.is_some() { Vec::new() } else { file.path.clone() };
        *self.files.entry((identity, path)).or_insert_with(|| {
            let found = identity.find(&file.path, held)?;
            Ok(if found.is_gone() { counts.add_file(found) } else { counts.file(&found.path) })
        })
    }
}

/// Adds the counts of a process.
fn add(
    counts: &mut Counts,
    counted: &Counted,
    tallies: BTreeMap<(usize, u64), Tally>,
    found: &mut Found,
) {
    counts.counted = counts.counted.saturating_add(counted.instructions());
    let files = counted.files();
    let is_file = |file: &FileCounts| file.inode != 0;
    let numbers: Vec<Option<usize>> = files
        .iter()
        .map(|file| {
            let number = is_file(file).then(|| found.find(file, counts))?;
            let unfound = |why: &Unfound| {
                let executions = file.instructions.values();
                let sum = executions.fold(0_u64, |sum, (_, count)| sum.saturating_add(*count));
                counts.unattributed.add(&shown(&file.path), why.words(), sum);
            };
            number.inspect_err(unfound).ok()
        })
        .collect();
    let more = |sum: &mut u64, count: u64| *sum = sum.saturating_add(count);
    for (file, number) in files.iter().zip(&numbers) {
        for (offset, (_, executions)) in file.instructions.iter().filter(|(_, of)| of.1 > 0) {
            match number.and_then(|number| counts.files.get_mut(number)) {
                Some(known) => {
                    more(known.executed.entry(ImageOffset(*offset)).or_default(), *executions);
                }
                None if is_file(file) => {} // unattributed
                None => more(&mut counts.elsewhere, *executions),
            }
        }
    }
    let site = |place: Location| {
        let file = numbers.get(place.file).copied().flatten()?;
        Some(Site { file, offset: ImageOffset(place.offset) })
    };
    for ((file, offset), tally) in tallies {
        if let Some(site) = site(Location { file, offset }) {
            counts.modelled.entry(site).or_default().add(&tally);
        }
    }
    let both = |edge: &Edge| Some((site(edge.from)?, site(edge.to?)?));
    let indirect = counted.jumps().into_iter().chain(counted.indirect_calls());
    for edge in counted.taken().into_iter().chain(indirect) {
        if let Some((from, to)) = both(&edge)
            && from.file == to.file
            && let Some(file) = counts.files.get_mut(from.file)
        {
            more(file.taken.entry((from.offset, to.offset)).or_default(), edge.count);
        }
    }
    for edge in counted.calls() {
        if let Some(call) = both(&edge) {
            more(counts.calls.entry(call).or_default(), edge.count);
        }
    }
    let blocks = counted.blocks.iter().map(|block| block.count);
    let blocks = blocks.fold(counts.blocks.unwrap_or_default(), u64::saturating_add);
    counts.blocks = Some(blocks);
    let flow = counted.flow();
    counts.flow.0 += flow.addresses;
    counts.flow.1 += flow.differences.len();
    let known: BTreeSet<String> = counts.notes.iter().cloned().collect();
    let new = counted.notes.iter().filter(|note| !known.contains(*note)).cloned();
    let room = NOTES_MAX.saturating_sub(counts.notes.len());
    counts.notes.extend(new.take(room));
}
