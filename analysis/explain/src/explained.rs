//! Where the time went, procedure by procedure.

use code::isa::Syntax;
use code::skid::Skid;
use image::Procedure;
use stalls::{Explained, Machine};

use crate::graphs::{Graph, Surveyed};
use names::named;
use names::parallel;
use names::procedures::{self, Needed, Places};
use query::load::{self, ImageSamples, Samples};
use query::problem::Problem;
use query::progress::{self, Stage};

/// A procedure whose time is explained.
#[derive(Debug)]
pub struct Explanation<'a> {
    /// Its image.
    pub image: &'a ImageSamples,
    /// Itself.
    pub procedure: &'a Procedure,
    /// Its graph, with what was sampled in it.
    pub graph: &'a Graph,
    /// Where its time went.
    pub explained: &'a Explained,
}

/// What is explained.
#[derive(Debug)]
pub struct Asked<'a> {
    /// The processor.
    pub machine: &'a Machine,
    /// Only procedures with this in their names, or the one with this address in it (`0x1040`), if
    /// any.
    pub procedure: Option<&'a str>,
    /// Only procedures with so many samples.
    pub least: u64,
    /// How instructions are written, if they are.
    pub syntax: Option<Syntax>,
}

/// Samples of time, and those that were explained.
#[derive(Clone, Copy, Debug, Default)]
pub struct Covered {
    /// Of all images that were asked for.
    pub samples: u64,
    /// Of procedures that were explained.
    pub explained: u64,
}

/// Images that are explained at a time, at most. While the code of one is read and surveyed, which
/// nothing can share, procedures of others are explained; each takes as much memory as its code and
/// symbols, some 200 MB for the largest compilers.
const IMAGES_AT_ONCE: usize = 3;

/// Explains the time of all procedures that were asked for and gives what `told` makes of each to
/// `take`: image by image, those with most samples first.
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
    let images = samples.images.iter().filter(|image| image.wanted && !image.is_idle());
    let mut covered = Covered { samples: load::sum(images.clone().map(all)), explained: 0 };
    let mut images: Vec<&ImageSamples> =
        images.filter(|image| all(image) >= asked.least.max(1)).collect();
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

/// What was found out of an image.
struct OfImage<T> {
    /// Samples of each procedure that is explained, and what was made of it.
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
    let sampled = surveyed.sampled(image, time.0).into_iter();
    let sampled = sampled.filter(|(procedure, count)| *count >= asked.least && named(procedure));
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
    // The longest first, so that nobody waits for one at the end.
    chosen.sort_by_key(|procedure| std::cmp::Reverse(procedure.size_bytes()));
    let retired = samples.retired(time.0);
    let explain = |procedure: &Procedure| {
        let graph =
            surveyed.graph(image, &known, procedure, asked.syntax, time, Some(asked.machine))?;
        let explained = graph.explained(asked.machine, time.0, retired)?;
        let told = || told(&Explanation { image, procedure, graph: &graph, explained: &explained });
        explained.scale.is_some().then(|| (explained.sums.samples as u64, told()))
    };
    parallel::each(&chosen, explain, |explained| {
        let Some(explained) = explained else { return };
        stage.advance(explained.0);
        found.procedures.push(explained);
    });
    found
}
