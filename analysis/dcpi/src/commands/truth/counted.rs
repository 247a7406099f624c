//! Whether exact counts are of what was sampled: of the same program, and of the same build of it.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use code::cfg::Cfg;
use estimate::truth::ExactCounts;
use image::{ImageId, ImageKind, Vaddr};

use query::error::AnalysisError;
use query::load::{ImageSamples, Samples};

/// Refuses counts of a program that has no samples: libraries that both use do not make it the
/// same.
///
/// # Errors
/// [`AnalysisError::Refused`].
pub(super) fn is_sampled(
    path: &Path,
    text: &str,
    counts: &HashMap<String, ExactCounts>,
    samples: &Samples,
) -> Result<(), AnalysisError> {
    let Some(program) = program(text, counts) else { return Ok(()) };
    if samples.images.iter().any(|image| is_same(&image.record.path, program)) {
        return Ok(());
    }
    let next = "record the same program: dcpi record -- COMMAND, or name the images to compare";
    Err(AnalysisError::Refused(format!(
        "{} counts {program}, which has no samples; {next}",
        path.display()
    )))
}

/// The object that is the counted program. None where its command does not tell (a script, a name
/// that `$PATH` resolves to another).
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

/// The images with samples that were counted.
///
/// # Errors
/// [`AnalysisError::Refused`] where all of them are of other builds.
pub(super) fn images<'a>(
    path: &Path,
    counts: &'a HashMap<String, ExactCounts>,
    samples: &'a Samples,
) -> Result<Vec<(&'a ImageSamples, &'a ExactCounts)>, AnalysisError> {
    let (mut images, mut other) = (Vec::new(), None);
    let counted = |image: &&ImageSamples| image.wanted && image.record.kind == ImageKind::File;
    for image in samples.images.iter().filter(counted) {
        let Some((object, counts)) =
            counts.iter().find(|(object, _)| is_same(&image.record.path, object))
        else {
            continue;
        };
        match build(path, object).filter(|build| *build != image.record.id) {
            Some(build) => other = other.or(Some((object, build, image.record.id))),
            None => images.push((image, counts)),
        }
    }
    match other.filter(|_| images.is_empty()) {
        Some((object, counted, sampled)) => Err(AnalysisError::Refused(format!(
            "{} counts build {counted} of {object}, but build {sampled} was sampled; count and record the same one",
            path.display()
        ))),
        None => Ok(images),
    }
}

/// Which build of an object was counted, if the file has not changed since. Packages' files are as
/// old as they were when they were packed: only the time of the inode's change (`st_ctime`) tells
/// when one came here.
fn build(path: &Path, object: &str) -> Option<ImageId> {
    let object_is = fs::metadata(object).ok()?;
    let counts_are = fs::metadata(path).ok()?;
    let is_as_counted = (object_is.ctime(), object_is.ctime_nsec())
        <= (counts_are.mtime(), counts_are.mtime_nsec());
    is_as_counted.then(|| image::identify_file(&File::open(object).ok()?).ok()).flatten()
}

/// What was executed of an image, held against its instructions.
pub(super) struct Executed {
    /// Addresses of executed instructions.
    all: Vec<Vaddr>,
    /// Of these, those in procedures that were looked at, and those that are no instructions there.
    held: usize,
    odd: usize,
}

/// So many of a hundred executed instructions may be none of the code, which need not be as
/// compilers make it.
const ODD_PERCENT: usize = 5;
/// Fewer tell nothing.
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

    /// Refuses counts of another build.
    ///
    /// # Errors
    /// [`AnalysisError::Refused`].
    pub(super) fn is_of_this_build(
        &self,
        path: &Path,
        image: &ImageSamples,
    ) -> Result<(), AnalysisError> {
        if self.odd < ODD_MIN || self.odd * 100 <= self.held * ODD_PERCENT {
            return Ok(());
        }
        let (path, name) = (path.display(), &image.record.name);
        let why = format!(
            "{} of {} instructions that it counts in {name} are none of the build that was sampled",
            self.odd, self.held
        );
        Err(AnalysisError::Refused(format!("{path}: {why}; count and record the same one")))
    }
}
