//! Time by cause, procedure by procedure.

use std::collections::BTreeSet;

use code::isa::Syntax;
use code::skid::Skid;
use image::{ImageId, Procedure};
use stalls::{Explained, Machine};

use crate::graphs::{Graph, Surveyed};
use names::named;
use names::parallel;
use names::procedures::{self, Known, Needed, Places};
use query::load::{self, ImageSamples, Samples};
use query::problem::Problem;
use query::progress::{self, Stage};

/// A procedure whose time is explained.
#[derive(Debug)]
pub struct Explanation<'a> {
    /// The procedure's image.
    pub image: &'a ImageSamples,
    /// The image's procedures and code.
    pub known: &'a Known,
    /// The procedure.
    pub procedure: &'a Procedure,
    /// Its graph, with its samples.
    pub graph: &'a Graph,
    /// Its time by cause.
    pub explained: &'a Explained,
}

/// The procedures to explain, and the machine to explain them with.
#[derive(Debug)]
pub struct Asked<'a> {
    /// The model of the processor.
    pub machine: &'a Machine,
    /// Only procedures with this in their names, or the one with this address in it (`0x1040`), if
    /// any.
    pub procedure: Option<&'a str>,
    /// No procedures of the image with this name, if any.
    pub except: Option<&'a str>,
    /// Only these procedures of these images, by their whole names, if any.
    pub only: Option<&'a BTreeSet<(ImageId, String)>>,
    /// Fewest samples of a procedure that is explained.
    pub least: u64,
    /// The syntax of instructions' texts; none: instructions have no text.
    pub syntax: Option<Syntax>,
}

/// Samples of time: all, and those that were explained.
#[derive(Clone, Copy, Debug, Default)]
pub struct Covered {
    /// Samples of the chosen images.
    pub samples: u64,
    /// Samples of the procedures that were explained.
    pub explained: u64,
}

/// Most images that are explained at a time. One processor reads and surveys the code of an image,
/// while others explain procedures of other images. Each image takes the memory of its code and
/// symbols, about 200 MB for the largest compilers.
const IMAGES_AT_ONCE: usize = 3;

/// Explains the time of the chosen procedures and gives the result of `told` on each to `take`:
/// image by image, those with the most samples first.
///
/// # Errors
/// [`query::error::AnalysisError::Refused`] where no event counts time.
pub fn each<T: Send>(
    samples: &Samples,
    asked: &Asked<'_>,
    places: &Places,
    problems: &mut Vec<Problem>,
    told: impl Fn(&Explanation<'_>) -> T + Sync,
    mut take: impl FnMut(T),
) -> Result<Covered, query::error::AnalysisError> {
    let time = samples.time()?;
    let all = |image: &ImageSamples| image.equal(time.0).map_or(0, model::Profile::total);
    let has_any = |only: &BTreeSet<(ImageId, String)>, image: &ImageSamples| {
        only.iter().any(|(id, _)| *id == image.record.id)
    };
    let is_asked = |image: &&ImageSamples| {
        asked.except != Some(image.record.name.as_str())
            && asked.only.is_none_or(|only| has_any(only, image))
    };
    let images = samples.images.iter().filter(|image| image.wanted && !image.is_idle());
    let mut covered = Covered { samples: load::sum(images.clone().map(all)), explained: 0 };
    let mut images: Vec<&ImageSamples> =
        images.filter(is_asked).filter(|image| all(image) >= asked.least.max(1)).collect();
    images.sort_by_key(|image| std::cmp::Reverse(all(image)));
    let stage = progress::stage("explaining procedures", covered.samples);
    let of_image = |image: &ImageSamples| {
        let explained = of_image(samples, asked, places, (image, time), &told, &stage);
        let explained_samples = load::sum(explained.procedures.iter().map(|(samples, _)| *samples));
        stage.advance(all(image).saturating_sub(explained_samples));
        explained
    };
    parallel::each_of(&images, IMAGES_AT_ONCE, of_image, |mut explained| {
        problems.append(&mut explained.problems);
        for (samples, told) in explained.procedures {
            covered.explained = covered.explained.saturating_add(samples);
            take(told);
        }
    });
    Ok(covered)
}

/// The explained procedures of an image.
struct OfImage<T> {
    /// Samples of each explained procedure, and the result of `told` on it.
    procedures: Vec<(u64, T)>,
    problems: Vec<Problem>,
}

fn of_image<T: Send>(
    samples: &Samples,
    asked: &Asked<'_>,
    places: &Places,
    (image, time): (&ImageSamples, (usize, Skid)),
    told: &(impl Fn(&Explanation<'_>) -> T + Sync),
    stage: &Stage,
) -> OfImage<T> {
    let mut found = OfImage { procedures: Vec::new(), problems: Vec::new() };
    let problems = &mut found.problems;
    let Ok(known) = procedures::known(samples, image, places, Needed::All, problems) else {
        return found;
    };
    let Some(surveyed) = Surveyed::of(samples, image, &known, problems) else { return found };
    let address = asked.procedure.and_then(named::address);
    let holder = address.and_then(|address| surveyed.at(known.offset(address)?));
    let named = |procedure: &Procedure| match asked.procedure {
        Some(_) if address.is_some() => holder == Some(procedure),
        part => part.is_none_or(|part| procedure.name().contains(part)),
    };
    let is_among = |procedure: &Procedure| {
        let of = || (image.record.id, procedure.name().to_owned());
        asked.only.is_none_or(|only| only.contains(&of()))
    };
    let sampled = surveyed.sampled(image, time.0).into_iter();
    let sampled = sampled.filter(|(procedure, count)| {
        *count >= asked.least && named(procedure) && is_among(procedure)
    });
    let mut chosen: Vec<&Procedure> = sampled.map(|(procedure, _)| procedure).collect();
    if surveyed.isa() != asked.machine.isa {
        if !chosen.is_empty() {
            problems.push(Problem::NoMachine {
                image: image.record.name.clone(),
                machine: asked.machine.name,
            });
        }
        return found;
    }
    // The longest tasks come first, so that no processor is left with one at the end.
    chosen.sort_by_key(|procedure| std::cmp::Reverse(procedure.size_bytes()));
    let executions = samples.executions(time.0);
    let explain = |procedure: &Procedure| {
        let graph =
            surveyed.graph(image, &known, procedure, asked.syntax, time, Some(asked.machine))?;
        let explained = graph.explained(asked.machine, time.0, executions)?;
        let told = || {
            told(&Explanation {
                image,
                known: &known,
                procedure,
                graph: &graph,
                explained: &explained,
            })
        };
        explained.scale.is_some().then(|| (explained.sums.samples as u64, told()))
    };
    parallel::each(&chosen, explain, |explained| {
        let Some(explained) = explained else { return };
        stage.advance(explained.0);
        found.procedures.push(explained);
    });
    found
}
