//! What executions of instructions took: what the commands that tell of it have in common.

use std::path::PathBuf;

use clap::Args;
use clap::builder::PossibleValuesParser;
use code::isa::Isa;
use image::Procedure;
use stalls::Machine;

use super::calc;
use super::loops::loops;
use explain::graphs::{NOT_ESTIMATED, Surveyed};
use names::procedures::{Known, Places};
use query::error::AnalysisError;
use query::load::{self, EventSamples, ImageSamples, Samples};
use report::{Costs, EventColumn, Model, counted};
use stats::Confidence;

/// On which processor, and where its programs' debug files are.
#[derive(Clone, Debug, Default, Args)]
pub struct OnMachine {
    /// The processor, as LLVM names it [default: the one nearest to that which was sampled]
    #[arg(
        long,
        value_name = "NAME",
        value_parser = PossibleValuesParser::new(Isa::ALL.into_iter().flat_map(Machine::names))
    )]
    pub machine: Option<String>,
    /// Where separate debug files are, besides /usr/lib/debug (may be repeated)
    #[arg(long, value_name = "DIR")]
    pub debug_root: Vec<PathBuf>,
}

/// The processor that is taken where nobody says which it was.
const ASSUMED: [(Isa, &str); 2] = [(Isa::X86_64, "skylake-avx512"), (Isa::Aarch64, "neoverse-n1")];
/// Fewer samples of time in a procedure do not tell what its executions took.
const SAMPLES_MIN: u64 = 100;

impl OnMachine {
    /// Where names are looked for.
    pub(super) fn places(&self) -> Places {
        Places::with_debug_roots(self.debug_root.clone())
    }

    /// The model of the processor: the one asked for, else the nearest to the one that was sampled,
    /// else - which it tells - some other. `isa`: what it must execute, if that is known already.
    ///
    /// # Errors
    /// [`AnalysisError::Refused`] where the one asked for does not.
    pub(super) fn model(
        &self,
        samples: &Samples,
        isa: Option<Isa>,
    ) -> Result<(Machine, Model), AnalysisError> {
        let known = |name: &str| {
            Machine::named(name)
                .ok_or_else(|| AnalysisError::Refused(format!("no model of {name}")))
        };
        if let Some(name) = &self.machine {
            let machine = known(name)?;
            let Some(isa) = isa.filter(|isa| *isa != machine.isa) else {
                return Ok(as_model(machine, false));
            };
            let (own, others) = (machine.isa, Machine::names(isa).collect::<Vec<_>>().join(", "));
            let why =
                format!("{name} executes {own}, this is {isa}; --machine with one of {others}");
            return Err(AnalysisError::Refused(why));
        }
        let nearest =
            samples.cpuid().and_then(|cpuid| Machine::nearest(&cpuid)).map(known).transpose()?;
        if let Some(machine) = nearest.filter(|machine| isa.is_none_or(|isa| isa == machine.isa)) {
            return Ok(as_model(machine, false));
        }
        let on_arm = samples.epochs.iter().all(|epoch| epoch.meta().machine.arch == "aarch64");
        let isa = isa.unwrap_or(if on_arm { Isa::Aarch64 } else { Isa::X86_64 });
        let name = ASSUMED.iter().find(|(of, _)| *of == isa).map_or("", |(_, name)| *name);
        Ok(as_model(known(name)?, true))
    }
}

fn as_model(machine: Machine, assumed: bool) -> (Machine, Model) {
    let model = Model { name: machine.name, assumed };
    (machine, model)
}

/// The events, with the samples of the images that were asked for.
pub(super) fn columns(samples: &Samples) -> Vec<EventColumn> {
    let of = |event: usize, idle: bool| {
        samples.total(event, |image| image.wanted && image.is_idle() == idle)
    };
    let column = |(at, event): (usize, &EventSamples)| EventColumn {
        event: event.clone(),
        idle: of(at, true).samples,
        counted: of(at, false),
        occurrences: event.occurrences(Confidence::default()),
        unresolved: Vec::new(),
    };
    samples.events.iter().enumerate().map(column).collect()
}

/// Finds what executions took, for listings: once for all samples.
pub(super) struct Finder<'a> {
    samples: &'a Samples,
    confidence: Confidence,
    /// The processor, if it is known which it was; else why nothing is found.
    machine: Result<(Machine, Model), String>,
}

impl<'a> Finder<'a> {
    pub(super) fn new(samples: &'a Samples, machine: &OnMachine, confidence: Confidence) -> Self {
        let unknown = "the database does not say which processor it was; --machine does";
        let machine = machine.model(samples, None).map_err(|error| error.to_string());
        let machine = machine.and_then(|(machine, model)| match model.assumed {
            true => Err(unknown.to_owned()),
            false => Ok((machine, model)),
        });
        Self { samples, confidence, machine }
    }

    /// Whether anything can be found.
    ///
    /// # Errors
    /// [`AnalysisError::Refused`]: why not.
    pub(super) fn known(&self) -> Result<(), AnalysisError> {
        let _ = self.samples.time()?;
        self.machine.as_ref().map(|_| ()).map_err(|why| AnalysisError::Refused(why.clone()))
    }

    /// Whether a procedure is worth a look.
    ///
    /// # Errors
    /// Why it is not.
    pub(super) fn can(&self, image: &ImageSamples, procedure: &Procedure) -> Result<(), String> {
        let (event, _) = self.samples.time().map_err(|error| error.to_string())?;
        self.machine.as_ref().map_err(Clone::clone)?;
        let profile = image.equal(event).into_iter();
        let here = profile.flat_map(|profile| profile.within(procedure.start..procedure.end));
        let here = load::sum(here.map(|(_, samples)| samples));
        if here < SAMPLES_MIN {
            return Err(format!(
                "{} of time here; that takes {SAMPLES_MIN}",
                counted(here, "sample")
            ));
        }
        Ok(())
    }

    /// What executions of a procedure's instructions took.
    ///
    /// # Errors
    /// Why that is not known.
    pub(super) fn find(
        &self,
        surveyed: &Surveyed<'_>,
        (image, known): (&ImageSamples, &Known),
        procedure: &Procedure,
    ) -> Result<Costs, String> {
        self.can(image, procedure)?;
        let (event, skid) = self.samples.time().map_err(|error| error.to_string())?;
        let (machine, model) = self.machine.as_ref().map_err(Clone::clone)?;
        if surveyed.isa() != machine.isa {
            return Err(format!("its instructions are not those of {}; --machine", machine.name));
        }
        let graph = surveyed.graph(image, known, procedure, None, (event, skid), Some(machine));
        let explained = graph
            .as_ref()
            .and_then(|graph| graph.explained(machine, event, self.samples.retired(event)));
        let Some((graph, explained)) = graph.zip(explained) else {
            return Err(NOT_ESTIMATED.to_owned());
        };
        let blocks = calc::blocks(&graph, &explained, event, self.confidence);
        Ok(Costs::of(blocks, loops(&graph), *model, explained.scale, explained.sums.samples))
    }
}
