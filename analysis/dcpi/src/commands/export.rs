//! `dcpi export`: samples in the formats of other tools.

use std::io::{self, IsTerminal as _, Write};
use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use image::ImageKind;

use super::{Outcome, stacks};
use crate::destination::Destination;
use crate::options::{Chosen, OfThreads};
use export::resolve::{self, Detail, Wanted};
use export::stacks::ByEvent;
use export::{
    Carried, Image, Resolved, addresses, autofdo, bolt, firefox, folded, otlp, pprof, script,
    speedscope,
};
use names::procedures::Places;
use query::Question;
use query::error::AnalysisError;
use query::load::{self, Samples};
use query::problem::Problem;
use report::counted;

/// `dcpi export`.
#[derive(Debug, Args)]
#[command(after_help = EXPORT_NOTES)]
pub struct Export {
    /// Only these images: name, path, or id (may be cut short)
    #[arg(value_name = "IMAGE", value_parser = NonEmptyStringValueParser::new())]
    pub images: Vec<String>,
    /// The format of the file
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub to: Target,
    /// The file to write, whole or not at all; - for standard output
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    pub file: PathBuf,
    /// Include source lines and inlined calls, from the images' debug information (pprof, otlp,
    /// folded, speedscope, firefox)
    #[arg(long, conflicts_with = "no_symbols")]
    pub lines: bool,
    /// Addresses without names, for tools that find names themselves (pprof, otlp, script)
    #[arg(long)]
    pub no_symbols: bool,
    /// Samples without call stacks, each at its instruction (pprof, otlp, folded, firefox,
    /// speedscope, script)
    #[arg(long)]
    pub no_stacks: bool,
    /// Samples as they are, instead of executions estimated from samples and edges (autofdo, bolt)
    #[arg(long)]
    pub no_edges: bool,
    /// Include the samples of the idle loop
    #[arg(long)]
    pub idle: bool,
    /// Directory of separate debug files, besides /usr/lib/debug (may be repeated)
    #[arg(long, value_name = "DIR")]
    pub debug_root: Vec<PathBuf>,
    #[command(flatten)]
    pub chosen: Chosen,
    #[command(flatten)]
    pub threads: OfThreads,
}

const EXPORT_NOTES: &str = "\
Where the database has call stacks, the samples of a procedure are divided among the stacks that \
end in it, by their weights; samples of procedures without stacks stay flat. autofdo and bolt have \
no place for stacks. Lines on standard error count the samples that a format has no place for. \
folded, autofdo, autofdo-addresses and bolt hold one event: that \
of --event, else the first. pprof, otlp, firefox and script state the skid of the samples; the \
other formats have no place for it.

  pprof              go tool pprof FILE
  otlp               readers of a message ProfilesData of
                     opentelemetry.proto.profiles.v1development (1.10.0, not stable yet)
  folded             inferno-flamegraph FILE, flamegraph.pl FILE, speedscope FILE
  speedscope         speedscope.app, or speedscope FILE
  firefox            profiler.firefox.com, \"Load a profile from file\"
  autofdo            clang -fprofile-sample-use=FILE; llvm-profdata merge --sample FILE
  autofdo-addresses  create_llvm_prof --profiler=text --use_lbr=false --binary=IMAGE
                     --profile=FILE --out=OUT (its version 0.19: of programs built with -gdwarf-4)
  bolt               llvm-bolt IMAGE --pa -p FILE -o OUT; without executions, as with --no-edges:
                     llvm-bolt IMAGE --pa --ba -p FILE -o OUT (LLVM 22)
  script             readers of the output of perf script

Exit codes: 0 done; 1 done, but part of the database could not be read; 2 could not.";

/// Formats.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub enum Target {
    /// pprof's profile.proto, compressed
    Pprof,
    /// OpenTelemetry's profiles signal, v1development
    Otlp,
    /// A line per stack: command;procedure;procedure count
    Folded,
    /// JSON of speedscope
    Speedscope,
    /// JSON of the Firefox profiler
    Firefox,
    /// LLVM's sample profile as text; needs debug information
    Autofdo,
    /// Counts by address of one program, for create_llvm_prof and create_gcov
    AutofdoAddresses,
    /// BOLT's pre-aggregated branches, or samples, of one program
    Bolt,
    /// Text like that of perf script
    Script,
}

impl Target {
    /// The names and lines that the format needs.
    const fn detail(self, args: &Export) -> Detail {
        match self {
            Self::Autofdo => Detail::Sites,
            Self::Pprof | Self::Otlp | Self::Script if args.no_symbols => Detail::Addresses,
            _ if args.lines => Detail::Lines,
            _ => Detail::Procedures,
        }
    }

    const fn is_of_one_event(self) -> bool {
        matches!(self, Self::Folded | Self::Autofdo | Self::AutofdoAddresses | Self::Bolt)
    }

    /// Whether the format has a place for call stacks.
    const fn has_stacks(self) -> bool {
        !matches!(self, Self::Autofdo | Self::AutofdoAddresses | Self::Bolt)
    }

    /// Whether the format has a place for lines.
    const fn has_lines(self) -> bool {
        matches!(self, Self::Pprof | Self::Otlp | Self::Folded | Self::Speedscope | Self::Firefox)
    }

    fn check(self, args: &Export) -> Result<(), AnalysisError> {
        let wrong = |option: &str, formats: &str| {
            let message = format!("{option} is for --to {formats} only");
            Err(AnalysisError::Usage { message, help: "dcpi export --help".to_owned() })
        };
        if args.lines && !self.has_lines() {
            return wrong("--lines", "pprof, otlp, folded, speedscope or firefox");
        }
        if args.no_symbols && !matches!(self, Self::Pprof | Self::Otlp | Self::Script) {
            return wrong("--no-symbols", "pprof, otlp or script");
        }
        if args.no_stacks && !self.has_stacks() {
            return wrong("--no-stacks", "pprof, otlp, folded, speedscope, firefox or script");
        }
        if args.no_edges && !matches!(self, Self::Autofdo | Self::Bolt) {
            return wrong("--no-edges", "autofdo or bolt");
        }
        let of_threads = args.threads != OfThreads::default();
        if of_threads && (args.no_stacks || !self.has_stacks()) {
            let message =
                "only call stacks are kept by command and thread: leave --no-stacks out, \
                           or choose a format that has them"
                    .to_owned();
            return Err(AnalysisError::Usage { message, help: "dcpi export --help".to_owned() });
        }
        if of_threads && !args.images.is_empty() {
            let message = "stacks of a command or thread are of all images: leave IMAGE out".into();
            return Err(AnalysisError::Usage { message, help: "dcpi export --help".to_owned() });
        }
        if args.images.is_empty() && matches!(self, Self::Bolt | Self::AutofdoAddresses) {
            let message = "this format holds one program: name the program as IMAGE".to_owned();
            return Err(AnalysisError::Usage { message, help: "dcpi export --help".to_owned() });
        }
        let to_terminal = args.file.as_os_str() == "-" && io::stdout().is_terminal();
        if matches!(self, Self::Pprof | Self::Otlp) && to_terminal {
            let message = "this format is not for terminals; name a file".to_owned();
            return Err(AnalysisError::Usage { message, help: "dcpi export --help".to_owned() });
        }
        Ok(())
    }
}

pub(crate) fn run(args: &Export, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    args.to.check(args)?;
    let question = Question { by_scope: true, ..args.chosen.question(&args.images)? };
    let mut problems = Vec::new();
    let (samples, stacks) = read(args, &question, &mut problems)?;
    let wanted = Wanted {
        detail: args.to.detail(args),
        executed: matches!(args.to, Target::Autofdo | Target::Bolt) && !args.no_edges,
        idle: args.idle,
        everything: args.images.is_empty()
            && (samples.whose.is_all() || samples.whose.needs_stacks()),
        places: Places::with_debug_roots(args.debug_root.clone()),
        stacks,
    };
    let resolved = resolve::resolve(&samples, &wanted, &mut problems);
    let carried =
        Destination::from_argument(&args.file).write(out, |out| write(args, &resolved, out))?;
    let mut aside: Vec<String> =
        problems.iter().filter(|problem| problem.is_serious()).map(Problem::to_string).collect();
    let sound = aside.is_empty();
    // The formats count the samples without lines; the reason is reported here.
    let is_of_lines = |problem: &&Problem| {
        matches!(problem, Problem::NoLines { why: Some(_), .. } | Problem::LinesCut { .. })
    };
    aside.extend(problems.iter().filter(is_of_lines).map(Problem::to_string));
    aside.extend(said(args, &resolved, &carried));
    Ok(Outcome { sound, aside, ..Outcome::default() })
}

/// The samples, and the stacks where the format has a place for them.
fn read(
    args: &Export,
    question: &Question,
    problems: &mut Vec<Problem>,
) -> Result<(Samples, ByEvent), AnalysisError> {
    if args.no_stacks || !args.to.has_stacks() {
        let mut samples = question.samples()?;
        problems.append(&mut samples.problems);
        return Ok((samples, ByEvent::new()));
    }
    // Samples by place are of all threads.
    let of_threads = args.threads.narrow(question.clone());
    if of_threads.whose.needs_stacks() {
        let samples = stacks::opened(&of_threads, problems)?;
        let stacks = samples.stacks_by_scope(&stacks::asked(question), problems)?;
        if stacks.values().all(model::Stacks::is_empty) {
            return Err(stacks::no_threads(&samples, problems)?);
        }
        return Ok((samples, stacks));
    }
    let (samples, events) = stacks::sampled(question, problems)?;
    let stacks = samples.stacks_by_scope(&events, problems)?;
    Ok((samples, stacks))
}

fn write(
    args: &Export,
    resolved: &Resolved,
    out: &mut dyn Write,
) -> Result<Carried, AnalysisError> {
    const FIRST: usize = 0;
    Ok(match args.to {
        Target::Pprof => pprof::write(resolved, out)?,
        Target::Otlp => otlp::write(resolved, out)?,
        Target::Folded => folded::write(resolved, FIRST, out)?,
        Target::Speedscope => speedscope::write(resolved, out)?,
        Target::Firefox => firefox::write(resolved, out)?,
        Target::Autofdo => autofdo::write(resolved, FIRST, out)?,
        Target::AutofdoAddresses => {
            addresses::write(resolved, program(args, resolved)?, FIRST, out)?
        }
        Target::Bolt => bolt::write(resolved, program(args, resolved)?, FIRST, out)?,
        Target::Script => script::write(resolved, out)?,
    })
}

/// The program of a format that holds one program.
fn program<'a>(args: &Export, resolved: &'a Resolved) -> Result<&'a Image, AnalysisError> {
    let usage =
        |message: String| AnalysisError::Usage { message, help: "dcpi export --help".to_owned() };
    let mut files = resolved.images.iter().filter(|image| image.kind == ImageKind::File);
    match (files.next(), files.next()) {
        (Some(image), None) => Ok(image),
        (None, _) => Err(usage(format!("{} is no program or library", args.images.join(", ")))),
        (Some(one), Some(other)) => {
            let both = format!(
                "this format holds one program, but {:?} names {} and {}",
                args.images.join(", "),
                one.id,
                other.id
            );
            Err(usage(format!("{both}, and perhaps others; name one program by its id")))
        }
    }
}

/// Samples and events that the file has no place for, and other notes, a line each.
fn said(args: &Export, resolved: &Resolved, carried: &Carried) -> Vec<String> {
    let mut said = Vec::new();
    let file = args.file.display();
    let written: u64 = load::sum(carried.samples.iter().copied());
    if written == 0 {
        said.push(format!("{file} has no samples"));
    }
    for (reason, samples) in &carried.left_out {
        said.push(format!("left out: {} {reason}", counted(*samples, "sample")));
    }
    if args.to.is_of_one_event() && resolved.events.len() > 1 {
        let names = resolved.events.iter().map(|event| event.name.as_str());
        let (first, others): (Vec<&str>, Vec<&str>) =
            (names.clone().take(1).collect(), names.skip(1).collect());
        said.push(format!(
            "the file has samples of {} only; left out: {}",
            first.join(""),
            others.join(", ")
        ));
    }
    if args.to == Target::Autofdo
        && carried.left_out.iter().any(|(reason, _)| reason == autofdo::NO_LINE)
    {
        said.push(
            "for more source lines, compile with -g, and with -fdebug-info-for-profiling if the compiler has it".to_owned(),
        );
    }
    said.extend(carried.notes.iter().cloned());
    said
}
