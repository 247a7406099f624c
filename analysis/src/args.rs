//! The command line. What is typed here is documented in `--help`, which is made from this file.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{NonEmptyStringValueParser, OsStringValueParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};

use crate::commands::html::Html;
use crate::commands::record::Record;
use crate::commands::top::Top;
use crate::commands::{self, Calc, DiffArgs, Export, ImagesArgs, List, StatsArgs, TopcountsArgs};
use crate::error::AnalysisError;
use crate::scope::{Dimension, ScopeChoice};
use crate::select::EpochChoice;
use crate::sets::SetChoice;
use crate::stats::Confidence;

/// The database where neither `--db` nor `$DCPIDB` names one.
pub const DEFAULT_DB: &str = "/var/lib/dcpi";

/// Reads the profiles that dcpid collects and says where the time went.
///
/// Each subcommand may also be called by its classic name: dcpiprof is dcpi prof.
#[derive(Debug, Parser)]
#[command(
    name = "dcpi",
    version,
    subcommand_required = true,
    after_help = after_help()
)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one in a process, and it is boxed")]
pub enum Command {
    /// Samples per procedure, source line, or image
    Prof(Prof),
    /// Source lines and instructions of a procedure, with samples
    List(List),
    /// How often each block of a procedure ran, what an execution cost, and what may have stalled it
    Calc(Calc),
    /// What cycles were spent on: causes of stalls, waits, execution
    Whatcg(commands::Whatcg),
    /// The instructions that waited longest, and for what
    Topstalls(commands::Topstalls),
    /// A drawing of a procedure's control flow: how often, and how slow
    Flow(commands::Flow),
    /// How good the estimates of dcpi calc are, against callgrind's exact counts
    Truth(commands::Truth),
    /// Instructions with the most samples of an event, or of an event by another
    Topcounts(TopcountsArgs),
    /// How much procedures vary between sets of samples, the most variable first
    Stats(StatsArgs),
    /// What changed from one set of samples to another
    Diff(DiffArgs),
    /// Images with samples
    Images(ImagesArgs),
    /// Epochs in the database, oldest first
    Epochs(Epochs),
    /// Everything in the profiles, by offset: samples, or edges
    Cat(commands::Cat),
    /// Damage in the database, and what is lost by it
    Check(commands::Check),
    /// Epochs into another database, as of many hosts
    Copy(commands::Copy),
    /// Several epochs into one
    Merge(commands::Merge),
    /// Epochs and the code of their images into an archive, to be read elsewhere
    Tar(commands::Tar),
    /// The samples for other tools: pprof, flame graphs, the Firefox profiler, AutoFDO, BOLT
    Export(Export),
    /// Record a command, or everything for some seconds, with a daemon of its own, and report
    Record(Record),
    /// Recordings that dcpi record left in the directory for temporary files: lists and removes them
    Clean(commands::Clean),
    /// What takes the time now, from a running dcpid, in a terminal
    Top(Top),
    /// A report as one HTML file: tables, a map, listings; needs no network
    Html(Html),
}

/// What `dcpi help output` shows: every field of JSON and CSV.
const OUTPUT: &str = include_str!("../../docs/output.md");

/// From where to why: which command answers the question that the one before leaves.
const WAY: [(&str, &str, &str); 18] = [
    ("record", "record -- COMMAND", "a command, or -d 10s of everything: needs no running dcpid"),
    ("top", "top", "what takes the time at this moment, from the running dcpid"),
    ("prof", "prof -i", "where: in which programs, libraries, the kernel"),
    ("prof", "prof [IMAGE]", "where: in which procedures"),
    ("list", "list IMAGE PROCEDURE", "where: at which lines and instructions of a procedure"),
    ("topcounts", "topcounts", "where: at which instructions of all, by an event or a ratio of two"),
    ("calc", "calc IMAGE PROCEDURE", "why: how often each block ran, what it cost, and what stalled it"),
    ("whatcg", "whatcg", "why: how much of the time each cause took"),
    ("topstalls", "topstalls", "why: the instructions that waited longest, and for what"),
    ("flow", "flow IMAGE PROC -o FILE", "why: the ways through a procedure, drawn"),
    ("truth", "truth -- COMMAND", "how good these estimates are here, against exact counts"),
    ("stats", "stats SET SET...", "what varies from run to run"),
    ("diff", "diff SET SET", "what changed between two builds, days or runs"),
    ("epochs", "epochs", "what the database holds: days, builds, labelled runs"),
    ("check", "check", "whether the database is whole"),
    ("html", "html -o FILE.html", "all of it for a browser, to keep or send"),
    ("clean", "clean", "what dcpi record left in the directory for temporary files"),
    ("export", "export --to FORMAT", "for pprof, Firefox, compilers and others"),
];

/// The way through the commands that there are, for who asks for help and for no command in particular.
fn after_help() -> String {
    let known = Command::augment_subcommands(clap::Command::new("dcpi"));
    let exists = |name: &str| known.get_subcommands().any(|subcommand| subcommand.get_name() == name);
    let lines = WAY.iter().filter(|(name, ..)| exists(name));
    let lines: String = lines.map(|(_, typed, says)| format!("  dcpi {typed:23}  {says}\n")).collect();
    let fields = "Fields of --format json and csv: dcpi help output";
    format!("From where to why:\n{lines}\n{fields}\nExit codes: 0 done; 1 done, with problems shown; 2 could not.")
}

/// Names of the subcommands, for the classic names of the program.
fn names() -> Vec<String> {
    Arguments::command().get_subcommands().map(|command| command.get_name().to_owned()).collect()
}

/// `dcpi prof`.
#[derive(Debug, Args)]
#[command(after_help = PROF_NOTES)]
pub struct Prof {
    /// Show only these images: name, path, or id (may be cut short); shares are of their samples
    #[arg(value_name = "IMAGE", value_parser = NonEmptyStringValueParser::new())]
    pub images: Vec<String>,
    /// A row per image instead of per procedure
    #[arg(short = 'i', long = "images", conflicts_with = "by")]
    pub by_image: bool,
    /// A row per source line, by function, instead of per procedure
    #[arg(long, conflicts_with_all = ["by_image", "by"])]
    pub lines: bool,
    /// A row per label, unit or process of samples that were kept apart by it, instead of per procedure
    #[arg(long, value_name = "WHAT", value_enum)]
    pub by: Option<Dimension>,
    /// The rows with the most samples that together have P % of them
    #[arg(long, value_name = "P%", value_parser = parse_keep)]
    pub keep: Option<f64>,
    /// At most N rows, 0 for all [default: in text 40, and those from 0.1 %; else all]
    #[arg(short = 'n', value_name = "N")]
    pub rows: Option<usize>,
    /// Sort by this event [default: the first]
    #[arg(long, value_name = "EVENT")]
    pub sort: Option<String>,
    /// What rows look like.
    #[command(flatten)]
    pub look: Look,
    /// Which samples.
    #[command(flatten)]
    pub chosen: Chosen,
    /// How to write.
    #[command(flatten)]
    pub output: Output,
}

const PROF_NOTES: &str = "\
Shares are of all samples of the selected epochs but those of the idle loop; samples of unknown code \
count. A row's interval (Wilson's) holds its true share with the given confidence.

Exit codes: 0 done; 1 done, but part of the database could not be read, or no procedure of any image \
could be found; 2 could not. Images whose file is gone or was rebuilt are told at the end.";

/// `dcpi epochs`.
#[derive(Debug, Args)]
pub struct Epochs {
    /// Which epochs of each host: latest, all, ID, ID..ID, or -N for the Nth before the latest
    #[arg(long, value_name = "WHICH", default_value = "all", allow_hyphen_values = true)]
    pub epoch: EpochChoice,
    /// What to read.
    #[command(flatten)]
    pub source: Source,
    /// How to write.
    #[command(flatten)]
    pub output: Output,
}

/// Options that say what rows look like: the same for every subcommand whose rows are images, procedures or their parts.
#[derive(Clone, Debug, Args)]
pub struct Look {
    /// Count the idle loop too, in rows and shares
    #[arg(long)]
    pub idle: bool,
    /// Confidence of the intervals, in percent
    #[arg(long, value_name = "PERCENT", default_value = "95", value_parser = parse_confidence)]
    pub confidence: Confidence,
    /// Where separate debug files are, besides /usr/lib/debug (may be repeated)
    #[arg(long, value_name = "DIR")]
    pub debug_root: Vec<PathBuf>,
}

/// Options that say which samples: the same for every subcommand that shows counts.
#[derive(Clone, Debug, Args)]
pub struct Chosen {
    /// Event or events to show, separated by commas [default: all]
    #[arg(long = "event", value_name = "EVENT", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    pub events: Vec<String>,
    /// Which epochs of each host: latest, all, ID, ID..ID, or -N for the Nth before the latest
    #[arg(long, value_name = "WHICH", default_value = "latest", allow_hyphen_values = true)]
    pub epoch: EpochChoice,
    /// Everything that was sampled, also of what dcpi record -- COMMAND recorded: without, its command's samples only
    #[arg(short = 'a', long = "all")]
    pub all: bool,
    /// What to read.
    #[command(flatten)]
    pub source: Source,
}

/// Which database.
#[derive(Clone, Debug, Args)]
pub struct Place {
    /// The database's directory
    #[arg(long, value_name = "DIR", env = "DCPIDB", hide_env_values = true, default_value = DEFAULT_DB, value_parser = path_or_empty())]
    db: PathBuf,
}

impl Place {
    /// The database's directory; an empty `$DCPIDB` counts as none.
    #[must_use]
    pub fn db(&self) -> &Path {
        if self.db.as_os_str().is_empty() { Path::new(DEFAULT_DB) } else { &self.db }
    }
}

/// Options that say what to read.
#[derive(Clone, Debug, Args)]
pub struct Source {
    /// Which database.
    #[command(flatten)]
    place: Place,
    /// Only this host's epochs [default: all hosts]
    #[arg(long, value_name = "HOST")]
    pub host: Option<String>,
    /// Only epochs of this label (dcpictl epoch --label)
    #[arg(long, value_name = "LABEL")]
    pub epoch_label: Option<String>,
    /// Whose samples.
    #[command(flatten)]
    pub scope: ScopeChoice,
}

impl Source {
    /// The database's directory; an empty `$DCPIDB` counts as none.
    #[must_use]
    pub fn db(&self) -> &Path {
        self.place.db()
    }

    /// The same, but for what a set says itself.
    #[must_use]
    pub fn narrowed(&self, set: &SetChoice) -> Self {
        let either = |said: &Option<String>, else_: &Option<String>| said.clone().or_else(|| else_.clone());
        let scope = ScopeChoice {
            label: either(&set.label, &self.scope.label),
            unit: either(&set.unit, &self.scope.unit),
            pid: set.pid.or(self.scope.pid),
        };
        Self {
            place: set.db.clone().map_or_else(|| self.place.clone(), |db| Place { db }),
            host: either(&set.host, &self.host),
            epoch_label: either(&set.epoch_label, &self.epoch_label),
            scope,
        }
    }
}

/// Options that say how to write.
#[derive(Debug, Args)]
pub struct Output {
    /// For people, programs, or spreadsheets (fields: dcpi help output)
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Names in full length, however wide lines get, and with what compilers appended to them (.isra.0); other formats always have those
    #[arg(long, visible_alias = "wide")]
    pub full_names: bool,
}

/// Forms of a report.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
    /// For spreadsheets.
    Csv,
}

/// A path; an empty one too, which the usual parser refuses: an empty `$DCPIDB` is no mistake.
fn path_or_empty() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

pub(crate) fn parse_confidence(text: &str) -> Result<Confidence, String> {
    percentage(text)
        .filter(|percent| *percent >= 50.0) // 0.95 is 95 % mistyped: nobody wants to be wrong more often than right
        .and_then(Confidence::from_percent)
        .ok_or_else(|| "must be a percentage from 50 and below 100, such as 95 or 99.9".to_owned())
}

/// The cumulative share to keep, as a fraction.
fn parse_keep(text: &str) -> Result<f64, String> {
    percentage(text)
        .filter(|percent| *percent > 0.0 && *percent <= 100.0)
        .map(|percent| percent / 100.0)
        .ok_or_else(|| "must be a percentage above 0, such as 90%".to_owned())
}

/// A number with or without a percent sign.
fn percentage(text: &str) -> Option<f64> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    number.parse().ok()
}

/// A time with its unit: `500ms`, `10s`, `5m`, `1h`.
pub(crate) fn parse_time(text: &str, min: Duration, max: Duration) -> Result<Duration, String> {
    let units = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
    let ms = units.iter().find_map(|(unit, ms)| text.strip_suffix(unit)?.trim().parse::<u64>().ok()?.checked_mul(*ms));
    let time = ms.map(Duration::from_millis).filter(|time| (min..=max).contains(time));
    time.ok_or_else(|| format!("must be a time from {min:?} to {max:?} with its unit, such as 500ms, 10s or 5m"))
}

/// What was asked for.
#[derive(Debug)]
pub enum Invocation {
    /// A subcommand.
    Run(Box<Command>),
    /// A text to show: help or version.
    Show(String),
}

/// Understands a command line, the program's name included.
///
/// # Errors
/// [`AnalysisError::Usage`].
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Invocation, AnalysisError> {
    let arguments = with_marked_epochs(with_classic_name(arguments.into_iter().collect()));
    if arguments.get(1..).is_some_and(|words| words == ["help", "output"]) {
        return Ok(Invocation::Show(OUTPUT.to_owned()));
    }
    let command = arguments.get(1).and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    match Arguments::try_parse_from(arguments) {
        Ok(arguments) => Ok(Invocation::Run(Box::new(arguments.command))),
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            Ok(Invocation::Show(error.render().to_string()))
        }
        Err(error) => {
            let known = names().contains(&command);
            Err(usage(&error, if known { format!("dcpi {command} --help") } else { "dcpi help".to_owned() }))
        }
    }
}

/// Makes `dcpi prof` of `dcpiprof`.
fn with_classic_name(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let name = arguments.first().and_then(|path| Path::new(path).file_name()).and_then(|name| name.to_str());
    let command = name.and_then(|name| name.strip_prefix("dcpi"));
    if let Some(command) = names().into_iter().find(|known| command == Some(known)) {
        arguments.splice(..1, [OsString::from("dcpi"), OsString::from(command)]);
    }
    arguments
}

/// Puts an `@` in front of each SET of `stats` and `diff` that is a range of epochs and begins with a dash, such as `-3..latest`. The
/// argument parser takes `-3` for a value, but the begin of a range for an option; letting it take all words with a dash for
/// values (clap's `allow_hyphen_values`) would make sets of the options behind the first SET.
fn with_marked_epochs(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let takes_sets = arguments.get(1).is_some_and(|command| command == "stats" || command == "diff");
    let mut previous = OsString::new();
    for argument in arguments.iter_mut().skip(2).filter(|_| takes_sets) {
        let text = argument.to_str().unwrap_or_default();
        if text.starts_with('-') && previous != "--epoch" && text.parse::<EpochChoice>().is_ok() {
            *argument = format!("@{text}").into();
        }
        previous.clone_from(argument);
    }
    arguments
}

/// One line of what the argument parser says in many, and where there is more.
fn usage(error: &clap::Error, help: String) -> AnalysisError {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        || error.kind() == ErrorKind::MissingSubcommand
    {
        let message = format!("no subcommand is given: one of {}", names().join(", "));
        return AnalysisError::Usage { message, help };
    }
    let text = error.render().to_string();
    let said: Vec<&str> =
        text.strip_prefix("error: ").unwrap_or(&text).lines().take_while(|line| !line.trim().is_empty()).collect();
    let mut message = said.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
    let suggestions = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue];
    let suggested = suggestions.into_iter().find_map(|kind| match error.get(kind)? {
        ContextValue::String(one) => Some(one.clone()),
        // The most alike comes last.
        ContextValue::Strings(some) => some.last().cloned(),
        _ => None,
    });
    if let Some(suggested) = suggested {
        message.push_str(&format!(" (did you mean {suggested}?)"));
    }
    AnalysisError::Usage { message, help }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn the_definitions_are_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn classic_names_are_subcommands() {
        assert!(prof("/usr/bin/dcpiprof -i libc").by_image);
        assert!(prof("dcpi prof -i libc").by_image);
        assert_eq!(prof("dcpiprof --by label").by, Some(Dimension::Label));
        assert!(matches!(run("dcpiepochs"), Ok(Invocation::Run(command)) if matches!(*command, Command::Epochs(_))));
        assert!(matches!(run("dcpiwhat"), Err(AnalysisError::Usage { .. })));
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
    fn an_empty_database_name_is_none() {
        let mut args = prof("dcpi prof");
        args.chosen.source.place.db = PathBuf::new();
        assert_eq!(args.chosen.source.db(), Path::new(DEFAULT_DB));
    }

    #[test]
    fn mistakes_are_told_in_one_line() {
        for (line, said) in [
            (
                "dcpi",
                "no subcommand is given: one of prof, list, calc, whatcg, topstalls, flow, truth, topcounts, stats, diff, images, epochs",
            ),
            ("dcpi prod", "unrecognized subcommand 'prod' (did you mean prof?); see dcpi help"),
            ("dcpi prof --evnt x", "unexpected argument '--evnt' found (did you mean --event?); see dcpi prof --help"),
            ("dcpi prof --confidence 100", "invalid value '100' for '--confidence <PERCENT>': must be"),
            ("dcpi prof --keep 0", "invalid value '0' for '--keep <P%>': must be a percentage above 0"),
            ("dcpi prof --epoch tomorrow", "invalid value 'tomorrow' for '--epoch <WHICH>': is none of latest"),
            ("dcpi prof --format jsn", "(did you mean json?)"),
            ("dcpi prof -n", "a value is required for '-n <N>'"),
        ] {
            let error = run(line).unwrap_err().to_string();
            assert!(error.contains(said), "{line}: {error}");
            assert!(!error.contains('\n'), "{line}: {error}");
        }
    }

    #[test]
    fn help_and_version_are_no_errors() {
        for line in ["dcpi help", "dcpi --help", "dcpi prof --help", "dcpi help prof", "dcpi --version", "dcpiprof -h"]
        {
            assert!(matches!(run(line), Ok(Invocation::Show(_))), "{line}");
        }
    }
}
