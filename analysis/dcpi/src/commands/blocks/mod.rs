//! `dcpi trace --blocks`: the order of a program's basic blocks from events compiled in, and their
//! times from samples of the same program without events.

mod table;
mod times;

use std::ffi::OsString;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use ::trace::event::{Facts, Lost};
use ::trace::sequence::{self, Program, Writer};
use capture::blocks::{Area, Capture, Captured, executions};
use clap::{Args, ValueEnum};
use query::error::AnalysisError;

use super::Outcome;
use super::passing::pass_on;
use super::record::{exit_code, runnable, shell_word};
use crate::destination::Overwritten;
use crate::options::{self, Output};
use crate::plain_file;
use table::Row;
pub(super) use table::Table;

/// Name of the assembler wrapper's folder, next to the programs as installed and as built.
const FOLDERS: [&str; 3] = ["../lib/dcpi/blocks", "../blocks", "blocks"];
/// The option that is printed when the real options are not available; compilers reject it.
const NO_FLAGS: &str = "--dcpi-trace-cflags-failed";
/// How long the reader sleeps when no chunk is full. A thread fills one in 8 us at most, and has
/// 15.
const PAUSE: Duration = Duration::from_micros(100);
/// Polls between looks for threads that have ended: each look asks /proc for each thread.
const POLLS_A_LOOK: u32 = 500;

/// Options of `dcpi trace` that are about blocks.
#[derive(Clone, Debug, Args)]
pub struct BlocksArgs {
    /// The order of basic blocks, from events that were compiled into COMMAND with --cflags;
    /// without COMMAND, executions of blocks in a trace
    #[arg(long, conflicts_with_all = ["at", "syscalls", "sched", "sample", "follow", "pid", "to",
        "in_situ"])]
    pub blocks: bool,
    /// Print what to give the compiler and linker: for gcc with events, for gcc without events but
    /// with the same code (plain), for clang with events
    #[arg(long, value_enum, value_name = "FOR", num_args = 0..=1, default_missing_value = "events")]
    pub cflags: Option<Cflags>,
    /// COMMAND waits for the tracer where that is too slow, instead of losing events
    #[arg(long, requires = "blocks")]
    pub wait: bool,
    /// The same program compiled without events (--cflags plain): it is sampled, and each block
    /// gets its share of that time. Needs root, as dcpi record does
    #[arg(long, value_name = "PROGRAM", requires = "blocks")]
    pub plain: Option<PathBuf>,
    /// Runs of PROGRAM that are sampled: more make intervals narrower
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        requires = "plain",
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    pub runs: u32,
    /// The blocks of a trace in their order, thread by thread, instead of their executions
    #[arg(long, requires = "blocks")]
    pub order: bool,
    /// Rows of the report, 0 for all [default in text: 40, with --blocks 30]
    #[arg(
        short = 'n',
        value_name = "N",
        value_parser = options::parse_rows,
        allow_negative_numbers = true
    )]
    pub rows: Option<usize>,
}

/// The purpose of compiler options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Cflags {
    /// gcc, with events.
    #[value(alias = "gcc")]
    Events,
    /// gcc, the same code with a list of its blocks, and without events.
    Plain,
    /// clang, with events.
    Clang,
}

/// The request of `--blocks`.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    pub blocks: &'a BlocksArgs,
    /// The trace to read.
    pub file: Option<&'a Path>,
    /// The trace to write.
    pub out: Option<&'a Path>,
    pub output: &'a Output,
    pub command: &'a [OsString],
}

fn refused(why: impl std::fmt::Display) -> AnalysisError {
    AnalysisError::Refused(why.to_string())
}

/// Prints what to give a compiler.
///
/// # Errors
/// [`AnalysisError::Refused`] where the wrapper is not installed.
pub(super) fn print_cflags(kind: Cflags, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let flags = cflags(kind);
    // Within `gcc $(dcpi trace --cflags)` nobody asks for the exit code: an option that no compiler
    // has makes the compilation fail, too, where none would make a program without events.
    writeln!(out, "{}", flags.as_deref().unwrap_or(NO_FLAGS))?;
    flags.map(|_| Outcome::default())
}

/// `dcpi trace --blocks`: of a command, or of a trace.
pub(super) fn run(args: &Asked<'_>, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    match (args.file, args.out, args.command.is_empty()) {
        (Some(file), ..) => read(args, file, out),
        (None, Some(file), false) => capture(args, file),
        (None, _, true) => Err(refused("name a trace to read, or -o FILE -- COMMAND")),
        (None, None, false) => Err(refused("name the trace to write: -o FILE before the command")),
    }
}

fn cflags(kind: Cflags) -> Result<String, AnalysisError> {
    let own = std::env::current_exe().map_err(refused)?;
    let beside = own.parent().unwrap_or(Path::new("/"));
    let mut folders = FOLDERS.iter().map(|folder| beside.join(folder));
    let folder = folders.find(|folder| folder.join("as").is_file()).ok_or_else(|| {
        refused(
            "the assembler wrapper is not beside dcpi: the package dcpi has it in \
             /usr/lib/dcpi/blocks, and in a checkout cargo xtask blocks makes target/blocks",
        )
    })?;
    let folder = folder.canonicalize().unwrap_or(folder);
    let word = shell_word(&folder);
    Ok(match kind {
        Cflags::Events => format!("-B {word}/ -specs={word}/dcpi.specs"),
        Cflags::Plain => format!("-B {word}/plain/ -specs={word}/plain/dcpi.specs"),
        // clang has no specs, and options come before the objects: what the objects will need of
        // the library is named.
        Cflags::Clang => format!(
            "-Qunused-arguments -fno-integrated-as -B {word}/ -L{word} -Wl,-u,dcpi_trace_position \
             -Wl,-u,dcpi_trace_origin -Wl,-u,dcpi_trace_full -ldcpi_tracer"
        ),
    })
}

/// The source that traces of basic blocks name.
pub(super) const SOURCE: &str = "dcpi trace --blocks";

/// Runs a command and writes its trace.
fn capture(args: &Asked<'_>, file: &Path) -> Result<Outcome, AnalysisError> {
    let Some((program, arguments)) = args.command.split_first() else {
        return Ok(Outcome::default());
    };
    let err = &mut io::stderr();
    if let Err(why) = runnable(program, std::env::var_os("PATH").as_deref()) {
        say(err, &format!("dcpi: {}: {}", shell_word(Path::new(program)), why.words()))?;
        return Ok(Outcome { code: Some(why.code()), ..Outcome::default() });
    }
    // Checked before anything runs, so that a wrongly compiled program is reported at once.
    let plain = args.blocks.plain.as_deref().map(times::Plain::open).transpose()?;
    let mut facts = Facts {
        command: args.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        source: SOURCE.to_owned(),
        notes: vec!["order and executions: events compiled in, without times".to_owned()],
        ..Facts::default()
    };
    let named = |error: io::Error| refused(format!("{}: {error}", shell_word(file)));
    // Done before there is a file that a signal would leave behind.
    let stopped = pass_on()?;
    let area = Area::new(args.blocks.wait)
        .map_err(|error| refused(format!("no memory to share with the command: {error}")))?;
    let output = BufWriter::new(Overwritten::open(file)?);
    let mut command = Command::new(program);
    command.args(arguments).env(tracer::area::VARIABLE, area.path());
    if let (Some(signal), code) = (stopped.signal(), stopped.code()) {
        say(err, &format!("dcpi: signal {signal} came before the command began"))?;
        return Ok(Outcome { code, ..Outcome::default() });
    }
    let mut child = command.spawn().map_err(|error| {
        let program = shell_word(Path::new(program));
        refused(format!("cannot start {program}: {error}; run it alone to see why"))
    })?;
    // Nothing is written before: a command that does not start costs no trace that was there.
    let writer = Writer::new(output, &facts).map_err(named)?;
    let mut capture = Capture::new(area, writer);
    let status = follow(&mut capture, &mut child).map_err(named)?;
    let (captured, writer) = capture.end();
    if captured.lost > 0 {
        facts.lost.push(Lost {
            name: "block".to_owned(),
            reason: "ring_full".to_owned(),
            events: captured.lost,
        });
    }
    let written = writer.finish(&facts).map_err(named)?;
    say(err, "")?;
    told(&captured, &written, err)?;
    if captured.events == 0 {
        return Ok(Outcome { code: Some(2), ..Outcome::default() });
    }
    let mut table = Table::of(&captured.programs);
    table.is_partial = captured.lost > 0 || captured.unknown > 0;
    if let Some(plain) = &plain {
        let sampled = plain.sample(args)?;
        plain.add(&sampled, &captured.programs, &mut table);
    }
    table.rows_max = args.blocks.rows;
    super::write(&table, args.output, err)?;
    Ok(Outcome { code: Some(exit_code(status)), ..Outcome::default() })
}

/// Reads events until the command and its remaining threads have ended.
fn follow<W: Write>(capture: &mut Capture<W>, child: &mut Child) -> io::Result<ExitStatus> {
    let mut polls = 0_u32;
    let status = loop {
        let ended = child.try_wait()?;
        polls = polls.wrapping_add(1);
        let taken = capture.poll(polls.is_multiple_of(POLLS_A_LOOK))?;
        if let Some(status) = ended {
            break status;
        }
        if taken == 0 {
            std::thread::sleep(PAUSE);
        }
    };
    // Each look takes the chunks of the threads that have ended; those that are left are of
    // processes that outlive the command, and of which nobody says how long.
    while capture.poll(true)? > 0 {}
    Ok(status)
}

/// Prints a summary of the captured events.
fn told(
    captured: &Captured,
    written: &sequence::Written,
    err: &mut dyn Write,
) -> Result<(), AnalysisError> {
    if captured.events == 0 {
        let next = "compile and link it with $(dcpi trace --cflags)";
        say(err, &format!("dcpi: the command had no events: {next}"))?;
        return captured.problems.iter().try_for_each(|it| say(err, &format!("note: {it}")));
    }
    let executed: u64 = captured.programs.iter().flat_map(|(_, counts)| counts).sum();
    let threads = captured.streams.iter().filter(|stream| stream.handlers == 0).count();
    let line = format!(
        "{} executed by {}, in order: {} bytes, {:.3} a block",
        match captured.lost {
            0 => report::counted(executed, "block"),
            _ => format!("of what was not lost, {}", report::counted(executed, "block")),
        },
        report::counted(threads as u64, "thread"),
        report::thousands(written.bytes),
        written.bytes as f64 / executed.max(1) as f64,
    );
    say(err, &line)?;
    say(err, &lost(captured.events, captured.lost, captured.unknown))?;
    captured.problems.iter().try_for_each(|it| say(err, &format!("note: {it}")))
}

/// The missing events, and the next step.
fn lost(events: u64, lost: u64, unknown: u64) -> String {
    let missing = lost.saturating_add(unknown);
    let share = 100.0 * missing as f64 / (missing.saturating_add(events)).max(1) as f64;
    let why = match (lost, unknown) {
        (0, 0) => return "lost: 0 (nothing was lost)".to_owned(),
        (0, _) => "they are of addresses that are in no list of blocks",
        _ => {
            "the tracer was too slow, so executions are too few; run it again with --wait, which \
             loses nothing and takes longer"
        }
    };
    format!("lost: {} events, {share:.1} % of all: {why}", report::thousands(missing))
}

/// Reports a trace that was written before.
fn read(args: &Asked<'_>, file: &Path, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let named = |error: &dyn std::fmt::Display| refused(format!("{}: {error}", shell_word(file)));
    let input = BufReader::new(plain_file::open(file).map_err(|error| named(&error))?);
    let mut counts: Vec<Vec<u64>> = Vec::new();
    let mut failed = Ok(());
    let all = sequence::read(input, |known, stream, events| {
        let Some(of) = known.streams.get(stream as usize) else { return };
        let Some(program) = known.programs.get(of.program as usize) else { return };
        if args.blocks.order {
            if failed.is_ok() {
                failed = ordered(of, program, events, out);
            }
            return;
        }
        let number = of.program as usize;
        if counts.len() <= number {
            counts.resize(number + 1, Vec::new());
        }
        let Some(counts) = counts.get_mut(number) else { return };
        counts.resize(program.blocks.len(), 0);
        for event in events {
            if let Some(count) = counts.get_mut(*event as usize) {
                *count += 1;
            }
        }
    })
    .map_err(|error| named(&error))?;
    failed?;
    let cut = all.cut.as_ref().map(|why| format!("{}: {why}", shell_word(file)));
    if args.blocks.order {
        let sound = cut.is_none();
        return Ok(Outcome { sound, aside: cut.into_iter().collect(), code: None });
    }
    let programs: Vec<(Program, Vec<u64>)> = all
        .programs
        .into_iter()
        .zip(counts)
        .map(|(program, mut counts)| {
            executions(&program, &mut counts);
            (program, counts)
        })
        .collect();
    let mut table = Table::of(&programs);
    table.rows_max = args.blocks.rows;
    table.notes.extend(cut);
    table.notes.extend(all.facts.lost.iter().map(|lost| {
        format!("{} events were lost: {}", report::thousands(lost.events), lost.reason)
    }));
    super::write(&table, args.output, out)
}

/// Writes blocks in their order: thread, depth of signal handlers, procedure, number of the block,
/// line.
fn ordered(
    stream: &sequence::Stream,
    program: &Program,
    events: &[u32],
    out: &mut dyn Write,
) -> io::Result<()> {
    for event in events {
        for index in program.chain(*event) {
            let Some(block) = program.blocks.get(index as usize) else { continue };
            let row = Row::of(program, index as usize, block, 0);
            writeln!(
                out,
                "{} {} {} {}",
                stream.tid,
                stream.handlers,
                report::escape(&row.name()),
                report::escape(&row.place())
            )?;
        }
    }
    Ok(())
}

fn say(err: &mut dyn Write, line: &str) -> Result<(), AnalysisError> {
    writeln!(err, "{}", report::escape(line)).map_err(AnalysisError::from)
}
