//! The file of a recording: gzip (RFC 1952) around lines of JSON. The checksum and length at the
//! end of gzip cover every line, so a reader uses no line before it has read all.

use super::steps::{Start, Step};
use crate::call_stacks::WalkedStack;
use address_spaces::system::{Answers, System};
use flate2::Compression;
use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Version of the format. A reader refuses other versions.
const VERSION: u32 = 1;
/// Most bytes of text in a recording. A reader holds them in memory; a daemon stops recording
/// there.
const TEXT_BYTES_MAX: u64 = 64 << 20;
/// Most steps in a recording: 14 hours of ten readings a second.
const STEPS_MAX: usize = 1 << 19;
/// Limit on the counts and times of one step: with [`STEPS_MAX`] steps no sum overflows 63 bits. In
/// nanoseconds it is 4.8 hours, more than all CPUs spend between two drains.
const COUNT_MAX: u64 = 1 << 44;
/// Times are below this number of nanoseconds: 146 years after the machine started.
const TIME_MAX_NS: u64 = 1 << 62;

/// A recording.
#[derive(Clone, Debug)]
pub struct Recording {
    /// The daemon's state when it began.
    pub start: Start,
    /// The steps, in order of time.
    pub steps: Vec<Step>,
    /// The answers of the system.
    pub answers: Answers,
}

/// The reason why a file is no recording. Each text is one line with the next step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// The file cannot be read.
    #[error("cannot read {path} ({source}); name a file that dcpid --record-input has written")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write the recording {path} ({source}); name a new file on a disk with room")]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file is damaged, or no recording.
    #[error(
        "{path} is no whole recording ({why}); copy it again, or record anew with dcpid --record-input"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The defect.
        why: String,
    },
    /// The file has another version of the format.
    #[error(
        "{path} is a recording of format {found}, and this dcpid reads format {VERSION}; use the dcpid that wrote it"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
}

/// The first line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    dcpid_input: u32,
}

/// A later line.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line<'a> {
    Start(Box<Start>),
    Step(Box<Step>),
    Answers(Box<std::borrow::Cow<'a, Answers>>),
}

impl Recording {
    /// Reads a recording.
    pub fn open(path: &Path) -> Result<Self, RecordingError> {
        let fail = |source| RecordingError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(fail)?;
        Self::read(BufReader::new(file), path)
    }

    /// Reads a recording from a stream; `path` is for error messages.
    pub fn read(stream: impl io::BufRead, path: &Path) -> Result<Self, RecordingError> {
        let damaged = |why: String| RecordingError::Damaged { path: path.to_owned(), why };
        let mut decoder = GzDecoder::new(stream);
        let mut text = Vec::new();
        // The buffer grows with the bytes that are read, so a false length allocates nothing.
        let read = decoder.by_ref().take(TEXT_BYTES_MAX + 1).read_to_end(&mut text);
        read.map_err(|error| damaged(error.to_string()))?;
        if text.len() as u64 > TEXT_BYTES_MAX {
            return Err(damaged(format!("more than {TEXT_BYTES_MAX} bytes of text")));
        }
        let mut more = [0; 1];
        if decoder.into_inner().read(&mut more).map_err(|error| damaged(error.to_string()))? > 0 {
            return Err(damaged("more follows after its end".to_owned()));
        }
        let mut lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let head = lines.next().ok_or_else(|| damaged("it is empty".to_owned()))?;
        let head: Head = serde_json::from_slice(head)
            .map_err(|_| damaged("its first line is not dcpid's".to_owned()))?;
        if head.dcpid_input != VERSION {
            return Err(RecordingError::Version { path: path.to_owned(), found: head.dcpid_input });
        }
        Self::of_lines(lines).map_err(damaged)
    }

    fn of_lines<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Result<Self, String> {
        let (mut start, mut answers, mut steps) = (None, None, Vec::new());
        for (number, line) in lines.enumerate() {
            let at = number + 2;
            let line =
                serde_json::from_slice(line).map_err(|error| format!("line {at}: {error}"))?;
            match line {
                _ if answers.is_some() => return Err(format!("line {at} follows the last")),
                Line::Start(first) if start.is_none() => start = Some(*first),
                Line::Step(step) if start.is_some() && steps.len() < STEPS_MAX => {
                    check(&step).map_err(|why| format!("line {at}: {why}"))?;
                    steps.push(*step);
                }
                Line::Answers(all) if start.is_some() => answers = Some(all.into_owned()),
                _ => return Err(format!("line {at} is out of place")),
            }
        }
        let start = start.ok_or("it has no start")?;
        let answers: Answers = answers.ok_or("its end is missing")?;
        if start.now_ns >= TIME_MAX_NS {
            return Err("a time is out of range".to_owned());
        }
        answers.check()?;
        Ok(Self { start, steps, answers })
    }

    /// Writes the recording.
    pub fn write(&self, stream: impl Write) -> io::Result<()> {
        let mut writer = TextWriter::begin(stream, &self.start)?;
        for step in &self.steps {
            writer.line(&Line::Step(Box::new(step.clone())))?;
        }
        writer.end(&self.answers).map(drop)
    }
}

/// Whether the numbers of a step are in their ranges.
fn check(step: &Step) -> Result<(), String> {
    let is_time = |ns: u64| ns < TIME_MAX_NS;
    let is_fine = match step {
        Step::Drain { begun_ns, ended_ns, drained, .. } => {
            let counted = drained.counted.iter();
            let of_events = counted.flat_map(|one| [one.implied, one.enabled_ns, one.running_ns]);
            let of_cpus = drained.cpus.iter().flat_map(|cpu| [cpu.taken, cpu.implied]);
            let mut counts =
                of_events.chain(of_cpus).chain(drained.lost).chain([drained.taken, drained.misses]);
            let times = drained.gone.iter().map(|(_, since_ns)| *since_ns);
            begun_ns <= ended_ns
                && counts.all(|count| count < COUNT_MAX)
                && times.chain([*ended_ns]).all(is_time)
        }
        Step::Records { time_ns, records } => {
            is_time(*time_ns) && records.iter().all(|record| is_time(record.time_ns))
        }
        Step::Learnt(record) => is_time(record.time_ns),
        Step::Observed(all) => all.iter().all(|observed| observed.restored().is_some()),
        Step::Stacks(all) => all.iter().all(|stack| WalkedStack::restored(stack).is_some()),
        Step::Merge { unix_s, .. } => is_time(*unix_s),
        Step::Period { .. }
        | Step::Label { .. }
        | Step::Register(_)
        | Step::Unregister { .. }
        | Step::Epoch(_) => true,
    };
    if is_fine { Ok(()) } else { Err("a number is out of range".to_owned()) }
}

/// Writes lines, and counts their bytes.
struct TextWriter<Stream: Write> {
    stream: GzEncoder<Stream>,
    bytes: u64,
    steps: usize,
}

impl<Stream: Write> TextWriter<Stream> {
    fn begin(stream: Stream, start: &Start) -> io::Result<Self> {
        let stream = GzEncoder::new(stream, Compression::best());
        let mut writer = Self { stream, bytes: 0, steps: 0 };
        writer.line(&Head { dcpid_input: VERSION })?;
        writer.line(&Line::Start(Box::new(start.clone())))?;
        Ok(writer)
    }

    fn line(&mut self, line: &impl Serialize) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.bytes += text.len() as u64;
        self.steps += 1;
        self.stream.write_all(&text)
    }

    /// Whether half of the text is used: the other half is for the answers, which come last.
    fn is_full(&self) -> bool {
        self.bytes > TEXT_BYTES_MAX / 2 || self.steps >= STEPS_MAX
    }

    fn end(mut self, answers: &Answers) -> io::Result<Stream> {
        self.line(&Line::Answers(Box::new(std::borrow::Cow::Borrowed(answers))))?;
        self.stream.finish()
    }
}

/// A recording that is being written.
struct Live {
    path: PathBuf,
    /// `None` after an error.
    writer: Option<TextWriter<BufWriter<File>>>,
    is_full: bool,
    /// The system whose answers belong to the steps.
    system: System,
}

/// Keeps steps while a recording is made; the default keeps none.
#[derive(Clone, Default)]
pub struct Tape(Option<Arc<Mutex<Live>>>);

impl Tape {
    /// Begins a recording in a new file that only its owner may read, because it has paths and
    /// addresses.
    ///
    /// # Errors
    /// [`RecordingError::Write`], even where the file exists.
    pub fn create(path: &Path, start: &Start, system: System) -> Result<Self, RecordingError> {
        let fail = |source| RecordingError::Write { path: path.to_owned(), source };
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let stream = BufWriter::new(file.map_err(fail)?);
        let writer = Some(TextWriter::begin(stream, start).map_err(fail)?);
        Ok(Self(Some(Arc::new(Mutex::new(Live {
            path: path.to_owned(),
            writer,
            is_full: false,
            system,
        })))))
    }

    /// Adds a step.
    pub fn note(&self, step: impl FnOnce() -> Step) {
        let Some(live) = &self.0 else { return };
        let mut live = live.lock().unwrap_or_else(PoisonError::into_inner);
        let Live { path, writer: Some(writer), is_full, .. } = &mut *live else { return };
        if writer.is_full() {
            if !std::mem::replace(is_full, true) {
                tracing::warn!("{} is full; sampling goes on unrecorded", path.display());
            }
            return;
        }
        if let Err(error) = writer.line(&Line::Step(Box::new(step()))) {
            tracing::error!(%error, "{} is not written any more", path.display());
            live.writer = None;
        }
    }

    /// Ends the recording with the answers of the system.
    ///
    /// # Errors
    /// [`RecordingError::Write`], also for an earlier error.
    pub fn finish(&self) -> Result<(), RecordingError> {
        let Some(live) = &self.0 else { return Ok(()) };
        let mut live = live.lock().unwrap_or_else(PoisonError::into_inner);
        let path = live.path.clone();
        let fail = |source| RecordingError::Write { path: path.clone(), source };
        let writer = live.writer.take().ok_or_else(|| fail(io::Error::other("see the log")))?;
        if live.system.refused() > 0 {
            tracing::warn!(answers = live.system.refused(), "too many answers to record all");
        }
        let mut stream = writer.end(&live.system.answers()).map_err(fail)?;
        stream.flush().map_err(fail)?;
        tracing::info!("the recording {} is complete", path.display());
        Ok(())
    }
}
