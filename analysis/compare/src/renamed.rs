//! Images of different names that are compared as one: builds of a program.

use std::collections::BTreeMap;
use std::str::FromStr;

use image::ImageKind;

use super::Comparison;
use super::table::{Read, total};
use query::error::AnalysisError;
use query::load::ImageSamples;

/// Share of a set's samples from which an image is the one program of the set that `--map` is
/// proposed for. With less, the set has others that matter as much.
const PROGRAM_MIN_SHARE: f64 = 0.5;
/// Most images that the error of an unknown image names: they fit a line.
const IMAGES_NAMED: usize = 8;

/// An image that is taken for another: `OLD=NEW`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renamed {
    /// Its name or path.
    pub old: String,
    /// The name or path of the other.
    pub new: String,
}

impl FromStr for Renamed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((old, new)) if !old.is_empty() && !new.is_empty() => {
                Ok(Self { old: old.to_owned(), new: new.to_owned() })
            }
            _ => Err("is not OLD=NEW, two names of images".to_owned()),
        }
    }
}

/// An image's name, or that of the image that it is taken for.
pub(super) fn name(image: &ImageSamples, renamed: &[Renamed]) -> String {
    match renamed.iter().find(|renamed| is_named(image, &renamed.old)) {
        Some(renamed) => base_name(&renamed.new).to_owned(),
        None => own_name(image),
    }
}

/// Whether an image has this name or path.
fn is_named(image: &ImageSamples, asked: &str) -> bool {
    image.record.path == asked || own_name(image) == asked
}

/// The last part of a path; a name is its own.
fn base_name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// An image's name; that of code made at run time without the process's number, which is another in
/// each run.
fn own_name(image: &ImageSamples) -> String {
    let name = &image.record.name;
    match name.rsplit_once(' ') {
        Some((program, pid))
            if image.record.kind == ImageKind::Jit
                && pid.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            program.to_owned()
        }
        _ => name.clone(),
    }
}

/// Whether the sets have the images that are to be taken for others, and those others.
pub(super) fn check_renamed(reads: &[Read], args: &Comparison) -> Result<(), AnalysisError> {
    let images = || reads.iter().flat_map(|read| &read.samples.images);
    for asked in args.renamed.iter().flat_map(|renamed| [&renamed.old, &renamed.new]) {
        if images().any(|image| is_named(image, asked)) {
            continue;
        }
        let mut sizes: BTreeMap<String, u64> = BTreeMap::new();
        for image in reads.iter().flat_map(|read| read.images(args)) {
            let known = sizes.entry(own_name(image)).or_default();
            *known = known.saturating_add(total(image).samples);
        }
        let mut sizes: Vec<(String, u64)> = sizes.into_iter().collect();
        sizes.sort_by(|(_, a), (_, b)| b.cmp(a));
        let names: Vec<String> =
            sizes.into_iter().take(IMAGES_NAMED).map(|(name, _)| name).collect();
        return Err(AnalysisError::Refused(format!(
            "--map names {asked:?}, which no set has; the images with most samples are {}",
            names.join(", ")
        )));
    }
    Ok(())
}

/// The heaviest program of each of two sets, where it has most samples of its set and the other set
/// has no image of its name.
pub(super) fn other_name(reads: &[Read], args: &Comparison) -> Option<Renamed> {
    let heaviest = |set: usize| {
        let mut whole = 0_u64;
        let mut files: BTreeMap<String, u64> = BTreeMap::new();
        for read in reads.iter().filter(|read| read.set == set) {
            whole = whole.saturating_add(read.part.counted.samples);
            for image in read.images(args) {
                let samples = total(image).samples;
                if image.record.kind == ImageKind::File {
                    let known = files.entry(name(image, &args.renamed)).or_default();
                    *known = known.saturating_add(samples);
                }
            }
        }
        let (name, samples) = files.into_iter().max_by_key(|(_, samples)| *samples)?;
        (samples as f64 >= PROGRAM_MIN_SHARE * whole as f64).then_some(name)
    };
    let has = |set: usize, wanted: &str| {
        let images = reads.iter().filter(|read| read.set == set);
        let mut images = images.flat_map(|read| &read.samples.images);
        images.any(|image| name(image, &args.renamed) == wanted)
    };
    let (old, new) = (heaviest(0)?, heaviest(1)?);
    (!has(1, &old) && !has(0, &new)).then_some(Renamed { old, new })
}
