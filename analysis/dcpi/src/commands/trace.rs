//! `dcpi trace`: events of a command's threads in time; traces of other tools, and for them.

mod in_situ;

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use capture::TraceError;
use capture::recorder::{self, Captured, Options, RING_BYTES, RING_BYTES_RANGE, Target};
use capture::sites::{self, Whose};
use clap::{Args, ValueEnum};
use report::{ShownRows, TraceLost, TraceReport, TraceRow, TraceSampled, TraceThread};
use tempfile::NamedTempFile;
use trace::formats::{self, Format};
use trace::summary::Summary;
use trace::{Event, Facts, Name, Sampled, Thread};

use super::blocks::{self, BlocksArgs};
use super::calibrate::{self, Traced};
use super::correct;
use super::passing::{Stopped, pass_on};
use super::record::{exit_code, runnable, shell_word};
use super::{Outcome, write};
use crate::destination::{Destination, Overwritten, not_svg};
use crate::options::{Output, parse_time};
use query::error::AnalysisError;

/// Longest time of `--duration`.
const DURATION_MAX: Duration = Duration::from_secs(7 * 86_400);
#[derive(Debug, Args)]
#[command(after_help = NOTES, override_usage = "dcpi trace [--at IMAGE:PROC]... [--syscalls] \
    [--sched] -o FILE -- COMMAND\n       dcpi trace FILE [--to FORMAT] [-o OUT]")]
pub struct Trace {
    /// Trace to read: of dcpi trace, or Chrome's JSON, Perfetto's packets, text of perf script,
    /// uftrace's dump
    #[arg(value_name = "FILE", conflicts_with_all = ["at", "syscalls", "sched", "pid", "command"])]
    pub file: Option<PathBuf>,
    /// Place to probe: IMAGE:PROCEDURE, where PROCEDURE may have * and ?, or IMAGE:FILE:LINE; IMAGE
    /// is a path, a name such as libc.so.6, or empty for the program itself; may be repeated
    #[arg(long, value_name = "IMAGE:PLACE")]
    pub at: Vec<String>,
    /// Probe entries of procedures alone, not returns
    #[arg(long)]
    pub entries: bool,
    /// Trace system calls
    #[arg(long)]
    pub syscalls: bool,
    /// Trace switches of threads, and who wakes whom
    #[arg(long)]
    pub sched: bool,
    /// Keep the first K of each P calls, counted for each name and thread
    #[arg(long, value_name = "K/P", value_parser = sampled)]
    pub sample: Option<Sampled>,
    /// Print events to standard error as they come
    #[arg(long)]
    pub follow: bool,
    /// Trace a process that runs already, until it ends
    #[arg(short = 'p', long, value_name = "PID", conflicts_with = "command")]
    pub pid: Option<u32>,
    /// End tracing after this time; the command goes on
    #[arg(short = 'd', long, value_name = "T", value_parser = duration)]
    pub duration: Option<Duration>,
    /// Memory for each CPU's events that wait to be read, such as 16MiB; what finds no room is lost
    #[arg(long, value_name = "SIZE", default_value = "4MiB", value_parser = ring_bytes)]
    pub ring: usize,
    /// Take off what tracing cost from the times of FILE
    #[arg(long, requires = "file")]
    pub correct: bool,
    /// With --correct: trace of the calibration program by the tool that wrote FILE; here: costs of
    /// probes are measured now [default: costs that FILE has]
    #[arg(long, value_name = "TRACE|here", requires = "correct")]
    pub calibration: Option<PathBuf>,
    /// With --correct: image whose procedures the probes of FILE are on, for perf's traces
    #[arg(long, value_name = "IMAGE", requires = "correct")]
    pub probed: Option<PathBuf>,
    /// Write the source of the calibration program, in C, to be built as the program is
    #[arg(long, exclusive = true)]
    pub calibration_program: bool,
    /// Do not measure what events cost; the trace cannot be corrected then
    #[arg(long)]
    pub no_costs: bool,
    /// Run COMMAND without events as well, once and then so many times, before and after, and take
    /// what an event costs in it from the difference (in situ, with --sched); no run has an input,
    /// and the output of those is not shown
    #[arg(long, value_name = "RUNS", value_parser = in_situ::runs, requires = "sched",
        conflicts_with_all = ["file", "pid", "duration", "sample", "no_costs"])]
    pub in_situ: Option<u32>,
    /// File to write the trace to; for FILE also - for standard output
    #[arg(short = 'o', long = "output", value_name = "OUT")]
    pub out: Option<PathBuf>,
    /// Format of the trace [default: by the ending of the file's name, see below]
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub to: Option<To>,
    #[command(flatten)]
    pub blocks: BlocksArgs,
    #[command(flatten)]
    pub output: Output,
    /// Command to run and trace, with its children
    #[arg(value_name = "COMMAND", last = true)]
    pub command: Vec<OsString>,
}

/// Formats of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum To {
    /// That of dcpi trace, compact
    Trace,
    /// Perfetto's packets, for ui.perfetto.dev
    Perfetto,
    /// Chrome's JSON
    Chrome,
    /// Lines for people
    Text,
    /// An object for each event, all fields
    Json,
    /// Threads in time, drawn
    Svg,
    /// The drawing with a table, as a page
    Html,
}

const NOTES: &str = "\
Endings of OUT: .perfetto, .pftrace and .perfetto-trace are Perfetto's, .json is Chrome's, .jsonl \
has an object for each event, .txt is text, .svg and .html are drawings of the threads; every \
other ending is the format of dcpi trace, which every other one can be made from later.

Probes are the kernel's uprobes: they need root, work in any program, and cost 1 us an event, or \
10 us where the kernel must step over the first instruction, which is part of all times. Each call \
of a procedure of less than some us is told too long: probe few places, or larger procedures. \
Events that find no room are lost, and counted by name. Without FILE and -o, --follow alone shows \
events.

Exit codes: that of COMMAND, or 128 + N if signal N ended it; 126 and 127 if COMMAND cannot be \
run; 1 if FILE is not whole; 2 if dcpi trace could not do its work.";

fn duration(text: &str) -> Result<Duration, String> {
    parse_time(text, Duration::from_millis(1), DURATION_MAX)
}

fn sampled(text: &str) -> Result<Sampled, String> {
    let parts = text.split_once('/').and_then(|(keep, of)| {
        Some(Sampled { keep: keep.trim().parse().ok()?, of: of.trim().parse().ok()? })
    });
    parts.filter(|sampled| (1..=sampled.of).contains(&sampled.keep)).ok_or_else(|| {
        "must be two numbers such as 10/1000: the first 10 of each 1000 calls".to_owned()
    })
}

fn ring_bytes(text: &str) -> Result<usize, String> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("k", 10), ("M", 20), ("G", 30), ("", 0)];
    let number = units.iter().find_map(|(unit, shift)| {
        text.strip_suffix(unit)?.trim().parse::<usize>().ok()?.checked_mul(1 << shift)
    });
    let (least, most) = RING_BYTES_RANGE;
    number.filter(|bytes| (least..=most).contains(bytes)).ok_or_else(|| {
        format!(
            "must be a size from {} to {}, such as {}",
            report::bytes(least as u64),
            report::bytes(most as u64),
            report::bytes(RING_BYTES as u64)
        )
    })
}

/// The format that a file's name asks for.
fn by_name(path: &Path) -> To {
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase());
    match ending.as_deref().unwrap_or_default() {
        "perfetto" | "pftrace" | "perfetto-trace" => To::Perfetto,
        "json" => To::Chrome,
        "jsonl" | "ndjson" => To::Json,
        "txt" | "text" => To::Text,
        "svg" => To::Svg,
        "html" | "htm" => To::Html,
        _ => To::Trace,
    }
}

fn usage(message: &str) -> AnalysisError {
    AnalysisError::Usage { message: message.to_owned(), help: "dcpi trace --help".to_owned() }
}

pub(crate) fn run(args: &Trace, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    if let Some(kind) = args.blocks.cflags {
        return blocks::print_cflags(kind, out);
    }
    if let Some(why) = args.out.as_deref().and_then(not_svg) {
        return Err(usage(&why));
    }
    if args.calibration_program {
        out.write_all(trace::calibration::PROGRAM.as_bytes())?;
        return Ok(Outcome::default());
    }
    match &args.file {
        file if args.blocks.blocks => {
            let asked = blocks::Asked {
                blocks: &args.blocks,
                file: file.as_deref(),
                out: args.out.as_deref(),
                output: &args.output,
                command: &args.command,
            };
            blocks::run(&asked, out)
        }
        Some(file) => read_file(args, file, out),
        None => capture_events(args),
    }
}

/// `dcpi trace FILE`: a report, or the trace in another format.
fn read_file(args: &Trace, file: &Path, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let bytes = file.metadata().map(|metadata| metadata.len()).ok();
    let mut trace = correct::read(file)?;
    if trace.events.is_empty() && trace.facts.source == blocks::SOURCE {
        let file = shell_word(file);
        return Err(AnalysisError::Refused(format!(
            "{file} is a trace of basic blocks; see dcpi trace --blocks {file}"
        )));
    }
    let mut aside: Vec<String> =
        trace.cut.iter().map(|cut| format!("{}: {cut}", file.display())).collect();
    let sound = aside.is_empty();
    if args.correct {
        let (calibration, probed) = (args.calibration.as_deref(), args.probed.as_deref());
        let mut report = correct::corrected(file, &mut trace, calibration, probed)?;
        report.shown = ShownRows::of(&mut report.rows, args.blocks.rows);
        if args.out.is_none() && args.to.is_none() {
            let outcome = write(&report, &args.output, out)?;
            return Ok(Outcome { sound, ..outcome });
        }
        // The output has corrected times but no field for their quality.
        aside.extend(report.doubt());
    }
    if args.out.is_none() && args.to.is_none() {
        let mut report = report_of_trace(&trace);
        report.shown = ShownRows::of(&mut report.rows, args.blocks.rows);
        report.file = Some(file.display().to_string());
        // Bytes an event are those of our own format alone.
        let is_own = trace.facts.source == "dcpi trace";
        report.bytes = bytes.filter(|_| is_own);
        report.bytes_an_event =
            report.bytes.map(|bytes| bytes as f64 / report.events.max(1) as f64);
        let outcome = write(&report, &args.output, out)?;
        return Ok(Outcome { sound, ..outcome });
    }
    let path = args.out.clone().unwrap_or_else(|| PathBuf::from("-"));
    if is_same_file(&path, file) {
        // Other formats keep less.
        return Err(usage("-o names the trace itself; name another file"));
    }
    let to = args.to.unwrap_or_else(|| by_name(&path));
    Destination::from_argument(&path).write(out, |out| Ok(write_as(&trace, to, out)?))?;
    Ok(Outcome { sound, aside, code: None })
}

/// Whether two paths lead to one file.
fn is_same_file(a: &Path, b: &Path) -> bool {
    let of = |path: &Path| path.metadata().ok().map(|of| (of.dev(), of.ino()));
    of(a).is_some_and(|a| Some(a) == of(b))
}

fn write_as(trace: &trace::Trace, to: To, out: &mut dyn Write) -> io::Result<()> {
    let format = match to {
        To::Trace => Format::Own,
        To::Perfetto => Format::Perfetto,
        To::Chrome => Format::Chrome,
        To::Text => Format::Text,
        To::Json => Format::Json,
        To::Svg => return out.write_all(trace::gantt::svg(trace).as_bytes()),
        To::Html => return out.write_all(trace::gantt::html(trace).as_bytes()),
    };
    formats::write(trace, format, out)
}

/// Where the events go while they are captured.
struct Sink {
    file: BufWriter<Box<dyn Write>>,
    /// The file, where it is to be made another format of.
    raw: Option<NamedTempFile>,
    /// The format that is asked for; None where the trace is only followed.
    to: Option<To>,
    /// The file that is asked for, where it was not there before.
    created: Option<PathBuf>,
}

impl Sink {
    fn open(args: &Trace) -> Result<Self, AnalysisError> {
        let Some(path) = &args.out else {
            if !args.follow {
                return Err(usage("-o names no file for the trace, and --follow is not there"));
            }
            let file = BufWriter::new(Box::new(io::sink()) as Box<dyn Write>);
            return Ok(Self { file, raw: None, to: None, created: None });
        };
        if path == Path::new("-") {
            return Err(usage("standard output is the command's; name a file with -o"));
        }
        let to = args.to.unwrap_or_else(|| by_name(path));
        let created = (!path.exists()).then(|| path.clone());
        // Checks before the command runs that the output can be written.
        let asked = Overwritten::open(path)?;
        let (file, raw): (Box<dyn Write>, _) = match to {
            // Not beside it and renamed: what a killed tracer leaves is readable.
            To::Trace => (Box::new(asked), None),
            _ => {
                let raw = temporary().map_err(|error| {
                    let directory = shell_word(&std::env::temp_dir());
                    AnalysisError::Refused(format!(
                        "cannot keep the trace in {directory} until its end: {error}; name \
                         another directory with TMPDIR, or a file that ends in .trace with -o"
                    ))
                })?;
                (Box::new(raw.reopen()?), Some(raw))
            }
        };
        Ok(Self { file: BufWriter::new(file), raw, to: Some(to), created })
    }
}

/// A file for a trace until its end.
fn temporary() -> io::Result<NamedTempFile> {
    tempfile::Builder::new().prefix("dcpi-").suffix(".trace").tempfile()
}

fn capture_events(args: &Trace) -> Result<Outcome, AnalysisError> {
    let target = match (args.pid, args.command.is_empty()) {
        (Some(pid), _) => Target::Process(pid),
        (None, false) => Target::Command(args.command.clone()),
        (None, true) => {
            return Err(usage("no command follows --, and no FILE or --pid is there; name one"));
        }
    };
    if args.at.is_empty() && !args.syscalls && !args.sched {
        return Err(usage("nothing to trace: name places with --at, or --syscalls, or --sched"));
    }
    if args.in_situ.is_some() {
        let to = args.out.as_deref().map(|path| args.to.unwrap_or_else(|| by_name(path)));
        in_situ::check(to)?;
    }
    let mut whose = Whose::Process(args.pid.unwrap_or_default());
    if let Target::Command(words) = &target
        && let Some(program) = words.first()
    {
        if let Err(why) = runnable(program, std::env::var_os("PATH").as_deref()) {
            let program = shell_word(program.as_ref());
            writeln!(io::stderr(), "dcpi: {program}: {}; nothing was traced", why.words())?;
            return Ok(Outcome { code: Some(why.code()), ..Outcome::default() });
        }
        whose = Whose::Command(program);
    }
    let mut found = sites::find(&args.at, whose, args.entries).map_err(refused)?;
    let traced = Traced {
        calls: found.sites.iter().any(|site| site.has_return),
        entries: found.sites.iter().any(|site| !site.has_return),
        syscalls: args.syscalls,
        sched: args.sched,
    };
    // From here on a signal leaves no file and no probe definition behind.
    let stopped = pass_on()?;
    let costs = match args.no_costs {
        true => Vec::new(),
        // The cost of an event is needed later, if at all, so its absence does not prevent tracing.
        // The trace notes the reason; if nothing can be traced at all, the error below says so.
        false => calibrate::costs(traced, &stopped).unwrap_or_else(|error| {
            found.notes.push(format!("what events cost is not known, and not taken off: {error}"));
            Vec::new()
        }),
    };
    if let Some(signal) = stopped.signal() {
        return Ok(nothing_was_run(signal, &stopped));
    }
    let options = Options {
        sites: found.sites,
        syscalls: args.syscalls,
        sched: args.sched,
        sampled: args.sample,
        ring_bytes: args.ring,
        duration: args.duration,
        notes: found.notes,
        costs,
        untraced_runs: args.in_situ.unwrap_or_default(),
    };
    args.in_situ.map_or(Ok(()), in_situ::announce)?;
    traced_to_file(args, &options, &target, &stopped)
}

/// Runs and traces, writes the trace in the format that is asked for, and reports.
fn traced_to_file(
    args: &Trace,
    options: &Options,
    target: &Target,
    stopped: &Stopped,
) -> Result<Outcome, AnalysisError> {
    let sink = Sink::open(args)?;
    let mut follow = |event: &Event, name: &Name, thread: &Thread| {
        let mut line = Vec::new();
        formats::write_text_line(event, name, thread, &mut line)?;
        io::stderr().write_all(&line)
    };
    let follower: Option<recorder::Follower<'_>> = args.follow.then_some(&mut follow);
    // A command gets the signals itself, and its end ends the trace.
    let is_command = matches!(target, Target::Command(_));
    let stop = |has_begun: bool| stopped.signal().is_some() && !(has_begun && is_command);
    let Sink { file, raw, to, created } = sink;
    let captured = match recorder::run(options, target, file, follower, &stop) {
        Ok(captured) => captured,
        Err(error) => {
            // Nobody needs an empty file.
            let is_empty = |path: &PathBuf| path.metadata().is_ok_and(|of| of.len() == 0);
            if let Some(path) = created.filter(is_empty) {
                let _ = fs::remove_file(path); // the error is what is told
            }
            return match (error, stopped.signal()) {
                (TraceError::Stopped, Some(signal)) => Ok(nothing_was_run(signal, stopped)),
                (error, _) => Err(refused(error)),
            };
        }
    };
    let written = match (raw, to, &args.out) {
        (Some(raw), Some(to), Some(path)) => converted(raw, to, path),
        _ => Ok(()),
    };
    let report = report_of_capture(args, options, &captured, to);
    let mut out = io::stderr();
    writeln!(out)?;
    let outcome = write(&report, &args.output, &mut out)?;
    written?;
    Ok(Outcome { code: captured.status.map(exit_code), ..outcome })
}

/// Writes a captured trace in another format. What was captured is kept if that fails: the run
/// cannot be had again.
fn converted(raw: NamedTempFile, to: To, path: &Path) -> Result<(), AnalysisError> {
    let write = || {
        let trace = correct::read(raw.path())?;
        Destination::File(path.to_path_buf())
            .write(&mut io::sink(), |out| Ok(write_as(&trace, to, out)?))
    };
    write().map_err(|error| match raw.keep() {
        Ok((_, kept)) => {
            let (name, kept) = (shell_word(path), shell_word(&kept));
            let why = match error {
                AnalysisError::OutputFile { source, .. } => source.to_string(),
                error => error.to_string(),
            };
            AnalysisError::Refused(format!(
                "cannot write {name}: {why}; the trace is kept in {kept}: dcpi trace {kept} -o OUT"
            ))
        }
        Err(_) => error,
    })
}

fn nothing_was_run(signal: i32, stopped: &Stopped) -> Outcome {
    let said = format!("signal {signal} came before tracing began; nothing was run or traced");
    Outcome { code: stopped.code(), aside: vec![said], ..Outcome::default() }
}

fn refused(error: TraceError) -> AnalysisError {
    AnalysisError::Refused(match error {
        TraceError::Output(error) => {
            format!("cannot write the trace: {error}; name a file elsewhere with -o")
        }
        error => error.to_string(),
    })
}

fn report_of_trace(trace: &trace::Trace) -> TraceReport {
    let mut summary = Summary::default();
    for event in &trace.events {
        summary.take(event, event.time_ns);
    }
    let mut report = report_of(&trace.facts, &summary, &trace.names, &trace.threads);
    report.cut.clone_from(&trace.cut);
    report
}

fn report_of_capture(
    args: &Trace,
    options: &Options,
    captured: &Captured,
    to: Option<To>,
) -> TraceReport {
    let Captured { facts, summary, names, threads, written, .. } = captured;
    let mut report = report_of(facts, summary, names, threads);
    if facts.untraced.is_some() {
        let next = "dcpi trace --correct tells what events cost in this command".to_owned();
        report.notes.push(next);
    }
    report.file = args.out.as_ref().map(|path| path.display().to_string());
    if to == Some(To::Trace) {
        report.bytes = Some(written.bytes);
        report.bytes_an_event = Some(written.bytes_an_event());
    }
    let reached: HashSet<&str> = report.rows.iter().map(|row| row.name.as_str()).collect();
    let never = options.sites.iter().map(|site| site.name.text.as_str());
    let never: Vec<String> =
        never.filter(|name| !reached.contains(name)).map(str::to_owned).collect();
    report.never = never;
    report.shown = ShownRows::of(&mut report.rows, args.blocks.rows);
    report
}

fn report_of(facts: &Facts, summary: &Summary, names: &[Name], threads: &[Thread]) -> TraceReport {
    let words: Vec<String> = facts.command.iter().map(|word| shell_word(Path::new(word))).collect();
    let row = |row: &trace::summary::Row| {
        let name = names.get(row.name.0 as usize);
        let has_times = row.ended > 0;
        TraceRow {
            name: name.map(|name| name.text.clone()).unwrap_or_default(),
            kind: row.kind.word(),
            image: name.map(|name| name.image.clone()).filter(|image| !image.is_empty()),
            count: row.count,
            ended: row.ended,
            total_ns: has_times.then_some(row.total_ns),
            mean_ns: has_times.then(|| row.mean_ns()),
            min_ns: has_times.then_some(row.min_ns),
            max_ns: has_times.then_some(row.max_ns),
        }
    };
    let thread = |off: &trace::summary::OffCpu| {
        let thread = threads.get(off.thread.0 as usize)?;
        Some(TraceThread {
            pid: thread.pid,
            tid: thread.tid,
            command: thread.command.clone(),
            switches: off.switches,
            blocked_ns: off.blocked_ns,
            preempted_ns: off.preempted_ns,
        })
    };
    let mut notes = facts.notes.clone();
    if facts.source == "dcpi trace" && names.iter().any(|name| name.offset.is_some()) {
        notes.push(
            "times are as measured: the cost of probes is part of them, 1 to 10 us an event by the \
             first instruction of the procedure"
                .to_owned(),
        );
    }
    let lost = |lost: &trace::Lost| TraceLost {
        name: lost.name.clone(),
        reason: lost.reason.clone(),
        events: lost.events,
    };
    TraceReport {
        command: words.join(" "),
        host: facts.host.clone(),
        clock: facts.clock.clone(),
        seconds: summary.span_ns() as f64 / 1e9,
        events: summary.events(),
        threads: threads.len() as u64,
        processes: threads.iter().map(|thread| thread.pid).collect::<HashSet<u32>>().len() as u64,
        sampled: facts.sampled.map(|Sampled { keep, of }| TraceSampled { keep, of }),
        rows: summary.rows().iter().map(row).collect(),
        off_cpu: summary.off_cpu().iter().filter_map(thread).collect(),
        lost: facts.lost.iter().map(lost).collect(),
        unmatched: summary.unmatched(),
        notes,
        ..TraceReport::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_files_name_tells_its_format() {
        for (name, expected) in [
            ("a.perfetto-trace", To::Perfetto),
            ("a.JSON", To::Chrome),
            ("a.jsonl", To::Json),
            ("a.b/x.txt", To::Text),
            ("x.svg", To::Svg),
            ("x.html", To::Html),
            ("x.trace", To::Trace),
            ("x", To::Trace),
        ] {
            assert_eq!(by_name(Path::new(name)), expected, "{name}");
        }
    }

    #[test]
    fn choices_and_sizes_are_understood() {
        assert_eq!(sampled("10/1000"), Ok(Sampled { keep: 10, of: 1000 }));
        for bad in ["", "0/5", "6/5", "1/0", "a/b", "5", "-1/5"] {
            assert!(sampled(bad).is_err(), "{bad}");
        }
        assert_eq!(ring_bytes("4MiB"), Ok(4 << 20));
        assert_eq!(ring_bytes("8k"), Ok(8 << 10));
        for bad in ["", "1", "2GiB", "x", "99999999999999999999k"] {
            let error = ring_bytes(bad).unwrap_err();
            assert!(error.contains("from 4.0 KiB to 1.0 GiB"), "{bad}: {error}");
        }
    }
}
