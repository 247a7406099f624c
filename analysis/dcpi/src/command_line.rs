//! The command line and its subcommands. Their help is made from this file, from `options.rs` and
//! from the files of the subcommands.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use query::error::AnalysisError;
use query::select::EpochChoice;

use crate::commands::html::Html;
use crate::commands::record::Record;
use crate::commands::serve::Serve;
use crate::commands::top::Top;
use crate::commands::{
    self, Calc, DiffArgs, Export, ImagesArgs, List, Outcome, StatsArgs, TopcountsArgs,
};
use crate::options::{Epochs, Prof};

/// Reads the database that dcpid writes, and reports where the time went.
///
/// Each subcommand may also be called by its classic name: dcpiprof is dcpi prof.
#[derive(Debug, Parser)]
#[command(
    name = "dcpi",
    version,
    subcommand_required = true,
    override_help = help()
)]
pub struct Arguments {
    /// The subcommand, with its arguments.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one in a process, and it is boxed")]
pub enum Command {
    /// Samples of each procedure, source line, or image
    Prof(Prof),
    /// Callers of a procedure, each with its part of the procedure's time
    Callers(commands::CallersArgs),
    /// Callees of a procedure, each with its part of the procedure's time
    Callees(commands::CallersArgs),
    /// The tree of calls, with the time of each
    Tree(commands::TreeArgs),
    /// Draws the tree of calls as a flame graph, an SVG
    Flame(commands::FlameArgs),
    /// Source lines and instructions of a procedure, with their samples
    List(List),
    /// Executions, cycles and causes of stalls of each block of a procedure
    Calc(Calc),
    /// What takes the time and why, with evidence, gain and advice
    Why(commands::Why),
    /// Time by what it was spent on: causes of stalls, waits, execution
    Whatcg(commands::Whatcg),
    /// Instructions that stalled longest, with possible causes
    Topstalls(commands::Topstalls),
    /// What a word of a report means: a column, a cause, a mechanism
    Explain(commands::Explain),
    /// Draws a procedure's control flow, with executions and time
    Flow(commands::Flow),
    /// Error of the estimates of dcpi calc, against callgrind's exact counts
    Truth(commands::Truth),
    /// Exact executions of a command in all its files, and the time that they take at best
    Ideal(commands::Ideal),
    /// Counts of events of a whole command: time, page faults, instructions and others
    Count(commands::Count),
    /// Events of a command's threads in time: calls, system calls, switches; order of blocks
    Trace(commands::Trace),
    /// Whether a command is faster than another, over layouts of their code; in random order
    Time(commands::Time),
    /// Does work of a known amount, so that dcpi trace can measure what its events cost
    #[command(hide = true)]
    CalibrationWork(commands::CalibrationWork),
    /// What observing a command does to it: slowdown, and which metrics are still to be believed
    Perturb(commands::Perturb),
    /// Time of a command beyond what its executions need: what waits and wrong guesses cost
    Lost(commands::Lost),
    /// Caches, TLBs, memory, branches and clock of this machine, measured
    Machine(commands::MachineArgs),
    /// Instructions with the most samples of an event, or the largest ratio of two events
    Topcounts(TopcountsArgs),
    /// Variation of procedures between sets of samples, the largest first
    Stats(StatsArgs),
    /// Changes from one set of samples to another
    Diff(DiffArgs),
    /// Time of procedures, commands, images or labels over the hours and days
    Timeline(commands::TimelineArgs),
    /// Images with samples
    Images(ImagesArgs),
    /// Epochs in the database, oldest first
    Epochs(Epochs),
    /// Samples or edges by offset, without names, as the database has them
    Cat(commands::Cat),
    /// Damage in the database, and the samples that the damage costs
    Check(commands::Check),
    /// Copies epochs into another database, such as one for many hosts
    Copy(commands::Copy),
    /// Merges several epochs into one
    Merge(commands::Merge),
    /// Packs epochs and the code of their images into an archive for another machine
    Tar(commands::Tar),
    /// Writes samples for other tools: pprof, flame graphs, the Firefox profiler, AutoFDO, BOLT
    Export(Export),
    /// Sends what is new to a collector or to the store of a fleet, once or on a schedule
    Push(commands::Push),
    /// Records a command, or the machine for some seconds, with its own dcpid, and reports
    Record(Record),
    /// What this host allows and the database lacks, each with its remedy
    Doctor(commands::Doctor),
    /// Lists and removes recordings of dcpi record in the directory for temporary files
    Clean(commands::Clean),
    /// Procedures that take the time now, from the running dcpid, in a terminal
    Top(Top),
    /// Serves reports to agents: the Model Context Protocol on standard input and output
    Mcp(commands::Mcp),
    /// Writes reports as one HTML file: why, flame graphs, tables, listings; needs no network
    Html(Html),
    /// Shows the page of dcpi html live from the database, in a browser on this host
    Serve(Serve),
}

/// All commands, by the question that they answer, as `dcpi help` shows them on one screen. In
/// brackets: what the command shows, where its name does not say so.
const GROUPS: [(&str, &str); 9] = [
    (
        "Record",
        "record (a COMMAND, or the machine), top (the machine now), clean (old recordings), doctor \
         (what the host allows)",
    ),
    (
        "Where",
        "prof (procedures; -i: images), list (instructions), topcounts, callers, callees, tree, \
         flame (calls; prof --inclusive)",
    ),
    (
        "Why",
        "why (verdicts, what to try), whatcg (causes), topstalls, calc (blocks; list --why: \
         instructions), flow (the same, drawn), lost, explain (a word)",
    ),
    (
        "When and who",
        "timeline (over hours and days), trace (each call and switch), prof --by \
         command|thread|pid|label",
    ),
    ("Compare", "diff (two builds, days), stats (many runs), time (faster?)"),
    ("Database", "epochs, images, check, cat (as on disk), copy, merge, tar"),
    (
        "Experiments",
        "ideal (exact counts), count (totals), machine (caches and latencies), perturb (what \
         observing changes), truth (the error of estimates)",
    ),
    ("Browser", "html (a page, one file), serve (the same, live)"),
    ("Export", "export (pprof, Firefox ...), mcp (agents), push (a collector)"),
];
const HELP_COLUMNS: usize = 80;
/// Columns before the commands of a group.
const GROUP_COLUMNS: usize = 14;

/// `dcpi help`.
fn help() -> String {
    let mut help = "Reads the database that dcpid writes, and reports where the time went.\n\n\
        Usage: dcpi COMMAND [OPTIONS]    dcpi help COMMAND: its options\n\n"
        .to_owned();
    for (group, commands) in GROUPS {
        let mut line = format!("{group:GROUP_COLUMNS$}");
        for word in commands.split(' ') {
            if line.len() + word.len() >= HELP_COLUMNS {
                help.push_str(line.trim_end());
                line = format!("\n{:GROUP_COLUMNS$}", "");
            }
            line.push_str(word);
            line.push(' ');
        }
        help.push_str(line.trim_end());
        help.push('\n');
    }
    help.push_str(
        "\nFields of JSON and CSV: dcpi help output; JSON Schemas: dcpi help schema\n\
         Classic names work, too: dcpiprof is dcpi prof, and so on.\n\
         Exit codes: 0 done; 1 done, with problems shown; 2 could not.",
    );
    help
}

/// Names of the subcommands, for the classic names of the program.
fn names() -> Vec<String> {
    let command = Arguments::command();
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    shown.map(|command| command.get_name().to_owned()).collect()
}

impl Command {
    /// Runs the command and writes its report.
    pub fn run(&self, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
        match self {
            Self::Prof(args) => commands::prof::run(args, out),
            Self::Callers(args) => commands::callers::callers(args, out),
            Self::Callees(args) => commands::callers::callees(args, out),
            Self::Tree(args) => commands::tree::run(args, out),
            Self::Flame(args) => commands::flame::run(args, out),
            Self::List(args) => commands::list::run(args, out),
            Self::Calc(args) => commands::calc::run(args, out),
            Self::Whatcg(args) => commands::whatcg::run(args, out),
            Self::Why(args) => commands::why::run(args, out),
            Self::Topstalls(args) => commands::topstalls::run(args, out),
            Self::Flow(args) => commands::flow::run(args, out),
            Self::Truth(args) => commands::truth::run(args, out),
            Self::Ideal(args) => commands::ideal::run(args),
            Self::Count(args) => commands::count::run(args),
            Self::Trace(args) => commands::trace::run(args, out),
            Self::Time(args) => commands::time::run(args, out),
            Self::CalibrationWork(args) => commands::calibrate::work(args, out),
            Self::Perturb(args) => commands::perturb::run(args, out),
            Self::Lost(args) => commands::lost::run(args, out),
            Self::Machine(args) => commands::machine::run(args, out),
            Self::Topcounts(args) => commands::topcounts::run(args, out),
            Self::Stats(args) => commands::stats::run(args, out),
            Self::Diff(args) => commands::diff::run(args, out),
            Self::Timeline(args) => commands::timeline::run(args, out),
            Self::Images(args) => commands::images::run(args, out),
            Self::Explain(args) => commands::explain::run(args, out),
            Self::Epochs(args) => commands::epochs::run(args, out),
            Self::Export(args) => commands::export::run(args, out),
            Self::Cat(args) => commands::cat::run(args, out),
            Self::Check(args) => commands::check::run(args, out),
            Self::Copy(args) => commands::transfer::copy(args, out),
            Self::Merge(args) => commands::transfer::merge(args, out),
            Self::Tar(args) => commands::transfer::tar(args, out),
            Self::Push(args) => commands::push::run(args, out),
            Self::Record(args) => commands::record::run(args, out),
            Self::Doctor(args) => commands::doctor::run(args, out),
            Self::Clean(args) => commands::clean::run(args, out),
            Self::Top(args) => commands::top::run(args, out),
            Self::Mcp(args) => commands::mcp::run(args),
            Self::Html(args) => commands::html::run(args, captured, out),
            Self::Serve(args) => commands::serve::run(args, captured, out),
        }
    }
}

/// Runs a command line and gives what it prints.
pub(crate) fn captured(arguments: Vec<OsString>) -> Result<(Vec<u8>, Outcome), AnalysisError> {
    let mut out = Vec::new();
    let outcome = match parse(arguments)? {
        Invocation::Run(command) => command.run(&mut out)?,
        Invocation::Show(text) => {
            out.extend_from_slice(text.as_bytes());
            Outcome::default()
        }
        Invocation::Nothing(text) => return Err(AnalysisError::Refused(text)),
    };
    Ok((out, outcome))
}

/// A command line, parsed.
#[derive(Debug)]
pub enum Invocation {
    /// A subcommand.
    Run(Box<Command>),
    /// A text to show: help or version.
    Show(String),
    /// No subcommand was typed: the help, which is an error's message here.
    Nothing(String),
}

/// What `dcpi help output` and `dcpi help schema` show: every field of JSON and CSV, and the JSON
/// Schemas.
fn help_on_fields(words: &[OsString]) -> Result<Option<String>, AnalysisError> {
    let words: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    let schemas = commands::schemas;
    let names = || schemas().iter().map(|schema| schema.name).collect::<Vec<_>>();
    Ok(Some(match words.as_slice() {
        ["help", "output"] => commands::page_of_fields(),
        ["help", "schema"] => format!("{}\n", names().join("\n")),
        ["help", "schema", name] => {
            let schema = schemas().into_iter().find(|schema| schema.name == *name);
            let known = || format!("there is no schema {name}; there are {}", names().join(", "));
            schema.ok_or_else(|| AnalysisError::Refused(known()))?.json()
        }
        _ => return Ok(None),
    }))
}

/// Parses a command line, the program's name included.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Invocation, AnalysisError> {
    let arguments = with_marked_epochs(with_classic_name(arguments.into_iter().collect()));
    if let Some(text) = help_on_fields(arguments.get(1..).unwrap_or_default())? {
        return Ok(Invocation::Show(text));
    }
    let command = arguments.get(1).and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    let ends_in_dashes = arguments.last().is_some_and(|last| last == "--");
    let matches = Arguments::command().try_get_matches_from(arguments);
    let understood = matches
        .and_then(|matches| Ok((has_empty_db(&matches), Arguments::from_arg_matches(&matches)?)));
    let refused = |message: &str| {
        let (message, help) = (message.to_owned(), format!("dcpi {command} --help"));
        Err(AnalysisError::Usage { message, help })
    };
    match understood {
        Ok((true, _)) => refused("--db is empty; name a directory, or leave --db out"),
        Ok((_, Arguments { command: Command::Record(record) }))
            if ends_in_dashes && record.command.is_empty() && record.duration.is_none() =>
        {
            refused("no command follows --; name one, or a time with -d")
        }
        Ok((_, arguments)) => Ok(Invocation::Run(Box::new(arguments.command))),
        Err(error)
            if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) =>
        {
            Ok(Invocation::Show(error.render().to_string()))
        }
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            ) =>
        {
            Ok(Invocation::Nothing(help()))
        }
        Err(error) => {
            let known = names().contains(&command);
            let help =
                if known { format!("dcpi {command} --help") } else { "dcpi help".to_owned() };
            Err(usage(&error, help, by_program(&error, &command)))
        }
    }
}

/// Whether `--db` was typed and is empty: most likely a variable of a script that is not set.
/// Another database than the one meant would be read. An empty `$DCPIDB` counts as none.
fn has_empty_db(matches: &ArgMatches) -> bool {
    let Some((_, matches)) = matches.subcommand() else { return false };
    let db = matches.try_get_one::<PathBuf>("db").ok().flatten();
    db.is_some_and(|db| db.as_os_str().is_empty())
        && matches.value_source("db") == Some(ValueSource::CommandLine)
}

/// Makes `dcpi prof` of `dcpiprof`.
fn with_classic_name(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let name = arguments
        .first()
        .and_then(|path| Path::new(path).file_name())
        .and_then(|name| name.to_str());
    let command = name.and_then(|name| name.strip_prefix("dcpi"));
    if let Some(command) = names().into_iter().find(|known| command == Some(known)) {
        arguments.splice(..1, [OsString::from("dcpi"), OsString::from(command)]);
    }
    arguments
}

/// Puts an `@` in front of each SET of `stats` and `diff` that is a range of epochs and begins with
/// a dash, such as `-3..latest`. The argument parser takes `-3` for a value, but the start of a
/// range for an option; letting it take all words with a dash for values (clap's
/// `allow_hyphen_values`) would make sets of the options behind the first SET.
fn with_marked_epochs(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let takes_sets =
        arguments.get(1).is_some_and(|command| command == "stats" || command == "diff");
    let mut previous = OsString::new();
    for argument in arguments.iter_mut().skip(2).filter(|_| takes_sets) {
        let text = argument.to_str().unwrap_or_default();
        if text.starts_with('-')
            && previous != "--epoch"
            && previous != "-n"
            && text.parse::<EpochChoice>().is_ok()
        {
            *argument = format!("@{text}").into();
        }
        previous.clone_from(argument);
    }
    arguments
}

/// What was meant by the name of a program where a report of call stacks takes no IMAGE.
fn by_program(error: &clap::Error, command: &str) -> Option<String> {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else { return None };
    let all = Arguments::command();
    let mut options = all.find_subcommand(command)?.get_arguments();
    let selects = options.any(|option| option.get_long() == Some("thread"));
    (error.kind() == ErrorKind::UnknownArgument && selects && !word.starts_with('-'))
        .then(|| format!("--command {word}"))
}

/// The error of a command line: the parser's message in one line, with the command for help.
fn usage(error: &clap::Error, help: String, instead: Option<String>) -> AnalysisError {
    let text = error.render().to_string();
    let said: Vec<&str> = text
        .strip_prefix("error: ")
        .unwrap_or(&text)
        .lines()
        .take_while(|line| !line.trim().is_empty())
        .collect();
    let mut message = said.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
    let suggestions =
        [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue];
    let suggested = suggestions.into_iter().find_map(|kind| match error.get(kind)? {
        ContextValue::String(one) => Some(one.clone()),
        // The most alike comes last.
        ContextValue::Strings(some) => some.last().cloned(),
        _ => None,
    });
    if let Some(suggested) = suggested.or(instead) {
        message.push_str(&format!(" (did you mean {suggested}?)"));
    }
    AnalysisError::Usage { message, help }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::By;

    fn run(line: &str) -> Result<Invocation, AnalysisError> {
        parse(line.split_whitespace().map(OsString::from))
    }

    fn prof(line: &str) -> Prof {
        match run(line) {
            Ok(Invocation::Run(command)) => match *command {
                Command::Prof(prof) => prof,
                other => panic!("{line}: {other:?}"),
            },
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn a_program_is_selected_by_its_command() {
        let refused = |line: &str| match run(line) {
            Err(AnalysisError::Usage { message, .. }) => message,
            other => panic!("{line}: {other:?}"),
        };
        assert!(refused("dcpi tree orders").ends_with("(did you mean --command orders?)"));
        assert!(!refused("dcpi epochs orders").contains("--command"));
    }

    #[test]
    fn the_definitions_are_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn classic_names_are_subcommands() {
        assert!(prof("/usr/bin/dcpiprof -i libc").by_image);
        assert!(prof("dcpi prof -i libc").by_image);
        assert_eq!(prof("dcpiprof --by label").by, Some(By::Label));
        assert!(matches!(
            run("dcpiepochs"),
            Ok(Invocation::Run(command)) if matches!(*command, Command::Epochs(_))
        ));
        assert!(matches!(run("dcpiwhat"), Ok(Invocation::Nothing(_))));
    }

    #[test]
    fn options_are_understood() {
        let args = prof(
            "dcpi prof --epoch -2 --event cycles,imiss --sort imiss --keep 90% --confidence 99.9 -n 5 /bin/a b --db /d",
        );
        assert_eq!(args.chosen.epoch, EpochChoice::back(2));
        assert_eq!(args.chosen.events, ["cycles", "imiss"]);
        assert_eq!(args.keep, Some(0.9));
        assert_eq!(args.look.confidence.percent(), 99.9);
        assert_eq!(args.rows, Some(5));
        assert_eq!(args.images, ["/bin/a", "b"]);
        assert_eq!(args.chosen.source.db(), Path::new("/d"));
        assert_eq!(prof("dcpi prof --keep 50").keep, Some(0.5));
        let scope = prof("dcpi prof --label run --unit a.service --pid 7").chosen.source.scope;
        assert_eq!(
            (scope.label.as_deref(), scope.unit.as_deref(), scope.pid),
            (Some("run"), Some("a.service"), Some(7))
        );
    }

    #[test]
    fn mistakes_are_told_in_one_line() {
        for (line, said) in [
            ("dcpi prod", "unrecognized subcommand 'prod' (did you mean prof?); see dcpi help"),
            (
                "dcpi prof --evnt x",
                "unexpected argument '--evnt' found (did you mean --event?); see dcpi prof --help",
            ),
            (
                "dcpi prof --confidence 100",
                "invalid value '100' for '--confidence <PERCENT>': must be",
            ),
            (
                "dcpi prof --keep 0",
                "invalid value '0' for '--keep <P%>': must be a percentage above 0",
            ),
            (
                "dcpi prof --epoch tomorrow",
                "invalid value 'tomorrow' for '--epoch <WHICH>': is none of latest",
            ),
            ("dcpi prof --format jsn", "(did you mean json?)"),
            ("dcpi prof -n", "a value is required for '-n <N>'"),
            (
                "dcpi prof -n -1",
                "invalid value '-1' for '-n <N>': must be a number of 0 or more; see dcpi prof --help",
            ),
            ("dcpi stats a b -n -1", "'-1' for '-n <N>': must be a number of 0 or more"),
            ("dcpi html -o x -n -1", "'-1' for '-n <N>': must be a number of 0 or more"),
            ("dcpi top -d -5s", "invalid value '-5s' for '--interval <T>': must be a time from"),
            ("dcpi record -d -5s", "invalid value '-5s' for '--duration <T>': must be a time from"),
            ("dcpi record -n -1 ls", "'-1' for '-n <N>': must be a number of 0 or more"),
            (
                "dcpi record --",
                "no command follows --; name one, or a time with -d; see dcpi record --help",
            ),
            (
                "dcpi prof --db=",
                "--db is empty; name a directory, or leave --db out; see dcpi prof --help",
            ),
            ("dcpi list a b --db=", "--db is empty"),
        ] {
            let error = run(line).unwrap_err().to_string();
            assert!(error.contains(said), "{line}: {error}");
            assert!(!error.contains('\n'), "{line}: {error}");
        }
    }

    #[test]
    fn what_is_meant_to_record_everything_or_a_time_is_understood() {
        for line in [
            "dcpi record",
            "dcpi record -d 1s --",
            "dcpi record -- ls",
            "dcpi record --overhead-budget -1% ls",
        ] {
            assert!(run(line).is_ok(), "{line}");
        }
    }

    /// The help took 90 lines, and named the commands twice.
    #[test]
    fn help_names_every_command_and_fits_a_screen() {
        let help = help();
        assert!(help.lines().count() <= 24, "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= HELP_COLUMNS), "{help}");
        let commands = GROUPS.map(|(_, commands)| commands).join(" ");
        let mut outside = String::new();
        let mut depth = 0;
        for c in commands.chars() {
            depth += i32::from(c == '(') - i32::from(c == ')');
            outside.push(if depth == 0 && (c.is_alphanumeric() || c == '-') { c } else { ' ' });
        }
        let words: Vec<&str> = outside.split_whitespace().collect();
        for name in names().iter().filter(|name| *name != "help") {
            assert!(words.contains(&name.as_str()), "{name} is in no group: {words:?}");
        }
    }

    #[test]
    fn help_and_version_are_no_errors() {
        for line in [
            "dcpi help",
            "dcpi --help",
            "dcpi prof --help",
            "dcpi help prof",
            "dcpi --version",
            "dcpiprof -h",
        ] {
            assert!(matches!(run(line), Ok(Invocation::Show(_))), "{line}");
        }
    }
}
