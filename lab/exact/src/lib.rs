//! Exact executions of a command: how often each instruction of the program and of each library was
//! executed, each branch taken and each call made.
//!
//! An [`Engine`] runs the command and counts. Counts are of files and file offsets, as samples are.
#![forbid(unsafe_code)]

pub mod callgrind;
pub mod entries;
#[cfg(target_arch = "x86_64")]
pub mod exceptions;
mod file;
pub mod own;
pub mod series;
pub mod totals;

pub use file::CodeFile;

use events::Encoding;
use image::ImageOffset;
use perf_event::Builder;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// A place in a counted file: the file's number in [`Counts::files`], and the offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Site {
    /// Number of the file.
    pub file: usize,
    /// Offset of an instruction.
    pub offset: ImageOffset,
}

/// The executions of a command and its children.
#[derive(Debug, Default)]
pub struct Counts {
    /// Files with executed code, each once.
    pub files: Vec<CountedFile>,
    /// Calls, by the call instruction and the first instruction that it led to.
    pub calls: BTreeMap<(Site, Site), u64>,
    /// What instructions did in models of the processor, where bursts were recorded.
    pub modelled: BTreeMap<Site, simulate::Tally>,
    /// Executions of instructions that are in no file: generated code, the vDSO.
    pub elsewhere: u64,
    /// Executions in files that were not found after the run.
    pub unattributed: Unattributed,
    /// Executions of all instructions, as the engine counted them: what is reported and what is
    /// named as unattributed must be as many.
    pub counted: u64,
    /// Executions of basic blocks; None if the engine does not report them.
    pub blocks: Option<u64>,
    /// Processes that were counted.
    pub processes: usize,
    /// Number of blocks whose executions were compared with the sum of their incoming edges, and
    /// number of those that differ. (0, 0) if the engine does not report edges.
    pub flow: (usize, usize),
    /// Code that was not counted, or not exactly, one sentence each.
    pub notes: Vec<String>,
}

/// Executions in one file.
#[derive(Debug)]
pub struct CountedFile {
    /// The file.
    pub file: CodeFile,
    /// Executions by instruction.
    pub executed: BTreeMap<ImageOffset, u64>,
    /// Executions of jumps that were taken, and of indirect calls where the engine tells them from
    /// others, by the instruction and its target, both in this file.
    pub taken: BTreeMap<(ImageOffset, ImageOffset), u64>,
}

impl Counts {
    /// The number of the file at a path, which is added if it is new.
    fn file(&mut self, path: &Path) -> usize {
        let is_there = |known: &CountedFile| !known.file.is_gone() && known.file.path == path;
        let known = self.files.iter().position(is_there);
        known.unwrap_or_else(|| self.add_file(CodeFile::at(path)))
    }

    /// Adds a file; its number.
    fn add_file(&mut self, file: CodeFile) -> usize {
        let (executed, taken) = (BTreeMap::new(), BTreeMap::new());
        self.files.push(CountedFile { file, executed, taken });
        self.files.len() - 1
    }
}

/// Executions, or other counts, in files that are known by name only, by path and reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unattributed(BTreeMap<(PathBuf, &'static str), u64>);

/// Most files that [`Unattributed::lines`] names.
const NAMED_MAX: usize = 20;

impl Unattributed {
    /// Adds counts of a file, and the reason why they are not attributed: "a file that ...".
    pub fn add(&mut self, path: &Path, why: &'static str, count: u64) {
        if count > 0 {
            let sum = self.0.entry((path.to_owned(), why)).or_default();
            *sum = sum.saturating_add(count);
        }
    }

    /// Adds those of another.
    pub fn extend(&mut self, other: &Self) {
        other.0.iter().for_each(|((path, why), count)| self.add(path, why, *count));
    }

    /// The sum of all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.values().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// A sentence for each file, those with most first; `number` writes a count with its unit.
    pub fn lines(&self, number: impl Fn(u64) -> String) -> Vec<String> {
        let mut files: Vec<_> = self.0.iter().collect();
        files.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let named = files.iter().take(NAMED_MAX).map(|((path, why), count)| {
            format!("{} of {why}: {}", number(**count), path.display())
        });
        let mut lines: Vec<String> = named.collect();
        let rest = files.get(NAMED_MAX..).unwrap_or_default();
        if !rest.is_empty() {
            let count = rest.iter().fold(0, |sum: u64, (_, count)| sum.saturating_add(**count));
            lines.push(format!("{} of {} more such files", number(count), rest.len()));
        }
        lines
    }
}

/// A run of a command: its end and its executions.
#[derive(Debug)]
pub struct Run {
    /// How the command ended.
    pub status: ExitStatus,
    /// The executions of the command and its children.
    pub counts: Counts,
}

/// An engine that runs a command and counts its executions.
pub trait Engine {
    /// The engine's name, as `--engine` takes it.
    fn name(&self) -> &'static str;

    /// Runs a command to its end. The command and all its children are counted.
    ///
    /// # Errors
    /// [`EngineError`] where the engine could not run the command, or its counts cannot be read.
    fn run(&self, command: &[OsString], streams: Streams) -> Result<Run, EngineError>;
}

/// The standard streams of a run.
#[derive(Debug, Default)]
pub struct Streams {
    /// Standard input; None: that of this process.
    pub input: Option<File>,
    /// Whether output and error messages of the command go nowhere, instead of where those of this
    /// process go.
    pub quiet: bool,
}

impl Streams {
    /// No input, and discarded output.
    #[must_use]
    pub fn none() -> Self {
        Self { input: File::open("/dev/null").ok(), quiet: true }
    }

    /// Sets the streams of a command before its start.
    pub fn give(self, command: &mut Command) {
        command.stdin(self.input.map_or_else(Stdio::inherit, Stdio::from));
        if self.quiet {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        }
    }
}

/// Runs a command to its end while another thread reads its counters: `read` returns soon after its
/// receiver is disconnected. Returns the command's end, its time from start to end, and what was
/// read.
fn run_beside<T: Default + Send>(
    command: &mut Command,
    read: impl FnOnce(&Receiver<()>) -> T + Send,
) -> io::Result<(ExitStatus, Duration, T)> {
    let begun = Instant::now();
    let mut child = command.spawn()?;
    let (ended, end) = channel();
    let (status, took, read) = std::thread::scope(|scope| {
        let reader = scope.spawn(move || read(&end));
        let status = child.wait();
        let took = begun.elapsed();
        drop(ended);
        (status, took, reader.join().unwrap_or_default())
    });
    Ok((status?, took, read))
}

/// Makes an event that has this encoding.
fn set_encoding(builder: &mut Builder<'_>, Encoding { kind, config }: Encoding) {
    let attributes = builder.attrs_mut();
    attributes.type_ = kind;
    [attributes.config, attributes.config1, attributes.config2] = config;
}

/// The files in a folder of counts, in the order of their names. What else there is, such as a
/// FIFO, comes of the counted program, and would hold up whoever opened it.
fn files_of(folder: &Path) -> Result<Vec<PathBuf>, EngineError> {
    let entries = fs::read_dir(folder).map_err(|error| unreadable(folder, &error))?;
    let mut files = Vec::new();
    for entry in entries.flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            return Err(unreadable(&entry.path(), &"it is no plain file; the program made it"));
        }
        files.push(entry.path());
    }
    files.sort();
    Ok(files)
}

fn unreadable(path: &Path, why: &dyn std::fmt::Display) -> EngineError {
    EngineError::Unreadable { path: path.to_owned(), why: why.to_string() }
}

/// Errors of counting.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The engine is not there, or cannot be started.
    #[error("cannot start {program}: {why}")]
    NotStarted {
        /// The engine's program.
        program: &'static str,
        /// The reason, and the next step.
        why: String,
    },
    /// The engine does not count that command.
    #[error("cannot count {command}: {why}; {next}")]
    Refused {
        /// The command's program.
        command: String,
        /// The engine's reason.
        why: String,
        /// The next step.
        next: &'static str,
    },
    /// The engine left no counts.
    #[error("{program} left no counts: {why}")]
    NoCounts {
        /// The engine's program.
        program: &'static str,
        /// The reason, and the next step.
        why: String,
    },
    /// A file of counts cannot be read.
    #[error("cannot read the counts {path}: {why}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
}
