//! Where the time went, procedure by procedure.

use code::isa::Syntax;
use image::Procedure;
use stalls::{Explained, Machine};

use crate::graphs::{Graph, Surveyed};
use crate::in_order;
use crate::load::{ImageSamples, Samples};
use crate::named;
use crate::problem::Problem;
use crate::procedures::{self, Needed, Places};

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
    /// Only procedures with this in their names, or the one with this address in it (`0x1040`), if any.
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

/// Explains the time of all procedures that were asked for, image by image, and gives what `told` makes of each to `take`.
///
/// # Errors
/// [`crate::error::AnalysisError::Refused`] where no event counts time.
pub fn each<T: Send>(
    samples: &Samples,
    asked: &Asked<'_>,
    places: &Places,
    problems: &mut Vec<Problem>,
    told: impl Fn(&Explanation<'_>) -> T + Sync,
    mut take: impl FnMut(T),
) -> Result<Covered, crate::error::AnalysisError> {
    let (event, skid) = samples.time()?;
    let retired = samples.retired(event);
    let mut covered = Covered::default();
    for image in samples.images.iter().filter(|image| image.wanted && !image.is_idle()) {
        let all = image.equal(event).map_or(0, profiledb::Profile::total);
        covered.samples = covered.samples.saturating_add(all);
        if all < asked.least.max(1) {
            continue;
        }
        let Ok(known) = procedures::known(samples, image, places, Needed::All, problems) else { continue };
        let Some(surveyed) = Surveyed::of(samples, image, &known, problems) else { continue };
        let address = asked.procedure.and_then(named::address);
        let holder = address.and_then(|address| surveyed.at(known.offset(address)?));
        let named = |procedure: &Procedure| match asked.procedure {
            Some(_) if address.is_some() => holder == Some(procedure),
            part => part.is_none_or(|part| procedure.name().contains(part)),
        };
        let sampled = surveyed.sampled(image, event).into_iter();
        let sampled = sampled.filter(|(procedure, count)| *count >= asked.least && named(procedure));
        let mut chosen: Vec<&Procedure> = sampled.map(|(procedure, _)| procedure).collect();
        if surveyed.isa() != asked.machine.isa {
            if !chosen.is_empty() {
                problems.push(Problem::NoMachine { image: image.record.name.clone(), machine: asked.machine.name });
            }
            continue;
        }
        // The longest first, so that nobody waits for one at the end.
        chosen.sort_by_key(|procedure| std::cmp::Reverse(procedure.size_bytes()));
        let explain = |procedure: &Procedure| {
            let graph = surveyed.graph(image, &known, procedure, asked.syntax, (event, skid), Some(asked.machine))?;
            let explained = graph.explained(asked.machine, event, retired)?;
            let told = || told(&Explanation { image, procedure, graph: &graph, explained: &explained });
            explained.scale.is_some().then(|| (explained.sums.samples as u64, told()))
        };
        in_order::each(&chosen, explain, |explained| {
            let Some((samples, told)) = explained else { return };
            covered.explained = covered.explained.saturating_add(samples);
            take(told);
        });
    }
    Ok(covered)
}
