//! Options that several commands have, each group once. Their help is made from this file.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{
    FalseyValueParser, NonEmptyStringValueParser, OsStringValueParser, TypedValueParser,
};
use clap::{Args, FromArgMatches, ValueEnum};
use code::isa::Syntax;
use compare::{Comparison, Renamed};
use profiledb::Stretch;
use query::DEFAULT_DB;
use query::error::AnalysisError;
use query::load::Question;
use query::select::{EpochChoice, Epochs as WhichEpochs};
use query::times::{self, Moment};
use query::zone::Zone;
use stats::Confidence;

mod scope;

pub use scope::{By, OfThreads, ScopeArgs};

/// Parses the options of one command as if they had been typed after its name.
///
/// # Errors
/// Clap's message for words that the command does not take.
pub fn typed<Options: Args + FromArgMatches>(
    words: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<Options, clap::Error> {
    let command = Options::augment_args(clap::Command::new("dcpi").no_binary_name(true));
    Options::from_arg_matches(&command.try_get_matches_from(words)?)
}

/// `dcpi prof`.
#[derive(Clone, Debug, Args)]
#[command(after_help = PROF_NOTES)]
pub struct Prof {
    /// Only these images: name, path, or id (may be cut short); shares are of their samples
    #[arg(value_name = "IMAGE", value_parser = NonEmptyStringValueParser::new())]
    pub images: Vec<String>,
    /// A row per image instead of per procedure
    #[arg(short = 'i', long = "images", conflicts_with = "by")]
    pub by_image: bool,
    /// A row per source line, by function, instead of per procedure
    #[arg(long, conflicts_with_all = ["by_image", "by"])]
    pub lines: bool,
    /// Beside the time of each procedure itself its time with all that it called, from call
    /// stacks; rows are sorted by that, and shares are of the samples of all images
    #[arg(long, conflicts_with_all = ["by_image", "lines", "by", "keep"])]
    pub inclusive: bool,
    /// A row per function instead of per procedure: a sample counts for the innermost function that
    /// is inlined where it was taken, which debug information says
    #[arg(long, conflicts_with_all = ["by_image", "lines", "by"])]
    pub inlined: bool,
    /// With --inclusive: procedures only, whose time has that of the functions inlined into them
    #[arg(long, requires = "inclusive", conflicts_with = "inlined")]
    pub no_inlined: bool,
    /// A row per label, unit, process, command or thread instead of per procedure
    #[arg(long, value_name = "WHAT", value_enum)]
    pub by: Option<By>,
    /// A row per value of a label (Go) or attribute (OpenTelemetry) that programs set for their
    /// threads, from call stacks
    #[arg(
        long,
        value_name = "KEY",
        conflicts_with_all = ["by_image", "lines", "inclusive", "inlined", "by"],
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub by_attribute: Option<String>,
    /// Only the rows with the most samples, until they have P % of all samples together
    #[arg(long, value_name = "P%", value_parser = parse_keep)]
    pub keep: Option<f64>,
    /// At most N rows, 0 for all [default: in text 40 rows of at least 0.1 % of the samples; else
    /// all]
    #[arg(short = 'n', value_name = "N", value_parser = parse_rows, allow_negative_numbers = true)]
    pub rows: Option<usize>,
    /// Sort rows by the samples of this event [default: the first event]
    #[arg(long, value_name = "EVENT")]
    pub sort: Option<String>,
    #[command(flatten)]
    pub look: DisplayArgs,
    #[command(flatten)]
    pub chosen: Chosen,
    #[command(flatten)]
    pub threads: OfThreads,
    #[command(flatten)]
    pub output: Output,
}

const PROF_NOTES: &str = "\
A share is a part of all samples of the selected epochs, including samples of unknown code, but \
not those of the idle loop. The interval of a row (Wilson's) holds the row's true share with the \
given confidence. Notes below the table name images whose file is gone or was rebuilt.

With --inclusive, samples tell how long a procedure took itself, and call stacks divide that time \
among its callers; a stack counts once for a procedure that it has several times. A function that \
is inlined into a procedure is a row of its own, marked (inlined), where debug information is on \
this machine; its samples and stacks are no longer the procedure's own. 'dcpi callers' \
and 'dcpi tree' tell more. Every report of call stacks takes --event usertime: wall-clock time of \
threads, running or not, where cpu-clock was sampled.

Exit codes: 0 done; 1 done, but part of the database could not be read, or no procedure of any \
image could be found; 2 could not.";

/// `dcpi epochs`.
#[derive(Debug, Args)]
pub struct Epochs {
    /// Epochs of each host: latest, all, ID, ID..ID, or -N for the Nth before the latest (-1: the
    /// last but one)
    #[arg(long, value_name = "WHICH", default_value = "all", allow_hyphen_values = true)]
    pub epoch: EpochChoice,
    #[command(flatten)]
    pub source: Source,
    #[command(flatten)]
    pub output: Output,
}

/// Idle loop, confidence and debug files: options of every subcommand whose rows are images,
/// procedures or their parts.
#[derive(Clone, Debug, Args)]
pub struct DisplayArgs {
    /// Include the samples of the idle loop in rows and shares
    #[arg(long)]
    pub idle: bool,
    /// Confidence of the intervals, in percent
    #[arg(long, value_name = "PERCENT", default_value = "95", value_parser = parse_confidence)]
    pub confidence: Confidence,
    /// Directory of separate debug files, besides /usr/lib/debug (may be repeated)
    #[arg(long, value_name = "DIR")]
    pub debug_root: Vec<PathBuf>,
}

/// A stretch of time: options of every subcommand that reads epochs in part.
#[derive(Clone, Debug, Default, Args)]
pub struct Time {
    /// Only from this time on: HH:MM (the last such time here), -10min, -2h, or a date with time,
    /// 2026-11-24T14:00:00Z; all epochs are read, unless --epoch names some
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub since: Option<Moment>,
    /// Only until this time. What was merged across it is read too: the report's head has the time
    /// that is really covered
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub until: Option<Moment>,
}

impl Time {
    /// The stretch of time that is asked for; None: all time.
    ///
    /// # Errors
    /// [`AnalysisError::Refused`] for one of no time, or of the future.
    pub fn stretch(&self) -> Result<Option<Stretch>, AnalysisError> {
        let (since, until) = (self.since.as_ref(), self.until.as_ref());
        times::stretch(since, until, times::now_unix_s(), &Zone::here())
            .map_err(AnalysisError::Refused)
    }
}

/// Events, epochs and database: options of every subcommand that shows counts.
#[derive(Clone, Debug, Args)]
pub struct Chosen {
    /// Events to show, separated by commas [default: all]
    #[arg(
        long = "event",
        value_name = "EVENT",
        value_delimiter = ',',
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub events: Vec<String>,
    /// Epochs of each host: latest, all, ID, ID..ID, or -N for the Nth before the latest (-1: the
    /// last but one)
    #[arg(long, value_name = "WHICH", default_value = "latest", allow_hyphen_values = true)]
    pub epoch: EpochChoice,
    #[command(flatten)]
    pub time: Time,
    /// Of a recording of dcpi record -- COMMAND, the samples of the whole machine [default: those
    /// of COMMAND]
    #[arg(short = 'a', long = "all")]
    pub all: bool,
    #[command(flatten)]
    pub source: Source,
}

/// A procedure of an image, by name.
#[derive(Clone, Debug, Args)]
pub struct ProcedureArguments {
    /// The image: name, path, or id (may be cut short)
    #[arg(value_name = "IMAGE", value_parser = NonEmptyStringValueParser::new())]
    pub image: String,
    /// The procedure: its name, a part of its name, or an address in it (0x1040)
    #[arg(value_name = "PROCEDURE", value_parser = NonEmptyStringValueParser::new())]
    pub procedure: String,
}

/// The syntax of instructions, for each command that shows some.
#[derive(Clone, Copy, Debug, Args)]
pub struct SyntaxArgument {
    /// Instructions in the syntax of Intel's manuals, destination first [default: AT&T's syntax]
    #[arg(long)]
    pub intel: bool,
}

impl SyntaxArgument {
    /// Intel's, if it is asked for, else AT&T's.
    pub const fn syntax(self) -> Syntax {
        if self.intel { Syntax::Intel } else { Syntax::Att }
    }
}

/// The most rows of a table. A command with another default or help changes the argument `rows`
/// with `mut_arg`.
#[derive(Clone, Copy, Debug, Args)]
pub struct RowLimit {
    /// At most N rows, 0 for all
    #[arg(
        short = 'n',
        value_name = "N",
        default_value = "40",
        value_parser = parse_rows,
        allow_negative_numbers = true
    )]
    pub rows: usize,
}

impl RowLimit {
    /// How many of `all` rows are shown.
    pub fn of(self, all: usize) -> usize {
        if self.rows == 0 { all } else { self.rows.min(all) }
    }
}

/// The database's directory.
#[derive(Clone, Debug, Args)]
pub struct Place {
    /// The database's directory
    #[arg(
        long,
        value_name = "DIR",
        env = "DCPIDB",
        hide_env_values = true,
        default_value = DEFAULT_DB,
        value_parser = path_or_empty()
    )]
    db: PathBuf,
}

impl Place {
    /// The database's directory; an empty `$DCPIDB` counts as none. An empty `--db` never comes
    /// here: [`crate::command_line::parse`] refuses it.
    pub fn db(&self) -> &Path {
        if self.db.as_os_str().is_empty() { Path::new(DEFAULT_DB) } else { &self.db }
    }
}

/// Database, host, label and scope: options of every subcommand that reads epochs.
#[derive(Clone, Debug, Args)]
pub struct Source {
    #[command(flatten)]
    place: Place,
    /// Only epochs of this host [default: all hosts]
    #[arg(long, value_name = "HOST")]
    pub host: Option<String>,
    /// Only epochs with this label (dcpictl epoch --label)
    #[arg(long, value_name = "LABEL")]
    pub epoch_label: Option<String>,
    #[command(flatten)]
    pub scope: ScopeArgs,
}

impl Source {
    /// The database's directory; an empty `$DCPIDB` counts as none.
    pub fn db(&self) -> &Path {
        self.place.db()
    }

    /// The epochs that `which` selects, of the host and label asked for.
    pub fn epochs(&self, which: &EpochChoice) -> WhichEpochs {
        WhichEpochs {
            host: self.host.clone(),
            label: self.epoch_label.clone(),
            which: which.clone(),
            stretch: None,
        }
    }
}

impl Chosen {
    /// The question for the samples of these images; of all images if there are none.
    pub fn question(&self, images: &[String]) -> Result<Question, AnalysisError> {
        let stretch = self.time.stretch()?;
        Ok(Question {
            db: self.source.db().to_owned(),
            epochs: WhichEpochs { stretch, ..self.source.epochs(&self.epoch) },
            events: self.events.clone(),
            images: images.to_vec(),
            whose: self.source.scope.choice(),
            all: self.all,
            by_scope: false,
        })
    }
}

/// The part of call stacks that a tree shows: options of `dcpi tree` and `dcpi flame`.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct OfCalls {
    /// Begin at this procedure, and leave out stacks without it; shares are of its time with all
    /// that it called. As for dcpi callers: its name, a part of its name or its address, where
    /// needed with its image before it
    #[arg(
        long,
        value_name = "[IMAGE] PROCEDURE",
        num_args = 1..=2,
        conflicts_with_all = ["by_thread", "by_attribute"],
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub from: Vec<String>,
    /// At most N calls above each other
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub depth: Option<u32>,
    /// Leave out the kernel's frames: what the kernel does for a procedure is its own time
    #[arg(long)]
    pub no_kernel: bool,
    /// Leave out inlined functions: their time is that of the procedure with the code
    #[arg(long)]
    pub no_inlined: bool,
}

/// Options of the commands that compare sets.
#[derive(Debug, Args)]
pub struct Compared {
    /// The event to compare [default: the first event]
    #[arg(long, value_name = "EVENT", value_parser = NonEmptyStringValueParser::new())]
    pub event: Option<String>,
    /// Only this image: name, path, or id (may be repeated); shares are of the samples of these
    /// images
    #[arg(long = "image", value_name = "IMAGE", value_parser = NonEmptyStringValueParser::new())]
    pub of_images: Vec<String>,
    /// A row per image instead of per procedure
    #[arg(short = 'i', long = "images")]
    pub by_image: bool,
    /// Take images named OLD, or at that path, for NEW (may be repeated): for builds whose files
    /// have different names
    #[arg(long = "map", value_name = "OLD=NEW")]
    pub renamed: Vec<Renamed>,
    /// Leave out rows with fewer than N samples in all sets together [default: 5 for each set]
    #[arg(long, value_name = "N")]
    pub min_samples: Option<u64>,
    /// At most N rows, 0 for all [default: in text 40, else all]
    #[arg(short = 'n', value_name = "N", value_parser = parse_rows, allow_negative_numbers = true)]
    pub rows: Option<usize>,
    #[command(flatten)]
    pub look: DisplayArgs,
    /// Epochs of each host, for a SET that names none: latest, all, ID, ID..ID, or -N for the Nth
    /// before the latest
    #[arg(long, value_name = "WHICH", default_value = "latest", allow_hyphen_values = true)]
    pub epoch: EpochChoice,
    #[command(flatten)]
    pub time: Time,
    /// Of a recording of dcpi record -- COMMAND, the samples of the whole machine [default: those
    /// of COMMAND]
    #[arg(short = 'a', long = "all")]
    pub all: bool,
    #[command(flatten)]
    pub source: Source,
    #[command(flatten)]
    pub output: Output,
}

impl Compared {
    /// The question that each set answers, and how to compare.
    pub fn comparison(&self) -> Result<Comparison, AnalysisError> {
        let stretch = self.time.stretch()?;
        Ok(Comparison {
            source: Question {
                db: self.source.db().to_owned(),
                epochs: WhichEpochs { stretch, ..self.source.epochs(&self.epoch) },
                images: self.of_images.clone(),
                whose: self.source.scope.choice(),
                all: self.all,
                ..Question::default()
            },
            own_times: false,
            event: self.event.clone(),
            by_image: self.by_image,
            idle: self.look.idle,
            debug_roots: self.look.debug_root.clone(),
            confidence: self.look.confidence,
            min_samples: self.min_samples,
            renamed: self.renamed.clone(),
            rows: self.rows,
        })
    }
}

/// Format and length of names: options of every subcommand that writes a report.
#[derive(Clone, Debug, Args)]
pub struct Output {
    /// Format of the report (fields of JSON and CSV: dcpi help output)
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Names in full length and with the suffixes of compilers (.isra.0), however wide lines get;
    /// JSON and CSV always have full names
    #[arg(long, visible_alias = "wide")]
    pub full_names: bool,
    /// All lines of the head and all notes: where samples are from, how they were taken, what is
    /// missing
    #[arg(long, short = 'v', env = "DCPI_VERBOSE", value_parser = FalseyValueParser::new())]
    pub verbose: bool,
}

/// Formats of a report.
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
        // 0.95 is taken for a mistyped 95 %: a confidence below 50 % makes no sense.
        .filter(|percent| *percent >= 50.0)
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

/// The smallest share that is shown, as a fraction.
pub(crate) fn parse_min(text: &str) -> Result<f64, String> {
    percentage(text)
        .filter(|percent| (0.0..=100.0).contains(percent))
        .map(|percent| percent / 100.0)
        .ok_or_else(|| "must be a percentage from 0 to 100, such as 1%".to_owned())
}

/// A change of a time that matters, as a fraction.
pub(crate) fn parse_effect(text: &str) -> Result<f64, String> {
    percentage(text)
        .filter(|percent| (0.01..=1000.0).contains(percent))
        .map(|percent| percent / 100.0)
        .ok_or_else(|| "must be a percentage from 0.01 to 1000, such as 2%".to_owned())
}

pub(crate) fn parse_timeout(text: &str) -> Result<Duration, String> {
    parse_time(text, Duration::from_millis(1), Duration::from_secs(7 * 24 * 3600))
}

/// A number with or without a percent sign.
fn percentage(text: &str) -> Option<f64> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    number.parse().ok()
}

/// A number of rows. `-n -1` comes here because its options allow negative numbers: else clap calls
/// `-1` an unexpected argument.
pub(crate) fn parse_rows(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "must be a number of 0 or more".to_owned())
}

/// A time with its unit, `500ms`, `10s`, `5m`, `1h`, or in seconds: `10`, `0.5`.
pub(crate) fn parse_time(text: &str, min: Duration, max: Duration) -> Result<Duration, String> {
    let time = with_unit(text).or_else(|| in_seconds(text));
    time.filter(|time| (min..=max).contains(time)).ok_or_else(|| {
        format!("must be a time from {min:?} to {max:?}, such as 500ms, 10s or 5m; 10 is 10s")
    })
}

pub(crate) fn with_unit(text: &str) -> Option<Duration> {
    let units = [
        ("ms", 1),
        ("s", 1000),
        ("min", 60_000),
        ("m", 60_000),
        ("h", 3_600_000),
        ("d", 86_400_000),
    ];
    let ms = units.iter().find_map(|(unit, ms)| {
        text.strip_suffix(unit)?.trim().parse::<u64>().ok()?.checked_mul(*ms)
    });
    ms.map(Duration::from_millis)
}

fn in_seconds(text: &str) -> Option<Duration> {
    // Floats also parse names such as NaN.
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let seconds = text.parse().ok().filter(|_| is_number)?;
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_or_are_seconds() {
        let time = |text: &str| parse_time(text, Duration::ZERO, Duration::from_secs(3600)).ok();
        for (text, ms) in
            [("3", 3000), ("3s", 3000), ("0.5", 500), ("500ms", 500), ("5min", 300_000), ("0", 0)]
        {
            assert_eq!(time(text), Some(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "-1", "1e3", "inf", "nan", "1.5s", "3601", "1.2.3", "3 x"] {
            assert_eq!(time(text), None, "{text}");
        }
    }

    #[test]
    fn an_empty_database_name_is_none() {
        let mut prof: Prof = typed(["--db", "/d"]).unwrap();
        assert_eq!(prof.chosen.source.db(), Path::new("/d"));
        prof.chosen.source.place.db = PathBuf::new();
        assert_eq!(prof.chosen.source.db(), Path::new(DEFAULT_DB));
    }
}
