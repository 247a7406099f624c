//! `dcpi ideal`: exact executions of a command in all its files, and the time that they take where
//! nothing waits for memory or guesses wrong.

mod coverage;
pub(in crate::commands) mod database;
mod sampled;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Instant;

use clap::{Args, ValueEnum};
use code::isa::Isa;
use exact::callgrind::Callgrind;
use exact::own::{Own, PROGRAM};
use exact::{Counts, Engine, Run, Streams};
use image::{ImageId, ImageOffset};
use model::{EXECUTED, IDEAL};
use profiledb::ImageRecord;
use simulate::{Sizes, Tally};

use super::Outcome;
use super::costs::OnMachine;
use super::lost::Lost;
use super::passing::pass_on;
use super::record::{NotRunnable, exit_code, label, runnable, shell_word};
use crate::options::{self, Prof};
use query::error::AnalysisError;
use report::{counted as number, thousands};
use sampled::Sampled;
use stalls::Machine;

/// `dcpi ideal`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct Ideal {
    /// What counts [default: own on x86-64, elsewhere valgrind]
    #[arg(long, value_enum)]
    pub engine: Option<EngineName>,
    /// Count indirect jumps by their targets, too: the cases of a switch. COMMAND takes up to a
    /// third longer. callgrind always does
    #[arg(long)]
    pub jumps: bool,
    /// Write executions of source lines and branches to FILE, for lcov and genhtml: of all code
    /// with debug information in the files that were executed, what was never executed too
    #[arg(long, value_name = "FILE")]
    pub coverage: Option<PathBuf>,
    /// Sample COMMAND as well, in runs before the one that is counted, and report what its time is
    /// beyond the ideal: needs root, as dcpi record does
    #[arg(long)]
    pub sampled: bool,
    /// Number of runs that are sampled: more make intervals narrower
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        requires = "sampled",
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    pub runs: u32,
    /// Database to write the counts into; made if it does not exist. $DCPIDB is for reports only
    #[arg(short = 'o', long, value_name = "DIR", alias = "output")]
    pub db: PathBuf,
    /// At most N rows in the report, 0 for all [default: 40 rows of at least 0.1 % of the cycles]
    #[arg(
        short = 'n',
        value_name = "N",
        value_parser = options::parse_rows,
        allow_negative_numbers = true
    )]
    pub rows: Option<usize>,
    #[command(flatten)]
    pub on: OnMachine,
    /// Whether the caller reports.
    #[arg(skip)]
    pub silent: bool,
    /// Command to run and count, with its children
    #[arg(value_name = "COMMAND", trailing_var_arg = true, required = true)]
    pub command: Vec<OsString>,
}

/// An engine that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EngineName {
    /// Translation block by block: x86-64 only, all threads at once, some 2 times slower than
    /// COMMAND alone
    Own,
    /// Callgrind: everywhere, one thread at a time, some 40 times slower than COMMAND alone
    Valgrind,
}

/// The engine of a name, by default what counts fastest here; `jumps`: with indirect jumps by
/// target.
///
/// # Errors
/// [`AnalysisError::Refused`] where the engine's program is missing.
pub(super) fn engine(
    name: Option<EngineName>,
    jumps: bool,
) -> Result<Box<dyn Engine>, AnalysisError> {
    engine_with(name, jumps, None)
}

/// The same; with sizes of a processor, bursts of instructions go through its models, where the
/// engine can record them.
fn engine_with(
    name: Option<EngineName>,
    jumps: bool,
    modelled: Option<Sizes>,
) -> Result<Box<dyn Engine>, AnalysisError> {
    let on_x86 = if cfg!(target_arch = "x86_64") { EngineName::Own } else { EngineName::Valgrind };
    Ok(match name.unwrap_or(on_x86) {
        EngineName::Own => Box::new(Own { program: own_program()?, jumps, modelled }),
        EngineName::Valgrind => Box::new(Callgrind),
    })
}

/// The program of the engine `own`: beside this one, as installed, or as built in a checkout.
fn own_program() -> Result<PathBuf, AnalysisError> {
    let own = std::env::current_exe().ok();
    let beside = own.iter().filter_map(|own| own.parent());
    let places = ["", "../lib/dcpi", "../blockcount"];
    let mut found = beside.flat_map(|directory| places.map(|place| directory.join(place)));
    let program = found.find_map(|directory| {
        let program = directory.join(PROGRAM);
        program.is_file().then_some(program)
    });
    let next = "in a checkout build it: cargo xtask blockcount; or count with --engine valgrind";
    program.ok_or_else(|| {
        AnalysisError::Refused(format!("{PROGRAM} is not installed beside dcpi; {next}"))
    })
}

/// The counted quantities, with units and notes.
const EVENTS: [(&str, &str, &str); 2] = [
    (IDEAL, "cycles", "where nothing waits for memory or guesses wrong"),
    (EXECUTED, "count", "exact executions of instructions"),
];

const NOTES: &str = "\
Every execution of every instruction of COMMAND, its children and all libraries is counted, so two \
runs of a deterministic command have the same counts. The database has the events 'executed' and \
'ideal': the cycles of these executions on the model of a processor (--machine) where all loads \
hit the first cache and no branch is mispredicted. dcpi prof, list, flow, diff, html and export \
read it as they read samples; estimates of dcpi calc and dcpi flow are exact then.

The report goes to standard error, since standard output is for the output of COMMAND. A command \
that watches the clock may behave differently, since it is slower.

With --sampled COMMAND runs --runs times and once more, each time with the same standard input; \
the output of the first run is seen. The report is that of dcpi lost.

Exit codes: that of COMMAND, or 128 + N if signal N ended it; 126 and 127 if COMMAND cannot be \
run; 2 if dcpi ideal could not do its work.";

/// What instructions did in models of the processor, by image and offset.
pub(super) type Modelled = BTreeMap<(ImageId, ImageOffset), Tally>;

pub(crate) fn run(args: &Ideal) -> Result<Outcome, AnalysisError> {
    Ok(run_with(args, None)?.0)
}

/// Counts, and also models bursts of the counted run on a processor of these sizes.
pub(super) fn run_with(
    args: &Ideal,
    modelled: Option<Sizes>,
) -> Result<(Outcome, Modelled), AnalysisError> {
    let Some(program) = args.command.first() else { return Ok(Default::default()) };
    let err = &mut io::stderr();
    if let Err(why) = runnable(program, std::env::var_os("PATH").as_deref()) {
        say(err, &not_runnable(program.as_ref(), why))?;
        let outcome = Outcome { code: Some(why.code()), ..Outcome::default() };
        return Ok((outcome, Modelled::new()));
    }
    let isa = if cfg!(target_arch = "x86_64") { Isa::X86_64 } else { Isa::Aarch64 };
    if let Some(name) = &args.on.machine
        && Machine::named(name).is_some_and(|machine| machine.isa != isa)
    {
        let why = format!("{name} does not execute {isa}, which programs here are made of");
        return Err(AnalysisError::Refused(format!("{why}; leave --machine out")));
    }
    let engine = engine_with(args.engine, args.jumps, modelled)?;
    let coverage = args.coverage.as_deref().map(coverage::Coverage::begin).transpose()?;
    let label = label(program);
    let mut sampled = None;
    if args.sampled {
        // Executions are counted. What else snapshots tell is for the caller.
        let edges = if args.silent { "500" } else { "off" };
        sampled = Some(Sampled::record(&label, &args.command, (args.runs, edges), &args.db)?);
    }
    let (writer, streams) = match &mut sampled {
        Some(sampled) => (sampled.writing()?, sampled.streams()?),
        None => {
            let scope = profiledb::Scope::default();
            (database::Writing::open(&args.db, &label, scope, &EVENTS)?, Streams::default())
        }
    };
    pass_on()?;
    let begun = Instant::now();
    let Run { status, counts } = engine
        .run(&args.command, streams)
        .map_err(|error| AnalysisError::Refused(error.to_string()))?;
    let took = begun.elapsed().as_secs_f64();
    let images = sampled.as_ref().map(Sampled::images).transpose()?.unwrap_or_default();
    let mut written = match writer.write(&counts, &args.on, &images) {
        Ok(written) => written,
        Err(error) => return Err(kept_elsewhere(args, &label, &counts, error)),
    };
    let mut code = exit_code(status);
    if args.silent {
        if let Some(sampled) = &sampled {
            sampled.join(&written, &args.db)?;
            code = exit_code(sampled.status());
        }
        let outcome = Outcome { code: Some(code), ..Outcome::default() };
        return Ok((outcome, of_images(&counts, &images)));
    }
    say(err, "")?;
    if let Some(sampled) = &sampled {
        written = sampled.join(&written, &args.db)?;
        let runs = number(u64::from(args.runs), "run");
        say(err, &format!("sampled {runs} in {:.1} s", sampled.seconds()))?;
        ends_differ(sampled.status(), status, err)?;
        code = exit_code(sampled.status());
    }
    told((&counts, &written), &format!("{took:.1} s ({})", engine.name()), err)?;
    if let Some(coverage) = coverage {
        say(err, &coverage.write(&args.db, &written, &args.on)?)?;
    }
    report(args, &written, err)?;
    Ok((Outcome { code: Some(code), ..Outcome::default() }, Modelled::new()))
}

/// What was modelled, by the images of the samples.
fn of_images(counts: &Counts, images: &BTreeMap<ImageId, ImageRecord>) -> Modelled {
    let has = |number: usize| counts.modelled.keys().any(|site| site.file == number);
    let of_file = |(number, file): (usize, &exact::CountedFile)| {
        has(number).then(|| database::identity(&file.file, images)).flatten()
    };
    let ids: Vec<Option<ImageId>> = counts.files.iter().enumerate().map(of_file).collect();
    let mut all = Modelled::new();
    for (site, tally) in &counts.modelled {
        if let Some(id) = ids.get(site.file).copied().flatten() {
            all.entry((id, site.offset)).or_default().add(tally);
        }
    }
    all
}

/// Writes counts that the database has no room for into the directory for temporary files. Returns
/// the error, with the place.
fn kept_elsewhere(
    args: &Ideal,
    label: &str,
    counts: &Counts,
    error: AnalysisError,
) -> AnalysisError {
    let keep = || -> Option<PathBuf> {
        let directory = tempfile::Builder::new().prefix("dcpi-ideal-").tempdir().ok()?;
        let scope = profiledb::Scope::default();
        let writer = database::Writing::open(directory.path(), label, scope, &EVENTS).ok()?;
        writer.write(counts, &args.on, &BTreeMap::new()).ok()?;
        Some(directory.keep())
    };
    match keep() {
        Some(path) => AnalysisError::Refused(format!(
            "{error}; the counts are in {}: dcpi prof --db",
            shell_word(&path)
        )),
        None => error,
    }
}

/// Says so where the run that was counted ended otherwise than the one that was seen.
fn ends_differ(
    seen: ExitStatus,
    counted: ExitStatus,
    err: &mut dyn Write,
) -> Result<(), AnalysisError> {
    if seen == counted {
        return Ok(());
    }
    let (seen, counted) = (exit_code(seen), exit_code(counted));
    let line = format!("note: the sampled run ended with {seen}, the counted one with {counted}");
    say(err, &line)
}

fn told(
    (counts, written): (&Counts, &database::Written),
    how: &str,
    err: &mut dyn Write,
) -> Result<(), AnalysisError> {
    let (instructions, processes) =
        (number(counts.counted, "instruction"), number(counts.processes as u64, "process"));
    say(err, &format!("counted {instructions} of {processes} in {how}"))?;
    match counts.flow {
        (0, _) => {}
        (blocks, 0) => {
            say(err, &format!("flow: conserved at all {} blocks", thousands(blocks as u64)))?
        }
        (blocks, differ) => {
            let differ = number(differ as u64, "block");
            let known = "an exec, and a thread that still ran at the end, leave one each";
            say(err, &format!("flow: differs at {differ} of {blocks} ({known})"))?;
        }
    }
    notes(counts)
        .iter()
        .chain(&written.notes)
        .try_for_each(|note| say(err, &format!("note: {note}")))
}

fn say(err: &mut dyn Write, line: &str) -> Result<(), AnalysisError> {
    writeln!(err, "{}", report::escape(line)).map_err(AnalysisError::from)
}

fn not_runnable(program: &Path, why: NotRunnable) -> String {
    format!("{}: {}; nothing was counted", shell_word(program), why.words())
}

/// Code that was not counted, or not exactly.
fn notes(counts: &Counts) -> Vec<String> {
    let elsewhere = (counts.elsewhere > 0).then(|| {
        let many = number(counts.elsewhere, "execution");
        format!("{many} of instructions that are in no file (generated code, the vDSO)")
    });
    counts.notes.iter().cloned().chain(elsewhere).collect()
}

/// Shows the procedures, as `dcpi prof` or `dcpi lost` does.
fn report(
    args: &Ideal,
    written: &database::Written,
    err: &mut dyn Write,
) -> Result<(), AnalysisError> {
    let mut words: Vec<OsString> = vec!["--db".into(), args.db.clone().into()];
    words.extend(["--host", &written.host, "--epoch", &written.epoch].map(OsString::from));
    words.extend(args.rows.into_iter().flat_map(|rows| ["-n".into(), rows.to_string().into()]));
    let refused = |error: clap::Error| {
        AnalysisError::Refused(format!("cannot report: {}; see dcpi prof --help", error.kind()))
    };
    if args.sampled {
        words.extend(args.on.words());
        let lost: Lost = options::typed(words).map_err(refused)?;
        super::lost::run(&lost, err)?;
    } else {
        let prof: Prof = options::typed(words).map_err(refused)?;
        super::prof::run(&prof, err)?;
    }
    Ok(())
}
