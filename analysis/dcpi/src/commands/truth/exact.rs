//! Exact counts, and whether they are of what was sampled: of the same program, and of the same
//! build of it.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use code::cfg::Cfg;
use estimate::truth::ExactCounts;
use exact::callgrind::{self, ObjectCounts};
use exact::{CountedFile, Counts};
use image::{ImageId, ImageKind, ImageOffset, Layout, Vaddr};

use query::error::AnalysisError;
use query::load::{ImageSamples, Samples};

/// Most bytes of a file of counts: a run of a compiler writes 200 MB.
const COUNTS_MAX: u64 = 1 << 30;

pub(super) struct Exact {
    /// The name of the counts: their file, or the command that was counted.
    pub source: String,
    /// When the counts were complete: seconds, and nanoseconds of the next.
    at: (i64, i64),
    /// The object that is the counted program. None where its command does not tell (a script, a
    /// name that `$PATH` resolves to another).
    program: Option<String>,
    /// Counts by path of the object.
    objects: HashMap<String, ExactCounts>,
}

impl Exact {
    /// The counts in a file that callgrind wrote.
    ///
    /// # Errors
    /// [`AnalysisError::Refused`] where it cannot be read, or has none.
    pub(super) fn of_file(path: &Path) -> Result<Self, AnalysisError> {
        let text = read(path)?;
        let counted = callgrind::read(text.as_bytes()).map_err(AnalysisError::from)?;
        let exact =
            |counts: ObjectCounts| ExactCounts { executed: counts.executed, jumped: counts.jumped };
        let objects: HashMap<String, ExactCounts> =
            counted.into_iter().map(|(object, counts)| (object, exact(counts))).collect();
        let source = path.display().to_string();
        if objects.values().all(|counts| counts.executed.is_empty()) {
            return Err(AnalysisError::Refused(format!(
                "{source} has no counts of instructions; see dcpi truth --help"
            )));
        }
        let written = fs::metadata(path)?;
        let at = (written.mtime(), written.mtime_nsec());
        let program = program(&text, &objects).map(ToOwned::to_owned);
        Ok(Self { source, at, program, objects })
    }

    /// The counts of a command that was run just now.
    pub(super) fn of_run(source: String, counts: Counts) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at = (since.as_secs() as i64, i64::from(since.subsec_nanos()));
        let object = |file: CountedFile| {
            let layout = Layout::of_file(&file.file.open().ok()?).ok()?;
            let address = |offset: ImageOffset| layout.file_offset_to_vaddr(offset);
            let executed = file.executed.into_iter();
            let jumped = file.taken.into_iter();
            let counts = ExactCounts {
                executed: executed.filter_map(|(at, count)| Some((address(at)?, count))).collect(),
                jumped: jumped
                    .filter_map(|((from, to), count)| Some(((address(from)?, address(to)?), count)))
                    .collect(),
            };
            Some((file.file.path.to_string_lossy().into_owned(), counts))
        };
        let objects = counts.files.into_iter().filter_map(object).collect();
        Self { source, at, program: None, objects }
    }

    /// Refuses counts of a program that has no samples: libraries that both use do not make it the
    /// same.
    pub(super) fn is_sampled(&self, samples: &Samples) -> Result<(), AnalysisError> {
        let Some(program) = &self.program else { return Ok(()) };
        if samples.images.iter().any(|image| is_same(&image.record.path, program)) {
            return Ok(());
        }
        let next = "record the same program: dcpi record -- COMMAND, or name the images to compare";
        let source = &self.source;
        Err(AnalysisError::Refused(format!(
            "{source} counts {program}, which has no samples; {next}"
        )))
    }

    /// The images with samples that were counted.
    ///
    /// # Errors
    /// [`AnalysisError::Refused`] where all of them are of other builds.
    pub(super) fn images<'a>(
        &'a self,
        samples: &'a Samples,
    ) -> Result<Vec<(&'a ImageSamples, &'a ExactCounts)>, AnalysisError> {
        let (mut images, mut other) = (Vec::new(), None);
        let counted = |image: &&ImageSamples| image.wanted && image.record.kind == ImageKind::File;
        for image in samples.images.iter().filter(counted) {
            let Some((object, counts)) =
                self.objects.iter().find(|(object, _)| is_same(&image.record.path, object))
            else {
                continue;
            };
            match self.build(object).filter(|build| !image.record.id.is_build(build)) {
                Some(build) => other = other.or(Some((object, build, image.record.id))),
                None => images.push((image, counts)),
            }
        }
        match other.filter(|_| images.is_empty()) {
            Some((object, counted, sampled)) => Err(AnalysisError::Refused(format!(
                "{} counts build {counted} of {object}, but build {sampled} was sampled; count and record the same one",
                self.source
            ))),
            None => Ok(images),
        }
    }

    /// Which build of an object was counted, if the file has not changed since. Packages' files
    /// are as old as they were when they were packed: only the time of the inode's change
    /// (`st_ctime`) tells when one came here.
    fn build(&self, object: &str) -> Option<ImageId> {
        let object_is = fs::metadata(object).ok()?;
        let is_as_counted = (object_is.ctime(), object_is.ctime_nsec()) <= self.at;
        is_as_counted.then(|| image::identify_file(&File::open(object).ok()?).ok()).flatten()
    }
}

fn read(path: &Path) -> Result<String, AnalysisError> {
    let unreadable = |why: String| {
        AnalysisError::Refused(format!(
            "cannot read {}: {why}; name a file that callgrind wrote",
            path.display()
        ))
    };
    let mut text = String::new();
    let file = File::open(path).map_err(|error| unreadable(error.to_string()))?;
    let read = file
        .take(COUNTS_MAX + 1)
        .read_to_string(&mut text)
        .map_err(|error| unreadable(error.to_string()))?;
    if read as u64 > COUNTS_MAX {
        return Err(unreadable(format!("it is larger than {COUNTS_MAX} bytes")));
    }
    Ok(text)
}

/// The object that is the program of callgrind's counts.
fn program<'a>(text: &str, counts: &'a HashMap<String, ExactCounts>) -> Option<&'a str> {
    let command = text
        .lines()
        .take_while(|line| !line.starts_with("ob="))
        .find_map(|line| line.strip_prefix("cmd:"));
    let name = command?.split_whitespace().next()?;
    let last = |path: &str| Path::new(path).file_name().map(ToOwned::to_owned);
    let objects = || counts.keys().map(String::as_str);
    objects()
        .find(|object| is_same(name, object))
        .or_else(|| objects().find(|object| last(name) == last(object)))
}

/// Whether two paths lead to the same file, here and now.
fn is_same(path: &str, object: &str) -> bool {
    let real = |path: &str| fs::canonicalize(path).unwrap_or_else(|_| path.into());
    path == object || real(path) == real(object)
}

/// The executions in an image, compared with its instructions.
pub(super) struct Executed {
    /// Addresses of executed instructions.
    all: Vec<Vaddr>,
    /// Of these, those in procedures that were looked at, and those that are not instructions
    /// there.
    held: usize,
    odd: usize,
}

/// Percentage of executed instructions that need not be instructions of the decoded code, because
/// hand-written code may differ from compilers' code.
const ODD_PERCENT: usize = 5;
/// Fewer are not significant.
const ODD_MIN: usize = 3;

impl Executed {
    /// Of these counts.
    pub(super) fn of(counts: &ExactCounts) -> Self {
        let mut all: Vec<Vaddr> = counts.executed.keys().copied().collect();
        all.sort_unstable();
        Self { all, held: 0, odd: 0 }
    }

    /// Holds them against a procedure.
    pub(super) fn hold(&mut self, graph: &Cfg) {
        let blocks = 0..graph.blocks().len();
        let instructions: BTreeSet<Vaddr> =
            blocks.flat_map(|block| graph.instructions(block)).collect();
        for block in graph.blocks() {
            let from = self.all.partition_point(|at| *at < block.start);
            let executed = self.all.iter().skip(from).take_while(|at| **at < block.end);
            for at in executed {
                self.held += 1;
                self.odd += usize::from(!instructions.contains(at));
            }
        }
    }

    pub(super) fn is_of_this_build(
        &self,
        source: &str,
        image: &ImageSamples,
    ) -> Result<(), AnalysisError> {
        if self.odd < ODD_MIN || self.odd * 100 <= self.held * ODD_PERCENT {
            return Ok(());
        }
        let name = &image.record.name;
        let why = format!(
            "{} of {} instructions that it counts in {name} are none of the build that was sampled",
            self.odd, self.held
        );
        Err(AnalysisError::Refused(format!("{source}: {why}; count and record the same one")))
    }
}
