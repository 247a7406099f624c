//! Executions, cycles and stalls of instructions: the common part of the commands that show them.

use std::ffi::OsString;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::PossibleValuesParser;
use code::isa::Isa;
use image::Procedure;
use model::{Cpuid, MeasuredMachine};
use stalls::Machine;
use verdict::Hardware;

use super::calc;
use super::loops::loops;
use crate::plain_file;
use annotate::graphs::{NOT_ESTIMATED, Surveyed};
use names::procedures::{Known, Places};
use query::error::AnalysisError;
use query::load::{self, EventSamples, ImageSamples, Samples};
use report::{Costs, EventColumn, Model, counted};
use stats::Confidence;

/// Processor model and directories of debug files.
#[derive(Clone, Debug, Default, Args)]
pub struct OnMachine {
    /// Model of the processor, by LLVM's name [default: the model nearest to the sampled processor]
    #[arg(
        long,
        value_name = "NAME",
        value_parser = PossibleValuesParser::new(Isa::ALL.into_iter().flat_map(Machine::names))
    )]
    pub machine: Option<String>,
    /// Latencies of caches, memory and TLBs: a file of dcpi machine -o about the sampled processor,
    /// or generic [default: those in the database, where dcpid had such a file]
    #[arg(long, value_name = "FILE|generic")]
    pub latencies: Option<PathBuf>,
    /// Directory of separate debug files, besides /usr/lib/debug (may be repeated)
    #[arg(long, value_name = "DIR")]
    pub debug_root: Vec<PathBuf>,
}

/// The model for each instruction set where neither the user nor the database names the processor.
const ASSUMED: [(Isa, &str); 2] = [(Isa::X86_64, "skylake-avx512"), (Isa::Aarch64, "neoverse-n1")];
/// Fewest samples of time in a procedure that are enough to estimate the time of its executions.
const SAMPLES_MIN: u64 = 100;

impl OnMachine {
    pub(super) fn places(&self) -> Places {
        Places::with_debug_roots(self.debug_root.clone())
    }

    /// The options as they are typed.
    pub(super) fn words(&self) -> Vec<OsString> {
        let machine = self.machine.iter().flat_map(|name| ["--machine".into(), name.into()]);
        let roots = self.debug_root.iter();
        let roots = roots.flat_map(|root| ["--debug-root".into(), root.clone().into_os_string()]);
        let latencies = self.latencies.iter();
        let latencies =
            latencies.flat_map(|file| ["--latencies".into(), file.clone().into_os_string()]);
        machine.chain(latencies).chain(roots).collect()
    }

    /// The model of the processor with the latencies asked for, else with those measured on the
    /// sampled processor, else with generic ones.
    ///
    /// # Errors
    /// Returns the errors of [`OnMachine::generic`]; [`AnalysisError::Refused`] where the latencies
    /// asked for cannot be read or are of another processor.
    pub(super) fn model(
        &self,
        samples: &Samples,
        isa: Option<Isa>,
    ) -> Result<(Machine, Model), AnalysisError> {
        let (mut machine, mut model) = self.generic(samples, isa)?;
        let is_its = |of: &MeasuredMachine| Machine::nearest(&of.cpuid) == Some(machine.name);
        let measured = match &self.latencies {
            None => samples.measured().filter(is_its),
            Some(file) if file == Path::new("generic") => None,
            Some(file) => {
                let measured = read_machine(file)?;
                if !is_its(&measured) {
                    let (file, of) = (file.display(), Machine::nearest(&measured.cpuid));
                    let of = of.unwrap_or("a processor without a model");
                    return Err(AnalysisError::Refused(format!(
                        "{file} is of {of}, the samples are of {}; measure there: dcpi machine -o {file}",
                        machine.name
                    )));
                }
                Some(measured)
            }
        };
        if let Some(measured) = measured {
            machine.learn(&measured);
            model.measured_unix_s = Some(measured.unix_s);
        }
        let of_runs = || samples.sampled_runs()?.1;
        machine.core_ghz =
            machine.core_ghz.or_else(|| Some(of_runs().or_else(|| own_hertz(samples))? / 1e9));
        Ok((machine, model))
    }

    /// What events cost on the sampled hosts: as measured, else as on most processors, with the
    /// sizes of this host's caches where it is of the sampled kind.
    ///
    /// # Errors
    /// [`AnalysisError::Refused`] where the latencies asked for cannot be read.
    pub(super) fn hardware(
        &self,
        samples: &Samples,
        ghz: Option<f64>,
    ) -> Result<Hardware, AnalysisError> {
        let measured = match &self.latencies {
            None => samples.measured(),
            Some(file) if file == Path::new("generic") => None,
            Some(file) => Some(read_machine(file)?),
        };
        Ok(match measured {
            Some(measured) => Hardware::measured(&measured),
            None if is_own(samples) => Hardware::generic(ghz).with_sizes(&own_caches()),
            None => Hardware::generic(ghz),
        })
    }

    /// What events cost on this host: by the latencies asked for, else as its own file says, else
    /// as on most processors with the sizes of this host's caches.
    ///
    /// # Errors
    /// [`AnalysisError::Refused`] where the latencies asked for cannot be read.
    pub(super) fn own_hardware(&self) -> Result<Hardware, AnalysisError> {
        let own = Path::new(MeasuredMachine::FILE);
        let measured = match &self.latencies {
            None => own.is_file().then(|| read_machine(own)).and_then(Result::ok),
            Some(file) if file == Path::new("generic") => None,
            Some(file) => Some(read_machine(file)?),
        };
        Ok(match measured {
            Some(measured) => Hardware::measured(&measured),
            None => Hardware::generic(None).with_sizes(&own_caches()),
        })
    }

    /// The model of the processor, with generic latencies: the one asked for, else that of exact
    /// cycles in the database, else the nearest to the sampled processor, else that of [`ASSUMED`],
    /// marked as assumed. `isa` is the instruction set of the code, if it is known already.
    ///
    /// # Errors
    /// [`AnalysisError::Refused`] where the model asked for does not execute `isa`.
    pub(super) fn generic(
        &self,
        samples: &Samples,
        isa: Option<Isa>,
    ) -> Result<(Machine, Model), AnalysisError> {
        let known = |name: &str| {
            Machine::named(name).ok_or_else(|| {
                AnalysisError::Refused(format!("no model of {name}; see dcpi calc --help"))
            })
        };
        if let Some(name) = &self.machine {
            let machine = known(name)?;
            let Some(isa) = isa.filter(|isa| *isa != machine.isa) else {
                return Ok(as_model(machine, false));
            };
            let (own, others) = (machine.isa, Machine::names(isa).collect::<Vec<_>>().join(", "));
            let why =
                format!("{name} executes {own}, the code is {isa}; --machine with one of {others}");
            return Err(AnalysisError::Refused(why));
        }
        let counted = samples.ideal_machine().as_deref().map(known).transpose()?;
        if let Some(machine) = counted.filter(|machine| isa.is_none_or(|isa| isa == machine.isa)) {
            return Ok(as_model(machine, false));
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

/// Whether the samples are of a processor of this host's kind.
fn is_own(samples: &Samples) -> bool {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo");
    let own = cpuinfo.ok().and_then(|cpuinfo| Cpuid::of_cpuinfo(&cpuinfo));
    own.is_some() && samples.cpuid() == own
}

/// The clock of this host's cores, in Hz, where the samples are of a processor of its kind.
fn own_hertz(samples: &Samples) -> Option<f64> {
    is_own(samples).then(stalls::clock::hertz)?
}

/// Levels and bytes of this host's data caches, as sysfs has them.
fn own_caches() -> Vec<(u32, u64)> {
    let read = |index: u32, file: &str| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{file}");
        Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
    };
    let cache = |index| {
        let is_of_data = read(index, "type")? != "Instruction";
        let level = read(index, "level")?.parse().ok()?;
        let kib: u64 = read(index, "size")?.strip_suffix('K')?.parse().ok()?;
        is_of_data.then_some((level, kib << 10))
    };
    (0..8).filter_map(cache).collect()
}

fn as_model(machine: Machine, assumed: bool) -> (Machine, Model) {
    let scatter = machine.scatter();
    let model = Model { name: machine.name, assumed, measured_unix_s: None, scatter };
    (machine, model)
}

/// Reads a file of `dcpi machine -o`.
fn read_machine(path: &Path) -> Result<MeasuredMachine, AnalysisError> {
    let read = || {
        let mut text = Vec::new();
        let file = plain_file::open(path).map_err(|error| error.to_string())?;
        // One byte more than a file may have.
        let limit = MeasuredMachine::FILE_BYTES_MAX.saturating_add(1);
        file.take(limit).read_to_end(&mut text).map_err(|error| error.to_string())?;
        MeasuredMachine::of_file(&text)
    };
    let path = path.display();
    read().map_err(|why| {
        AnalysisError::Refused(format!(
            "--latencies {path}: {why}; make it with dcpi machine -o {path}, or take --latencies generic"
        ))
    })
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

/// Estimates executions, cycles and stalls for listings. Made once for all samples.
pub(super) struct Finder<'a> {
    samples: &'a Samples,
    confidence: Confidence,
    /// The model of the processor, or why there is none: an assumed model is of no use here.
    machine: Result<(Machine, Model, Hardware), String>,
}

impl<'a> Finder<'a> {
    pub(super) fn new(samples: &'a Samples, machine: &OnMachine, confidence: Confidence) -> Self {
        let unknown = "the database does not name the processor; name it with --machine";
        let found = machine.model(samples, None).map_err(|error| error.to_string());
        let machine = found.and_then(|(machine_model, model)| {
            let hardware = machine.hardware(samples, machine_model.core_ghz);
            match hardware.map_err(|error| error.to_string()) {
                _ if model.assumed => Err(unknown.to_owned()),
                hardware => hardware.map(|hardware| (machine_model, model, hardware)),
            }
        });
        Self { samples, confidence, machine }
    }

    /// Whether a procedure has enough samples for estimates.
    pub(super) fn can(&self, image: &ImageSamples, procedure: &Procedure) -> Result<(), String> {
        let (event, _) = self.samples.time().map_err(|error| error.to_string())?;
        self.machine.as_ref().map_err(Clone::clone)?;
        let profile = image.equal(event).into_iter();
        let here = profile.flat_map(|profile| profile.within(procedure.start..procedure.end));
        let here = load::sum(here.map(|(_, samples)| samples));
        if here < SAMPLES_MIN {
            return Err(format!(
                "the procedure has {} of time; estimates need {SAMPLES_MIN}",
                counted(here, "sample")
            ));
        }
        Ok(())
    }

    /// Executions, cycles and stalls of a procedure's instructions.
    pub(super) fn find(
        &self,
        surveyed: &Surveyed<'_>,
        (image, known): (&ImageSamples, &Known),
        procedure: &Procedure,
    ) -> Result<Costs, String> {
        self.can(image, procedure)?;
        let (event, skid) = self.samples.time().map_err(|error| error.to_string())?;
        let (machine, model, hardware) = self.machine.as_ref().map_err(Clone::clone)?;
        if surveyed.isa() != machine.isa {
            let name = machine.name;
            return Err(format!(
                "its instructions are not those of {name}; name another --machine"
            ));
        }
        let graph = surveyed.graph(image, known, procedure, None, (event, skid), Some(machine));
        let explained = graph
            .as_ref()
            .and_then(|graph| graph.explained(machine, event, self.samples.executions(event)));
        let Some((graph, explained)) = graph.zip(explained) else {
            return Err(NOT_ESTIMATED.to_owned());
        };
        let blocks = calc::blocks(&graph, &explained, event, self.confidence);
        let loops = loops(&graph, &explained, hardware);
        Ok(Costs::of(blocks, loops, *model, explained.scale, explained.sums.samples))
    }
}
