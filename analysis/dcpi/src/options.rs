//! Options that several commands have, each group once. Their help is made from this file.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{NonEmptyStringValueParser, OsStringValueParser, TypedValueParser};
use clap::{Args, FromArgMatches, ValueEnum};
use query::DEFAULT_DB;
use query::load::Question;
use query::scope::{Dimension, ScopeChoice};
use query::select::{EpochChoice, Epochs as WhichEpochs};
use sets::Comparison;
use stats::Confidence;

/// Understands the options of one command as if they had been typed behind its name.
///
/// # Errors
/// What clap says of words that the command does not take.
pub fn typed<Options: Args + FromArgMatches>(
    words: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<Options, clap::Error> {
    let command = Options::augment_args(clap::Command::new("dcpi").no_binary_name(true));
    Options::from_arg_matches(&command.try_get_matches_from(words)?)
}

/// `dcpi prof`.
#[derive(Debug, Args)]
#[command(after_help = PROF_NOTES)]
pub struct Prof {
    /// Show only these images, by name, path, or (the begin of) an id; shares are of their samples
    #[arg(value_name = "IMAGE", value_parser = NonEmptyStringValueParser::new())]
    pub images: Vec<String>,
    /// A row per image instead of per procedure
    #[arg(short = 'i', long = "images", conflicts_with = "by")]
    pub by_image: bool,
    /// A row per source line, by function, instead of per procedure
    #[arg(long, conflicts_with_all = ["by_image", "by"])]
    pub lines: bool,
    /// A row per label, unit or process, of samples that were kept apart by it, instead of per
    /// procedure
    #[arg(long, value_name = "WHAT", value_enum)]
    pub by: Option<By>,
    /// The rows with the most samples, as many as together have P % of all samples
    #[arg(long, value_name = "P%", value_parser = parse_keep)]
    pub keep: Option<f64>,
    /// At most N rows, 0 for all [default: in text 40 rows of at least 0.1 %; else all]
    #[arg(short = 'n', value_name = "N", value_parser = parse_rows, allow_negative_numbers = true)]
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
Shares are of all samples of the selected epochs except those of the idle loop; samples of \
unknown code count. The interval of a row (Wilson's) holds the row's true share with the given \
confidence.

Exit codes: 0 done; 1 done, but part of the database could not be read, or no procedure of any \
image could be found; 2 could not. The end of the report names images whose file is gone or was \
rebuilt.";

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

/// Options that say what rows look like: the same for every subcommand whose rows are images,
/// procedures or their parts.
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
    #[arg(
        long = "event",
        value_name = "EVENT",
        value_delimiter = ',',
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub events: Vec<String>,
    /// Which epochs of each host: latest, all, ID, ID..ID, or -N for the Nth before the latest
    #[arg(long, value_name = "WHICH", default_value = "latest", allow_hyphen_values = true)]
    pub epoch: EpochChoice,
    /// All samples of a database of dcpi record -- COMMAND; without -a, those of COMMAND only
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
    pub scope: Whose,
}

impl Source {
    /// The database's directory; an empty `$DCPIDB` counts as none.
    #[must_use]
    pub fn db(&self) -> &Path {
        self.place.db()
    }

    /// Which epochs of it.
    #[must_use]
    pub fn epochs(&self, which: &EpochChoice) -> WhichEpochs {
        WhichEpochs {
            host: self.host.clone(),
            label: self.epoch_label.clone(),
            which: which.clone(),
        }
    }
}

impl Chosen {
    /// The samples of these images; none: of all.
    #[must_use]
    pub fn question(&self, images: &[String]) -> Question {
        Question {
            db: self.source.db().to_owned(),
            epochs: self.source.epochs(&self.epoch),
            events: self.events.clone(),
            images: images.to_vec(),
            whose: self.source.scope.choice(),
            all: self.all,
            by_scope: false,
        }
    }
}

/// Options that choose among samples that were kept apart; without any, all are summed up.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct Whose {
    /// Only samples of runs with this label (dcpilabel LABEL COMMAND)
    #[arg(long, value_name = "LABEL", value_parser = NonEmptyStringValueParser::new())]
    pub label: Option<String>,
    /// Only samples of this systemd unit or container (dcpid --by-unit)
    #[arg(long, value_name = "UNIT", value_parser = NonEmptyStringValueParser::new())]
    pub unit: Option<String>,
    /// Only samples of this process, in images that are kept apart by process (dcpid --per-process
    /// IMAGE)
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
}

impl Whose {
    /// The choice.
    #[must_use]
    pub fn choice(&self) -> ScopeChoice {
        ScopeChoice { label: self.label.clone(), unit: self.unit.clone(), pid: self.pid }
    }
}

/// What samples can be kept apart by.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// A row per label.
    Label,
    /// A row per systemd unit or container.
    Unit,
    /// A row per process.
    Pid,
}

impl From<By> for Dimension {
    fn from(by: By) -> Self {
        match by {
            By::Label => Self::Label,
            By::Unit => Self::Unit,
            By::Pid => Self::Pid,
        }
    }
}

/// Options of the commands that compare sets.
#[derive(Debug, Args)]
pub struct Compared {
    /// The event to compare [default: the first]
    #[arg(long, value_name = "EVENT", value_parser = NonEmptyStringValueParser::new())]
    pub event: Option<String>,
    /// Only these images: name, path, or id (may be repeated); shares are of their samples
    #[arg(long = "image", value_name = "IMAGE", value_parser = NonEmptyStringValueParser::new())]
    pub of_images: Vec<String>,
    /// A row per image instead of per procedure
    #[arg(short = 'i', long = "images")]
    pub by_image: bool,
    /// Fold rows that have fewer than N samples in all sets together [default: 5 for each set]
    #[arg(long, value_name = "N")]
    pub min_samples: Option<u64>,
    /// At most N rows, 0 for all [default: in text 40, else all]
    #[arg(short = 'n', value_name = "N", value_parser = parse_rows, allow_negative_numbers = true)]
    pub rows: Option<usize>,
    /// What rows look like.
    #[command(flatten)]
    pub look: Look,
    /// Which epochs of each host, where a SET does not say: latest, all, ID, ID..ID, or -N for the
    /// Nth before the latest
    #[arg(long, value_name = "WHICH", default_value = "latest", allow_hyphen_values = true)]
    pub epoch: EpochChoice,
    /// All samples of a database of dcpi record -- COMMAND; without -a, those of COMMAND only
    #[arg(short = 'a', long = "all")]
    pub all: bool,
    /// What to read, where a SET does not say.
    #[command(flatten)]
    pub source: Source,
    /// How to write.
    #[command(flatten)]
    pub output: Output,
}

impl Compared {
    /// What to compare.
    #[must_use]
    pub fn comparison(&self) -> Comparison {
        Comparison {
            source: Question {
                db: self.source.db().to_owned(),
                epochs: self.source.epochs(&self.epoch),
                images: self.of_images.clone(),
                whose: self.source.scope.choice(),
                all: self.all,
                ..Question::default()
            },
            event: self.event.clone(),
            by_image: self.by_image,
            idle: self.look.idle,
            debug_roots: self.look.debug_root.clone(),
            confidence: self.look.confidence,
            min_samples: self.min_samples,
            rows: self.rows,
        }
    }
}

/// Options that say how to write.
#[derive(Debug, Args)]
pub struct Output {
    /// Form of the report (fields of JSON and CSV: dcpi help output)
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Names in full length, however wide lines get, with the suffixes of compilers (.isra.0);
    /// JSON and CSV always have full names
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
        // 0.95 is 95 % mistyped: nobody wants to be wrong more often than right.
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

/// A number with or without a percent sign.
fn percentage(text: &str) -> Option<f64> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    number.parse().ok()
}

/// How many rows. `-n -1` comes here because its options allow negative numbers: else clap calls
/// `-1` an unexpected argument.
pub(crate) fn parse_rows(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "must be a number of 0 or more".to_owned())
}

/// A time with its unit: `500ms`, `10s`, `5m`, `1h`.
pub(crate) fn parse_time(text: &str, min: Duration, max: Duration) -> Result<Duration, String> {
    let units = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
    let ms = units.iter().find_map(|(unit, ms)| {
        text.strip_suffix(unit)?.trim().parse::<u64>().ok()?.checked_mul(*ms)
    });
    let time = ms.map(Duration::from_millis).filter(|time| (min..=max).contains(time));
    time.ok_or_else(|| {
        format!("must be a time from {min:?} to {max:?} with its unit, such as 500ms, 10s or 5m")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_database_name_is_none() {
        let mut prof: Prof = typed(["--db", "/d"]).unwrap();
        assert_eq!(prof.chosen.source.db(), Path::new("/d"));
        prof.chosen.source.place.db = PathBuf::new();
        assert_eq!(prof.chosen.source.db(), Path::new(DEFAULT_DB));
    }
}
